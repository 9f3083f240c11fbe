//! The host of a native test: whoever is installed on this thread for the length of one call into the plugin.

use std::{cell::RefCell, rc::Rc};

use crate::contract::pilothouse::plugin::{
    cache::{KeyPage, Page, Query, ReadError},
    client::{Error, PatchBody, Preconditions, Propagation},
    log::Level,
    types::{Key, Subresource, TypeMeta},
};

/// What the contract imports, one method for each function.
pub(crate) trait Host {
    fn cache_get(&self, of: &TypeMeta, key: &Key) -> Result<Option<String>, ReadError>;
    fn cache_list(&self, query: &Query) -> Result<Page, ReadError>;
    fn cache_keys(&self, query: &Query) -> Result<KeyPage, ReadError>;
    fn get(&self, of: &TypeMeta, key: &Key) -> Result<String, Error>;
    fn create(&self, object: &str) -> Result<String, Error>;
    fn update(&self, object: &str, subresource: Option<Subresource>) -> Result<String, Error>;
    fn patch(
        &self,
        of: &TypeMeta,
        key: &Key,
        body: &PatchBody,
        subresource: Option<Subresource>,
    ) -> Result<String, Error>;
    fn apply(&self, object: &str, subresource: Option<Subresource>, force: bool) -> Result<String, Error>;
    fn delete(
        &self,
        of: &TypeMeta,
        key: &Key,
        propagation: Propagation,
        preconditions: &Preconditions,
    ) -> Result<(), Error>;
    fn log(&self, level: Level, message: &str, fields: &[(String, String)]);
    fn now(&self) -> u64;
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Host>>> = const { RefCell::new(None) };
}

/// Calls `f` with `host` behind the imports of this thread, and takes it away again, also if `f` panics.
pub(crate) fn with_host<T>(host: Rc<dyn Host>, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Rc<dyn Host>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.with_borrow_mut(|current| *current = self.0.take());
        }
    }
    let _restore = Restore(CURRENT.with_borrow_mut(|current| current.replace(host)));
    f()
}

fn host() -> Rc<dyn Host> {
    CURRENT.with_borrow(Clone::clone).expect(
        "no host answers here: natively a plugin is called through pilothouse_sdk::mock::MockHost, and while it describes \
         itself it may call nothing",
    )
}

pub(crate) fn cache_get(of: &TypeMeta, key: &Key) -> Result<Option<String>, ReadError> {
    host().cache_get(of, key)
}

pub(crate) fn cache_list(query: &Query) -> Result<Page, ReadError> {
    host().cache_list(query)
}

pub(crate) fn cache_keys(query: &Query) -> Result<KeyPage, ReadError> {
    host().cache_keys(query)
}

pub(crate) fn get(of: &TypeMeta, key: &Key) -> Result<String, Error> {
    host().get(of, key)
}

pub(crate) fn create(object: &str) -> Result<String, Error> {
    host().create(object)
}

pub(crate) fn update(object: &str, subresource: Option<Subresource>) -> Result<String, Error> {
    host().update(object, subresource)
}

pub(crate) fn patch(
    of: &TypeMeta,
    key: &Key,
    body: &PatchBody,
    subresource: Option<Subresource>,
) -> Result<String, Error> {
    host().patch(of, key, body, subresource)
}

pub(crate) fn apply(object: &str, subresource: Option<Subresource>, force: bool) -> Result<String, Error> {
    host().apply(object, subresource, force)
}

pub(crate) fn delete(
    of: &TypeMeta,
    key: &Key,
    propagation: Propagation,
    preconditions: &Preconditions,
) -> Result<(), Error> {
    host().delete(of, key, propagation, preconditions)
}

pub(crate) fn log(level: Level, message: &str, fields: &[(String, String)]) {
    host().log(level, message, fields);
}

pub(crate) fn now() -> u64 {
    host().now()
}
