//! The example plugin `website`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Event, Secret, Service},
    networking::v1::Ingress,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{FarEnd, Plugin, Scene, eventually};
use serde_json::{Value, from_value, json};

use crate::metrics::exposed;

const RECORD: &str = "/hosts/blog.example.com";

pub(crate) async fn a_website_is_rolled_out_registered_scaled_and_cleaned_up(scene: Scene) -> Result<()> {
    let registrar = FarEnd::start().await?;
    let secrets: Api<Secret> = Api::namespaced(scene.client(), &scene.namespace);
    let token = json!({"metadata": {"name": "registrar"}, "stringData": {"key": "t0ken"}});
    secrets.create(&PostParams::default(), &from_value(token)?).await?;
    let mut host = scene.with(&[plugin(&scene, &registrar)?])?.host().await?;

    let blog = Blog::new(&scene);
    blog.env("A blog").await?;
    blog.create().await?;
    let request = registrar.gets(&format!("PUT {RECORD}")).await?;
    ensure!(request.body == json!({"namespace": scene.namespace, "website": "blog"}), "{request:?}");
    ensure!(request.headers.contains("authorization: Bearer t0ken"), "{request:?}");
    blog.is("registered and rolling out", "True Registered", "False RollingOut").await?;
    ensure!(blog.ingresses.get("blog").await?.spec.is_some() && blog.services.get("blog").await?.spec.is_some());

    blog.roll_out(2).await?;
    blog.is("ready", "True Registered", "True AllAvailable").await?;

    // Another environment is another Pod template.
    let before = blog.checksum().await?;
    blog.env("Another blog").await?;
    eventually("the checksum follows the ConfigMap", async || {
        ensure!(blog.checksum().await? != before, "it is what it was");
        Ok(())
    })
    .await?;

    let scale = json!({"spec": {"replicas": 3}});
    blog.sites.patch_scale("blog", &PatchParams::default(), &Patch::Merge(&scale)).await?;
    eventually("the Deployment has 3 replicas", async || {
        let spec = blog.deployments.get("blog").await?.spec.context("no spec")?;
        ensure!(spec.replicas == Some(3), "{:?}", spec.replicas);
        Ok(())
    })
    .await?;
    blog.roll_out(3).await?;
    blog.is("ready again", "True Registered", "True AllAvailable").await?;
    let scale = blog.sites.get_scale("blog").await?.status.context("no status")?;
    ensure!(scale.replicas == 3 && scale.selector.context("no selector")?.contains("instance=blog"));

    // The finalizer keeps the Website while the registrar fails.
    registrar.answer_with(503);
    blog.sites.delete("blog", &DeleteParams::default()).await?;
    registrar.gets(&format!("DELETE {RECORD}")).await?;
    blog.has_events(&scene, &["Normal Ready", "Normal RollingOut", "Normal Registered", "Warning CleanupFailed"])
        .await?;
    ensure!(blog.sites.get_opt("blog").await?.is_some(), "it is gone though the registrar did not accept it");
    registrar.answer_with(404);
    eventually("the Website is gone", async || {
        ensure!(blog.sites.get_opt("blog").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    ensure!(registrar.requests().iter().filter(|request| request.what.starts_with("PUT")).count() == 1);

    let metrics = exposed(&mut host).await?;
    ensure!(metrics.sum("plugin_website_rollouts_total", &[("plugin", "website")]) >= 1.0);
    let requests = |operation, result| {
        let labels = [("operation", operation), ("result", result)];
        metrics.sum("plugin_website_registrar_requests_total", &labels)
    };
    ensure!(requests("register", "success") == 1.0 && requests("remove", "success") == 1.0);
    ensure!(requests("remove", "error") >= 1.0);
    Ok(())
}

/// Returns the plugin with a registrar, and with the grants of its own file.
fn plugin(scene: &Scene, registrar: &FarEnd) -> Result<Plugin> {
    let secret = json!({"namespace": scene.namespace, "name": "registrar", "key": "key"});
    let rule = json!({
        "hosts": ["127.0.0.1"], "ports": [registrar.port()], "methods": ["PUT", "DELETE"], "plain": true, "private": true,
        "headers": [{"name": "Authorization", "prefix": "Bearer ", "secret": secret}],
    });
    let config = json!({"ingressClass": "nginx", "registrar": registrar.url("/hosts")});
    Plugin::example("website")?.with("config", &config)?.with("http", &json!([rule]))
}

/// The Website `blog` and its children.
struct Blog {
    sites: Api<DynamicObject>,
    deployments: Api<Deployment>,
    services: Api<Service>,
    ingresses: Api<Ingress>,
    maps: Api<ConfigMap>,
}

impl Blog {
    fn new(scene: &Scene) -> Self {
        let (client, namespace) = (scene.client(), scene.namespace.as_str());
        Self {
            sites: Api::namespaced_with(client.clone(), namespace, &resource()),
            deployments: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client.clone(), namespace),
            ingresses: Api::namespaced(client, namespace),
            maps: scene.config_maps(),
        }
    }

    async fn create(&self) -> Result<()> {
        let spec = json!({"image": "blog:1", "replicas": 2, "host": "blog.example.com", "configMap": "env"});
        let blog = DynamicObject::new("blog", &resource()).data(json!({ "spec": spec }));
        eventually("the API server serves Websites", async || {
            Ok(self.sites.create(&PostParams::default(), &blog).await?)
        })
        .await?;
        Ok(())
    }

    async fn env(&self, title: &str) -> Result<()> {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "env"}, "data": {"TITLE": title}});
        self.maps.patch("env", &PatchParams::apply("test").force(), &Patch::Apply(&map)).await?;
        Ok(())
    }

    /// Does what the Deployment controller does when all Pods run.
    async fn roll_out(&self, replicas: i32) -> Result<()> {
        eventually("the Deployment is there", async || {
            self.deployments.get("blog").await.map(drop).map_err(Into::into)
        })
        .await?;
        let generation = self.deployments.get("blog").await?.metadata.generation;
        let status = json!({"status": {
            "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas,
            "readyReplicas": replicas, "availableReplicas": replicas,
        }});
        self.deployments.patch_status("blog", &PatchParams::default(), &Patch::Merge(&status)).await?;
        Ok(())
    }

    async fn is(&self, what: &str, registered: &str, ready: &str) -> Result<()> {
        eventually(what, async || {
            let status = self.sites.get("blog").await?.data["status"].clone();
            let condition = |name: &str| {
                let all = status["conditions"].as_array().cloned().unwrap_or_default();
                let text = |of: &Value, member: &str| of[member].as_str().unwrap_or_default().to_owned();
                all.iter()
                    .find(|of| of["type"] == name)
                    .map(|of| format!("{} {}", text(of, "status"), text(of, "reason")))
            };
            let is = [condition("Registered"), condition("Ready")].map(Option::unwrap_or_default);
            ensure!(is == [registered, ready], "{status}");
            Ok(())
        })
        .await
    }

    async fn checksum(&self) -> Result<String> {
        let spec = self.deployments.get("blog").await?.spec.context("no spec")?;
        let annotations = spec.template.metadata.and_then(|metadata| metadata.annotations).context("no annotations")?;
        annotations.get("web.example.com/checksum").cloned().context("no checksum")
    }

    /// Waits until the Website has these Events among others.
    async fn has_events(&self, scene: &Scene, expected: &[&str]) -> Result<()> {
        let events: Api<Event> = Api::namespaced(scene.client(), &scene.namespace);
        eventually("its Events are there", async || {
            let all = events.list(&ListParams::default().fields("involvedObject.name=blog")).await?.items;
            let reported: Vec<String> = all
                .iter()
                .map(|event| {
                    let [of, reason] = [&event.type_, &event.reason].map(|text| text.clone().unwrap_or_default());
                    format!("{of} {reason}")
                })
                .collect();
            for expected in expected {
                ensure!(reported.iter().any(|reported| reported == expected), "{expected} is not in {reported:?}");
            }
            Ok(())
        })
        .await
    }
}

fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("web.example.com", "v1", "Website"))
}
