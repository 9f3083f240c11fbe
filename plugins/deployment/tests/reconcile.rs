//! Tests both controllers together, against the mock host: a Deployment, its ReplicaSets, and their Pods.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{collections::BTreeMap, time::Duration};

use deployment::deployment;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet},
        core::v1::Pod,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use pilothouse_sdk::{
    Key, Object,
    client::{self, Reason},
    mock::{Expected, MockHost},
};
use serde_json::{Value, from_value, json};

const WEB: (&str, &str) = ("default", "web");
const REVISION: &str = "deployment.kubernetes.io/revision";

fn web(replicas: i32) -> Deployment {
    from_value(json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web:1"}]},
            },
        },
    }))
    .unwrap()
}

/// Returns a host with a Deployment whose Pods are all ready.
fn settled(deployment_: Deployment) -> MockHost {
    let mut host = MockHost::new(deployment).allow_requests().with(deployment_);
    rolled_out(&mut host);
    host
}

/// Settles, and makes new Pods ready, until nothing changes.
fn rolled_out(host: &mut MockHost) {
    loop {
        host.settle_all().unwrap();
        if make_ready(host, |_| true) == 0 {
            return;
        }
    }
}

/// Makes Pods ready. Returns how many were not.
fn make_ready(host: &mut MockHost, which: impl Fn(&Pod) -> bool) -> usize {
    let pods = host.list::<Pod>().into_iter().filter(|pod| pod.status.is_none() && which(pod)).collect::<Vec<_>>();
    for pod in &pods {
        let now = host.now();
        host.edit::<Pod>(pod.key(), |pod| {
            let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": now.to_string()});
            pod.status = from_value(json!({"phase": "Running", "conditions": [ready]})).unwrap();
        });
    }
    pods.len()
}

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
}

fn set_image(host: &mut MockHost, image: &str) {
    host.edit::<Deployment>(WEB, |web| {
        web.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image = Some(image.to_owned());
    });
}

fn edit(host: &mut MockHost, change: impl FnOnce(&mut k8s_openapi::api::apps::v1::DeploymentSpec)) {
    host.edit::<Deployment>(WEB, |web| change(web.spec.as_mut().unwrap()));
}

/// Returns the Pods of each image.
fn pods(host: &MockHost) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for pod in host.list::<Pod>() {
        *counts.entry(image(&pod).to_owned()).or_default() += 1;
    }
    counts
}

fn images<const N: usize>(counts: [(&str, usize); N]) -> BTreeMap<String, usize> {
    counts.map(|(image, count)| (image.to_owned(), count)).into()
}

/// Returns the ReplicaSet of an image.
fn set_of(host: &MockHost, image: &str) -> ReplicaSet {
    let has = |set: &ReplicaSet| {
        let template = set.spec.as_ref().unwrap().template.as_ref().unwrap();
        template.spec.as_ref().unwrap().containers[0].image.as_deref() == Some(image)
    };
    host.list::<ReplicaSet>().into_iter().find(has).unwrap()
}

fn annotation<'a>(object: &'a impl Object, name: &str) -> Option<&'a str> {
    object.metadata().annotations.as_ref()?.get(name).map(String::as_str)
}

/// Returns the status and the reason of a condition.
fn condition(host: &MockHost, type_: &str) -> Option<(String, String)> {
    let all = host.get::<Deployment>(WEB).unwrap().status?.conditions?;
    let found = all.into_iter().find(|condition| condition.type_ == type_)?;
    Some((found.status, found.reason?))
}

