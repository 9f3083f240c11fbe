//! Which changes matter: tests of a change that combine with `and`, `or` and `!`.
//!
//! The contract knows one form only, a list of alternatives that are lists of conditions. Any combination is brought into it
//! when the plugin describes itself.

use std::{collections::BTreeSet, ops::Not};

use crate::contract::exports::pilothouse::plugin::controller::{Condition, Test};

/// Alternatives of one predicate, and conditions of one alternative: more than anybody writes by hand, and few enough to be tried
/// on every change.
const MOST: usize = 64;

/// Something that holds of a change or does not.
///
/// All but [`cel`](Self::cel) compare an object with what it was before. Of an object that is new or gone they hold, and so do
/// their negations: nobody misses a creation or a deletion by a predicate, but by [`cel`](Self::cel).
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
    /// `metadata.generation` differs: for most kinds, the spec does.
    pub fn generation() -> Self {
        Self(Expression::Test(Test::Generation))
    }

    /// The labels differ.
    pub fn labels() -> Self {
        Self(Expression::Test(Test::Labels))
    }

    /// The annotations differ.
    pub fn annotations() -> Self {
        Self(Expression::Test(Test::Annotations))
    }

    /// The finalizers differ.
    pub fn finalizers() -> Self {
        Self(Expression::Test(Test::Finalizers))
    }

    /// `metadata.deletionTimestamp` was set.
    pub fn deletion() -> Self {
        Self(Expression::Test(Test::Deletion))
    }

    /// `metadata.resourceVersion` differs: it always does, but for what a resync repeats.
    pub fn resource_version() -> Self {
        Self(Expression::Test(Test::ResourceVersion))
    }

    /// A CEL expression over `object` and `old` is true. `old` is null for a new object, `object` for one that is gone.
    ///
    /// An expression that fails counts as true, so begin with `old == null ||` where it looks into `old`.
    ///
    /// ```
    /// use pilothouse_sdk::Predicate;
    ///
    /// Predicate::cel("object == null || old == null || object.status.phase != old.status.phase");
    /// ```
    pub fn cel(expression: impl Into<String>) -> Self {
        Self(Expression::Test(Test::Cel(expression.into())))
    }

    /// Both hold.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(Expression::And(Box::new(self.0), Box::new(other.0)))
    }

    /// One of them holds, or both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(Expression::Or(Box::new(self.0), Box::new(other.0)))
    }

    /// As the contract has it: any of these, all conditions of which hold.
    ///
    /// # Errors
    /// Where it has more alternatives or conditions than a host takes.
    pub(crate) fn into_wire(self) -> Result<Vec<Vec<Condition>>, String> {
        let alternatives = self.0.alternatives(false)?;
        Ok(alternatives.into_iter().map(|conditions| conditions.into_iter().collect()).collect())
    }
}

/// The predicate that holds where this one does not. It binds looser than a method: `!a.or(b)` is `!(a.or(b))`.
impl Not for Predicate {
    type Output = Self;

    fn not(self) -> Self {
        Self(Expression::Not(Box::new(self.0)))
    }
}

type Alternatives = Vec<BTreeSet<Condition>>;

impl Expression {
    /// The disjunctive form of this, or of its negation. Never passes the bound by more than one step.
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

/// Without the alternatives that hold only where another one holds too.
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
            "a predicate has more than {MOST} alternatives, or one of more than {MOST} conditions: use cel"
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
            // What another alternative includes says nothing.
            (a().or(a().and(b())), vec![vec![("a", false)]]),
            // Of a creation a test and its negation both hold: this is no contradiction.
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
