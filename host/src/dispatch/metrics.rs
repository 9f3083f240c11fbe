//! What controllers and plugins' calls come to: reconciles and queues as controller-runtime counts them, wakes,
//! backlogs and calls.
//!
//! Events are counted as they happen, by [`Calls`]. What controllers hold is read at each scrape. Controllers of one
//! name are summed up: a new one begins before the old one ends.
//!
//! `own` encodes the metrics that plugins declare.

mod own;

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
use pilothouse_core::workqueue::{CHANGE, INITIAL};
use prometheus_client::metrics::{
    counter::Counter,
    histogram::{Histogram, exponential_buckets},
};

use super::{Attempt, BacklogFigures, Called, Controller, Dispatch, Hook, JudgingFigures, Observer, ReconcileResult};
use crate::{
    metrics::{self, DescriptorEncoder, Labels, Registry, Series, counters, gauges, histograms},
    name::PluginName,
};

/// controller-runtime's buckets of `controller_runtime_reconcile_time_seconds`.
const RECONCILE_TIME: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
];

/// The log message about a metric that two plugins declare with different types.
pub(super) const CONFLICT: &str = "another plugin exports this metric with another type: only that of the plugin whose name comes \
                                   first is exported; rename one";

/// The help text of `controller_runtime_reconcile_panics_total`.
const PANICS: &str = "Reconciles in which the plugin died in the middle of its code (trap, stack, memory, table, host-calls, or decode in an \
                      import), or the host failed";

