//! API servers behind a proxy.

use anyhow::{Result, ensure};
use pilothouse_e2e::{Plugin, Scene, proxy::Proxy};

/// A host whose kubeconfig names a proxy sends all of its requests through it.
async fn works_through(scene: Scene, scheme: &str) -> Result<()> {
    let proxy = Proxy::start().await?;
    let kubeconfig = proxy.before(&scene.cluster.kubeconfig(), scheme, scene.folder())?;
    let mut host = scene.with(&[Plugin::myapple()?])?.host_as(kubeconfig)?;
    host.ready().await?;
    let apple = scene.apple("proxied");
    apple.create(3).await?;
    apple.settles().await?;
    ensure!(proxy.tunnels() > 0, "the proxy was not asked");
    Ok(())
}

pub(crate) async fn a_host_works_through_an_http_proxy_of_its_kubeconfig(scene: Scene) -> Result<()> {
    works_through(scene, "http").await
}

pub(crate) async fn a_host_works_through_a_socks_proxy_of_its_kubeconfig(scene: Scene) -> Result<()> {
    works_through(scene, "socks5").await
}
