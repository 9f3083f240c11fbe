//! What wakes keys: changes of the objects themselves, of what belongs to them, of what is mapped to them, and of what they have read
//! (invariant 11).
//!
//! ```text
//!          ┌─ for ─────► its own, and what vanished is kept ─────────┐
//!          ├─ owns ────► its controlling owner's ────────────────────┤
//! change ──┤                                                         ├─► queue
//!          ├─ watches ─► those that a mapping reads off it ──────────┤
//!          │             those that it takes asking for ─► mapper ───┤
//!          └─ reads ───► those that have read it ────────────────────┘
//! ```
//!
//! Before that come predicates. What one does not say at a glance is heard later, from a task on the plugin's account.
//!
//! Owns who is listened to, what keys have read, and how often which of these woke one. Which keys a mapping reads off an object is for
//! [`route`] to say, whom somebody has to be asked for is [`mapper`](crate::dispatch::mapper)'s, and looks at every key are
//! [`resync`](crate::dispatch::resync)'s.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use pilothouse_core::{
    key::{Key, TypeMeta},
    manifest,
    reads::Tracker,
    reflector::State,
    route::{self, Mapping},
    store::Change,
    workqueue::{CHANGE, INITIAL},
};
use tracing::warn;

use super::Controller;
use crate::{
    dispatch::{
        feed,
        judging::{Case, JudgingFigures, Listener},
        mapper::{Asks, Whom},
        pending::{BacklogFigures, HookFailure},
        queue::Cause,
        reading::Reading,
        remembered::{MOST_NAMES, Remembered},
        routes::{Routes, Wanted},
    },
    informer::{InformerKey, Origin},
};

/// What a controller is woken by.
pub(super) struct Waking {
    routes: Routes<Source>,
    /// What keys have read: bounded for each key by what one call may read.
    reads: Arc<Mutex<Tracker>>,
    /// What has to be asked for before it is known whom it concerns.
    asks: Asks,
    /// A task judges what predicates do not say at a glance. Most plugins need none.
    judges: AtomicBool,
    woken: Woken,
}

/// Keys that were woken, by why.
#[derive(Default)]
struct Woken {
    itself: AtomicU64,
    child: AtomicU64,
    mapping: AtomicU64,
    read: AtomicU64,
}

/// What the keys of a controller have read, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadFigures {
    /// Keys that read something.
    pub keys: usize,
    /// Objects and selections that were read.
    pub things: usize,
    /// Bytes that it takes to remember.
    pub bytes: usize,
}

/// Which of the manifest's lists a route comes from: one informer may serve several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Source {
    For,
    Owns,
    Watches(manifest::Mapping),
    /// What a reconcile may read.
    Reads {
        /// Workers wait for its first list.
        awaited: bool,
    },
}

impl Source {
    /// True if workers wait for the first list.
    fn is_awaited(&self) -> bool {
        !matches!(self, Source::Reads { awaited: false })
    }
}

impl Waking {
    /// Listens to nothing yet.
    pub(super) fn new(remembered: &Remembered) -> Self {
        Self {
            routes: Routes::default(),
            reads: Arc::new(Mutex::new(Tracker::within(&remembered.reads))),
            asks: Asks::within(remembered),
            judges: AtomicBool::new(false),
            woken: Woken::default(),
        }
    }

    /// Listens to nothing any more.
    pub(super) fn end(&self) {
        self.routes.end();
    }
}

impl Controller {
    /// Listens to everything in `wanted`, and to nothing else. What was read stays until its key is reconciled again, but for what nobody
    /// would hear of.
    pub(super) fn route(self: &Arc<Self>, wanted: Vec<Wanted<Source>>) {
        let kinds: Vec<TypeMeta> = wanted.iter().map(|wanted| wanted.lease.key().of.clone()).collect();
        let judges = wanted.iter().any(|wanted| wanted.when.may_wait());
        let left = self.waking.routes.replace(wanted, |listener| {
            let controller = Arc::downgrade(self);
            Box::new(move |change: &Change, origin| {
                if let Some(controller) = controller.upgrade() {
                    controller.hear(&listener, change, origin);
                }
            })
        });
        self.waking.reads.lock().retain(|of| kinds.contains(of));
        if left {
            let controller = self.clone();
            self.attend(move || {
                let controller = controller.clone();
                async move { controller.waking.routes.introduce().await }
            });
        }
        if judges && !self.waking.judges.swap(true, Ordering::Relaxed) {
            let controller = self.clone();
            self.attend(move || {
                let controller = controller.clone();
                async move { controller.judge().await }
            });
        }
    }

