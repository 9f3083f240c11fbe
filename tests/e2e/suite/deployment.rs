//! Deployments and ReplicaSets, reconciled by the plugin `deployment`, and Pods that `kubelet-stand-in` makes ready.
//!
//! The tests follow those that Kubernetes has for its own controllers. `plugins/deployment/README.md` says which
//! follows which.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStatus, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use pilothouse_e2e::{Host, Plugin, Scene, eventually, host, kubectl::Kubectl, suite::NotHere};
use pilothouse_real::process::Process;
use serde_json::{Value, from_value, json};

const REVISION: &str = "deployment.kubernetes.io/revision";
const HASH: &str = "pod-template-hash";

/// A Deployment of the test's namespace, and what belongs to it.
struct Web {
    name: String,
    deployments: Api<Deployment>,
    sets: Api<ReplicaSet>,
    pods: Api<Pod>,
}

/// Starts a host with both plugins.
async fn served(scene: &Scene) -> Result<(Host, Web)> {
    let host = scene.with(&[Plugin::deployment()?, Plugin::kubelet_stand_in()?])?.host().await?;
    Ok((host, Web::new(scene, "web")))
}

/// Returns the containers of an image. A Pod of the image `broken` runs, and is not ready within an hour.
fn containers(image: &str) -> Value {
    let mut container = json!({"name": "web", "image": image});
    if image.starts_with("broken") {
        container["readinessProbe"] = json!({"initialDelaySeconds": 3600, "httpGet": {"path": "/", "port": 80}});
    }
    json!([container])
}

fn template(app: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": containers(image)}})
}