fn told(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

/// Returns the keys of a controller that a change wakes.
fn woken(host: &mut MockHost, controller: &str, change: impl FnOnce(&mut MockHost)) -> Vec<Key> {
    let wakes = host.wakes(change).into_iter();
    wakes.filter(|wake| wake.controller == controller).map(|wake| wake.key).collect()
}

#[test]
fn a_new_deployment_gets_its_replica_set_and_pods() {
    let mut host = MockHost::new(deployment).allow_requests().with(web(3));
    host.settle_all().unwrap();
    assert_eq!(pods(&host), images([("web:1", 3)]));
    assert_eq!(condition(&host, "Available"), told("False", "MinimumReplicasUnavailable"));
    assert_eq!(condition(&host, "Progressing"), told("True", "ReplicaSetUpdated"));

    rolled_out(&mut host);
    let web = host.get::<Deployment>(WEB).unwrap();
    assert_eq!(annotation(&web, REVISION), Some("1"));
    // The annotation is no new generation.
    assert_eq!(web.metadata.generation, Some(1));
    let status = web.status.unwrap();
    let counts = [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
    assert_eq!((counts, status.unavailable_replicas, status.observed_generation), ([Some(3); 4], None, Some(1)));
    assert_eq!(condition(&host, "Available"), told("True", "MinimumReplicasAvailable"));
    assert_eq!(condition(&host, "Progressing"), told("True", "NewReplicaSetAvailable"));

    let set = set_of(&host, "web:1");
    let hash = set.metadata.labels.as_ref().unwrap()["pod-template-hash"].clone();
    assert_eq!(set.name(), format!("web-{hash}"));
    for pod in host.list::<Pod>() {
        assert!(pod.is_controlled_by(&set) && pod.name().starts_with(&format!("web-{hash}-")), "{}", pod.name());
        assert_eq!(pod.metadata.labels.unwrap()["pod-template-hash"], hash);
    }
}

#[test]
fn a_settled_deployment_sends_no_request() {
    let mut host = settled(web(3));
    let calls = host.calls().len();
    host.settle_all().unwrap();
    assert_eq!(host.calls().len(), calls);
}

#[test]
fn a_rolling_update_stays_within_its_bounds() {
    let mut host = settled(web(6));
    set_image(&mut host, "web:2");
    for _ in 0..30 {
        host.settle_all().unwrap();
        let ready = |pod: &Pod| pod.status.is_some();
        let (all, available) = (host.list::<Pod>().len(), host.list::<Pod>().iter().filter(|pod| ready(pod)).count());
        assert!(all <= 7 && available >= 5, "{all} Pods, {available} available");
        // One at a time.
        let next = host.list::<Pod>().into_iter().find(|pod| pod.status.is_none()).map(|pod| pod.name().to_owned());
        let Some(next) = next else { break };
        make_ready(&mut host, |pod| pod.name() == next);
    }
    assert_eq!(pods(&host), images([("web:2", 6)]));
    assert_eq!(condition(&host, "Progressing"), told("True", "NewReplicaSetAvailable"));
    assert_eq!(annotation(&host.get::<Deployment>(WEB).unwrap(), REVISION), Some("2"));
}

#[test]
fn recreate_deletes_every_old_pod_before_it_creates_a_new_one() {
    let mut old = web(3);
    old.spec.as_mut().unwrap().strategy = from_value(json!({"type": "Recreate"})).unwrap();
    let mut host = settled(old);
    // One of them takes its time.
    let slow = host.list::<Pod>()[0].key();
    host.edit::<Pod>(slow.clone(), |pod| pod.metadata.finalizers = Some(vec!["example.com/slow".to_owned()]));
    set_image(&mut host, "web:2");
    host.settle_all().unwrap();
    assert_eq!(pods(&host), images([("web:1", 1)]));
    assert_eq!(host.list::<ReplicaSet>().len(), 1);
    let woken = woken(&mut host, "deployment", |host| host.edit::<Pod>(slow, |pod| pod.metadata.finalizers = None));
    assert_eq!(woken, [Key::from(WEB)]);
    rolled_out(&mut host);
    assert_eq!(pods(&host), images([("web:2", 3)]));
}

#[test]
fn an_older_template_becomes_the_newest_revision() {
    let mut host = settled(web(2));
    set_image(&mut host, "web:2");
    rolled_out(&mut host);
    set_image(&mut host, "web:1");
    rolled_out(&mut host);
    assert_eq!(pods(&host), images([("web:1", 2)]));
    assert_eq!(host.list::<ReplicaSet>().len(), 2);
    let set = set_of(&host, "web:1");
    assert_eq!(annotation(&set, REVISION), Some("3"));
    assert_eq!(annotation(&set, "deployment.kubernetes.io/revision-history"), Some("1"));
    assert_eq!(annotation(&host.get::<Deployment>(WEB).unwrap(), REVISION), Some("3"));
}

#[test]
fn a_rollover_leaves_only_the_last_template() {
    let mut host = settled(web(4));
    set_image(&mut host, "web:2");
    host.settle_all().unwrap();
    set_image(&mut host, "web:3");
    rolled_out(&mut host);
    assert_eq!(pods(&host), images([("web:3", 4)]));
    assert_eq!(host.list::<ReplicaSet>().len(), 3);
}

#[test]
fn old_replica_sets_beyond_the_limit_are_deleted() {
    let mut one = web(1);
    one.spec.as_mut().unwrap().revision_history_limit = Some(1);
    let mut host = settled(one);
    for image in ["web:2", "web:3", "web:4"] {
        set_image(&mut host, image);
        rolled_out(&mut host);
    }
    let mut revisions: Vec<_> =
        host.list::<ReplicaSet>().iter().map(|set| annotation(set, REVISION).unwrap().to_owned()).collect();
    revisions.sort();
    assert_eq!(revisions, ["3", "4"]);
}

#[test]
fn a_paused_deployment_scales_and_rolls_out_when_it_is_resumed() {
    let mut host = settled(web(2));
    edit(&mut host, |spec| spec.paused = Some(true));
    set_image(&mut host, "web:2");
    edit(&mut host, |spec| spec.replicas = Some(4));
    rolled_out(&mut host);
    assert_eq!(pods(&host), images([("web:1", 4)]));
    assert_eq!(condition(&host, "Progressing"), told("Unknown", "DeploymentPaused"));
    edit(&mut host, |spec| spec.paused = None);
    rolled_out(&mut host);
    assert_eq!(pods(&host), images([("web:2", 4)]));
    assert_eq!(condition(&host, "Progressing"), told("True", "NewReplicaSetAvailable"));
}

#[test]
fn a_deployment_that_is_scaled_while_it_rolls_out_grows_in_proportion() {
    // The numbers of the e2e test of Kubernetes.
    let mut ten = web(10);
    ten.spec.as_mut().unwrap().strategy =
        from_value(json!({"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}})).unwrap();
    let mut host = settled(ten);
    set_image(&mut host, "web:broken");
    host.settle_all().unwrap();
    assert_eq!(pods(&host), images([("web:1", 8), ("web:broken", 5)]));
    edit(&mut host, |spec| spec.replicas = Some(30));
    host.settle_all().unwrap();
    assert_eq!(pods(&host), images([("web:1", 20), ("web:broken", 13)]));
    assert_eq!(annotation(&set_of(&host, "web:1"), "deployment.kubernetes.io/max-replicas"), Some("33"));
}

#[test]
fn a_rollout_without_progress_is_late_and_recovers() {
    let mut host = settled(web(2));
    edit(&mut host, |spec| spec.progress_deadline_seconds = Some(60));
    set_image(&mut host, "web:broken");
    host.settle_all().unwrap();
    host.advance(Duration::from_secs(61));
    let outcome = host.request(WEB).controller("deployment").run().unwrap();
    assert_eq!(outcome.requeue_after(), None);
    host.settle_all().unwrap();
    assert_eq!(condition(&host, "Progressing"), told("False", "ProgressDeadlineExceeded"));
    assert_eq!(condition(&host, "Available"), told("True", "MinimumReplicasAvailable"));
    set_image(&mut host, "web:1");
    rolled_out(&mut host);
    assert_eq!(condition(&host, "Progressing"), told("True", "NewReplicaSetAvailable"));
}

#[test]
fn a_pod_counts_as_available_after_min_ready_seconds() {
    let mut slow = web(1);
    slow.spec.as_mut().unwrap().min_ready_seconds = Some(30);
    let mut host = MockHost::new(deployment).allow_requests().with(slow);
    rolled_out(&mut host);
    let set = set_of(&host, "web:1").key();
    let counts = |host: &MockHost| {
        let status = host.get::<Deployment>(WEB).unwrap().status.unwrap();
        (status.ready_replicas, status.available_replicas)
    };
    assert_eq!(counts(&host), (Some(1), None));
    let outcome = host.request(set).controller("replicaset").run().unwrap();
    assert_eq!(outcome.requeue_after(), Some(Duration::from_secs(30)));
    host.advance(Duration::from_secs(30));
    host.settle_all().unwrap();
    assert_eq!(counts(&host), (Some(1), Some(1)));
    // A change of the Deployment alone changes its ReplicaSet, too.
    edit(&mut host, |spec| spec.min_ready_seconds = Some(5));
    host.settle_all().unwrap();
    assert_eq!(set_of(&host, "web:1").spec.unwrap().min_ready_seconds, Some(5));
}

#[test]
fn a_failed_pod_is_replaced() {
    let mut host = settled(web(2));
    let victim = host.list::<Pod>()[0].key();
    let woken = woken(&mut host, "replicaset", |host| {
        host.edit::<Pod>(victim, |pod| pod.status.as_mut().unwrap().phase = Some("Failed".to_owned()));
    });
    assert_eq!(woken, [set_of(&host, "web:1").key()]);
    rolled_out(&mut host);
    assert_eq!(pods(&host), images([("web:1", 3)]));
    assert_eq!(host.get::<Deployment>(WEB).unwrap().status.unwrap().available_replicas, Some(2));
}

#[test]
fn a_change_that_matters_to_nobody_wakes_nobody() {
    let mut host = settled(web(1));
    let pod = host.list::<Pod>()[0].key();
    let woken = host.wakes(|host| {
        host.edit::<Pod>(pod, |pod| pod.status.as_mut().unwrap().pod_ip = Some("10.0.0.1".to_owned()));
    });
    assert_eq!(woken, []);
}

#[test]
fn pods_are_adopted_and_released_by_their_labels() {
    let mut host = settled(web(2));
    let set = set_of(&host, "web:1");
    // It leaves the selection, is released, and is replaced.
    let leaving = host.list::<Pod>()[0].key();
    host.edit::<Pod>(leaving.clone(), |pod| {
        pod.metadata.labels.as_mut().unwrap().insert("app".to_owned(), "other".to_owned());
    });
    rolled_out(&mut host);
    assert!(!host.get::<Pod>(leaving.clone()).unwrap().is_controlled_by(&set));
    assert_eq!(host.list::<Pod>().iter().filter(|pod| pod.is_controlled_by(&set)).count(), 2);
    // It comes back, is adopted, and is one too many.
    host.edit::<Pod>(leaving, |pod| {
        pod.metadata.labels.as_mut().unwrap().insert("app".to_owned(), "web".to_owned());
    });
    rolled_out(&mut host);
    assert_eq!(host.list::<Pod>().iter().filter(|pod| pod.is_controlled_by(&set)).count(), 2);
    assert_eq!(host.list::<Pod>().len(), 2);
}

#[test]
fn replica_sets_are_adopted_and_released_by_their_labels() {
    let mut host = settled(web(1));
    let set = set_of(&host, "web:1").key();
    let owners = |host: &MockHost| host.get::<ReplicaSet>(set.clone()).unwrap().metadata.owner_references;
    host.edit::<ReplicaSet>(set.clone(), |set| set.metadata.owner_references = None);
    host.settle_all().unwrap();
    assert_eq!(owners(&host).unwrap()[0].name, "web");
    assert_eq!(host.list::<ReplicaSet>().len(), 1);

    host.edit::<ReplicaSet>(set.clone(), |set| {
        set.metadata.labels.as_mut().unwrap().insert("app".to_owned(), "other".to_owned());
    });
    rolled_out(&mut host);
    assert_eq!(owners(&host), Some(vec![]));
    // Its name is taken, so the Deployment gets a ReplicaSet of another hash.
    assert_eq!(host.list::<ReplicaSet>().len(), 2);
    assert_eq!(host.get::<Deployment>(WEB).unwrap().status.unwrap().collision_count, Some(1));
}

#[test]
fn a_deployment_that_is_being_deleted_changes_nothing() {
    let mut host = settled(web(1));
    host.edit::<Deployment>(WEB, |web| web.metadata.finalizers = Some(vec!["foregroundDeletion".to_owned()]));
    host.delete::<Deployment>(WEB);
    set_image(&mut host, "web:2");
    let calls = host.calls().len();
    host.settle_all().unwrap();
    assert_eq!(host.calls().len(), calls);
    assert_eq!(pods(&host), images([("web:1", 1)]));
}

#[test]
fn a_replica_set_that_cannot_be_created_is_a_condition() {
    let mut host = MockHost::new(deployment).with(web(1));
    let refused = || client::Error::api(403, Reason::Forbidden, "exceeded quota");
    let name = {
        let mut other = settled(web(1));
        other.settle_all().unwrap();
        set_of(&other, "web:1").name().to_owned()
    };
    host.expect(Expected::create::<ReplicaSet>(("default", name.as_str())).fail(refused()));
    let failure = host.request(WEB).controller("deployment").run().unwrap_err();
    assert!(failure.message.contains("exceeded quota") && !failure.terminal, "{failure}");
    let status: Value = serde_json::from_str(&failure.status.unwrap()).unwrap();
    let progressing = &status["conditions"].as_array().unwrap()[0];
    assert_eq!((&progressing["status"], &progressing["reason"]), (&json!("False"), &json!("ReplicaSetCreateError")));
    assert_eq!(failure.events.len(), 1);
}

#[test]
fn pods_that_cannot_be_created_are_a_condition_of_both() {
    let mut host = MockHost::new(deployment).allow_requests().with(web(3));
    host.settle_for("deployment", WEB).unwrap();
    let set = set_of(&host, "web:1");
    let pod = ("default".to_owned(), format!("{}-", set.name()));
    let refused = client::Error::api(403, Reason::Forbidden, "exceeded quota");
    // The first batch is one Pod, and after it fails, there is no second.
    host.expect(Expected::create::<Pod>(Key::new(pod.0, pod.1)).fail(refused));
    let calls = host.calls().len();
    let failure = host.request(set.key()).controller("replicaset").run().unwrap_err();
    assert_eq!(host.calls().len() - calls, 1);
    let status: Value = serde_json::from_str(&failure.status.unwrap()).unwrap();
    assert_eq!(status["conditions"][0]["reason"], "FailedCreate");
    host.edit::<ReplicaSet>(set.key(), |set| set.status = from_value(status).unwrap());
    host.settle_for("deployment", WEB).unwrap();
    assert_eq!(condition(&host, "ReplicaFailure"), told("True", "FailedCreate"));
    // It is over.
    host.edit::<ReplicaSet>(set.key(), |set| set.status = None);
    rolled_out(&mut host);
    assert_eq!(condition(&host, "ReplicaFailure"), None);
}

#[test]
fn events_tell_what_is_scaled_created_and_deleted() {
    let mut host = settled(web(1));
    edit(&mut host, |spec| spec.replicas = Some(0));
    host.settle_all().unwrap();
    let set = set_of(&host, "web:1");
    let told: Vec<String> = host.events().iter().map(ToString::to_string).collect();
    for expected in [
        format!(
            "Normal ScalingReplicaSet apps/v1 Deployment default/web: Scaled up replica set {} from 0 to 1",
            set.name()
        ),
        format!(
            "Normal ScalingReplicaSet apps/v1 Deployment default/web: Scaled down replica set {} from 1 to 0",
            set.name()
        ),
    ] {
        assert!(told.contains(&expected), "{told:?}");
    }
    for reason in ["SuccessfulCreate", "SuccessfulDelete"] {
        let of_set = format!("Normal {reason} apps/v1 ReplicaSet {}: ", set.key());
        assert!(told.iter().any(|event| event.starts_with(&of_set)), "{told:?}");
    }
}

#[test]
fn annotations_are_copied_to_the_newest_replica_set() {
    let mut first = web(1);
    first.metadata.annotations = Some([("kubernetes.io/change-cause".to_owned(), "first".to_owned())].into());
    let mut host = settled(first);
    host.edit::<Deployment>(WEB, |web| {
        web.metadata.annotations.as_mut().unwrap().insert("kubernetes.io/change-cause".to_owned(), "second".to_owned());
    });
    set_image(&mut host, "web:2");
    rolled_out(&mut host);
    let cause = |image: &str| annotation(&set_of(&host, image), "kubernetes.io/change-cause").map(ToOwned::to_owned);
    assert_eq!([cause("web:1"), cause("web:2")].map(Option::unwrap), ["first", "second"]);
}

#[test]
fn a_selector_of_everything_is_refused() {
    let mut all = web(1);
    all.spec.as_mut().unwrap().selector = Default::default();
    let mut host = MockHost::new(deployment).with(all);
    let outcome = host.settle_for("deployment", WEB).unwrap();
    assert_eq!(outcome.events().len(), 1);
    assert_eq!(host.get::<Deployment>(WEB).unwrap().status.unwrap().observed_generation, Some(1));
}

#[test]
fn a_spec_that_is_not_valid_is_a_terminal_error() {
    let mut wrong = web(1);
    let update = wrong.spec.as_mut().unwrap().strategy.as_mut().unwrap().rolling_update.as_mut().unwrap();
    update.max_surge = Some(IntOrString::String("some".to_owned()));
    let host = MockHost::new(deployment).with(wrong);
    assert!(host.request(WEB).controller("deployment").run().unwrap_err().terminal);
}

#[test]
fn the_administrators_file_grants_exactly_what_is_asked() {
    let file = serde_saphyr::from_str(include_str!("../deployment.yaml")).unwrap();
    MockHost::new(deployment).assert_granted(&file);
}

#[test]
fn the_example_is_a_deployment_that_rolls_out() {
    let web: Deployment = serde_saphyr::from_str(include_str!("../examples/web.yaml")).unwrap();
    let host = settled(web);
    assert_eq!(host.get::<Deployment>(WEB).unwrap().status.unwrap().available_replicas, Some(3));
}
