//! Changes of objects, for mappings and observers.

use crate::{
    AnyObject, Key, TypeMeta,
    contract::{mapping::exports::pilothouse::plugin::mapper, observing::exports::pilothouse::plugin::observer},
};

/// One change of an object of kind `K`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<K> {
    /// The object is new, or existed before the plugin began to watch.
    Added(K),
    /// The object changed.
    Updated {
        /// The object before the change.
        old: K,
        /// The object after the change.
        new: K,
    },
    /// The object was deleted. Holds its last known state.
    Deleted(K),
}

impl<K: AnyObject> Change<K> {
    /// Returns the key of the object.
    pub fn key(&self) -> Key {
        self.latest().key_of()
    }

    /// Returns the object, or its last known state if it was deleted.
    pub fn latest(&self) -> &K {
        match self {
            Self::Added(object) | Self::Updated { new: object, .. } | Self::Deleted(object) => object,
        }
    }

    /// Iterates over the object before and after the change, as far as they exist. A mapping usually needs both.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use pilothouse_sdk::{Change, Key};
    ///
    /// /// Returns the nodes that a Pod is or was on.
    /// fn nodes(change: &Change<Pod>) -> Vec<Key> {
    ///     let specs = change.sides().filter_map(|pod| pod.spec.as_ref());
    ///     specs.filter_map(|spec| spec.node_name.as_deref()).map(Key::cluster).collect()
    /// }
    /// ```
    pub fn sides(&self) -> impl Iterator<Item = &K> {
        let (first, second) = match self {
            Self::Added(object) | Self::Deleted(object) => (object, None),
            Self::Updated { old, new } => (old, Some(new)),
        };
        std::iter::once(first).chain(second)
    }

    fn of(of: &TypeMeta, old: Option<&str>, new: Option<&str>) -> Result<Self, String> {
        let decode =
            |text: &str| serde_json::from_str(text).map_err(|error| format!("cannot decode a changed {of}: {error}"));
        match (old.map(decode).transpose()?, new.map(decode).transpose()?) {
            (None, Some(new)) => Ok(Self::Added(new)),
            (Some(old), Some(new)) => Ok(Self::Updated { old, new }),
            (Some(old), None) => Ok(Self::Deleted(old)),
            (None, None) => Err(format!("a change of {of} has neither side")),
        }
    }

    pub(crate) fn mapped(wire: &mapper::Change) -> Result<Self, String> {
        Self::of(&wire.of, wire.old.as_deref(), wire.new.as_deref())
    }
}

/// A change as an observer gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed<K> {
    /// The change.
    pub change: Change<K>,
    /// How many changes were merged into this one. It is more than 1 if changes came faster than the plugin took them.
    pub merged: u32,
    /// `true` if the host did not see the deletion itself, and found it later. The last known state may then be out of
    /// date.
    pub missed: bool,
    /// `true` for an [`Added`](Change::Added) object that existed when the plugin began to observe it.
    ///
    /// That is so after a start of the host, after a change of the administrator's grants, and when its kind begins to
    /// match a pattern. An object that the host finds after an outage is new.
    pub initial: bool,
}

impl<K: AnyObject> Observed<K> {
    pub(crate) fn of(wire: &observer::Change) -> Result<Self, String> {
        let change = Change::of(&wire.of, wire.old.as_deref(), wire.new.as_deref())?;
        Ok(Self { change, merged: wire.merged, missed: wire.missed, initial: wire.initial })
    }
}
