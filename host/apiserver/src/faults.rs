//! Injects faults that clients must survive.
//!
//! A [`Rule`] is data: which requests, which fault, how often and until when. [`Faults`] decides which fault applies to
//! a request or an event. The rest of the server asks it at a few points and carries out the decision.
//!
//! ```text
//!  connection ─► connect: delay, hang, disconnect                                          serve
//!  request ────► `Faults::plan`   ─► delay ─► replaced answer, or a corrupted one         handle, answer
//!                              │
//!                              └────► rejected, stale; a watch that is cut or truncated     list, watch
//!  event ──────► `WatchFaults`: held, late, twice, repeated, mangled                        watch, stream
//! ```
//!
//! Rules are checked in the order of their numbers. Delays come first, then faults that replace the answer. Several
//! rules may apply to one request; of two that exclude each other, the first one does. A random draw depends only on
//! the rule's seed and on the number of the request, or of the watch and its event. Without rules, a request costs one
//! atomic load.
//!
//! The HTTP interface is for people and for programs in other languages. `docs/faults.md` describes every member of a
//! rule:
//!
//! ```text
//! GET    /debug/faults        the rules and their hits; JSON if the Accept header says so
//! POST   /debug/faults        add a rule
//! DELETE /debug/faults[/ID]   remove one, or all
//! POST   /debug/faults/cut    cut open watches: {"on": …, "error": 410} or {"on": …, "by": "reset"}
//! POST   /debug/compact       forget the history, so that older versions get 410
//! GET    /debug/snapshots     their names; POST {"name": …} takes one
//! POST   /debug/snapshots/NAME/restore, DELETE /debug/snapshots/NAME
//! ```
//!
//! In Rust:
//!
//! ```
//! use pilothouse_apiserver::Server;
//! use pilothouse_apiserver::faults::{Answer, Fault, Requests, Rule, Verb};
//!
//! let server = Server::new();
//! let lists = Requests::to("configmaps", &[Verb::List]);
//! let rule = server.faults().add(Rule::new(Fault::Status(Answer::code(503))).on(lists).times(2))?;
//! assert_eq!(server.faults().hits(rule), Some(0));
//! # Ok::<(), pilothouse_apiserver::faults::InvalidRule>(())
//! ```

pub(crate) mod admin;
pub(crate) mod answer;
pub(crate) mod connection;
mod rule;
pub(crate) mod stream;
pub(crate) mod subject;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    num::NonZeroU32,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
pub use rule::{
    Answer, Bookmark, By, Content, Cut, Delay, Fault, InvalidRule, Lag, Mangle, Often, Requests, Rule, Stale,
    Streaming, Truncate, Verb,
};
use serde::Serialize;
use stream::End;
use subject::{Matcher, Subject};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

/// Upper bound for rules, including those that are over. Few enough to check all of them for each request.
const MAX_RULES: usize = 256;

/// The number of a rule, starting at 1. It is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RuleId(u64);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A rule and its hits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    /// The rule's number.
    pub id: RuleId,
    /// How often the rule has applied. For lasting faults, the number of affected watches; for [`Fault::Lag`], of
    /// batches of events.
    pub hits: u64,
    /// `true` if the rule no longer applies.
    pub over: bool,
    /// The rule.
    pub rule: Rule,
}

/// The fault rules of a server. They can be added and removed while it serves.
#[derive(Debug)]
pub struct Faults {
    /// Number of rules that are not over. Read before taking the lock.
    active: AtomicUsize,
    state: Mutex<State>,
    /// Wakes open watches when a rule comes or goes.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which rules are checked.
    entries: Vec<Entry>,
    last_rule: u64,
    /// The open watches.
    open: BTreeMap<u64, (Subject, oneshot::Sender<End>)>,
    last_watch: u64,
    /// Number of watches that each resource has had.
    watched: HashMap<(String, String), u64>,
}

#[derive(Debug)]
struct Entry {
    id: RuleId,
    rule: Rule,
    on: Matcher,
    seed: u64,
    /// Number of requests that the rule has matched.
    asked: u64,
    hits: u64,
    ends: Option<Instant>,
    over: bool,
}

/// The faults of one request.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) delay: Duration,
    pub(crate) instead: Option<Instead>,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) ignore_streaming: bool,
    pub(crate) stale: Option<NonZeroU32>,
    pub(crate) cut: Option<Cut>,
    pub(crate) truncate: Option<Truncate>,
    pub(crate) mangle: Option<(Mangle, Draw)>,
}

/// The fault that replaces the answer.
#[derive(Debug)]
pub(crate) struct Instead {
    pub(crate) performed: bool,
    pub(crate) what: Reply,
}

#[derive(Debug)]
pub(crate) enum Reply {
    Answer(Answer),
    Nothing,
    End(By),
}

/// An error that a healthy server also returns, in other circumstances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    ExpiredContinue,
    TooLargeVersion,
    StreamingLists,
}

