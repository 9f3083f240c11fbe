//! Which parts of each object a watch caches, as in the host.

use serde_json::{Map, Value};

use super::field::{Path, metadata_only};
use crate::contract::exports::pilothouse::plugin::controller::Watch;

/// Limit for the fields that a watch leaves out.
const MOST: usize = 64;

/// Fields that are always cached.
const IDENTITY: [&str; 11] = [
    "apiVersion",
    "kind",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.labels",
    "metadata.ownerReferences",
    "metadata.finalizers",
    "metadata.deletionTimestamp",
    "metadata.generation",
];

/// Ordered: if two watches each cache something that the other does not, the first is used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Keep {
    metadata_only: bool,
    /// Sorted, and none within another.
    without: Vec<Path>,
}

impl Keep {
    /// # Errors
    /// Fails if a path is not valid, is listed twice, or must be cached, or if there are too many.
    pub(super) fn new(watch: &Watch) -> Result<Self, String> {
        let mut without = Vec::new();
        for text in &watch.without {
            let path = Path::parse(text)?;
            if without.contains(&path) {
                return Err(format!("{path} is there already"));
            }
            without.push(path);
        }
        if without.len() > MOST {
            let count = without.len();
            return Err(format!(
                "cannot leave out {count} fields: at most {MOST} are allowed; name a field that contains several"
            ));
        }
        for path in &without {
            let touches = |member: &&&str| {
                let member = named(member);
                path.covers(&member) || member.covers(path)
            };
            if let Some(member) = IDENTITY.iter().find(touches) {
                return Err(format!(
                    "cannot leave out {path}: {member} identifies the object or decides its fate, and is always kept; name \
                     the fields beside it"
                ));
            }
        }
        let (metadata, gone) = (named("metadata"), named("metadata.managedFields"));
        without.retain(|path| !gone.covers(path) && (!watch.metadata_only || metadata.covers(path)));
        without.sort();
        without.dedup_by(|path, field| field.covers(path));
        Ok(Self { metadata_only: watch.metadata_only, without })
    }

    /// Returns `true` if the value at `path` is cached, at least in part.
    pub(super) fn keeps(&self, path: &Path) -> bool {
        let beside = || !["metadata", "apiVersion", "kind"].iter().any(|kept| named(kept).covers(path));
        !(self.metadata_only && beside() || self.without.iter().any(|gone| gone.covers(path)))
    }

    /// Returns `true` if this caches everything that `other` caches.
    pub(super) fn covers(&self, other: &Self) -> bool {
        (other.metadata_only || !self.metadata_only) && self.without.iter().all(|path| !other.keeps(path))
    }

    /// Returns the cached part of an object.
    pub(super) fn cut(&self, object: &Value) -> Value {
        let mut shown = if self.metadata_only { metadata_only(object) } else { object.clone() };
        self.without.iter().for_each(|path| path.cut(&mut shown));
        shown
    }

    /// Returns what of a status is not cached, so that it cannot be compared: a member, or the whole status.
    pub(super) fn missing(&self, status: &Map<String, Value>) -> Option<Path> {
        let within = named("status");
        if !self.keeps(&within) {
            return Some(within);
        }
        let cut = |path: &Path| self.without.iter().any(|gone| gone.covers(path) || path.covers(gone));
        status.keys().map(|member| within.member(member)).find(cut)
    }
}

/// Parses a path of this file.
fn named(path: &str) -> Path {
    Path::parse(path).expect("it is a list of plain names")
}
