//! A host with nothing to do sends no request.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use pilothouse_e2e::{Host, Plugin, Scene, eventually};
use serde_json::{Value, json};

/// The resources that the host could write.
const WRITTEN: [&str; 4] = ["configmaps", "myapples", "customresourcedefinitions", "events"];
const WRITING: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

pub(crate) async fn a_restarted_host_sends_no_write_request(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let names = ["gala", "fuji", "idared", "elstar", "braeburn"];
    for name in names {
        scene.apple(name).create(3).await?.settles().await?;
    }
    host.terminate().await?;
    let before = scene.cluster.writes_of(&WRITTEN).await?;
    ensure!(before > 0.0, "the API server does not count writes");

    host.start_again()?;
    host.ready().await?;
    eventually("every MyApple was reconciled, and the queue is empty", async || {
        let reconciles = reconciles(&mut host).await?;
        ensure!(reconciles >= 5.0, "{reconciles} reconciles");
        idle(&mut host).await
    })
    .await?;
    let sent = host
        .metrics()
        .await?
        .sum_where("rest_client_requests_total", |label| WRITING.contains(&label("method").as_str()));
    ensure!(sent == 0.0, "the host counts {sent} writes");
    let after = scene.cluster.writes_of(&WRITTEN).await?;
    ensure!(after == before, "the API server counts {} writes", after - before);
    Ok(())
}

pub(crate) async fn a_renamed_plugin_keeps_its_children_by_its_identity_and_is_warned_without_it(
    scene: Scene,
) -> Result<()> {
    let myapple = Plugin::myapple()?;
    let grants = myapple.yaml.clone().context("it has grants")?;
    let mut host = scene.with(std::slice::from_ref(&myapple))?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    host.terminate().await?;
    let before = scene.cluster.writes_of(&WRITTEN).await?;

    scene.plugins.remove("myapple")?;
    let renamed = myapple.named("pome").with_yaml(format!("identity: myapple\n{grants}"));
    scene.plugins.put(&renamed)?;
    host.start_again()?;
    host.ready().await?;
    eventually("the MyApple was reconciled, and the queue is empty", async || {
        ensure!(reconciles(&mut host).await? >= 1.0, "not yet");
        idle(&mut host).await
    })
    .await?;
    let after = scene.cluster.writes_of(&WRITTEN).await?;
    ensure!(after == before, "the API server counts {} writes", after - before);
    // What is not wanted any more goes, as before.
    gala.scale(2).await?;
    gala.settles().await?;
    let warnings = |rows: Vec<Value>| rows.iter().map(|row| row["warnings"].to_string()).collect::<String>();
    let told = warnings(host.plugins().await?);
    ensure!(!told.contains("identity"), "warnings: {told}");

    scene.plugins.put_yaml(&renamed.with_yaml(grants))?;
    host.warns(&["pilothouse.myapple", "identity: myapple", "pome.yaml"]).await?;
    let told = warnings(host.plugins().await?);
    ensure!(told.contains("identity: myapple"), "warnings: {told}");
    Ok(())
}

pub(crate) async fn a_reconcile_that_changes_nothing_sends_no_request(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    eventually("the queue is empty", async || idle(&mut host).await).await?;
    let requests = requests(&mut host).await?;
    ensure!(requests > 0.0, "the host does not count requests");
    let before = scene.cluster.writes_of(&WRITTEN).await?;

    let rounds = 20;
    for round in 0..rounds {
        let reconciled = reconciles(&mut host).await?;
        let note = json!({"metadata": {"annotations": {"round": round.to_string()}}});
        gala.apples.patch("gala", &PatchParams::default(), &Patch::Merge(note)).await?;
        eventually("it is reconciled once more", async || {
            ensure!(reconciles(&mut host).await? > reconciled, "not yet");
            idle(&mut host).await
        })
        .await?;
    }
    let sent = self::requests(&mut host).await? - requests;
    ensure!(sent == 0.0, "the host sent {sent} requests in {rounds} reconciles");
    let written = scene.cluster.writes_of(&WRITTEN).await? - before;
    ensure!(written == f64::from(rounds), "{written} writes, of which {rounds} are the test's");
    Ok(())
}

