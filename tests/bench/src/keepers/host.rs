//! The host's own informer with a route to the owner and a workqueue, as a controller has them.

use std::time::Instant;

use anyhow::{Context, Result};
use pilothouse::{
    cluster::Cluster,
    informer::{InformerKey, Informers, Intake, Lease},
};
use pilothouse_core::{
    key::{Key, TypeMeta},
    route::{Mapping, keys},
    workqueue::{CHANGE, Workqueue},
};
use tokio::runtime::Handle;

use super::Keeper;

pub(crate) const NAME: &str = "pilothouse";

pub(crate) fn run() -> Result<()> {
    super::be::<Host>()
}

struct Host {
    pods: Lease,
    _informers: Informers,
}

/// Starts an informer of all pods on that server and waits until it is in sync.
pub(crate) async fn pods(url: &str) -> Result<(Lease, Informers)> {
    let mut config = kube::Config::new(url.parse().context("not a server's address")?);
    config.default_retry = false;
    let client = kube::Client::try_from(config).context("cannot make a client")?;
    let intake = Intake::start().context("cannot start the thread for informers")?;
    let runs_on = intake.handle().clone();
    // Runs as long as the process.
    std::mem::forget(intake);
    let informers = Informers::new(Cluster::new(client, url, Handle::current()), runs_on);
    let pods = informers.acquire(InformerKey::all(TypeMeta::new("v1", "Pod")), "bench");
    Ok((pods, informers))
}

impl Keeper for Host {
    async fn start(url: &str) -> Result<Self> {
        let (pods, informers) = pods(url).await?;
        let mapping = Mapping::Owner { of: TypeMeta::new("apps/v1", "ReplicaSet"), namespaced: true };
        let begin = Instant::now();
        let work = parking_lot::Mutex::new((Workqueue::<Key>::default(), Vec::new()));
        pods.subscribe(Box::new(move |change, _| {
            let (queue, routed) = &mut *work.lock();
            keys(&mapping, change, |_, _, _| Vec::new(), routed);
            let now = begin.elapsed();
            for key in routed.drain(..) {
                queue.add(now, key, CHANGE);
            }
            // A worker that only takes keys and gives them back.
            while let Some(item) = queue.get(now) {
                queue.done(now, &item.key);
            }
        }));
        pods.synced().wait_for(|synced| *synced).await.context("the informer has ended")?;
        Ok(Self { pods, _informers: informers })
    }

    fn objects(&self) -> usize {
        self.pods.informer().size().0
    }

    fn updates(&self) -> u64 {
        self.pods.informer().tally().updated
    }

    fn live(&self) -> Option<usize> {
        Some(self.pods.informer().size().1)
    }
}
