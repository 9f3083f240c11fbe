//! For `bad-*`, sends requests for ever, with 256 objects at the same time: large bodies to a server that reads slowly,
//! and others that get a huge or an endless body. Its timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::{http::HttpPermission, prelude::*};
use serde::Deserialize;

#[derive(Clone, Deserialize)]
#[serde(default)]
struct Config {
    port: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self { port: 9 }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a plugin owns its configuration")]
#[plugin]
fn flooding_http(config: Config) -> Result<Plugin, Error> {
    let port = config.port;
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).max_concurrency(256);
    Ok(Plugin::new("Floods a server with requests.")
        .http(HttpPermission::to("127.0.0.1").plain().port(port).methods(["POST"]))
        .controller(controller.reconcile(move |ctx: &Context, apple: &MyApple| reconcile(ctx, apple, port))))
}

fn reconcile(ctx: &Context, apple: &MyApple, port: u16) -> Result<Outcome, Error> {
    if is_bad(apple) {
        let large = vec![b'x'; 4 << 20];
        loop {
            let _ = ctx.http().post(format!("http://127.0.0.1:{port}/huge")).send();
            let _ = ctx.http().post(format!("http://127.0.0.1:{port}/endless")).send();
            let _ = ctx.http().post(format!("http://127.0.0.1:{port}/slow")).body(large.clone()).send();
        }
    }
    well_behaved(ctx, apple)
}
