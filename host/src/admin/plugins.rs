//! What the parts of the host know of each plugin: the rows of `/debug/plugins`.

use std::{collections::BTreeMap, sync::Arc};

use pilothouse_core::event::cut;
use serde::Serialize;

use super::{Control, Release, View};
use crate::{
    dispatch::{
        BacklogRow, CallFailure, Controller, ControllerRow, Counts, Observing, Quarantined, Record, ReleaseOutcome,
    },
    name::PluginName,
    plugin::{Failure, Status},
    wasm::{InstanceFigures, Limits, Tier},
};

/// Bytes of a warning. There may be many of one plugin.
const WARNING: usize = 500;

/// Bytes of what is wrong with a plugin's file or its last call. There is one of each plugin.
const ERROR: usize = 4 << 10;

/// Warnings of one plugin that are listed: one for each permission that is asked for and not granted.
const WARNINGS: usize = 50;

/// One plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PluginRow {
    /// Its name.
    pub plugin: String,
    /// How far its newest file is: `active`, `failed`, …
    pub state: String,
    /// The identity of the host that acts for it. `None` if this host is alone, and while no host does.
    pub owner: Option<String>,
    /// The host that acts for it once its owner's calls are over.
    pub moving_to: Option<String>,
    /// The service account as which its requests are sent. `None`: the host's own.
    pub account: Option<String>,
    /// The revision that serves, if one does.
    pub serving: Option<ServingRow>,
    /// Why the newest file, or its settings, did not come to serve.
    pub load_failure: Option<Failure>,
    /// What its next revision waits for.
    pub waiting: Option<String>,
    /// What its service account may not read, and permissions that it asks for and is not granted. Predicates that are switched off, kinds that it
    /// observes by pattern and does not get, and finalizers that it left on objects.
    pub warnings: Vec<String>,
    /// Processor time on the guests' threads.
    pub cpu_seconds: f64,
    /// Time that its calls, and starts of pre-warmed instances, ran in the sandbox.
    pub guest_seconds: f64,
    /// Times that one of its tasks got a thread.
    pub turns: u64,
    /// Time that its tasks waited for a thread, all together.
    pub turn_wait_seconds: f64,
    /// Times that one of its tasks held a thread and did not give way.
    pub turns_held: u64,
    /// Its share of the threads, against the weights of others.
    pub cpu_weight: u32,
    /// Upper bound in thousandths of a core.
    pub cpu_milli: Option<u32>,
    /// Tasks that wait for a thread.
    pub waiting_tasks: usize,
    pub instances: InstanceFigures,
    /// Bounds of one call, if a revision serves.
    pub limits: Option<Limits>,
    /// Calls of imports, by name.
    pub host_calls: Counts,
    /// Lines of its log and about its failures that were dropped, as they were too many.
    pub log_dropped: u64,
    /// Failed calls, by kind.
    pub traps: Counts,
    pub quarantine: Option<Quarantined>,
    /// The last call that failed.
    pub failed_call: Option<CallFailure>,
    /// What its `observer` must still be notified of, if it observes anything.
    pub observer: Option<BacklogRow>,
    /// Kinds that it observes by pattern, if its manifest has patterns.
    pub kinds_matched: Option<usize>,
    /// Its controllers that are at work.
    pub controllers: Vec<ControllerRow>,
}

/// The revision that serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServingRow {
    /// The plugin's own version.
    pub version: String,
    /// The digest of its file, shortened.
    pub digest: String,
    /// When the revision began to serve with these settings.
    pub since: String,
    /// What it asks for: a `fresh` instance for each call, or `reuse`.
    pub instances: &'static str,
    /// Which compiler made its code: `baseline`, until it is `optimized`.
    pub code: Option<&'static str>,
}

/// Returns the quarantined plugins.
pub(super) fn quarantined(view: &View) -> BTreeMap<PluginName, Quarantined> {
    let records = view.dispatch.records();
    records.iter().filter_map(|record| Some((record.plugin().clone(), record.quarantined()?))).collect()
}

/// Returns a row for each plugin. Plugins that are gone have one as long as their status is known.
pub(super) fn rows(view: &View) -> Vec<PluginRow> {
    let parts = Parts::of(view);
    view.statuses.snapshot().plugins.into_iter().map(|status| parts.row(view, status)).collect()
}

