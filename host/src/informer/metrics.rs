//! How informers fare: samples by kind for `/metrics`, and a row for each informer for `/debug/informers`.

use std::{collections::BTreeMap, fmt, time::Duration};

use pilothouse_core::key::TypeMeta;
use serde::Serialize;

use super::{Holding, Informers, Tally};
use crate::metrics::{self, DescriptorEncoder, Labels, Registry, counters, gauges};

/// One informer: a row of `/debug/informers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InformerRow {
    /// `apps/v1 Deployment`.
    pub kind: String,
    /// `None` stands for all.
    pub namespace: Option<String>,
    /// A label selector. If empty, it selects every object.
    pub labels: String,
    /// A field selector. If empty, it selects every object.
    pub fields: String,
    /// What is kept of each object: `metadata only`, `without status.images`. If empty, all is.
    pub keeps: String,
    /// `true` if objects are kept compressed, as all leases ask for it.
    pub compressed: bool,
    /// `true` if the first list is in the store.
    pub synced: bool,
    /// What the reflector does, and why it does not go on.
    pub state: String,
    /// Its uses by plugins.
    pub leases: Vec<LeaseRow>,
    /// Objects in the store.
    pub objects: usize,
    /// Bytes of the objects and their indexes.
    pub bytes: usize,
    /// Changes of the store since the start.
    pub events: u64,
    /// Objects that could not be read.
    pub skipped: u64,
    /// Lists after the first.
    pub relists: u64,
    /// Times that the driver failed and was started again.
    pub restarts: u64,
    /// Time since the API server last sent anything, or `None` if it never did.
    pub heard_seconds: Option<u64>,
    /// The newest version that the watch has covered.
    pub version: u64,
    /// Versions between this one and the newest that the host has seen of any kind.
    pub behind: u64,
}

/// One use of an informer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeaseRow {
    /// The holder of the lease.
    pub plugin: String,
    /// What was asked for: `v1 Pod in web where app=a, metadata only, compressed`.
    pub asks: String,
}

impl Informers {
    /// Returns a row for each informer, in the order of their keys.
    pub fn rows(&self) -> Vec<InformerRow> {
        self.holdings().into_iter().map(row).collect()
    }
}

fn row(Holding { informer, leases }: Holding) -> InformerRow {
    let (key, tally, health, (objects, bytes)) = (informer.key(), informer.tally(), informer.health(), informer.size());
    let lease = |lease: &super::Use| LeaseRow { plugin: lease.holder.to_string(), asks: lease.to_string() };
    InformerRow {
        kind: key.of.to_string(),
        namespace: key.namespace.as_deref().map(str::to_owned),
        labels: key.labels.to_string(),
        fields: key.fields.to_string(),
        keeps: key.keep.to_string(),
        compressed: informer.is_compressed(),
        synced: informer.is_synced(),
        state: informer.state().to_string(),
        leases: leases.iter().map(lease).collect(),
        objects,
        bytes,
        events: tally.added + tally.updated + tally.deleted,
        skipped: tally.skipped,
        relists: tally.relists.values().sum(),
        restarts: tally.restarts,
        heard_seconds: health.heard.map(|at| at.elapsed().as_secs()),
        version: informer.version().0,
        behind: informer.behind(),
    }
}

/// Registers the figures of `informers`.
pub(crate) fn register(registry: &mut Registry, informers: &Informers) {
    let informers = informers.clone();
    metrics::register(registry, move |encoder| encode(&kinds(&informers), encoder));
}

/// All informers of one kind, whatever their scopes and selectors.
#[derive(Default)]
struct Kind {
    /// Informers that have stopped count here too.
    tally: Tally,
    running: u64,
    leases: u64,
    objects: u64,
    bytes: u64,
    snapshots: u64,
    unsynced: bool,
    // Of several informers the worst. A duration that is missing is less than any.
    synced_after: Option<Duration>,
    watch_age: Option<Duration>,
    silence: Option<Duration>,
    stale: Duration,
    behind: u64,
}

