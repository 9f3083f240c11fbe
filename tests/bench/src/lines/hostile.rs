//! Latency from an event to its reconcile while other plugins misbehave, compared with the latency while they are idle.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{
    TryFutureExt as _,
    future::{Either, select, try_join, try_join_all},
    stream::{self, StreamExt as _, TryStreamExt as _},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use pilothouse_e2e::{
    Apple, Plugin,
    admin::Admin,
    plugin::{MISTAKES, Permission},
};
use serde_json::json;
use tokio::{
    runtime::Runtime,
    time::{sleep, timeout},
};

use crate::{
    clock::cpu_time_of,
    controllers::{
        NAMESPACE, Stage,
        host::{Host, Says},
    },
    statistics::percentile,
};

/// Number of changes. Eight slow ones show in the 99th percentile. A plugin may log each of them: 1,000 lines, and 100
/// a second.
const CHANGES: usize = 750;
/// Pause between changes while others misbehave. It is shorter than that of `latency`, because nothing is idle.
const PAUSE: Duration = Duration::from_millis(1);
/// The namespace without a misbehaving plugin.
const QUIET: &str = "quiet";
/// Plugins with long calls, by guest and number.
///
/// - Eight, more than the threads, never return from a call. The host stops the call after 300 ms.
/// - Two log 20,000 lines of 1 kB in each call.
/// - Two call the host until they reach the limit of calls.
const LASTING: Group<'_> = Group { namespace: "lasting", guests: &[("looping", 8), ("flooding", 2), ("asking", 2)] };
/// Plugins that fail at once. They exhaust memory, a table, the stack, or the stack in their memory; they trap,
/// re-enter, or pass values that are too many, too long or not UTF-8.
const FAILING: Group<'_> = Group {
    namespace: "failing",
    guests: &[
        ("garbling", 1),
        ("huge", 1),
        ("hungry", 1),
        ("oversized", 1),
        ("recursing", 1),
        ("recursing_wide", 1),
        ("reentering", 1),
        ("tabulating", 1),
        ("trapping", 1),
    ],
};
/// Each way to misbehave, in the order of the figures of `hostile-each` and `hostile-three`. The last waits until its
/// deadline for an API server that never answers.
const WAYS: [&str; 26] = [
    "asking",
    "filling",
    "flooding",
    "flooding_requests",
    "flooding_writes",
    "garbling",
    "hoarding",
    "huge",
    "hungry",
    "judging",
    "looping",
    "mapping_badly",
    "naming",
    "nonsense",
    "observing_badly",
    "oversized",
    "recursing",
    "recursing_wide",
    "reentering",
    "selecting",
    "sprawling",
    "tabulating",
    "tracking",
    "trapping",
    "trespasser",
    WAITING,
];
/// Plugins that misbehave on changes of ConfigMaps, not of MyApples. A label of the ConfigMap selects the fault.
const HOOKS: [&str; 2] = ["mapping_badly", "observing_badly"];
/// The faults that they know.
const HOOK_MISTAKES: [&str; 5] = ["trap", "loop", "fail", "flood", "nowhere"];
/// The plugin that the API server never answers.
const WAITING: &str = "waiting";
/// Guests that the host rejects while it loads them, in the order of the figures of `hostile-loading`.
///
/// In one `describe` never ends, one is too large, one lacks declared exports, and one has an unknown import. After
/// these come the ones that [misbehave during instantiation](Plugin::misbehaving_as_made).
const REFUSED: [&str; 4] = ["describe_loops", "describe_oversized", "describe_unexported", "greedy"];
/// Guests that run until their deadline.
const ENDLESS: [&str; 2] = ["describe-loops", "starting"];
/// Guests that no setting can fix. The host remembers their rejection, so they come as new files and are compiled
/// again.
const FOR_GOOD: [&str; 4] = ["greedy", "thousand", "roomy", "named"];
/// Deadline of a call in milliseconds.
const DEADLINE: u64 = 300;
/// Interval at which these are compiled again. A compilation takes a second.
const AGAIN_COMPILED: Duration = Duration::from_millis(1_250);
/// Interval at which those that run until their deadline are loaded again.
const AGAIN: Duration = Duration::from_millis(500);
/// The same for the others. The host waits for 50 ms without a file change.
const AGAIN_SOON: Duration = Duration::from_millis(100);
/// Number of objects for each group. It is not a multiple of the number of faults, so an object never gets the color
/// that it has.
const BAD: usize = 20;
/// Interval at which one of these is changed, so that there is always work.
const EVERY: Duration = Duration::from_millis(50);
/// Interval at which quarantined plugins are released, so that they go on.
const RELEASED: Duration = Duration::from_millis(50);
/// Minimum number of calls of a group during a measurement. Calls that last until their deadline are few.
const LEAST: f64 = 5.0;
/// Time until all plugins of a group are busy.
const LEAD: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);
/// Number of queued keys of one plugin while a key of the other comes. The guest `slow` computes some milliseconds for
/// each.
const CROWD: usize = 10_000;
/// Pause until `noting` may log as much again.
const LOGS: Duration = Duration::from_secs(8);
/// Their namespace.
const CROWDED: &str = "crowded";
/// Number of objects that are created at once.
const AT_ONCE: usize = 16;
/// Plugins that always compute, with their weights. One gets three times as much as each of three others, which is less
/// than the core that its single worker can use.
const GREEDY: [(&str, &str, u32); 5] = [
    ("heavy", "cpuWeight", 300),
    ("capped", "cpuMilli", 250),
    ("light-0", "cpuWeight", 100),
    ("light-1", "cpuWeight", 100),
    ("light-2", "cpuWeight", 100),
];
/// For an object of this quantity the guest `slow` computes most of a minute.
const LONG: u32 = 10_000;
/// Time over which their use is measured.
const SHARED: Duration = Duration::from_secs(5);

