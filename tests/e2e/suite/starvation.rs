//! A server without capacity for the host's requests.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use pilothouse_e2e::{Host, Plugin, Scene, eventually, relay::Relay, suite::NotHere, wait::within};
use pilothouse_real::OPERATOR;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

const FLOW_CONTROL: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// More than the longest wait between two retries, with its jitter, after a minute of failures.
const LIFTED: Duration = Duration::from_secs(120);

/// Pause between two requests for the only seat, shorter than any client's backoff.
const BETWEEN: Duration = Duration::from_millis(50);

/// The first wait after a failure. It doubles with each further failure.
const FIRST_WAIT: f64 = 0.8;

pub(crate) async fn a_host_that_the_server_throttles_says_so_waits_and_loses_nothing(scene: Scene) -> Result<()> {
    let Some(kubeconfig) = scene.cluster.kubeconfig_of_operator() else {
        return Err(NotHere("the embedded API server knows neither users nor priority and fairness").into());
    };
    let binding = format!("operator-{}", scene.namespace);
    post(&scene, &format!("{RBAC}/clusterrolebindings"), &administrator(&binding)).await?;
    let operator = client(&kubeconfig).await?;
    let (relay, kubeconfig) = Relay::before(&kubeconfig, scene.folder()).await?;
    let mut host = scene.with(&[Plugin::myapple()?])?.host_as(kubeconfig)?;
    host.ready().await?;
    let (gala, fuji) = (scene.apple("gala"), scene.apple("fuji"));
    gala.create(3).await?.settles().await?;
    let informers = host.informers().await?.len();
    let failures = failures(&mut host, None).await?;

    post(&scene, &format!("{FLOW_CONTROL}/prioritylevelconfigurations"), &no_room()).await?;
    post(&scene, &format!("{FLOW_CONTROL}/flowschemas"), &for_the_operator()).await?;
    let crowd = Crowd::gather(&scene, &operator).await?;
    // Open watches would stay open.
    let begun = Instant::now();
    relay.cut();
    fuji.create(2).await?;
    gala.scale(5).await?;

    eventually("every informer says that it is throttled", async || {
        for informer in host.informers().await? {
            let state = informer["state"].as_str().unwrap_or_default();
            let says = "the server answered 429 Too Many Requests";
            ensure!(state.starts_with("trying again in ") && state.contains(says), "{informer}");
        }
        Ok(())
    })
    .await?;
    eventually("every informer has been throttled three times", async || {
        let throttled = self::failures(&mut host, Some("throttled")).await?;
        ensure!(throttled >= 3.0 * informers as f64, "{throttled} times");
        Ok(())
    })
    .await?;
    // The order matters: while the test asks the host, time passes and it may fail once more.
    let failed = self::failures(&mut host, None).await? - failures;
    let most = informers as f64 * tries_in(begun.elapsed());
    ensure!(failed <= most, "{failed} failures, delays that double allow {most}: {:?}", host.informers().await?);
    let (code, _) = host.get("/healthz").await?;
    ensure!(code == 200, "/healthz answers {code}");

    crowd.disperse(&scene).await?;
    delete(&scene, &format!("{FLOW_CONTROL}/flowschemas/starved")).await?;
    delete(&scene, &format!("{FLOW_CONTROL}/prioritylevelconfigurations/starved")).await?;
    within(LIFTED, "all is right again", async || {
        gala.settles().await?;
        fuji.settles().await
    })
    .await?;
    scene.is_cached(&mut host).await?;
    delete(&scene, &format!("{RBAC}/clusterrolebindings/{binding}")).await?;
    Ok(())
}

/// Requests of the operator that occupy the only seat of its priority level. A level without seats still lets one
/// request pass at a time. Each request creates an object for which the server calls a webhook that does not answer.
struct Crowd {
    namespace: String,
    /// The kernel accepts connections, and no code reads them.
    _webhook: TcpListener,
    _requests: JoinSet<()>,
}

