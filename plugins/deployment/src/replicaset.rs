//! The controller of ReplicaSets: creates, deletes, adopts and releases Pods, and counts them.

mod pods;
mod status;
mod victims;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, ReplicaSetSpec},
        core::v1,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use pilothouse_sdk::{
    client::{self, Call},
    prelude::*,
};

pub(crate) use self::pods::Pod;
use crate::{
    PODS_OF, SETS_OF,
    labels::Selector,
    owners::{claim, controller_of, reference_to},
};

/// Pods that one call creates or deletes at most. The next call goes on.
const BURST: usize = 500;

/// Creates and deletes Pods until there are as many as the ReplicaSet asks for, and returns its status.
///
/// # Errors
/// Fails if a request fails. The status says so, too.
pub(crate) fn reconcile(ctx: &Context, set: &ReplicaSet) -> Result<Outcome, Error> {
    let Some(spec) = set.spec.as_ref().filter(|_| ctx.phase() != Phase::Gone) else { return Ok(Outcome::new()) };
    let selector = Selector::new(&spec.selector)?;
    let (active, others): (Vec<Pod>, Vec<Pod>) = candidates(ctx, set, &selector)?.into_iter().partition(Pod::is_active);
    let mut active = claim(ctx, set, &selector, active)?;
    let is_ours = |pod: &&Pod| pod.is_controlled_by(set) && selector.matches(pod.metadata.labels.as_ref());
    let terminating = others.iter().filter(|pod| pod.is_terminating()).filter(is_ours).count();

    let managed = match ctx.phase() {
        Phase::Live => manage(ctx, set, spec, &mut active),
        _ => Ok(()),
    };
    let counted = status::Counted { set, spec, active: &active, terminating };
    let status = counted.status(managed.as_ref().err().map(ToString::to_string), ctx.now());
    if let Err(error) = managed {
        return Err(Error::from(error).with_status(status));
    }
    let outcome = Outcome::new().status(status);
    Ok(match next_available(&active, spec, ctx.now()) {
        None => outcome,
        Some(delay) => outcome.requeue_after(delay),
    })
}

/// Returns the Pods that the selector matches, and those that the ReplicaSet owns though it does not match them.
fn candidates(ctx: &Context, set: &ReplicaSet, selector: &Selector) -> Result<Vec<Pod>, Error> {
    let beside = || ctx.cache().list::<v1::Pod>().beside(ctx.key());
    let selected = beside().labels(selector.to_string()).fields::<Pod>(Pod::FIELDS);
    let owned = beside().index(PODS_OF, set.metadata.uid.clone().unwrap_or_default()).fields::<Pod>(Pod::FIELDS);
    let mut pods = BTreeMap::new();
    for pod in selected.into_iter().chain(owned) {
        let pod = pod?;
        pods.insert(pod.name().to_owned(), pod);
    }
    Ok(pods.into_values().collect())
}

/// Creates missing Pods, or deletes surplus ones. `active` then has those that are left.
fn manage(ctx: &Context, set: &ReplicaSet, spec: &ReplicaSetSpec, active: &mut Vec<Pod>) -> Result<(), client::Error> {
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
    if active.len() < wanted {
        let count = (wanted - active.len()).min(BURST);
        return create(ctx, &pod_of(set, spec), count, active);
    }
    let count = (active.len() - wanted).min(BURST);
    if count == 0 {
        return Ok(());
    }
    // Who is deleted first does not matter if all are.
    let neighbours = if wanted == 0 { BTreeMap::new() } else { neighbours(ctx, set) };
    victims::first(active, &neighbours, ctx.now());
    let mut left = active.split_off(count);
    std::mem::swap(active, &mut left);
    delete(ctx, left, active)
}