/// Plugins that misbehave together.
struct Group<'a> {
    /// The namespace of their objects.
    namespace: &'a str,
    guests: &'a [(&'static str, usize)],
}

impl Group<'_> {
    fn plugins(&self) -> Result<Vec<Plugin>> {
        let plugin = |guest: &str, name: &str| {
            let plugin = Plugin::guest(guest)?.confined_to(self.namespace).named(name);
            if HOOKS.contains(&guest) { plugin.limited(&json!({"timeoutMs": DEADLINE})) } else { Ok(plugin) }
        };
        self.names().map(|(guest, name)| plugin(guest, &name)).collect()
    }

    /// The guest and the name of each plugin.
    fn names(&self) -> impl Iterator<Item = (&'static str, String)> {
        let named = |&(guest, count): &(&'static str, usize)| {
            (0..count).map(move |number| (guest, format!("{}-{number}", guest.replace('_', "-"))))
        };
        self.guests.iter().flat_map(named)
    }
}

/// A host with plugins that misbehave when they find an object.
struct Scene {
    stage: Stage,
    host: Host,
}

impl Scene {
    /// Starts a host with all of these groups, and waits until it is idle.
    async fn set(groups: &[Group<'_>]) -> Result<Self> {
        let mut stage = Stage::set().await?;
        for namespace in [QUIET, CROWDED].into_iter().chain(groups.iter().map(|group| group.namespace)) {
            stage.create_namespace(namespace).await?;
        }
        let mut plugins = vec![Plugin::myapple()?.confined_to(QUIET)];
        for group in groups {
            plugins.extend(group.plugins()?);
        }
        let mut host = Host::start(&stage, Says::Typed, &plugins)?;
        let all = timeout(LIMIT, host.serves(plugins.len() + 1)).await;
        all.with_context(|| format!("not all plugins serve within {} s", LIMIT.as_secs()))??;
        // `myapple` brings the kind.
        Apple::new(stage.cluster.client(), QUIET, "good").create(1).await?.settles().await?;
        stage.settles(&mut host).await?;
        rests(host.id()).await?;
        Ok(Self { stage, host })
    }

    /// Measures the line `latency` now: median and 99th percentile in microseconds.
    async fn latency(&mut self) -> Result<[f64; 2]> {
        percentiles(&self.stage.latencies(&mut self.host, CHANGES, PAUSE).await?)
    }

    /// Measures the same while a group misbehaves. It begins this long after the group's first object, when the host's
    /// state is steady.
    async fn beside(&mut self, group: &Group<'_>, lead: Duration) -> Result<[f64; 2]> {
        rests(self.host.id()).await?;
        let (client, admin) = (self.stage.cluster.client(), self.host.admin()?);
        let names: Vec<String> = group.names().map(|(_, name)| name).collect();
        let maps = Api::namespaced(client.clone(), group.namespace);
        let bad: Vec<Apple> =
            (0..BAD).map(|n| Apple::new(client.clone(), group.namespace, &format!("bad-{n}"))).collect();
        let has_hooks = group.guests.iter().any(|(guest, _)| HOOKS.contains(guest));
        let provoked = async { if has_hooks { provoke_hooks(&maps).await } else { provoke(&bad).await } };
        let provoked = try_join(provoked, release(&admin, &names));
        let before = calls(&admin, &names).await?;
        let hostile = self.during(provoked.map_ok(drop), names.iter().cloned(), group.namespace, lead).await?;
        let called = calls(&admin, &names).await? - before;
        eprintln!("  {}: called {called} times", group.namespace);
        ensure!(called >= LEAST, "{} was called {called} times", group.namespace);
        if !has_hooks {
            try_join_all(bad.iter().map(Apple::delete)).await?;
        }
        Ok(hostile)
    }

    /// Measures the same while the host rejects this plugin again and again.
    async fn beside_refused(&mut self, plugin: &Plugin) -> Result<[f64; 2]> {
        // The plugin is compiled once.
        timeout(LIMIT, self.host.refuses(plugin))
            .await
            .with_context(|| format!("{} is not refused", plugin.name))??;
        rests(self.host.id()).await?;
        let plugins = self.host.plugins();
        let [endless, for_good] = [&ENDLESS[..], &FOR_GOOD[..]].map(|names| names.contains(&plugin.name.as_str()));
        let pause = match (for_good, endless) {
            (true, _) => AGAIN_COMPILED,
            (_, true) => AGAIN,
            _ => AGAIN_SOON,
        };
        let refused = async {
            for turn in (1..=u8::MAX).cycle() {
                // A change of its YAML file makes the host load it once more.
                let limits = json!({"timeoutMs": DEADLINE, "hostCalls": turn});
                let again = plugin.clone().limited(&limits)?;
                if for_good {
                    plugins.put(&again.revision(turn))?;
                } else {
                    plugins.put_yaml(&again)?;
                }
                sleep(pause).await;
            }
            Ok(())
        };
        self.during(refused, [plugin.name.clone()].into_iter(), &plugin.name, Duration::ZERO).await
    }

    /// Measures the same while plugins of these names misbehave, beginning this long after the first provocation.
    async fn during(
        &mut self,
        provoked: impl Future<Output = Result<()>>,
        names: impl Iterator<Item = String>,
        what: &str,
        lead: Duration,
    ) -> Result<[f64; 2]> {
        let Self { stage, host } = self;
        let id = host.id();
        let measured = pin!(async {
            sleep(lead).await;
            host.listen_for(names)?;
            let (start, before) = (Instant::now(), cpu_time_of(id)?);
            let latencies = stage.latencies(host, CHANGES, PAUSE).await?;
            let cores = cpu_time_of(id)?.saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64();
            let [median, most] = percentiles(&latencies)?;
            eprintln!(
                "  {what}: p50 {median:.0} µs, p99 {most:.0} µs; the host used {cores:.2} cores for {:.1} s",
                start.elapsed().as_secs_f64()
            );
            let idle: Vec<&str> = host.unheard().collect();
            ensure!(idle.is_empty(), "not at work were {}", idle.join(", "));
            Ok([median, most])
        });
        match select(pin!(provoked), measured).await {
            Either::Left((ended, _)) => Err(ended.err().context("it ends only where it fails")?),
            Either::Right((percentiles, _)) => percentiles,
        }
    }
}

/// Measures the line `latency` in one host: while all are quiet, and while each of two groups misbehaves.
///
/// The figures are the 99th percentile of each group divided by that of quiet, then median and 99th percentile of all
/// three, in microseconds. The bench and the API server share the machine with the host. On two cores a group leaves
/// them next to nothing, so the budget of twice is for a single plugin of each way: see [`each`].
pub(super) fn together() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let mut scene = Scene::set(&[LASTING, FAILING]).await?;
        let quiet = scene.latency().await?;
        let failing = scene.beside(&FAILING, LEAD).await?;
        let lasting = scene.beside(&LASTING, LEAD).await?;
        Ok([&[lasting[1] / quiet[1], failing[1] / quiet[1]][..], &lasting, &failing, &quiet].concat())
    })
}

