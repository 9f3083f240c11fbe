//! The subscriptions of a controller, or of an observer.
//!
//! Each subscription is to one lease, for one [source](Listener::source) of the manifest, under the predicate of the
//! revision that serves.
//!
//! - [`Routes::replace`] subscribes. The informer then calls the subscriber with each change, under its lock. A
//!   subscriber of a controller calls `Waking::hear`; one of an observer adds the change to its backlog. Both ask
//!   [`Routes::hear`] whether the change matters.
//! - [`Routes::introduce`] hands a new subscription the objects that are cached already, some at a time.
//! - [`Routes::judge`] goes on with the changes that [`Routes::hear`] left undecided.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pilothouse_core::{budget::Budget, key::TypeMeta, predicate::Predicate, reflector::State, store::Change};
use tokio::sync::watch;

use super::{
    judging::{Case, Judging, JudgingFigures, Listener, Relevance},
    record::Record,
};
use crate::informer::{InformerKey, Lease, Origin, Subscriber, Subscription};

/// A subscription that is to exist.
pub(super) struct Wanted<S> {
    pub(super) lease: Arc<Lease>,
    /// The source of the manifest. One lease may serve several.
    pub(super) source: S,
    /// Which changes matter.
    pub(super) when: Predicate,
}

/// The subscriptions. `S` is the source of the manifest.
pub(super) struct Routes<S> {
    routes: Mutex<Vec<Route<S>>>,
    judging: Judging<S>,
    /// The number of the next listener.
    number: AtomicU64,
    /// Counts subscriptions that were introduced.
    introduced: watch::Sender<u64>,
}

/// Why a subscription exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The manifest names it.
    Manifest,
    /// A key asks for it.
    Asked,
}

struct Route<S> {
    part: Part,
    lease: Arc<Lease>,
    listener: Arc<Listener<S>>,
    subscription: Option<Subscription>,
    /// The listener has heard of all objects that were cached when the subscription began.
    introduced: bool,
}

impl<S: Clone + PartialEq> Routes<S> {
    /// Creates no subscription. Superseded versions of objects that wait for a predicate count in this budget.
    pub(super) fn within(versions: &Budget) -> Self {
        Self {
            routes: Mutex::default(),
            judging: Judging::within(versions),
            number: AtomicU64::new(0),
            introduced: watch::Sender::new(0),
        }
    }

    /// Subscribes to everything in `wanted`, and to nothing else of this part. `subscriber` makes the closure that the
    /// informer calls with each change.
    ///
    /// Subscriptions that stay are kept and hear nothing twice. The others end after the new ones have begun, so that
    /// no change is missed.
    ///
    /// Returns `true` if [`introduce`](Self::introduce) must be called: new subscriptions have heard of the first
    /// objects only.
    #[must_use = "the subscribers have not heard of all objects yet"]
    pub(super) fn replace(
        &self,
        part: Part,
        wanted: Vec<Wanted<S>>,
        subscriber: impl Fn(Arc<Listener<S>>) -> Subscriber,
    ) -> bool {
        let mut routes = self.routes.lock();
        let (mut old, others) = std::mem::take(&mut *routes).into_iter().partition(|route| route.part == part);
        *routes = others;
        let old: &mut Vec<Route<S>> = &mut old;
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
            let (subscription, introduced) = lease.begin(subscriber(listener.clone()));
            routes.push(Route { part, lease, listener, subscription: Some(subscription), introduced });
        }
        let needs_introduction = routes.iter().any(|route| !route.introduced);
        drop(routes);
        old.drain(..).for_each(Route::end);
        needs_introduction
    }

    /// Subscribes anew to some informers, as if nothing had been heard of them.
    ///
    /// Returns `true` if [`introduce`](Self::introduce) must be called.
    #[must_use = "the subscribers have not heard of all objects yet"]
    pub(super) fn begin_again(
        &self,
        which: impl Fn(&InformerKey) -> bool,
        subscriber: impl Fn(Arc<Listener<S>>) -> Subscriber,
    ) -> bool {
        let mut routes = self.routes.lock();
        for route in routes.iter_mut().filter(|route| which(route.lease.key())) {
            if let Some(before) = route.subscription.take() {
                route.lease.unsubscribe(before);
            }
            let (subscription, introduced) = route.lease.begin(subscriber(route.listener.clone()));
            (route.subscription, route.introduced) = (Some(subscription), introduced);
        }
        routes.iter().any(|route| !route.introduced)
    }

    /// Hands new subscriptions the cached objects, some at a time, and yields in between.
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

    /// Decides at a glance whether a change matters to a listener. An undecided change waits for
    /// [`judge`](Self::judge).
    pub(super) fn hear(&self, listener: &Arc<Listener<S>>, change: &Change, origin: Origin) -> Relevance {
        self.judging.hear(listener, change, origin)
    }

    /// Judges undecided changes until it is cancelled. Calls `judged` with each change, and with `true` if it matters.
    pub(super) async fn judge(&self, record: &Record, judged: impl Fn(&Case<'_, S>, bool)) {
        loop {
            let case = self.judging.next().await;
            judged(&case, case.matters(record));
            drop(case);
            // The evaluation may have taken milliseconds.
            tokio::task::yield_now().await;
        }
    }

    /// Returns the number of changes that wait to be judged, and of predicates that are switched off.
    pub(super) fn judging(&self) -> JudgingFigures {
        let off = self.routes.lock().iter().filter(|route| route.listener.when.load().is_off()).count();
        JudgingFigures { off, ..self.judging.figures() }
    }

    /// Ends all subscriptions.
    pub(super) fn end(&self) {
        let routes = std::mem::take(&mut *self.routes.lock());
        routes.into_iter().for_each(Route::end);
    }

    /// Returns the informers that are not ready yet, and their states. Looks only at sources for which `awaited`
    /// returns `true`.
    pub(super) fn waits_for(&self, awaited: impl Fn(&S) -> bool) -> Vec<(InformerKey, State)> {
        let routes = self.routes.lock();
        let is_ready = |route: &Route<S>| route.introduced && *route.lease.synced().borrow();
        let waiting = routes.iter().filter(|route| awaited(&route.listener.source) && !is_ready(route));
        let mut waiting: Vec<_> = waiting.map(|route| (route.lease.key().clone(), route.lease.state())).collect();
        waiting.sort_by(|a, b| a.0.cmp(&b.0));
        waiting.dedup_by(|a, b| a.0 == b.0);
        waiting
    }

    /// Returns when the informers of the awaited sources have synced, and their objects are routed and judged.
    pub(super) async fn synced(&self, awaited: impl Fn(&S) -> bool) {
        let mut introduced = self.introduced.subscribe();
        let receivers: Vec<_> = {
            let routes = self.routes.lock();
            routes.iter().filter(|route| awaited(&route.listener.source)).map(|route| route.lease.synced()).collect()
        };
        for mut synced in receivers {
            // The lease keeps the informer, and so the sender.
            let _ = synced.wait_for(|synced| *synced).await;
        }
        let is_waiting = || self.routes.lock().iter().any(|route| awaited(&route.listener.source) && !route.introduced);
        while is_waiting() {
            // The sender lives as long as `self`.
            let _ = introduced.changed().await;
        }
        self.judging.over().await;
    }

    /// Returns the kinds that are listened to. Repetitions are kept.
    pub(super) fn kinds(&self) -> Vec<TypeMeta> {
        self.routes.lock().iter().map(|route| route.lease.key().of.clone()).collect()
    }

    /// `true` if there is a subscription to this informer, synced or not.
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
