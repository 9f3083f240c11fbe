//! What a plugin's imports do: reads from its view of the cache, and requests through its writer, both within its grants.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use futures::future::BoxFuture;
use pilothouse_core::{
    grant::{Grants, Namespaces},
    key::{Key, TypeMeta},
    manifest::Verb,
    object::{Object, Subresource, Uid},
    selector::Selector,
};

use super::controller::Serving;
use crate::{
    cluster::{self, DeleteOptions, Patch},
    informer::View,
    wasm::{ClientError, Imports, Page, PatchBody, Preconditions, Propagation, Query, ReadError, Reason, StatusError},
    writer,
};

/// Objects in a page, where the query does not say less.
const PAGE: usize = 500;

/// Bytes of JSON in a page: what the contract promises.
const PAGE_BYTES: usize = 4 << 20;

/// Reads of one plugin, within its grants.
pub(super) struct Reader {
    view: View,
    grants: Arc<Grants>,
}

impl Reader {
    pub(super) fn new(view: View, grants: Arc<Grants>) -> Self {
        Self { view, grants }
    }

    /// True if the plugin may read this object.
    pub(super) fn may_read(&self, of: &TypeMeta, key: &Key) -> bool {
        self.granted(of, key.namespace.as_deref(), Some(&key.name)).is_ok()
    }

    fn get(&self, of: &TypeMeta, key: &Key) -> Result<Option<Arc<Object>>, ReadError> {
        let namespace = key.namespace.as_deref();
        self.granted(of, namespace, Some(&key.name))?;
        if self.view.covering(of, namespace).next().is_none() {
            return Err(self.not_cached(of, namespace));
        }
        Ok(self.view.get(of, key))
    }

    fn list(&self, query: &Query) -> Result<Page, ReadError> {
        let of = &query.of;
        let namespace = query.namespace.as_deref();
        self.list_granted(of, namespace)?;
        let after = query.after.as_deref().map(cursor).transpose()?;
        if self.view.covering(of, namespace).next().is_none() && self.view.of(of).next().is_none() {
            return Err(self.not_cached(of, namespace));
        }
        let limit = match query.limit {
            0 => PAGE,
            limit => usize::try_from(limit).unwrap_or(PAGE).min(PAGE),
        };
        let mut found = self.candidates(of, namespace, &query.labels, after.as_ref(), limit + 1);
        // Leases with different selectors may show the same object.
        found.sort_by(|a, b| a.key().cmp(b.key()));
        found.dedup_by(|a, b| a.key() == b.key());
        let mut bytes = 0;
        let fits = found
            .iter()
            .take(limit)
            .take_while(|object| {
                bytes += object.json().len();
                bytes <= PAGE_BYTES
            })
            .count()
            // One object that is larger than a page is a page.
            .max(1)
            .min(found.len());
        let more = found.len() > fits;
        found.truncate(fits);
        let next = found.last().filter(|_| more).map(|last| last.key().to_string());
        Ok(Page { items: found, next })
    }

    /// Up to `limit` objects from each lease, in order, as far as they are granted.
    fn candidates(
        &self,
        of: &TypeMeta,
        namespace: Option<&str>,
        labels: &Selector,
        after: Option<&Key>,
        limit: usize,
    ) -> Vec<Arc<Object>> {
        let mut found = Vec::new();
        for lease in self.view.of(of) {
            found.extend(lease.list(namespace, labels, after, limit, |object| self.may_read(of, object.key())));
        }
        found
    }

    fn granted(&self, of: &TypeMeta, namespace: Option<&str>, name: Option<&str>) -> Result<(), ReadError> {
        self.grants
            .check(Verb::Read, of, None, namespace, name)
            .map_err(|denied| ReadError::NotGranted(denied.to_string()))
    }

    /// A list is made of what is granted, object by object; something of it must be.
    fn list_granted(&self, of: &TypeMeta, namespace: Option<&str>) -> Result<(), ReadError> {
        let some = match (self.grants.readable_namespaces(of), namespace) {
            (Namespaces::All, _) | (Namespaces::Some(_), None) => true,
            (Namespaces::Some(readable), Some(asked)) => readable.iter().any(|namespace| namespace == asked),
            (Namespaces::None, _) => false,
        };
        if some { Ok(()) } else { self.granted(of, namespace, None) }
    }

