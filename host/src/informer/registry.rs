//! Which informers run: one per key, while somebody holds a lease on it.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use pilothouse_core::{
    key::{Key, TypeMeta},
    object::{Object, Uid},
    selector::Selector,
};
use tokio::{runtime::Handle, task::JoinHandle};
use tracing::info;

use super::{Informer, InformerKey, driver};
use crate::cluster::Cluster;

/// All informers of the host.
#[derive(Clone)]
pub struct Informers {
    inner: Arc<Inner>,
}

struct Inner {
    cluster: Cluster,
    io: Handle,
    running: Mutex<HashMap<InformerKey, Running>>,
}

struct Running {
    informer: Arc<Informer>,
    leases: usize,
    driver: JoinHandle<()>,
}

impl Informers {
    /// None run yet. Their drivers will run on `io`.
    pub fn new(cluster: Cluster, io: Handle) -> Self {
        Self { inner: Arc::new(Inner { cluster, io, running: Mutex::default() }) }
    }

    /// The informer of this kind and scope; it starts if nobody held it, and stops when the last lease is dropped.
    pub fn acquire(&self, of: &TypeMeta, namespace: Option<&str>, selector: &Selector) -> Lease {
        let key =
            InformerKey { of: of.clone(), namespace: namespace.map(Into::into), labels: selector.to_string().into() };
        let mut running = self.inner.running.lock();
        let entry = running.entry(key.clone()).or_insert_with(|| {
            info!(informer = %key, "informer starting");
            let informer = Arc::new(Informer::new(key, selector.clone()));
            let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &informer.key);
            let driver = self.inner.io.spawn(driver::run(informer.clone(), self.inner.cluster.clone(), seed));
            Running { informer, leases: 0, driver }
        });
        entry.leases += 1;
        Lease { informer: entry.informer.clone(), home: Arc::downgrade(&self.inner) }
    }

    /// The informers that run now, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<Informer>> {
        let mut all: Vec<_> = self.inner.running.lock().values().map(|running| running.informer.clone()).collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }

    /// Takes the answer to one of the host's own writes into every informer that covers it.
    pub fn own_write(&self, object: &Arc<Object>) {
        for informer in self.of(object.type_meta()) {
            informer.own_write(object);
        }
    }

    /// Takes an own delete that succeeded at once into every informer that covers it.
    pub fn own_delete(&self, of: &TypeMeta, key: &Key, uid: &Uid) {
        for informer in self.of(of) {
            informer.own_delete(key, uid);
        }
    }

    fn of(&self, of: &TypeMeta) -> Vec<Arc<Informer>> {
        let running = self.inner.running.lock();
        running.iter().filter(|(key, _)| key.of == *of).map(|(_, running)| running.informer.clone()).collect()
    }
}

/// Keeps an informer running.
pub struct Lease {
    informer: Arc<Informer>,
    home: Weak<Inner>,
}

impl Deref for Lease {
    type Target = Informer;

    fn deref(&self) -> &Informer {
        &self.informer
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else { return };
        let mut running = home.running.lock();
        let Some(entry) = running.get_mut(&self.informer.key) else { return };
        entry.leases -= 1;
        if entry.leases == 0 {
            entry.driver.abort();
            running.remove(&self.informer.key);
            info!(informer = %self.informer.key, "informer stopped: nobody uses it any more");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for running in self.running.get_mut().values() {
            running.driver.abort();
        }
    }
}
