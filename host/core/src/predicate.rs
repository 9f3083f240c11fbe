//! Decides which changes matter: the `when` of a watch.
//!
//! ```text
//! when: [[generation], [labels, not finalizers], [cel "…"]]
//!        any of these    all of these
//! ```
//!
//! Owns the tests of a change. A predicate only keeps keys from being woken; the host records every change, whether it
//! matters or not.
//!
//! The evaluation has two steps, because a plugin wrote the predicate and other plugins wait for the informer of the
//! change:
//!
//! ```text
//! change ─► glance ─┬─ Some(answer) ───────────► route it, under the informer's lock
//!                   └─ None ─► a queue ─► judge ─► route it, on the plugin's account
//! ```
//!
//! [`Predicate::glance`] reads the object's parsed fields and short texts. [`Predicate::judge`] reads everything else
//! and evaluates CEL expressions, which were compiled when the manifest was checked. One budget bounds all expressions
//! of one judgement ([`BUDGET`]). A predicate that exceeds it [`OFF_AFTER`] times in a row is switched off: its
//! expressions then have no answer.
//!
//! ```
//! use std::sync::Arc;
//! use pilothouse_core::{key::TypeMeta, object::Object, predicate::{Condition, Predicate, Test}, store::Change};
//!
//! let pod = |version, generation| {
//!     let json = format!(r#"{{"metadata":{{"name":"a","uid":"1","resourceVersion":"{version}","generation":{generation}}}}}"#);
//!     Object::parse(json.as_bytes(), &TypeMeta::new("v1", "Pod")).map(|object| Some(Arc::new(object)))
//! };
//! let generation = Predicate::new(vec![vec![Condition { test: Test::Generation, negated: false }]]);
//! let holds = |old, new| generation.holds(&Change { old, new, missed: false }, &mut |_| {});
//! assert!(holds(None, pod(1, 1)?));
//! assert!(!holds(pod(1, 1)?, pod(2, 1)?));
//! assert!(holds(pod(1, 1)?, pod(2, 2)?));
//! # Ok::<(), pilothouse_core::ParseError>(())
//! ```

use std::{
    cell::OnceCell,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    object::{Object, metadata},
    store::Change,
};

mod cel;

use self::cel::Sides;
pub use self::cel::{BUDGET, EvaluationError, Expression, ExpressionError};

/// Consecutive judgements over the budget that switch a predicate off. A single large object does not.
pub const OFF_AFTER: u32 = 10;

/// Largest text of an object that [`Predicate::glance`] reads, in bytes: twice a usual Pod. A manifest has up to a
/// thousand watches, and each may read the text under a lock.
const GLANCED: usize = 8 << 10;

/// The changes that matter: those for which all conditions of any one list hold, or all changes if there is no list.
///
/// Clones share the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Predicate {
    any: Vec<Vec<Condition>>,
    fuse: Fuse,
}

/// Counts consecutive judgements over the budget. Only a predicate with an expression has a counter.
#[derive(Clone, Debug, Default)]
struct Fuse(Option<Arc<AtomicU32>>);

impl Fuse {
    fn is_off(&self) -> bool {
        self.0.as_ref().is_some_and(|exceeded| exceeded.load(Ordering::Relaxed) >= OFF_AFTER)
    }

    /// Counts a judgement. Returns `true` if it switches the predicate off.
    fn judged(&self, exceeded: bool) -> bool {
        let Some(count) = &self.0 else { return false };
        if exceeded {
            return count.fetch_add(1, Ordering::Relaxed).saturating_add(1) == OFF_AFTER;
        }
        // Mostly zero already.
        if count.load(Ordering::Relaxed) != 0 {
            count.store(0, Ordering::Relaxed);
        }
        false
    }
}

impl PartialEq for Fuse {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Fuse {}

impl Hash for Fuse {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// The result of [`Predicate::judge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// `true` if the change matters.
    pub matters: bool,
    /// `true` if this judgement switched the predicate off.
    pub switched_off: bool,
    /// Units spent on reading the objects and evaluating the expressions; see [`BUDGET`].
    pub spent: u64,
}

/// A condition on a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The test.
    pub test: Test,
    /// `true` if the test must not hold.
    pub negated: bool,
}

