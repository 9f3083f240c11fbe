//! Sends requests to the servers in its configuration, and reports in a condition what came of each.
//!
//! Used by `tests/e2e/suite/http.rs`.

use std::time::Duration;

use pilothouse_guests::apple::{self, MyApple, Status};
use pilothouse_sdk::{
    http::{self, HttpPermission},
    prelude::*,
};
use serde::Deserialize;

/// Ports of this machine.
#[derive(Clone, Deserialize)]
struct Config {
    /// The server that is granted.
    port: u16,
    /// A server that the manifest asks for and the administrator does not grant.
    elsewhere: u16,
}

#[expect(clippy::needless_pass_by_value, reason = "a plugin owns its configuration")]
#[plugin]
fn sending(config: Config) -> Result<Plugin, Error> {
    let Config { port, elsewhere } = config;
    let to = |host: &str, port| HttpPermission::to(host).plain().port(port).methods(["POST", "GET"]);
    let reconcile = move |ctx: &Context, apple: &MyApple| reconcile(ctx, apple, port, elsewhere);
    let plugin = Plugin::new("Sends requests.")
        .controller(apple::counting().owns::<k8s_openapi::api::core::v1::ConfigMap>().reconcile(reconcile));
    Ok(plugin
        .http(to("127.0.0.1", port))
        .http(to("127.0.0.1", elsewhere))
        .http(to("localhost", port))
        .http(to("::1", port)))
}

fn reconcile(ctx: &Context, apple: &MyApple, port: u16, elsewhere: u16) -> Result<Outcome, Error> {
    let post = |path: &str| ctx.http().post(format!("http://127.0.0.1:{port}/{path}")).body("hello");
    let probes = [
        ("Granted", post("ok").send()),
        ("OtherMethod", ctx.http().get(format!("http://127.0.0.1:{port}/ok")).send()),
        ("OtherPort", ctx.http().post(format!("http://127.0.0.1:{elsewhere}/ok")).send()),
        ("NotAsked", ctx.http().delete(format!("http://127.0.0.1:{port}/ok")).send()),
        ("Redirected", post("redirect").send()),
        ("Name", ctx.http().post(format!("http://localhost:{port}/ok")).send()),
        ("IPv6", ctx.http().post(format!("http://[::1]:{port}/ok")).send()),
        ("Large", post("large").send()),
        ("Slow", post("slow").timeout(Duration::from_millis(50)).send()),
        ("Broken", post("broken").send()),
    ];
    let Status { available, mut conditions } = apple::counted(apple);
    for (name, result) in probes {
        let (reason, message) = match result {
            Ok(response) => ("Answered", format!("{} {}", response.status(), response.text())),
            Err(error) => (reason(&error), error.to_string()),
        };
        conditions.set(ctx.condition(name, true, reason, message));
    }
    Ok(Outcome::new().status(Status { available, conditions }))
}

fn reason(error: &http::Error) -> &'static str {
    match error {
        http::Error::NotGranted(_) => "NotGranted",
        http::Error::Invalid(_) => "Invalid",
        http::Error::Timeout => "Timeout",
        http::Error::Unreachable(_) => "Unreachable",
        http::Error::TooLarge => "TooLarge",
        http::Error::TooMany => "TooMany",
        http::Error::Status { .. } | http::Error::Decode(_) => "Response",
    }
}
