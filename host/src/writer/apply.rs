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
use crate::{
    cluster::{self, DeleteOptions},
    informer::View,
};

/// What kube-apiserver and the schemas of custom resources say of a field that may not change.
const IMMUTABLE: [&str; 5] =
    ["immutable", "may not change once set", "cannot change", "may not change fields other than", "updates to "];

/// `true` if the server rejected a change for no other reason than that fields are immutable.
///
/// If anything else is wrong, the new object would be rejected too, after the old one was deleted.
fn is_immutable(error: &cluster::Error) -> bool {
    let cluster::Error::Status(status) = error else { return false };
    let says = |message: &str| IMMUTABLE.iter().any(|words| message.contains(words));
    status.code == 422 && !status.causes.is_empty() && status.causes.iter().all(|(_, message)| says(message))
}

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
        let taken = |why| {
            // The error reaches the plugin, and names who controls the object.
            let may_see = self.grants.load().may_see(&of, &key);
            let why = if may_see { why } else { "is not this object's child".to_owned() };
            Error::Taken { of: of.clone(), key: key.clone(), why }
        };
        // What is written to, if it is this owner's child already.
        let mut ours = None;
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
                standing => {
                    self.keep_mark(&live, desired);
                    ours = (standing == Standing::Ours).then(|| live.clone());
                    Basis::Version(live.resource_version())
                }
            },
        };
        let applied = match self.apply_on(desired, basis).await {
            Err(Error::Request { source, .. }) if source.is_conflict() => {
                let basis = match self.read_metadata(&of, &key).await? {
                    // It was deleted between the two requests, or the server creates nothing under a version.
                    None => {
                        ours = None;
                        Basis::Anything
                    }
                    Some(live) => match standing(owner, desired.adopt, &live).map_err(taken)? {
                        // The cache does not show the object, so its deletion may wake nothing.
                        Standing::Ending => return Err(Error::Ending { of, key }),
                        standing => {
                            let basis = Basis::Version(live.resource_version());
                            ours = (standing == Standing::Ours).then(|| Arc::new(live));
                            basis
                        }
                    },
                };
                self.apply_on(desired, basis).await
            }
            applied => applied,
        };
        let applied = match applied {
            Err(Error::Request { source, .. }) if is_immutable(&source) => match ours {
                Some(live) if desired.replace => return self.replace(&of, &key, &live).await,
                _ => return Err(Error::Immutable { of, key, source }),
            },
            applied => applied?,
        };
        let Some(applied) = self.mark(applied, desired).await else { return Ok(Write::Done) };
        // An apply that changes nothing is answered with the version that the cache has.
        if let Some(cached) = view.get(&of, &key).filter(|cached| is_version(cached, &applied)) {
            cached.settle(desired.digest, &self.digests);
        }
        Ok(Write::Done)
    }

    /// Deletes a child that cannot be changed, if the server still has this version of it. The next reconcile creates
    /// it anew: the end of the deletion wakes the key.
    async fn replace(&self, of: &TypeMeta, key: &Key, live: &Object) -> Result<Write, Error> {
        self.grants.load().check(Verb::Delete, of, None, key.namespace.as_deref(), Some(&key.name))?;
        let options = DeleteOptions {
            propagation: "Foreground",
            uid: Some(live.uid().clone()),
            resource_version: Some(live.resource_version().to_string()),
        };
        self.delete(of, key, &options).await?;
        debug!(kind = %of.kind, object = %key, "deleted a child to create it again: a field that changes is immutable");
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
    /// Returns the newest answer. Returns `None` if somebody changed the child meanwhile: that change wakes the key,
    /// and the next reconcile marks it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_immutable_fields_alone_lets_a_child_be_replaced() {
        let refused = |code, messages: &[&str]| {
            let causes = messages.iter().map(|message| ("spec".to_owned(), (*message).to_owned())).collect();
            is_immutable(&cluster::Error::Status(Box::new(cluster::Status {
                code,
                causes,
                ..cluster::Status::default()
            })))
        };
        // As kube-apiserver 1.36 words them, in this order: ConfigMap, Job and Deployment, Service, RoleBinding,
        // StatefulSet, Pod, PVC.
        for message in [
            "Forbidden: field is immutable when `immutable` is set",
            "Invalid value: {\"matchLabels\":{\"app\":\"a\"}}: field is immutable",
            "Invalid value: [\"10.0.0.2\"]: may not change once set",
            "Invalid value: {\"kind\":\"Role\"}: cannot change roleRef",
            "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals' are forbidden",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`",
            "Forbidden: spec is immutable after creation except resources.requests for bound claims",
        ] {
            assert!(refused(422, &[message]), "{message}");
            assert!(!refused(422, &[message, "Required value"]), "{message}");
            assert!(!refused(403, &[message]), "{message}");
        }
        assert!(!refused(422, &[]));
    }
}
