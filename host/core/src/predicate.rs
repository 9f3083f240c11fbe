//! Which changes matter: the `when` of a watch.
//!
//! ```text
//! when: [[generation], [labels, not finalizers], [cel "…"]]
//!        any of these    all of these
//! ```
//!
//! Owns what may be said of a change, and whether it holds. Expressions in CEL are compiled where the manifest is checked, and
//! their evaluation is bounded ([`Expression`]). A predicate only keeps keys from being woken: what became of an object is for
//! the host to remember whether or not it matters.
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

use crate::json::Reader;
use crate::object::Object;
use crate::store::Change;

mod cel;

use self::cel::Sides;
pub use self::cel::{EvaluationError, Expression, ExpressionError};

/// Which changes matter: those for which all conditions of any one list hold; every change if there is no list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Predicate {
    any: Vec<Vec<Condition>>,
}

/// Something that must be true of a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// What is looked at.
    pub test: Test,
    /// True: the test must not hold.
    pub negated: bool,
}

/// Something that may be said of a change (`wit/controller.wit`).
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
    /// True of changes for which all conditions of any one list hold.
    pub fn new(any: Vec<Vec<Condition>>) -> Self {
        Self { any }
    }

    /// True if it holds of every change.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty()
    }

    /// True if the change matters.
    ///
    /// Both sides count as one object only where their uid is the same: else one was deleted and another created.
    ///
    /// An expression that gives no answer lets the change pass, negated or not: a key that is woken in vain costs less than
    /// one that is not woken. `failed` hears of that, the 1st, 2nd, 4th, 8th… time for each expression.
    pub fn holds(&self, change: &Change, failed: &mut dyn FnMut(EvaluationError)) -> bool {
        if self.is_empty() {
            return true;
        }
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        let same = old.zip(new).filter(|(old, new)| old.uid() == new.uid());
        // A packed text is made anew: not for conditions that do not look into it.
        let has_expression = self.any.iter().flatten().any(|condition| matches!(condition.test, Test::Cel(_)));
        let texts = [old, new].map(|object| object.filter(|_| has_expression).map(Object::json));
        let sides = Sides::new(texts[0].as_deref(), texts[1].as_deref());
        self.any.iter().any(|all| {
            all.iter().all(|Condition { test, negated }| match (test, same) {
                (Test::Cel(expression), _) => expression.holds(&sides, failed).is_none_or(|answer| answer != *negated),
                (_, None) => true,
                (test, Some((old, new))) => test.differs(old, new) != *negated,
            })
        })
    }

    /// The lists of conditions.
    pub fn any(&self) -> &[Vec<Condition>] {
        &self.any
    }
}

impl Test {
    /// What is said of two versions of one object. An expression says nothing here.
    fn differs(&self, old: &Object, new: &Object) -> bool {
        match self {
            Self::Generation => old.generation() != new.generation(),
            Self::Labels => or_empty(old.labels_json()) != or_empty(new.labels_json()),
            Self::Annotations => metadata(&old.json(), "annotations") != metadata(&new.json(), "annotations"),
            Self::Finalizers => metadata(&old.json(), "finalizers") != metadata(&new.json(), "finalizers"),
            Self::Deletion => !old.is_deleting() && new.is_deleting(),
            Self::ResourceVersion => old.resource_version() != new.resource_version(),
            Self::Cel(_) => false,
        }
    }
}

/// The text of one member of `metadata`; empty if it is absent, null, or has nothing in it. The API server writes maps in one
/// order, so that equal text is equal content; a difference that is none only wakes in vain.
fn metadata<'a>(json: &'a str, name: &str) -> &'a str {
    let mut reader = Reader::new(json);
    // The text was checked when the object was made: there is nothing in it to fail at.
    let mut find = || {
        reader.enter_object("text").ok()?;
        while let Some(member) = reader.member().ok()? {
            if member.decode() != "metadata" {
                reader.skip().ok()?;
                continue;
            }
            reader.enter_object("metadata").ok()?;
            while let Some(member) = reader.member().ok()? {
                let text = reader.skip().ok()?;
                if member.decode() == name {
                    return Some(text);
                }
            }
        }
        None
    };
    or_empty(find().unwrap_or_default())
}

fn or_empty(text: &str) -> &str {
    if matches!(text, "null" | "{}" | "[]") { "" } else { text }
}

#[cfg(test)]
mod tests;
