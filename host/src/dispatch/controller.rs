//! One controller of a plugin at work: its routes, its queue, its workers, and the revision that serves it now.
//!
//! ```text
//! informers ─► routes ─► queue ─► workers ─► reconcile (the revision of the moment)
//! ```
//!
//! The queue, and what is known of failing and vanished keys, belong to the controller and outlive its revisions: a swap replaces
//! what serves the next key, and nothing else (invariant 9).

use std::{
    collections::{BTreeSet, HashMap},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::FutureExt;
use parking_lot::Mutex;
use pilothouse_core::{
    key::{Key, TypeMeta},
    manifest,
    object::Object,
    reflector::State,
    route::{self, Mapping},
    workqueue::{CHANGE, INITIAL},
};
use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info};

use super::{
    Observer, Parts, feed,
    queue::{Next, Queue},
};
use crate::{
    cluster::Cluster,
    informer::{InformerKey, Lease, Origin, Subscription, View},
    wasm::{PluginName, Revision},
    writer::Writer,
};

/// What serves a controller's keys now.
pub(super) struct Serving {
    pub(super) revision: Arc<Revision>,
    pub(super) spec: manifest::Controller,
    pub(super) owns: Vec<TypeMeta>,
    /// Everything that the plugin caches.
    pub(super) view: View,
    /// What this controller reconciles out of it: the plugin may cache more of the kind for other ends.
    pub(super) reconciles: View,
    pub(super) writer: Writer,
    pub(super) reader: super::imports::Reader,
    /// How many keys may be reconciled at once.
    pub(super) concurrency: usize,
}

/// A controller. Its workers hold it, so it ends only when it is told to.
pub struct Controller {
    plugin: PluginName,
    name: Arc<str>,
    queue: Queue,
    serving: ArcSwap<Serving>,
    routes: Mutex<Vec<Route>>,
    /// Last known states of objects that vanished and whose keys are still to be reconciled: at most as many as the queue has
    /// keys.
    gone: Mutex<HashMap<Key, Arc<Object>>>,
    /// Why keys failed last: at most one entry for each key that is being retried.
    failed: Mutex<HashMap<Key, String>>,
    workers: TaskTracker,
    staff: Mutex<Staff>,
    active: AtomicUsize,
    stopping: CancellationToken,
    observer: Arc<dyn Observer>,
    guests: Handle,
    cluster: Cluster,
}

/// Who works, and how many should.
#[derive(Default)]
struct Staff {
    /// Every informer has synced.
    ready: bool,
    /// Counts changes of routes: a wait for those before is void.
    round: u64,
    wanted: usize,
    at_work: BTreeSet<usize>,
}

/// A subscription to one informer.
struct Route {
    lease: Arc<Lease>,
    kind: RouteKind,
    subscription: Option<Subscription>,
}

/// Which of the manifest's lists a route comes from: one informer may serve both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteKind {
    For,
    Owns,
}

/// What a controller listens to.
pub(super) struct Wanted {
    pub(super) lease: Arc<Lease>,
    pub(super) kind: RouteKind,
    /// The kind that is reconciled: whom owner references must name.
    pub(super) owner: TypeMeta,
}

impl Controller {
    /// Subscribes to everything in `wanted`, and starts to work when all of it has synced (invariant 6).
    pub(super) fn start(plugin: PluginName, serving: Serving, wanted: Vec<Wanted>, parts: &Parts) -> Arc<Self> {
        let controller = Arc::new(Self {
            plugin,
            name: serving.spec.name.as_str().into(),
            queue: Queue::new(),
            staff: Mutex::new(Staff { wanted: serving.concurrency, ..Staff::default() }),
            active: AtomicUsize::new(0),
            serving: ArcSwap::from_pointee(serving),
            routes: Mutex::default(),
            gone: Mutex::default(),
            failed: Mutex::default(),
            workers: TaskTracker::new(),
            stopping: CancellationToken::new(),
            observer: parts.observer.clone(),
            guests: parts.guests.clone(),
            cluster: parts.cluster.clone(),
        });
        controller.route(wanted);
        controller.staff_when_synced();
        controller
    }

    /// Workers, and what waits to start them.
    #[cfg(test)]
    pub(super) fn tasks(&self) -> usize {
        self.workers.len()
    }

    fn staff_when_synced(self: &Arc<Self>) {
        let round = {
            let mut staff = self.staff.lock();
            staff.round += 1;
            staff.round
        };
        let this = self.clone();
        let wait = async move {
            tokio::select! {
                () = this.synced() => {}
                () = this.stopping.cancelled() => return,
            }
            {
                let mut staff = this.staff.lock();
                if staff.round != round {
                    return;
                }
                staff.ready = true;
            }
            this.staff();
        };
        self.workers.spawn_on(wait, &self.guests);
    }

