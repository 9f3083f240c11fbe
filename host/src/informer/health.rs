//! How an informer fares: what is counted, and how far behind the server it may be.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use pilothouse_core::{object::ResourceVersion, reflector::RelistReason};
use tokio::time::Instant;

/// Own writes whose watch events are awaited at once; of more, the lag is not measured. A host that writes 1,000 times a second
/// to one kind has as many under way while its watch lags by a second.
const AWAITED: usize = 1_024;

/// Lists after the first, by reason.
pub type Relists = BTreeMap<RelistReason, u64>;

/// Requests and watches that failed, by what [`Failure::as_str`](pilothouse_core::reflector::Failure::as_str) says of them.
pub type Failures = BTreeMap<&'static str, u64>;

/// What is counted of one informer, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Objects that appeared.
    pub added: u64,
    /// Objects that changed.
    pub updated: u64,
    /// Objects that vanished.
    pub deleted: u64,
    /// Objects that could not be read.
    pub skipped: u64,
    /// Lists after the first.
    pub relists: Relists,
    /// Requests and watches that failed.
    pub failures: Failures,
    /// Times that the driver failed and was started anew: faults of the host.
    pub restarts: u64,
    /// Own writes that the watch has brought.
    pub own_writes: u64,
    /// From their answers to their events, all together.
    pub own_lag: Duration,
    /// Calls that saw the present before their end, because too much changed while they read.
    pub snapshots_given_up: u64,
}

impl Tally {
    /// Adds what is counted of another.
    pub fn add(&mut self, other: &Self) {
        self.added += other.added;
        self.updated += other.updated;
        self.deleted += other.deleted;
        self.skipped += other.skipped;
        for (reason, count) in &other.relists {
            *self.relists.entry(*reason).or_default() += count;
        }
        for (reason, count) in &other.failures {
            *self.failures.entry(reason).or_default() += count;
        }
        self.restarts += other.restarts;
        self.own_writes += other.own_writes;
        self.own_lag += other.own_lag;
        self.snapshots_given_up += other.snapshots_given_up;
    }
}

/// How an informer's connection fares.
#[derive(Clone, Debug)]
pub struct Health {
    /// When it was started.
    pub started: Instant,
    /// How long the first list took, from the start.
    pub synced_after: Option<Duration>,
    /// When the server last sent anything, bookmarks included.
    pub heard: Option<Instant>,
    /// Since when the present watch is open.
    pub watching: Option<Instant>,
}

impl Health {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), synced_after: None, heard: None, watching: None }
    }
}

/// Own writes that the watch has not brought.
#[derive(Debug, Default)]
pub(super) struct OwnWrites {
    awaited: VecDeque<(ResourceVersion, Instant)>,
}

impl OwnWrites {
    /// An answer of this version entered the store, which the watch has not brought.
    pub(super) fn wrote(&mut self, version: ResourceVersion) {
        if self.awaited.len() < AWAITED {
            self.awaited.push_back((version, Instant::now()));
        }
    }

    /// The watch has brought all up to this version.
    pub(super) fn covered(&mut self, version: ResourceVersion, tally: &mut Tally) {
        if self.awaited.is_empty() {
            return;
        }
        let now = Instant::now();
        self.awaited.retain(|(written, at)| {
            let is_open = *written > version;
            if !is_open {
                tally.own_writes += 1;
                tally.own_lag += now.saturating_duration_since(*at);
            }
            is_open
        });
    }

    /// The watch began anew: what it brings says nothing about earlier writes.
    pub(super) fn forget(&mut self) {
        self.awaited.clear();
    }
}
