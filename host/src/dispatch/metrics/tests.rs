use insta::assert_snapshot;

use super::*;
use crate::metrics::{encode, samples};

/// Calls with a plugin `myapple` and its controller `myapple/apples`, and a registry that encodes them.
fn calls() -> (Arc<Calls>, Registry) {
    let calls = Arc::<Calls>::default();
    calls.begin("myapple");
    calls.controllers.add("myapple/apples");
    let mut registry = Registry::default();
    metrics::register(&mut registry, {
        let calls = calls.clone();
        move |encoder| {
            reconciles(&calls, encoder)?;
            plugins(&calls, encoder)
        }
    });
    (calls, registry)
}

fn attempt(result: ReconcileResult, trap: Option<&'static str>, panicked: bool) -> Attempt {
    Attempt { result, took: Duration::from_secs(1), in_guest: None, trap, panicked }
}

#[test]
fn reconciles_begin_at_zero_and_are_counted_as_controller_runtime_counts_them() {
    let (calls, registry) = calls();
    let of_controller = || samples(&registry, "controller_runtime").replace("controller=\"myapple/apples\"", "apples");
    assert_snapshot!(of_controller(), @r#"
    controller_runtime_reconcile_total{apples,result="success"} 0
    controller_runtime_reconcile_total{apples,result="requeue"} 0
    controller_runtime_reconcile_total{apples,result="requeue_after"} 0
    controller_runtime_reconcile_total{apples,result="error"} 0
    controller_runtime_reconcile_errors_total{apples} 0
    controller_runtime_terminal_reconcile_errors_total{apples} 0
    controller_runtime_reconcile_panics_total{apples} 0
    controller_runtime_reconcile_timeouts_total{apples} 0
    controller_runtime_reconcile_time_seconds_sum{apples} 0.0
    controller_runtime_reconcile_time_seconds_count{apples} 0
    "#);
    let controller = calls.controllers.get("myapple/apples").expect("it was added");
    for result in [ReconcileResult::Success, ReconcileResult::RequeueAfter, ReconcileResult::Terminal] {
        controller.attempted(&attempt(result, None, false));
    }
    for (trap, panicked) in [(None, false), (Some("host"), false), (Some("deadline"), false), (Some("trap"), true)] {
        controller.attempted(&attempt(ReconcileResult::Error, trap, panicked));
    }
    controller.waited.observe(0.25);
    controller.worked.observe(0.75);
    assert_snapshot!(of_controller(), @r#"
    controller_runtime_reconcile_total{apples,result="success"} 1
    controller_runtime_reconcile_total{apples,result="requeue"} 0
    controller_runtime_reconcile_total{apples,result="requeue_after"} 1
    controller_runtime_reconcile_total{apples,result="error"} 5
    controller_runtime_reconcile_errors_total{apples} 5
    controller_runtime_terminal_reconcile_errors_total{apples} 1
    controller_runtime_reconcile_panics_total{apples} 1
    controller_runtime_reconcile_timeouts_total{apples} 1
    controller_runtime_reconcile_time_seconds_sum{apples} 7.0
    controller_runtime_reconcile_time_seconds_count{apples} 7
    "#);
    assert_snapshot!(samples(&registry, "workqueue"), @r#"
    workqueue_queue_duration_seconds_sum{name="myapple/apples",controller="myapple/apples"} 0.25
    workqueue_queue_duration_seconds_count{name="myapple/apples",controller="myapple/apples"} 1
    workqueue_work_duration_seconds_sum{name="myapple/apples",controller="myapple/apples"} 0.75
    workqueue_work_duration_seconds_count{name="myapple/apples",controller="myapple/apples"} 1
    "#);
}

#[test]
fn buckets_are_those_of_controller_runtime_and_client_go() {
    let (_, registry) = calls();
    let text = encode(&registry);
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
fn calls_of_a_plugin_begin_at_zero_and_grow() {
    let (calls, registry) = calls();
    let of_plugin = || samples(&registry, "pilothouse").replace("plugin=\"myapple\"", "myapple");
    assert_snapshot!(of_plugin(), @r#"
    pilothouse_plugin_quarantined{myapple} 0
    pilothouse_plugin_quarantines_total{myapple} 0
    pilothouse_queue_wait_seconds_sum{myapple} 0.0
    pilothouse_queue_wait_seconds_count{myapple} 0
    pilothouse_call_seconds_sum{myapple} 0.0
    pilothouse_call_seconds_count{myapple} 0
    pilothouse_traps_total{myapple,kind="answer"} 0
    pilothouse_traps_total{myapple,kind="controller"} 0
    pilothouse_traps_total{myapple,kind="deadline"} 0
    pilothouse_traps_total{myapple,kind="decode"} 0
    pilothouse_traps_total{myapple,kind="export"} 0
    pilothouse_traps_total{myapple,kind="host"} 0
    pilothouse_traps_total{myapple,kind="host-calls"} 0
    pilothouse_traps_total{myapple,kind="import"} 0
    pilothouse_traps_total{myapple,kind="instantiate"} 0
    pilothouse_traps_total{myapple,kind="memory"} 0
    pilothouse_traps_total{myapple,kind="stack"} 0
    pilothouse_traps_total{myapple,kind="table"} 0
    pilothouse_traps_total{myapple,kind="trap"} 0
    "#);
    let plugin = PluginName::new("myapple").expect("it is a name");
    let took = Duration::from_millis(125);
    calls.called(&plugin, None, &Called { hook: Hook::Map, ok: true, took, trap: None });
    calls.called(&plugin, None, &Called { hook: Hook::Observe, ok: false, took, trap: Some("trap") });
    for quarantined in [true, true, false, true] {
        calls.quarantined(&plugin, quarantined);
    }
    let grown: Vec<_> = of_plugin()
        .lines()
        .filter(|line| !line.ends_with(" 0") && !line.ends_with(" 0.0"))
        .map(str::to_owned)
        .collect();
    assert_snapshot!(grown.join("\n"), @r#"
    pilothouse_plugin_quarantined{myapple} 1
    pilothouse_plugin_quarantines_total{myapple} 2
    pilothouse_call_seconds_sum{myapple} 0.25
    pilothouse_call_seconds_count{myapple} 2
    pilothouse_traps_total{myapple,kind="trap"} 1
    pilothouse_hooks_total{myapple,export="map",result="success"} 1
    pilothouse_hooks_total{myapple,export="observe",result="error"} 1
    "#);
    calls.remove("myapple");
    assert_eq!(samples(&registry, "pilothouse"), "");
}

#[test]
fn figures_of_controllers_have_a_sample_for_each() {
    let mut registry = Registry::default();
    metrics::register(&mut registry, |encoder| {
        let held = Sums {
            depths: [("0".to_owned(), 2), ("5".to_owned(), 1)].into(),
            adds: 10,
            retries: 3,
            unfinished: Duration::from_millis(2_500),
            longest_running: Duration::from_millis(1_500),
            active_workers: 1,
            workers: 4,
            woken: [("self", 2), ("read", 1)].into(),
            reading_keys: 3,
            reads: 5,
            read_bytes: 700,
            breakers_open: 1,
            breakers_opened: 6,
            gone: 7,
            gone_bytes: 900,
            gone_dropped: 8,
        };
        let all = [("a/b".to_owned(), held)].into();
        queues(&all, encoder)?;
        wakes(&all, encoder)
    });
    let all = ["controller_runtime", "workqueue", "pilothouse"].map(|prefix| samples(&registry, prefix)).join("\n");
    assert_snapshot!(all.replace("controller=\"a/b\"", "a/b"), @r#"
    controller_runtime_max_concurrent_reconciles{a/b} 4
    controller_runtime_active_workers{a/b} 1
    workqueue_depth{name="a/b",a/b,priority="0"} 2
    workqueue_depth{name="a/b",a/b,priority="5"} 1
    workqueue_adds_total{name="a/b",a/b} 10
    workqueue_retries_total{name="a/b",a/b} 3
    workqueue_unfinished_work_seconds{name="a/b",a/b} 2.5
    workqueue_longest_running_processor_seconds{name="a/b",a/b} 1.5
    pilothouse_wakes_total{a/b,by="read"} 1
    pilothouse_wakes_total{a/b,by="self"} 2
    pilothouse_tracked_keys{a/b} 3
    pilothouse_tracked_reads{a/b} 5
    pilothouse_tracked_bytes{a/b} 700
    pilothouse_breakers_open{a/b} 1
    pilothouse_breakers_opened_total{a/b} 6
    pilothouse_gone_objects{a/b} 7
    pilothouse_gone_bytes{a/b} 900
    pilothouse_gone_dropped_total{a/b} 8
    "#);
}
