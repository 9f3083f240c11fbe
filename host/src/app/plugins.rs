//! From what the parts of the host know of plugins to the rows of `/debug/plugins`; and what can be done to plugins by hand.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::HostView;
use crate::{
    admin::{
        BacklogRow, Control, ControllerRow, FailedCallRow, FailingRow, GivenUpRow, GoneRow, HookFailureRow,
        InstancesRow, LimitsRow, LoadFailureRow, PluginRow, QuarantineRow, Release, ServingRow, StormRow,
    },
    dispatch::{
        BacklogFigures, Controller, FailingKey, GivenUp, GoneFigures, HookFailure, Quarantined, Record, ReleaseOutcome,
    },
    name::PluginName,
    plugin::Status,
    wasm::{Limits, Tier},
    writer::cut,
};

/// Objects that are named of those which are reconciled over and over.
const STORMS: usize = 20;

/// Keys that are named of those which fail.
const FAILING: usize = 20;

/// Bytes of why one does: the log and `last-error` have it whole, and a thousand plugins may have twenty keys each.
const WHY: usize = 500;

/// Bytes of what is wrong with a plugin's file or its last call, of which there is one for each plugin.
const WHAT: usize = 4 << 10;

/// Warnings of one plugin that are shown: one for each permission that is asked for and not granted.
const WARNINGS: usize = 50;

/// The plugins that are left alone for a while, and why.
pub(super) fn quarantined(view: &HostView) -> BTreeMap<PluginName, Quarantined> {
    let records = view.dispatch.records();
    records.iter().filter_map(|record| Some((record.plugin().clone(), record.quarantined()?))).collect()
}

/// One for each plugin, those included that are gone and still known.
pub(super) fn rows(view: &HostView) -> Vec<PluginRow> {
    let (waiting, records, controllers) =
        (view.dispatch.waiting(), view.dispatch.records(), view.dispatch.controllers());
    let observers = view.dispatch.observing();
    let (usage, shares) = (view.guests.usage(), view.guests.shares());
    let instances: BTreeMap<_, _> = view.engine.instances().into_iter().collect();
    let row =
        |status: Status| {
            let name = &status.plugin;
            let usage = usage.get(name).copied().unwrap_or_default();
            let share = shares.get(name).copied().unwrap_or_default();
            let record = records.iter().find(|record| record.plugin() == name).map(Arc::as_ref);
            let own: Vec<_> = controllers.iter().filter(|controller| controller.plugin() == name).collect();
            let observer = observers.iter().find(|observer| observer.plugin() == name);
            let off =
                own.iter().map(|own| own.waking().judging().off).chain(observer.map(|observer| observer.judging().off));
            let off = switched_off(off.sum());
            let limits = own.first().map(|own| own.limits()).or_else(|| observer.map(|observer| observer.limits()));
            PluginRow {
                plugin: name.to_string(),
                state: status.state.to_string(),
                serving: status.serving.as_ref().map(|serving| ServingRow {
                    version: serving.version.clone(),
                    digest: serving.digest.short().to_string(),
                    since: serving.since.to_string(),
                    instances: serving.instances.as_str(),
                    code: view.engine.tier(serving.digest).map(Tier::as_str),
                }),
                load_failure: status.last_failure.as_ref().map(|failure| LoadFailureRow {
                    at: failure.at.to_string(),
                    stage: failure.stage.to_string(),
                    digest: failure.digest.short().to_string(),
                    message: cut(&failure.message, WHAT),
                    backtrace: failure.backtrace.clone(),
                }),
                waiting: waiting.get(name).map(|why| cut(why, WHAT)),
                cpu_seconds: usage.used.as_secs_f64(),
                guest_seconds: instances.get(name).map_or(0.0, |of| of.computed.as_secs_f64()),
                turns: usage.turns,
                turn_wait_seconds: usage.waited.as_secs_f64(),
                turns_held: usage.held,
                cpu_weight: share.weight.get(),
                cpu_milli: share.cap.map(Into::into),
                waiting_tasks: usage.waiting,
                instances: instances.get(name).map_or_else(InstancesRow::default, |of| InstancesRow {
                    alive: of.alive,
                    kept: of.kept,
                    made: of.made,
                    reused: of.reused,
                    mapped: of.mapped,
                    memory_bytes: of.memory,
                    peak_bytes: of.peak,
                }),
                quarantine: record.and_then(Record::quarantined).map(|Quarantined { left, times, why }| {
                    QuarantineRow { left_seconds: left.as_secs_f64(), times, why: cut(&why, WHAT) }
                }),
                failed_call: record.and_then(Record::last_failure).map(|failure| FailedCallRow {
                    at: failure.at.to_string(),
                    call: failure.call,
                    kind: failure.kind.to_owned(),
                    message: cut(&failure.message, WHAT),
                    backtrace: failure.backtrace,
                }),
                limits: limits.map(|Limits { memory, total_memory, host_calls, host_bytes, reuse, .. }| LimitsRow {
                    memory_bytes: memory,
                    total_memory_bytes: total_memory,
                    host_calls,
                    host_bytes,
                    reuse,
                }),
                host_calls: record.map_or_else(BTreeMap::new, |record| named(record.imports())),
                log_dropped: record.map_or(0, Record::lines_dropped),
                traps: record.map_or_else(BTreeMap::new, |record| named(record.traps())),
                observer: observer.map(|observer| backlog(observer.figures(), observer.last_failure())),
                controllers: own.into_iter().map(|controller| self::controller(controller)).collect(),
                warnings: status.warnings.iter().take(WARNINGS).map(|warning| cut(warning, WHY)).chain(off).collect(),
            }
        };
    view.statuses.snapshot().plugins.into_iter().map(row).collect()
}