/// One plugin of each way to misbehave, by itself: see [`alone`].
pub(super) fn each() -> Result<Vec<f64>> {
    alone(1)
}

/// Three of each: more than a small machine has threads for them.
pub(super) fn three() -> Result<Vec<f64>> {
    alone(3)
}

/// Measures the 99th percentile of the line `latency` beside this many plugins that misbehave in one way, divided by
/// the one just before, when all were quiet. Each way has its own host.
fn alone(plugins: usize) -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let mut ratios = Vec::with_capacity(WAYS.len());
        for way in WAYS {
            let group = Group { namespace: &way.replace('_', "-"), guests: &[(way, plugins)] };
            let mut scene = Scene::set(std::slice::from_ref(&group)).await?;
            if way == WAITING {
                scene.stage.cluster.hang().await?;
            }
            let quiet = scene.latency().await?;
            let hostile = scene.beside(&group, Duration::ZERO).await?;
            if way == WAITING {
                scene.stage.cluster.has_hung().await?;
            }
            ratios.push(hostile[1] / quiet[1]);
        }
        Ok(ratios)
    })
}

/// Measures the same beside one plugin that is rejected in one way.
pub(super) fn loading() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let mut ratios = Vec::new();
        for plugin in refused()? {
            let mut scene = Scene::set(&[]).await?;
            let quiet = scene.latency().await?;
            let hostile = scene.beside_refused(&plugin).await?;
            ratios.push(hostile[1] / quiet[1]);
        }
        Ok(ratios)
    })
}

