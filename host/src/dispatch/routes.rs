//! Who listens to which informers, and for what.
//!
//! Owns the subscriptions of a controller, or of an observer: each to one lease, for one [source](Listener::source) of the manifest, under
//! the predicate of the revision that serves. The listener decides what is done with a change. A subscription begins with what is there, some
//! objects at a time: [`Routes::introduce`]. What predicates do not say at a glance waits for [`Routes::judge`].

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pilothouse_core::{predicate::Predicate, reflector::State, store::Change};
use tokio::sync::watch;

use super::{
    judging::{Case, Judging, JudgingFigures, Listener},
    record::Record,
};
use crate::informer::{InformerKey, Lease, Origin, Subscriber, Subscription};

/// What is to be listened to.
pub(super) struct Wanted<S> {
    pub(super) lease: Arc<Lease>,
    /// What for: one lease may serve several.
    pub(super) source: S,
    /// Which changes matter.
    pub(super) when: Predicate,
}

/// What is listened to. `S` says what for.
pub(super) struct Routes<S> {
    routes: Mutex<Vec<Route<S>>>,
    judging: Judging<S>,
    /// The next listener's number.
    number: AtomicU64,
    /// Counts subscriptions whose listeners know all that was there.
    introduced: watch::Sender<u64>,
}

struct Route<S> {
    lease: Arc<Lease>,
    listener: Arc<Listener<S>>,
    subscription: Option<Subscription>,
    /// The listener knows all that was there when the subscription began.
    introduced: bool,
}

impl<S> Default for Routes<S> {
    fn default() -> Self {
        Self {
            routes: Mutex::default(),
            judging: Judging::new(),
            number: AtomicU64::new(0),
            introduced: watch::Sender::new(0),
        }
    }
}

impl<S: Clone + PartialEq> Routes<S> {
    /// Listens to all in `wanted` and to nothing else. Subscriptions that stay are kept, and hear nothing twice; the others end when
    /// the new ones stand, so that no change falls between.
    ///
    /// A new subscription knows the first objects that are there when this returns, and all of them after [`introduce`](Self::introduce). Returns
    /// `true` if that has to be called.
    #[must_use = "the subscribers do not know all objects yet"]
    pub(super) fn replace(&self, wanted: Vec<Wanted<S>>, hear: impl Fn(Arc<Listener<S>>) -> Subscriber) -> bool {
        let mut routes = self.routes.lock();
        let mut old = std::mem::take(&mut *routes);
        for Wanted { lease, source, when } in wanted {
            let same = old.iter().position(|route| route.listener.source == source && route.lease.key() == lease.key());
            if let Some(at) = same {
                let kept = old.swap_remove(at);
                kept.listener.when.store(Arc::new(when));
                kept.lease.set_compressed(lease.is_compressed());
                routes.push(kept);
                continue;
            }
            let number = self.number.fetch_add(1, Ordering::Relaxed);
            let listener = Arc::new(Listener { number, source, when: ArcSwap::from_pointee(when) });
            let (subscription, introduced) = lease.begin(hear(listener.clone()));
            routes.push(Route { lease, listener, subscription: Some(subscription), introduced });
        }
        let left = routes.iter().any(|route| !route.introduced);
        drop(routes);
        old.into_iter().for_each(Route::end);
        left
    }

    /// Hands new subscriptions what is there, some objects at a time, and gives way in between.
    pub(super) async fn introduce(&self) {
        loop {
            let next = {
                let routes = self.routes.lock();
                let new = routes.iter().find(|route| !route.introduced);
                new.and_then(|route| Some((route.lease.clone(), route.listener.number, route.subscription?)))
            };
            let Some((lease, number, subscription)) = next else { return };
            while !lease.introduce(subscription) {
                tokio::task::yield_now().await;
            }
            let mut routes = self.routes.lock();
            if let Some(route) = routes.iter_mut().find(|route| route.listener.number == number) {
                route.introduced = true;
            }
            drop(routes);
            self.introduced.send_modify(|introduced| *introduced += 1);
        }
    }

    /// Says whether a change matters to a listener, if that is known at once. `None`: it waits for [`judge`](Self::judge).
    pub(super) fn hear(&self, listener: &Arc<Listener<S>>, change: &Change, origin: Origin) -> Option<bool> {
        self.judging.hear(listener, change, origin)
    }

    /// Judges changes as they come, until it is cancelled. `judged` hears of each, and whether it matters.
    pub(super) async fn judge(&self, record: &Record, judged: impl Fn(&Case<'_, S>, bool)) {
        loop {
            let case = self.judging.next().await;
            judged(&case, case.matters(record));
            drop(case);
            // It may have taken milliseconds.
            tokio::task::yield_now().await;
        }
    }

    /// Changes that wait to be judged, and predicates that are not evaluated any more.
    pub(super) fn judging(&self) -> JudgingFigures {
        let off = self.routes.lock().iter().filter(|route| route.listener.when.load().is_off()).count();
        JudgingFigures { off, ..self.judging.figures() }
    }

    /// Listens to nothing any more.
    pub(super) fn end(&self) {
        let routes = std::mem::take(&mut *self.routes.lock());
        routes.into_iter().for_each(Route::end);
    }

    /// The informers that are not ready yet, each with what it is doing; of those sources that are waited for.
    pub(super) fn waits_for(&self, awaited: impl Fn(&S) -> bool) -> Vec<(InformerKey, State)> {
        let routes = self.routes.lock();
        let is_ready = |route: &Route<S>| route.introduced && *route.lease.synced().borrow();
        let waiting = routes.iter().filter(|route| awaited(&route.listener.source) && !is_ready(route));
        let mut waiting: Vec<_> = waiting.map(|route| (route.lease.key().clone(), route.lease.state())).collect();
        waiting.sort_by(|a, b| a.0.cmp(&b.0));
        waiting.dedup_by(|a, b| a.0 == b.0);
        waiting
    }

    /// Returns when all informers of those sources have synced, and the objects that they had then are routed and judged.
    pub(super) async fn synced(&self, awaited: impl Fn(&S) -> bool) {
        let mut introduced = self.introduced.subscribe();
        let receivers: Vec<_> = {
            let routes = self.routes.lock();
            routes.iter().filter(|route| awaited(&route.listener.source)).map(|route| route.lease.synced()).collect()
        };
        for mut synced in receivers {
            // An informer whose lease is held is not dropped.
            let _ = synced.wait_for(|synced| *synced).await;
        }
        let is_left = || self.routes.lock().iter().any(|route| awaited(&route.listener.source) && !route.introduced);
        while is_left() {
            // Who counts is there as long as this is.
            let _ = introduced.changed().await;
        }
        self.judging.over().await;
    }

    /// True if it listens to this informer, synced or not.
    pub(super) fn listens_to(&self, informer: &InformerKey) -> bool {
        self.routes.lock().iter().any(|route| route.lease.key() == informer)
    }
}

impl<S> Route<S> {
    fn end(mut self) {
        if let Some(subscription) = self.subscription.take() {
            self.lease.unsubscribe(subscription);
        }
    }
}
