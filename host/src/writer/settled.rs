//! Children that need no look: this text was compared with this version, or applied and answered with it.
//!
//! The note is kept beside the cached version ([`Object::settle`]). A change of more of the object than its status removes it, and so
//! does a start of the process. Most reconciles change nothing, and to compare large children takes more time than all the rest of them.
//! What the server stores in another form than it was sent is compared by its [mark](super::mark) after a start. A child that takes no
//! mark, and a status, are sent once more after a start.

use std::{borrow::Cow, hash::BuildHasher};

#[cfg(doc)]
use pilothouse_core::object::Object;
use pilothouse_core::{
    key::{Key, TypeMeta},
    manifest::Verb,
};
use serde::Deserialize;

use super::{Owner, Writer};
use crate::{informer::View, wasm::Child};

/// As a child names itself. A text in which one of these stands twice is left to whoever reads it whole.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    namespace: Option<Cow<'a, str>>,
}

impl Writer {
    /// Of all that decides what is applied for a child and whether it may be: its text and its owner, for a writer lives as long as a revision,
    /// with the same leases. Nobody who writes texts can know what they come to.
    pub(super) fn digest(&self, owner: &Owner<'_>, child: &Child) -> u64 {
        self.digests.hash_one((owner.object.uid(), &child.object))
    }

    /// As [`digest`](Self::digest), of a status: its note lies beside the object itself.
    pub(super) fn status_digest(&self, status: &str) -> u64 {
        self.digests.hash_one(status)
    }

    /// Which child it is, if it needs no look and may be applied.
    pub(super) fn settled(
        &self,
        owner: &Owner<'_>,
        view: &View,
        child: &Child,
        digest: u64,
    ) -> Option<(TypeMeta, Key)> {
        let named: Named<'_> = serde_json::from_str(&child.object).ok()?;
        let of = owner.owns.iter().find(|of| *of.api_version == named.api_version && *of.kind == named.kind)?;
        let namespace = owner.object.key().namespace.as_deref().or(named.metadata.namespace.as_deref());
        let key = Key::new(namespace, &named.metadata.name);
        let (live, keep) = view.find(of, &key)?;
        if !keep.is_whole() || !live.is_settled(digest, &self.digests) {
            return None;
        }
        // An answer need not name the owner that was sent.
        live.controller().filter(|controller| controller.uid == *owner.object.uid())?;
        // Grants may change under a revision. Who is denied is told by the one who writes.
        self.grants.load().check(Verb::Apply, of, None, key.namespace.as_deref(), Some(&key.name)).ok()?;
        Some((of.clone(), live.key().clone()))
    }
}
