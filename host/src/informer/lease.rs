//! A stable handle on requested objects, whichever informer currently holds them.

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
    informer::Cache,
    outlet::{Introduction, Subscribed, cut, shown},
    registry::Registry,
};
use crate::guests::defer_wakes;

/// Objects that a new subscriber receives under one lock. Each takes some microseconds, and more if parts are left out.
const INTRODUCED: usize = 50;

/// The arguments for a new lease.
pub(super) struct LeaseRequest<'a> {
    pub(super) key: InformerKey,
    pub(super) compressed: bool,
    pub(super) indexes: Box<[FieldPath]>,
    pub(super) holder: &'a str,
}

impl<'a> LeaseRequest<'a> {
    pub(super) fn new(key: InformerKey, holder: &'a str) -> Self {
        Self { key, compressed: false, indexes: Box::default(), holder }
    }
}

/// Keeps the requested objects in the cache and reads them. It shows no more of an object than was requested, even if
/// the informer holds more.
///
/// # Guarantees
/// Reads and subscribers see one history, also when another informer takes over: an object never gets older, and every
/// change is delivered once.
pub struct Lease {
    claim: Arc<Claim>,
    home: Weak<Registry>,
}

/// The part of a lease that the registry shares.
pub(super) struct Claim {
    pub(super) number: u64,
    pub(super) key: InformerKey,
    /// The plugin or task that holds the lease, for people.
    pub(super) holder: Arc<str>,
    /// `true` if the holder allows compression.
    pub(super) compressed: AtomicBool,
    /// Paths by which the lease is looked up. The informer that shows the lease has these indexes.
    pub(super) indexes: Box<[FieldPath]>,
    /// Replaced under the locks of both the old and the new informer.
    pub(super) attached: ArcSwap<Attachment>,
    pub(super) synced: watch::Sender<bool>,
    subscriptions: AtomicU64,
}

/// The informer that shows a lease, and the filter between the two.
pub(super) struct Attachment {
    pub(super) informer: Arc<Informer>,
    /// `None` if the lease shows everything.
    pub(super) filter: Option<Filter>,
}

impl Attachment {
    pub(super) fn new(informer: Arc<Informer>, key: &InformerKey) -> Self {
        let filter = Filter::new(&informer.key, key);
        Self { filter: Some(filter).filter(|filter| *filter != Filter::default()), informer }
    }

    /// Reads one page of a query from the store. The page may contain objects that the lease does not show. Returns
    /// `true` if it comes from a scan instead of the query's index; it then also contains objects without the indexed
    /// value.
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
                (store.page(&scan, snapshot, work).expect("a query without an index succeeds"), true)
            }
        };
        if store.lacks_labels() {
            self.informer.index_labels();
        }
        page
    }

    /// Reduces an object to what the lease shows of it.
    pub(super) fn cut(&self, object: &Arc<Object>) -> Arc<Object> {
        cut(self.filter.as_ref(), object)
    }
}

impl Claim {
    pub(super) fn new(number: u64, request: LeaseRequest<'_>, attached: Attachment) -> Self {
        Self {
            number,
            key: request.key,
            holder: request.holder.into(),
            compressed: request.compressed.into(),
            indexes: request.indexes,
            attached: ArcSwap::from_pointee(attached),
            synced: watch::Sender::new(false),
            subscriptions: AtomicU64::new(0),
        }
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.compressed.load(Ordering::Relaxed)
    }

    /// Reads under the lock of the informer that shows the lease.
    fn read<T>(&self, read: impl FnOnce(&Store, &Arc<Attachment>) -> T) -> T {
        loop {
            let attached = self.attached.load_full();
            let cache = attached.informer.cache.read();
            // A handover may have happened between the two.
            if Arc::ptr_eq(&attached, &self.attached.load()) {
                return read(&cache.store, &attached);
            }
        }
    }

