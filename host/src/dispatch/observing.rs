//! Calls a plugin's `observer` with the changes of what it observes: in batches, in order for each object.
//!
//! The backlog belongs to the plugin and outlives its revisions: a swap replaces what is called for the next batch. No
//! reconcile waits for an observer.
//!
//! ```text
//! informers ─► predicates ─► backlog ─► `observe` (the revision of the moment)
//! ```

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use pilothouse_core::{
    backlog::{Batch, Seen},
    grant::Readable,
    key::TypeMeta,
    store::Change,
};
use tracing::{debug, info, info_span, warn};

use super::{
    Observer, Parts,
    attendants::Attendants,
    batch, feed,
    hook::{Called, Hook, HookError},
    imports::{Access, CallImports},
    judging::{Case, JudgingFigures, Listener, Relevance},
    pending::{BacklogFigures, HookFailure, Pending},
    record::Record,
    routes::{Part, Routes, Wanted},
};
use crate::{
    informer::{InformerKey, Origin, Subscriber},
    name::PluginName,
    wasm::{Limits, Revision},
};

/// The part of a lease's objects that an observer may see. `None`: all of them. If it changes, the observer gets every
/// object as added.
pub(super) type Shown = Option<Arc<[Readable]>>;

/// The revision that is called now.
pub(super) struct Serving {
    pub(super) revision: Arc<Revision>,
    pub(super) access: Arc<Access>,
}

/// The observer of one plugin.
pub struct Observing {
    plugin: PluginName,
    serving: ArcSwap<Serving>,
    routes: Routes<Shown>,
    /// A task judges undecided changes. Most plugins need none.
    judges: AtomicBool,
    pending: Pending,
    /// The task that calls the plugin, and those beside it.
    attendants: Attendants,
    observer: Arc<dyn Observer>,
    record: Arc<Record>,
}

impl Observing {
    /// Subscribes to everything in `wanted` and begins to call the plugin: first with the objects that are cached
    /// already.
    pub(super) fn start(record: Arc<Record>, serving: Serving, wanted: Vec<Wanted<Shown>>, parts: &Parts) -> Arc<Self> {
        let plugin = record.plugin().clone();
        let this = Arc::new(Self {
            serving: ArcSwap::from_pointee(serving),
            routes: Routes::within(&record.remembered().unjudged),
            judges: AtomicBool::new(false),
            pending: Pending::within(&record.remembered().unhandled),
            attendants: Attendants::new(&plugin, parts.guests.account(&plugin)),
            observer: parts.observer.clone(),
            record,
            plugin,
        });
        this.listen(wanted);
        this.attendants.spawn_to_its_end(&this, |this| async move { this.run().await });
        this
    }

    /// The plugin.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// Changes that wait for `observe`.
    pub fn figures(&self) -> BacklogFigures {
        self.pending.figures()
    }

    /// Changes that wait for a predicate, and predicates that are switched off.
    pub fn judging(&self) -> JudgingFigures {
        self.routes.judging()
    }

    /// The last failure of `observe`.
    pub fn last_failure(&self) -> Option<HookFailure> {
        self.pending.last_failure()
    }

    /// The limits of one call.
    pub fn limits(&self) -> Limits {
        self.serving.load().revision.limits()
    }

    /// Replaces the revision that is called. It gets the waiting changes, and nothing twice from informers that stay.
    pub(super) fn swap(self: &Arc<Self>, serving: Serving, wanted: Vec<Wanted<Shown>>) {
        let kinds: Vec<TypeMeta> = wanted.iter().map(|wanted| wanted.lease.key().of.clone()).collect();
        let revision = serving.revision.clone();
        self.serving.store(Arc::new(serving));
        self.listen(wanted);
        let access = self.access();
        // Deletions of a kind that is not served any more may wait.
        let names = |of: &TypeMeta| revision.manifest().patterns.iter().any(|pattern| pattern.names(of));
        self.pending.retain(|of, key| (kinds.contains(of) || names(of)) && access.may_see(of, key));
    }

    /// Forgets waiting changes that the plugin may not see any more.
    pub(super) fn restrict(&self) {
        let access = self.access();
        self.pending.retain(|of, key| access.may_see(of, key));
    }

