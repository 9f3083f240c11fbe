//! The states and transitions.

use std::{mem, time::Duration};

use super::{
    Config, Effect, Failure, Input, RelistReason, State,
    answer::{brief, describe, is_too_large, key_in, refuses_streaming, unreadable, version_of},
};
use crate::{
    backoff::{ABSENT, Backoff, RECONNECT, Random},
    key::Key,
    list::{Status, WatchLine, list_page, watch_line},
    object::{Object, ResourceVersion},
};

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

// Answers.
impl Step<'_> {
    fn resolved(&mut self) -> Phase {
        self.reflector.gone = None;
        let reappeared = mem::take(&mut self.reflector.missed) && self.reflector.version.is_some();
        if !reappeared {
            return self.list();
        }
        match self.relist_after(RelistReason::Reappeared, Duration::ZERO) {
            None => self.list(),
            Some(delay) => self.wait_for(delay, "the kind was not served for a while", Next::List),
        }
    }

    fn page(&mut self, mut paging: Paging, body: &[u8]) -> Phase {
        let (meta, items) = match list_page(body) {
            Ok(page) => page,
            Err(error) => return self.wait(Duration::ZERO, &unreadable("list", &error), Next::Page(paging)),
        };
        let version = match paging.version {
            Some(version) => version,
            None => {
                let version = match version_of(&meta) {
                    Ok(version) => version,
                    Err(text) => return self.wait(Duration::ZERO, &text, Next::Page(paging)),
                };
                let went_back = self.went_back(version);
                self.begin_replace(went_back);
                *paging.version.insert(version)
            }
        };
        for item in items {
            self.upsert(item);
        }
        match meta.continue_token {
            None => {
                self.finish_replace(version);
                self.watch()
            }
            // A list that goes round in circles would be read for ever.
            Some(token) if paging.continue_token.as_ref() == Some(&token) => {
                self.abandon();
                self.wait(Duration::ZERO, "the list's continue token leads to itself", Next::List)
            }
            Some(token) => {
                paging.continue_token = Some(token);
                self.ask_page(paging)
            }
        }
    }

    fn page_failed(&mut self, paging: Paging, failure: Failure) -> Phase {
        match &failure {
            Failure::Status(Status { code: 410, .. }) if paging.continue_token.is_some() => {
                self.abandon();
                self.ask_page(Paging { whole: paging.version, ..Paging::default() })
            }
            Failure::Status(status) if status.code == 410 || is_too_large(status) => {
                self.abandon();
                self.failed(failure, Next::List)
            }
            _ => self.failed(failure, Next::Page(paging)),
        }
    }

    fn begin_stream(&mut self) -> Phase {
        if self.reflector.replacing.is_none() {
            self.begin_replace(false);
        }
        Phase::Streaming { opened: true }
    }

    fn stream_line(&mut self, line: &[u8]) -> Phase {
        match watch_line(line) {
            Ok(WatchLine::Added(object) | WatchLine::Modified(object)) => {
                self.upsert(object);
            }
            Ok(WatchLine::Deleted(object)) => {
                self.remove(object);
            }
            // The first bookmark of a streaming list ends it (KEP-3157). A server that does not know the parameter sends
            // what there is, and goes on without ever saying that this was all.
            Ok(WatchLine::Bookmark { initial_events_end: false, .. }) => return self.stream_refused(),
            Ok(WatchLine::Bookmark { initial_events_end: true, resource_version }) => {
                return self.streamed(&resource_version);
            }
            Ok(WatchLine::Error(status)) => return self.stream_failed(true, Failure::Status(status)),
            Err(error) => return self.stream_failed(true, Failure::Transport(unreadable("watch line", &error))),
        }
        Phase::Streaming { opened: true }
    }

    /// All that there is has come.
    fn streamed(&mut self, version: &str) -> Phase {
        let Some(version) = ResourceVersion::parse(version) else {
            let text = format!("the streaming list's resourceVersion is no number: {version:?}");
            return self.stream_failed(true, Failure::Transport(text));
        };
        if self.went_back(version) {
            // Only now is it known that older versions have to be accepted. By pages it is known at the first.
            return self.relist_went_back();
        }
        self.finish_replace(version);
        self.watch_opened(Watch { heard: true, ..Watch::default() })
    }

    fn stream_failed(&mut self, opened: bool, failure: Failure) -> Phase {
        self.abandon();
        if let Failure::Status(status) = &failure {
            if refuses_streaming(status) {
                return self.stream_refused();
            }
            // 401, 403 and 404 are not about streaming, and these are what a server says that is busy or not ready.
            self.reflector.pages_next =
                !matches!(status.code, 401 | 403 | 404 | 410 | 429 | 503) && !is_too_large(status);
        }
        // What began and did not come to its end may never come to it through this proxy; pages may.
        self.reflector.pages_next |= opened;
        self.failed(failure, Next::List)
    }

    fn stream_refused(&mut self) -> Phase {
        self.abandon();
        self.reflector.streaming = false;
        self.list()
    }

    fn watch_opened(&mut self, watch: Watch) -> Phase {
        if self.reflector.restored {
            return self.relist_restored();
        }
        let Reflector { reconnect, relists, absent, .. } = &mut *self.reflector;
        for backoff in [reconnect, relists, absent] {
            backoff.healthy(self.now);
        }
        self.say(State::Watching);
        Phase::Watching(Watch { opened: Some(self.now), ..watch })
    }

    fn watch_line(&mut self, mut watch: Watch, line: &[u8]) -> Phase {
        let (version, event) = match watch_line(line) {
            Ok(WatchLine::Added(object) | WatchLine::Modified(object)) => (self.upsert(object), true),
            Ok(WatchLine::Deleted(object)) => (self.remove(object), true),
            Ok(WatchLine::Bookmark { resource_version, .. }) => (ResourceVersion::parse(&resource_version), false),
            Ok(WatchLine::Error(status)) => return self.watch_failed(Failure::Status(status)),
            Err(error) => return self.wait(Duration::ZERO, &unreadable("watch line", &error), Next::Probe),
        };
        if version >= self.reflector.version {
            if let (Some(version), false) = (version, event) {
                self.effects.push(Effect::Covered(version));
            }
            watch.heard = true;
            watch.eventful |= event && version > self.reflector.version;
            self.reflector.version = version;
            self.saw(version);
        }
        Phase::Watching(watch)
    }

    fn watch_ended(&mut self, watch: &Watch) -> Phase {
        if watch.was_silent(self.now) {
            return self.go(Next::Probe);
        }
        if watch.lasted(self.now) < SHORT && !watch.eventful {
            return self.wait(Duration::ZERO, "the watch ended as soon as it began", Next::Probe);
        }
        if watch.lasted(self.now) + IN_TIME < self.reflector.watch_for {
            // Whoever ended it early may be about to be another, with other data.
            return self.go(Next::Probe);
        }
        self.watch()
    }

    /// The watch, or the look at the version before it. Whoever answers after the wait may be another server than before, or have
    /// other data: so it is asked for its version before the watch goes on from ours.
    fn watch_failed(&mut self, failure: Failure) -> Phase {
        let Failure::Status(status) = &failure else { return self.failed(failure, Next::Probe) };
        let reason = match status.code {
            410 => RelistReason::Expired,
            _ if is_too_large(status) => RelistReason::TooLarge,
            401 | 403 | 404 | 429 | 500.. => return self.failed(failure, Next::Probe),
            // It would be refused again and again from the same version. Where a kind cannot be watched at all, this lists
            // it from time to time.
            _ => RelistReason::Refused,
        };
        self.relist(reason, status.retry_after.unwrap_or_default(), &describe(status))
    }

    fn probed(&mut self, body: &[u8]) -> Phase {
        let meta = match list_page(body) {
            Ok((meta, _)) => meta,
            Err(error) => return self.wait(Duration::ZERO, &unreadable("list", &error), Next::Probe),
        };
        match version_of(&meta) {
            Err(text) => self.wait(Duration::ZERO, &text, Next::Probe),
            Ok(version) if self.went_back(version) => self.relist_went_back(),
            Ok(_) => self.watch(),
        }
    }
}