    /// The plugin whose controller it is.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// Its name in the manifest.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its queue, to look at.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What the manifest of the revision that serves says of it.
    pub fn spec(&self) -> manifest::Controller {
        self.serving.load().spec.clone()
    }

    /// How many keys may be reconciled at once.
    pub fn max_concurrency(&self) -> usize {
        self.staff.lock().wanted
    }

    /// How many keys are being reconciled now.
    pub fn active_workers(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// True if a controller of a newer manifest reconciles the same kind under the same name: it takes over queue and caches.
    pub(super) fn continues(&self, spec: &manifest::Controller) -> bool {
        let serving = self.serving();
        serving.spec.name == spec.name && serving.spec.for_.of == spec.for_.of
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    /// The informers that are not ready yet, each with what it is doing.
    pub fn waits_for(&self) -> Vec<(InformerKey, State)> {
        let routes = self.routes.lock();
        let waiting = routes.iter().filter(|route| !*route.lease.synced().borrow());
        let mut waiting: Vec<_> = waiting.map(|route| (route.lease.key().clone(), route.lease.state())).collect();
        waiting.dedup_by(|a, b| a.0 == b.0);
        waiting
    }

    /// True if it listens to this informer, synced or not.
    pub(super) fn listens_to(&self, informer: &InformerKey) -> bool {
        self.routes.lock().iter().any(|route| route.lease.key() == informer)
    }

    pub(super) fn serving(&self) -> Arc<Serving> {
        self.serving.load_full()
    }

    /// Returns when every informer has synced.
    async fn synced(&self) {
        let receivers: Vec<_> = self.routes.lock().iter().map(|route| route.lease.synced()).collect();
        for mut synced in receivers {
            // An informer whose lease is held is not dropped.
            let _ = synced.wait_for(|synced| *synced).await;
        }
    }

    /// Puts another revision in place of the one that serves: from the next key on it is called, calls under way finish on the
    /// old one, and every key is looked at again, after whatever changed.
    ///
    /// The informers in `wanted` that it does not listen to yet must have synced.
    pub(super) fn swap(self: &Arc<Self>, serving: Serving, wanted: Vec<Wanted>) {
        self.staff.lock().wanted = serving.concurrency;
        self.serving.store(Arc::new(serving));
        self.route(wanted);
        self.requeue_all();
        // Those that are too many, to go.
        self.queue.wake_all();
        self.staff();
        self.staff_when_synced();
    }

    /// Replaces the subscriptions. Those to informers that stay are kept; the others end when the new ones stand, so that no
    /// change falls between.
    fn route(self: &Arc<Self>, wanted: Vec<Wanted>) {
        let mut routes = self.routes.lock();
        let mut old = std::mem::take(&mut *routes);
        for Wanted { lease, kind, owner } in wanted {
            let same = old.iter().position(|route| route.kind == kind && route.lease.key() == lease.key());
            if let Some(at) = same {
                routes.push(old.swap_remove(at));
                continue;
            }
            let mapping = Mappings::new(kind, &owner);
            let controller = Arc::downgrade(self);
            let subscription = lease.subscribe(Box::new(move |change, origin| {
                let Some(controller) = controller.upgrade() else { return };
                if kind == RouteKind::For {
                    controller.remember(change);
                }
                let mut keys = Vec::new();
                // No kind is mapped by index: see `Route`.
                route::keys(mapping.now(&controller.cluster), change, |_, _, _| Vec::new(), &mut keys);
                if origin == Origin::Change {
                    feed::changed(&controller, change, &keys);
                }
                let priority = if origin == Origin::Initial { INITIAL } else { CHANGE };
                for key in keys {
                    controller.queue.add(key, priority);
                }
            }));
            routes.push(Route { lease, kind, subscription: Some(subscription) });
        }
        drop(routes);
        for mut route in old {
            route.end();
        }
    }

    /// Keeps the last known state of what vanished, until its key is reconciled (invariant 5).
    fn remember(&self, change: &pilothouse_core::store::Change) {
        match (&change.old, &change.new) {
            (Some(last), None) => drop(self.gone.lock().insert(last.key().clone(), last.clone())),
            (_, Some(there)) => drop(self.gone.lock().remove(there.key())),
            (None, None) => {}
        }
    }

    /// Looks at every key again, after whatever changed.
    fn requeue_all(&self) {
        let serving = self.serving();
        for lease in serving.reconciles.leases() {
            for key in lease.keys() {
                self.queue.add(key, INITIAL);
            }
        }
    }

    /// Starts the workers that are wanted and not there. Those that are too many end by themselves.
    fn staff(self: &Arc<Self>) {
        let mut staff = self.staff.lock();
        if !staff.ready {
            return;
        }
        for number in 0..staff.wanted {
            if staff.at_work.insert(number) {
                let controller = self.clone();
                self.workers.spawn_on(async move { controller.work(number).await }, &self.guests);
            }
        }
    }

    async fn work(&self, number: usize) {
        while let Some(item) = self.queue.next(|| self.keeps(number)).await {
            self.active.fetch_add(1, Ordering::Relaxed);
            let mut held = Held { controller: self, item: &item, next: Next::Retry };
            self.observer.picked(self, item.waited);
            // A fault of the host over one key must not take the worker, which nobody would replace.
            match AssertUnwindSafe(super::reconcile::run(self, &item)).catch_unwind().await {
                Ok(next) => held.next = next,
                Err(_) => {
                    error!(plugin = %self.plugin, controller = %self.name, key = %item.key, "the host failed over a key");
                }
            }
        }
    }

    /// Whether a worker is still wanted; if not, it is off the list.
    fn keeps(&self, number: usize) -> bool {
        let mut staff = self.staff.lock();
        let keeps = number < staff.wanted;
        if !keeps {
            staff.at_work.remove(&number);
        }
        keeps
    }

    /// The object under a key as it is now, or as it was last if it is gone. None: nothing is known of it, or nothing that the
    /// plugin may read.
    pub(super) fn look_up(&self, serving: &Serving, key: &Key) -> Option<(Arc<Object>, bool)> {
        if !serving.reader.may_read(&serving.spec.for_.of, key) {
            self.gone.lock().remove(key);
            return None;
        }
        if let Some(object) = serving.reconciles.get(&serving.spec.for_.of, key) {
            return Some((object, true));
        }
        self.gone.lock().get(key).cloned().map(|last| (last, false))
    }

    /// A vanished object was reconciled: its last state is not needed any more, unless it came and went again meanwhile.
    pub(super) fn forget_gone(&self, last: &Arc<Object>) {
        let mut gone = self.gone.lock();
        if gone.get(last.key()).is_some_and(|kept| Arc::ptr_eq(kept, last)) {
            gone.remove(last.key());
        }
    }

    /// Why the last try of a key failed, if it did.
    pub(super) fn last_error(&self, key: &Key) -> Option<String> {
        self.failed.lock().get(key).cloned()
    }

    pub(super) fn note_error(&self, key: &Key, error: Option<String>) {
        let mut failed = self.failed.lock();
        match error {
            Some(error) => drop(failed.insert(key.clone(), error)),
            None => drop(failed.remove(key)),
        }
    }

    /// Takes no more keys.
    pub(super) fn shut_down(&self) {
        self.stopping.cancel();
        self.queue.shut_down();
        self.workers.close();
    }

    /// Takes no more keys, and returns when those in flight are finished.
    pub(super) async fn drain(&self) {
        self.shut_down();
        self.workers.wait().await;
        for mut route in std::mem::take(&mut *self.routes.lock()) {
            route.end();
        }
        info!(plugin = %self.plugin, controller = %self.name, "controller stopped");
    }
}

/// How one informer's changes lead to keys. Whether the reconciled kind lives in namespaces is known only when it is served,
/// and a kind it owns may be served long before.
enum Mappings {
    Same,
    Owner { of: TypeMeta, namespaced: Mapping, cluster_wide: Mapping },
}

impl Mappings {
    fn new(kind: RouteKind, owner: &TypeMeta) -> Self {
        match kind {
            RouteKind::For => Mappings::Same,
            RouteKind::Owns => Mappings::Owner {
                of: owner.clone(),
                namespaced: Mapping::Owner { of: owner.clone(), namespaced: true },
                cluster_wide: Mapping::Owner { of: owner.clone(), namespaced: false },
            },
        }
    }

    fn now(&self, cluster: &Cluster) -> &Mapping {
        match self {
            Mappings::Same => &Mapping::SelfKey,
            Mappings::Owner { of, cluster_wide, .. }
                if cluster.known(of).is_some_and(|endpoint| !endpoint.namespaced) =>
            {
                cluster_wide
            }
            Mappings::Owner { namespaced, .. } => namespaced,
        }
    }
}

impl Route {
    fn end(&mut self) {
        if let Some(subscription) = self.subscription.take() {
            self.lease.unsubscribe(subscription);
        }
    }
}

/// A key in a worker's hands: whatever happens to the worker, the key goes back to the queue.
struct Held<'a> {
    controller: &'a Controller,
    item: &'a pilothouse_core::workqueue::Item<Key>,
    next: Next,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let took: Duration = self.controller.queue.finish(self.item, self.next);
        self.controller.active.fetch_sub(1, Ordering::Relaxed);
        self.controller.observer.finished(self.controller, took);
    }
}
