//! What one plugin may see of the cache: what it holds leases on, and nothing else.

use std::sync::Arc;

use pilothouse_core::{
    key::{Key, TypeMeta},
    object::{Keep, Object},
};

use super::{InformerKey, Lapse, Lease, Moment};

/// Of two leases' views of one object, each with what is kept in it: whether the first is to be taken. That is the one that has all
/// that the other has. Where they have the same it is the newer one, for each informer has a watch of its own; where each has something,
/// always the same one of the two, so that no field comes and goes with what is newer.
pub fn precedes(one: (&Object, &Keep), other: (&Object, &Keep)) -> bool {
    match (one.1.covers(other.1), other.1.covers(one.1)) {
        (true, true) => one.0.resource_version() > other.0.resource_version(),
        (false, false) => one.1 < other.1,
        (covers, _) => covers,
    }
}

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

    /// Why what is shown of a kind in a namespace (none: in all) is not to be believed; none: it is.
    pub fn lapse(&self, of: &TypeMeta, namespace: Option<&str>) -> Option<Lapse> {
        let concerned = self.of(of).filter(|lease| namespace.is_none() || lease.covers(namespace));
        concerned.map(Lease::informer).find_map(|informer| informer.lapse())
    }

    /// One object. Where several leases show it, as [`precedes`] says.
    pub fn get(&self, of: &TypeMeta, key: &Key) -> Option<Arc<Object>> {
        self.find(of, key).map(|(object, _)| object)
    }

    /// The same, and what is kept in it.
    pub fn find<'a>(&'a self, of: &'a TypeMeta, key: &'a Key) -> Option<(Arc<Object>, &'a Keep)> {
        self.best(None, of, key)
    }

    /// One object as a moment shows it.
    pub fn get_at(&self, moment: &Moment, of: &TypeMeta, key: &Key) -> Option<Arc<Object>> {
        self.best(Some(moment), of, key).map(|(object, _)| object)
    }

    fn best<'a>(&'a self, moment: Option<&Moment>, of: &'a TypeMeta, key: &'a Key) -> Option<(Arc<Object>, &'a Keep)> {
        let leases = self.covering(of, key.namespace.as_deref());
        let held = leases.filter_map(|lease| Some((lease.get_at(moment, key)?, &lease.key().keep)));
        held.reduce(|best, next| if precedes((&*next.0, next.1), (&*best.0, best.1)) { next } else { best })
    }

    /// The leases on what is asked for by one of `keys`.
    pub fn only(&self, keys: &[InformerKey]) -> Self {
        Self::new(self.leases.iter().filter(|lease| keys.contains(lease.key())).cloned())
    }

    /// All leases.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().map(|lease| &**lease)
    }
}
