//! What is known of a plugin's controllers and observer: their part of a row of `/debug/plugins`.

use std::{collections::BTreeMap, time::Duration};

use pilothouse_core::{breaker::Storm, event::cut, key::Key};
use serde::Serialize;

use super::{
    Controller, Observing,
    ledger::{
        failing::{FailingKey, GivenUp},
        gone::GoneFigures,
    },
    pending::{BacklogFigures, HookFailure},
    queue::Cause,
};

/// Storms that are listed of one controller.
const STORMS: usize = 20;

/// Failing keys that are listed of one controller.
const FAILING: usize = 20;

/// Bytes of an error. The log and `last-error` have it whole, and a thousand plugins may have twenty failing keys each.
const ERROR: usize = 500;

/// Counts by name.
pub type Counts = BTreeMap<&'static str, u64>;

/// One controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ControllerRow {
    /// Its name in the manifest.
    pub controller: String,
    /// What it reconciles.
    pub kind: String,
    /// Informers that are not ready yet, each with its state.
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
    pub reconciles: Counts,
    /// Keys that were tried again after a failure.
    pub retries: u64,
    /// Deadline of one reconcile.
    pub timeout_ms: Option<u64>,
    /// Reconciles that may begin in a second, or `None` for no bound.
    pub reconciles_per_second: Option<u32>,
    /// Delay after a key's first failure.
    pub backoff_base_ms: u64,
    /// The longest delay.
    pub backoff_cap_ms: u64,
    /// The keys that have failed for longest, at most [`FAILING`].
    pub failing: Vec<FailingKey>,
    /// All keys that fail.
    pub keys_failing: usize,
    /// The last keys that the plugin gave up, and that were not tried since.
    pub given_up: Vec<GivenUp>,
    /// Keys that ask for watches beside the manifest.
    pub keys_asking: usize,
    /// What these keys ask for, in all.
    pub watches_asked: usize,
    /// Those of them that are not cached, and why not.
    pub watches_lacking: Vec<String>,
    /// Objects that vanished and are still to be reconciled.
    pub gone: GoneFigures,
    /// Changes of which the plugin's `mapper` is still to be asked.
    pub unmapped: BacklogRow,
    /// Objects that are reconciled over and over, at most [`STORMS`].
    pub storms: Vec<StormRow>,
    /// All objects that are reconciled over and over.
    pub breakers_open: usize,
}

/// Changes of which a plugin must still be notified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BacklogRow {
    #[serde(flatten)]
    pub figures: BacklogFigures,
    /// The last call that failed.
    pub last_failure: Option<HookFailure>,
}

/// An object that is reconciled over and over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StormRow {
    /// The object's key.
    pub key: String,
    /// How long the storm has lasted.
    pub seconds: f64,
    /// Reconciles in that time.
    pub reconciles: u64,
    /// Wakes in that time.
    pub wakes: u64,
    /// The most frequent cause of the latest wakes, if there is one.
    pub cause: Option<String>,
    /// How many of the latest wakes had that cause.
    pub cause_wakes: u32,
    /// How many of the latest wakes were looked at.
    pub cause_of: u32,
}

impl Controller {
    /// Returns the controller's row.
    pub fn row(&self) -> ControllerRow {
        let (keys_failing, mut failing) = self.ledger().failing(FAILING);
        failing.iter_mut().for_each(|failing| failing.error = cut(&failing.error, ERROR));
        let mut given_up = self.ledger().given_up();
        given_up.iter_mut().for_each(|given_up| given_up.error = cut(&given_up.error, ERROR));
        let (pace, storms, now) = (self.pace(), self.ledger().queue().storms(), self.ledger().queue().now());
        let waits_for = self.waking().waits_for();
        let (ready, delayed, processing, retries) = {
            let queue = self.ledger().queue().lock();
            (queue.len(), queue.delayed(), queue.processing(), queue.retries())
        };
        let (keys_asking, watches_asked) = {
            let asked = self.ledger().asks().lock();
            (asked.keys(), asked.len())
        };
        ControllerRow {
            keys_asking,
            watches_asked,
            watches_lacking: self.ledger().asks().lacking(),
            controller: self.name().to_owned(),
            kind: self.spec().for_.of.to_string(),
            waits_for: waits_for.iter().map(|(informer, state)| format!("{informer}: {state}")).collect(),
            ready,
            delayed,
            processing,
            workers: self.max_concurrency(),
            reconciles: self.results().into(),
            retries,
            timeout_ms: self.deadline().map(millis),
            reconciles_per_second: pace.rate.map(|rate| rate.burst),
            backoff_base_ms: millis(pace.backoff.base),
            backoff_cap_ms: millis(pace.backoff.cap),
            failing,
            keys_failing,
            given_up,
            gone: self.ledger().gone(),
            unmapped: backlog(self.waking().unmapped(), self.waking().last_unmapped()),
            breakers_open: storms.len(),
            storms: storms.into_iter().take(STORMS).map(|(key, of)| storm(&key, &of, now)).collect(),
        }
    }
}

impl Observing {
    /// Returns the observer's row.
    pub fn row(&self) -> BacklogRow {
        backlog(self.figures(), self.last_failure())
    }
}

fn backlog(figures: BacklogFigures, mut last_failure: Option<HookFailure>) -> BacklogRow {
    if let Some(failure) = &mut last_failure {
        failure.message = cut(&failure.message, ERROR);
    }
    BacklogRow { figures, last_failure }
}

fn storm(key: &Key, storm: &Storm<Cause>, now: Duration) -> StormRow {
    let by = storm.by.as_ref();
    StormRow {
        key: key.to_string(),
        seconds: now.saturating_sub(storm.since).as_secs_f64(),
        reconciles: storm.reconciles,
        wakes: storm.wakes,
        cause: by.map(|by| by.cause.to_string()),
        cause_wakes: by.map_or(0, |by| by.wakes),
        cause_of: by.map_or(0, |by| by.of),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