impl Web {
    fn new(scene: &Scene, name: &str) -> Self {
        let (client, namespace) = (scene.client(), scene.namespace.as_str());
        Self {
            name: name.to_owned(),
            deployments: Api::namespaced(client.clone(), namespace),
            sets: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client, namespace),
        }
    }

    /// Creates the Deployment with the image `web:1` and further fields of its spec.
    async fn create(&self, spec: Value) -> Result<()> {
        self.create_annotated(json!({}), spec).await
    }

    async fn create_annotated(&self, annotations: Value, more: Value) -> Result<()> {
        let mut spec =
            json!({"selector": {"matchLabels": {"app": self.name}}, "template": template(&self.name, "web:1")});
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let object = json!({"metadata": {"name": self.name, "annotations": annotations}, "spec": spec});
        self.deployments.create(&PostParams::default(), &from_value(object)?).await.context("cannot create it")?;
        Ok(())
    }

    /// Creates a ReplicaSet of the Deployment's labels that nobody owns.
    async fn create_set(&self, name: &str, image: &str, replicas: i32, annotations: Value) -> Result<ReplicaSet> {
        let object = json!({
            "metadata": {"name": name, "labels": {"app": self.name}, "annotations": annotations},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": {"app": self.name}},
                "template": template(&self.name, image),
            },
        });
        self.sets.create(&PostParams::default(), &from_value(object)?).await.context("cannot create the ReplicaSet")
    }

    async fn create_pod(&self, name: &str, labels: Value) -> Result<Pod> {
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": {"containers": containers("web:1")}});
        self.pods.create(&PostParams::default(), &from_value(object)?).await.context("cannot create the Pod")
    }

    async fn get(&self) -> Result<Deployment> {
        self.deployments.get(&self.name).await.context("cannot get it")
    }

    async fn status(&self) -> Result<DeploymentStatus> {
        Ok(self.get().await?.status.unwrap_or_default())
    }

    /// Changes the spec.
    async fn change(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.deployments.patch(&self.name, &PatchParams::default(), &patch).await.context("cannot patch it")?;
        Ok(())
    }

    async fn set_image(&self, image: &str) -> Result<()> {
        self.change(json!({"template": {"spec": {"containers": containers(image)}}})).await
    }

    async fn relabel<K>(&self, api: &Api<K>, name: &str, app: &str) -> Result<()>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"app": app}}}));
        api.patch(name, &PatchParams::default(), &patch).await.context("cannot change the labels")?;
        Ok(())
    }

    /// The ReplicaSets of this Deployment's labels, by their images.
    async fn sets(&self) -> Result<BTreeMap<String, ReplicaSet>> {
        let sets = self.sets.list(&ListParams::default().labels(&format!("app={}", self.name))).await?;
        let image = |set: &ReplicaSet| {
            let template = set.spec.as_ref()?.template.as_ref()?;
            template.spec.as_ref()?.containers.first()?.image.clone()
        };
        Ok(sets.into_iter().map(|set| (image(&set).unwrap_or_default(), set)).collect())
    }

    async fn set_of(&self, image: &str) -> Result<ReplicaSet> {
        self.sets().await?.remove(image).with_context(|| format!("no ReplicaSet of {image}"))
    }

    /// The Pods of this Deployment's labels.
    async fn pods(&self) -> Result<Vec<Pod>> {
        let pods = self.pods.list(&ListParams::default().labels(&format!("app={}", self.name))).await?;
        Ok(pods.items)
    }

    /// Waits until the Deployment has completed its rollout: only Pods of this image, all available.
    async fn completes(&self, image: &str, replicas: i32) -> Result<Deployment> {
        eventually(&format!("{replicas} Pods of {image} are available, and no others exist"), async || {
            let web = self.get().await?;
            let status = web.status.clone().unwrap_or_default();
            ensure!(status.observed_generation == web.metadata.generation, "the last change was not seen: {status:?}");
            let counts = [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
            ensure!(counts == [Some(replicas).filter(|all| *all > 0); 4], "{status:?}");
            let images = images(&self.pods().await?);
            let expected: BTreeMap<_, _> = (replicas > 0).then(|| (image.to_owned(), replicas)).into_iter().collect();
            ensure!(images == expected, "the Pods are {images:?}");
            ensure!(reason(&status, "Available") == Some("MinimumReplicasAvailable"), "{status:?}");
            Ok(web)
        })
        .await
    }

    /// Waits until the sizes of the ReplicaSets of these images are these.
    async fn sizes_are(&self, expected: &[(&str, i32)]) -> Result<()> {
        eventually(&format!("the sizes are {expected:?}"), async || {
            let sets = self.sets().await?;
            let size = |image: &str| sets.get(image)?.spec.as_ref()?.replicas;
            let found: Vec<_> = expected.iter().map(|(image, _)| (*image, size(image).unwrap_or(-1))).collect();
            ensure!(found == expected, "they are {found:?}");
            Ok(())
        })
        .await
    }

    /// Waits until `Progressing` has this reason.
    async fn progresses_by(&self, wanted: &str) -> Result<()> {
        eventually(&format!("Progressing has the reason {wanted}"), async || {
            let status = self.status().await?;
            ensure!(reason(&status, "Progressing") == Some(wanted), "{:?}", status.conditions);
            Ok(())
        })
        .await
    }
}

/// Counts Pods by their images.
fn images(pods: &[Pod]) -> BTreeMap<String, i32> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.clone());
        *counts.entry(image.unwrap_or_default()).or_default() += 1;
    }
    counts
}

fn reason<'a>(status: &'a DeploymentStatus, type_: &str) -> Option<&'a str> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == type_)?.reason.as_deref()
}

fn annotation<'a>(object: &'a impl ResourceExt, name: &str) -> &'a str {
    object.annotations().get(name).map(String::as_str).unwrap_or_default()
}

fn is_owned_by(object: &impl ResourceExt, owner: &impl ResourceExt) -> bool {
    object.owner_references().iter().any(|it| it.controller == Some(true) && Some(&it.uid) == owner.uid().as_ref())
}

pub(crate) async fn a_new_deployment_is_labelled_annotated_and_becomes_available(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    let annotations = json!({
        "test": "copied", "kubectl.kubernetes.io/last-applied-configuration": "not copied",
    });
    web.create_annotated(annotations, json!({"replicas": 20})).await?;
    let complete = web.completes("web:1", 20).await?;
    ensure!(annotation(&complete, REVISION) == "1", "{:?}", complete.metadata);
    web.progresses_by("NewReplicaSetAvailable").await?;

    let set = web.set_of("web:1").await?;
    ensure!(is_owned_by(&set, &complete), "{:?}", set.metadata.owner_references);
    ensure!((annotation(&set, "test"), annotation(&set, REVISION)) == ("copied", "1"), "{:?}", set.annotations());
    ensure!(annotation(&set, "kubectl.kubernetes.io/last-applied-configuration").is_empty(), "it was copied");
    let hash = set.labels().get(HASH).context("no hash")?;
    let spec = set.spec.clone().unwrap_or_default();
    let selected = spec.selector.match_labels.unwrap_or_default();
    ensure!(selected.get(HASH) == Some(hash) && set.name_any().ends_with(hash), "{set:?}");
    for pod in web.pods().await? {
        ensure!(is_owned_by(&pod, &set) && pod.labels().get(HASH) == Some(hash), "{:?}", pod.metadata);
    }
    Ok(())
}

