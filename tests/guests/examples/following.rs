//! Observes everything except ConfigMaps, and logs each change: `observed`, with `what` such as `added Pear williams`.
//!
//! Used by `tests/e2e/suite/watches.rs`.

use pilothouse_sdk::prelude::*;

#[plugin]
fn following() -> Plugin {
    let everything = Watch::all().except([TypeMeta::new("v1", "ConfigMap")]).with_verbs(["create"]);
    Plugin::new("Logs what it observes.").observe(everything, seen)
}

fn seen(_: &ObserverContext, observed: &Observed<Dynamic>) -> Result<(), Error> {
    let what = match observed.change {
        Change::Added(_) => "added",
        Change::Updated { .. } => "updated",
        Change::Deleted(_) => "deleted",
    };
    let object = observed.change.latest();
    info!("observed", what = format!("{what} {} {}", object.type_meta().kind, object.name()));
    Ok(())
}
