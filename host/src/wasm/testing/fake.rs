//! What a guest is called over, and a host that it can ask.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use pilothouse_core::{
    key::{Key, TypeMeta},
    object::{Object, Subresource},
};

use super::super::{
    CacheImports, ClientError, ClientImports, ClockImports, Import, Imports, KeyPage, Limits, LogImports, LogLine,
    Page, PatchBody, Phase, Preconditions, Propagation, Query, ReadError, Request, contract::host_state::HostState,
    memory::Held,
};

/// What [`apple`] is.
const APPLE: &str = r#"{"apiVersion":"stable.example.com/v1","kind":"MyApple","metadata":{"name":"red","namespace":"orchard","resourceVersion":"7","uid":"a0e1b5b2-0000-4000-8000-000000000001"},"spec":{"quantity":3}}"#;

/// Some object that [`Guest`](super::Guest) may be called over.
pub(crate) fn apple() -> Arc<Object> {
    Arc::new(Object::parse(APPLE.as_bytes(), &TypeMeta::new("stable.example.com/v1", "MyApple")).unwrap())
}

/// A call over [`apple`].
pub(crate) fn request() -> Request {
    Request {
        controller: "apples".into(),
        key: Key::new(Some("orchard"), "red"),
        object: apple(),
        phase: Phase::Live,
        attempt: 1,
        last_error: None,
    }
}

/// The state of an instance in a call of a second, whose imports are `imports`.
pub(crate) fn state(imports: &Arc<Fake>) -> HostState {
    HostState::new(Some(imports.clone()), Limits::default(), Held::default(), Duration::from_secs(1))
}

/// A host that remembers what was asked of it. It writes nothing: a guest that wants to write fails the test.
#[derive(Default)]
pub(crate) struct Fake {
    /// The answer of `cache.get`.
    pub(crate) cached: Option<Arc<Object>>,
    /// Whether requests to the API server are never answered; else they are `unreachable`.
    pub(crate) silent: bool,
    /// Whether others have a turn before a request is answered.
    pub(crate) late: bool,
    pub(crate) requests: AtomicU64,
    /// The time, which moves by one at each look.
    pub(crate) time: AtomicU64,
    pub(crate) lines: Mutex<Vec<LogLine>>,
    /// What was called, in order.
    pub(crate) calls: Mutex<Vec<Import>>,
}

type Answered<'a, T> = BoxFuture<'a, Result<T, ClientError>>;

impl Imports for Fake {
    fn called(&self, import: Import) {
        self.calls.lock().push(import);
    }
}

impl ClockImports for Fake {
    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::Relaxed)
    }
}

impl CacheImports for Fake {
    fn cached(&self, _: &TypeMeta, _: &Key) -> Result<Option<Arc<Object>>, ReadError> {
        Ok(self.cached.clone())
    }

    fn cached_list(&self, query: &Query) -> Result<Page, ReadError> {
        panic!("unexpected list {query:?}")
    }

    fn cached_keys(&self, query: &Query) -> Result<KeyPage, ReadError> {
        panic!("unexpected list of keys {query:?}")
    }
}

impl ClientImports for Fake {
    fn get(&self, _: TypeMeta, _: Key) -> Answered<'_, Arc<Object>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.silent {
            return std::future::pending().boxed();
        }
        let late = self.late;
        let answer = async move {
            if late {
                tokio::task::yield_now().await;
            }
            Err(ClientError::Unreachable("no API server in this test".to_owned()))
        };
        answer.boxed()
    }

    fn create(&self, object: String) -> Answered<'_, Arc<Object>> {
        panic!("unexpected create {object}")
    }

    fn update(&self, object: String, _: Option<Subresource>) -> Answered<'_, Arc<Object>> {
        panic!("unexpected update {object}")
    }

    fn patch(&self, of: TypeMeta, key: Key, _: PatchBody, _: Option<Subresource>) -> Answered<'_, Arc<Object>> {
        panic!("unexpected patch of {of} {key}")
    }

    fn apply(&self, object: String, _: Option<Subresource>, _: bool) -> Answered<'_, Arc<Object>> {
        panic!("unexpected apply {object}")
    }

    fn delete(&self, of: TypeMeta, key: Key, _: Propagation, _: Preconditions) -> Answered<'_, ()> {
        panic!("unexpected delete of {of} {key}")
    }
}

impl LogImports for Fake {
    fn log(&self, line: &LogLine) {
        self.lines.lock().push(line.clone());
    }
}
