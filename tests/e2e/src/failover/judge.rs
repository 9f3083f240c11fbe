//! Judges what hosts asked of an API server: did two of them work at one key at overlapping times, and did one write when it might not?
//!
//! ```text
//! claims of the Lease ─► terms ─┐
//!                               ├─► faults
//! writes ───────────────────────┘
//! ```
//!
//! All times are the server's. A host sends a request before the server gets it. So if the server gets a write too long after the renewal before
//! it, the host has sent it too late, or it was under way for longer than [`Timings::air`].

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    sync::Arc,
    time::Duration,
};

use serde::Serialize;

/// A time of the server, since the Unix epoch.
pub type At = Duration;

/// How far the two clocks that measure a Lease may drift apart over its duration: the host's and the server's.
const DRIFT: Duration = Duration::from_millis(20);

/// The name of a host. No two processes have the same.
pub type Name = Arc<str>;

/// How long a term lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Time without a renewal after which another host may take the Lease.
    pub lease: Duration,
    /// Time after a renewal during which its holder may write.
    pub renew: Duration,
    /// How long a request may be under way.
    pub air: Duration,
}

/// A successful write of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who wrote it.
    pub host: Name,
    /// The version of the Lease after it.
    pub version: u64,
    /// When the server got it.
    pub received: At,
    /// `true` if it takes or renews the Lease, `false` if it releases it.
    pub holds: bool,
}

/// A request to change something other than the Lease, whatever came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Who sent it.
    pub host: Name,
    /// The object for whose sake it was sent.
    pub key: Arc<str>,
    /// When the server got it.
    pub received: At,
    /// When the server had answered it.
    pub done: At,
}

/// The time during which one host held the Lease without another one between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The holder.
    pub host: Name,
    /// When the server got the claim that began it, and each renewal.
    pub renewals: Vec<At>,
    /// When the server got the release.
    pub released: Option<At>,
}

impl Term {
    /// When it began.
    pub fn from(&self) -> At {
        self.renewals.first().copied().unwrap_or_default()
    }

    /// The last renewal that the server had got by then.
    fn renewed_before(&self, time: At) -> At {
        let count = self.renewals.partition_point(|renewal| *renewal <= time);
        self.renewals.get(count.saturating_sub(1)).copied().unwrap_or_default()
    }

    fn last(&self) -> At {
        self.renewals.last().copied().unwrap_or_default()
    }
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A host wrote before it ever held the Lease.
    WithoutTerm(Write),
    /// A host wrote, though it had released the Lease this long before.
    AfterRelease(Write, Duration),
    /// A host wrote this long after its last renewal.
    AfterFence(Write, Duration),
    /// Two hosts worked at a key at overlapping times.
    Overlap {
        /// The key.
        key: Arc<str>,
        /// One of the hosts, its first write and the end of its last.
        one: (Name, At, At),
        /// The other.
        other: (Name, At, At),
    },
    /// A host took the Lease this long after its holder had renewed it.
    EarlyTake(Name, Name, Duration),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: &Duration| time.as_secs_f64();
        match self {
            Self::WithoutTerm(Write { host, key, .. }) => write!(f, "{host} wrote {key} before it held the Lease"),
            Self::AfterRelease(Write { host, key, .. }, by) => {
                write!(f, "{host} wrote {key} {:.3} s after it had released the Lease", seconds(by))
            }
            Self::AfterFence(Write { host, key, .. }, by) => {
                write!(f, "{host} wrote {key} {:.3} s after its last renewal of the Lease", seconds(by))
            }
            Self::Overlap { key, one: (one, from, until), other: (other, since, to) } => write!(
                f,
                "two hosts at {key}: {one} from {:.3} to {:.3}, and {other} from {:.3} to {:.3}",
                seconds(from),
                seconds(until),
                seconds(since),
                seconds(to)
            ),
            Self::EarlyTake(host, holder, by) => {
                write!(f, "{host} took the Lease {:.3} s after {holder} had renewed it", seconds(by))
            }
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The terms, in order.
    pub terms: Vec<Term>,
    /// What must not happen, and did.
    pub faults: Vec<Fault>,
    /// The longest time from a renewal to a later write of the same term.
    pub latest: Duration,
    /// How much was judged.
    pub judged: Judged,
}

/// How much was judged: a run without writes proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Writes of hosts.
    pub writes: usize,
    /// Keys that hosts wrote.
    pub keys: usize,
    /// Keys that several hosts wrote, one after the other.
    pub shared: usize,
}