pub(crate) async fn children_that_the_server_stores_in_another_form_are_sent_once(scene: Scene) -> Result<()> {
    let plugins = [Plugin::myapple()?.confined_to("nowhere"), Plugin::guest("deploying")?];
    let mut host = scene.with(&plugins)?.host().await?;
    let gala = scene.apple("gala");
    gala.create(2).await?.status_is("2", |status| status["available"] == 2).await?;
    let deployments: Api<Deployment> = Api::namespaced(scene.client(), &scene.namespace);
    let replicas = async || -> Result<Option<i32>> {
        let deployment = deployments.get("gala-juice").await?;
        let spec = deployment.spec.context("it has no spec")?;
        let container = spec.template.spec.and_then(|pod| pod.containers.into_iter().next()).context("no container")?;
        let reference = container.env.and_then(|mut env| env.pop()?.value_from?.field_ref).context("no reference")?;
        ensure!(reference.api_version.is_some(), "the server has added nothing");
        Ok(spec.replicas)
    };
    ensure!(replicas().await? == Some(2));

    let (applied, skipped) = (applies(&mut host, "success").await?, applies(&mut host, "skipped").await?);
    let rounds = 5;
    for round in 1..=rounds {
        let reconciled = reconciles(&mut host).await?;
        // The Deployment controller writes such a status at each step of a rollout.
        let status = json!({"status": {"observedGeneration": round}});
        deployments.patch_status("gala-juice", &PatchParams::default(), &Patch::Merge(status)).await?;
        eventually("its owner is reconciled once more", async || {
            ensure!(reconciles(&mut host).await? > reconciled, "not yet");
            idle(&mut host).await
        })
        .await?;
    }
    let applied = applies(&mut host, "success").await? - applied;
    ensure!(applied == 0.0, "{applied} applies in {rounds} reconciles");
    let skipped = applies(&mut host, "skipped").await? - skipped;
    ensure!(skipped >= 2.0 * f64::from(rounds), "{skipped} applies were left out");

    // A foreign change is still repaired.
    let less = json!({"spec": {"replicas": 1}});
    deployments.patch("gala-juice", &PatchParams::default(), &Patch::Merge(less)).await?;
    eventually("there are two again", async || {
        let replicas = replicas().await?;
        ensure!(replicas == Some(2), "there are {replicas:?}");
        Ok(())
    })
    .await
}

/// A child as people write it, and changes that others may make to it.
struct Furniture {
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    /// Everything except its identity.
    content: Value,
    /// JSON patches, one for each request. Each changes a field that the plugin applied.
    changes: Vec<Value>,
}

impl Furniture {
    const NAME: &str = "gala";

    fn of(
        api_version: &'static str,
        kind: &'static str,
        plural: &'static str,
        content: Value,
        changes: &[Value],
    ) -> Self {
        Self { api_version, kind, plural, content, changes: changes.to_vec() }
    }

    fn text(&self) -> Value {
        let mut text = self.content.clone();
        text["apiVersion"] = self.api_version.into();
        text["kind"] = self.kind.into();
        text["metadata"] = json!({"name": Self::NAME, "labels": {"app": "shop"}});
        text
    }

    fn api(&self, scene: &Scene) -> Api<DynamicObject> {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", self.api_version));
        let resource =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, self.kind), self.plural);
        Api::namespaced_with(scene.client(), &scene.namespace, &resource)
    }

    async fn live(&self, scene: &Scene) -> Result<Value> {
        let live = self.api(scene).get(Self::NAME).await.with_context(|| format!("no {}", self.kind))?;
        Ok(serde_json::to_value(live)?)
    }

    async fn change(&self, scene: &Scene, change: &Value) -> Result<()> {
        let base = if self.api_version == "v1" { "api" } else { "apis" };
        let (namespace, name) = (&scene.namespace, Self::NAME);
        let uri =
            format!("/{base}/{}/namespaces/{namespace}/{}/{name}?fieldManager=somebody", self.api_version, self.plural);
        let request = http::Request::patch(uri)
            .header("Content-Type", "application/json-patch+json")
            .body(change.to_string().into_bytes())?;
        let _changed: Value = scene
            .client()
            .request(request)
            .await
            .with_context(|| format!("cannot change the {}: {change}", self.kind))?;
        Ok(())
    }
}

