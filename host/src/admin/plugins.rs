//! The plugins, their controllers, and what is wrong with them, as a table for people and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::debug;

/// One plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PluginRow {
    /// Its name.
    pub plugin: String,
    /// How far its newest file is: `active`, `failed`, …
    pub state: String,
    /// The revision that serves, if one does.
    pub serving: Option<ServingRow>,
    /// Why the newest file, or its settings, did not come to serve.
    pub load_failure: Option<LoadFailureRow>,
    /// What its next revision waits for.
    pub waiting: Option<String>,
    /// What it asks for and is not granted.
    pub warnings: Vec<String>,
    /// Processor time on the guests' threads.
    pub cpu_seconds: f64,
    /// How long its calls ran in the sandbox, and what begins an instance.
    pub guest_seconds: f64,
    /// Times that one of its tasks got a thread.
    pub turns: u64,
    /// How long those had waited for it, all together.
    pub turn_wait_seconds: f64,
    /// Times that one of them held it and did not give way.
    pub turns_held: u64,
    /// Its part of them, against the others' weights.
    pub cpu_weight: u32,
    /// Thousandths of a core that it may have at most.
    pub cpu_milli: Option<u32>,
    /// Tasks that wait for one of the threads.
    pub waiting_tasks: usize,
    /// What its calls are served by.
    pub instances: InstancesRow,
    /// What a call may take, where a revision serves.
    pub limits: Option<LimitsRow>,
    /// Calls of imports, by name.
    pub host_calls: BTreeMap<String, u64>,
    /// Lines of its log and about its failures that were dropped, as they were too many.
    pub log_dropped: u64,
    /// Calls that came to nothing, by kind.
    pub traps: BTreeMap<String, u64>,
    /// Whether it is left alone, since its calls come to nothing.
    pub quarantine: Option<QuarantineRow>,
    /// The last call that came to nothing.
    pub failed_call: Option<FailedCallRow>,
    /// What is to be told to its `observer`, if it observes anything.
    pub observer: Option<BacklogRow>,
    /// Its controllers that are at work.
    pub controllers: Vec<ControllerRow>,
}

/// What one call may take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LimitsRow {
    /// Linear memory of an instance.
    pub memory_bytes: usize,
    /// Linear memory of all the plugin's instances together.
    pub total_memory_bytes: usize,
    /// Calls of imports.
    pub host_calls: u32,
    /// What these answer.
    pub host_bytes: usize,
    /// Whether an instance may serve again, if the plugin asks for it.
    pub reuse: bool,
}

/// Changes that a plugin is to be told of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BacklogRow {
    /// Objects of which there is something to tell.
    pub objects: usize,
    /// Of these, those that could not be told, and wait for their time.
    pub delayed: usize,
    /// Changes that were told as part of others, since the start.
    pub merged: u64,
    /// Deletions that were given up, since the start.
    pub dropped: u64,
    /// The last call that failed, be it in the plugin's own words.
    pub last_failure: Option<HookFailureRow>,
}

/// A call of `map` or `observe` that did not do what it was called for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HookFailureRow {
    /// When.
    pub at: String,
    /// The first of what it was called for.
    pub objects: String,
    /// Why.
    pub message: String,
}

/// A plugin's instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InstancesRow {
    /// Those that there are.
    pub alive: usize,
    /// Of these kept for a next call.
    pub kept: usize,
    /// That were made since the plugin was loaded.
    pub made: u64,
    /// Calls that were served by one that had served before.
    pub reused: u64,
    /// Calls that had to map the code first.
    pub mapped: u64,
    /// Bytes of linear memory that they hold.
    pub memory_bytes: usize,
    /// The most that one of the revision that serves has had, under its present limits.
    pub peak_bytes: usize,
}

/// The revision that serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServingRow {
    /// The plugin's own version.
    pub version: String,
    /// Of its file.
    pub digest: String,
    /// Since when, with these settings.
    pub since: String,
    /// What it asks for: a `fresh` instance for each call, or `reuse`.
    pub instances: &'static str,
    /// How well its code is compiled: `baseline`, until there was time to make it `optimized`.
    pub code: Option<&'static str>,
}