/// Returns the terms to which claims lead, in order.
pub fn terms(mut claims: Vec<Claim>) -> Vec<Term> {
    claims.sort_by_key(|claim| claim.version);
    let mut terms: Vec<Term> = Vec::new();
    for Claim { host, received, holds, .. } in claims {
        let present = terms.last_mut().filter(|term| term.host == host && term.released.is_none());
        match (present, holds) {
            (Some(term), true) => term.renewals.push(received),
            (Some(term), false) => term.released = Some(received),
            (None, true) => terms.push(Term { host, renewals: vec![received], released: None }),
            // It gives back what it does not hold, which changes nothing for anybody.
            (None, false) => {}
        }
    }
    terms
}

/// Judges a run.
pub fn judge(claims: Vec<Claim>, writes: &[Write], timings: Timings) -> Verdict {
    let terms = terms(claims);
    let mut verdict = Verdict { faults: early(&terms, timings), ..Verdict::default() };
    // From the first to the last write of a key by one host within one term.
    type Stint<'a> = (&'a Name, Option<usize>);
    let mut stints: BTreeMap<&Arc<str>, BTreeMap<Stint<'_>, (At, At)>> = BTreeMap::new();
    for write in writes {
        let term = terms.iter().rposition(|term| term.host == write.host && term.from() <= write.received);
        if let Some(after) = within(term.map(|term| &terms[term]), write, timings, &mut verdict.faults) {
            verdict.latest = verdict.latest.max(after);
        }
        match stints.entry(&write.key).or_default().entry((&write.host, term)) {
            Entry::Vacant(new) => drop(new.insert((write.received, write.done))),
            Entry::Occupied(mut stint) => {
                let (from, until) = *stint.get();
                stint.insert((from.min(write.received), until.max(write.done)));
            }
        }
    }
    verdict.judged.writes = writes.len();
    verdict.judged.keys = stints.len();
    for (key, stints) in stints {
        let mut stints: Vec<(&Name, At, At)> =
            stints.into_iter().map(|((host, _), (from, until))| (host, from, until)).collect();
        verdict.judged.shared += usize::from(stints.iter().any(|(host, ..)| *host != stints[0].0));
        stints.sort_by_key(|(_, from, _)| *from);
        let pairs =
            stints.iter().enumerate().flat_map(|(index, one)| stints[..index].iter().map(move |other| (other, one)));
        verdict.faults.extend(pairs.filter(|((one, _, until), (other, since, _))| one != other && since < until).map(
            |((one, from, until), (other, since, to))| Fault::Overlap {
                key: key.clone(),
                one: ((*one).clone(), *from, *until),
                other: ((*other).clone(), *since, *to),
            },
        ));
    }
    verdict.terms = terms;
    verdict
}

/// Checks that a write lies within its host's term. Returns how long after the last renewal the server got it.
fn within(term: Option<&Term>, write: &Write, timings: Timings, faults: &mut Vec<Fault>) -> Option<Duration> {
    let Some(term) = term else {
        faults.push(Fault::WithoutTerm(write.clone()));
        return None;
    };
    if let Some(released) = term.released.filter(|released| write.received > *released) {
        faults.push(Fault::AfterRelease(write.clone(), write.received - released));
        return None;
    }
    let after = write.received.saturating_sub(term.renewed_before(write.received));
    if after > timings.renew + timings.air {
        faults.push(Fault::AfterFence(write.clone(), after));
    }
    Some(after)
}

