//! Plugins list everything while events arrive. Measures how long an event waits for the store, and how much is read
//! meanwhile.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use pilothouse::informer::{Lease, Moment, WORK};
use pilothouse_core::{key::TypeMeta, object::Object, selector::Selector, store::Query};
use tokio::runtime::Runtime;

use crate::{
    keepers::{host, objects, serve},
    objects::{Pod, scatter},
    statistics::percentile,
};

const READERS: usize = 8;
const EVENTS: u64 = 20_000;

/// Microseconds until an event is in the store: median, 99th percentile and maximum; and objects per second that all
/// readers together list and copy as into a guest. Readers and writer need more cores than most machines have, so the
/// writer's wait for a core is included.
pub(super) fn measure() -> Result<Vec<f64>> {
    let runtime = Runtime::new().context("cannot start a runtime")?;
    let objects = objects()?;
    let (server, (pods, informers)) = runtime.block_on(async {
        let (server, url) = serve(objects).await?;
        let (pods, informers) = host::pods(&url).await?;
        pods.synced().wait_for(|synced| *synced).await.context("the informer has ended")?;
        anyhow::Ok((server, (pods, informers)))
    })?;
    let alone = write(&events(objects, 0)?, |event| informers.own_write(event));

    let (ends, listed) = (AtomicBool::new(false), AtomicU64::new(0));
    let events = events(objects, EVENTS)?;
    let (waits, time) = thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    list(&pods, &ends, &listed);
                }
            });
        }
        let start = Instant::now();
        let waits = write(&events, |event| informers.own_write(event));
        let time = start.elapsed();
        ends.store(true, Ordering::Relaxed);
        (waits, time)
    });
    ensure!(listed.load(Ordering::Relaxed) > 0, "nothing was listed");
    drop(server);
    let at = |waits: &[f64], percent| percentile(waits, percent).context("no event was written");
    eprintln!("  without readers: {:.1} µs, 99th percentile {:.1}", at(&alone, 50.0)?, at(&alone, 99.0)?);
    let rate = listed.into_inner() as f64 / time.as_secs_f64();
    Ok(vec![at(&waits, 50.0)?, at(&waits, 99.0)?, at(&waits, 100.0)?, rate])
}

/// Returns pods at new versions, as the store gets them.
fn events(objects: u64, after: u64) -> Result<Vec<Arc<Object>>> {
    let of = TypeMeta::new("v1", "Pod");
    let event = |version: u64| {
        let mut text = String::new();
        Pod::of(scatter(version) % objects).write(&mut text, version, true);
        anyhow::Ok(Arc::new(Object::parse(text.as_bytes(), &of)?))
    };
    (objects + after + 1..=objects + after + EVENTS).map(event).collect()
}

/// Returns the microseconds of each event.
fn write(events: &[Arc<Object>], take_in: impl Fn(&Arc<Object>)) -> Vec<f64> {
    let timed = |event: &Arc<Object>| {
        let start = Instant::now();
        take_in(event);
        start.elapsed()
    };
    events.iter().map(timed).map(|wait: Duration| wait.as_secs_f64() * 1e6).collect()
}

/// Lists all objects page by page from one snapshot, as a plugin's call does.
fn list(pods: &Lease, ends: &AtomicBool, listed: &AtomicU64) {
    let (all, moment) = (Selector::default(), Moment::default());
    let (mut after, mut guest) = (None, String::new());
    while !ends.load(Ordering::Relaxed) {
        let query = Query { after: after.as_ref(), ..Query::new(&all) };
        let page = pods.page(&query, Some(&moment), WORK);
        guest.clear();
        for object in &page.items {
            guest.push_str(&object.json());
        }
        listed.fetch_add(page.items.len() as u64, Ordering::Relaxed);
        match page.next {
            Some(next) => after = Some(next),
            None => return,
        }
    }
}
