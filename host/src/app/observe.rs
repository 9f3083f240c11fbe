//! From what the parts of the host say of themselves to metrics, and from what they are to readiness.

use std::{sync::atomic::Ordering, time::Duration};

use pilothouse_core::{key::TypeMeta, reflector};

use super::{HostView, plugins};
use crate::{
    admin::{
        Check, InformerRow, Inspect, LeaseRow, Metrics, PluginRow, Readiness,
        metrics::{self, Live, Reconciled, Snapshot},
    },
    cluster::RequestObserver,
    dispatch::{self, Attempt, Called, Controller, Quarantined},
    informer::{Holding, Tally},
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
            let queue = controller.ledger().queue().lock();
            let now = controller.ledger().queue().now();
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
            let (reads, (breakers_open, breakers_opened)) =
                (controller.ledger().reads(), controller.ledger().queue().breakers());
            let gone = controller.ledger().gone();
            live.routes.push(metrics::Routes {
                controller: label(&controller),
                woken: controller.waking().woken().to_vec(),
                reading_keys: reads.keys,
                reads: reads.things,
                read_bytes: reads.bytes,
                breakers_open,
                breakers_opened,
                gone: gone.objects,
                gone_bytes: gone.bytes,
                gone_dropped: gone.dropped,
            });
            live.backlogs.push(backlog(controller.plugin(), dispatch::Hook::Map, controller.waking().unmapped()));
            live.predicates.push(predicates(controller.plugin(), controller.waking().judging()));
        }
        for observing in self.dispatch.observing() {
            live.backlogs.push(backlog(observing.plugin(), dispatch::Hook::Observe, observing.figures()));
            live.predicates.push(predicates(observing.plugin(), observing.judging()));
        }
        live.calls.extend(self.dispatch.records().iter().map(|record| metrics::HostCalls {
            plugin: record.plugin().to_string(),
            calls: record.imports().collect(),
            lines_dropped: record.lines_dropped(),
        }));
        live.events.extend(self.events.figures());
        let accounts = self.guests.usage().into_iter();
        live.accounts.extend(accounts.map(|(plugin, usage)| metrics::Account { plugin: plugin.to_string(), usage }));
        let requests = self.dispatch.requests().into_iter();
        live.requests.extend(requests.map(|(plugin, usage)| metrics::Requests { plugin: plugin.to_string(), usage }));
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
                stale: health.stale(),
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

fn predicates(plugin: &PluginName, figures: dispatch::JudgingFigures) -> metrics::Predicates {
    let dispatch::JudgingFigures { waiting, unseen, off } = figures;
    metrics::Predicates { plugin: plugin.to_string(), waiting, unseen, off }
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
        stale: Duration::ZERO,
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
                state: informer.state().to_string(),
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
    fn host(&self) -> Vec<Check> {
        let first_look = self.first_look();
        let informers = self.informers.all();
        let unreachable = if self.metrics.never_answered() {
            Some("no request has been answered so far: see the log for why".to_owned())
        } else if are_cut_off(informers.iter().map(|informer| (informer.state(), informer.health().stale()))) {
            let minutes = STALE_AFTER.as_secs() / 60;
            Some(format!("no informer has had an open watch for {minutes} minutes: see /readyz?verbose for why"))
        } else {
            None
        };
        let check = |name: &str, wrong: Option<String>| {
            let ok = wrong.is_none();
            Check { name: name.to_owned(), ok, detail: wrong.unwrap_or_default() }
        };
        vec![
            check("plugin directory", (!first_look.plugins).then(|| "the first plugins are being loaded".to_owned())),
            check("informers", (!first_look.informers).then(|| "the first lists are under way".to_owned())),
            check("API server", unreachable),
        ]
    }

    fn parts(&self) -> Vec<Check> {
        let snapshot = self.statuses.snapshot();
        let (waiting, quarantined) = (self.dispatch.waiting(), plugins::quarantined(self));
        let plugins = snapshot.plugins.iter().filter(|status| status.state != State::Gone);
        let mut checks: Vec<_> = plugins
            .map(|status| plugin_check(status, waiting.get(&status.plugin), quarantined.get(&status.plugin)))
            .collect();
        for problem in snapshot.problems {
            // A stray file keeps nobody from working.
            checks.push(Check { name: format!("file {}", problem.path.display()), ok: true, detail: problem.message });
        }
        for informer in self.informers.all() {
            let (state, stale) = (informer.state(), informer.health().stale());
            checks.push(informer_check(&informer.key().to_string(), informer.is_synced(), &state, stale));
        }
        checks
    }

    fn plugin(&self, name: &str) -> Option<Check> {
        let snapshot = self.statuses.snapshot();
        let is_it = |status: &&Status| status.plugin.as_str() == name && status.state != State::Gone;
        let status = snapshot.plugins.iter().find(is_it)?;
        let (waiting, quarantined) = (self.dispatch.waiting(), plugins::quarantined(self));
        Some(plugin_check(status, waiting.get(&status.plugin), quarantined.get(&status.plugin)))
    }
}

