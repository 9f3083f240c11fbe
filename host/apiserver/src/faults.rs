//! Faults on demand: what clients have to survive, made to happen.
//!
//! A [`Rule`] is data: which requests, what befalls them, how often, until when. [`Faults`] decides what befalls a request or
//! an event; the rest of the server asks it at few places and carries out the answer.
//!
//! ```text
//!  connection ─► connect: delay, hang, disconnect                                          serve
//!  request ────► `befalls`: a Plan ─► delay ─► instead of the answer, or spoilt after it    handle, answer
//!                              │
//!                              └────► refused, stale; a watch that is cut or truncated      list, watch
//!  event ──────► `WatchFaults`: held, late, twice, repeated, mangled                        watch, stream
//! ```
//!
//! Rules are asked in the order of their numbers, but delays first, then what comes instead of an answer. Several may befall
//! one request; of two that cannot both be, the first one does. Draws depend on the seed of the rule and the number of the
//! request, or of the watch and its event, on nothing else. While there is no rule, a request costs one look at a number.
//!
//! The same over HTTP, for people and for programs in other languages; `docs/faults.md` has every member of a rule:
//!
//! ```text
//! GET    /debug/faults        the rules, and how often each has struck: JSON if the Accept header asks for it
//! POST   /debug/faults        add a rule
//! DELETE /debug/faults[/ID]   remove one, or all
//! POST   /debug/faults/cut    cut open watches: {"on": …, "error": 410} or {"on": …, "by": "reset"}
//! POST   /debug/compact       forget history, so that older versions get 410
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

/// Rules that are kept, those that are over included: more than a person keeps apart, and few enough to ask all of them.
const MAX_RULES: usize = 256;

/// The number of a rule, from 1 on. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RuleId(u64);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A rule, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    /// Its number.
    pub id: RuleId,
    /// How often it has struck. Of what lasts: how many watches it has met; of [`Fault::Lag`]: how many batches of events.
    pub hits: u64,
    /// It strikes no more.
    pub over: bool,
    /// The rule.
    pub rule: Rule,
}

/// The faults of a server: rules are added to it and removed from it while it serves.
#[derive(Debug)]
pub struct Faults {
    /// Rules that are not over. Read before anything is locked.
    active: AtomicUsize,
    state: Mutex<State>,
    /// Wakes open watches when a rule comes or goes.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they are asked.
    entries: Vec<Entry>,
    last_rule: u64,
    /// As many as there are watches.
    open: BTreeMap<u64, (Subject, oneshot::Sender<End>)>,
    last_watch: u64,
    /// How many watches each resource has had. As many as there are resources.
    watched: HashMap<(String, String), u64>,
}

#[derive(Debug)]
struct Entry {
    id: RuleId,
    rule: Rule,
    on: Matcher,
    seed: u64,
    /// Requests that it was asked about.
    asked: u64,
    hits: u64,
    ends: Option<Instant>,
    over: bool,
}

/// What befalls one request.
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

/// What comes in place of the answer.
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

/// What a healthy server says too, in other circumstances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    ExpiredContinue,
    TooLargeVersion,
    StreamingLists,
}

/// A number that follows from the seed of a rule and the occasion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Draw(u64);

impl Draw {
    fn new(seed: u64, occasion: [u64; 2]) -> Self {
        // SplitMix64's increment and finalizer, once for each part: neighbouring numbers give unrelated draws.
        let mix = |state: u64, part: u64| {
            let mut mixed = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        Draw(occasion.into_iter().fold(mix(seed, 0), mix))
    }

    /// Less than `bound`, or 0.
    pub(crate) fn below(self, bound: u64) -> u64 {
        self.0.checked_rem(bound).unwrap_or_default()
    }

    fn is_within(self, chance: f64) -> bool {
        // The upper half: apart from what `below` takes for small bounds.
        let upper = u32::try_from(self.0 >> 32).unwrap_or(u32::MAX);
        f64::from(upper) < chance * 4_294_967_296.0
    }
}

impl Entry {
    fn concerns(&mut self, subject: &Subject, now: Instant) -> bool {
        self.over |= self.ends.is_some_and(|ends| ends <= now);
        !self.over && self.on.matches(subject)
    }

    /// Whether it strikes the `number`th time, which is counted if so.
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

    /// Whether it strikes a request.
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
    /// Whether a fault could still befall the request.
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
            // Of streams.
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

    /// Adds a rule. It strikes from now on, and what is of events or lasts strikes watches that are open too.
    ///
    /// # Errors
    /// The rule could never strike, or there are too many.
    pub fn add(&self, rule: Rule) -> Result<RuleId, InvalidRule> {
        let on = rule.check()?;
        let mut state = self.state.lock();
        if state.entries.len() >= MAX_RULES {
            let why = format!("there are {MAX_RULES} already: remove some, those that are over at least");
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

    /// Removes a rule: what it held back comes now. False if there is none of this number.
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

    /// All rules by number, those that are over included.
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

    /// How often a rule has struck, as in [`Listed::hits`].
    #[must_use]
    pub fn hits(&self, id: RuleId) -> Option<u64> {
        self.state.lock().entries.iter().find(|entry| entry.id == id).map(|entry| entry.hits)
    }

    /// Ends the watches that are open and match; those to come are left alone. How many.
    ///
    /// # Errors
    /// `on` names no resource.
    pub fn cut(&self, on: &Requests) -> Result<usize, InvalidRule> {
        self.end(on, End::Over)
    }

    /// As [`Faults::cut`], but by ending their connections: whatever else these carry ends too.
    ///
    /// # Errors
    /// `on` names no resource.
    pub fn disconnect(&self, on: &Requests, by: By) -> Result<usize, InvalidRule> {
        self.end(on, End::Connection(by))
    }

    /// As [`Faults::cut`], with an ERROR event before the end: 410 says that the watch's version is too old.
    ///
    /// # Errors
    /// `on` names no resource, or `code` is no error.
    pub fn fail(&self, on: &Requests, code: u16) -> Result<usize, InvalidRule> {
        if !(400..600).contains(&code) {
            return Err(InvalidRule::new("error", format!("{code} is no error: possible are 400 to 599")));
        }
        self.end(on, End::Error(code))
    }

    fn end(&self, on: &Requests, end: End) -> Result<usize, InvalidRule> {
        if on.verbs.iter().any(|verb| *verb != Verb::Watch) {
            return Err(InvalidRule::new("on.verbs", "only watches are cut: possible is watch"));
        }
        let on = Matcher::new(on, |verb| verb == Verb::Watch)?;
        let mut state = self.state.lock();
        let matching: Vec<u64> =
            state.open.iter().filter(|(_, (subject, _))| on.matches(subject)).map(|(id, _)| *id).collect();
        let told = matching.iter().filter_map(|id| state.open.remove(id)).map(|(_, told)| told.send(end));
        // One that is just ending by itself counts for nothing.
        Ok(told.filter(Result::is_ok).count())
    }

    /// Whether there is a rule that is not over.
    fn are_any(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// What befalls a request. Counts it for the rules that match.
    pub(crate) fn befalls(&self, subject: &Subject) -> Plan {
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

    /// After a change that open watches have to know of.
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
