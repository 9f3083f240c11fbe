//! `/metrics` and `/debug/plugins` show the same figures of each plugin.

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{Plugin, Scene, eventually, metrics::Metrics, plugin::Permission};
use serde_json::Value;

/// A metric with a plugin label, and the same figure's place in `/debug/plugins`.
const BOTH: [(&str, &str); 14] = [
    ("pilothouse_plugin_cpu_seconds_total", "/cpu_seconds"),
    ("pilothouse_plugin_guest_seconds_total", "/guest_seconds"),
    ("pilothouse_plugin_turns_total", "/turns"),
    ("pilothouse_plugin_turn_wait_seconds_total", "/turn_wait_seconds"),
    ("pilothouse_plugin_turns_held_total", "/turns_held"),
    ("pilothouse_plugin_waiting_tasks", "/waiting_tasks"),
    ("pilothouse_plugin_instances", "/instances/alive"),
    ("pilothouse_plugin_instances_kept", "/instances/kept"),
    ("pilothouse_plugin_instances_made_total", "/instances/made"),
    ("pilothouse_plugin_instances_reused_total", "/instances/reused"),
    ("pilothouse_plugin_code_mapped_total", "/instances/mapped"),
    ("pilothouse_plugin_memory_bytes", "/instances/memory_bytes"),
    ("pilothouse_plugin_memory_peak_bytes", "/instances/peak_bytes"),
    ("pilothouse_plugin_log_dropped_total", "/log_dropped"),
];

/// Three plugins: one writes by itself, one fails, and one has nothing to do.
pub(crate) async fn figures_of_a_plugin_carry_its_name_alone(scene: Scene) -> Result<()> {
    let [failing, idle] = ["failing", "idle"].map(|of| format!("{}-{of}", scene.namespace));
    for namespace in [&failing, &idle] {
        scene.create_namespace(namespace).await?;
    }
    let writes = [
        Permission::to(&["read"], "stable.example.com/v1", "MyApple"),
        Permission::to(&["apply"], "stable.example.com/v1", "MyApple/status"),
        Permission::to(&["read", "create", "patch", "apply", "delete"], "v1", "ConfigMap"),
    ];
    let plugins = [
        Plugin::myapple()?.confined_to(&idle),
        Plugin::guest("imperative")?.granted(&writes.map(|permission| permission.within(&scene.namespace))),
        Plugin::guest("trapping")?.confined_to(&failing),
    ];
    let mut host = scene.with(&plugins)?.host().await?;
    scene.apple_in(&failing, "bad-1").create(1).await?;
    for apple in [scene.apple("gala"), scene.apple_in(&failing, "good")] {
        apple.create(1).await?.status_is("served", |status| status["available"] == 1).await?;
    }
    host.warns(&["reconcile failed", &format!("{failing}/bad-1"), "a bad apple"]).await?;

    // Both are read at a moment when no call runs.
    let (metrics, rows) = eventually("both say the same", async || {
        let (metrics, rows) = (host.metrics().await?, host.plugins().await?);
        rows.iter().try_for_each(|row| is_the_same(&metrics, row))?;
        Ok((metrics, rows))
    })
    .await?;
    let row = |plugin: &str| rows.iter().find(|row| row["plugin"] == plugin).context("a plugin has no row");
    let of = |name: &str, plugin: &str| metrics.sum(name, &[("plugin", plugin)]);
    let of_kind =
        |name: &str, plugin: &str, label: &str, value: &str| metrics.sum(name, &[("plugin", plugin), (label, value)]);

    for plugin in ["imperative", "trapping"] {
        for name in [
            "pilothouse_plugin_cpu_seconds_total",
            "pilothouse_plugin_turns_total",
            "pilothouse_plugin_turn_wait_seconds_total",
            "pilothouse_plugin_instances_made_total",
            "pilothouse_plugin_guest_seconds_total",
            "pilothouse_queue_wait_seconds_count",
            "pilothouse_call_seconds_count",
        ] {
            ensure!(of(name, plugin) > 0.0, "{name} of {plugin} is {}", of(name, plugin));
        }
        let peak = of("pilothouse_plugin_memory_peak_bytes", plugin);
        ensure!(peak >= 65_536.0, "an instance of {plugin} held {peak} bytes");
        ensure!(of("pilothouse_plugin_instances_reused_total", plugin) == 0.0, "{plugin} does not ask for it");
        let (computed, called) =
            (of("pilothouse_plugin_guest_seconds_total", plugin), of("pilothouse_call_seconds_sum", plugin));
        // `describe` does not count as a call.
        ensure!(computed < called + 10.0, "{plugin} computed for {computed} s in calls of {called} s");
    }
    for import in ["cache.get", "client.create", "client.patch", "client.delete"] {
        let calls = of_kind("pilothouse_host_calls_total", "imperative", "import", import);
        ensure!(calls > 0.0, "imperative called {import} {calls} times");
    }
    for (plugin, verb, some) in [
        ("imperative", "create", true),
        ("imperative", "patch", true),
        ("trapping", "apply", true),
        ("trapping", "create", false),
    ] {
        let labels = [("plugin", plugin), ("verb", verb), ("result", "success")];
        let writes = metrics.sum("pilothouse_writes_total", &labels);
        ensure!((writes > 0.0) == some, "{plugin} has {writes} writes with {verb}");
    }
    for controller in ["imperative/", "trapping/"] {
        let of = |name| metrics.sum_where(name, |label| label("controller").starts_with(controller));
        for name in [
            "workqueue_adds_total",
            "workqueue_queue_duration_seconds_count",
            "workqueue_work_duration_seconds_count",
            "controller_runtime_reconcile_time_seconds_count",
            "controller_runtime_reconcile_total",
        ] {
            ensure!(of(name) > 0.0, "{name} of {controller} is {}", of(name));
        }
        let (failed, panicked) =
            (of("controller_runtime_reconcile_errors_total"), of("controller_runtime_reconcile_panics_total"));
        let fails = controller == "trapping/";
        ensure!((failed > 0.0, panicked > 0.0) == (fails, fails), "{controller}: {failed} failed, {panicked} panicked");
    }
    // The pool exists only if the kernel makes it cheap.
    let [free, used] = ["free", "used"].map(|state| metrics.sum("pilothouse_pool_slots", &[("state", state)]));
    ensure!(!metrics.has("pilothouse_pool_slots") || (free > 0.0 && free + used == 256.0), "{free} free, {used} used");
    let (trapped, all) =
        (of_kind("pilothouse_traps_total", "trapping", "kind", "trap"), of("pilothouse_traps_total", "trapping"));
    ensure!(trapped > 0.0 && trapped == all, "{trapped} of {all} failed calls trapped");
    ensure!(of("pilothouse_traps_total", "imperative") == 0.0, "a call of imperative failed");
    let failed = &row("trapping")?["failed_call"];
    let named = failed["backtrace"].as_array().is_some_and(|frames| !frames.is_empty());
    ensure!(failed["kind"] == "trap" && named, "what failed last was {failed}");
    ensure!(row("imperative")?["failed_call"].is_null(), "a call of imperative failed");

    for name in [
        "pilothouse_queue_wait_seconds_count",
        "pilothouse_call_seconds_count",
        "pilothouse_host_calls_total",
        "pilothouse_traps_total",
    ] {
        ensure!(metrics.has(name), "there is no {name}");
        ensure!(of(name, "myapple") == 0.0, "{name} of what had nothing to do is {}", of(name, "myapple"));
    }
    Ok(())
}

