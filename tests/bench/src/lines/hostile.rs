//! From an event to the reconcile that it causes while other plugins do their worst, beside the same while they have nothing to do.

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

/// So many that it takes eight slow ones to show; so few that a plugin may log that it is called for each of them, again and again with a
/// rest between: a thousand times, and a hundred times a second.
const CHANGES: usize = 750;
/// Nobody is at rest while others misbehave: shorter than that of `latency`.
const PAUSE: Duration = Duration::from_millis(1);
/// Where nobody misbehaves.
const QUIET: &str = "quiet";
/// Those whose calls last, by what they do and how many of them: eight never return from a call, which is stopped after 300 ms, and are more
/// than there are threads; two log 20,000 lines of 1 kB in each call; two ask the host something until they may ask no more.
const LASTING: Group<'_> = Group { namespace: "lasting", guests: &[("looping", 8), ("flooding", 2), ("asking", 2)] };
/// Those that fail at once: they use up their memory, a table, their stack and the stack in their memory, trap, call while they are called,
/// and hand over what is too much, too long and no text.
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
/// Each way to misbehave, in the order of the figures of `hostile-each` and `hostile-three`. The last waits until its deadline for an API server
/// that does not answer it.
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
/// Those that misbehave over changes of ConfigMaps, each of which has the mistake that they make as a label, and not over MyApples.
const HOOKS: [&str; 2] = ["mapping_badly", "observing_badly"];
/// What they take as one.
const HOOK_MISTAKES: [&str; 5] = ["trap", "loop", "fail", "flood", "nowhere"];
/// The one for which the API server is not to answer.
const WAITING: &str = "waiting";
/// The guests that are refused before they serve: one never ends describing itself, one is too large, one lacks exports that it declares, and
/// one has an import too many. In the order of the figures of `hostile-loading`, after which come those that
/// [misbehave as they are made](Plugin::misbehaving_as_made).
const REFUSED: [&str; 4] = ["describe_loops", "describe_oversized", "describe_unexported", "greedy"];
/// Those that go on until their deadline.
const ENDLESS: [&str; 2] = ["describe-loops", "starting"];
/// Those that no settings could help: the host remembers that it refused them. They come as other files, and are compiled again.
const FOR_GOOD: [&str; 4] = ["greedy", "thousand", "roomy", "named"];
/// Milliseconds.
const DEADLINE: u64 = 300;
/// How often these are compiled again, which takes a second.
const AGAIN_COMPILED: Duration = Duration::from_millis(1_250);
/// How often those that go on until their deadline are looked at again.
const AGAIN: Duration = Duration::from_millis(500);
/// How often the others are: the host waits for 50 ms in which no file changes.
const AGAIN_SOON: Duration = Duration::from_millis(100);
/// Objects that each group misbehaves over: no multiple of the mistakes that there are, so that none gets the color that it has.
const BAD: usize = 20;
/// How often one of these is changed, so that there is always one to be called for.
const EVERY: Duration = Duration::from_millis(50);
/// How often each is released that is in quarantine, so that it goes on.
const RELEASED: Duration = Duration::from_millis(50);
/// Calls that a group is to have while it is measured, at least: those that last until their deadline have few.
const LEAST: f64 = 5.0;
/// Until all of a group are at work.
const LEAD: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);
/// Keys of the one plugin that wait while a key of the other comes. The guest `slow` computes for some milliseconds over each.
const CROWD: usize = 10_000;
/// Until `noting` may log as much again.
const LOGS: Duration = Duration::from_secs(8);
/// Where they are.
const CROWDED: &str = "crowded";
/// How many are created at once.
const AT_ONCE: usize = 16;
/// Plugins that compute all the while, and what each may have: one is to have three times as much as any of three others, which is less than the
/// core that its one worker can use.
const GREEDY: [(&str, &str, u32); 5] = [
    ("heavy", "cpuWeight", 300),
    ("capped", "cpuMilli", 250),
    ("light-0", "cpuWeight", 100),
    ("light-1", "cpuWeight", 100),
    ("light-2", "cpuWeight", 100),
];
/// The guest `slow` computes for most of a minute over one of that quantity.
const LONG: u32 = 10_000;
/// How long what they use is watched.
const SHARED: Duration = Duration::from_secs(5);

