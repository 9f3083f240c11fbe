//! What a plugin's imports do in one call: reads through its [`Reader`](super::reader::Reader), and requests through
//! its writer.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue};
use pilothouse_core::{
    event::{Event, Release},
    grant::{Grants, HttpGranted, HttpHeader, Namespaces},
    http::Url,
    key::{Key, TypeMeta},
    manifest::{HttpPermission, Manifest, Permission},
    object::{Object, Subresource, Uid},
    series::Change,
};

use super::{reader::Reader, reading::Reading, record::Record, recorder::Recorder};
use crate::{
    causes::with_causes,
    cluster::{self, DeleteOptions, Patch},
    informer::View,
    outbound::{Admission, Client},
    references::References,
    wasm::{
        CacheImports, ClientError, ClientImports, ClockImports, EventError, EventsImports, HttpError, HttpImports,
        HttpRequest, HttpResponse, Import, Imports, KeyPage, ListPage, ListQuery, LogImports, LogLine, LogQuery,
        MetricsImports, Page, PatchBody, Preconditions, Propagation, Query, RandomImports, ReadError, Reason,
        StatusError,
    },
    writer::{self, Closed, Fate, Writer},
};

/// Everything that a plugin's calls read and write through. Each activation has one.
pub(super) struct Access {
    pub(super) reader: Reader,
    recorder: Recorder,
    pub(super) writer: Writer,
    /// Shared by all activations.
    pub(super) http: Arc<Client>,
    references: References,
    /// Counts calls of imports.
    record: Arc<Record>,
    /// Shared with reader and writer.
    grants: Arc<ArcSwap<Grants>>,
    asked: Vec<Permission>,
    asked_http: Vec<HttpPermission>,
    /// Those of earlier activations, whose calls may still be in flight.
    earlier: Vec<Weak<Access>>,
}

impl Access {
    /// `true` if the plugin may read any Secret, or has one in its configuration, and so may quote it.
    pub(super) fn may_read_secrets(&self) -> bool {
        self.references.secret_in_config
            || self.grants.load().readable_namespaces(&TypeMeta::new("v1", "Secret")) != Namespaces::None
    }

    /// Creates the access of an activation. `grants` are shared with `writer`; `before` belongs to the activation
    /// before.
    pub(super) fn new(
        view: View,
        writer: Writer,
        http: (Arc<Client>, References),
        grants: Arc<ArcSwap<Grants>>,
        manifest: &Manifest,
        record: Arc<Record>,
        before: Option<&Arc<Self>>,
    ) -> Self {
        let (http, references) = http;
        let earlier = before.into_iter().flat_map(|before| {
            let others = before.earlier.iter().filter(|earlier| earlier.strong_count() > 0).cloned();
            others.chain([Arc::downgrade(before)])
        });
        Self {
            reader: Reader::new(view, grants.clone(), manifest),
            recorder: Recorder::new(record.clone(), grants.clone(), writer.actor()),
            writer,
            http,
            references,
            record,
            grants,
            asked: manifest.permissions.clone(),
            asked_http: manifest.http.clone(),
            earlier: earlier.collect(),
        }
    }

    /// Revokes at once what the administrator no longer allows, for calls in flight too. Grants nothing that this
    /// revision did not ask for.
    pub(super) fn allow(&self, grants: &Grants) {
        self.grants.store(Arc::new(grants.for_asked(&self.asked, &self.asked_http)));
        self.earlier.iter().filter_map(Weak::upgrade).for_each(|earlier| earlier.allow(grants));
    }

    /// Returns what the plugin may do now.
    pub(super) fn grants(&self) -> Arc<Grants> {
        self.grants.load_full()
    }

    /// Queues the Events of a call about `own`, and counts those that are dropped.
    pub(super) fn release_events(&self, own: &Object, release: Release) {
        self.recorder.release(&self.reader, own, release);
    }

    /// Counts Events that found no room to wait.
    pub(super) fn drop_events(&self, count: usize) {
        self.recorder.count(Fate::Dropped, count);
    }

    /// Returns `true` if the plugin may see this object now: see [`Grants::may_see`].
    pub(super) fn may_see(&self, of: &TypeMeta, key: &Key) -> bool {
        self.grants.load().may_see(of, key)
    }

    /// Returns a header with its value.
    fn header(&self, header: &HttpHeader) -> Result<(HeaderName, HeaderValue), HttpError> {
        let HttpHeader { name, prefix, secret } = header;
        let failed = |why: &str| HttpError::Unreachable(format!("not sent: the header {name} needs {secret}: {why}"));
        let value = self.references.value(secret).map_err(|missing| failed(&missing.to_string()))?;
        let unfit = || failed("its value cannot be sent in a header");
        // A Secret that was made from a file often ends with a line break.
        let mut value = HeaderValue::try_from(format!("{prefix}{}", value.trim_end())).map_err(|_| unfit())?;
        value.set_sensitive(true);
        Ok((HeaderName::try_from(name).map_err(|_| unfit())?, value))
    }

