//! What one plugin may see of the cache: what it holds leases on, and nothing else.

use std::sync::Arc;

use pilothouse_core::{
    key::{Key, TypeMeta},
    object::Object,
};

use super::Lease;

/// The leases of one plugin. Clones share them.
#[derive(Clone, Default)]
pub struct View {
    leases: Arc<[Arc<Lease>]>,
}

impl View {
    /// A view of these.
    pub fn new(leases: impl IntoIterator<Item = Arc<Lease>>) -> Self {
        Self { leases: leases.into_iter().collect() }
    }

    /// The leases on a kind.
    pub fn of<'a>(&'a self, of: &'a TypeMeta) -> impl Iterator<Item = &'a Lease> {
        self.leases().filter(move |lease| lease.key().of == *of)
    }

    /// The leases that show objects of a kind in this namespace: where several do, each shows those its selectors match.
    pub fn covering<'a>(&'a self, of: &'a TypeMeta, namespace: Option<&'a str>) -> impl Iterator<Item = &'a Lease> {
        self.of(of).filter(move |lease| lease.covers(namespace))
    }

    /// One object. Where several leases show it, as the one says that knows most: each informer has a watch of its own.
    pub fn get(&self, of: &TypeMeta, key: &Key) -> Option<Arc<Object>> {
        let held = self.covering(of, key.namespace.as_deref()).filter_map(|lease| lease.get(key));
        held.max_by_key(|object| object.resource_version())
    }

    /// All leases.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().map(|lease| &**lease)
    }
}
