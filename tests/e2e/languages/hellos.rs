//! The same small operator in each language: `plugins/hello-python` and its sisters.

use std::fs;

use anyhow::{Context, Result, ensure};
use kube::{
    Api, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{Image, Installation, Kind, Plugin, Scene, eventually};
use serde_json::{from_value, json};

use crate::toolchains::{self, root};

pub(crate) async fn python_greets(scene: Scene) -> Result<()> {
    greets(&scene, "hello-python", toolchains::python(&root().join("plugins/hello-python"))?).await
}

pub(crate) async fn typescript_greets(scene: Scene) -> Result<()> {
    greets(&scene, "hello-typescript", toolchains::javascript(&root().join("plugins/hello-typescript"))?).await
}

pub(crate) async fn go_greets(scene: Scene) -> Result<()> {
    greets(&scene, "hello-go", toolchains::go(&root().join("plugins/hello-go"))?).await
}

/// A `Hello` gives a ConfigMap and a status, a change of it changes both, and a bad one is an error.
async fn greets(scene: &Scene, name: &str, wasm: Vec<u8>) -> Result<()> {
    let grants = root().join("plugins").join(name).join(format!("{name}.yaml"));
    let yaml = fs::read_to_string(grants).context("the plugin has no grants")?;
    scene.with(&[Plugin { name: name.to_owned(), wasm, yaml: Some(yaml) }])?;
    let host = match scene.cluster.kind() {
        Kind::Embedded => scene.host().await?,
        // As in a cluster: in the Deployment's pod, with the printed rights alone.
        Kind::Real => {
            let image = Image::packed(scene, "image")?;
            let claim = "plugins.volume={persistentVolumeClaim: {claimName: plugins}}";
            let installation = Installation::start(scene, &image, claim).await?;
            installation.plugins_serve().await?;
            installation.host
        }
    };
    let hello = GroupVersionKind::gvk("example.com", "v1", "Hello");
    let namespace = scene.config_maps().namespace().unwrap_or("default").to_owned();
    let resource = ApiResource::from_gvk_with_plural(&hello, "hellos");
    let hellos: Api<DynamicObject> = Api::namespaced_with(scene.client(), &namespace, &resource);

    create(&hellos, "morning", "world").await?;
    says(scene, &hellos, "Hello, world!").await?;
    let changed = Patch::Merge(json!({ "spec": { "to": "you" } }));
    hellos.patch("morning", &PatchParams::default(), &changed).await.context("cannot change it")?;
    says(scene, &hellos, "Hello, you!").await?;

    create(&hellos, "silence", "nobody").await?;
    host.warns(&["reconcile failed", "/silence\"", "there is nobody to greet"]).await?;
    for name in ["morning", "silence"] {
        hellos.delete(name, &DeleteParams::default()).await.context("cannot delete it")?;
    }
    Ok(())
}

async fn create(hellos: &Api<DynamicObject>, name: &str, to: &str) -> Result<()> {
    let object: DynamicObject = from_value(json!({
        "apiVersion": "example.com/v1", "kind": "Hello", "metadata": { "name": name }, "spec": { "to": to },
    }))?;
    hellos.create(&PostParams::default(), &object).await.with_context(|| format!("cannot create {name}"))?;
    Ok(())
}

async fn says(scene: &Scene, hellos: &Api<DynamicObject>, text: &str) -> Result<()> {
    eventually(&format!("the greeting is {text:?}"), async || {
        let map = scene.config_maps().get("morning-greeting").await?;
        let written = map.data.iter().flatten().any(|(key, value)| key == "text" && value == text);
        ensure!(written, "the ConfigMap is {map:?}");
        let hello = hellos.get("morning").await?;
        let status = &hello.data["status"];
        ensure!(status["greeting"] == text && status["conditions"][0]["status"] == "True", "{status}");
        ensure!(status["observedGeneration"].as_i64() == hello.meta().generation, "{status}");
        Ok(())
    })
    .await
}
