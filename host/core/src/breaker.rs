//! Objects that are reconciled over and over: how often each may be, and who wakes it.
//!
//! Two sides that fight over a field, a reconcile that writes something else each time, a plugin that asks to be called again at once:
//! each makes work without end for one key, and requests to the API server with it. A breaker lets a key through at the [rate](RATE) of
//! one that is busy by right, opens when more is asked for, lets it through [now and then](OPEN) until it has come to rest, and says what
//! woke it most. Putting off, and telling people, is for the driver.
//!
//! ```text
//!            more than RATE is asked for
//!   closed ──────────────────────────────► open: one each OPEN
//!     ▲                                      │
//!     └── nobody was put off for CALM ───────┘
//!
//! ask(key, cause) ─► how long it is to wait       (and if it is: the breaker opens)
//! reconciled(key) ─► takes from the rate          (and says once what goes on, if it is open)
//! settle()        ─► closes those that have come to rest
//! forget()        ─► drops keys that have their whole rate again
//! ```
//!
//! What is kept is bounded by the keys that were reconciled of late: those that have their whole [rate](RATE) again are looked for when twice
//! as many have come as were left the last time, and when the driver has time ([`Breaker::forget`]). Causes are counted of [busy](BUSY) keys
//! alone.
//!
//! ```
//! use pilothouse_core::breaker::{Breaker, OPEN, RATE};
//! use std::time::Duration;
//!
//! let mut breaker = Breaker::new();
//! let now = Duration::from_secs(100);
//! for _ in 0..RATE.burst {
//!     assert_eq!(breaker.ask(now, &"a", || "its child"), Duration::ZERO);
//!     assert_eq!(breaker.reconciled(now, &"a"), None);
//! }
//! assert_eq!(breaker.ask(now, &"a", || "its child"), OPEN);
//! assert_eq!(breaker.ask(now, &"b", || "its child"), Duration::ZERO);
//! let storm = breaker.reconciled(now + OPEN, &"a").expect("its breaker opened");
//! assert_eq!(storm.by.map(|by| by.cause), Some("its child"));
//! ```

use std::{hash::Hash, time::Duration};

use hashbrown::HashMap;

use crate::rate::Rate;

/// How often one key may be reconciled. At once that is more than a rollout of a large object asks for; in the long run, more than one
/// does that many others have a part in. A fight goes as fast as the API server answers, a hundred times a second and more.
pub const RATE: Rate = Rate { burst: 60, every: Duration::from_millis(100) };

/// How often one is whose breaker is open: a delay that an object bears, and that makes a fight cost next to nothing.
pub const OPEN: Duration = Duration::from_secs(1);

/// With so many reconciles used up a key is busy: the causes of its wakes are counted.
pub const BUSY: u32 = 10;

/// An open breaker closes when for so long nobody who asked was put off: a fight that pauses is one fight.
const CALM: Duration = Duration::from_secs(30);

/// Causes that are told apart for one key.
const CAUSES: usize = 8;

/// Wakes that are remembered of one key: then all counts are halved, so that what was is forgotten.
const REMEMBERED: u32 = 256;

/// Entries from which on those that mean nothing any more are looked for.
const SWEEP: usize = 1024;

/// The breakers of one controller: over keys of type `K`, with causes of type `C`.
#[derive(Debug)]
pub struct Breaker<K, C> {
    entries: HashMap<K, Entry<C>>,
    sweep_at: usize,
    open: usize,
    opened: u64,
    /// Before this none closes.
    settle_at: Option<Duration>,
}

#[derive(Debug)]
struct Entry<C> {
    /// As [`Rate::take`] has it.
    used: Duration,
    busy: Option<Box<Busy<C>>>,
}

/// What is known of a busy key.
#[derive(Debug)]
struct Busy<C> {
    since: Duration,
    /// The latest time.
    reconciled: Duration,
    reconciles: u64,
    wakes: u64,
    /// The breaker is open.
    open: Option<Open>,
    /// It was said that it is.
    said: bool,
    counts: Vec<(C, u32)>,
    remembered: u32,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    since: Duration,
    /// When somebody was put off last.
    put_off: Duration,
}

/// What goes on with a key that is reconciled over and over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storm<C> {
    /// Since when it is busy.
    pub since: Duration,
    /// Since when the breaker is open, if it is.
    pub open: Option<Duration>,
    /// Reconciles since it is busy, and those that made it so.
    pub reconciles: u64,
    /// Wakes since it is busy, those included that found the key waiting.
    pub wakes: u64,
    /// Who woke it most of late.
    pub by: Option<By<C>>,
}

/// Who woke a key most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By<C> {
    /// What it was.
    pub cause: C,
    /// So many of the latest wakes, at least,
    pub wakes: u32,
    /// out of so many.
    pub of: u32,
}

impl<K, C> Default for Breaker<K, C> {
    fn default() -> Self {
        Self { entries: HashMap::new(), sweep_at: SWEEP, open: 0, opened: 0, settle_at: None }
    }
}

