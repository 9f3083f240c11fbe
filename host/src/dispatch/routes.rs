//! Who listens to which informers, and for what.
//!
//! Owns the subscriptions of a controller, or of an observer: each to one lease, for one [source](Route::source) of the manifest, under
//! the predicate of the revision that serves. What is done with a change is for whoever listens.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pilothouse_core::{predicate::Predicate, reflector::State};

use crate::informer::{InformerKey, Lease, Subscriber, Subscription};

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
}

struct Route<S> {
    lease: Arc<Lease>,
    source: S,
    /// A newer revision may have another one, and goes on with the same subscription.
    when: Arc<ArcSwap<Predicate>>,
    subscription: Option<Subscription>,
}

impl<S> Default for Routes<S> {
    fn default() -> Self {
        Self { routes: Mutex::default() }
    }
}

impl<S: Clone + PartialEq> Routes<S> {
    /// Listens to all in `wanted` and to nothing else. Subscriptions that stay are kept, and hear nothing twice; the others end when
    /// the new ones stand, so that no change falls between.
    pub(super) fn replace(&self, wanted: Vec<Wanted<S>>, hear: impl Fn(S, Arc<ArcSwap<Predicate>>) -> Subscriber) {
        let mut routes = self.routes.lock();
        let mut old = std::mem::take(&mut *routes);
        for Wanted { lease, source, when } in wanted {
            let same = old.iter().position(|route| route.source == source && route.lease.key() == lease.key());
            if let Some(at) = same {
                let kept = old.swap_remove(at);
                kept.when.store(Arc::new(when));
                kept.lease.set_compressed(lease.is_compressed());
                routes.push(kept);
                continue;
            }
            let when = Arc::new(ArcSwap::from_pointee(when));
            let subscription = Some(lease.subscribe(hear(source.clone(), when.clone())));
            routes.push(Route { lease, source, when, subscription });
        }
        drop(routes);
        old.into_iter().for_each(Route::end);
    }

    /// Listens to nothing any more.
    pub(super) fn end(&self) {
        let routes = std::mem::take(&mut *self.routes.lock());
        routes.into_iter().for_each(Route::end);
    }

    /// The informers that are not ready yet, each with what it is doing; of those sources that are waited for.
    pub(super) fn waits_for(&self, awaited: impl Fn(&S) -> bool) -> Vec<(InformerKey, State)> {
        let routes = self.routes.lock();
        let waiting = routes.iter().filter(|route| awaited(&route.source) && !*route.lease.synced().borrow());
        let mut waiting: Vec<_> = waiting.map(|route| (route.lease.key().clone(), route.lease.state())).collect();
        waiting.sort_by(|a, b| a.0.cmp(&b.0));
        waiting.dedup_by(|a, b| a.0 == b.0);
        waiting
    }

    /// Returns when all informers of those sources have synced.
    pub(super) async fn synced(&self, awaited: impl Fn(&S) -> bool) {
        let receivers: Vec<_> = {
            let routes = self.routes.lock();
            routes.iter().filter(|route| awaited(&route.source)).map(|route| route.lease.synced()).collect()
        };
        for mut synced in receivers {
            // An informer whose lease is held is not dropped.
            let _ = synced.wait_for(|synced| *synced).await;
        }
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
