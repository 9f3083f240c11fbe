//! The fake server, which fails in every way it knows of, and what a driver hears of it.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::MINUTE;
use crate::{
    backoff::Random,
    list::Status,
    reflector::{Failure, Input},
};

/// How the server behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mood {
    /// As it should, and nothing changes.
    Calm,
    /// One answer of so many is a fault, and objects change.
    Faulty(u64),
    /// Always the same fault.
    Stubborn(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
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
pub(super) struct Event {
    pub(super) verb: &'static str,
    pub(super) version: u64,
    pub(super) name: String,
    /// In which version it was created.
    pub(super) born: u64,
}

impl Event {
    pub(super) fn object(&self) -> String {
        let Self { name, born, version, .. } = self;
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"{name}{born}","resourceVersion":"{version}"}}}}"#
        )
    }

    pub(super) fn line(&self) -> Vec<u8> {
        format!(r#"{{"type":"{}","object":{}}}"#, self.verb, self.object()).into()
    }
}

pub(super) struct Server {
    pub(super) mood: Mood,
    pub(super) random: Random,
    /// Event number n made version n + 1.
    pub(super) history: Vec<Event>,
    /// What the whole history comes to.
    pub(super) objects: BTreeMap<String, Event>,
    /// Below this version watches and continue tokens are too old.
    pub(super) floor: u64,
    pub(super) streams: bool,
}

impl Server {
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.random.draw().is_multiple_of(n)
    }

    pub(super) fn fault(&mut self) -> bool {
        let Mood::Faulty(n) = self.mood else { return false };
        self.one_in(n)
    }

    pub(super) fn is(&self, faults: &[Fault]) -> bool {
        matches!(self.mood, Mood::Stubborn(fault) if faults.contains(&fault))
    }

    pub(super) fn version(&self) -> u64 {
        self.history.len() as u64
    }

    pub(super) fn objects_at(&self, version: u64) -> BTreeMap<String, Event> {
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
    pub(super) fn truth(&self) -> Vec<(String, u64)> {
        self.objects.values().map(|event| (event.name.clone(), event.version)).collect()
    }

    pub(super) fn write(&mut self) {
        let name = format!("o{}", self.random.draw() % 9);
        let version = self.version() + 1;
        let (verb, born) = match self.objects.get(&name).map(|before| before.born) {
            None => ("ADDED", version),
            Some(born) if self.one_in(3) => ("DELETED", born),
            Some(born) => ("MODIFIED", born),
        };
        self.happen(Event { verb, version, name, born });
    }

    pub(super) fn happen(&mut self, event: Event) {
        apply(&event, &mut self.objects);
        self.history.push(event);
    }

    pub(super) fn churn(&mut self) {
        while self.one_in(2) {
            self.write();
        }
        if self.one_in(8) {
            self.floor = self.version() - self.random.draw() % (self.version() - self.floor + 1);
        }
    }

    /// etcd comes back from an older copy.
    pub(super) fn restore(&mut self, version: u64) {
        self.objects = self.objects_at(version);
        self.history.truncate(version as usize);
        self.floor = version;
    }

    pub(super) fn some_failure(&mut self) -> Failure {
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

    pub(super) fn list(&mut self, limit: u32, token: Option<&str>) -> Happened {
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
    pub(super) fn watch(&mut self, from: &str, initial: bool, until: Duration) -> Result<Stream, Happened> {
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
    pub(super) fn next_of(&mut self, stream: &mut Stream, now: &mut Duration) -> Happened {
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

pub(super) fn apply(event: &Event, objects: &mut BTreeMap<String, Event>) {
    match event.verb {
        "DELETED" => objects.remove(&event.name),
        _ => objects.insert(event.name.clone(), event.clone()),
    };
}

pub(super) fn bookmark(version: u64, end: bool) -> Vec<u8> {
    let end = if end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    format!(r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}"{end}}}}}}}"#).into()
}

pub(super) fn error(code: u16) -> Vec<u8> {
    format!(r#"{{"type":"ERROR","object":{{"kind":"Status","code":{code}}}}}"#).into()
}

pub(super) struct Stream {
    /// The version that the client has come to.
    pub(super) position: u64,
    /// To be sent before what is in the history.
    pub(super) lines: VecDeque<Vec<u8>>,
    pub(super) until: Duration,
    pub(super) opened: bool,
}

/// An [`Input`] that owns its bytes.
#[derive(Clone, Debug)]
pub(super) enum Happened {
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
    pub(super) fn status(code: u16, retry_after: Option<Duration>) -> Self {
        Self::Failed(Failure::Status(Status { code, retry_after, ..Status::default() }))
    }

    pub(super) fn input(&self) -> Input<'_> {
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
