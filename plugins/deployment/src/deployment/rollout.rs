//! Decides the sizes of a Deployment's ReplicaSets: one step at a time, from what their status says.

use std::time::Duration;

use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use pilothouse_sdk::Object;

use super::{
    conditions::{self, Conditions, PROGRESSING},
    desired::{Desired, Strategy},
    revision::{self, REVISION},
    scaling::{self, resize},
    sets::{self, by_age, is_active, size},
    status::{Observed, is_complete},
    template,
};
use crate::owners::reference_to;

/// The longest name of a ReplicaSet, in bytes.
const MAX_NAME: usize = 253;

/// A Deployment and its ReplicaSets, which [`step`](Self::step) changes. Writes nothing.
pub(super) struct Rollout<'a> {
    deployment: &'a Deployment,
    spec: &'a DeploymentSpec,
    desired: Desired,
    /// The ReplicaSet of the Deployment's template. Without a uid, it is to be created.
    pub(super) new: Option<ReplicaSet>,
    /// The others, the oldest first.
    pub(super) old: Vec<ReplicaSet>,
    /// The counts of the last status, and the conditions so far.
    before: DeploymentStatus,
    /// `true` if this is a step of a rollout, whose progress the status tells.
    is_rolling: bool,
    now: Timestamp,
}

impl<'a> Rollout<'a> {
    pub(super) fn new(
        deployment: &'a Deployment,
        spec: &'a DeploymentSpec,
        desired: Desired,
        mut sets: Vec<ReplicaSet>,
        now: Timestamp,
    ) -> Self {
        sets.sort_by(by_age);
        // Of several with this template, which can come from somebody else's, the oldest counts.
        let place = sets.iter().position(|set| has_template(set, spec));
        let new = place.map(|place| sets.remove(place));
        let before = deployment.status.clone().unwrap_or_default();
        Self { deployment, spec, desired, new, old: sets, before, is_rolling: false, now }
    }

    /// Returns `true` if the next step waits until no Pod of an old ReplicaSet runs.
    pub(super) fn waits_for_old_pods(&self) -> bool {
        self.desired.strategy == Strategy::Recreate && !self.desired.paused
    }

    /// Takes the next step, and returns the names of ReplicaSets to delete. `pods_are_left` matters if the step
    /// [waits](Self::waits_for_old_pods) for old Pods.
    pub(super) fn step(&mut self, pods_are_left: bool) -> Vec<String> {
        self.tell_pause();
        self.renew();
        if self.desired.paused {
            self.scale();
            return self.superfluous();
        }
        if scaling::is_scaled(&self.desired, self.old.iter().chain(&self.new)) {
            self.scale();
            return Vec::new();
        }
        self.is_rolling = true;
        match self.desired.strategy {
            Strategy::Recreate => self.recreate(pods_are_left),
            Strategy::RollingUpdate { .. } => self.roll(),
        }
        if is_complete(&self.desired, &self.counted()) { self.superfluous() } else { Vec::new() }
    }

    /// A pause, and its end, are conditions. So the time of a pause does not count against the deadline.
    fn tell_pause(&mut self) {
        let (now, paused) = (self.now, self.desired.paused);
        let all = self.conditions();
        if conditions::has_reason(all, PROGRESSING, conditions::TIMED_OUT) {
            return;
        }
        let was_paused = conditions::has_reason(all, PROGRESSING, conditions::PAUSED);
        let (reason, word) = match (was_paused, paused) {
            (false, true) => (conditions::PAUSED, "paused"),
            (true, false) => (conditions::RESUMED, "resumed"),
            _ => return,
        };
        if self.desired.deadline.is_some() {
            let condition = conditions::new(PROGRESSING, "Unknown", reason, format!("Deployment is {word}"), now);
            conditions::set(self.conditions(), condition);
        }
    }

    /// Brings the annotations of the new ReplicaSet up to date, if it exists: it may be an old one whose template is
    /// back.
    fn renew(&mut self) {
        let revision = revision::next(&self.old);
        let Some(new) = &mut self.new else { return };
        revision::annotate(new, self.deployment.metadata.annotations.as_ref(), revision);
        let least = self.desired.min_ready_seconds;
        let spec = new.spec.get_or_insert_default();
        if spec.min_ready_seconds.unwrap_or_default() != least {
            spec.min_ready_seconds = Some(least);
        }
        let message = format!("Found new replica set {:?}", new.name());
        if self.desired.deadline.is_some() && conditions::get(self.conditions(), PROGRESSING).is_none() {
            let condition = conditions::new(PROGRESSING, "True", conditions::FOUND, message, self.now);
            conditions::set(self.conditions(), condition);
        }
    }

