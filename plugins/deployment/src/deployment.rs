//! The controller of Deployments: reads the ReplicaSets, lets [`Rollout`] decide their sizes, and writes what differs.

mod conditions;
mod desired;
mod revision;
mod rollout;
mod scaling;
mod sets;
mod status;
mod template;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentStatus, ReplicaSet},
        core::v1,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use pilothouse_sdk::{
    client::{self, Patch},
    prelude::*,
};
use serde_json::json;

use self::{desired::Desired, revision::REVISION, rollout::Rollout};
use crate::{
    PODS_OF, SETS_OF,
    labels::Selector,
    owners::claim,
    replicaset::{Pod, is_of_ending_namespace, record},
};

/// Names that a new ReplicaSet may find taken, one after the other, in one call.
const COLLISIONS: usize = 16;

/// Takes the next step towards the Deployment's template and number of replicas, and returns its status.
///
/// # Errors
/// Fails if the spec is not valid, or if a request fails.
pub(crate) fn reconcile(ctx: &Context, deployment: &Deployment) -> Result<Outcome, Error> {
    let Some(spec) = deployment.spec.as_ref().filter(|_| ctx.phase() != Phase::Gone) else { return Ok(Outcome::new()) };
    if spec.selector == LabelSelector::default() {
        return Ok(selects_all(deployment));
    }
    let desired = Desired::of(spec)?;
    let selector = Selector::new(&spec.selector)?;
    let sets = claim(ctx, deployment, &selector, candidates(ctx, deployment, &selector)?)?;
    let before: BTreeMap<String, ReplicaSet> = sets.iter().map(|set| (set.name().to_owned(), set.clone())).collect();
    let mut rollout = Rollout::new(deployment, spec, desired, sets, ctx.now());
    if ctx.phase() == Phase::Deleting {
        return Ok(Outcome::new().status(rollout.counted()));
    }
    let pods_are_left = rollout.waits_for_old_pods() && pods_are_left(ctx, &rollout.old)?;
    let superfluous = rollout.step(pods_are_left);

    match write(ctx, &mut rollout, &before, &superfluous) {
        Ok(()) => {}
        Err(Stop::Overtaken) => return Ok(Outcome::new()),
        Err(Stop::NotCreated(message)) => {
            let event = Event::warning(conditions::CREATE_ERROR, &message);
            return Err(Error::retry(&message).with_status(rollout.failed(message)).with_event(event));
        }
        Err(Stop::Failed(error)) => return Err(error.into()),
    }
    let status = rollout.finished();
    let outcome = Outcome::new();
    let outcome = match rollout.check_after(&status) {
        None => outcome,
        Some(delay) => outcome.requeue_after(delay),
    };
    Ok(outcome.status(status))
}

/// Refuses a selector that would match every Pod. API servers refuse it, too.
fn selects_all(deployment: &Deployment) -> Outcome {
    let message = "This deployment is selecting all pods. A non-empty selector is required.";
    let observed_generation = deployment.metadata.generation;
    let status = DeploymentStatus { observed_generation, ..deployment.status.clone().unwrap_or_default() };
    Outcome::new().status(status).event(Event::warning("SelectingAll", message))
}

/// Returns the ReplicaSets that the selector matches, and those that the Deployment owns though it does not match them.
fn candidates(ctx: &Context, deployment: &Deployment, selector: &Selector) -> Result<Vec<ReplicaSet>, Error> {
    let beside = || ctx.cache().list::<ReplicaSet>().beside(ctx.key());
    let owned = beside().index(SETS_OF, deployment.metadata.uid.clone().unwrap_or_default());
    let mut sets = BTreeMap::new();
    for set in beside().labels(selector.to_string()).into_iter().chain(owned) {
        let set = set?;
        sets.insert(set.name().to_owned(), set);
    }
    Ok(sets.into_values().collect())
}