/// An informer without an open watch for this long is stale. A watch that is cut is back within seconds; one that is dead is noticed
/// after 150 s, and an API server that restarts is back within 30 s more.
const STALE_AFTER: Duration = Duration::from_secs(180);

/// Which parts of the host's first look are over. Once over, they stay so: what comes later concerns its plugin alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FirstLook {
    plugins: bool,
    informers: bool,
}

impl HostView {
    fn first_look(&self) -> FirstLook {
        if self.began.load(Ordering::Relaxed) {
            return FirstLook { plugins: true, informers: true };
        }
        let waiting = self.dispatch.waiting();
        let waits = |plugin: &PluginName| waiting.contains_key(plugin);
        let plugins = self.statuses.snapshot().unsettled.is_some_and(|unsettled| unsettled.iter().all(waits));
        let informers = self.informers.all().iter().all(|informer| informer.has_looked());
        if plugins && informers {
            self.began.store(true, Ordering::Relaxed);
        }
        FirstLook { plugins, informers }
    }
}

/// `true` if no informer that could watch has watched for minutes: so it is with all of them where the API server is away, or does not
/// know the host any more. A kind that is not served or is denied is the affair of the plugins that use it.
fn are_cut_off(informers: impl Iterator<Item = (reflector::State, Duration)>) -> bool {
    let could_watch =
        |state: &reflector::State| !matches!(state, reflector::State::Missing(_) | reflector::State::Denied(_));
    let mut stale = informers.filter(|(state, _)| could_watch(state)).map(|(_, stale)| stale >= STALE_AFTER).peekable();
    stale.peek().is_some() && stale.all(|stale| stale)
}

/// An informer is well if its first list is there and its watch has not been closed for minutes.
fn informer_check(key: &str, synced: bool, state: &reflector::State, stale: Duration) -> Check {
    let (is_stale, name) = (stale >= STALE_AFTER, format!("informer {key}"));
    let detail = match state {
        reflector::State::Watching if synced => String::new(),
        state if synced && is_stale => {
            format!("no watch for {} s, so its cache may be out of date: {state}", stale.as_secs())
        }
        state => state.to_string(),
    };
    Check { name, ok: synced && !is_stale, detail }
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
    fn an_informer_without_a_watch_for_minutes_is_not_well_though_it_has_synced() {
        let denied = reflector::State::Denied("secrets is forbidden".to_owned());
        let check = |synced, state: &reflector::State, seconds| {
            let Check { ok, detail, .. } = informer_check("v1 Secret *", synced, state, Duration::from_secs(seconds));
            (ok, detail)
        };
        assert_eq!(check(true, &reflector::State::Watching, 0), (true, String::new()));
        let told = "denied; grant the host's account list and watch: secrets is forbidden";
        assert_eq!(check(false, &denied, 1), (false, told.to_owned()));
        assert_eq!(check(true, &denied, 179), (true, told.to_owned()));
        let stale = format!("no watch for 180 s, so its cache may be out of date: {told}");
        assert_eq!(check(true, &denied, 180), (false, stale));
    }

    #[test]
    fn informers_are_cut_off_where_none_that_could_watch_has_watched_for_minutes() {
        use reflector::State;
        let waiting = || State::Waiting { delay: Duration::from_secs(30), reason: "connection refused".to_owned() };
        let (denied, missing) = (|| State::Denied("no".to_owned()), || State::Missing("no".to_owned()));
        let (short, long) = (Duration::from_secs(10), STALE_AFTER);
        for (informers, cut_off) in [
            (vec![], false),
            (vec![(denied(), long), (missing(), long)], false),
            (vec![(waiting(), short), (waiting(), long)], false),
            (vec![(State::Watching, Duration::ZERO), (waiting(), long)], false),
            (vec![(waiting(), long), (denied(), long)], true),
            (vec![(State::Unauthenticated("expired".to_owned()), long), (State::Resolving, long)], true),
        ] {
            assert_eq!(are_cut_off(informers.clone().into_iter()), cut_off, "{informers:?}");
        }
    }

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
