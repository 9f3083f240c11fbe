//! The kinds that a plugin observes by pattern, and when they change.
//!
//! ```text
//! discovery ─► kinds that match ─► granted? ─► within limits.watches? ─► watches of the observer
//!    └ again when definitions change, and every LOOK_EVERY ─► other kinds? ─► the plugin's task activates it again
//! ```
//!
//! What is left out is named in the plugin's warnings. `pilothouse_core::manifest` decides which kinds match.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use pilothouse_core::{
    grant::Grants,
    informer::{InformerKey, Runs, bounded, plan},
    key::TypeMeta,
    manifest::{Manifest, Selected, Watch},
};
use tracing::{info, warn};

use super::Dispatch;
use crate::{cluster, name::PluginName, plugin::Candidate, wasm::Revision};

/// Largest number of watches that the patterns of a plugin cause, even if `limits.watches` allows more.
const MAX_MATCHED: usize = 1024;

/// Time for the look at all kinds when a plugin is activated. Without an answer, the plugin begins with the kinds of
/// before.
const LOOK_WITHIN: Duration = Duration::from_secs(30);

/// Time between two looks for kinds that no CustomResourceDefinition announces, such as those of an aggregated server.
const LOOK_EVERY: Duration = Duration::from_secs(300);

/// Time until the next look, if the API server did not answer one, or objects of a kind that is gone are still cached.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// The least time between two looks of a plugin.
const SPACING: Duration = Duration::from_secs(1);

/// Kinds that a warning names.
const NAMED: usize = 20;

/// The kinds that the patterns of a manifest match.
pub(super) struct Matched {
    revision: Arc<Revision>,
    grants: Arc<Grants>,
    /// All of them, granted or not, sorted.
    kinds: Vec<Selected>,
    /// What is observed of them.
    pub(super) watches: Vec<Watch>,
    /// The watches at the API server that they cause beside those of the manifest.
    pub(super) caused: usize,
    /// What the plugin does not get, for people.
    pub(super) left_out: Option<String>,
}

impl Matched {
    /// `true` if these are the kinds of a candidate that serves already.
    pub(super) fn is_of(&self, candidate: &Candidate) -> bool {
        Arc::ptr_eq(&self.revision, &candidate.revision) && Arc::ptr_eq(&self.grants, &candidate.grants)
    }
}

impl Dispatch {
    /// Finds the kinds that a candidate observes by pattern. `None` if it has no patterns.
    ///
    /// `before` is the result for the revision that serves.
    pub(super) async fn matched(&self, candidate: &Candidate, before: Option<&Matched>) -> Option<Matched> {
        let Candidate { revision, grants, limits, .. } = candidate;
        let manifest = revision.manifest();
        if manifest.patterns.is_empty() {
            return None;
        }
        let before = before.map_or(&[][..], |before| &before.kinds);
        let looked = tokio::time::timeout(LOOK_WITHIN, self.look(manifest, before)).await;
        let kinds = match looked {
            Ok(Ok((kinds, _))) => kinds,
            failed => {
                let error = failed.err().map_or_else(|| "it did not answer".to_owned(), |late| late.to_string());
                warn!(plugin = %revision.plugin(), error, "cannot ask the API server for its kinds; looking again");
                before.to_vec()
            }
        };
        let named = manifest.requests();
        let most = usize::try_from(limits.watches().get()).unwrap_or(usize::MAX);
        let most = most.saturating_sub(watches(named.clone())).min(MAX_MATCHED);
        let (mut kept, mut denied, mut surplus, mut caused) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for Selected { of, namespaced } in &kinds {
            let Some(watch) = manifest.observed(of) else { continue };
            let readable = grants.readable_of(&watch);
            if !readable.iter().any(|readable| *namespaced || readable.namespaces.is_empty()) {
                denied.push(of);
                continue;
            }
            let before: BTreeSet<InformerKey> = named.iter().filter(|key| key.of == *of).cloned().collect();
            let after = before.iter().cloned().chain(watch.requests()).collect();
            let more = watches(after).saturating_sub(watches(before));
            if caused + more > most {
                surplus.push(of);
            } else {
                caused += more;
                kept.push(watch);
            }
        }
        let left_out = [("are not granted", denied), ("are over limits.watches", surplus)];
        let left_out: Vec<String> = left_out
            .iter()
            .filter(|(_, kinds)| !kinds.is_empty())
            .map(|(why, of)| format!("observes by pattern, and does not get: {} kinds {why}: {}", of.len(), listed(of)))
            .collect();
        Some(Matched {
            revision: revision.clone(),
            grants: grants.clone(),
            watches: kept,
            caused,
            left_out: (!left_out.is_empty()).then(|| left_out.join("; ")),
            kinds,
        })
    }

    /// Returns when the server serves other kinds for the plugin's patterns than those that it was activated with.
    pub(super) async fn kinds_changed(&self, name: &PluginName) {
        let matched = self.active.lock().plugins.get(name).and_then(|plugin| plugin.matched.clone());
        let Some(matched) = matched else { return std::future::pending().await };
        let mut kinds = self.parts.informers.follow_kinds();
        loop {
            let mut next = LOOK_AGAIN;
            if let Ok((now, is_settled)) = self.look(matched.revision.manifest(), &matched.kinds).await {
                if now != matched.kinds {
                    let only = |these: &[Selected], those: &[Selected]| {
                        let only = these.iter().filter(|kind| !those.contains(kind));
                        listed(&only.map(|kind| &kind.of).collect::<Vec<_>>())
                    };
                    let (come, gone) = (only(&now, &matched.kinds), only(&matched.kinds, &now));
                    info!(plugin = %name, come, gone, "the API server serves other kinds for the plugin's patterns");
                    return;
                }
                if is_settled {
                    next = LOOK_EVERY;
                }
            }
            tokio::time::sleep(SPACING).await;
            // Without a change, another server may have come or gone.
            let _ = tokio::time::timeout(next, kinds.changed()).await;
        }
    }

    /// Returns the kinds that match, sorted, and `true` if the server serves all of them.
    async fn look(&self, manifest: &Manifest, before: &[Selected]) -> Result<(Vec<Selected>, bool), cluster::Error> {
        let discovered = self.parts.cluster.served(|api_version| manifest.looks_at(api_version)).await?;
        let has_objects = |of: &TypeMeta| {
            let informers = self.parts.informers.all();
            informers.iter().any(|informer| informer.key().of == *of && informer.size().0 > 0)
        };
        let kinds = manifest.select(&discovered, before, has_objects);
        let is_served = |kind: &Selected| discovered.kinds.iter().any(|served| served.of == kind.of);
        let is_settled = kinds.iter().all(is_served);
        Ok((kinds, is_settled))
    }
}

/// Returns the number of watches that some requests cause.
pub(super) fn watches(requests: BTreeSet<InformerKey>) -> usize {
    plan(&bounded(requests, |_| Runs::No), |_| false).len()
}

/// Names kinds: `v1 Secret, v1 Node and 3 more`.
fn listed(kinds: &[&TypeMeta]) -> String {
    let named = kinds.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = kinds.len().saturating_sub(NAMED);
    if more == 0 { named } else { format!("{named} and {more} more") }
}
