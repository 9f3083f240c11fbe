//! Plugins that loop, trap, exhaust resources, or return nonsense. Each loses its own call and disturbs no other
//! plugin.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::{try_join, try_join_all};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use pilothouse_e2e::{
    Apple, Host, Plugin, Scene,
    admin::Admin,
    eventually,
    plugin::{MISTAKES, Permission},
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{http::FarEnd, metrics::exposed, reads::put};

/// Guests that fail on `bad-1` and `bad-2`, each with its log messages for the two objects.
const HOSTILE: [(&str, [&str; 2]); 18] = [
    ("asking", [LATE; 2]),
    ("drawing", [LATE, "random.bytes gives at most 65536 bytes at once, and was asked for 4294967295"]),
    ("flooding_http", [LATE; 2]),
    ("flooding_metrics", [LATE; 2]),
    ("flooding_requests", [LATE; 2]),
    ("flooding_writes", [LATE; 2]),
    ("garbling", ["plugin passed text that is not valid: invalid utf-8"; 2]),
    (
        "huge",
        [
            "bytes, and an API server takes at most 3145728",
            "bytes of children and status are more than the 16777216 that an outcome may hold",
        ],
    ),
    ("hungry", ["plugin hit its memory limit of 64 MiB"; 2]),
    ("looping", [LATE; 2]),
    (
        "oversized",
        [
            "labels: has 788889 bytes, and at most 8192 are taken",
            "the name: has 1048576 bytes, and at most 1024 are taken",
        ],
    ),
    ("recursing", ["plugin overflowed its stack"; 2]),
    (
        "recursing_wide",
        ["plugin trapped: out of bounds memory access, perhaps because recursion used up its stack in linear memory";
            2],
    ),
    ("reentering", ["plugin trapped: cannot leave component instance"; 2]),
    ("tabulating", ["plugin hit its limit of 100000 table elements"; 2]),
    ("trapping", ["a bad apple"; 2]),
    ("waiting", [LATE; 2]),
    ("writing", [LATE; 2]),
];

/// Ten times the timeout of a kubelet's probe, because machines that run tests are slow at times.
const ANSWERS: Duration = Duration::from_secs(10);

const LATE: &str = "plugin was stopped at its deadline of 300 ms";