pub(crate) async fn a_rolling_update_adopts_a_replica_set_and_replaces_its_pods(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create_set("old", "old:1", 1, json!({REVISION: "3546343826724305832"})).await?;
    web.create(json!({"replicas": 1})).await?;
    let complete = web.completes("web:1", 1).await?;
    ensure!(annotation(&complete, REVISION) == "3546343826724305833", "{:?}", complete.annotations());
    let old = web.set_of("old:1").await?;
    ensure!(is_owned_by(&old, &complete), "it was not adopted: {:?}", old.metadata.owner_references);
    Ok(())
}

pub(crate) async fn recreate_deletes_every_old_pod_before_it_creates_a_new_one(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 3, "strategy": {"type": "Recreate"}})).await?;
    web.completes("web:1", 3).await?;
    // One of the old Pods stays for a while.
    let slow = web.pods().await?.remove(0).name_any();
    let finalizers = |all: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": all}}));
    web.pods.patch(&slow, &PatchParams::default(), &finalizers(&["example.com/slow"])).await?;
    web.set_image("web:2").await?;
    eventually("only the slow Pod is left", async || {
        let pods = web.pods().await?;
        ensure!(pods.len() == 1 && pods[0].name_any() == slow, "there are {:?}", images(&pods));
        Ok(())
    })
    .await?;
    let sets = web.sets().await?;
    ensure!(!sets.contains_key("web:2"), "the new ReplicaSet is there before the last old Pod is gone");
    web.pods.patch(&slow, &PatchParams::default(), &finalizers(&[])).await?;
    web.completes("web:2", 3).await.map(drop)
}

pub(crate) async fn old_replica_sets_beyond_the_limit_are_deleted(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 1, "revisionHistoryLimit": 1})).await?;
    web.completes("web:1", 1).await?;
    for image in ["web:2", "web:3"] {
        web.set_image(image).await?;
        web.completes(image, 1).await?;
    }
    eventually("the oldest ReplicaSet is deleted", async || {
        let left: Vec<String> = web.sets().await?.into_keys().collect();
        ensure!(left == ["web:2", "web:3"], "there are {left:?}");
        Ok(())
    })
    .await?;
    web.change(json!({"revisionHistoryLimit": 0})).await?;
    eventually("only the newest ReplicaSet is left", async || {
        let left: Vec<String> = web.sets().await?.into_keys().collect();
        ensure!(left == ["web:3"], "there are {left:?}");
        Ok(())
    })
    .await
}

pub(crate) async fn a_rollover_ends_with_the_last_template(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    let update = json!({"maxSurge": 1, "maxUnavailable": 0});
    web.create(json!({"replicas": 2, "strategy": {"rollingUpdate": update}})).await?;
    web.completes("web:1", 2).await?;
    web.set_image("broken:1").await?;
    web.sizes_are(&[("web:1", 2), ("broken:1", 1)]).await?;
    web.set_image("web:2").await?;
    web.completes("web:2", 2).await?;
    web.sizes_are(&[("web:1", 0), ("broken:1", 0), ("web:2", 2)]).await
}

pub(crate) async fn rollouts_that_are_changed_at_random_end(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 6, "progressDeadlineSeconds": 30})).await?;
    // A linear congruential generator: the same changes in each run.
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..20 {
        match random(5) {
            0 => web.set_image(&format!("web:{round}")).await?,
            1 => web.set_image("web:1").await?,
            2 => web.change(json!({"replicas": random(10)})).await?,
            3 => web.change(json!({"paused": random(2) == 0})).await?,
            _ => {
                if let Some(pod) = web.pods().await?.first() {
                    drop(web.pods.delete(&pod.name_any(), &DeleteParams::default()).await);
                }
            }
        }
    }
    web.change(json!({"paused": false, "replicas": 6})).await?;
    web.set_image("web:last").await?;
    web.completes("web:last", 6).await?;
    web.progresses_by("NewReplicaSetAvailable").await
}

