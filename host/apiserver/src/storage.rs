//! Stores the objects of each resource, the revision counter and the recent history.
//!
//! ```text
//!               ┌─ collection "configmaps" ── objects by key ── log of recent events ── waiters
//!  revision ────┼─ collection "myapples.…"  …
//!               └─ history: which collection each event went to, oldest first, bounded
//! ```
//!
//! Each commit takes the next revision. Watches and pages read the log at their own pace, and nothing is buffered per
//! reader. The log is bounded by [`HISTORY_EVENTS`] and [`HISTORY_BYTES`]. A reader that falls behind gets 410.
//!
//! `rest` checks an object's content. This module checks what must hold at the commit: the object is still the one that
//! was read, and neither its namespace nor its resource is being deleted. [`Graph`] records what garbage collection
//! must do after a commit.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    num::NonZeroU32,
    ops::Bound,
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::{
    graph::{Graph, Work},
    object::{Key, Object, is_deleting},
    resources::GroupResource,
};

/// Number of events kept for watches and pages, for all resources together.
pub(crate) const HISTORY_EVENTS: usize = 10_000;
/// Bytes of JSON in the kept events.
pub(crate) const HISTORY_BYTES: usize = 64 << 20;

/// The kind of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

/// One commit.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) change: Change,
    /// The new state. For [`Change::Deleted`], the last state at the revision of the deletion.
    pub(crate) object: Arc<Object>,
    /// The state before, if there was one.
    pub(crate) previous: Option<Arc<Object>>,
}

/// Why a commit was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Another object has the name.
    Exists,
    /// The object has changed or is gone since it was read.
    Stale,
    NoNamespace,
    NamespaceTerminating,
    /// The CustomResourceDefinition is being deleted.
    ResourceTerminating,
}

/// The requested revision is no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// The oldest revision that is kept.
    pub(crate) oldest: u64,
}

/// A collection at one revision.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<Object>>,
}

/// All objects and their recent history.
#[derive(Debug)]
pub(crate) struct Store {
    inner: Mutex<Inner>,
    work: Notify,
}

/// The content of a store at one moment, including its history. Objects are shared.
#[derive(Debug, Clone)]
pub(crate) struct Saved(Inner);

#[derive(Debug, Clone)]
struct Inner {
    revision: u64,
    collections: HashMap<GroupResource, Collection>,
    /// Collection and size of each kept event, oldest first.
    history: VecDeque<(GroupResource, usize)>,
    history_bytes: usize,
    /// The revision of the last [`Store::compact`], for resources that have no collection yet.
    compacted: u64,
    graph: Graph,
}

#[derive(Debug)]
struct Collection {
    objects: BTreeMap<Key, Arc<Object>>,
    log: VecDeque<Arc<Event>>,
    /// The newest revision whose event the log no longer has.
    evicted: u64,
    latest: watch::Sender<u64>,
}

impl Collection {
    fn at(evicted: u64) -> Self {
        Collection { objects: BTreeMap::new(), log: VecDeque::new(), evicted, latest: watch::Sender::new(evicted) }
    }
}

impl Clone for Collection {
    /// Copies the content without its subscribers.
    fn clone(&self) -> Self {
        Collection {
            objects: self.objects.clone(),
            log: self.log.clone(),
            evicted: self.evicted,
            latest: watch::Sender::new(*self.latest.borrow()),
        }
    }
}

impl Saved {
    pub(crate) fn revision(&self) -> u64 {
        self.0.revision
    }
}

impl Store {
    pub(crate) fn new() -> Self {
        let inner = Inner {
            revision: 1,
            collections: HashMap::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            compacted: 0,
            graph: Graph::default(),
        };
        Store { inner: Mutex::new(inner), work: Notify::new() }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.inner.lock().revision
    }

    pub(crate) fn get(&self, of: &GroupResource, key: &Key) -> Option<Arc<Object>> {
        self.inner.lock().collections.get(of)?.objects.get(key).cloned()
    }