/// Compares a row of `/debug/plugins` with the plugin's metrics.
fn is_the_same(metrics: &Metrics, row: &Value) -> Result<()> {
    let plugin = row["plugin"].as_str().context("a row has no name")?;
    let equal = |name: &str, labels: &[(&str, &str)], told: &Value| {
        let (told, sum) =
            (told.as_f64().with_context(|| format!("{name} is not a number"))?, metrics.sum(name, labels));
        ensure!(metrics.has(name) && (told - sum).abs() < 1e-6, "{name} of {plugin} is {sum} and not {told}");
        Ok(())
    };
    for (name, at) in BOTH {
        equal(name, &[("plugin", plugin)], row.pointer(at).unwrap_or(&Value::Null))?;
    }
    for (name, label, at) in
        [("pilothouse_traps_total", "kind", "traps"), ("pilothouse_host_calls_total", "import", "host_calls")]
    {
        for (value, told) in row[at].as_object().with_context(|| format!("there are no {at}"))? {
            equal(name, &[("plugin", plugin), (label, value)], told)?;
        }
    }
    let quarantined = metrics.sum("pilothouse_plugin_quarantined", &[("plugin", plugin)]);
    ensure!(
        row["quarantine"].is_null() || quarantined == 1.0,
        "{plugin} is quarantined, and the metric says {quarantined}"
    );
    let controllers = row["controllers"].as_array().context("there are no controllers")?;
    let (mut picked, mut waited) = (0.0, 0.0);
    for controller in controllers {
        let name = format!("{plugin}/{}", controller["controller"].as_str().context("a controller has no name")?);
        let label = ("controller", name.as_str());
        for (result, told) in controller["reconciles"].as_object().context("there are no reconciles")? {
            equal("controller_runtime_reconcile_total", &[label, ("result", result)], told)?;
        }
        equal("workqueue_retries_total", &[label], &controller["retries"])?;
        equal("controller_runtime_max_concurrent_reconciles", &[label], &controller["workers"])?;
        equal("controller_runtime_active_workers", &[label], &controller["processing"])?;
        equal("workqueue_depth", &[label], &controller["ready"])?;
        // If both are equal before and after, no call ran between.
        for name in ["workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds"] {
            let idle = controller["processing"] == 0;
            ensure!(!idle || (metrics.has(name) && metrics.sum(name, &[label]) == 0.0), "{name} of {label:?}");
        }
        picked += metrics.sum("workqueue_queue_duration_seconds_count", &[label]);
        waited += metrics.sum("workqueue_queue_duration_seconds_sum", &[label]);
    }
    equal("pilothouse_queue_wait_seconds_count", &[("plugin", plugin)], &picked.into())?;
    equal("pilothouse_queue_wait_seconds_sum", &[("plugin", plugin)], &waited.into())
}
