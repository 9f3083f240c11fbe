//! Which of several processes may act: leader election on one Lease, by the rules of client-go.
//!
//! One process holds the Lease and renews it. The others watch it. A Lease whose record has not changed for its duration has expired, and the
//! next process takes it. Each process measures that time by its own clock, from the moment when it saw the record, so clocks need not agree.
//!
//! The holder stops earlier: [`Timings::renew`] after the last renewal *was sent*, it may not act any more. Others cannot have seen that
//! renewal before it was sent, so they take the Lease [`Timings::lease`] after it, or later. The difference between the two is the time that
//! a request may be under way.
//!
//! ```
//! use pilothouse_core::election::{Election, Next, Timings};
//! use std::time::Duration;
//!
//! let at = Duration::from_secs;
//! let timings = Timings::default();
//! let (mut first, mut second) = (Election::new("first", timings), Election::new("second", timings));
//! assert_eq!(first.next(at(0)), Next::Take);
//! let record = first.claim("2026-01-01T00:00:00.000000Z");
//!
//! second.see(at(1), Some(record.clone()));
//! assert_eq!(second.next(at(1)), Next::Wait(at(16)));
//! // A renewal is another record.
//! first.see(at(2), Some(record));
//! second.see(at(3), Some(first.claim("2026-01-01T00:00:02.000000Z")));
//! assert_eq!(second.next(at(16)), Next::Wait(at(18)));
//! assert_eq!(second.next(at(18)), Next::Take);
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A wait between two looks is longer by a random part of up to this factor, as in client-go.
const JITTER: f64 = 1.2;

/// How long a Lease lasts. The defaults are those of client-go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Time without a renewal after which another process may take the Lease.
    pub lease: Duration,
    /// Time after a renewal during which its holder may act. Shorter than `lease`.
    pub renew: Duration,
    /// Time between two renewals, and between two looks at a Lease that another process holds.
    pub retry: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), renew: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

/// Why timings cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingsError {
    /// Others would take the Lease while its holder still acts.
    #[error("the Lease's duration ({0:?}) must be longer than the time within which it is renewed ({1:?})")]
    Lease(Duration, Duration),
    /// The holder would stop after one renewal that fails.
    #[error(
        "the time within which the Lease is renewed ({0:?}) must be longer than 1.2 times the period of retries ({1:?})"
    )]
    Renew(Duration, Duration),
    /// A Lease has whole seconds, and at least one.
    #[error("the Lease's duration ({0:?}) must be at least 1 s, and the period of retries more than 0 s")]
    Short(Duration),
}

impl Timings {
    /// Checks that a holder stops before another process begins.
    ///
    /// # Errors
    /// [`TimingsError`].
    pub fn check(&self) -> Result<(), TimingsError> {
        let Self { lease, renew, retry } = *self;
        if lease < Duration::from_secs(1) || retry.is_zero() {
            return Err(TimingsError::Short(lease));
        }
        if lease <= renew {
            return Err(TimingsError::Lease(lease, renew));
        }
        if renew <= retry.mul_f64(JITTER) {
            return Err(TimingsError::Renew(renew, retry));
        }
        Ok(())
    }

    /// Returns the time until the next look at a Lease that another process holds. `random` is evenly spread, so that many who wait do not
    /// look together.
    pub fn look_after(&self, random: u64) -> Duration {
        #[allow(clippy::cast_precision_loss, reason = "a random part needs few digits")]
        let part = random as f64 / u64::MAX as f64;
        self.retry.mul_f64(1.0 + JITTER * part)
    }
}

/// The `spec` of a Lease. Times are RFC 3339 with microseconds; they are for people, and nobody compares them with a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    /// The process that holds the Lease. Empty if it was released.
    #[serde(rename = "holderIdentity")]
    pub holder: Option<String>,
    /// Its duration in seconds.
    #[serde(rename = "leaseDurationSeconds")]
    pub seconds: Option<u32>,
    /// When its holder took it.
    #[serde(rename = "acquireTime", skip_serializing_if = "Option::is_none")]
    pub acquired: Option<String>,
    /// When its holder renewed it last.
    #[serde(rename = "renewTime", skip_serializing_if = "Option::is_none")]
    pub renewed: Option<String>,
    /// How often it went from one holder to another.
    #[serde(rename = "leaseTransitions")]
    pub transitions: Option<u32>,
}

impl Record {
    /// Returns who holds the Lease, unless it was released.
    pub fn holder(&self) -> Option<&str> {
        self.holder.as_deref().filter(|holder| !holder.is_empty())
    }
}

/// What one process knows of the Lease.
#[derive(Clone, Debug)]
pub struct Election {
    identity: Box<str>,
    timings: Timings,
    /// The last record, and when it was first seen. `None` if there is no Lease.
    seen: Option<(Record, Duration)>,
}

/// What a process should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Take or renew the Lease: the Lease is its own, or nobody's.
    Take,
    /// Wait for a change of the Lease, or for this time.
    Wait(Duration),
}

