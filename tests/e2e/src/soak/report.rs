//! The results of a run and their verdict.

use std::{collections::BTreeMap, fmt::Write as _, sync::atomic::Ordering, time::Duration};

use anyhow::Result;
use serde::Serialize;

use super::{Order, Run, Struck, faults::Effects, watched::Watched};

/// Maximum number of lists that one informer may begin in a minute.
///
/// Its delays double from 0.8 s, so failures begin 7 lists in the worst minute. Relists have their own delays and begin
/// as many. Twice, a paged list may follow a streaming one. Without growing delays there would be 40 and more.
const LISTS_A_MINUTE: u64 = 16;

/// Maximum number of requests that one informer may send in five seconds.
///
/// - Three failures with their delays cause 6 requests: a look and a watch each.
/// - Three relists cause 12: a streaming list, two pages and a watch each.
/// - A watch that is cut after an event is opened again at once, as often as events come.
///
/// A third is added for coincidences. No run has shown more than six. Without growing delays there would be hundreds.
const REQUESTS_IN_5_S: u64 = 24;

/// Bound for the stores' bytes at the end, relative to the maximum of the second minute. The objects' number and sizes
/// stay about the same.
const COUNTED: f64 = 1.25;
/// The same for resident memory, which also has what the allocator keeps: fragments of lists and buffers.
const RESIDENT: f64 = 1.25;
const RESIDENT_MORE: u64 = 24 << 20;

/// Memory over a run, in bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Memory {
    /// Maximum of the second minute, or the first sample after it: resident in this process, and counted by all stores.
    /// `None` if the run was shorter.
    pub warm: Option<(u64, u64)>,
    /// Values at the end.
    pub last: (u64, u64),
    #[serde(skip)]
    looked: Option<Duration>,
}

impl Memory {
    pub(super) fn is_due(&self, now: Duration, every: Duration) -> bool {
        self.looked.is_none_or(|looked| now >= looked + every)
    }

    pub(super) fn look(&mut self, watched: &[Watched], now: Duration) {
        let counted: usize = watched.iter().map(Watched::bytes).sum();
        self.last = (resident().unwrap_or_default(), u64::try_from(counted).unwrap_or(u64::MAX));
        let minute = now.as_secs() / 60;
        if minute == 1 || (minute > 1 && self.warm.is_none()) {
            let (resident, counted) = self.warm.unwrap_or_default();
            self.warm = Some((resident.max(self.last.0), counted.max(self.last.1)));
        }
        self.looked = Some(now);
    }

    pub(super) fn told(&self) -> String {
        let (resident, counted) = self.last;
        format!("{:.1} MiB resident, {:.2} MiB counted", mebibytes(resident), mebibytes(counted))
    }

    fn faults(&self) -> Vec<String> {
        let Some((resident, counted)) = self.warm else { return Vec::new() };
        let mut faults = Vec::new();
        let mut judge = |what: &str, last: u64, bound: f64| {
            if last as f64 > bound {
                faults.push(format!("{what}: {last} bytes at the end, at most {bound:.0} are good"));
            }
        };
        judge("resident memory", self.last.0, resident as f64 * RESIDENT + RESIDENT_MORE as f64);
        judge("memory counted by the stores", self.last.1, counted as f64 * COUNTED);
        faults
    }
}

/// Returns the resident bytes of this process, if the kernel reports them.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))?;
    Some(kilobytes.trim().parse::<u64>().ok()? << 10)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The results of one informer.
#[derive(Clone, Debug, Serialize)]
pub struct Informer {
    /// The collection that it watches.
    pub of: String,
    /// Number of objects at the end.
    pub objects: usize,
    /// Changes that its subscriber received.
    pub changes: u64,
    /// Lists that it began.
    pub lists: u64,
    /// Maximum number of lists in one minute.
    pub lists_in_worst_minute: u64,
    /// Looks at the server's version.
    pub looks: u64,
    /// Watches that it opened, without streaming lists.
    pub watches: u64,
    /// The reasons of its relists.
    pub relists: BTreeMap<&'static str, u64>,
    /// Objects that it could not read.
    pub skipped: u64,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed of all draws.
    pub seed: u64,
    /// How long faults happened, in seconds.
    pub seconds: u64,
    /// Changes that succeeded, and changes that failed.
    pub written: (u64, u64),
    /// The effects of each trouble.
    pub troubles: Effects,
    /// The results of each informer.
    pub informers: Vec<Informer>,
    /// Memory: resident, and counted by stores.
    pub memory: Memory,
    /// How long all caches took to be right again, in seconds.
    pub settled_after: f64,
    /// Problems found. Empty means success.
    pub wrong: Vec<String>,
}

