#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::time::Duration;

use insta::assert_snapshot;
use pilothouse_core::{fair::Usage, key::TypeMeta, permits};

use super::*;

/// The samples of a family, without comments and without what a histogram's buckets say.
fn samples(metrics: &Metrics, prefix: &str) -> String {
    let text = metrics.encode();
    let of_family = |line: &&str| line.starts_with(prefix) && !line.contains("_bucket{");
    text.lines().filter(of_family).collect::<Vec<_>>().join("\n")
}

fn queue(controller: &str) -> Queue {
    Queue {
        controller: controller.to_owned(),
        depths: vec![(0, 2), (5, 1)],
        adds: 10,
        retries: 3,
        unfinished: Duration::from_millis(2500),
        longest_running: Duration::from_millis(1500),
        active_workers: 1,
        max_concurrent: 4,
    }
}

fn informer(api_version: &str, kind: &str) -> Informer {
    Informer {
        of: TypeMeta::new(api_version, kind),
        running: 1,
        leases: 2,
        objects: 3,
        bytes: 4096,
        snapshots: 5,
        synced: true,
        events: vec![("added", 3), ("updated", 7)],
        relists: vec![("expired", 1)],
        failures: vec![("throttled", 3), ("unreachable", 1)],
        restarts: 1,
        own_writes: 4,
        own_lag: Duration::from_secs(2),
        snapshots_given_up: 6,
        synced_after: Some(Duration::from_millis(1_500)),
        watch_age: Some(Duration::from_secs(60)),
        silence: Some(Duration::from_secs(5)),
        stale: Duration::ZERO,
        behind: 10,
    }
}

