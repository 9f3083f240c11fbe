//! From what the parts of the host say of themselves to metrics, and from what they are to readiness.

use std::time::Duration;

use pilothouse_core::key::TypeMeta;

use super::{HostView, plugins};
use crate::{
    admin::{
        Check, InformerRow, Inspect, LeaseRow, Metrics, PluginRow, Readiness,
        metrics::{self, Live, Reconciled, Snapshot},
    },
    cluster::RequestObserver,
    dispatch::{self, Attempt, Called, Controller, Quarantined},
    informer::{Holding, Tally, told},
    name::PluginName,
    plugin::{self, Stage, State, Status},
    wasm::Tier,
    writer::WriteObserver,
};

/// The value of the label `controller`: unique in the host.
fn label(controller: &Controller) -> String {
    format!("{}/{}", controller.plugin(), controller.name())
}

impl RequestObserver for Metrics {
    fn requested(&self, method: &http::Method, host: &str, code: Option<u16>) {
        Metrics::requested(self, method.as_str(), host, code);
    }
}

impl WriteObserver for Metrics {
    fn wrote(&self, plugin: &str, verb: &'static str, result: &'static str) {
        if let Some(plugin) = self.plugin(plugin) {
            plugin.wrote(verb, result);
        }
    }
}

impl dispatch::Observer for Metrics {
    fn started(&self, controller: &Controller) {
        self.add_controller(&label(controller));
    }

    fn stopped(&self, controller: &Controller) {
        self.remove_controller(&label(controller));
    }

    fn picked(&self, controller: &Controller, waited: Duration) {
        if let Some(plugin) = self.plugin(controller.plugin().as_str()) {
            plugin.picked(waited);
        }
        if let Some(controller) = self.controller(&label(controller)) {
            controller.picked(waited);
        }
    }

    fn finished(&self, controller: &Controller, took: Duration) {
        if let Some(controller) = self.controller(&label(controller)) {
            controller.finished(took);
        }
    }

    fn attempted(&self, controller: &Controller, attempt: &Attempt) {
        if let Some(plugin) = self.plugin(controller.plugin().as_str()) {
            if let Some(in_guest) = attempt.in_guest {
                plugin.called(in_guest);
            }
            if let Some(kind) = attempt.trap {
                plugin.trapped(kind);
            }
        }
        if let Some(controller) = self.controller(&label(controller)) {
            count(&controller, attempt);
        }
    }

    fn called(&self, plugin: &PluginName, _: Option<&Controller>, called: &Called) {
        let Some(plugin) = self.plugin(plugin.as_str()) else { return };
        plugin.called(called.took);
        plugin.hooked(called.hook.as_str(), called.ok);
        if let Some(kind) = called.trap {
            plugin.trapped(kind);
        }
    }

    fn quarantined(&self, plugin: &PluginName, quarantined: bool) {
        if let Some(plugin) = self.plugin(plugin.as_str()) {
            plugin.set_quarantined(quarantined);
        }
    }
}

/// Counts a reconcile as controller-runtime does: one that panicked, or ran out of time, is one that failed besides.
fn count(controller: &metrics::Controller, attempt: &Attempt) {
    controller.reconciled(
        match attempt.result {
            dispatch::ReconcileResult::Success => Reconciled::Success,
            dispatch::ReconcileResult::RequeueAfter => Reconciled::RequeueAfter,
            dispatch::ReconcileResult::Error => Reconciled::Error,
            dispatch::ReconcileResult::Terminal => Reconciled::Terminal,
        },
        attempt.took,
    );
    if attempt.panicked {
        controller.panicked();
    }
    if attempt.trap == Some("deadline") {
        controller.timed_out();
    }
}

impl plugin::Observer for Metrics {
    fn changed(&self, status: &Status) {
        let name = status.plugin.as_str();
        if status.state == State::Gone {
            self.remove_plugin(name);
            return;
        }
        self.add_plugin(name);
        if let Some(plugin) = self.plugin(name) {
            plugin.set_active(status.serving.is_some());
        }
    }

    fn failed(&self, plugin: &PluginName, stage: Stage, kind: &'static str) {
        self.add_plugin(plugin.as_str());
        if let Some(plugin) = self.plugin(plugin.as_str()) {
            plugin.load_failed(stage.as_str(), kind);
        }
    }

    fn activated(&self, plugin: &PluginName, _: Duration) {
        self.add_plugin(plugin.as_str());
        if let Some(plugin) = self.plugin(plugin.as_str()) {
            plugin.activated();
        }
    }
}

