//! The counters of an informer, the state of its connection, and whether its cache is trustworthy.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Duration,
};

use jiff::Timestamp;
use pilothouse_core::{
    object::ResourceVersion,
    reflector::{RelistReason, State},
};
use tokio::time::Instant;

/// How long a cache is trusted after its watch was lost. The first reconnect comes within 1.6 s and the second within
/// another 3.2 s, so a short break of the connection fails no reconcile.
const TRUSTED: Duration = Duration::from_secs(5);

/// Upper bound for own writes whose watch events are awaited. The lag of further writes is not measured. A host that
/// writes 1,000 times a second to one kind has this many under way if its watch lags by a second.
const AWAITED: usize = 1_024;

/// Lists after the first, by reason.
pub type Relists = BTreeMap<RelistReason, u64>;

/// Requests and watches that failed, by what [`Failure::as_str`](pilothouse_core::reflector::Failure::as_str) says of
/// them.
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

/// The state of an informer's connection.
#[derive(Clone, Debug)]
pub struct Health {
    /// When the informer was started.
    pub started: Instant,
    /// Time from the start to the end of the first list.
    pub synced_after: Option<Duration>,
    /// When the server last sent anything, bookmarks included.
    pub heard: Option<Instant>,
    /// When the current watch was opened.
    pub watching: Option<Instant>,
    /// When the cache was last up to date. `None` while a watch keeps it so.
    unwatched: Option<(Instant, Timestamp)>,
}

impl Health {
    pub(super) fn new() -> Self {
        let started = Instant::now();
        Self { started, synced_after: None, heard: None, watching: None, unwatched: Some((started, Timestamp::now())) }
    }

    /// Returns how long the cache has not been brought up to date. Zero while a watch is open.
    pub fn stale(&self) -> Duration {
        self.unwatched.map_or(Duration::ZERO, |(since, _)| since.elapsed())
    }

    /// Records a new state of the reflector.
    pub(super) fn set_state(&mut self, state: &State) {
        if *state == State::Watching {
            self.watching.get_or_insert_with(Instant::now);
            self.unwatched = None;
        } else {
            self.watching = None;
            self.unwatched.get_or_insert_with(|| (Instant::now(), Timestamp::now()));
        }
    }

    /// Records a complete list. The cache then counts as up to date until now; the next watch is about to open.
    pub(super) fn listed(&mut self) {
        self.unwatched = self.unwatched.map(|_| (Instant::now(), Timestamp::now()));
    }

    /// Returns why the cache is not trustworthy, or `None` if it is. A denial counts at once. Errors that may pass by
    /// themselves count after [`TRUSTED`].
    pub(super) fn lapse(&self, state: &State, synced: bool) -> Option<Lapse> {
        let (at, since) = self.unwatched?;
        let refused = matches!(state, State::Missing(_) | State::Unauthenticated(_) | State::Denied(_));
        let lapsed = !synced || refused || at.elapsed() >= TRUSTED;
        lapsed.then(|| Lapse { state: state.clone(), since })
    }
}

/// A lack of a watch that keeps a cache up to date. Its objects may be gone or changed, and others may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lapse {
    /// The reflector's state.
    state: State,
    /// When the cache was last up to date.
    since: Timestamp,
}

/// `has been denied since 2026-11-25T21:52:33Z; grant the host's account list and watch: …`. The text does not change
/// while the lapse lasts, so that Events are counted.
impl fmt::Display for Lapse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.since.strftime("%Y-%m-%dT%H:%M:%SZ");
        match &self.state {
            State::Resolving | State::Listing => write!(f, "has not been open since {since}: the kind is being listed"),
            State::Missing(why) => write!(f, "has waited since {since} for the kind to be served: {why}"),
            State::Watching => write!(f, "is open again"),
            State::Waiting { reason, .. } => write!(f, "has been broken since {since}: {reason}"),
            State::Unauthenticated(why) => {
                write!(f, "has not been authenticated since {since}; renew the host's credentials: {why}")
            }
            State::Denied(why) => {
                write!(f, "has been denied since {since}; grant the host's account list and watch: {why}")
            }
        }
    }
}

/// Own writes that the watch has not delivered yet.
#[derive(Debug, Default)]
pub(super) struct OwnWrites {
    awaited: VecDeque<(ResourceVersion, Instant)>,
}

impl OwnWrites {
    /// Adds an own write of this version.
    pub(super) fn add(&mut self, version: ResourceVersion) {
        if self.awaited.len() < AWAITED {
            self.awaited.push_back((version, Instant::now()));
        }
    }

    /// Counts and removes the writes up to this version, because the watch has delivered them.
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

    /// Drops all writes, because a new history says nothing about them.
    pub(super) fn forget(&mut self) {
        self.awaited.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cache_is_trusted_for_a_while_after_its_watch_was_lost_unless_the_server_denies_it() {
        let mut health = Health::new();
        let lapses = |health: &Health, state: &State, synced| health.lapse(state, synced).is_some();
        let waiting = State::Waiting { delay: Duration::from_secs(1), reason: "reset".into() };
        // Nothing was listed yet.
        assert!(lapses(&health, &State::Listing, false));
        health.set_state(&State::Watching);
        assert!(!lapses(&health, &State::Watching, true));
        health.set_state(&waiting);
        assert!(!lapses(&health, &waiting, true));
        tokio::time::advance(TRUSTED / 2).await;
        health.set_state(&State::Listing);
        assert!(!lapses(&health, &State::Listing, true));
        assert!(lapses(&health, &State::Denied("no".into()), true));
        // Counted from the loss of the watch, and not from the last change of state.
        tokio::time::advance(TRUSTED / 2).await;
        assert!(lapses(&health, &State::Listing, true));
        health.listed();
        assert!(!lapses(&health, &State::Listing, true));
        tokio::time::advance(TRUSTED).await;
        assert!(lapses(&health, &State::Listing, true));
        health.set_state(&State::Watching);
        health.listed();
        tokio::time::advance(TRUSTED).await;
        assert!(!lapses(&health, &State::Watching, true));
    }

    #[test]
    fn a_lapse_has_its_time_and_the_remedy() {
        let since = Timestamp::from_second(1_764_107_553).expect("a time");
        let text = |state| Lapse { state, since }.to_string();
        assert_eq!(
            text(State::Denied("forbidden".into())),
            "has been denied since 2025-11-25T21:52:33Z; grant the host's account list and watch: forbidden"
        );
        let waiting = |seconds| State::Waiting { delay: Duration::from_secs(seconds), reason: "reset".into() };
        assert_eq!(text(waiting(1)), "has been broken since 2025-11-25T21:52:33Z: reset");
        assert_eq!(text(waiting(1)), text(waiting(2)));
    }
}