    /// The caches, writers and grants of the revision that is called.
    pub(super) fn access(&self) -> Arc<Access> {
        self.serving.load().access.clone()
    }

    /// Begins no more calls, and returns when the call in flight is finished.
    pub(super) async fn drain(&self) {
        self.shut_down();
        self.attendants.ended().await;
        self.routes.end();
        info!(plugin = %self.plugin, "observer stopped");
    }

    /// Begins no more calls.
    pub(super) fn shut_down(&self) {
        self.attendants.shut_down();
    }

    fn may_see(&self, change: &Change) -> bool {
        self.serving.load().access.may_see(change.object().type_meta(), change.key())
    }

    /// Subscribes to everything in `wanted`, and to nothing else. Changes that matter go to the backlog.
    fn listen(self: &Arc<Self>, wanted: Vec<Wanted<Shown>>) {
        let needs_judge = wanted.iter().any(|wanted| wanted.when.may_wait());
        if self.routes.replace(Part::Manifest, wanted, |listener| self.subscriber(listener)) {
            self.introduce();
        }
        if needs_judge && !self.judges.swap(true, Ordering::Relaxed) {
            self.attendants.spawn(self, |this| async move { this.judge().await });
        }
    }

    /// Subscribes anew to some informers. The plugin gets all their objects as added.
    pub(super) fn listen_again(self: &Arc<Self>, which: impl Fn(&InformerKey) -> bool) {
        if self.routes.begin_again(which, |listener| self.subscriber(listener)) {
            self.introduce();
        }
    }

    fn introduce(self: &Arc<Self>) {
        self.attendants.spawn(self, |this| async move { this.routes.introduce().await });
    }

    /// Returns what an informer calls with each change.
    fn subscriber(self: &Arc<Self>, listener: Arc<Listener<Shown>>) -> Subscriber {
        let this = Arc::downgrade(self);
        Box::new(move |change: &Change, origin| {
            let Some(this) = this.upgrade() else { return };
            if !this.may_see(change) {
                return;
            }
            if this.routes.hear(&listener, change, origin) == Relevance::Matters {
                let initial = origin == Origin::Initial;
                this.pending.add_seen(change, Seen { initial, ..Seen::default() });
            }
        })
    }

    /// Judges undecided changes, until it is cancelled.
    async fn judge(&self) {
        let judged = |case: &Case<'_, Shown>, matters: bool| {
            if matters && self.may_see(&case.unseen.change) {
                let seen = Seen { merged: case.unseen.merged, initial: case.unseen.was_there };
                self.pending.add_seen(&case.unseen.change, seen);
            }
        };
        self.routes.judge(&self.record, judged).await;
    }

    /// Calls the plugin with batch after batch, until the observer ends.
    async fn run(&self) {
        let (stopping, mut dropped) = (self.attendants.stopping(), 0);
        while let Some(handed) = stopping.run_until_cancelled(self.pending.next(self.record.acting())).await {
            let result = self.observe(handed.batch()).await;
            handed.end(result);
            let given_up = self.figures().dropped;
            if given_up > dropped && self.record.may_log() {
                warn!(plugin = %self.plugin, deletions = given_up - dropped, "the observer is too slow and misses some deletions");
                dropped = given_up;
            }
        }
    }

    /// Calls the plugin's `observe` with a batch of changes.
    async fn observe(&self, changes: &Batch) -> Result<(), HookError> {
        let serving = self.serving.load_full();
        let span = info_span!("observe", plugin = %self.plugin, changes = changes.changes().len());
        let imports = Arc::new(CallImports::new(serving.access.clone()));
        let news = batch::news(changes, &serving.access);
        if news.is_empty() {
            return Ok(());
        }
        let merged = changes.changes().iter().filter(|change| change.merged > 1).count();
        if merged > 0 {
            debug!(plugin = %self.plugin, merged, "changes came faster than the observer took them; some are merged");
        }
        let called = |called: &Called| self.observer.called(&self.plugin, None, called);
        let call = pin!(serving.revision.observe(imports, &news));
        let ((), took) = batch::call(Hook::Observe, changes, &self.record, span, called, call).await?;
        feed::observed(self.plugin.as_str(), changes, took);
        Ok(())
    }
}
