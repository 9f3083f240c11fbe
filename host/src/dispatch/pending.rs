//! Changes that wait for `map` or `observe`: the pure backlog of `pilothouse-core`, behind a lock and with wake-ups.

use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::{
    backlog::{Backlog, Batch, MAPPER, Seen, Vanished},
    key::{Key, TypeMeta},
    store::Change,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{batch, hook::HookError};
use crate::acting::{Acting, Call};

/// Changes in one call. A call costs some ten microseconds, which is little beside a hundred changes.
const BATCH: usize = 100;

/// Bytes of the objects in one call, both sides of each change: an eighth of the memory of one instance.
const BATCH_BYTES: usize = 8 << 20;

/// Changes that wait to be handed to a plugin.
pub(super) struct Pending {
    state: Mutex<State>,
    added: Notify,
    /// Counts events after which [`tried`](Self::tried) looks again: ended calls, and forgotten changes.
    ended: watch::Sender<u64>,
    origin: Instant,
}

struct State {
    backlog: Backlog,
    merged: u64,
    last: Option<HookFailure>,
}

/// A failed call of `map` or `observe`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HookFailure {
    /// When the call ended.
    #[serde(serialize_with = "crate::metrics::as_text")]
    pub at: Timestamp,
    /// The first objects of its batch.
    pub objects: String,
    /// The error.
    pub message: String,
}

/// The state of a backlog, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BacklogFigures {
    /// Objects with a change that waits or is in a call.
    pub objects: usize,
    /// Those of them whose last call failed, and which wait for their retry.
    pub delayed: usize,
    /// Changes that were merged into others before they were taken, since the start.
    pub merged: u64,
    /// Deletions that were dropped over the bound, since the start.
    pub dropped: u64,
}

impl Pending {
    /// Creates an empty backlog. Its deleted objects count in `unhandled`.
    pub(super) fn within(unhandled: &Vanished) -> Self {
        Self {
            state: Mutex::new(State { backlog: Backlog::within(MAPPER, unhandled), merged: 0, last: None }),
            added: Notify::new(),
            ended: watch::Sender::new(0),
            origin: Instant::now(),
        }
    }

    /// Adds a change. Called under the informer's lock.
    pub(super) fn add(&self, change: &Change) {
        self.add_seen(change, Seen::default());
    }

    /// Adds a change, and what is known of how it came.
    pub(super) fn add_seen(&self, change: &Change, seen: Seen) {
        self.state.lock().backlog.push_seen(change.object().type_meta(), change, seen);
        self.added.notify_one();
    }

    /// Waits for the next changes, and until this process may act. Hands the changes out. Only one task may call this.
    ///
    /// # Cancellation
    /// Safe: changes are taken only when they are returned.
    pub(super) async fn next(&self, acting: &Acting) -> Handed<'_> {
        loop {
            acting.allowed().await;
            let added = self.added.notified();
            let Some(call) = acting.begin() else { continue };
            let due = {
                let backlog = &mut self.state.lock().backlog;
                if let Some(batch) = backlog.take(self.origin.elapsed(), BATCH, BATCH_BYTES) {
                    return Handed { pending: self, batch: Some(batch), _call: call };
                }
                backlog.next_due()
            };
            drop(call);
            match due {
                Some(due) => {
                    let _ = tokio::time::timeout_at(self.origin + due, added).await;
                }
                None => added.await,
            }
        }
    }

    /// Returns when everything that waits now was in a call at least once, with success or without.
    pub(super) async fn tried(&self) {
        let mut ended = self.ended.subscribe();
        let mark = self.state.lock().backlog.mark();
        while !self.state.lock().backlog.tried_until(mark) {
            // The sender lives as long as `self`.
            let _ = ended.changed().await;
        }
    }

    /// Keeps only the objects for which `keep` returns `true`.
    pub(super) fn retain(&self, keep: impl FnMut(&TypeMeta, &Key) -> bool) {
        self.state.lock().backlog.retain(keep);
        self.ended.send_modify(|ended| *ended += 1);
    }

    /// Returns the state of the backlog.
    pub(super) fn figures(&self) -> BacklogFigures {
        let State { backlog, merged, .. } = &*self.state.lock();
        BacklogFigures {
            objects: backlog.len(),
            delayed: backlog.delayed(),
            merged: *merged,
            dropped: backlog.dropped(),
        }
    }

    /// Returns the last failed call.
    pub(super) fn last_failure(&self) -> Option<HookFailure> {
        self.state.lock().last.clone()
    }
}

