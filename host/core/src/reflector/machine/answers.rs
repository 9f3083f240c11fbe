//! Answers of the server, and the next request: endpoints, pages, streaming lists, watches and probes.

use std::{mem, time::Duration};

use super::{IN_TIME, ListBy, Next, Paging, Phase, Reflector, SHORT, Step, Watch};
use crate::{
    list::{Status, WatchLine, list_page, watch_line},
    object::ResourceVersion,
    reflector::{
        Effect, Failure, RelistReason, State,
        answer::{describe, is_too_large, refuses_streaming, unreadable, version_of},
    },
};

impl Step<'_> {
    pub(super) fn resolved(&mut self) -> Phase {
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

    pub(super) fn page(&mut self, mut paging: Paging, body: &[u8]) -> Phase {
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
            // Otherwise the list would never end.
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

    pub(super) fn page_failed(&mut self, paging: Paging, failure: Failure) -> Phase {
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

    pub(super) fn begin_stream(&mut self) -> Phase {
        if self.reflector.replacing.is_none() {
            self.begin_replace(false);
        }
        Phase::Streaming { opened: true }
    }

    pub(super) fn stream_line(&mut self, line: &[u8]) -> Phase {
        match watch_line(line) {
            Ok(WatchLine::Added(object) | WatchLine::Modified(object)) => {
                self.upsert(object);
            }
            Ok(WatchLine::Deleted(object)) => {
                self.remove(object);
            }
            // The first bookmark of a streaming list ends it (KEP-3157). A server that does not know the parameter
            // sends all objects, and never marks the end.
            Ok(WatchLine::Bookmark { initial_events_end: false, .. }) => return self.stream_refused(),
            Ok(WatchLine::Bookmark { initial_events_end: true, resource_version }) => {
                return self.streamed(&resource_version);
            }
            Ok(WatchLine::Error(status)) => return self.stream_failed(true, Failure::Status(status)),
            Err(error) => return self.stream_failed(true, Failure::Transport(unreadable("watch line", &error))),
        }
        Phase::Streaming { opened: true }
    }

    /// Ends a streaming list, which is complete.
    pub(super) fn streamed(&mut self, version: &str) -> Phase {
        let Some(version) = ResourceVersion::parse(version) else {
            let text = format!("the streaming list's resourceVersion is not a number: {version:?}");
            return self.stream_failed(true, Failure::Transport(text));
        };
        if self.went_back(version) {
            // Older versions must be accepted, and part of the list was not. A list by pages knows that from its first
            // page.
            return if self.reflector.restored { self.relist_restored() } else { self.relist_went_back() };
        }
        self.finish_replace(version);
        self.watch_opened(Watch { heard: true, ..Watch::default() })
    }

    pub(super) fn stream_failed(&mut self, opened: bool, failure: Failure) -> Phase {
        self.abandon();
        let mut pages = opened;
        if let Failure::Status(status) = &failure {
            if refuses_streaming(status) {
                return self.stream_refused();
            }
            // 401, 403 and 404 do not depend on streaming; the others come from a server that is busy or not ready.
            pages |= !matches!(status.code, 401 | 403 | 404 | 410 | 429 | 503) && !is_too_large(status);
        }
        // A list that broke off may never complete through this proxy; pages may.
        if pages {
            self.reflector.list_by = ListBy::PagesOnce;
        }
        self.failed(failure, Next::List)
    }

    pub(super) fn stream_refused(&mut self) -> Phase {
        self.abandon();
        self.reflector.list_by = ListBy::Pages;
        self.list()
    }

    pub(super) fn watch_opened(&mut self, watch: Watch) -> Phase {
        if self.reflector.restored {
            return self.relist_restored();
        }
        let Reflector { reconnect, relists, absent, .. } = &mut *self.reflector;
        for backoff in [reconnect, relists, absent] {
            backoff.healthy(self.now);
        }
        self.report(State::Watching);
        Phase::Watching(Watch { opened: Some(self.now), ..watch })
    }

    pub(super) fn watch_line(&mut self, mut watch: Watch, line: &[u8]) -> Phase {
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

    pub(super) fn watch_ended(&mut self, watch: &Watch) -> Phase {
        if watch.was_silent(self.now) {
            return self.go(Next::Probe);
        }
        if watch.lasted(self.now) < SHORT && !watch.eventful {
            return self.wait(Duration::ZERO, "the watch ended as soon as it began", Next::Probe);
        }
        if watch.lasted(self.now) + IN_TIME < self.reflector.watch_for {
            // The server that ended it early may be about to be replaced by one with other data.
            return self.go(Next::Probe);
        }
        self.watch()
    }

    /// Handles a failed watch or probe. After the wait another server may answer, or other data. So a probe comes
    /// before the watch continues.
    pub(super) fn watch_failed(&mut self, failure: Failure) -> Phase {
        let Failure::Status(status) = &failure else { return self.failed(failure, Next::Probe) };
        let reason = match status.code {
            410 => RelistReason::Expired,
            _ if is_too_large(status) => RelistReason::TooLarge,
            401 | 403 | 404 | 429 | 500.. => return self.failed(failure, Next::Probe),
            // The same version would be refused again. If a kind cannot be watched at all, this lists it from time to
            // time.
            _ => RelistReason::Refused,
        };
        self.relist(reason, status.retry_after.unwrap_or_default(), &describe(status))
    }

    pub(super) fn probed(&mut self, body: &[u8]) -> Phase {
        let meta = match list_page(body) {
            Ok((meta, _)) => meta,
            Err(error) => return self.wait(Duration::ZERO, &unreadable("list", &error), Next::Probe),
        };
        match version_of(&meta) {
            Err(text) => self.wait(Duration::ZERO, &text, Next::Probe),
            Ok(version) if self.went_back(version) && !self.reflector.restored => self.relist_went_back(),
            Ok(_) => self.watch(),
        }
    }
}