pub(crate) async fn a_deleted_deployment_takes_its_replica_sets_and_pods_along(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 2})).await?;
    web.completes("web:1", 2).await?;
    web.deployments.delete(&web.name, &DeleteParams::default()).await?;
    eventually("nothing is left", async || {
        let (sets, pods) = (web.sets().await?.len(), web.pods().await?.len());
        ensure!((sets, pods) == (0, 0), "{sets} ReplicaSets and {pods} Pods");
        Ok(())
    })
    .await
}

pub(crate) async fn replica_sets_of_a_deleted_deployment_are_orphaned_and_adopted(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 1})).await?;
    let first = web.completes("web:1", 1).await?;
    let set = web.set_of("web:1").await?;
    let orphaning = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    web.deployments.delete(&web.name, &orphaning).await?;
    eventually("the ReplicaSet is an orphan", async || {
        ensure!(web.deployments.get_opt(&web.name).await?.is_none(), "the Deployment is there");
        ensure!(!is_owned_by(&web.set_of("web:1").await?, &first), "the ReplicaSet has its owner");
        Ok(())
    })
    .await?;
    web.create(json!({"replicas": 1})).await?;
    let second = web.completes("web:1", 1).await?;
    let adopted = web.set_of("web:1").await?;
    ensure!(adopted.uid() == set.uid() && is_owned_by(&adopted, &second), "{:?}", adopted.metadata);
    Ok(())
}

pub(crate) async fn deployments_and_replica_sets_follow_their_scale(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 1})).await?;
    web.completes("web:1", 1).await?;
    let scale = |replicas: i32| Patch::Merge(json!({"spec": {"replicas": replicas}}));
    web.deployments.patch_scale(&web.name, &PatchParams::default(), &scale(4)).await?;
    web.completes("web:1", 4).await?;
    ensure!(web.deployments.get_scale(&web.name).await?.status.is_some_and(|status| status.replicas == 4), "not 4");
    web.deployments.patch_scale(&web.name, &PatchParams::default(), &scale(0)).await?;
    web.completes("web:1", 0).await?;

    let lone = Web::new(&scene, "lone");
    lone.create_set("lone", "web:1", 1, json!({})).await?;
    for replicas in [3, 1] {
        lone.sets.patch_scale("lone", &PatchParams::default(), &scale(replicas)).await?;
        eventually("the ReplicaSet has that many Pods", async || {
            let status = lone.sets.get("lone").await?.status.unwrap_or_default();
            let counts = [status.fully_labeled_replicas, status.ready_replicas, status.available_replicas];
            ensure!(status.replicas == replicas && counts == [Some(replicas); 3], "{status:?}");
            ensure!(lone.pods().await?.len() == usize::try_from(replicas)?, "there are other Pods");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

pub(crate) async fn a_deployment_that_is_scaled_while_it_rolls_out_grows_in_proportion(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    let update = json!({"maxSurge": 3, "maxUnavailable": 2});
    web.create(json!({"replicas": 10, "strategy": {"rollingUpdate": update}})).await?;
    web.completes("web:1", 10).await?;
    web.set_image("broken:1").await?;
    web.sizes_are(&[("web:1", 8), ("broken:1", 5)]).await?;
    eventually("the rollout waits", async || {
        let status = web.status().await?;
        ensure!((status.replicas, status.available_replicas) == (Some(13), Some(8)), "{status:?}");
        Ok(())
    })
    .await?;
    web.change(json!({"replicas": 30})).await?;
    web.sizes_are(&[("web:1", 20), ("broken:1", 13)]).await?;
    // Another template ends it.
    web.set_image("web:2").await?;
    web.completes("web:2", 30).await.map(drop)
}

pub(crate) async fn a_paused_deployment_scales_and_does_not_roll_out(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 1, "paused": true})).await?;
    web.progresses_by("DeploymentPaused").await?;
    ensure!(web.sets().await?.is_empty(), "a paused Deployment has a ReplicaSet");
    web.change(json!({"paused": false})).await?;
    web.completes("web:1", 1).await?;

    web.change(json!({"paused": true})).await?;
    web.progresses_by("DeploymentPaused").await?;
    web.set_image("web:2").await?;
    web.change(json!({"replicas": 3})).await?;
    web.sizes_are(&[("web:1", 3)]).await?;
    eventually("the change is seen", async || {
        let paused = web.get().await?;
        let seen = paused.status.and_then(|status| status.observed_generation);
        ensure!(seen == paused.metadata.generation, "{seen:?} was seen");
        Ok(())
    })
    .await?;
    ensure!(!web.sets().await?.contains_key("web:2"), "a paused Deployment rolls out");
    web.change(json!({"paused": false})).await?;
    web.completes("web:2", 3).await.map(drop)
}

