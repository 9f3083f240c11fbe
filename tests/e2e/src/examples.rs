//! The example plugins of `plugins/`, and what each makes of its example.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{from_value, json};

use crate::{
    apple::{Apple, resource},
    kubectl::Kubectl,
    wait::{eventually, within},
};

/// Time within which `myapple` serves. All plugins are compiled first, and the machine may be busy.
const COMPILED: Duration = Duration::from_secs(240);

/// Returns the folders of the plugins that `make plugins` builds, sorted.
///
/// # Errors
/// The folder of plugins cannot be read.
pub fn folders() -> Result<Vec<PathBuf>> {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins");
    let entries = fs::read_dir(plugins).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let folders = entries.context("cannot read the folder of plugins")?.into_iter().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.join("Cargo.toml").is_file()).collect();
    folders.sort();
    Ok(folders)
}

/// Applies all examples, once the kinds that plugins bring are served.
///
/// # Errors
/// kubectl fails, or a kind is not served in time.
pub async fn apply(kubectl: &Kubectl) -> Result<()> {
    let folders: Vec<String> = folders()?.iter().map(|folder| folder.join("examples").display().to_string()).collect();
    let files = folders.iter().flat_map(|folder| ["-f", folder.as_str()]);
    let words: Vec<&str> = ["apply", "--server-side"].into_iter().chain(files).collect();
    eventually("kubectl applies all examples", async || kubectl.run(&words).await).await?;
    Ok(())
}

/// Waits for the MyApples of the example and for what `myapple` makes of them, and returns them.
///
/// # Errors
/// They do not have their children and their status in time.
pub async fn apples(client: &Client, say: impl Fn(&str)) -> Result<Vec<Apple>> {
    let found = within(COMPILED, "the example's MyApples appear", async || {
        let apples: Api<DynamicObject> = Api::all_with(client.clone(), &resource());
        let apples = apples.list(&ListParams::default()).await?;
        ensure!(!apples.items.is_empty(), "there is none");
        Ok(apples.items)
    })
    .await?;
    let mut apples = Vec::new();
    for apple in found {
        let apple = Apple::new(client.clone(), &apple.namespace().unwrap_or_default(), &apple.name_any());
        apple.settles().await?;
        say(&format!("{} has its {} children and its status", apple.name, apple.children().await?.len()));
        apples.push(apple);
    }
    Ok(apples)
}

/// Checks the plugins but `myapple`: what each made of its example in `examples/`. `printed` returns what the host has
/// printed, and `say` takes a line for each plugin that works.
///
/// # Errors
/// A plugin did not do its work in time.
pub async fn others(client: &Client, printed: impl Fn() -> Result<String>, say: impl Fn(&str)) -> Result<()> {
    let of = |group: &str, kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
    };
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    eventually("the Deployment of website's example is available", async || {
        let status = deployments.get("blog").await?.status.unwrap_or_default();
        ensure!(status.available_replicas == Some(2), "{status:?}");
        Ok(())
    })
    .await?;
    say("website and deployment: blog has its Deployment, and its Pods are ready");

    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let token: Secret = from_value(json!({"metadata": {"name": "shop-token"}, "stringData": {"token": "s3cret"}}))?;
    secrets.create(&PostParams::default(), &token).await.context("cannot create the Secret of bundle's example")?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    eventually("the example of bundle is merged", async || {
        let merged = maps.get("shop-bundle").await?.data.unwrap_or_default();
        ensure!(merged.get("color").is_some_and(|color| color == "red") && merged.len() == 3, "{merged:?}");
        Ok(())
    })
    .await?;
    say("bundle: shop is merged once its Secret is there");

    let pods: Api<Pod> = Api::namespaced(client.clone(), "restricted");
    let pod: Pod = from_value(json!({
        "metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "docker.io/nginx"}]},
    }))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually("registry-policy denies an image", async || match pods.create(&dry, &pod).await {
        Err(kube::Error::Api(status)) if status.message.contains("not from an allowed registry") => Ok(()),
        other => bail!("{other:?}"),
    })
    .await?;
    say("registry-policy: an image of another registry is denied");

    let color = Patch::Merge(json!({"data": {"color": "crimson"}}));
    maps.patch("settings", &PatchParams::default(), &color).await.context("cannot edit the example of kubediff")?;
    eventually("kubediff reports the edit", async || {
        // In a log of JSON lines the quotes are escaped.
        let printed = printed()?.replace('\\', "");
        ensure!(printed.contains(r#""new":"crimson""#), "it did not yet");
        Ok(())
    })
    .await?;
    say("kubediff: an edit is reported with both values");

    for (plugin, resource, name, condition) in [
        ("auditor", of("audit.example.com", "AuditReport", "auditreports"), "cluster", "Clean"),
        ("resource-watch", of("watch.example.com", "ResourceWatch", "resourcewatches"), "workloads", "Ready"),
    ] {
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        eventually(&format!("the example of {plugin} has its status"), async || {
            let status = all.get(name).await?.data["status"].clone();
            ensure!(status["conditions"][0]["type"] == condition, "it is {status}");
            Ok(())
        })
        .await?;
        say(&format!("{plugin}: {name} has its status"));
    }
    Ok(())
}
