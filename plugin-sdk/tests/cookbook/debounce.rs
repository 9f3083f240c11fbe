//! Work that runs at most once a minute, however often something changes.

use std::time::Duration;

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::CustomResource;
use pilothouse_sdk::{mock::MockHost, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Summary", namespaced, status = "SummaryStatus")]
struct SummarySpec {}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SummaryStatus {
    pods: usize,
    counted_at: String,
}

const PAUSE: Duration = Duration::from_secs(60);

#[plugin]
fn summaries() -> Plugin {
    // Without the predicate, the plugin's own status would wake it.
    let controller = Controller::of::<Summary>().when(Predicate::generation()).reads::<Pod>().reconcile(reconcile);
    Plugin::new("Counts Pods.").crd::<Summary>().controller(controller)
}

fn reconcile(ctx: &Context, summary: &Summary) -> Result<Outcome, Error> {
    if let Some(rest) = rest(ctx, summary) {
        // What changes meanwhile is in the next count.
        return Ok(Outcome::new().requeue_after(rest));
    }
    let pods = ctx.cache().list::<Pod>().beside(ctx.key()).keys().count();
    Ok(Outcome::new().status(SummaryStatus { pods, counted_at: ctx.now().to_string() }))
}

/// Returns how much of the pause after the last count is left.
fn rest(ctx: &Context, summary: &Summary) -> Option<Duration> {
    let last: Timestamp = summary.status.as_ref()?.counted_at.parse().ok()?;
    let passed = Duration::try_from(ctx.now().duration_since(last)).ok()?;
    PAUSE.checked_sub(passed).filter(|rest| !rest.is_zero())
}

#[test]
fn pods_are_counted_once_a_minute() {
    let key = ("default", "all");
    let mut host = MockHost::new(summaries).with(named("all", Summary::new("all", SummarySpec {})));
    let counted = |host: &MockHost| host.get::<Summary>(key).unwrap().status.unwrap().pods;
    host.settle(key).expect("it settles");
    assert_eq!(counted(&host), 0);

    host.put(named("web", Pod::default()));
    host.advance(Duration::from_secs(20));
    assert_eq!(host.settle(key).unwrap().requeue_after(), Some(Duration::from_secs(40)));
    assert_eq!(counted(&host), 0);
    host.advance(Duration::from_secs(40));
    host.settle(key).expect("it settles");
    assert_eq!(counted(&host), 1);
}
