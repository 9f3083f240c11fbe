//! A host whose own user lacks permissions that its plugins need.

use anyhow::{Result, ensure};
use pilothouse_e2e::{Plugin, Scene, eventually, suite::NotHere};

pub(crate) async fn a_host_that_may_do_nothing_says_so(scene: Scene) -> Result<()> {
    let Some(kubeconfig) = scene.cluster.kubeconfig_of_nobody() else {
        return Err(NotHere("the embedded API server lets everyone do everything").into());
    };
    let mut host = scene.with(&[Plugin::myapple()?])?.host_as(kubeconfig)?;
    host.logs(&["myapple", "customresourcedefinitions", "forbidden"]).await?;
    let (code, _) = host.get("/healthz").await?;
    ensure!(code == 200, "/healthz answers {code}");
    // The API server answers, so the host is ready for what it may do.
    eventually("the host is ready, and its plugin is not", async || {
        let (code, detail) = host.get("/readyz").await?;
        ensure!(code == 200, "/readyz answers {code}: {detail}");
        let (code, detail) = host.get("/readyz/plugins/myapple").await?;
        ensure!(code == 503 && detail.contains("forbidden"), "/readyz/plugins/myapple answers {code}: {detail}");
        Ok(())
    })
    .await
}
