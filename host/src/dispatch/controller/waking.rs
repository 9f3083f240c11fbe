//! What wakes keys: changes of the objects themselves, of their children, of what is mapped to them, and of what they
//! have read (invariant 11).
//!
//! ```text
//!          ┌─ for ─────► its own key; a deleted object is kept ──────┐
//!          ├─ owns ────► its controlling owner's key ────────────────┤
//! change ──┤                                                         ├─► queue
//!          ├─ watches ─► the keys that a mapping reads off it ───────┤
//!          │             others: to be looked up ─► mapper ──────────┤
//!          └─ reads ───► the keys that have read it ─────────────────┘
//! ```
//!
//! A change takes this way, under the informer's lock up to the queue:
//!
//! 1. An informer calls the [`Subscriber`](crate::informer::Subscriber) that [`Controller::route`](super::Controller)
//!    has registered.
//! 2. That calls [`Waking::hear`], which asks the predicate. An undecided change waits, and [`Waking::judge`] goes on
//!    with it.
//! 3. [`Waking::wake`] maps a change that matters to keys, and [`Wakes`] adds them to the queue.

use std::sync::{Arc, atomic::AtomicBool};

use pilothouse_core::{
    manifest,
    reflector::State,
    route::{self, Mapping},
    store::Change,
};
use tracing::warn;

use crate::{
    cluster::Cluster,
    dispatch::{
        feed,
        judging::{Case, JudgingFigures, Listener, Relevance},
        mapper::{Lookup, Unmapped},
        pending::{BacklogFigures, HookFailure},
        remembered::{MAX_LOOKUPS, Remembered},
        routes::Routes,
        serving::Serving,
        wakes::{Wakes, Woken},
    },
    informer::{InformerKey, Origin},
};

/// What a controller is woken by.
pub struct Waking {
    pub(super) routes: Routes<Source>,
    pub(super) unmapped: Unmapped,
    /// A task judges undecided changes. Most plugins need none.
    pub(super) judges: AtomicBool,
    pub(super) woken: Woken,
    cluster: Cluster,
}

/// The list of the manifest that a route comes from. One informer may serve several.
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
    /// `true` if workers wait for the first list.
    fn is_awaited(&self) -> bool {
        !matches!(self, Source::Reads { awaited: false })
    }
}

impl Waking {
    /// Creates one that listens to nothing yet.
    pub(super) fn new(remembered: &Remembered, cluster: Cluster) -> Self {
        Self {
            routes: Routes::within(&remembered.unjudged),
            unmapped: Unmapped::within(remembered),
            judges: AtomicBool::new(false),
            woken: Woken::default(),
            cluster,
        }
    }

    /// Handles a change: wakes keys, or leaves the change to [`judge`](Self::judge). Called by the informer, under its
    /// lock.
    ///
    /// [`Controller::route`](super::Controller) registers it.
    pub(super) fn hear(&self, wakes: Wakes<'_>, listener: &Arc<Listener<Source>>, change: &Change, origin: Origin) {
        if !wakes.serving.load().access.may_see(change.object().type_meta(), change.key()) {
            return;
        }
        if let Source::Reads { .. } = listener.source {
            return wake_readers(wakes, change, origin);
        }
        let relevance = self.routes.hear(listener, change, origin);
        // A deleted object is kept as long as the predicate has not decided.
        if listener.source == Source::For
            && let Some(dropped) = wakes.ledger.record_change(change, relevance != Relevance::DoesNotMatter)
        {
            warn!(
                plugin = %wakes.id.plugin, controller = &*wakes.id.name, dropped,
                "too many deleted objects wait to be reconciled; the earliest ones are dropped",
            );
        }
        if relevance == Relevance::Matters {
            self.wake(wakes, &listener.source, change, origin);
        }
    }

