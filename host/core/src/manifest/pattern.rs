//! Watches by pattern: from the kinds that an API server serves to those that a plugin observes.
//!
//! ```text
//! discovery ─► Discovered ─► Manifest::select ─► kinds ─► Manifest::observed ─► one watch for each kind
//!                              └ patterns, kinds of before
//! ```
//!
//! The host discovers, and leases the caches. It selects again whenever the server may serve other kinds.

use std::collections::BTreeSet;

use super::{Manifest, Watch};
use crate::key::TypeMeta;

/// A watch of all kinds that a pattern matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchPattern {
    /// The watch of each kind. Its `of` is the pattern.
    pub watch: Watch,
    /// What it leaves out: kinds and patterns.
    pub except: Vec<TypeMeta>,
    /// Verbs that the API server must serve for a kind.
    pub with_verbs: Vec<String>,
}

/// A kind that the API server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The kind.
    pub of: TypeMeta,
    /// `false` if it is cluster-scoped.
    pub namespaced: bool,
    /// The verbs that the server offers for it.
    pub verbs: Vec<String>,
    /// `true` if the server serves the kind in no version of the group that it prefers to this one.
    pub preferred: bool,
}

/// What an API server serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovered {
    /// The kinds.
    pub kinds: Vec<Served>,
    /// Groups whose kinds are unknown, as their server does not respond. `kinds` has none of them.
    pub unknown: BTreeSet<String>,
}

/// A kind that a pattern matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selected {
    /// The kind.
    pub of: TypeMeta,
    /// `false` if it is cluster-scoped.
    pub namespaced: bool,
}

impl WatchPattern {
    /// Returns `true` if the pattern names this kind, served or not.
    pub fn names(&self, of: &TypeMeta) -> bool {
        self.watch.of.selects(of) && !self.except.iter().any(|except| except.selects(of))
    }

    /// `is_new` is `false` for a kind that was selected before. It stays without [`with_verbs`](Self::with_verbs): a
    /// definition that is being deleted loses `create` before its objects go.
    fn matches(&self, served: &Served, is_new: bool) -> bool {
        let has = |verb: &str| served.verbs.iter().any(|of| of == verb);
        let names_version = !self.watch.of.api_version.contains('*');
        self.names(&served.of)
            && (names_version || served.preferred)
            && (served.namespaced || self.watch.namespaces.is_empty())
            && has("list")
            && has("watch")
            && (!is_new || self.with_verbs.iter().all(|verb| has(verb)))
    }
}

impl Manifest {
    /// Returns `true` if a pattern may match kinds of this apiVersion.
    pub fn looks_at(&self, api_version: &str) -> bool {
        let all = TypeMeta::new(api_version, "*");
        self.patterns.iter().any(|pattern| pattern.watch.of.selects(&all))
    }

    /// Returns the kinds that the patterns match, sorted.
    ///
    /// `before` is the last result. A kind of it that is not served any more stays while `has_objects` returns `true`,
    /// so that the plugin observes their deletion.
    pub fn select(
        &self,
        discovered: &Discovered,
        before: &[Selected],
        has_objects: impl Fn(&TypeMeta) -> bool,
    ) -> Vec<Selected> {
        let matched = discovered.kinds.iter().filter(|served| {
            let is_new = before.iter().all(|before| before.of != served.of);
            self.patterns.iter().any(|pattern| pattern.matches(served, is_new))
        });
        let matched = matched.map(|served| Selected { of: served.of.clone(), namespaced: served.namespaced });
        let is_gone = |of: &TypeMeta| {
            let same = |served: &&Served| served.of.group() == of.group() && served.of.kind == of.kind;
            !discovered.kinds.iter().any(|served| same(&served))
        };
        let staying = before.iter().filter(|Selected { of, .. }| {
            self.patterns.iter().any(|pattern| pattern.names(of))
                && (discovered.unknown.contains(of.group()) || is_gone(of) && has_objects(of))
        });
        let selected: BTreeSet<Selected> = matched.chain(staying.cloned()).collect();
        selected.into_iter().collect()
    }

    /// Returns the watch of a selected kind. `None` if `observes` names the kind by itself, or no pattern does.
    ///
    /// If several patterns name the kind, the first one counts.
    pub fn observed(&self, of: &TypeMeta) -> Option<Watch> {
        if self.observes.iter().any(|watch| watch.of == *of) {
            return None;
        }
        let pattern = self.patterns.iter().find(|pattern| pattern.names(of))?;
        Some(Watch { of: of.clone(), ..pattern.watch.clone() })
    }
}

#[cfg(test)]
mod tests;
