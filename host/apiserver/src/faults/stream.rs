//! Applies faults to an open watch: to its events, its bookmarks and its end.
//!
//! A watch asks before everything that it sends. It counts its own events, so that their faults do not depend on other
//! watches.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::MutexGuard;
use serde_json::Value;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep_until},
};

use super::{
    Draw, Plan, RuleId, State,
    answer::half,
    connection::Line,
    rule::{Bookmark, By, Cut, Fault, Mangle, Truncate},
    subject::Subject,
};
use crate::{object::to_json, server::Server};

/// How a watch ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Like at its timeout.
    Over,
    /// With an ERROR event of this code.
    Error(u16),
    /// With its connection.
    Connection(By),
}

/// How events are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    /// `true` if bookmarks and the end are held back too.
    pub(crate) silent: bool,
    /// When the next of the rules that hold events back ends. `None` if only its removal ends it.
    pub(crate) until: Option<Instant>,
}

/// The faults of one open watch.
#[derive(Debug)]
pub(crate) struct WatchFaults {
    server: Arc<Server>,
    line: Arc<Line>,
    subject: Subject,
    id: u64,
    /// The number of this watch among those of its resource.
    number: u64,
    /// Number of events so far.
    sent: u64,
    cut: Option<Cut>,
    cut_at: Option<Instant>,
    truncate: Option<Truncate>,
    /// The last line, if a rule may repeat it.
    last: Option<Bytes>,
    told: oneshot::Receiver<End>,
    rules: watch::Receiver<()>,
    /// Rules that hold this watch back and have counted it.
    met: BTreeSet<RuleId>,
    end: Option<End>,
}

/// The faults of one event.
#[derive(Debug, Default)]
struct Fate {
    duplicate: bool,
    repeat: bool,
    /// `true` if the event may be repeated.
    keep: bool,
    mangle: Option<Mangle>,
}

impl WatchFaults {
    pub(crate) fn open(server: &Arc<Server>, line: &Arc<Line>, subject: Subject, plan: &Plan) -> Self {
        let faults = &server.faults;
        let (tell, told) = oneshot::channel();
        let mut state = faults.state.lock();
        state.last_watch += 1;
        let id = state.last_watch;
        state.open.insert(id, (subject.clone(), tell));
        let number = state.watched.entry((subject.group.clone(), subject.plural.clone())).or_default();
        *number += 1;
        let number = *number;
        drop(state);
        let mut stream = WatchFaults {
            server: Arc::clone(server),
            line: Arc::clone(line),
            subject,
            id,
            number,
            sent: 0,
            cut: plan.cut.clone(),
            cut_at: None,
            truncate: plan.truncate.clone(),
            last: None,
            told,
            rules: faults.changed.subscribe(),
            met: BTreeSet::new(),
            end: None,
        };
        if let Some(cut) = &stream.cut {
            stream.cut_at = cut.after_milliseconds.map(|time| Instant::now() + Duration::from_millis(time.into()));
            let at_once = cut.after_events.map_or(cut.after_milliseconds.is_none(), |events| events == 0);
            stream.end = at_once.then(|| ending(cut));
        }
        stream
    }

    /// Returns how the watch must end now, if it must.
    pub(crate) fn end(&mut self) -> Option<End> {
        if self.end.is_none() {
            self.end = self.told.try_recv().ok();
        }
        if self.end.is_none() && self.cut_at.is_some_and(|time| time <= Instant::now()) {
            self.end = self.cut.as_ref().map(ending);
        }
        self.end
    }

    /// Ends the watch's connection.
    pub(crate) async fn end_connection<T>(&self, by: By) -> T {
        self.line.end(by).await
    }

