//! Lists of the API server, page by page.

use std::marker::PhantomData;

use super::{Error, decode, import, wire::ListQuery};
use crate::{Key, Object};

/// A list that has not been read yet, from [`Client::list`](super::Client::list). Iterate over it.
#[derive(Clone, Debug)]
#[must_use = "a list reads nothing until it is iterated over"]
pub struct List<'a, K> {
    query: ListQuery,
    call: PhantomData<&'a ()>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Object> List<'_, K> {
    pub(super) fn new() -> Self {
        let query =
            ListQuery { of: K::type_meta(), namespace: None, labels: None, fields: None, limit: 0, after: None };
        Self { query, call: PhantomData, kind: PhantomData }
    }

    /// Selects objects in one namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.query.namespace = Some(namespace.into());
        self
    }

    /// Selects objects in the namespace of a key. Selects all objects if the key is cluster-scoped.
    pub fn beside(mut self, key: &Key) -> Self {
        self.query.namespace.clone_from(&key.namespace);
        self
    }

    /// Selects objects by a label selector in the syntax of Kubernetes, such as `app=web,tier!=cache`.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.query.labels = Some(selector.into());
        self
    }

    /// Selects objects by a field selector in the syntax of Kubernetes, such as `status.phase=Failed`.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.query.fields = Some(selector.into());
        self
    }

    /// Sets how many objects are fetched at once, at most 500. 0, the default, leaves it to the host.
    pub fn page_size(mut self, objects: u32) -> Self {
        self.query.limit = objects;
        self
    }
}

impl<'a, K: Object> IntoIterator for List<'a, K> {
    type Item = Result<K, Error>;
    type IntoIter = Pages<'a, K>;

    fn into_iter(self) -> Self::IntoIter {
        Pages { query: Some(self.query), page: Vec::new().into_iter(), call: PhantomData, kind: PhantomData }
    }
}

/// The objects of a list, fetched one page after the other. Ends after the first error.
#[derive(Debug)]
pub struct Pages<'a, K> {
    /// Fetches the next page. `None` after the last.
    query: Option<ListQuery>,
    page: std::vec::IntoIter<String>,
    call: PhantomData<&'a ()>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Object> Iterator for Pages<'_, K> {
    type Item = Result<K, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(object) = self.page.next() {
                let object = decode(&object);
                if object.is_err() {
                    self.query = None;
                    self.page = Vec::new().into_iter();
                }
                return Some(object);
            }
            // A page may be empty and still not be the last.
            let mut query = self.query.take()?;
            match import::list(&query) {
                Ok(page) => {
                    self.page = page.items.into_iter();
                    query.after = page.next;
                    self.query = query.after.is_some().then_some(query);
                }
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}