/// Measures by how many milliseconds the line `latency` grows while ten thousand keys of another plugin are queued:
/// median and 99th percentile.
pub(super) fn crowd() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let mut scene = Scene::set(&[]).await?;
        // Otherwise it would be called, and would log, for the other plugin's writes.
        let maps = Permission::to(&["read"], "v1", "ConfigMap").within(NAMESPACE);
        scene.host.plugins().put_yaml(&Plugin::guest("noting")?.granted(&[maps]))?;
        let client = scene.stage.cluster.client();
        let apples = (0..CROWD).map(|number| Apple::new(client.clone(), CROWDED, &format!("one-of-many-{number}")));
        let created = stream::iter(apples).map(|apple| async move {
            apple.create(1).await?;
            anyhow::Ok(apple)
        });
        let apples: Vec<Apple> = created.buffer_unordered(AT_ONCE).try_collect().await?;
        rests(scene.host.id()).await?;
        let quiet = scene.latency().await?;
        sleep(LOGS).await;
        scene.host.plugins().put(&Plugin::guest("slow")?.confined_to(CROWDED))?;
        timeout(LIMIT, scene.host.serves(1)).await.context("the other plugin does not serve")??;
        let crowded = scene.latency().await?;
        let mut served = 0;
        for apple in &apples {
            served += usize::from(apple.apples.get(&apple.name).await?.data.get("status").is_some());
        }
        eprintln!("  {served} of {CROWD} keys were served meanwhile");
        ensure!((1..CROWD).contains(&served), "the other plugin had nothing to do at times");
        Ok(quiet.into_iter().zip(crowded).map(|(quiet, crowded)| (crowded - quiet) / 1e3).collect())
    })
}

/// Measures the CPU time of the heavy one of [`GREEDY`], divided by the mean of those with a third of its weight. The
/// second figure is the number of cores of the one that is capped to a quarter of a core.
pub(super) fn shares() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let mut scene = Scene::set(&[]).await?;
        let client = scene.stage.cluster.client();
        for (name, limit, value) in GREEDY {
            scene.stage.create_namespace(name).await?;
            Apple::new(client.clone(), name, "long").create(LONG).await?;
            let plugin = Plugin::guest("slow")?.named(name).confined_to(name).limited(&json!({limit: value}))?;
            scene.host.plugins().put(&plugin)?;
        }
        timeout(LIMIT, scene.host.serves(GREEDY.len())).await.context("the plugins do not serve")??;
        sleep(LEAD).await;
        let admin = scene.host.admin()?;
        let used = async || {
            let metrics = admin.metrics().await?;
            anyhow::Ok(GREEDY.map(|(name, ..)| metrics.sum("pilothouse_plugin_cpu_seconds_total", &[("plugin", name)])))
        };
        let (start, before) = (Instant::now(), used().await?);
        sleep(SHARED).await;
        let (passed, after) = (start.elapsed().as_secs_f64(), used().await?);
        let [heavy, capped, light @ ..]: [f64; GREEDY.len()] =
            std::array::from_fn(|plugin| (after[plugin] - before[plugin]) / passed);
        eprintln!("  cores used: heavy {heavy:.3}, capped {capped:.3}, light {light:.3?}");
        ensure!(light.iter().all(|used| *used > 0.0), "a plugin had no turn within {passed:.1} s");
        Ok(vec![heavy / (light.iter().sum::<f64>() / light.len() as f64), capped])
    })
}

