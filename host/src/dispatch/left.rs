//! Names the finalizers that nobody removes any more, after a plugin was removed or has another manifest.
//!
//! The host does not remove them: their cleanup never ran, and the plugin may come back. So people learn which objects
//! they have to free.

use std::sync::Arc;

use pilothouse_core::{
    key::{Key, TypeMeta},
    selector::Selector,
    store::Query,
};
use tracing::warn;

use super::serving::Serving;
use crate::name::PluginName;

/// Objects that are looked at before other tasks have their turn.
const TURN: usize = 64;

/// Logs the objects that keep a finalizer of `before`, unless `stays` says that a controller still has it.
pub(super) async fn log_left(
    plugin: &PluginName,
    before: impl IntoIterator<Item = Arc<Serving>>,
    stays: impl Fn(&TypeMeta, &str) -> bool,
) {
    for serving in before {
        let of = &serving.spec.for_.of;
        let Some(finalizer) = serving.spec.finalizer.as_deref().filter(|finalizer| !stays(of, finalizer)) else {
            continue;
        };
        if let (objects @ 1.., Some(first)) = count(&serving, finalizer).await {
            warn!(
                %plugin, kind = %of, finalizer, objects, %first,
                "objects keep a finalizer of this plugin, so they cannot be deleted until somebody removes it"
            );
        }
    }
}

/// Counts the cached objects with a finalizer, and returns the key of the first.
async fn count(serving: &Serving, finalizer: &str) -> (usize, Option<Key>) {
    let (all, mut count, mut first) = (Selector::default(), 0, None);
    for lease in serving.reconciles.leases() {
        let mut after = None;
        loop {
            let page = lease.page(&Query { after: after.as_ref(), ..Query::new(&all) }, None, TURN);
            for object in page.items.iter().filter(|object| object.has_finalizer(finalizer)) {
                count += 1;
                first.get_or_insert_with(|| object.key().clone());
            }
            let Some(last) = page.next else { break };
            after = Some(last);
            tokio::task::yield_now().await;
        }
    }
    (count, first)
}
