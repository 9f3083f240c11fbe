//! What serves a controller's keys: one revision, and everything that its reconciles work with.

use std::sync::Arc;

use pilothouse_core::{
    key::{Key, TypeMeta},
    manifest,
    workqueue::Pace,
};

use super::imports::Access;
use crate::{informer::View, name::PluginName, wasm::Revision, writer};

/// Names one controller: its plugin, and its name in the manifest.
#[derive(Clone, Debug)]
pub(super) struct ControllerId {
    pub(super) plugin: PluginName,
    pub(super) name: Arc<str>,
}

/// What serves a controller's keys now. A swap replaces it as a whole.
pub(super) struct Serving {
    pub(super) revision: Arc<Revision>,
    pub(super) spec: manifest::Controller,
    pub(super) owns: Vec<TypeMeta>,
    /// Everything that the plugin caches.
    pub(super) view: View,
    /// The part of `view` that this controller reconciles. The plugin may cache more objects of the same kind.
    pub(super) reconciles: View,
    pub(super) access: Arc<Access>,
    /// Upper bound of concurrent reconciles.
    pub(super) concurrency: usize,
    /// How fast the queue hands out keys.
    pub(super) pace: Pace,
}

impl Serving {
    /// `true` if the caches of the key's object and of its children are current, so that a reconcile may compare with
    /// them.
    pub(super) fn is_current(&self, key: &Key) -> bool {
        writer::is_known(&self.spec.for_.of, &self.owns, key.namespace.as_deref(), &self.view)
    }
}
