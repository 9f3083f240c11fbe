//! Failures, and the waits after them.

use std::time::Duration;

use super::{ANOTHER_HISTORY, DENIED, GONE_AFTER, Gone, ListBy, Next, Phase, RETRY_AFTER_MAX, Step};
use crate::reflector::{
    Effect, Failure, RelistReason, State,
    answer::{brief, describe},
};

impl Step<'_> {
    pub(super) fn failed(&mut self, failure: Failure, next: Next) -> Phase {
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
                    self.report(denied(brief(&describe(&status))));
                    self.rest(delay, next)
                }
                _ => self.wait(status.retry_after.unwrap_or_default(), &describe(&status), next),
            },
        }
    }

    /// Handles a report by discovery that the kind is gone.
    pub(super) fn gone(&mut self, before: Option<Gone>) {
        let mut gone = before.unwrap_or(Gone { since: self.now, swept: false });
        let lasts = self.now.saturating_sub(gone.since) >= GONE_AFTER;
        if let Some(version) = self.reflector.version.filter(|_| lasts && !gone.swept) {
            self.abandon();
            // Own writes to it are gone too.
            self.effects.push(Effect::BeginReplace { went_back: true });
            self.effects.push(Effect::FinishReplace { version });
            gone.swept = true;
        }
        self.reflector.gone = Some(gone);
    }

    /// Waits for a kind that is not served. When it comes back, another server may serve it.
    pub(super) fn missing(&mut self, what: &str) -> Phase {
        self.abandon();
        self.reflector.missed = true;
        self.reflector.list_by = if self.reflector.config.streaming { ListBy::Stream } else { ListBy::Pages };
        self.report(State::Missing(brief(what)));
        let delay = self.reflector.absent.next(self.now);
        self.rest(delay, Next::Resolve)
    }

    /// Repeats a complete list. The endpoint is looked up first: the cause may also have put another kind under the
    /// same path, or changed its scope.
    pub(super) fn relist(&mut self, reason: RelistReason, retry_after: Duration, text: &str) -> Phase {
        match self.relist_after(reason, retry_after) {
            None => {
                self.report(State::Resolving);
                self.go(Next::Resolve)
            }
            Some(delay) => self.wait_for(delay, text, Next::Resolve),
        }
    }

    /// Returns the wait before the list; `None` if it is the first in a while.
    pub(super) fn relist_after(&mut self, reason: RelistReason, retry_after: Duration) -> Option<Duration> {
        self.abandon();
        self.effects.push(Effect::Relist(reason));
        let delay = self.reflector.relists.next(self.now);
        let is_first = self.reflector.relists.failures() == 1 && retry_after.is_zero();
        (!is_first).then(|| delay.max(retry_after.min(RETRY_AFTER_MAX)))
    }

    /// Lists anew after another reflector found a restore. Each report causes one list, at once: the watch stays open
    /// until then. Delays apply only to the reflector that finds restores.
    pub(super) fn relist_restored(&mut self) -> Phase {
        self.reflector.seen = Some(ANOTHER_HISTORY);
        self.abandon();
        self.effects.push(Effect::Relist(RelistReason::WentBack));
        self.report(State::Resolving);
        self.go(Next::Resolve)
    }

    pub(super) fn relist_went_back(&mut self) -> Phase {
        self.relist(RelistReason::WentBack, Duration::ZERO, "the server's versions went back")
    }

    pub(super) fn wait(&mut self, retry_after: Duration, text: &str, next: Next) -> Phase {
        let delay = self.reflector.reconnect.next(self.now).max(retry_after.min(RETRY_AFTER_MAX));
        self.wait_for(delay, text, next)
    }

    pub(super) fn wait_for(&mut self, delay: Duration, text: &str, next: Next) -> Phase {
        self.report(State::Waiting { delay, reason: brief(text) });
        self.rest(delay, next)
    }

    pub(super) fn rest(&mut self, delay: Duration, next: Next) -> Phase {
        self.effects.push(Effect::Wait(delay));
        Phase::Waiting(next)
    }
}
