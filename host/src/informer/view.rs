//! What one plugin may see of the cache: the informers it holds leases on, and no others.

use std::sync::Arc;

use pilothouse_core::{
    key::{Key, TypeMeta},
    object::Object,
};

use super::{Informer, Lease};

/// The informers of one plugin. Clones share the leases.
#[derive(Clone, Default)]
pub struct View {
    leases: Arc<[Arc<Lease>]>,
}

impl View {
    /// A view of these informers.
    pub fn new(leases: impl IntoIterator<Item = Arc<Lease>>) -> Self {
        Self { leases: leases.into_iter().collect() }
    }

    /// The informers of a kind.
    pub fn of<'a>(&'a self, of: &'a TypeMeta) -> impl Iterator<Item = &'a Informer> {
        self.leases.iter().map(|lease| &***lease).filter(move |informer| informer.key().of == *of)
    }

    /// The informers of a kind that hold objects of this namespace: where several do, each holds those its selector matches.
    pub fn covering<'a>(&'a self, of: &'a TypeMeta, namespace: Option<&'a str>) -> impl Iterator<Item = &'a Informer> {
        self.of(of).filter(move |informer| informer.covers(namespace))
    }

    /// One object. Where several informers hold it, as the one says that knows most: each has a watch of its own.
    pub fn get(&self, of: &TypeMeta, key: &Key) -> Option<Arc<Object>> {
        let held = self.covering(of, key.namespace.as_deref()).filter_map(|informer| informer.get(key));
        held.max_by_key(|object| object.resource_version())
    }

    /// All informers.
    pub fn informers(&self) -> impl Iterator<Item = &Informer> {
        self.leases.iter().map(|lease| &***lease)
    }
}
