//! What a watch keeps of each object, as the host would.

use serde_json::{Map, Value};

use super::field::{Path, metadata_only};
use crate::contract::exports::pilothouse::plugin::controller::Watch;

/// How many fields may be left out.
const MOST: usize = 64;

/// What cannot be left out: the members of `metadata`, and two beside it.
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

/// In order: where two watches each have something of an object that the other has not, the first is taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Keep {
    metadata_only: bool,
    /// In order, and none within another.
    without: Vec<Path>,
}

impl Keep {
    /// # Errors
    /// Where a field is none, is named twice or cannot be left out, or there are too many.
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
            return Err(format!("cannot leave out {count} fields: {MOST} at most; name what they are in"));
        }
        for path in &without {
            let touches = |member: &&&str| {
                let member = named(member);
                path.covers(&member) || member.covers(path)
            };
            if let Some(member) = IDENTITY.iter().find(touches) {
                return Err(format!(
                    "cannot leave out {path}: {member} says which object it is and what becomes of it, and is always kept; name what \
                     is beside it"
                ));
            }
        }
        let (metadata, gone) = (named("metadata"), named("metadata.managedFields"));
        without.retain(|path| !gone.covers(path) && (!watch.metadata_only || metadata.covers(path)));
        without.sort();
        without.dedup_by(|path, field| field.covers(path));
        Ok(Self { metadata_only: watch.metadata_only, without })
    }

    /// True if what stands at `path` is kept, but for what is left out within it.
    pub(super) fn keeps(&self, path: &Path) -> bool {
        let beside = || !["metadata", "apiVersion", "kind"].iter().any(|kept| named(kept).covers(path));
        !(self.metadata_only && beside() || self.without.iter().any(|gone| gone.covers(path)))
    }

    /// True if an object that is kept so has all that `other` keeps.
    pub(super) fn covers(&self, other: &Self) -> bool {
        (other.metadata_only || !self.metadata_only) && self.without.iter().all(|path| !other.keeps(path))
    }

    /// What is shown of an object.
    pub(super) fn cut(&self, object: &Value) -> Value {
        let mut shown = if self.metadata_only { metadata_only(object) } else { object.clone() };
        self.without.iter().for_each(|path| path.cut(&mut shown));
        shown
    }

    /// What of a status cannot be compared with what is kept: a member of it, or all.
    pub(super) fn missing(&self, status: &Map<String, Value>) -> Option<Path> {
        let within = named("status");
        if !self.keeps(&within) {
            return Some(within);
        }
        let cut = |path: &Path| self.without.iter().any(|gone| gone.covers(path) || path.covers(gone));
        status.keys().map(|member| within.member(member)).find(cut)
    }
}

/// One of our own paths.
fn named(path: &str) -> Path {
    Path::parse(path).expect("it is a list of plain names")
}
