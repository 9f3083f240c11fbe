//! The objects of a run, and the tasks that change them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::{
    apple::{Apple, has_what_it_asks_for, resource},
    random::Random,
    scene::Scene,
};

/// Number of tasks that change objects. Each has its own objects.
const WRITERS: u32 = 8;

/// The tasks that change MyApples and their children.
pub(super) struct Load {
    shared: Arc<Shared>,
    writers: Vec<JoinHandle<Result<()>>>,
    begun: Instant,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    changes: AtomicU64,
}

impl Load {
    /// Creates MyApples, and begins to change them, `rate` times a second together.
    pub(super) async fn start(apples: &[Apple], rate: u32, random: &mut Random) -> Result<Self> {
        stream::iter(apples)
            .map(async |apple| apple.create(2).await.map(drop))
            .buffer_unordered(usize::try_from(WRITERS)?)
            .try_collect::<()>()
            .await?;
        let shared = Arc::new(Shared::default());
        let every = Duration::from_secs(WRITERS.into()) / rate.max(1);
        let share = apples.len().div_ceil(usize::try_from(WRITERS)?).max(1);
        let writers = apples
            .chunks(share)
            .map(|own| tokio::spawn(write(shared.clone(), own.to_vec(), every, random.fork())))
            .collect();
        Ok(Self { shared, writers, begun: Instant::now() })
    }

    /// Number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }

    /// Ends the changes. Returns how many there were, and how many in a second.
    ///
    /// # Errors
    /// A change failed.
    pub(super) async fn stop(self) -> Result<(u64, f64)> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let lasted = self.begun.elapsed();
        let changes = self.changes();
        for writer in self.writers {
            writer.await.context("a writer broke down")??;
        }
        Ok((changes, changes as f64 / lasted.as_secs_f64()))
    }
}

async fn write(shared: Arc<Shared>, own: Vec<Apple>, every: Duration, mut random: Random) -> Result<()> {
    // A writer that is late catches up.
    let mut ticks = tokio::time::interval(every);
    while !shared.stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        shared.changes.fetch_add(1, Ordering::Relaxed);
        let apple = random.one(&own);
        let spec = match random.below(10) {
            0 => {
                let patch = Patch::Merge(json!({"data": {"color": "rotten"}}));
                let edited = apple.maps.patch(&apple.child(0), &PatchParams::default(), &patch).await;
                // The host may not have created it yet.
                if !matches!(&edited, Err(kube::Error::Api(status)) if status.code == 404) {
                    edited.with_context(|| format!("cannot edit the ConfigMap {}", apple.child(0)))?;
                }
                continue;
            }
            1 | 2 => json!({"quantity": 1 + random.below(3)}),
            _ => json!({"color": format!("color-{}", random.below(1_000_000))}),
        };
        let patch = Patch::Merge(json!({"spec": spec}));
        let changed = apple.apples.patch(&apple.name, &PatchParams::default(), &patch).await;
        changed.with_context(|| format!("cannot change the MyApple {}", apple.name))?;
    }
    Ok(())
}

/// Returns what differs from the specs of all MyApples of the server.
pub(super) async fn deviations(scene: &Scene) -> Result<Vec<String>> {
    let apples: Api<DynamicObject> = Api::all_with(scene.client(), &resource());
    let apples = apples.list(&ListParams::default()).await.context("cannot list the MyApples")?;
    let maps: Api<ConfigMap> = Api::all(scene.client());
    let maps = maps.list(&ListParams::default()).await.context("cannot list the ConfigMaps")?;
    let mut children: BTreeMap<&str, Vec<&ConfigMap>> = BTreeMap::new();
    for map in &maps {
        for owner in map.owner_references().iter().filter(|owner| owner.controller == Some(true)) {
            children.entry(&owner.uid).or_default().push(map);
        }
    }
    let deviation = |apple: &DynamicObject| {
        let children = apple.metadata.uid.as_deref().and_then(|uid| children.get(uid));
        let error = has_what_it_asks_for(apple, children.map_or(&[], Vec::as_slice)).err()?;
        Some(format!("lost: the MyApple {}: {error:#}", apple.name_any()))
    };
    Ok(apples.iter().filter_map(deviation).collect())
}