pub(super) fn judge(order: &Order, run: Run, settled: Result<()>, took: Duration) -> Report {
    let mut wrong: Vec<String> = settled.err().map(|error| format!("{error:#}")).into_iter().collect();
    for watched in &run.watched {
        let out_of_order = watched.out_of_order();
        wrong.extend(out_of_order.iter().map(|what| format!("{}: changes out of order: {what}", watched.subject)));
    }
    let informers: Vec<Informer> = run.watched.iter().map(informer).collect();
    for Informer { of, lists_in_worst_minute: lists, .. } in &informers {
        if *lists > LISTS_A_MINUTE {
            wrong.push(format!("{of}: {lists} lists were begun in a minute, at most {LISTS_A_MINUTE} are good"));
        }
    }
    for (name, Struck { densest, .. }) in &run.struck {
        if *densest > REQUESTS_IN_5_S {
            wrong.push(format!(
                "{name}: an informer sent {densest} requests in five seconds, at most {REQUESTS_IN_5_S} are good"
            ));
        }
    }
    wrong.extend(run.memory.faults());
    Report {
        seed: order.seed,
        seconds: order.lasts.as_secs(),
        written: (run.load.written.load(Ordering::Relaxed), run.load.failed.load(Ordering::Relaxed)),
        troubles: run.struck,
        informers,
        memory: run.memory,
        settled_after: took.as_secs_f64(),
        wrong,
    }
}

fn informer(watched: &Watched) -> Informer {
    let asked = watched.asked();
    Informer {
        of: watched.subject.to_string(),
        objects: watched.replayed().len(),
        changes: watched.changes(),
        lists: asked.lists.values().sum(),
        lists_in_worst_minute: asked.lists.values().max().copied().unwrap_or_default(),
        looks: asked.looks,
        watches: asked.watches,
        relists: watched.relists().into_iter().collect(),
        skipped: watched.skipped(),
    }
}

/// Formats the effects of each trouble for people.
pub(super) fn troubles(effects: &Effects) -> String {
    let mut text = format!("{:<50}{:>6}{:>8}{:>10}\n", "TROUBLE", "TIMES", "STRUCK", "IN 5 S");
    for (name, Struck { times, hits, densest }) in effects {
        writeln!(text, "{name:<50}{times:>6}{hits:>8}{densest:>10}").expect("writing to a string succeeds");
    }
    text
}

impl Report {
    /// Formats the report for people.
    pub fn table(&self) -> String {
        let mut text = troubles(&self.troubles);
        let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("writing to a string succeeds");
        line(format_args!(
            "\n{:<50}{:>8}{:>9}{:>8}{:>10}{:>8}{:>9}{:>9}",
            "INFORMER", "OBJECTS", "CHANGES", "LISTS", "A MINUTE", "LOOKS", "WATCHES", "SKIPPED"
        ));
        for of in &self.informers {
            line(format_args!(
                "{:<50}{:>8}{:>9}{:>8}{:>10}{:>8}{:>9}{:>9}",
                of.of, of.objects, of.changes, of.lists, of.lists_in_worst_minute, of.looks, of.watches, of.skipped
            ));
        }
        line(format_args!(
            "\n{} changes were made, {} failed; at the end {}",
            self.written.0,
            self.written.1,
            self.memory.told()
        ));
        if let Some((resident, counted)) = self.memory.warm {
            let (resident, counted) = (mebibytes(resident), mebibytes(counted));
            line(format_args!("in the second minute: {resident:.1} MiB resident, {counted:.2} MiB counted"));
        }
        line(format_args!("all was right again {:.1} s after the last fault; seed {}", self.settled_after, self.seed));
        for wrong in &self.wrong {
            line(format_args!("WRONG: {wrong}"));
        }
        text
    }
}
