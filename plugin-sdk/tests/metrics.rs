//! Tests how the mock host measures a plugin.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::{
    metrics::{Counter, Gauge, Histogram},
    mock::{MockHost, describe},
    prelude::*,
};
use serde_json::json;

static SEEN: Counter<1> = Counter::new("seen_total", "Seen.").labels(["team"]);
static RUNS: Counter = Counter::new("runs_total", "Runs.");
static SIZE: Gauge = Gauge::new("size", "Size.");
static LENGTH: Histogram<1> = Histogram::new("length", "Length.").labels(["team"]).buckets(&[0.5, 2.0]);
static UNDECLARED: Counter = Counter::new("undeclared_total", "Never declared.");

/// Does what the ConfigMap says.
fn reconcile(_: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
    let data = map.data.clone().unwrap_or_default();
    match data["do"].as_str() {
        "undeclared" => UNDECLARED.inc([]),
        "negative" => SEEN.add(["a"], -1.0),
        "nan" => SIZE.set([], f64::NAN),
        "flood" => (0..=1000).for_each(|n: u32| SEEN.inc([&n.to_string()])),
        _ => {
            SEEN.add([&"ä".repeat(100)], 2.5);
            SIZE.set([], 7.0);
            SIZE.add([], -9.0);
            [0.5, 0.6, 60.0].into_iter().for_each(|length| LENGTH.observe(["a"], length));
        }
    }
    Ok(Outcome::new())
}

fn plugin() -> Plugin {
    let controller = Controller::of::<ConfigMap>().without_status().reconcile(reconcile);
    Plugin::new("Measures.").metric(&SEEN).metric(&RUNS).metric(&SIZE).metric(&LENGTH).controller(controller)
}

fn host(what: &str) -> MockHost {
    let map = json!({"metadata": {"name": "m", "namespace": "n"}, "data": {"do": what}});
    MockHost::new(plugin).with(serde_json::from_value::<ConfigMap>(map).unwrap())
}

fn measured(what: &str) -> MockHost {
    let host = host(what);
    host.reconcile(("n", "m")).unwrap();
    host
}

#[test]
fn samples_are_those_that_the_host_exports() {
    let host = measured("all");
    assert_eq!(host.metric("seen_total", [("team", "a")]), None);
    let cut = "ä".repeat(64);
    assert_eq!(host.metric("seen_total", [("team", &cut)]), Some(2.5));
    assert_eq!(host.metric("runs_total", []), Some(0.0));
    assert_eq!(host.metric("size", []), Some(-2.0));
    assert_eq!(host.metric("length_sum", [("team", "a")]), Some(61.1));
    assert_eq!(host.metric("length_count", [("team", "a")]), Some(3.0));
    assert_eq!(host.metric("length_bucket", [("team", "a"), ("le", "2")]), Some(2.0));
    host.reconcile(("n", "m")).unwrap();
    assert_eq!(host.metric("seen_total", [("team", &cut)]), Some(5.0));
}

#[test]
fn declarations_are_in_the_manifest() {
    let metrics = describe(plugin, "{}").unwrap().metrics;
    let of = |at: usize| (metrics[at].name.as_str(), metrics[at].labels.len(), metrics[at].buckets.join(" "));
    assert_eq!(of(0), ("seen_total", 1, String::new()));
    assert_eq!(of(3), ("length", 1, "0.5 2".to_owned()));
}

#[test]
#[should_panic(expected = "which it does not declare: add it with Plugin::metric")]
fn a_metric_that_is_not_declared_fails_the_test() {
    measured("undeclared");
}

#[test]
#[should_panic(expected = "seen_total is a counter, and -1 is negative or not a number")]
fn a_counter_that_shrinks_fails_the_test() {
    measured("negative");
}

#[test]
#[should_panic(expected = "size would become NaN")]
fn a_number_that_is_none_fails_the_test() {
    measured("nan");
}

#[test]
#[should_panic(expected = "the plugin has more than 1000 series")]
fn too_many_series_fail_the_test() {
    measured("flood");
}

#[test]
#[should_panic(expected = "seen_total has the labels [\"team\"], and not [(\"color\", \"a\")]")]
fn a_test_must_name_the_labels_that_are_declared() {
    measured("all").metric("seen_total", [("color", "a")]);
}

#[test]
#[should_panic(expected = "metrics[0].name: \"bad\" must end in `_total`")]
fn a_name_that_the_host_rejects_fails_the_test() {
    static BAD: Counter = Counter::new("bad", "No total.");
    MockHost::new(|| -> Plugin { Plugin::new("Bad.").metric(&BAD) });
}
