//! The cached objects of one resource.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    key::{Key, TypeMeta},
    object::{Object, ResourceVersion, Uid},
    selector::Selector,
};

/// What became of one object. At least one side is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What the store held before; none: nothing.
    pub old: Option<Arc<Object>>,
    /// What it holds now; none: the object is gone.
    pub new: Option<Arc<Object>>,
}

impl Change {
    /// The key of the object that changed.
    pub fn key(&self) -> &Key {
        self.new
            .as_ref()
            .or(self.old.as_ref())
            .expect("a change has an old or a new object")
            .key()
    }
}

/// The objects of one resource, as far as they are watched.
#[derive(Debug)]
pub struct Store {
    of: TypeMeta,
    objects: BTreeMap<Key, (Arc<Object>, u32)>,
    mark: u32,
}

impl Store {
    /// An empty store.
    pub fn new(of: TypeMeta) -> Self {
        Self {
            of,
            objects: BTreeMap::new(),
            mark: 0,
        }
    }

    /// The kind of its objects.
    pub fn type_meta(&self) -> &TypeMeta {
        &self.of
    }

    /// An object from a list or a watch.
    pub fn upsert(&mut self, object: Object) -> Option<Change> {
        let mark = self.mark;
        if let Some((old, seen)) = self.objects.get_mut(object.key())
            && old.resource_version() >= object.resource_version()
        {
            *seen = mark;
            return None;
        }
        let new = Arc::new(object);
        let old = self
            .objects
            .insert(new.key().clone(), (new.clone(), mark))
            .map(|(old, _)| old);
        Some(Change {
            old,
            new: Some(new),
        })
    }

    /// A DELETED event with the last state.
    pub fn remove(&mut self, last: Object) -> Option<Change> {
        let (old, _) = self.objects.get(last.key())?;
        if old.uid() != last.uid() || old.resource_version() > last.resource_version() {
            return None;
        }
        self.objects.remove(last.key());
        Some(Change {
            old: Some(Arc::new(last)),
            new: None,
        })
    }

    /// The server's answer to a write of our own.
    pub fn upsert_own(&mut self, object: Object) -> Option<Change> {
        self.upsert(object)
    }

    /// A delete of our own succeeded, and the object is gone.
    pub fn remove_own(&mut self, key: &Key, uid: &Uid) -> Option<Change> {
        let (old, _) = self.objects.get(key).filter(|(old, _)| old.uid() == uid)?;
        let old = old.clone();
        self.objects.remove(key);
        Some(Change {
            old: Some(old),
            new: None,
        })
    }

    /// A list starts. `went_back`: its versions are older than what was seen before.
    pub fn begin_replace(&mut self, went_back: bool) {
        let _ = went_back;
        self.mark += 1;
    }

    /// The list is complete: what it did not contain is gone.
    pub fn finish_replace(&mut self, version: ResourceVersion) -> Vec<Change> {
        let mark = self.mark;
        let gone = self.objects.extract_if(.., |_, (object, seen)| {
            *seen != mark && object.resource_version() <= version
        });
        gone.map(|(_, (old, _))| Change {
            old: Some(old),
            new: None,
        })
        .collect()
    }

    /// The list failed: what it said so far stays, and nothing is swept.
    pub fn abort_replace(&mut self) {}

    /// The object of that name.
    pub fn get(&self, namespace: Option<&str>, name: &str) -> Option<&Arc<Object>> {
        self.objects
            .get(&Key::new(namespace, name))
            .map(|(object, _)| object)
    }

    /// Objects after the key `after`, in the order of their keys.
    pub fn list<'a>(
        &'a self,
        namespace: Option<&'a str>,
        selector: &'a Selector,
        after: Option<&'a Key>,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        self.iter().filter(move |o| {
            after.is_none_or(|after| o.key() > after)
                && (namespace.is_none() || o.key().namespace.as_deref() == namespace)
                && selector.matches(o.labels())
        })
    }

    /// Objects with that owner, in no particular order.
    pub fn owned_by<'a>(&'a self, owner: &'a Uid) -> impl Iterator<Item = &'a Arc<Object>> {
        self.iter()
            .filter(move |o| o.owners().iter().any(|o| &o.uid == owner))
    }

    /// All objects, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values().map(|(object, _)| object)
    }

    /// How many objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Bytes held: objects and indexes.
    pub fn bytes(&self) -> usize {
        self.iter().map(|object| object.bytes()).sum()
    }
}