/// What is said of predicates that are switched off, if there are any.
fn switched_off(predicates: usize) -> Option<String> {
    (predicates > 0).then(|| {
        format!(
            "{predicates} of its predicates take too long and are switched off: changes that only their CEL expressions could leave out count \
             as matches"
        )
    })
}

/// Counts under their names.
fn named(counts: impl IntoIterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

fn backlog(figures: BacklogFigures, last: Option<HookFailure>) -> BacklogRow {
    let BacklogFigures { objects, delayed, merged, dropped } = figures;
    let last_failure = last.map(|HookFailure { at, objects, message }| HookFailureRow {
        at: at.to_string(),
        objects,
        message: cut(&message, WHY),
    });
    BacklogRow { objects, delayed, merged, dropped, last_failure }
}

fn controller(controller: &Controller) -> ControllerRow {
    let (keys_failing, failing) = controller.ledger().failing(FAILING);
    let pace = controller.pace();
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (storms, now) = (controller.ledger().queue().storms(), controller.ledger().queue().now());
    let informers = controller.waking().waits_for();
    let spec = controller.spec();
    let GoneFigures { objects, bytes, dropped } = controller.ledger().gone();
    let (ready, delayed, processing, retries) = {
        let queue = controller.ledger().queue().lock();
        (queue.len(), queue.delayed(), queue.processing(), queue.retries())
    };
    ControllerRow {
        controller: controller.name().to_owned(),
        kind: spec.for_.of.to_string(),
        waits_for: informers.iter().map(|(informer, state)| format!("{informer}: {state}")).collect(),
        ready,
        delayed,
        processing,
        workers: controller.max_concurrency(),
        reconciles: named(controller.results()),
        retries,
        timeout_ms: controller.deadline().map(millis),
        reconciles_per_second: pace.rate.map(|rate| rate.burst),
        backoff_base_ms: millis(pace.backoff.base),
        backoff_cap_ms: millis(pace.backoff.cap),
        failing: failing
            .into_iter()
            .map(|FailingKey { key, lasts, failures, error }| FailingRow {
                key: key.to_string(),
                seconds: lasts.as_secs_f64(),
                failures,
                error: cut(&error, WHY),
            })
            .collect(),
        keys_failing,
        given_up: controller
            .ledger()
            .given_up()
            .into_iter()
            .map(|GivenUp { key, at, error }| GivenUpRow {
                key: key.to_string(),
                at: at.to_string(),
                error: cut(&error, WHY),
            })
            .collect(),
        gone: GoneRow { objects, bytes, dropped },
        unmapped: backlog(controller.waking().unmapped(), controller.waking().last_unmapped()),
        breakers_open: storms.len(),
        storms: storms
            .into_iter()
            .take(STORMS)
            .map(|(key, storm)| StormRow {
                key: key.to_string(),
                seconds: now.saturating_sub(storm.since).as_secs_f64(),
                reconciles: storm.reconciles,
                wakes: storm.wakes,
                cause: storm.by.as_ref().map(|by| by.cause.to_string()),
                cause_wakes: storm.by.as_ref().map_or(0, |by| by.wakes),
                cause_of: storm.by.as_ref().map_or(0, |by| by.of),
            })
            .collect(),
    }
}

impl Control for HostView {
    fn release(&self, plugin: &str) -> Release {
        match self.dispatch.release(plugin) {
            ReleaseOutcome::Released => Release::Released,
            ReleaseOutcome::NotQuarantined => Release::Free,
            ReleaseOutcome::UnknownPlugin => {
                Release::Unknown(self.dispatch.records().iter().map(|record| record.plugin().to_string()).collect())
            }
        }
    }
}