fn refused() -> Result<Vec<Plugin>> {
    let guest = |name: &str| Ok(Plugin::guest(name)?.named(&name.replace('_', "-")));
    let guests = REFUSED.into_iter().map(guest).collect::<Result<Vec<_>>>()?;
    let refused = guests.into_iter().chain(Plugin::misbehaving_as_made()?);
    refused.map(|plugin| plugin.confined_to(QUIET).limited(&json!({"timeoutMs": DEADLINE}))).collect()
}

/// The median and the 99th percentile.
fn percentiles(latencies: &[f64]) -> Result<[f64; 2]> {
    let at = |percent| percentile(latencies, percent).context("nothing was measured");
    Ok([at(50.0)?, at(99.0)?])
}

/// Waits until the process is idle: it uses less than a fiftieth of a core.
async fn rests(id: u32) -> Result<()> {
    let start = Instant::now();
    loop {
        let before = cpu_time_of(id)?;
        sleep(WINDOW).await;
        if cpu_time_of(id)?.saturating_sub(before) < WINDOW / 50 {
            return Ok(());
        }
        ensure!(start.elapsed() < LIMIT, "the host does not become idle");
    }
}

/// Releases these plugins from quarantine, again and again, for ever.
async fn release(admin: &Admin, plugins: &[String]) -> Result<()> {
    loop {
        for plugin in plugins {
            admin.release(plugin).await?;
        }
        sleep(RELEASED).await;
    }
}

/// Counts the calls of these plugins.
async fn calls(admin: &Admin, plugins: &[String]) -> Result<f64> {
    let metrics = admin.metrics().await?;
    Ok(plugins.iter().map(|plugin| metrics.sum("pilothouse_call_seconds_count", &[("plugin", plugin)])).sum())
}

/// Creates all objects, then changes one after another, for ever.
async fn provoke(bad: &[Apple]) -> Result<()> {
    for apple in bad {
        apple.create(1).await?;
    }
    // Only the guest `nonsense` reads the color.
    for (apple, color) in bad.iter().cycle().zip(MISTAKES.iter().cycle()) {
        apple.set(json!({"color": color})).await?;
        sleep(EVERY).await;
    }
    Ok(())
}

/// Creates a ConfigMap for each fault, then changes one after another, for ever.
async fn provoke_hooks(maps: &Api<ConfigMap>) -> Result<()> {
    let change = |mistake: &str, value: usize| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": mistake, "labels": {"mistake": mistake}},
            "data": {"value": value.to_string()},
        })
    };
    for (value, mistake) in HOOK_MISTAKES.iter().cycle().enumerate() {
        let bench = PatchParams::apply("bench").force();
        maps.patch(mistake, &bench, &Patch::Apply(change(mistake, value))).await?;
        sleep(EVERY).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::named, *};

    #[test]
    fn each_figure_is_named_after_its_way_to_misbehave() {
        for (line, suffix) in [("hostile-each", ""), ("hostile-three", "-three")] {
            let figures = named(line).expect("the line is there").figures.iter().map(|figure| figure.name.to_owned());
            let ways: Vec<String> =
                WAYS.iter().map(|way| format!("hostile-{}{suffix}", way.replace('_', "-"))).collect();
            assert_eq!(figures.collect::<Vec<_>>(), ways);
        }
        let figures = named("hostile-loading").expect("the line is there").figures.iter();
        let refused = refused().expect("the guests are built");
        let ways: Vec<String> = refused.iter().map(|plugin| format!("hostile-{}-loading", plugin.name)).collect();
        assert_eq!(figures.map(|figure| figure.name.to_owned()).collect::<Vec<_>>(), ways);
    }
}
