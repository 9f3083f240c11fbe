//! One method for each kind of request, with JSON in and bytes out.
//!
//! Requests run on the I/O runtime. Writes are never retried here, because only the caller knows whether a retry is
//! right.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::client::Body;
use pilothouse_core::{
    key::TypeMeta,
    list::{ACCEPT_METADATA, ACCEPT_METADATA_LIST},
    object::{Subresource, Uid},
};

use super::{Cluster, Endpoint, Error, Status, apply, credentials::Traffic};
use crate::causes::with_causes;

/// The timeout of an ordinary request. kube-apiserver's own `--request-timeout` is 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);

/// The largest accepted answer to an ordinary request or a list page. A page of 500 objects of etcd's largest size, 1.5
/// MiB, would exceed it, but is not expected.
const MAX_ANSWER: usize = 512 << 20;

/// The body of a PATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// A strategic merge patch of Kubernetes.
    Strategic,
    /// Server-side apply.
    Apply {
        /// `true` takes fields from other managers.
        force: bool,
    },
}

impl Patch {
    fn content_type(self) -> &'static str {
        match self {
            Patch::Json => "application/json-patch+json",
            Patch::Merge => "application/merge-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
            Patch::Apply { .. } => "application/apply-patch+yaml",
        }
    }
}

/// The field manager of a write, and the part that it writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// `None` for the object itself.
    pub subresource: Option<Subresource>,
}

/// The preconditions of a delete, and what happens to dependents.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: &'static str,
    /// Deletes only the object with this uid.
    pub uid: Option<Uid>,
    /// Deletes only this version.
    pub resource_version: Option<String>,
}

/// The bytes of an open watch.
pub struct Stream {
    body: Body,
}

impl Stream {
    /// Returns the next bytes, or `None` at the clean end.
    ///
    /// # Errors
    /// The connection broke; the text says why.
    ///
    /// # Cancellation
    /// Safe: no bytes are lost.
    pub async fn next(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(with_causes(&error))),
            }
        }
    }
}

/// Selects the objects of a list or a watch.
pub(crate) struct Select<'a> {
    /// `None` for all namespaces.
    pub(crate) namespace: Option<&'a str>,
    /// A label selector. Empty selects every object.
    pub(crate) labels: String,
    /// A field selector. Empty selects every object.
    pub(crate) fields: String,
    /// `true` to request only metadata. Some servers answer with whole objects anyway.
    pub(crate) metadata_only: bool,
}

impl Select<'_> {
    fn query(&self, query: &mut String) {
        for (name, selector) in [("labelSelector", &self.labels), ("fieldSelector", &self.fields)] {
            if !selector.is_empty() {
                pair(query, name, selector);
            }
        }
    }
}

/// Appends the query parameters of a list.
fn list_query(query: &mut String, limit: u32, continue_token: Option<&str>, resource_version: Option<&str>) {
    if limit > 0 {
        pair(query, "limit", &limit.to_string());
    }
    if let Some(token) = continue_token {
        pair(query, "continue", token);
    } else if let Some(version) = resource_version {
        pair(query, "resourceVersion", version);
    }
}

/// Appends `key=value`, escaped.
fn pair(query: &mut String, key: &str, value: &str) {
    query.push(if query.is_empty() { '?' } else { '&' });
    query.push_str(key);
    query.push('=');
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => query.push(byte.into()),
            _ => query.push_str(&format!("%{byte:02X}")),
        }
    }
}

impl Cluster {
    /// Reads one page of a list.
    pub(crate) async fn list(
        &self,
        endpoint: &Endpoint,
        select: &Select<'_>,
        limit: u32,
        continue_token: Option<&str>,
        resource_version: Option<&str>,
    ) -> Result<Bytes, Error> {
        let mut query = String::new();
        select.query(&mut query);
        list_query(&mut query, limit, continue_token, resource_version);
        let path = format!("{}{query}", endpoint.collection(select.namespace)?);
        let mut request = build(Method::GET, &path, None, Bytes::new())?;
        if select.metadata_only {
            accept(&mut request, ACCEPT_METADATA_LIST);
        }
        self.call_at_once(request, MAX_ANSWER).await
    }

