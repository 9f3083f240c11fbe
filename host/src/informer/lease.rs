//! A stable handle on what was asked for, whichever informer shows it just now.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use pilothouse_core::{
    informer::{Filter, InformerKey},
    key::Key,
    object::{Object, Uid},
    reflector::State,
    selector::Selector,
    store::{Change, Store},
};
use tokio::sync::watch;

use super::{
    Informer, Origin, Subscriber,
    registry::Registry,
    source::{cut, shown},
};

/// What is asked of the registry.
pub(super) struct Asks<'a> {
    pub(super) key: InformerKey,
    pub(super) compressed: bool,
    pub(super) holder: &'a str,
}

/// Keeps what it asks for in the cache, and shows it: of each object no more than that, whatever the informer holds.
///
/// # Guarantees
/// Reads and subscribers see one history: an object never gets older, and every change is told once, also where another informer
/// takes over.
pub struct Lease {
    place: Arc<Place>,
    home: Weak<Registry>,
}

/// What a lease shares with the registry.
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) key: InformerKey,
    /// For people: who holds the lease.
    pub(super) holder: Arc<str>,
    /// Whoever holds it would have objects compressed.
    pub(super) compressed: AtomicBool,
    /// Replaced under the locks of the informer that is left and of the one that is entered.
    pub(super) seat: ArcSwap<Seat>,
    pub(super) synced: watch::Sender<bool>,
    subscriptions: AtomicU64,
}

/// Where a lease looks.
pub(super) struct Seat {
    pub(super) informer: Arc<Informer>,
    pub(super) filter: Option<Filter>,
}

impl Seat {
    pub(super) fn new(informer: Arc<Informer>, key: &InformerKey) -> Self {
        let filter = Filter::new(&informer.key, key);
        Self { filter: Some(filter).filter(|filter| *filter != Filter::default()), informer }
    }

    /// What of an object the lease shows.
    pub(super) fn cut(&self, object: &Arc<Object>) -> Arc<Object> {
        cut(self.filter.as_ref(), object)
    }
}

impl Place {
    pub(super) fn new(number: u64, asks: Asks<'_>, seat: Seat) -> Self {
        Self {
            number,
            key: asks.key,
            holder: asks.holder.into(),
            compressed: asks.compressed.into(),
            seat: ArcSwap::from_pointee(seat),
            synced: watch::Sender::new(false),
            subscriptions: AtomicU64::new(0),
        }
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.compressed.load(Ordering::Relaxed)
    }

    /// Reads under the lock of the informer that shows this lease.
    fn read<T>(&self, read: impl FnOnce(&Store, &Seat) -> T) -> T {
        loop {
            let seat = self.seat.load_full();
            let inner = seat.informer.inner.read();
            // It may have been left between the two.
            if Arc::ptr_eq(&seat, &self.seat.load()) {
                return read(&inner.store, &seat);
            }
        }
    }
}

/// A place among a lease's subscribers.
#[derive(Debug)]
pub struct Subscription(u64);

impl Lease {
    pub(super) fn new(place: Arc<Place>, home: Weak<Registry>) -> Self {
        Self { place, home }
    }

    /// What it asks for.
    pub fn key(&self) -> &InformerKey {
        &self.place.key
    }

    /// Says whether objects may be kept compressed. They are where all leases on the informer say so.
    pub fn set_compressed(&self, on: bool) {
        if self.place.compressed.swap(on, Ordering::Relaxed) != on
            && let Some(home) = self.home.upgrade()
        {
            home.look();
        }
    }

    /// Whether they may.
    pub fn is_compressed(&self) -> bool {
        self.place.is_compressed()
    }

    /// The informer that shows it just now.
    pub fn informer(&self) -> Arc<Informer> {
        self.place.seat.load().informer.clone()
    }

    /// True if an object of this kind, in this namespace, would be here if it existed (and the selectors matched).
    pub fn covers(&self, namespace: Option<&str>) -> bool {
        self.place.key.covers_namespace(namespace)
    }

