//! Logs `called` with the name and phase of each Tree, and whether the cache has the Tree in its label `beside`.
//!
//! The test brings the kind `Tree`, whose objects may nest as deep as the API server allows.
//!
//! Used by `tests/e2e/suite/text.rs`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pilothouse_sdk::prelude::*;
use serde::{Deserialize, Serialize};

/// An object of which only the metadata is used.
#[derive(Debug, Object, Deserialize, Serialize)]
#[object(api_version = "guests.example.com/v1", kind = "Tree")]
struct Tree {
    metadata: ObjectMeta,
}

#[plugin]
fn nesting() -> Plugin {
    Plugin::new("Reads trees.").controller(Controller::of::<Tree>().without_status().reconcile(reconcile))
}

fn reconcile(ctx: &Context, tree: &Tree) -> Result<Outcome, Error> {
    let label = tree.metadata.labels.as_ref().and_then(|labels| labels.get("beside"));
    let saw = match label.map(|name| ctx.cache().get::<Tree>(ctx.key().beside(name.as_str()))) {
        None => String::new(),
        Some(Ok(None)) => "nothing".to_owned(),
        Some(Ok(Some(_))) => "a tree".to_owned(),
        Some(Err(error)) => error.to_string(),
    };
    let phase = match ctx.phase() {
        Phase::Live => "live",
        Phase::Deleting => "deleting",
        Phase::Gone => "gone",
    };
    info!("called", name = tree.name(), phase = phase, saw = saw.as_str());
    Ok(Outcome::new())
}
