#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::key::TypeMeta;

/// A Pod with these members; those of `metadata` beside its name.
fn pod(more: &Value) -> Option<Arc<Object>> {
    let mut pod = json!({"metadata": {"name": "a", "namespace": "b", "uid": "1", "resourceVersion": "1"}});
    for (name, value) in more.as_object().unwrap() {
        if let (Some(inside), true) = (value.as_object(), name == "metadata") {
            pod["metadata"].as_object_mut().unwrap().extend(inside.clone());
        } else {
            pod[name] = value.clone();
        }
    }
    Some(Arc::new(Object::parse(pod.to_string().as_bytes(), &TypeMeta::new("v1", "Pod")).unwrap()))
}

fn metadata(metadata: &Value) -> Option<Arc<Object>> {
    pod(&json!({"metadata": metadata}))
}

fn condition(test: Test, negated: bool) -> Condition {
    Condition { test, negated }
}

fn only(test: Test) -> Predicate {
    Predicate::new(vec![vec![condition(test, false)]])
}

fn cel(text: &str) -> Test {
    Test::Cel(Expression::compile(text).unwrap())
}

/// Of a predicate in which nothing may fail.
fn holds(predicate: &Predicate, old: Option<Arc<Object>>, new: Option<Arc<Object>>) -> bool {
    predicate.holds(&Change { old, new, missed: false }, &mut |error| panic!("{error}"))
}

#[test]
fn each_test_sees_its_own_difference_and_no_other() {
    let tests =
        [Test::Generation, Test::Labels, Test::Annotations, Test::Finalizers, Test::Deletion, Test::ResourceVersion];
    let changes = [
        json!({"generation": 2}),
        json!({"labels": {"a": "1"}}),
        json!({"annotations": {"a": "1"}}),
        json!({"finalizers": ["a/b"]}),
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        json!({"resourceVersion": "2"}),
    ];
    for (i, test) in tests.iter().enumerate() {
        for (j, change) in changes.iter().enumerate() {
            let (old, new) = (metadata(&json!({})), metadata(change));
            assert_eq!(holds(&only(test.clone()), old.clone(), new.clone()), i == j, "{test:?} {change}");
            let not = Predicate::new(vec![vec![condition(test.clone(), true)]]);
            assert_eq!(holds(&not, old, new), i != j, "not {test:?} {change}");
        }
    }
}

#[test]
fn every_value_of_what_is_tested_counts() {
    let labels = |value: &str| metadata(&json!({"labels": {"a": value}}));
    assert!(holds(&only(Test::Labels), labels("1"), labels("2")));
    assert!(holds(&only(Test::Labels), labels("1"), metadata(&json!({}))));
    assert!(!holds(&only(Test::Labels), labels("1"), labels("1")));
    let finalizers = |list: &[&str]| metadata(&json!({"finalizers": list}));
    assert!(holds(&only(Test::Finalizers), finalizers(&["a"]), finalizers(&["a", "b"])));
    assert!(!holds(&only(Test::Finalizers), finalizers(&["a"]), finalizers(&["a"])));
    let annotations = |value: &Value| metadata(&json!({"annotations": value}));
    assert!(holds(&only(Test::Annotations), annotations(&json!({"a": "1"})), annotations(&json!({"a": "2"}))));
}

#[test]
fn absent_null_and_empty_are_the_same() {
    let absent = metadata(&json!({}));
    for empty in [
        json!({"labels": {}, "annotations": {}, "finalizers": []}),
        json!({"labels": null, "annotations": null, "finalizers": null}),
    ] {
        for test in [Test::Labels, Test::Annotations, Test::Finalizers] {
            assert!(!holds(&only(test.clone()), absent.clone(), metadata(&empty)), "{test:?} {empty}");
        }
    }
}

#[test]
fn a_deletion_matches_once() {
    let deleting = |more: &Value| {
        let mut all = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        metadata(&all)
    };
    assert!(!holds(&only(Test::Deletion), deleting(&json!({})), deleting(&json!({"finalizers": ["a"]}))));
}

#[test]
fn creations_and_deletions_pass_every_test_but_cel() {
    let tests = [Test::Generation, Test::Labels, Test::Deletion, Test::ResourceVersion];
    for test in tests {
        for negated in [false, true] {
            let predicate = Predicate::new(vec![vec![condition(test.clone(), negated)]]);
            assert!(holds(&predicate, None, metadata(&json!({}))), "{test:?} {negated}");
            assert!(holds(&predicate, metadata(&json!({})), None), "{test:?} {negated}");
        }
    }
    let created = only(cel("old == null"));
    assert!(holds(&created, None, metadata(&json!({}))));
    assert!(!holds(&created, metadata(&json!({})), None));
}