/// A file that does not serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoadFailureRow {
    /// When.
    pub at: String,
    /// Which step failed.
    pub stage: String,
    /// Of the file.
    pub digest: String,
    /// Why.
    pub message: String,
    /// Where the plugin was when its `describe` came to nothing, innermost first.
    pub backtrace: Vec<String>,
}

/// A plugin that is left alone for a while.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuarantineRow {
    /// How long still; 0: it is being tried.
    pub left_seconds: f64,
    /// How often without a success in between.
    pub times: u32,
    /// The failure that was the last straw.
    pub why: String,
}

/// A call that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedCallRow {
    /// When.
    pub at: String,
    /// What was called, over what.
    pub call: String,
    /// `trap`, `deadline`, `memory`, …
    pub kind: String,
    /// Why.
    pub message: String,
    /// Where the plugin was, innermost first.
    pub backtrace: Vec<String>,
}

/// One controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ControllerRow {
    /// Its name in the manifest.
    pub controller: String,
    /// What it reconciles.
    pub kind: String,
    /// Informers that it waits for, each with what it is doing.
    pub waits_for: Vec<String>,
    /// Keys that wait for a worker.
    pub ready: usize,
    /// Keys that wait for their time.
    pub delayed: usize,
    /// Keys that are being reconciled.
    pub processing: usize,
    /// Keys that may be reconciled at once.
    pub workers: usize,
    /// Reconciles since the start, by how they ended.
    pub reconciles: BTreeMap<String, u64>,
    /// Keys that were tried again after a failure.
    pub retries: u64,
    /// How long one reconcile may take.
    pub timeout_ms: Option<u64>,
    /// Reconciles that may begin in a second; none: as many as can.
    pub reconciles_per_second: Option<u32>,
    /// How long a key waits after its first failure.
    pub backoff_base_ms: u64,
    /// How long it waits at most.
    pub backoff_cap_ms: u64,
    /// Keys that fail, those first that do for longest.
    pub failing: Vec<FailingRow>,
    /// How many there are.
    pub keys_failing: usize,
    /// The last keys that the plugin gave up, and that were not tried since.
    pub given_up: Vec<GivenUpRow>,
    /// Objects that vanished and are still to be reconciled.
    pub gone: GoneRow,
    /// What the plugin's `mapper` is to be asked of.
    pub unmapped: BacklogRow,
    /// Objects that are reconciled over and over, the first of them.
    pub storms: Vec<StormRow>,
    /// How many there are.
    pub breakers_open: usize,
}

/// Objects that vanished and are still to be reconciled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GoneRow {
    /// How many there are.
    pub objects: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Those that were given up, since the start.
    pub dropped: u64,
}

/// A key that fails.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailingRow {
    /// Which.
    pub key: String,
    /// Since its first failure after a success.
    pub seconds: f64,
    /// How often in a row.
    pub failures: u32,
    /// Why, the last time.
    pub error: String,
}

/// A key that is not tried again until something changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GivenUpRow {
    /// Which.
    pub key: String,
    /// Since when.
    pub at: String,
    /// Why.
    pub error: String,
}

/// An object that is reconciled over and over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StormRow {
    /// Which.
    pub key: String,
    /// For how long.
    pub seconds: f64,
    /// How often, in that time.
    pub reconciles: u64,
    /// How often something asked for it.
    pub wakes: u64,
    /// What woke it most of late; none: nothing did.
    pub cause: Option<String>,
    /// So many of the last wakes,
    pub cause_wakes: u32,
    /// out of so many.
    pub cause_of: u32,
}

const HEAD: [&str; 11] =
    ["PLUGIN", "STATE", "VERSION", "DIGEST", "SERVING SINCE", "CPU", "WEIGHT", "CAP", "WAITING", "INSTANCES", "MEMORY"];

/// Keys that fail that are named where all plugins are shown.
const FAILING: usize = 3;

