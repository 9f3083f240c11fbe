//! Changes on which a predicate is still to be evaluated: the pure queue of `pilothouse-core` behind a lock, and bells.
//!
//! A change is heard while its informer is locked, and everybody who uses the informer waits. What a plugin's manifest says of it may take
//! milliseconds. So it waits here, and a task on the plugin's account judges it:
//!
//! ```text
//! informer ─► hear ─┬─ known at a glance ──────────────────────► routed, under the lock
//!                   └─ push ─► waiting ─► judge (the account) ─► routed
//! ```
//!
//! A change of an object of which another one waits waits too, whatever a glance says of it: changes of one object stay in order.

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
    predicate::Predicate,
    store::Change,
    unjudged::{Pushed, Unjudged, Unseen},
};
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::record::Record;
use crate::informer::Origin;

/// Who hears of the changes of one lease, for one source of the manifest.
pub(super) struct Listener<S> {
    /// No other one of the same routes has it.
    pub(super) number: u64,
    pub(super) source: S,
    /// Which changes matter. A newer revision may replace it, and goes on with the same subscription.
    pub(super) when: ArcSwap<Predicate>,
}

/// Changes that wait.
pub(super) struct Judging<S> {
    inner: Mutex<Inner<S>>,
    /// How many there are. Read without the lock by who hears changes, nearly all of whom have none.
    count: AtomicUsize,
    /// Something came.
    bell: Notify,
    /// Counts what is over.
    over: watch::Sender<u64>,
}

struct Inner<S> {
    unjudged: Unjudged,
    /// Of what waits, by their numbers. A route may end before.
    listeners: HashMap<u64, Arc<Listener<S>>>,
}

/// What waits, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JudgingFigures {
    /// Changes that wait.
    pub waiting: usize,
    /// Changes that became part of others since the start, or found no room. They counted as matches.
    pub unseen: u64,
    /// Predicates that are switched off.
    pub off: usize,
}

/// A change in the hands of who judges it.
pub(super) struct Case<'a, S> {
    judging: &'a Judging<S>,
    pub(super) listener: Arc<Listener<S>>,
    pub(super) unseen: Unseen,
}

impl<S> Judging<S> {
    pub(super) fn new() -> Self {
        Self {
            inner: Mutex::new(Inner { unjudged: Unjudged::new(), listeners: HashMap::new() }),
            count: AtomicUsize::new(0),
            bell: Notify::new(),
            over: watch::Sender::new(0),
        }
    }

    /// Says whether a change matters to a listener, if that is known at once. `None`: it waits to be judged.
    ///
    /// Quick: the informer is locked meanwhile, so that no other change of the object comes at the same time.
    pub(super) fn hear(&self, listener: &Arc<Listener<S>>, change: &Change, origin: Origin) -> Option<bool> {
        let known = listener.when.load().glance(change);
        if known.is_some() && self.count.load(Ordering::Acquire) == 0 {
            return known;
        }
        let inner = &mut *self.inner.lock();
        if known.is_some() && !inner.unjudged.holds(listener.number, change.key()) {
            return known;
        }
        match inner.unjudged.push(listener.number, change, origin == Origin::Initial) {
            Pushed::Refused => return Some(true),
            Pushed::Waits => {}
        }
        inner.listeners.entry(listener.number).or_insert_with(|| listener.clone());
        self.count.store(inner.unjudged.len(), Ordering::Release);
        self.bell.notify_one();
        None
    }

    /// Waits for the next change to judge. One task calls this.
    ///
    /// # Cancellation
    /// Safe: nothing is taken but what is returned.
    pub(super) async fn next(&self) -> Case<'_, S> {
        loop {
            let rung = self.bell.notified();
            {
                let inner = &mut *self.inner.lock();
                if let Some(unseen) = inner.unjudged.take() {
                    let listener = inner.listeners.get(&unseen.listener).expect("who waits is known").clone();
                    return Case { judging: self, listener, unseen };
                }
            }
            rung.await;
        }
    }

    /// Returns when all that waits now is over.
    pub(super) async fn over(&self) {
        let mut over = self.over.subscribe();
        let mark = self.inner.lock().unjudged.mark();
        while !self.inner.lock().unjudged.is_over_until(mark) {
            // Who counts is there as long as this is.
            let _ = over.changed().await;
        }
    }

    /// What waits.
    pub(super) fn figures(&self) -> JudgingFigures {
        let unjudged = &self.inner.lock().unjudged;
        JudgingFigures { waiting: unjudged.len(), unseen: unjudged.merged() + unjudged.refused(), off: 0 }
    }
}

impl<S> Case<'_, S> {
    /// Where the change came from.
    pub(super) fn origin(&self) -> Origin {
        if self.unseen.is_initial { Origin::Initial } else { Origin::Change }
    }

    /// Evaluates the predicate of the moment. What cannot be evaluated matters.
    pub(super) fn matters(&self, record: &Record) -> bool {
        // One of those that it stands for may have matched.
        let is_merged = self.unseen.merged > 1;
        is_merged
            || catch_unwind(AssertUnwindSafe(|| judge(&self.listener.when.load(), &self.unseen.change, record)))
                .unwrap_or(true)
    }
}

impl<S> Drop for Case<'_, S> {
    fn drop(&mut self) {
        let inner = &mut *self.judging.inner.lock();
        inner.unjudged.done();
        if inner.unjudged.is_empty() {
            inner.listeners = HashMap::new();
        }
        self.judging.count.store(inner.unjudged.len(), Ordering::Release);
        self.judging.over.send_modify(|over| *over += 1);
    }
}

/// Evaluates a predicate, and says what is wrong with it: as often as the plugin may be spoken of.
pub(super) fn judge(when: &Predicate, change: &Change, record: &Record) -> bool {
    let judgement = when.judge(change, &mut |error| {
        if record.may_log() {
            warn!(plugin = %record.plugin(), %error, "predicate failed; the change is treated as a match");
        }
    });
    if judgement.switched_off && record.may_log() {
        warn!(
            plugin = %record.plugin(), of = %change.object().type_meta(),
            "a predicate takes too long and is switched off until the plugin has a new revision: every change that only its CEL expressions could \
             leave out is treated as a match",
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
    async fn what_a_glance_decides_waits_behind_what_it_does_not() {
        let (judging, expression) =
            (Judging::new(), Expression::compile("object.metadata.generation > 2").expect("is one"));
        let listener = listener(Test::Generation);
        assert_eq!(judging.hear(&listener, &change(1), Origin::Change), Some(true));
        let generation = listener.when.load_full();
        let cel = Predicate::new(vec![vec![Condition { test: Test::Cel(expression), negated: false }]]);
        listener.when.store(Arc::new(cel));
        assert_eq!(judging.hear(&listener, &change(2), Origin::Initial), None);
        listener.when.store(generation);
        assert_eq!(judging.hear(&listener, &change(3), Origin::Change), None);
        for (origin, old, waiting) in [(Origin::Initial, 2, 2), (Origin::Change, 3, 1)] {
            assert_eq!(judging.figures().waiting, waiting);
            let case = judging.next().await;
            assert_eq!((case.origin(), &case.unseen.change), (origin, &change(old)));
        }
        assert_eq!(judging.hear(&listener, &change(4), Origin::Change), Some(true));
    }

    #[tokio::test]
    async fn all_that_waits_is_over_when_it_was_judged() {
        let (judging, expression) = (Arc::new(Judging::new()), Expression::compile("true").expect("is one"));
        let listener = listener(Test::Cel(expression));
        assert_eq!(judging.hear(&listener, &change(1), Origin::Change), None);
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
