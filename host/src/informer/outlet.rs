//! A lease's end at its informer, and its subscribers.

use std::{
    cell::OnceCell,
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
};

use pilothouse_core::{
    informer::Filter,
    key::Key,
    object::{Keep, Object, ResourceVersion, SortedLabels},
    store::{Change, Store},
};
use tokio::sync::watch;
use tracing::error;

use super::{Origin, Subscriber};

/// A lease's end at its informer.
pub(super) struct Outlet {
    /// The lease's number.
    pub(super) lease: u64,
    /// `None` if the lease shows everything.
    pub(super) filter: Option<Filter>,
    /// The newest version that list or watch have shown through this outlet. Own writes do not count, because every
    /// informer has them.
    pub(super) seen: ResourceVersion,
    pub(super) synced: watch::Sender<bool>,
    pub(super) subscribers: Vec<Subscribed>,
}

/// A subscriber of a lease.
pub(super) struct Subscribed {
    pub(super) number: u64,
    pub(super) subscriber: Subscriber,
    /// `None` if the subscriber has received all objects that existed when the subscription began.
    pub(super) introduction: Option<Introduction>,
}

/// Which of the existing objects a new subscriber has received. They are delivered in the order of keys.
#[derive(Default)]
pub(super) struct Introduction {
    /// The subscriber has received all objects up to this key; `None` before the first one.
    pub(super) after: Option<Key>,
    /// Later keys that the subscriber has received too, because they changed meanwhile.
    pub(super) early: BTreeSet<Key>,
}

impl Subscribed {
    /// Delivers a change. If the subscriber has not received the object yet, it first receives the object's former
    /// state. So it never receives a change of an unknown object, and nothing twice.
    fn deliver(&mut self, change: &Change, origin: Origin) {
        let key = change.key();
        if let Some(Introduction { after, early }) = &mut self.introduction
            && after.as_ref().is_none_or(|after| key > after)
            && early.insert(key.clone())
            && let Some(old) = &change.old
        {
            self.call(&Change { old: None, new: Some(old.clone()), missed: false }, Origin::Initial);
        }
        self.call(change, origin);
    }

    /// Calls the subscriber. A panic is logged, and affects neither the other subscribers nor the store.
    pub(super) fn call(&self, change: &Change, origin: Origin) {
        if catch_unwind(AssertUnwindSafe(|| (self.subscriber)(change, origin))).is_err() {
            error!(object = %change.key(), "a subscriber of the cache panicked at a change");
        }
    }
}

impl Outlet {
    /// Delivers a change of the store as this lease sees it. `version` is the event's version if list or watch brought
    /// it.
    pub(super) fn pass(&mut self, announced: &mut Announced<'_>, version: Option<ResourceVersion>, origin: Origin) {
        let Some(filter) = &self.filter else {
            self.seen = self.seen.max(version.unwrap_or_default());
            return self.deliver(announced.change, origin);
        };
        let Some(change) = announced.shown(filter) else { return };
        self.seen = self.seen.max(version.unwrap_or_default());
        if self.subscribers.is_empty() {
            return;
        }
        // Delivered even if nothing that is shown differs, because subscribers keep the version.
        let change = announced.cut(filter, change);
        self.deliver(&change, origin);
    }

    /// Returns the sides of a change that a filter shows, or `None` if it shows neither.
    pub(super) fn shown(filter: Option<&Filter>, change: Change) -> Option<Change> {
        let shown = |object: &Arc<Object>| filter.is_none_or(|filter| filter.shows(object));
        let (old, new) = (change.old.filter(shown), change.new.filter(shown));
        (old.is_some() || new.is_some()).then(|| Change { missed: change.missed && new.is_none(), old, new })
    }

    /// Reduces both sides to what a filter keeps of an object.
    pub(super) fn cut(filter: Option<&Filter>, change: Change) -> Change {
        let side = |object: Option<Arc<Object>>| object.map(|object| cut(filter, &object));
        Change { old: side(change.old), new: side(change.new), missed: change.missed }
    }

    /// Delivers a change to every subscriber.
    pub(super) fn deliver(&mut self, change: &Change, origin: Origin) {
        self.subscribers.iter_mut().for_each(|subscribed| subscribed.deliver(change, origin));
    }
}

/// A change on its way to all outlets. They share what takes long to read: a thousand leases may subscribe, and the
/// store is locked.
pub(super) struct Announced<'a> {
    change: &'a Change,
    old_labels: OnceCell<SortedLabels<'a>>,
    new_labels: OnceCell<SortedLabels<'a>>,
    /// Objects, what is kept of them, and their reduced forms.
    cuts: Vec<(Arc<Object>, Keep, Arc<Object>)>,
}

impl<'a> Announced<'a> {
    pub(super) fn new(change: &'a Change) -> Self {
        Self { change, old_labels: OnceCell::new(), new_labels: OnceCell::new(), cuts: Vec::new() }
    }

    /// Returns the sides that a filter shows, or `None` if it shows neither.
    fn shown(&self, filter: &Filter) -> Option<Change> {
        let side = |object: &'a Option<Arc<Object>>, labels: &OnceCell<SortedLabels<'a>>| {
            let object = object.as_ref()?;
            filter.shows_by(object, || labels.get_or_init(|| object.sorted_labels())).then(|| object.clone())
        };
        let old = side(&self.change.old, &self.old_labels);
        let new = side(&self.change.new, &self.new_labels);
        (old.is_some() || new.is_some()).then(|| Change { missed: self.change.missed && new.is_none(), old, new })
    }

    /// Reduces both sides to what a filter keeps of an object.
    fn cut(&mut self, filter: &Filter, change: Change) -> Change {
        let Some(keep) = filter.keep() else { return change };
        let mut side = |object: Arc<Object>| {
            let known = self.cuts.iter().find(|(of, known, _)| Arc::ptr_eq(of, &object) && known == keep);
            if let Some((.., cut)) = known {
                return cut.clone();
            }
            let cut = filter.cut(&object);
            self.cuts.push((object, keep.clone(), cut.clone()));
            cut
        };
        Change { old: change.old.map(&mut side), new: change.new.map(&mut side), missed: change.missed }
    }
}

/// Returns the objects of a store that a filter shows, ordered by key.
pub(super) fn shown<'a>(store: &'a Store, filter: Option<&'a Filter>) -> impl Iterator<Item = &'a Arc<Object>> {
    let nothing: &Filter = &NOTHING;
    let of = filter.unwrap_or(nothing);
    store.list(of.namespace(), of.labels(), None).filter(move |object| of.admits(object.key()))
}

/// Reduces an object to what a filter keeps of it.
pub(super) fn cut(filter: Option<&Filter>, object: &Arc<Object>) -> Arc<Object> {
    filter.map_or_else(|| object.clone(), |filter| filter.cut(object))
}

/// A filter that shows everything.
static NOTHING: LazyLock<Filter> = LazyLock::new(Filter::default);
