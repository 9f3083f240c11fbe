//! A plugin without a mapping is woken by changes of what it read, and by nothing else.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{Host, Plugin, Scene, eventually};
use serde_json::{Value, from_value, json};

pub(crate) async fn invariant_11_a_bundle_follows_whatever_it_read(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::bundle()?])?.host().await?;
    let shop = Shop::new(&scene);
    shop.create(json!({"configMap": "defaults", "selector": "bundle=shop", "secret": "token"})).await?;
    shop.is_not_ready_for("the ConfigMap defaults").await?;

    shop.map("defaults", json!({}), json!({"color": "blue", "size": "small"})).await?;
    shop.is_not_ready_for("the Secret token").await?;
    shop.secret("s3cret").await?;
    shop.holds(json!({"color": "blue", "size": "small"})).await?;

    // An object enters a selection or an index, changes there, and leaves it.
    shop.map("theme", json!({"labels": {"bundle": "shop"}}), json!({"color": "red"})).await?;
    shop.holds(json!({"color": "red", "size": "small"})).await?;
    shop.map("extra", json!({"annotations": {"config.example.com/for": "shop"}}), json!({"more": "yes"})).await?;
    shop.holds(json!({"color": "red", "size": "small", "more": "yes"})).await?;
    shop.map("extra", json!({"annotations": {"config.example.com/for": "shop"}}), json!({"more": "no"})).await?;
    shop.holds(json!({"color": "red", "size": "small", "more": "no"})).await?;
    shop.map("extra", json!({"annotations": {"config.example.com/for": null}}), json!({})).await?;
    shop.holds(json!({"color": "red", "size": "small"})).await?;
    shop.maps.delete("theme", &DeleteParams::default()).await?;
    shop.holds(json!({"color": "blue", "size": "small"})).await?;

    let before = shop.checksum().await?;
    shop.secret("s4cret").await?;
    eventually("the checksum follows the Secret", async || {
        ensure!(shop.checksum().await? != before, "it is what it was");
        Ok(())
    })
    .await?;
    nothing_else_wakes_it(&shop, &mut host).await
}

/// Changes ten unrelated objects, then one that counts. When the last one is seen, the others were seen too.
async fn nothing_else_wakes_it(shop: &Shop, host: &mut Host) -> Result<()> {
    let before = settled(host).await?;
    for i in 0..10 {
        let other = json!({"labels": {"bundle": "forge"}, "annotations": {"config.example.com/for": "forge"}});
        shop.map(&format!("stranger-{i}"), other, json!({"color": "black"})).await?;
    }
    shop.map("defaults", json!({}), json!({"color": "green"})).await?;
    shop.holds(json!({"color": "green", "size": "small"})).await?;
    let after = settled(host).await?;
    // The change wakes it once, and the child that it wrote wakes it once.
    ensure!((1.0..=2.0).contains(&(after - before)), "it was reconciled {} times", after - before);
    Ok(())
}

/// Waits until nothing is left to do, and returns the number of reconciles.
async fn settled(host: &mut Host) -> Result<f64> {
    eventually("the queue is empty", async || {
        let metrics = host.metrics().await?;
        let (depth, working) =
            (metrics.sum("workqueue_depth", &[]), metrics.sum("controller_runtime_active_workers", &[]));
        ensure!(depth == 0.0 && working == 0.0, "{depth} wait, {working} are at work");
        Ok(metrics.sum("controller_runtime_reconcile_total", &[("controller", "bundle/bundle")]))
    })
    .await
}

/// The Bundle `shop` and what is around it.
struct Shop {
    bundles: Api<DynamicObject>,
    maps: Api<ConfigMap>,
    secrets: Api<Secret>,
}

impl Shop {
    fn new(scene: &Scene) -> Self {
        Self {
            bundles: Api::namespaced_with(scene.client(), &scene.namespace, &resource()),
            maps: scene.config_maps(),
            secrets: Api::namespaced(scene.client(), &scene.namespace),
        }
    }

    async fn create(&self, spec: Value) -> Result<()> {
        let shop = DynamicObject::new("shop", &resource()).data(json!({ "spec": spec }));
        let created = eventually("the API server serves Bundles", async || {
            match self.bundles.create(&PostParams::default(), &shop).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Err(anyhow::Error::new(*status)),
                other => Ok(other),
            }
        });
        created.await?.context("cannot create the Bundle")?;
        Ok(())
    }

    /// Creates a ConfigMap, or merges these members into it.
    async fn map(&self, name: &str, metadata: Value, data: Value) -> Result<()> {
        if self.maps.get_opt(name).await?.is_none() {
            let map: ConfigMap = from_value(json!({"metadata": {"name": name}}))?;
            self.maps.create(&PostParams::default(), &map).await?;
        }
        let change = Patch::Merge(json!({"metadata": metadata, "data": data}));
        self.maps.patch(name, &PatchParams::default(), &change).await?;
        Ok(())
    }

    async fn secret(&self, token: &str) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "stringData": {"token": token},
        });
        let apply = PatchParams::apply("test").force();
        self.secrets.patch("token", &apply, &Patch::Apply(secret)).await?;
        Ok(())
    }

    async fn is_not_ready_for(&self, missing: &str) -> Result<()> {
        eventually(&format!("it waits for {missing}"), async || {
            let shop = self.bundles.get("shop").await?;
            let message = &shop.data["status"]["conditions"][0]["message"];
            ensure!(*message == format!("{missing} does not exist"), "its status is {}", shop.data["status"]);
            Ok(())
        })
        .await
    }

    async fn holds(&self, data: Value) -> Result<()> {
        eventually(&format!("its result is {data}"), async || {
            let result = self.maps.get("shop-bundle").await?;
            ensure!(json!(result.data) == data, "it has {:?}", result.data);
            Ok(())
        })
        .await
    }

    async fn checksum(&self) -> Result<Option<String>> {
        let result = self.maps.get("shop-bundle").await?;
        Ok(result.metadata.annotations.and_then(|mut all| all.remove("config.example.com/checksum")))
    }
}

fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("config.example.com", "v1", "Bundle"))
}
