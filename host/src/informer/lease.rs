//! A stable handle on what was asked for, whichever informer shows it just now.

use std::{
    borrow::Cow,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use pilothouse_core::{
    field::{FieldPath, FieldSet},
    informer::{Filter, InformerKey},
    key::Key,
    object::{Object, Uid},
    reflector::State,
    selector::Selector,
    store::{Change, IndexError, Page, Query, Snapshot, Store},
};
use tokio::sync::watch;

use super::{
    Informer, Moment, Origin, Subscriber,
    informer::Inner,
    outlet::{Introduction, Subscribed, cut, shown},
    registry::Registry,
};
use crate::guests::tell_later;

/// Objects that a new subscriber receives under one lock. Each takes some microseconds, and more where it is cut.
const INTRODUCED: usize = 50;

/// What is asked of the registry.
pub(super) struct Asks<'a> {
    pub(super) key: InformerKey,
    pub(super) compressed: bool,
    pub(super) indexes: Box<[FieldPath]>,
    pub(super) holder: &'a str,
}

impl<'a> Asks<'a> {
    pub(super) fn new(key: InformerKey, holder: &'a str) -> Self {
        Self { key, compressed: false, indexes: Box::default(), holder }
    }
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
    /// What it is looked up by. Each informer that shows it has these indexes, as long as it does.
    pub(super) indexes: Box<[FieldPath]>,
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

