//! The workers of a controller: as many as its revision wants, once every informer has synced (invariant 6).
//!
//! A worker takes a key from the [queue](crate::dispatch::queue) and [reconciles](crate::dispatch::reconcile) it. If
//! there is no next key yet, it prepares the next call. If the host panics over a key, the key goes back to the queue
//! and the worker goes on.
//!
//! ```text
//! routes changed ─► all synced ─► hire ─► worker 0 … wanted - 1 ─┬─► the next key ─► reconcile ─┐
//! fewer are wanted ──────────────────────► surplus ones leave ◄──┴──────────────────────────────┘
//! ```

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::FutureExt;
use pilothouse_core::{
    breaker::{OPEN, Storm},
    event::Level,
    key::Key,
    workqueue::Item,
};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::error;

use super::Controller;
use crate::{
    acting::Call,
    dispatch::{
        Attempt, ReconcileResult,
        queue::{Cause, Next, Taker},
        reconcile::{Ended, Turn},
        staff::Staff,
    },
    writer::Source,
};

/// The workers of a controller.
pub(super) struct Workers {
    pub(super) staff: Staff,
    /// Workers that have a key.
    active: AtomicUsize,
    /// All workers, and the wait for their informers.
    pub(super) tasks: TaskTracker,
}

impl Workers {
    /// Creates workers that begin once the informers have synced.
    pub(super) fn new(wanted: usize) -> Self {
        Self { staff: Staff::new(wanted), active: AtomicUsize::new(0), tasks: TaskTracker::new() }
    }

    /// The number of workers that have a key.
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }
}

impl Controller {
    /// Starts the workers when all informers have synced that the controller listens to now.
    pub(super) fn hire_when_synced(self: &Arc<Self>) {
        let round = self.workers.staff.begin_round();
        let this = self.clone();
        let wait = async move {
            tokio::select! {
                () = this.waking.synced() => {}
                () = this.attendants.stopping().cancelled() => return,
            }
            if this.workers.staff.record_synced(round) {
                this.hire();
            }
        };
        self.account.spawn(self.workers.tasks.track_future(wait)).detach();
    }

    /// Starts the workers that are wanted and not at work. Surplus workers leave by themselves.
    pub(super) fn hire(self: &Arc<Self>) {
        for number in self.workers.staff.hire() {
            let controller = self.clone();
            let work = async move { controller.work(number).await };
            self.account.spawn(self.workers.tasks.track_future(work)).detach();
        }
    }

    async fn work(self: &Arc<Self>, number: usize) {
        let queue = self.ledger.queue();
        while let Some((item, storm)) = self.next_key(number).await {
            let Some(call) = self.record.acting().begin() else {
                queue.finish(&item, Next::GivenBack);
                continue;
            };
            self.workers.active.fetch_add(1, Ordering::Relaxed);
            let mut taken = Taken { controller: self, item: &item, next: Next::Retry, _call: call };
            let began = Instant::now();
            self.observer.picked(self, item.waited);
            if let Some(storm) = storm {
                self.report_storm(&item.key, &storm);
            }
            match AssertUnwindSafe(self.reconcile(&item.key)).catch_unwind().await {
                Ok(next) => taken.next = next,
                // The worker survives, because nothing would replace it. The report may panic too.
                Err(_) => drop(catch_unwind(AssertUnwindSafe(|| self.report_panic(&item.key, began)))),
            }
            drop(taken);
            if !queue.has_next() && !self.attendants.stopping().is_cancelled() {
                self.serving().revision.prepare().await;
            }
            // A plugin that always has a next key yields to others. One that has none keeps its place: a key that comes
            // while it yields would wait behind others, as if the plugin had not been idle.
            if queue.has_next() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Waits for a worker's next key, and until this process may act.
    ///
    /// Returns `None` if the worker is not wanted any more, or the controller ends.
    async fn next_key(&self, number: usize) -> Option<(Item<Key>, Option<Storm<Cause>>)> {
        loop {
            let next = self.ledger.queue().next(&Worker { controller: self, number }).await;
            if next.is_some() || !self.workers.staff.is_at_work(number) || self.attendants.stopping().is_cancelled() {
                return next;
            }
            self.attendants.stopping().run_until_cancelled(self.record.acting().allowed()).await?;
        }
    }

    async fn reconcile(self: &Arc<Self>, key: &Key) -> Next {
        let turn = Turn { wakes: self.wakes(), serving: self.serving(), events: &self.events, key };
        let Ended { next, attempt } = turn.run().await;
        if let Some(attempt) = attempt {
            self.record_attempt(&attempt);
        }
        if self.ledger.asks().is_used() {
            self.follow_asks();
        }
        next
    }

    fn report_panic(&self, key: &Key, began: Instant) {
        error!(plugin = %self.id.plugin, controller = self.name(), %key, "the host panicked over a key");
        self.ledger.record_error(key, Some("the host panicked over it".to_owned()));
        let (result, took) = (ReconcileResult::Error, began.elapsed());
        self.record_attempt(&Attempt { result, took, in_guest: None, trap: None, panicked: true });
    }

    /// Logs that a key is reconciled over and over, and writes an Event that names the cause.
    fn report_storm(&self, key: &Key, storm: &Storm<Cause>) {
        let plugin = &self.id.plugin;
        let within = self.ledger.queue().now().saturating_sub(storm.since);
        self.record.log_storm(self.name(), key, storm, within);
        if let Some((object, _)) = self.ledger.look_up(&self.serving(), key) {
            let by = storm.by.as_ref().map_or_else(String::new, |by| {
                format!("; {} of the last {} times it was woken by {}", by.wakes, by.of, by.cause)
            });
            let message = format!(
                "plugin {plugin} reconciled it {} times within {:.1} s, and does so once in {} s from now on{by}",
                storm.reconciles,
                within.as_secs_f32(),
                OPEN.as_secs()
            );
            self.events.record(Source::Host(plugin.clone()), &object, Level::Warning, "ReconcileStorm", &message);
        }
    }
}

/// A worker that looks for a key.
struct Worker<'a> {
    controller: &'a Controller,
    number: usize,
}

impl Taker for Worker<'_> {
    fn goes_on(&self) -> bool {
        self.controller.record.acting().may_begin() && self.controller.workers.staff.keeps(self.number)
    }

    fn held_until(&self) -> Option<Instant> {
        self.controller.record.held_until()
    }

    fn settled(&self, key: &Key, storm: &Storm<Cause>) {
        let Controller { id, ledger, record, .. } = self.controller;
        record.log_settled(&id.name, key, storm, ledger.queue().now().saturating_sub(storm.since));
    }
}

/// A key that a worker has taken. On drop the key goes back to the queue, whatever happened to the worker.
struct Taken<'a> {
    controller: &'a Controller,
    item: &'a Item<Key>,
    next: Next,
    _call: Call,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let took = self.controller.ledger.queue().finish(self.item, self.next);
        self.controller.workers.active.fetch_sub(1, Ordering::Relaxed);
        self.controller.observer.finished(self.controller, took);
    }
}
