//! Tracks owners and dependents, and the resulting work of garbage collection.
//!
//! The store reports every commit to the graph under its lock. The graph keeps an index of owners and a set of work
//! without duplicates, which is bounded by the number of objects. `housekeeping` takes the work and carries it out.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use crate::{
    object::{Key, Object, finalizers, is_deleting, owners, uid},
    resources::GroupResource,
    storage::HISTORY_EVENTS,
};

/// The finalizer of an object that is deleted after its dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are kept.
pub(crate) const ORPHAN: &str = "orphan";

/// Number of deleted objects without dependents that are remembered. A watch cannot be further behind than this.
const GONE_KEPT: usize = HISTORY_EVENTS;

/// Something that garbage collection must look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// An object whose owners may be gone, or whose deletion may be complete.
    Object(String),
    /// A namespace that is being deleted. Its objects are deleted first.
    Namespace(String),
    /// A resource whose CustomResourceDefinition is being deleted.
    Resource(GroupResource),
}

type Place = (GroupResource, Key);

#[derive(Debug, Default, Clone)]
pub(crate) struct Graph {
    places: HashMap<String, Place>,
    /// Uids of the objects that name a uid as an owner, by that uid.
    dependents: HashMap<String, BTreeSet<String>>,
    /// Uids of deleted objects, and when they last entered `forgettable`. A uid is kept while an object names it as an
    /// owner, and for a while longer, because a client may not know of the deletion yet and create another dependent.
    /// It is kept here because the owner's kind may be deleted too, and then no lookup can tell.
    gone: HashMap<String, u64>,
    /// Deleted objects that had no dependents when they were added, oldest first. At most [`GONE_KEPT`].
    forgettable: VecDeque<(u64, String)>,
    /// Number of entries ever added to `forgettable`.
    forgettable_ever: u64,
    /// Uids of objects with an owner of an unknown kind. They are decided when that kind is served.
    undecided: HashSet<String>,
    terminating: HashSet<GroupResource>,
    terminating_namespaces: HashSet<String>,
    queue: VecDeque<Work>,
    queued: HashSet<Work>,
}

impl Graph {
    /// Records a commit, with the states before and after it.
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
        // An owner in foreground deletion may have waited for this object.
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

    /// Schedules a deleted object without dependents to be forgotten.
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

    /// Records namespaces and resources whose deletion ends when they are empty.
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

    /// `true` if an object of this uid is known to be deleted. Of those without dependents, only the last are
    /// remembered.
    pub(crate) fn is_gone(&self, uid: &str) -> bool {
        self.gone.contains_key(uid)
    }

    /// Defers an object that can be decided only when another kind is served.
    pub(crate) fn defer(&mut self, uid: &str) {
        if self.places.contains_key(uid) {
            self.undecided.insert(uid.to_owned());
        }
    }

    /// Queues the deferred objects, because another kind is served.
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

    /// Queues everything that may need work.
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

/// Number of owners whose deletion waits for this object.
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

    /// Creates and deletes objects in this order.
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
        // Named again and then no longer: it counts as deleted just now.
        graph.observe(&of, None, Some(&renamed));
        graph.observe(&of, Some(&renamed), None);
        come_and_go(&mut graph, (0..GONE_KEPT - 2).map(|number| format!("b-{number}")));
        assert_eq!(["named", "renamed", "first"].map(|uid| graph.is_gone(uid)), [true, true, false]);
        // The last object that named it is deleted, so it becomes one of the others.
        graph.observe(&of, Some(&named), None);
        come_and_go(&mut graph, (0..GONE_KEPT).map(|number| format!("c-{number}")));
        assert_eq!(["named", "renamed"].map(|uid| graph.is_gone(uid)), [false, false]);
        assert!(graph.forgettable.len() <= GONE_KEPT && graph.gone.len() <= GONE_KEPT);
    }
}