    fn scale(&mut self) {
        let pods = self.before.replicas.unwrap_or_default();
        scaling::scale(&self.desired, self.new.as_mut(), &mut self.old, pods);
    }

    fn recreate(&mut self, pods_are_left: bool) {
        let mut is_scaled = false;
        for set in self.old.iter_mut().filter(|set| is_active(set)) {
            is_scaled |= resize(set, 0, &self.desired);
        }
        let counts_pods = |set: &ReplicaSet| sets::counted(set, |status| Some(status.replicas)) > 0;
        if is_scaled || pods_are_left || self.old.iter().any(counts_pods) {
            return;
        }
        let mut new = self.new.take().unwrap_or_else(|| self.planned());
        if size(&new) != self.desired.replicas {
            resize(&mut new, self.desired.replicas, &self.desired);
        }
        self.new = Some(new);
    }

    fn roll(&mut self) {
        let mut new = self.new.take().unwrap_or_else(|| self.planned());
        let grown = self.size_of_new(&new);
        let is_scaled = size(&new) != grown && resize(&mut new, grown, &self.desired);
        if !is_scaled {
            self.shrink_old(&new);
        }
        self.new = Some(new);
    }

    /// Returns how large the new ReplicaSet may be now.
    fn size_of_new(&self, new: &ReplicaSet) -> i32 {
        let (current, wanted) = (size(new), self.desired.replicas);
        if current >= wanted || self.desired.strategy == Strategy::Recreate {
            return wanted;
        }
        let room = self.desired.most() - current - self.old.iter().map(size).sum::<i32>();
        current + room.clamp(0, wanted - current)
    }

    /// Shrinks the old ReplicaSets as far as enough Pods stay available.
    fn shrink_old(&mut self, new: &ReplicaSet) {
        let total = size(new) + self.old.iter().map(size).sum::<i32>();
        let needed = self.desired.replicas - self.desired.unavailable();
        // New Pods that are not available yet must not cost old ones their place.
        let spare = total - needed - (size(new) - sets::available(new));
        if spare <= 0 {
            return;
        }
        // Pods that are not available cost nothing. They might never be, and block the rollout.
        let mut left = spare;
        for set in self.old.iter_mut().filter(|set| is_active(set)) {
            let broken = (size(set) - sets::available(set)).clamp(0, left);
            if broken > 0 {
                resize(set, size(set) - broken, &self.desired);
                left -= broken;
            }
        }
        let available = sets::available(new) + self.old.iter().map(sets::available).sum::<i32>();
        let mut left = (available - needed).max(0);
        for set in self.old.iter_mut().filter(|set| is_active(set)) {
            let part = size(set).min(left);
            if part > 0 {
                resize(set, size(set) - part, &self.desired);
                left -= part;
            }
        }
    }

