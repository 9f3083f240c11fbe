#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn selector(text: &str) -> Selector {
    Selector::parse(text).unwrap()
}

#[test]
fn each_operator_means_what_it_means_in_kubernetes() {
    // Text, then which of the three it matches: no label, a=1, a=2.
    for (text, expected) in [
        ("", [true, true, true]),
        ("a=1", [false, true, false]),
        ("a == 1", [false, true, false]),
        ("a!=1", [true, false, true]),
        ("a in (1, 2)", [false, true, true]),
        ("a in (3)", [false, false, false]),
        ("a notin (1)", [true, false, true]),
        ("a", [false, true, true]),
        ("!a", [true, false, false]),
        ("a>1", [false, false, true]),
        ("a<2", [false, true, false]),
        ("a,!b", [false, true, true]),
        ("a,b", [false, false, false]),
        ("a!=1,a!=2", [true, false, false]),
        ("a=", [false, false, false]),
    ] {
        let selector = selector(text);
        let labels: [&[(&str, &str)]; 3] = [&[], &[("a", "1")], &[("a", "2")]];
        assert_eq!(labels.map(|labels| selector.matches(labels.iter().copied())), expected, "{text}");
    }
    assert!(selector("a=").matches([("a", "")]));
    assert!(!selector("a>1").matches([("a", "x")]));
}

