//! A host with many idle plugins.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};
use pilothouse_e2e::{Cluster, Kind, Plugin};
use serde_json::{from_value, json};
use tokio::{
    runtime::Runtime,
    time::{sleep, timeout},
};

use crate::{
    child::Child,
    many,
    memory::{Rollup, rollup_of},
    processes, target,
};

/// Time to compile a thousand plugins, unless an earlier run left them in the cache.
const OPTIMIZED: Duration = Duration::from_secs(1800);

/// Plugins with the same code under different names: bytes that each adds to a host with one, and the size of the
/// largest host.
///
/// Each watches ConfigMaps, of which there is one, and was called for it once. Then all code was unmapped, as the host
/// does by itself after a minute or two. Only private memory counts, not pages of files that others map too.
pub(super) fn same() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let cluster = cluster().await?;
        let one = host(&cluster, 1, Code::Same).await?;
        let hundred = host(&cluster, 100, Code::Same).await?;
        let thousand = host(&cluster, 1_000, Code::Same).await?;
        Ok(vec![
            mebi(one.idle.private),
            hundred.each_beside(&one),
            thousand.each_beside(&one),
            mebi(thousand.idle.private),
            mebi(thousand.idle.resident),
            thousand.first,
            thousand.all,
        ])
    })
}

/// The same for plugins with different code, which is compiled before and kept in `target/bench-cache`.
pub(super) fn different() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let cluster = cluster().await?;
        eprintln!("  a thousand are compiled, where they are not in target/bench-cache: that takes some minutes");
        host(&cluster, 1_000, Code::Different).await?;
        let one = host(&cluster, 1, Code::Different).await?;
        let hundred = host(&cluster, 100, Code::Different).await?;
        let thousand = host(&cluster, 1_000, Code::Different).await?;
        Ok(vec![
            hundred.each_beside(&one),
            thousand.each_beside(&one),
            mebi(thousand.idle.private),
            thousand.first,
            thousand.all,
        ])
    })
}

/// An API server with one ConfigMap.
async fn cluster() -> Result<Cluster> {
    let cluster = Cluster::start(Kind::Embedded).await?;
    let map: ConfigMap = from_value(json!({"metadata": {"name": "only"}})).context("not a ConfigMap")?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    maps.create(&PostParams::default(), &map).await.context("cannot create the ConfigMap")?;
    Ok(cluster)
}

fn mebi(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Whether plugins share their code.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Code {
    Same,
    Different,
}

/// Memory and start times of a host.
struct Held {
    count: usize,
    /// Seconds until the first plugin was called, and until all were.
    first: f64,
    all: f64,
    /// Memory without mapped code of plugins.
    idle: Rollup,
}

impl Held {
    /// Kilobytes that each adds to a host with one.
    fn each_beside(&self, one: &Self) -> f64 {
        (self.idle.private as f64 - one.idle.private as f64) / (self.count - 1) as f64 / 1e3
    }
}

async fn host(cluster: &Cluster, count: usize, code: Code) -> Result<Held> {
    let folder = tempfile::tempdir().context("cannot create a folder for plugins")?;
    write(folder.path(), count, code)?;
    let mut command = processes::command(many::NAME)?;
    command
        .env(many::PLUGINS, folder.path())
        .env(many::COUNT, count.to_string())
        .env(many::CACHE, target()?.join("bench-cache"))
        .env(many::KUBECONFIG, cluster.kubeconfig());
    let mut host = Child::start("the host", command)?;
    let answer = host.answer().await?;
    let times = answer.split_once(' ').and_then(|(first, all)| Some((first.parse().ok()?, all.parse().ok()?)));
    let (first, all): (f64, f64) = times.with_context(|| format!("no times: {answer:?}"))?;
    let optimized = async {
        while host.ask("left").await? != "0" {
            sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    timeout(OPTIMIZED, optimized).await.context("the plugins' code is not optimized in time")??;
    let id = host.id()?;
    let mapped = rollup_of(id)?;
    for _ in 0..2 {
        ensure!(host.ask("unmap").await? == "done", "the host does not unmap");
    }
    let idle = rollup_of(id)?;
    let kilobytes = |bytes: usize| bytes / 1000;
    eprintln!(
        "  {count} of {} code: first called after {first:.2} s, all after {all:.2} s; private {} kB, of them anonymous {} kB, resident {} \
         kB; before their code was unmapped: {}, {}, {} kB",
        if code == Code::Same { "one" } else { "different" },
        kilobytes(idle.private),
        kilobytes(idle.anonymous),
        kilobytes(idle.resident),
        kilobytes(mapped.private),
        kilobytes(mapped.anonymous),
        kilobytes(mapped.resident),
    );
    Ok(Held { count, first, all, idle })
}

fn write(folder: &Path, count: usize, code: Code) -> Result<()> {
    let Plugin { wasm, yaml, .. } = Plugin::guest("noting")?;
    let yaml = yaml.context("the plugin has no grants")?;
    for number in 0..count {
        let salt = if code == Code::Same { 0 } else { u32::try_from(number)? };
        let path = |extension: &str| folder.join(format!("plugin-{number:04}.{extension}"));
        fs::write(path("yaml"), &yaml)
            .and_then(|()| fs::write(path("wasm"), salted(&wasm, salt)))
            .context("cannot write a plugin")?;
    }
    Ok(())
}

/// Appends a custom section that holds `salt`: the same code with another digest.
fn salted(wasm: &[u8], salt: u32) -> Vec<u8> {
    // Section 0, 9 bytes: the length of the name, the name, the content.
    [wasm, &[0, 9, 4], b"salt", &salt.to_le_bytes()].concat()
}