/// Creates Pods in batches that double. If one fails, most often all would, so no further batch follows.
fn create(ctx: &Context, pod: &v1::Pod, count: usize, active: &mut Vec<Pod>) -> Result<(), client::Error> {
    let (mut left, mut batch) = (count, 1);
    while left > 0 {
        let size = batch.min(left);
        let mut failed = Ok(());
        for created in ctx.client().all(std::iter::repeat_with(|| Call::create(pod)).take(size)) {
            match created {
                Ok(created) => {
                    record(ctx, Event::normal("SuccessfulCreate", format!("Created pod: {}", created.name())));
                    active.push(created.into());
                }
                // Nothing can be created any more, and nothing will be missed.
                Err(error) if is_of_ending_namespace(&error) => return Ok(()),
                Err(error) => {
                    record(ctx, Event::warning("FailedCreate", format!("Error creating: {error}")));
                    failed = Err(error);
                }
            }
        }
        failed?;
        (left, batch) = (left - size, batch * 2);
    }
    Ok(())
}

/// Deletes Pods. What cannot be deleted returns to `active`.
fn delete(ctx: &Context, pods: Vec<Pod>, active: &mut Vec<Pod>) -> Result<(), client::Error> {
    let deleted = ctx.client().all(pods.iter().map(|pod| Call::delete::<v1::Pod>(pod.key())));
    let mut failed = Ok(());
    for (pod, deleted) in pods.into_iter().zip(deleted) {
        match deleted {
            Ok(()) => record(ctx, Event::normal("SuccessfulDelete", format!("Deleted pod: {}", pod.name()))),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                record(ctx, Event::warning("FailedDelete", format!("Error deleting: {error}")));
                active.push(pod);
                failed = failed.and(Err(error));
            }
        }
    }
    failed
}

/// Counts the active Pods of the same Deployment by their nodes. A ReplicaSet without a Deployment has no neighbours.
///
/// It only decides an order, so what cannot be read is left out.
fn neighbours(ctx: &Context, set: &ReplicaSet) -> BTreeMap<String, usize> {
    let mut nodes = BTreeMap::new();
    let Some(owner) = controller_of(&set.metadata) else { return nodes };
    let siblings = ctx.cache().list::<ReplicaSet>().beside(ctx.key()).index(SETS_OF, &owner.uid);
    for sibling in siblings.fields::<Sibling>(["metadata.uid"]).into_iter().flatten() {
        let uid = sibling.metadata.uid.unwrap_or_default();
        let pods = ctx.cache().list::<v1::Pod>().beside(ctx.key()).index(PODS_OF, uid);
        for pod in pods.fields::<Pod>(Pod::FIELDS).into_iter().flatten().filter(Pod::is_active) {
            *nodes.entry(pod.spec.node_name.unwrap_or_default()).or_default() += 1;
        }
    }
    nodes
}

#[derive(serde::Deserialize)]
struct Sibling {
    metadata: ObjectMeta,
}

/// Returns a new Pod of the ReplicaSet. The API server completes its name.
fn pod_of(set: &ReplicaSet, spec: &ReplicaSetSpec) -> v1::Pod {
    let template = spec.template.clone().unwrap_or_default();
    let ObjectMeta { labels, annotations, finalizers, .. } = template.metadata.unwrap_or_default();
    let metadata = ObjectMeta {
        generate_name: Some(format!("{}-", set.name())),
        namespace: set.metadata.namespace.clone(),
        labels,
        annotations,
        finalizers,
        owner_references: Some(vec![reference_to(set)]),
        ..ObjectMeta::default()
    };
    v1::Pod { metadata, spec: template.spec, status: None }
}

/// Returns when the next Pod has been ready long enough.
fn next_available(active: &[Pod], spec: &ReplicaSetSpec, now: Timestamp) -> Option<Duration> {
    let least = spec.min_ready_seconds.unwrap_or_default();
    active.iter().filter_map(|pod| pod.available_in(least, now)).filter(|left| !left.is_zero()).min()
}

/// Returns `true` if the request failed because its namespace is being deleted.
pub(crate) fn is_of_ending_namespace(error: &client::Error) -> bool {
    match error {
        client::Error::Api(status) => {
            status.reason == client::Reason::Forbidden && status.message.contains("because it is being terminated")
        }
        _ => false,
    }
}

/// Records an Event about a request that was sent. An Event that cannot be written stops nothing.
pub(crate) fn record(ctx: &Context, event: Event) {
    if let Err(error) = ctx.events().record(event) {
        warn!("an Event is not written", error = error);
    }
}
