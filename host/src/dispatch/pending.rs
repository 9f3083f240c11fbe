//! A backlog among threads: the pure one of `pilothouse-core` behind a lock, and bells.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::{
    backlog::{Backlog, Batch, MAPPER, Pending as Told, Vanished},
    key::{Key, TypeMeta},
    store::Change,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::error;

use super::{hook::HookError, imports::Access};
use crate::{acting::Acting, name::PluginName, wasm::News};

/// Changes in one call. A guest's call costs some ten microseconds: with a hundred changes in it that is nothing.
const BATCH: usize = 100;

/// Bytes of the objects of one call, both sides of each change: an eighth of the memory that a plugin has.
const BATCH_BYTES: usize = 8 << 20;

/// How long a task rests over which the host failed: a fault that lasts fills no log.
const AGAIN: Duration = Duration::from_secs(1);

/// Changes that a plugin is to be told of.
pub(super) struct Pending {
    inner: Mutex<Inner>,
    /// Something came.
    bell: Notify,
    /// Counts what may have been the last that was to be tried: calls that ended, and kinds that were forgotten.
    ended: watch::Sender<u64>,
    origin: Instant,
}

struct Inner {
    backlog: Backlog,
    merged: u64,
    last: Option<HookFailure>,
}

/// A call of `map` or `observe` that did not do what it was called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFailure {
    /// When.
    pub at: Timestamp,
    /// The first of what it was called for.
    pub objects: String,
    /// Why.
    pub message: String,
}

/// What waits, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BacklogFigures {
    /// Objects of which there is something to tell, or being told.
    pub objects: usize,
    /// Of these, those that could not be told, and wait for their time.
    pub delayed: usize,
    /// Changes that were told as part of others, since the start.
    pub merged: u64,
    /// Deletions that were given up, since the start.
    pub dropped: u64,
}

impl Pending {
    /// Creates an empty backlog. Deleted objects in it count in `untold`.
    pub(super) fn within(untold: &Vanished) -> Self {
        Self {
            inner: Mutex::new(Inner { backlog: Backlog::within(MAPPER, untold), merged: 0, last: None }),
            bell: Notify::new(),
            ended: watch::Sender::new(0),
            origin: Instant::now(),
        }
    }

    /// Puts a change in. Quick: the informer is locked meanwhile.
    pub(super) fn add(&self, change: &Change) {
        self.add_merged(change, 1);
    }

    /// Puts a change in that stands for so many.
    pub(super) fn add_merged(&self, change: &Change, merged: u32) {
        self.inner.lock().backlog.push_merged(change.object().type_meta(), change, merged);
        self.bell.notify_one();
    }

    /// The next changes to tell, when there are some and this process may act. For one who asks.
    ///
    /// # Cancellation
    /// Safe: nothing is taken but what is returned.
    pub(super) async fn next(&self, acting: &Acting) -> Telling<'_> {
        loop {
            acting.allowed().await;
            let rung = self.bell.notified();
            let due = {
                let backlog = &mut self.inner.lock().backlog;
                if let Some(batch) = backlog.take(self.origin.elapsed(), BATCH, BATCH_BYTES) {
                    return Telling { pending: self, batch: Some(batch) };
                }
                backlog.next_due()
            };
            match due {
                Some(due) => {
                    let _ = tokio::time::timeout_at(self.origin + due, rung).await;
                }
                None => rung.await,
            }
        }
    }

    /// Returns when all that waits now was told, or could not be, at least once.
    pub(super) async fn tried(&self) {
        let mut ended = self.ended.subscribe();
        let mark = self.inner.lock().backlog.mark();
        while !self.inner.lock().backlog.tried_until(mark) {
            // Who counts is there as long as this is.
            let _ = ended.changed().await;
        }
    }

    /// Keeps only the objects for which `keep` returns `true`.
    pub(super) fn retain(&self, keep: impl FnMut(&TypeMeta, &Key) -> bool) {
        self.inner.lock().backlog.retain(keep);
        self.ended.send_modify(|ended| *ended += 1);
    }

    /// What waits.
    pub(super) fn figures(&self) -> BacklogFigures {
        let Inner { backlog, merged, .. } = &*self.inner.lock();
        BacklogFigures {
            objects: backlog.len(),
            delayed: backlog.delayed(),
            merged: *merged,
            dropped: backlog.dropped(),
        }
    }

    /// The last call that failed.
    pub(super) fn last_failure(&self) -> Option<HookFailure> {
        self.inner.lock().last.clone()
    }
}

/// Changes in somebody's hands. Whatever becomes of that one, they are told, or wait to be told again.
#[must_use = "dropped, they could not be told"]
pub(super) struct Telling<'a> {
    pending: &'a Pending,
    /// Until its end.
    batch: Option<Batch>,
}

