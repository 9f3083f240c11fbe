//! Changes that wait for the evaluation of a predicate.
//!
//! Owns their order, the merging of several changes of one object, and their bounds. The host evaluates, and acts on
//! the result.
//!
//! ```text
//! change ─► push ─► waiting, by arrival ─► take ─► evaluated ─► done
//!              └─ of an object with many waiting: merged into its last
//! ```
//!
//! - **Order.** Changes are taken in the order of arrival; those of one object always are. Nothing is taken while one
//!   is evaluated.
//! - **Merging.** Changes of one object stay separate, so that each is judged alone. A change is merged into the one
//!   before it if more than [`APART`] of its object wait, or if the budget of superseded versions is used up.
//! - **No match is lost.** A merged change may hide one that matched, so it counts as a match without evaluation.
//! - **Bounds.** A change whose objects are in the cache takes one entry. The rest counts in a [`Budget`], which the
//!   controllers of a plugin share. Once that is used up, a change of an object without waiting changes is refused, and
//!   the caller counts it as a match at once.
//!
//! ```
//! use std::sync::Arc;
//! use pilothouse_core::{
//!     budget::Budget,
//!     key::TypeMeta,
//!     object::Object,
//!     store::Change,
//!     unjudged::{Pushed, Unjudged},
//! };
//!
//! let pod = |version| {
//!     let json = format!(r#"{{"metadata":{{"name":"a","uid":"1","resourceVersion":"{version}"}}}}"#);
//!     Object::parse(json.as_bytes(), &TypeMeta::new("v1", "Pod")).map(|object| Some(Arc::new(object)))
//! };
//! let mut unjudged = Unjudged::within(&Budget::new(1 << 20));
//! assert_eq!(unjudged.push(7, &Change { old: None, new: pod(1)?, missed: false }, true), Pushed::Waits);
//! assert_eq!(unjudged.push(7, &Change { old: pod(1)?, new: pod(2)?, missed: false }, false), Pushed::Waits);
//! let first = unjudged.take().expect("two wait");
//! assert_eq!((first.listener, first.is_initial, first.merged), (7, true, 1));
//! assert_eq!(first.change.new, pod(1)?);
//! unjudged.done();
//! assert_eq!(unjudged.take().map(|second| second.change.new), Some(pod(2)?));
//! # Ok::<(), pilothouse_core::ParseError>(())
//! ```

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use crate::{
    budget::{Budget, Share},
    key::Key,
    store::Change,
};

/// Changes of one object that stay separate. A reconcile writes an object once or twice, and predicates mostly filter
/// out own writes.
pub const APART: usize = 8;

/// Bytes of superseded versions that wait for all controllers of a plugin together, by
/// [`Object::bytes`](crate::object::Object::bytes). An eighth of the memory of one instance.
pub const MAX_BYTES: usize = 8 << 20;

/// The listener to the object's kind, and the object.
type Subject = (u64, Key);

/// The waiting changes. One caller uses `take` and `done`.
#[derive(Debug)]
pub struct Unjudged {
    waiting: BTreeMap<u64, Unseen>,
    /// Arrivals of waiting changes, oldest first.
    subjects: HashMap<Subject, VecDeque<u64>>,
    /// Arrival and subject of the change under evaluation.
    taken: Option<(u64, Subject)>,
    arrivals: u64,
    /// Bytes of superseded versions.
    bytes: Share,
    merged: u64,
    refused: u64,
}

/// A change without a judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// The number that it was pushed with.
    pub listener: u64,
    /// The change.
    pub change: Change,
    /// `true` if only first lists brought it.
    pub is_initial: bool,
    /// `true` if a first list brought the object that it adds. Later changes of the object may be merged into it.
    pub was_there: bool,
    /// Number of changes in it. Above one, it counts as a match.
    pub merged: u32,
}

impl Unseen {
    fn bytes(&self) -> usize {
        // The cache holds the newer side, unless the object is gone.
        self.change.old.as_ref().map_or(0, |old| old.bytes())
    }
}

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what is refused waits nowhere"]
pub enum Pushed {
    /// The change waits.
    Waits,
    /// There is no room: the change counts as a match.
    Refused,
}