/// A random number that depends only on a rule's seed and the occasion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Draw(u64);

impl Draw {
    fn new(seed: u64, occasion: [u64; 2]) -> Self {
        // SplitMix64's increment and finalizer, once for each part, so that neighbouring numbers give unrelated draws.
        let mix = |state: u64, part: u64| {
            let mut mixed = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        Draw(occasion.into_iter().fold(mix(seed, 0), mix))
    }

    /// Returns a number below `bound`, or 0.
    pub(crate) fn below(self, bound: u64) -> u64 {
        self.0.checked_rem(bound).unwrap_or_default()
    }

    fn is_within(self, chance: f64) -> bool {
        // The upper half, which `below` does not use for small bounds.
        let upper = u32::try_from(self.0 >> 32).unwrap_or(u32::MAX);
        f64::from(upper) < chance * 4_294_967_296.0
    }
}

impl Entry {
    fn concerns(&mut self, subject: &Subject, now: Instant) -> bool {
        self.over |= self.ends.is_some_and(|ends| ends <= now);
        !self.over && self.on.matches(subject)
    }

    /// Decides whether the rule applies to the `number`th occasion, and counts it if so.
    fn strikes(&mut self, number: u64, occasion: [u64; 2]) -> Option<Draw> {
        let draw = Draw::new(self.seed, occasion);
        let strikes = match self.rule.often {
            Often::Always => true,
            Often::Every(every) => number.is_multiple_of(u64::from(every.get())),
            Often::Probability(chance) => draw.is_within(chance),
        };
        if strikes {
            self.hits += 1;
            self.over = self.rule.count.is_some_and(|count| self.hits >= count.get());
        }
        strikes.then_some(draw)
    }

    /// Decides whether the rule applies to a request.
    fn strikes_request(&mut self) -> Option<Draw> {
        self.asked += 1;
        self.strikes(self.asked, [self.asked, 0])
    }

    fn rank(&self) -> u8 {
        match &self.rule.fault {
            Fault::Delay(_) => 0,
            Fault::Status(_) | Fault::Hang | Fault::Disconnect(_) if !self.rule.performed => 1,
            _ => 2,
        }
    }
}

impl Plan {
    /// `true` if the plan can still take this fault.
    fn has_room_for(&self, fault: &Fault, subject: &Subject) -> bool {
        match fault {
            Fault::Delay(_) => true,
            Fault::Status(_) | Fault::Hang | Fault::Disconnect(_) => self.instead.is_none(),
            Fault::ExpiredContinue => self.refusal.is_none() && subject.continues,
            Fault::TooLargeVersion => self.refusal.is_none(),
            Fault::StreamingLists(_) => self.refusal.is_none() && !self.ignore_streaming && subject.streams,
            Fault::Stale(_) => self.stale.is_none(),
            Fault::Cut(_) => self.cut.is_none(),
            Fault::Truncate(_) => self.truncate.is_none(),
            Fault::Mangle(_) => self.mangle.is_none(),
            _ => false,
        }
    }

    fn take(&mut self, rule: &Rule, draw: Draw) {
        let instead = |what| Some(Instead { performed: rule.performed, what });
        match &rule.fault {
            Fault::Delay(Delay { milliseconds, up_to }) => {
                let more = u64::from(up_to.unwrap_or(*milliseconds).saturating_sub(*milliseconds));
                let drawn = u64::from(*milliseconds) + draw.below(more + 1);
                self.delay = self.delay.saturating_add(Duration::from_millis(drawn));
            }
            Fault::Status(answer) => self.instead = instead(Reply::Answer(answer.clone())),
            Fault::Hang => self.instead = instead(Reply::Nothing),
            Fault::Disconnect(by) => self.instead = instead(Reply::End(*by)),
            Fault::ExpiredContinue => self.refusal = Some(Refusal::ExpiredContinue),
            Fault::TooLargeVersion => self.refusal = Some(Refusal::TooLargeVersion),
            Fault::StreamingLists(Streaming::Refused) => self.refusal = Some(Refusal::StreamingLists),
            Fault::StreamingLists(Streaming::Ignored) => self.ignore_streaming = true,
            Fault::Stale(stale) => self.stale = Some(stale.changes),
            Fault::Cut(cut) => self.cut = Some(cut.clone()),
            Fault::Truncate(truncate) => self.truncate = Some(truncate.clone()),
            Fault::Mangle(mangle) => self.mangle = Some((*mangle, draw)),
            // Faults of open watches.
            Fault::Hold
            | Fault::Silence
            | Fault::Lag(_)
            | Fault::Withhold(_)
            | Fault::Duplicate
            | Fault::RepeatOlder => {}
        }
    }
}

impl Faults {
    pub(crate) fn new() -> Self {
        Faults { active: AtomicUsize::new(0), state: Mutex::default(), changed: watch::Sender::new(()) }
    }

