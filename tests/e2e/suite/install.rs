//! An installation in a cluster, as `docs/operating/install.md` says.

use anyhow::{Result, ensure};
use pilothouse_e2e::{Image, Installation, Kind, Plugin, Scene, examples, image::may_unshare, suite::NotHere};

/// The plugins have names for backtraces, and some are too large for a ConfigMap.
const CLAIM: &str = "plugins.volume={persistentVolumeClaim: {claimName: plugins}}";

pub(crate) async fn every_example_plugin_works_in_the_deployments_pod_with_the_printed_rights_alone(
    scene: Scene,
) -> Result<()> {
    if scene.cluster.kind() == Kind::Embedded {
        return Err(NotHere("the embedded API server has no TLS, and asks for no token").into());
    }
    if !may_unshare() {
        return Err(NotHere("no namespaces of one's own (unshare -rm)").into());
    }
    let image = Image::packed(&scene, "image")?;
    scene.with(&Plugin::examples()?)?;
    let mut installation = Installation::start(&scene, &image, CLAIM).await?;
    installation.plugins_serve().await?;
    installation.rights_are_those_printed()?;

    examples::apply(installation.kubectl()).await?;
    examples::apples(&scene.client(), |_| ()).await?;
    examples::others(&scene.client(), || installation.host.text(), |_| ()).await?;
    let text = installation.host.text()?;
    let refused = text.lines().find(|line| line.contains("forbidden"));
    ensure!(refused.is_none(), "{refused:?}");
    installation.host.terminate().await?;
    // No other test gets a server with all of this.
    scene.cluster.kill().await;
    Ok(())
}
