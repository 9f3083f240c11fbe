//! Requests: one method each, JSON in and bytes out, every failure a value.
//!
//! A request runs on the I/O runtime, whoever asks. Writes are never repeated here: who asked knows whether that is right.

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

use super::{Cluster, Endpoint, Error, Status, apply, credentials::Traffic, error::chain};

/// How long an ordinary request may take: kube-apiserver's own `--request-timeout` ends it after 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);

/// The largest answer to an ordinary request or a list page that is taken: 500 objects of etcd's largest, 1.5 MiB, would be
/// more, but no such page was ever seen to be useful.
const MAX_ANSWER: usize = 512 << 20;

/// The body of a PATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// Kubernetes' own.
    Strategic,
    /// Server-side apply; true: force.
    Apply(bool),
}

impl Patch {
    fn content_type(self) -> &'static str {
        match self {
            Patch::Json => "application/json-patch+json",
            Patch::Merge => "application/merge-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
            Patch::Apply(_) => "application/apply-patch+yaml",
        }
    }
}

/// Whose write it is, and to which part.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// None: the object itself.
    pub subresource: Option<Subresource>,
}

/// What must hold for a delete, and what becomes of dependents.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: &'static str,
    /// Only this incarnation.
    pub uid: Option<Uid>,
    /// Only this version.
    pub resource_version: Option<String>,
}

/// The bytes of a watch, as they come.
pub struct Stream {
    body: Body,
}

impl Stream {
    /// The next bytes; none at the clean end.
    ///
    /// # Errors
    /// The text of what broke the connection.
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
                Err(error) => return Some(Err(chain(&error))),
            }
        }
    }
}

/// Which objects of a kind a list or a watch is about.
pub(crate) struct Select<'a> {
    /// None: all.
    pub(crate) namespace: Option<&'a str>,
    /// A label selector; empty: every object.
    pub(crate) labels: String,
    /// A field selector; empty: every object.
    pub(crate) fields: String,
    /// Nothing of objects is asked for but their metadata. Not every server can give less than the whole.
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

