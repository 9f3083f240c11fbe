//! Which lists hold what a manifest asks for.

use std::{collections::BTreeSet, sync::Arc};

use pilothouse_core::{
    informer::{InformerKey, plan},
    manifest::{Discovered, Manifest, Watch},
    object::Keep,
};

/// A list to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) key: InformerKey,
    /// `true` if only objects are wanted that belong to one that was read before.
    pub(super) is_owned: bool,
}

/// Returns the lists of whole objects, each object in as few as possible. Children that nothing else asks for come
/// last.
pub(super) fn wanted(manifest: &Manifest, discovered: &Discovered, namespaces: &[String]) -> Vec<Wanted> {
    let selected = manifest.select(discovered, &[], |_| false);
    let by_pattern: Vec<Watch> = selected.iter().filter_map(|kind| manifest.observed(&kind.of)).collect();
    let of_controllers = manifest.controllers.iter().flat_map(|controller| {
        let mapped = controller.watches.iter().map(|mapped| &mapped.watch);
        [&controller.for_].into_iter().chain(mapped).chain(&controller.reads)
    });
    let of_webhooks = manifest.webhooks.iter().flat_map(|webhook| &webhook.reads);
    let needed = of_controllers.chain(&manifest.observes).chain(of_webhooks).chain(&by_pattern);
    let needed = plan(&keys(needed, namespaces), |_| false);
    let owned = manifest.controllers.iter().flat_map(|controller| &controller.owns);
    let mut owned = plan(&keys(owned, namespaces), |_| false);
    owned.retain(|key| !needed.iter().any(|other| other.covers(key)));
    let needed = needed.into_iter().map(|key| Wanted { key, is_owned: false });
    needed.chain(owned.into_iter().map(|key| Wanted { key, is_owned: true })).collect()
}

/// Returns the requests for whole objects in these namespaces, or in all if there are none.
fn keys<'a>(watches: impl Iterator<Item = &'a Watch>, namespaces: &[String]) -> BTreeSet<InformerKey> {
    let whole = watches.flat_map(Watch::requests).map(|key| InformerKey { keep: Keep::default(), ..key });
    let within = |key: InformerKey| match &key.namespace {
        _ if namespaces.is_empty() => vec![key],
        Some(namespace) => {
            let is_wanted = namespaces.iter().any(|wanted| **wanted == **namespace);
            if is_wanted { vec![key] } else { Vec::new() }
        }
        None => {
            let each = |wanted: &String| InformerKey { namespace: Some(Arc::from(wanted.as_str())), ..key.clone() };
            namespaces.iter().map(each).collect()
        }
    };
    whole.flat_map(within).collect()
}
