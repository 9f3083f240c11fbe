//! The comparison of a child with its desired state, which every reconcile makes for every child.

use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use kube::{
    Client,
    api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use pilothouse_core::{diff::holds, key::TypeMeta, object::Object};
use pilothouse_e2e::{Cluster, Kind};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    clock::{cpu_time, micros_each},
    statistics::median,
};

const MANAGER: &str = "pilothouse.bench";
const NAMESPACE: &str = "default";
const TIMES: usize = 2_000;
const PASSES: usize = 9;

/// Microseconds for a ConfigMap of the example plugin and for a Deployment of 6 kB, both unchanged. The live objects
/// were applied to the embedded API server, so they have the server's managedFields.
pub(super) fn measure() -> Result<Vec<f64>> {
    let runtime = Runtime::new().context("cannot start a runtime")?;
    let (config_map, deployment) = runtime.block_on(async {
        let cluster = Cluster::start(Kind::Embedded).await?;
        let client = cluster.client();
        let (owner, _) = apply(&client, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}})).await?;
        let owner = json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid().to_string(), "controller": true,
            "blockOwnerDeletion": true,
        }]);
        anyhow::Ok((apply(&client, config_map(&owner)).await?, apply(&client, deployment(&owner)).await?))
    })?;
    drop(runtime);
    let size = deployment.0.json_len();
    ensure!((5_500..6_500).contains(&size), "the Deployment has {size} bytes");
    eprintln!("  a ConfigMap of {} B, a Deployment of {size} B", config_map.0.json_len());
    [config_map, deployment].iter().map(|(live, desired)| each(live, desired)).collect()
}

fn each(live: &Object, desired: &Value) -> Result<f64> {
    ensure!(holds(live, MANAGER, None, desired), "the {} does not hold as it was applied", live.type_meta().kind);
    let mut passes = Vec::with_capacity(PASSES);
    for _ in 0..PASSES {
        let time = cpu_time(|| {
            for _ in 0..TIMES {
                black_box(holds(black_box(live), MANAGER, None, black_box(desired)));
            }
        });
        passes.push(micros_each(time, TIMES));
    }
    median(&passes).context("nothing was measured")
}

/// Applies an object. Returns the live object and the applied text.
async fn apply(client: &Client, mut desired: Value) -> Result<(Object, Value)> {
    desired["metadata"]["namespace"] = NAMESPACE.into();
    let text = |at: &Value| at.as_str().unwrap_or_default().to_owned();
    let (name, kind, api_version) =
        (text(&desired["metadata"]["name"]), text(&desired["kind"]), text(&desired["apiVersion"]));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    let applied = api.patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(&desired)).await;
    let applied = applied.with_context(|| format!("cannot apply the {kind}"))?;
    let live = serde_json::to_vec(&applied).context("cannot write what was applied")?;
    Ok((Object::parse(&live, &TypeMeta::new(&api_version, &kind))?, desired))
}

fn config_map(owner: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "gala-0", "ownerReferences": owner},
        "data": {"color": "green", "size": "small"},
    })
}

fn deployment(owner: &Value) -> Value {
    let labels = json!({"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web-production"});
    let container = |name: &str, port: u16| {
        let env: Vec<Value> = (0..23)
            .map(|n| json!({"name": format!("SETTING_{n:02}"), "value": format!("the value of setting {n} of {name}")}))
            .collect();
        let probe =
            |path: &str| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 1});
        json!({
            "name": name,
            "image": format!("registry.example.com/web/{name}:1.27.3"),
            "args": ["--config=/etc/web/config.yaml", format!("--listen=:{port}")],
            "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
            "env": env,
            "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "256Mi"}},
            "livenessProbe": probe("/livez"),
            "readinessProbe": probe("/readyz"),
            "volumeMounts": [{"name": "config", "mountPath": "/etc/web", "readOnly": true}],
            "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true},
        })
    };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": labels, "ownerReferences": owner},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"prometheus.io/port": "9090", "prometheus.io/scrape": "true"}},
                "spec": {
                    "serviceAccountName": "web",
                    "securityContext": {"runAsNonRoot": true},
                    "containers": [container("main", 8080), container("proxy", 8081)],
                    "volumes": [{"name": "config", "configMap": {"name": "web"}}],
                },
            },
        },
    })
}
