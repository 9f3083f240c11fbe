//! kube-runtime's watcher and reflector as its documentation shows them: the default list and watch, with backoff.
//! managedFields are dropped before the store. The library has no index, and no workqueue outside its controller.

use std::{
    fmt::Debug,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject},
};
use kube_runtime::{
    WatchStreamExt,
    reflector::{Lookup, Store, store::Writer},
    watcher as watch,
    watcher::{self, Event},
};
use serde::de::DeserializeOwned;

use super::Keeper;

pub(crate) const TYPED: &str = "kube-runtime-typed";
pub(crate) const DYNAMIC: &str = "kube-runtime-dynamic";

pub(crate) fn typed() -> Result<()> {
    super::be::<Reflected<Pod>>()
}

pub(crate) fn dynamic() -> Result<()> {
    super::be::<Reflected<DynamicObject>>()
}

/// A kind of pod that the library knows.
trait AnyPod:
    Resource<DynamicType: Clone + Eq + Hash + Debug + Send + Sync>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    fn described() -> <Self as Resource>::DynamicType;
}

impl AnyPod for Pod {
    fn described() {}
}

impl AnyPod for DynamicObject {
    fn described() -> ApiResource {
        ApiResource::erase::<Pod>(&())
    }
}

struct Reflected<K: Lookup + 'static>
where
    K::DynamicType: Hash + Eq,
{
    store: Store<K>,
    updates: Arc<AtomicU64>,
}

impl<K: AnyPod> Keeper for Reflected<K> {
    async fn start(url: &str) -> Result<Self> {
        let config = kube::Config::new(url.parse().context("not a server's address")?);
        let client = Client::try_from(config).context("cannot make a client")?;
        let writer = Writer::<K>::new(K::described());
        let (store, updates) = (writer.as_reader(), Arc::new(AtomicU64::new(0)));
        let seen = updates.clone();
        let events = watch(Api::<K>::all_with(client, &K::described()), watcher::Config::default())
            .default_backoff()
            .modify(|pod| pod.meta_mut().managed_fields = None)
            .reflect(writer);
        tokio::spawn(events.for_each(move |event| {
            if let Ok(Event::Apply(_)) = event {
                seen.fetch_add(1, Ordering::Relaxed);
            }
            futures::future::ready(())
        }));
        store.wait_until_ready().await.context("the reflector has ended")?;
        Ok(Self { store, updates })
    }

    fn objects(&self) -> usize {
        self.store.len()
    }

    fn updates(&self) -> u64 {
        self.updates.load(Ordering::Relaxed)
    }

    fn live(&self) -> Option<usize> {
        None
    }
}
