//! Changes that wait for a predicate: the pure queue of `pilothouse-core`, behind a lock and with wake-ups.
//!
//! Informers hand out changes under their lock. A CEL expression of a manifest may take milliseconds, in which every
//! user of the informer would wait. So an undecided change waits here, and a task on the plugin's account evaluates its
//! predicate:
//!
//! ```text
//! informer ─► hear ─┬─ decided at a glance ──────────────────────────► routed, under the lock
//!                   └─ undecided ─► waiting ─► judge (the account) ─► routed
//! ```
//!
//! Changes of one object stay in order: while one of them waits, later ones wait too, even if a glance decides them.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pilothouse_core::{
    budget::Budget,
    predicate::Predicate,
    store::Change,
    unjudged::{Pushed, Unjudged, Unseen},
};
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::record::Record;
use crate::informer::Origin;

/// Hears the changes of one lease, for one source of the manifest.
pub(super) struct Listener<S> {
    /// Unique among the listeners of the same routes.
    pub(super) number: u64,
    pub(super) source: S,
    /// Which changes matter. A newer revision replaces it and keeps the subscription.
    pub(super) when: ArcSwap<Predicate>,
}

/// Whether a change matters to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relevance {
    Matters,
    DoesNotMatter,
    /// The predicate is not evaluated yet: the change waits.
    Undecided,
}

/// Changes that wait for a predicate.
pub(super) struct Judging<S> {
    waiting: Mutex<Waiting<S>>,
    /// The number of waiting changes, which is nearly always zero. Read without the lock for each change.
    count: AtomicUsize,
    added: Notify,
    /// Counts changes that were judged.
    over: watch::Sender<u64>,
}

struct Waiting<S> {
    unjudged: Unjudged,
    /// The listeners of waiting changes, by number. Their routes may have ended.
    listeners: HashMap<u64, Arc<Listener<S>>>,
}

/// Waiting changes, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JudgingFigures {
    /// Changes that wait.
    pub waiting: usize,
    /// Changes since the start that were merged into others or found no room. They counted as matches.
    pub unseen: u64,
    /// Predicates that are switched off.
    pub off: usize,
}

/// A change that is being judged.
pub(super) struct Case<'a, S> {
    judging: &'a Judging<S>,
    pub(super) listener: Arc<Listener<S>>,
    pub(super) unseen: Unseen,
}

impl<S> Judging<S> {
    /// Creates an empty queue. Superseded versions of objects count in this budget.
    pub(super) fn within(versions: &Budget) -> Self {
        Self {
            waiting: Mutex::new(Waiting { unjudged: Unjudged::within(versions), listeners: HashMap::new() }),
            count: AtomicUsize::new(0),
            added: Notify::new(),
            over: watch::Sender::new(0),
        }
    }

    /// Decides at a glance whether a change matters to a listener. An undecided change waits to be judged.
    ///
    /// Called under the informer's lock, so that no other change of the object comes at the same time.
    pub(super) fn hear(&self, listener: &Arc<Listener<S>>, change: &Change, origin: Origin) -> Relevance {
        let decided = match listener.when.load().glance(change) {
            Some(true) => Some(Relevance::Matters),
            Some(false) => Some(Relevance::DoesNotMatter),
            None => None,
        };
        if let Some(decided) = decided
            && self.count.load(Ordering::Acquire) == 0
        {
            return decided;
        }
        let waiting = &mut *self.waiting.lock();
        if let Some(decided) = decided
            && !waiting.unjudged.holds(listener.number, change.key())
        {
            return decided;
        }
        match waiting.unjudged.push(listener.number, change, origin == Origin::Initial) {
            Pushed::Refused => return Relevance::Matters,
            Pushed::Waits => {}
        }
        waiting.listeners.entry(listener.number).or_insert_with(|| listener.clone());
        self.count.store(waiting.unjudged.len(), Ordering::Release);
        self.added.notify_one();
        Relevance::Undecided
    }

    /// Waits for the next change to judge. One task calls this.
    ///
    /// # Cancellation
    /// Safe: a change is taken only when it is returned.
    pub(super) async fn next(&self) -> Case<'_, S> {
        loop {
            let added = self.added.notified();
            {
                let waiting = &mut *self.waiting.lock();
                if let Some(unseen) = waiting.unjudged.take() {
                    let listener =
                        waiting.listeners.get(&unseen.listener).expect("a waiting change has a listener").clone();
                    return Case { judging: self, listener, unseen };
                }
            }
            added.await;
        }
    }

    /// Returns when all changes that wait now are judged.
    pub(super) async fn over(&self) {
        let mut over = self.over.subscribe();
        let mark = self.waiting.lock().unjudged.mark();
        while !self.waiting.lock().unjudged.is_over_until(mark) {
            // The sender lives as long as `self`.
            let _ = over.changed().await;
        }
    }

    /// Returns the figures.
    pub(super) fn figures(&self) -> JudgingFigures {
        let unjudged = &self.waiting.lock().unjudged;
        JudgingFigures { waiting: unjudged.len(), unseen: unjudged.merged() + unjudged.refused(), off: 0 }
    }
}

