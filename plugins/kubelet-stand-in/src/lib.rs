//! Stands in for the kubelet where there is none: says that Pods run, and are ready after a delay. Nothing runs.
//!
//! `pilothouse dev` has an API server and no nodes, so without this, a Pod stays pending. Then no Deployment becomes
//! available, and `kubectl rollout status` waits for ever.
//!
//! A Pod is ready when the longest `initialDelaySeconds` of its readiness probes has passed, or at once without probes.
//! A long one is a way to have a rollout that is stuck. Left alone are: a Pod with a node, because that has a kubelet;
//! a Pod that has ended; and a Pod that is being deleted.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use pilothouse_sdk::prelude::*;

/// The plugin.
#[plugin]
pub fn kubelet_stand_in() -> Plugin {
    let controller = Controller::of::<Pod>().named("kubelet-stand-in").max_concurrency(4).reconcile(reconcile);
    Plugin::new("Says that Pods without a node run and are ready.").controller(controller)
}

/// Returns the status that a kubelet would report, and when the Pod becomes ready.
///
/// # Errors
/// Never fails.
pub fn reconcile(ctx: &Context, pod: &Pod) -> Result<Outcome, Error> {
    let Some(spec) = pod.spec.as_ref().filter(|spec| ctx.phase() == Phase::Live && spec.node_name.is_none()) else {
        return Ok(Outcome::new());
    };
    let known = pod.status.clone().unwrap_or_default();
    if matches!(known.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Ok(Outcome::new());
    }
    let now = ctx.now();
    let started = known.start_time.as_ref().map_or(now, |started| started.0);
    let left = delay(spec).saturating_sub(Duration::try_from(now.duration_since(started)).unwrap_or_default());
    let outcome = Outcome::new().status(running(spec, &known, started, left.is_zero(), now));
    Ok(if left.is_zero() { outcome } else { outcome.requeue_after(left) })
}

/// Returns how long after its start the Pod becomes ready.
fn delay(spec: &PodSpec) -> Duration {
    let delays =
        spec.containers.iter().filter_map(|container| container.readiness_probe.as_ref()?.initial_delay_seconds);
    Duration::from_secs(delays.max().and_then(|delay| u64::try_from(delay).ok()).unwrap_or_default())
}

/// Returns the status of a Pod whose containers run.
fn running(spec: &PodSpec, known: &PodStatus, started: Timestamp, is_ready: bool, now: Timestamp) -> PodStatus {
    let condition = |type_: &str, is_true: bool| {
        let status = if is_true { "True" } else { "False" };
        let before = known.conditions.iter().flatten().find(|before| before.type_ == type_ && before.status == status);
        let since = before.and_then(|before| before.last_transition_time.clone());
        PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: (!is_true).then(|| "ContainersNotReady".to_owned()),
            last_transition_time: since.or(Some(Time(now))),
            ..PodCondition::default()
        }
    };
    PodStatus {
        phase: Some("Running".to_owned()),
        start_time: Some(Time(started)),
        conditions: Some(vec![
            condition("PodScheduled", true),
            condition("Initialized", true),
            condition("ContainersReady", is_ready),
            condition("Ready", is_ready),
        ]),
        container_statuses: Some(spec.containers.iter().map(|it| container(it, started, is_ready)).collect()),
        ..PodStatus::default()
    }
}

fn container(container: &Container, started: Timestamp, is_ready: bool) -> ContainerStatus {
    let running = ContainerStateRunning { started_at: Some(Time(started)) };
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        image_id: String::new(),
        ready: is_ready,
        started: Some(true),
        restart_count: 0,
        state: Some(ContainerState { running: Some(running), ..ContainerState::default() }),
        ..ContainerStatus::default()
    }
}