pub(crate) async fn a_collision_of_hashes_is_counted_and_avoided(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 1})).await?;
    web.completes("web:1", 1).await?;
    // Now another template has the name that belongs to the Deployment's.
    let set = web.set_of("web:1").await?.name_any();
    let patch = Patch::Merge(json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 5}}}}));
    web.sets.patch(&set, &PatchParams::default(), &patch).await?;
    eventually("the collision is counted", async || {
        let count = web.status().await?.collision_count;
        ensure!(count == Some(1), "it is {count:?}");
        Ok(())
    })
    .await?;
    let complete = web.completes("web:1", 1).await?;
    ensure!(annotation(&complete, REVISION) == "2", "{:?}", complete.annotations());
    Ok(())
}

pub(crate) async fn a_rollout_without_progress_is_late_and_can_be_undone(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 1})).await?;
    web.completes("web:1", 1).await?;
    web.change(json!({"progressDeadlineSeconds": 1})).await?;
    web.set_image("broken:1").await?;
    web.progresses_by("ProgressDeadlineExceeded").await?;
    // The old Pod serves on.
    let status = web.status().await?;
    ensure!(reason(&status, "Available") == Some("MinimumReplicasAvailable"), "{:?}", status.conditions);
    web.set_image("web:1").await?;
    let complete = web.completes("web:1", 1).await?;
    web.progresses_by("NewReplicaSetAvailable").await?;
    ensure!(annotation(&complete, REVISION) == "3", "{:?}", complete.annotations());
    let set = web.set_of("web:1").await?;
    ensure!(annotation(&set, "deployment.kubernetes.io/revision-history") == "1", "{:?}", set.annotations());
    Ok(())
}

pub(crate) async fn overlapping_deployments_do_not_touch_each_other(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 2})).await?;
    web.completes("web:1", 2).await?;
    // Of the same selector, template and labels.
    let other = json!({
        "metadata": {"name": "other"},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template("web", "web:1"),
        },
    });
    web.deployments.create(&PostParams::default(), &from_value(other)?).await?;
    let counts = async |name: &str| -> Result<(Option<i32>, Option<i32>)> {
        let status = web.deployments.get(name).await?.status.unwrap_or_default();
        Ok((status.replicas, status.available_replicas))
    };
    eventually("both have their own Pods", async || {
        let (web, other) = (counts("web").await?, counts("other").await?);
        ensure!((web, other) == ((Some(2), Some(2)), (Some(3), Some(3))), "web has {web:?}, other has {other:?}");
        Ok(())
    })
    .await?;
    web.change(json!({"replicas": 3})).await?;
    eventually("only one is scaled", async || {
        let (web, other) = (counts("web").await?, counts("other").await?);
        ensure!((web, other) == ((Some(3), Some(3)), (Some(3), Some(3))), "web has {web:?}, other has {other:?}");
        Ok(())
    })
    .await
}

pub(crate) async fn a_deployment_is_available_after_min_ready_seconds(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 2, "minReadySeconds": 500})).await?;
    eventually("the Pods are ready, and not available", async || {
        let status = web.status().await?;
        ensure!((status.ready_replicas, status.available_replicas) == (Some(2), None), "{status:?}");
        ensure!(reason(&status, "Available") == Some("MinimumReplicasUnavailable"), "{:?}", status.conditions);
        Ok(())
    })
    .await?;
    web.change(json!({"minReadySeconds": 1})).await?;
    web.completes("web:1", 2).await?;
    let least = web.set_of("web:1").await?.spec.and_then(|spec| spec.min_ready_seconds);
    ensure!(least == Some(1), "the ReplicaSet has {least:?}");
    Ok(())
}