    /// Waits for a cut, for a change of the rules, or until a time.
    pub(crate) async fn stirred(&mut self, until: Option<Instant>) {
        let next = [self.cut_at, until].into_iter().flatten().min();
        let time = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            told = &mut self.told, if self.end.is_none() => self.end = told.ok(),
            // The sender is never dropped, because the server outlives its watches.
            _ = self.rules.changed() => {}
            () = time => {}
        }
    }

    /// Returns how events are held back now, if they are.
    pub(crate) fn held(&mut self) -> Option<Held> {
        if !self.server.faults.are_any() {
            return None;
        }
        let mut held: Option<Held> = None;
        let mut met = BTreeSet::new();
        let now = Instant::now();
        for entry in &mut self.server.faults.state.lock().entries {
            let silent = match entry.rule.fault {
                Fault::Hold => false,
                Fault::Silence => true,
                _ => continue,
            };
            if entry.concerns(&self.subject, now) {
                met.insert(entry.id);
                entry.hits += u64::from(!self.met.contains(&entry.id));
                let held = held.get_or_insert_default();
                held.silent |= silent;
                held.until = [held.until, entry.ends].into_iter().flatten().min();
            }
        }
        self.met = met;
        held
    }

    /// Waits for the delay of the next events.
    pub(crate) async fn lag(&mut self) {
        let mut lag = Duration::ZERO;
        if self.server.faults.are_any() {
            let now = Instant::now();
            for entry in &mut self.server.faults.state.lock().entries {
                if let Fault::Lag(late) = &entry.rule.fault {
                    let late = Duration::from_millis(late.milliseconds.into());
                    if entry.concerns(&self.subject, now) {
                        entry.hits += 1;
                        lag = lag.saturating_add(late);
                    }
                }
            }
        }
        let until = Instant::now() + lag;
        while self.end().is_none() && Instant::now() < until {
            self.stirred(Some(until)).await;
        }
    }

    /// `true` if a bookmark is withheld.
    pub(crate) fn withholds(&self, bookmark: Bookmark) -> bool {
        if !self.server.faults.are_any() {
            return false;
        }
        let now = Instant::now();
        let mut state = self.server.faults.state.lock();
        let struck = state.entries.iter_mut().any(|entry| {
            entry.rule.fault == Fault::Withhold(bookmark)
                && entry.concerns(&self.subject, now)
                && entry.strikes_request().is_some()
        });
        self.settle(&state);
        struck
    }

    /// Writes an event after applying its faults.
    pub(crate) fn put(&mut self, lines: &mut BytesMut, kind: &str, json: &[u8]) {
        if self.end.is_some() {
            return;
        }
        if let Some(Truncate { by, after_events }) = &self.truncate
            && self.sent >= u64::from(*after_events)
        {
            self.end = Some(End::Connection(*by));
            let mut whole = BytesMut::new();
            put(&mut whole, kind, json);
            lines.put_slice(half(&whole));
            return;
        }
        self.sent += 1;
        if self.server.faults.are_any() {
            self.put_spoilt(lines, kind, json);
        } else {
            put(lines, kind, json);
        }
        if let Some(cut) = &self.cut
            && cut.after_events.is_some_and(|events| self.sent >= u64::from(events))
        {
            self.end = Some(ending(cut));
        }
    }

    fn put_spoilt(&mut self, lines: &mut BytesMut, kind: &str, json: &[u8]) {
        let fate = self.fate();
        let mut whole = BytesMut::new();
        put(&mut whole, kind, json);
        let whole = whole.freeze();
        match fate.mangle {
            None => lines.put_slice(&whole),
            Some(Mangle::Json) => put(lines, kind, half(json)),
            Some(Mangle::Metadata) => put(lines, kind, &without_metadata(json)),
        }
        if fate.duplicate {
            lines.put_slice(&whole);
        }
        if fate.repeat {
            lines.put_slice(self.last.as_deref().unwrap_or_default());
        }
        self.last = fate.keep.then_some(whole);
    }

    fn fate(&self) -> Fate {
        let mut fate = Fate::default();
        let now = Instant::now();
        let mut state = self.server.faults.state.lock();
        for entry in &mut state.entries {
            let may = match entry.rule.fault {
                Fault::Duplicate => !fate.duplicate,
                Fault::RepeatOlder => true,
                Fault::Mangle(_) => fate.mangle.is_none(),
                _ => false,
            };
            if !may || !entry.concerns(&self.subject, now) {
                continue;
            }
            fate.keep |= entry.rule.fault == Fault::RepeatOlder;
            if entry.rule.fault == Fault::RepeatOlder && (self.last.is_none() || fate.repeat) {
                continue;
            }
            let struck: Option<Draw> = entry.strikes(self.sent, [self.number, self.sent]);
            match (struck, &entry.rule.fault) {
                (Some(_), Fault::Duplicate) => fate.duplicate = true,
                (Some(_), Fault::RepeatOlder) => fate.repeat = true,
                (Some(_), Fault::Mangle(mangle)) => fate.mangle = Some(*mangle),
                _ => {}
            }
        }
        self.settle(&state);
        fate
    }

    fn settle(&self, state: &MutexGuard<'_, State>) {
        self.server.faults.settle_quietly(state);
    }
}

impl Drop for WatchFaults {
    fn drop(&mut self) {
        self.server.faults.state.lock().open.remove(&self.id);
    }
}

fn ending(cut: &Cut) -> End {
    cut.error.map_or(End::Over, End::Error)
}

/// Writes one line.
pub(crate) fn put(lines: &mut BytesMut, kind: &str, json: &[u8]) {
    lines.put_slice(b"{\"type\":\"");
    lines.put_slice(kind.as_bytes());
    lines.put_slice(b"\",\"object\":");
    lines.put_slice(json);
    lines.put_slice(b"}\n");
}

fn without_metadata(json: &[u8]) -> Bytes {
    let mut object: Value = serde_json::from_slice(json).unwrap_or_default();
    if let Some(members) = object.as_object_mut() {
        members.remove("metadata");
    }
    to_json(&object)
}