impl<K: Clone + Eq + Hash, C: Clone + Eq> Breaker<K, C> {
    /// All closed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Somebody wants `key` to be reconciled: how long it is to wait. `cause` is asked for only where it is counted.
    pub fn ask(&mut self, now: Duration, key: &K, cause: impl FnOnce() -> C) -> Duration {
        let Some(Entry { used, busy }) = self.entries.get_mut(key) else { return Duration::ZERO };
        let Some(busy) = busy else { return Duration::ZERO };
        busy.count(cause());
        if busy.open.is_none() && !RATE.wait(*used, now).is_zero() {
            busy.open = Some(Open { since: now, put_off: now });
            self.open += 1;
            self.opened += 1;
            self.settle_at = Some(self.settle_at.map_or(now + CALM, |at| at.min(now + CALM)));
        }
        let Some(open) = &mut busy.open else { return Duration::ZERO };
        let wait = (busy.reconciled + OPEN).saturating_sub(now);
        if !wait.is_zero() {
            open.put_off = now;
        }
        wait
    }

    /// `key` is handed out. If its breaker opened since the last time: what goes on.
    pub fn reconciled(&mut self, now: Duration, key: &K) -> Option<Storm<C>> {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.reconciled(now);
            let busy = entry.busy.as_mut().filter(|busy| busy.open.is_some() && !busy.said)?;
            busy.said = true;
            return Some(busy.storm());
        }
        if self.entries.len() >= self.sweep_at {
            self.forget(now);
        }
        self.entries.insert(key.clone(), Entry { used: RATE.take(Duration::ZERO, now), busy: None });
        None
    }

    /// Forgets keys of which nothing is used up any more, and gives their memory back. To be called now and then: of keys that are not
    /// reconciled again nothing else reminds.
    pub fn forget(&mut self, now: Duration) {
        self.entries.retain(|_, entry| entry.used > now || entry.open().is_some());
        self.sweep_at = SWEEP.max(2 * self.entries.len());
        self.entries.shrink_to(if self.entries.is_empty() { 0 } else { self.sweep_at });
    }

    /// Keys that are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if no key is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Closes the breakers of keys that have come to rest, and says what had gone on.
    pub fn settle(&mut self, now: Duration) -> Vec<(K, Storm<C>)> {
        if self.settle_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        let mut closed = Vec::new();
        let mut next: Option<Duration> = None;
        for (key, entry) in &mut self.entries {
            let Some(calm) = entry.open().map(|open| open.put_off + CALM) else { continue };
            if now < calm {
                next = Some(next.map_or(calm, |next| next.min(calm)));
            } else if let Some(busy) = entry.busy.take() {
                closed.push((key.clone(), busy.storm()));
            }
        }
        self.open -= closed.len();
        self.settle_at = next;
        closed
    }

    /// When to call [`settle`](Self::settle); none: there is nothing to close.
    pub fn settle_at(&self) -> Option<Duration> {
        self.settle_at
    }

    /// Open breakers.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Times that one opened.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// The open ones, in no order.
    pub fn storms(&self) -> impl Iterator<Item = (&K, Storm<C>)> {
        let busy = self.entries.iter().filter_map(|(key, entry)| Some((key, entry.busy.as_ref()?)));
        busy.filter(|(_, busy)| busy.open.is_some()).map(|(key, busy)| (key, busy.storm()))
    }
}

impl<C: Clone + Eq> Entry<C> {
    fn open(&self) -> Option<Open> {
        self.busy.as_ref()?.open
    }

    fn reconciled(&mut self, now: Duration) {
        let before = RATE.used(self.used, now);
        self.used = RATE.take(self.used, now);
        match &mut self.busy {
            Some(busy) if before >= BUSY || busy.open.is_some() => {
                busy.reconciled = now;
                busy.reconciles += 1;
            }
            busy => *busy = (before + 1 >= BUSY).then(|| Box::new(Busy::new(now, before + 1))),
        }
    }
}

impl<C: Clone + Eq> Busy<C> {
    fn new(now: Duration, reconciles: u32) -> Self {
        Self {
            since: now,
            reconciled: now,
            reconciles: reconciles.into(),
            wakes: 0,
            open: None,
            said: false,
            counts: Vec::new(),
            remembered: 0,
        }
    }

    /// Misra and Gries' counting: whoever has more than a ninth of the wakes is among the counted.
    fn count(&mut self, cause: C) {
        self.wakes += 1;
        if self.remembered >= REMEMBERED {
            self.remembered /= 2;
            self.counts.retain_mut(|(_, count)| {
                *count /= 2;
                *count > 0
            });
        }
        self.remembered += 1;
        if let Some((_, count)) = self.counts.iter_mut().find(|(known, _)| *known == cause) {
            *count += 1;
        } else if self.counts.len() < CAUSES {
            self.counts.push((cause, 1));
        } else {
            self.counts.retain_mut(|(_, count)| {
                *count -= 1;
                *count > 0
            });
        }
    }

    fn storm(&self) -> Storm<C> {
        let most = self.counts.iter().max_by_key(|(_, count)| *count);
        Storm {
            since: self.since,
            open: self.open.map(|open| open.since),
            reconciles: self.reconciles,
            wakes: self.wakes,
            by: most.map(|(cause, wakes)| By { cause: cause.clone(), wakes: *wakes, of: self.remembered }),
        }
    }
}

#[cfg(test)]
mod tests;
