//! Counts and lists objects of kinds that are known only at run time: a `ResourceWatch` names them.
//!
//! The outcome asks the host to watch them ([`Outcome::watches`]), and the reconcile reads their keys from the cache.
//! So it runs again when such an object comes or goes, and not when one changes.

mod resource;

use std::collections::BTreeSet;

use pilothouse_sdk::{cache, prelude::*};

pub use crate::resource::{Counted, ResourceWatch, ResourceWatchSpec, ResourceWatchStatus, Selected};

/// The plugin.
#[plugin]
pub fn resource_watch() -> Plugin {
    Plugin::new("Counts and lists objects of any kinds.")
        .crd::<ResourceWatch>()
        .controller(Controller::of::<ResourceWatch>().reconcile(reconcile))
        // It cannot know the kinds. The administrator grants some.
        .permission(Permission::to(TypeMeta::new("*", "*")).verbs([Verb::Read]))
}

/// Returns the watches and the status of a `ResourceWatch`.
///
/// # Errors
/// Fails if the outcome cannot be built. A kind that cannot be counted is no error, because the others can.
pub fn reconcile(ctx: &Context, watch: &ResourceWatch) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        // The host ends the watches of an object that is gone.
        return Ok(Outcome::new());
    }
    let spec = &watch.spec;
    let mut watches = Vec::new();
    let mut resources = Vec::new();
    for selected in &spec.resources {
        let (counted, is_valid) = match count(ctx, selected, spec.list) {
            Ok(counted) => (counted, true),
            // Also while the host does not cache the kind yet. It calls again when it does.
            Err(error) => {
                let counted = Counted { message: Some(error.to_string()), ..empty(selected) };
                (counted, !matches!(error, cache::Error::Invalid(_)))
            }
        };
        resources.push(counted);
        if is_valid {
            watches.push(watch_of(selected));
        }
    }
    let total = resources.iter().filter_map(|counted| counted.count).sum();
    let uncounted = resources.iter().filter(|counted| counted.count.is_none()).count();
    let mut conditions = watch.status.clone().unwrap_or_default().conditions;
    conditions.set(match uncounted {
        0 => ctx.condition("Ready", true, "Counted", format!("{} kinds are counted", resources.len())),
        _ => ctx.condition("Ready", false, "NotCounted", format!("{uncounted} of {} kinds are not", resources.len())),
    });
    let status = ResourceWatchStatus { total, resources, conditions, observed_generation: watch.metadata.generation };
    Ok(Outcome::new().watches(watches).status(status))
}

fn type_meta(selected: &Selected) -> TypeMeta {
    TypeMeta::new(&selected.api_version, &selected.kind)
}

/// Returns what the host caches: no more than metadata, because only the keys are read.
fn watch_of(selected: &Selected) -> Watch<Dynamic> {
    let watch = Watch::to(type_meta(selected)).namespaces(namespaces(selected)).metadata_only();
    match &selected.labels {
        Some(labels) => watch.labels(labels),
        None => watch,
    }
}

/// Returns the namespaces in the order of their names, and each once.
fn namespaces(selected: &Selected) -> BTreeSet<&String> {
    selected.namespaces.iter().collect()
}

/// Counts the objects, and lists the first.
fn count(ctx: &Context, selected: &Selected, most: u32) -> Result<Counted, cache::Error> {
    let mut namespaces: Vec<Option<&String>> = namespaces(selected).into_iter().map(Some).collect();
    if namespaces.is_empty() {
        namespaces.push(None);
    }
    let (mut count, mut objects) = (0, Vec::new());
    for namespace in namespaces {
        let mut list = ctx.cache().list_dynamic(type_meta(selected));
        if let Some(namespace) = namespace {
            list = list.namespace(namespace);
        }
        if let Some(labels) = &selected.labels {
            list = list.labels(labels);
        }
        for key in list.keys() {
            let key = key?;
            count += 1;
            if objects.len() < most as usize {
                objects.push(key.to_string());
            }
        }
    }
    Ok(Counted { count: Some(count), objects, ..empty(selected) })
}

fn empty(selected: &Selected) -> Counted {
    let Selected { api_version, kind, .. } = selected.clone();
    Counted { api_version, kind, ..Counted::default() }
}