    /// Judges what predicates do not say at a glance, until the controller ends.
    async fn judge(&self) {
        let judged = |case: &Case<'_, Source>, matters: bool| {
            let (source, change) = (&case.listener.source, &case.unseen.change);
            if matters && self.serving.load().access.may_see(change.object().type_meta(), change.key()) {
                self.lead(source, change, case.origin());
            } else if let (Source::For, Some(last), None) = (source, &change.old, &change.new) {
                self.gone.dismiss(last, |key| self.discard(key));
            }
        };
        self.waking.routes.judge(&self.record, judged).await;
    }

    /// Wakes the keys that a change concerns if the plugin may see what changed, or leaves that to [`judge`](Self::judge). The informer is locked meanwhile.
    fn hear(&self, listener: &Arc<Listener<Source>>, change: &Change, origin: Origin) {
        if !self.serving.load().access.may_see(change.object().type_meta(), change.key()) {
            return;
        }
        let source = &listener.source;
        if let Source::Reads { .. } = source {
            return self.hear_read(change, origin);
        }
        let known = self.waking.routes.hear(listener, change, origin);
        // As long as it is not known whether an end matters, it does.
        if *source == Source::For
            && let Some(dropped) =
                self.gone.note(change, known != Some(false), self.queue.now(), |key| self.discard(key))
        {
            warn!(
                plugin = %self.plugin, controller = %self.name, dropped,
                "too many objects vanished and are still to be reconciled: the first of them are let go of",
            );
        }
        if known == Some(true) {
            self.lead(source, change, origin);
        }
    }

    /// Wakes the keys that a change concerns, which matters. Perhaps the informer is locked meanwhile.
    fn lead(&self, source: &Source, change: &Change, origin: Origin) {
        let mut keys = Vec::new();
        match self.mapping(source) {
            Some(Mapping::Index { index, .. }) => self.waking.asks.find([Whom::Indexed(index.into())], change, origin),
            Some(mapping) => route::keys(&mapping, change, |_, _, _| Vec::new(), &mut keys),
            None => self.waking.asks.ask(change),
        }
        if !keys.is_empty() && self.looks_first() {
            // Not here, where an informer is locked.
            match source {
                Source::Owns => return self.waking.asks.find(keys.into_iter().map(Whom::Owner), change, origin),
                Source::Watches(_) => return self.waking.asks.find(keys.into_iter().map(Whom::Mapped), change, origin),
                // It is there, or was.
                Source::For | Source::Reads { .. } => {}
            }
        }
        if origin == Origin::Change {
            feed::changed(self, change, &keys);
        }
        let (of, key) = (change.object().type_meta(), change.key());
        match source {
            Source::For => self.wake(keys, origin, &self.waking.woken.itself, || Cause::Itself),
            Source::Owns => self.wake_owners(keys, origin, of, key),
            Source::Watches(_) | Source::Reads { .. } => self.wake_mapped(keys, origin, || format!("{of} {key}")),
        }
    }

    /// Wakes the keys that read what changed (invariant 11).
    fn hear_read(&self, change: &Change, origin: Origin) {
        let object = change.object();
        let mut keys = Vec::new();
        self.waking.reads.lock().wakes(object.type_meta(), change, &mut keys);
        if origin == Origin::Change {
            feed::read(self, change, &keys);
        }
        let cause = || Cause::Read(Some((object.type_meta().clone(), object.key().clone())));
        self.wake(keys, origin, &self.waking.woken.read, cause);
    }

    fn wake(&self, keys: Vec<Key>, origin: Origin, by: &AtomicU64, cause: impl Fn() -> Cause) {
        by.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let priority = if origin == Origin::Initial { INITIAL } else { CHANGE };
        for key in keys {
            self.queue.add(key, priority, &cause);
        }
    }

    /// Returns when what it reconciles has synced: who is asked for keys is asked then, so that it is known which of them are there.
    pub(in crate::dispatch) async fn knows_its_own(&self) {
        self.waking.routes.synced(|source| *source == Source::For).await;
    }

    /// Those of the keys that somebody names of which something is known: others could fill the queue. Nothing is lost by that, as they
    /// would be found to be nothing when it is their turn, and an object that comes later is a change itself.
    pub(in crate::dispatch) fn known(&self, mut keys: Vec<Key>) -> Vec<Key> {
        let serving = self.serving();
        keys.retain(|key| self.look_up(&serving, key).is_some());
        keys
    }

    /// Whether keys that an object names are looked for before they enter the queue: nobody takes them from there, for now or as long as a
    /// kind is not served, or no more than so many in a second. Names of nothing would fill it, and use up the rate.
    fn looks_first(&self) -> bool {
        if self.is_ready() {
            self.record.is_quarantined() || self.pace().rate.is_some()
        } else {
            self.queue.lock().len() >= MOST_NAMES
        }
    }

    /// Adds keys that somebody had to be asked for, since these objects changed.
    pub(in crate::dispatch) fn wake_mapped(&self, keys: Vec<Key>, origin: Origin, objects: impl Fn() -> String) {
        self.wake(keys, origin, &self.waking.woken.mapping, || Cause::Mapping(objects()));
    }

    /// Adds keys that were looked for, since this child of theirs changed.
    pub(in crate::dispatch) fn wake_owners(&self, keys: Vec<Key>, origin: Origin, of: &TypeMeta, child: &Key) {
        self.wake(keys, origin, &self.waking.woken.child, || Cause::Child(of.clone(), child.clone()));
    }

    /// Where a change comes from that the plugin was asked about.
    pub(in crate::dispatch) fn origin(&self) -> Origin {
        if self.is_ready() { Origin::Change } else { Origin::Initial }
    }

    /// A call about a key begins: what it reads is noted.
    pub(in crate::dispatch) fn begin_reading(&self, key: &Key) -> Reading {
        Reading::begin(&self.waking.reads, key)
    }

    /// What a key read had changed before it was read: it is looked at once more when this look is over.
    pub(in crate::dispatch) fn read_old(&self, key: &Key) {
        feed::read_old(self, key);
        self.wake(vec![key.clone()], Origin::Change, &self.waking.woken.read, || Cause::Read(None));
    }

    /// Nobody is to be woken for a key that is gone and reconciled. False: nothing is known of it any more.
    pub(in crate::dispatch) fn forget_unless_there(&self, key: &Key) -> bool {
        let there = self.look_up(&self.serving(), key).is_some();
        if !there {
            self.waking.reads.lock().forget(key);
        }
        there
    }

    /// There is nothing to be reconciled under a key any more. A worker that has it goes on, and finds that at its end.
    fn discard(&self, key: &Key) {
        self.queue.discard(key);
        self.failing.note(key, None);
        self.take_deferred(key, None);
        self.awaiting.forget(key);
        self.waking.reads.lock().forget(key);
    }

    /// How changes of a source lead to keys; none: the plugin says. Whether the reconciled kind lives in namespaces is known only when
    /// it is served, and what is mapped to it may be served long before.
    fn mapping(&self, source: &Source) -> Option<Mapping> {
        let serving = self.serving.load();
        let of = &serving.spec.for_.of;
        let namespaced = || self.cluster.known(of).is_none_or(|endpoint| endpoint.namespaced);
        match source {
            Source::For | Source::Reads { .. } => Some(Mapping::SelfKey),
            Source::Owns => Some(Mapping::Owner { of: of.clone(), namespaced: namespaced() }),
            Source::Watches(mapping) => Mapping::new(mapping, of, namespaced()),
        }
    }

    /// Returns when every informer has synced, and its first objects are routed: those that the plugin maps have been asked for, even
    /// if in vain.
    pub(super) async fn synced(&self) {
        self.waking.routes.synced(Source::is_awaited).await;
        self.waking.asks.tried().await;
    }

    /// The informers that are not ready yet, each with what it is doing.
    pub fn waits_for(&self) -> Vec<(InformerKey, State)> {
        self.waking.routes.waits_for(Source::is_awaited)
    }

    /// True if it listens to this informer, synced or not.
    pub(in crate::dispatch) fn listens_to(&self, informer: &InformerKey) -> bool {
        self.waking.routes.listens_to(informer)
    }

    /// What its keys have read.
    pub fn reads(&self) -> ReadFigures {
        let reads = self.waking.reads.lock();
        ReadFigures { keys: reads.keys(), things: reads.dependencies(), bytes: reads.bytes() }
    }

    /// Keys that were woken since the start, by why: `self`, `child`, `mapping` and `read`.
    pub fn woken(&self) -> [(&'static str, u64); 4] {
        let Woken { itself, child, mapping, read } = &self.waking.woken;
        [("self", itself), ("child", child), ("mapping", mapping), ("read", read)]
            .map(|(by, count)| (by, count.load(Ordering::Relaxed)))
    }

    /// Changes that wait for a predicate, and predicates that are switched off.
    pub fn judging(&self) -> JudgingFigures {
        self.waking.routes.judging()
    }

    /// What waits for the plugin to be mapped.
    pub fn unmapped(&self) -> BacklogFigures {
        self.waking.asks.figures()
    }

    /// The last time that the plugin could not say whom a change concerns.
    pub fn last_unmapped(&self) -> Option<HookFailure> {
        self.waking.asks.last_failure()
    }

    pub(in crate::dispatch) fn asks(&self) -> &Asks {
        &self.waking.asks
    }
}
