//! Plugins that list everything while events come in: how long an event waits to be taken in, and how much is read meanwhile.

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

/// Microseconds that an event takes to be in the store, at the median, the 99th percentile and the worst; and objects that all readers
/// together list, and copy as into a guest, in a second. Readers and writer ask for more cores than most machines have: where the
/// writer waits for a core and not for the store, it is in here too.
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

/// Pods at versions that nobody has seen, as the store is given them.
fn events(objects: u64, after: u64) -> Result<Vec<Arc<Object>>> {
    let of = TypeMeta::new("v1", "Pod");
    let event = |version: u64| {
        let mut text = String::new();
        Pod::of(scatter(version) % objects).write(&mut text, version, true);
        anyhow::Ok(Arc::new(Object::parse(text.as_bytes(), &of)?))
    };
    (objects + after + 1..=objects + after + EVENTS).map(event).collect()
}

/// Microseconds that each took.
fn write(events: &[Arc<Object>], take_in: impl Fn(&Arc<Object>)) -> Vec<f64> {
    let timed = |event: &Arc<Object>| {
        let start = Instant::now();
        take_in(event);
        start.elapsed()
    };
    events.iter().map(timed).map(|wait: Duration| wait.as_secs_f64() * 1e6).collect()
}

/// Lists all objects, page by page and at one moment, as a plugin's call does.
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
