//! A finalizer for something outside the cluster.

use kube::CustomResource;
use pilothouse_sdk::{
    http::HttpPermission,
    mock::{ExpectedHttp, MockHost},
    prelude::*,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Record", namespaced, status = "RecordStatus")]
struct RecordSpec {
    host: String,
}

/// What the server has.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
struct RecordStatus {
    host: String,
}

const DNS: &str = "https://dns.example.com/records";

#[plugin]
fn records() -> Plugin {
    let controller = Controller::of::<Record>().finalizer("example.com/record").reconcile(reconcile);
    Plugin::new("Registers host names.")
        .crd::<Record>()
        .http(HttpPermission::to("dns.example.com").methods(["PUT", "DELETE"]))
        .controller(controller)
}

fn reconcile(ctx: &Context, record: &Record) -> Result<Outcome, Error> {
    // The URL follows from the object. So the cleanup finds it, whatever became of earlier calls.
    let url = format!("{DNS}/{}", record.metadata.uid.as_deref().unwrap_or_default());
    match ctx.phase() {
        Phase::Live => {
            let wanted = RecordStatus { host: record.spec.host.clone() };
            if record.status.as_ref() == Some(&wanted) {
                return Ok(Outcome::new());
            }
            ctx.http().put(url).json(&json!({"host": wanted.host})).send()?.error_for_status()?;
            Ok(Outcome::new().status(wanted))
        }
        Phase::Deleting => match ctx.http().delete(url).send()?.error_for_status() {
            // What is gone already is cleaned up.
            Err(error) if error.status() != Some(404) => Err(error.into()),
            _ => Ok(Outcome::new()),
        },
        Phase::Gone => Ok(Outcome::new()),
    }
}

#[test]
fn a_record_stays_until_the_server_has_removed_it() {
    let key = ("default", "www");
    let url = format!("{DNS}/0c7a5a3e-3f0c-4f0e-9d53-5f0a3b1d2c4e");
    let mut record = named("www", Record::new("www", RecordSpec { host: "www.example.com".into() }));
    record.metadata.uid = Some("0c7a5a3e-3f0c-4f0e-9d53-5f0a3b1d2c4e".into());

    let mut host = MockHost::new(records).with(record);
    host.expect_http(ExpectedHttp::put(&url));
    host.settle(key).expect("it is registered");

    host.delete::<Record>(key);
    host.expect_http(ExpectedHttp::delete(&url).returns(503, ""));
    assert!(host.reconcile(key).is_err() && host.get::<Record>(key).is_some());
    host.expect_http(ExpectedHttp::delete(&url).returns(404, ""));
    host.settle(key).expect("it is cleaned up");
    assert!(host.get::<Record>(key).is_none());
}
