//! What must hold for Deployments, their ReplicaSets and Pods, and for ResourceWatches, when nothing changes any more.
//!
//! The laws need no memory of the changes: they follow from the objects that the API server lists.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentStatus, ReplicaSet},
        core::v1::{Pod, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
};
use kube::{Resource, ResourceExt};
use serde_json::Value;

const REVISION: &str = "deployment.kubernetes.io/revision";
const HASH: &str = "pod-template-hash";

/// Returns what is wrong with Deployments, ReplicaSets and Pods.
pub(super) fn of_deployments(deployments: &[Deployment], sets: &[ReplicaSet], pods: &[Pod]) -> Vec<String> {
    let mut wrong = Vec::new();
    for deployment in deployments {
        let owned: Vec<&ReplicaSet> = sets.iter().filter(|set| owner(*set) == deployment.uid().as_deref()).collect();
        wrong.extend(of_deployment(deployment, &owned).into_iter().map(|what| told(deployment, &what)));
    }
    for set in sets {
        let owned: Vec<&Pod> =
            pods.iter().filter(|pod| owner(*pod) == set.uid().as_deref() && is_active(pod)).collect();
        wrong.extend(of_set(set, &owned).into_iter().map(|what| told(set, &what)));
        let selector = |deployment: &Deployment| deployment.spec.as_ref().map(|spec| spec.selector.clone());
        wrong.extend(of_owner(set, deployments, selector));
    }
    for pod in pods.iter().filter(|pod| is_active(pod)) {
        wrong.extend(of_owner(pod, sets, |set| set.spec.as_ref().map(|spec| spec.selector.clone())));
    }
    wrong
}