impl Snapshot for HostView {
    fn read(&self, live: &mut Live) {
        let code = self.engine.figures();
        live.code = Some(metrics::Code {
            compilers: [(Tier::Baseline, code.baseline), (Tier::Optimized, code.optimized)].map(|(tier, of)| {
                metrics::Compiles { tier: tier.as_str(), compiled: of.compiled, failed: of.failed, took: of.took }
            }),
            hits: code.hits,
            misses: code.misses,
            rejected: code.rejected,
            loaded: code.loaded,
            mapped: code.mapped,
            unoptimized: code.unoptimized,
            slots: code.slots,
        });
        for controller in self.dispatch.controllers() {
            let queue = controller.queue().lock();
            let now = controller.queue().now();
            live.queues.push(metrics::Queue {
                controller: label(&controller),
                depths: queue.depths().collect(),
                adds: queue.adds(),
                retries: queue.retries(),
                unfinished: queue.unfinished(now),
                longest_running: queue.longest_running(now),
                active_workers: controller.active_workers(),
                max_concurrent: controller.max_concurrency(),
            });
        }
        for controller in self.dispatch.controllers() {
            let (reads, (breakers_open, breakers_opened)) = (controller.reads(), controller.queue().breakers());
            let gone = controller.gone();
            live.routes.push(metrics::Routes {
                controller: label(&controller),
                woken: controller.woken().to_vec(),
                reading_keys: reads.keys,
                reads: reads.things,
                read_bytes: reads.bytes,
                breakers_open,
                breakers_opened,
                gone: gone.objects,
                gone_bytes: gone.bytes,
                gone_dropped: gone.dropped,
            });
            live.backlogs.push(backlog(controller.plugin(), dispatch::Hook::Map, controller.unmapped()));
        }
        for observing in self.dispatch.observing() {
            live.backlogs.push(backlog(observing.plugin(), dispatch::Hook::Observe, observing.figures()));
        }
        live.calls.extend(self.dispatch.records().iter().map(|record| metrics::HostCalls {
            plugin: record.plugin().to_string(),
            calls: record.imports().collect(),
            lines_dropped: record.lines_dropped(),
        }));
        live.events.extend(self.events.figures());
        let accounts = self.guests.usage().into_iter();
        live.accounts.extend(accounts.map(|(plugin, usage)| metrics::Account { plugin: plugin.to_string(), usage }));
        live.instances.extend(self.engine.instances().into_iter().map(|(plugin, of)| metrics::Instances {
            plugin: plugin.to_string(),
            alive: of.alive,
            kept: of.kept,
            made: of.made,
            reused: of.reused,
            mapped: of.mapped,
            computed: of.computed,
            memory: of.memory,
            peak: of.peak,
        }));
        live.informers.extend(self.informers.past().into_iter().map(|(of, tally)| counted(of, &tally)));
        for Holding { informer, leases } in self.informers.holdings() {
            let ((objects, bytes), health) = (informer.size(), informer.health());
            live.informers.push(metrics::Informer {
                running: 1,
                leases: leases.len(),
                objects,
                bytes,
                snapshots: informer.snapshots(),
                synced: informer.is_synced(),
                synced_after: health.synced_after,
                watch_age: health.watching.map(|since| since.elapsed()),
                silence: health.heard.map(|at| at.elapsed()),
                behind: informer.behind(),
                ..counted(informer.key().of.clone(), &informer.tally())
            });
        }
    }
}

fn backlog(plugin: &PluginName, hook: dispatch::Hook, figures: dispatch::BacklogFigures) -> metrics::Backlog {
    let dispatch::BacklogFigures { objects, delayed: _, merged, dropped } = figures;
    metrics::Backlog { plugin: plugin.to_string(), hook: hook.as_str(), objects, merged, dropped }
}

/// What has been counted, of no informer that is running.
fn counted(of: TypeMeta, tally: &Tally) -> metrics::Informer {
    metrics::Informer {
        of,
        running: 0,
        leases: 0,
        objects: 0,
        bytes: 0,
        snapshots: 0,
        synced: true,
        events: vec![
            ("added", tally.added),
            ("updated", tally.updated),
            ("deleted", tally.deleted),
            ("skipped", tally.skipped),
        ],
        relists: tally.relists.iter().map(|(reason, count)| (reason.as_str(), *count)).collect(),
        failures: tally.failures.iter().map(|(reason, count)| (*reason, *count)).collect(),
        restarts: tally.restarts,
        own_writes: tally.own_writes,
        own_lag: tally.own_lag,
        snapshots_given_up: tally.snapshots_given_up,
        synced_after: None,
        watch_age: None,
        silence: None,
        behind: 0,
    }
}