/// Frequent ways in which calls fail. Their series begin at zero; those of other ways begin when they happen.
const USUAL_TRAPS: [&str; 13] = [
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

/// Counts the calls of plugins and the reconciles of controllers.
#[derive(Debug, Default)]
pub struct Calls {
    plugins: Series<PluginCalls>,
    /// By [`label`].
    controllers: Series<Reconciles>,
}

/// What is counted of one plugin.
#[derive(Debug)]
struct PluginCalls {
    quarantined: AtomicBool,
    /// Times that a quarantine began.
    quarantines: AtomicU64,
    queue_waits: Histogram,
    calls: Histogram,
    traps: Mutex<BTreeMap<&'static str, u64>>,
    /// Calls beside reconciles, by export and result.
    hooks: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
}

impl Default for PluginCalls {
    fn default() -> Self {
        Self {
            quarantined: AtomicBool::new(false),
            quarantines: AtomicU64::new(0),
            // 10 µs to 168 s: an idle host takes a key at once, and one of ten thousand that wait for a slow plugin may
            // wait for minutes.
            queue_waits: Histogram::new(exponential_buckets(1e-5, 4.0, 13)),
            // 10 µs to 10 s: an empty call takes less, the deadline comes at the end.
            calls: Histogram::new(exponential_buckets(1e-5, 2.0, 21)),
            traps: Mutex::new(USUAL_TRAPS.map(|kind| (kind, 0)).into()),
            hooks: Mutex::default(),
        }
    }
}

impl PluginCalls {
    fn called(&self, took: Duration, trap: Option<&'static str>) {
        self.calls.observe(took.as_secs_f64());
        self.trapped(trap);
    }

    fn trapped(&self, trap: Option<&'static str>) {
        if let Some(kind) = trap {
            *self.traps.lock().entry(kind).or_default() += 1;
        }
    }

    fn set_quarantined(&self, quarantined: bool) {
        if !self.quarantined.swap(quarantined, Ordering::Relaxed) && quarantined {
            self.quarantines.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What is counted of one controller.
#[derive(Debug)]
struct Reconciles {
    success: Counter,
    requeue_after: Counter,
    error: Counter,
    terminal: Counter,
    panics: Counter,
    timeouts: Counter,
    time: Histogram,
    waited: Histogram,
    worked: Histogram,
}

impl Default for Reconciles {
    fn default() -> Self {
        // client-go's buckets of both durations of a workqueue.
        let queue = || Histogram::new(exponential_buckets(1e-8, 10.0, 12));
        Self {
            success: Counter::default(),
            requeue_after: Counter::default(),
            error: Counter::default(),
            terminal: Counter::default(),
            panics: Counter::default(),
            timeouts: Counter::default(),
            time: Histogram::new(RECONCILE_TIME),
            waited: queue(),
            worked: queue(),
        }
    }
}

impl Reconciles {
    /// Counts as controller-runtime does: a reconcile that panicked or timed out also counts as failed.
    fn attempted(&self, attempt: &Attempt) {
        self.time.observe(attempt.took.as_secs_f64());
        match attempt.result {
            ReconcileResult::Success => self.success.inc(),
            ReconcileResult::RequeueAfter => self.requeue_after.inc(),
            ReconcileResult::Error => self.error.inc(),
            ReconcileResult::Terminal => {
                self.terminal.inc();
                self.error.inc()
            }
        };
        if attempt.panicked {
            self.panics.inc();
        }
        if attempt.trap == Some("deadline") {
            self.timeouts.inc();
        }
    }

    fn results(&self) -> [(&'static str, u64); 4] {
        [
            ("success", self.success.get()),
            // controller-runtime's result that no plugin can ask for.
            ("requeue", 0),
            ("requeue_after", self.requeue_after.get()),
            ("error", self.error.get()),
        ]
    }
}

/// Returns the value of the label `controller`, which is unique in the host.
fn label(controller: &Controller) -> String {
    format!("{}/{}", controller.plugin(), controller.name())
}

impl Calls {
    /// Begins the series of a plugin, unless there are some.
    pub(crate) fn begin(&self, plugin: &str) {
        self.plugins.begin(plugin);
    }

    /// Ends the series of a plugin.
    pub(crate) fn remove(&self, plugin: &str) {
        self.plugins.remove(plugin);
    }
}

impl Observer for Calls {
    fn started(&self, controller: &Controller) {
        self.controllers.add(&label(controller));
    }

    fn stopped(&self, controller: &Controller) {
        self.controllers.remove(&label(controller));
    }

    fn picked(&self, controller: &Controller, waited: Duration) {
        if let Some(plugin) = self.plugins.get(controller.plugin().as_str()) {
            plugin.queue_waits.observe(waited.as_secs_f64());
        }
        if let Some(controller) = self.controllers.get(&label(controller)) {
            controller.waited.observe(waited.as_secs_f64());
        }
    }

    fn finished(&self, controller: &Controller, took: Duration) {
        if let Some(controller) = self.controllers.get(&label(controller)) {
            controller.worked.observe(took.as_secs_f64());
        }
    }

    fn attempted(&self, controller: &Controller, attempt: &Attempt) {
        if let Some(plugin) = self.plugins.get(controller.plugin().as_str()) {
            match attempt.in_guest {
                Some(took) => plugin.called(took, attempt.trap),
                None => plugin.trapped(attempt.trap),
            }
        }
        if let Some(controller) = self.controllers.get(&label(controller)) {
            controller.attempted(attempt);
        }
    }

    fn called(&self, plugin: &PluginName, _: Option<&Controller>, called: &Called) {
        if let Some(plugin) = self.plugins.get(plugin.as_str()) {
            plugin.called(called.took, called.trap);
            let result = if called.ok { "success" } else { "error" };
            *plugin.hooks.lock().entry((called.hook.as_str(), result)).or_default() += 1;
        }
    }

    fn quarantined(&self, plugin: &PluginName, quarantined: bool) {
        if let Some(plugin) = self.plugins.get(plugin.as_str()) {
            plugin.set_quarantined(quarantined);
        }
    }
}

/// Registers what `calls` counts, and what the controllers and observers of `dispatch` hold.
pub(crate) fn register(registry: &mut Registry, calls: &Arc<Calls>, dispatch: &Arc<Dispatch>) {
    let (calls, dispatch) = (calls.clone(), dispatch.clone());
    metrics::register(registry, move |encoder| {
        reconciles(&calls, encoder)?;
        plugins(&calls, encoder)?;
        acting(&dispatch, encoder)?;
        let controllers = controllers(&dispatch);
        queues(&controllers, encoder)?;
        wakes(&controllers, encoder)?;
        hooks(&dispatch, encoder)?;
        records(&dispatch, encoder)
    });
}

fn reconciles(calls: &Calls, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = calls.controllers.all();
    let results = all.iter().flat_map(|(name, of)| {
        of.results().map(|(result, count)| ([("controller", name.as_str()), ("result", result)], count))
    });
    counters(encoder, "controller_runtime_reconcile", "Reconciles, by how they ended", results)?;
    type Count = fn(&Reconciles) -> &Counter;
    let counts: [(&str, &str, Count); 4] = [
        ("controller_runtime_reconcile_errors", "Reconciles that failed", |of| &of.error),
        ("controller_runtime_terminal_reconcile_errors", "Failures that are not tried again", |of| &of.terminal),
        ("controller_runtime_reconcile_panics", PANICS, |of| &of.panics),
        ("controller_runtime_reconcile_timeouts", "Reconciles that ran past their deadline", |of| &of.timeouts),
    ];
    for (name, help, count) in counts {
        let samples = all.iter().map(|(name, of)| ([("controller", name.as_str())], count(of).get()));
        counters(encoder, name, help, samples)?;
    }
    let times = all.iter().map(|(name, of)| ([("controller", name.as_str())], &of.time));
    let help = "Time of a reconcile, its writes included";
    histograms(encoder, "controller_runtime_reconcile_time_seconds", help, times)?;
    let times = all.iter().map(|(name, of)| (queue(name), &of.waited));
    let help = "Time that a key was ready before a worker took it";
    histograms(encoder, "workqueue_queue_duration_seconds", help, times)?;
    let times = all.iter().map(|(name, of)| (queue(name), &of.worked));
    histograms(encoder, "workqueue_work_duration_seconds", "Time that a key was worked on", times)
}

/// client-go's label of a workqueue, and controller-runtime's.
fn queue(name: &str) -> Labels<'_, 2> {
    [("name", name), ("controller", name)]
}

fn acting(dispatch: &Dispatch, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let records = dispatch.records();
    let acting =
        records.iter().map(|record| ([("plugin", record.plugin().as_str())], u64::from(record.acting().is_allowed())));
    gauges(encoder, "pilothouse_plugin_acting", "1 if this host acts for the plugin, 0 if another host does", acting)
}

fn plugins(calls: &Calls, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = calls.plugins.all();
    let each = || all.iter().map(|(name, plugin)| ([("plugin", name.as_str())], plugin));
    let quarantined = each().map(|(labels, plugin)| (labels, u64::from(plugin.quarantined.load(Ordering::Relaxed))));
    let help = "1 where the plugin is quarantined, or was and has not succeeded since";
    gauges(encoder, "pilothouse_plugin_quarantined", help, quarantined)?;
    let quarantines = each().map(|(labels, plugin)| (labels, plugin.quarantines.load(Ordering::Relaxed)));
    let help = "Times that the plugin was quarantined, since its calls failed";
    counters(encoder, "pilothouse_plugin_quarantines", help, quarantines)?;
    let waits = each().map(|(labels, plugin)| (labels, &plugin.queue_waits));
    let help = "Time that a key of one of the plugin's controllers was ready before a worker took it; workqueue_queue_duration_seconds has \
                it by controller";
    histograms(encoder, "pilothouse_queue_wait_seconds", help, waits)?;
    let calls = each().map(|(labels, plugin)| (labels, &plugin.calls));
    let help = "Wall time of a call into the plugin: its instance, imports, and waiting for the API server and for a thread included; \
                pilothouse_plugin_guest_seconds has what it computed";
    histograms(encoder, "pilothouse_call_seconds", help, calls)?;
    let traps = all.iter().flat_map(|(name, plugin)| {
        let traps = plugin.traps.lock().clone();
        traps.into_iter().map(|(kind, count)| ([("plugin", name.as_str()), ("kind", kind)], count))
    });
    counters(encoder, "pilothouse_traps", "Calls that failed, by why", traps)?;
    let hooks = all.iter().flat_map(|(name, plugin)| {
        let hooks = plugin.hooks.lock().clone();
        hooks
            .into_iter()
            .map(|((hook, result), count)| ([("plugin", name.as_str()), ("export", hook), ("result", result)], count))
    });
    counters(encoder, "pilothouse_hooks", "Calls of `map` and `observe`, by how they ended", hooks)
}

/// All controllers of one name.
#[derive(Default)]
struct Sums {
    depths: BTreeMap<String, u64>,
    adds: u64,
    retries: u64,
    unfinished: Duration,
    longest_running: Duration,
    active_workers: u64,
    workers: u64,
    woken: BTreeMap<&'static str, u64>,
    reading_keys: u64,
    reads: u64,
    read_bytes: u64,
    breakers_open: u64,
    breakers_opened: u64,
    gone: u64,
    gone_bytes: u64,
    gone_dropped: u64,
}

fn controllers(dispatch: &Dispatch) -> BTreeMap<String, Sums> {
    let mut all = BTreeMap::<String, Sums>::new();
    for controller in dispatch.controllers() {
        all.entry(label(&controller)).or_default().add(&controller);
    }
    all
}

impl Sums {
    fn add(&mut self, controller: &Controller) {
        {
            let queue = controller.ledger().queue().lock();
            let now = controller.ledger().queue().now();
            for (priority, depth) in [(CHANGE, 0), (INITIAL, 0)].into_iter().chain(queue.depths()) {
                *self.depths.entry(priority.to_string()).or_default() += depth as u64;
            }
            self.adds += queue.adds();
            self.retries += queue.retries();
            self.unfinished += queue.unfinished(now);
            self.longest_running = self.longest_running.max(queue.longest_running(now));
        }
        self.active_workers += controller.active_workers() as u64;
        self.workers += controller.max_concurrency() as u64;
        for (by, count) in controller.waking().woken() {
            *self.woken.entry(by).or_default() += count;
        }
        let reads = controller.ledger().reads();
        self.reading_keys += reads.keys as u64;
        self.reads += reads.things as u64;
        self.read_bytes += reads.bytes as u64;
        let (open, opened) = controller.ledger().queue().breakers();
        self.breakers_open += open as u64;
        self.breakers_opened += opened;
        let gone = controller.ledger().gone();
        self.gone += gone.objects as u64;
        self.gone_bytes += gone.bytes as u64;
        self.gone_dropped += gone.dropped;
    }
}

type Controllers = BTreeMap<String, Sums>;

fn each(all: &Controllers, figure: fn(&Sums) -> u64) -> impl Iterator<Item = (Labels<'_, 1>, u64)> {
    all.iter().map(move |(name, held)| ([("controller", name.as_str())], figure(held)))
}

fn queues(all: &Controllers, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Workers of the controller";
    gauges(encoder, "controller_runtime_max_concurrent_reconciles", help, each(all, |held| held.workers))?;
    let help = "Workers that work on a key";
    gauges(encoder, "controller_runtime_active_workers", help, each(all, |held| held.active_workers))?;
    let depths = all.iter().flat_map(|(name, held)| {
        held.depths
            .iter()
            .map(|(priority, depth)| ([("name", name.as_str()), ("controller", name), ("priority", priority)], *depth))
    });
    gauges(encoder, "workqueue_depth", "Keys that are ready, by priority", depths)?;
    let adds = all.iter().map(|(name, held)| (queue(name), held.adds));
    counters(encoder, "workqueue_adds", "Keys that were added", adds)?;
    let retries = all.iter().map(|(name, held)| (queue(name), held.retries));
    counters(encoder, "workqueue_retries", "Keys that were added with growing delay", retries)?;
    let unfinished = all.iter().map(|(name, held)| (queue(name), held.unfinished.as_secs_f64()));
    let help = "Time spent so far on keys that are worked on";
    gauges(encoder, "workqueue_unfinished_work_seconds", help, unfinished)?;
    let longest = all.iter().map(|(name, held)| (queue(name), held.longest_running.as_secs_f64()));
    let help = "Time spent so far on the key that takes longest";
    gauges(encoder, "workqueue_longest_running_processor_seconds", help, longest)
}

fn wakes(all: &Controllers, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let woken = all.iter().flat_map(|(name, held)| {
        held.woken.iter().map(|(by, count)| ([("controller", name.as_str()), ("by", by)], *count))
    });
    counters(encoder, "pilothouse_wakes", "Keys that a change woke, by why", woken)?;
    let help = "Keys that are woken by what they read";
    gauges(encoder, "pilothouse_tracked_keys", help, each(all, |held| held.reading_keys))?;
    let help = "Objects and selections that keys have read, each once";
    gauges(encoder, "pilothouse_tracked_reads", help, each(all, |held| held.reads))?;
    let help = "Bytes that it takes to remember what keys have read";
    gauges(encoder, "pilothouse_tracked_bytes", help, each(all, |held| held.read_bytes))?;
    let help = "Keys that are reconciled over and over, and put off";
    gauges(encoder, "pilothouse_breakers_open", help, each(all, |held| held.breakers_open))?;
    let help = "Times that a key began to be reconciled over and over";
    counters(encoder, "pilothouse_breakers_opened", help, each(all, |held| held.breakers_opened))?;
    let help = "Objects that vanished and are still to be reconciled";
    gauges(encoder, "pilothouse_gone_objects", help, each(all, |held| held.gone))?;
    let help = "Bytes of objects that vanished and are still to be reconciled";
    gauges(encoder, "pilothouse_gone_bytes", help, each(all, |held| held.gone_bytes))?;
    let help = "Deletions that were never reconciled, as there were too many";
    counters(encoder, "pilothouse_gone_dropped", help, each(all, |held| held.gone_dropped))
}

/// Encodes what waits for `map`, for `observe` and for predicates. Controllers and the observer of one plugin are
/// summed up.
fn hooks(dispatch: &Dispatch, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut backlogs = BTreeMap::<(PluginName, &str), [u64; 3]>::new();
    let mut predicates = BTreeMap::<PluginName, [u64; 3]>::new();
    let mut add = |plugin: &PluginName, hook: Hook, backlog: BacklogFigures, judging: JudgingFigures| {
        let [objects, merged, dropped] = backlogs.entry((plugin.clone(), hook.as_str())).or_default();
        *objects += backlog.objects as u64;
        *merged += backlog.merged;
        *dropped += backlog.dropped;
        let [waiting, unseen, off] = predicates.entry(plugin.clone()).or_default();
        *waiting += judging.waiting as u64;
        *unseen += judging.unseen;
        *off += judging.off as u64;
    };
    for controller in dispatch.controllers() {
        add(controller.plugin(), Hook::Map, controller.waking().unmapped(), controller.waking().judging());
    }
    for observing in dispatch.observing() {
        add(observing.plugin(), Hook::Observe, observing.figures(), observing.judging());
    }

    let each = || backlogs.iter().map(|((plugin, hook), of)| ([("plugin", plugin.as_str()), ("export", *hook)], of));
    let objects = each().map(|(labels, [objects, ..])| (labels, *objects));
    let help = "Objects of which the plugin must still be notified, by the export that is called";
    gauges(encoder, "pilothouse_backlog_objects", help, objects)?;
    let merged = each().map(|(labels, [_, merged, _])| (labels, *merged));
    let help = "Changes that came faster than the plugin was notified, and became one";
    counters(encoder, "pilothouse_backlog_merged", help, merged)?;
    let dropped = each().map(|(labels, [.., dropped])| (labels, *dropped));
    let help = "Deletions of which the plugin was never notified";
    counters(encoder, "pilothouse_backlog_dropped", help, dropped)?;

    let each = || predicates.iter().map(|(plugin, of)| ([("plugin", plugin.as_str())], of));
    let waiting = each().map(|(labels, [waiting, ..])| (labels, *waiting));
    let help = "Changes on which a predicate of the plugin is still to be evaluated";
    gauges(encoder, "pilothouse_predicate_waiting", help, waiting)?;
    let unseen = each().map(|(labels, [_, unseen, _])| (labels, *unseen));
    let help = "Changes that counted as matches without a look, as too many waited for the plugin's predicates";
    counters(encoder, "pilothouse_predicate_unseen", help, unseen)?;
    let off = each().map(|(labels, [.., off])| (labels, *off));
    gauges(encoder, "pilothouse_predicates_off", "Predicates that are switched off, as they take too long", off)
}

/// Encodes what plugins ask of the host.
fn records(dispatch: &Dispatch, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let records = dispatch.records();
    let imports = records.iter().flat_map(|record| {
        let plugin = record.plugin().as_str();
        record.imports().map(move |(import, count)| ([("plugin", plugin), ("import", import)], count))
    });
    counters(encoder, "pilothouse_host_calls", "Calls from the plugin into the host, by import", imports)?;
    let dropped = records.iter().map(|record| ([("plugin", record.plugin().as_str())], record.lines_dropped()));
    let help = "Lines of the plugin's log, and about its failures, that were dropped, as they were too many over all its calls";
    counters(encoder, "pilothouse_plugin_log_dropped", help, dropped)?;
    own::encode(&records, encoder)
}

#[cfg(test)]
mod tests;
