//! From what the parts of the host say of themselves to metrics, and from what they are to readiness.

use std::{sync::atomic::Ordering, time::Duration};

use super::HostView;
use crate::{
    admin::{
        Check, Metrics, Readiness,
        metrics::{self, Live, Reconciled, Snapshot},
    },
    cluster::RequestObserver,
    dispatch::{self, Attempt, Controller},
    informer::told,
    plugin::{self, PluginName, Stage, State, Status},
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
            plugin.called(attempt.in_guest);
            if let Some(kind) = attempt.trap {
                plugin.trapped(kind);
            }
        }
        let Some(controller) = self.controller(&label(controller)) else { return };
        controller.reconciled(
            match attempt.result {
                dispatch::Result::Success => Reconciled::Success,
                dispatch::Result::RequeueAfter => Reconciled::RequeueAfter,
                dispatch::Result::Error => Reconciled::Error,
                dispatch::Result::Terminal => Reconciled::Terminal,
            },
            attempt.took,
        );
        match attempt.trap {
            Some("deadline") => controller.timed_out(),
            Some(_) => controller.panicked(),
            None => {}
        }
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

    fn failed(&self, plugin: &PluginName, stage: Stage) {
        self.add_plugin(plugin.as_str());
        if let Some(plugin) = self.plugin(plugin.as_str()) {
            plugin.load_failed(stage.as_str());
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
        for informer in self.informers.all() {
            let counts = informer.counts();
            let (objects, bytes) = {
                let store = informer.read();
                (store.len(), store.bytes())
            };
            live.informers.push(metrics::Informer {
                of: informer.key().of.clone(),
                objects,
                bytes,
                synced: *informer.synced().borrow(),
                events: [
                    ("added", &counts.added),
                    ("updated", &counts.updated),
                    ("deleted", &counts.deleted),
                    ("skipped", &counts.skipped),
                ]
                .map(|(of, count)| (of, count.load(Ordering::Relaxed)))
                .into(),
                relists: counts.relists(),
            });
        }
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
        let waiting = self.dispatch.waiting();
        for status in &snapshot.plugins {
            if status.state != State::Gone {
                checks.push(plugin_check(status, waiting.get(&status.plugin)));
            }
        }
        for problem in snapshot.problems {
            // A stray file keeps nobody from working.
            checks.push(Check { name: format!("file {}", problem.path.display()), ok: true, detail: problem.message });
        }
        for informer in self.informers.all() {
            let synced = *informer.synced().borrow();
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
fn plugin_check(status: &Status, waiting: Option<&String>) -> Check {
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
    detail.extend(status.warnings.iter().cloned());
    Check {
        name: format!("plugin {}", status.plugin),
        ok: status.serving.is_some() || matches!(status.state, State::Disabled | State::Draining),
        detail: detail.join("\n"),
    }
}