/// Nine children that a real server stores in another form than they were sent, and five that it stores as sent.
fn furniture() -> Vec<Furniture> {
    let labels = || json!({"app": "shop"});
    let pod = |container: Value| json!({"metadata": {"labels": labels()}, "spec": {"containers": [container]}});
    let selector = || json!({"matchLabels": labels()});
    let shop = || json!({"name": "shop", "image": "registry.k8s.io/pause:3.10"});
    let container = "/spec/template/spec/containers/0";
    let replace = |path: &str, value: Value| json!([{"op": "replace", "path": path, "value": value}]);
    let add = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
    let storage = || json!({"requests": {"storage": "1024Mi"}});
    let mut said = shop();
    said["env"] = json!([
        {"name": "EMPTY", "value": ""},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]);
    said["ports"] = json!([]);
    said["resources"] = json!({"limits": {"cpu": 0.5, "memory": "1024Mi"}});
    let mut counted = shop();
    counted["resources"] = json!({"limits": {"cpu": "1000m"}});
    let mut job_pod = pod(counted);
    job_pod["spec"]["restartPolicy"] = "Never".into();
    let mut cron_pod = pod(shop());
    cron_pod["spec"]["restartPolicy"] = "Never".into();
    let mut node_pod = pod(shop());
    node_pod["spec"]["tolerations"] = json!([]);
    node_pod["spec"]["securityContext"] = json!({});
    let backend = |port: i32| json!({"service": {"name": "gala", "port": {"number": port}}});
    vec![
        Furniture::of(
            "apps/v1",
            "StatefulSet",
            "statefulsets",
            json!({"spec": {
                "serviceName": "gala", "replicas": 2, "selector": selector(), "template": pod(shop()),
                "volumeClaimTemplates": [
                    {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": storage()}},
                ],
            }}),
            &[
                replace("/spec/replicas", json!(5)),
                replace(&format!("{container}/image"), json!("elsewhere/pause:3.10")),
            ],
        ),
        Furniture::of(
            "apps/v1",
            "Deployment",
            "deployments",
            json!({"spec": {"replicas": 2, "selector": selector(), "template": pod(said)}}),
            &[
                replace("/spec/replicas", json!(5)),
                add(&format!("{container}/env/0/value"), json!("full")),
                replace(&format!("{container}/env/1/valueFrom/fieldRef/fieldPath"), json!("metadata.name")),
                replace(&format!("{container}/resources/limits/memory"), json!("2Gi")),
                json!([{"op": "remove", "path": format!("{container}/resources/limits/memory")}]),
                json!([{"op": "move", "from": format!("{container}/env/0"), "path": format!("{container}/env/1")}]),
                replace("/metadata/labels/app", json!("barn")),
                json!([{"op": "remove", "path": "/metadata/annotations"}]),
            ],
        ),
        Furniture::of(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            "horizontalpodautoscalers",
            json!({"spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "gala"}, "maxReplicas": 3,
                "metrics": [
                    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1024Mi"}}},
                ],
            }}),
            &[
                replace("/spec/maxReplicas", json!(9)),
                replace("/spec/metrics/0/resource/target/averageValue", json!("2Gi")),
            ],
        ),
        Furniture::of(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "networkpolicies",
            json!({"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}], "policyTypes": ["Ingress"]}}),
            &[replace("/spec/ingress/0/ports/0/port", json!(81)), add("/spec/ingress/-", json!({}))],
        ),
        Furniture::of(
            "v1",
            "Secret",
            "secrets",
            json!({"stringData": {"password": "hunter2"}, "data": {"user": "Z2FsYQ=="}}),
            &[replace("/data/password", json!("b3RoZXI=")), json!([{"op": "remove", "path": "/data/user"}])],
        ),
        Furniture::of(
            "v1",
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": storage()}}),
            // The server rejects changes of an unbound claim's spec.
            &[replace("/metadata/labels/app", json!("barn"))],
        ),
        Furniture::of(
            "batch/v1",
            "Job",
            "jobs",
            json!({"spec": {"parallelism": 1, "template": job_pod}}),
            &[replace("/spec/parallelism", json!(3)), replace("/metadata/labels/app", json!("barn"))],
        ),
        Furniture::of(
            "apps/v1",
            "DaemonSet",
            "daemonsets",
            json!({"spec": {"selector": selector(), "template": node_pod}}),
            &[
                add("/spec/template/spec/tolerations", json!([{"operator": "Exists"}])),
                replace(&format!("{container}/image"), json!("elsewhere/pause:3.10")),
            ],
        ),
        Furniture::of(
            "rbac.authorization.k8s.io/v1",
            "Role",
            "roles",
            json!({"rules": []}),
            &[add("/rules", json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]))],
        ),
        Furniture::of(
            "v1",
            "Service",
            "services",
            json!({"spec": {"selector": labels(), "ports": [{"port": 80, "targetPort": 8080}]}}),
            &[replace("/spec/ports/0/targetPort", json!(9))],
        ),
        Furniture::of(
            "networking.k8s.io/v1",
            "Ingress",
            "ingresses",
            json!({"spec": {"rules": [{"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend(80)}]}}]}}),
            &[replace("/spec/rules/0/http/paths/0/path", json!("/elsewhere"))],
        ),
        Furniture::of(
            "batch/v1",
            "CronJob",
            "cronjobs",
            json!({"spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": cron_pod}}}}),
            &[replace("/spec/schedule", json!("* * * * *"))],
        ),
        Furniture::of(
            "policy/v1",
            "PodDisruptionBudget",
            "poddisruptionbudgets",
            json!({"spec": {"minAvailable": 1, "selector": selector()}}),
            &[replace("/spec/minAvailable", json!(2))],
        ),
        Furniture::of(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            "rolebindings",
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gala"},
                "subjects": [{"kind": "ServiceAccount", "name": "gala", "namespace": "default"}],
            }),
            &[replace("/subjects/0/name", json!("fuji"))],
        ),
    ]
}