/// Query parameters of a list.
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
    /// One page of a list, as the server wrote it.
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
        self.call_at_once(request).await
    }

    /// Opens a watch. What it carries is for the reflector to read.
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
        // The server sends its status line at once. Silence is a connection of the pool that died unnoticed.
        let opened = async move { in_time(cluster.open(request, Traffic::Watch)).await };
        Ok(Stream { body: self.on_io(opened).await? })
    }

    /// GETs a path of this server, without a permit.
    pub(crate) async fn get_path(&self, path: &str) -> Result<Bytes, Error> {
        self.call_at_once(build(Method::GET, path, None, Bytes::new())?).await
    }

    /// Reads one object past the cache.
    pub async fn get(&self, of: &TypeMeta, namespace: Option<&str>, name: &str) -> Result<Bytes, Error> {
        let get = |endpoint: &Endpoint| {
            let path = endpoint.object(namespace, name, None)?;
            build(Method::GET, &path, None, Bytes::new())
        };
        self.call_at_endpoint(of, get).await
    }

    /// Reads the metadata of one object past the cache, as a `PartialObjectMetadata`. A server that cannot give less answers with the whole.
    pub async fn get_metadata(&self, of: &TypeMeta, namespace: Option<&str>, name: &str) -> Result<Bytes, Error> {
        let get = |endpoint: &Endpoint| {
            let mut request = build(Method::GET, &endpoint.object(namespace, name, None)?, None, Bytes::new())?;
            accept(&mut request, ACCEPT_METADATA);
            Ok(request)
        };
        self.call_at_endpoint(of, get).await
    }

    /// Creates an object; `json` is the whole of it.
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

    /// Patches an object, or a subresource of it. `body` is JSON; an apply is rewritten so that it means the same as YAML.
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
            Patch::Apply(_) => apply_body(body)?,
            _ => body,
        };
        let body = Bytes::from(body);
        let write = |endpoint: &Endpoint| {
            let mut path = write_path(endpoint, namespace, name, options)?;
            if patch == Patch::Apply(true) {
                path.push_str("&force=true");
            }
            build(Method::PATCH, &path, Some(patch.content_type()), body.clone())
        };
        self.call_at_endpoint(of, write).await
    }

    /// Deletes an object. The answer is a `Status`, or the object where finalizers hold it.
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

    /// Sends a request to where the kind is known to be. A definition that was deleted and came back may have another plural or scope. So
    /// a 404 that names no object asks discovery once, and the request is sent again if the endpoint is another one. A 404 has changed nothing.
    async fn call_at_endpoint(
        &self,
        of: &TypeMeta,
        request: impl Fn(&Endpoint) -> Result<Request<Bytes>, Error>,
    ) -> Result<Bytes, Error> {
        let endpoint = self.endpoint(of).await?;
        let first = request(&endpoint)?;
        let may_change_kinds = first.method() != Method::GET && *of.kind == *"CustomResourceDefinition";
        let answer = self.call(first).await;
        if may_change_kinds {
            self.forget_discovered();
        }
        let status = match answer {
            Err(Error::Status(status)) if status.code == 404 && !status.names_object => status,
            answer => return answer,
        };
        match self.discover(of).await {
            Ok(found) if found != endpoint => self.call(request(&found)?).await,
            Err(error @ Error::Missing(_)) => Err(error),
            _ => Err(Error::Status(status)),
        }
    }

    /// Waits for a permit, sends, and collects the whole answer.
    async fn call(&self, request: Request<Bytes>) -> Result<Bytes, Error> {
        let Some(account) = self.account.clone() else { return self.call_at_once(request).await };
        let cluster = self.clone();
        self.on_io(async move {
            let Ok(_permit) = tokio::time::timeout(REQUEST_TIMEOUT, account.begin()).await else {
                return Err(Error::Unreachable(format!(
                    "the request was not sent: it waited {} s for its turn, as the API server asked for a pause or other requests take long",
                    REQUEST_TIMEOUT.as_secs()
                )));
            };
            let answer = in_time(cluster.whole(request)).await;
            if let Err(Error::Status(status)) = &answer
                && let Status { code: 429 | 503, retry_after: Some(retry_after), .. } = **status
            {
                account.throttle(retry_after);
            }
            answer
        })
        .await
    }

    /// Sends, and collects the whole answer.
    async fn call_at_once(&self, request: Request<Bytes>) -> Result<Bytes, Error> {
        let cluster = self.clone();
        self.on_io(async move { in_time(cluster.whole(request)).await }).await
    }

    async fn whole(&self, request: Request<Bytes>) -> Result<Bytes, Error> {
        collect(self.open(request, Traffic::Ordinary).await?).await
    }

    /// Runs on the I/O runtime: hyper spawns what keeps a connection alive where its request is made.
    async fn on_io<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let mut task = AbortOnDrop(self.io.spawn(work));
        (&mut task.0)
            .await
            .unwrap_or_else(|error| Err(Error::Unreachable(format!("the request was given up: {error}"))))
    }

    /// Sends, and tells success from refusal by the status line.
    async fn open(&self, request: Request<Bytes>, traffic: Traffic) -> Result<Body, Error> {
        let method = request.method().clone();
        let answer = self.credentials.send(request, traffic).await;
        let code = answer.as_ref().ok().map(|response| response.status().as_u16());
        self.observer.requested(&method, &self.host, code);
        let response = answer.map_err(|error| Error::Unreachable(chain(&error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let body = collect(response.into_body()).await.unwrap_or_default();
        let mut refusal = Status::from_answer(status.as_u16(), &body);
        refusal.retry_after = refusal.retry_after.or(retry_after);
        Err(Error::Status(Box::new(refusal)))
    }
}

/// Makes a body mean the same where it is read as YAML.
fn apply_body(json: Vec<u8>) -> Result<Vec<u8>, Error> {
    let text = str::from_utf8(&json).map_err(|error| Error::Body(format!("it is not UTF-8: {error}")))?;
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
        .unwrap_or_else(|_| Err(Error::Unreachable(format!("nothing came for {} s", REQUEST_TIMEOUT.as_secs()))))
}

/// Ends the task when who asked no longer waits.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn build(method: Method, path: &str, content_type: Option<&'static str>, body: Bytes) -> Result<Request<Bytes>, Error> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    // Every segment and value is escaped; what is left to fail is the length.
    *request.uri_mut() = path.parse().map_err(|_| Error::TooLong(path.len()))?;
    let headers = request.headers_mut();
    if let Some(content_type) = content_type {
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    }
    accept(&mut request, "application/json");
    Ok(request)
}

/// Says in which form the answer should be.
fn accept(request: &mut Request<Bytes>, form: &'static str) {
    request.headers_mut().insert(header::ACCEPT, header::HeaderValue::from_static(form));
}

async fn collect(body: Body) -> Result<Bytes, Error> {
    http_body_util::Limited::new(body, MAX_ANSWER)
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .map_err(|error| Error::Unreachable(format!("the answer broke off: {}", chain(error.as_ref()))))
}
