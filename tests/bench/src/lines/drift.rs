//! Time until a foreign edit of a child is reverted.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::{Stream, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use pilothouse_e2e::{Apple, Kind};
use serde_json::json;
use tokio::{runtime::Runtime, time::timeout};

use super::scene::Scene;
use crate::statistics::percentile;

const APPLES: usize = 20;
const EACH: u32 = 3;
const EDITS: usize = 300;
const LIMIT: Duration = Duration::from_secs(30);
const RIGHT: &str = "green";

/// Milliseconds between two events of one watch: the edit and the revert. Median and 99th percentile. The requests to
/// the API server are included.
pub(super) fn measure() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let scene = Scene::start(Kind::Embedded).await?;
        let apples: Vec<Apple> = (0..APPLES).map(|n| scene.apple(&format!("apple-{n}"))).collect();
        for apple in &apples {
            apple.create_with(RIGHT, EACH).await?;
        }
        for apple in &apples {
            apple.settles().await?;
        }
        let maps = &apples[0].maps;
        let version =
            maps.list(&ListParams::default()).await?.metadata.resource_version.context("a list without one")?;
        let mut watch = pin!(maps.watch(&WatchParams::default(), &version).await.context("cannot watch ConfigMaps")?);

        let mut delays = Vec::with_capacity(EDITS);
        for (edit, apple) in apples.iter().cycle().take(EDITS).enumerate() {
            let index = (edit / APPLES) as u32 % EACH;
            let (child, wrong) = (apple.child(index), format!("wrong-{edit}"));
            let both = async {
                let seen = async {
                    shows(&mut watch, &child, &wrong).await?;
                    let edited = Instant::now();
                    shows(&mut watch, &child, RIGHT).await?;
                    Ok(edited.elapsed())
                };
                tokio::try_join!(apple.edit_child(index, json!({"color": wrong})), seen)
            };
            let ((), delay) =
                timeout(LIMIT, both).await.with_context(|| format!("the edited {child} is not set back"))??;
            delays.push(delay.as_secs_f64() * 1e3);
        }
        Ok([50.0, 99.0].into_iter().filter_map(|percent| percentile(&delays, percent)).collect())
    })
}

/// Waits for an event that shows the child with that color.
async fn shows(
    watch: &mut (impl Stream<Item = kube::Result<WatchEvent<ConfigMap>>> + Unpin),
    child: &str,
    color: &str,
) -> Result<()> {
    loop {
        match watch.try_next().await?.context("the watch ended")? {
            WatchEvent::Added(map) | WatchEvent::Modified(map) => {
                let found = map.data.as_ref().and_then(|data| data.get("color"));
                if map.name_any() == child && found.is_some_and(|found| found == color) {
                    return Ok(());
                }
            }
            WatchEvent::Error(status) => bail!("the watch failed: {status:?}"),
            WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
        }
    }
}