/// Checks that each host took the Lease after it was released or had expired.
fn early(terms: &[Term], timings: Timings) -> Vec<Fault> {
    let pairs = terms.windows(2).filter_map(|pair| {
        let [before, next] = pair else { return None };
        let after = next.from().saturating_sub(before.last());
        let is_free = before.released.is_some() || after + DRIFT >= timings.lease;
        (!is_free).then(|| Fault::EarlyTake(next.host.clone(), before.host.clone(), after))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMINGS: Timings =
        Timings { lease: Duration::from_secs(15), renew: Duration::from_secs(10), air: Duration::from_secs(5) };

    fn at(seconds: f64) -> At {
        Duration::from_secs_f64(1000.0 + seconds)
    }

    /// A Lease's history: who wrote it when, and whether that one holds it then.
    fn claims(history: &[(&str, f64, bool)]) -> Vec<Claim> {
        let claim = |(version, (host, time, holds)): (u64, &(&str, f64, bool))| Claim {
            host: (*host).into(),
            version,
            received: at(*time),
            holds: *holds,
        };
        (9..).zip(history).map(claim).collect()
    }

    /// Writes that are answered after 0.1 s.
    fn writes(of: &[(&str, &str, f64)]) -> Vec<Write> {
        let write = |(host, key, time): &(&str, &str, f64)| Write {
            host: (*host).into(),
            key: (*key).into(),
            received: at(*time),
            done: at(*time + 0.1),
        };
        of.iter().map(write).collect()
    }

    fn faults(history: &[(&str, f64, bool)], of: &[(&str, &str, f64)]) -> Vec<String> {
        judge(claims(history), &writes(of), TIMINGS).faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_host_that_is_killed_and_one_that_ends_are_followed_by_others() {
        let history = [
            ("a", 0.0, true),
            ("a", 2.0, true),
            ("b", 17.0, true),
            ("b", 18.0, false),
            ("a", 18.1, true),
            ("a", 20.0, true),
        ];
        let of =
            [("a", "x", 0.1), ("a", "x", 3.0), ("b", "x", 17.1), ("b", "y", 17.2), ("a", "x", 18.2), ("a", "y", 21.0)];
        let verdict = judge(claims(&history), &writes(&of), TIMINGS);
        assert_eq!(verdict.faults, []);
        assert_eq!(verdict.judged, Judged { writes: 6, keys: 2, shared: 2 });
        assert_eq!(verdict.latest, Duration::from_secs(1));
        let hosts: Vec<&str> = verdict.terms.iter().map(|term| &*term.host).collect();
        assert_eq!(hosts, ["a", "b", "a"]);
        assert_eq!((verdict.terms[1].from(), verdict.terms[1].released), (at(17.0), Some(at(18.0))));
    }

    #[test]
    fn claims_are_ordered_by_the_versions_of_the_lease() {
        let mut history = claims(&[("a", 0.0, true), ("b", 15.0, true), ("a", 31.0, true)]);
        history.reverse();
        assert_eq!(terms(history).iter().map(Term::from).collect::<Vec<_>>(), [at(0.0), at(15.0), at(31.0)]);
    }

    #[test]
    fn a_write_of_a_host_that_never_held_the_lease_is_a_fault() {
        let found = faults(&[("a", 5.0, true)], &[("b", "x", 6.0), ("a", "y", 4.9), ("a", "z", 5.1)]);
        assert_eq!(found, ["b wrote x before it held the Lease", "a wrote y before it held the Lease"]);
    }

    #[test]
    fn a_write_after_the_fence_is_a_fault_and_one_that_was_under_way_is_none() {
        let history = [("a", 0.0, true), ("a", 2.0, true)];
        assert_eq!(faults(&history, &[("a", "x", 16.9)]), [""; 0]);
        assert_eq!(faults(&history, &[("a", "x", 17.1)]), ["a wrote x 15.100 s after its last renewal of the Lease"]);
    }

    #[test]
    fn a_later_renewal_does_not_excuse_an_earlier_write() {
        // It was stopped, writes first and renews then. No other host has taken the Lease meanwhile.
        let history = [("a", 0.0, true), ("a", 20.0, true)];
        let found = faults(&history, &[("a", "x", 19.0), ("a", "y", 20.1)]);
        assert_eq!(found, ["a wrote x 19.000 s after its last renewal of the Lease"]);
    }

    #[test]
    fn a_write_after_the_release_is_a_fault() {
        let history = [("a", 0.0, true), ("a", 1.0, false), ("b", 1.5, true)];
        assert_eq!(faults(&history, &[("a", "x", 1.1)]), ["a wrote x 0.100 s after it had released the Lease"]);
    }

    #[test]
    fn a_host_that_goes_on_beside_its_successor_is_found() {
        let history = [("a", 0.0, true), ("b", 15.0, true)];
        let found = faults(&history, &[("a", "x", 1.0), ("b", "x", 15.2), ("a", "x", 15.5)]);
        let overlap = "two hosts at x: a from 1001.000 to 1015.600, and b from 1015.200 to 1015.300";
        assert_eq!(found, ["a wrote x 15.500 s after its last renewal of the Lease", overlap]);
    }

    #[test]
    fn a_request_that_is_answered_after_the_successors_first_is_an_overlap() {
        let history = [("a", 0.0, true), ("a", 1.0, false), ("b", 1.02, true)];
        let found = faults(&history, &[("a", "x", 0.99), ("b", "x", 1.05), ("b", "y", 1.05)]);
        assert_eq!(found, ["two hosts at x: a from 1000.990 to 1001.090, and b from 1001.050 to 1001.150"]);
    }

    #[test]
    fn hosts_without_a_lease_overlap_if_they_alternate() {
        let of = [("a", "x", 1.0), ("b", "x", 2.0), ("a", "x", 3.0), ("a", "y", 1.0), ("b", "y", 2.0)];
        let found = judge(Vec::new(), &writes(&of), TIMINGS).faults;
        let overlaps =
            found.iter().filter(|fault| matches!(fault, Fault::Overlap { key, .. } if &**key == "x")).count();
        assert_eq!((found.len(), overlaps), (6, 1));
    }

    #[test]
    fn a_lease_that_is_taken_before_it_has_expired_is_a_fault() {
        let found = faults(&[("a", 0.0, true), ("a", 2.0, true), ("b", 16.0, true)], &[]);
        assert_eq!(found, ["b took the Lease 14.000 s after a had renewed it"]);
    }
}
