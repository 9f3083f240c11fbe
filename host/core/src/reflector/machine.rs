//! The states and transitions. [Answers](answers) and [failures](failures) have files of their own.

use std::{collections::VecDeque, mem, time::Duration};

use super::{
    Config, Effect, Failure, Input, State,
    answer::{brief, key_in},
};
use crate::{
    backoff::{ABSENT, Backoff, RECONNECT, Random},
    key::Key,
    object::{Object, ResourceVersion},
};

mod answers;
mod failures;

/// Range of the requested lifetime of a watch: client-go's, to spread reconnects.
pub(super) const WATCH_FOR: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(600));

/// A watch that ends at most this much early has ended on time: servers count in seconds, and from another moment.
const IN_TIME: Duration = Duration::from_secs(2);

/// A watch that ends sooner than this, and without an event, has failed.
const SHORT: Duration = Duration::from_secs(5);

/// A watch that is open this long without a line is suspect: servers send a bookmark every minute.
const SILENT: Duration = Duration::from_secs(120);

/// Range of the wait after a denial: roles change by hand, and tokens are read again once a minute.
const DENIED: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(33));

/// Time for which a kind must be gone before its objects are removed: longer than API servers of one cluster disagree
/// on it.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// One reflector reports at most [`MAX_RESTORES`] restores to the others in this time. Nobody restores a cluster that
/// often. The cause is then one of several servers that answers from an old cache, or one with its own versions that
/// restarts.
const RESTORES_WITHIN: Duration = Duration::from_secs(600);

/// See [`RESTORES_WITHIN`].
const MAX_RESTORES: usize = 3;

/// The newest version seen after a restore: every version of the server is then of another history.
const ANOTHER_HISTORY: ResourceVersion = ResourceVersion(u64::MAX);

/// Largest Retry-After that is honoured.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The state machine of one list and watch; see the [module](super).
#[derive(Debug)]
pub struct Reflector {
    config: Config,
    phase: Phase,
    /// Where a watch continues: the version of the last complete list, or a newer one from the watch.
    version: Option<ResourceVersion>,
    /// The newest version that the server has shown, also in lists that were given up. A server that shows an older one
    /// has gone back.
    seen: Option<ResourceVersion>,
    list_by: ListBy,
    /// Requested lifetime of the last watch.
    watch_for: Duration,
    /// Another reflector has found a restore since the last list began. This list, and the watch after it, may be of
    /// the lost history.
    restored: bool,
    /// Times of the last restores that this reflector found, at most [`MAX_RESTORES`].
    restores: VecDeque<Duration>,
    /// Set between `BeginReplace` and `FinishReplace` or `AbortReplace`.
    replacing: Option<Replacing>,
    synced: bool,
    gone: Option<Gone>,
    /// The kind was missing at some time since the last list.
    missed: bool,
    reported: Option<State>,
    reconnect: Backoff,
    relists: Backoff,
    absent: Backoff,
    random: Random,
}

/// How the next list is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListBy {
    Stream,
    /// By pages once, after a streaming list broke off.
    PagesOnce,
    /// By pages, as the server refused to stream.
    Pages,
}

/// What the machine is waiting for.
#[derive(Debug)]
enum Phase {
    /// [`Input::Start`].
    Idle,
    Resolving,
    /// One page of a list.
    Paging(Paging),
    /// A streaming list that is not complete.
    Streaming {
        opened: bool,
    },
    Watching(Watch),
    /// A list of one object, whose version shows whether a watch may continue.
    Probing,
    Waiting(Next),
}

/// What to do after a wait.
#[derive(Debug)]
enum Next {
    Resolve,
    List,
    Page(Paging),
    Probe,
}

/// The progress of a list by pages.
#[derive(Debug, Default)]
struct Paging {
    /// Of the requested page.
    continue_token: Option<String>,
    /// Of the first page, once it has come.
    version: Option<ResourceVersion>,
    /// Requests all objects in one page, no older than this version: the fall-back after a continue token expired. With
    /// a version the server may answer from memory, and need not read everything from etcd.
    whole: Option<ResourceVersion>,
}

/// Since when every answer has reported that the kind is gone.
#[derive(Clone, Copy, Debug)]
struct Gone {
    since: Duration,
    swept: bool,
}

#[derive(Clone, Copy, Debug)]
struct Replacing {
    went_back: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    opened: Option<Duration>,
    /// A line came that fits the watch's version.
    heard: bool,
    /// An object came that is newer than that version.
    eventful: bool,
}

