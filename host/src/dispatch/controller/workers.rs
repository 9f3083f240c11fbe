//! Who works: as many workers as the revision that serves wants, once every informer has synced (invariant 6).
//!
//! A worker takes a key, has it reconciled, and makes ready what the next call needs if there is no next key yet. Whatever the host fails
//! over, the key goes back to the queue and the worker goes on. Which key is next is for the [queue](crate::dispatch::queue) to say, and
//! what becomes of it for [`reconcile`].
//!
//! ```text
//! routes changed ─► all synced ─► staff ─► worker 0 … wanted - 1 ─┬─► the next key ─► reconcile ─┐
//! fewer are wanted ───────────────────────► the last ones leave ◄─┴──────────────────────────────┘
//! ```

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use parking_lot::Mutex;
use pilothouse_core::{
    breaker::{OPEN, Storm},
    key::Key,
    workqueue::Item,
};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::error;

use super::Controller;
use crate::{
    dispatch::{
        Attempt, ReconcileResult,
        queue::{Cause, Next, Taker},
        reconcile,
    },
    writer::Level,
};

/// The workers of a controller.
pub(super) struct Workers {
    staff: Mutex<Staff>,
    /// Those who have a key.
    active: AtomicUsize,
    /// All of them, and what waits to start them.
    tasks: TaskTracker,
}

/// Who is at work, and how many should be.
#[derive(Default)]
struct Staff {
    /// Every informer has synced.
    ready: bool,
    /// Counts changes of routes: a wait for those before is void.
    round: u64,
    wanted: usize,
    at_work: BTreeSet<usize>,
}

impl Workers {
    /// Nobody, until the informers have synced.
    pub(super) fn new(wanted: usize) -> Self {
        let staff = Mutex::new(Staff { wanted, ..Staff::default() });
        Self { staff, active: AtomicUsize::new(0), tasks: TaskTracker::new() }
    }

    /// How many there should be.
    pub(super) fn wanted(&self) -> usize {
        self.staff.lock().wanted
    }

    /// How many there should be from now on. To be followed by [`Controller::staff`], and by a ring of the queue's bell: those that are
    /// too many end when they look for a key.
    pub(super) fn want(&self, wanted: usize) {
        self.staff.lock().wanted = wanted;
    }

    /// True once they may work.
    pub(super) fn are_ready(&self) -> bool {
        self.staff.lock().ready
    }

    /// How many have a key now.
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// How many there are, with what waits to start them.
    #[cfg(test)]
    pub(super) fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// There will be no more of them.
    pub(super) fn close(&self) {
        self.tasks.close();
    }

    /// Returns when all have ended, after [`close`](Self::close).
    pub(super) async fn ended(&self) {
        self.tasks.wait().await;
    }
}

impl Staff {
    /// Routes have changed: the round in which their informers are waited for.
    fn begin(&mut self) -> u64 {
        self.round += 1;
        self.round
    }

    /// All informers of a round have synced. False: there was another one since.
    fn synced(&mut self, round: u64) -> bool {
        let counts = self.round == round;
        self.ready |= counts;
        counts
    }

    /// Those who are wanted and not at work. From now on they are.
    fn hire(&mut self) -> Vec<usize> {
        if !self.ready {
            return Vec::new();
        }
        (0..self.wanted).filter(|number| self.at_work.insert(*number)).collect()
    }

    /// Returns `true` if a worker is still wanted. If not, it is off the list.
    fn keeps(&mut self, number: usize) -> bool {
        let keeps = number < self.wanted;
        if !keeps {
            self.at_work.remove(&number);
        }
        keeps
    }
}

impl Controller {
    /// Lets the workers work when all informers have synced that it listens to now.
    pub(super) fn staff_when_synced(self: &Arc<Self>) {
        let round = self.workers.staff.lock().begin();
        let this = self.clone();
        let wait = async move {
            tokio::select! {
                () = this.synced() => {}
                () = this.stopping.cancelled() => return,
            }
            if this.workers.staff.lock().synced(round) {
                this.staff();
            }
        };
        self.account.spawn(self.workers.tasks.track_future(wait)).detach();
    }

    /// Starts the workers that are wanted and not there. Those that are too many end by themselves.
    pub(super) fn staff(self: &Arc<Self>) {
        let hired = self.workers.staff.lock().hire();
        for number in hired {
            let controller = self.clone();
            let work = async move { controller.work(number).await };
            self.account.spawn(self.workers.tasks.track_future(work)).detach();
        }
    }

