//! The table of `/debug/plugins`.

use super::{Below, lines};
use crate::{
    admin::{PluginRow, ServingRow},
    dispatch::{
        BacklogFigures, BacklogRow, CallFailure, ControllerRow, Counts, FailingKey, GivenUp, GoneFigures, HookFailure,
        Quarantined, StormRow,
    },
    plugin::Failure,
    wasm::{InstanceFigures, Limits},
};

const HEAD: [&str; 11] =
    ["PLUGIN", "STATE", "VERSION", "DIGEST", "SERVING SINCE", "CPU", "WEIGHT", "CAP", "WAITING", "INSTANCES", "MEMORY"];

/// Failing keys of a controller that are listed when all plugins are shown.
const FAILING: usize = 3;

/// Returns a line for each plugin. Below it stands what is wrong with it and its controllers, or, if `all`, everything.
pub(in crate::admin) fn plugins(rows: &[PluginRow], all: bool) -> String {
    lines(&HEAD, rows, cells, |row, below| {
        if all {
            details(row).iter().for_each(|line| below(1, line));
        }
        if let Some(account) = &row.account {
            below(1, &format!("its requests are sent as the service account {account}"));
        }
        if let Some(Quarantined { left, times, why }) = &row.quarantine {
            let how = if left.is_zero() {
                "it is being tried".to_owned()
            } else {
                format!("no key is handed out for {:.1} s more", left.as_secs_f64())
            };
            below(1, &format!("quarantined (delay {times} in a row): {how}: {why}"));
        }
        if let Some(Failure { at, stage, digest, message, backtrace }) = &row.load_failure {
            let digest = digest.short();
            below(1, &format!("revision {digest} failed to {} at {at}: {message}", stage.act()));
            backtrace.iter().for_each(|frame| below(2, frame));
        }
        if let Some(waiting) = &row.waiting {
            below(1, &format!("waiting: {waiting}"));
        }
        row.warnings.iter().for_each(|warning| below(1, warning));
        if !row.traps.is_empty() {
            below(1, &format!("failed calls: {}", counted(&row.traps)));
        }
        if let Some(CallFailure { at, call, kind, message, backtrace }) = &row.failed_call {
            below(1, &format!("last failed call at {at}: {call}: {kind}: {message}"));
            backtrace.iter().for_each(|frame| below(2, frame));
        }
        if row.log_dropped > 0 {
            let dropped = row.log_dropped;
            below(1, &format!("{dropped} lines of its log and about its failures were dropped, as they were too many"));
        }
        if let Some(observer) = &row.observer {
            backlog("observer", 1, observer, all, below);
        }
        row.controllers.iter().for_each(|row| controller(row, all, below));
    })
}

fn controller(row: &ControllerRow, all: bool, below: Below<'_>) {
    below(1, &counts(row));
    if all {
        below(2, &paced(row));
    }
    row.waits_for.iter().for_each(|informer| below(2, &format!("waits for {informer}")));
    let most = if all { usize::MAX } else { FAILING };
    let failing = row.failing.iter().take(most);
    let mut named = 0_usize;
    for FailingKey { key, lasts, failures, error } in failing {
        let seconds = lasts.as_secs_f64();
        below(2, &format!("{key} fails for {seconds:.1} s, {failures} times in a row: {error}"));
        named += 1;
    }
    if let more @ 1.. = row.keys_failing.saturating_sub(named) {
        below(2, &format!("and {more} more keys fail"));
    }
    for GivenUp { key, at, error } in row.given_up.iter().rev().take(most) {
        below(2, &format!("{key} was given up at {at}, until something changes: {error}"));
    }
    let GoneFigures { objects, bytes, dropped } = row.gone;
    if all || dropped > 0 {
        let held = bytes >> 10;
        below(2, &format!("gone: {objects} objects still to be reconciled, {held} kB; {dropped} deletions given up"));
    }
    backlog("mapper", 2, &row.unmapped, all, below);
    row.storms.iter().for_each(|storm| below(2, &stormy(storm)));
    if let more @ 1.. = row.breakers_open.saturating_sub(row.storms.len()) {
        below(2, &format!("and {more} more objects are reconciled over and over"));
    }
}

/// Writes what waits for a call of `map` or `observe`, unless nothing does and nothing was lost.
fn backlog(what: &str, depth: usize, row: &BacklogRow, all: bool, below: Below<'_>) {
    let BacklogRow { figures: BacklogFigures { objects, delayed, merged, dropped }, last_failure } = row;
    if all || *objects > 0 || *dropped > 0 || last_failure.is_some() {
        below(
            depth,
            &format!(
                "{what}: {objects} objects wait, {delayed} of them again after a failure; {merged} changes were merged, {dropped} deletions \
                 dropped"
            ),
        );
    }
    if let Some(HookFailure { at, objects, message }) = last_failure {
        below(depth + 1, &format!("failed last at {at} over {objects}: {message}"));
    }
}

/// Returns what is seldom wrong.
fn details(row: &PluginRow) -> Vec<String> {
    let InstanceFigures { alive, kept, made, reused, mapped, memory, peak, .. } = row.instances;
    let (held, peak) = (memory >> 10, peak >> 10);
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
    if let Some(owner) = &row.owner {
        lines.push(format!("the host {owner} acts for it"));
    }
    if let Some(ServingRow { instances, code, .. }) = &row.serving {
        lines.push(format!("asks for instances: {instances}; code: {}", code.unwrap_or("none")));
    }
    if let Some(Limits { memory, total_memory, host_calls, host_bytes, reuse, .. }) = row.limits {
        let [memory, total, host] = [memory, total_memory, host_bytes].map(|bytes| bytes >> 20);
        let reuse = if reuse { "" } else { ", and always has a fresh instance" };
        lines.push(format!(
            "a call may take {memory} MiB of memory, and {total} MiB with the plugin's others, {host_calls} calls of the host and {host} \
             MiB from them{reuse}"
        ));
    }
    let asked: Counts = row.host_calls.clone().into_iter().filter(|(_, count)| *count > 0).collect();
    lines.push(format!("calls of the host: {}", if asked.is_empty() { "none".to_owned() } else { counted(&asked) }));
    lines
}

/// Returns the bounds of a controller's pace.
fn paced(row: &ControllerRow) -> String {
    let ControllerRow { timeout_ms, reconciles_per_second, backoff_base_ms, backoff_cap_ms, .. } = row;
    let timeout = timeout_ms.map_or_else(String::new, |timeout| format!("a reconcile may take {timeout} ms; "));
    let often = reconciles_per_second.map_or_else(|| "as many as can".to_owned(), |often| often.to_string());
    format!(
        "{timeout}{often} in a second; a key that fails waits {backoff_base_ms} ms at first, and {backoff_cap_ms} ms at most"
    )
}

/// `3 error, 10 success`.
fn counted(counts: &Counts) -> String {
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
        format!("{}k", row.instances.memory >> 10),
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

fn stormy(storm: &StormRow) -> String {
    let StormRow { key, seconds, reconciles, wakes, cause, cause_wakes, cause_of } = storm;
    let by = cause
        .as_ref()
        .map_or_else(String::new, |cause| format!("; {cause_wakes} of the last {cause_of} times by {cause}"));
    format!("{key} is reconciled over and over: {reconciles} times in {seconds:.1} s, and was woken {wakes} times{by}")
}
