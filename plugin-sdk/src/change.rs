//! What became of an object, for handlers that look at changes themselves.

use crate::{
    Key, Object, TypeMeta,
    contract::{mapping::exports::pilothouse::plugin::mapper, observing::exports::pilothouse::plugin::observer},
};

/// What became of an object of kind `K`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<K> {
    /// It is new, or was there when the plugin began to look.
    Added(K),
    /// It was one thing and is another.
    Updated {
        /// What it was.
        old: K,
        /// What it is.
        new: K,
    },
    /// It is gone; this is its last known state.
    Deleted(K),
}

impl<K: Object> Change<K> {
    /// Which object.
    pub fn key(&self) -> Key {
        self.latest().key()
    }

    /// The object as it is, or as it was last.
    pub fn latest(&self) -> &K {
        match self {
            Self::Added(object) | Self::Updated { new: object, .. } | Self::Deleted(object) => object,
        }
    }

    /// The object as it was and as it is: what either of them names may have to be looked at.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use pilothouse_sdk::{Change, Key};
    ///
    /// /// The nodes that a Pod is or was on.
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
        let decode = |text: &str| {
            serde_json::from_str(text).map_err(|error| format!("a changed {of} does not fit its type: {error}"))
        };
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

/// A change as an observer is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed<K> {
    /// What became of the object.
    pub change: Change<K>,
    /// How many changes this one stands for: more than 1 where they came faster than the plugin took them.
    pub merged: u32,
    /// The deletion itself was not seen: it was found out later, and the last known state may not be the very last.
    pub missed: bool,
}

impl<K: Object> Observed<K> {
    pub(crate) fn of(wire: &observer::Change) -> Result<Self, String> {
        let change = Change::of(&wire.of, wire.old.as_deref(), wire.new.as_deref())?;
        Ok(Self { change, merged: wire.merged, missed: wire.missed })
    }
}