// What came, for the store.
impl Step<'_> {
    fn upsert(&mut self, json: &[u8]) -> Option<ResourceVersion> {
        let object = self.read(json)?;
        let version = Some(object.resource_version());
        self.saw(version);
        self.effects.push(Effect::Upsert(object));
        version
    }

    fn remove(&mut self, json: &[u8]) -> Option<ResourceVersion> {
        let object = self.read(json)?;
        let version = Some(object.resource_version());
        self.saw(version);
        self.effects.push(Effect::Remove(object));
        version
    }

    fn read(&mut self, json: &[u8]) -> Option<Object> {
        let Config { of, keep, .. } = &self.reflector.config;
        match Object::parse_kept(json, of, keep) {
            Ok(object) => Some(object),
            Err(error) => {
                let key = key_in(json);
                let name = key.as_ref().map_or_else(|| "without a name".to_owned(), Key::to_string);
                let why = brief(&format!("cannot read {of} {name}: {error}"));
                self.effects.push(Effect::Skipped { key, why });
                None
            }
        }
    }

    fn saw(&mut self, version: Option<ResourceVersion>) {
        self.reflector.seen = self.reflector.seen.max(version);
    }

    /// Whether the server, which says that it is at `version`, was further. Others are told once, and not of what they have told.
    fn went_back(&mut self, version: ResourceVersion) -> bool {
        let went_back = Some(version) < self.reflector.seen;
        if went_back && self.reflector.seen != Some(ANOTHER_HISTORY) {
            self.reflector.seen = Some(ANOTHER_HISTORY);
            self.effects.push(Effect::Restored);
        }
        went_back
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

// Failures.
impl Step<'_> {
    fn failed(&mut self, failure: Failure, next: Next) -> Phase {
        let gone = self.reflector.gone.take();
        match failure {
            Failure::Missing(what) => self.missing(&what),
            Failure::Gone(what) => {
                self.gone(gone);
                self.missing(&what)
            }
            Failure::Transport(what) => self.wait(Duration::ZERO, &what, next),
            Failure::Status(status) => match status.code {
                404 => self.missing(&describe(&status)),
                code @ (401 | 403) => {
                    let delay = self.reflector.random.between(DENIED.0, DENIED.1);
                    let denied = if code == 401 { State::Unauthenticated } else { State::Denied };
                    self.say(denied(brief(&describe(&status))));
                    self.rest(delay, next)
                }
                _ => self.wait(status.retry_after.unwrap_or_default(), &describe(&status), next),
            },
        }
    }

    /// Discovery says again, or for the first time, that the kind is gone.
    fn gone(&mut self, before: Option<Gone>) {
        let mut gone = before.unwrap_or(Gone { since: self.now, swept: false });
        let lasts = self.now.saturating_sub(gone.since) >= GONE_AFTER;
        if let Some(version) = self.reflector.version.filter(|_| lasts && !gone.swept) {
            self.abandon();
            // As a whole: nothing that was written to it meanwhile is left either.
            self.effects.push(Effect::BeginReplace { went_back: true });
            self.effects.push(Effect::FinishReplace { version });
            gone.swept = true;
        }
        self.reflector.gone = Some(gone);
    }

    /// The kind is not there. When it comes back, another server may serve it.
    fn missing(&mut self, what: &str) -> Phase {
        self.abandon();
        self.reflector.missed = true;
        self.reflector.streaming = self.reflector.config.streaming;
        self.reflector.pages_next = false;
        self.say(State::Missing(brief(what)));
        let delay = self.reflector.absent.next(self.now);
        self.rest(delay, Next::Resolve)
    }

    /// Lists anew what was listed before. The endpoint is looked up first: what made the version worthless may have made another kind
    /// under the same path, of another scope, or none.
    fn relist(&mut self, reason: RelistReason, retry_after: Duration, text: &str) -> Phase {
        match self.relist_after(reason, retry_after) {
            None => {
                self.say(State::Resolving);
                self.go(Next::Resolve)
            }
            Some(delay) => self.wait_for(delay, text, Next::Resolve),
        }
    }

    /// How long to wait before it; none: it is the first in a while.
    fn relist_after(&mut self, reason: RelistReason, retry_after: Duration) -> Option<Duration> {
        self.abandon();
        self.effects.push(Effect::Relist(reason));
        let delay = self.reflector.relists.next(self.now);
        let is_first = self.reflector.relists.failures() == 1 && retry_after.is_zero();
        (!is_first).then(|| delay.max(retry_after.min(RETRY_AFTER_MAX)))
    }

    fn relist_restored(&mut self) -> Phase {
        self.reflector.seen = Some(ANOTHER_HISTORY);
        self.relist_went_back()
    }

    fn relist_went_back(&mut self) -> Phase {
        self.relist(RelistReason::WentBack, Duration::ZERO, "the server's versions went back")
    }

    fn wait(&mut self, retry_after: Duration, text: &str, next: Next) -> Phase {
        let delay = self.reflector.reconnect.next(self.now).max(retry_after.min(RETRY_AFTER_MAX));
        self.wait_for(delay, text, next)
    }

    fn wait_for(&mut self, delay: Duration, text: &str, next: Next) -> Phase {
        self.say(State::Waiting { delay, reason: brief(text) });
        self.rest(delay, next)
    }

    fn rest(&mut self, delay: Duration, next: Next) -> Phase {
        self.effects.push(Effect::Wait(delay));
        Phase::Waiting(next)
    }
}