impl Election {
    /// Begins for a process with this identity, which no other process has.
    pub fn new(identity: &str, timings: Timings) -> Self {
        Self { identity: identity.into(), timings, seen: None }
    }

    /// The identity.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The timings.
    pub fn timings(&self) -> &Timings {
        &self.timings
    }

    /// Takes note of the Lease as it is on the API server: `None` if there is none.
    pub fn see(&mut self, now: Duration, record: Option<Record>) {
        match (&self.seen, record) {
            (Some((seen, _)), Some(record)) if *seen == record => {}
            (_, record) => self.seen = record.map(|record| (record, now)),
        }
    }

    /// Returns who holds the Lease by the last look, whether it has expired or not.
    pub fn holder(&self) -> Option<&str> {
        self.seen.as_ref()?.0.holder()
    }

    /// Returns what to do now.
    pub fn next(&self, now: Duration) -> Next {
        let Some((record, at)) = &self.seen else { return Next::Take };
        let is_free = record.holder().is_none_or(|holder| holder == &*self.identity);
        let lasts = record.seconds.map_or(self.timings.lease, |seconds| Duration::from_secs(seconds.into()));
        let expires = *at + lasts;
        if is_free || now >= expires { Next::Take } else { Next::Wait(expires) }
    }

    /// Returns the record that takes or renews the Lease. `time` is now.
    pub fn claim(&self, time: &str) -> Record {
        let last = self.seen.as_ref().map(|(record, _)| record);
        let is_mine = last.and_then(Record::holder) == Some(&*self.identity);
        let acquired = last.and_then(|record| record.acquired.clone()).filter(|_| is_mine);
        // A process that takes a Lease back after its own release has taken it anew.
        let transitions = last.map_or(0, |record| record.transitions.unwrap_or(0).saturating_add(u32::from(!is_mine)));
        Record {
            holder: Some(self.identity.to_string()),
            seconds: Some(u32::try_from(self.timings.lease.as_secs()).unwrap_or(u32::MAX)),
            acquired: acquired.or_else(|| Some(time.to_owned())),
            renewed: Some(time.to_owned()),
            transitions: Some(transitions),
        }
    }

    /// Returns the record that releases the Lease, or `None` if another process holds it by the last look.
    pub fn release(&self, time: &str) -> Option<Record> {
        let (record, _) = self.seen.as_ref()?;
        (record.holder() == Some(&*self.identity)).then(|| Record {
            holder: Some(String::new()),
            seconds: Some(1),
            acquired: Some(time.to_owned()),
            renewed: Some(time.to_owned()),
            transitions: record.transitions,
        })
    }

