//! A validating webhook: the host with the guest `reviewing`, and the same webhook with controller-runtime. This
//! program calls them as an API server does.

use std::{fs, time::Instant};

use anyhow::{Context, Result, ensure};
use axum::http::{Request, Uri, header::CONTENT_TYPE};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::ConfigMap},
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use pilothouse_e2e::{Cluster, Kind, Plugin, eventually};
use pilothouse_real::port;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{
    Peer,
    scene::{NAMESPACE, Scene},
};
use crate::{
    child::Child, clock::cpu_time_of, controllers::create_namespace, memory::resident_of, peers::go,
    statistics::percentile,
};

/// Reviews before the first that is measured: connections are open then, and code and data are warm.
const WARM: usize = 500;
const REVIEWS: usize = 6_000;
/// Reviews on their way at once.
const AT_ONCE: usize = 4;
const REGISTRY: &str = "registry.example.com/";

/// The same webhook in Go.
pub(super) const PEERS: &[Peer] =
    &[Peer { name: "controller-runtime 0.25", prepare: go::build, measure: measure_controller_runtime, allows: &[] }];

/// What a review of a Pod of 5 kB costs, whose images are compared with a ConfigMap in the cache:
///
/// - latency, median and 99th percentile, in milliseconds, with four reviews at once;
/// - CPU time of the process for each review, in milliseconds;
/// - resident memory afterwards, in MiB.
pub(super) fn measure() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let address = format!("127.0.0.1:{}", port::free()?);
        let arguments = ["--webhook-address", &address, "--webhook-url", &format!("https://{address}")];
        let grants = json!([{"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["read"]}]);
        let yaml = json!({"config": {"namespace": NAMESPACE}, "webhooks": ["images"], "grants": grants});
        let plugin = Plugin::guest("reviewing")?.with_yaml(yaml.to_string());
        let scene = Scene::with(Kind::Embedded, &[NAMESPACE], &[plugin], &arguments).await?;
        create_policy(&scene.cluster).await?;
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(scene.cluster.client());
        let reached = eventually("the host keeps its configuration", async || {
            let live = configurations.get("pilothouse-reviewing").await?;
            let webhook = live.webhooks.into_iter().flatten().next().context("no webhook")?;
            let authority = webhook.client_config.ca_bundle.context("no authority")?;
            Ok((webhook.client_config.url.context("no URL")?, authority))
        });
        let (url, authority) = reached.await.with_context(|| scene.last_lines())?;
        scene.code_is_optimized().await?;
        Webhook::at(&url, &authority).await?.under_load(scene.id()).await.with_context(|| scene.last_lines())
    })
}

fn measure_controller_runtime() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let cluster = Cluster::start(Kind::Embedded).await?;
        create_namespace(&cluster, NAMESPACE).await?;
        create_policy(&cluster).await?;
        let folder = tempfile::tempdir().context("cannot create a folder for the certificate")?;
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).context("cannot make a certificate")?;
        let certificate = own.cert.pem();
        for (name, content) in [("tls.crt", &certificate), ("tls.key", &own.signing_key.serialize_pem())] {
            fs::write(folder.path().join(name), content).context("cannot write the certificate")?;
        }
        let (kubeconfig, port) = (cluster.kubeconfig(), port::free()?.to_string());
        let [kubeconfig, certificates] =
            [kubeconfig.as_path(), folder.path()].map(|path| path.to_str().context("the path is no text"));
        let command = go::command("admission", &[kubeconfig?, NAMESPACE, &port, certificates?])?;
        let mut server = Child::start("the webhook in Go", command)?;
        ensure!(server.answer().await? == "serving", "the webhook in Go is not ready");
        let url = format!("https://127.0.0.1:{port}/images");
        Webhook::at(&url, &ByteString(certificate.into_bytes())).await?.under_load(server.id()?).await
    })
}

async fn create_policy(cluster: &Cluster) -> Result<()> {
    let map = json!({"metadata": {"name": "images"}, "data": {"registry": REGISTRY}});
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), NAMESPACE);
    let created = maps.create(&PostParams::default(), &serde_json::from_value(map)?).await;
    created.map(drop).context("cannot create the policy")
}

/// A webhook, as an API server sees it.
struct Webhook {
    client: Client,
    path: String,
}

impl Webhook {
    async fn at(url: &str, authority: &ByteString) -> Result<Self> {
        let path = url.parse::<Uri>().context("not a URL")?.path().to_owned();
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "current-context": "webhook",
            "contexts": [{"name": "webhook", "context": {"cluster": "webhook"}}],
            "clusters": [{
                "name": "webhook",
                "cluster": {"server": url.trim_end_matches(&path), "certificate-authority-data": authority},
            }],
        }))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self { client: Client::try_from(config).context("cannot create a client")?, path })
    }

    async fn under_load(&self, id: u32) -> Result<Vec<f64>> {
        eventually("the policy is in force", async || {
            ensure!(!self.allows("elsewhere.example.com/nginx").await?, "a foreign image is allowed");
            Ok(())
        })
        .await?;
        self.times(WARM).await?;
        let before = cpu_time_of(id)?;
        let times = self.times(REVIEWS).await?;
        let each = cpu_time_of(id)?.saturating_sub(before).as_secs_f64() * 1e3 / REVIEWS as f64;
        let at = |percent| percentile(&times, percent).context("nothing was measured");
        Ok(vec![at(50.0)?, at(99.0)?, each, resident_of(id)? as f64 / f64::from(1 << 20)])
    }

    /// Milliseconds of each of so many reviews.
    async fn times(&self, count: usize) -> Result<Vec<f64>> {
        let image = format!("{REGISTRY}nginx");
        let reviews = stream::iter(0..count).map(async |_| {
            let start = Instant::now();
            ensure!(self.allows(&image).await?, "the image is denied");
            Ok(start.elapsed().as_secs_f64() * 1e3)
        });
        reviews.buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn allows(&self, image: &str) -> Result<bool> {
        let review = review(image).to_string().into_bytes();
        let request = Request::post(&self.path).header(CONTENT_TYPE, "application/json").body(review)?;
        let answer: Value = self.client.request(request).await.context("the webhook does not answer")?;
        answer["response"]["allowed"].as_bool().with_context(|| format!("no verdict: {answer}"))
    }
}

/// A review of a Pod that is created, as an API server sends it.
fn review(image: &str) -> Value {
    let env: Vec<Value> =
        (0..24).map(|number| json!({"name": format!("SETTING_{number}"), "value": "x".repeat(32)})).collect();
    let container = |name: &str| {
        json!({
            "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "env": env,
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        })
    };
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "web", "namespace": NAMESPACE, "operation": "CREATE", "dryRun": false,
            "userInfo": {"username": "admin", "groups": ["system:authenticated"]},
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "web", "namespace": NAMESPACE, "labels": {"app": "web"}},
                "spec": {"containers": [container("web"), container("proxy")], "restartPolicy": "Always"},
                "status": {"phase": "Pending"},
            },
            "oldObject": null,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        },
    })
}
