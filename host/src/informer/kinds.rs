//! Wakes informers whose kind is not served yet, as soon as the server may have it.
//!
//! An informer looks for a missing kind at growing intervals, up to 30 s. It looks at once when a
//! CustomResourceDefinition changes. The host learns of such a change from a watch, which is open only while an
//! informer waits or somebody follows the kinds, and from its own installations.
//!
//! ```text
//! watch on definitions ─┐
//! Writer::install ──────┴─► changed ─► announce: forget discovery's answers ─► every waiting informer looks again
//! ```

use std::{sync::Arc, time::Duration};

use pilothouse_core::{
    backoff::{Backoff, COSTLY},
    key::TypeMeta,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tracing::debug;

use crate::cluster::{Cluster, Error, Select};

/// Pauses between looks after a change. API servers report a definition as established before discovery lists the kind.
const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1500)];

/// The least time between two looks. Hundreds of definitions may come at once.
const SPACING: Duration = Duration::from_millis(250);

/// How long one watch on definitions stays open.
const WATCH_FOR: Duration = Duration::from_secs(300);

/// Silence after which that watch counts as dead. Servers send a bookmark about once a minute.
const DEAD_AFTER: Duration = Duration::from_secs(150);

/// The signals between informers that wait for their kind and the tasks that notice new kinds.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    /// Number of informers that wait for their kind, and of those who follow all kinds.
    waiting: watch::Sender<usize>,
    /// Increases when the server may serve other kinds than before.
    looks: watch::Sender<u64>,
    /// Notified when a definition has changed.
    changed: Arc<Notify>,
}

impl Kinds {
    /// Changes when a waiting informer should look for its kind.
    pub(super) fn looks(&self) -> watch::Receiver<u64> {
        self.looks.subscribe()
    }

    /// Reports that a definition has changed.
    pub(super) fn changed(&self) {
        self.changed.notify_one();
    }

    /// Counts an informer as waiting until the guard is dropped.
    pub(super) fn wait(&self) -> WaitGuard<'_> {
        self.waiting.send_modify(|waiting| *waiting += 1);
        WaitGuard(&self.waiting)
    }

    /// Follows which kinds the server serves.
    pub(super) fn follow(&self) -> KindsWatch {
        self.waiting.send_modify(|waiting| *waiting += 1);
        KindsWatch { waiting: self.waiting.clone(), looks: self.looks.subscribe() }
    }

    /// Runs both tasks until `self` is dropped.
    pub(super) fn tasks(&self, cluster: &Cluster) -> impl Future<Output = ()> + Send + use<> {
        let announcing = announce(cluster.clone(), self.looks.clone(), self.changed.clone());
        let watching = watch_definitions(cluster.clone(), self.waiting.subscribe(), self.changed.clone());
        async move {
            // `watch_definitions` ends when `Kinds` is dropped.
            tokio::select! {
                never = announcing => match never {},
                () = watching => {}
            }
        }
    }
}

/// Tells when the server may serve other kinds. While it exists, the host watches definitions.
pub struct KindsWatch {
    waiting: watch::Sender<usize>,
    looks: watch::Receiver<u64>,
}

impl KindsWatch {
    /// Returns when the server may serve other kinds than before.
    pub async fn changed(&mut self) {
        if self.looks.changed().await.is_err() {
            // The registry is gone.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for KindsWatch {
    fn drop(&mut self) {
        self.waiting.send_modify(|waiting| *waiting = waiting.saturating_sub(1));
    }
}

pub(super) struct WaitGuard<'a>(&'a watch::Sender<usize>);

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting = waiting.saturating_sub(1));
    }
}

/// Makes informers look at each change, and twice more after it.
async fn announce(cluster: Cluster, looks: watch::Sender<u64>, changed: Arc<Notify>) -> std::convert::Infallible {
    let look = || {
        cluster.forget_discovered();
        looks.send_modify(|looks| *looks += 1);
    };
    loop {
        changed.notified().await;
        look();
        let mut pauses = AGAIN.into_iter();
        loop {
            sleep(SPACING).await;
            let Some(pause) = pauses.next() else { break };
            if timeout(pause - SPACING, changed.notified()).await.is_ok() {
                pauses = AGAIN.into_iter();
            }
            look();
        }
    }
}

/// Watches definitions while anybody waits for kinds. If the host may not watch them, informers look at their own
/// intervals.
async fn watch_definitions(cluster: Cluster, mut waiting: watch::Receiver<usize>, changed: Arc<Notify>) {
    let (origin, seed) = (Instant::now(), std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0));
    let mut backoff = Backoff::new(COSTLY, seed);
    while waiting.wait_for(|waiting| *waiting > 0).await.is_ok() {
        let healthy = &mut || backoff.healthy(origin.elapsed());
        let ended = tokio::select! {
            ended = follow(&cluster, &changed, healthy) => ended,
            () = closed(&mut waiting) => return,
        };
        let delay = backoff.next(origin.elapsed());
        debug!(reason = ended.err().map(tracing::field::display), retry_in = ?delay, "the watch on CustomResourceDefinitions ended");
        tokio::select! {
            () = sleep(delay) => {}
            () = closed(&mut waiting) => return,
        }
    }
}

async fn closed(waiting: &mut watch::Receiver<usize>) {
    while waiting.changed().await.is_ok() {}
}

/// Reports each event of one watch, until the watch ends.
async fn follow(cluster: &Cluster, changed: &Notify, healthy: &mut impl FnMut()) -> Result<(), Error> {
    let of = TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    let endpoint = cluster.endpoint(&of).await?;
    let all = Select { namespace: None, labels: String::new(), fields: String::new(), metadata_only: true };
    // Without a version, the watch begins with the existing definitions.
    let mut stream = cluster.watch(&endpoint, &all, "", false, WATCH_FOR).await?;
    healthy();
    loop {
        match timeout(DEAD_AFTER, stream.next()).await {
            Ok(Some(Ok(bytes))) => {
                if !bytes.starts_with(br#"{"type":"BOOKMARK""#) {
                    changed.notify_one();
                }
            }
            Ok(Some(Err(error))) => return Err(Error::Unreachable(error)),
            Ok(None) => return Ok(()),
            Err(_) => return Err(Error::Unreachable(format!("silent for {} s", DEAD_AFTER.as_secs()))),
        }
    }
}
