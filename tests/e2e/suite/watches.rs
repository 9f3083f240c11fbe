//! Watches of kinds that are known only at run time.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams},
};
use pilothouse_e2e::{Aggregated, Apple, Host, Kind, Plugin, Scene, eventually};
use serde_json::{from_value, json};

use crate::contract::served_by;

const PEARS: &str = "example.com/v1 Pear";

pub(crate) async fn a_kind_that_an_object_names_is_cached_and_wakes_it_until_it_names_another(
    scene: Scene,
) -> Result<()> {
    clear(&scene).await?;
    let (mut host, gala) = served_by(&scene, "pointing").await?;
    gala.create_with("example.com/v1/Pear", 1).await?;
    counts(&gala, "not cached").await?;
    runs(&mut host, true).await?;
    // A definition that appears later.
    define(&scene, "Pear").await?;
    counts(&gala, "0").await?;
    grow(&scene, "Pear", "williams").await?;
    counts(&gala, "1").await?;
    // The watch stays while a newer revision goes on to ask for it.
    scene.with(&[Plugin::guest("pointing")?.revision(1)])?;
    eventually("the newer revision serves", async || {
        let reloads = host.metrics().await?.sum("pilothouse_plugin_reloads_total", &[("plugin", "pointing")]);
        ensure!(reloads == 1.0, "{reloads} reloads");
        Ok(())
    })
    .await?;
    grow(&scene, "Pear", "conference").await?;
    counts(&gala, "2").await?;

    // A definition that goes, and comes back.
    definitions(&scene).delete("pears.example.com", &DeleteParams::default()).await.context("cannot delete the CRD")?;
    counts(&gala, "not cached").await?;
    eventually("the CRD is gone", async || {
        ensure!(definitions(&scene).get_opt("pears.example.com").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    define(&scene, "Pear").await?;
    grow(&scene, "Pear", "comice").await?;
    counts(&gala, "1").await?;

    // A restarted host caches it again, because the first reconcile asks for it.
    host.terminate_and_restart().await?;
    grow(&scene, "Pear", "abate").await?;
    counts(&gala, "2").await?;
    runs(&mut host, true).await?;

    // What is no longer asked for stops.
    gala.set(json!({"color": "none"})).await?;
    counts(&gala, "nothing").await?;
    runs(&mut host, false).await?;
    gala.set(json!({"color": "example.com/v1/Pear"})).await?;
    counts(&gala, "2").await?;
    gala.delete().await?;
    runs(&mut host, false).await
}

pub(crate) async fn kinds_that_a_pattern_matches_are_observed_as_they_come_and_go(scene: Scene) -> Result<()> {
    clear(&scene).await?;
    define(&scene, "Pear").await?;
    grow(&scene, "Pear", "williams").await?;
    let mut host = scene.with(&[Plugin::guest("following")?])?.host().await?;
    host.logs(&["observed", "added Pear williams"]).await?;
    grow(&scene, "Pear", "comice").await?;
    host.logs(&["observed", "added Pear comice"]).await?;
    // ConfigMaps are granted and excluded. The other kinds are not granted, and named.
    watched(&mut host, &["example.com/v1 Pear"]).await?;
    host.warns(&["observes by pattern, and does not get", "are not granted"]).await?;
    let plugins = host.plugins().await?;
    let row = plugins.iter().find(|row| row["plugin"] == "following").context("no such plugin")?;
    ensure!(row["kinds_matched"] == 1, "{row}");
    ensure!(row["warnings"].to_string().contains("are not granted"), "{row}");

    define(&scene, "Plum").await?;
    grow(&scene, "Plum", "mirabelle").await?;
    host.logs(&["observed", "added Plum mirabelle"]).await?;
    watched(&mut host, &["example.com/v1 Pear", "example.com/v1 Plum"]).await?;
    definitions(&scene).delete("plums.example.com", &DeleteParams::default()).await.context("cannot delete the CRD")?;
    host.logs(&["observed", "deleted Plum mirabelle"]).await?;
    watched(&mut host, &["example.com/v1 Pear"]).await?;
    // The others were not observed anew.
    let again = host.log()?.iter().filter(|line| line.text.contains("added Pear williams")).count();
    ensure!(again == 1, "the Pear was observed {again} times");
    Ok(())
}

pub(crate) async fn kinds_beyond_limits_watches_are_left_out_and_named(scene: Scene) -> Result<()> {
    clear(&scene).await?;
    define(&scene, "Pear").await?;
    define(&scene, "Plum").await?;
    grow(&scene, "Plum", "mirabelle").await?;
    grow(&scene, "Pear", "williams").await?;
    let guest = Plugin::guest("following")?;
    let yaml = guest.yaml.clone().unwrap_or_default() + "limits: {watches: 1}\n";
    let mut host = scene.with(&[guest.with_yaml(yaml)])?.host().await?;
    host.logs(&["observed", "added Pear williams"]).await?;
    host.warns(&["1 kinds are over limits.watches: example.com/v1 Plum"]).await?;
    watched(&mut host, &["example.com/v1 Pear"]).await?;
    // With more room, the plugin gets the others, too.
    scene.with(&[Plugin::guest("following")?])?;
    host.logs(&["observed", "added Plum mirabelle"]).await.map(drop)
}

/// Waits until the informers are those of these kinds.
async fn watched(host: &mut Host, kinds: &[impl AsRef<str> + std::fmt::Debug]) -> Result<()> {
    eventually(&format!("the informers are those of {kinds:?}"), async || {
        let informers = host.informers().await?;
        let watched: Vec<_> = informers.iter().filter_map(|informer| informer["kind"].as_str()).collect();
        ensure!(watched.iter().copied().eq(kinds.iter().map(AsRef::as_ref)), "{watched:?}");
        Ok(())
    })
    .await
}

pub(crate) async fn an_aggregated_group_that_comes_fails_and_goes_stops_no_other_kind(scene: Scene) -> Result<()> {
    clear(&scene).await?;
    let melons = Aggregated::start(&scene).await?;
    let melon = format!("{} Melon", melons.api_version());
    let kinds = |fruit: &[&str]| {
        // The embedded server has no aggregated groups.
        let melon = (scene.cluster.kind() == Kind::Real).then(|| melon.clone());
        let mut kinds: Vec<_> = fruit.iter().map(|kind| format!("example.com/v1 {kind}")).chain(melon).collect();
        kinds.sort();
        kinds
    };
    let guest = Plugin::guest("following")?;
    let granted = format!("  - {{apiVersion: {}, kind: \"*\", verbs: [read]}}\n", melons.api_version());
    let yaml = guest.yaml.clone().unwrap_or_default() + &granted;
    let mut host = scene.with(&[guest.with_yaml(yaml)])?.host().await?;
    watched(&mut host, &kinds(&[])).await?;
    if scene.cluster.kind() == Kind::Real {
        host.logs(&["observed", "added Melon galia"]).await?;
    }

    melons.goes_down(&scene).await?;
    define(&scene, "Pear").await?;
    grow(&scene, "Pear", "williams").await?;
    host.logs(&["observed", "added Pear williams"]).await?;
    watched(&mut host, &kinds(&["Pear"])).await?;
    // What is known of the group stays: its server may come back.
    let lost = host.log()?.iter().filter(|line| line.text.contains("deleted Melon galia")).count();
    ensure!(lost == 0, "the Melon counts as deleted");

    melons.goes(&scene).await?;
    define(&scene, "Plum").await?;
    grow(&scene, "Plum", "mirabelle").await?;
    host.logs(&["observed", "added Plum mirabelle"]).await?;
    watched(&mut host, &["example.com/v1 Pear", "example.com/v1 Plum"]).await
}

pub(crate) async fn invariant_7_a_kind_that_is_asked_for_and_not_granted_is_refused_in_words(
    scene: Scene,
) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "pointing").await?;
    gala.create_with("v1/Secret", 1).await?;
    counts(&gala, "not granted: read v1 Secret").await?;
    let informers = host.informers().await?;
    ensure!(informers.iter().all(|informer| informer["kind"] != "v1 Secret"), "Secrets are cached: {informers:?}");
    // The administrator grants them.
    let guest = Plugin::guest("pointing")?;
    let yaml = guest.yaml.clone().unwrap_or_default() + "  - {apiVersion: v1, kind: Secret, verbs: [read]}\n";
    scene.with(&[guest.with_yaml(yaml)])?;
    counts(&gala, "0").await
}

/// Waits until the message of the condition `Counted` contains this.
async fn counts(gala: &Apple, what: &str) -> Result<()> {
    gala.status_is(&format!("{what:?}"), |status| {
        let conditions = status["conditions"].as_array();
        let counted = conditions.into_iter().flatten().find(|condition| condition["type"] == "Counted");
        let message = counted.and_then(|condition| condition["message"].as_str()).unwrap_or_default();
        if what.parse::<u32>().is_ok() { message == what } else { message.contains(what) }
    })
    .await
    .map(drop)
}

/// Waits until an informer of Pears runs, or none does.
async fn runs(host: &mut Host, does: bool) -> Result<()> {
    eventually("the informer of Pears is as it should be", async || {
        let informers = host.informers().await?;
        let runs = informers.iter().any(|informer| informer["kind"] == PEARS);
        ensure!(runs == does, "{informers:?}");
        Ok(())
    })
    .await
}

/// Deletes definitions that an earlier test left on this API server.
pub(crate) async fn clear(scene: &Scene) -> Result<()> {
    eventually("no fruit is defined", async || {
        for name in ["pears.example.com", "plums.example.com"] {
            if definitions(scene).get_opt(name).await?.is_some() {
                definitions(scene).delete(name, &DeleteParams::default()).await?;
                bail!("{name} is still there");
            }
        }
        Ok(())
    })
    .await
}

pub(crate) async fn define(scene: &Scene, kind: &str) -> Result<()> {
    let plural = format!("{}s", kind.to_lowercase());
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition: CustomResourceDefinition = from_value(json!({
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    }))?;
    definitions(scene).create(&PostParams::default(), &definition).await.context("cannot create the CRD")?;
    Ok(())
}

pub(crate) async fn grow(scene: &Scene, kind: &str, name: &str) -> Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", kind));
    let fruit: Api<DynamicObject> = Api::namespaced_with(scene.client(), &scene.namespace, &resource);
    eventually(&format!("the API server serves the kind {kind}"), async || {
        fruit.create(&PostParams::default(), &DynamicObject::new(name, &resource)).await?;
        Ok(())
    })
    .await
}

fn definitions(scene: &Scene) -> Api<CustomResourceDefinition> {
    Api::all(scene.client())
}
