//! An Event when a condition changes, and none when it stays.

use std::time::Duration;

use kube::CustomResource;
use pilothouse_sdk::{
    http::{HttpPermission, Response},
    mock::{ExpectedHttp, MockHost},
    prelude::*,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Check", namespaced, status = "CheckStatus")]
struct CheckSpec {
    page: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct CheckStatus {
    conditions: Conditions,
}

const SITE: &str = "https://www.example.com";

#[plugin]
fn checks() -> Plugin {
    Plugin::new("Checks pages.")
        .crd::<Check>()
        .http(HttpPermission::to("www.example.com").methods(["GET"]))
        .controller(Controller::of::<Check>().events().reconcile(reconcile))
}

fn reconcile(ctx: &Context, check: &Check) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let answer = ctx.http().get(format!("{SITE}/{}", check.spec.page)).send().and_then(Response::error_for_status);
    let before = check.status.clone().unwrap_or_default().conditions;
    let mut after = before.clone();
    after.set(match answer {
        Ok(_) => ctx.condition("Reachable", true, "Answers", "the page is there"),
        Err(error) => ctx.condition("Reachable", false, "Fails", error.to_string()),
    });
    let events: Vec<Event> = after
        .transitions(&before)
        .map(|new| match new.status.as_str() {
            "True" => Event::normal(&new.reason, &new.message),
            _ => Event::warning(&new.reason, &new.message),
        })
        .collect();
    Ok(Outcome::new().events(events).status(CheckStatus { conditions: after }).requeue_after(Duration::from_secs(60)))
}

#[test]
fn an_event_is_written_when_the_page_fails_and_none_while_it_fails() {
    let key = ("default", "home");
    let mut host =
        MockHost::new(checks).with(named("home", Check::new("home", CheckSpec { page: "index.html".into() })));
    // The first call writes the status, and the second finds that nothing has changed.
    for _ in 0..2 {
        host.expect_http(ExpectedHttp::get("https://www.example.com/index.html").returns(503, ""));
    }
    host.settle(key).expect("it settles");
    let events: Vec<String> = host.events().iter().map(ToString::to_string).collect();
    assert_eq!(events, ["Warning Fails example.com/v1 Check default/home: the server answered with status 503"]);
}
