//! Sets of paths, and their form as `FieldsV1`.
//!
//! A set is a tree. Each node has the steps that are in the set (`members`) and the sets beneath steps (`children`). A
//! step may be both: `"f:data": {".": {}, "f:color": {}}` has `.data` and `.data.color`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::path::Element;
use crate::schema::node::Node;

/// A set of paths. No child is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Set {
    members: BTreeSet<Element>,
    children: BTreeMap<Element, Set>,
}

impl Set {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.is_empty()
    }

    /// Adds a path. The empty path is ignored.
    pub(super) fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// `true` if a step is in the set.
    pub(super) fn has(&self, step: &Element) -> bool {
        self.members.contains(step)
    }

    /// Returns the set beneath a step.
    pub(super) fn beneath(&self, step: &Element) -> Option<&Set> {
        self.children.get(step)
    }

    pub(super) fn union(&self, other: &Set) -> Set {
        let mut union = self.clone();
        union.members.extend(other.members.iter().cloned());
        for (step, child) in &other.children {
            let merged = union.children.get(step).map_or_else(|| child.clone(), |mine| mine.union(child));
            union.children.insert(step.clone(), merged);
        }
        union
    }

    pub(super) fn intersection(&self, other: &Set) -> Set {
        let members = self.members.intersection(&other.members).cloned().collect();
        let children = self.children.iter().filter_map(|(step, child)| {
            let both = child.intersection(other.children.get(step)?);
            (!both.is_empty()).then(|| (step.clone(), both))
        });
        Set { members, children: children.collect() }
    }

    /// Returns the paths that are not in `other`.
    pub(super) fn difference(&self, other: &Set) -> Set {
        let members = self.members.difference(&other.members).cloned().collect();
        let children = self.children.iter().filter_map(|(step, child)| {
            let left = other.children.get(step).map_or_else(|| child.clone(), |other| child.difference(other));
            (!left.is_empty()).then(|| (step.clone(), left))
        });
        Set { members, children: children.collect() }
    }

    /// Returns the paths that are not at or beneath a path in `other`.
    pub(super) fn outside(&self, other: &Set) -> Set {
        let members = self.members.difference(&other.members).cloned().collect();
        let children =
            self.children.iter().filter(|(step, _)| !other.members.contains(*step)).filter_map(|(step, child)| {
                let left = other.children.get(step).map_or_else(|| child.clone(), |other| child.outside(other));
                (!left.is_empty()).then(|| (step.clone(), left))
            });
        Set { members, children: children.collect() }
    }

    /// Adds the fields of structs on the way to each path. Sets leave them out. They are needed because removing
    /// `.spec.color` from an object whose `spec` has nothing else removes `.spec`.
    pub(super) fn with_fields_on_the_way(&self, node: &Node) -> Set {
        let mut members = self.members.clone();
        let mut children = BTreeMap::new();
        for (step, child) in &self.children {
            let beneath = match step {
                Element::Field(name) => {
                    if node.resolve().properties.contains_key(name) {
                        members.insert(step.clone());
                    }
                    node.field(name)
                }
                _ => Some(node.item()),
            };
            let beneath = beneath.unwrap_or(&crate::schema::node::FREE);
            children.insert(step.clone(), child.with_fields_on_the_way(beneath));
        }
        Set { members, children }
    }

    /// Returns every path. On each level, the paths that end there come first.
    pub(super) fn paths(&self) -> Vec<Vec<Element>> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, on_the_way: &mut Vec<Element>, paths: &mut Vec<Vec<Element>>) {
        for step in &self.members {
            paths.push(on_the_way.iter().chain([step]).cloned().collect());
        }
        for (step, child) in &self.children {
            on_the_way.push(step.clone());
            child.collect(on_the_way, paths);
            on_the_way.pop();
        }
    }

    /// Parses `fieldsV1`. Steps of an unknown kind are skipped, as in kube-apiserver.
    pub(super) fn parse(fields: &Value) -> Set {
        let mut set = Set::default();
        for (text, beneath) in fields.as_object().into_iter().flatten() {
            let Some(step) = Element::parse(text) else { continue };
            let child = Set::parse(beneath);
            if child.is_empty() || beneath.get(".").is_some() {
                set.members.insert(step.clone());
            }
            if !child.is_empty() {
                set.children.insert(step, child);
            }
        }
        set
    }

    /// Returns the set as `fieldsV1`.
    pub(super) fn serialize(&self) -> Value {
        let mut fields = Map::new();
        let steps: BTreeSet<&Element> = self.members.iter().chain(self.children.keys()).collect();
        for step in steps {
            let beneath = match self.children.get(step).map(Set::serialize) {
                Some(Value::Object(mut beneath)) if self.members.contains(step) => {
                    beneath.insert(".".to_owned(), Value::Object(Map::new()));
                    Value::Object(beneath)
                }
                Some(beneath) => beneath,
                None => Value::Object(Map::new()),
            };
            fields.insert(step.serialize(), beneath);
        }
        Value::Object(fields)
    }
}

impl FromIterator<Vec<Element>> for Set {
    fn from_iter<I: IntoIterator<Item = Vec<Element>>>(paths: I) -> Set {
        let mut set = Set::default();
        for path in paths {
            set.insert(&path);
        }
        set
    }
}