#[test]
fn another_life_under_the_same_name_is_a_creation() {
    let another = metadata(&json!({"uid": "2"}));
    assert!(holds(&only(Test::Generation), metadata(&json!({})), another.clone()));
    assert!(!holds(&only(Test::Generation), another.clone(), another));
}

#[test]
fn any_list_whose_conditions_all_hold_is_enough() {
    let no_test = Predicate::default();
    assert!(holds(&no_test, metadata(&json!({})), metadata(&json!({}))));
    let predicate = Predicate::new(vec![
        vec![condition(Test::Generation, false)],
        vec![condition(Test::Labels, false), condition(Test::Finalizers, true)],
    ]);
    let holds = |new: &Value| holds(&predicate, metadata(&json!({})), metadata(new));
    assert!(holds(&json!({"generation": 1})));
    assert!(holds(&json!({"labels": {"a": "1"}})));
    assert!(!holds(&json!({"labels": {"a": "1"}, "finalizers": ["a"]})));
    assert!(holds(&json!({"labels": {"a": "1"}, "finalizers": ["a"], "generation": 1})));
    assert!(!holds(&json!({})));
}

#[test]
fn an_expression_that_fails_lets_the_change_pass_and_is_reported_less_and_less_often() {
    for negated in [false, true] {
        let predicate = Predicate::new(vec![vec![condition(cel("object.spec.x > 1"), negated)]]);
        let mut told = Vec::new();
        for _ in 0..10 {
            let change = Change { old: None, new: metadata(&json!({})), missed: false };
            assert!(predicate.holds(&change, &mut |error| told.push((error.count, error.problem))));
        }
        let problem = "No such key: spec".to_owned();
        assert_eq!(told, [1, 2, 4, 8].map(|count| (count, problem.clone())));
    }
}