    /// Adds a rule, which applies from now on. A fault that lasts or concerns events also applies to open watches.
    ///
    /// # Errors
    /// The rule could never apply, or there are too many rules.
    pub fn add(&self, rule: Rule) -> Result<RuleId, InvalidRule> {
        let on = rule.check()?;
        let mut state = self.state.lock();
        if state.entries.len() >= MAX_RULES {
            let why = format!("there are already {MAX_RULES} rules: remove some, for example those that are over");
            return Err(InvalidRule::new("rules", why));
        }
        state.last_rule += 1;
        let id = RuleId(state.last_rule);
        let ends = rule.for_milliseconds.map(|time| Instant::now() + Duration::from_millis(time.into()));
        let seed = rule.seed.unwrap_or(id.0);
        let entry = Entry { id, rule, on, seed, asked: 0, hits: 0, ends, over: false };
        let rank = entry.rank();
        let place = state.entries.partition_point(|other| other.rank() <= rank);
        state.entries.insert(place, entry);
        self.settle(&state);
        Ok(id)
    }

    /// Removes a rule and releases what it held back. Returns `false` if the rule does not exist.
    pub fn remove(&self, id: RuleId) -> bool {
        let mut state = self.state.lock();
        let before = state.entries.len();
        state.entries.retain(|entry| entry.id != id);
        self.settle(&state);
        state.entries.len() < before
    }

    /// Removes all rules.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.entries.clear();
        self.settle(&state);
    }

    /// Returns all rules by number, including those that are over.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        let now = Instant::now();
        let state = self.state.lock();
        let listed = |entry: &Entry| {
            let over = entry.over || entry.ends.is_some_and(|ends| ends <= now);
            Listed { id: entry.id, hits: entry.hits, over, rule: entry.rule.clone() }
        };
        let mut all: Vec<Listed> = state.entries.iter().map(listed).collect();
        all.sort_by_key(|listed| listed.id);
        all
    }

    /// Returns the hits of a rule, as in [`Listed::hits`].
    #[must_use]
    pub fn hits(&self, id: RuleId) -> Option<u64> {
        self.state.lock().entries.iter().find(|entry| entry.id == id).map(|entry| entry.hits)
    }

    /// Ends the open watches that match, and returns their number. Later watches are not affected.
    ///
    /// # Errors
    /// `on` names no resource.
    pub fn cut(&self, on: &Requests) -> Result<usize, InvalidRule> {
        self.end(on, End::Over)
    }

    /// Ends the open watches that match by ending their connections. Other streams on these connections end too.
    ///
    /// # Errors
    /// `on` names no resource.
    pub fn disconnect(&self, on: &Requests, by: By) -> Result<usize, InvalidRule> {
        self.end(on, End::Connection(by))
    }

    /// Ends the open watches that match with an ERROR event. 410 means that the watch's version is too old.
    ///
    /// # Errors
    /// `on` names no resource, or `code` is not an error.
    pub fn fail(&self, on: &Requests, code: u16) -> Result<usize, InvalidRule> {
        if !(400..600).contains(&code) {
            return Err(InvalidRule::new("error", format!("{code} is not an error code: use 400 to 599")));
        }
        self.end(on, End::Error(code))
    }

    fn end(&self, on: &Requests, end: End) -> Result<usize, InvalidRule> {
        if on.verbs.iter().any(|verb| *verb != Verb::Watch) {
            return Err(InvalidRule::new("on.verbs", "only watches can be cut: use watch"));
        }
        let on = Matcher::new(on, |verb| verb == Verb::Watch)?;
        let mut state = self.state.lock();
        let matching: Vec<u64> =
            state.open.iter().filter(|(_, (subject, _))| on.matches(subject)).map(|(id, _)| *id).collect();
        let told = matching.iter().filter_map(|id| state.open.remove(id)).map(|(_, told)| told.send(end));
        // A watch that is just ending by itself does not count.
        Ok(told.filter(Result::is_ok).count())
    }

    /// `true` if a rule is not over.
    fn are_any(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Returns the faults of a request. Counts the request for the rules that match.
    pub(crate) fn plan(&self, subject: &Subject) -> Plan {
        let mut plan = Plan::default();
        if !self.are_any() {
            return plan;
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        for entry in &mut state.entries {
            let concerned = entry.concerns(subject, now)
                && !entry.rule.fault.is_of_streams(subject.verb)
                && plan.has_room_for(&entry.rule.fault, subject);
            if concerned && let Some(draw) = entry.strikes_request() {
                plan.take(&entry.rule, draw);
            }
            if plan.instead.as_ref().is_some_and(|instead| !instead.performed) {
                break;
            }
        }
        self.settle_quietly(&state);
        plan
    }

    /// Wakes open watches after a change of the rules.
    fn settle(&self, state: &State) {
        self.settle_quietly(state);
        self.changed.send_replace(());
    }

    fn settle_quietly(&self, state: &State) {
        self.active.store(state.entries.iter().filter(|entry| !entry.over).count(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