/// A test of a change (`wit/controller.wit`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// `metadata.generation` differs.
    Generation,
    /// `metadata.labels` differ.
    Labels,
    /// `metadata.annotations` differ.
    Annotations,
    /// `metadata.finalizers` differ.
    Finalizers,
    /// `metadata.deletionTimestamp` was set.
    Deletion,
    /// `metadata.resourceVersion` differs.
    ResourceVersion,
    /// The expression is true.
    Cel(Expression),
}

impl Predicate {
    /// Creates a predicate that holds if all conditions of any one list hold.
    pub fn new(any: Vec<Vec<Condition>>) -> Self {
        let has_expression = any.iter().flatten().any(|condition| matches!(condition.test, Test::Cel(_)));
        Self { any, fuse: Fuse(has_expression.then(Arc::default)) }
    }

    /// Lets the changes pass for which this condition holds, too. Changes nothing if it holds for every change.
    pub fn or(&mut self, condition: Condition) {
        if !self.is_empty() {
            self.any.push(vec![condition]);
        }
    }

    /// Returns `true` if it holds for every change.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty()
    }

    /// Returns `true` if [`glance`](Self::glance) leaves some changes undecided.
    pub fn may_wait(&self) -> bool {
        let waits =
            |condition: &Condition| matches!(condition.test, Test::Cel(_) | Test::Annotations | Test::Finalizers);
        self.any.iter().flatten().any(waits)
    }

    /// Returns `true` if its expressions are no longer evaluated.
    pub fn is_off(&self) -> bool {
        self.fuse.is_off()
    }

    /// Returns whether the change matters, or `None` if that needs a long text or an expression.
    ///
    /// Takes some hundred nanoseconds, or some microseconds if it reads texts. For callers that hold a lock.
    pub fn glance(&self, change: &Change) -> Option<bool> {
        if self.is_empty() {
            return Some(true);
        }
        let differences = Differences::new(change);
        let reads = differences.are_short();
        self.settle(|test| match test {
            Test::Cel(_) => None,
            Test::Annotations | Test::Finalizers if !reads => None,
            test => Some(differences.holds(test)),
        })
    }

    /// Decides whether the change matters.
    ///
    /// Sides with different uids are two objects: one was deleted and another created.
    ///
    /// An expression without an answer lets the change pass, negated or not: waking a key needlessly costs less than
    /// not waking it. `failed` is called at the 1st, 2nd, 4th, 8th… failure of each expression.
    pub fn judge(&self, change: &Change, failed: &mut dyn FnMut(EvaluationError)) -> Judgement {
        let differences = Differences::new(change);
        let known = self.settle(|test| match test {
            Test::Cel(_) => None,
            test => Some(differences.holds(test)),
        });
        // If only expressions could reject the change, a predicate that is switched off lets it pass.
        if let Some(matters) = known.or_else(|| self.is_off().then_some(true)) {
            return Judgement { matters, switched_off: false, spent: 0 };
        }
        // Unpacked only if something is left to evaluate.
        let texts = [&change.old, &change.new].map(|object| object.as_deref().map(Object::json));
        let expressions = self.any.iter().flatten().filter_map(|condition| match &condition.test {
            Test::Cel(expression) => Some(expression),
            _ => None,
        });
        let sides = Sides::new(texts[0].as_deref(), texts[1].as_deref(), expressions);
        let ((matters, exceeded), spent) = cel::with_budget(|| {
            let matters = self.any.iter().any(|all| all_hold(all, &differences, &sides, failed) || cel::is_spent());
            (matters, cel::is_spent() || sides.are_too_costly())
        });
        let switched_off = self.fuse.judged(exceeded);
        Judgement { matters, switched_off, spent: spent.saturating_add(sides.spent()) }
    }

    /// Returns `true` if the change matters: [`judge`](Self::judge) for callers that need only that.
    pub fn holds(&self, change: &Change, failed: &mut dyn FnMut(EvaluationError)) -> bool {
        self.judge(change, failed).matters
    }

    /// Evaluates with three values: an undecided test leaves everything that depends on it undecided.
    fn settle(&self, known: impl Fn(&Test) -> Option<Answer>) -> Option<bool> {
        if self.is_empty() {
            return Some(true);
        }
        let mut is_open = false;
        for all in &self.any {
            let (mut rejected, mut open) = (false, false);
            for Condition { test, negated } in all {
                match known(test) {
                    Some(answer) => rejected |= !answer.unless(*negated),
                    None => open = true,
                }
            }
            match (rejected, open) {
                (false, false) => return Some(true),
                (false, true) => is_open = true,
                (true, _) => {}
            }
        }
        if is_open { None } else { Some(false) }
    }

    /// Returns the lists of conditions.
    pub fn any(&self) -> &[Vec<Condition>] {
        &self.any
    }
}

