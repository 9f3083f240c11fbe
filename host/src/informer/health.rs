//! How an informer fares: what is counted, how far behind the server it may be, and whether its cache may be believed.

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

/// How long a cache is believed after its watch was lost. The first reconnect comes within 1.6 s and the second within 3.2 s more: a
/// connection that breaks and comes back fails no reconcile.
const BELIEVED: Duration = Duration::from_secs(5);

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
    /// Since when no watch keeps the cache up to date; none: one does.
    unwatched: Option<(Instant, Timestamp)>,
}

impl Health {
    pub(super) fn new() -> Self {
        let started = Instant::now();
        Self { started, synced_after: None, heard: None, watching: None, unwatched: Some((started, Timestamp::now())) }
    }

    /// How long no watch and no complete list has brought the cache up to date; zero while a watch does.
    pub fn stale(&self) -> Duration {
        self.unwatched.map_or(Duration::ZERO, |(since, _)| since.elapsed())
    }

    /// The reflector does something else now.
    pub(super) fn turned(&mut self, state: &State) {
        if *state == State::Watching {
            self.watching.get_or_insert_with(Instant::now);
            self.unwatched = None;
        } else {
            self.watching = None;
            self.unwatched.get_or_insert_with(|| (Instant::now(), Timestamp::now()));
        }
    }

    /// A list is complete: the cache is as good as if the watch had been lost just now. The watch that follows is about to open.
    pub(super) fn listed(&mut self) {
        self.unwatched = self.unwatched.map(|_| (Instant::now(), Timestamp::now()));
    }

    /// Why the cache is not to be believed; none: it is. A server that refuses is taken at its word; what may pass by itself has
    /// [`BELIEVED`] to do so.
    pub(super) fn lapse(&self, state: &State, synced: bool) -> Option<Lapse> {
        let (at, since) = self.unwatched?;
        let refused = matches!(state, State::Missing(_) | State::Unauthenticated(_) | State::Denied(_));
        let lapsed = !synced || refused || at.elapsed() >= BELIEVED;
        lapsed.then(|| Lapse { state: state.clone(), since })
    }
}

/// No watch keeps a cache up to date: what it shows may be gone, or somebody else's, and what it does not show may be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lapse {
    /// What the reflector does.
    state: State,
    /// Since when.
    since: Timestamp,
}

/// `is denied since 2026-11-25T21:52:33Z; grant the host's account list and watch: …`. The same text as long as it lasts: Events count it.
impl fmt::Display for Lapse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.since.strftime("%Y-%m-%dT%H:%M:%SZ");
        match &self.state {
            State::Resolving | State::Listing => write!(f, "is not open since {since}: the kind is being listed"),
            State::Missing(why) => write!(f, "waits since {since} for the kind to be served: {why}"),
            State::Watching => write!(f, "is open again"),
            State::Waiting { reason, .. } => write!(f, "is broken since {since}: {reason}"),
            State::Unauthenticated(why) => {
                write!(f, "is not authenticated since {since}; renew the host's credentials: {why}")
            }
            State::Denied(why) => {
                write!(f, "is denied since {since}; grant the host's account list and watch: {why}")
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cache_is_believed_for_a_while_after_its_watch_was_lost_unless_the_server_refuses() {
        let mut health = Health::new();
        let lapses = |health: &Health, state: &State, synced| health.lapse(state, synced).is_some();
        let waiting = State::Waiting { delay: Duration::from_secs(1), reason: "reset".into() };
        // Nothing was listed yet.
        assert!(lapses(&health, &State::Listing, false));
        health.turned(&State::Watching);
        assert!(!lapses(&health, &State::Watching, true));
        health.turned(&waiting);
        assert!(!lapses(&health, &waiting, true));
        tokio::time::advance(BELIEVED / 2).await;
        health.turned(&State::Listing);
        assert!(!lapses(&health, &State::Listing, true));
        assert!(lapses(&health, &State::Denied("no".into()), true));
        // From when the watch was lost, and not from the last turn.
        tokio::time::advance(BELIEVED / 2).await;
        assert!(lapses(&health, &State::Listing, true));
        health.listed();
        assert!(!lapses(&health, &State::Listing, true));
        tokio::time::advance(BELIEVED).await;
        assert!(lapses(&health, &State::Listing, true));
        health.turned(&State::Watching);
        health.listed();
        tokio::time::advance(BELIEVED).await;
        assert!(!lapses(&health, &State::Watching, true));
    }

    #[test]
    fn a_lapse_says_since_when_and_what_helps() {
        let since = Timestamp::from_second(1_764_107_553).expect("a time");
        let told = |state| Lapse { state, since }.to_string();
        assert_eq!(
            told(State::Denied("forbidden".into())),
            "is denied since 2025-11-25T21:52:33Z; grant the host's account list and watch: forbidden"
        );
        let waiting = |seconds| State::Waiting { delay: Duration::from_secs(seconds), reason: "reset".into() };
        assert_eq!(told(waiting(1)), "is broken since 2025-11-25T21:52:33Z: reset");
        assert_eq!(told(waiting(1)), told(waiting(2)));
    }
}