    /// Decides whether a request to another server, or a redirect, may be sent.
    fn admit(&self, method: &str, url: &Url) -> Result<Admission, HttpError> {
        let granted = self.grants.load().check_http(method, url);
        let HttpGranted { private, headers } = granted.map_err(|denied| HttpError::NotGranted(denied.to_string()))?;
        match self.record.fence().check() {
            Ok(()) => {
                let headers = headers.iter().map(|header| self.header(header)).collect::<Result<_, _>>()?;
                Ok(Admission { private, headers })
            }
            Err(Closed::NotActing) => Err(HttpError::Unreachable("not sent: this process may not act now".to_owned())),
            Err(Closed::Withdrawn) => {
                Err(HttpError::NotGranted("not sent: the plugin was removed or disabled, or the host stops".to_owned()))
            }
        }
    }
}

/// The imports of one call.
pub(super) struct CallImports {
    access: Arc<Access>,
    reading: Arc<Reading>,
    /// `true` if the call may write.
    may_write: bool,
    /// The object that is reconciled. `None` in other calls.
    own: Option<Arc<Object>>,
}

impl CallImports {
    /// Creates the imports of a call whose reads are not tracked.
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self { access, reading: Arc::default(), own: None, may_write: true }
    }

    /// Creates the imports of a review. Its reads are not tracked, and it may not write: the API server may still
    /// reject the request, or only try it.
    pub(super) fn reviewing(access: Arc<Access>) -> Self {
        Self { access, reading: Arc::default(), own: None, may_write: false }
    }

    /// Creates the imports of a reconcile, whose reads are tracked.
    pub(super) fn tracked(access: Arc<Access>, reading: Arc<Reading>, own: Arc<Object>) -> Self {
        Self { access, reading, own: Some(own), may_write: true }
    }

    fn check_may_write(&self) -> Result<(), ClientError> {
        let why = "a review may not write, because the API server may still reject the request";
        if self.may_write { Ok(()) } else { Err(ClientError::NotGranted(why.to_owned())) }
    }

    /// Converts an error to the contract's. Records a Retry-After, before which a failed reconcile is not retried.
    fn refusal(&self, error: writer::ClientError) -> ClientError {
        if let writer::ClientError::Request(error) = &error
            && let Some(retry_after) = error.retry_after()
        {
            self.reading.record_retry_after(retry_after);
        }
        refusal(error)
    }
}

impl Imports for CallImports {
    fn called(&self, import: Import) {
        self.access.record.imported(import);
    }
}

impl ClockImports for CallImports {
    fn now(&self) -> u64 {
        u64::try_from(self.access.record.clock().now().as_millisecond()).unwrap_or_default()
    }
}

impl CacheImports for CallImports {
    fn cached(&self, of: &TypeMeta, key: &Key) -> Result<Option<Arc<Object>>, ReadError> {
        self.access.reader.get(of, key, &self.reading)
    }

    fn cached_list(&self, query: &Query) -> Result<Page, ReadError> {
        self.access.reader.list(query, &self.reading)
    }

    fn cached_keys(&self, query: &Query) -> Result<KeyPage, ReadError> {
        self.access.reader.keys(query, &self.reading)
    }
}

impl ClientImports for CallImports {
    fn get(
        &self,
        of: TypeMeta,
        key: Key,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(
            async move { self.access.writer.get(&of, &key, subresource).await.map_err(|error| self.refusal(error)) },
        )
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, ClientError>> {
        Box::pin(async move { self.access.writer.list(&query).await.map_err(|error| self.refusal(error)) })
    }

    fn evict(
        &self,
        pod: Key,
        grace_period_seconds: Option<u32>,
        preconditions: Preconditions,
    ) -> BoxFuture<'_, Result<(), ClientError>> {
        Box::pin(async move {
            self.check_may_write()?;
            let evicted = self.access.writer.evict(&pod, grace_period_seconds, preconditions).await;
            evicted.map_err(|error| self.refusal(error))
        })
    }

