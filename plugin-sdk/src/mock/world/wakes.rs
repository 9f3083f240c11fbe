//! Which keys a change wakes: by what a call read, by mappings, as children, and the object itself.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    Id, State, World,
    view::{Cached, Objects, Sides},
};
use crate::{
    Key, TypeMeta, Verb,
    contract::{
        exports::pilothouse::plugin::controller::{Controller, Mapping},
        mapping::exports::pilothouse::plugin::mapper,
        pilothouse::plugin::cache::Query,
    },
};

/// A key that a change wakes, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wake {
    /// The controller's name.
    pub controller: String,
    /// The key that is woken.
    pub key: Key,
    /// The reason.
    pub by: By,
}

/// The reason why a key is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// The object itself changed.
    Itself,
    /// A child changed.
    Child,
    /// A mapping found the key.
    Mapping,
    /// Its last successful call read something from the cache that changed.
    Read,
}

/// A read of a call from the cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Read {
    Object(Id),
    /// A list, without the limits of its pages.
    List(Query),
    Keys(Query),
}

impl Read {
    pub(super) fn list(query: &Query) -> Self {
        Self::List(Query { limit: 0, after: None, ..query.clone() })
    }

    pub(super) fn keys(query: &Query) -> Self {
        Self::Keys(Query { limit: 0, after: None, fields: Vec::new(), ..query.clone() })
    }
}

/// A change for the plugin's own mapping function, and the controller.
type Unmapped = (String, mapper::Change);

impl World {
    /// Returns a copy of the cluster, for a later comparison.
    pub(in crate::mock) fn snapshot(&self) -> Objects {
        self.state().objects.clone()
    }

    /// Starts to record the reads of a call.
    pub(in crate::mock) fn begin_reading(&self) {
        self.state_mut().reading = Some(BTreeSet::new());
    }

    /// Ends the recording. If the call succeeded, its reads replace those of the previous call.
    pub(in crate::mock) fn end_reading(&self, controller: &str, key: &Key, succeeded: bool) {
        let mut state = self.state_mut();
        let reads = state.reading.take().unwrap_or_default();
        if succeeded {
            state.reads.insert((controller.to_owned(), key.clone()), reads);
        }
    }

    /// Removes the reads of a key that is gone and has been reconciled.
    pub(in crate::mock) fn forget_reads(&self, controller: &str, key: &Key) {
        let mut state = self.state_mut();
        state.view.forget(controller, key);
        state.reads.remove(&(controller.to_owned(), key.clone()));
    }

    /// Returns the keys that the differences to `before` wake, in order. `map` calls the plugin.
    pub(in crate::mock) fn wakes(
        &self,
        before: &Objects,
        map: impl Fn(&str, &mapper::Change) -> Result<Vec<Key>, String>,
    ) -> Result<Vec<Wake>, String> {
        let (mut wakes, unmapped) = self.state().routed(before);
        for (controller, change) in unmapped {
            let keys = map(&controller, &change)?;
            wakes.extend(keys.into_iter().map(|key| Wake { controller: controller.clone(), key, by: By::Mapping }));
        }
        let state = self.state();
        wakes.retain(|wake| state.is_reconciled(before, wake));
        Ok(wakes.into_iter().collect())
    }
}

impl State {
    fn routed(&self, before: &Objects) -> (BTreeSet<Wake>, Vec<Unmapped>) {
        let (mut wakes, mut unmapped) = (BTreeSet::new(), Vec::new());
        for (id, (old, new)) in self.changed(before) {
            for controller in &self.manifest.controllers {
                let mut wake = |keys: Vec<Key>, by| {
                    let wake = |key| Wake { controller: controller.name.clone(), key, by };
                    wakes.extend(keys.into_iter().map(wake));
                };
                let change = |watch| Cached::new(watch).change(id, old, new);
                if change(&controller.for_).is_some() {
                    wake(vec![id.1.clone()], By::Itself);
                }
                for sides in controller.owns.iter().filter_map(change) {
                    wake(named(&sides, &id.1, |side| owners(side, &controller.for_.of, true)), By::Child);
                }
                for mapped in &controller.watches {
                    let Some(sides) = change(&mapped.watch) else { continue };
                    match self.mapped(controller, &mapped.mapping, id, &sides) {
                        Some(keys) => wake(keys, By::Mapping),
                        None => {
                            let [old, new] = [sides.0, sides.1].map(|side| side.map(|side| side.to_string()));
                            unmapped.push((controller.name.clone(), mapper::Change { of: id.0.clone(), old, new }));
                        }
                    }
                }
            }
        }
        for ((controller, key), reads) in &self.reads {
            if reads.iter().any(|read| self.result(before, read) != self.result(&self.objects, read)) {
                wakes.insert(Wake { controller: controller.clone(), key: key.clone(), by: By::Read });
            }
        }
        (wakes, unmapped)
    }