    fn not_cached(&self, of: &TypeMeta, namespace: Option<&str>) -> ReadError {
        let place = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
        ReadError::NotGranted(format!(
            "{of}{place} is not cached for this plugin: only what a controller is `for` or `owns` is; use client.get"
        ))
    }
}

/// A page's `next`, read back.
fn cursor(text: &str) -> Result<Key, ReadError> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    if name.is_empty() || name.contains('/') || namespace == Some("") {
        return Err(ReadError::Invalid(format!("after {text:?} is not the `next` of a page")));
    }
    Ok(Key::new(namespace, name))
}

/// The imports of one call.
pub(super) struct CallImports {
    serving: Arc<Serving>,
}

impl CallImports {
    pub(super) fn new(serving: Arc<Serving>) -> Self {
        Self { serving }
    }
}

impl Imports for CallImports {
    fn now(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn cached(&self, of: &TypeMeta, key: &Key) -> Result<Option<Arc<Object>>, ReadError> {
        self.serving.reader.get(of, key)
    }

    fn cached_list(&self, query: &Query) -> Result<Page, ReadError> {
        self.serving.reader.list(query)
    }

    fn get(&self, of: TypeMeta, key: Key) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(async move { self.serving.writer.get(&of, &key).await.map_err(refusal) })
    }

    fn create(&self, object: String) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(async move { self.serving.writer.create(&object).await.map_err(refusal) })
    }

    fn update(
        &self,
        object: String,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(async move { self.serving.writer.update(&object, subresource).await.map_err(refusal) })
    }

    fn patch(
        &self,
        of: TypeMeta,
        key: Key,
        body: PatchBody,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(async move {
            let (patch, body) = match body {
                PatchBody::Json(body) => (Patch::Json, body),
                PatchBody::Merge(body) => (Patch::Merge, body),
                PatchBody::StrategicMerge(body) => (Patch::Strategic, body),
            };
            self.serving.writer.patch(&of, &key, patch, body, subresource).await.map_err(refusal)
        })
    }

    fn apply(
        &self,
        object: String,
        subresource: Option<Subresource>,
        force: bool,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>> {
        Box::pin(async move { self.serving.writer.apply_object(&object, subresource, force).await.map_err(refusal) })
    }

    fn delete(
        &self,
        of: TypeMeta,
        key: Key,
        propagation: Propagation,
        preconditions: Preconditions,
    ) -> BoxFuture<'_, Result<(), ClientError>> {
        Box::pin(async move {
            let options = DeleteOptions {
                propagation: match propagation {
                    Propagation::Background => "Background",
                    Propagation::Foreground => "Foreground",
                    Propagation::Orphan => "Orphan",
                },
                uid: preconditions.uid.as_deref().map(Uid::parse),
                resource_version: preconditions.resource_version,
            };
            self.serving.writer.delete_object(&of, &key, options).await.map_err(refusal)
        })
    }
}

/// In the contract's words.
fn refusal(error: writer::ClientError) -> ClientError {
    let api = |code, reason, message, causes| ClientError::Api(StatusError { code, reason, message, causes });
    match error {
        writer::ClientError::Denied(denied) => ClientError::NotGranted(denied.to_string()),
        writer::ClientError::Invalid(why) => ClientError::Invalid(why),
        writer::ClientError::Request(cluster::Error::Status(status)) => {
            api(status.code, reason(&status), status.message, status.causes)
        }
        writer::ClientError::Request(error @ cluster::Error::Missing(_)) => {
            api(404, Reason::NotFound, error.to_string(), Vec::new())
        }
        writer::ClientError::Request(error @ (cluster::Error::TooLong(_) | cluster::Error::Name(_))) => {
            ClientError::Invalid(error.to_string())
        }
        writer::ClientError::Request(error) => ClientError::Unreachable(error.to_string()),
        writer::ClientError::Answer(error) => ClientError::Unreachable(format!("the answer is no object: {error}")),
    }
}

/// The reason that the server gave, or the one that its code stands for.
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