/// Plugins that misbehave together.
struct Group<'a> {
    /// Where their objects are.
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

    /// Of each plugin what it is made of, and what it is called.
    fn names(&self) -> impl Iterator<Item = (&'static str, String)> {
        let named = |&(guest, count): &(&'static str, usize)| {
            (0..count).map(move |number| (guest, format!("{}-{number}", guest.replace('_', "-"))))
        };
        self.guests.iter().flat_map(named)
    }
}

/// A host with plugins that misbehave where they find an object.
struct Scene {
    stage: Stage,
    host: Host,
}

impl Scene {
    /// Starts it with all of these groups, and lets it come to rest.
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
        // The kind is there when `myapple` has brought it.
        Apple::new(stage.cluster.client(), QUIET, "good").create(1).await?.settles().await?;
        stage.settles(&mut host).await?;
        rests(host.id()).await?;
        Ok(Self { stage, host })
    }

    /// Microseconds of the line `latency`, as things are: the median and the 99th percentile.
    async fn latency(&mut self) -> Result<[f64; 2]> {
        percentiles(&self.stage.latencies(&mut self.host, CHANGES, PAUSE).await?)
    }

    /// The same while a group misbehaves, from so long after its objects begin to come, which is when the host has come to rest.
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

    /// The same while this plugin is refused again and again.
    async fn beside_refused(&mut self, plugin: &Plugin) -> Result<[f64; 2]> {
        // What is compiled is compiled once.
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
                // With another word of the administrator's it is looked at once more.
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

    /// The same from so long after it begins that plugins of these names are provoked.
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

/// Microseconds of the line `latency`, in one and the same host: with all quiet, and while each of two groups misbehaves. The 99th percentile
/// of each group by that of quiet, and of all three the median and the 99th percentile. Who measures and the API server share the machine
/// with the host, and on two cores a group leaves them next to nothing: the budget of twice is for one plugin of each way, see [`each`].
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

/// The 99th percentile of the line `latency` beside so many plugins that misbehave in one way, by the same just before, when all was quiet: of
/// each way, in a host of its own.
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

/// The same beside one plugin that is refused in one way.
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

/// Milliseconds that the line `latency` is longer while ten thousand keys of another plugin wait: the median and the 99th percentile.
pub(super) fn crowd() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let mut scene = Scene::set(&[]).await?;
        // Else it would be called, and log, for what the other one writes.
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

/// How many times as much processor time one of [`GREEDY`] has as others of a third of its weight have on average, and the cores that the one
/// has that is capped to a quarter of one.
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

/// Returns when the process has nothing to do: less than a fiftieth of a core.
async fn rests(id: u32) -> Result<()> {
    let start = Instant::now();
    loop {
        let before = cpu_time_of(id)?;
        sleep(WINDOW).await;
        if cpu_time_of(id)?.saturating_sub(before) < WINDOW / 50 {
            return Ok(());
        }
        ensure!(start.elapsed() < LIMIT, "the host does not come to rest");
    }
}

/// Lets none of these plugins rest, for ever.
async fn release(admin: &Admin, plugins: &[String]) -> Result<()> {
    loop {
        for plugin in plugins {
            admin.release(plugin).await?;
        }
        sleep(RELEASED).await;
    }
}

/// How often these plugins were called.
async fn calls(admin: &Admin, plugins: &[String]) -> Result<f64> {
    let metrics = admin.metrics().await?;
    Ok(plugins.iter().map(|plugin| metrics.sum("pilothouse_call_seconds_count", &[("plugin", plugin)])).sum())
}

/// Creates all, and changes one of them after another, for ever.
async fn provoke(bad: &[Apple]) -> Result<()> {
    for apple in bad {
        apple.create(1).await?;
    }
    // Only the guest `nonsense` cares for the color.
    for (apple, color) in bad.iter().cycle().zip(MISTAKES.iter().cycle()) {
        apple.set(json!({"color": color})).await?;
        sleep(EVERY).await;
    }
    Ok(())
}

/// Creates a ConfigMap for each mistake, and changes one after another, for ever.
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