    /// Returns the ReplicaSet of the Deployment's template, before it exists.
    fn planned(&self) -> ReplicaSet {
        let hash = template::hash(&self.spec.template, self.before.collision_count);
        let template = template::labelled(self.spec.template.clone(), &hash);
        let name = self.deployment.name();
        let name = name.get(..MAX_NAME - 1 - hash.len()).unwrap_or(name);
        let metadata = ObjectMeta {
            name: Some(format!("{name}-{hash}")),
            namespace: self.deployment.metadata.namespace.clone(),
            labels: template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()),
            owner_references: Some(vec![reference_to(self.deployment)]),
            ..ObjectMeta::default()
        };
        let spec = ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: Some(self.desired.min_ready_seconds).filter(|least| *least > 0),
            selector: template::selecting(self.spec.selector.clone(), &hash),
            template: Some(template),
        };
        let mut set = ReplicaSet { metadata, spec: Some(spec), status: None };
        let size = self.size_of_new(&set);
        resize(&mut set, size, &self.desired);
        revision::annotate(&mut set, self.deployment.metadata.annotations.as_ref(), revision::next(&self.old));
        set
    }

    /// Counts a collision, and returns the new ReplicaSet with another hash: its name belongs to another template.
    pub(super) fn collide(&mut self) -> ReplicaSet {
        self.before.collision_count = Some(self.before.collision_count.unwrap_or_default().saturating_add(1));
        self.planned()
    }

    /// Takes the new ReplicaSet as the API server created it.
    pub(super) fn created(&mut self, new: ReplicaSet) {
        if self.desired.deadline.is_some() {
            let message = format!("Created new replica set {:?}", new.name());
            let condition = conditions::new(PROGRESSING, "True", conditions::CREATED, message, self.now);
            conditions::set(self.conditions(), condition);
        }
        self.new = Some(new);
    }

    /// Returns `true` if this is the Deployment's ReplicaSet of its template.
    pub(super) fn is_new(&self, set: &ReplicaSet) -> bool {
        set.is_controlled_by(self.deployment) && has_template(set, self.spec)
    }

    /// Returns the names of the oldest ReplicaSets that are more than the Deployment keeps, and have no Pods.
    fn superfluous(&self) -> Vec<String> {
        let Some(kept) = self.desired.history.and_then(|kept| usize::try_from(kept).ok()) else { return Vec::new() };
        let mut sets: Vec<&ReplicaSet> =
            self.old.iter().filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
        sets.sort_by(|a, b| revision::of(a).cmp(&revision::of(b)).then_with(|| by_age(a, b)));
        let surplus = sets.len().saturating_sub(kept);
        let is_idle = |set: &&ReplicaSet| {
            let seen = set.status.as_ref().and_then(|status| status.observed_generation).unwrap_or_default();
            !is_active(set)
                && sets::counted(set, |status| Some(status.replicas)) == 0
                && set.metadata.generation.unwrap_or_default() <= seen
        };
        sets.into_iter().take(surplus).filter(is_idle).map(|set| set.name().to_owned()).collect()
    }

    /// Returns the revision that the Deployment shows.
    pub(super) fn revision(&self) -> Option<&str> {
        self.deployment.metadata.annotations.as_ref()?.get(REVISION).map(String::as_str)
    }

    /// Returns the status without a word on progress.
    pub(super) fn counted(&self) -> DeploymentStatus {
        self.observed().counted()
    }

    /// Returns the status after this step.
    pub(super) fn finished(&self) -> DeploymentStatus {
        if self.is_rolling { self.observed().estimated() } else { self.counted() }
    }

    /// Returns the status if the new ReplicaSet cannot be created.
    pub(super) fn failed(&mut self, message: String) -> DeploymentStatus {
        if self.desired.deadline.is_some() {
            let condition = conditions::new(PROGRESSING, "False", conditions::CREATE_ERROR, message, self.now);
            conditions::set(self.conditions(), condition);
        }
        self.counted()
    }

    /// Returns when to look whether the rollout is late.
    pub(super) fn check_after(&self, status: &DeploymentStatus) -> Option<Duration> {
        if self.desired.paused { None } else { self.observed().check_after(status) }
    }

    fn conditions(&mut self) -> &mut Conditions {
        self.before.conditions.get_or_insert_default()
    }

    fn observed(&self) -> Observed<'_> {
        Observed {
            name: self.deployment.name(),
            generation: self.deployment.metadata.generation,
            desired: &self.desired,
            new: self.new.as_ref(),
            old: &self.old,
            before: &self.before,
            now: self.now,
        }
    }
}

