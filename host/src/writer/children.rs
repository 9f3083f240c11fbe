//! The children of a reconciled object: which are applied, and which are deleted.

use std::{collections::HashSet, sync::Arc};

use futures::{StreamExt, stream};
use pilothouse_core::{
    key::{Key, TypeMeta},
    manifest::Verb,
    object::Object,
};

use super::{
    basis::unknown,
    error::{ChildError, Error},
    handle::{Owner, Writer},
    report::{Report, Write},
};
use crate::{
    cluster::DeleteOptions,
    informer::{Lapse, View},
    wasm::Child,
};

/// Children of one object that are written at a time. Eight hide the server's latency, and do not flood it.
const CHILDREN_AT_ONCE: usize = 8;

/// Children that are parsed or compared before other tasks get a turn. Each takes some microseconds.
const TURN_CHILDREN: usize = 64;

/// Bytes of children that are parsed or compared before other tasks get a turn: about a millisecond.
const TURN_BYTES: usize = 256 << 10;

/// Yields now and then during long work, so that the plugins that share a thread get their turns.
#[derive(Debug, Default)]
struct Turn {
    children: usize,
    bytes: usize,
}

impl Turn {
    /// Adds a child of so many bytes, and yields if the turn is over.
    async fn worked(&mut self, bytes: usize) {
        self.children += 1;
        self.bytes += bytes;
        if self.children >= TURN_CHILDREN || self.bytes >= TURN_BYTES {
            *self = Self::default();
            tokio::task::yield_now().await;
        }
    }
}

impl Writer {
    /// Makes `children` the children of `owner`: applies what differs, and deletes what this plugin applied and no
    /// longer names.
    ///
    /// If a child is invalid, nothing is deleted: the invalid child may be the one that would be deleted.
    pub async fn children(&self, owner: &Owner<'_>, view: &View, children: Vec<Child>) -> Report {
        let mut room = self.room(children.iter().map(|child| child.object.len()).sum()).await;
        let mut report = Report::default();
        let mut wanted = Vec::with_capacity(children.len());
        let mut named = HashSet::with_capacity(children.len());
        let mut turn = Turn::default();
        for (at, child) in children.into_iter().enumerate() {
            turn.worked(child.object.len()).await;
            let digest = self.digest(owner, &child);
            if let Some(settled) = self.settled(owner, view, &child, digest) {
                match named.replace(settled) {
                    None => report.add(Ok(self.skipped())),
                    Some((of, key)) => report.failed(ChildError::Twice { of, key }.into()),
                }
                continue;
            }
            match self.desire(owner, view, at, &child, digest).await {
                Ok(desired) if named.insert((desired.of.clone(), desired.key.clone())) => wanted.push(desired),
                Ok(desired) => report.failed(ChildError::Twice { of: desired.of, key: desired.key }.into()),
                Err(error) => report.failed(error),
            }
        }
        let all_are_valid = report.problems.is_empty();
        let applying = wanted.into_iter().map(|mut desired| {
            // Each child returns its part of the room when it is written.
            let room = room.as_mut().and_then(|room| room.split(desired.bytes));
            async move {
                let written = self.apply_child(owner, view, &mut desired).await;
                drop(room);
                (desired.bytes, written)
            }
        });
        let mut applied = stream::iter(applying).buffer_unordered(CHILDREN_AT_ONCE);
        while let Some((bytes, result)) = applied.next().await {
            report.add(result);
            turn.worked(bytes).await;
        }
        let unknown = unknown(owner, view);
        if all_are_valid {
            self.prune(owner, view, &unknown, &named, &mut report).await;
        }
        unknown.into_iter().for_each(|(of, lapse)| report.failed(Error::Unknown { of, lapse }));
        report
    }

    /// Deletes the children that this plugin applied and `named` does not hold, of kinds whose watches are up.
    async fn prune(
        &self,
        owner: &Owner<'_>,
        view: &View,
        unknown: &[(TypeMeta, Lapse)],
        named: &HashSet<(TypeMeta, Key)>,
        report: &mut Report,
    ) {
        let surplus = self.surplus(owner, view, unknown, named);
        let (of, key) = (owner.object.type_meta(), owner.object.key());
        if surplus.is_empty() {
            return;
        }
        if let Some(lapse) = view.lapse(of, key.namespace.as_deref()) {
            return report.failed(Error::OldOwner { of: of.clone(), key: key.clone(), lapse });
        }
        let pruning = surplus.into_iter().map(async |child| self.prune_child(owner, &child).await);
        let mut pruned = stream::iter(pruning).buffer_unordered(CHILDREN_AT_ONCE);
        while let Some(result) = pruned.next().await {
            report.add(result);
        }
    }

    fn surplus(
        &self,
        owner: &Owner<'_>,
        view: &View,
        unknown: &[(TypeMeta, Lapse)],
        named: &HashSet<(TypeMeta, Key)>,
    ) -> Vec<Arc<Object>> {
        let mut surplus = Vec::new();
        for of in owner.owns.iter().filter(|of| unknown.iter().all(|(unknown, _)| unknown != *of)) {
            for lease in view.of(of) {
                surplus.extend(lease.owned_by(owner.object.uid(), |child| {
                    self.identity.report_leftovers(child);
                    self.is_own_child(owner, child) && !named.contains(&(of.clone(), child.key().clone()))
                }));
            }
        }
        surplus
    }

    /// `true` if this plugin applied an object, and it is a child of `owner` that is not being deleted.
    fn is_own_child(&self, owner: &Owner<'_>, child: &Object) -> bool {
        child.controller().is_some_and(|controller| controller.uid == *owner.object.uid())
            && child.applied(self.manager(), None).is_some()
            && !child.is_deleting()
    }

    /// Deletes a child if the server has the version that the cache shows, or if it is still this plugin's. Any other
    /// object stays.
    async fn prune_child(&self, owner: &Owner<'_>, child: &Object) -> Result<Write, Error> {
        let (of, key) = (child.type_meta(), child.key());
        self.grants.load().check(Verb::Delete, of, None, key.namespace.as_deref(), Some(&key.name))?;
        match self.delete_version(of, key, child).await {
            Err(Error::Request { source, .. }) if source.is_conflict() => match self.read_metadata(of, key).await? {
                Some(live) if self.is_own_child(owner, &live) => self.delete_version(of, key, &live).await,
                Some(_) => Ok(Write::Skipped),
                None => {
                    self.informers.own_delete(of, key, child.uid());
                    Ok(Write::Done)
                }
            },
            result => result,
        }
    }

    /// Deletes an object if the server has this version of it. Otherwise the server answers 409.
    async fn delete_version(&self, of: &TypeMeta, key: &Key, object: &Object) -> Result<Write, Error> {
        let options = DeleteOptions {
            propagation: "Background",
            uid: Some(object.uid().clone()),
            resource_version: Some(object.resource_version().to_string()),
        };
        match self.delete(of, key, &options).await {
            // Somebody else deleted it.
            Err(Error::Request { source, .. }) if source.is_not_found() => {
                self.informers.own_delete(of, key, object.uid());
                Ok(Write::Done)
            }
            result => result.map(|()| Write::Done),
        }
    }
}