    /// Returns an object as it was at a revision, if that is known.
    pub(crate) fn get_at(&self, of: &GroupResource, key: &Key, revision: u64) -> Option<Arc<Object>> {
        let inner = self.inner.lock();
        let collection = inner.collections.get(of)?;
        let undone = collection.log.iter().find(|event| event.revision > revision && event.object.key() == *key);
        match undone {
            Some(event) => event.previous.clone(),
            None => collection.objects.get(key).cloned(),
        }
    }

    /// Returns the revision before the last `changes` of a resource, or the oldest known one. Returns `None` if only
    /// the present is known.
    pub(crate) fn before(&self, of: &GroupResource, changes: NonZeroU32) -> Option<u64> {
        let inner = self.inner.lock();
        let collection = inner.collections.get(of)?;
        let changes = usize::try_from(changes.get()).unwrap_or(usize::MAX);
        let first_undone = collection.log.get(collection.log.len().saturating_sub(changes))?;
        Some(first_undone.revision - 1)
    }

    pub(crate) fn count(&self, of: &GroupResource) -> usize {
        self.inner.lock().collections.get(of).map_or(0, |collection| collection.objects.len())
    }

    /// Checks whether [`Store::create`] would succeed now.
    pub(crate) fn may_create(&self, of: &GroupResource, key: &Key) -> Result<(), Refused> {
        self.inner.lock().may_create(of, key)
    }

    /// Commits a new object. `on_commit` runs before the commit is visible.
    pub(crate) fn create(
        &self,
        of: &GroupResource,
        value: Value,
        on_commit: impl FnOnce(),
    ) -> Result<Arc<Object>, Refused> {
        let mut inner = self.inner.lock();
        inner.may_create(of, &Key::of(&value))?;
        let revision = inner.revision + 1;
        let object = Object::committed(value, revision);
        on_commit();
        inner.commit(of, Event { revision, change: Change::Added, object: Arc::clone(&object), previous: None });
        self.announce(inner);
        Ok(object)
    }

    /// Replaces `current` by `value`, of the same key. `on_commit` runs before the commit is visible.
    pub(crate) fn update(
        &self,
        of: &GroupResource,
        current: &Object,
        value: Value,
        on_commit: impl FnOnce(),
    ) -> Result<Arc<Object>, Refused> {
        let mut inner = self.inner.lock();
        let previous = inner.still(of, current)?;
        let revision = inner.revision + 1;
        let object = Object::committed(value, revision);
        on_commit();
        let event = Event { revision, change: Change::Modified, object: Arc::clone(&object), previous: Some(previous) };
        inner.commit(of, event);
        self.announce(inner);
        Ok(object)
    }

    /// Removes `current`, whose last state is `last`. `on_commit` runs before the commit is visible.
    pub(crate) fn remove(
        &self,
        of: &GroupResource,
        current: &Object,
        last: Value,
        on_commit: impl FnOnce(),
    ) -> Result<Arc<Object>, Refused> {
        let mut inner = self.inner.lock();
        let previous = inner.still(of, current)?;
        let revision = inner.revision + 1;
        let object = Object::committed(last, revision);
        on_commit();
        let event = Event { revision, change: Change::Deleted, object: Arc::clone(&object), previous: Some(previous) };
        inner.commit(of, event);
        self.announce(inner);
        Ok(object)
    }

    /// Lists the objects of a resource in key order, now or at revision `at`. `namespace` limits them to one namespace,
    /// and `after` to later keys.
    pub(crate) fn list(
        &self,
        of: &GroupResource,
        namespace: Option<&str>,
        after: Option<&Key>,
        at: Option<u64>,
    ) -> Result<Listed, Compacted> {
        let inner = self.inner.lock();
        let revision = at.unwrap_or(inner.revision);
        let Some(collection) = inner.collections.get(of) else {
            return Ok(Listed { revision, objects: Vec::new() });
        };
        if revision < collection.evicted {
            return Err(Compacted { oldest: collection.evicted });
        }
        Ok(Listed { revision, objects: collection.at_revision(namespace, after, revision) })
    }

