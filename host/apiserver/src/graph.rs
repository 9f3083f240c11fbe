//! Who owns whom, and what garbage collection therefore has to look at.
//!
//! The store tells the graph of every commit, under its lock. The graph keeps the ownership index, and a set of work without
//! duplicates: bounded by the number of objects, lost by nothing short of the process. `housekeeping` takes the work and
//! decides what to do about it.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use crate::{
    object::{Key, Object, finalizers, is_deleting, owners, uid},
    resources::GroupResource,
    storage::HISTORY_EVENTS,
};

/// The finalizer of an object that goes after its dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents stay.
pub(crate) const ORPHAN: &str = "orphan";

/// Objects that are gone and that nothing names, of which it is still known that they were there: whoever watches can be no further behind.
const GONE_KEPT: usize = HISTORY_EVENTS;

/// Something that may have become garbage, or may now be finished.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// Do the owners of this object still exist; or, if it is being deleted, can it go?
    Object(String),
    /// A namespace that is being deleted: empty it, then finish it.
    Namespace(String),
    /// A resource whose CustomResourceDefinition is being deleted.
    Resource(GroupResource),
}

type Place = (GroupResource, Key);

#[derive(Debug, Default, Clone)]
pub(crate) struct Graph {
    places: HashMap<String, Place>,
    /// Uids of the objects that name a uid as an owner.
    dependents: HashMap<String, BTreeSet<String>>,
    /// Uids of objects that are gone, and when they last came to `forgettable`: their kind may go next, and nobody could look them up
    /// then. They are known while an object names them as an owner, and for a while longer: whoever has not heard yet that an owner is gone
    /// may give it another dependent.
    gone: HashMap<String, u64>,
    /// Those that nothing named any more when they came here, oldest first; at most [`GONE_KEPT`].
    forgettable: VecDeque<(u64, String)>,
    /// How many have come there.
    forgettable_ever: u64,
    /// Uids of objects with an owner of a kind that is not served: nobody can say what became of it until it is.
    undecided: HashSet<String>,
    terminating: HashSet<GroupResource>,
    terminating_namespaces: HashSet<String>,
    queue: VecDeque<Work>,
    queued: HashSet<Work>,
}

impl Graph {
    /// Takes note of a commit: of the state before it and after it.
    pub(crate) fn observe(&mut self, of: &GroupResource, old: Option<&Object>, new: Option<&Object>) {
        let owned_by = |object: Option<&Object>| -> BTreeSet<String> {
            object.into_iter().flat_map(|o| owners(&o.value)).map(|owner| owner.uid.to_owned()).collect()
        };
        let (before, after) = (owned_by(old), owned_by(new));
        let Some(object) = new.or(old) else { return };
        let id = uid(&object.value).to_owned();

        for owner in before.difference(&after) {
            if let Some(set) = self.dependents.get_mut(owner) {
                set.remove(&id);
                if set.is_empty() {
                    self.dependents.remove(owner);
                    if self.gone.contains_key(owner) {
                        self.forget_later(owner.clone());
                    }
                }
            }
        }
        for owner in after.difference(&before) {
            self.dependents.entry(owner.clone()).or_default().insert(id.clone());
        }
        // An owner that waits for its dependents may have waited for this one.
        let unblocked = old.is_some_and(|old| new.is_none_or(|new| blocks(new) < blocks(old)));
        if unblocked {
            for owner in before {
                self.queue(Work::Object(owner));
            }
        }
        match new {
            Some(new) => {
                let waits = is_deleting(&new.value)
                    && finalizers(&new.value).iter().any(|finalizer| [FOREGROUND, ORPHAN].contains(finalizer));
                let other_owners = old.is_none_or(|old| {
                    old.value["metadata"]["ownerReferences"] != new.value["metadata"]["ownerReferences"]
                });
                if waits || (other_owners && !after.is_empty()) {
                    self.queue(Work::Object(id.clone()));
                }
                self.places.insert(id, (of.clone(), object.key()));
            }
            None => {
                self.places.remove(&id);
                self.undecided.remove(&id);
                let orphans: Vec<String> = self.dependents.get(&id).into_iter().flatten().cloned().collect();
                if orphans.is_empty() {
                    self.forget_later(id);
                } else {
                    self.gone.insert(id, 0);
                }
                for orphan in orphans {
                    self.queue(Work::Object(orphan));
                }
            }
        }
        self.observe_scopes(of, object, new.is_some());
    }

    /// Nothing names an object that is gone, or nothing does any more.
    fn forget_later(&mut self, uid: String) {
        self.forgettable_ever += 1;
        self.gone.insert(uid.clone(), self.forgettable_ever);
        self.forgettable.push_back((self.forgettable_ever, uid));
        if self.forgettable.len() > GONE_KEPT
            && let Some((came, oldest)) = self.forgettable.pop_front()
            && self.gone.get(&oldest) == Some(&came)
            && !self.dependents.contains_key(&oldest)
        {
            self.gone.remove(&oldest);
        }
    }

