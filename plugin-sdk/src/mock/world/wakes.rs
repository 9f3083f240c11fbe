//! Which keys a change wakes: what a call read, what is mapped, children, and the object itself.

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

/// A key that a change wakes, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wake {
    /// The controller's name.
    pub controller: String,
    /// Which object is reconciled.
    pub key: Key,
    /// Why.
    pub by: By,
}

/// Why a key is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// The object itself changed.
    Itself,
    /// A child of it did.
    Child,
    /// A mapping names it.
    Mapping,
    /// Its last successful call read what changed, from the cache.
    Read,
}

/// Something that a call read from the cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Read {
    Object(Id),
    /// Without what makes a page of it.
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

/// A change that the plugin itself maps, for a controller.
type Ask = (String, mapper::Change);

impl World {
    /// The cluster as it is now, to be compared with later.
    pub(in crate::mock) fn snapshot(&self) -> Objects {
        self.state().objects.clone()
    }

    /// What is read from now on belongs to one call.
    pub(in crate::mock) fn begin_reading(&self) {
        self.state_mut().reading = Some(BTreeSet::new());
    }

    /// The call has ended. What it read takes the place of what the one before it read, if it succeeded.
    pub(in crate::mock) fn end_reading(&self, controller: &str, key: &Key, succeeded: bool) {
        let mut state = self.state_mut();
        let reads = state.reading.take().unwrap_or_default();
        if succeeded {
            state.reads.insert((controller.to_owned(), key.clone()), reads);
        }
    }

    /// Nothing is to be woken for a key that is gone and reconciled.
    pub(in crate::mock) fn forget_reads(&self, controller: &str, key: &Key) {
        self.state_mut().reads.remove(&(controller.to_owned(), key.clone()));
    }

    /// The keys that differences to `before` wake, ordered. `map` asks the plugin.
    pub(in crate::mock) fn wakes(
        &self,
        before: &Objects,
        map: impl Fn(&str, &mapper::Change) -> Result<Vec<Key>, String>,
    ) -> Result<Vec<Wake>, String> {
        let (mut wakes, asks) = self.state().routed(before);
        for (controller, change) in asks {
            let keys = map(&controller, &change)?;
            wakes.extend(keys.into_iter().map(|key| Wake { controller: controller.clone(), key, by: By::Mapping }));
        }
        let state = self.state();
        wakes.retain(|wake| state.is_reconciled(before, wake));
        Ok(wakes.into_iter().collect())
    }
}

impl State {
    fn routed(&self, before: &Objects) -> (BTreeSet<Wake>, Vec<Ask>) {
        let (mut wakes, mut asks) = (BTreeSet::new(), Vec::new());
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
                            asks.push((controller.name.clone(), mapper::Change { of: id.0.clone(), old, new }));
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
        (wakes, asks)
    }

    fn changed<'a>(&'a self, before: &'a Objects) -> BTreeMap<&'a Id, (Option<&'a Value>, Option<&'a Value>)> {
        let ids: BTreeSet<&Id> = before.keys().chain(self.objects.keys()).collect();
        let sides = ids.into_iter().map(|id| (id, (before.get(id), self.objects.get(id))));
        sides.filter(|(_, (old, new))| old != new).collect()
    }

    /// The keys that a mapping finds; none if the plugin has to be asked.
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

    /// What a read gives. None: it cannot be read.
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

    /// Whether the controller is, or was, for an object of this key.
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

/// The keys of the names that either side has: beside the changed object, or, of a cluster-scoped kind, anywhere. Which of the two
/// there is, is seen later.
fn named((old, new): &Sides, changed: &Key, names: impl Fn(&Value) -> Vec<String>) -> Vec<Key> {
    let names: BTreeSet<String> = [old, new].into_iter().flatten().flat_map(names).collect();
    names.into_iter().flat_map(|name| [changed.beside(name.as_str()), Key::cluster(name)]).collect()
}

/// The names of owners of a kind, in whatever version.
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
