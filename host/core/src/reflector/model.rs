//! The machine against a fake server that fails in every way it knows of, with a real store.
//!
//! Everything is in memory, and time is a number: a hundred hours of faults pass in a second. Objects that cannot be read
//! are left out, because there is no truth to compare them with.
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::{tests::script::config, *};
use crate::{
    backoff::Random,
    store::{Change, Store},
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// What an answer takes.
const ROUND_TRIP: Duration = Duration::from_millis(5);

/// How the server behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    /// As it should, and nothing changes.
    Calm,
    /// One answer of so many is a fault, and objects change.
    Faulty(u64),
    /// Always the same fault.
    Stubborn(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Unreachable,
    Busy,
    Denied,
    NotServed,
    WatchNotFound,
    WatchNotAllowed,
    WatchExpiredAsStatus,
    WatchExpiredAsEvent,
    WatchEndsAtOnce,
    WatchEndsAfterBookmark,
    WatchBreaks,
    WatchSendsHtml,
    ListSendsHtml,
    TokensExpire,
    TokensAndWholeListsExpire,
    StreamNeverCompletes,
    NoBookmarks,
}

#[derive(Clone, Debug)]
struct Event {
    verb: &'static str,
    version: u64,
    name: String,
    /// In which version it was created.
    born: u64,
}

impl Event {
    fn object(&self) -> String {
        let Self { name, born, version, .. } = self;
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"{name}{born}","resourceVersion":"{version}"}}}}"#
        )
    }

    fn line(&self) -> Vec<u8> {
        format!(r#"{{"type":"{}","object":{}}}"#, self.verb, self.object()).into()
    }
}

struct Server {
    mood: Mood,
    random: Random,
    /// Event number n made version n + 1.
    history: Vec<Event>,
    /// What the whole history comes to.
    objects: BTreeMap<String, Event>,
    /// Below this version watches and continue tokens are too old.
    floor: u64,
    streams: bool,
}

impl Server {
    fn one_in(&mut self, n: u64) -> bool {
        self.random.draw().is_multiple_of(n)
    }

    fn fault(&mut self) -> bool {
        let Mood::Faulty(n) = self.mood else { return false };
        self.one_in(n)
    }

    fn is(&self, faults: &[Fault]) -> bool {
        matches!(self.mood, Mood::Stubborn(fault) if faults.contains(&fault))
    }

    fn version(&self) -> u64 {
        self.history.len() as u64
    }

    fn objects_at(&self, version: u64) -> BTreeMap<String, Event> {
        if version == self.version() {
            return self.objects.clone();
        }
        let mut objects = BTreeMap::new();
        for event in &self.history[..version as usize] {
            apply(event, &mut objects);
        }
        objects
    }

    /// Names and versions of what exists.
    fn truth(&self) -> Vec<(String, u64)> {
        self.objects.values().map(|event| (event.name.clone(), event.version)).collect()
    }

    fn write(&mut self) {
        let name = format!("o{}", self.random.draw() % 9);
        let version = self.version() + 1;
        let (verb, born) = match self.objects.get(&name).map(|before| before.born) {
            None => ("ADDED", version),
            Some(born) if self.one_in(3) => ("DELETED", born),
            Some(born) => ("MODIFIED", born),
        };
        self.happen(Event { verb, version, name, born });
    }

    fn happen(&mut self, event: Event) {
        apply(&event, &mut self.objects);
        self.history.push(event);
    }

    fn churn(&mut self) {
        while self.one_in(2) {
            self.write();
        }
        if self.one_in(8) {
            self.floor = self.version() - self.random.draw() % (self.version() - self.floor + 1);
        }
    }

    /// etcd comes back from an older copy.
    fn restore(&mut self, version: u64) {
        self.objects = self.objects_at(version);
        self.history.truncate(version as usize);
        self.floor = version;
    }

