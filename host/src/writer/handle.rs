//! The handle through which one plugin writes.

use std::{hash::RandomState, sync::Arc};

use arc_swap::ArcSwap;
use pilothouse_core::{grant::Grants, key::TypeMeta, object::Object};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{fence::Fence, identity::Identity, report::Write};
use crate::{
    cluster::{Actor, Cluster},
    informer::Informers,
    wasm::MAX_OUTCOME,
};

/// Sees every write that was sent, skipped, postponed or refused. For metrics.
pub trait WriteObserver: Send + Sync + 'static {
    /// `verb` is `create`, `apply`, ...; `result` is `success`, `skipped`, `deferred` or `error`.
    fn wrote(&self, plugin: &str, verb: &'static str, result: &'static str);
}

impl WriteObserver for () {
    fn wrote(&self, _: &str, _: &'static str, _: &'static str) {}
}

/// The object whose children and status are written.
pub struct Owner<'a> {
    /// The object as the plugin saw it.
    pub object: &'a Arc<Object>,
    /// The kinds that its controller owns.
    pub owns: &'a [TypeMeta],
}

/// Writes for one plugin.
#[derive(Clone)]
pub struct Writer {
    pub(super) cluster: Cluster,
    pub(super) informers: Informers,
    pub(super) identity: Identity,
    pub(super) grants: Arc<ArcSwap<Grants>>,
    pub(super) fence: Arc<Fence>,
    pub(super) observer: Arc<dyn WriteObserver>,
    /// Bytes of children and status that may be parsed at a time. Parsed, a text takes up to sixteen times as much
    /// until it is written.
    pub(super) room: Arc<Semaphore>,
    /// Hashes texts with keys of this writer, so that no plugin can construct two texts with one digest.
    pub(super) digests: RandomState,
}

impl Writer {
    /// Creates a writer for the field manager of `identity`. `cluster` sends as the plugin's service account. Each write needs `grants` as they are at that time, and an
    /// open `fence`.
    pub fn new(
        cluster: Cluster,
        informers: Informers,
        identity: Identity,
        grants: Arc<ArcSwap<Grants>>,
        fence: Arc<Fence>,
        observer: Arc<dyn WriteObserver>,
    ) -> Self {
        let room = Arc::new(Semaphore::new(MAX_OUTCOME));
        Self { cluster, informers, identity, grants, fence, observer, room, digests: RandomState::new() }
    }

    /// Returns this writer with the host's own account, for what the host keeps for the plugin: its
    /// CustomResourceDefinitions, and the configurations of its webhooks.
    #[must_use]
    pub fn as_host(&self) -> Self {
        Self { cluster: self.cluster.clone().sent_by(None), ..self.clone() }
    }

    /// The service account that sends the plugin's requests. `None` for the host's own.
    pub(crate) fn actor(&self) -> Option<Arc<Actor>> {
        self.cluster.actor().cloned()
    }

    /// The plugin's field manager.
    pub(super) fn manager(&self) -> &str {
        self.identity.manager()
    }

    /// Waits until so many bytes of the plugin's texts may be parsed. Dropping the permit returns them.
    pub(super) async fn room(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let bytes = u32::try_from(bytes.min(MAX_OUTCOME)).unwrap_or(u32::MAX);
        self.room.acquire_many(bytes).await.ok()
    }

    /// Records a write in the metrics.
    pub(super) fn count(&self, verb: &'static str, result: &'static str) {
        self.observer.wrote(self.identity.plugin().as_str(), verb, result);
    }

    /// Records an apply that was skipped.
    pub(super) fn skipped(&self) -> Write {
        self.count("apply", "skipped");
        Write::Skipped
    }

    /// Records a status that was postponed to the key's next reconcile.
    pub(crate) fn deferred(&self) {
        self.count("apply", "deferred");
    }
}
