//! Which keys a change wakes: by what a call read, by mappings, as children, and the object itself.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_core::{
    key as core,
    manifest::{self, Watch},
    object::Object,
    reads::{Run, Tracker},
    route::{self, Mapping},
    store::Change,
};
use serde_json::Value;

use super::{
    Id, State, World,
    view::{self, Objects},
};
use crate::{Key, Verb, contract::mapping::exports::pilothouse::plugin::mapper, mock::convert};

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

/// A change for the plugin's own mapping function, and the controller.
type Unmapped = (String, mapper::Change);

/// The reads of one controller's calls, and the call that runs.
#[derive(Default)]
pub(super) struct Reading {
    trackers: BTreeMap<String, Tracker>,
    running: Option<(String, Run)>,
}

impl Reading {
    /// Records a read of the running call, if it is a reconcile.
    pub(super) fn record(&mut self, read: impl FnOnce(&mut Tracker, Run)) {
        if let Some((controller, run)) = &self.running {
            read(self.trackers.get_mut(controller).expect("the call has begun"), *run);
        }
    }
}

impl World {
    /// Returns a copy of the cluster, for a later comparison.
    pub(in crate::mock) fn snapshot(&self) -> Objects {
        self.state().objects.clone()
    }

    /// Starts to record the reads of a call.
    pub(in crate::mock) fn begin_reading(&self, controller: &str, key: &Key) {
        let reading = &mut self.state_mut().reading;
        let run = reading.trackers.entry(controller.to_owned()).or_default().begin(&key.into());
        reading.running = Some((controller.to_owned(), run));
    }

    /// Ends the recording. If the call succeeded, its reads replace those of the previous call.
    pub(in crate::mock) fn end_reading(&self, succeeded: bool) {
        let reading = &mut self.state_mut().reading;
        reading.record(|tracker, run| if succeeded { tracker.commit(run) } else { tracker.abandon(run) });
        reading.running = None;
    }

    /// Removes the reads of a key that is gone and has been reconciled.
    pub(in crate::mock) fn forget_reads(&self, controller: &str, key: &Key) {
        let mut state = self.state_mut();
        state.view.forget(controller, key);
        state.reading.trackers.entry(controller.to_owned()).or_default().forget(&key.into());
    }

    /// Returns the keys that the differences to `before` wake, in order. `map` calls the plugin.
    pub(in crate::mock) fn wakes(
        &self,
        before: &Objects,
        map: impl Fn(&str, &mapper::Change) -> Result<Vec<Key>, String>,
    ) -> Result<Vec<Wake>, String> {
        let (mut wakes, unmapped) = self.state_mut().routed(before);
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
    fn routed(&mut self, before: &Objects) -> (BTreeSet<Wake>, Vec<Unmapped>) {
        let (mut wakes, mut unmapped) = (BTreeSet::new(), Vec::new());
        for (_, (old, new)) in self.changed(before) {
            for controller in &self.checked.controllers {
                let mut wake = |change: &Change, mapping: &Mapping, by| {
                    let mut keys = Vec::new();
                    let look_up = |index: &str, name: &str, namespace: Option<&str>| {
                        self.indexed(&controller.for_, index, name, namespace)
                    };
                    route::keys(mapping, change, look_up, &mut keys);
                    let wake = |key: &core::Key| Wake { controller: controller.name.clone(), key: key.into(), by };
                    wakes.extend(keys.iter().map(wake));
                };
                let change = |watch| view::change(watch, old, new, false);
                if let Some(change) = change(&controller.for_) {
                    wake(&change, &Mapping::SelfKey, By::Itself);
                }
                let of = &controller.for_.of;
                for change in controller.owns.iter().filter_map(change) {
                    convert::routes(&manifest::Mapping::Owner, of).for_each(|owner| wake(&change, &owner, By::Child));
                }
                for mapped in &controller.watches {
                    let Some(change) = change(&mapped.watch) else { continue };
                    if mapped.mapping == manifest::Mapping::Plugin {
                        let [old, new] =
                            [&change.old, &change.new].map(|side| side.as_ref().map(|side| side.json().into_owned()));
                        let of = change.object().type_meta().into();
                        unmapped.push((controller.name.clone(), mapper::Change { of, old, new }));
                    }
                    convert::routes(&mapped.mapping, of).for_each(|mapping| wake(&change, &mapping, By::Mapping));
                }
            }
        }
        let seen = self.seen(before);
        for (controller, tracker) in &mut self.reading.trackers {
            let mut keys = Vec::new();
            seen.iter().for_each(|(of, change)| tracker.wakes(of, change, &mut keys));
            let wake = |key: &core::Key| Wake { controller: controller.clone(), key: key.into(), by: By::Read };
            wakes.extend(keys.iter().map(wake));
        }
        (wakes, unmapped)
    }

    /// Returns `true` if the running call, or the last successful one of its key, has read something that is different now.
    pub(super) fn has_read_what_changed(&mut self, before: &Objects) -> bool {
        let seen = self.seen(before);
        let mut is_woken = false;
        self.reading.record(|tracker, run| {
            seen.iter().for_each(|(of, change)| tracker.wakes(of, change, &mut Vec::new()));
            is_woken = tracker.is_woken(run);
        });
        is_woken
    }

    fn changed<'a>(&'a self, before: &'a Objects) -> BTreeMap<&'a Id, (Option<&'a Value>, Option<&'a Value>)> {
        let ids: BTreeSet<&Id> = before.keys().chain(self.objects.keys()).collect();
        let sides = ids.into_iter().map(|id| (id, (before.get(id), self.objects.get(id))));
        sides.filter(|(_, (old, new))| old != new).collect()
    }

    /// Returns the changes as the plugin sees them, of what it may read.
    fn seen(&self, before: &Objects) -> Vec<(core::TypeMeta, Change)> {
        let changed = self.changed(before).into_iter();
        let readable = changed.filter(|(id, _)| self.check(Verb::Read, id, None).is_ok());
        let seen = readable.filter_map(|(id, (old, new))| {
            let [old, new] = [old, new].map(|side| side.and_then(|object| self.view.show(object)));
            (old.is_some() || new.is_some()).then(|| ((&id.0).into(), Change { old, new, missed: false }))
        });
        seen.collect()
    }

    /// Returns the keys of the controller's objects for which an index has a name.
    fn indexed(&self, watch: &Watch, index: &str, name: &str, namespace: Option<&str>) -> Vec<core::Key> {
        let Some(path) = self.checked.index(index).map(|index| &index.path) else { return Vec::new() };
        let of = (&watch.of).into();
        let objects =
            self.objects.iter().filter(|((kind, _), _)| *kind == of).map(|(_, object)| convert::object(object));
        let fits = |object: &Object| {
            let here = object.key().namespace.as_deref();
            (here.is_none() || namespace.is_none() || here == namespace)
                && view::holds(watch, object)
                && convert::values(object, path).iter().any(|value| value == name)
        };
        objects.filter(|object| fits(object)).map(|object| object.key().clone()).collect()
    }

    /// Returns `true` if the controller is, or was, for an object of this key.
    fn is_reconciled(&self, before: &Objects, wake: &Wake) -> bool {
        let Some(controller) = self.checked.controller(&wake.controller) else { return false };
        let id = ((&controller.for_.of).into(), wake.key.clone());
        let sides = [before, &self.objects].into_iter().filter_map(|objects| objects.get(&id));
        sides.map(convert::object).any(|object| view::holds(&controller.for_, &object))
    }
}