impl Reflector {
    /// Creates a reflector that waits for [`Input::Start`].
    pub fn new(config: Config) -> Self {
        let mut random = Random::new(config.seed);
        Self {
            phase: Phase::Idle,
            version: None,
            list_by: if config.streaming { ListBy::Stream } else { ListBy::Pages },
            watch_for: Duration::ZERO,
            restored: false,
            restores: VecDeque::with_capacity(MAX_RESTORES),
            seen: config.seen,
            replacing: None,
            synced: false,
            gone: None,
            missed: false,
            reported: None,
            reconnect: Backoff::new(RECONNECT, random.draw()),
            relists: Backoff::new(RECONNECT, random.draw()),
            absent: Backoff::new(ABSENT, random.draw()),
            random,
            config,
        }
    }

    /// Takes an input and appends the effects. At most one of them is a request or a wait, and it is the last.
    ///
    /// `now` counts from any fixed moment and never decreases.
    pub fn step(&mut self, now: Duration, input: Input<'_>, effects: &mut Vec<Effect>) {
        let mut step = Step { reflector: self, now, effects };
        let phase = mem::replace(&mut step.reflector.phase, Phase::Idle);
        let phase = match (phase, input) {
            (Phase::Idle, Input::Start) => {
                step.report(State::Resolving);
                step.go(Next::Resolve)
            }
            (Phase::Waiting(next), Input::Elapsed) => step.go(next),
            (Phase::Resolving, Input::Resolved) => step.resolved(),
            (Phase::Resolving, Input::Failed(failure)) => step.failed(failure, Next::Resolve),
            (Phase::Paging(paging), Input::Page(body)) => step.page(paging, body),
            (Phase::Paging(paging), Input::Failed(failure)) => step.page_failed(paging, failure),
            (Phase::Streaming { .. }, Input::Opened) => step.begin_stream(),
            (Phase::Streaming { opened: true }, Input::Line(line)) => step.stream_line(line),
            (Phase::Streaming { opened }, Input::Ended) => {
                let broken = "the streaming list ended before it was complete".to_owned();
                step.stream_failed(opened, Failure::Transport(broken))
            }
            (Phase::Streaming { opened }, Input::Failed(failure)) => step.stream_failed(opened, failure),
            (Phase::Watching(watch), Input::Opened) => step.watch_opened(watch),
            (Phase::Watching(watch), Input::Line(line)) => step.watch_line(watch, line),
            (Phase::Watching(watch), Input::Ended) => step.watch_ended(&watch),
            (Phase::Watching(_) | Phase::Probing, Input::Failed(failure)) => step.watch_failed(failure),
            (Phase::Probing, Input::Page(body)) => step.probed(body),
            (phase, Input::Restored) => step.restored_elsewhere(phase),
            (phase, _) => phase,
        };
        self.phase = phase;
    }
}

impl Watch {
    fn lasted(&self, now: Duration) -> Duration {
        self.opened.map_or(Duration::ZERO, |opened| now.saturating_sub(opened))
    }

    fn was_silent(&self, now: Duration) -> bool {
        !self.heard && self.lasted(now) >= SILENT
    }
}

/// One transition under way.
struct Step<'a> {
    reflector: &'a mut Reflector,
    now: Duration,
    effects: &'a mut Vec<Effect>,
}

// Asking.
impl Step<'_> {
    fn go(&mut self, next: Next) -> Phase {
        match next {
            Next::Resolve => {
                self.effects.push(Effect::Resolve);
                Phase::Resolving
            }
            Next::List => self.list(),
            Next::Page(paging) => {
                self.report(State::Listing);
                self.ask_page(paging)
            }
            Next::Probe => {
                self.effects.push(Effect::List { limit: 1, continue_token: None, resource_version: None });
                Phase::Probing
            }
        }
    }

    fn list(&mut self) -> Phase {
        self.report(State::Listing);
        self.reflector.restored = false;
        let by = self.reflector.list_by;
        if by == ListBy::PagesOnce {
            self.reflector.list_by = ListBy::Stream;
        }
        // A list that goes back must show so on its first page.
        if by != ListBy::Stream || self.reflector.seen == Some(ANOTHER_HISTORY) {
            return self.ask_page(Paging::default());
        }
        // Without a version: as recent as a list would be. From the last version the server would wait until it reaches
        // that version, which after a restore of etcd is never.
        let timeout = self.watch_for();
        self.effects.push(Effect::Watch { resource_version: String::new(), initial_events: true, timeout });
        Phase::Streaming { opened: false }
    }

    fn ask_page(&mut self, paging: Paging) -> Phase {
        self.effects.push(Effect::List {
            limit: if paging.whole.is_some() { 0 } else { self.reflector.config.page_size },
            continue_token: paging.continue_token.clone(),
            resource_version: paging.whole.map(|version| version.to_string()),
        });
        Phase::Paging(paging)
    }

    fn watch(&mut self) -> Phase {
        let Some(from) = self.reflector.version else { return self.list() };
        if self.reflector.restored {
            return self.relist_restored();
        }
        let timeout = self.watch_for();
        self.effects.push(Effect::Watch { resource_version: from.to_string(), initial_events: false, timeout });
        Phase::Watching(Watch::default())
    }

    fn watch_for(&mut self) -> Duration {
        self.reflector.watch_for = self.reflector.random.between(WATCH_FOR.0, WATCH_FOR.1);
        self.reflector.watch_for
    }

    fn report(&mut self, state: State) {
        if self.reflector.reported.as_ref() != Some(&state) {
            self.reflector.reported = Some(state.clone());
            self.effects.push(Effect::State(state));
        }
    }
}