    /// Returns `true` if the running call has read something that is different now.
    pub(super) fn has_read_what_changed(&self, before: &Objects) -> bool {
        let mut reads = self.reading.iter().flatten();
        reads.any(|read| self.result(before, read) != self.result(&self.objects, read))
    }

    fn changed<'a>(&'a self, before: &'a Objects) -> BTreeMap<&'a Id, (Option<&'a Value>, Option<&'a Value>)> {
        let ids: BTreeSet<&Id> = before.keys().chain(self.objects.keys()).collect();
        let sides = ids.into_iter().map(|id| (id, (before.get(id), self.objects.get(id))));
        sides.filter(|(_, (old, new))| old != new).collect()
    }

    /// Returns the keys that a mapping finds. `None` if the plugin has to map.
    fn mapped(&self, controller: &Controller, mapping: &Mapping, id: &Id, sides: &Sides) -> Option<Vec<Key>> {
        let of = &controller.for_.of;
        Some(match mapping {
            Mapping::Owner => named(sides, &id.1, |side| owners(side, of, true)),
            Mapping::AnyOwner => named(sides, &id.1, |side| owners(side, of, false)),
            Mapping::SameKey => named(sides, &id.1, |_| vec![id.1.name.clone()]),
            Mapping::Label(label) => named(sides, &id.1, |side| {
                side["metadata"]["labels"][label].as_str().map(ToOwned::to_owned).into_iter().collect()
            }),
            Mapping::Index(index) => {
                let path = self.view.index(of, index)?;
                let beside =
                    |key: &Key| key.namespace.is_none() || id.1.namespace.is_none() || key.namespace == id.1.namespace;
                let all = self.objects.iter().filter(|(other, _)| other.0 == *of && beside(&other.1));
                all.filter(|(_, object)| path.values(object).contains(&id.1.name)).map(|(id, _)| id.1.clone()).collect()
            }
            Mapping::Plugin => return None,
        })
    }

    /// Returns the result of a read. `None` if the plugin may not read it.
    fn result(&self, objects: &Objects, read: &Read) -> Option<BTreeMap<Key, Value>> {
        match read {
            Read::Object(id) => {
                let object = objects.get(id).and_then(|object| self.view.show(id, object));
                self.check(Verb::Read, id, None).ok()?;
                Some(object.map(|object| (id.1.clone(), object)).into_iter().collect())
            }
            Read::List(query) => {
                let selected = self.select(query).ok()?;
                Some(self.found(objects, &selected).map(|(key, object)| (key.clone(), object)).collect())
            }
            Read::Keys(query) => {
                let selected = self.select(query).ok()?;
                Some(self.found(objects, &selected).map(|(key, _)| (key.clone(), Value::Null)).collect())
            }
        }
    }

    /// Returns `true` if the controller is, or was, for an object of this key.
    fn is_reconciled(&self, before: &Objects, wake: &Wake) -> bool {
        let mut controllers = self.manifest.controllers.iter().filter(|controller| controller.name == wake.controller);
        controllers.any(|controller| {
            let id = (controller.for_.of.clone(), wake.key.clone());
            [before, &self.objects]
                .iter()
                .any(|objects| objects.get(&id).is_some_and(|object| Cached::new(&controller.for_).holds(&id, object)))
        })
    }
}

/// Returns the keys of the names on either side of a change: in the namespace of the changed object, and
/// cluster-scoped. The caller removes those that do not exist.
fn named((old, new): &Sides, changed: &Key, names: impl Fn(&Value) -> Vec<String>) -> Vec<Key> {
    let names: BTreeSet<String> = [old, new].into_iter().flatten().flat_map(names).collect();
    names.into_iter().flat_map(|name| [changed.beside(name.as_str()), Key::cluster(name)]).collect()
}

/// Returns the names of owners of a kind, in any version.
fn owners(object: &Value, of: &TypeMeta, controlling: bool) -> Vec<String> {
    let group = |api_version: &str| api_version.rsplit_once('/').map(|(group, _)| group.to_owned());
    let references = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let fitting = references.filter(|reference| {
        reference["kind"] == of.kind.as_str()
            && group(reference["apiVersion"].as_str().unwrap_or_default()) == group(&of.api_version)
            && (!controlling || reference["controller"] == true)
    });
    fitting.filter_map(|reference| reference["name"].as_str().map(ToOwned::to_owned)).collect()
}
