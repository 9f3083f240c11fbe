//! From an event to the reconcile that it causes while other plugins do their worst, beside the same while they have nothing to do.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::{Either, select};
use pilothouse_e2e::{Apple, Plugin};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use crate::clock::cpu_time_of;
use crate::controllers::{NAMESPACE, Stage, host::Host};
use crate::statistics::percentile;

/// So many that it takes eight slow ones to show; so few that it is over before all who loop are in quarantine for long, and that a plugin
/// may log that it is called for each of them, twice.
const CHANGES: usize = 750;
/// Nobody is at rest while others misbehave: shorter than that of `latency`.
const PAUSE: Duration = Duration::from_millis(1);
/// Plugins that never return from a call, which is stopped after 300 ms: more calls than there are threads, and so many plugins that
/// some still are at it while others are in quarantine.
const LOOPING: usize = 8;
/// Plugins that log 20,000 lines of 1 kB in each call.
const FLOODING: usize = 2;
/// Plugins that ask the host something until they may ask no more.
const ASKING: usize = 2;
/// Objects that they misbehave over.
const BAD: usize = 20;
/// How often one of these is changed, so that there is always one to be called for.
const EVERY: Duration = Duration::from_millis(50);
/// Until all are at work.
const LEAD: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);

/// Microseconds of the line `latency`, first with all quiet and then not, in one and the same host: median and 99th percentile of each,
/// and the one 99th percentile by the other. Who measures and the API server share the machine with the host.
pub(super) fn measure() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let mut stage = Stage::set().await?;
        let mut plugins = vec![Plugin::myapple()?.confined_to("elsewhere")];
        for (guest, count) in [("looping", LOOPING), ("flooding", FLOODING), ("asking", ASKING)] {
            for number in 0..count {
                plugins.push(Plugin::guest(guest)?.named(&format!("{guest}-{number}")));
            }
        }
        let mut host = Host::start(&stage, &plugins)?;
        stage.settles(&mut host).await?;
        let bad: Vec<Apple> =
            (0..BAD).map(|n| Apple::new(stage.cluster.client(), NAMESPACE, &format!("bad-{n}"))).collect();
        // The kind is there when `myapple` has brought it. The others are at odds over what they all want, which is to pass too.
        let good = Apple::new(stage.cluster.client(), NAMESPACE, "good");
        good.create(1).await?.status_is("there", |status| status["available"] == 1).await?;
        good.delete().await?;
        rests(host.id()).await?;

        let quiet = stage.latencies(&mut host, CHANGES, PAUSE).await?;
        for apple in &bad {
            apple.create(1).await?;
        }
        let provoked = pin!(provoke(&bad));
        let measured = pin!(async {
            sleep(LEAD).await;
            let (start, before) = (Instant::now(), cpu_time_of(host.id())?);
            let latencies = stage.latencies(&mut host, CHANGES, PAUSE).await?;
            let cores = cpu_time_of(host.id())?.saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64();
            eprintln!("  the host used {cores:.1} cores meanwhile, for {:.1} s", start.elapsed().as_secs_f64());
            ensure!(cores > 0.5, "the hostile plugins were not at work");
            Ok(latencies)
        });
        let hostile = match select(provoked, measured).await {
            Either::Left((ended, _)) => return Err(ended.err().context("it ends only where it fails")?),
            Either::Right((latencies, _)) => latencies?,
        };
        let at = |of: &[f64], percent| percentile(of, percent).context("nothing was measured");
        let [quiet, hostile] = [[at(&quiet, 50.0)?, at(&quiet, 99.0)?], [at(&hostile, 50.0)?, at(&hostile, 99.0)?]];
        Ok(vec![hostile[1] / quiet[1], hostile[0], hostile[1], quiet[0], quiet[1]])
    })
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
