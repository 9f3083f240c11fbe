//! Files each selection so that a change finds the few that it may concern.
//!
//! A selection is filed under a condition that all objects it selects meet. From the most selective kind: the value of
//! an index, a label's value, a label's presence, or only its namespace. A selection of several values is filed under
//! each of them. Of several labels, the first with room counts. An object is looked up by all conditions that it meets,
//! before and after the change.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    hash::{Hash, Hasher},
    sync::Arc,
};

use hashbrown::{Equivalent, HashMap};

use super::{Aspect, Selection, ids::Ids};
use crate::{
    field::{FieldPath, FieldSet},
    object::Object,
    selector::{Requirement, Selector, Values},
};

/// A requirement with more values is filed under its label's presence.
const MAX_VALUES: usize = 8;

/// Both sides of a change, with the values that selections look up.
pub(super) struct Sides<'a> {
    pub(super) old: Option<&'a Object>,
    pub(super) new: Option<&'a Object>,
    paths: &'a [FieldPath],
    /// By index of the path.
    values: [Vec<Vec<Cow<'a, str>>>; 2],
}

impl<'a> Sides<'a> {
    pub(super) fn new(old: Option<&'a Object>, new: Option<&'a Object>, indexed: &'a FieldSet) -> Self {
        // The text was checked when the object was parsed, so this cannot fail.
        let values = |object: Option<&'a Object>| match object.filter(|_| !indexed.paths().is_empty()).map(Object::json)
        {
            None => Vec::new(),
            Some(Cow::Borrowed(json)) => indexed.values(json).unwrap_or_default(),
            Some(Cow::Owned(json)) => owned(indexed.values(&json).unwrap_or_default()),
        };
        Self { old, new, paths: indexed.paths(), values: [values(old), values(new)] }
    }

    pub(super) fn old_values(&self, path: &FieldPath) -> impl Iterator<Item = &str> {
        self.values_of(0, path)
    }

    pub(super) fn new_values(&self, path: &FieldPath) -> impl Iterator<Item = &str> {
        self.values_of(1, path)
    }

    fn values_of(&self, side: usize, path: &FieldPath) -> impl Iterator<Item = &str> {
        let place = self.paths.iter().position(|one| one == path);
        place.and_then(|place| self.values[side].get(place)).into_iter().flatten().map(|value| &**value)
    }
}

/// Copies values out of a text that was unpacked for them.
fn owned(values: Vec<Vec<Cow<'_, str>>>) -> Vec<Vec<Cow<'static, str>>> {
    let own = |value: Cow<'_, str>| Cow::Owned(value.into_owned());
    values.into_iter().map(|values| values.into_iter().map(own).collect()).collect()
}

/// A condition that all objects of a selection meet.
#[derive(Debug, PartialEq, Eq)]
struct Anchor {
    /// `None` for every namespace.
    namespace: Option<Arc<str>>,
    on: On,
}

#[derive(Debug, PartialEq, Eq)]
enum On {
    Nothing,
    Present(Box<str>),
    Label(Box<str>, Box<str>),
    Value(FieldPath, Box<str>),
}

#[derive(Clone, Copy, Hash)]
struct AnchorRef<'a> {
    namespace: Option<&'a str>,
    on: OnRef<'a>,
}

#[derive(Clone, Copy, Hash)]
enum OnRef<'a> {
    Nothing,
    Present(&'a str),
    Label(&'a str, &'a str),
    Value(&'a FieldPath, &'a str),
}

impl Anchor {
    fn borrowed(&self) -> AnchorRef<'_> {
        let on = match &self.on {
            On::Nothing => OnRef::Nothing,
            On::Present(label) => OnRef::Present(label),
            On::Label(label, value) => OnRef::Label(label, value),
            On::Value(path, value) => OnRef::Value(path, value),
        };
        AnchorRef { namespace: self.namespace.as_deref(), on }
    }

    fn heap(&self) -> usize {
        match &self.on {
            On::Nothing => 0,
            On::Present(label) => label.len(),
            On::Label(label, value) => label.len() + value.len(),
            On::Value(path, value) => path.bytes() + value.len(),
        }
    }
}

impl Hash for Anchor {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.borrowed().hash(state);
    }
}

impl Equivalent<Anchor> for AnchorRef<'_> {
    fn equivalent(&self, anchor: &Anchor) -> bool {
        let on = match (self.on, &anchor.on) {
            (OnRef::Nothing, On::Nothing) => true,
            (OnRef::Present(label), On::Present(other)) => *label == **other,
            (OnRef::Label(label, value), On::Label(other, other_value)) => *label == **other && *value == **other_value,
            (OnRef::Value(path, value), On::Value(other, other_value)) => path == other && *value == **other_value,
            _ => false,
        };
        on && self.namespace == anchor.namespace.as_deref()
    }
}

/// The selections of one kind, by their anchors.
#[derive(Debug, Default)]
pub(super) struct Anchors {
    anchors: HashMap<Anchor, Ids>,
    /// Bytes of names and sets.
    pub(super) heap: usize,
}

