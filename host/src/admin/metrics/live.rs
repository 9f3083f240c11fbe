//! What is read at each scrape from where it lives, instead of being told at every change.

use std::{collections::BTreeMap, fmt, time::Duration};

use pilothouse_core::{
    key::TypeMeta,
    workqueue::{CHANGE, INITIAL},
};
use prometheus_client::encoding::DescriptorEncoder;

use super::{
    code::{self, Code},
    encode::{Labels, counters, gauges},
    guests::{self, Account},
    instances::{self, Instances},
    requests::{self, Requests},
    routes::{self, Backlog, HostCalls, Predicates, Routes},
};

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
    /// Of each controller. Those of one name are summed up.
    pub routes: Vec<Routes>,
    /// Of each controller and observer. Those of one plugin and export are summed up.
    pub backlogs: Vec<Backlog>,
    /// By controller or observer: those of one plugin are summed up.
    pub predicates: Vec<Predicates>,
    /// Of each plugin, once.
    pub accounts: Vec<Account>,
    /// Of each plugin, once.
    pub requests: Vec<Requests>,
    /// Of each plugin, once.
    pub instances: Vec<Instances>,
    /// Compiled code. Those of several engines are not summed up: there is one.
    pub code: Option<Code>,
    /// Of each plugin, once.
    pub calls: Vec<HostCalls>,
    /// What became of Events, since the start.
    pub events: Vec<(&'static str, u64)>,
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
    /// 1, or 0 for what is counted of informers that have stopped.
    pub running: u64,
    /// Leases that it shows.
    pub leases: usize,
    /// Objects in the store.
    pub objects: usize,
    /// Bytes that they take.
    pub bytes: usize,
    /// Calls that read it as it was at a moment of theirs.
    pub snapshots: usize,
    /// Whether the first list is in the store.
    pub synced: bool,
    /// Changes since the start by type: `added`, `updated`, `deleted`, `skipped`.
    pub events: Vec<(&'static str, u64)>,
    /// Relists since the start by reason.
    pub relists: Vec<(&'static str, u64)>,
    /// Requests and watches that failed since the start, by reason.
    pub failures: Vec<(&'static str, u64)>,
    /// Times that the driver failed and was started anew.
    pub restarts: u64,
    /// Own writes that the watch has brought.
    pub own_writes: u64,
    /// From their answers to their events, all together.
    pub own_lag: Duration,
    /// Calls that saw the present before their end, because too much changed while they read.
    pub snapshots_given_up: u64,
    /// How long the first list took, once it is complete.
    pub synced_after: Option<Duration>,
    /// How long the present watch is open, if one is.
    pub watch_age: Option<Duration>,
    /// Since the server last sent anything, if it ever did.
    pub silence: Option<Duration>,
    /// How long no watch has been open; zero while one is.
    pub stale: Duration,
    /// Versions that the newest the host has seen of any kind is ahead.
    pub behind: u64,
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
    snapshots: u64,
    running: u64,
    leases: u64,
    unsynced: bool,
    events: BTreeMap<&'static str, u64>,
    relists: BTreeMap<&'static str, u64>,
    failures: BTreeMap<&'static str, u64>,
    restarts: u64,
    own_writes: u64,
    own_lag: Duration,
    snapshots_given_up: u64,
    synced_after: Option<Duration>,
    watch_age: Option<Duration>,
    silence: Option<Duration>,
    stale: Duration,
    behind: u64,
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, live: &Live) -> fmt::Result {
    queues(encoder, &live.queues)?;
    routes::encode(encoder, &live.routes, &live.backlogs)?;
    routes::encode_predicates(encoder, &live.predicates)?;
    guests::encode(encoder, &live.accounts)?;
    requests::encode(encoder, &live.requests)?;
    instances::encode(encoder, &live.instances)?;
    routes::encode_calls(encoder, &live.calls, &live.events)?;
    informers(encoder, &live.informers)?;
    live.code.as_ref().map_or(Ok(()), |code| code::encode(encoder, code))
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
        sum.snapshots += informer.snapshots as u64;
        sum.running += informer.running;
        sum.leases += informer.leases as u64;
        sum.unsynced |= !informer.synced;
        sum.restarts += informer.restarts;
        sum.own_writes += informer.own_writes;
        sum.own_lag += informer.own_lag;
        sum.snapshots_given_up += informer.snapshots_given_up;
        // Of several the worst. Durations that are not there are less than any.
        sum.synced_after = sum.synced_after.max(informer.synced_after);
        sum.watch_age = sum.watch_age.max(informer.watch_age);
        sum.silence = sum.silence.max(informer.silence);
        sum.stale = sum.stale.max(informer.stale);
        sum.behind = sum.behind.max(informer.behind);
        for (of, count) in &informer.events {
            *sum.events.entry(of).or_default() += count;
        }
        for (reason, count) in &informer.relists {
            *sum.relists.entry(reason).or_default() += count;
        }
        for (reason, count) in &informer.failures {
            *sum.failures.entry(reason).or_default() += count;
        }
    }
    let each = || all.iter().map(|(of, informer)| (kind(of), informer));
    let objects = each().map(|(labels, informer)| (labels, informer.objects));
    gauges(encoder, "pilothouse_informer_objects", "Objects in the cache", objects)?;
    let bytes = each().map(|(labels, informer)| (labels, informer.bytes));
    gauges(encoder, "pilothouse_informer_bytes", "Bytes that the cached objects take", bytes)?;
    let running = each().map(|(labels, informer)| (labels, informer.running));
    gauges(
        encoder,
        "pilothouse_informer_running",
        "Informers of the kind: as many copies as scopes that do not cover each other",
        running,
    )?;
    let leases = each().map(|(labels, informer)| (labels, informer.leases));
    gauges(encoder, "pilothouse_informer_leases", "Uses of the kind's informers by plugins", leases)?;
    let synced = each().map(|(labels, informer)| (labels, u64::from(!informer.unsynced)));
    gauges(encoder, "pilothouse_informer_synced", "1 where all of the kind's first lists are in the cache", synced)?;
    let events = all.iter().flat_map(|(of, informer)| {
        informer.events.iter().map(|(event, count)| (with(kind(of), "type", event), *count))
    });
    counters(encoder, "pilothouse_informer_events", "Changes of the cache, by type", events)?;
    let relists = all.iter().flat_map(|(of, informer)| {
        informer.relists.iter().map(|(reason, count)| (with(kind(of), "reason", reason), *count))
    });
    counters(encoder, "pilothouse_informer_relists", "Lists after the first, by reason", relists)?;
    let failures = all.iter().flat_map(|(of, informer)| {
        informer.failures.iter().map(|(reason, count)| (with(kind(of), "reason", reason), *count))
    });
    let help = "Requests and watches of the informers that failed, by reason";
    counters(encoder, "pilothouse_informer_failures", help, failures)?;
    let restarts = each().map(|(labels, informer)| (labels, informer.restarts));
    counters(
        encoder,
        "pilothouse_informer_restarts",
        "Times that the host failed over an informer and began anew",
        restarts,
    )?;
    let snapshots = each().map(|(labels, informer)| (labels, informer.snapshots));
    let help = "Calls that see the cache as it was at their first read of it";
    gauges(encoder, "pilothouse_informer_snapshots", help, snapshots)?;
    let given_up = each().map(|(labels, informer)| (labels, informer.snapshots_given_up));
    counters(
        encoder,
        "pilothouse_informer_snapshots_given_up",
        "Calls that saw the present before their end, because too much changed while they read",
        given_up,
    )?;
    lag(encoder, &all)
}

/// What tells how far the cache may be behind the server.
fn lag(encoder: &mut DescriptorEncoder<'_>, all: &BTreeMap<&TypeMeta, InformerSum>) -> fmt::Result {
    let each = || all.iter().map(|(of, informer)| (kind(of), informer));
    let seconds = |of: fn(&InformerSum) -> Option<Duration>| {
        each().filter_map(move |(labels, informer)| Some((labels, of(informer)?.as_secs_f64())))
    };
    let help = "How long the first list took, the longest of the kind";
    gauges(encoder, "pilothouse_informer_sync_seconds", help, seconds(|informer| informer.synced_after))?;
    let help = "How long the present watch is open, the oldest of the kind";
    gauges(encoder, "pilothouse_informer_watch_age_seconds", help, seconds(|informer| informer.watch_age))?;
    let help = "Since the API server last sent anything, bookmarks included, the longest of the kind";
    gauges(encoder, "pilothouse_informer_silence_seconds", help, seconds(|informer| informer.silence))?;
    let stale = each().map(|(labels, informer)| (labels, informer.stale.as_secs_f64()));
    let help = "How long no watch has been open, the longest of the kind; 0 while one is";
    gauges(encoder, "pilothouse_informer_stale_seconds", help, stale)?;
    let behind = each().map(|(labels, informer)| (labels, informer.behind));
    let help = "Versions that the newest the host has seen of any kind is ahead of what the watch covers";
    gauges(encoder, "pilothouse_informer_versions_behind", help, behind)?;
    let writes = each().map(|(labels, informer)| (labels, informer.own_writes));
    let help = "Own writes whose watch events have come";
    counters(encoder, "pilothouse_informer_own_writes", help, writes)?;
    let lag = each().map(|(labels, informer)| (labels, informer.own_lag.as_secs_f64()));
    let help = "Time from the answers to own writes to their watch events, all together";
    counters(encoder, "pilothouse_informer_own_write_lag_seconds", help, lag)
}

fn kind(of: &TypeMeta) -> Labels<'_, 3> {
    [("group", of.group()), ("version", of.version()), ("kind", &of.kind)]
}

fn with<'a>([group, version, kind]: Labels<'a, 3>, label: &'static str, value: &'a str) -> Labels<'a, 4> {
    [group, version, kind, (label, value)]
}
