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
    /// Its part of them, against the others' weights.
    pub cpu_weight: u32,
    /// Thousandths of a core that it may have at most.
    pub cpu_milli: Option<u32>,
    /// Tasks that wait for one of the threads.
    pub waiting_tasks: usize,
    /// What its calls are served by.
    pub instances: InstancesRow,
    /// Whether it is left alone, since its calls come to nothing.
    pub quarantine: Option<QuarantineRow>,
    /// The last call that came to nothing.
    pub failed_call: Option<FailedCallRow>,
    /// Its controllers that are at work.
    pub controllers: Vec<ControllerRow>,
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
    /// Bytes of linear memory that they hold.
    pub memory_bytes: usize,
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
    /// Objects that are reconciled over and over, the first of them.
    pub storms: Vec<StormRow>,
    /// How many there are.
    pub breakers_open: usize,
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

/// A line for each plugin, with what is wrong with it and its controllers below.
pub(super) fn table(rows: &[PluginRow]) -> String {
    debug::lines(&HEAD, rows, cells, |row, below| {
        if let Some(QuarantineRow { left_seconds, times, why }) = &row.quarantine {
            let how = if *left_seconds > 0.0 {
                format!("no key is handed out for {left_seconds:.1} s more")
            } else {
                "it is being tried".to_owned()
            };
            below(1, &format!("quarantined (delay {times} in a row): {how}: {why}"));
        }
        if let Some(LoadFailureRow { at, stage, digest, message }) = &row.load_failure {
            below(1, &format!("revision {digest} failed to {stage} at {at}: {message}"));
        }
        if let Some(waiting) = &row.waiting {
            below(1, &format!("waiting: {waiting}"));
        }
        row.warnings.iter().for_each(|warning| below(1, warning));
        if let Some(FailedCallRow { at, call, kind, message, backtrace }) = &row.failed_call {
            below(1, &format!("last failed call at {at}: {call}: {kind}: {message}"));
            backtrace.iter().for_each(|frame| below(2, frame));
        }
        for controller in &row.controllers {
            below(1, &counts(controller));
            controller.waits_for.iter().for_each(|informer| below(2, &format!("waits for {informer}")));
            controller.storms.iter().for_each(|storm| below(2, &told(storm)));
            let more = controller.breakers_open.saturating_sub(controller.storms.len());
            if more > 0 {
                below(2, &format!("and {more} more objects are reconciled over and over"));
            }
        }
    })
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
    let results: Vec<_> = row.reconciles.iter().map(|(result, count)| format!("{count} {result}")).collect();
    let ControllerRow { controller, kind, ready, delayed, processing, workers, retries, .. } = row;
    format!(
        "controller {controller} of {kind}: {ready} ready, {delayed} delayed, {processing} of {workers} workers busy; reconciled: {}; \
         {retries} retries",
        results.join(", ")
    )
}

fn told(storm: &StormRow) -> String {
    let StormRow { key, seconds, reconciles, wakes, cause, cause_wakes, cause_of } = storm;
    let by = cause
        .as_ref()
        .map_or_else(String::new, |cause| format!("; {cause_wakes} of the last {cause_of} times by {cause}"));
    format!("{key} is reconciled over and over: {reconciles} times in {seconds:.1} s, and was woken {wakes} times{by}")
}