    fn logs(&self, pod: Key, query: LogQuery) -> BoxFuture<'_, Result<String, ClientError>> {
        Box::pin(async move { self.access.writer.logs(&pod, &query).await.map_err(|error| self.refusal(error)) })
    }

    fn create(&self, object: String) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(async move {
            self.check_may_write()?;
            self.access.writer.create(&object).await.map_err(|error| self.refusal(error))
        })
    }

    fn update(
        &self,
        object: String,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(async move {
            self.check_may_write()?;
            self.access.writer.update(&object, subresource).await.map_err(|error| self.refusal(error))
        })
    }

    fn patch(
        &self,
        of: TypeMeta,
        key: Key,
        body: PatchBody,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(async move {
            self.check_may_write()?;
            let (patch, body) = match body {
                PatchBody::Json(body) => (Patch::Json, body),
                PatchBody::Merge(body) => (Patch::Merge, body),
                PatchBody::StrategicMerge(body) => (Patch::Strategic, body),
            };
            self.access.writer.patch(&of, &key, patch, body, subresource).await.map_err(|error| self.refusal(error))
        })
    }

    fn apply(
        &self,
        object: String,
        subresource: Option<Subresource>,
        force: bool,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(async move {
            self.check_may_write()?;
            self.access.writer.apply_object(&object, subresource, force).await.map_err(|error| self.refusal(error))
        })
    }

    fn delete(
        &self,
        of: TypeMeta,
        key: Key,
        propagation: Propagation,
        preconditions: Preconditions,
    ) -> BoxFuture<'_, Result<(), ClientError>> {
        Box::pin(async move {
            self.check_may_write()?;
            let options = DeleteOptions {
                propagation: match propagation {
                    Propagation::Background => "Background",
                    Propagation::Foreground => "Foreground",
                    Propagation::Orphan => "Orphan",
                },
                uid: preconditions.uid.as_deref().map(Uid::parse),
                resource_version: preconditions.resource_version,
            };
            self.access.writer.delete_object(&of, &key, options).await.map_err(|error| self.refusal(error))
        })
    }
}

impl HttpImports for CallImports {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let admit = |method: &str, url: &Url| self.access.admit(method, url);
            self.access.http.send(request, &admit).await
        })
    }
}

impl EventsImports for CallImports {
    fn record(&self, event: &Event) -> Result<(), EventError> {
        if !self.may_write {
            let why = "a review may not write Events, because the API server may still reject the request";
            return Err(EventError::NotGranted(why.to_owned()));
        }
        self.access.recorder.record(&self.access.reader, self.own.as_deref(), event)
    }

    fn drop_events(&self, count: usize) {
        self.access.drop_events(count);
    }
}

impl LogImports for CallImports {
    fn log(&self, line: &LogLine) {
        self.access.record.log(line);
    }
}

impl MetricsImports for CallImports {
    fn change(&self, metric: &str, labels: &[String], change: Change) {
        self.access.record.measure(metric, labels, change);
    }
}

impl RandomImports for CallImports {}

/// Converts an error of the writer to the contract's.
fn refusal(error: writer::ClientError) -> ClientError {
    let api = |code, reason, message, causes| ClientError::Api(StatusError { code, reason, message, causes });
    match error {
        writer::ClientError::Denied(denied) => ClientError::NotGranted(denied.to_string()),
        // For the plugin this is like a server that does not respond.
        writer::ClientError::Closed(closed @ Closed::NotActing) => ClientError::Unreachable(closed.to_string()),
        // A withdrawn plugin has no grants any more.
        writer::ClientError::Closed(closed @ Closed::Withdrawn) => ClientError::NotGranted(closed.to_string()),
        writer::ClientError::Invalid(why) => ClientError::Invalid(why),
        writer::ClientError::Request(cluster::Error::Status(status)) => {
            api(status.code, reason(&status), status.message, status.causes)
        }
        writer::ClientError::Request(error @ cluster::Error::Missing(_)) => {
            api(404, Reason::NotFound, error.to_string(), Vec::new())
        }
        writer::ClientError::Request(error @ cluster::Error::TooLarge(_)) => {
            let message = format!("{error}; read fewer objects, or some fields of the object from the cache");
            api(413, Reason::Other, message, Vec::new())
        }
        writer::ClientError::Request(
            error @ (cluster::Error::TooLong(_)
            | cluster::Error::Name(_)
            | cluster::Error::Body(_)
            | cluster::Error::Scope { .. }
            | cluster::Error::Unwatchable { .. }),
        ) => ClientError::Invalid(error.to_string()),
        writer::ClientError::Request(error) => ClientError::Unreachable(with_causes(&error)),
        writer::ClientError::Answer(error) => {
            ClientError::Unreachable(format!("the response is not a valid object: {error}"))
        }
    }
}

/// Returns the server's reason, or the one that its code stands for.
fn reason(status: &cluster::Status) -> Reason {
    match (status.reason.as_str(), status.code) {
        ("BadRequest", _) | ("", 400) => Reason::BadRequest,
        ("Unauthorized", _) | ("", 401) => Reason::Unauthorized,
        ("Forbidden", _) | ("", 403) => Reason::Forbidden,
        ("NotFound", _) | ("", 404) => Reason::NotFound,
        ("AlreadyExists", _) => Reason::AlreadyExists,
        ("Conflict", _) | ("", 409) => Reason::Conflict,
        ("Gone" | "Expired", _) | ("", 410) => Reason::Gone,
        ("Invalid", _) | ("", 422) => Reason::Invalid,
        ("Timeout" | "ServerTimeout", _) | ("", 504) => Reason::Timeout,
        ("TooManyRequests", _) | ("", 429) => Reason::TooManyRequests,
        ("ServiceUnavailable", _) | ("", 503) => Reason::ServiceUnavailable,
        ("InternalError", _) | ("", 500) => Reason::InternalError,
        _ => Reason::Other,
    }
}