fn kinds(informers: &Informers) -> BTreeMap<TypeMeta, Kind> {
    let mut kinds = BTreeMap::<TypeMeta, Kind>::new();
    for (of, tally) in informers.past() {
        kinds.entry(of).or_default().tally.add(&tally);
    }
    for Holding { informer, leases } in informers.holdings() {
        let ((objects, bytes), health) = (informer.size(), informer.health());
        let kind = kinds.entry(informer.key().of.clone()).or_default();
        kind.tally.add(&informer.tally());
        kind.running += 1;
        kind.leases += leases.len() as u64;
        kind.objects += objects as u64;
        kind.bytes += bytes as u64;
        kind.snapshots += informer.snapshots() as u64;
        kind.unsynced |= !informer.is_synced();
        kind.synced_after = kind.synced_after.max(health.synced_after);
        kind.watch_age = kind.watch_age.max(health.watching.map(|since| since.elapsed()));
        kind.silence = kind.silence.max(health.heard.map(|at| at.elapsed()));
        kind.stale = kind.stale.max(health.stale());
        kind.behind = kind.behind.max(informer.behind());
    }
    kinds
}

fn encode(all: &BTreeMap<TypeMeta, Kind>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let each = |figure: fn(&Kind) -> u64| all.iter().map(move |(of, kind)| (labels(of), figure(kind)));
    gauges(encoder, "pilothouse_informer_objects", "Objects in the cache", each(|kind| kind.objects))?;
    gauges(encoder, "pilothouse_informer_bytes", "Bytes that the cached objects take", each(|kind| kind.bytes))?;
    let help = "Informers of the kind: as many copies as scopes that do not cover each other";
    gauges(encoder, "pilothouse_informer_running", help, each(|kind| kind.running))?;
    let help = "Uses of the kind's informers by plugins";
    gauges(encoder, "pilothouse_informer_leases", help, each(|kind| kind.leases))?;
    let help = "1 where all of the kind's first lists are in the cache";
    gauges(encoder, "pilothouse_informer_synced", help, each(|kind| u64::from(!kind.unsynced)))?;
    let events = all.iter().flat_map(|(of, Kind { tally, .. })| {
        let events = [
            ("added", tally.added),
            ("deleted", tally.deleted),
            ("skipped", tally.skipped),
            ("updated", tally.updated),
        ];
        events.map(|(event, count)| (with(of, "type", event), count))
    });
    counters(encoder, "pilothouse_informer_events", "Changes of the cache, by type", events)?;
    let relists = all.iter().flat_map(|(of, kind)| {
        kind.tally.relists.iter().map(|(reason, count)| (with(of, "reason", reason.as_str()), *count))
    });
    counters(encoder, "pilothouse_informer_relists", "Lists after the first, by reason", relists)?;
    let failures = all
        .iter()
        .flat_map(|(of, kind)| kind.tally.failures.iter().map(|(reason, count)| (with(of, "reason", reason), *count)));
    let help = "Requests and watches of the informers that failed, by reason";
    counters(encoder, "pilothouse_informer_failures", help, failures)?;
    let help = "Times that the host failed over an informer and began anew";
    counters(encoder, "pilothouse_informer_restarts", help, each(|kind| kind.tally.restarts))?;
    let help = "Calls that see the cache as it was at their first read of it";
    gauges(encoder, "pilothouse_informer_snapshots", help, each(|kind| kind.snapshots))?;
    let help = "Calls that saw the present before their end, because too much changed while they read";
    counters(encoder, "pilothouse_informer_snapshots_given_up", help, each(|kind| kind.tally.snapshots_given_up))?;
    lag(all, encoder)
}

/// Encodes how far the cache may be behind the server.
fn lag(all: &BTreeMap<TypeMeta, Kind>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let seconds = |duration: fn(&Kind) -> Option<Duration>| {
        all.iter().filter_map(move |(of, kind)| Some((labels(of), duration(kind)?.as_secs_f64())))
    };
    let help = "How long the first list took, the longest of the kind";
    gauges(encoder, "pilothouse_informer_sync_seconds", help, seconds(|kind| kind.synced_after))?;
    let help = "How long the present watch is open, the oldest of the kind";
    gauges(encoder, "pilothouse_informer_watch_age_seconds", help, seconds(|kind| kind.watch_age))?;
    let help = "Since the API server last sent anything, bookmarks included, the longest of the kind";
    gauges(encoder, "pilothouse_informer_silence_seconds", help, seconds(|kind| kind.silence))?;
    let help = "How long no watch has been open, the longest of the kind; 0 while one is";
    gauges(encoder, "pilothouse_informer_stale_seconds", help, seconds(|kind| Some(kind.stale)))?;
    let behind = all.iter().map(|(of, kind)| (labels(of), kind.behind));
    let help = "Versions that the newest the host has seen of any kind is ahead of what the watch covers";
    gauges(encoder, "pilothouse_informer_versions_behind", help, behind)?;
    let writes = all.iter().map(|(of, kind)| (labels(of), kind.tally.own_writes));
    counters(encoder, "pilothouse_informer_own_writes", "Own writes whose watch events have come", writes)?;
    let help = "Time from the answers to own writes to their watch events, all together";
    let lag = seconds(|kind| Some(kind.tally.own_lag));
    counters(encoder, "pilothouse_informer_own_write_lag_seconds", help, lag)
}