    /// Judges the changes that predicates have not decided under the informer's lock, until it is cancelled.
    pub(super) async fn judge(&self, wakes: Wakes<'_>) {
        let judged = |case: &Case<'_, Source>, matters: bool| {
            let (source, change) = (&case.listener.source, &case.unseen.change);
            if matters && wakes.serving.load().access.may_see(change.object().type_meta(), change.key()) {
                self.wake(wakes, source, change, case.origin());
            } else if let (Source::For, Some(last), None) = (source, &change.old, &change.new) {
                wakes.ledger.dismiss(last);
            }
        };
        self.routes.judge(wakes.record, judged).await;
    }

    /// Wakes the keys that a change concerns. The informer may be locked.
    fn wake(&self, wakes: Wakes<'_>, source: &Source, change: &Change, origin: Origin) {
        let (mut keys, unmapped) = (Vec::new(), &self.unmapped);
        match self.mapping(&wakes.serving.load(), source) {
            Some(Mapping::Index { index, .. }) => unmapped.look_up([Lookup::Indexed(index.into())], change, origin),
            Some(mapping) => route::keys(&mapping, change, |_, _, _| Vec::new(), &mut keys),
            None => unmapped.add(change),
        }
        if !keys.is_empty() && looks_up_first(wakes) {
            // The mapper's task does it, as an informer may be locked here.
            match source {
                Source::Owns => return unmapped.look_up(keys.into_iter().map(Lookup::Owner), change, origin),
                Source::Watches(_) => return unmapped.look_up(keys.into_iter().map(Lookup::Mapped), change, origin),
                // The key is that of the changed object itself.
                Source::For | Source::Reads { .. } => {}
            }
        }
        if origin == Origin::Change {
            feed::changed(wakes.id, change, &keys);
        }
        let (of, key) = (change.object().type_meta(), change.key());
        match source {
            Source::For => wakes.wake_changed(keys, origin),
            Source::Owns => wakes.wake_owners(keys, origin, of, key),
            Source::Watches(_) | Source::Reads { .. } => wakes.wake_mapped(keys, origin, || format!("{of} {key}")),
        }
    }

    /// Returns how changes of a source are mapped to keys. `None`: the plugin maps them.
    ///
    /// Whether the reconciled kind is namespaced is known only while it is served.
    fn mapping(&self, serving: &Serving, source: &Source) -> Option<Mapping> {
        let of = &serving.spec.for_.of;
        let namespaced = || self.cluster.known(of).is_none_or(|endpoint| endpoint.namespaced);
        match source {
            Source::For | Source::Reads { .. } => Some(Mapping::SelfKey),
            Source::Owns => Some(Mapping::Owner { of: of.clone(), namespaced: namespaced() }),
            Source::Watches(mapping) => Mapping::new(mapping, of, namespaced()),
        }
    }

    /// Returns when the reconciled objects are cached.
    pub(super) async fn own_synced(&self) {
        self.routes.synced(|source| *source == Source::For).await;
    }

    /// Returns when every informer has synced and its first objects have woken their keys. `map` was called for them,
    /// with success or without.
    pub(super) async fn synced(&self) {
        self.routes.synced(Source::is_awaited).await;
        self.unmapped.tried().await;
    }

    /// `true` if it listens to this informer, synced or not.
    pub(in crate::dispatch) fn listens_to(&self, informer: &InformerKey) -> bool {
        self.routes.listens_to(informer)
    }

    /// The informers that are not ready yet, and what each is doing.
    pub fn waits_for(&self) -> Vec<(InformerKey, State)> {
        self.routes.waits_for(Source::is_awaited)
    }

    /// Keys that were woken since the start, by reason: `self`, `child`, `mapping` and `read`.
    pub fn woken(&self) -> [(&'static str, u64); 4] {
        self.woken.counts()
    }

    /// Changes that wait for a predicate, and predicates that are switched off.
    pub fn judging(&self) -> JudgingFigures {
        self.routes.judging()
    }

    /// Changes that wait for the plugin's `map`.
    pub fn unmapped(&self) -> BacklogFigures {
        self.unmapped.figures()
    }

    /// The last failure of the plugin's `map`.
    pub fn last_unmapped(&self) -> Option<HookFailure> {
        self.unmapped.last_failure()
    }
}

/// Wakes the keys that have read what changed (invariant 11).
fn wake_readers(wakes: Wakes<'_>, change: &Change, origin: Origin) {
    let keys = wakes.ledger.readers(change);
    if origin == Origin::Change {
        feed::read(wakes.id, change, &keys);
    }
    wakes.wake_readers(keys, origin, change.object().type_meta(), change.key());
}

/// `true` if keys that a changed object names are looked up before they enter the queue.
///
/// That is so while the queue does not drain freely: the plugin is quarantined, has a rate, or waits for its informers
/// with many keys. Names of nothing would fill the queue and use up the rate.
fn looks_up_first(wakes: Wakes<'_>) -> bool {
    if wakes.staff.is_ready() {
        wakes.record.is_quarantined() || wakes.serving.load().pace.rate.is_some()
    } else {
        wakes.ledger.queue().lock().len() >= MAX_LOOKUPS
    }
}
