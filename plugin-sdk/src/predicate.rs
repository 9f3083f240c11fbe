//! Predicates that select changes: tests that are combined with `and`, `or` and `!`.
//!
//! The contract knows only one form: a list of alternatives, each a list of conditions. Any combination is converted to
//! it when the plugin describes itself.

use std::{collections::BTreeSet, ops::Not};

use crate::contract::exports::pilothouse::plugin::controller::{Condition, Test};

/// Limit for the alternatives of a predicate, and for the conditions of an alternative. It is far above what people
/// write, and low enough to be tested on every change.
const MOST: usize = 64;

/// Selects changes.
///
/// All tests except [`cel`](Self::cel) compare an object with its previous state. They let every change pass if the
/// object is new or gone, negated or not. So only `cel` can reject a creation or a deletion.
///
/// ```
/// use pilothouse_sdk::Predicate;
///
/// // The spec, or labels of an object that is not being deleted.
/// let matters = Predicate::generation().or(Predicate::labels().and(!Predicate::deletion()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicate(Expression);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    Test(Test),
    Not(Box<Expression>),
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
}

impl Predicate {
    /// Selects changes of `metadata.generation`. For most kinds, that means changes of the spec.
    pub fn generation() -> Self {
        Self(Expression::Test(Test::Generation))
    }

    /// Selects changes of the labels.
    pub fn labels() -> Self {
        Self(Expression::Test(Test::Labels))
    }

    /// Selects changes of the annotations.
    pub fn annotations() -> Self {
        Self(Expression::Test(Test::Annotations))
    }

    /// Selects changes of the finalizers.
    pub fn finalizers() -> Self {
        Self(Expression::Test(Test::Finalizers))
    }

    /// Selects the change that sets `metadata.deletionTimestamp`.
    pub fn deletion() -> Self {
        Self(Expression::Test(Test::Deletion))
    }

    /// Selects changes of `metadata.resourceVersion`: all but the ones that a resync repeats.
    pub fn resource_version() -> Self {
        Self(Expression::Test(Test::ResourceVersion))
    }

    /// Selects changes for which a CEL expression over `object` and `old` is true. `old` is null for a new object, and
    /// `object` is null for a deleted one.
    ///
    /// If an expression fails, the change counts as a match. So guard against null:
    ///
    /// ```
    /// use pilothouse_sdk::Predicate;
    ///
    /// Predicate::cel("object == null || old == null || object.status.phase != old.status.phase");
    /// ```
    pub fn cel(expression: impl Into<String>) -> Self {
        Self(Expression::Test(Test::Cel(expression.into())))
    }

    /// Selects changes that both select.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(Expression::And(Box::new(self.0), Box::new(other.0)))
    }

    /// Selects changes that at least one of them selects.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(Expression::Or(Box::new(self.0), Box::new(other.0)))
    }

    /// Returns the predicate in the form of the contract: alternatives, each a list of conditions.
    ///
    /// # Errors
    /// Fails if there are more alternatives or conditions than the limit.
    pub(crate) fn into_wire(self) -> Result<Vec<Vec<Condition>>, String> {
        let alternatives = self.0.alternatives(false)?;
        Ok(alternatives.into_iter().map(|conditions| conditions.into_iter().collect()).collect())
    }
}

/// Selects the changes that this predicate does not select. A method binds tighter: `!a.or(b)` is `!(a.or(b))`.
impl Not for Predicate {
    type Output = Self;

    fn not(self) -> Self {
        Self(Expression::Not(Box::new(self.0)))
    }
}

type Alternatives = Vec<BTreeSet<Condition>>;

impl Expression {
    /// Returns the disjunctive normal form of this, or of its negation. Fails as soon as it exceeds the limit.
    fn alternatives(self, negated: bool) -> Result<Alternatives, String> {
        match (self, negated) {
            (Self::Test(test), negated) => Ok(vec![BTreeSet::from([Condition { test, negated }])]),
            (Self::Not(inner), negated) => inner.alternatives(!negated),
            (Self::Or(a, b), false) | (Self::And(a, b), true) => {
                let mut all = a.alternatives(negated)?;
                all.extend(b.alternatives(negated)?);
                bounded(all)
            }
            (Self::And(a, b), false) | (Self::Or(a, b), true) => {
                let (a, b) = (a.alternatives(negated)?, b.alternatives(negated)?);
                bounded(a.iter().flat_map(|a| b.iter().map(move |b| a.union(b).cloned().collect())).collect())
            }
        }
    }
}

/// Removes alternatives that another alternative includes.
fn bounded(mut all: Alternatives) -> Result<Alternatives, String> {
    all.sort_by_key(BTreeSet::len);
    let mut kept = Alternatives::new();
    for alternative in all {
        if !kept.iter().any(|kept| kept.is_subset(&alternative)) {
            kept.push(alternative);
        }
    }
    if kept.len() > MOST || kept.iter().any(|conditions| conditions.len() > MOST) {
        return Err(format!(
            "a predicate has more than {MOST} alternatives, or more than {MOST} conditions in one: use Predicate::cel"
        ));
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::{Condition, MOST, Predicate, Test};

    fn wire(predicate: Predicate) -> Vec<Vec<(Test, bool)>> {
        let pair = |Condition { test, negated }| (test, negated);
        let all = predicate.into_wire().expect("it is within the bound");
        all.into_iter().map(|conditions| conditions.into_iter().map(pair).collect()).collect()
    }

    fn cel(name: &str) -> Predicate {
        Predicate::cel(name)
    }

    fn test(name: &str) -> Test {
        Test::Cel(name.to_owned())
    }

    #[test]
    fn a_combination_becomes_alternatives_of_conditions() {
        let (a, b, c) = (|| cel("a"), || cel("b"), || cel("c"));
        for (predicate, expected) in [
            (a(), vec![vec![("a", false)]]),
            (!a(), vec![vec![("a", true)]]),
            (!!a(), vec![vec![("a", false)]]),
            (a().or(b()), vec![vec![("a", false)], vec![("b", false)]]),
            (a().and(b()), vec![vec![("a", false), ("b", false)]]),
            ((!a()).or(b()), vec![vec![("a", true)], vec![("b", false)]]),
            (!a().or(b()), vec![vec![("a", true), ("b", true)]]),
            (!a().and(b()), vec![vec![("a", true)], vec![("b", true)]]),
            (a().and(b().or(c())), vec![vec![("a", false), ("b", false)], vec![("a", false), ("c", false)]]),
            // An alternative that another one includes is removed.
            (a().or(a().and(b())), vec![vec![("a", false)]]),
            // For a new object, a test and its negation are both true, so this is not a contradiction.
            (a().and(!a()), vec![vec![("a", false), ("a", true)]]),
        ] {
            let expected: Vec<Vec<(Test, bool)>> = expected
                .into_iter()
                .map(|all| all.into_iter().map(|(name, negated)| (test(name), negated)).collect())
                .collect();
            assert_eq!(wire(predicate.clone()), expected, "{predicate:?}");
        }
    }

    #[test]
    fn a_combination_that_explodes_is_refused() {
        let either = |i: usize| cel(&format!("a{i}")).or(cel(&format!("b{i}")));
        let all = |n: usize| (1..n).fold(either(0), |all, i| all.and(either(i)));
        assert_eq!(wire(all(6)).len(), MOST);
        assert!(all(7).into_wire().is_err());
        assert!(all(40).into_wire().is_err(), "and it takes no longer");
        let long = (1..=MOST).fold(cel("0"), |all, i| all.and(cel(&i.to_string())));
        assert!(long.into_wire().is_err());
    }
}