    /// Some of what a query asks for out of the store; what the lease does not show may be among it. True: where the query asks for an
    /// index, what is not in it may be as well.
    fn page(&self, store: &Store, query: &Query<'_>, snapshot: Option<&Snapshot>, work: usize) -> (Page, bool) {
        let (shown, labels) = self.filter.as_ref().map_or((None, None), |f| (f.namespace(), Some(f.labels())));
        let namespace = match (query.namespace, shown) {
            (Some(asked), Some(shown)) if asked != shown => return (Page { items: Vec::new(), next: None }, false),
            (asked, shown) => asked.or(shown),
        };
        let selector = match labels {
            Some(labels) if !labels.is_empty() => Cow::Owned(query.selector.and(labels)),
            _ => Cow::Borrowed(query.selector),
        };
        let query = Query { namespace, selector: &selector, ..*query };
        let page = match store.page(&query, snapshot, work) {
            Ok(page) => (page, false),
            Err(IndexError::Missing(_) | IndexError::Building(_)) => {
                let scan = Query { index: None, ..query };
                (store.page(&scan, snapshot, work).expect("it asks for no index"), true)
            }
        };
        if store.lacks_labels() {
            self.informer.index_labels();
        }
        page
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
            indexes: asks.indexes,
            seat: ArcSwap::from_pointee(seat),
            synced: watch::Sender::new(false),
            subscriptions: AtomicU64::new(0),
        }
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.compressed.load(Ordering::Relaxed)
    }

    /// Reads under the lock of the informer that shows this lease.
    fn read<T>(&self, read: impl FnOnce(&Store, &Arc<Seat>) -> T) -> T {
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

impl Place {
    /// Changes something under the lock of the informer that shows this lease.
    fn write<T>(&self, write: impl FnOnce(&mut Inner, &Arc<Seat>) -> T) -> T {
        loop {
            let seat = self.seat.load_full();
            let inner = &mut *seat.informer.inner.write();
            // It may have been left between the two.
            if Arc::ptr_eq(&seat, &self.seat.load()) {
                return write(inner, &seat);
            }
        }
    }
}

/// Keeps of a page what has the value that the query asks for, if it asks for one.
fn keep_indexed(page: &mut Page, query: &Query<'_>) {
    let Some((path, value)) = query.index else { return };
    let path = FieldSet::new([path.clone()]);
    let has_value = |object: &Arc<Object>| {
        path.values(&object.json()).is_ok_and(|found| found.iter().flatten().any(|found| found == value))
    };
    page.items.retain(has_value);
}

/// A place among a lease's subscribers.
#[derive(Clone, Copy, Debug)]
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

    /// Who holds it.
    pub fn holder(&self) -> &str {
        &self.place.holder
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
        self.get_at(None, key)
    }

    /// One object as a moment shows it; none: as it is now.
    pub fn get_at(&self, moment: Option<&Moment>, key: &Key) -> Option<Arc<Object>> {
        self.place.read(|store, seat| {
            let object = match moment.and_then(|moment| moment.of(&self.place, seat, store)) {
                Some(snapshot) => store.get_at(&snapshot, key)?,
                None => store.get(key.namespace.as_deref(), &key.name)?,
            };
            seat.filter.as_ref().is_none_or(|filter| filter.shows(object)).then(|| seat.cut(object))
        })
    }

    /// Some of the objects that `query` asks for, as a moment shows them (none: as they are now), and where the rest begins. It looks
    /// at no more than `work` objects while the informer is locked: a page may hold few of them, or none, and not be the last.
    ///
    /// An index that the informer does not have, or not yet, is done without: by reading the objects of the page.
    pub fn page(&self, query: &Query<'_>, moment: Option<&Moment>, work: usize) -> Page {
        let (found, seat) = self.place.read(|store, seat| {
            let snapshot = moment.and_then(|moment| moment.of(&self.place, seat, store));
            (seat.page(store, query, snapshot.as_ref(), work), seat.clone())
        });
        let (mut page, is_scan) = found;
        // Not under the lock: objects may be large.
        let Some(filter) = &seat.filter else {
            if is_scan {
                keep_indexed(&mut page, query);
            }
            return page;
        };
        page.items.retain(|object| filter.admits(object.key()));
        page.items.iter_mut().for_each(|object| *object = filter.cut(object));
        // The informer may have found it by what the lease does not show.
        if is_scan || filter.is_cutting() {
            keep_indexed(&mut page, query);
        }
        page
    }

    /// The keys of all objects, in order.
    pub fn keys(&self) -> Vec<Key> {
        let keys = |store: &Store, seat: &Arc<Seat>| {
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
        let (subscription, mut introduced) = self.begin(subscriber);
        while !introduced {
            introduced = self.introduce(subscription);
        }
        subscription
    }

    /// As [`subscribe`](Self::subscribe), but calls `subscriber` with the first objects alone. `false`: it hears of the others by
    /// [`introduce`](Self::introduce), which is for the caller to call. What changes meanwhile it hears as if it had been told of all at once.
    pub fn begin(&self, subscriber: Subscriber) -> (Subscription, bool) {
        let _unlocked = tell_later();
        let number = self.place.subscriptions.fetch_add(1, Ordering::Relaxed);
        let mut new = Some(Subscribed { number, subscriber, introduction: Some(Introduction::default()) });
        let introduced = self.place.write(|inner, seat| {
            let outlet = inner.outlet(self.place.number).expect("a lease that is held has an outlet");
            outlet.subscribers.extend(new.take());
            self.step(inner, seat, number)
        });
        (Subscription(number), introduced)
    }

    /// Calls a subscriber with some more of what is there. `true`: it knows all of it. The informer is locked for some dozen objects: who calls
    /// this gives way in between.
    pub fn introduce(&self, subscription: Subscription) -> bool {
        let _unlocked = tell_later();
        self.place.write(|inner, seat| self.step(inner, seat, subscription.0))
    }

    fn step(&self, inner: &mut Inner, seat: &Seat, number: u64) -> bool {
        let at = inner.outlets.iter().position(|outlet| outlet.lease == self.place.number);
        let Some(outlet) = at.and_then(|at| inner.outlets.get_mut(at)) else { return true };
        // It may have ended.
        let Some(subscribed) = outlet.subscribers.iter_mut().find(|known| known.number == number) else { return true };
        let Some(mut introduction) = subscribed.introduction.take() else { return true };
        let (selector, filter) = (Selector::default(), seat.filter.as_ref());
        let query = Query {
            namespace: filter.and_then(Filter::namespace),
            after: introduction.after.as_ref(),
            ..Query::new(&selector)
        };
        let page = inner.store.page(&query, None, INTRODUCED).expect("it asks for no index");
        for object in page.items {
            let is_new = !introduction.early.remove(object.key());
            if is_new && filter.is_none_or(|filter| filter.shows(&object)) {
                let new = Some(seat.cut(&object));
                subscribed.call(&Change { old: None, new, missed: false }, Origin::Initial);
            }
        }
        let Some(next) = page.next else { return true };
        introduction.early = introduction.early.split_off(&next);
        introduction.after = Some(next);
        subscribed.introduction = Some(introduction);
        false
    }

    /// Ends a subscription. When this returns, its subscriber is not called any more.
    pub fn unsubscribe(&self, subscription: Subscription) {
        self.place.write(|inner, _| {
            if let Some(outlet) = inner.outlet(self.place.number) {
                // It may hold the last reference to something that holds leases: not under the lock's eyes, but that is no harm.
                outlet.subscribers.retain(|known| known.number != subscription.0);
            }
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.release(self.place.clone());
        }
    }
}
