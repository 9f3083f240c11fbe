//! What one plugin sees of the cache: the objects of its leases, and nothing else.

use std::sync::Arc;

use pilothouse_core::{
    key::{Key, TypeMeta},
    object::{Keep, Object},
};

use super::{InformerKey, Lapse, Lease, Moment};

/// Chooses between two leases' versions of one object, each with what its lease keeps. `true` if the first one is to be
/// used.
///
/// The version that keeps all that the other keeps is used. If both keep the same, the newer one is used, because each
/// informer has its own watch. If each keeps something that the other does not, the choice never depends on the
/// version: fields must not come and go.
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
    /// Creates a view of these leases.
    pub fn new(leases: impl IntoIterator<Item = Arc<Lease>>) -> Self {
        Self { leases: leases.into_iter().collect() }
    }

    /// The leases on a kind.
    pub fn of<'a>(&'a self, of: &'a TypeMeta) -> impl Iterator<Item = &'a Lease> {
        self.leases().filter(move |lease| lease.key().of == *of)
    }

    /// The leases that show objects of a kind in this namespace. If there are several, each shows the objects that its
    /// selectors match.
    pub fn covering<'a>(&'a self, of: &'a TypeMeta, namespace: Option<&'a str>) -> impl Iterator<Item = &'a Lease> {
        self.of(of).filter(move |lease| lease.covers(namespace))
    }

    /// Returns why the cache of a kind in a namespace (`None`: in all) is not trustworthy, or `None` if it is.
    pub fn lapse(&self, of: &TypeMeta, namespace: Option<&str>) -> Option<Lapse> {
        let concerned = self.of(of).filter(|lease| namespace.is_none() || lease.covers(namespace));
        concerned.map(Lease::informer).find_map(|informer| informer.lapse())
    }

    /// Returns one object. If several leases show it, [`precedes`] chooses.
    pub fn get(&self, of: &TypeMeta, key: &Key) -> Option<Arc<Object>> {
        self.find(of, key).map(|(object, _)| object)
    }

    /// Returns one object, with what its lease keeps of it.
    pub fn find<'a>(&'a self, of: &'a TypeMeta, key: &'a Key) -> Option<(Arc<Object>, &'a Keep)> {
        self.best(None, of, key)
    }

    /// Returns one object as a moment shows it.
    pub fn get_at(&self, moment: &Moment, of: &TypeMeta, key: &Key) -> Option<Arc<Object>> {
        self.best(Some(moment), of, key).map(|(object, _)| object)
    }

    fn best<'a>(&'a self, moment: Option<&Moment>, of: &'a TypeMeta, key: &'a Key) -> Option<(Arc<Object>, &'a Keep)> {
        let leases = self.covering(of, key.namespace.as_deref());
        let held = leases.filter_map(|lease| Some((lease.get_at(moment, key)?, &lease.key().keep)));
        held.reduce(|best, next| if precedes((&*next.0, next.1), (&*best.0, best.1)) { next } else { best })
    }

    /// Returns a view of the leases with one of `keys`.
    pub fn only(&self, keys: &[InformerKey]) -> Self {
        Self::new(self.leases.iter().filter(|lease| keys.contains(lease.key())).cloned())
    }

    /// Returns a view of these leases and more.
    #[must_use]
    pub fn with(&self, more: impl IntoIterator<Item = Arc<Lease>>) -> Self {
        Self::new(self.leases.iter().cloned().chain(more))
    }

    /// `true` if both are clones of one view.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.leases, &other.leases)
    }

    /// All leases.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().map(|lease| &**lease)
    }
}
