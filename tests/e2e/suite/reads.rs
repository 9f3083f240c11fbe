//! Reads of the cache: wake-ups, pages and denials.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{Plugin, Scene};
use serde_json::{Value, from_value, json};

use crate::contract::served_by;

pub(crate) async fn invariant_11_a_key_is_woken_by_the_object_the_selection_and_the_absence_that_it_read(
    scene: Scene,
) -> Result<()> {
    let (_host, gala) = served_by(&scene, "reading").await?;
    gala.create(1).await?;
    let says = async |calls: u32, found: [&str; 4]| {
        let read = ["Named", "Labelled", "Fields", "Absent"];
        gala.status_is(&format!("{found:?} after {calls} calls"), |status| {
            let told = |name: &str| message(status, name);
            status["available"] == calls && read.iter().zip(found).all(|(name, found)| told(name) == Some(found))
        })
        .await
        .map(drop)
    };
    says(1, ["absent", "", "", "absent"]).await?;
    // Unrelated objects of the same kinds wake nothing. A change that counts comes after them.
    put(&scene, "fuji-settings", json!({}), "yellow").await?;
    put(&scene, "fuji-1", json!({"for": "fuji"}), "yellow").await?;
    put(&scene, "gala-settings", json!({}), "red").await?;
    says(2, ["red", "", "", "absent"]).await?;
    put(&scene, "gala-2", json!({"for": "gala"}), "green").await?;
    says(3, ["red", "gala-2", "green", "absent"]).await?;
    put(&scene, "gala-1", json!({"for": "gala"}), "blue").await?;
    says(4, ["red", "gala-1 gala-2", "blue green", "absent"]).await?;
    // It read one field of the selection's objects, and their existence.
    let annotated = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
    scene.config_maps().patch("gala-1", &PatchParams::default(), &annotated).await?;
    put(&scene, "gala-1", json!({"for": "gala"}), "white").await?;
    says(5, ["red", "gala-1 gala-2", "white green", "absent"]).await?;
    put(&scene, "gala-2", json!({"for": null}), "green").await?;
    says(6, ["red", "gala-1", "white", "absent"]).await?;
    let secret: Secret = from_value(json!({"metadata": {"name": "gala-token"}}))?;
    let secrets: Api<Secret> = Api::namespaced(scene.client(), &scene.namespace);
    secrets.create(&PostParams::default(), &secret).await?;
    says(7, ["red", "gala-1", "white", "present"]).await?;
    scene.config_maps().delete("gala-settings", &DeleteParams::default()).await?;
    says(8, ["absent", "gala-1", "white", "present"]).await
}

pub(crate) async fn a_list_of_any_length_comes_page_by_page(scene: Scene) -> Result<()> {
    const COUNT: usize = 600;
    let (_host, gala) = served_by(&scene, "listing").await?;
    // More objects than a page holds, and more bytes.
    let value = "x".repeat(8 << 10);
    for chunk in (0..COUNT).collect::<Vec<_>>().chunks(50) {
        try_join_all(chunk.iter().map(async |i| {
            let metadata = json!({"name": format!("listed-{i}"), "labels": {"list": "gala"}});
            let map: ConfigMap = from_value(json!({"metadata": metadata, "data": {"value": &value}}))?;
            scene.config_maps().create(&PostParams::default(), &map).await.context("cannot create a ConfigMap")
        }))
        .await?;
    }
    gala.create(1).await?;
    let count = COUNT.to_string();
    gala.status_is("all are seen, however they are asked for", |status| {
        let seen = |name: &str| message(status, name) == Some(&count);
        status["available"] == COUNT && ["Keys", "Fields", "Indexed", "Pages"].into_iter().all(seen)
    })
    .await?;
    Ok(())
}

pub(crate) async fn invariant_7_a_read_that_is_not_granted_is_denied_and_one_that_is_wrong_is_refused(
    scene: Scene,
) -> Result<()> {
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let yaml = format!(
        "grants:\n\
         - {{apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read], namespaces: [{0}]}}\n\
         - {{apiVersion: stable.example.com/v1, kind: MyApple/status, verbs: [apply], namespaces: [{0}]}}\n\
         - {{apiVersion: v1, kind: ConfigMap, verbs: [read], namespaces: [{0}]}}\n\
         - {{apiVersion: v1, kind: Pod, verbs: [read], namespaces: [{0}]}}\n",
        scene.namespace
    );
    let plugins = [Plugin::myapple()?.confined_to(&other), Plugin::guest("peeping")?.with_yaml(yaml)];
    let _host = scene.with(&plugins)?.host().await?;
    put(&scene, "seen", json!({}), "red").await?;
    let gala = scene.apple("gala");
    gala.create(1).await?;
    gala.status_is("it saw its own namespace and no other", |status| {
        message(status, "Everywhere") == Some(&scene.namespace)
    })
    .await?;
    let status = gala.get().await?.data["status"].take();
    for (name, reason) in [
        ("GetElsewhere", "NotGranted"),
        ("ListElsewhere", "NotGranted"),
        ("KeysElsewhere", "NotGranted"),
        ("GetPod", "NotGranted"),
        ("ListPod", "NotGranted"),
        ("NoIndex", "Invalid"),
        ("ForeignIndex", "Invalid"),
        ("BadSelector", "Invalid"),
        ("BadPath", "Invalid"),
    ] {
        let told = told(&status, name, "reason");
        ensure!(told == Some(reason), "{name}: unexpected answer: {told:?}");
    }
    Ok(())
}

/// Returns a condition's message.
fn message<'a>(status: &'a Value, name: &str) -> Option<&'a str> {
    told(status, name, "message")
}

/// Returns a text of a condition.
fn told<'a>(status: &'a Value, name: &str, of: &str) -> Option<&'a str> {
    let conditions = status["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == name)?[of].as_str()
}

/// Creates a ConfigMap with these labels and a colour, or changes them.
pub(crate) async fn put(scene: &Scene, name: &str, labels: Value, color: &str) -> Result<()> {
    let maps = scene.config_maps();
    if maps.get_opt(name).await?.is_some() {
        let change = Patch::Merge(json!({"metadata": {"labels": labels}, "data": {"color": color}}));
        maps.patch(name, &PatchParams::default(), &change).await?;
        return Ok(());
    }
    let map: ConfigMap = from_value(json!({"metadata": {"name": name, "labels": labels}, "data": {"color": color}}))?;
    maps.create(&PostParams::default(), &map).await.context("cannot create a ConfigMap")?;
    Ok(())
}
