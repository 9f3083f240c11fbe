//! Requests that change something: each passes the fence, is recorded, and has its answer in the cache when it returns.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use pilothouse_core::{
    ParseError,
    key::{Key, TypeMeta},
    object::{Object, Subresource, Uid},
};
use serde_json::Value;
use tracing::debug;

use super::{
    error::{Error, with_reason},
    fence::Closed,
    handle::Writer,
};
use crate::cluster::{self, DeleteOptions, Patch, WriteOptions};

impl Writer {
    /// Sends a server-side apply, and puts its answer into the cache.
    pub(super) async fn apply(
        &self,
        of: &TypeMeta,
        key: &Key,
        desired: &Value,
        subresource: Option<Subresource>,
        force: bool,
    ) -> Result<Arc<Object>, Error> {
        let options = WriteOptions { manager: self.manager(), subresource };
        let body = desired.to_string().into_bytes();
        let sent = self.cluster.patch(of, key.namespace.as_deref(), &key.name, Patch::Apply { force }, body, options);
        let answer = self.answered("apply", of, key, subresource, sent).await?;
        self.put_in_cache(of, &answer).map_err(|why| Error::Answer { of: of.clone(), key: key.clone(), why })
    }

    /// Sends a merge patch, and puts its answer into the cache.
    pub(super) async fn merge(&self, of: &TypeMeta, key: &Key, patch: &Value) -> Result<Arc<Object>, Error> {
        let options = WriteOptions { manager: self.manager(), subresource: None };
        let body = patch.to_string().into_bytes();
        let sent = self.cluster.patch(of, key.namespace.as_deref(), &key.name, Patch::Merge, body, options);
        let answer = self.answered("patch", of, key, None, sent).await?;
        self.put_in_cache(of, &answer).map_err(|why| Error::Answer { of: of.clone(), key: key.clone(), why })
    }

    /// Deletes an object, and puts the answer into the cache.
    pub(super) async fn delete(&self, of: &TypeMeta, key: &Key, options: &DeleteOptions) -> Result<(), Error> {
        let sent = self.cluster.delete(of, key.namespace.as_deref(), &key.name, options);
        let answer = self.answered("delete", of, key, None, sent).await?;
        match Object::parse(&answer, of) {
            // Finalizers hold it.
            Ok(held) if held.type_meta() == of && held.is_deleting() => self.informers.own_write(&Arc::new(held)),
            // Some kinds answer with the object that was deleted.
            Ok(gone) if gone.type_meta() == of => self.informers.own_delete(of, key, gone.uid()),
            // It is a `Status`.
            _ => {
                if let Some(uid) = options.uid.clone().or_else(|| deleted_uid(&answer)) {
                    self.informers.own_delete(of, key, &uid);
                }
            }
        }
        Ok(())
    }

    /// Sends a write if the fence is open, waits for the answer, and records the write. Every write of a plugin passes
    /// here.
    pub(super) async fn answered(
        &self,
        verb: &'static str,
        of: &TypeMeta,
        key: &Key,
        subresource: Option<Subresource>,
        sent: impl Future<Output = Result<Bytes, cluster::Error>>,
    ) -> Result<Bytes, Error> {
        self.fence.check()?;
        let started = Instant::now();
        let answer = sent.await;
        self.record(verb, (of, key, subresource), started.elapsed(), answer.as_ref().err());
        if matches!(answer, Err(cluster::Error::NotActing)) {
            return Err(Closed::NotActing.into());
        }
        answer.map_err(|source| Error::Request { verb, of: of.clone(), key: key.clone(), source })
    }

    /// Puts the answer to a write into the cache.
    pub(super) fn put_in_cache(&self, of: &TypeMeta, answer: &[u8]) -> Result<Arc<Object>, ParseError> {
        let object = Arc::new(Object::parse(answer, of)?);
        self.informers.own_write(&object);
        Ok(object)
    }

    fn record(
        &self,
        verb: &'static str,
        (of, key, subresource): (&TypeMeta, &Key, Option<Subresource>),
        took: Duration,
        error: Option<&cluster::Error>,
    ) {
        self.count(verb, if error.is_none() { "success" } else { "error" });
        let part = subresource.map(Subresource::as_str);
        match error {
            None => {
                debug!(target: "pilothouse::feed", what = "wrote", verb, api_version = %of.api_version, kind = %of.kind, part, object = %key, ?took);
            }
            Some(error) => {
                debug!(target: "pilothouse::feed", what = "refused", verb, api_version = %of.api_version, kind = %of.kind, part, object = %key, ?took, error = %with_reason(error));
            }
        }
    }
}

/// The uid that a `Status`, the answer to a delete, names.
pub(super) fn deleted_uid(answer: &[u8]) -> Option<Uid> {
    let status: Value = serde_json::from_slice(answer).ok()?;
    status.pointer("/details/uid")?.as_str().filter(|uid| !uid.is_empty()).map(Uid::parse)
}

/// `true` if the cached object is the version that a write was answered with.
pub(super) fn is_version(cached: &Object, answer: &Object) -> bool {
    cached.uid() == answer.uid() && cached.resource_version() == answer.resource_version()
}