pub(crate) async fn invariant_8_a_plugin_that_loops_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "looping").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_asks_the_host_for_ever_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "asking").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_calls_the_host_too_often_costs_itself_one_call(
    scene: Scene,
) -> Result<()> {
    let limits = json!({"hostCalls": 50});
    have_no_children(&is_limited(&scene, &limits, "plugin called the host more than 50 times in one call").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_reads_too_many_bytes_costs_itself_one_call(scene: Scene) -> Result<()> {
    let limits = json!({"hostMiB": 1});
    // A few probes are enough, which even a slow machine does within the deadline.
    put(&scene, "large", json!({}), &"x".repeat(256 << 10)).await?;
    have_no_children(&is_limited(&scene, &limits, "more than 1 MiB").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_asks_by_more_than_there_can_be_costs_itself_one_call(
    scene: Scene,
) -> Result<()> {
    have_no_children(&is_contained(&scene, "oversized").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_waits_for_the_server_costs_itself_one_call(scene: Scene) -> Result<()> {
    scene.cluster.hang().await?;
    have_no_children(&is_contained(&scene, "waiting").await?).await?;
    scene.cluster.has_hung().await
}

pub(crate) async fn invariant_8_a_plugin_that_floods_the_server_with_reads_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    floods(&scene, "flooding_requests").await
}

pub(crate) async fn invariant_8_a_plugin_that_floods_the_server_with_writes_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    floods(&scene, "flooding_writes").await
}

/// Nothing is granted, so each of its requests is denied at once.
pub(crate) async fn invariant_8_a_plugin_that_asks_for_requests_for_ever_costs_itself_one_call(
    scene: Scene,
) -> Result<()> {
    have_no_children(&is_contained(&scene, "flooding_http").await?).await
}

/// 64 objects of the guest send requests at once, to a server that reads slowly and answers with huge and with endless
/// bodies. The host has sixteen of them on their way.
pub(crate) async fn invariant_8_a_plugin_that_floods_another_server_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    let far = FarEnd::start().await?;
    let granted =
        json!([{"hosts": ["127.0.0.1"], "ports": [far.port()], "methods": ["POST"], "plain": true, "private": true}]);
    let guest = Plugin::guest("flooding_http")?.confined_to(&scene.namespace);
    let guest = guest.with("config", &json!({"port": far.port()}))?.with("http", &granted)?;
    let (mut host, elsewhere) = serves_beside_myapple(&scene, guest).await?;
    let names: Vec<String> = (0..64).map(|number| format!("bad-{number}")).collect();
    let bad: Vec<Apple> = names.iter().map(|name| scene.apple(name)).collect();
    try_join_all(bad.iter().map(async |apple| apple.create(1).await.map(drop))).await?;
    let admin = host.admin()?;
    let others = other_apples(&scene, &elsewhere);
    let served = async {
        eventually("its requests are refused", async || {
            let metrics = admin.metrics().await?;
            let of = |result| {
                metrics.sum("pilothouse_http_requests_total", &[("plugin", "flooding-http"), ("result", result)])
            };
            ensure!(of("too_many") > 0.0 && of("too_large") > 0.0, "{} and {}", of("too_many"), of("too_large"));
            Ok(())
        })
        .await?;
        let bounded = async {
            loop {
                let metrics = admin.metrics().await?;
                let in_flight = metrics.sum("pilothouse_http_requests_in_flight", &[("plugin", "flooding-http")]);
                ensure!(in_flight <= 16.0, "{in_flight} requests are in flight");
                sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            served = others_go_on(&mut host, &others) => served,
            unbounded = bounded => unbounded,
        }
    };
    while_they_are_called(&bad[..2], &admin, "flooding-http", served).await
}

pub(crate) async fn invariant_8_a_plugin_that_draws_random_numbers_for_ever_costs_itself_one_call(
    scene: Scene,
) -> Result<()> {
    have_no_children(&is_contained(&scene, "drawing").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_writes_to_stdout_for_ever_costs_itself_one_call(
    scene: Scene,
) -> Result<()> {
    have_no_children(&is_contained(&scene, "writing").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_floods_the_server_with_batches_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    floods(&scene, "flooding_batches").await
}

/// Each call of the guest ends at its deadline, and the metrics that it has changed stay.
pub(crate) async fn invariant_12_a_plugin_that_floods_the_host_with_series_has_a_thousand_of_them(
    scene: Scene,
) -> Result<()> {
    let (mut host, elsewhere) = serves_beside_myapple(&scene, confined("flooding_metrics", &scene.namespace)?).await?;
    let bad = [scene.apple("bad-1"), scene.apple("bad-2")];
    try_join_all(bad.iter().map(async |apple| apple.create(1).await.map(drop))).await?;
    let served = async {
        others_go_on(&mut host, &other_apples(&scene, &elsewhere)).await?;
        failed(&host, &scene.namespace, [LATE; 2]).await?;
        host.warns(&["a change of a metric is dropped", "flooding-metrics", "too many series"]).await?;
        let plugin = ("plugin", "flooding-metrics");
        let metrics = exposed(&mut host).await?;
        let series = metrics.sum("pilothouse_plugin_metric_series", &[plugin]);
        ensure!(series == 1000.0, "it has {series} series");
        for reason in ["undeclared", "type", "labels", "value", "series"] {
            let dropped = metrics.sum("pilothouse_plugin_metric_changes_dropped_total", &[plugin, ("reason", reason)]);
            ensure!(dropped > 0.0, "nothing was dropped as {reason}");
        }
        let exported = metrics.values("plugin_flood_total", "a").len();
        ensure!((1..=1000).contains(&exported), "{exported} values of its label are exported");
        let longest = metrics.values("plugin_flood_level", "a").iter().map(String::len).max();
        ensure!(longest.is_some_and(|longest| longest <= 128), "a label value has {longest:?} bytes");
        Ok(())
    };
    while_they_fail(&bad, served).await
}

/// 128 objects of the guest are reconciled at once while another plugin's objects are served. The guest never gets more
/// than its share of the permits.
async fn floods(scene: &Scene, guest: &str) -> Result<()> {
    let (mut host, elsewhere) = beside_myapple(scene, guest).await?;
    let names: Vec<String> = (0..128).map(|number| format!("bad-{number}")).collect();
    let bad: Vec<Apple> = names.iter().map(|name| scene.apple(name)).collect();
    try_join_all(bad.iter().map(async |apple| apple.create(1).await.map(drop))).await?;
    let admin = host.admin()?;
    let name = name_of(guest);
    let quantities = AtomicU32::new(2);
    let served = async {
        eventually("the flood waits for its turns", async || {
            let metrics = admin.metrics().await?;
            let waited = metrics.sum("pilothouse_plugin_requests_waited_total", &[("plugin", &name)]);
            if waited == 0.0 {
                // On a busy machine the first calls may come one after another. Together they come again.
                let quantity = quantities.fetch_add(1, Ordering::Relaxed);
                try_join_all(bad.iter().map(|apple| apple.scale(1 + quantity % 9))).await?;
            }
            ensure!(waited > 0.0, "each of its requests was sent at once");
            Ok(())
        })
        .await?;
        let others = other_apples(scene, &elsewhere);
        let bounded = async {
            loop {
                let metrics = admin.metrics().await?;
                let in_flight = metrics.sum("pilothouse_plugin_requests_in_flight", &[("plugin", &name)]);
                ensure!(in_flight <= 48.0, "{in_flight} requests are in flight");
                sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            served = others_go_on(&mut host, &others) => served,
            unbounded = bounded => unbounded,
        }
    };
    while_they_are_called(&bad[..2], &admin, &name, served).await
}

pub(crate) async fn invariant_8_a_plugin_that_traps_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "trapping").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_exhausts_memory_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "hungry").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_exhausts_a_table_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "tabulating").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_exhausts_its_stack_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "recursing").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_exhausts_the_stack_in_its_memory_costs_itself_one_call(
    scene: Scene,
) -> Result<()> {
    have_no_children(&is_contained(&scene, "recursing_wide").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_calls_while_it_is_called_costs_itself_one_call(
    scene: Scene,
) -> Result<()> {
    have_no_children(&is_contained(&scene, "reentering").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_hands_over_garbled_text_costs_itself_one_call(
    scene: Scene,
) -> Result<()> {
    have_no_children(&is_contained(&scene, "garbling").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_answers_too_much_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "huge").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_floods_the_log_costs_nobody_else_anything(scene: Scene) -> Result<()> {
    let (mut host, elsewhere) = beside_myapple(&scene, "flooding").await?;
    let bad = [scene.apple("bad-1"), scene.apple("bad-2")];
    try_join_all(bad.iter().map(async |apple| apple.create(1).await.map(drop))).await?;
    let served = async {
        others_go_on(&mut host, &other_apples(&scene, &elsewhere)).await?;
        // Each call has a bound, and all calls together have one.
        host.warns(&["plugin logged too many lines in one call"]).await?;
        host.warns(&["the plugin logs too much, or fails too often: lines are dropped", "flooding"]).await?;
        let dropped = host.metrics().await?.sum("pilothouse_plugin_log_dropped_total", &[("plugin", "flooding")]);
        ensure!(dropped > 0.0, "no line was dropped");
        Ok(())
    };
    while_they_fail(&bad, served).await
}

pub(crate) async fn invariant_8_a_plugin_that_floods_the_cluster_with_events_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    let here = |permission: Permission| permission.within(&scene.namespace);
    let grants = [Permission::of_myapple().to_vec(), vec![Permission::to(&["create"], "v1", "Event")]].concat();
    let guest = Plugin::guest("flooding_events")?.granted(&grants.into_iter().map(here).collect::<Vec<_>>());
    let (mut host, elsewhere) = serves_beside_myapple(&scene, guest).await?;
    served(&scene).await?;
    let counts = [("plugin", "flooding-events"), ("result", "dropped")];
    eventually("too many Events are dropped", async || {
        let dropped = host.metrics().await?.sum("pilothouse_plugin_events_total", &counts);
        // What the call recorded beyond its bound, and what the rate of the object leaves out.
        ensure!(dropped > 19_744.0 + 200.0, "{dropped} were dropped");
        Ok(())
    })
    .await?;
    others_go_on(&mut host, &other_apples(&scene, &elsewhere)).await?;
    let events: Api<Event> = Api::namespaced(scene.client(), &scene.namespace);
    let of_bad = events.list(&ListParams::default().fields("involvedObject.name=bad-1")).await?.items.len();
    ensure!(of_bad <= 26, "{of_bad} Events are about one object");
    Ok(())
}

/// The guest works correctly, in long stretches that never yield.
pub(crate) async fn invariant_8_a_plugin_that_holds_its_thread_costs_nobody_else_anything(scene: Scene) -> Result<()> {
    let (mut host, elsewhere) = beside_myapple(&scene, "filling").await?;
    let bad = served(&scene).await?;
    let others = other_apples(&scene, &elsewhere);
    let served = async {
        let before = held(&mut host, "filling").await?;
        ensure!(before > 0.0, "it gives way");
        others_go_on(&mut host, &others).await?;
        eventually("it goes on too", async || {
            let now = held(&mut host, "filling").await?;
            ensure!(now > before, "it held its thread {now} times");
            Ok(())
        })
        .await
    };
    while_they_fail(&bad, served).await
}

/// The host compares the guest's selections with each change while a shared informer is locked.
pub(crate) async fn invariant_8_a_plugin_that_would_hear_of_everything_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    let (mut host, elsewhere) = beside_myapple(&scene, "hoarding").await?;
    let bad = served(&scene).await?;
    // The example plugin reads only its own children.
    let reads = host.metrics().await?.sum("pilothouse_tracked_reads", &[]);
    ensure!((1.0..=100.0).contains(&reads), "{reads} things that were read are remembered");
    while_they_fail(&bad, others_go_on(&mut host, &other_apples(&scene, &elsewhere))).await?;
    is_woken_by_reads(&scene, &mut host).await
}

/// The host evaluates the manifest's predicates for every object at the start, and for each change.
pub(crate) async fn invariant_8_a_plugin_whose_predicates_take_long_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let members: BTreeMap<String, String> = (0..2_000).map(|n| (format!("member-{n}"), "x".repeat(36))).collect();
    let large = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large", "labels": {"judged": "good"}}, "data": members,
    });
    scene.config_maps().patch("large", &PatchParams::apply("test").force(), &Patch::Apply(large)).await?;
    let mut host = scene.with(&[Plugin::myapple()?.confined_to(&other)])?.host().await?;

    scene.plugins.put(&confined("judging", &scene.namespace)?)?;
    others_go_on(&mut host, &other_apples(&scene, &other)).await?;
    eventually("the plugin is active", async || {
        let active = host.metrics().await?.sum("pilothouse_plugin_active", &[("plugin", "judging")]);
        ensure!(active == 1.0, "it is not");
        Ok(())
    })
    .await?;

    let bad = served(&scene).await?;
    let others = ["jonagold", "pinova", "topaz"].map(|name| scene.apple_in(&other, name));
    let served = async {
        others_go_on(&mut host, &others).await?;
        host.warns(&["predicate takes too long and is switched off", "judging"]).await?;
        let off = host.metrics().await?.sum("pilothouse_predicates_off", &[("plugin", "judging")]);
        ensure!(off == 1.0, "{off} predicates are switched off");
        // It goes on too.
        scene.apple("good").create(1).await?.status_is("good", |status| status["available"] == 1).await.map(drop)
    };
    while_they_fail(&bad, served).await
}

pub(crate) async fn invariant_12_a_plugin_that_selects_the_same_many_times_has_it_once(scene: Scene) -> Result<()> {
    let (mut host, elsewhere) = beside_myapple(&scene, "selecting").await?;
    let bad = served(&scene).await?;
    eventually("one informer serves all selectors", async || {
        let running = host.metrics().await?.sum("pilothouse_informer_running", &[("kind", "Secret")]);
        ensure!(running == 1.0, "{running} informers run for Secrets");
        Ok(())
    })
    .await?;
    while_they_fail(&bad, others_go_on(&mut host, &other_apples(&scene, &elsewhere))).await
}

pub(crate) async fn invariant_12_a_plugin_that_asks_for_other_watches_in_each_call_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    const MOST: usize = 64;
    let here = Permission::of_myapple().map(|permission| permission.within(&scene.namespace));
    let wander = Permission::to(&["read"], "wander.example.com/*", "*");
    let wandering = Plugin::guest("wandering")?.granted(&[here.as_slice(), &[wander]].concat());
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let mut host = scene.with(&[Plugin::myapple()?.confined_to(&other), wandering])?.host().await?;
    let bad = served(&scene).await?;
    let (admin, others) = (host.admin()?, other_apples(&scene, &other));
    let bounded = async {
        loop {
            let metrics = admin.metrics().await?;
            let running = metrics.sum_where("pilothouse_informer_running", |label| label("kind").starts_with("Kind"));
            ensure!(running <= 2.0 * MOST as f64, "{running} informers run for a plugin that may have {MOST}");
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        served = while_they_fail(&bad, others_go_on(&mut host, &others)) => served?,
        unbounded = bounded => return unbounded,
    }
    // Hundreds at once are refused.
    let many = scene.apple("bad-many");
    many.create_with("many", 1).await?;
    host.warns(&["reconcile failed", "bad-many", "500 watches are more than the 64"]).await?;
    for apple in bad {
        apple.delete().await?;
    }
    many.delete().await?;
    eventually("nothing is watched for it any more", async || {
        let informers = host.informers().await?;
        let left =
            informers.iter().filter(|informer| informer["kind"].as_str().is_some_and(|kind| kind.contains("wander")));
        let left = left.count();
        ensure!(left == 0, "{left} informers are left");
        Ok(())
    })
    .await
}

pub(crate) async fn invariant_12_a_plugin_that_reads_by_very_much_is_remembered_within_its_memory(
    scene: Scene,
) -> Result<()> {
    // A quarter of the budget is for reads. 20 objects in 4 controllers exceed it.
    const MOST: f64 = (80 << 20) as f64 / 4.0;
    let guest = Plugin::guest("tracking")?.confined_to(&scene.namespace).limited(&json!({"totalMemoryMiB": 80}))?;
    let (mut host, elsewhere) = serves_beside_myapple(&scene, guest).await?;
    let bad: Vec<Apple> = (0..20).map(|number| scene.apple(&format!("bad-{number}"))).collect();
    for apple in &bad {
        apple.create(1).await?.status_is("served", |status| status["available"] == 1).await?;
    }
    let held = eventually("what was read is too much to remember", async || {
        let metrics = host.metrics().await?;
        let held = metrics.sum_where("pilothouse_tracked_bytes", |label| label("controller").starts_with("tracking/"));
        ensure!(held > MOST / 2.0, "{held} bytes are remembered");
        Ok(held)
    })
    .await?;
    ensure!(held < MOST * 1.1, "{held} bytes are remembered of what four controllers read");
    let memory = host.metrics().await?.sum("pilothouse_plugin_memory_bytes", &[("plugin", "tracking")]);
    ensure!(memory >= held / 2.0, "{memory} bytes are the plugin's");
    while_they_fail(&bad[..2], others_go_on(&mut host, &other_apples(&scene, &elsewhere))).await?;
    is_woken_by_reads(&scene, &mut host).await
}

pub(crate) async fn invariant_12_a_plugin_that_reads_very_long_names_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    let (mut host, elsewhere) = beside_myapple(&scene, "naming").await?;
    let bad = served(&scene).await?;
    let held = host.metrics().await?.sum("pilothouse_tracked_bytes", &[]);
    ensure!(held < (2 << 20) as f64, "{held} bytes are remembered");
    while_they_fail(&bad, others_go_on(&mut host, &other_apples(&scene, &elsewhere))).await
}

pub(crate) async fn invariant_12_a_plugin_of_very_many_controllers_costs_nobody_else_anything(
    scene: Scene,
) -> Result<()> {
    let (mut host, elsewhere) = beside_myapple(&scene, "sprawling").await?;
    let bad = served(&scene).await?;
    while_they_fail(&bad, others_go_on(&mut host, &other_apples(&scene, &elsewhere))).await
}

/// Creates two objects for the guest to fail at, and waits until it has served them.
async fn served(scene: &Scene) -> Result<[Apple; 2]> {
    let bad = [scene.apple("bad-1"), scene.apple("bad-2")];
    for apple in &bad {
        apple.create(1).await?.status_is("served", |status| status["available"] == 1).await?;
    }
    Ok(bad)
}

/// Waits until a new object that the guest selects wakes it.
async fn is_woken_by_reads(scene: &Scene, host: &mut Host) -> Result<()> {
    let before = woken_by_reads(host).await?;
    put(scene, "new", json!({}), "red").await?;
    eventually("it is woken by what it read", async || {
        let now = woken_by_reads(host).await?;
        ensure!(now > before, "{now} keys were woken");
        Ok(())
    })
    .await
}

async fn woken_by_reads(host: &mut Host) -> Result<f64> {
    Ok(host.metrics().await?.sum("pilothouse_wakes_total", &[("by", "read")]))
}

/// Counts how often the plugin held a thread without yielding.
async fn held(host: &mut Host, plugin: &str) -> Result<f64> {
    Ok(host.metrics().await?.sum("pilothouse_plugin_turns_held_total", &[("plugin", plugin)]))
}

pub(crate) async fn invariant_8_all_of_them_at_once_cost_nobody_else_anything(scene: Scene) -> Result<()> {
    scene.cluster.hang().await?;
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    // A plugin that works correctly and logs too much.
    let guests: Vec<&str> = HOSTILE.iter().map(|(guest, _)| *guest).chain(["flooding"]).collect();
    let namespace = |guest: &str| format!("{}-{}", scene.namespace, name_of(guest));
    let mut plugins = vec![Plugin::myapple()?.confined_to(&other)];
    for guest in &guests {
        scene.create_namespace(&namespace(guest)).await?;
        plugins.push(confined(guest, &namespace(guest))?.named(&name_of(guest)));
    }
    let mut host = scene.with(&plugins)?.host().await?;
    let of_all = |name| guests.iter().map(|guest| scene.apple_in(&namespace(guest), name)).collect::<Vec<_>>();
    let (good, bad) = (of_all("good"), [of_all("bad-1"), of_all("bad-2")].concat());
    try_join_all(bad.iter().map(async |apple| apple.create(1).await.map(drop))).await?;
    let served = async {
        // All at the same time, because the host calls a failing plugin less and less often.
        let good = good.iter().map(async |apple| {
            apple.create(1).await?.status_is("good", |status| status["available"] == 1).await.map(drop)
        });
        try_join(others_go_on(&mut host, &other_apples(&scene, &other)), try_join_all(good)).await?;
        for (guest, told) in HOSTILE {
            failed(&host, &namespace(guest), told).await?;
        }
        Ok(())
    };
    while_they_fail(&bad, served).await
}

pub(crate) async fn invariant_8_a_plugin_that_answers_nonsense_costs_itself_one_call(scene: Scene) -> Result<()> {
    let (mut host, elsewhere) = beside_myapple(&scene, "nonsense").await?;
    let bad = MISTAKES.map(|mistake| (mistake, scene.apple(&format!("bad-{mistake}"))));
    for (mistake, apple) in &bad {
        apple.create_with(mistake, 1).await?;
    }
    scene.apple("good").create(1).await?.status_is("good", |status| status["available"] == 1).await?;
    let noticed = eventually("every mistake was noticed", async || {
        let log = host.log()?;
        let unnoticed = MISTAKES.iter().find(|mistake| {
            let key = format!("{}/bad-{mistake}", scene.namespace);
            !log.iter().any(|line| line.text.contains("reconcile failed") && line.text.contains(&key))
        });
        ensure!(unnoticed.is_none(), "of {unnoticed:?} the log says nothing");
        Ok(())
    });
    noticed.await?;
    while_they_fail(
        &bad.each_ref().map(|(_, apple)| apple),
        others_go_on(&mut host, &other_apples(&scene, &elsewhere)),
    )
    .await?;
    for (mistake, apple) in &bad {
        let children = apple.children().await?;
        ensure!(children.is_empty() || *mistake == "twice", "{mistake} has children: {children:?}");
    }
    Ok(())
}

pub(crate) async fn a_plugin_that_cannot_be_used_is_refused_with_the_reason(scene: Scene) -> Result<()> {
    let reasons = [
        ("describe_calls", ["describe", "import"], "clock.now"),
        ("describe_fails", ["describe", "refused"], "nothing suits me"),
        ("describe_loops", ["describe", "deadline"], "deadline"),
        ("describe_nonsense", ["describe", "manifest"], "No Name!"),
        ("describe_oversized", ["describe", "manifest"], "has 257 entries; at most 256 are taken"),
        ("describe_traps", ["describe", "trap"], "trapped"),
        (
            "describe_unexported",
            ["describe", "manifest"],
            "needs pilothouse:plugin/mapper@0.1.0, which the component does not export",
        ),
        ("greedy", ["link", "link"], "test:greedy/secrets"),
    ];
    let mut plugins = vec![Plugin::myapple()?];
    for (guest, ..) in &reasons {
        plugins.push(Plugin::guest(guest)?.named(&name_of(guest)));
    }
    are_refused(&scene, &plugins, &reasons.map(|(guest, step, reason)| (name_of(guest), step, reason))).await
}

pub(crate) async fn a_plugin_that_misbehaves_while_an_instance_is_made_is_refused_with_the_reason(
    scene: Scene,
) -> Result<()> {
    let reasons = [
        ("starting", ["describe", "deadline"], "deadline of 5000 ms"),
        ("trapping", ["describe", "trap"], "plugin trapped"),
        (
            "crowded",
            ["describe", "instantiate"],
            "cannot instantiate the plugin: resource limit exceeded: instance count too high",
        ),
        ("thousand", ["compile", "decode"], "cannot compile"),
        ("hungry", ["describe", "memory"], "plugin hit its memory limit of 64 MiB"),
        ("tabular", ["describe", "table"], "plugin hit its limit of 100000 table elements"),
        ("tabling", ["describe", "table"], "plugin hit its limit of 100000 table elements"),
        ("roomy", ["compile", "decode"], "MiB in an instance, and at most 32 are allowed"),
        ("named", ["compile", "decode"], "has 17000 bytes, and at most 16384 are allowed"),
    ];
    let plugins = [vec![Plugin::myapple()?], Plugin::misbehaving_as_made()?].concat();
    are_refused(&scene, &plugins, &reasons.map(|(name, step, reason)| (name.to_owned(), step, reason))).await
}

/// A plugin that the host rejects: its name, the failing step and the reason as in the metric, and the message.
type Refused = (String, [&'static str; 2], &'static str);

/// The host reports why it rejects each of these plugins. The example plugin among them works.
async fn are_refused(scene: &Scene, plugins: &[Plugin], reasons: &[Refused]) -> Result<()> {
    let mut host = scene.with(plugins)?.starting_host()?;
    for (name, _, reason) in reasons {
        eventually(&format!("/readyz says why {name} is refused"), async || {
            let told = host.readiness_of(name).await?;
            ensure!(told.contains("failed") && told.contains(reason), "it says: {told}");
            Ok(())
        })
        .await?;
    }
    let failures = load_failures(&mut host, reasons).await?;
    ensure!(failures.iter().all(|&times| times > 0.0), "not all failures are counted: {failures:?}");
    // A change of its YAML file makes the host load each once more, and each fails again, even those that loop.
    let refused = plugins.iter().filter(|plugin| reasons.iter().any(|(name, ..)| *name == plugin.name));
    let again = async {
        for turn in 1.. {
            for plugin in refused.clone() {
                let yaml = format!(
                    "{}\nlimits: {{timeoutMs: 500, hostCalls: {turn}}}\n",
                    plugin.yaml.as_deref().unwrap_or_default()
                );
                scene.plugins.put(&plugin.clone().with_yaml(yaml))?;
            }
            sleep(Duration::from_secs(2)).await;
        }
        Ok(())
    };
    let served = async {
        let before = load_failures(&mut host, reasons).await?;
        others_go_on(&mut host, &other_apples(scene, &scene.namespace)).await?;
        eventually("each fails again", async || {
            let now = load_failures(&mut host, reasons).await?;
            let rests = reasons.iter().zip(before.iter().zip(&now)).find(|(_, (before, now))| now <= before);
            ensure!(rests.is_none(), "this one does not: {rests:?}");
            Ok(())
        })
        .await
    };
    tokio::select! {
        served = served => served,
        ended = again => ended,
    }
}

/// Counts how often each of these plugins was rejected for that reason. A slow machine may see other reasons at times,
/// such as a deadline.
async fn load_failures(host: &mut Host, refused: &[Refused]) -> Result<Vec<f64>> {
    let metrics = host.metrics().await?;
    let of = |(name, [stage, kind], _): &Refused| {
        let labels = [("plugin", name.as_str()), ("stage", *stage), ("kind", *kind)];
        metrics.sum("pilothouse_plugin_load_failures_total", &labels)
    };
    Ok(refused.iter().map(of).collect())
}

/// Creates two objects on which the guest fails, which are returned, one on which it does not, and others for myapple.
async fn is_contained(scene: &Scene, guest: &str) -> Result<[Apple; 2]> {
    let told = HOSTILE.iter().find(|(name, _)| *name == guest).context("the log is to say something of it")?.1;
    fails_alone(scene, confined(guest, &scene.namespace)?, told).await
}

/// Returns the guest with grants for this namespace.
fn confined(guest: &str, namespace: &str) -> Result<Plugin> {
    let plugin = Plugin::guest(guest)?.confined_to(namespace);
    // Its deadline must end it, however fast the host is.
    let asks_on = json!({"hostCalls": 1_000_000_000, "hostMiB": 1_000_000});
    if ["asking", "drawing", "flooding_http", "flooding_metrics", "writing"].contains(&guest) {
        plugin.limited(&asks_on)
    } else {
        Ok(plugin)
    }
}

/// Does the same with the guest `asking` under these limits. The log has these messages for both objects.
async fn is_limited(scene: &Scene, limits: &Value, told: &str) -> Result<[Apple; 2]> {
    fails_alone(scene, Plugin::guest("asking")?.confined_to(&scene.namespace).limited(limits)?, [told; 2]).await
}

async fn fails_alone(scene: &Scene, guest: Plugin, told: [&str; 2]) -> Result<[Apple; 2]> {
    let name = name_of(&guest.name);
    let (mut host, elsewhere) = serves_beside_myapple(scene, guest).await?;
    let bad = [scene.apple("bad-1"), scene.apple("bad-2")];
    for apple in &bad {
        apple.create(1).await?;
    }
    let good = scene.apple("good");
    good.create(1).await?.status_is("good", |status| status["available"] == 1).await?;
    ensure!(good.maps.get_opt("good-good").await?.is_some(), "the good one has no child");

    failed(&host, &scene.namespace, told).await?;
    // They are retried and fail again while others are served.
    let admin = host.admin()?;
    let served = async {
        let before = errors(&mut host, &name).await?;
        others_go_on(&mut host, &other_apples(scene, &elsewhere)).await?;
        eventually("its failures are counted", async || {
            let now = errors(&mut host, &name).await?;
            ensure!(now >= before + 3.0, "{before} errors before, {now} now");
            Ok(())
        })
        .await
    };
    while_they_are_called(&bad, &admin, &name, served).await?;
    for apple in &bad {
        let object = apple.get().await?;
        ensure!(object.data.get("status").is_none(), "a bad one has a status: {}", object.data["status"]);
    }
    Ok(bad)
}

async fn have_no_children(bad: &[Apple]) -> Result<()> {
    for apple in bad {
        ensure!(apple.children().await?.is_empty(), "a bad one has children");
    }
    Ok(())
}

/// Starts a host with `guest` for the scene's namespace and the example plugin for another, whose name is returned.
pub(crate) async fn beside_myapple(scene: &Scene, guest: &str) -> Result<(Host, String)> {
    serves_beside_myapple(scene, Plugin::guest(guest)?.confined_to(&scene.namespace)).await
}

pub(crate) async fn serves_beside_myapple(scene: &Scene, guest: Plugin) -> Result<(Host, String)> {
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let name = name_of(&guest.name);
    let plugins = [Plugin::myapple()?.confined_to(&other), guest.named(&name)];
    let host = scene.with(&plugins)?.host().await?;
    Ok((host, other))
}

/// Turns the name of a Rust file into a plugin's name.
fn name_of(guest: &str) -> String {
    guest.replace('_', "-")
}

/// Waits until the log says why `bad-1` and `bad-2` of a namespace failed.
async fn failed(host: &Host, namespace: &str, told: [&str; 2]) -> Result<()> {
    for (name, told) in ["bad-1", "bad-2"].iter().zip(told) {
        host.warns(&["reconcile failed", &format!("{namespace}/{name}"), told]).await?;
    }
    Ok(())
}

/// Counts failed reconciles over all controllers of a plugin.
async fn errors(host: &mut Host, plugin: &str) -> Result<f64> {
    let controller = format!("{plugin}/");
    Ok(host.metrics().await?.sum_where("controller_runtime_reconcile_total", |label| {
        label("controller").starts_with(&controller) && label("result") == "error"
    }))
}

/// As [`while_they_fail`]. Besides, the plugin of these objects is never quarantined, however often it fails.
async fn while_they_are_called(
    bad: &[impl Borrow<Apple>],
    admin: &Admin,
    plugin: &str,
    what: impl Future<Output = Result<()>>,
) -> Result<()> {
    let releases = async {
        loop {
            admin.release(plugin).await?;
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        done = while_they_fail(bad, what) => done,
        refused = releases => refused,
    }
}

/// Keeps changing objects, so that their retries do not become rare.
pub(crate) async fn while_they_fail(bad: &[impl Borrow<Apple>], what: impl Future<Output = Result<()>>) -> Result<()> {
    let stir = async {
        for quantity in (1..=9).cycle() {
            try_join_all(bad.iter().map(|apple| apple.borrow().scale(quantity))).await?;
        }
        Ok(())
    };
    tokio::select! {
        done = what => done,
        stirred = stir => stirred,
    }
}

pub(crate) fn other_apples(scene: &Scene, namespace: &str) -> [Apple; 3] {
    ["gala", "fuji", "idared"].map(|name| scene.apple_in(namespace, name))
}

async fn is_healthy(host: &mut Host) -> Result<()> {
    let (code, _) = timeout(ANSWERS, host.get("/healthz")).await.context("/healthz does not answer")??;
    ensure!(code == 200, "/healthz answers {code}");
    Ok(())
}

/// While other plugins fail, the example plugin serves these new objects without an error, and the health endpoint
/// keeps answering.
pub(crate) async fn others_go_on(host: &mut Host, apples: &[Apple]) -> Result<()> {
    let served = try_join_all(apples.iter().map(async |apple| apple.create(3).await?.settles().await));
    let healthy = async {
        loop {
            is_healthy(host).await?;
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        served = served => drop(served?),
        unwell = healthy => return unwell,
    }
    is_healthy(host).await?;
    let errors = errors(host, "myapple").await?;
    ensure!(errors == 0.0, "{errors} reconciles of the other plugin failed");
    Ok(())
}