    /// Returns at most `max` events of a resource after revision `after`, and the revision up to which the reader has
    /// then seen everything.
    pub(crate) fn events(
        &self,
        of: &GroupResource,
        after: u64,
        max: usize,
    ) -> Result<(Vec<Arc<Event>>, u64), Compacted> {
        let inner = self.inner.lock();
        let Some(collection) = inner.collections.get(of) else { return Ok((Vec::new(), inner.revision.max(after))) };
        if after < collection.evicted {
            return Err(Compacted { oldest: collection.evicted });
        }
        let first = collection.log.partition_point(|event| event.revision <= after);
        let events: Vec<_> = collection.log.range(first..).take(max).cloned().collect();
        let seen = match events.last() {
            Some(last) if first + events.len() < collection.log.len() => last.revision,
            _ => inner.revision.max(after),
        };
        Ok((events, seen))
    }

    /// Subscribes to a resource. The value is the revision of its last commit. The subscription ends when an earlier
    /// state is restored.
    pub(crate) fn subscribe(&self, of: &GroupResource) -> watch::Receiver<u64> {
        let mut inner = self.inner.lock();
        inner.collection(of).latest.subscribe()
    }

    /// Returns every object in a namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<(GroupResource, Arc<Object>)> {
        let inner = self.inner.lock();
        let all = inner.collections.iter().flat_map(|(of, collection)| {
            collection.at_revision(Some(namespace), None, u64::MAX).into_iter().map(|object| (of.clone(), object))
        });
        all.collect()
    }

    /// Forgets the history. A read from an older revision than the newest then gets 410.
    pub(crate) fn compact(&self) {
        let mut inner = self.inner.lock();
        while inner.evict() {}
        let revision = inner.revision;
        inner.compacted = revision;
        for collection in inner.collections.values_mut() {
            collection.evicted = revision;
        }
    }

    /// Saves the content. `on_save` runs under the same lock.
    pub(crate) fn save(&self, on_save: impl FnOnce()) -> Saved {
        let inner = self.inner.lock();
        on_save();
        Saved(inner.clone())
    }

    /// Restores saved content, including the revision, so that later writes take the same revisions again. All
    /// subscriptions end. `on_restore` runs before the content is visible.
    pub(crate) fn restore(&self, saved: &Saved, on_restore: impl FnOnce()) {
        let mut restored = saved.0.clone();
        // Work in progress at the save is in no queue.
        restored.graph.queue_all();
        let mut inner = self.inner.lock();
        on_restore();
        *inner = restored;
        self.announce(inner);
    }

    /// Returns the object with a uid.
    pub(crate) fn by_uid(&self, uid: &str) -> Option<(GroupResource, Arc<Object>)> {
        let inner = self.inner.lock();
        let (of, key) = inner.graph.find(uid)?;
        Some((of.clone(), inner.collections.get(of)?.objects.get(key)?.clone()))
    }

    /// `true` if an object of this uid is known to be [gone](Graph::is_gone).
    pub(crate) fn is_gone(&self, uid: &str) -> bool {
        self.inner.lock().graph.is_gone(uid)
    }

    /// Returns the objects that name `uid` as an owner.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<(GroupResource, Arc<Object>)> {
        let inner = self.inner.lock();
        let found = inner
            .graph
            .dependents(uid)
            .filter_map(|(of, key)| Some((of.clone(), inner.collections.get(of)?.objects.get(key)?.clone())));
        found.collect()
    }

    /// Marks a resource as being deleted, or not.
    pub(crate) fn set_terminating(&self, of: &GroupResource, terminating: bool) {
        self.inner.lock().graph.set_terminating(of, terminating);
        self.work.notify_one();
    }

    /// Returns the next work of garbage collection. Waits while there is none.
    pub(crate) async fn next_work(&self) -> Work {
        loop {
            if let Some(work) = self.inner.lock().graph.next_work() {
                return work;
            }
            self.work.notified().await;
        }
    }

    /// Defers an object whose owner is of an unknown kind, until [another kind is served](Self::look_at_deferred).
    pub(crate) fn defer(&self, uid: &str) {
        self.inner.lock().graph.defer(uid);
    }

    /// Queues the deferred objects again.
    pub(crate) fn look_at_deferred(&self) {
        self.inner.lock().graph.queue_undecided();
        self.work.notify_one();
    }

    /// Queues unfinished work again.
    pub(crate) fn again(&self, work: Work) {
        self.inner.lock().graph.queue(work);
        self.work.notify_one();
    }

    fn announce(&self, inner: parking_lot::MutexGuard<'_, Inner>) {
        let busy = inner.graph.has_work();
        drop(inner);
        if busy {
            self.work.notify_one();
        }
    }
}

