//! Objects that others make: found by name, by an index, and by a mapping.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::CustomResource;
use pilothouse_sdk::{mock::MockHost, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "ClaimReport", namespaced, status = "ClaimReportStatus")]
struct ClaimReportSpec {
    /// The name of a PersistentVolumeClaim.
    claim: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
struct ClaimReportStatus {
    phase: String,
    pods: Vec<String>,
}

#[plugin]
fn claims() -> Plugin {
    let controller =
        Controller::of::<ClaimReport>().reads::<PersistentVolumeClaim>().reads::<Pod>().reconcile(reconcile);
    Plugin::new("Reports who uses a claim.")
        .crd::<ClaimReport>()
        .index::<Pod>("pods-by-claim", "spec.volumes[*].persistentVolumeClaim.claimName")
        .controller(controller)
}

fn reconcile(ctx: &Context, report: &ClaimReport) -> Result<Outcome, Error> {
    let name = &report.spec.claim;
    let claim = ctx.cache().get::<PersistentVolumeClaim>(ctx.key().beside(name))?;
    let phase = claim.and_then(|claim| claim.status?.phase).unwrap_or_else(|| "Missing".to_owned());
    let mut pods = Vec::new();
    for pod in ctx.cache().list::<Pod>().beside(ctx.key()).index("pods-by-claim", name).keys() {
        pods.push(pod?.name);
    }
    Ok(Outcome::new().status(ClaimReportStatus { phase, pods }))
}

#[plugin]
fn expansions() -> Plugin {
    let controller = Controller::of::<ClaimReport>()
        .watches::<PersistentVolumeClaim>(Mapping::index("reports-by-claim"))
        .reconcile(|_, _| Ok(Outcome::new()));
    Plugin::new("Runs when a claim changes.")
        .index::<ClaimReport>("reports-by-claim", "spec.claim")
        .controller(controller)
}

fn report() -> ClaimReport {
    named("data", ClaimReport::new("data", ClaimReportSpec { claim: "disk".into() }))
}

fn pod(name: &str, claim: &str) -> Pod {
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
    let pod = json!({"metadata": {}, "spec": {"containers": [], "volumes": [volume]}});
    named(name, serde_json::from_value(pod).unwrap())
}

#[test]
fn a_report_follows_its_claim_and_the_pods_that_use_it() {
    let key = ("default", "data");
    let mut host = MockHost::new(claims).with(report()).with(pod("db-0", "disk"));
    let status: ClaimReportStatus = host.settle(key).unwrap().status();
    assert_eq!(status, ClaimReportStatus { phase: "Missing".into(), pods: vec!["db-0".into()] });

    let woken = [Key::from(key)];
    assert_eq!(host.woken_by(|host| host.put(named("disk", PersistentVolumeClaim::default()))), woken);
    assert_eq!(host.woken_by(|host| host.put(pod("db-1", "disk"))), woken);
    assert_eq!(host.woken_by(|host| host.put(pod("web-0", "another"))), []);
}

#[test]
fn a_mapping_finds_the_reports_of_a_claim() {
    let mut host = MockHost::new(expansions).with(report());
    let woken = host.woken_by(|host| host.put(named("disk", PersistentVolumeClaim::default())));
    assert_eq!(woken, [Key::new("default", "data")]);
    assert_eq!(host.woken_by(|host| host.put(named("another", PersistentVolumeClaim::default()))), []);
}
