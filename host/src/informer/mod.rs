//! What the host knows of the cluster: one informer per (resource, scope, selector), shared by all plugins.
//!
//! An [`Informer`] is a store, fed by a driver that performs what the reflector's state machine of `pilothouse-core` decides, and
//! by the answers to the host's own writes. Everyone who must know of changes subscribes; a subscriber sees each change once,
//! in order, and begins with what is already there.
//!
//! ```text
//! Informers ── acquire(key) ─► Lease ─► Informer ─┬─ store      ◄── driver ◄─► API server
//!   one per key, counted                          └─ subscribers ◄── own writes
//! ```

mod driver;
mod registry;
#[cfg(test)]
mod tests;
mod view;

pub use registry::{Informers, Lease};
pub use view::View;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use pilothouse_core::{
    key::{Key, TypeMeta},
    object::{Object, ResourceVersion, Uid},
    reflector::{RelistReason, State},
    selector::Selector,
    store::{Change, Store},
};
use tokio::sync::watch;

/// What an informer watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InformerKey {
    /// The kind.
    pub of: TypeMeta,
    /// One namespace, or all.
    pub namespace: Option<Arc<str>>,
    /// A label selector in canonical form; empty: every object.
    pub labels: Arc<str>,
}

impl fmt::Display for InformerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.of)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        if !self.labels.is_empty() {
            write!(f, " where {}", self.labels)?;
        }
        Ok(())
    }
}

/// Told of each change, in order, while the store is locked: it must be quick, and must not read the informer.
pub type Subscriber = Box<dyn Fn(&Change, Origin) + Send + Sync>;

/// Where a change comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The first list, or what was there when the subscription began.
    Initial,
    /// A watch event, a relist, or an own write.
    Change,
}

/// Counts since the start, for metrics.
#[derive(Debug, Default)]
pub struct Counts {
    /// Objects that appeared.
    pub added: AtomicU64,
    /// Objects that changed.
    pub updated: AtomicU64,
    /// Objects that vanished.
    pub deleted: AtomicU64,
    /// Objects that could not be read.
    pub skipped: AtomicU64,
    relists: Mutex<BTreeMap<RelistReason, u64>>,
}

impl Counts {
    /// Lists after the first, by reason.
    pub fn relists(&self) -> Vec<(&'static str, u64)> {
        self.relists.lock().iter().map(|(reason, count)| (reason.as_str(), *count)).collect()
    }
}

/// A store of one kind's objects in one scope, kept up to date.
pub struct Informer {
    key: InformerKey,
    selector: Selector,
    inner: RwLock<Inner>,
    synced: watch::Sender<bool>,
    state: Mutex<State>,
    counts: Counts,
}

struct Inner {
    store: Store,
    subscribers: Vec<(u64, Subscriber)>,
    next_subscriber: u64,
}

impl Informer {
    fn new(key: InformerKey, selector: Selector) -> Self {
        let store = Store::new(key.of.clone());
        Self {
            key,
            selector,
            inner: RwLock::new(Inner { store, subscribers: Vec::new(), next_subscriber: 0 }),
            synced: watch::Sender::new(false),
            state: Mutex::new(State::Resolving),
            counts: Counts::default(),
        }
    }

    /// What it watches.
    pub fn key(&self) -> &InformerKey {
        &self.key
    }

    /// True if an object of this kind, in this namespace, would be here if it existed (and matched the selector).
    pub fn covers(&self, namespace: Option<&str>) -> bool {
        match (&self.key.namespace, namespace) {
            (None, _) => true,
            (Some(of), Some(asked)) => **of == *asked,
            (Some(_), None) => false,
        }
    }

