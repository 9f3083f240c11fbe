//! The states and transitions. What follows from an [answer](answers) and from a [failure](failures) has a file of its own.

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

/// How long to let the server keep a watch open, from … to …: client-go's range, so that reconnects are spread.
pub(super) const WATCH_FOR: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(600));

/// A watch that ends so much sooner than it was asked to has ended in time: servers count in seconds, and from another moment.
const IN_TIME: Duration = Duration::from_secs(2);

/// A watch that ends sooner than this, and without an event, has failed.
const SHORT: Duration = Duration::from_secs(5);

/// A watch that is open for so long without a line is suspect: servers send a bookmark every minute.
const SILENT: Duration = Duration::from_secs(120);

/// How long to wait where the server denies access, from … to …: roles change by hand, and tokens are read anew once a minute.
const DENIED: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(33));

/// How long a kind must be gone before its objects are: longer than API servers of one cluster disagree about a definition.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// One reflector reports at most [`FINDS`] restores in this time to the others. Nobody restores a cluster as often: it is
/// one server of several that answers from an old cache, or one with versions of its own that restarts.
const FINDS_WITHIN: Duration = Duration::from_secs(600);

/// See [`FINDS_WITHIN`].
const FINDS: usize = 3;

/// As the newest version seen: whatever the server says is of another history.
const ANOTHER_HISTORY: ResourceVersion = ResourceVersion(u64::MAX);

/// The longest Retry-After that is honoured: as long as the longest wait of our own.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The state machine of one list and watch; see the [module](super).
#[derive(Debug)]
pub struct Reflector {
    config: Config,
    phase: Phase,
    /// Where a watch goes on: of the last complete list, or newer by what the watch said since.
    version: Option<ResourceVersion>,
    /// The newest version that the server has shown, also by lists that were given up: one that says it is older has gone
    /// back.
    seen: Option<ResourceVersion>,
    /// The server has not refused streaming lists.
    streaming: bool,
    /// The next list goes by pages, though the server has not refused to stream.
    pages_next: bool,
    /// What the last watch was asked to last.
    watch_for: Duration,
    /// Another reflector has found a restore since the last list was begun: this list, and what it leads to, may be of the lost history.
    restored: bool,
    /// When it found the last [`FINDS`] restores by itself.
    finds: VecDeque<Duration>,
    /// `BeginReplace` was said, and neither `FinishReplace` nor `AbortReplace`.
    replacing: Option<Replacing>,
    synced: bool,
    gone: Option<Gone>,
    /// The kind was missing since the last list.
    missed: bool,
    said: Option<State>,
    reconnect: Backoff,
    relists: Backoff,
    absent: Backoff,
    random: Random,
}

/// What the machine has asked for.
#[derive(Debug)]
enum Phase {
    /// Nothing yet.
    Idle,
    Resolving,
    /// One page of a list.
    Paging(Paging),
    /// A watch that begins with what there is. Not all of it has come.
    Streaming {
        opened: bool,
    },
    Watching(Watch),
    /// A list of one object, to see the version, before a watch goes on from where it was.
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

/// How far a list has come.
#[derive(Debug, Default)]
struct Paging {
    /// Of the page that is asked for.
    continue_token: Option<String>,
    /// Of the first page, once it is there.
    version: Option<ResourceVersion>,
    /// All in one page, no older than this: the fall-back of a list whose continue token has expired. With a version the
    /// server may answer from memory, and need not read everything from etcd at once.
    whole: Option<ResourceVersion>,
}

/// The kind is gone, as every answer says since.
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
    /// A line came that fits the version from which it was opened.
    heard: bool,
    /// An object came that is newer than that version.
    eventful: bool,
}

impl Reflector {
    /// One that waits for [`Input::Start`].
    pub fn new(config: Config) -> Self {
        let mut random = Random::new(config.seed);
        Self {
            phase: Phase::Idle,
            version: None,
            streaming: config.streaming,
            pages_next: false,
            watch_for: Duration::ZERO,
            restored: false,
            finds: VecDeque::with_capacity(FINDS),
            seen: config.seen,
            replacing: None,
            synced: false,
            gone: None,
            missed: false,
            said: None,
            reconnect: Backoff::new(RECONNECT, random.draw()),
            relists: Backoff::new(RECONNECT, random.draw()),
            absent: Backoff::new(ABSENT, random.draw()),
            random,
            config,
        }
    }

    /// Takes what happened at `now` and appends what is to be done to `effects`: of requests and waits at most one, the last.
    ///
    /// `now` is since any fixed moment, and never smaller than before.
    pub fn step(&mut self, now: Duration, input: Input<'_>, effects: &mut Vec<Effect>) {
        let mut step = Step { reflector: self, now, effects };
        let phase = mem::replace(&mut step.reflector.phase, Phase::Idle);
        let phase = match (phase, input) {
            (Phase::Idle, Input::Start) => {
                step.say(State::Resolving);
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
            (phase, Input::Restored) => step.told_of_restore(phase),
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
                self.say(State::Listing);
                self.ask_page(paging)
            }
            Next::Probe => {
                self.effects.push(Effect::List { limit: 1, continue_token: None, resource_version: None });
                Phase::Probing
            }
        }
    }

    fn list(&mut self) -> Phase {
        self.say(State::Listing);
        self.reflector.restored = false;
        // Of a list that goes back the first page has to say so.
        let pages = mem::take(&mut self.reflector.pages_next) || self.reflector.seen == Some(ANOTHER_HISTORY);
        if pages || !self.reflector.streaming {
            return self.ask_page(Paging::default());
        }
        // Without a version: as recent as a list would be. From the last version the server would wait until it has come
        // there, which after a restore of etcd is never.
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

    fn say(&mut self, state: State) {
        if self.reflector.said.as_ref() != Some(&state) {
            self.reflector.said = Some(state.clone());
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
        // Only which object it was matters of one that is gone.
        self.effects.extend(object.map(Effect::Remove).or(unreadable));
        version
    }

    /// The object, or as much of it as can be read, and what to say of one that cannot.
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

    /// Whether the server, which says that it is at `version`, was further. Reports that to the other reflectors once. It does not
    /// report what they reported, nor one find after another.
    fn went_back(&mut self, version: ResourceVersion) -> bool {
        let went_back = Some(version) < self.reflector.seen;
        if went_back && self.reflector.seen != Some(ANOTHER_HISTORY) {
            self.reflector.seen = Some(ANOTHER_HISTORY);
            if self.is_believed() {
                self.effects.push(Effect::Restored);
            }
        }
        went_back
    }

    /// Notes a restore that was found. `true` if others should believe it.
    fn is_believed(&mut self) -> bool {
        let (now, finds) = (self.now, &mut self.reflector.finds);
        finds.retain(|at| now.saturating_sub(*at) < FINDS_WITHIN);
        let believed = finds.len() < FINDS;
        if !believed {
            finds.pop_front();
        }
        finds.push_back(now);
        believed
    }

    /// A request that is under way is answered before anything is done about it.
    fn told_of_restore(&mut self, phase: Phase) -> Phase {
        if self.reflector.seen.is_none() && self.reflector.replacing.is_none() {
            // Nothing has come.
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
        // Not earlier: until the list is complete the store holds objects from before.
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