impl Crowd {
    /// Waits until the server rejects other requests.
    async fn gather(scene: &Scene, operator: &Client) -> Result<Self> {
        let namespace = format!("{}-crowd", scene.namespace);
        scene.create_namespace(&namespace).await?;
        let webhook = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen")?;
        let address = webhook.local_addr().context("a listener has an address")?;
        post(scene, WEBHOOKS, &silent_webhook(&namespace, address)).await?;
        let mut requests = JoinSet::new();
        for _ in 0..4 {
            let maps: Api<ConfigMap> = Api::namespaced(operator.clone(), &namespace);
            requests.spawn(async move {
                let map = ConfigMap {
                    metadata: ObjectMeta { name: Some("never".into()), ..ObjectMeta::default() },
                    ..ConfigMap::default()
                };
                loop {
                    // Rejected at once while another request has the seat, or after the webhook's timeout.
                    let _refused = maps.create(&PostParams::default(), &map).await;
                    tokio::time::sleep(BETWEEN).await;
                }
            });
        }
        let crowd = Self { namespace: namespace.clone(), _webhook: webhook, _requests: requests };
        let maps: Api<ConfigMap> = Api::namespaced(operator.clone(), &scene.namespace);
        eventually("the server turns the operator away", async || match maps.get_opt("any").await {
            Err(kube::Error::Api(status)) if status.code == 429 => Ok(()),
            other => anyhow::bail!("it is answered with {other:?}"),
        })
        .await?;
        Ok(crowd)
    }

    async fn disperse(self, scene: &Scene) -> Result<()> {
        delete(scene, &format!("{WEBHOOKS}/{}", self.namespace)).await
    }
}

/// A webhook for new ConfigMaps of one namespace.
fn silent_webhook(namespace: &str, address: SocketAddr) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [{
            "name": "silent.example.com", "clientConfig": {"url": format!("https://{address}/")},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            // The server's maximum.
            "timeoutSeconds": 30, "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    })
}

async fn client(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig).context("cannot read the operator's kubeconfig")?;
    let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Client::try_from(config).context("cannot make a client")
}

/// Returns how often one informer can have failed by now if each failure doubles the wait.
fn tries_in(elapsed: Duration) -> f64 {
    (elapsed.as_secs_f64() / FIRST_WAIT + 1.0).log2().floor() + 1.0
}

async fn failures(host: &mut Host, reason: Option<&str>) -> Result<f64> {
    let labels: Vec<_> = reason.map(|reason| ("reason", reason)).into_iter().collect();
    Ok(host.metrics().await?.sum("pilothouse_informer_failures_total", &labels))
}

fn administrator(name: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OPERATOR}],
    })
}

/// A priority level without seats.
fn no_room() -> Value {
    let limited = json!({
        "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    });
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": {"name": "starved"}, "spec": {"type": "Limited", "limited": limited},
    })
}

/// Assigns all requests of the operator to that level.
fn for_the_operator() -> Value {
    let everything = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true,
    });
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "starved"},
        "spec": {
            // Before all other flow schemas except the exempt one.
            "matchingPrecedence": 2,
            "priorityLevelConfiguration": {"name": "starved"},
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": OPERATOR}}],
                "resourceRules": [everything],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            }],
        },
    })
}

async fn post(scene: &Scene, path: &str, object: &Value) -> Result<()> {
    ask(scene, Method::POST, path, object.to_string().into_bytes()).await
}

async fn delete(scene: &Scene, path: &str) -> Result<()> {
    ask(scene, Method::DELETE, path, Vec::new()).await
}

async fn ask(scene: &Scene, method: Method, path: &str, body: Vec<u8>) -> Result<()> {
    let what = format!("cannot {method} {path}");
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
        .context("cannot write the request")?;
    scene.client().request::<Value>(request).await.context(what)?;
    Ok(())
}