    /// Opens a watch. The reflector parses its lines.
    pub(crate) async fn watch(
        &self,
        endpoint: &Endpoint,
        select: &Select<'_>,
        resource_version: &str,
        initial_events: bool,
        timeout: Duration,
    ) -> Result<Stream, Error> {
        let mut query = String::new();
        pair(&mut query, "watch", "true");
        pair(&mut query, "allowWatchBookmarks", "true");
        pair(&mut query, "timeoutSeconds", &timeout.as_secs().to_string());
        select.query(&mut query);
        if initial_events {
            pair(&mut query, "sendInitialEvents", "true");
            pair(&mut query, "resourceVersionMatch", "NotOlderThan");
        }
        if !resource_version.is_empty() {
            pair(&mut query, "resourceVersion", resource_version);
        }
        let path = format!("{}{query}", endpoint.collection(select.namespace)?);
        let mut request = build(Method::GET, &path, None, Bytes::new())?;
        if select.metadata_only {
            accept(&mut request, ACCEPT_METADATA);
        }
        let cluster = self.clone();
        // The server sends its status line at once. Silence means that a pooled connection has died unnoticed.
        let opened = async move { in_time(cluster.open(request, Traffic::Watch)).await };
        Ok(Stream { body: self.on_io(opened).await? })
    }

    /// Reads a path of the server without a permit.
    pub(crate) async fn get_path(&self, path: &str) -> Result<Bytes, Error> {
        self.call_at_once(build(Method::GET, path, None, Bytes::new())?, MAX_ANSWER).await
    }

    /// Reads one object from the server.
    pub async fn get(&self, of: &TypeMeta, namespace: Option<&str>, name: &str) -> Result<Bytes, Error> {
        self.get_part(of, namespace, name, None).await
    }

    /// Reads one object, or a subresource of it, from the server.
    pub(crate) async fn get_part(
        &self,
        of: &TypeMeta,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<Subresource>,
    ) -> Result<Bytes, Error> {
        let get = |endpoint: &Endpoint| {
            let path = endpoint.object(namespace, name, subresource.map(Subresource::as_str))?;
            build(Method::GET, &path, None, Bytes::new())
        };
        self.call_at_endpoint(of, get).await
    }

    /// Reads one page of a list for a plugin: as [`list`](Self::list), with a permit.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the page has more than `most` bytes.
    pub(crate) async fn page(
        &self,
        of: &TypeMeta,
        select: &Select<'_>,
        limit: u32,
        continue_token: Option<&str>,
        most: usize,
    ) -> Result<Bytes, Error> {
        let mut query = String::new();
        select.query(&mut query);
        list_query(&mut query, limit, continue_token, None);
        let list = |endpoint: &Endpoint| {
            let path = format!("{}{query}", endpoint.collection(select.namespace)?);
            build(Method::GET, &path, None, Bytes::new())
        };
        self.call_within(of, list, most).await
    }

    /// Reads the log of a Pod's container. `query` has the parameters of the request.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the log has more than `most` bytes.
    pub(crate) async fn logs(
        &self,
        namespace: Option<&str>,
        pod: &str,
        parameters: &[(&str, String)],
        most: usize,
    ) -> Result<Bytes, Error> {
        let mut query = String::new();
        parameters.iter().for_each(|(name, value)| pair(&mut query, name, value));
        let read = |endpoint: &Endpoint| {
            let path = endpoint.object(namespace, pod, Some(Subresource::Log.as_str()))?;
            let mut request = build(Method::GET, &format!("{path}{query}"), None, Bytes::new())?;
            // A log is text, and an error a `Status`.
            accept(&mut request, "application/json, */*");
            Ok(request)
        };
        self.call_within(&pods(), read, most).await
    }

    /// Evicts a Pod. `eviction` is JSON.
    pub(crate) async fn evict(
        &self,
        namespace: Option<&str>,
        pod: &str,
        eviction: Vec<u8>,
        manager: &str,
    ) -> Result<Bytes, Error> {
        let (body, options) =
            (Bytes::from(eviction), WriteOptions { manager, subresource: Some(Subresource::Eviction) });
        let evict = |endpoint: &Endpoint| {
            let path = write_path(endpoint, namespace, pod, options)?;
            build(Method::POST, &path, Some("application/json"), body.clone())
        };
        self.call_at_endpoint(&pods(), evict).await
    }

    /// Reads the metadata of one object from the server, as a `PartialObjectMetadata`. Some servers answer with the
    /// whole object.
    pub async fn get_metadata(&self, of: &TypeMeta, namespace: Option<&str>, name: &str) -> Result<Bytes, Error> {
        let get = |endpoint: &Endpoint| {
            let mut request = build(Method::GET, &endpoint.object(namespace, name, None)?, None, Bytes::new())?;
            accept(&mut request, ACCEPT_METADATA);
            Ok(request)
        };
        self.call_at_endpoint(of, get).await
    }

    /// Creates an object.
    pub async fn create(
        &self,
        of: &TypeMeta,
        namespace: Option<&str>,
        json: Vec<u8>,
        manager: &str,
    ) -> Result<Bytes, Error> {
        let (mut query, body) = (String::new(), Bytes::from(json));
        pair(&mut query, "fieldManager", manager);
        let create = |endpoint: &Endpoint| {
            let path = format!("{}{query}", endpoint.collection(namespace)?);
            build(Method::POST, &path, Some("application/json"), body.clone())
        };
        self.call_at_endpoint(of, create).await
    }

