//! From a change in the store to the keys that it concerns.
//!
//! Owns the mappings that a manifest declares, made exact for a controller's kind. The host decides which stores feed
//! which controller, calls a plugin's own mapping, and chooses the priority of a key.
//!
//! ```text
//!  Change { old, new } ── SelfKey ──► key of the object
//!                      ├─ Owner ────► key of its controlling owner    ─┐
//!                      ├─ AnyOwner ─► keys of all its owners           │ before and after
//!                      ├─ Label ────► key that a label of it names    ─┘ the change
//!                      ├─ SameKey ──► key of the same name
//!                      └─ Index ────► keys whose objects name it: the owner of the store looks them up
//! ```
//!
//! An object whose owner changes concerns both owners: the former one must learn of it too.

use crate::{
    key::{Key, TypeMeta},
    manifest,
    object::{Object, OwnerRef},
    store::Change,
};

/// How the objects of one watched kind lead to a controller's keys.
///
/// A key of a namespaced kind is in the namespace of the object that leads to it; a cluster-scoped object leads to
/// none. A key of a cluster-scoped kind is found from every namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// The object itself is reconciled.
    SelfKey,
    /// The object's controlling owner is reconciled, if it is of the controller's kind.
    Owner {
        /// The controller's kind. Group and kind must equal the reference's; the version may differ.
        of: TypeMeta,
        /// `true` if that kind is namespaced.
        namespaced: bool,
    },
    /// Each owner of the object that is of the controller's kind is reconciled.
    AnyOwner {
        /// As in `Owner`.
        of: TypeMeta,
        /// `true` if that kind is namespaced.
        namespaced: bool,
    },
    /// The object of the controller's kind with the same name is reconciled.
    SameKey {
        /// `true` if that kind is namespaced.
        namespaced: bool,
    },
    /// The object of the controller's kind that a label names is reconciled.
    Label {
        /// The label's key.
        label: String,
        /// `true` if that kind is namespaced.
        namespaced: bool,
    },
    /// Every object of the controller's kind whose index holds the object's name is reconciled.
    Index {
        /// The name of the index.
        index: String,
        /// `true` if that kind is namespaced. If the object is too, both are in one namespace.
        namespaced: bool,
    },
}

impl Mapping {
    /// Converts a manifest's mapping for a controller of kind `of`. Returns `None` if the plugin is asked instead.
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
/// `look_up` returns the keys of the controller's kind whose index, given by its name, holds a value, in one namespace
/// or in all. Only [`Mapping::Index`] calls it.
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
        // A namespaced object cannot own a cluster-scoped one: the garbage collector treats such an owner as absent.
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
