//! One read, and the keys that made it.

use std::sync::Arc;

use super::{Aspect, Selection, anchor::Sides, ids::Ids};
use crate::{
    field::{FieldPath, FieldSet},
    key::Key,
    object::Object,
    selector::Requirement,
};

/// A read of one kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Thing {
    /// Namespace and name.
    Object(Option<Arc<str>>, Box<str>),
    Selection(Box<Selection>),
}

/// A borrowed read, for look-ups.
#[derive(Clone, Copy, Hash)]
pub(super) enum ThingRef<'a> {
    Object(Option<&'a str>, &'a str),
    Selection(&'a Selection),
}

#[derive(Debug)]
pub(super) struct Dependency {
    /// The number of the kind.
    pub(super) kind: u32,
    /// The choice of anchors under which a selection is filed.
    pub(super) choice: u32,
    pub(super) thing: Thing,
    pub(super) keys: Ids,
}

impl<'a> ThingRef<'a> {
    pub(super) fn object(key: &'a Key) -> Self {
        Self::Object(key.namespace.as_deref(), &key.name)
    }
}

impl Thing {
    pub(super) fn borrowed(&self) -> ThingRef<'_> {
        match self {
            Self::Object(namespace, name) => ThingRef::Object(namespace.as_deref(), name),
            Self::Selection(selection) => ThingRef::Selection(selection),
        }
    }

    pub(super) fn is(&self, other: ThingRef<'_>) -> bool {
        match (self, other) {
            (Self::Object(namespace, name), ThingRef::Object(other_namespace, other_name)) => {
                **name == *other_name && namespace.as_deref() == other_namespace
            }
            (Self::Selection(one), ThingRef::Selection(other)) => **one == *other,
            _ => false,
        }
    }

    /// Returns the bytes on the heap, without namespaces, which are shared.
    pub(super) fn heap(&self) -> usize {
        match self {
            Self::Object(_, name) => name.len(),
            Self::Selection(selection) => size_of::<Selection>() + selection.heap(),
        }
    }
}

impl Dependency {
    /// Returns the bytes on the heap, without the set of keys.
    pub(super) fn heap(&self) -> usize {
        self.thing.heap()
    }
}

impl Selection {
    /// Returns `true` if the result of reading this selection differs after the change.
    pub(super) fn tells_apart(&self, sides: &Sides<'_>) -> bool {
        let is_in = |object: Option<&Object>, values: &dyn Fn(&str) -> bool| {
            object.is_some_and(|object| {
                let in_namespace = self.namespace.is_none() || self.namespace == object.key().namespace;
                let in_index = self.index.as_ref().is_none_or(|(_, value)| values(value));
                in_namespace && in_index && (self.labels.is_empty() || self.labels.matches(object.labels()))
            })
        };
        let path = self.index.as_ref().map(|(path, _)| path);
        let was = is_in(sides.old, &|value| path.is_none_or(|path| sides.old_values(path).any(|one| one == value)));
        let is = is_in(sides.new, &|value| path.is_none_or(|path| sides.new_values(path).any(|one| one == value)));
        match (&self.aspect, was && is) {
            (_, false) => was != is,
            (Aspect::Keys, true) => false,
            // The caller has seen that the texts differ.
            (Aspect::Whole, true) => true,
            (Aspect::Fields(paths), true) => {
                // Built here, as it is rarely needed: kept, its two trees would take three times the memory of the
                // read.
                let fields = FieldSet::new(paths.iter().cloned());
                let project = |object: Option<&Object>| object.and_then(|object| fields.project(&object.json()).ok());
                project(sides.old) != project(sides.new)
            }
        }
    }

    fn heap(&self) -> usize {
        let labels = self.labels.requirements();
        let labels = size_of_val(labels) + labels.iter().map(Requirement::heap).sum::<usize>();
        let index = self.index.as_ref().map_or(0, |(path, value)| path.bytes() + value.len());
        let fields = match &self.aspect {
            Aspect::Fields(paths) => size_of_val(&**paths) + paths.iter().map(FieldPath::bytes).sum::<usize>(),
            Aspect::Whole | Aspect::Keys => 0,
        };
        labels + index + fields
    }
}
