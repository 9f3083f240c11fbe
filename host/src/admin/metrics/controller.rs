//! Reconciles and queues, as controller-runtime counts them.

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::DescriptorEncoder,
    metrics::{
        counter::Counter,
        histogram::{Histogram, exponential_buckets},
    },
};

use super::encode::{counters, histograms};

/// controller-runtime's buckets of `controller_runtime_reconcile_time_seconds`.
const RECONCILE_TIME: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
];

/// Of `controller_runtime_reconcile_panics_total`.
const PANICS: &str = "Reconciles in which the plugin died in the middle of its code (trap, stack, memory, table, host-calls, or decode in an \
                      import), or the host failed";

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled {
    /// Nothing more to do until something changes.
    Success,
    /// To be done again at once.
    Requeue,
    /// To be done again after a time that the plugin named.
    RequeueAfter,
    /// To be tried again with growing delay.
    Error,
    /// Failed, and not to be tried again until something changes. Counts as an error too.
    Terminal,
}

/// What is counted of one controller.
#[derive(Debug)]
pub struct Controller {
    success: Counter,
    requeue: Counter,
    requeue_after: Counter,
    error: Counter,
    terminal: Counter,
    panics: Counter,
    timeouts: Counter,
    time: Histogram,
    waited: Histogram,
    worked: Histogram,
}

impl Default for Controller {
    fn default() -> Self {
        // client-go's buckets of both durations of a workqueue.
        let queue = || Histogram::new(exponential_buckets(1e-8, 10.0, 12));
        Self {
            success: Counter::default(),
            requeue: Counter::default(),
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

impl Controller {
    /// A reconcile ended after `took`.
    pub fn reconciled(&self, result: Reconciled, took: Duration) {
        self.time.observe(took.as_secs_f64());
        match result {
            Reconciled::Success => self.success.inc(),
            Reconciled::Requeue => self.requeue.inc(),
            Reconciled::RequeueAfter => self.requeue_after.inc(),
            Reconciled::Error => self.error.inc(),
            Reconciled::Terminal => {
                self.terminal.inc();
                self.error.inc()
            }
        };
    }

    /// A reconcile ended in the middle of the plugin's code, which is to it what a panic is to a native controller, or the host failed over
    /// it. Beside [`Self::reconciled`].
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// A reconcile ran past its deadline. Beside [`Self::reconciled`].
    pub fn timed_out(&self) {
        self.timeouts.inc();
    }

    /// A key was taken from the queue, in which it had been ready for `waited`.
    pub fn picked(&self, waited: Duration) {
        self.waited.observe(waited.as_secs_f64());
    }

    /// A key's processing ended after `took`.
    pub fn finished(&self, took: Duration) {
        self.worked.observe(took.as_secs_f64());
    }

    fn results(&self) -> [(&'static str, u64); 4] {
        [
            ("success", self.success.get()),
            ("requeue", self.requeue.get()),
            ("requeue_after", self.requeue_after.get()),
            ("error", self.error.get()),
        ]
    }
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, all: &[(String, Arc<Controller>)]) -> fmt::Result {
    counters(
        encoder,
        "controller_runtime_reconcile",
        "Reconciles, by how they ended",
        all.iter().flat_map(|(name, controller)| {
            let results = controller.results();
            results.map(|(result, count)| ([("controller", name.as_str()), ("result", result)], count))
        }),
    )?;
    type Count = fn(&Controller) -> &Counter;
    let counts: [(&str, &str, Count); 4] = [
        ("controller_runtime_reconcile_errors", "Reconciles that failed", |of| &of.error),
        ("controller_runtime_terminal_reconcile_errors", "Failures that are not tried again", |of| &of.terminal),
        ("controller_runtime_reconcile_panics", PANICS, |of| &of.panics),
        ("controller_runtime_reconcile_timeouts", "Reconciles that ran past their deadline", |of| &of.timeouts),
    ];
    for (name, help, count) in counts {
        let samples = all.iter().map(|(name, controller)| ([("controller", name.as_str())], count(controller).get()));
        counters(encoder, name, help, samples)?;
    }
    let times = all.iter().map(|(name, controller)| ([("controller", name.as_str())], &controller.time));
    histograms(
        encoder,
        "controller_runtime_reconcile_time_seconds",
        "Time of a reconcile, its writes included",
        times,
    )?;
    type Time = fn(&Controller) -> &Histogram;
    let times: [(&str, &str, Time); 2] = [
        ("workqueue_queue_duration_seconds", "Time that a key was ready before a worker took it", |of| &of.waited),
        ("workqueue_work_duration_seconds", "Time that a key was worked on", |of| &of.worked),
    ];
    for (name, help, time) in times {
        let samples = all
            .iter()
            .map(|(name, controller)| ([("name", name.as_str()), ("controller", name.as_str())], time(controller)));
        histograms(encoder, name, help, samples)?;
    }
    Ok(())
}
