//! What is read at each scrape from where it lives, instead of being told at every change.

use std::{collections::BTreeMap, fmt, time::Duration};

use pilothouse_core::{
    key::TypeMeta,
    workqueue::{CHANGE, INITIAL},
};
use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{Labels, counters, gauges};

/// Somebody who owns live structures and can say how they are. Closures are, too:
/// `metrics.read_from(move |live: &mut Live| live.queues.push(…))`.
pub trait Snapshot: Send + Sync + 'static {
    /// Adds how things are now. Called at each scrape: must not block.
    fn read(&self, live: &mut Live);
}

impl<F: Fn(&mut Live) + Send + Sync + 'static> Snapshot for F {
    fn read(&self, live: &mut Live) {
        self(live);
    }
}

/// How things are at one scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Live {
    /// Of each controller. Those of one name are summed up.
    pub queues: Vec<Queue>,
    /// Of each informer. Those of one kind are summed up, whatever their scopes and selectors.
    pub informers: Vec<Informer>,
}

/// A controller's workqueue and workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    /// As in [`super::Metrics::add_controller`].
    pub controller: String,
    /// Ready keys by priority.
    pub depths: Vec<(i32, usize)>,
    /// Keys that were added, since the start.
    pub adds: u64,
    /// Of these by backoff.
    pub retries: u64,
    /// Time spent so far on all keys that are worked on.
    pub unfinished: Duration,
    /// On the one that takes longest.
    pub longest_running: Duration,
    /// Workers that work on a key.
    pub active_workers: usize,
    /// Workers that there are.
    pub max_concurrent: usize,
}

/// An informer's store and watch.
#[derive(Clone, Debug, PartialEq)]
pub struct Informer {
    /// The kind.
    pub of: TypeMeta,
    /// Objects in the store.
    pub objects: usize,
    /// Bytes that they take.
    pub bytes: usize,
    /// Whether the first list is in the store.
    pub synced: bool,
    /// Changes since the start by type: `added`, `updated`, `deleted`, `skipped`.
    pub events: Vec<(&'static str, u64)>,
    /// Relists since the start by reason.
    pub relists: Vec<(&'static str, u64)>,
}

#[derive(Default)]
struct QueueSum {
    depths: BTreeMap<String, u64>,
    adds: u64,
    retries: u64,
    unfinished: Duration,
    longest_running: Duration,
    active_workers: u64,
    max_concurrent: u64,
}

#[derive(Default)]
struct InformerSum {
    objects: u64,
    bytes: u64,
    unsynced: bool,
    events: BTreeMap<&'static str, u64>,
    relists: BTreeMap<&'static str, u64>,
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, live: &Live) -> fmt::Result {
    queues(encoder, &live.queues)?;
    informers(encoder, &live.informers)
}

fn queues(encoder: &mut DescriptorEncoder<'_>, queues: &[Queue]) -> fmt::Result {
    let mut all = BTreeMap::<&str, QueueSum>::new();
    for queue in queues {
        let sum = all.entry(&queue.controller).or_default();
        for (priority, depth) in [(CHANGE, 0), (INITIAL, 0)].into_iter().chain(queue.depths.iter().copied()) {
            *sum.depths.entry(priority.to_string()).or_default() += depth as u64;
        }
        sum.adds += queue.adds;
        sum.retries += queue.retries;
        sum.unfinished += queue.unfinished;
        sum.longest_running = sum.longest_running.max(queue.longest_running);
        sum.active_workers += queue.active_workers as u64;
        sum.max_concurrent += queue.max_concurrent as u64;
    }
    let controllers = || all.iter().map(|(name, queue)| ([("controller", *name)], queue));
    let queues = || all.iter().map(|(name, queue)| ([("name", *name), ("controller", *name)], queue));

    let max = controllers().map(|(labels, queue)| (labels, queue.max_concurrent));
    gauges(encoder, "controller_runtime_max_concurrent_reconciles", "Workers of the controller", max)?;
    let active = controllers().map(|(labels, queue)| (labels, queue.active_workers));
    gauges(encoder, "controller_runtime_active_workers", "Workers that work on a key", active)?;
    gauges(
        encoder,
        "workqueue_depth",
        "Keys that are ready, by priority",
        all.iter().flat_map(|(name, queue)| {
            let depths = queue.depths.iter();
            depths.map(|(priority, depth)| {
                ([("name", *name), ("controller", *name), ("priority", priority.as_str())], *depth)
            })
        }),
    )?;
    let adds = queues().map(|(labels, queue)| (labels, queue.adds));
    counters(encoder, "workqueue_adds", "Keys that were added", adds)?;
    let retries = queues().map(|(labels, queue)| (labels, queue.retries));
    counters(encoder, "workqueue_retries", "Keys that were added with growing delay", retries)?;
    let unfinished = queues().map(|(labels, queue)| (labels, queue.unfinished.as_secs_f64()));
    let help = "Time spent so far on keys that are worked on";
    gauges(encoder, "workqueue_unfinished_work_seconds", help, unfinished)?;
    let longest = queues().map(|(labels, queue)| (labels, queue.longest_running.as_secs_f64()));
    let help = "Time spent so far on the key that takes longest";
    gauges(encoder, "workqueue_longest_running_processor_seconds", help, longest)
}

fn informers(encoder: &mut DescriptorEncoder<'_>, informers: &[Informer]) -> fmt::Result {
    let mut all = BTreeMap::<&TypeMeta, InformerSum>::new();
    for informer in informers {
        let sum = all.entry(&informer.of).or_default();
        sum.objects += informer.objects as u64;
        sum.bytes += informer.bytes as u64;
        sum.unsynced |= !informer.synced;
        for (of, count) in &informer.events {
            *sum.events.entry(of).or_default() += count;
        }
        for (reason, count) in &informer.relists {
            *sum.relists.entry(reason).or_default() += count;
        }
    }
    let each = || all.iter().map(|(of, informer)| (kind(of), informer));
    let objects = each().map(|(labels, informer)| (labels, informer.objects));
    gauges(encoder, "pilothouse_informer_objects", "Objects in the cache", objects)?;
    let bytes = each().map(|(labels, informer)| (labels, informer.bytes));
    gauges(encoder, "pilothouse_informer_bytes", "Bytes that the cached objects take", bytes)?;
    let synced = each().map(|(labels, informer)| (labels, u64::from(!informer.unsynced)));
    gauges(encoder, "pilothouse_informer_synced", "1 where all of the kind's first lists are in the cache", synced)?;
    let events = all.iter().flat_map(|(of, informer)| {
        informer.events.iter().map(|(event, count)| (with(kind(of), "type", event), *count))
    });
    counters(encoder, "pilothouse_informer_events", "Changes of the cache, by type", events)?;
    let relists = all.iter().flat_map(|(of, informer)| {
        informer.relists.iter().map(|(reason, count)| (with(kind(of), "reason", reason), *count))
    });
    counters(encoder, "pilothouse_informer_relists", "Lists after the first, by reason", relists)
}

fn kind(of: &TypeMeta) -> Labels<'_, 3> {
    [("group", of.group()), ("version", of.version()), ("kind", &of.kind)]
}

fn with<'a>([group, version, kind]: Labels<'a, 3>, label: &'static str, value: &'a str) -> Labels<'a, 4> {
    [group, version, kind, (label, value)]
}