#[test]
fn series_of_a_controller_begin_at_zero() {
    let metrics = Metrics::new();
    metrics.add_controller("myapple/apples");
    assert_snapshot!(samples(&metrics, "controller_runtime"), @r#"
    controller_runtime_reconcile_total{controller="myapple/apples",result="success"} 0
    controller_runtime_reconcile_total{controller="myapple/apples",result="requeue"} 0
    controller_runtime_reconcile_total{controller="myapple/apples",result="requeue_after"} 0
    controller_runtime_reconcile_total{controller="myapple/apples",result="error"} 0
    controller_runtime_reconcile_errors_total{controller="myapple/apples"} 0
    controller_runtime_terminal_reconcile_errors_total{controller="myapple/apples"} 0
    controller_runtime_reconcile_panics_total{controller="myapple/apples"} 0
    controller_runtime_reconcile_timeouts_total{controller="myapple/apples"} 0
    controller_runtime_reconcile_time_seconds_sum{controller="myapple/apples"} 0.0
    controller_runtime_reconcile_time_seconds_count{controller="myapple/apples"} 0
    "#);
    assert_snapshot!(samples(&metrics, "workqueue"), @r#"
    workqueue_queue_duration_seconds_sum{name="myapple/apples",controller="myapple/apples"} 0.0
    workqueue_queue_duration_seconds_count{name="myapple/apples",controller="myapple/apples"} 0
    workqueue_work_duration_seconds_sum{name="myapple/apples",controller="myapple/apples"} 0.0
    workqueue_work_duration_seconds_count{name="myapple/apples",controller="myapple/apples"} 0
    "#);
}

#[test]
fn what_plugins_use_of_the_threads_is_told_by_plugin() {
    let metrics = Metrics::new();
    let (used, waited) = (Duration::from_millis(1_500), Duration::from_millis(250));
    let usage = Usage { used, turns: 7, waited, held: 3, waiting: 2 };
    metrics.read_from(move |live: &mut Live| live.accounts.push(Account { plugin: "myapple".to_owned(), usage }));
    assert_snapshot!(samples(&metrics, "pilothouse_plugin"), @r#"
    pilothouse_plugin_cpu_seconds_total{plugin="myapple"} 1.5
    pilothouse_plugin_turns_total{plugin="myapple"} 7
    pilothouse_plugin_turn_wait_seconds_total{plugin="myapple"} 0.25
    pilothouse_plugin_turns_held_total{plugin="myapple"} 3
    pilothouse_plugin_waiting_tasks{plugin="myapple"} 2
    "#);
}

#[test]
fn requests_are_told_by_plugin() {
    let metrics = Metrics::new();
    let usage = permits::Usage { in_flight: 1, waiting: 2, begun: 9, waited: 3, throttled: 4 };
    metrics.read_from(move |live: &mut Live| live.requests.push(Requests { plugin: "myapple".to_owned(), usage }));
    assert_snapshot!(samples(&metrics, "pilothouse_plugin_requests"), @r#"
    pilothouse_plugin_requests_in_flight{plugin="myapple"} 1
    pilothouse_plugin_requests_waiting{plugin="myapple"} 2
    pilothouse_plugin_requests_waited_total{plugin="myapple"} 3
    pilothouse_plugin_requests_throttled_total{plugin="myapple"} 4
    "#);
}

#[test]
fn instances_are_told_by_plugin() {
    let metrics = Metrics::new();
    let instances = Instances {
        plugin: "a".into(),
        alive: 3,
        kept: 2,
        made: 7,
        reused: 40,
        mapped: 5,
        computed: Duration::from_millis(1_500),
        memory: 262_144,
        peak: 131_072,
    };
    metrics.read_from(move |live: &mut Live| live.instances.push(instances.clone()));
    let told: Vec<String> = ["instances", "code", "guest", "memory"]
        .map(|family| samples(&metrics, &format!("pilothouse_plugin_{family}")))
        .into();
    assert_snapshot!(told.join("\n"), @r#"
    pilothouse_plugin_instances{plugin="a"} 3
    pilothouse_plugin_instances_kept{plugin="a"} 2
    pilothouse_plugin_instances_made_total{plugin="a"} 7
    pilothouse_plugin_instances_reused_total{plugin="a"} 40
    pilothouse_plugin_code_mapped_total{plugin="a"} 5
    pilothouse_plugin_guest_seconds_total{plugin="a"} 1.5
    pilothouse_plugin_memory_bytes{plugin="a"} 262144
    pilothouse_plugin_memory_peak_bytes{plugin="a"} 131072
    "#);
}

#[test]
fn reconciles_are_counted_as_controller_runtime_counts_them() {
    let metrics = Metrics::new();
    metrics.add_controller("a/b");
    let controller = metrics.controller("a/b").unwrap();
    for result in [Reconciled::Success, Reconciled::Success, Reconciled::Requeue, Reconciled::RequeueAfter] {
        controller.reconciled(result, Duration::from_millis(500));
    }
    controller.reconciled(Reconciled::Error, Duration::from_secs(1));
    controller.panicked();
    controller.reconciled(Reconciled::Terminal, Duration::from_secs(1));
    controller.timed_out();
    controller.picked(Duration::from_millis(250));
    controller.finished(Duration::from_millis(750));
    assert_snapshot!(samples(&metrics, "controller_runtime"), @r#"
    controller_runtime_reconcile_total{controller="a/b",result="success"} 2
    controller_runtime_reconcile_total{controller="a/b",result="requeue"} 1
    controller_runtime_reconcile_total{controller="a/b",result="requeue_after"} 1
    controller_runtime_reconcile_total{controller="a/b",result="error"} 2
    controller_runtime_reconcile_errors_total{controller="a/b"} 2
    controller_runtime_terminal_reconcile_errors_total{controller="a/b"} 1
    controller_runtime_reconcile_panics_total{controller="a/b"} 1
    controller_runtime_reconcile_timeouts_total{controller="a/b"} 1
    controller_runtime_reconcile_time_seconds_sum{controller="a/b"} 4.0
    controller_runtime_reconcile_time_seconds_count{controller="a/b"} 6
    "#);
    assert_snapshot!(samples(&metrics, "workqueue"), @r#"
    workqueue_queue_duration_seconds_sum{name="a/b",controller="a/b"} 0.25
    workqueue_queue_duration_seconds_count{name="a/b",controller="a/b"} 1
    workqueue_work_duration_seconds_sum{name="a/b",controller="a/b"} 0.75
    workqueue_work_duration_seconds_count{name="a/b",controller="a/b"} 1
    "#);
}

#[test]
fn buckets_are_those_of_controller_runtime_and_client_go() {
    let metrics = Metrics::new();
    metrics.add_controller("a/b");
    let text = metrics.encode();
    let bounds = |name: &str| -> Vec<f64> {
        let prefix = format!("{name}_bucket{{");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        lines.filter_map(|line| line.split_once("le=\"")?.1.split_once('"')?.0.parse().ok()).collect()
    };
    let times = bounds("controller_runtime_reconcile_time_seconds");
    assert_eq!((times.len(), times[0], times[39], times[40]), (41, 0.005, 60.0, f64::INFINITY));
    for name in ["workqueue_queue_duration_seconds", "workqueue_work_duration_seconds"] {
        let times = bounds(name);
        assert_eq!((times.len(), times[0], times[12]), (13, 1e-8, f64::INFINITY));
        assert!((times[11] - 1000.0).abs() < 1e-6, "{times:?}");
    }
}

#[test]
fn series_of_a_plugin_begin_at_zero_and_grow() {
    let metrics = Metrics::new();
    metrics.add_plugin("myapple");
    assert_snapshot!(samples(&metrics, "pilothouse"), @r#"
    pilothouse_plugin_active{plugin="myapple"} 0
    pilothouse_plugin_quarantined{plugin="myapple"} 0
    pilothouse_plugin_quarantines_total{plugin="myapple"} 0
    pilothouse_plugin_reloads_total{plugin="myapple"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="activate",kind="cluster"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="compile",kind="decode"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="deadline"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="manifest"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="memory"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="refused"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="stack"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="trap"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="link",kind="link"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="settings",kind="decode"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="verify",kind="grants"} 0
    pilothouse_queue_wait_seconds_sum{plugin="myapple"} 0.0
    pilothouse_queue_wait_seconds_count{plugin="myapple"} 0
    pilothouse_call_seconds_sum{plugin="myapple"} 0.0
    pilothouse_call_seconds_count{plugin="myapple"} 0
    pilothouse_traps_total{plugin="myapple",kind="answer"} 0
    pilothouse_traps_total{plugin="myapple",kind="controller"} 0
    pilothouse_traps_total{plugin="myapple",kind="deadline"} 0
    pilothouse_traps_total{plugin="myapple",kind="decode"} 0
    pilothouse_traps_total{plugin="myapple",kind="export"} 0
    pilothouse_traps_total{plugin="myapple",kind="host"} 0
    pilothouse_traps_total{plugin="myapple",kind="host-calls"} 0
    pilothouse_traps_total{plugin="myapple",kind="import"} 0
    pilothouse_traps_total{plugin="myapple",kind="instantiate"} 0
    pilothouse_traps_total{plugin="myapple",kind="memory"} 0
    pilothouse_traps_total{plugin="myapple",kind="stack"} 0
    pilothouse_traps_total{plugin="myapple",kind="table"} 0
    pilothouse_traps_total{plugin="myapple",kind="trap"} 0
    pilothouse_writes_total{plugin="myapple",verb="apply",result="deferred"} 0
    pilothouse_writes_total{plugin="myapple",verb="apply",result="error"} 0
    pilothouse_writes_total{plugin="myapple",verb="apply",result="skipped"} 0
    pilothouse_writes_total{plugin="myapple",verb="apply",result="success"} 0
    pilothouse_writes_total{plugin="myapple",verb="delete",result="error"} 0
    pilothouse_writes_total{plugin="myapple",verb="delete",result="success"} 0
    "#);
    let plugin = metrics.plugin("myapple").unwrap();
    plugin.activated();
    plugin.activated();
    plugin.load_failed("describe", "stack");
    plugin.picked(Duration::from_millis(250));
    plugin.called(Duration::from_millis(125));
    plugin.trapped("answer");
    plugin.wrote("apply", "skipped");
    plugin.wrote("create", "success");
    assert_snapshot!(samples(&metrics, "pilothouse"), @r#"
    pilothouse_plugin_active{plugin="myapple"} 1
    pilothouse_plugin_quarantined{plugin="myapple"} 0
    pilothouse_plugin_quarantines_total{plugin="myapple"} 0
    pilothouse_plugin_reloads_total{plugin="myapple"} 1
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="activate",kind="cluster"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="compile",kind="decode"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="deadline"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="manifest"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="memory"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="refused"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="stack"} 1
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="trap"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="link",kind="link"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="settings",kind="decode"} 0
    pilothouse_plugin_load_failures_total{plugin="myapple",stage="verify",kind="grants"} 0
    pilothouse_queue_wait_seconds_sum{plugin="myapple"} 0.25
    pilothouse_queue_wait_seconds_count{plugin="myapple"} 1
    pilothouse_call_seconds_sum{plugin="myapple"} 0.125
    pilothouse_call_seconds_count{plugin="myapple"} 1
    pilothouse_traps_total{plugin="myapple",kind="answer"} 1
    pilothouse_traps_total{plugin="myapple",kind="controller"} 0
    pilothouse_traps_total{plugin="myapple",kind="deadline"} 0
    pilothouse_traps_total{plugin="myapple",kind="decode"} 0
    pilothouse_traps_total{plugin="myapple",kind="export"} 0
    pilothouse_traps_total{plugin="myapple",kind="host"} 0
    pilothouse_traps_total{plugin="myapple",kind="host-calls"} 0
    pilothouse_traps_total{plugin="myapple",kind="import"} 0
    pilothouse_traps_total{plugin="myapple",kind="instantiate"} 0
    pilothouse_traps_total{plugin="myapple",kind="memory"} 0
    pilothouse_traps_total{plugin="myapple",kind="stack"} 0
    pilothouse_traps_total{plugin="myapple",kind="table"} 0
    pilothouse_traps_total{plugin="myapple",kind="trap"} 0
    pilothouse_writes_total{plugin="myapple",verb="apply",result="deferred"} 0
    pilothouse_writes_total{plugin="myapple",verb="apply",result="error"} 0
    pilothouse_writes_total{plugin="myapple",verb="apply",result="skipped"} 1
    pilothouse_writes_total{plugin="myapple",verb="apply",result="success"} 0
    pilothouse_writes_total{plugin="myapple",verb="create",result="success"} 1
    pilothouse_writes_total{plugin="myapple",verb="delete",result="error"} 0
    pilothouse_writes_total{plugin="myapple",verb="delete",result="success"} 0
    "#);
    plugin.set_active(false);
    assert_eq!(samples(&metrics, "pilothouse_plugin_active"), r#"pilothouse_plugin_active{plugin="myapple"} 0"#);
}

#[test]
fn series_end_with_the_last_of_their_name() {
    let metrics = Metrics::new();
    metrics.add_controller("a/b");
    metrics.controller("a/b").unwrap().reconciled(Reconciled::Success, Duration::ZERO);
    // A new revision's begins before the old one's ends.
    metrics.add_controller("a/b");
    metrics.remove_controller("a/b");
    let success = r#"controller_runtime_reconcile_total{controller="a/b",result="success"} 1"#;
    assert_eq!(samples(&metrics, "controller_runtime_reconcile_total").lines().next(), Some(success));
    metrics.remove_controller("a/b");
    metrics.remove_controller("a/b");
    assert_eq!(samples(&metrics, "controller_runtime"), "");
    assert!(metrics.controller("a/b").is_none());

    metrics.add_plugin("a");
    metrics.add_plugin("a");
    metrics.remove_plugin("a");
    assert_eq!(samples(&metrics, "pilothouse"), "");
    assert!(metrics.plugin("a").is_none());
}

#[test]
fn live_structures_are_read_at_each_scrape() {
    let metrics = Metrics::new();
    let depth = Arc::new(Mutex::new(1));
    let shared = depth.clone();
    metrics.read_from(move |live: &mut Live| {
        live.queues.push(Queue { depths: vec![(0, *shared.lock())], ..queue("a/b") });
    });
    let line = |depth: usize| format!(r#"workqueue_depth{{name="a/b",controller="a/b",priority="0"}} {depth}"#);
    assert!(metrics.encode().contains(&line(1)));
    *depth.lock() = 7;
    assert!(metrics.encode().contains(&line(7)));
}

#[test]
fn queues_and_informers_of_one_name_are_summed_up() {
    let metrics = Metrics::new();
    metrics.read_from(|live: &mut Live| {
        live.queues.extend([queue("a/b"), queue("a/b")]);
        live.informers.push(informer("v1", "ConfigMap"));
    });
    metrics.read_from(|live: &mut Live| {
        live.informers.push(Informer {
            synced: false,
            events: vec![("deleted", 1)],
            synced_after: None,
            watch_age: None,
            silence: Some(Duration::from_secs(9)),
            stale: Duration::from_secs(240),
            behind: 3,
            ..informer("v1", "ConfigMap")
        });
        live.informers.push(informer("stable.example.com/v1", "MyApple"));
    });
    assert_snapshot!(samples(&metrics, "workqueue"), @r#"
    workqueue_depth{name="a/b",controller="a/b",priority="-100"} 0
    workqueue_depth{name="a/b",controller="a/b",priority="0"} 4
    workqueue_depth{name="a/b",controller="a/b",priority="5"} 2
    workqueue_adds_total{name="a/b",controller="a/b"} 20
    workqueue_retries_total{name="a/b",controller="a/b"} 6
    workqueue_unfinished_work_seconds{name="a/b",controller="a/b"} 5.0
    workqueue_longest_running_processor_seconds{name="a/b",controller="a/b"} 1.5
    "#);
    assert_snapshot!(samples(&metrics, "controller_runtime"), @r#"
    controller_runtime_max_concurrent_reconciles{controller="a/b"} 8
    controller_runtime_active_workers{controller="a/b"} 2
    "#);
    assert_snapshot!(samples(&metrics, "pilothouse_informer"), @r#"
    pilothouse_informer_objects{group="stable.example.com",version="v1",kind="MyApple"} 3
    pilothouse_informer_objects{group="",version="v1",kind="ConfigMap"} 6
    pilothouse_informer_bytes{group="stable.example.com",version="v1",kind="MyApple"} 4096
    pilothouse_informer_bytes{group="",version="v1",kind="ConfigMap"} 8192
    pilothouse_informer_running{group="stable.example.com",version="v1",kind="MyApple"} 1
    pilothouse_informer_running{group="",version="v1",kind="ConfigMap"} 2
    pilothouse_informer_leases{group="stable.example.com",version="v1",kind="MyApple"} 2
    pilothouse_informer_leases{group="",version="v1",kind="ConfigMap"} 4
    pilothouse_informer_synced{group="stable.example.com",version="v1",kind="MyApple"} 1
    pilothouse_informer_synced{group="",version="v1",kind="ConfigMap"} 0
    pilothouse_informer_events_total{group="stable.example.com",version="v1",kind="MyApple",type="added"} 3
    pilothouse_informer_events_total{group="stable.example.com",version="v1",kind="MyApple",type="updated"} 7
    pilothouse_informer_events_total{group="",version="v1",kind="ConfigMap",type="added"} 3
    pilothouse_informer_events_total{group="",version="v1",kind="ConfigMap",type="deleted"} 1
    pilothouse_informer_events_total{group="",version="v1",kind="ConfigMap",type="updated"} 7
    pilothouse_informer_relists_total{group="stable.example.com",version="v1",kind="MyApple",reason="expired"} 1
    pilothouse_informer_relists_total{group="",version="v1",kind="ConfigMap",reason="expired"} 2
    pilothouse_informer_failures_total{group="stable.example.com",version="v1",kind="MyApple",reason="throttled"} 3
    pilothouse_informer_failures_total{group="stable.example.com",version="v1",kind="MyApple",reason="unreachable"} 1
    pilothouse_informer_failures_total{group="",version="v1",kind="ConfigMap",reason="throttled"} 6
    pilothouse_informer_failures_total{group="",version="v1",kind="ConfigMap",reason="unreachable"} 2
    pilothouse_informer_restarts_total{group="stable.example.com",version="v1",kind="MyApple"} 1
    pilothouse_informer_restarts_total{group="",version="v1",kind="ConfigMap"} 2
    pilothouse_informer_snapshots{group="stable.example.com",version="v1",kind="MyApple"} 5
    pilothouse_informer_snapshots{group="",version="v1",kind="ConfigMap"} 10
    pilothouse_informer_snapshots_given_up_total{group="stable.example.com",version="v1",kind="MyApple"} 6
    pilothouse_informer_snapshots_given_up_total{group="",version="v1",kind="ConfigMap"} 12
    pilothouse_informer_sync_seconds{group="stable.example.com",version="v1",kind="MyApple"} 1.5
    pilothouse_informer_sync_seconds{group="",version="v1",kind="ConfigMap"} 1.5
    pilothouse_informer_watch_age_seconds{group="stable.example.com",version="v1",kind="MyApple"} 60.0
    pilothouse_informer_watch_age_seconds{group="",version="v1",kind="ConfigMap"} 60.0
    pilothouse_informer_silence_seconds{group="stable.example.com",version="v1",kind="MyApple"} 5.0
    pilothouse_informer_silence_seconds{group="",version="v1",kind="ConfigMap"} 9.0
    pilothouse_informer_stale_seconds{group="stable.example.com",version="v1",kind="MyApple"} 0.0
    pilothouse_informer_stale_seconds{group="",version="v1",kind="ConfigMap"} 240.0
    pilothouse_informer_versions_behind{group="stable.example.com",version="v1",kind="MyApple"} 10
    pilothouse_informer_versions_behind{group="",version="v1",kind="ConfigMap"} 10
    pilothouse_informer_own_writes_total{group="stable.example.com",version="v1",kind="MyApple"} 4
    pilothouse_informer_own_writes_total{group="",version="v1",kind="ConfigMap"} 8
    pilothouse_informer_own_write_lag_seconds_total{group="stable.example.com",version="v1",kind="MyApple"} 2.0
    pilothouse_informer_own_write_lag_seconds_total{group="",version="v1",kind="ConfigMap"} 4.0
    "#);
}

#[test]
fn what_plugins_ask_of_the_host_and_what_it_tells_is_counted() {
    let metrics = Metrics::new();
    metrics.read_from(|live: &mut Live| {
        let calls = vec![("cache.get", 3), ("client.get", 0)];
        live.calls.push(HostCalls { plugin: "a".into(), calls, lines_dropped: 4 });
        live.events.extend([("created", 2), ("failed", 1)]);
    });
    let told: Vec<String> =
        ["host_calls", "plugin_log", "events"].map(|family| samples(&metrics, &format!("pilothouse_{family}"))).into();
    assert_snapshot!(told.join("\n"), @r#"
    pilothouse_host_calls_total{plugin="a",import="cache.get"} 3
    pilothouse_host_calls_total{plugin="a",import="client.get"} 0
    pilothouse_plugin_log_dropped_total{plugin="a"} 4
    pilothouse_events_total{result="created"} 2
    pilothouse_events_total{result="failed"} 1
    "#);
}

#[test]
fn a_quarantine_is_counted_when_it_begins() {
    let metrics = Metrics::new();
    metrics.add_plugin("a");
    let plugin = metrics.plugin("a").unwrap();
    for quarantined in [true, true, false, true] {
        plugin.set_quarantined(quarantined);
    }
    assert_snapshot!(samples(&metrics, "pilothouse_plugin_quarantine"), @r#"
    pilothouse_plugin_quarantined{plugin="a"} 1
    pilothouse_plugin_quarantines_total{plugin="a"} 2
    "#);
}

#[test]
fn routes_and_backlogs_of_one_name_are_summed_up() {
    let metrics = Metrics::new();
    metrics.read_from(|live: &mut Live| {
        let woken = vec![("self", 2), ("read", 1)];
        let routes = Routes {
            controller: "a/b".into(),
            woken,
            reading_keys: 3,
            reads: 5,
            read_bytes: 700,
            breakers_open: 1,
            breakers_opened: 4,
            gone: 7,
            gone_bytes: 900,
            gone_dropped: 2,
        };
        live.routes.extend([routes.clone(), routes]);
        let backlog = Backlog { plugin: "a".into(), hook: "map", objects: 4, merged: 2, dropped: 1 };
        live.backlogs.extend([backlog.clone(), Backlog { hook: "observe", ..backlog.clone() }, backlog]);
        let predicates = Predicates { plugin: "a".into(), waiting: 3, unseen: 2, off: 1 };
        live.predicates.extend([predicates.clone(), predicates]);
    });
    metrics.add_plugin("a");
    if let Some(plugin) = metrics.plugin("a") {
        plugin.hooked("map", true);
        plugin.hooked("observe", false);
    }
    let told: Vec<String> = ["hooks", "wakes", "tracked", "breakers", "gone", "backlog", "predicate"]
        .map(|family| samples(&metrics, &format!("pilothouse_{family}")))
        .into();
    assert_snapshot!(told.join("\n"), @r#"
    pilothouse_hooks_total{plugin="a",export="map",result="success"} 1
    pilothouse_hooks_total{plugin="a",export="observe",result="error"} 1
    pilothouse_wakes_total{controller="a/b",by="read"} 2
    pilothouse_wakes_total{controller="a/b",by="self"} 4
    pilothouse_tracked_keys{controller="a/b"} 6
    pilothouse_tracked_reads{controller="a/b"} 10
    pilothouse_tracked_bytes{controller="a/b"} 1400
    pilothouse_breakers_open{controller="a/b"} 2
    pilothouse_breakers_opened_total{controller="a/b"} 8
    pilothouse_gone_objects{controller="a/b"} 14
    pilothouse_gone_bytes{controller="a/b"} 1800
    pilothouse_gone_dropped_total{controller="a/b"} 4
    pilothouse_backlog_objects{plugin="a",export="map"} 8
    pilothouse_backlog_objects{plugin="a",export="observe"} 4
    pilothouse_backlog_merged_total{plugin="a",export="map"} 4
    pilothouse_backlog_merged_total{plugin="a",export="observe"} 2
    pilothouse_backlog_dropped_total{plugin="a",export="map"} 2
    pilothouse_backlog_dropped_total{plugin="a",export="observe"} 1
    pilothouse_predicate_waiting{plugin="a"} 6
    pilothouse_predicate_unseen_total{plugin="a"} 4
    pilothouse_predicates_off{plugin="a"} 2
    "#);
}

#[test]
fn requests_are_counted_by_code_method_and_host() {
    let metrics = Metrics::new();
    metrics.requested("GET", "127.0.0.1:6443", Some(200));
    metrics.requested("GET", "127.0.0.1:6443", Some(200));
    metrics.requested("PATCH", "127.0.0.1:6443", None);
    assert_snapshot!(samples(&metrics, "rest_client"), @r#"
    rest_client_requests_total{code="200",method="GET",host="127.0.0.1:6443"} 2
    rest_client_requests_total{code="<error>",method="PATCH",host="127.0.0.1:6443"} 1
    "#);
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_is_measured() {
    let metrics = Metrics::new();
    let value = |name: &str| -> f64 { samples(&metrics, name).rsplit_once(' ').unwrap().1.parse().unwrap() };
    assert!(value("process_cpu_seconds_total") >= 0.0);
    assert!(value("process_resident_memory_bytes") > 100_000.0);
}

/// OpenMetrics, as far as Prometheus cares: each family is described once, its samples follow, no series comes twice.
#[test]
fn the_text_is_open_metrics() {
    let metrics = Metrics::new();
    metrics.add_controller("a/b");
    metrics.add_controller("a/\"c\\\n");
    metrics.add_plugin("a");
    metrics.requested("GET", "h", Some(200));
    metrics.read_from(|live: &mut Live| {
        live.queues.extend([queue("a/b"), queue("a/b"), queue("c/d")]);
        live.informers.extend([informer("v1", "Pod"), informer("v1", "Pod")]);
    });
    let text = metrics.encode();
    assert!(text.ends_with("# EOF\n"));
    assert!(text.contains(r#"controller="a/\"c\\\n""#), "escaped");
    let (mut families, mut series, mut family) = (Vec::new(), std::collections::HashSet::new(), "");
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            family = described.split_once(' ').unwrap().0;
            assert!(!families.contains(&family), "described twice: {family}");
            families.push(family);
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with(family), "{name} stands under {family}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(series.insert(name), "twice: {name}");
        }
    }
    assert_snapshot!(families.join("\n"), @r"
    controller_runtime_reconcile
    controller_runtime_reconcile_errors
    controller_runtime_terminal_reconcile_errors
    controller_runtime_reconcile_panics
    controller_runtime_reconcile_timeouts
    controller_runtime_reconcile_time_seconds
    workqueue_queue_duration_seconds
    workqueue_work_duration_seconds
    pilothouse_plugin_active
    pilothouse_plugin_quarantined
    pilothouse_plugin_quarantines
    pilothouse_plugin_reloads
    pilothouse_plugin_load_failures
    pilothouse_queue_wait_seconds
    pilothouse_call_seconds
    pilothouse_traps
    pilothouse_hooks
    pilothouse_writes
    rest_client_requests
    controller_runtime_max_concurrent_reconciles
    controller_runtime_active_workers
    workqueue_depth
    workqueue_adds
    workqueue_retries
    workqueue_unfinished_work_seconds
    workqueue_longest_running_processor_seconds
    pilothouse_wakes
    pilothouse_tracked_keys
    pilothouse_tracked_reads
    pilothouse_tracked_bytes
    pilothouse_breakers_open
    pilothouse_breakers_opened
    pilothouse_gone_objects
    pilothouse_gone_bytes
    pilothouse_gone_dropped
    pilothouse_backlog_objects
    pilothouse_backlog_merged
    pilothouse_backlog_dropped
    pilothouse_predicate_waiting
    pilothouse_predicate_unseen
    pilothouse_predicates_off
    pilothouse_plugin_cpu_seconds
    pilothouse_plugin_turns
    pilothouse_plugin_turn_wait_seconds
    pilothouse_plugin_turns_held
    pilothouse_plugin_waiting_tasks
    pilothouse_plugin_requests_in_flight
    pilothouse_plugin_requests_waiting
    pilothouse_plugin_requests_waited
    pilothouse_plugin_requests_throttled
    pilothouse_plugin_instances
    pilothouse_plugin_instances_kept
    pilothouse_plugin_instances_made
    pilothouse_plugin_instances_reused
    pilothouse_plugin_code_mapped
    pilothouse_plugin_guest_seconds
    pilothouse_plugin_memory_bytes
    pilothouse_plugin_memory_peak_bytes
    pilothouse_host_calls
    pilothouse_plugin_log_dropped
    pilothouse_events
    pilothouse_informer_objects
    pilothouse_informer_bytes
    pilothouse_informer_running
    pilothouse_informer_leases
    pilothouse_informer_synced
    pilothouse_informer_events
    pilothouse_informer_relists
    pilothouse_informer_failures
    pilothouse_informer_restarts
    pilothouse_informer_snapshots
    pilothouse_informer_snapshots_given_up
    pilothouse_informer_sync_seconds
    pilothouse_informer_watch_age_seconds
    pilothouse_informer_silence_seconds
    pilothouse_informer_stale_seconds
    pilothouse_informer_versions_behind
    pilothouse_informer_own_writes
    pilothouse_informer_own_write_lag_seconds
    process_cpu_seconds
    process_resident_memory_bytes
    ");
}