    /// Changes something under the lock of the informer that shows the lease.
    fn write<T>(&self, write: impl FnOnce(&mut Cache, &Arc<Attachment>) -> T) -> T {
        loop {
            let attached = self.attached.load_full();
            let cache = &mut *attached.informer.cache.write();
            // A handover may have happened between the two.
            if Arc::ptr_eq(&attached, &self.attached.load()) {
                return write(cache, &attached);
            }
        }
    }
}

/// Removes objects from a page that lack the value that the query requests at its indexed path.
fn keep_indexed(page: &mut Page, query: &Query<'_>) {
    let Some((path, value)) = query.index else { return };
    let path = FieldSet::new([path.clone()]);
    let has_value = |object: &Arc<Object>| {
        path.values(&object.json()).is_ok_and(|found| found.iter().flatten().any(|found| found == value))
    };
    page.items.retain(has_value);
}

/// Identifies a subscriber of a lease.
#[derive(Clone, Copy, Debug)]
pub struct Subscription(u64);

impl Lease {
    pub(super) fn new(claim: Arc<Claim>, home: Weak<Registry>) -> Self {
        Self { claim, home }
    }

    /// What was requested.
    pub fn key(&self) -> &InformerKey {
        &self.claim.key
    }

    /// Allows or forbids compression. An informer compresses its objects if all its leases allow it.
    pub fn set_compressed(&self, on: bool) {
        if self.claim.compressed.swap(on, Ordering::Relaxed) != on
            && let Some(home) = self.home.upgrade()
        {
            home.look();
        }
    }

    /// `true` if the lease allows compression.
    pub fn is_compressed(&self) -> bool {
        self.claim.is_compressed()
    }

    /// The holder, for people.
    pub fn holder(&self) -> &str {
        &self.claim.holder
    }

    /// The informer that currently shows the lease.
    pub fn informer(&self) -> Arc<Informer> {
        self.claim.attached.load().informer.clone()
    }

    /// `true` if the lease shows objects of this namespace that match its selectors.
    pub fn covers(&self, namespace: Option<&str>) -> bool {
        self.claim.key.covers_namespace(namespace)
    }

