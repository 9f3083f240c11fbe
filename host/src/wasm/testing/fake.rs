//! A request for a guest, and a fake host for its imports.

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
    event::Event,
    key::{Key, TypeMeta},
    object::{Object, Subresource},
    series::Change,
};

use super::super::{
    CacheImports, ClientError, ClientImports, ClockImports, EventError, EventsImports, HttpError, HttpImports,
    HttpRequest, HttpResponse, Import, Imports, KeyPage, Limits, ListPage, ListQuery, LogImports, LogLine, LogQuery,
    MetricsImports, Page, PatchBody, Phase, Preconditions, Propagation, Query, RandomImports, ReadError, Request,
    contract::imports::host_state::HostState, memory::PluginMemory,
};

/// The object of [`apple`].
const APPLE: &str = r#"{"apiVersion":"stable.example.com/v1","kind":"MyApple","metadata":{"name":"red","namespace":"orchard","resourceVersion":"7","uid":"a0e1b5b2-0000-4000-8000-000000000001"},"spec":{"quantity":3}}"#;

/// An object to call a [`Guest`](super::Guest) with.
pub(crate) fn apple() -> Arc<Object> {
    Arc::new(Object::parse(APPLE.as_bytes(), &TypeMeta::new("stable.example.com/v1", "MyApple")).unwrap())
}

/// A request for [`apple`].
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

/// Creates the state of an instance, for a call of one second with these imports.
pub(crate) fn state(imports: &Arc<Fake>) -> HostState {
    HostState::new(Some(imports.clone()), Limits::default(), PluginMemory::default(), Duration::from_secs(1))
}

/// A fake host that records what it was asked. It panics if the guest tries to write.
#[derive(Default)]
pub(crate) struct Fake {
    /// The answer of `cache.get`.
    pub(crate) cached: Option<Arc<Object>>,
    /// `true` if requests to the API server are never answered. Otherwise they fail as `unreachable`.
    pub(crate) silent: bool,
    /// `true` if a request yields once before it is answered.
    pub(crate) late: bool,
    pub(crate) requests: AtomicU64,
    /// The time, which advances by one at each read.
    pub(crate) time: AtomicU64,
    pub(crate) lines: Mutex<Vec<LogLine>>,
    pub(crate) events: Mutex<Vec<Event>>,
    pub(crate) dropped_events: Mutex<usize>,
    /// Requests to other servers, and their deadlines. They are answered with 200 and `body`.
    pub(crate) sent: Mutex<Vec<(String, Duration)>>,
    pub(crate) body: Vec<u8>,
    /// Changes of metrics: name, label values, change.
    pub(crate) changes: Mutex<Vec<(String, Vec<String>, Change)>>,
    /// The imports that were called, in order.
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
    fn get(&self, _: TypeMeta, _: Key, _: Option<Subresource>) -> Answered<'_, Arc<Object>> {
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

    fn list(&self, query: ListQuery) -> Answered<'_, ListPage> {
        panic!("unexpected list {query:?}")
    }

    fn evict(&self, pod: Key, _: Option<u32>, _: Preconditions) -> Answered<'_, ()> {
        panic!("unexpected eviction of {pod}")
    }

    fn logs(&self, pod: Key, _: LogQuery) -> Answered<'_, String> {
        panic!("unexpected log of {pod}")
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

impl HttpImports for Fake {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        let HttpRequest { method, url, timeout, .. } = request;
        self.sent.lock().push((format!("{method} {}{}", url.origin(), url.target), timeout));
        let answer = HttpResponse { status: 200, headers: Vec::new(), body: self.body.clone() };
        std::future::ready(Ok(answer)).boxed()
    }
}

impl EventsImports for Fake {
    fn record(&self, event: &Event) -> Result<(), EventError> {
        self.events.lock().push(event.clone());
        Ok(())
    }

    fn drop_events(&self, count: usize) {
        *self.dropped_events.lock() += count;
    }
}

impl LogImports for Fake {
    fn log(&self, line: &LogLine) {
        self.lines.lock().push(line.clone());
    }
}

impl MetricsImports for Fake {
    fn change(&self, metric: &str, labels: &[String], change: Change) {
        self.changes.lock().push((metric.to_owned(), labels.to_vec(), change));
    }
}

/// Counts from 0 in each call, so that a test knows the bytes.
impl RandomImports for Fake {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), String> {
        bytes.iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(byte, number)| *byte = number);
        Ok(())
    }
}