    /// Returns until when this process may act, if a claim that was sent at `sent` succeeded.
    pub fn may_act_until(&self, sent: Duration) -> Duration {
        sent + self.timings.renew
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn election(identity: &str) -> Election {
        Election::new(identity, Timings::default())
    }

    fn held_by(holder: &str, seconds: Option<u32>) -> Record {
        Record { holder: Some(holder.to_owned()), seconds, ..Record::default() }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_nobodys_or_its_time_by_this_processs_clock_is_over() {
        let next = |seen: &[(u64, Option<Record>)], now| {
            let mut election = election("me");
            seen.iter().for_each(|(time, record)| election.see(at(*time), record.clone()));
            election.next(at(now))
        };
        let other = || held_by("other", Some(15));
        let renewed = || Record { renewed: Some("later".to_owned()), ..other() };
        assert_eq!(next(&[], 0), Next::Take);
        assert_eq!(next(&[(0, Some(other())), (1, None)], 1), Next::Take);
        assert_eq!(next(&[(0, Some(held_by("", Some(1))))], 0), Next::Take);
        assert_eq!(next(&[(0, Some(Record::default()))], 0), Next::Take);
        assert_eq!(next(&[(0, Some(held_by("me", Some(15))))], 0), Next::Take);
        // Seeing the same record again does not make it younger.
        assert_eq!(next(&[(0, Some(other())), (9, Some(other()))], 14), Next::Wait(at(15)));
        assert_eq!(next(&[(0, Some(other())), (9, Some(other()))], 15), Next::Take);
        assert_eq!(next(&[(0, Some(other())), (9, Some(renewed()))], 15), Next::Wait(at(24)));
        // The holder's duration counts, and this process's own where the Lease names none.
        assert_eq!(next(&[(0, Some(held_by("other", Some(60))))], 15), Next::Wait(at(60)));
        assert_eq!(next(&[(0, Some(held_by("other", None)))], 14), Next::Wait(at(15)));
    }

    #[test]
    fn a_claim_counts_transitions_and_keeps_the_time_of_its_own_lease() {
        let mut me = election("me");
        let first = me.claim("1");
        assert_eq!(
            serde_json::to_string(&first).unwrap(),
            r#"{"holderIdentity":"me","leaseDurationSeconds":15,"acquireTime":"1","renewTime":"1","leaseTransitions":0}"#
        );
        me.see(at(0), Some(first));
        let renewed = me.claim("2");
        assert_eq!((renewed.acquired.as_deref(), renewed.renewed.as_deref()), (Some("1"), Some("2")));
        assert_eq!(renewed.transitions, Some(0));
        let released = me.release("3").unwrap();
        assert_eq!((released.holder(), released.seconds, released.transitions), (None, Some(1), Some(0)));
        let mut other = election("other");
        other.see(at(0), Some(released));
        assert_eq!(other.release("4"), None);
        let taken = other.claim("4");
        assert_eq!((taken.acquired.as_deref(), taken.transitions), (Some("4"), Some(1)));
    }

    #[test]
    fn timings_by_which_two_processes_could_act_are_refused() {
        let timings = |lease, renew, retry| Timings { lease: at(lease), renew: at(renew), retry: at(retry) };
        assert_eq!(Timings::default().check(), Ok(()));
        assert_eq!(timings(10, 10, 2).check(), Err(TimingsError::Lease(at(10), at(10))));
        assert_eq!(timings(15, 10, 9).check(), Err(TimingsError::Renew(at(10), at(9))));
        assert_eq!(timings(0, 0, 0).check(), Err(TimingsError::Short(at(0))));
        assert_eq!(timings(3, 2, 1).check(), Ok(()));
        let look_after = |random| Timings::default().look_after(random);
        assert_eq!((look_after(0), look_after(u64::MAX)), (at(2), Duration::from_millis(4_400)));
    }

    /// What happens next in a run of three processes.
    #[derive(Clone, Debug)]
    enum Event {
        /// Time passes, in milliseconds.
        Pass(u64),
        /// A process sends what it has to, by what it has seen.
        Send(usize),
        /// The oldest request of a process reaches the API server.
        Arrive(usize),
        /// A process sees the Lease.
        See(usize),
        /// A process learns the answer to its oldest request.
        Answer(usize),
        /// A process is restarted. Its requests may still arrive.
        Restart(usize),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            3 => (0..20_000_u64).prop_map(Event::Pass),
            3 => (0..3_usize).prop_map(Event::Send),
            3 => (0..3_usize).prop_map(Event::Arrive),
            3 => (0..3_usize).prop_map(Event::See),
            3 => (0..3_usize).prop_map(Event::Answer),
            1 => (0..3_usize).prop_map(Event::Restart),
        ];
        prop::collection::vec(event, 0..200)
    }

    /// A process: what it knows, its requests with the version that they replace, and until when it may act.
    struct Process {
        election: Election,
        version: u64,
        sent: Vec<(Duration, u64, Record)>,
        arrived: Vec<(Duration, Option<(u64, Record)>)>,
        may_act_until: Duration,
    }

    impl Process {
        fn new(identity: usize) -> Self {
            Self {
                election: election(&identity.to_string()),
                version: 0,
                sent: Vec::new(),
                arrived: Vec::new(),
                may_act_until: Duration::ZERO,
            }
        }
    }

    proptest! {
        #[test]
        fn no_two_processes_may_act_at_a_time(events in events()) {
            let (mut now, mut version, mut lease) = (at(1_000), 0_u64, None::<Record>);
            let mut processes: Vec<_> = (0..3).map(Process::new).collect();
            let mut restarts = 3;
            for event in events {
                match event {
                    Event::Pass(time) => now += Duration::from_millis(time),
                    Event::Send(who) => {
                        let process = &mut processes[who];
                        if process.election.next(now) == Next::Take {
                            let claim = process.election.claim(&format!("{now:?}"));
                            process.sent.push((now, process.version, claim));
                        }
                    }
                    Event::Arrive(who) => {
                        let process = &mut processes[who];
                        if !process.sent.is_empty() {
                            let (sent, replaces, claim) = process.sent.remove(0);
                            let is_current = replaces == version;
                            if is_current {
                                version += 1;
                                lease = Some(claim.clone());
                            }
                            process.arrived.push((sent, is_current.then_some((version, claim))));
                        }
                    }
                    Event::See(who) => {
                        processes[who].election.see(now, lease.clone());
                        processes[who].version = version;
                    }
                    Event::Answer(who) => {
                        let process = &mut processes[who];
                        if !process.arrived.is_empty()
                            && let (sent, Some((version, claim))) = process.arrived.remove(0)
                        {
                            // An answer that comes late says less than a look since then.
                            if version >= process.version {
                                process.election.see(now, Some(claim));
                                process.version = version;
                            }
                            let until = process.election.may_act_until(sent);
                            process.may_act_until = process.may_act_until.max(until);
                        }
                    }
                    Event::Restart(who) => {
                        processes[who] = Process::new(restarts);
                        restarts += 1;
                    }
                }
                let acting = processes.iter().filter(|process| now < process.may_act_until).count();
                prop_assert!(acting <= 1, "{acting} processes may act at {now:?}");
            }
        }
    }
}
