//! A hundred operators in a ring. Each is called for its own ConfigMap and changes that of the next.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::{Stream, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use pilothouse_e2e::{Kind, Plugin, plugin::Permission};
use serde_json::{from_value, json};
use tokio::{runtime::Runtime, time::timeout};

use super::scene::Scene;

const OPERATORS: usize = 100;
/// Number of rounds, fewer than the burst of reconciles of one object that a breaker allows.
const LAPS: usize = 50;
const TOKEN: &str = "token";
const LIMIT: Duration = Duration::from_secs(60);

/// Milliseconds from one operator to the next, including its read of the cache and its request; and the host's private
/// memory in MiB, with all operators, each of which has just worked.
pub(super) fn measure() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let names: Vec<String> = (0..OPERATORS).map(|number| format!("operator-{number:02}")).collect();
        let operators = names.iter().zip(names.iter().cycle().skip(1)).map(|(own, next)| {
            let read = Permission::to(&["read"], "v1", "ConfigMap").within(own);
            let patch = Permission::to(&["patch"], "v1", "ConfigMap").within(next);
            Ok(Plugin::guest("passing")?.named(own).granted(&[read, patch]))
        });
        let operators = operators.collect::<Result<Vec<_>>>()?;
        let namespaces: Vec<&str> = names.iter().map(String::as_str).collect();
        let scene = Scene::with(Kind::Embedded, &namespaces, &operators, &[]).await?;
        let maps = |namespace: &str| Api::<ConfigMap>::namespaced(scene.cluster.client(), namespace);
        let mut version = None;
        for (own, next) in names.iter().zip(names.iter().cycle().skip(1)) {
            let map = from_value(json!({"metadata": {"name": TOKEN}, "data": {"next": next, "hops": "0"}}));
            let map = map.context("not a ConfigMap")?;
            version = maps(own).create(&PostParams::default(), &map).await?.metadata.resource_version;
        }
        let first = maps(&names[0]);
        let version = version.context("an object without a version")?;
        let mut watch = pin!(first.watch(&WatchParams::default(), &version).await.context("cannot watch ConfigMaps")?);
        // After one round all have worked.
        pass(&first, &mut watch, OPERATORS).await.with_context(|| scene.last_lines())?;
        scene.code_is_optimized().await?;
        let start = Instant::now();
        pass(&first, &mut watch, LAPS * OPERATORS).await.with_context(|| scene.last_lines())?;
        let hop = start.elapsed() / u32::try_from(LAPS * OPERATORS)?;
        Ok(vec![hop.as_secs_f64() * 1e3, scene.private()? as f64 / f64::from(1 << 20)])
    })
}

/// Waits for this many hops. The last is to the first operator.
async fn pass(
    first: &Api<ConfigMap>,
    watch: &mut (impl Stream<Item = kube::Result<WatchEvent<ConfigMap>>> + Unpin),
    hops: usize,
) -> Result<()> {
    let patch = Patch::Merge(json!({"data": {"hops": hops.to_string()}}));
    first.patch(TOKEN, &PatchParams::default(), &patch).await.context("cannot begin")?;
    let mut left = None;
    let ended = async {
        while left.as_deref() != Some("0") {
            match watch.try_next().await.context("the watch fails")? {
                Some(WatchEvent::Modified(map)) => left = map.data.and_then(|mut data| data.remove("hops")),
                Some(WatchEvent::Added(_)) => {}
                other => bail!("unexpected: {other:?}"),
            }
        }
        Ok(())
    };
    let ended = timeout(LIMIT, ended).await;
    ended.with_context(|| format!("{left:?} of {hops} hops are left after {} s", LIMIT.as_secs()))?
}