impl<S> Case<'_, S> {
    /// Returns where the change came from.
    pub(super) fn origin(&self) -> Origin {
        if self.unseen.is_initial { Origin::Initial } else { Origin::Change }
    }

    /// Evaluates the listener's predicate. A change that cannot be evaluated matters.
    pub(super) fn matters(&self, record: &Record) -> bool {
        // One of the merged changes may have matched.
        let is_merged = self.unseen.merged > 1;
        is_merged
            || catch_unwind(AssertUnwindSafe(|| judge(&self.listener.when.load(), &self.unseen.change, record)))
                .unwrap_or(true)
    }
}

impl<S> Drop for Case<'_, S> {
    fn drop(&mut self) {
        let waiting = &mut *self.judging.waiting.lock();
        waiting.unjudged.done();
        if waiting.unjudged.is_empty() {
            waiting.listeners = HashMap::new();
        }
        self.judging.count.store(waiting.unjudged.len(), Ordering::Release);
        self.judging.over.send_modify(|over| *over += 1);
    }
}

/// Evaluates a predicate. Logs its faults, within the plugin's limit of lines.
pub(super) fn judge(when: &Predicate, change: &Change, record: &Record) -> bool {
    let judgement = when.judge(change, &mut |error| {
        if record.may_log() {
            warn!(plugin = %record.plugin(), %error, "predicate failed; the change is treated as a match");
        }
    });
    if judgement.switched_off && record.may_log() {
        warn!(
            plugin = %record.plugin(), of = %change.object().type_meta(),
            "predicate takes too long and is switched off until the plugin has a new revision; its CEL expressions leave out no change any more",
        );
    }
    judgement.matters
}

#[cfg(test)]
mod tests {
    use pilothouse_core::{
        key::TypeMeta,
        object::Object,
        predicate::{Condition, Expression, Test},
    };

    use super::*;

    fn version(version: u32) -> Option<Arc<Object>> {
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"{version}","generation":{version}}}}}"#
        );
        Some(Arc::new(Object::parse(json.as_bytes(), &TypeMeta::new("v1", "ConfigMap")).expect("an object")))
    }

    fn listener(test: Test) -> Arc<Listener<()>> {
        let when = Predicate::new(vec![vec![Condition { test, negated: false }]]);
        Arc::new(Listener { number: 0, source: (), when: ArcSwap::from_pointee(when) })
    }

    fn change(old: u32) -> Change {
        Change { old: version(old), new: version(old + 1), missed: false }
    }

    #[tokio::test]
    async fn decided_change_waits_behind_an_undecided_one_of_the_same_object() {
        let (judging, expression) = (
            Judging::within(&Budget::new(1 << 20)),
            Expression::compile("object.metadata.generation > 2").expect("an expression"),
        );
        let listener = listener(Test::Generation);
        assert_eq!(judging.hear(&listener, &change(1), Origin::Change), Relevance::Matters);
        let generation = listener.when.load_full();
        let cel = Predicate::new(vec![vec![Condition { test: Test::Cel(expression), negated: false }]]);
        listener.when.store(Arc::new(cel));
        assert_eq!(judging.hear(&listener, &change(2), Origin::Initial), Relevance::Undecided);
        listener.when.store(generation);
        assert_eq!(judging.hear(&listener, &change(3), Origin::Change), Relevance::Undecided);
        for (origin, old, waiting) in [(Origin::Initial, 2, 2), (Origin::Change, 3, 1)] {
            assert_eq!(judging.figures().waiting, waiting);
            let case = judging.next().await;
            assert_eq!((case.origin(), &case.unseen.change), (origin, &change(old)));
        }
        assert_eq!(judging.hear(&listener, &change(4), Origin::Change), Relevance::Matters);
    }

    #[tokio::test]
    async fn waiting_changes_are_over_when_they_were_judged() {
        let (judging, expression) =
            (Arc::new(Judging::within(&Budget::new(1 << 20))), Expression::compile("true").expect("an expression"));
        let listener = listener(Test::Cel(expression));
        assert_eq!(judging.hear(&listener, &change(1), Origin::Change), Relevance::Undecided);
        let over = tokio::spawn({
            let judging = judging.clone();
            async move { judging.over().await }
        });
        let case = judging.next().await;
        tokio::task::yield_now().await;
        assert!(!over.is_finished());
        drop(case);
        over.await.expect("it ends");
    }
}
