//! What became of a reconcile's writes.

use std::time::Duration;

use super::error::Error;

/// Problems of one reconcile that are shown. The rest are counted.
pub(super) const SHOWN: usize = 5;

/// Characters of each problem that are shown. Names in it come from the guest, and messages from the server.
pub(super) const SHOWN_CHARS: usize = 800;

/// What became of a reconcile's writes.
#[derive(Debug, Default)]
pub struct Report {
    /// Requests that succeeded.
    pub written: usize,
    /// Writes that were skipped, as the cache showed that they would change nothing.
    pub skipped: usize,
    /// The first problems. Everything else was carried out all the same.
    pub problems: Vec<Error>,
    /// The number of further problems.
    pub more_problems: usize,
    /// `true` if something waits for a watch that is down.
    pub awaits_watch: bool,
    /// The longest time for which the server asked to be left alone.
    pub retry_after: Option<Duration>,
    /// `true` if the fence closed before everything was written.
    is_closed: bool,
}

/// What became of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Done,
    Skipped,
}

impl Report {
    /// Returns the problems in one line of bounded length, or `None` if there are none.
    pub fn problem(&self) -> Option<String> {
        if self.problems.is_empty() {
            return None;
        }
        let mut shown: Vec<String> = self.problems.iter().map(shorten).collect();
        if self.more_problems > 0 {
            shown.push(format!("and {} more", self.more_problems));
        }
        Some(shown.join("; "))
    }

    /// Adds a problem. Ten thousand children may fail at once, so those that are not shown are only counted.
    pub fn failed(&mut self, error: Error) {
        self.awaits_watch |= matches!(error, Error::Unknown { .. } | Error::OldOwner { .. });
        if let Error::Request { source, .. } = &error {
            self.retry_after = self.retry_after.max(source.retry_after());
        }
        // Every child that is left fails in the same way.
        if matches!(error, Error::Closed(_)) && std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        if self.problems.len() < SHOWN {
            self.problems.push(error);
        } else {
            self.more_problems += 1;
        }
    }

    pub(super) fn add(&mut self, result: Result<Write, Error>) {
        match result {
            Ok(Write::Done) => self.written += 1,
            Ok(Write::Skipped) => self.skipped += 1,
            Err(error) => self.failed(error),
        }
    }
}

fn shorten(error: &Error) -> String {
    let mut text = error.to_string();
    if let Some((end, _)) = text.char_indices().nth(SHOWN_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}
