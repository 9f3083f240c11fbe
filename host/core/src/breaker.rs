//! Limits how often one object is reconciled, and records what wakes it.
//!
//! Two writers may fight over a field, a reconcile may write something different each time, or a plugin may ask to be
//! called again at once. Each makes endless work for one key, and requests to the API server. A breaker lets a key
//! through at the [rate](RATE) of a legitimately busy one, and opens when more is asked for. It then lets the key
//! through [now and then](OPEN) until the key has calmed down, and names its main cause. The driver delays keys and
//! informs people.
//!
//! ```text
//!            more than RATE is asked for
//!   closed ──────────────────────────────► open: one each OPEN
//!     ▲                                      │
//!     └── nobody was delayed for CALM ───────┘
//!
//! ask(key, cause) ─► how long to wait             (if that is not zero, the breaker opens)
//! reconciled(key) ─► takes from the rate          (reports the storm once, if the breaker is open)
//! settle()        ─► closes breakers of keys that have calmed down
//! forget()        ─► drops keys that have their whole rate again
//! ```
//!
//! Memory is bounded by the recently reconciled keys. Keys that have their whole [rate](RATE) again are dropped when
//! the number of keys has doubled since the last time, and when the driver has time ([`Breaker::forget`]). Causes are
//! counted for [busy](BUSY) keys only.
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

/// How often one key may be reconciled. The burst is more than a rollout of a large object needs; the long-run rate is
/// more than an object with many writers needs. A fight runs as fast as the API server answers, a hundred times a
/// second or more.
pub const RATE: Rate = Rate { burst: 60, every: Duration::from_millis(100) };

/// Interval of reconciles while the breaker is open: acceptable for the object, and it makes a fight cheap.
pub const OPEN: Duration = Duration::from_secs(1);

/// Used reconciles of the rate from which a key is busy: the causes of its wakes are then counted.
pub const BUSY: u32 = 10;

/// Time without a delayed request after which an open breaker closes. A fight that pauses for less is one fight.
const CALM: Duration = Duration::from_secs(30);

/// Largest number of causes that are counted for one key.
const CAUSES: usize = 8;

/// Wakes of one key after which all counts are halved, so that old wakes lose weight.
const REMEMBERED: u32 = 256;

/// Number of keys from which unused ones are dropped.
const SWEEP: usize = 1024;

/// The breakers of one controller: over keys of type `K`, with causes of type `C`.
#[derive(Debug)]
pub struct Breaker<K, C> {
    keys: HashMap<K, KeyState<C>>,
    sweep_at: usize,
    open: usize,
    opened: u64,
    /// Earliest time at which a breaker may close.
    settle_at: Option<Duration>,
}

#[derive(Debug)]
struct KeyState<C> {
    /// As in [`Rate::take`].
    used: Duration,
    busy: Option<Box<Busy<C>>>,
}

/// The state of a busy key.
#[derive(Debug)]
struct Busy<C> {
    since: Duration,
    /// The time of the last reconcile.
    reconciled: Duration,
    reconciles: u64,
    wakes: u64,
    /// Set if the breaker is open.
    open: Option<Open>,
    /// `true` if the storm was reported.
    reported: bool,
    counts: Vec<(C, u32)>,
    remembered: u32,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    since: Duration,
    /// The last time at which a request was delayed.
    put_off: Duration,
}

/// A description of a key that is reconciled over and over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storm<C> {
    /// Since when the key is busy.
    pub since: Duration,
    /// Since when the breaker is open, if it is.
    pub open: Option<Duration>,
    /// Reconciles since the key is busy, including those that made it so.
    pub reconciles: u64,
    /// Wakes since the key is busy, including those that found it waiting.
    pub wakes: u64,
    /// The main cause of recent wakes.
    pub by: Option<By<C>>,
}

/// The main cause of a key's wakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By<C> {
    /// The cause.
    pub cause: C,
    /// Lower bound of its wakes among the recent ones.
    pub wakes: u32,
    /// Number of recent wakes.
    pub of: u32,
}

impl<K, C> Default for Breaker<K, C> {
    fn default() -> Self {
        Self { keys: HashMap::new(), sweep_at: SWEEP, open: 0, opened: 0, settle_at: None }
    }
}

impl<K: Clone + Eq + Hash, C: Clone + Eq> Breaker<K, C> {
    /// Creates breakers, all closed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for a reconcile of `key`, and returns how long it must wait. `cause` is called only if it is counted.
    pub fn ask(&mut self, now: Duration, key: &K, cause: impl FnOnce() -> C) -> Duration {
        let Some(KeyState { used, busy }) = self.keys.get_mut(key) else { return Duration::ZERO };
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

    /// Records that `key` is handed out. Returns the storm if its breaker opened since the last time.
    pub fn reconciled(&mut self, now: Duration, key: &K) -> Option<Storm<C>> {
        if let Some(state) = self.keys.get_mut(key) {
            state.reconciled(now);
            let busy = state.busy.as_mut().filter(|busy| busy.open.is_some() && !busy.reported)?;
            busy.reported = true;
            return Some(busy.storm());
        }
        if self.keys.len() >= self.sweep_at {
            self.forget(now);
        }
        self.keys.insert(key.clone(), KeyState { used: RATE.take(Duration::ZERO, now), busy: None });
        None
    }

    /// Drops keys that have their whole rate again, and their memory. Call it now and then: keys that are never
    /// reconciled again are found in no other way.
    pub fn forget(&mut self, now: Duration) {
        self.keys.retain(|_, state| state.used > now || state.open().is_some());
        self.sweep_at = SWEEP.max(2 * self.keys.len());
        self.keys.shrink_to(if self.keys.is_empty() { 0 } else { self.sweep_at });
    }

    /// Returns the number of known keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns `true` if no key is known.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Closes the breakers of keys that are no longer storming and returns a summary of each storm.
    pub fn settle(&mut self, now: Duration) -> Vec<(K, Storm<C>)> {
        if self.settle_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        let mut closed = Vec::new();
        let mut next: Option<Duration> = None;
        for (key, state) in &mut self.keys {
            let Some(calm) = state.open().map(|open| open.put_off + CALM) else { continue };
            if now < calm {
                next = Some(next.map_or(calm, |next| next.min(calm)));
            } else if let Some(busy) = state.busy.take() {
                closed.push((key.clone(), busy.storm()));
            }
        }
        self.open -= closed.len();
        self.settle_at = next;
        closed
    }

    /// Returns when to call [`settle`](Self::settle); `None` if no breaker is open.
    pub fn settle_at(&self) -> Option<Duration> {
        self.settle_at
    }

    /// Returns the number of open breakers.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Counts how often a breaker opened.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Returns the storms of open breakers, in no particular order.
    pub fn storms(&self) -> impl Iterator<Item = (&K, Storm<C>)> {
        let busy = self.keys.iter().filter_map(|(key, state)| Some((key, state.busy.as_ref()?)));
        busy.filter(|(_, busy)| busy.open.is_some()).map(|(key, busy)| (key, busy.storm()))
    }
}

impl<C: Clone + Eq> KeyState<C> {
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
            reported: false,
            counts: Vec::new(),
            remembered: 0,
        }
    }

    /// Counts a cause as Misra and Gries do: a cause of more than a ninth of the wakes is always among the counted
    /// ones.
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