#[test]
fn expressions_see_both_sides_as_they_are() {
    let old = pod(
        &json!({"spec": {"replicas": 1, "nodeName": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
    );
    let new = pod(&json!({
        "metadata": {"labels": {"example.com/team": "a"}},
        "spec": {"replicas": 2, "nodeName": "n1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "share": 0.5, "large": u64::MAX},
    }));
    let cases = [
        ("object.spec.replicas != old.spec.replicas", true),
        ("object.spec.nodeName != old.spec.nodeName", false),
        ("object.spec == old.spec", false),
        ("object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')", true),
        ("old.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')", false),
        ("object.metadata.labels['example.com/team'] == 'a'", true),
        ("object.metadata.labels.example__dot__com__slash__team == 'a'", true),
        ("'example.com/team' in object.metadata.labels", true),
        ("has(object.metadata.labels) && !has(old.metadata.labels)", true),
        ("object.metadata.namespace == 'b'", true),
        ("object.metadata.__namespace__ == 'b'", true),
        ("object.kind == 'Pod' && object.apiVersion == 'v1'", true),
        ("object.spec.replicas + 1 == 3", true),
        ("object.status.share < 1.0", true),
        ("object.status.large > 1u", true),
        ("object.spec.nodeName.matches('^n[0-9]+$')", true),
        ("object.spec.nodeName.startsWith('m')", false),
        ("quantity('1Gi').isGreaterThan(quantity('1Mi'))", true),
        ("sets.equivalent([1, 2], [2, 1])", true),
        ("object.status.conditions.map(c, c.type) == ['Ready']", true),
        ("object.status.conditions.filter(c, c.status == 'False').size() == 0", true),
        ("object.spec.replicas > 1 ? true : false", true),
        ("[1, 2, 3].all(x, x < object.spec.replicas + 2)", true),
        ("object == object && old != null", true),
    ];
    for (text, expected) in cases {
        assert_eq!(holds(&only(cel(text)), old.clone(), new.clone()), expected, "{text}");
    }
}

/// Ten thousand members take longer to count than a judgement may.
fn large(version: &str) -> Option<Arc<Object>> {
    let members: serde_json::Map<_, _> = (0..5_000).map(|i| (format!("k{i}"), json!("v"))).collect();
    pod(&json!({"metadata": {"resourceVersion": version}, "spec": members}))
}

fn judge(predicate: &Predicate, old: Option<Arc<Object>>, new: Option<Arc<Object>>) -> Judgement {
    predicate.judge(&Change { old, new, missed: false }, &mut |_| {})
}

#[test]
fn a_glance_decides_what_no_expression_can_change() {
    let (old, new) = (metadata(&json!({"generation": 1})), metadata(&json!({"generation": 2})));
    let glance = |any, same: bool| {
        let new = if same { old.clone() } else { new.clone() };
        Predicate::new(any).glance(&Change { old: old.clone(), new, missed: false })
    };
    let (generation, labels, cel) = (
        || condition(Test::Generation, false),
        || condition(Test::Labels, false),
        || condition(cel("object.spec.x > 1"), false),
    );
    for (any, same, expected) in [
        (vec![], false, Some(true)),
        (vec![vec![generation()]], false, Some(true)),
        (vec![vec![generation()]], true, Some(false)),
        (vec![vec![cel()]], false, None),
        (vec![vec![cel()], vec![generation()]], false, Some(true)),
        (vec![vec![cel()], vec![generation()]], true, None),
        (vec![vec![generation(), cel()]], false, None),
        (vec![vec![generation(), cel()]], true, Some(false)),
        (vec![vec![labels(), cel()], vec![labels()]], false, Some(false)),
    ] {
        assert_eq!(glance(any.clone(), same), expected, "{any:?} {same}");
    }
}

#[test]
fn a_glance_reads_short_texts_alone() {
    let annotated = |value: &str, more: usize| {
        pod(&json!({"metadata": {"annotations": {"a": value}}, "spec": {"text": "x".repeat(more)}}))
    };
    let predicate = only(Test::Annotations);
    let change = |more| Change { old: annotated("1", more), new: annotated("2", more), missed: false };
    assert_eq!(predicate.glance(&change(0)), Some(true));
    assert_eq!(predicate.glance(&change(GLANCED)), None);
    assert!(predicate.holds(&change(GLANCED), &mut |error| panic!("{error}")));
    // An object that came is no difference to look for.
    assert_eq!(predicate.glance(&Change { old: None, ..change(GLANCED) }), Some(true));
}

#[test]
fn a_judgement_that_exceeds_the_budget_lets_the_change_pass() {
    let costly = || condition(cel("object.spec.all(k, object.spec[k] == 'v')"), false);
    let never = || condition(cel("1 == 2"), false);
    for any in [
        vec![vec![costly(), never()]],
        vec![vec![costly()], vec![never()]],
        vec![vec![never(), costly()], vec![costly(), never()]],
    ] {
        let judgement = judge(&Predicate::new(any.clone()), None, large("1"));
        assert!(judgement.matters && judgement.spent >= BUDGET, "{any:?}: {judgement:?}");
        assert!(!judge(&Predicate::new(any), None, metadata(&json!({"generation": 1}))).switched_off);
    }
}

#[test]
fn a_predicate_that_exceeds_its_budget_ten_times_in_a_row_is_switched_off() {
    let costly = condition(cel("object.spec.all(k, object.spec[k] == 'v') && false"), false);
    let predicate =
        Predicate::new(vec![vec![costly], vec![condition(Test::Labels, false), condition(cel("false"), false)]]);
    let small = || pod(&json!({"spec": {"k": "v"}}));
    let exceed = || judge(&predicate, None, large("1")).switched_off;
    assert!((1..OFF_AFTER).all(|_| !exceed()));
    // One that it can afford in between, and it begins anew.
    assert!(!judge(&predicate, None, small()).matters);
    assert!((1..OFF_AFTER).all(|_| !exceed()) && !predicate.is_off());
    assert!(exceed() && predicate.is_off() && predicate.clone().is_off());
    // Said once. From now on expressions have no answer; what else the lists say holds.
    assert!(!exceed());
    let judgement = judge(&predicate, None, small());
    assert_eq!(judgement, Judgement { matters: true, switched_off: false, spent: 0 });
    let plain = Predicate::new(vec![vec![condition(Test::Generation, false), condition(cel("true"), false)]]);
    plain.fuse.0.as_ref().unwrap().store(OFF_AFTER, std::sync::atomic::Ordering::Relaxed);
    assert!(!judge(&plain, small(), small()).matters);
}
