//! The machine against a [fake server](server) that fails in every way it knows of, with a real store.
//!
//! Everything is in memory, and time is a number: a hundred hours of faults pass in a second. Objects that cannot be
//! read are left out, because there is no truth to compare them with.
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use self::server::{Event, Fault, Happened, Mood, Server, Stream, bookmark, error};
use super::{tests::script::config, *};
use crate::{
    backoff::Random,
    store::{Change, Store},
};

mod server;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// What an answer takes.
const ROUND_TRIP: Duration = Duration::from_millis(5);

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
                | Effect::Unreadable { .. }
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
                Effect::Remove(object) => self.store.remove(&object),
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
            Effect::Unreadable { why, .. } => panic!("all objects can be read: {why}"),
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

    /// The longest waits, one after the other: until the look, and until the list. Who resumed the watch blindly would
    /// hear nothing for 5 to 10 minutes.
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
    // Requests in an hour: looks for the endpoint, lists begun, looks at the version, watches. At 30 to 60 s each there
    // are some 80, and a few more while the waits grow.
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