    async fn work(&self, number: usize) {
        while let Some((item, storm)) = self.next_key(number).await {
            self.workers.active.fetch_add(1, Ordering::Relaxed);
            let mut held = Held { controller: self, item: &item, next: Next::Retry };
            let began = Instant::now();
            self.observer.picked(self, item.waited);
            if let Some(storm) = storm {
                self.tell_storm(&item.key, &storm);
            }
            // A fault of the host over one key must not take the worker, which nobody would replace.
            match AssertUnwindSafe(reconcile::run(self, &item)).catch_unwind().await {
                Ok(next) => held.next = next,
                Err(_) => {
                    error!(plugin = %self.plugin, controller = %self.name, key = %item.key, "the host failed over a key");
                    // Nor must a fault over saying so.
                    drop(catch_unwind(AssertUnwindSafe(|| {
                        self.note_error(&item.key, Some("the host failed over it".to_owned()));
                        let (result, took) = (ReconcileResult::Error, began.elapsed());
                        self.attempted(&Attempt { result, took, in_guest: None, trap: None, panicked: true });
                    })));
                }
            }
            drop(held);
            if !self.queue.has_next() && !self.stopping.is_cancelled() {
                self.serving().revision.prepare().await;
            }
            // A plugin that always has a next key gives way to others all the same. One that has none does not stand in line for nothing: what
            // comes while it does would wait behind others, as if it had not rested.
            if self.queue.has_next() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Waits for a worker's next key, and until this process may act. Returns `None` if the worker is not wanted any more, or the
    /// controller ends.
    async fn next_key(&self, number: usize) -> Option<(Item<Key>, Option<Storm<Cause>>)> {
        loop {
            let next = self.queue.next(&Worker { controller: self, number }).await;
            if next.is_some() || !self.workers.staff.lock().at_work.contains(&number) || self.stopping.is_cancelled() {
                return next;
            }
            self.stopping.run_until_cancelled(self.record.acting().allowed()).await?;
        }
    }

    /// A key is reconciled over and over: says so, and who causes it.
    fn tell_storm(&self, key: &Key, storm: &Storm<Cause>) {
        let within = self.queue.now().saturating_sub(storm.since);
        self.record.storms(&self.name, key, storm, within);
        if let Some((object, _)) = self.look_up(&self.serving(), key) {
            let by = storm.by.as_ref().map_or_else(String::new, |by| {
                format!("; {} of the last {} times it was woken by {}", by.wakes, by.of, by.cause)
            });
            let message = format!(
                "plugin {} reconciled it {} times within {:.1} s, and does so once in {} s from now on{by}",
                self.plugin,
                storm.reconciles,
                within.as_secs_f32(),
                OPEN.as_secs()
            );
            self.events.tell(&self.plugin, &object, Level::Warning, "ReconcileStorm", &message);
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
        self.controller.record.acting().is_allowed() && self.controller.workers.staff.lock().keeps(self.number)
    }

    fn held(&self) -> Option<Instant> {
        self.controller.record.held()
    }

    fn calmed(&self, key: &Key, storm: &Storm<Cause>) {
        let Controller { name, queue, record, .. } = self.controller;
        record.calmed(name, key, storm, queue.now().saturating_sub(storm.since));
    }
}

/// A key in a worker's hands: whatever happens to the worker, the key goes back to the queue.
struct Held<'a> {
    controller: &'a Controller,
    item: &'a Item<Key>,
    next: Next,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let took: Duration = self.controller.queue.finish(self.item, self.next);
        self.controller.workers.active.fetch_sub(1, Ordering::Relaxed);
        self.controller.observer.finished(self.controller, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_works_before_the_informers_of_the_latest_routes_have_synced() {
        let mut staff = Staff { wanted: 2, ..Staff::default() };
        let (first, second) = (staff.begin(), staff.begin());
        assert_eq!((staff.synced(first), staff.hire()), (false, vec![]));
        assert_eq!((staff.synced(second), staff.hire()), (true, vec![0, 1]));
        assert_eq!(staff.hire(), [0; 0]);
    }

    #[test]
    fn workers_that_are_too_many_leave_and_are_hired_again() {
        let mut staff = Staff { wanted: 3, ready: true, ..Staff::default() };
        assert_eq!(staff.hire(), [0, 1, 2]);
        staff.wanted = 1;
        // The last one has not looked for a key since.
        assert_eq!([0, 1].map(|number| staff.keeps(number)), [true, false]);
        staff.wanted = 3;
        assert_eq!(staff.hire(), [1]);
    }
}
