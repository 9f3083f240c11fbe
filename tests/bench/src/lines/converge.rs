//! Time until many new objects have their children.

use std::{
    collections::HashSet,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use pilothouse_e2e::{Apple, Kind};
use tokio::{runtime::Runtime, time::timeout};

use super::scene::Scene;

const APPLES: usize = 1_000;
const EACH: u32 = 3;
/// Number of MyApples created at once.
const CREATORS: usize = 10;
const LIMIT: Duration = Duration::from_secs(120);

/// Seconds from the first create until a watch has shown every MyApple with all its children counted, and the host's
/// memory then, in MiB. The API server and the creator share the machine with the host.
pub(super) fn measure() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let scene = Scene::start(Kind::Embedded).await?;
        let apples: Vec<Apple> = (0..APPLES).map(|n| scene.apple(&format!("apple-{n}"))).collect();
        let took = fill(&apples, EACH).await?;
        Ok(vec![took.as_secs_f64(), scene.resident()? as f64 / f64::from(1 << 20)])
    })
}

/// Measures the time from the first create until a watch has shown each of them with that many children counted.
pub(super) async fn fill(apples: &[Apple], each: u32) -> Result<Duration> {
    let all = &apples[0].apples;
    let version = all.list(&ListParams::default()).await?.metadata.resource_version.context("a list without one")?;
    let watch = all.watch(&WatchParams::default(), &version).await.context("cannot watch the MyApples")?;

    let start = Instant::now();
    let create = async {
        let created = stream::iter(apples)
            .map(Ok)
            .try_for_each_concurrent(CREATORS, async |apple| apple.create(each).await.map(drop));
        created.await?;
        eprintln!("  created within {:.1} s", start.elapsed().as_secs_f64());
        anyhow::Ok(())
    };
    let converge = async {
        let mut watch = pin!(watch);
        let mut available = HashSet::new();
        while available.len() < apples.len() {
            match watch.try_next().await?.context("the watch ended")? {
                WatchEvent::Added(apple) | WatchEvent::Modified(apple) => {
                    if apple.data["status"]["available"] == each {
                        available.insert(apple.name_any());
                    }
                }
                WatchEvent::Error(status) => bail!("the watch failed: {status:?}"),
                WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
            }
        }
        Ok(start.elapsed())
    };
    let both = async { tokio::try_join!(create, converge) };
    let ((), took) = timeout(LIMIT, both).await.context("the MyApples do not converge")??;
    Ok(took)
}