fn told<K: Resource<DynamicType = ()>>(object: &K, what: &str) -> String {
    format!("{} {}/{}: {what}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any())
}

fn owner(object: &impl Resource) -> Option<&str> {
    controller(object.meta()).map(|owner| owner.uid.as_str())
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

fn is_active(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn selects(selector: &LabelSelector, meta: &ObjectMeta) -> bool {
    let has = |(key, value): (&String, &String)| meta.labels.as_ref().and_then(|labels| labels.get(key)) == Some(value);
    selector.match_labels.iter().flatten().all(has)
}

/// An object belongs to an owner that exists and selects it, or no owner selects it.
fn of_owner<K, O>(object: &K, owners: &[O], selector: impl Fn(&O) -> Option<LabelSelector>) -> Option<String>
where
    K: Resource<DynamicType = ()>,
    O: Resource<DynamicType = ()>,
{
    let matching = |owner: &O| {
        let selects = selector(owner).is_some_and(|selector| selects(&selector, object.meta()));
        selects && owner.namespace() == object.namespace()
    };
    match controller(object.meta()) {
        Some(of) => {
            let owner = owners.iter().find(|owner| owner.uid().as_deref() == Some(&of.uid));
            match owner {
                None => Some(told(object, &format!("its owner {} {} does not exist", of.kind, of.name))),
                Some(owner) => {
                    (!matching(owner)).then(|| told(object, &format!("its owner {} selects others", of.name)))
                }
            }
        }
        None => {
            let owner = owners.iter().find(|owner| matching(owner))?;
            Some(told(object, &format!("it is an orphan, though {} selects it", owner.name_any())))
        }
    }
}

fn of_set(set: &ReplicaSet, owned: &[&Pod]) -> Vec<String> {
    let spec = set.spec.clone().unwrap_or_default();
    let status = set.status.clone().unwrap_or_default();
    let wanted = spec.replicas.unwrap_or(1);
    let count = |of: &dyn Fn(&&&Pod) -> bool| i32::try_from(owned.iter().filter(of).count()).unwrap_or(i32::MAX);
    let (all, ready) = (count(&|_| true), count(&|pod| is_ready(pod)));
    let mut wrong = Vec::new();
    if status.observed_generation != set.metadata.generation {
        wrong.push(format!(
            "generation {:?}, and the status is of {:?}",
            set.metadata.generation, status.observed_generation
        ));
    }
    let counted = (status.replicas, status.ready_replicas.unwrap_or(0), status.available_replicas.unwrap_or(0));
    if (all, counted) != (wanted, (all, ready, ready)) {
        wrong.push(format!("{wanted} wanted, {all} Pods, {ready} ready; counted {counted:?}"));
    }
    let image = |spec: Option<&k8s_openapi::api::core::v1::PodSpec>| spec?.containers.first()?.image.clone();
    let template = image(spec.template.as_ref().and_then(|template| template.spec.as_ref()));
    if owned.iter().any(|pod| image(pod.spec.as_ref()) != template) {
        wrong.push(format!("a Pod has another image than {template:?}"));
    }
    if status.conditions.iter().flatten().any(|condition| condition.type_ == "ReplicaFailure") {
        wrong.push("it still has the condition ReplicaFailure".to_owned());
    }
    wrong
}

fn of_deployment(deployment: &Deployment, sets: &[&ReplicaSet]) -> Vec<String> {
    let Some(spec) = &deployment.spec else { return vec!["it has no spec".to_owned()] };
    let status = deployment.status.clone().unwrap_or_default();
    let mut wrong = Vec::new();
    let mut is = |is: bool, what: &dyn Fn() -> String| {
        if !is {
            wrong.push(what());
        }
    };
    is(status.observed_generation == deployment.metadata.generation, &|| "its last change is not observed".to_owned());
    let sum = |of: &dyn Fn(&ReplicaSet) -> i32| sets.iter().map(|set| of(set)).sum::<i32>();
    let running = sum(&|set| set.status.as_ref().map_or(0, |status| status.replicas));
    is(status.replicas.unwrap_or(0) == running, &|| format!("{:?} counted, {running} there", status.replicas));
    let reason = |type_: &str| reason(&status, type_).map(|(status, reason)| format!("{status} {reason}"));
    is(reason("ReplicaFailure").is_none(), &|| "it still has the condition ReplicaFailure".to_owned());
    if spec.paused == Some(true) {
        is(reason("Progressing").as_deref() == Some("Unknown DeploymentPaused"), &|| {
            format!("paused, {:?}", reason("Progressing"))
        });
        return wrong;
    }
    let wanted = spec.replicas.unwrap_or(1);
    let new: Vec<&&ReplicaSet> = sets.iter().filter(|set| template_of(set) == Some(spec.template.clone())).collect();
    // Of equal ones, which a collision of hashes or an adoption leaves, one has the Pods.
    let sized = |set: &&&&ReplicaSet| size(set) == wanted;
    let Some(newest) = new.iter().find(sized) else {
        let sizes: BTreeMap<_, _> = sets.iter().map(|set| (set.name_any(), size(set))).collect();
        is(false, &|| format!("{wanted} wanted, and no ReplicaSet of its template has them: {sizes:?}"));
        return wrong;
    };
    is(sum(&|set| size(set)) == wanted, &|| format!("{} Pods in all, {wanted} wanted", sum(&|set| size(set))));
    let revision = |meta: &ObjectMeta| meta.annotations.as_ref().and_then(|all| all.get(REVISION)).cloned();
    let revisions = (revision(&deployment.metadata), revision(&newest.metadata));
    // With no Pods wanted, several equal ones fit.
    is(revisions.0.is_some() && (revisions.0 == revisions.1 || new.len() > 1), &|| format!("revisions {revisions:?}"));
    let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or_default();
    is(sets.len() <= limit + 1, &|| format!("{} ReplicaSets, {limit} old ones are allowed", sets.len()));
    let counted = [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
    is(counted.map(Option::unwrap_or_default) == [wanted; 4], &|| format!("{wanted} wanted, counted {counted:?}"));
    is(status.unavailable_replicas.unwrap_or(0) == 0, &|| format!("{:?} unavailable", status.unavailable_replicas));
    is(reason("Available").as_deref() == Some("True MinimumReplicasAvailable"), &|| {
        format!("{:?}", reason("Available"))
    });
    is(reason("Progressing").as_deref() == Some("True NewReplicaSetAvailable"), &|| {
        format!("{:?}", reason("Progressing"))
    });
    wrong
}

fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// Returns the template without the hash of the ReplicaSet.
fn template_of(set: &ReplicaSet) -> Option<PodTemplateSpec> {
    let mut template = set.spec.as_ref()?.template.clone()?;
    template.metadata.as_mut()?.labels.as_mut()?.remove(HASH);
    Some(template)
}

fn reason<'a>(status: &'a DeploymentStatus, type_: &str) -> Option<(&'a str, &'a str)> {
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == type_)?;
    Some((&condition.status, condition.reason.as_deref().unwrap_or_default()))
}

/// What the API server lists for an entry of a ResourceWatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// The objects as `namespace/name`.
    Objects(BTreeSet<(String, String)>),
    Undefined,
    NotGranted,
}

/// Returns what is wrong with a ResourceWatch, given what is listed for each of its entries.
pub(super) fn of_watch(watch: &Value, listed: &[Listed]) -> Vec<String> {
    let (status, most) = (&watch["status"], watch["spec"]["list"].as_u64().unwrap_or(10));
    let mut wrong = Vec::new();
    if status["observedGeneration"] != watch["metadata"]["generation"] {
        wrong.push("its last change is not observed".to_owned());
    }
    let mut total = 0;
    for (place, listed) in listed.iter().enumerate() {
        let counted = &status["resources"][place];
        let entry = &watch["spec"]["resources"][place];
        let is_same = counted["kind"] == entry["kind"] && counted["apiVersion"] == entry["apiVersion"];
        let message = counted["message"].as_str();
        let holds = match listed {
            Listed::Objects(objects) => {
                total += objects.len();
                let first = objects.iter().take(usize::try_from(most).unwrap_or(usize::MAX));
                let first: Vec<String> = first.map(|(namespace, name)| format!("{namespace}/{name}")).collect();
                let named: Vec<&str> =
                    counted["objects"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                counted["count"] == objects.len() && named == first && message.is_none()
            }
            Listed::Undefined => counted["count"].is_null() && message.is_some(),
            Listed::NotGranted => {
                counted["count"].is_null() && message.is_some_and(|text| text.contains("not granted"))
            }
        };
        if !is_same || !holds {
            let found = match listed {
                Listed::Objects(objects) => format!("{} listed, first {:?}", objects.len(), objects.first()),
                other => format!("{other:?}"),
            };
            wrong.push(format!("{entry}: {found}, and its status says {counted}"));
        }
    }
    let length = status["resources"].as_array().map_or(0, Vec::len);
    if status["total"] != total || length != listed.len() {
        wrong.push(format!(
            "{total} objects of {} kinds, and its status has {} of {length}",
            listed.len(),
            status["total"]
        ));
    }
    let counted = listed.iter().all(|listed| matches!(listed, Listed::Objects(_)));
    let ready = status["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == "Ready");
    if ready.map(|ready| ready["status"] == "True") != Some(counted) {
        wrong.push(format!("Ready is {ready:?}"));
    }
    let name = watch["metadata"]["name"].as_str().unwrap_or_default();
    wrong.into_iter().map(|what| format!("ResourceWatch {name}: {what}")).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn deployment() -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "red", "uid": "d", "generation": 2, "annotations": {REVISION: "3"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template(&json!({"app": "web"}))},
            "status": {
                "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
                "conditions": [
                    {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
                    {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
                ],
            },
        })
    }

    fn template(labels: &Value) -> Value {
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}})
    }

    fn owner(kind: &str, uid: &str) -> Value {
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": uid, "controller": true}])
    }

    fn set() -> Value {
        let labels = json!({"app": "web", HASH: "h"});
        json!({
            "metadata": {
                "name": "web-h", "namespace": "red", "uid": "s", "generation": 1, "labels": labels,
                "annotations": {REVISION: "3"}, "ownerReferences": owner("Deployment", "d"),
            },
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template(&labels)},
            "status": {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1},
        })
    }

    fn pod() -> Value {
        json!({
            "metadata": {
                "name": "web-h-1", "namespace": "red", "uid": "p", "labels": {"app": "web", HASH: "h"},
                "ownerReferences": owner("ReplicaSet", "s"),
            },
            "spec": {"containers": [{"name": "web", "image": "web:1"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        })
    }

    type Deviation = fn(&mut Value, &mut Value, &mut Value);

    /// Returns what is wrong after a change of one of the three.
    fn wrong(change: impl Fn(&mut Value, &mut Value, &mut Value)) -> Vec<String> {
        let (mut deployment, mut set, mut pod) = (deployment(), set(), pod());
        change(&mut deployment, &mut set, &mut pod);
        of_deployments(&[from_value(deployment).unwrap()], &[from_value(set).unwrap()], &[from_value(pod).unwrap()])
    }

    #[test]
    fn a_complete_deployment_is_right_and_each_deviation_is_found() {
        assert_eq!(wrong(|_, _, _| {}), Vec::<String>::new());
        let deviations: [(&str, Deviation); 12] = [
            ("not observed", |deployment, _, _| deployment["metadata"]["generation"] = json!(3)),
            ("no ReplicaSet of its template", |deployment, _, _| deployment["spec"]["replicas"] = json!(2)),
            ("no ReplicaSet of its template", |deployment, _, _| {
                deployment["spec"]["template"]["spec"]["containers"][0]["image"] = json!("web:2");
            }),
            ("revisions", |_, set, _| set["metadata"]["annotations"][REVISION] = json!("2")),
            ("counted", |deployment, _, _| deployment["status"]["readyReplicas"] = json!(0)),
            ("MinimumReplicasUnavailable", |deployment, _, _| {
                deployment["status"]["conditions"][0]["reason"] = json!("MinimumReplicasUnavailable");
            }),
            ("paused", |deployment, _, _| deployment["spec"]["paused"] = json!(true)),
            ("0 Pods", |_, _, pod| pod["status"]["phase"] = json!("Failed")),
            ("0 ready", |_, _, pod| pod["status"]["conditions"] = json!([])),
            ("another image", |_, _, pod| pod["spec"]["containers"][0]["image"] = json!("web:2")),
            ("selects others", |_, _, pod| pod["metadata"]["labels"]["app"] = json!("stray")),
            ("it is an orphan", |_, _, pod| pod["metadata"]["ownerReferences"] = json!([])),
        ];
        for (expected, deviation) in deviations {
            let found = wrong(deviation);
            assert!(found.iter().any(|what| what.contains(expected)), "{expected}: {found:?}");
        }
        let gone = wrong(|_, set, _| set["metadata"]["ownerReferences"] = owner("Deployment", "other"));
        assert!(gone.iter().any(|what| what.contains("does not exist")), "{gone:?}");
    }

    #[test]
    fn a_resource_watch_says_what_is_listed() {
        let objects = Listed::Objects(BTreeSet::from([("red".into(), "b".into()), ("red".into(), "a".into())]));
        let watch = json!({
            "metadata": {"name": "w", "generation": 1},
            "spec": {"list": 1, "resources": [{"apiVersion": "v1", "kind": "Pod"}, {"apiVersion": "v1", "kind": "Secret"}]},
            "status": {
                "observedGeneration": 1, "total": 2, "conditions": [{"type": "Ready", "status": "False"}],
                "resources": [
                    {"apiVersion": "v1", "kind": "Pod", "count": 2, "objects": ["red/a"]},
                    {"apiVersion": "v1", "kind": "Secret", "message": "not granted"},
                ],
            },
        });
        assert_eq!(of_watch(&watch, &[objects.clone(), Listed::NotGranted]), Vec::<String>::new());
        assert_eq!(of_watch(&watch, &[Listed::Undefined, Listed::NotGranted]).len(), 2);
        let mut old = watch.clone();
        old["metadata"]["generation"] = json!(2);
        assert_eq!(of_watch(&old, &[objects, Listed::NotGranted]).len(), 1);
    }
}
