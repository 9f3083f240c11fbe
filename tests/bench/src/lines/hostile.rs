//! From an event to the reconcile that it causes while other plugins do their worst, beside the same while they have nothing to do.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::{Either, select};
use pilothouse_e2e::{Apple, Plugin};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use crate::clock::cpu_time_of;
use crate::controllers::{Stage, host::Host};
use crate::statistics::percentile;

/// So many that it takes eight slow ones to show; so few that it is over before all who loop are in quarantine for long, and that a plugin
/// may log that it is called for each of them, three times.
const CHANGES: usize = 750;
/// Nobody is at rest while others misbehave: shorter than that of `latency`.
const PAUSE: Duration = Duration::from_millis(1);
/// Where nobody misbehaves.
const QUIET: &str = "quiet";
/// Those whose calls last, by what they do and how many of them: eight never return from a call, which is stopped after 300 ms, and are more
/// than there are threads, and so many that some still are at it while others are in quarantine; two log 20,000 lines of 1 kB in each
/// call; two ask the host something until they may ask no more.
const LASTING: Group =
    Group { namespace: "lasting", guests: &[("looping", 8), ("flooding", 2), ("asking", 2)], cores: 0.5 };
/// Those that fail at once, and are soon called seldom: they use up their memory, their stack and the stack in their memory, trap, call
/// while they are called, and hand over what is too much, too long and no text.
const FAILING: Group = Group {
    namespace: "failing",
    guests: &[
        ("garbling", 1),
        ("huge", 1),
        ("hungry", 1),
        ("oversized", 1),
        ("recursing", 1),
        ("recursing_wide", 1),
        ("reentering", 1),
        ("trapping", 1),
    ],
    cores: 0.05,
};
/// Objects that each group misbehaves over.
const BAD: usize = 20;
/// How often one of these is changed, so that there is always one to be called for.
const EVERY: Duration = Duration::from_millis(50);
/// Until all are at work.
const LEAD: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);

/// Plugins that misbehave together.
struct Group {
    /// Where their objects are.
    namespace: &'static str,
    guests: &'static [(&'static str, usize)],
    /// What the host uses at least while they do.
    cores: f64,
}

impl Group {
    fn plugins(&self) -> Result<Vec<Plugin>> {
        let mut plugins = Vec::new();
        for (guest, count) in self.guests {
            for number in 0..*count {
                let name = format!("{}-{number}", guest.replace('_', "-"));
                plugins.push(Plugin::guest(guest)?.confined_to(self.namespace).named(&name));
            }
        }
        Ok(plugins)
    }
}

/// Microseconds of the line `latency`, in one and the same host: with all quiet, and while each of two groups misbehaves. The 99th percentile
/// of each group by that of quiet, and of all three the median and the 99th percentile. Who measures and the API server share the machine
/// with the host.
pub(super) fn measure() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let mut stage = Stage::set().await?;
        for namespace in [QUIET, LASTING.namespace, FAILING.namespace] {
            stage.create_namespace(namespace).await?;
        }
        let myapple = Plugin::myapple()?.confined_to(QUIET);
        let plugins = [vec![myapple], LASTING.plugins()?, FAILING.plugins()?].concat();
        let mut host = Host::start(&stage, &plugins)?;
        let all = timeout(LIMIT, host.serves(plugins.len() + 1)).await;
        all.with_context(|| format!("not all plugins serve within {} s", LIMIT.as_secs()))??;
        // The kind is there when `myapple` has brought it.
        Apple::new(stage.cluster.client(), QUIET, "good").create(1).await?.settles().await?;
        stage.settles(&mut host).await?;
        rests(host.id()).await?;

        let quiet = percentiles(&stage.latencies(&mut host, CHANGES, PAUSE).await?)?;
        // First those of whom less is left when their objects are gone.
        let failing = beside(&FAILING, &mut stage, &mut host).await?;
        let lasting = beside(&LASTING, &mut stage, &mut host).await?;
        Ok([&[lasting[1] / quiet[1], failing[1] / quiet[1]][..], &lasting, &failing, &quiet].concat())
    })
}

/// The same while a group misbehaves.
async fn beside(group: &Group, stage: &mut Stage, host: &mut Host) -> Result<[f64; 2]> {
    let (client, id) = (stage.cluster.client(), host.id());
    let bad: Vec<Apple> = (0..BAD).map(|n| Apple::new(client.clone(), group.namespace, &format!("bad-{n}"))).collect();
    for apple in &bad {
        apple.create(1).await?;
    }
    let provoked = pin!(provoke(&bad));
    let measured = pin!(async {
        sleep(LEAD).await;
        let (start, before) = (Instant::now(), cpu_time_of(id)?);
        let latencies = stage.latencies(host, CHANGES, PAUSE).await?;
        let cores = cpu_time_of(id)?.saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64();
        eprintln!("  {}: the host used {cores:.2} cores for {:.1} s", group.namespace, start.elapsed().as_secs_f64());
        ensure!(cores > group.cores, "the hostile plugins were not at work");
        percentiles(&latencies)
    });
    let hostile = match select(provoked, measured).await {
        Either::Left((ended, _)) => return Err(ended.err().context("it ends only where it fails")?),
        Either::Right((percentiles, _)) => percentiles?,
    };
    for apple in &bad {
        apple.delete().await?;
    }
    rests(id).await?;
    Ok(hostile)
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

/// Changes one of them after another, for ever.
async fn provoke(bad: &[Apple]) -> Result<()> {
    for (turn, apple) in bad.iter().cycle().enumerate() {
        apple.set(json!({"color": format!("color-{turn}")})).await?;
        sleep(EVERY).await;
    }
    Ok(())
}