/// What is known of all plugins, read once for all rows.
struct Parts {
    waiting: BTreeMap<PluginName, String>,
    records: Vec<Arc<Record>>,
    controllers: Vec<Arc<Controller>>,
    observers: Vec<Arc<Observing>>,
    usage: BTreeMap<PluginName, pilothouse_core::fair::Usage>,
    shares: BTreeMap<PluginName, pilothouse_core::fair::Share>,
    instances: BTreeMap<PluginName, InstanceFigures>,
}

impl Parts {
    fn of(view: &View) -> Self {
        Self {
            waiting: view.dispatch.waiting(),
            records: view.dispatch.records(),
            controllers: view.dispatch.controllers(),
            observers: view.dispatch.observing(),
            usage: view.guests.usage(),
            shares: view.guests.shares(),
            instances: view.engine.instances().into_iter().collect(),
        }
    }

    fn row(&self, view: &View, status: Status) -> PluginRow {
        let name = &status.plugin;
        let (owner, moving_to) = view.sharing.owner(name.as_str());
        let usage = self.usage.get(name).copied().unwrap_or_default();
        let share = self.shares.get(name).copied().unwrap_or_default();
        let instances = self.instances.get(name).copied().unwrap_or_default();
        let record = self.records.iter().find(|record| record.plugin() == name);
        let controllers: Vec<_> = self.controllers.iter().filter(|controller| controller.plugin() == name).collect();
        let observer = self.observers.iter().find(|observer| observer.plugin() == name);
        let off = controllers.iter().map(|controller| controller.waking().judging().off);
        let off = switched_off(off.chain(observer.map(|observer| observer.judging().off)).sum());
        let matched = record.and_then(|record| record.matched());
        let kinds_matched = matched.as_ref().map(|matched| matched.kinds);
        let left_out = matched.and_then(|matched| matched.left_out).map(|left_out| cut(&left_out, WARNING));
        let limits = controllers.first().map(|controller| controller.limits());
        PluginRow {
            plugin: name.to_string(),
            state: status.state.to_string(),
            owner,
            moving_to,
            account: status.act_as.as_ref().map(ToString::to_string),
            serving: status.serving.as_ref().map(|serving| ServingRow {
                version: serving.version.clone(),
                digest: serving.digest.short(),
                since: serving.since.to_string(),
                instances: serving.instances.as_str(),
                code: view.engine.tier(serving.digest).map(Tier::as_str),
            }),
            load_failure: status
                .last_failure
                .map(|failure| Failure { message: cut(&failure.message, ERROR), ..failure }),
            waiting: self.waiting.get(name).map(|why| cut(why, ERROR)),
            cpu_seconds: usage.used.as_secs_f64(),
            guest_seconds: instances.computed.as_secs_f64(),
            turns: usage.turns,
            turn_wait_seconds: usage.waited.as_secs_f64(),
            turns_held: usage.held,
            cpu_weight: share.weight.get(),
            cpu_milli: share.cap.map(Into::into),
            waiting_tasks: usage.waiting,
            instances,
            quarantine: record.and_then(|record| record.quarantined()).map(|quarantined| {
                let why = cut(&quarantined.why, ERROR);
                Quarantined { why, ..quarantined }
            }),
            failed_call: record.and_then(|record| record.last_failure()).map(|failure| {
                let message = cut(&failure.message, ERROR);
                CallFailure { message, ..failure }
            }),
            limits: limits.or_else(|| observer.map(|observer| observer.limits())),
            host_calls: record.map_or_else(Counts::new, |record| record.imports().collect()),
            log_dropped: record.map_or(0, |record| record.lines_dropped()),
            traps: record.map_or_else(Counts::new, |record| record.traps()),
            observer: observer.map(|observer| observer.row()),
            kinds_matched,
            controllers: controllers.into_iter().map(|controller| controller.row()).collect(),
            warnings: (view.dispatch.lacking(name).iter())
                .map(|lacking| format!("does not see what it caches: {lacking}"))
                .chain(status.warnings.iter().cloned())
                .take(WARNINGS)
                .map(|warning| cut(&warning, WARNING))
                .chain(view.dispatch.leftovers(name).into_iter().map(|left| cut(&left, WARNING)))
                .chain(off)
                .chain(left_out)
                .collect(),
        }
    }
}

/// Returns a warning about predicates that are switched off, if there are any.
fn switched_off(predicates: usize) -> Option<String> {
    (predicates > 0).then(|| {
        format!(
            "{predicates} of its predicates take too long and are switched off: a change counts as a match if only their CEL expressions \
             could reject it"
        )
    })
}

impl Control for View {
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
