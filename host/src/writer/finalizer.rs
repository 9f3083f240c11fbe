//! The finalizer that a manifest names. It is added before the first reconcile of an object, and removed after its
//! cleanup.
//!
//! A merge patch sends the whole list of finalizers, and names the version of the object that the list was read from.
//! The server rejects it if the object has changed since, so another writer's finalizer is never dropped. The object is
//! then read again.

use pilothouse_core::{
    key::{Key, TypeMeta},
    manifest::Verb,
    object::{Object, Uid},
};
use serde_json::json;

use super::{error::Error, handle::Writer};

/// Writes of one finalizer while others change the object. After that, the reconcile fails, and is retried with
/// backoff.
const TRIES: u32 = 5;

/// What a change of the finalizers came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finalizing {
    /// The finalizers were written.
    Written,
    /// The server's object needed no change.
    Unchanged,
    /// The object is gone, or is being deleted and takes no finalizer.
    Ended,
}

/// An object whose finalizers are to be changed.
struct Target<'a> {
    of: &'a TypeMeta,
    key: &'a Key,
    uid: &'a Uid,
}

impl Writer {
    /// Adds a finalizer to a live object. `cached` is its newest known state.
    pub(crate) async fn add_finalizer(&self, cached: &Object, finalizer: &str) -> Result<Finalizing, Error> {
        self.change_finalizers(cached, true, |object, finalizers| {
            if object.is_deleting() {
                return Some(Finalizing::Ended);
            }
            if finalizers.iter().any(|other| other == finalizer) {
                return Some(Finalizing::Unchanged);
            }
            finalizers.push(finalizer.to_owned());
            None
        })
        .await
    }

    /// Removes a finalizer. `cached` is the last known state of the object, which is out of date unless `is_cached`.
    pub(crate) async fn remove_finalizer(
        &self,
        cached: &Object,
        is_cached: bool,
        finalizer: &str,
    ) -> Result<Finalizing, Error> {
        self.change_finalizers(cached, is_cached, |_, finalizers| {
            let before = finalizers.len();
            finalizers.retain(|other| other != finalizer);
            (finalizers.len() == before).then_some(Finalizing::Unchanged)
        })
        .await
    }

    /// Changes the finalizers of an object. `change` returns a value if nothing is to be written.
    async fn change_finalizers(
        &self,
        cached: &Object,
        is_cached: bool,
        change: impl Fn(&Object, &mut Vec<String>) -> Option<Finalizing>,
    ) -> Result<Finalizing, Error> {
        let target = Target { of: cached.type_meta(), key: cached.key(), uid: cached.uid() };
        let mut read = None;
        if !is_cached {
            read = self.read_same(&target).await?;
            if read.is_none() {
                return Ok(Finalizing::Ended);
            }
        }
        let mut tries = 1;
        loop {
            let object = read.as_ref().unwrap_or(cached);
            let mut finalizers = object.finalizers();
            if let Some(unwritten) = change(object, &mut finalizers) {
                return Ok(unwritten);
            }
            match self.write_finalizers(&target, object, &finalizers).await {
                Ok(()) => return Ok(Finalizing::Written),
                Err(Error::Request { source, .. }) if source.is_not_found() => {
                    self.informers.own_delete(target.of, target.key, target.uid);
                    return Ok(Finalizing::Ended);
                }
                Err(Error::Request { source, .. }) if source.is_conflict() && tries < TRIES => {
                    tries += 1;
                    read = self.read_same(&target).await?;
                    if read.is_none() {
                        return Ok(Finalizing::Ended);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the object from the server. Returns `None` if it is gone, or another one has its name.
    async fn read_same(&self, Target { of, key, uid }: &Target<'_>) -> Result<Option<Object>, Error> {
        let read = self.read_metadata(of, key).await?.filter(|read| read.uid() == *uid);
        if read.is_none() {
            self.informers.own_delete(of, key, uid);
        }
        Ok(read)
    }

    /// Writes the finalizers of an object if the server has this version of it, and puts the answer into the cache.
    async fn write_finalizers(
        &self,
        Target { of, key, uid }: &Target<'_>,
        object: &Object,
        finalizers: &[String],
    ) -> Result<(), Error> {
        self.grants.load().check(Verb::Patch, of, None, key.namespace.as_deref(), Some(&key.name))?;
        let version = object.resource_version().to_string();
        let patch = json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } });
        let answer = self.merge(of, key, &patch).await?;
        // The answer has the old version if the object went with its last finalizer. The cache would take no notice of
        // it.
        if object.is_deleting() && finalizers.is_empty() && answer.resource_version() == object.resource_version() {
            self.informers.own_delete(of, key, uid);
        }
        Ok(())
    }
}
