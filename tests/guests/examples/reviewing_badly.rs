//! Reviews ConfigMaps of one namespace, which its configuration names, and makes the mistake in their label `mistake`.
//! Reconciles well.
//!
//! | `mistake` | |
//! |---|---|
//! | `trap` | panics |
//! | `loop` | never returns; the timeout is 1 s |
//! | `fail` | fails |
//! | `huge` | returns a message of 64 MiB |
//! | any other | allows the request |
//!
//! The webhook `strict` reviews objects with the label `policy=strict`, and `lenient` those with `policy=lenient`.
//!
//! Used by `tests/e2e/suite/webhooks.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    namespace: String,
}

#[expect(clippy::needless_pass_by_value, reason = "a plugin owns its configuration")]
#[plugin]
fn reviewing_badly(config: Config) -> Result<Plugin, Error> {
    let webhook = |policy: &str| {
        Webhook::of::<ConfigMap>(policy)
            .namespaces(format!("kubernetes.io/metadata.name={}", config.namespace))
            .labels(format!("policy={policy}"))
            .timeout_seconds(1)
    };
    Ok(Plugin::new("Reviews badly.")
        .validate(webhook("strict"), review)
        .validate(webhook("lenient").ignore_failures(), review))
}

fn review(_: &AdmissionContext, review: &Review<ConfigMap>) -> Result<Decision, Error> {
    let labels = review.object.as_ref().and_then(|map| map.metadata.labels.as_ref());
    match labels.and_then(|labels| labels.get("mistake")).map_or("", String::as_str) {
        "trap" => panic!("a bad reviewer"),
        "loop" => loop {
            std::hint::black_box(review);
        },
        "fail" => return Err(Error::retry("this is not worth a review")),
        "huge" => return Ok(Decision::deny("x".repeat(64 << 20))),
        _ => {}
    }
    Ok(Decision::allow())
}