    /// Becomes true when the first list is here and was handed to the subscribers, and stays so.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.place.synced.subscribe()
    }

    /// What the reflector behind it is doing.
    pub fn state(&self) -> State {
        self.informer().state()
    }

    /// One object.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.place.read(|store, seat| {
            let object = store.get(key.namespace.as_deref(), &key.name)?;
            seat.filter.as_ref().is_none_or(|filter| filter.shows(object)).then(|| seat.cut(object))
        })
    }

    /// Up to `limit` objects that `labels` match and `accept` takes, ordered by key, after the key `after`. `namespace`: only those
    /// in it; none: all.
    pub fn list(
        &self,
        namespace: Option<&str>,
        labels: &Selector,
        after: Option<&Key>,
        limit: usize,
        accept: impl Fn(&Object) -> bool,
    ) -> Vec<Arc<Object>> {
        self.place.read(|store, seat| {
            let Some(filter) = &seat.filter else {
                return store
                    .list(namespace, labels, after)
                    .filter(|object| accept(object))
                    .take(limit)
                    .cloned()
                    .collect();
            };
            let namespace = match (namespace, filter.namespace()) {
                (Some(asked), Some(shown)) if asked != shown => return Vec::new(),
                (asked, shown) => asked.or(shown),
            };
            let labels = labels.and(filter.labels());
            let found = store.list(namespace, &labels, after).filter(|object| filter.admits(object.key()));
            found.map(|object| filter.cut(object)).filter(|object| accept(object)).take(limit).collect()
        })
    }

    /// The keys of all objects, in order.
    pub fn keys(&self) -> Vec<Key> {
        let keys = |store: &Store, seat: &Seat| {
            shown(store, seat.filter.as_ref()).map(|object| object.key().clone()).collect()
        };
        self.place.read(keys)
    }

    /// Objects with an owner reference to that uid that `accept` takes, in no particular order.
    pub fn owned_by(&self, owner: &Uid, accept: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        self.place.read(|store, seat| {
            let owned = store.owned_by(owner).filter(|object| seat.filter.as_ref().is_none_or(|f| f.shows(object)));
            owned.map(|object| seat.cut(object)).filter(|object| accept(object)).collect()
        })
    }

    /// Calls `subscriber` with every object that is there, then with every change, until [`Lease::unsubscribe`]. No change falls
    /// between the two.
    pub fn subscribe(&self, subscriber: Subscriber) -> Subscription {
        let id = self.place.subscriptions.fetch_add(1, Ordering::Relaxed);
        loop {
            let seat = self.place.seat.load_full();
            let inner = &mut *seat.informer.inner.write();
            if !Arc::ptr_eq(&seat, &self.place.seat.load()) {
                continue;
            }
            for object in inner.shown(seat.filter.as_ref()) {
                subscriber(&Change { old: None, new: Some(seat.cut(object)), missed: false }, Origin::Initial);
            }
            let outlet = inner.outlet(self.place.number).expect("a lease that is held has an outlet");
            outlet.subscribers.push((id, subscriber));
            return Subscription(id);
        }
    }

    /// Ends a subscription. When this returns, its subscriber is not called any more.
    #[expect(clippy::needless_pass_by_value, reason = "it is used up")]
    pub fn unsubscribe(&self, subscription: Subscription) {
        loop {
            let seat = self.place.seat.load_full();
            let inner = &mut *seat.informer.inner.write();
            if !Arc::ptr_eq(&seat, &self.place.seat.load()) {
                continue;
            }
            if let Some(outlet) = inner.outlet(self.place.number) {
                // It may hold the last reference to something that holds leases: not under the lock's eyes, but that is no harm.
                outlet.subscribers.retain(|(id, _)| *id != subscription.0);
            }
            return;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.release(self.place.clone());
        }
    }
}