/// Returns what must be as before once a foreign change is repaired.
fn lasting(mut live: Value) -> Value {
    if let Some(metadata) = live["metadata"].as_object_mut() {
        metadata.retain(|member, _| !["resourceVersion", "generation", "managedFields"].contains(&member.as_str()));
        // A real server counts a DaemonSet's changes in an annotation, too.
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("deprecated.daemonset.template.generation");
        }
    }
    live
}

pub(crate) async fn ordinary_children_cost_no_request_after_a_restart_either_and_foreign_changes_are_repaired(
    scene: Scene,
) -> Result<()> {
    let furniture = furniture();
    let plugins = [Plugin::myapple()?.confined_to("nowhere"), Plugin::guest("furnishing")?];
    let mut host = scene.with(&plugins)?.host().await?;
    let gala = scene.apple("gala");
    let texts: Vec<Value> = furniture.iter().map(Furniture::text).collect();
    gala.create_with(&Value::from(texts).to_string(), 1).await?;
    gala.status_is("1", |status| status["available"] == 1).await?;
    eventually("the queue is empty", async || idle(&mut host).await).await?;

    let mut versions = Vec::new();
    for one in &furniture {
        let live = one.live(&scene).await?;
        // Only children that the diff cannot prove equal carry the mark.
        let is_plain = ["Secret", "Role", "Service", "Ingress", "CronJob", "PodDisruptionBudget", "RoleBinding"];
        let is_marked = live["metadata"]["annotations"]["pilothouse.dev/applied"].is_string();
        ensure!(!(is_marked && is_plain.contains(&one.kind)), "the {} is marked", one.kind);
        versions.push((one.kind, live["metadata"]["resourceVersion"].clone()));
    }
    let touch = async |host: &mut Host, round: u32| -> Result<()> {
        let reconciled = reconciles(host).await?;
        let note = json!({"metadata": {"annotations": {"round": round.to_string()}}});
        gala.apples.patch("gala", &PatchParams::default(), &Patch::Merge(note)).await?;
        eventually("it is reconciled once more", async || {
            ensure!(reconciles(host).await? > reconciled, "not yet");
            idle(host).await
        })
        .await
    };
    let is_as_before = async || -> Result<()> {
        for (one, (_, version)) in furniture.iter().zip(&versions) {
            let now = &one.live(&scene).await?["metadata"]["resourceVersion"];
            ensure!(now == version, "the {} went from version {version} to {now}", one.kind);
        }
        Ok(())
    };
    let before = requests(&mut host).await?;
    for round in 0..3 {
        touch(&mut host, round).await?;
    }
    let sent = requests(&mut host).await? - before;
    ensure!(sent == 0.0, "{sent} requests in three reconciles");
    is_as_before().await?;

    host.terminate_and_restart().await?;
    host.ready().await?;
    eventually("it was reconciled, and the queue is empty", async || {
        let skipped = applies_of(&mut host, "furnishing", "skipped").await?;
        ensure!(skipped >= 15.0, "{skipped} applies were left out");
        idle(&mut host).await
    })
    .await?;
    touch(&mut host, 3).await?;
    let sent = host
        .metrics()
        .await?
        .sum_where("rest_client_requests_total", |label| WRITING.contains(&label("method").as_str()));
    ensure!(sent == 0.0, "{sent} writes after a restart");
    is_as_before().await?;

    for one in &furniture {
        let before = lasting(one.live(&scene).await?);
        for change in &one.changes {
            one.change(&scene, change).await?;
            eventually(&format!("the {} is repaired after {change}", one.kind), async || {
                let now = lasting(one.live(&scene).await?);
                ensure!(now == before, "it is {now}, and was {before}");
                Ok(())
            })
            .await?;
        }
    }
    Ok(())
}

async fn applies_of(host: &mut Host, plugin: &str, result: &str) -> Result<f64> {
    let labels = [("plugin", plugin), ("verb", "apply"), ("result", result)];
    Ok(host.metrics().await?.sum("pilothouse_writes_total", &labels))
}

async fn applies(host: &mut Host, result: &str) -> Result<f64> {
    applies_of(host, "deploying", result).await
}

async fn reconciles(host: &mut Host) -> Result<f64> {
    Ok(host.metrics().await?.sum("controller_runtime_reconcile_total", &[("result", "success")]))
}

async fn requests(host: &mut Host) -> Result<f64> {
    Ok(host.metrics().await?.sum("rest_client_requests_total", &[]))
}

/// Fails while keys are queued or in reconcile.
async fn idle(host: &mut Host) -> Result<()> {
    let metrics = host.metrics().await?;
    let waiting = metrics.sum("workqueue_depth", &[]);
    let working = metrics.sum("controller_runtime_active_workers", &[]);
    ensure!(waiting == 0.0 && working == 0.0, "{waiting} keys wait, {working} are at work");
    Ok(())
}
