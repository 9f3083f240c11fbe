//! Plugins: what becomes of their files, their calls and their writes.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::DescriptorEncoder,
    metrics::histogram::{Histogram, exponential_buckets},
};

use super::encode::{counters, gauges, histograms};

/// Of `pilothouse_plugin_load_failures_total`.
const LOAD_FAILURES: &str = "Files that did not come to serve, by the step that failed and why: of a call of describe what pilothouse_traps \
                             says, refused or manifest; of a compiler deadline, memory, stack, died or host; decode, link, grants, cluster";

/// What is counted of one plugin.
#[derive(Debug)]
pub struct Plugin {
    active: AtomicBool,
    quarantined: AtomicBool,
    /// Times that it began to be.
    quarantines: AtomicU64,
    /// Revisions that came to serve.
    served: AtomicU64,
    /// By stage and kind.
    load_failures: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    queue_waits: Histogram,
    calls: Histogram,
    traps: Mutex<BTreeMap<&'static str, u64>>,
    /// Calls beside reconciles, by export and result.
    hooks: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// By verb and result.
    writes: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
}

impl Default for Plugin {
    fn default() -> Self {
        // What happens to most plugins some day begins at zero; the rest when it happens.
        let load_failures = [
            ("settings", "decode"),
            ("compile", "decode"),
            ("link", "link"),
            ("describe", "deadline"),
            ("describe", "manifest"),
            ("describe", "memory"),
            ("describe", "refused"),
            ("describe", "stack"),
            ("describe", "trap"),
            ("verify", "grants"),
            ("activate", "cluster"),
        ];
        let traps = [
            "answer",
            "controller",
            "deadline",
            "decode",
            "export",
            "host",
            "host-calls",
            "import",
            "instantiate",
            "memory",
            "stack",
            "table",
            "trap",
        ];
        let writes = [
            ("apply", "success"),
            ("apply", "skipped"),
            ("apply", "deferred"),
            ("apply", "error"),
            ("delete", "success"),
            ("delete", "error"),
        ];
        Self {
            active: AtomicBool::new(false),
            quarantined: AtomicBool::new(false),
            quarantines: AtomicU64::new(0),
            served: AtomicU64::new(0),
            load_failures: Mutex::new(load_failures.map(|failure| (failure, 0)).into()),
            // 10 µs to 168 s: an idle host takes a key at once, and one of ten thousand that wait for a slow plugin may wait for minutes.
            queue_waits: Histogram::new(exponential_buckets(1e-5, 4.0, 13)),
            // 10 µs to 10 s: an empty call takes less, the deadline comes at the end.
            calls: Histogram::new(exponential_buckets(1e-5, 2.0, 21)),
            traps: Mutex::new(traps.map(|kind| (kind, 0)).into()),
            hooks: Mutex::default(),
            writes: Mutex::new(writes.map(|write| (write, 0)).into()),
        }
    }
}