    /// The store, for reading. Hold it briefly: changes wait meanwhile.
    pub fn read(&self) -> impl std::ops::Deref<Target = Store> + '_ {
        RwLockReadGuard::map(self.inner.read(), |inner| &inner.store)
    }

    /// One object.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.inner.read().store.get(key.namespace.as_deref(), &key.name).cloned()
    }

    /// Calls `subscriber` with every object that is there, then with every change, until [`Informer::unsubscribe`]. No change
    /// falls between the two.
    pub fn subscribe(&self, subscriber: Subscriber) -> Subscription {
        let mut inner = self.inner.write();
        for object in inner.store.iter() {
            subscriber(&Change { old: None, new: Some(object.clone()), missed: false }, Origin::Initial);
        }
        let id = inner.next_subscriber;
        inner.next_subscriber += 1;
        inner.subscribers.push((id, subscriber));
        Subscription(id)
    }

    /// Ends a subscription. When this returns, its subscriber is not called any more.
    #[expect(clippy::needless_pass_by_value, reason = "it is used up")]
    pub fn unsubscribe(&self, subscription: Subscription) {
        self.inner.write().subscribers.retain(|(id, _)| *id != subscription.0);
    }

    /// Becomes true when the first list is in the store and was handed to the subscribers, and stays so.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// What the reflector is doing.
    pub fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Counts since the start.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Takes in the answer to one of the host's own writes, so that the next read sees it though the watch lags.
    fn own_write(&self, object: &Arc<Object>) {
        let key = object.key();
        if !self.covers(key.namespace.as_deref()) {
            return;
        }
        let matches = self.selector.matches(object.labels());
        self.change(Origin::Change, |store| {
            // Each store interns for itself.
            if matches { store.upsert_own((**object).clone()) } else { store.remove_own(key, object.uid()) }
        });
    }

    /// Takes in that one of the host's own deletes succeeded at once.
    fn own_delete(&self, key: &Key, uid: &Uid) {
        if self.covers(key.namespace.as_deref()) {
            self.change(Origin::Change, |store| store.remove_own(key, uid));
        }
    }

    fn upsert(&self, object: Object) {
        let origin = if *self.synced.borrow() { Origin::Change } else { Origin::Initial };
        self.change(origin, |store| store.upsert(object));
    }

    fn remove(&self, last: Object) {
        self.change(Origin::Change, |store| store.remove(last));
    }

    fn begin_replace(&self, went_back: bool) {
        self.inner.write().store.begin_replace(went_back);
    }

    fn finish_replace(&self, version: ResourceVersion) {
        let inner = &mut *self.inner.write();
        for change in inner.store.finish_replace(version) {
            self.announce(&inner.subscribers, &change, Origin::Change);
        }
    }

    fn abort_replace(&self) {
        self.inner.write().store.abort_replace();
    }

    fn mark_synced(&self) {
        // Subscribers were called under the lock by every change so far: what is routed is routed.
        let _order = self.inner.write();
        self.synced.send_replace(true);
    }

    fn change(&self, origin: Origin, apply: impl FnOnce(&mut Store) -> Option<Change>) {
        let inner = &mut *self.inner.write();
        if let Some(change) = apply(&mut inner.store) {
            self.announce(&inner.subscribers, &change, origin);
        }
    }

    fn announce(&self, subscribers: &[(u64, Subscriber)], change: &Change, origin: Origin) {
        let count = match (&change.old, &change.new) {
            (None, _) => &self.counts.added,
            (_, Some(_)) => &self.counts.updated,
            (_, None) => &self.counts.deleted,
        };
        count.fetch_add(1, Ordering::Relaxed);
        for (_, subscriber) in subscribers {
            subscriber(change, origin);
        }
    }

    fn note(&self, state: State) {
        *self.state.lock() = state;
    }

    fn note_relist(&self, reason: RelistReason) {
        *self.counts.relists.lock().entry(reason).or_default() += 1;
    }
}

/// What an informer is doing, for people.
pub fn told(state: &State) -> String {
    match state {
        State::Resolving => "looking for the kind".into(),
        State::Missing(why) => format!("waiting for the kind to be served: {why}"),
        State::Listing => "listing".into(),
        State::Watching => "watching".into(),
        State::Waiting { delay, reason } => format!("trying again in {:.1} s: {reason}", delay.as_secs_f32()),
        State::Denied(why) => format!("denied; grant the host's account list and watch: {why}"),
    }
}

/// A place among an informer's subscribers.
#[derive(Debug)]
pub struct Subscription(u64);