// What came, for the store.
impl Step<'_> {
    fn upsert(&mut self, json: &[u8]) -> Option<ResourceVersion> {
        let (object, unreadable) = self.read(json);
        let version = object.as_ref().map(Object::resource_version);
        self.saw(version);
        self.effects.extend(object.map(Effect::Upsert));
        self.effects.extend(unreadable);
        version
    }

    fn remove(&mut self, json: &[u8]) -> Option<ResourceVersion> {
        let (object, unreadable) = self.read(json);
        let version = object.as_ref().map(Object::resource_version);
        self.saw(version);
        // Of a removed object, only its identity matters.
        self.effects.extend(object.map(Effect::Remove).or(unreadable));
        version
    }

    /// Returns the object, or as much of it as can be read, and what to report of an unreadable one.
    fn read(&self, json: &[u8]) -> (Option<Object>, Option<Effect>) {
        let Config { of, keep, .. } = &self.reflector.config;
        let error = match Object::parse_kept(json, of, keep) {
            Ok(object) => return (Some(object), None),
            Err(error) => error,
        };
        let outline = Object::outline(json, of, keep, &error);
        let key = outline.as_ref().map_or_else(|| key_in(json), |outline| Some(outline.key().clone()));
        let name = key.as_ref().map_or_else(|| "without a name".to_owned(), Key::to_string);
        let why = brief(&format!("cannot read {of} {name}: {error}"));
        (outline, Some(Effect::Unreadable { key, why }))
    }

    fn saw(&mut self, version: Option<ResourceVersion>) {
        self.reflector.seen = self.reflector.seen.max(version);
    }

    /// Returns `true` if the server has seen a newer version than `version`, which it now shows. Reports that to the
    /// other reflectors once, unless they reported it or this reflector has found too many.
    fn went_back(&mut self, version: ResourceVersion) -> bool {
        let went_back = Some(version) < self.reflector.seen;
        if went_back && self.reflector.seen != Some(ANOTHER_HISTORY) {
            self.reflector.seen = Some(ANOTHER_HISTORY);
            if self.is_credible() {
                self.effects.push(Effect::Restored);
            }
        }
        went_back
    }

    /// Records a restore that was found. Returns `true` if the other reflectors should act on it.
    fn is_credible(&mut self) -> bool {
        let (now, restores) = (self.now, &mut self.reflector.restores);
        restores.retain(|at| now.saturating_sub(*at) < RESTORES_WITHIN);
        let credible = restores.len() < MAX_RESTORES;
        if !credible {
            restores.pop_front();
        }
        restores.push_back(now);
        credible
    }

    /// Follows a restore that another reflector found. A request under way is answered first.
    fn restored_elsewhere(&mut self, phase: Phase) -> Phase {
        if self.reflector.seen.is_none() && self.reflector.replacing.is_none() {
            // Nothing has come yet.
            return phase;
        }
        self.reflector.restored = true;
        self.reflector.seen = Some(ANOTHER_HISTORY);
        if matches!(phase, Phase::Watching(Watch { opened: Some(_), .. })) { self.relist_restored() } else { phase }
    }

    fn begin_replace(&mut self, went_back: bool) {
        self.reflector.replacing = Some(Replacing { went_back });
        self.effects.push(Effect::BeginReplace { went_back });
    }

    fn finish_replace(&mut self, version: ResourceVersion) {
        // Not earlier: until the list is complete the store holds objects of the old history.
        if let Some(Replacing { went_back: true }) = self.reflector.replacing.take() {
            self.reflector.seen = None;
        }
        self.saw(Some(version));
        self.reflector.version = Some(version);
        self.effects.push(Effect::FinishReplace { version });
        if !mem::replace(&mut self.reflector.synced, true) {
            self.effects.push(Effect::Synced);
        }
    }

    fn abandon(&mut self) {
        if self.reflector.replacing.take().is_some() {
            self.effects.push(Effect::AbortReplace);
        }
    }
}
