//! From what the parts of the host know of plugins to the rows of `/debug/plugins`; and what can be done to plugins by hand.

use std::{collections::BTreeMap, sync::Arc};

use super::HostView;
use crate::{
    admin::{
        Control, ControllerRow, FailedCallRow, InstancesRow, LoadFailureRow, PluginRow, QuarantineRow, Release,
        ServingRow, StormRow,
    },
    dispatch::{Controller, Quarantined, Record},
    informer::told,
    plugin::{PluginName, Status},
};

/// Objects that are named of those which are reconciled over and over.
const STORMS: usize = 20;

/// The plugins that are left alone for a while, and why.
pub(super) fn quarantined(view: &HostView) -> BTreeMap<PluginName, Quarantined> {
    let records = view.dispatch.records();
    records.iter().filter_map(|record| Some((record.plugin().clone(), record.quarantined()?))).collect()
}

/// One for each plugin, those included that are gone and still known.
pub(super) fn rows(view: &HostView) -> Vec<PluginRow> {
    let (waiting, records, controllers) =
        (view.dispatch.waiting(), view.dispatch.records(), view.dispatch.controllers());
    let (usage, shares) = (view.guests.usage(), view.guests.shares());
    let instances: BTreeMap<_, _> = view.engine.instances().into_iter().collect();
    let row =
        |status: Status| {
            let name = &status.plugin;
            let usage = usage.get(name).copied().unwrap_or_default();
            let share = shares.get(name).copied().unwrap_or_default();
            let record = records.iter().find(|record| record.plugin() == name).map(Arc::as_ref);
            let own = controllers.iter().filter(|controller| controller.plugin() == name);
            PluginRow {
                plugin: name.to_string(),
                state: status.state.to_string(),
                serving: status.serving.as_ref().map(|serving| ServingRow {
                    version: serving.version.clone(),
                    digest: serving.digest.short().to_string(),
                    since: serving.since.to_string(),
                }),
                load_failure: status.last_failure.as_ref().map(|failure| LoadFailureRow {
                    at: failure.at.to_string(),
                    stage: failure.stage.to_string(),
                    digest: failure.digest.short().to_string(),
                    message: failure.message.clone(),
                }),
                waiting: waiting.get(name).cloned(),
                cpu_seconds: usage.used.as_secs_f64(),
                cpu_weight: share.weight.get(),
                cpu_milli: share.cap.map(Into::into),
                waiting_tasks: usage.waiting,
                instances: instances.get(name).map_or_else(InstancesRow::default, |of| InstancesRow {
                    alive: of.alive,
                    kept: of.kept,
                    made: of.made,
                    reused: of.reused,
                    memory_bytes: of.memory,
                }),
                quarantine: record.and_then(Record::quarantined).map(|Quarantined { left, times, why }| {
                    QuarantineRow { left_seconds: left.as_secs_f64(), times, why }
                }),
                failed_call: record.and_then(Record::last_failure).map(|failure| FailedCallRow {
                    at: failure.at.to_string(),
                    call: failure.call,
                    kind: failure.kind.to_owned(),
                    message: failure.message,
                    backtrace: failure.backtrace,
                }),
                controllers: own.map(|controller| self::controller(controller)).collect(),
                warnings: status.warnings,
            }
        };
    view.statuses.snapshot().plugins.into_iter().map(row).collect()
}

fn controller(controller: &Controller) -> ControllerRow {
    let (storms, now) = (controller.queue().storms(), controller.queue().now());
    let informers = controller.waits_for();
    let spec = controller.spec();
    let (ready, delayed, processing, retries) = {
        let queue = controller.queue().lock();
        (queue.len(), queue.delayed(), queue.processing(), queue.retries())
    };
    ControllerRow {
        controller: controller.name().to_owned(),
        kind: spec.for_.of.to_string(),
        waits_for: informers.iter().map(|(informer, state)| format!("{informer}: {}", told(state))).collect(),
        ready,
        delayed,
        processing,
        workers: controller.max_concurrency(),
        reconciles: controller.ended().into_iter().map(|(result, count)| (result.to_owned(), count)).collect(),
        retries,
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
            Some(true) => Release::Released,
            Some(false) => Release::Free,
            None => {
                Release::Unknown(self.dispatch.records().iter().map(|record| record.plugin().to_string()).collect())
            }
        }
    }
}
