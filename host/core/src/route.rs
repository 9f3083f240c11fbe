//! From a change in the store to the keys that it concerns.
//!
//! Owns the mappings that a manifest declares, made exact for a controller's kind. Which stores feed which controller, what asks
//! a plugin's own mapping, and with what priority a key enters the queue, is the host's.
//!
//! ```text
//!  Change { old, new } ── SelfKey ──► key of the object
//!                      ├─ Owner ────► key of its controlling owner    ─┐
//!                      ├─ AnyOwner ─► keys of all its owners           │ before and after
//!                      ├─ Label ────► key that a label of it names    ─┘ the change
//!                      ├─ SameKey ──► key of the same name
//!                      └─ Index ────► keys whose objects name it: whoever holds the store looks them up
//! ```
//!
//! An object that changes hands concerns both owners: the one that lost it has to know as well.

use crate::{
    key::{Key, TypeMeta},
    manifest,
    object::{Object, OwnerRef},
    store::Change,
};

/// How the objects of one watched kind lead to a controller's keys.
///
/// A key of a kind that lives in namespaces is in the namespace of the object that leads to it, and an object without one leads
/// to none; a key of a kind that does not is found from every namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// The object is what is reconciled.
    SelfKey,
    /// The object's controlling owner is, where it is of the controller's kind.
    Owner {
        /// The controller's kind. Group and kind have to agree with the reference's; an object may name its owner by
        /// another version.
        of: TypeMeta,
        /// Whether that kind lives in namespaces.
        namespaced: bool,
    },
    /// Each of the object's owners is that is of the controller's kind.
    AnyOwner {
        /// As of `Owner`.
        of: TypeMeta,
        /// Whether that kind lives in namespaces.
        namespaced: bool,
    },
    /// The object of the controller's kind that has the same name is.
    SameKey {
        /// Whether that kind lives in namespaces.
        namespaced: bool,
    },
    /// The object of the controller's kind that a label names is.
    Label {
        /// The label's key.
        label: String,
        /// Whether that kind lives in namespaces.
        namespaced: bool,
    },
    /// Every object of the controller's kind is whose index holds the object's name.
    Index {
        /// The name of the index.
        index: String,
        /// Whether that kind lives in namespaces. Where the object does too, both are in one.
        namespaced: bool,
    },
}

impl Mapping {
    /// What a manifest says, for a controller of kind `of`, which lives in namespaces or not. None: the plugin is asked.
    pub fn new(declared: &manifest::Mapping, of: &TypeMeta, namespaced: bool) -> Option<Self> {
        Some(match declared {
            manifest::Mapping::Owner => Self::Owner { of: of.clone(), namespaced },
            manifest::Mapping::AnyOwner => Self::AnyOwner { of: of.clone(), namespaced },
            manifest::Mapping::SameKey => Self::SameKey { namespaced },
            manifest::Mapping::Label(label) => Self::Label { label: label.clone(), namespaced },
            manifest::Mapping::Index(index) => Self::Index { index: index.clone(), namespaced },
            manifest::Mapping::Plugin => return None,
        })
    }
}

/// Appends the keys that `change` concerns to `out`, each once.
///
/// `look_up` gives the keys of the controller's kind whose index (by its name) holds a value, in one namespace or in all. It
/// is asked by [`Mapping::Index`] alone.
pub fn keys(
    mapping: &Mapping,
    change: &Change,
    look_up: impl FnOnce(&str, &str, Option<&str>) -> Vec<Key>,
    out: &mut Vec<Key>,
) {
    let begin = out.len();
    let mut add = |key: Key| {
        if !out[begin..].contains(&key) {
            out.push(key);
        }
    };
    let sides = || [&change.old, &change.new].into_iter().flatten().map(|object| &**object);
    match mapping {
        Mapping::SelfKey => add(change.key().clone()),
        Mapping::Owner { of, namespaced } => {
            sides().filter_map(|object| owner(of, *namespaced, object, &object.controller()?)).for_each(add);
        }
        Mapping::AnyOwner { of, namespaced } => {
            let owners = sides().flat_map(|object| object.owners().map(move |reference| (object, reference)));
            owners.filter_map(|(object, reference)| owner(of, *namespaced, object, &reference)).for_each(add);
        }
        Mapping::SameKey { namespaced } => {
            let key = change.key();
            if !namespaced || key.namespace.is_some() {
                add(Key { namespace: key.namespace.clone().filter(|_| *namespaced), name: key.name.clone() });
            }
        }
        Mapping::Label { label, namespaced } => {
            sides().filter_map(|object| named(label, *namespaced, object)).for_each(add);
        }
        Mapping::Index { index, namespaced } => {
            let Key { namespace, name } = change.key();
            look_up(index, name, namespace.as_deref().filter(|_| *namespaced)).into_iter().for_each(add);
        }
    }
}

fn owner(of: &TypeMeta, namespaced: bool, object: &Object, reference: &OwnerRef<'_>) -> Option<Key> {
    let OwnerRef { api_version, kind, name, .. } = reference;
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    if **kind != *of.kind || group != of.group() {
        return None;
    }
    let namespace = object.key().namespace.clone();
    match (namespaced, namespace) {
        // The API server would not let a namespaced object own a cluster-scoped one: the garbage collector calls it absent.
        (true, None) => None,
        (true, namespace) => Some(Key { namespace, name: (**name).into() }),
        (false, _) => Some(Key::new(None, name)),
    }
}

fn named(label: &str, namespaced: bool, object: &Object) -> Option<Key> {
    let (_, name) = object.labels().find(|(key, _)| key == label)?;
    let namespace = object.key().namespace.as_deref();
    if name.is_empty() || (namespaced && namespace.is_none()) {
        return None;
    }
    Some(Key::new(namespace.filter(|_| namespaced), &name))
}

#[cfg(test)]
mod tests;
