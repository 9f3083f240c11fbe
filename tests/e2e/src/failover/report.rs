//! The results of a run.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::Serialize;

use super::judge::{Fault, Judged};

/// One fault of an acting host, and what followed. All times are in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// What happened to it.
    pub fault: &'static str,
    /// Number of hosts.
    pub replicas: usize,
    /// The host.
    pub host: String,
    /// Time until another one took the Lease.
    pub taken: Option<f64>,
    /// Time until that one wrote.
    pub wrote: Option<f64>,
    /// Time from the release of the Lease until another one took it, if it was released.
    pub after_release: Option<f64>,
}

/// client-go's jitter: a wait is longer by a random part of up to this factor.
const JITTER: f64 = 1.2;

impl Round {
    pub(super) fn new(fault: &'static str, replicas: usize, host: &str) -> Self {
        Self { fault, replicas, host: host.to_owned(), taken: None, wrote: None, after_release: None }
    }

    /// Formats it for people.
    pub(super) fn line(&self) -> String {
        let Self { fault, replicas, host, .. } = self;
        let followed = match (self.taken, self.wrote) {
            (Some(taken), Some(wrote)) => format!("another took over after {taken:.2} s and wrote after {wrote:.2} s"),
            _ => "one went on".to_owned(),
        };
        format!("{fault} of {host} among {replicas}, {followed}")
    }
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed of all draws.
    pub seed: u64,
    /// The Lease's duration, its deadline for renewals and the time between two, in seconds. `None`: without leader election.
    pub timings: Option<[u32; 3]>,
    /// Number of hosts that were started.
    pub hosts: usize,
    /// Number of changes.
    pub changes: u64,
    /// Changes per second.
    pub rate: f64,
    /// What was judged.
    pub judged: Judged,
    /// Number of terms.
    pub terms: usize,
    /// The longest time from a renewal to a later write of the same term, in seconds.
    pub latest: f64,
    /// How long it took after the last change until all was as the specs say, in seconds.
    pub settled_after: f64,
    /// Each fault of an acting host.
    pub rounds: Vec<Round>,
    /// What the judge found.
    #[serde(skip)]
    pub faults: Vec<Fault>,
    /// Problems found. Empty means success.
    pub wrong: Vec<String>,
}

impl Report {
    /// Formats the report for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("writing to a string succeeds");
        line(format_args!(
            "{:<18}{:>7}{:>22}{:>24}{:>22}",
            "FAULT", "ROUNDS", "LEASE TAKEN", "SUCCESSOR WROTE", "TAKEN AFTER RELEASE"
        ));
        let mut by_fault: BTreeMap<&str, Vec<&Round>> = BTreeMap::new();
        for round in &self.rounds {
            by_fault.entry(round.fault).or_default().push(round);
        }
        for (fault, rounds) in by_fault {
            let range = |of: fn(&Round) -> Option<f64>| range(rounds.iter().filter_map(|round| of(round)).collect());
            line(format_args!(
                "{fault:<18}{:>7}{:>22}{:>24}{:>22}",
                rounds.len(),
                range(|round| round.taken),
                range(|round| round.wrote),
                range(|round| round.after_release)
            ));
        }
        line(format_args!("In seconds since the fault: least, median and most."));
        if let Some([lease, renew, retry]) = self.timings {
            let poll = f64::from(retry) * (1.0 + JITTER);
            line(format_args!(
                "client-go with these timings ({lease} s, {renew} s, {retry} s, jitter {JITTER}): at most {poll:.1} s after a release, and {:.1} s \
                 after the last renewal of a holder that is gone.",
                f64::from(lease) + 2.0 * poll
            ));
            line(format_args!(
                "A write came {:.2} s after the last renewal before it at most; {renew} s are allowed, and {} s more under way.",
                self.latest,
                lease - renew
            ));
        }
        line(format_args!(
            "{} changes, {:.0} a second; {} hosts sent {} writes for {} keys, {} of which several hosts had, in {} terms.",
            self.changes, self.rate, self.hosts, self.judged.writes, self.judged.keys, self.judged.shared, self.terms
        ));
        line(format_args!(
            "All was as the specs say {:.1} s after the last change; seed {}.",
            self.settled_after, self.seed
        ));
        for wrong in &self.wrong {
            line(format_args!("WRONG: {wrong}"));
        }
        text
    }
}

fn range(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    match (times.first(), times.get(times.len() / 2), times.last()) {
        (Some(least), Some(median), Some(most)) => format!("{least:.2} {median:.2} {most:.2}"),
        _ => "-".to_owned(),
    }
}