    /// Becomes `true` once the first list is in the cache and all subscribers have received it.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.claim.synced.subscribe()
    }

    /// The state of the reflector behind the lease.
    pub fn state(&self) -> State {
        self.informer().state()
    }

    /// Returns one object.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.get_at(None, key)
    }

    /// Returns one object as a moment shows it (`None`: as it is now).
    pub fn get_at(&self, moment: Option<&Moment>, key: &Key) -> Option<Arc<Object>> {
        self.claim.read(|store, attached| {
            let object = match moment.and_then(|moment| moment.snapshot_of(&self.claim, attached, store)) {
                Some(snapshot) => store.get_at(&snapshot, key)?,
                None => store.get(key.namespace.as_deref(), &key.name)?,
            };
            attached.filter.as_ref().is_none_or(|filter| filter.shows(object)).then(|| attached.cut(object))
        })
    }

    /// Returns one page of the objects that `query` selects, as a moment shows them (`None`: as they are now).
    ///
    /// The informer is locked while at most `work` objects are looked at. So a page may be short or empty without being
    /// the last. If the query's index is missing or incomplete, the page is scanned instead.
    pub fn page(&self, query: &Query<'_>, moment: Option<&Moment>, work: usize) -> Page {
        let (found, attached) = self.claim.read(|store, attached| {
            let snapshot = moment.and_then(|moment| moment.snapshot_of(&self.claim, attached, store));
            (attached.page(store, query, snapshot.as_ref(), work), attached.clone())
        });
        let (mut page, is_scan) = found;
        // Without the lock, because objects may be large.
        let Some(filter) = &attached.filter else {
            if is_scan {
                keep_indexed(&mut page, query);
            }
            return page;
        };
        page.items.retain(|object| filter.admits(object.key()));
        page.items.iter_mut().for_each(|object| *object = filter.cut(object));
        // The index may have matched a field that the lease does not show.
        if is_scan || filter.is_cutting() {
            keep_indexed(&mut page, query);
        }
        page
    }

    /// Returns the keys of all objects, in order.
    pub fn keys(&self) -> Vec<Key> {
        let keys = |store: &Store, attached: &Arc<Attachment>| {
            shown(store, attached.filter.as_ref()).map(|object| object.key().clone()).collect()
        };
        self.claim.read(keys)
    }

    /// Returns the objects with an owner reference to `owner` that `accept` takes, in no particular order.
    pub fn owned_by(&self, owner: &Uid, accept: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        self.claim.read(|store, attached| {
            let owned = store.owned_by(owner).filter(|object| attached.filter.as_ref().is_none_or(|f| f.shows(object)));
            owned.map(|object| attached.cut(object)).filter(|object| accept(object)).collect()
        })
    }

    /// Calls `subscriber` with every existing object, then with every change, until [`Lease::unsubscribe`]. No change
    /// is lost between the two.
    pub fn subscribe(&self, subscriber: Subscriber) -> Subscription {
        let (subscription, mut introduced) = self.begin(subscriber);
        while !introduced {
            introduced = self.introduce(subscription);
        }
        subscription
    }

    /// Subscribes like [`subscribe`](Self::subscribe), but calls `subscriber` only with the first objects. Returns
    /// `false` if there are more. The caller then calls [`introduce`](Self::introduce) until that returns `true`.
    /// Changes are delivered meanwhile as if the subscriber had received all objects at once.
    pub fn begin(&self, subscriber: Subscriber) -> (Subscription, bool) {
        let _deferred = defer_wakes();
        let number = self.claim.subscriptions.fetch_add(1, Ordering::Relaxed);
        let mut new = Some(Subscribed { number, subscriber, introduction: Some(Introduction::default()) });
        let introduced = self.claim.write(|cache, attached| {
            let outlet = cache.outlet(self.claim.number).expect("a lease has an outlet until it is dropped");
            outlet.subscribers.extend(new.take());
            self.step(cache, attached, number)
        });
        (Subscription(number), introduced)
    }

    /// Calls a subscriber with some more of the existing objects. Returns `true` when it has received all. Each call
    /// locks the informer for some dozen objects, so the caller yields between calls.
    pub fn introduce(&self, subscription: Subscription) -> bool {
        let _deferred = defer_wakes();
        self.claim.write(|cache, attached| self.step(cache, attached, subscription.0))
    }

    fn step(&self, cache: &mut Cache, attached: &Attachment, number: u64) -> bool {
        let at = cache.outlets.iter().position(|outlet| outlet.lease == self.claim.number);
        let Some(outlet) = at.and_then(|at| cache.outlets.get_mut(at)) else { return true };
        // The subscription may have ended.
        let Some(subscribed) = outlet.subscribers.iter_mut().find(|known| known.number == number) else { return true };
        let Some(mut introduction) = subscribed.introduction.take() else { return true };
        let (selector, filter) = (Selector::default(), attached.filter.as_ref());
        let query = Query {
            namespace: filter.and_then(Filter::namespace),
            after: introduction.after.as_ref(),
            ..Query::new(&selector)
        };
        let page = cache.store.page(&query, None, INTRODUCED).expect("a query without an index succeeds");
        for object in page.items {
            let is_new = !introduction.early.remove(object.key());
            if is_new && filter.is_none_or(|filter| filter.shows(&object)) {
                let new = Some(attached.cut(&object));
                subscribed.call(&Change { old: None, new, missed: false }, Origin::Initial);
            }
        }
        let Some(next) = page.next else { return true };
        introduction.early = introduction.early.split_off(&next);
        introduction.after = Some(next);
        subscribed.introduction = Some(introduction);
        false
    }

    /// Ends a subscription. Its subscriber is not called after this returns.
    pub fn unsubscribe(&self, subscription: Subscription) {
        self.claim.write(|cache, _| {
            if let Some(outlet) = cache.outlet(self.claim.number) {
                // The subscriber may own the last handle of a lease. That is safe here: dropping a lease takes no
                // informer's lock.
                outlet.subscribers.retain(|known| known.number != subscription.0);
            }
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.release(self.claim.clone());
        }
    }
}
