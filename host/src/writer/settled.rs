//! Children that need no comparison: the same text was compared with this version, or applied and answered with it.
//!
//! That is recorded beside the cached version ([`Object::settle`]). A change of the object, except of its status alone,
//! removes the record, and so does a restart. Most reconciles change nothing, and comparing large children would take
//! most of their time.
//!
//! After a restart, a child that the server stores in another form is compared by its [mark](super::mark). A child that
//! takes no mark, and a status that is stored in another form, are sent once more.

use std::{borrow::Cow, hash::BuildHasher};

#[cfg(doc)]
use pilothouse_core::object::Object;
use pilothouse_core::{
    key::{Key, TypeMeta},
    manifest::Verb,
};
use serde::Deserialize;

use super::handle::{Owner, Writer};
use crate::{informer::View, wasm::Child};

/// How a child names itself. A text with duplicate members fails here, and is parsed as a whole later.
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
    /// Returns a digest of everything that decides what is applied for a child: its text and its owner. The leases
    /// belong to a revision, and so does the writer.
    pub(super) fn digest(&self, owner: &Owner<'_>, child: &Child) -> u64 {
        self.digests.hash_one((owner.object.uid(), &child.object))
    }

    /// Returns a digest of a status.
    pub(super) fn status_digest(&self, status: &str) -> u64 {
        self.digests.hash_one(status)
    }

    /// Returns the kind and key of a child that needs no comparison and may be applied.
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
        // The server's answer need not name the owner that was sent.
        live.controller().filter(|controller| controller.uid == *owner.object.uid())?;
        // Grants may change while a revision serves. The apply reports a denial.
        self.grants.load().check(Verb::Apply, of, None, key.namespace.as_deref(), Some(&key.name)).ok()?;
        Some((of.clone(), live.key().clone()))
    }
}