impl Inner {
    fn collection(&mut self, of: &GroupResource) -> &mut Collection {
        // A resource without writes has no events, so its history is complete since the last compaction.
        self.collections.entry(of.clone()).or_insert_with(|| Collection::at(self.compacted))
    }

    fn may_create(&self, of: &GroupResource, key: &Key) -> Result<(), Refused> {
        if !key.namespace.is_empty() {
            let namespace = Key::new("", &key.namespace);
            match self.collections.get(&GroupResource::namespaces()).and_then(|all| all.objects.get(&namespace)) {
                None => return Err(Refused::NoNamespace),
                Some(found) if is_deleting(&found.value) => return Err(Refused::NamespaceTerminating),
                Some(_) => {}
            }
        }
        if self.graph.is_terminating(of) {
            return Err(Refused::ResourceTerminating);
        }
        let taken = self.collections.get(of).is_some_and(|collection| collection.objects.contains_key(key));
        if taken { Err(Refused::Exists) } else { Ok(()) }
    }

    fn still(&self, of: &GroupResource, current: &Object) -> Result<Arc<Object>, Refused> {
        let found = self.collections.get(of).and_then(|collection| collection.objects.get(&current.key()));
        // Compared by address, because after a restore another state may have the same revision.
        found.filter(|found| std::ptr::eq(Arc::as_ptr(found), current)).cloned().ok_or(Refused::Stale)
    }

    fn commit(&mut self, of: &GroupResource, event: Event) {
        let event = Arc::new(event);
        let size = event.object.json().len();
        self.revision = event.revision;
        let live = (event.change != Change::Deleted).then_some(&event.object);
        self.graph.observe(of, event.previous.as_deref(), live.map(AsRef::as_ref));
        let collection = self.collection(of);
        match live {
            Some(object) => collection.objects.insert(object.key(), Arc::clone(object)),
            None => collection.objects.remove(&event.object.key()),
        };
        collection.log.push_back(Arc::clone(&event));
        collection.latest.send_replace(event.revision);
        self.history.push_back((of.clone(), size));
        self.history_bytes += size;
        while (self.history.len() > HISTORY_EVENTS || self.history_bytes > HISTORY_BYTES) && self.evict() {}
    }

    /// Forgets the oldest event. Returns `false` if there is none.
    fn evict(&mut self) -> bool {
        let Some((of, size)) = self.history.pop_front() else { return false };
        self.history_bytes -= size;
        let collection = self.collection(&of);
        if let Some(event) = collection.log.pop_front() {
            collection.evicted = event.revision;
        }
        true
    }
}

impl Collection {
    fn at_revision(&self, namespace: Option<&str>, after: Option<&Key>, revision: u64) -> Vec<Arc<Object>> {
        // Undoes later changes, newest first, which leaves each changed object as it was.
        let mut undone: BTreeMap<Key, Option<Arc<Object>>> = BTreeMap::new();
        for event in self.log.iter().rev().take_while(|event| event.revision > revision) {
            undone.insert(event.object.key(), event.previous.clone());
        }
        let start = match (after, namespace) {
            (Some(key), _) => Bound::Excluded(key.clone()),
            (None, Some(namespace)) => Bound::Included(Key::new(namespace, "")),
            (None, None) => Bound::Unbounded,
        };
        let inside = |key: &Key| namespace.is_none_or(|namespace| *key.namespace == *namespace);
        let mut objects: Vec<Arc<Object>> = self
            .objects
            .range((start.clone(), Bound::Unbounded))
            .take_while(|(key, _)| inside(key))
            .filter(|(key, _)| !undone.contains_key(*key))
            .map(|(_, object)| Arc::clone(object))
            .collect();
        if !undone.is_empty() {
            let before = undone.range((start, Bound::Unbounded)).filter(|(key, _)| inside(key));
            objects.extend(before.filter_map(|(_, object)| object.clone()));
            objects.sort_by_cached_key(|object| object.key());
        }
        objects
    }
}

#[cfg(test)]
mod tests;