    /// Replaces an object, or a subresource of it.
    pub async fn update(
        &self,
        of: &TypeMeta,
        namespace: Option<&str>,
        name: &str,
        json: Vec<u8>,
        options: WriteOptions<'_>,
    ) -> Result<Bytes, Error> {
        let body = Bytes::from(json);
        let update = |endpoint: &Endpoint| {
            let path = write_path(endpoint, namespace, name, options)?;
            build(Method::PUT, &path, Some("application/json"), body.clone())
        };
        self.call_at_endpoint(of, update).await
    }

    /// Patches an object, or a subresource of it. `body` is JSON. The body of an apply is rewritten so that it means
    /// the same as YAML.
    pub async fn patch(
        &self,
        of: &TypeMeta,
        namespace: Option<&str>,
        name: &str,
        patch: Patch,
        body: Vec<u8>,
        options: WriteOptions<'_>,
    ) -> Result<Bytes, Error> {
        let body = match patch {
            Patch::Apply { .. } => apply_body(body)?,
            _ => body,
        };
        let body = Bytes::from(body);
        let write = |endpoint: &Endpoint| {
            let mut path = write_path(endpoint, namespace, name, options)?;
            if matches!(patch, Patch::Apply { force: true }) {
                path.push_str("&force=true");
            }
            build(Method::PATCH, &path, Some(patch.content_type()), body.clone())
        };
        self.call_at_endpoint(of, write).await
    }