    /// Namespaces and resources that go when they are empty.
    fn observe_scopes(&mut self, of: &GroupResource, object: &Object, exists: bool) {
        let key = object.key();
        if *of == GroupResource::namespaces() {
            let name = key.name.to_string();
            if exists && is_deleting(&object.value) {
                self.terminating_namespaces.insert(name.clone());
                self.queue(Work::Namespace(name));
            } else {
                self.terminating_namespaces.remove(&name);
            }
        } else if !exists && self.terminating_namespaces.contains(&*key.namespace) {
            self.queue(Work::Namespace(key.namespace.to_string()));
        }
        if !exists && self.terminating.contains(of) {
            self.queue(Work::Resource(of.clone()));
        }
    }

    pub(crate) fn find(&self, uid: &str) -> Option<&Place> {
        self.places.get(uid)
    }

    /// Whether an object of this uid was there and is gone. Of those that nothing names as an owner only the last are known.
    pub(crate) fn is_gone(&self, uid: &str) -> bool {
        self.gone.contains_key(uid)
    }

    /// Keeps an object in mind that cannot be judged until another kind is served.
    pub(crate) fn defer(&mut self, uid: &str) {
        if self.places.contains_key(uid) {
            self.undecided.insert(uid.to_owned());
        }
    }

    /// Another kind is served.
    pub(crate) fn queue_undecided(&mut self) {
        for uid in std::mem::take(&mut self.undecided) {
            self.queue(Work::Object(uid));
        }
    }

    pub(crate) fn dependents(&self, uid: &str) -> impl Iterator<Item = &Place> {
        self.dependents.get(uid).into_iter().flatten().filter_map(|dependent| self.places.get(dependent))
    }

    pub(crate) fn is_terminating(&self, of: &GroupResource) -> bool {
        self.terminating.contains(of)
    }

    pub(crate) fn set_terminating(&mut self, of: &GroupResource, terminating: bool) {
        if terminating {
            self.terminating.insert(of.clone());
            self.queue(Work::Resource(of.clone()));
        } else {
            self.terminating.remove(of);
        }
    }

    pub(crate) fn queue(&mut self, work: Work) {
        if self.queued.insert(work.clone()) {
            self.queue.push_back(work);
        }
    }

    /// Queues everything that there may be to do. What turns out to need nothing costs a look.
    pub(crate) fn queue_all(&mut self) {
        let objects = self.places.keys().cloned().map(Work::Object);
        let namespaces = self.terminating_namespaces.iter().cloned().map(Work::Namespace);
        let resources = self.terminating.iter().cloned().map(Work::Resource);
        for work in objects.chain(namespaces).chain(resources).collect::<Vec<_>>() {
            self.queue(work);
        }
    }

    pub(crate) fn next_work(&mut self) -> Option<Work> {
        let work = self.queue.pop_front()?;
        self.queued.remove(&work);
        Some(work)
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }
}

/// How many owners cannot go before this object does.
fn blocks(object: &Object) -> usize {
    owners(&object.value).filter(|owner| owner.blocks).count()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn object(uid: &str, owner: Option<&str>) -> Arc<Object> {
        let owners: Vec<_> =
            owner.map(|uid| json!({"apiVersion": "v1", "kind": "A", "name": "a", "uid": uid})).into_iter().collect();
        Object::committed(json!({"metadata": {"name": uid, "uid": uid, "ownerReferences": owners}}), 1)
    }

    /// They come, and go in the same order.
    fn come_and_go(graph: &mut Graph, uids: impl Iterator<Item = String>) {
        for uid in uids {
            let object = object(&uid, None);
            graph.observe(&GroupResource::crds(), None, Some(&object));
            graph.observe(&GroupResource::crds(), Some(&object), None);
        }
    }

    #[test]
    fn of_objects_that_are_gone_those_that_are_named_are_known_and_the_last_of_the_others() {
        let of = GroupResource::crds();
        let mut graph = Graph::default();
        let (named, renamed) = (object("child", Some("named")), object("other", Some("renamed")));
        graph.observe(&of, None, Some(&named));
        come_and_go(&mut graph, ["named", "renamed", "first"].map(str::to_owned).into_iter());
        come_and_go(&mut graph, (0..GONE_KEPT - 2).map(|number| format!("a-{number}")));
        assert!(["named", "renamed", "first"].iter().all(|uid| graph.is_gone(uid)));
        // Named again, and not any more: it is as if it had gone just now.
        graph.observe(&of, None, Some(&renamed));
        graph.observe(&of, Some(&renamed), None);
        come_and_go(&mut graph, (0..GONE_KEPT - 2).map(|number| format!("b-{number}")));
        assert_eq!(["named", "renamed", "first"].map(|uid| graph.is_gone(uid)), [true, true, false]);
        // The last that named it goes: it is one of the others.
        graph.observe(&of, Some(&named), None);
        come_and_go(&mut graph, (0..GONE_KEPT).map(|number| format!("c-{number}")));
        assert_eq!(["named", "renamed"].map(|uid| graph.is_gone(uid)), [false, false]);
        assert!(graph.forgettable.len() <= GONE_KEPT && graph.gone.len() <= GONE_KEPT);
    }
}