/// A line for each plugin, with what is wrong with it and its controllers below; or all that is known, for a few.
pub(super) fn table(rows: &[PluginRow], all: bool) -> String {
    debug::lines(&HEAD, rows, cells, |row, below| {
        if all {
            details(row).iter().for_each(|line| below(1, line));
        }
        if let Some(QuarantineRow { left_seconds, times, why }) = &row.quarantine {
            let how = if *left_seconds > 0.0 {
                format!("no key is handed out for {left_seconds:.1} s more")
            } else {
                "it is being tried".to_owned()
            };
            below(1, &format!("quarantined (delay {times} in a row): {how}: {why}"));
        }
        if let Some(LoadFailureRow { at, stage, digest, message, backtrace }) = &row.load_failure {
            below(1, &format!("revision {digest} failed to {stage} at {at}: {message}"));
            backtrace.iter().for_each(|frame| below(2, frame));
        }
        if let Some(waiting) = &row.waiting {
            below(1, &format!("waiting: {waiting}"));
        }
        row.warnings.iter().for_each(|warning| below(1, warning));
        if !row.traps.is_empty() {
            below(1, &format!("calls that came to nothing: {}", counted(&row.traps)));
        }
        if let Some(FailedCallRow { at, call, kind, message, backtrace }) = &row.failed_call {
            below(1, &format!("last failed call at {at}: {call}: {kind}: {message}"));
            backtrace.iter().for_each(|frame| below(2, frame));
        }
        if row.log_dropped > 0 {
            below(
                1,
                &format!(
                    "{} lines of its log and about its failures were dropped, as they were too many",
                    row.log_dropped
                ),
            );
        }
        if let Some(observer) = &row.observer {
            backlog("observer", 1, observer, all, below);
        }
        row.controllers.iter().for_each(|row| controller(row, all, below));
    })
}

/// Whatever is said below a line: how deep, and what.
type Below<'a> = &'a mut dyn FnMut(usize, &str);

fn controller(row: &ControllerRow, all: bool, below: Below<'_>) {
    below(1, &counts(row));
    if all {
        below(2, &paced(row));
    }
    row.waits_for.iter().for_each(|informer| below(2, &format!("waits for {informer}")));
    let most = if all { usize::MAX } else { FAILING };
    let failing = row.failing.iter().take(most);
    let mut named = 0_usize;
    for FailingRow { key, seconds, failures, error } in failing {
        below(2, &format!("{key} fails for {seconds:.1} s, {failures} times in a row: {error}"));
        named += 1;
    }
    if let more @ 1.. = row.keys_failing.saturating_sub(named) {
        below(2, &format!("and {more} more keys fail"));
    }
    for GivenUpRow { key, at, error } in row.given_up.iter().rev().take(most) {
        below(2, &format!("{key} was given up at {at}, until something changes: {error}"));
    }
    let GoneRow { objects, bytes, dropped } = row.gone;
    if all || dropped > 0 {
        let held = bytes >> 10;
        below(2, &format!("gone: {objects} objects still to be reconciled, {held} kB; {dropped} deletions given up"));
    }
    backlog("mapper", 2, &row.unmapped, all, below);
    row.storms.iter().for_each(|storm| below(2, &told(storm)));
    if let more @ 1.. = row.breakers_open.saturating_sub(row.storms.len()) {
        below(2, &format!("and {more} more objects are reconciled over and over"));
    }
}

/// What waits to be told, where something does or did.
fn backlog(what: &str, depth: usize, row: &BacklogRow, all: bool, below: Below<'_>) {
    let BacklogRow { objects, delayed, merged, dropped, last_failure } = row;
    if all || *objects > 0 || *dropped > 0 || last_failure.is_some() {
        below(
            depth,
            &format!(
                "{what}: {objects} objects to be told of, {delayed} of them again after a failure; {merged} changes told with others, \
                 {dropped} deletions given up"
            ),
        );
    }
    if let Some(HookFailureRow { at, objects, message }) = last_failure {
        below(depth + 1, &format!("failed last at {at} over {objects}: {message}"));
    }
}