impl Inspect for HostView {
    fn informers(&self) -> Vec<InformerRow> {
        let rows = self.informers.holdings().into_iter().map(|Holding { informer, leases }| {
            let (key, tally, health, (objects, bytes)) =
                (informer.key(), informer.tally(), informer.health(), informer.size());
            InformerRow {
                kind: key.of.to_string(),
                namespace: key.namespace.as_deref().map(str::to_owned),
                labels: key.labels.to_string(),
                fields: key.fields.to_string(),
                keeps: key.keep.to_string(),
                compressed: informer.is_compressed(),
                synced: informer.is_synced(),
                state: told(&informer.state()),
                leases: leases
                    .into_iter()
                    .map(|used| LeaseRow { plugin: used.holder.to_string(), asks: used.to_string() })
                    .collect(),
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
        });
        rows.collect()
    }

    fn plugins(&self) -> Vec<PluginRow> {
        plugins::rows(self)
    }
}

impl Readiness for HostView {
    fn report(&self) -> Vec<Check> {
        let snapshot = self.statuses.snapshot();
        let mut checks = vec![Check {
            name: "plugins loaded".into(),
            ok: snapshot.settled,
            detail: if snapshot.settled {
                String::new()
            } else {
                "the directory's plugins are being brought up".into()
            },
        }];
        let (waiting, quarantined) = (self.dispatch.waiting(), plugins::quarantined(self));
        for status in &snapshot.plugins {
            if status.state != State::Gone {
                checks.push(plugin_check(status, waiting.get(&status.plugin), quarantined.get(&status.plugin)));
            }
        }
        for problem in snapshot.problems {
            // A stray file keeps nobody from working.
            checks.push(Check { name: format!("file {}", problem.path.display()), ok: true, detail: problem.message });
        }
        for informer in self.informers.all() {
            let synced = informer.is_synced();
            checks.push(Check {
                name: format!("informer {}", informer.key()),
                ok: synced,
                detail: match informer.state() {
                    // As it should be.
                    pilothouse_core::reflector::State::Watching if synced => String::new(),
                    state => told(&state),
                },
            });
        }
        checks
    }
}

/// A plugin is ready if it serves, or is meant not to. What is wrong with a newer file is said all the same.
fn plugin_check(status: &Status, waiting: Option<&String>, quarantined: Option<&Quarantined>) -> Check {
    let mut detail = Vec::new();
    if let Some(serving) = &status.serving {
        detail.push(format!("serving {} ({})", serving.version, serving.digest.short()));
    } else {
        detail.push(status.state.to_string());
    }
    if let Some(failure) = &status.last_failure {
        let digest = failure.digest.short();
        let still = if status.serving.is_some() { ", the one before goes on" } else { "" };
        detail.push(format!("revision {digest} failed to {}{still}: {}", failure.stage, failure.message));
    }
    if let Some(waiting) = waiting {
        detail.push(format!("waiting: {waiting}"));
    }
    if let Some(Quarantined { times, why, .. }) = quarantined {
        detail.push(format!("quarantined (delay {times} in a row), as its calls come to nothing: {why}"));
    }
    detail.extend(status.warnings.iter().cloned());
    Check {
        name: format!("plugin {}", status.plugin),
        ok: status.serving.is_some() || matches!(status.state, State::Disabled | State::Draining),
        detail: detail.join("\n"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    #[test]
    fn panics_and_timeouts_are_errors_besides_and_other_calls_that_come_to_nothing_are_errors_alone() {
        let metrics = Metrics::new();
        metrics.add_controller("a/b");
        let counted = |in_guest: Option<Duration>, trap, panicked| {
            let (result, took) = (dispatch::ReconcileResult::Error, Duration::from_secs(1));
            count(&metrics.controller("a/b").unwrap(), &Attempt { result, took, in_guest, trap, panicked });
            let text = metrics.encode();
            let of = |name: &str| {
                let line =
                    text.lines().find_map(|line| line.strip_prefix(&format!("controller_runtime_reconcile_{name} ")));
                line.unwrap().parse::<u64>().unwrap()
            };
            [
                of("total{controller=\"a/b\",result=\"error\"}"),
                of("errors_total{controller=\"a/b\"}"),
                of("time_seconds_count{controller=\"a/b\"}"),
                of("panics_total{controller=\"a/b\"}"),
                of("timeouts_total{controller=\"a/b\"}"),
            ]
        };
        let called = Some(Duration::ZERO);
        assert_eq!(counted(called, None, false), [1, 1, 1, 0, 0]);
        assert_eq!(counted(called, Some("host"), false), [2, 2, 2, 0, 0]);
        assert_eq!(counted(called, Some("deadline"), false), [3, 3, 3, 0, 1]);
        assert_eq!(counted(called, Some("trap"), true), [4, 4, 4, 1, 1]);
        // The host failed over the key.
        assert_eq!(counted(None, None, true), [5, 5, 5, 2, 1]);
    }
}