impl Unjudged {
    /// Creates an empty buffer, whose superseded versions count in this budget.
    pub fn within(versions: &Budget) -> Self {
        Self {
            waiting: BTreeMap::new(),
            subjects: HashMap::new(),
            taken: None,
            arrivals: 0,
            bytes: versions.share(),
            merged: 0,
            refused: 0,
        }
    }

    /// Adds a change for `listener`.
    pub fn push(&mut self, listener: u64, change: &Change, is_initial: bool) -> Pushed {
        let subject = (listener, change.key().clone());
        let unseen = Unseen { listener, change: change.clone(), is_initial, was_there: is_initial, merged: 1 };
        let is_full = !self.bytes.fits(unseen.bytes());
        let last = self.subjects.get(&subject).filter(|arrivals| is_full || arrivals.len() >= APART);
        if let Some(last) = last.and_then(|arrivals| arrivals.back()).and_then(|last| self.waiting.get_mut(last)) {
            if unseen.change.old.is_none() {
                // Another object of the same name.
                last.was_there = is_initial;
            }
            last.change.new = unseen.change.new;
            last.change.missed = unseen.change.missed;
            if last.change.old.is_none() && last.change.new.is_none() {
                // The object came and went: it is gone, in its last known state.
                last.change.old = unseen.change.old;
                self.bytes.add(last.bytes());
            }
            last.is_initial &= is_initial;
            last.merged = last.merged.saturating_add(1);
            self.merged += 1;
            return Pushed::Waits;
        }
        // A change under evaluation is older, and must not be overtaken.
        if is_full && unseen.bytes() > 0 && self.taken.as_ref().is_none_or(|(_, taken)| *taken != subject) {
            self.refused += 1;
            return Pushed::Refused;
        }
        self.bytes.add(unseen.bytes());
        self.subjects.entry(subject).or_default().push_back(self.arrivals);
        self.waiting.insert(self.arrivals, unseen);
        self.arrivals += 1;
        Pushed::Waits
    }

    /// Takes the oldest change. Returns `None` if nothing waits, or if one is under evaluation.
    pub fn take(&mut self) -> Option<Unseen> {
        if self.taken.is_some() {
            return None;
        }
        let (arrival, unseen) = self.waiting.pop_first()?;
        self.bytes.remove(unseen.bytes());
        let subject = (unseen.listener, unseen.change.key().clone());
        if let Some(arrivals) = self.subjects.get_mut(&subject) {
            arrivals.pop_front();
            if arrivals.is_empty() {
                self.subjects.remove(&subject);
            }
        }
        if self.subjects.is_empty() {
            // Returns the memory of a burst.
            self.subjects = HashMap::new();
        }
        self.taken = Some((arrival, subject));
        Some(unseen)
    }

    /// Ends the evaluation of the taken change, after its consequences.
    pub fn done(&mut self) {
        self.taken = None;
    }

    /// Returns `true` if a change of this object waits for this listener or is evaluated: a newer one must not overtake
    /// it.
    pub fn holds(&self, listener: u64, key: &Key) -> bool {
        let taken = self.taken.as_ref().is_some_and(|(_, (of, taken))| *of == listener && taken == key);
        taken || self.subjects.contains_key(&(listener, key.clone()))
    }

    /// Returns a number above those of all changes so far, for [`is_over_until`](Self::is_over_until).
    pub fn mark(&self) -> u64 {
        self.arrivals
    }

    /// Returns `true` if every change from before the mark is done.
    pub fn is_over_until(&self, mark: u64) -> bool {
        let taken = self.taken.as_ref().map(|(arrival, _)| arrival);
        taken.into_iter().chain(self.waiting.keys().next()).all(|arrival| *arrival >= mark)
    }

