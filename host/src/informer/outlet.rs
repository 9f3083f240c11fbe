//! A lease's end at its informer, and its subscribers.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
};

use pilothouse_core::{
    informer::Filter,
    key::Key,
    object::{Keep, Object, ResourceVersion},
    store::{Change, Store},
};
use tokio::sync::watch;
use tracing::error;

use super::{Origin, Subscriber};

/// A lease's end at its informer.
pub(super) struct Outlet {
    /// Which lease.
    pub(super) lease: u64,
    /// None: it shows everything.
    pub(super) filter: Option<Filter>,
    /// The newest version of what list and watch have shown through it. Own writes do not count: they are in every informer.
    pub(super) seen: ResourceVersion,
    pub(super) synced: watch::Sender<bool>,
    pub(super) subscribers: Vec<Subscribed>,
}

/// A subscriber of a lease.
pub(super) struct Subscribed {
    pub(super) number: u64,
    pub(super) subscriber: Subscriber,
    /// None: the subscriber knows all that was there when the subscription began.
    pub(super) introduction: Option<Introduction>,
}

/// How far a subscriber knows what is there, in the order of keys.
#[derive(Default)]
pub(super) struct Introduction {
    /// All up to this key; none: nothing yet.
    pub(super) after: Option<Key>,
    /// Keys beyond that the subscriber knows too, because they changed meanwhile.
    pub(super) early: BTreeSet<Key>,
}

impl Subscribed {
    /// Tells the subscriber of a change. If it is not yet told of the object, it hears first what was there before: it never hears of a change
    /// of something unknown, and of nothing twice.
    fn tell(&mut self, change: &Change, origin: Origin) {
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

    /// One that panics has itself to blame: the others are called, and the store goes on.
    pub(super) fn call(&self, change: &Change, origin: Origin) {
        if catch_unwind(AssertUnwindSafe(|| (self.subscriber)(change, origin))).is_err() {
            error!(object = %change.key(), "a subscriber of the cache failed over a change");
        }
    }
}

impl Outlet {
    /// Tells the subscribers what a change of the store is to this lease. `version`: of the event, where list or watch brought it.
    pub(super) fn pass(&mut self, change: &Change, version: Option<ResourceVersion>, origin: Origin, cuts: &mut Cuts) {
        if self.filter.is_none() {
            self.seen = self.seen.max(version.unwrap_or_default());
            return self.tell(change, origin);
        }
        let Some(change) = Self::shown(self.filter.as_ref(), change.clone()) else { return };
        self.seen = self.seen.max(version.unwrap_or_default());
        if self.subscribers.is_empty() {
            return;
        }
        // Told also where nothing that is shown differs: whoever is told goes on with the version.
        let change = match &self.filter {
            Some(filter) => cuts.cut(filter, change),
            None => change,
        };
        self.tell(&change, origin);
    }

    /// The sides of a change that a filter shows; none: it shows neither.
    pub(super) fn shown(filter: Option<&Filter>, change: Change) -> Option<Change> {
        let shown = |object: &Arc<Object>| filter.is_none_or(|filter| filter.shows(object));
        let (old, new) = (change.old.filter(shown), change.new.filter(shown));
        (old.is_some() || new.is_some()).then(|| Change { missed: change.missed && new.is_none(), old, new })
    }

    /// What of both sides a filter shows.
    pub(super) fn cut(filter: Option<&Filter>, change: Change) -> Change {
        let side = |object: Option<Arc<Object>>| object.map(|object| cut(filter, &object));
        Change { old: side(change.old), new: side(change.new), missed: change.missed }
    }

    /// Calls every subscriber.
    pub(super) fn tell(&mut self, change: &Change, origin: Origin) {
        self.subscribers.iter_mut().for_each(|subscribed| subscribed.tell(change, origin));
    }
}

/// What was cut of the objects of one change. Leases that leave out the same share it: a thousand of them may listen, and the store is locked.
#[derive(Default)]
pub(super) struct Cuts(Vec<(Arc<Object>, Keep, Arc<Object>)>);

impl Cuts {
    /// What of both sides a filter shows.
    fn cut(&mut self, filter: &Filter, change: Change) -> Change {
        let Some(keep) = filter.keep() else { return change };
        let mut side = |object: Arc<Object>| {
            let known = self.0.iter().find(|(of, known, _)| Arc::ptr_eq(of, &object) && known == keep);
            if let Some((.., cut)) = known {
                return cut.clone();
            }
            let cut = filter.cut(&object);
            self.0.push((object, keep.clone(), cut.clone()));
            cut
        };
        Change { old: change.old.map(&mut side), new: change.new.map(&mut side), missed: change.missed }
    }
}

/// What of a store a filter shows, ordered by key.
pub(super) fn shown<'a>(store: &'a Store, filter: Option<&'a Filter>) -> impl Iterator<Item = &'a Arc<Object>> {
    let nothing: &Filter = &NOTHING;
    let of = filter.unwrap_or(nothing);
    store.list(of.namespace(), of.labels(), None).filter(move |object| of.admits(object.key()))
}

/// What of an object a filter shows.
pub(super) fn cut(filter: Option<&Filter>, object: &Arc<Object>) -> Arc<Object> {
    filter.map_or_else(|| object.clone(), |filter| filter.cut(object))
}

/// Asks for nothing.
static NOTHING: LazyLock<Filter> = LazyLock::new(Filter::default);