pub(crate) async fn replica_sets_are_adopted_and_released_by_their_labels(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 1})).await?;
    let complete = web.completes("web:1", 1).await?;
    let set = web.set_of("web:1").await?;
    web.relabel(&web.sets, &set.name_any(), "other").await?;
    eventually("it is released, and another takes its place", async || {
        ensure!(!is_owned_by(&web.sets.get(&set.name_any()).await?, &complete), "it is still owned");
        ensure!(is_owned_by(&web.set_of("web:1").await?, &complete), "there is no other");
        Ok(())
    })
    .await?;
    web.relabel(&web.sets, &set.name_any(), "web").await?;
    eventually("it is adopted", async || {
        ensure!(is_owned_by(&web.sets.get(&set.name_any()).await?, &complete), "it is not owned");
        Ok(())
    })
    .await
}

pub(crate) async fn pods_are_adopted_and_released_by_their_labels(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    let orphan = web.create_pod("orphan", json!({"app": "web"})).await?;
    let set = web.create_set("set", "web:1", 1, json!({})).await?;
    eventually("the Pod is adopted, and no other created", async || {
        let pods = web.pods().await?;
        ensure!(pods.len() == 1 && pods[0].uid() == orphan.uid() && is_owned_by(&pods[0], &set), "{:?}", images(&pods));
        Ok(())
    })
    .await?;
    web.relabel(&web.pods, "orphan", "other").await?;
    eventually("the Pod is released, and another takes its place", async || {
        ensure!(!is_owned_by(&web.pods.get("orphan").await?, &set), "it is still owned");
        let pods = web.pods().await?;
        ensure!(pods.len() == 1 && is_owned_by(&pods[0], &set), "{:?}", images(&pods));
        Ok(())
    })
    .await
}

pub(crate) async fn a_replica_set_replaces_failed_and_deleted_pods_and_deletes_the_cheapest(
    scene: Scene,
) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create_set("set", "web:1", 3, json!({})).await?;
    let ready = async |count: i32| {
        eventually("the Pods are available", async || {
            let status = web.sets.get("set").await?.status.unwrap_or_default();
            ensure!((status.replicas, status.available_replicas) == (count, Some(count)), "{status:?}");
            Ok(())
        })
        .await
    };
    ready(3).await?;
    let before = web.pods().await?;
    let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    web.pods.patch_status(&before[0].name_any(), &PatchParams::default(), &failed).await?;
    web.pods.delete(&before[1].name_any(), &DeleteParams::default()).await?;
    eventually("both are replaced", async || {
        let pods = web.pods().await?;
        ensure!(pods.len() == 4 && pods.iter().all(|pod| pod.uid() != before[1].uid()), "{} Pods", pods.len());
        Ok(())
    })
    .await?;
    ready(3).await?;

    let cost =
        Patch::Merge(json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "100"}}}));
    web.pods.patch(&before[2].name_any(), &PatchParams::default(), &cost).await?;
    let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
    web.sets.patch_scale("set", &PatchParams::default(), &scale).await?;
    ready(1).await?;
    web.pods.get(&before[2].name_any()).await.context("the dearest Pod was deleted")?;
    Ok(())
}

