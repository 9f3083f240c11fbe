//! Counts the ConfigMaps with the label `list=<name>`.
//!
//! `status.available` is the number of objects. Conditions hold the number of keys (`Keys`), of partial objects
//! (`Fields`), of objects by the index `list` (`Indexed`), and of objects in pages of 7 (`Pages`).
//!
//! Used by `tests/e2e/suite/reads.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, Status, found};
use pilothouse_sdk::prelude::*;
use serde_json::Value;

#[plugin]
fn listing() -> Plugin {
    let controller = apple::counting().reads::<ConfigMap>().reconcile(reconcile);
    Plugin::new("Counts ConfigMaps.").index::<ConfigMap>("list", "metadata.labels['list']").controller(controller)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let all = || ctx.cache().list::<ConfigMap>().beside(ctx.key());
    let labelled = || all().labels(format!("list={}", apple.name()));
    let mut status = Status { available: u32::try_from(count(labelled())?)?, ..Status::default() };
    for (name, seen) in [
        ("Keys", count(labelled().keys())?),
        ("Fields", count(labelled().fields::<Value>(["data.value"]))?),
        ("Indexed", count(all().index("list", apple.name()))?),
        ("Pages", count(labelled().page_size(7))?),
    ] {
        found(ctx, &mut status, name, seen.to_string());
    }
    Ok(Outcome::new().status(status))
}

/// Counts items, and holds one of them at a time.
fn count<T, E>(all: impl IntoIterator<Item = Result<T, E>>) -> Result<usize, E> {
    all.into_iter().try_fold(0, |count, one| one.map(|_| count + 1))
}