fn has_template(set: &ReplicaSet, spec: &DeploymentSpec) -> bool {
    let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
    template.is_some_and(|template| template::is_equal(template, &spec.template))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
    use serde_json::{Value, from_value, json};

    use super::{Desired, Rollout};
    use crate::deployment::{
        revision::REVISION,
        scaling,
        sets::{annotate, annotation, size, tests::set},
    };

    #[expect(clippy::needless_pass_by_value, reason = "objects are written in place")]
    fn deployment(spec: Value) -> Deployment {
        let mut object = json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "d", "generation": 1},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"spec": {"containers": [{"name": "web", "image": "web:new"}]}},
            },
        });
        for (field, value) in spec.as_object().into_iter().flatten() {
            object["spec"][field] = value.clone();
        }
        from_value(object).expect("a Deployment")
    }

    /// Takes a step. Returns the sizes of the new ReplicaSet and of the old ones, the oldest first, and the names to
    /// delete.
    fn step(spec: Value, sets: &[ReplicaSet], pods_are_left: bool) -> (Option<i32>, Vec<i32>, Vec<String>) {
        let deployment = deployment(spec);
        let spec = deployment.spec.as_ref().expect("a spec");
        let desired = Desired::of(spec).expect("it is valid");
        let mut sets = sets.to_vec();
        for set in &mut sets {
            scaling::record(set, &desired);
        }
        let now = "2026-01-01T00:00:00Z".parse().expect("a time");
        let mut rollout = Rollout::new(&deployment, spec, desired, sets, now);
        let superfluous = rollout.step(pods_are_left);
        (rollout.new.as_ref().map(size), rollout.old.iter().map(size).collect(), superfluous)
    }

    #[expect(clippy::needless_pass_by_value, reason = "objects are written in place")]
    fn rolling(replicas: i32, surge: Value, unavailable: Value) -> Value {
        let update = json!({"maxSurge": surge, "maxUnavailable": unavailable});
        json!({"replicas": replicas, "strategy": {"type": "RollingUpdate", "rollingUpdate": update}})
    }

    #[test]
    fn a_rolling_update_keeps_enough_pods_and_not_too_many() {
        let spec = || rolling(10, json!(3), json!(2));
        for (why, new, old, expected) in [
            ("it begins with the surge, and with what may be unavailable", None, vec![(10, 10)], (3, vec![8])),
            ("old Pods go, as far as 8 are available", Some((3, 0)), vec![(10, 10)], (3, vec![8])),
            ("new ones take their place", Some((3, 0)), vec![(8, 8)], (5, vec![8])),
            ("it waits", Some((5, 0)), vec![(8, 8)], (5, vec![8])),
            ("each available one replaces an old one", Some((5, 3)), vec![(8, 8)], (5, vec![5])),
            ("the last old ones go", Some((10, 10)), vec![(2, 2)], (10, vec![0])),
            ("it is done", Some((10, 10)), vec![(0, 0)], (10, vec![0])),
            ("too many new ones", Some((12, 12)), vec![(0, 0)], (10, vec![0])),
            ("broken old Pods go first, however young", Some((3, 0)), vec![(5, 5), (5, 3)], (3, vec![5, 3])),
            ("a rollover begins with nothing", None, vec![(8, 8), (5, 0)], (0, vec![8, 0])),
        ] {
            let mut sets: Vec<_> =
                new.iter().map(|(size, available)| set("new", 0, *size, *size, *available)).collect();
            let ages = (1..10).rev();
            sets.extend(
                ages.zip(&old).map(|(age, (size, available))| set(&age.to_string(), age, *size, *size, *available)),
            );
            let (new, old, _) = step(spec(), &sets, false);
            assert_eq!((new.unwrap_or(-1), old), expected, "{why}");
        }
    }

    #[test]
    fn the_bounds_of_small_deployments_are_those_of_kubernetes() {
        // From the comment on fence posts in Kubernetes: which side moves first.
        for (replicas, surge, unavailable, new, old) in [
            (2, "0%", "1%", 0, 1),
            (1, "0%", "1%", 0, 0),
            (2, "1%", "25%", 1, 2),
            (1, "1%", "25%", 1, 1),
            (2, "1%", "0%", 1, 2),
            (1, "1%", "0%", 1, 1),
        ] {
            let sets = [set("old", 1, replicas, replicas, replicas)];
            let spec = rolling(replicas, json!(surge), json!(unavailable));
            assert_eq!(step(spec, &sets, false), (Some(new), vec![old], vec![]), "{replicas} {surge} {unavailable}");
        }
    }

    #[test]
    fn recreate_waits_for_the_last_old_pod() {
        let spec = || json!({"replicas": 3, "strategy": {"type": "Recreate"}});
        for (why, old, pods_are_left, expected) in [
            ("old Pods go", set("old", 1, 3, 3, 3), true, (None, vec![0])),
            ("they are counted", set("old", 1, 0, 1, 0), false, (None, vec![0])),
            ("they are terminating", set("old", 1, 0, 0, 0), true, (None, vec![0])),
            ("they are gone", set("old", 1, 0, 0, 0), false, (Some(3), vec![0])),
        ] {
            let (new, old, _) = step(spec(), &[old], pods_are_left);
            assert_eq!((new, old), expected, "{why}");
        }
        let (new, ..) = step(spec(), &[set("new", 0, 1, 1, 1)], false);
        assert_eq!(new, Some(3));
    }

    #[test]
    fn a_pause_stops_a_rollout_but_not_scaling() {
        let mut spec = rolling(4, json!(1), json!(1));
        spec["paused"] = json!(true);
        assert_eq!(step(spec.clone(), &[], false), (None, vec![], vec![]));
        assert_eq!(step(spec.clone(), &[set("old", 1, 2, 2, 2)], false), (None, vec![4], vec![]));
        spec["paused"] = json!(false);
        assert_eq!(step(spec, &[set("old", 1, 4, 4, 4)], false), (Some(1), vec![3], vec![]));
    }

    #[test]
    fn old_replica_sets_beyond_the_limit_go_when_the_rollout_is_complete() {
        let old = |name: &str, age: u32, revision: &str| {
            let mut set = set(name, age, 0, 0, 0);
            annotate(&mut set, REVISION, &revision);
            set
        };
        let mut unseen = old("unseen", 4, "1");
        unseen.metadata.generation = Some(2);
        // `back` is the oldest, and was the newest revision for a time.
        let sets = [old("back", 9, "7"), old("two", 3, "2"), old("three", 2, "3"), unseen];
        let spec = |limit: i32| {
            let mut spec = rolling(1, json!(1), json!(0));
            spec["revisionHistoryLimit"] = json!(limit);
            spec
        };
        let with = |new: ReplicaSet, limit: i32| {
            let all: Vec<_> = sets.iter().cloned().chain([new]).collect();
            step(spec(limit), &all, false).2
        };
        assert_eq!(with(set("new", 0, 1, 1, 1), 2), ["two"]);
        assert_eq!(with(set("new", 0, 1, 1, 1), 0), ["two", "three", "back"]);
        assert_eq!(with(set("new", 0, 1, 1, 1), 10), <[String; 0]>::default());
        assert_eq!(with(set("new", 0, 1, 1, 0), 0), <[String; 0]>::default());
    }

    #[test]
    fn a_new_replica_set_is_named_after_its_template() {
        let web = deployment(json!({"replicas": 2, "minReadySeconds": 5}));
        let spec = web.spec.as_ref().expect("a spec");
        let now = "2026-01-01T00:00:00Z".parse().expect("a time");
        let mut rollout = Rollout::new(&web, spec, Desired::of(spec).expect("it is valid"), vec![], now);
        rollout.step(false);
        let new = rollout.new.clone().expect("it is planned");
        let name = new.metadata.name.clone().unwrap_or_default();
        let hash = name.strip_prefix("web-").expect("the Deployment's name comes first").to_owned();
        let inner = new.spec.as_ref().expect("a spec");
        let label = |labels: Option<&std::collections::BTreeMap<String, String>>| {
            labels.and_then(|labels| labels.get("pod-template-hash")).cloned().unwrap_or_default()
        };
        let template = inner.template.as_ref().and_then(|template| template.metadata.as_ref()).expect("metadata");
        assert_eq!(label(inner.selector.match_labels.as_ref()), hash);
        assert_eq!(label(template.labels.as_ref()), hash);
        assert_eq!(label(new.metadata.labels.as_ref()), hash);
        assert_eq!((inner.replicas, inner.min_ready_seconds), (Some(2), Some(5)));
        assert_eq!(annotation(&new, REVISION), Some("1"));
        assert_eq!(annotation(&new, "deployment.kubernetes.io/max-replicas"), Some("3"));

        assert_ne!(rollout.collide().metadata.name, Some(name));
        assert_eq!(rollout.counted().collision_count, Some(1));

        let mut long = web.clone();
        long.metadata.name = Some("w".repeat(253));
        let rollout = Rollout::new(&long, spec, Desired::of(spec).expect("it is valid"), vec![], now);
        assert_eq!(rollout.planned().metadata.name.map(|name| name.len()), Some(253));
    }

    #[test]
    fn pauses_are_told_unless_the_rollout_is_late() {
        for (reason, paused, expected) in [
            (None, true, Some("DeploymentPaused")),
            (Some("ReplicaSetUpdated"), true, Some("DeploymentPaused")),
            (Some("ProgressDeadlineExceeded"), true, Some("ProgressDeadlineExceeded")),
            (Some("ReplicaSetUpdated"), false, Some("ReplicaSetUpdated")),
            (Some("DeploymentPaused"), false, Some("DeploymentResumed")),
        ] {
            let mut web = deployment(json!({"paused": paused}));
            let condition = |reason: &str| json!({"type": "Progressing", "status": "True", "reason": reason});
            let conditions: Vec<_> = reason.map(condition).into_iter().collect();
            web.status = from_value(json!({"conditions": conditions})).expect("a status");
            let spec = web.spec.as_ref().expect("a spec");
            let now = "2026-01-01T00:00:00Z".parse().expect("a time");
            let mut rollout = Rollout::new(&web, spec, Desired::of(spec).expect("it is valid"), vec![], now);
            rollout.tell_pause();
            let told = rollout.conditions().first().and_then(|condition| condition.reason.clone());
            assert_eq!(told.as_deref(), expected, "{reason:?} {paused}");
        }
    }
}