impl Telling<'_> {
    /// Which.
    pub(super) fn batch(&self) -> &Batch {
        self.batch.as_ref().expect("it has not ended")
    }

    /// They were told, or could not be.
    pub(super) fn end(self, told: Result<(), HookError>) {
        match told {
            Ok(()) => self.done(),
            Err(error) => self.failed(&error),
        }
    }

    fn done(mut self) {
        let Some(batch) = self.batch.take() else { return };
        let inner = &mut *self.pending.inner.lock();
        inner.merged += batch.changes().iter().map(|told| u64::from(told.merged.saturating_sub(1))).sum::<u64>();
        inner.backlog.done(batch);
        self.pending.ended.send_modify(|ended| *ended += 1);
    }

    fn failed(self, error: &HookError) {
        let objects = objects(self.batch());
        let last = HookFailure { at: Timestamp::now(), objects, message: error.to_string() };
        self.pending.inner.lock().last = Some(last);
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.pending.inner.lock().backlog.failed(batch, self.pending.origin.elapsed());
            self.pending.ended.send_modify(|ended| *ended += 1);
        }
    }
}

/// Does `work` until it ends by itself. Where the host fails over it, begins anew after a while: what works beside a plugin's reconciles
/// must not be missing from then on, as nobody would replace it.
pub(super) async fn persist<F: Future<Output = ()>>(plugin: PluginName, work: impl Fn() -> F) {
    while AssertUnwindSafe(work()).catch_unwind().await.is_err() {
        error!(%plugin, again_in = ?AGAIN, "the host failed over a task of the plugin");
        tokio::time::sleep(AGAIN).await;
    }
}

/// The changes of a batch that the plugin may see at this moment, in the contract's words. Both sides of a change have one kind and one
/// key, so the plugin may see both or neither.
pub(super) fn news(batch: &Batch, access: &Access) -> Vec<News> {
    let news = |told: &Told| News {
        of: told.of.clone(),
        old: told.old.clone(),
        new: told.new.clone(),
        merged: told.merged,
        missed: told.missed,
    };
    let visible = |told: &&Told| {
        let object = told.new.as_ref().or(told.old.as_ref());
        object.is_some_and(|object| access.may_see(&told.of, object.key()))
    };
    batch.changes().iter().filter(visible).map(news).collect()
}

/// The first objects of a batch, for people: `Pod a/b, Pod a/c and 7 more`.
pub(super) fn objects(batch: &Batch) -> String {
    const NAMED: usize = 3;
    let object = |told: &Told| {
        let object = told.new.as_ref().or(told.old.as_ref());
        object.map_or_else(String::new, |object| format!("{} {}", told.of.kind, object.key()))
    };
    let named: Vec<String> = batch.changes().iter().take(NAMED).map(object).collect();
    let more = batch.changes().len() - named.len();
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use pilothouse_core::{key::TypeMeta, object::Object};

    use super::*;

    fn added(name: &str) -> Change {
        let json = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"u","resourceVersion":"1"}}}}"#);
        let object = Object::parse(json.as_bytes(), &TypeMeta::new("v1", "ConfigMap")).expect("an object");
        Change { old: None, new: Some(Arc::new(object)), missed: false }
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_comes_again_when_it_is_due() {
        let pending = Pending::within(&Vanished::default());
        pending.add(&added("a"));
        let telling = pending.next(&Acting::new(true)).await;
        let began = Instant::now();
        telling.failed(&HookError::Refused("no".to_owned()));
        assert_eq!(pending.figures(), BacklogFigures { objects: 1, delayed: 1, ..BacklogFigures::default() });
        let last = pending.last_failure().map(|last| (last.objects, last.message));
        assert_eq!(last, Some(("ConfigMap n/a".to_owned(), "no".to_owned())));
        let again = pending.next(&Acting::new(true)).await;
        assert_eq!(objects(again.batch()), "ConfigMap n/a");
        assert!(began.elapsed() >= MAPPER.base);
        again.done();
        assert_eq!(pending.figures(), BacklogFigures::default());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_there_is_tried_though_it_fails() {
        let pending = Arc::new(Pending::within(&Vanished::default()));
        for name in ["a", "b"] {
            pending.add(&added(name));
        }
        let tried = tokio::spawn({
            let pending = pending.clone();
            async move { pending.tried().await }
        });
        let telling = pending.next(&Acting::new(true)).await;
        assert_eq!(objects(telling.batch()), "ConfigMap n/a, ConfigMap n/b");
        tokio::task::yield_now().await;
        assert!(!tried.is_finished());
        drop(telling);
        tried.await.expect("it ends");
        let again = pending.next(&Acting::new(true)).await;
        assert_eq!(again.batch().changes().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_over_which_the_host_failed_begins_anew_and_what_it_had_is_told() {
        let pending = Pending::within(&Vanished::default());
        pending.add(&added("a"));
        let (plugin, tries) = (PluginName::new("apples").expect("a name"), AtomicUsize::new(0));
        let began = Instant::now();
        persist(plugin, async || {
            let telling = pending.next(&Acting::new(true)).await;
            assert!(tries.fetch_add(1, Ordering::Relaxed) == 2, "on purpose");
            telling.done();
        })
        .await;
        assert_eq!((tries.into_inner(), pending.figures()), (3, BacklogFigures::default()));
        assert!(began.elapsed() >= 2 * AGAIN);
    }
}