/// Returns `true` if a Pod of these ReplicaSets may still run.
fn pods_are_left(ctx: &Context, sets: &[ReplicaSet]) -> Result<bool, Error> {
    for set in sets {
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let pods = ctx.cache().list::<v1::Pod>().beside(ctx.key()).index(PODS_OF, uid);
        for pod in pods.fields::<Pod>(["metadata.uid", "status.phase"]) {
            if !pod?.has_ended() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Why a step ends early.
enum Stop {
    /// Something that this call has read is different by now, and the host calls again for that. Or the namespace ends.
    Overtaken,
    /// The new ReplicaSet cannot be created.
    NotCreated(String),
    Failed(client::Error),
}

impl From<client::Error> for Stop {
    fn from(error: client::Error) -> Self {
        if error.is_conflict() || is_of_ending_namespace(&error) { Self::Overtaken } else { Self::Failed(error) }
    }
}

/// Sends what the rollout changed: the new ReplicaSet first, because nothing else may happen without it.
fn write(
    ctx: &Context,
    rollout: &mut Rollout<'_>,
    before: &BTreeMap<String, ReplicaSet>,
    superfluous: &[String],
) -> Result<(), Stop> {
    if let Some(new) = rollout.new.take_if(|new| new.metadata.uid.is_none()) {
        create(ctx, rollout, new)?;
    }
    for set in rollout.new.iter().chain(&rollout.old) {
        if let Some(before) = before.get(set.name()) {
            update(ctx, before, set)?;
        }
    }
    for name in superfluous {
        match ctx.client().delete::<ReplicaSet>(ctx.key().beside(name)) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
    }
    let revision = rollout.new.as_ref().and_then(|new| sets::annotation(new, REVISION));
    if let Some(revision) = revision.filter(|new| Some(*new) != rollout.revision()) {
        let patch = json!({"metadata": {"annotations": {REVISION: revision}}});
        ctx.client().status().patch::<Deployment>(ctx.key(), &patched(patch)?)?;
    }
    Ok(())
}

/// Creates the new ReplicaSet. Another object may have its name, which is a collision of hashes: then it gets another
/// hash.
fn create(ctx: &Context, rollout: &mut Rollout<'_>, planned: ReplicaSet) -> Result<(), Stop> {
    let mut new = planned;
    for _ in 0..COLLISIONS {
        match ctx.client().create(&new) {
            Ok(created) => {
                let size = sets::size(&created);
                if size > 0 {
                    scaled(ctx, created.name(), 0, size);
                }
                rollout.created(created);
                return Ok(());
            }
            Err(error) if error.is_already_exists() => {
                let other = ctx.client().get::<ReplicaSet>(new.key())?;
                if rollout.is_new(&other) {
                    rollout.new = Some(other);
                    return Ok(());
                }
                new = rollout.collide();
            }
            Err(error) if is_of_ending_namespace(&error) => return Err(Stop::Overtaken),
            Err(error) => {
                let message = format!("Failed to create new replica set {:?}: {error}", new.name());
                return Err(Stop::NotCreated(message));
            }
        }
    }
    Err(Stop::NotCreated(format!("Failed to create new replica set: {COLLISIONS} names are taken")))
}

/// Patches what the rollout changes in a ReplicaSet that exists.
fn update(ctx: &Context, before: &ReplicaSet, after: &ReplicaSet) -> Result<(), client::Error> {
    let (old, new) = (sets::size(before), sets::size(after));
    let least = |set: &ReplicaSet| set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or_default();
    let is_same = old == new && least(before) == least(after);
    if is_same && before.metadata.annotations == after.metadata.annotations {
        return Ok(());
    }
    // The size was decided for what was read.
    let metadata = json!({
        "resourceVersion": before.metadata.resource_version, "annotations": after.metadata.annotations,
    });
    let mut patch = json!({"metadata": metadata});
    if !is_same {
        patch["spec"] = json!({"replicas": new, "minReadySeconds": least(after)});
    }
    ctx.client().patch::<ReplicaSet>(before.key(), &patched(patch)?)?;
    if old != new {
        scaled(ctx, after.name(), old, new);
    }
    Ok(())
}

fn scaled(ctx: &Context, name: &str, from: i32, to: i32) {
    let direction = if from < to { "up" } else { "down" };
    let message = format!("Scaled {direction} replica set {name} from {from} to {to}");
    record(ctx, Event::normal("ScalingReplicaSet", message));
}

fn patched(patch: serde_json::Value) -> Result<Patch, client::Error> {
    Patch::merge(patch).map_err(|error| client::Error::Invalid(error.to_string()))
}
