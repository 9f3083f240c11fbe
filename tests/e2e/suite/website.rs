//! The example plugin `website`.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Event, Pod, Secret, Service},
    networking::v1::Ingress,
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use pilothouse_e2e::{FarEnd, Plugin, Scene, eventually, host};
use pilothouse_real::process::Process;
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

/// More than the host's grace for calls in flight (30 s).
const END: Duration = Duration::from_secs(45);

pub(crate) async fn with_the_stand_ins_of_dev_a_website_becomes_ready(scene: Scene) -> Result<()> {
    let (kubeconfig, manifests) = (scene.folder().join("dev.kubeconfig"), scene.folder().join("blog.yaml"));
    // The plugin of the directory is not enabled there, and the stand-in takes its place.
    scene.with(&[Plugin::example("website")?, Plugin::example("deployment")?])?;
    let spec = json!({"image": "blog:1", "replicas": 2});
    let blog =
        json!({"apiVersion": "web.example.com/v1", "kind": "Website", "metadata": {"name": "blog"}, "spec": spec});
    fs::write(&manifests, blog.to_string()).context("cannot write the manifest")?;
    let mut command = Command::new(host::binary()?);
    command.args(["dev", "--controllers", "--plugins"]).arg(scene.plugins.path());
    command.arg("--manifests").arg(&manifests).arg("--kubeconfig-out").arg(&kubeconfig);
    let log = scene.folder().join("dev.log");
    let mut dev = Process::start("pilothouse dev", command, &log)?;
    let client = eventually("the development server answers", async || {
        let config = Kubeconfig::read_from(&kubeconfig).context("cannot read the kubeconfig")?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        client.apiserver_version().await?;
        Ok(client)
    })
    .await?;
    let sites: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource());
    eventually("the Website is ready", async || {
        let status = sites.get("blog").await?.data["status"].clone();
        let ready = status["conditions"].as_array().into_iter().flatten().find(|of| of["type"] == "Ready");
        ensure!(ready.is_some_and(|ready| ready["status"] == "True") && status["availableReplicas"] == 2, "{status}");
        Ok(())
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let pods = pods.list(&ListParams::default()).await?.items;
    let is_running = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
    ensure!(pods.len() == 2 && pods.iter().all(is_running), "{pods:?}");
    let printed = fs::read_to_string(&log).context("cannot read what dev printed")?;
    ensure!(printed.contains("deployment.wasm is not used: --controllers takes the plugin's place"), "{printed}");

    dev.terminate();
    let status = dev.wait(END).await?;
    ensure!(status.success(), "after SIGTERM `pilothouse dev` ended with {status}");
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
            sites: websites(scene),
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

/// Returns the Websites of the test's namespace.
pub(crate) fn websites(scene: &Scene) -> Api<DynamicObject> {
    Api::namespaced_with(scene.client(), &scene.namespace, &resource())
}

/// Returns the kind.
pub(crate) fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("web.example.com", "v1", "Website"))
}
