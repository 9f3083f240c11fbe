//! The example plugin `auditor`.

use anyhow::{Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Event, Pod},
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{Plugin, Scene, eventually};
use serde_json::{from_value, json};

use crate::metrics::exposed;

pub(crate) async fn what_breaks_a_rule_is_reported_until_it_is_repaired(scene: Scene) -> Result<()> {
    let config = json!({
        "owned": ["v1/Pod"], "labelled": ["apps/v1/Deployment"], "labels": ["team"], "applied": ["apps/v1/Deployment"],
        "ignore": ["spec.replicas"],
    });
    let mut host = scene.with(&[Plugin::example("auditor")?.with("config", &config)?])?.host().await?;
    let name = scene.namespace.as_str();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("audit.example.com", "v1", "AuditReport"));
    let reports: Api<DynamicObject> = Api::all_with(scene.client(), &resource);
    let report = DynamicObject::new(name, &resource).data(json!({"spec": {"namespaces": [name]}}));
    eventually("the API server serves AuditReports", async || {
        Ok(reports.create(&PostParams::default(), &report).await?)
    })
    .await?;
    let finds = async |expected: &[&str]| {
        eventually(&format!("the findings are {expected:?}"), async || {
            let status = reports.get(name).await?.data["status"].clone();
            let findings = status["findings"].as_array().cloned().unwrap_or_default();
            let found: Vec<String> = findings
                .iter()
                .map(|finding| {
                    ["rule", "kind", "name", "message"]
                        .map(|member| finding[member].as_str().unwrap_or_default())
                        .join(" ")
                })
                .collect();
            ensure!(found == expected, "{status}");
            let clean = if expected.is_empty() { "True" } else { "False" };
            ensure!(status["conditions"][0]["status"] == clean, "{status}");
            Ok(())
        })
        .await
    };
    finds(&[]).await?;

    let pods: Api<Pod> = Api::namespaced(scene.client(), name);
    let pod = json!({"metadata": {"name": "alone"}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    pods.create(&PostParams::default(), &from_value(pod)?).await?;
    let alone = "Ownerless Pod alone nobody owns it";
    finds(&[alone]).await?;

    // As `kubectl apply` does it.
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template});
    let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": json!({"spec": spec}).to_string()});
    let web = json!({"metadata": {"name": "web", "annotations": annotations}, "spec": spec});
    let deployments: Api<Deployment> = Api::namespaced(scene.client(), name);
    deployments.create(&PostParams::default(), &from_value(web)?).await?;
    let unlabelled = "MissingLabels Deployment web it lacks the labels team";
    finds(&[alone, unlabelled]).await?;

    let edit = |change| async { deployments.patch("web", &PatchParams::default(), &Patch::Strategic(change)).await };
    edit(json!({"metadata": {"labels": {"team": "shop"}}})).await?;
    finds(&[alone]).await?;
    let image = |image: &str| json!({"spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": "web", "image": image}]}}}});
    edit(image("web:2")).await?;
    let drift = "Drift Deployment web not as it was applied: spec.template.spec.containers[web].image";
    finds(&[alone, drift]).await?;

    let events: Api<Event> = Api::namespaced(scene.client(), name);
    eventually("the objects have Events", async || {
        let all = events.list(&ListParams::default()).await?.items;
        let reported: Vec<String> = all
            .iter()
            .map(|event| {
                let of = |text: &Option<String>| text.clone().unwrap_or_default();
                format!("{} {}", of(&event.reason), of(&event.involved_object.name))
            })
            .collect();
        for expected in ["Ownerless alone", "MissingLabels web", "Drift web"] {
            ensure!(reported.iter().filter(|reported| *reported == expected).count() == 1, "{expected}: {reported:?}");
        }
        Ok(())
    })
    .await?;
    let metrics = exposed(&mut host).await?;
    for (rule, count) in [("Ownerless", 1.0), ("MissingLabels", 0.0), ("Drift", 1.0)] {
        let found = metrics.sum("plugin_auditor_findings", &[("report", name), ("rule", rule)]);
        ensure!(found == count, "{found} findings of {rule}");
    }

    edit(image("web:1")).await?;
    pods.delete("alone", &DeleteParams::default().grace_period(0)).await?;
    finds(&[]).await
}
