//! Children that need no look: this text was compared with this version, or applied and answered with it.
//!
//! The note is kept beside the cached version ([`Object::settle`]): whoever changes more of the object than its status takes it away, and so
//! does a start. Most reconciles change nothing, and to find that out takes more time than all the rest of them where children are large.
//! And what the server keeps otherwise than it was sent (a quantity, a default inside of an atomic list) is sent once, and not by each
//! reconcile.

use std::{borrow::Cow, hash::BuildHasher, time::Duration};

#[cfg(doc)]
use pilothouse_core::object::Object;
use pilothouse_core::{
    key::{Key, TypeMeta},
    manifest::Verb,
};
use serde::Deserialize;

use super::{Owner, Writer};
use crate::{informer::View, wasm::Child};

/// How long a note is good at most. What a server makes of a text today it may not make of it tomorrow, without any change of the object: a
/// webhook that had changed the text is gone.
pub(super) const TRUST: Duration = Duration::from_mins(10);

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
    /// with the same leases. Nobody who writes texts can know what they come to. Every [`TRUST`] all are others.
    pub(super) fn digest(&self, owner: &Owner<'_>, child: &Child) -> u64 {
        let era = self.started.elapsed().as_secs() / TRUST.as_secs();
        self.digests.hash_one((owner.object.uid(), &child.object, era))
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