fn labels(of: &TypeMeta) -> Labels<'_, 3> {
    [("group", of.group()), ("version", of.version()), ("kind", &of.kind)]
}

fn with<'a>(of: &'a TypeMeta, label: &'static str, value: &'a str) -> Labels<'a, 4> {
    let [group, version, kind] = labels(of);
    [group, version, kind, (label, value)]
}

#[cfg(test)]
mod tests {
    use pilothouse_core::reflector::RelistReason;

    use super::*;

    #[test]
    fn each_kind_has_its_samples() {
        let mut registry = Registry::default();
        metrics::register(&mut registry, |encoder| {
            let tally = Tally {
                added: 3,
                updated: 7,
                relists: [(RelistReason::Expired, 1)].into(),
                failures: [("throttled", 3)].into(),
                restarts: 1,
                own_writes: 4,
                own_lag: Duration::from_secs(2),
                snapshots_given_up: 6,
                ..Tally::default()
            };
            let pods = Kind {
                tally,
                running: 1,
                leases: 2,
                objects: 3,
                bytes: 4096,
                snapshots: 5,
                synced_after: Some(Duration::from_millis(1_500)),
                watch_age: Some(Duration::from_secs(60)),
                silence: Some(Duration::from_secs(5)),
                behind: 10,
                ..Kind::default()
            };
            let stopped = Kind { unsynced: true, stale: Duration::from_secs(240), ..Kind::default() };
            let (pod, apple) = (TypeMeta::new("v1", "Pod"), TypeMeta::new("stable.example.com/v1", "MyApple"));
            encode(&[(pod, pods), (apple, stopped)].into(), encoder)
        });
        let samples = metrics::samples(&registry, "pilothouse_informer");
        let (apples, pods): (Vec<_>, Vec<_>) = samples.lines().partition(|line| line.contains("MyApple"));
        insta::assert_snapshot!(pods.join("\n").replace(r#"group="",version="v1",kind="Pod""#, "Pod"), @r#"
        pilothouse_informer_objects{Pod} 3
        pilothouse_informer_bytes{Pod} 4096
        pilothouse_informer_running{Pod} 1
        pilothouse_informer_leases{Pod} 2
        pilothouse_informer_synced{Pod} 1
        pilothouse_informer_events_total{Pod,type="added"} 3
        pilothouse_informer_events_total{Pod,type="deleted"} 0
        pilothouse_informer_events_total{Pod,type="skipped"} 0
        pilothouse_informer_events_total{Pod,type="updated"} 7
        pilothouse_informer_relists_total{Pod,reason="expired"} 1
        pilothouse_informer_failures_total{Pod,reason="throttled"} 3
        pilothouse_informer_restarts_total{Pod} 1
        pilothouse_informer_snapshots{Pod} 5
        pilothouse_informer_snapshots_given_up_total{Pod} 6
        pilothouse_informer_sync_seconds{Pod} 1.5
        pilothouse_informer_watch_age_seconds{Pod} 60.0
        pilothouse_informer_silence_seconds{Pod} 5.0
        pilothouse_informer_stale_seconds{Pod} 0.0
        pilothouse_informer_versions_behind{Pod} 10
        pilothouse_informer_own_writes_total{Pod} 4
        pilothouse_informer_own_write_lag_seconds_total{Pod} 2.0
        "#);
        let labels = r#"group="stable.example.com",version="v1",kind="MyApple""#;
        assert!(apples.contains(&format!("pilothouse_informer_synced{{{labels}}} 0").as_str()), "{apples:?}");
        assert!(apples.contains(&format!("pilothouse_informer_stale_seconds{{{labels}}} 240.0").as_str()));
        // A duration that is not known has no sample.
        assert!(!apples.iter().any(|line| line.starts_with("pilothouse_informer_watch_age")));
    }
}