pub(crate) async fn conditions_of_others_stay_in_the_status(scene: Scene) -> Result<()> {
    let (_host, web) = served(&scene).await?;
    web.create(json!({"replicas": 1})).await?;
    let mut complete = web.completes("web:1", 1).await?;
    let condition = json!({"type": "Reviewed", "status": "True", "reason": "Test", "message": "by the test"});
    complete.status.get_or_insert_default().conditions.get_or_insert_default().push(from_value(condition)?);
    let patch = json!({"status": {"conditions": complete.status.and_then(|status| status.conditions)}});
    web.deployments.patch_status(&web.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    web.set_image("web:2").await?;
    web.completes("web:2", 1).await?;
    let status = web.status().await?;
    ensure!(reason(&status, "Reviewed") == Some("Test"), "{:?}", status.conditions);
    Ok(())
}

pub(crate) async fn kubectl_rolls_out_and_back(scene: Scene) -> Result<()> {
    let Some(kubectl) = Kubectl::find(&scene.cluster.kubeconfig(), &scene.namespace)? else {
        return Err(NotHere("no kubectl: `make real-assets` builds one").into());
    };
    let (_host, _) = served(&scene).await?;
    walk_through(&kubectl).await
}

pub(crate) async fn kubectl_rolls_out_on_the_development_server(scene: Scene) -> Result<()> {
    let kubeconfig = scene.folder().join("dev.kubeconfig");
    let Some(kubectl) = Kubectl::find(&kubeconfig, "default")? else {
        return Err(NotHere("no kubectl: `make real-assets` builds one").into());
    };
    scene.with(&[Plugin::deployment()?.without_yaml(), Plugin::kubelet_stand_in()?.without_yaml()])?;
    let mut command = Command::new(host::binary()?);
    command.arg("dev").arg("--plugins").arg(scene.plugins.path()).arg("--kubeconfig-out").arg(&kubeconfig);
    let mut dev = Process::start("pilothouse dev", command, &scene.folder().join("dev.log"))?;
    eventually("the development server answers", async || kubectl.run(&["get", "namespaces"]).await).await?;
    walk_through(&kubectl).await?;
    dev.terminate();
    let status = dev.wait(std::time::Duration::from_secs(45)).await?;
    ensure!(status.success(), "after SIGTERM `pilothouse dev` ended with {status}");
    Ok(())
}

async fn walk_through(kubectl: &Kubectl) -> Result<()> {
    let rolls_out = async || {
        let said = kubectl.run(&["rollout", "status", "deployment/web", "--timeout=120s"]).await?;
        ensure!(said.contains("successfully rolled out"), "{said}");
        anyhow::Ok(())
    };
    let image_is = async |wanted: &str| {
        let pods = ["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.containers[0].image}"];
        let found = kubectl.run(&pods).await?;
        ensure!(!found.is_empty() && found.split(' ').all(|image| image == wanted), "the Pods have {found}");
        anyhow::Ok(())
    };
    kubectl.run(&["create", "deployment", "web", "--image=web:1", "--replicas=2"]).await?;
    rolls_out().await?;
    image_is("web:1").await?;
    kubectl.run(&["set", "image", "deployment/web", "web=web:2"]).await?;
    rolls_out().await?;
    image_is("web:2").await?;
    revisions_are(kubectl, &["1", "2"]).await?;

    kubectl.run(&["rollout", "undo", "deployment/web"]).await?;
    rolls_out().await?;
    image_is("web:1").await?;
    revisions_are(kubectl, &["2", "3"]).await?;

    kubectl.run(&["rollout", "pause", "deployment/web"]).await?;
    kubectl.run(&["set", "image", "deployment/web", "web=web:3"]).await?;
    kubectl.run(&["scale", "deployment/web", "--replicas=3"]).await?;
    eventually("the paused Deployment is scaled", async || {
        let row = kubectl.run(&["get", "deployment", "web", "--no-headers"]).await?;
        ensure!(row.split_whitespace().nth(1) == Some("3/3"), "{row}");
        Ok(())
    })
    .await?;
    image_is("web:1").await?;
    kubectl.run(&["rollout", "resume", "deployment/web"]).await?;
    rolls_out().await?;
    image_is("web:3").await?;
    kubectl.run(&["rollout", "restart", "deployment/web"]).await?;
    rolls_out().await?;
    let described = kubectl.run(&["describe", "deployment", "web"]).await?;
    ensure!(described.contains("NewReplicaSetAvailable") && described.contains("ScalingReplicaSet"), "{described}");
    kubectl.run(&["delete", "deployment", "web"]).await?;
    Ok(())
}

async fn revisions_are(kubectl: &Kubectl, wanted: &[&str]) -> Result<()> {
    let history = kubectl.run(&["rollout", "history", "deployment/web"]).await?;
    let first = history.lines().filter_map(|line| line.split_whitespace().next());
    let revisions: Vec<&str> = first.filter(|word| word.chars().all(|c| c.is_ascii_digit())).collect();
    ensure!(revisions == wanted, "{history}");
    Ok(())
}