impl Plugin {
    /// Whether a revision serves.
    pub fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    /// It is left alone for a while, since its calls come to nothing; or is not any more.
    pub fn set_quarantined(&self, quarantined: bool) {
        if !self.quarantined.swap(quarantined, Ordering::Relaxed) && quarantined {
            self.quarantines.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A file and settings came to serve. All but the first are reloads.
    pub fn activated(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
        self.set_active(true);
    }

    /// A file did not come to serve: it failed at `stage`, such as `describe`, and that is of a `kind`, such as `deadline`.
    pub fn load_failed(&self, stage: &'static str, kind: &'static str) {
        *self.load_failures.lock().entry((stage, kind)).or_default() += 1;
    }

    /// A key was taken from the queue of one of its controllers, in which it had been ready for `waited`.
    pub fn picked(&self, waited: Duration) {
        self.queue_waits.observe(waited.as_secs_f64());
    }

    /// A call into the plugin took so long, its imports and its waiting included.
    pub fn called(&self, took: Duration) {
        self.calls.observe(took.as_secs_f64());
    }

    /// A call came to nothing: `kind` is a word such as `trap` or `deadline`.
    pub fn trapped(&self, kind: &'static str) {
        *self.traps.lock().entry(kind).or_default() += 1;
    }

    /// `map` or `observe` was called, and did what it was called for, or not. Beside [`Self::called`].
    pub fn hooked(&self, hook: &'static str, ok: bool) {
        *self.hooks.lock().entry((hook, if ok { "success" } else { "error" })).or_default() += 1;
    }

    /// A write was carried out (`success`), was left out since it would have changed nothing (`skipped`), or failed (`error`).
    pub fn wrote(&self, verb: &'static str, result: &'static str) {
        *self.writes.lock().entry((verb, result)).or_default() += 1;
    }
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, all: &[(String, Arc<Plugin>)]) -> fmt::Result {
    let each = || all.iter().map(|(name, plugin)| ([("plugin", name.as_str())], plugin));
    gauges(
        encoder,
        "pilothouse_plugin_active",
        "1 where a revision of the plugin serves",
        each().map(|(labels, plugin)| (labels, u64::from(plugin.active.load(Ordering::Relaxed)))),
    )?;
    gauges(
        encoder,
        "pilothouse_plugin_quarantined",
        "1 where the plugin is left alone for a while, or was and has not succeeded since",
        each().map(|(labels, plugin)| (labels, u64::from(plugin.quarantined.load(Ordering::Relaxed)))),
    )?;
    counters(
        encoder,
        "pilothouse_plugin_quarantines",
        "Times that the plugin was quarantined, since its calls came to nothing",
        each().map(|(labels, plugin)| (labels, plugin.quarantines.load(Ordering::Relaxed))),
    )?;
    counters(
        encoder,
        "pilothouse_plugin_reloads",
        "Times that another file of the plugin, or other settings for it, came to serve",
        each().map(|(labels, plugin)| (labels, plugin.served.load(Ordering::Relaxed).saturating_sub(1))),
    )?;
    counters(
        encoder,
        "pilothouse_plugin_load_failures",
        LOAD_FAILURES,
        all.iter().flat_map(|(name, plugin)| {
            let failures = plugin.load_failures.lock().clone();
            failures
                .into_iter()
                .map(|((stage, kind), count)| ([("plugin", name.as_str()), ("stage", stage), ("kind", kind)], count))
        }),
    )?;
    histograms(
        encoder,
        "pilothouse_queue_wait_seconds",
        "Time that a key of one of the plugin's controllers was ready before a worker took it; workqueue_queue_duration_seconds has it \
         by controller",
        each().map(|(labels, plugin)| (labels, &plugin.queue_waits)),
    )?;
    histograms(
        encoder,
        "pilothouse_call_seconds",
        "Wall time of a call into the plugin: its instance, imports, and waiting for the API server and for a thread included; \
         pilothouse_plugin_guest_seconds has what it computed",
        each().map(|(labels, plugin)| (labels, &plugin.calls)),
    )?;
    counters(
        encoder,
        "pilothouse_traps",
        "Calls that came to nothing, by why",
        by(all, "kind", |plugin| plugin.traps.lock().clone()),
    )?;
    counters(
        encoder,
        "pilothouse_hooks",
        "Calls of `map` and `observe`, by how they ended",
        all.iter().flat_map(|(name, plugin)| {
            let hooks = plugin.hooks.lock().clone();
            hooks.into_iter().map(|((hook, result), count)| {
                ([("plugin", name.as_str()), ("export", hook), ("result", result)], count)
            })
        }),
    )?;
    counters(
        encoder,
        "pilothouse_writes",
        "Writes by the plugin's field manager; skipped are those that would have changed nothing",
        all.iter().flat_map(|(name, plugin)| {
            let writes = plugin.writes.lock().clone();
            writes
                .into_iter()
                .map(|((verb, result), count)| ([("plugin", name.as_str()), ("verb", verb), ("result", result)], count))
        }),
    )
}

/// Counts by plugin and one more label.
fn by<'a>(
    all: &'a [(String, Arc<Plugin>)],
    label: &'static str,
    counts: impl Fn(&Plugin) -> BTreeMap<&'static str, u64> + 'a,
) -> impl Iterator<Item = ([(&'static str, &'a str); 2], u64)> {
    all.iter().flat_map(move |(name, plugin)| {
        counts(plugin).into_iter().map(move |(value, count)| ([("plugin", name.as_str()), (label, value)], count))
    })
}
