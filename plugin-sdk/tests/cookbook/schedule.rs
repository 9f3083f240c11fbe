//! Work at a time of the day.

use std::time::Duration;

use k8s_openapi::{api::batch::v1::Job, jiff::Timestamp};
use kube::{CustomResource, Resource};
use pilothouse_sdk::{
    mock::{Expected, MockHost},
    prelude::*,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Backup", namespaced, status = "BackupStatus")]
struct BackupSpec {
    image: String,
    /// The hour of the day, in UTC.
    hour: u8,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct BackupStatus {
    last_run: String,
}

const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;

#[plugin]
fn backups() -> Plugin {
    Plugin::new("Backs up every day.")
        .crd::<Backup>()
        .permission(Permission::of::<Job>().verbs([Verb::Create]))
        .controller(Controller::of::<Backup>().reconcile(reconcile))
}

fn reconcile(ctx: &Context, backup: &Backup) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let now = ctx.now().as_second();
    let due = (now - i64::from(backup.spec.hour) * HOUR).div_euclid(DAY) * DAY + i64::from(backup.spec.hour) * HOUR;
    let next = Outcome::new().requeue_after(Duration::from_secs((due + DAY - now).unsigned_abs()));

    let last: Option<Timestamp> = backup.status.as_ref().and_then(|status| status.last_run.parse().ok());
    let made = backup.metadata.creation_timestamp.as_ref().map(|time| time.0);
    if last.or(made).is_some_and(|time| time.as_second() >= due) {
        return Ok(next);
    }
    match ctx.client().create(&job(backup, due)?) {
        // If the Job exists, an earlier call made it, and its status was not written.
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(next.status(BackupStatus { last_run: Timestamp::from_second(due)?.to_string() })),
    }
}

/// The name has the time in it, so there is one Job for each run.
fn job(backup: &Backup, due: i64) -> serde_json::Result<Job> {
    let container = json!({"name": "backup", "image": backup.spec.image});
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("{}-{due}", backup.name()),
            "namespace": backup.metadata.namespace,
            "ownerReferences": [backup.controller_owner_ref(&())],
        },
        "spec": {
            "ttlSecondsAfterFinished": 3 * DAY,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }))
}

#[test]
fn a_backup_runs_once_at_its_hour() {
    let key = ("default", "nightly");
    let spec = BackupSpec { image: "backup:1".into(), hour: 3 };
    let nightly = named("nightly", Backup::new("nightly", spec));
    let mut host = MockHost::new(backups).at("2026-01-01T12:00:00Z").with(nightly);
    // It was made after the hour of this day, so it waits for that of the next one.
    assert_eq!(host.settle(key).unwrap().requeue_after(), Some(Duration::from_secs(15 * 60 * 60)));

    host.advance(Duration::from_secs(15 * 60 * 60));
    let due = host.now().as_second();
    host.expect(Expected::create::<Job>(("default", format!("nightly-{due}").as_str())));
    let outcome = host.settle(key).expect("it settles");
    assert_eq!(outcome.requeue_after(), Some(Duration::from_secs(24 * 60 * 60)));
    assert_eq!(host.list::<Job>().len(), 1);
}
