//! A selector's text is read into what can be written and read again, and matches what its requirements ask for.

use std::collections::BTreeMap;

use pilothouse_core::selector::{Requirement, Selector};

/// Reads the bytes as a selector.
///
/// # Panics
/// When a selector is not what its own text says. Bytes that are no text are not looked at.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let selector = match Selector::parse(text) {
        Ok(selector) => selector,
        Err(error) => {
            assert!(text.starts_with(&error.selector));
            assert!(!error.problem.is_empty());
            return;
        }
    };
    let written = selector.to_string();
    let again = Selector::parse(&written).expect("what a selector writes is one");
    assert_eq!(again, selector);
    assert_eq!(again.to_string(), written);
    assert_eq!(selector.is_empty(), text.trim().is_empty());

    let requirements = selector.requirements();
    assert!(requirements.windows(2).all(|pair| pair[0].key() <= pair[1].key() && pair[0] != pair[1]));
    for labels in [named(requirements, 0), named(requirements, 1), BTreeMap::new()] {
        let all = requirements.iter().all(|requirement| holds(requirement, labels.get(requirement.key())));
        assert_eq!(selector.matches(&labels), all, "{written} on {labels:?}");
    }
}

/// Labels that the requirements speak of, each with the `nth` value that is named for it, or another.
fn named(requirements: &[Requirement], nth: u8) -> BTreeMap<String, String> {
    let value = |requirement: &Requirement| match requirement {
        Requirement::In(_, values) | Requirement::NotIn(_, values) => values.iter().nth(nth.into()).map(str::to_owned),
        Requirement::Greater(_, bound) => Some(bound.saturating_add(nth.into()).to_string()),
        Requirement::Less(_, bound) => Some(bound.saturating_sub(nth.into()).to_string()),
        Requirement::Exists(_) | Requirement::Absent(_) => None,
    };
    let label = |of: &Requirement| (of.key().to_owned(), value(of).unwrap_or_else(|| "other".to_owned()));
    requirements.iter().map(label).collect()
}

fn holds(requirement: &Requirement, value: Option<&String>) -> bool {
    let number = value.and_then(|value| value.parse::<i64>().ok());
    match requirement {
        Requirement::In(_, values) => value.is_some_and(|value| values.contains(value)),
        Requirement::NotIn(_, values) => value.is_none_or(|value| !values.contains(value)),
        Requirement::Exists(_) => value.is_some(),
        Requirement::Absent(_) => value.is_none(),
        Requirement::Greater(_, bound) => number.is_some_and(|number| number > *bound),
        Requirement::Less(_, bound) => number.is_some_and(|number| number < *bound),
    }
}