/// What is seldom wrong.
fn details(row: &PluginRow) -> Vec<String> {
    let InstancesRow { alive, kept, made, reused, mapped, memory_bytes, peak_bytes } = row.instances;
    let (held, peak) = (memory_bytes >> 10, peak_bytes >> 10);
    let mut lines = vec![
        format!(
            "threads: {} turns, waited {:.2} s for them; held one {} times for more than 1 ms; calls ran for {:.2} s",
            row.turns, row.turn_wait_seconds, row.turns_held, row.guest_seconds
        ),
        format!(
            "instances: {alive}, {kept} of them kept for a next call; {made} were made, {reused} calls were served by one that had \
             served before, {mapped} had to map the code"
        ),
        format!("memory: {held} kB in all instances; at most {peak} kB in one so far"),
    ];
    if let Some(ServingRow { instances, code, .. }) = &row.serving {
        lines.push(format!("asks for instances: {instances}; code: {}", code.unwrap_or("none")));
    }
    if let Some(LimitsRow { memory_bytes, total_memory_bytes, host_calls, host_bytes, reuse }) = row.limits {
        let [memory, total, host] = [memory_bytes, total_memory_bytes, host_bytes].map(|bytes| bytes >> 20);
        let reuse = if reuse { "" } else { ", and always has a fresh instance" };
        lines.push(format!(
            "a call may take {memory} MiB of memory, and {total} MiB with the plugin's others, {host_calls} calls of the host and {host} \
             MiB from them{reuse}"
        ));
    }
    let asked: BTreeMap<_, _> = row.host_calls.clone().into_iter().filter(|(_, count)| *count > 0).collect();
    lines.push(format!("calls of the host: {}", if asked.is_empty() { "none".to_owned() } else { counted(&asked) }));
    lines
}

/// How fast a controller may go.
fn paced(row: &ControllerRow) -> String {
    let ControllerRow { timeout_ms, reconciles_per_second, backoff_base_ms, backoff_cap_ms, .. } = row;
    let timeout = timeout_ms.map_or_else(String::new, |timeout| format!("a reconcile may take {timeout} ms; "));
    let often = reconciles_per_second.map_or_else(|| "as many as can".to_owned(), |often| often.to_string());
    format!(
        "{timeout}{often} in a second; a key that fails waits {backoff_base_ms} ms at first, and {backoff_cap_ms} ms at most"
    )
}

/// `3 error, 10 success`.
fn counted(counts: &BTreeMap<String, u64>) -> String {
    counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

fn cells(row: &PluginRow) -> [String; HEAD.len()] {
    let serving =
        |of: fn(&ServingRow) -> &String| row.serving.as_ref().map_or_else(|| "-".to_owned(), |row| of(row).clone());
    [
        row.plugin.clone(),
        row.state.clone(),
        serving(|serving| &serving.version),
        serving(|serving| &serving.digest),
        serving(|serving| &serving.since),
        format!("{:.2}s", row.cpu_seconds),
        row.cpu_weight.to_string(),
        row.cpu_milli.map_or_else(|| "-".to_owned(), |milli| format!("{milli}m")),
        row.waiting_tasks.to_string(),
        row.instances.alive.to_string(),
        format!("{}k", row.instances.memory_bytes >> 10),
    ]
}

fn counts(row: &ControllerRow) -> String {
    let ControllerRow { controller, kind, ready, delayed, processing, workers, retries, .. } = row;
    format!(
        "controller {controller} of {kind}: {ready} ready, {delayed} delayed, {processing} of {workers} workers busy; reconciled: {}; \
         {retries} retries",
        counted(&row.reconciles)
    )
}

fn told(storm: &StormRow) -> String {
    let StormRow { key, seconds, reconciles, wakes, cause, cause_wakes, cause_of } = storm;
    let by = cause
        .as_ref()
        .map_or_else(String::new, |cause| format!("; {cause_wakes} of the last {cause_of} times by {cause}"));
    format!("{key} is reconciled over and over: {reconciles} times in {seconds:.1} s, and was woken {wakes} times{by}")
}