    /// Deletes an object. The answer is a `Status`, or the object if finalizers keep it.
    pub async fn delete(
        &self,
        of: &TypeMeta,
        namespace: Option<&str>,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Bytes, Error> {
        let mut preconditions = serde_json::Map::new();
        if let Some(uid) = &options.uid {
            preconditions.insert("uid".into(), uid.to_string().into());
        }
        if let Some(version) = &options.resource_version {
            preconditions.insert("resourceVersion".into(), version.as_str().into());
        }
        let body = serde_json::json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": options.propagation,
            "preconditions": preconditions,
        });
        let body = Bytes::from(body.to_string());
        let delete = |endpoint: &Endpoint| {
            let path = endpoint.object(namespace, name, None)?;
            build(Method::DELETE, &path, Some("application/json"), body.clone())
        };
        self.call_at_endpoint(of, delete).await
    }

    /// Sends a request to the known endpoint of a kind. A recreated definition may have another plural or scope. So
    /// after a 404 that names no object, discovery is asked once, and the request is sent again if the endpoint
    /// differs. This is safe because a 404 has changed nothing.
    async fn call_at_endpoint(
        &self,
        of: &TypeMeta,
        request: impl Fn(&Endpoint) -> Result<Request<Bytes>, Error>,
    ) -> Result<Bytes, Error> {
        self.call_within(of, request, MAX_ANSWER).await
    }

    /// As [`call_at_endpoint`](Self::call_at_endpoint), for an answer of at most `most` bytes.
    async fn call_within(
        &self,
        of: &TypeMeta,
        request: impl Fn(&Endpoint) -> Result<Request<Bytes>, Error>,
        most: usize,
    ) -> Result<Bytes, Error> {
        let endpoint = self.endpoint(of).await?;
        let first = request(&endpoint)?;
        let may_change_kinds = first.method() != Method::GET && *of.kind == *"CustomResourceDefinition";
        let answer = self.call(first, most).await;
        if may_change_kinds {
            self.forget_discovered();
        }
        let status = match answer {
            Err(Error::Status(status)) if status.code == 404 && !status.names_object => status,
            answer => return answer,
        };
        match self.discover(of).await {
            Ok(found) if found != endpoint => self.call(request(&found)?, most).await,
            Err(error @ Error::Missing(_)) => Err(error),
            _ => Err(Error::Status(status)),
        }
    }

    /// Waits for a permit, sends, and collects the whole answer, of at most `most` bytes.
    async fn call(&self, request: Request<Bytes>, most: usize) -> Result<Bytes, Error> {
        let Some(account) = self.account.clone() else { return self.call_at_once(request, most).await };
        let cluster = self.clone();
        self.on_io(async move {
            let Ok(_permit) = tokio::time::timeout(REQUEST_TIMEOUT, account.begin()).await else {
                return Err(Error::Unreachable(format!(
                    "the request was not sent: it waited {} s for its turn, because the API server asked for a pause or other requests take long",
                    REQUEST_TIMEOUT.as_secs()
                )));
            };
            // A budget that allows no eviction is answered with 429, too. The server is not busy then.
            let is_eviction = request.uri().path().ends_with("/eviction");
            let answer = in_time(cluster.sent_by_actor(request, most)).await;
            if let Err(Error::Status(status)) = &answer
                && !is_eviction
                && let Status { code: 429 | 503, retry_after: Some(retry_after), .. } = **status
            {
                account.throttle(retry_after);
            }
            answer
        })
        .await
    }

    /// Sends without a permit, and collects the whole answer.
    pub(super) async fn call_at_once(&self, request: Request<Bytes>, most: usize) -> Result<Bytes, Error> {
        let cluster = self.clone();
        self.on_io(async move { in_time(cluster.whole(request, Traffic::Ordinary, most)).await }).await
    }

    /// Sends, and collects the whole answer.
    pub(super) async fn whole(&self, request: Request<Bytes>, traffic: Traffic, most: usize) -> Result<Bytes, Error> {
        collect(self.open(request, traffic).await?, most).await
    }

    /// Runs `work` on the I/O runtime, because hyper spawns a connection's task on the runtime of its request.
    ///
    /// The returned future holds the task and not `work`, which has 8 kB. An idle worker keeps the room of its largest
    /// future.
    fn on_io<T: Send + 'static, W: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + use<T, W> {
        let mut task = AbortOnDrop(self.io.spawn(work));
        async move {
            (&mut task.0)
                .await
                .unwrap_or_else(|error| Err(Error::Unreachable(format!("the request was cancelled: {error}"))))
        }
    }

    /// Sends, and turns every status but success into an error.
    async fn open(&self, mut request: Request<Bytes>, mut traffic: Traffic) -> Result<Body, Error> {
        let method = request.method().clone();
        let changes = method != Method::GET;
        if changes && !self.acting.is_allowed() {
            return Err(Error::NotActing);
        }
        if changes {
            // Asked once more when it is written to its connection.
            request.extensions_mut().insert(self.acting.clone());
            if traffic == Traffic::Ordinary {
                traffic = Traffic::Change;
            }
        }
        let given_up = || Error::Unreachable("it was given up when this process might not act any more".to_owned());
        let answer = tokio::select! {
            // The end comes first, if the process was stopped meanwhile.
            biased;
            () = self.acting.ended(), if changes => return Err(given_up()),
            answer = self.credentials.send(request, traffic) => answer,
        };
        if answer.is_err() && changes && !self.acting.is_allowed() {
            return Err(given_up());
        }
        let code = answer.as_ref().ok().map(|response| response.status().as_u16());
        self.traffic.requested(method.as_str(), &self.host, code);
        let response = answer.map_err(|error| Error::Unreachable(with_causes(&error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let body = collect(response.into_body(), MAX_ANSWER).await.unwrap_or_default();
        let mut status = Status::from_answer(status.as_u16(), &body);
        status.retry_after = status.retry_after.or(retry_after);
        Err(Error::Status(Box::new(status)))
    }
}

/// Rewrites a body so that it means the same as YAML.
fn apply_body(json: Vec<u8>) -> Result<Vec<u8>, Error> {
    let text = str::from_utf8(&json).map_err(|error| Error::Body(format!("the body is not valid UTF-8: {error}")))?;
    match apply::body(text).map_err(|error| Error::Body(error.to_string()))? {
        Cow::Borrowed(_) => Ok(json),
        Cow::Owned(rewritten) => Ok(rewritten.into_bytes()),
    }
}

fn write_path(
    endpoint: &Endpoint,
    namespace: Option<&str>,
    name: &str,
    options: WriteOptions<'_>,
) -> Result<String, Error> {
    let mut query = String::new();
    pair(&mut query, "fieldManager", options.manager);
    let path = endpoint.object(namespace, name, options.subresource.map(Subresource::as_str))?;
    Ok(path + &query)
}

async fn in_time<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(REQUEST_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| Err(Error::Unreachable(format!("timed out after {} s", REQUEST_TIMEOUT.as_secs()))))
}

/// Aborts the task when the caller no longer waits.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn build(
    method: Method,
    path: &str,
    content_type: Option<&'static str>,
    body: Bytes,
) -> Result<Request<Bytes>, Error> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    // Every segment and value is escaped, so only the length can be invalid.
    *request.uri_mut() = path.parse().map_err(|_| Error::TooLong(path.len()))?;
    let headers = request.headers_mut();
    if let Some(content_type) = content_type {
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    }
    accept(&mut request, "application/json");
    Ok(request)
}

/// Sets the Accept header.
fn accept(request: &mut Request<Bytes>, form: &'static str) {
    request.headers_mut().insert(header::ACCEPT, header::HeaderValue::from_static(form));
}

async fn collect(body: Body, most: usize) -> Result<Bytes, Error> {
    let collected = http_body_util::Limited::new(body, most).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            return Error::TooLarge(most);
        }
        Error::Unreachable(format!("the answer ended early: {}", with_causes(error.as_ref())))
    })
}

fn pods() -> TypeMeta {
    TypeMeta::new("v1", "Pod")
}
