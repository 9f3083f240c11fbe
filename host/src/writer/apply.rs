//! The apply of one child.

use std::sync::Arc;

use pilothouse_core::{
    diff,
    key::{Key, TypeMeta},
    manifest::Verb,
    object::Object,
};
use serde_json::Value;
use tracing::debug;

use super::{
    basis::{Basis, Standing, standing},
    desired::Desired,
    error::Error,
    handle::{Owner, Writer},
    mark,
    report::Write,
    send::is_version,
};
use crate::informer::View;

impl Writer {
    /// Applies a child, unless the cache shows that the apply would change nothing.
    pub(super) async fn apply_child(
        &self,
        owner: &Owner<'_>,
        view: &View,
        desired: &mut Desired,
    ) -> Result<Write, Error> {
        let (of, key) = (desired.of.clone(), desired.key.clone());
        self.grants.load().check(Verb::Apply, &of, None, key.namespace.as_deref(), Some(&key.name))?;
        let taken = |why| Error::Taken { of: of.clone(), key: key.clone(), why };
        let basis = match view.find(&of, &key) {
            // The object may exist all the same: the watch lags, or a selector hides it.
            None => Basis::Nothing,
            // A watch that leaves out fields shows whose the object is, but not whether it differs.
            Some((live, keep)) => match standing(owner, desired.adopt, &live).map_err(taken)? {
                // Nothing can be applied to it. Its deletion wakes this key again.
                Standing::Ending => return Ok(Write::Skipped),
                Standing::Ours if keep.is_whole() && self.holds(&live, desired) => {
                    live.settle(desired.digest, &self.digests);
                    return Ok(self.skipped());
                }
                Standing::Ours | Standing::Adopted => {
                    self.keep_mark(&live, desired);
                    Basis::Version(live.resource_version())
                }
            },
        };
        let applied = match self.apply_on(desired, basis).await {
            Err(Error::Request { source, .. }) if source.is_conflict() => {
                let basis = match self.read_metadata(&of, &key).await? {
                    // It was deleted between the two requests, or the server creates nothing under a version.
                    None => Basis::Anything,
                    Some(live) => match standing(owner, desired.adopt, &live).map_err(taken)? {
                        // The cache does not show the object, so its deletion may wake nothing.
                        Standing::Ending => return Err(Error::Ending { of, key }),
                        Standing::Ours | Standing::Adopted => Basis::Version(live.resource_version()),
                    },
                };
                self.apply_on(desired, basis).await?
            }
            applied => applied?,
        };
        let Some(applied) = self.mark(applied, desired).await else { return Ok(Write::Done) };
        // An apply that changes nothing is answered with the version that the cache has.
        if let Some(cached) = view.get(&of, &key).filter(|cached| is_version(cached, &applied)) {
            cached.settle(desired.digest, &self.digests);
        }
        Ok(Write::Done)
    }

    /// Applies a child if the server still has what the decision was based on. Otherwise the server answers 409.
    async fn apply_on(&self, desired: &mut Desired, basis: Basis) -> Result<Arc<Object>, Error> {
        let Desired { of, key, value, .. } = desired;
        basis.name_in(value);
        self.apply(of, key, value, None, basis.takes_fields()).await
    }

    /// Reads an object's metadata from the server. Returns `None` if the object does not exist.
    pub(super) async fn read_metadata(&self, of: &TypeMeta, key: &Key) -> Result<Option<Object>, Error> {
        match self.cluster.get_metadata(of, key.namespace.as_deref(), &key.name).await {
            Ok(body) => match Object::parse(&body, of) {
                Ok(object) => Ok(Some(object)),
                Err(why) => Err(Error::Unreadable { of: of.clone(), key: key.clone(), why }),
            },
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(Error::Request { verb: "read", of: of.clone(), key: key.clone(), source }),
        }
    }

    /// Returns `true` if an apply would change nothing in `live`.
    fn holds(&self, live: &Object, desired: &Desired) -> bool {
        if mark::is_marked(live, self.manager()) {
            let marked = mark::marked(&desired.of, &desired.value);
            return marked.is_some_and(|marked| diff::is_untouched(live, self.manager(), &marked));
        }
        diff::holds(live, self.manager(), None, &desired.value)
    }

    /// Adds the mark to the text if `live` has one, so that a change of the text takes one request.
    fn keep_mark(&self, live: &Object, desired: &mut Desired) {
        if mark::is_marked(live, self.manager())
            && let Some(marked) = mark::marked(&desired.of, &desired.value)
        {
            desired.value = marked;
        }
    }

    /// Applies a child once more, with the mark, if its `answer` does not prove that it is as it was applied.
    ///
    /// Returns the newest answer. Returns `None` if somebody changed the child meanwhile: that change wakes the key, and the next reconcile
    /// marks it.
    async fn mark(&self, answer: Arc<Object>, desired: &mut Desired) -> Option<Arc<Object>> {
        if mark::is_marked(&answer, self.manager()) {
            return Some(answer);
        }
        if let Some(metadata) = desired.value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        if diff::holds(&answer, self.manager(), None, &desired.value)
            || !diff::is_untouched(&answer, self.manager(), &desired.value)
        {
            return Some(answer);
        }
        let Some(marked) = mark::marked(&desired.of, &desired.value) else { return Some(answer) };
        desired.value = marked;
        match self.apply_on(desired, Basis::Version(answer.resource_version())).await {
            Ok(answer) => Some(answer),
            Err(Error::Request { source, .. }) if source.is_conflict() => None,
            // The child itself was applied. Without the mark, the next start of the host sends one request.
            Err(Error::Request { source, .. }) => {
                debug!(kind = %desired.of.kind, object = %desired.key, error = %source, "cannot mark a child");
                Some(answer)
            }
            Err(_) => Some(answer),
        }
    }
}
