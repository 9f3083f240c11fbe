//! The number of connections from the host to its API server.

use std::fs;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use pilothouse::{
    cluster::{ConnectOptions, connect},
    informer::{InformerKey, Informers},
};
use pilothouse_core::key::TypeMeta;
use pilothouse_e2e::{Scene, cluster::Kind, eventually, suite::NotHere};
use tokio::runtime::Handle;

/// Namespaces need not exist to be watched.
const WATCHES: usize = 300;

pub(crate) async fn many_watches_share_a_few_connections(scene: Scene) -> Result<()> {
    if scene.cluster.kind() == Kind::Embedded {
        return Err(NotHere("the embedded API server speaks plain HTTP, and so HTTP/1.1").into());
    }
    let options = ConnectOptions { kubeconfig: Some(scene.cluster.kubeconfig()), ..ConnectOptions::default() };
    let cluster = connect(&options).await?;
    let port: u16 = cluster.host().rsplit_once(':').context("the server has a port")?.1.parse()?;
    let before = connections(port)?;
    let informers = Informers::new(cluster, Handle::current());
    let leases: Vec<_> = (0..WATCHES)
        .map(|number| {
            let namespace = Some(format!("{}-{number}", scene.namespace).as_str().into());
            let key = InformerKey { namespace, ..InformerKey::all(TypeMeta::new("v1", "ConfigMap")) };
            informers.acquire(key, "test")
        })
        .collect();
    let synced = leases.iter().map(async |lease| {
        let mut synced = lease.synced();
        synced.wait_for(|synced| *synced).await.map(drop)
    });
    try_join_all(synced).await?;
    let watching = || informers.all().iter().filter(|informer| informer.health().watching.is_some()).count();
    eventually("all watch", async || {
        ensure!(watching() == WATCHES, "{} watch", watching());
        Ok(())
    })
    .await?;
    let opened = connections(port)?.saturating_sub(before);
    // Each connection carries 64 watches. Discovery has its own connections, with HTTP/1.1.
    ensure!(opened <= WATCHES.div_ceil(64) + 8, "{WATCHES} watches have {opened} connections");
    Ok(())
}

/// Counts the connections of this process to a local port. Other tests in this process have servers, and so ports, of
/// their own.
fn connections(port: u16) -> Result<usize> {
    let remote = format!(":{port:04X}");
    let of = |file: &str| -> Result<usize> {
        let table = fs::read_to_string(file).with_context(|| file.to_owned())?;
        // Local address, remote address, state: 01 is established.
        let rows = table.lines().skip(1).map(|line| line.split_whitespace().skip(2).take(2).collect::<Vec<_>>());
        Ok(rows.filter(|row| matches!(row[..], [to, "01"] if to.ends_with(&remote))).count())
    };
    Ok(of("/proc/self/net/tcp")? + of("/proc/self/net/tcp6").unwrap_or_default())
}