/// Changes that were handed out. If dropped, they count as failed and wait for their retry.
#[must_use = "dropped changes count as failed"]
pub(super) struct Handed<'a> {
    pending: &'a Pending,
    /// `None` once the call has ended well.
    batch: Option<Batch>,
    _call: Call,
}

impl Handed<'_> {
    /// Returns the changes.
    pub(super) fn batch(&self) -> &Batch {
        self.batch.as_ref().expect("it has not ended")
    }

    /// Records how the call ended.
    pub(super) fn end(self, result: Result<(), HookError>) {
        match result {
            Ok(()) => self.done(),
            Err(error) => self.failed(&error),
        }
    }

    fn done(mut self) {
        let Some(batch) = self.batch.take() else { return };
        let state = &mut *self.pending.state.lock();
        state.merged += batch.changes().iter().map(|change| u64::from(change.merged.saturating_sub(1))).sum::<u64>();
        state.backlog.done(batch);
        self.pending.ended.send_modify(|ended| *ended += 1);
    }

    fn failed(self, error: &HookError) {
        let objects = batch::objects(self.batch());
        let last = HookFailure { at: Timestamp::now(), objects, message: error.to_string() };
        self.pending.state.lock().last = Some(last);
    }
}

impl Drop for Handed<'_> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.pending.state.lock().backlog.failed(batch, self.pending.origin.elapsed());
            self.pending.ended.send_modify(|ended| *ended += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use pilothouse_core::{key::TypeMeta, object::Object};

    use super::*;
    use crate::{
        dispatch::attendants::{RESTART_AFTER, persist},
        name::PluginName,
    };

    fn added(name: &str) -> Change {
        let json = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"u","resourceVersion":"1"}}}}"#);
        let object = Object::parse(json.as_bytes(), &TypeMeta::new("v1", "ConfigMap")).expect("an object");
        Change { old: None, new: Some(Arc::new(object)), missed: false }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_changes_come_again_when_they_are_due() {
        let pending = Pending::within(&Vanished::default());
        pending.add(&added("a"));
        let handed = pending.next(&Acting::new(true)).await;
        let began = Instant::now();
        handed.failed(&HookError::Refused("no".to_owned()));
        assert_eq!(pending.figures(), BacklogFigures { objects: 1, delayed: 1, ..BacklogFigures::default() });
        let last = pending.last_failure().map(|last| (last.objects, last.message));
        assert_eq!(last, Some(("ConfigMap n/a".to_owned(), "no".to_owned())));
        let again = pending.next(&Acting::new(true)).await;
        assert_eq!(batch::objects(again.batch()), "ConfigMap n/a");
        assert!(began.elapsed() >= MAPPER.base);
        again.done();
        assert_eq!(pending.figures(), BacklogFigures::default());
    }

    #[tokio::test(start_paused = true)]
    async fn changes_count_as_tried_though_their_call_failed() {
        let pending = Arc::new(Pending::within(&Vanished::default()));
        for name in ["a", "b"] {
            pending.add(&added(name));
        }
        let tried = tokio::spawn({
            let pending = pending.clone();
            async move { pending.tried().await }
        });
        let handed = pending.next(&Acting::new(true)).await;
        assert_eq!(batch::objects(handed.batch()), "ConfigMap n/a, ConfigMap n/b");
        tokio::task::yield_now().await;
        assert!(!tried.is_finished());
        drop(handed);
        tried.await.expect("it ends");
        let again = pending.next(&Acting::new(true)).await;
        assert_eq!(again.batch().changes().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_panicked_begins_anew_with_the_changes_that_it_had() {
        let pending = Pending::within(&Vanished::default());
        pending.add(&added("a"));
        let (plugin, tries) = (PluginName::new("apples").expect("a name"), AtomicUsize::new(0));
        let began = Instant::now();
        persist(plugin, async || {
            let handed = pending.next(&Acting::new(true)).await;
            assert!(tries.fetch_add(1, Ordering::Relaxed) == 2, "on purpose");
            handed.done();
        })
        .await;
        assert_eq!((tries.into_inner(), pending.figures()), (3, BacklogFigures::default()));
        assert!(began.elapsed() >= 2 * RESTART_AFTER);
    }
}
