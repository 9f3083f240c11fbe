//! An operator under load on a real API server: the example plugin in the host, and the same operator with
//! controller-runtime.

use std::{
    collections::HashSet,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
};
use pilothouse::{
    name::PluginName,
    wasm::{Engine, Limits},
};
use pilothouse_e2e::{Apple, Cluster, Kind, Plugin};
use pilothouse_real::assets::Assets;
use serde_json::json;
use tokio::{
    runtime::Runtime,
    time::{interval, sleep, timeout},
};

use super::{
    Peer, converge,
    scene::{NAMESPACE, Scene},
};
use crate::{
    child::Child,
    clock::cpu_time_of,
    controllers::create_namespace,
    memory::{held_by, resident_of},
    peers::go,
    statistics::percentile,
};

const APPLES: usize = 3_000;
const EACH: u32 = 3;
/// Interval of 140 changes a second. Each change is of another MyApple.
const EVERY: Duration = Duration::from_micros(7_143);
const CHANGES: usize = 2_800;
/// Pause after the first fill, in which the cluster becomes idle.
const PAUSE: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(180);
/// Prefix of the color that a change sets. The change's number follows.
const COLOR: &str = "shade-";

/// The same operator in Go. The host may use half of its CPU time and memory, and its latency may not be higher.
pub(super) const PEERS: &[Peer] = &[Peer {
    name: "controller-runtime 0.25",
    prepare: go::build,
    measure: measure_controller_runtime,
    allows: &[
        ("operator-cpu", 0.5),
        ("operator-memory", 0.5),
        ("operator-latency", 1.0),
        ("operator-latency-p99", 1.0),
    ],
}];

/// Builds the servers' programs if they are missing.
pub(super) fn prepare() -> Result<()> {
    Assets::ready(|line| eprintln!("real-assets: {line}")).map(drop)
}

/// Costs of the operator at 140 changes a second:
///
/// - CPU time for each change, in milliseconds;
/// - resident memory, and resident memory without pages of files, in MiB;
/// - latency from just before a change is sent until a watch shows the last of its three children: median and 99th
///   percentile, in milliseconds;
/// - time until 3,000 new MyApples have all children, in seconds.
///
/// The servers and the bench share the machine with it and leave little of two cores. An operator that needs more falls
/// behind, and then its latency is mostly backlog.
pub(super) fn measure() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let scene = Scene::start(Kind::Real).await?;
        under_load(&scene.cluster, scene.id()).await.with_context(|| scene.last_lines())
    })
}

fn measure_controller_runtime() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let cluster = Cluster::start(Kind::Real).await?;
        create_namespace(&cluster, NAMESPACE).await?;
        bring_kinds(&cluster).await?;
        let kubeconfig = cluster.kubeconfig();
        let kubeconfig = kubeconfig.to_str().context("the kubeconfig's path is no text")?;
        let mut operator = Child::start("the operator in Go", go::command("operator", &[kubeconfig])?)?;
        ensure!(operator.answer().await? == "synced", "the operator in Go is not ready");
        under_load(&cluster, operator.id()?).await
    })
}

/// Creates the plugin's CRDs, which the operator in Go does not bring, and waits until they are served.
async fn bring_kinds(cluster: &Cluster) -> Result<()> {
    let compiled = Engine::new()?.compile(&Plugin::myapple()?.wasm)?;
    let name = PluginName::new("myapple")?;
    let revision = compiled.link().await?.describe(name, "{}".into(), Limits::default()).await?;
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client());
    for crd in &revision.manifest().crds {
        let crd = serde_json::from_str(crd).context("not a CustomResourceDefinition")?;
        api.create(&PostParams::default(), &crd).await.context("cannot create a CustomResourceDefinition")?;
    }
    // The first create waits for them.
    Apple::new(cluster.client(), NAMESPACE, "first").create(1).await?.delete().await
}

/// Fills the cluster and changes its objects while the operator in process `id` works.
async fn under_load(cluster: &Cluster, id: u32) -> Result<Vec<f64>> {
    let apples: Vec<Apple> =
        (0..APPLES).map(|number| Apple::new(cluster.client(), NAMESPACE, &format!("apple-{number}"))).collect();
    let filled = converge::fill(&apples, EACH).await?;
    sleep(PAUSE).await;

    let maps = &apples[0].maps;
    let one = maps.list(&ListParams::default().limit(1)).await.context("cannot list ConfigMaps")?;
    let version = one.metadata.resource_version.context("a list without a version")?;
    let before = cpu_time_of(id)?;
    let both = async { tokio::try_join!(change(&apples), last_children(maps, &version)) };
    let (sent, shown) = timeout(LIMIT, both).await.context("not all changes reach their children")??;
    let each = cpu_time_of(id)?.saturating_sub(before).as_secs_f64() * 1e3 / CHANGES as f64;
    let [resident, held] = [resident_of(id)?, held_by(id)?].map(|bytes| bytes as f64 / f64::from(1 << 20));

    let latencies: Vec<f64> =
        sent.iter().zip(&shown).map(|(sent, shown)| shown.duration_since(*sent).as_secs_f64() * 1e3).collect();
    let at = |percent| percentile(&latencies, percent).context("nothing was measured");
    Ok(vec![each, resident, held, at(50.0)?, at(99.0)?, filled.as_secs_f64()])
}

/// The time at which each change was sent.
async fn change(apples: &[Apple]) -> Result<Vec<Instant>> {
    let turns = stream::unfold((interval(EVERY), apples.iter()), async |(mut every, mut rest)| {
        every.tick().await;
        Some((rest.next()?, (every, rest)))
    });
    let changes = turns.take(CHANGES).enumerate().map(async |(number, apple)| {
        let sent = Instant::now();
        apple.set(json!({"color": format!("{COLOR}{number}")})).await?;
        Ok(sent)
    });
    changes.buffered(CHANGES).try_collect().await
}

/// The time at which a watch showed the last child of each change.
async fn last_children(maps: &Api<ConfigMap>, version: &str) -> Result<Vec<Instant>> {
    let mut watch = pin!(maps.watch(&WatchParams::default(), version).await.context("cannot watch ConfigMaps")?);
    let mut children = vec![HashSet::new(); CHANGES];
    let mut shown = vec![None; CHANGES];
    let mut missing = CHANGES;
    while missing > 0 {
        let map = match watch.try_next().await?.context("the watch ended")? {
            WatchEvent::Added(map) | WatchEvent::Modified(map) => map,
            WatchEvent::Error(status) => bail!("the watch failed: {status:?}"),
            WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => continue,
        };
        let color = map.data.as_ref().and_then(|data| data.get("color")?.strip_prefix(COLOR));
        let Some(number) = color.and_then(|number| number.parse::<usize>().ok()) else { continue };
        let of = children.get_mut(number).context("nobody set that color")?;
        of.insert(map.name_any());
        if of.len() == EACH as usize && shown[number].is_none() {
            shown[number] = Some(Instant::now());
            missing -= 1;
        }
    }
    Ok(shown.into_iter().flatten().collect())
}