/// Evaluates a list of conditions, expressions last because they cost most.
fn all_hold(
    all: &[Condition],
    differences: &Differences<'_>,
    sides: &Sides,
    failed: &mut dyn FnMut(EvaluationError),
) -> bool {
    let plain = |Condition { test, negated }: &Condition| match test {
        Test::Cel(_) => true,
        test => differences.holds(test).unless(*negated),
    };
    all.iter().all(plain)
        && all.iter().all(|Condition { test, negated }| match test {
            Test::Cel(expression) => expression.holds(sides, failed).is_none_or(|answer| answer != *negated),
            _ => true,
        })
}

/// The result of a plain test.
#[derive(Clone, Copy)]
enum Answer {
    /// An object appeared or disappeared: every test lets that pass, negated or not.
    Passes,
    Differs(bool),
}

impl Answer {
    fn unless(self, negated: bool) -> bool {
        match self {
            Self::Passes => true,
            Self::Differs(differs) => differs != negated,
        }
    }
}

/// The differences between two versions of an object. Each text is searched once.
struct Differences<'a> {
    /// `None` if an object appeared or disappeared.
    same: Option<(&'a Object, &'a Object)>,
    annotations: OnceCell<bool>,
    finalizers: OnceCell<bool>,
}

impl<'a> Differences<'a> {
    fn new(change: &'a Change) -> Self {
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        let same = old.zip(new).filter(|(old, new)| old.uid() == new.uid());
        Self { same, annotations: OnceCell::new(), finalizers: OnceCell::new() }
    }

    /// Returns `true` if both texts can be read in some microseconds.
    fn are_short(&self) -> bool {
        self.same.is_none_or(|(old, new)| {
            [old, new].iter().all(|one| one.dictionary().is_none() && one.json_len() <= GLANCED)
        })
    }

    fn holds(&self, test: &Test) -> Answer {
        let Some((old, new)) = self.same else { return Answer::Passes };
        let member = |name| or_empty(metadata(&old.json(), name)) != or_empty(metadata(&new.json(), name));
        Answer::Differs(match test {
            Test::Generation => old.generation() != new.generation(),
            Test::Labels => or_empty(old.labels_json()) != or_empty(new.labels_json()),
            Test::Annotations => *self.annotations.get_or_init(|| member("annotations")),
            Test::Finalizers => *self.finalizers.get_or_init(|| member("finalizers")),
            Test::Deletion => !old.is_deleting() && new.is_deleting(),
            Test::ResourceVersion => old.resource_version() != new.resource_version(),
            // Expressions are evaluated elsewhere.
            Test::Cel(_) => return Answer::Passes,
        })
    }
}

/// Returns the text of a member, empty if it is null or empty. The API server writes maps in a fixed order, so equal
/// content has equal text. Otherwise a key is woken needlessly.
fn or_empty(text: &str) -> &str {
    if matches!(text, "null" | "{}" | "[]") { "" } else { text }
}

#[cfg(test)]
mod tests;