impl Anchors {
    pub(super) fn insert(&mut self, selection: &Selection, choice: usize, dependency: u32) {
        for anchor in anchors(selection, choice) {
            self.heap += anchor.heap();
            match self.anchors.entry(anchor) {
                hashbrown::hash_map::Entry::Occupied(mut entry) => {
                    self.heap -= entry.key().heap() + entry.get().heap();
                    entry.get_mut().insert(dependency);
                    self.heap += entry.get().heap();
                }
                hashbrown::hash_map::Entry::Vacant(entry) => {
                    entry.insert(Ids::One(dependency));
                }
            }
        }
    }

    /// Returns the first choice under which fewer than `most` others are filed; `None` if there is none.
    pub(super) fn choose(&self, selection: &Selection, most: usize) -> Option<usize> {
        let full = |anchor: &Anchor| self.anchors.get(anchor).is_some_and(|ids| ids.len() >= most);
        (0..choices(selection)).find(|choice| !anchors(selection, *choice).iter().any(full))
    }

    pub(super) fn remove(&mut self, selection: &Selection, choice: usize, dependency: u32) {
        for anchor in anchors(selection, choice) {
            let Some(ids) = self.anchors.get_mut(&anchor) else { continue };
            self.heap -= ids.heap();
            if ids.remove(dependency) {
                self.anchors.remove(&anchor);
                self.heap -= anchor.heap();
            } else {
                self.heap += ids.heap();
            }
        }
        if self.anchors.len() < self.anchors.capacity() / 8 {
            self.anchors.shrink_to(self.anchors.len() * 2);
        }
    }

    /// Calls `found` once with each selection that may see a difference between the two sides.
    pub(super) fn candidates(&self, namespace: Option<&str>, sides: &Sides<'_>, found: &mut dyn FnMut(u32)) {
        if self.anchors.is_empty() {
            return;
        }
        let mut all = BTreeSet::new();
        let mut look = |on: OnRef<'_>| {
            let mut look = |namespace| {
                if let Some(ids) = self.anchors.get(&AnchorRef { namespace, on }) {
                    all.extend(ids.iter());
                }
            };
            look(None);
            if namespace.is_some() {
                look(namespace);
            }
        };
        look(OnRef::Nothing);
        for object in [sides.old, sides.new].into_iter().flatten() {
            for (label, value) in object.labels() {
                look(OnRef::Label(&label, &value));
                look(OnRef::Present(&label));
            }
        }
        for path in sides.paths {
            for value in sides.old_values(path).chain(sides.new_values(path)) {
                look(OnRef::Value(path, value));
            }
        }
        all.into_iter().for_each(found);
    }

    pub(super) fn bytes(&self) -> usize {
        self.anchors.allocation_size() + self.heap
    }
}

/// Returns the selection of everything that meets this selection's anchor.
pub(super) fn widest(selection: &Selection) -> Selection {
    let only = |requirement| Selector::of(vec![requirement]);
    let labels = match &anchors(selection, 0)[..] {
        [Anchor { on: On::Label(label, value), .. }] => {
            only(Requirement::In(label.to_string(), [value.clone()].into_iter().collect()))
        }
        [Anchor { on: On::Label(label, _) | On::Present(label), .. }, ..] => {
            only(Requirement::Exists(label.to_string()))
        }
        _ => Selector::default(),
    };
    let (namespace, index) = (selection.namespace.clone(), selection.index.clone());
    Selection { namespace, labels, index, aspect: Aspect::Whole }
}

/// Returns the labels for which a selection names the values, if these are few enough.
fn named(selection: &Selection) -> impl Iterator<Item = (&String, &Values)> {
    selection.labels.requirements().iter().filter_map(|requirement| match requirement {
        Requirement::In(label, values) if values.count() <= MAX_VALUES => Some((label, values)),
        _ => None,
    })
}

/// Returns the number of choices for a selection's anchors; at least one.
fn choices(selection: &Selection) -> usize {
    if selection.index.is_some() { 1 } else { named(selection).count().max(1) }
}

/// Returns the anchors of a selection under one of its [`choices`].
fn anchors(selection: &Selection, choice: usize) -> Vec<Anchor> {
    let anchor = |on| Anchor { namespace: selection.namespace.clone(), on };
    if let Some((path, value)) = &selection.index {
        return vec![anchor(On::Value(path.clone(), value.clone()))];
    }
    if let Some((label, values)) = named(selection).nth(choice) {
        let on = |value: &str| On::Label(label.as_str().into(), value.into());
        return values.iter().map(|value| anchor(on(value))).collect();
    }
    let present = selection
        .labels
        .requirements()
        .iter()
        .find(|requirement| !matches!(requirement, Requirement::NotIn(..) | Requirement::Absent(_)));
    vec![anchor(present.map_or(On::Nothing, |requirement| On::Present(requirement.key().into())))]
}