    /// Returns the number of changes that wait or are evaluated.
    pub fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.taken.is_some())
    }

    /// Returns `true` if nothing waits and nothing is evaluated.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts changes that were merged into others since the start.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// Counts changes that were refused since the start.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use proptest::prelude::*;

    use super::*;
    use crate::{key::TypeMeta, object::Object};

    fn pod(name: &str, version: u64) -> Option<Arc<Object>> {
        let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"{version}"}}}}"#);
        Some(Arc::new(Object::parse(json.as_bytes(), &TypeMeta::new("v1", "Pod")).unwrap()))
    }

    /// Versions before and after; 0 for none.
    fn change(name: &str, old: u64, new: u64) -> Change {
        let version = |version| if version == 0 { None } else { pod(name, version) };
        Change { old: version(old), new: version(new), missed: false }
    }

    /// `1 a 1>2 ×3`: listener, object, versions, and how many changes.
    fn shown(unseen: &Unseen) -> String {
        let version = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |object| object.resource_version().0);
        let Unseen { listener, change, merged, .. } = unseen;
        format!("{listener} {} {}>{} ×{merged}", change.key().name, version(&change.old), version(&change.new))
    }

    fn drain(unjudged: &mut Unjudged) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(unseen) = unjudged.take() {
            all.push(shown(&unseen));
            unjudged.done();
        }
        all
    }

    fn push(unjudged: &mut Unjudged, listener: u64, name: &str, old: u64, new: u64) -> Pushed {
        unjudged.push(listener, &change(name, old, new), false)
    }

    #[test]
    fn changes_are_taken_one_at_a_time_in_the_order_in_which_they_came() {
        let mut unjudged = Unjudged::within(&Budget::new(MAX_BYTES));
        for (listener, name, old, new) in [(1, "a", 0, 1), (2, "a", 0, 1), (1, "b", 0, 2), (1, "a", 1, 3)] {
            assert_eq!(push(&mut unjudged, listener, name, old, new), Pushed::Waits);
        }
        assert_eq!(unjudged.take().map(|first| shown(&first)), Some("1 a 0>1 ×1".to_owned()));
        assert_eq!(unjudged.take(), None);
        let a = Key::new(None, "a");
        assert!(unjudged.holds(1, &a) && unjudged.holds(2, &a) && !unjudged.holds(3, &a));
        unjudged.done();
        assert_eq!(drain(&mut unjudged), ["2 a 0>1 ×1", "1 b 0>2 ×1", "1 a 1>3 ×1"]);
        assert!(unjudged.is_empty() && !unjudged.holds(1, &a) && unjudged.bytes.holds() == 0);
    }

    #[test]
    fn changes_beyond_the_bound_of_one_object_are_merged_into_the_last() {
        let mut unjudged = Unjudged::within(&Budget::new(MAX_BYTES));
        let all = APART as u64 + 3;
        for version in 0..all {
            assert_eq!(push(&mut unjudged, 1, "a", version, version + 1), Pushed::Waits);
        }
        assert_eq!((unjudged.len(), unjudged.merged()), (APART, 3));
        let taken = drain(&mut unjudged);
        assert_eq!((&*taken[0], &*taken[APART - 1]), ("1 a 0>1 ×1", &*format!("1 a {}>{all} ×4", APART - 1)));
    }

    #[test]
    fn an_object_that_came_and_went_is_gone_in_its_last_known_state() {
        let mut unjudged = Unjudged::within(&Budget::new(0));
        assert_eq!(push(&mut unjudged, 1, "a", 0, 1), Pushed::Waits);
        assert_eq!(push(&mut unjudged, 1, "a", 1, 0), Pushed::Waits);
        assert_eq!(drain(&mut unjudged), ["1 a 1>0 ×2"]);
        assert_eq!(unjudged.bytes.holds(), 0);
    }

    #[test]
    fn invariant_12_superseded_versions_beyond_the_bound_are_merged_or_refused() {
        let bytes = change("a", 1, 2).old.unwrap().bytes();
        let mut unjudged = Unjudged::within(&Budget::new(2 * bytes));
        assert_eq!(push(&mut unjudged, 1, "a", 1, 2), Pushed::Waits);
        assert_eq!(push(&mut unjudged, 1, "b", 1, 2), Pushed::Waits);
        // One more of an object with waiting changes, and of one without.
        assert_eq!(push(&mut unjudged, 1, "b", 2, 3), Pushed::Waits);
        assert_eq!(push(&mut unjudged, 1, "c", 1, 2), Pushed::Refused);
        // What is in the cache takes no room.
        assert_eq!(push(&mut unjudged, 1, "d", 0, 1), Pushed::Waits);
        assert_eq!((unjudged.len(), unjudged.merged(), unjudged.refused()), (3, 1, 1));
        // A change under evaluation is not overtaken.
        assert_eq!(unjudged.take().map(|first| shown(&first)), Some("1 a 1>2 ×1".to_owned()));
        assert_eq!(push(&mut unjudged, 1, "e", 1, 2), Pushed::Waits);
        assert_eq!(push(&mut unjudged, 1, "a", 2, 3), Pushed::Waits);
        unjudged.done();
        assert_eq!(drain(&mut unjudged), ["1 b 1>3 ×2", "1 d 0>1 ×1", "1 e 1>2 ×1", "1 a 2>3 ×1"]);
    }

    #[test]
    fn invariant_12_superseded_versions_have_one_bound_over_several_backlogs() {
        let bytes = change("a", 1, 2).old.unwrap().bytes();
        let total = Arc::new(AtomicUsize::new(0));
        let budget = Budget::within(total.clone(), 2 * bytes);
        let [mut one, mut other] = [(); 2].map(|()| Unjudged::within(&budget));
        assert_eq!(push(&mut one, 1, "a", 1, 2), Pushed::Waits);
        assert_eq!(push(&mut other, 1, "a", 1, 2), Pushed::Waits);
        assert_eq!([push(&mut one, 1, "b", 1, 2), push(&mut other, 1, "b", 1, 2)], [Pushed::Refused; 2]);
        assert_eq!(push(&mut other, 1, "a", 2, 3), Pushed::Waits);
        assert_eq!((one.merged(), other.merged(), total.load(Ordering::Relaxed)), (0, 1, 2 * bytes));
        // What one backlog gives back, the other may take.
        drop(one);
        assert_eq!(push(&mut other, 1, "b", 1, 2), Pushed::Waits);
        assert_eq!(drain(&mut other), ["1 a 1>3 ×2", "1 b 1>2 ×1"]);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_mark_is_reached_when_all_earlier_changes_are_done() {
        let mut unjudged = Unjudged::within(&Budget::new(MAX_BYTES));
        assert!(unjudged.is_over_until(unjudged.mark()));
        assert_eq!(push(&mut unjudged, 1, "a", 0, 1), Pushed::Waits);
        let mark = unjudged.mark();
        assert_eq!(push(&mut unjudged, 1, "b", 0, 1), Pushed::Waits);
        assert!(!unjudged.is_over_until(mark));
        assert!(unjudged.take().is_some() && !unjudged.is_over_until(mark));
        unjudged.done();
        assert!(unjudged.is_over_until(mark) && !unjudged.is_over_until(unjudged.mark()));
    }

    proptest! {
        /// The changes taken of an object are contiguous, from its first state to its last, and count each of its
        /// changes.
        #[test]
        fn changes_of_one_object_are_taken_without_a_gap(
            steps in prop::collection::vec((0_u8..4, 0_usize..3, prop::bool::ANY), 1..200),
            room in 0_usize..4_000,
        ) {
            let names = ["a", "b", "c"];
            let mut unjudged = Unjudged::within(&Budget::new(room));
            // By object: the present version, the number of waiting changes, and the end of the last taken one.
            let (mut at, mut open, mut seen) = ([0_u64; 3], [0_u32; 3], [0_u64; 3]);
            let mut version = 0;
            let version_of = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |object| object.resource_version().0);
            for (step, object, deletes) in steps.into_iter().chain(std::iter::repeat_n((3, 0, false), 500)) {
                if step < 3 {
                    version += 1;
                    let old = at[object];
                    let new = if deletes && old > 0 { 0 } else { version };
                    at[object] = new;
                    match push(&mut unjudged, 1, names[object], old, new) {
                        Pushed::Waits => open[object] += 1,
                        // The caller acts on it at once: nothing of the object waits.
                        Pushed::Refused => {
                            prop_assert_eq!(open[object], 0);
                            seen[object] = new;
                        }
                    }
                } else if let Some(unseen) = unjudged.take() {
                    let object = names.iter().position(|name| **name == *unseen.change.key().name).unwrap();
                    let came_and_went = unseen.merged > 1 && seen[object] == 0;
                    prop_assert!(came_and_went || version_of(&unseen.change.old) == seen[object]);
                    seen[object] = version_of(&unseen.change.new);
                    open[object] -= unseen.merged;
                    unjudged.done();
                }
            }
            prop_assert_eq!((at, open, unjudged.bytes.holds()), (seen, [0; 3], 0));
        }
    }
}