    fn some_failure(&mut self) -> Failure {
        const CODES: [u16; 13] = [400, 401, 403, 404, 405, 410, 422, 429, 500, 502, 503, 504, 418];
        match self.random.draw() % 4 {
            0 => Failure::Transport("reset".to_owned()),
            1 if self.one_in(4) => Failure::Missing("gone".to_owned()),
            _ => {
                let retry_after = self.one_in(3).then(|| Duration::from_secs(self.random.draw() % 200));
                let code = CODES[(self.random.draw() % CODES.len() as u64) as usize];
                let too_large = if code == 504 && self.one_in(2) { "Too large resource version" } else { "" };
                Failure::Status(Status { code, retry_after, message: too_large.to_owned(), ..Status::default() })
            }
        }
    }

    fn list(&mut self, limit: u32, token: Option<&str>) -> Happened {
        use Fault::{Busy, Denied, ListSendsHtml, NotServed, TokensAndWholeListsExpire, TokensExpire, Unreachable};
        if self.fault() {
            return if self.one_in(5) { Happened::Page(b"{".into()) } else { Happened::Failed(self.some_failure()) };
        }
        match self.mood {
            Mood::Stubborn(Unreachable) => return Happened::Failed(Failure::Transport("refused".to_owned())),
            Mood::Stubborn(Busy) => return Happened::status(429, Some(Duration::from_secs(1))),
            Mood::Stubborn(Denied) => return Happened::status(403, None),
            Mood::Stubborn(NotServed) => return Happened::status(404, None),
            Mood::Stubborn(ListSendsHtml) => return Happened::Page(b"<html>".into()),
            Mood::Stubborn(TokensExpire | TokensAndWholeListsExpire) if token.is_some() => {
                return Happened::status(410, None);
            }
            Mood::Stubborn(TokensAndWholeListsExpire) if limit == 0 => return Happened::status(410, None),
            _ => {}
        }
        let (version, after) = match token.map(|token| token.split_once('/').unwrap()) {
            None => (self.version(), ""),
            Some((version, after)) => (version.parse().unwrap(), after),
        };
        if version < self.floor || version > self.version() {
            return Happened::status(410, None);
        }
        let limit = if limit == 0 { usize::MAX } else { limit as usize };
        let mut rest = self.objects_at(version).into_values().filter(|event| &*event.name > after);
        let items: Vec<Event> = rest.by_ref().take(limit).collect();
        let token = match (items.last(), rest.next()) {
            (Some(last), Some(_)) => format!("{version}/{}", last.name),
            _ => String::new(),
        };
        let items: Vec<String> = items.iter().map(Event::object).collect();
        let meta = format!(r#"{{"resourceVersion":"{version}","continue":"{token}"}}"#);
        Happened::Page(format!(r#"{{"metadata":{meta},"items":[{}]}}"#, items.join(",")).into())
    }

    /// The stream, or why there is none.
    fn watch(&mut self, from: &str, initial: bool, until: Duration) -> Result<Stream, Happened> {
        if self.fault() {
            return Err(Happened::Failed(self.some_failure()));
        }
        match self.mood {
            Mood::Stubborn(Fault::Unreachable | Fault::Busy | Fault::Denied | Fault::NotServed) => {
                return Err(self.list(1, None));
            }
            Mood::Stubborn(Fault::WatchNotFound) if !initial => return Err(Happened::status(404, None)),
            Mood::Stubborn(Fault::WatchNotAllowed) => return Err(Happened::status(405, None)),
            Mood::Stubborn(Fault::WatchExpiredAsStatus) if !initial => return Err(Happened::status(410, None)),
            _ => {}
        }
        let mut stream = Stream { position: 0, lines: VecDeque::new(), until, opened: false };
        if initial {
            if !self.streams {
                return Err(Happened::status(422, None));
            }
            stream.position = self.version();
            stream.lines.extend(
                self.objects_at(stream.position).values().map(|event| Event { verb: "ADDED", ..event.clone() }.line()),
            );
            if !self.is(&[Fault::StreamNeverCompletes]) {
                stream.lines.push_back(bookmark(stream.position, true));
            }
        } else {
            stream.position = from.parse().unwrap();
            if stream.position < self.floor || self.is(&[Fault::WatchExpiredAsEvent]) {
                stream.lines.push_back(error(410));
            }
        }
        Ok(stream)
    }

    /// What the watch brings next; `now` goes on to when.
    fn next_of(&mut self, stream: &mut Stream, now: &mut Duration) -> Happened {
        if !std::mem::replace(&mut stream.opened, true) {
            return Happened::Opened;
        }
        if self.fault() {
            return match self.random.draw() % 4 {
                0 => Happened::Failed(Failure::Transport("reset".to_owned())),
                1 => Happened::Ended,
                2 => Happened::Line(b"<html>".into()),
                _ => Happened::Line(error([400, 401, 404, 410, 422, 500, 503][(self.random.draw() % 7) as usize])),
            };
        }
        if let Some(line) = stream.lines.pop_front() {
            return Happened::Line(line);
        }
        match self.mood {
            Mood::Stubborn(Fault::WatchEndsAtOnce) => return Happened::Ended,
            Mood::Stubborn(Fault::WatchEndsAfterBookmark) if stream.position == self.version() => {
                self.write();
                stream.lines.clear();
                stream.position = self.version() + 1;
                return Happened::Line(bookmark(self.version(), false));
            }
            Mood::Stubborn(Fault::WatchEndsAfterBookmark) => return Happened::Ended,
            Mood::Stubborn(Fault::WatchBreaks) => {
                *now += Duration::from_secs(10);
                return Happened::Failed(Failure::Transport("reset".to_owned()));
            }
            Mood::Stubborn(Fault::WatchSendsHtml) => return Happened::Line(b"<html>".into()),
            _ => {}
        }
        if let Some(event) = self.history.get(stream.position as usize) {
            stream.position += 1;
            return Happened::Line(event.line());
        }
        *now = (*now + MINUTE).min(stream.until);
        if *now == stream.until {
            return Happened::Ended;
        }
        // A watch from a version that is yet to come gets no bookmark either.
        if stream.position > self.version() || self.is(&[Fault::NoBookmarks]) {
            return self.next_of(stream, now);
        }
        Happened::Line(bookmark(self.version(), false))
    }
}

fn apply(event: &Event, objects: &mut BTreeMap<String, Event>) {
    match event.verb {
        "DELETED" => objects.remove(&event.name),
        _ => objects.insert(event.name.clone(), event.clone()),
    };
}

fn bookmark(version: u64, end: bool) -> Vec<u8> {
    let end = if end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    format!(r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}"{end}}}}}}}"#).into()
}

fn error(code: u16) -> Vec<u8> {
    format!(r#"{{"type":"ERROR","object":{{"kind":"Status","code":{code}}}}}"#).into()
}

struct Stream {
    /// The version that the client has come to.
    position: u64,
    /// To be sent before what is in the history.
    lines: VecDeque<Vec<u8>>,
    until: Duration,
    opened: bool,
}

/// An [`Input`] that owns its bytes.
#[derive(Clone, Debug)]
enum Happened {
    Start,
    Resolved,
    Page(Vec<u8>),
    Opened,
    Line(Vec<u8>),
    Ended,
    Failed(Failure),
    Elapsed,
    Restored,
}

impl Happened {
    fn status(code: u16, retry_after: Option<Duration>) -> Self {
        Self::Failed(Failure::Status(Status { code, retry_after, ..Status::default() }))
    }

    fn input(&self) -> Input<'_> {
        match self {
            Self::Start => Input::Start,
            Self::Resolved => Input::Resolved,
            Self::Page(body) => Input::Page(body),
            Self::Opened => Input::Opened,
            Self::Line(line) => Input::Line(line),
            Self::Ended => Input::Ended,
            Self::Failed(failure) => Input::Failed(failure.clone()),
            Self::Elapsed => Input::Elapsed,
            Self::Restored => Input::Restored,
        }
    }
}

/// The driver, and all that it holds.
struct World {
    server: Server,
    reflector: Reflector,
    store: Store,
    stream: Option<Stream>,
    asked: Option<Effect>,
    now: Duration,
    checks: Checks,
    counts: Counts,
    state: Option<State>,
    gone: Vec<Change>,
}

#[derive(Debug, Default)]
struct Counts {
    resolves: u32,
    /// First pages, whole lists and streaming lists.
    lists: u32,
    /// Lists of one object, for the version.
    looks: u32,
    watches: u32,
}

const GOES_BACK: Effect = Effect::BeginReplace { went_back: true };

/// What holds of the effects of any reflector, whatever happens to it.
#[derive(Default)]
struct Checks {
    /// A list is under way; whether its version went back.
    replacing: Option<bool>,
    synced: bool,
}

impl Checks {
    fn check(&mut self, input: &Input<'_>, effects: &[Effect]) {
        for (place, effect) in effects.iter().enumerate() {
            let last = place + 1 == effects.len();
            match effect {
                Effect::Resolve | Effect::List { .. } => assert!(last, "a request is the last effect: {effects:?}"),
                Effect::Watch { timeout, initial_events, .. } => {
                    assert!(last, "a request is the last effect: {effects:?}");
                    // Invariant 4: the server has just told its version, or there was no time to take it down.
                    let goes_on = matches!(input, Input::Page(_) | Input::Ended);
                    assert!(*initial_events || goes_on, "a watch resumes blindly after {input:?}");
                    assert!((5 * MINUTE..10 * MINUTE).contains(timeout), "{timeout:?}");
                }
                Effect::Wait(delay) => {
                    assert!(last, "a wait is the last effect: {effects:?}");
                    assert!((Duration::from_millis(500)..=MINUTE).contains(delay), "waits {delay:?}");
                }
                Effect::BeginReplace { went_back } => {
                    assert_eq!(self.replacing.replace(*went_back), None, "{effects:?}");
                }
                Effect::FinishReplace { .. } | Effect::AbortReplace => {
                    assert_ne!(self.replacing.take(), None, "{effects:?}");
                }
                Effect::Synced => assert!(!std::mem::replace(&mut self.synced, true), "{effects:?}"),
                Effect::Upsert(_) | Effect::Remove(_) => {
                    assert!(self.replacing.is_some() || self.synced, "{effects:?}");
                }
                Effect::State(_)
                | Effect::Skipped { .. }
                | Effect::Relist(_)
                | Effect::Covered(_)
                | Effect::Restored => {}
            }
        }
    }
}

impl World {
    fn new(seed: u64, mood: Mood) -> Self {
        let config = Config { page_size: 2, seed, ..config() };
        let mut random = Random::new(seed ^ 1);
        let streams = random.draw().is_multiple_of(2);
        let mut world = Self {
            server: Server { mood, random, history: Vec::new(), objects: BTreeMap::new(), floor: 0, streams },
            store: Store::new(config.of.clone()),
            reflector: Reflector::new(config),
            stream: None,
            asked: None,
            now: Duration::from_secs(seed % 1_000_000),
            checks: Checks::default(),
            counts: Counts::default(),
            state: None,
            gone: Vec::new(),
        };
        for _ in 0..20 {
            world.server.write();
        }
        world.happen(&Happened::Start);
        world
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            if matches!(self.server.mood, Mood::Faulty(_)) {
                self.server.churn();
            }
            let happened = match self.asked.take() {
                Some(request) => self.perform(request),
                None => {
                    let stream = self.stream.as_mut().expect("the machine asked for something, or a watch is open");
                    self.server.next_of(stream, &mut self.now)
                }
            };
            self.happen(&happened);
        }
    }

    fn perform(&mut self, request: Effect) -> Happened {
        self.now += ROUND_TRIP;
        self.stream = None;
        match request {
            Effect::Resolve => {
                self.counts.resolves += 1;
                if self.server.fault() {
                    return Happened::Failed(self.server.some_failure());
                }
                if self.server.is(&[Fault::Unreachable, Fault::Busy, Fault::Denied, Fault::NotServed]) {
                    return self.server.list(1, None);
                }
                Happened::Resolved
            }
            Effect::List { limit, continue_token, .. } => {
                let begins = if limit == 1 { &mut self.counts.looks } else { &mut self.counts.lists };
                *begins += u32::from(continue_token.is_none());
                self.server.list(limit, continue_token.as_deref())
            }
            Effect::Watch { resource_version, initial_events, timeout } => {
                self.counts.lists += u32::from(initial_events);
                self.counts.watches += u32::from(!initial_events);
                match self.server.watch(&resource_version, initial_events, self.now + timeout) {
                    Ok(mut stream) => {
                        let opened = self.server.next_of(&mut stream, &mut self.now);
                        self.stream = Some(stream);
                        opened
                    }
                    Err(failed) => failed,
                }
            }
            Effect::Wait(delay) => {
                self.now += delay;
                Happened::Elapsed
            }
            other => unreachable!("{other:?} is nothing to perform"),
        }
    }

    fn happen(&mut self, happened: &Happened) {
        let mut effects = Vec::new();
        self.reflector.step(self.now, happened.input(), &mut effects);
        let went_back = self.checks.replacing == Some(true);
        self.checks.check(&happened.input(), &effects);
        let went_back = went_back || self.checks.replacing == Some(true) || effects.contains(&GOES_BACK);
        for effect in effects {
            let change = match effect {
                Effect::Upsert(object) => self.store.upsert(object),
                Effect::Remove(object) => self.store.remove(object),
                effect => {
                    self.apply(effect);
                    None
                }
            };
            if let Some(Change { old: Some(old), new: Some(new), .. }) = &change {
                let newer = old.resource_version() < new.resource_version();
                assert!(newer || went_back, "{} went back in time", new.key());
            }
            self.gone.extend(change.filter(|change| change.new.is_none()));
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::BeginReplace { went_back } => self.store.begin_replace(went_back),
            Effect::FinishReplace { version } => self.gone.extend(self.store.finish_replace(version)),
            Effect::AbortReplace => self.store.abort_replace(),
            Effect::State(state) => self.state = Some(state),
            Effect::Resolve | Effect::List { .. } | Effect::Watch { .. } | Effect::Wait(_) => self.asked = Some(effect),
            Effect::Upsert(_) | Effect::Remove(_) => unreachable!("they are changes"),
            Effect::Covered(version) => self.store.advance(version),
            Effect::Skipped { why, .. } => panic!("all objects can be read: {why}"),
            Effect::Synced | Effect::Relist(_) | Effect::Restored => {}
        }
    }

    fn cached(&self) -> Vec<(String, u64)> {
        self.store.iter().map(|object| (object.key().name.to_string(), object.resource_version().0)).collect()
    }
}

/// The store shows what the server has, and nothing more is asked than watches that end in their time.
fn settles(world: &mut World) -> Result<(), TestCaseError> {
    world.server.mood = Mood::Calm;
    world.run_for(HOUR);
    prop_assert_eq!(world.cached(), world.server.truth());
    prop_assert_eq!(&world.state, &Some(State::Watching));
    prop_assert!(world.checks.synced);
    world.counts = Counts::default();
    world.run_for(10 * HOUR);
    let Counts { resolves, lists, looks, watches } = world.counts;
    prop_assert_eq!((resolves, lists, looks), (0, 0, 0));
    prop_assert!((60..=120).contains(&watches), "{} watches", watches);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn after_faults_end_the_store_shows_what_the_server_has(seed: u64, one_in in 2..40_u64) {
        let mut world = World::new(seed, Mood::Faulty(one_in));
        world.run_for(HOUR);
        settles(&mut world)?;
    }

    #[test]
    fn invariant_4_after_a_restore_the_store_shows_what_the_server_has(seed: u64, one_in in 2..40_u64, lost in 1..200_u64) {
        let mut world = World::new(seed, Mood::Faulty(one_in));
        world.run_for(HOUR);
        let version = world.server.version().saturating_sub(lost);
        world.server.restore(version);
        settles(&mut world)?;
        world.server.write();
        settles(&mut world)?;
    }

    /// The longest waits, one after the other: until the look, and until the list. Who resumed the watch blindly would hear
    /// nothing for 5 to 10 minutes.
    #[test]
    fn invariant_4_a_restore_during_an_outage_is_seen_before_the_watch_goes_on(
        seed: u64, one_in in 2..40_u64, lost in 1..200_u64, outage in 1..1200_u64,
    ) {
        let mut world = World::new(seed, Mood::Faulty(one_in));
        world.run_for(HOUR);
        world.server.mood = Mood::Calm;
        world.run_for(HOUR);
        let version = world.server.version().saturating_sub(lost);
        world.server.mood = Mood::Stubborn(Fault::Unreachable);
        world.stream = None;
        world.happen(&Happened::Failed(Failure::Transport("reset".to_owned())));
        world.run_for(Duration::from_secs(outage));
        world.server.restore(version);
        world.server.mood = Mood::Calm;
        world.run_for(2 * MINUTE + 10 * ROUND_TRIP);
        prop_assert_eq!(world.cached(), world.server.truth());
    }

    /// The server is past all that was seen before anybody looks, and one who was quicker tells.
    #[test]
    fn invariant_4_a_restore_that_cannot_be_seen_any_more_is_believed(seed: u64, one_in in 2..40_u64, lost in 1..200_u64) {
        let mut world = World::new(seed, Mood::Faulty(one_in));
        world.run_for(HOUR);
        let seen = world.server.version();
        world.server.restore(seen.saturating_sub(lost));
        while world.server.version() <= seen {
            world.server.write();
        }
        world.happen(&Happened::Restored);
        settles(&mut world)?;
    }

    #[test]
    fn any_input_at_any_time_is_answered_in_good_order(steps in prop::collection::vec((any_input(), 0..400_u64), 0..200), seed: u64) {
        let mut reflector = Reflector::new(Config { seed, ..config() });
        let mut checks = Checks::default();
        let mut now = Duration::ZERO;
        for (happened, seconds) in steps {
            now += Duration::from_secs(seconds);
            let mut effects = Vec::new();
            reflector.step(now, happened.input(), &mut effects);
            checks.check(&happened.input(), &effects);
        }
    }
}

fn any_input() -> impl Strategy<Value = Happened> {
    let object = |version: u64| Event { verb: "MODIFIED", version, name: "a".to_owned(), born: 1 };
    let page = |(version, token): (u64, bool)| {
        let token = if token { "T" } else { "" };
        let meta = format!(r#"{{"resourceVersion":"{version}","continue":"{token}"}}"#);
        Happened::Page(format!(r#"{{"metadata":{meta},"items":[{{}}]}}"#).into())
    };
    let codes = prop::sample::select(vec![0_u16, 400, 401, 403, 404, 410, 422, 429, 500, 504, u16::MAX]);
    prop_oneof![
        1 => Just(Happened::Start),
        3 => Just(Happened::Resolved),
        3 => any::<(u64, bool)>().prop_map(page),
        3 => Just(Happened::Opened),
        3 => any::<u64>().prop_map(move |version| Happened::Line(object(version).line())),
        3 => any::<(u64, bool)>().prop_map(|(version, end)| Happened::Line(bookmark(version, end))),
        2 => codes.clone().prop_map(|code| Happened::Line(error(code))),
        1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Happened::Line),
        1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Happened::Page),
        2 => Just(Happened::Ended),
        3 => (codes, prop::option::of(any::<u64>()))
            .prop_map(|(code, after)| Happened::status(code, after.map(Duration::from_secs))),
        1 => ".{0,9}".prop_map(|text| Happened::Failed(Failure::Transport(text))),
        1 => ".{0,9}".prop_map(|text| Happened::Failed(Failure::Missing(text))),
        5 => Just(Happened::Elapsed),
        1 => Just(Happened::Restored),
    ]
}

#[test]
fn no_server_is_stormed() {
    // Requests in an hour: looks for the endpoint, lists begun, looks at the version, watches. At 30 to 60 s each there are some
    // 80, and a few more while the waits grow.
    let table = [
        (Fault::Unreachable, 100, 0, 0, 0),
        (Fault::Busy, 100, 0, 0, 0),
        (Fault::Denied, 120, 0, 0, 0),
        (Fault::NotServed, 1200, 0, 0, 0),
        (Fault::WatchNotFound, 100, 200, 0, 100),
        (Fault::WatchNotAllowed, 100, 100, 0, 100),
        (Fault::WatchExpiredAsStatus, 100, 100, 0, 100),
        (Fault::WatchExpiredAsEvent, 100, 100, 0, 100),
        (Fault::WatchEndsAtOnce, 1, 2, 100, 100),
        (Fault::WatchEndsAfterBookmark, 1, 2, 100, 100),
        (Fault::WatchBreaks, 1, 2, 100, 100),
        (Fault::WatchSendsHtml, 1, 2, 100, 100),
        (Fault::ListSendsHtml, 1, 100, 20, 20),
        (Fault::TokensExpire, 1, 3, 0, 20),
        (Fault::TokensAndWholeListsExpire, 1, 200, 0, 20),
        (Fault::StreamNeverCompletes, 1, 2, 0, 20),
        (Fault::NoBookmarks, 1, 2, 14, 14),
    ];
    for (fault, resolves, lists, looks, watches) in table {
        for seed in 0..20 {
            let mut world = World::new(seed, Mood::Stubborn(fault));
            world.run_for(HOUR);
            let Counts { resolves: r, lists: l, looks: v, watches: w } = world.counts;
            assert!(
                r <= resolves && l <= lists && v <= looks && w <= watches,
                "{fault:?}, seed {seed}: {:?}",
                world.counts
            );
        }
    }
}

#[test]
fn a_calm_server_is_listed_once() {
    for seed in 0..20 {
        let mut world = World::new(seed, Mood::Calm);
        world.run_for(24 * HOUR);
        let Counts { resolves, lists, looks, watches } = world.counts;
        // Where streaming is refused, it was asked for.
        assert_eq!((resolves, lists, looks), (1, if world.server.streams { 1 } else { 2 }, 0));
        assert!((144..=288).contains(&watches), "{watches} watches");
        assert_eq!(world.cached(), world.server.truth());
    }
}

#[test]
fn invariant_5_a_delete_missed_while_the_watch_was_down_is_found_by_the_relist() {
    for seed in 0..20 {
        let mut world = World::new(seed, Mood::Calm);
        world.run_for(MINUTE);
        let before = world.server.truth();
        world.stream = None;
        world.happen(&Happened::Failed(Failure::Transport("reset".to_owned())));
        let name = before[0].0.clone();
        let born = world.server.objects[&name].born;
        let next = world.server.version() + 1;
        world.server.happen(Event { verb: "DELETED", version: next, name: name.clone(), born });
        world.server.floor = next;
        world.run_for(MINUTE);
        assert_eq!(world.cached(), before[1..]);
        let gone: Vec<_> = world.gone.iter().map(|change| change.key().name.to_string()).collect();
        assert_eq!(gone, [name]);
    }
}