#[test]
fn same_requirements_give_the_same_selector() {
    for (one, other) in [
        ("a=b,c", "c , a==b"),
        ("a in (b)", "a=b"),
        ("a notin (b)", "a!=b"),
        ("a in (c,b,c)", "a in (b,c)"),
        ("a,a", "a"),
        ("x.io/a=b", " x.io/a = b "),
    ] {
        assert_eq!(selector(one), selector(other));
        assert_eq!(selector(one).to_string(), selector(other).to_string());
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let cases = [
        "a b",
        "a=b c",
        ",",
        "a,",
        "a,,b",
        "a in",
        "a in ()",
        "a in (b",
        "a in b",
        "!",
        "=b",
        "a>x",
        "-a",
        "a=b-",
        "A/b/c",
        "ab/",
        "a_b.io/c",
        "a=b=c",
        "a notin (x y)",
    ];
    let errors = cases.map(|text| Selector::parse(text).unwrap_err().to_string()).join("\n");
    insta::assert_snapshot!(errors, @r#"
    cannot read label selector "a b": expected an operator after "a", found "b"
    cannot read label selector "a=b c": expected ',' before "c"
    cannot read label selector ",": expected a label key
    cannot read label selector "a,": expected a label key
    cannot read label selector "a,,b": expected a label key
    cannot read label selector "a in": expected values in parentheses
    cannot read label selector "a in ()": expected a value between '(' and ')'
    cannot read label selector "a in (b": expected ',' or ')' after a value
    cannot read label selector "a in b": expected values in parentheses
    cannot read label selector "!": expected a label key
    cannot read label selector "=b": expected a label key
    cannot read label selector "a>x": "x" is no integer
    cannot read label selector "-a": "-a" is no label key
    cannot read label selector "a=b-": "b-" is no label value
    cannot read label selector "A/b/c": "A/b/c" is no label key
    cannot read label selector "ab/": "ab/" is no label key
    cannot read label selector "a_b.io/c": "a_b.io/c" is no label key
    cannot read label selector "a=b=c": expected ',' before "=c"
    cannot read label selector "a notin (x y)": expected ',' or ')' after a value
    "#);
}

#[test]
fn a_selector_is_bounded() {
    let joined = |count: usize, text: &dyn Fn(usize) -> String| (0..count).map(text).collect::<Vec<_>>().join(",");
    let absent = |count| joined(count, &|number| format!("!a{number}"));
    let listed = |count| format!("a in ({})", joined(count, &|number| number.to_string()));
    let long = |key: &str| joined(64, &|number| format!("{key}={number:063}"));
    let problem = |text: &str| Selector::parse(text).map(drop).map_err(|error| error.problem);
    assert_eq!([absent(64), listed(64), long("a")].map(|text| problem(&text)), [Ok(()), Ok(()), Ok(())]);
    assert_eq!(problem(&absent(65)), Err("has more than 64 requirements".to_owned()));
    assert_eq!(problem(&listed(65)), Err("lists more than 64 values in one requirement".to_owned()));
    assert_eq!(problem(&long("ab")), Err("has more than 4096 bytes of keys and values".to_owned()));
    // What is said of a text without end has one.
    for text in [absent(1_000_000), "a".repeat(10_000_000), format!("a {}", ".".repeat(10_000_000))] {
        let error = Selector::parse(&text).unwrap_err();
        assert_eq!(error.selector.len(), MAX_BYTES);
        assert!(error.problem.len() < 200, "{error}");
    }
}

#[test]
fn keys_and_values_have_the_lengths_of_labels() {
    let (fits, too_long) = ("a".repeat(63), "a".repeat(64));
    assert!(Selector::parse(&format!("{fits}={fits}")).is_ok());
    assert!(Selector::parse(&too_long).is_err());
    assert!(Selector::parse(&format!("a={too_long}")).is_err());
    assert!(Selector::parse(&format!("{}/a", ["a"; 127].join("."))).is_ok());
    assert!(Selector::parse(&format!("{}/a", ["a"; 128].join("."))).is_err());
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let key = || prop::sample::select(vec!["a", "b", "x.io/c"]).prop_map(str::to_owned);
    let values = || prop::collection::btree_set(prop::sample::select(vec!["1", "2", "v", ""]), 1..4);
    prop_oneof![
        (key(), values()).prop_map(|(key, values)| Requirement::In(key, values.into_iter().collect())),
        (key(), values()).prop_map(|(key, values)| Requirement::NotIn(key, values.into_iter().collect())),
        key().prop_map(Requirement::Exists),
        key().prop_map(Requirement::Absent),
        (key(), any::<i64>()).prop_map(|(key, bound)| Requirement::Greater(key, bound)),
        (key(), 0_i64..3).prop_map(|(key, bound)| Requirement::Less(key, bound)),
    ]
}

proptest! {
    #[test]
    fn display_reads_back_as_the_same(requirements in prop::collection::vec(requirement(), 0..5)) {
        let text = requirements.iter().map(Requirement::to_string).collect::<Vec<_>>().join(",");
        let selector = selector(&text);
        prop_assert_eq!(&Selector::parse(&selector.to_string()).unwrap(), &selector);
        let unique: std::collections::BTreeSet<_> = requirements.iter().cloned().collect();
        prop_assert_eq!(selector.requirements().iter().cloned().collect::<std::collections::BTreeSet<_>>(), unique);
    }

    #[test]
    fn selector_matches_where_every_requirement_does(
        requirements in prop::collection::vec(requirement(), 0..5),
        labels in prop::collection::btree_map(prop::sample::select(vec!["a", "b", "x.io/c"]), prop::sample::select(vec!["1", "2", "v", ""]), 0..4),
    ) {
        let text = requirements.iter().map(Requirement::to_string).collect::<Vec<_>>().join(",");
        let holds = |requirement: &Requirement, labels: &BTreeMap<&str, &str>| {
            let value = labels.get(requirement.key()).copied();
            match requirement {
                Requirement::In(_, values) => value.is_some_and(|value| values.contains(value)),
                Requirement::NotIn(_, values) => value.is_none_or(|value| !values.contains(value)),
                Requirement::Exists(_) => value.is_some(),
                Requirement::Absent(_) => value.is_none(),
                Requirement::Greater(_, bound) => value.and_then(|value| value.parse::<i64>().ok()).is_some_and(|value| value > *bound),
                Requirement::Less(_, bound) => value.and_then(|value| value.parse::<i64>().ok()).is_some_and(|value| value < *bound),
            }
        };
        let expected = requirements.iter().all(|requirement| holds(requirement, &labels));
        prop_assert_eq!(selector(&text).matches(&labels), expected);
    }

    #[test]
    fn an_implied_selector_matches_wherever_the_implying_one_does(
        one in prop::collection::vec(requirement(), 0..4),
        other in prop::collection::vec(requirement(), 0..3),
        labels in prop::collection::btree_map(prop::sample::select(vec!["a", "b", "x.io/c"]), prop::sample::select(vec!["1", "2", "v", ""]), 0..4),
    ) {
        let (one, other) = (Selector::of(one), Selector::of(other));
        let both = one.and(&other);
        prop_assert_eq!(both.matches(&labels), one.matches(&labels) && other.matches(&labels));
        prop_assert!(both.implies(&one) && both.implies(&other));
        prop_assert_eq!(both.beyond(&one).and(&one), both.clone());
        if one.implies(&other) {
            prop_assert!(!one.matches(&labels) || other.matches(&labels));
        }
    }

    #[test]
    fn hostile_text_is_read_or_refused(text in "[ab1.=!<>(), /-]{0,20}|\\PC{0,20}") {
        if let Ok(selector) = Selector::parse(&text) {
            prop_assert_eq!(Selector::parse(&selector.to_string()).unwrap(), selector);
        }
    }
}
