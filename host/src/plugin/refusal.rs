//! Why a plugin's files do not serve, and when they are tried again.

use std::time::Duration;

use pilothouse_core::backoff::{Backoff, COSTLY, RECONNECT};

use super::status::Stage;
use crate::{
    causes::with_causes,
    name::PluginName,
    wasm::{CallError, DescribeError, LoadError},
};

/// Why a file or its settings cannot be used.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) stage: Stage,
    /// One word for metrics.
    pub(super) kind: &'static str,
    pub(super) message: String,
    /// The plugin's frames, innermost first. Empty if the plugin was not called.
    pub(super) backtrace: Vec<String>,
    pub(super) retry: Retry,
}

/// Whether the same files may work later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Retry {
    /// They fail every time.
    Never,
    /// They may work, but a try may cost seconds of a core and will probably fail.
    Seldom,
    /// They may work at any moment: the API server is away, or a disk is full.
    Soon,
}

/// The delays between tries, since the files last changed.
pub(super) struct Retries {
    soon: Backoff,
    seldom: Backoff,
}

impl Retries {
    /// Creates the delays of one plugin. Each plugin has its own jitter, so that not all of them retry at once.
    pub(super) fn of(plugin: &PluginName) -> Self {
        // FNV-1a.
        let seed = plugin
            .as_str()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        Self { soon: Backoff::new(RECONNECT, seed), seldom: Backoff::new(COSTLY, seed) }
    }

    /// Returns the time until the next try, or `None` if there is none.
    pub(super) fn next(&mut self, retry: Retry) -> Option<Duration> {
        match retry {
            Retry::Never => None,
            // Zero: nothing was healthy in between.
            Retry::Seldom => Some(self.seldom.next(Duration::ZERO)),
            Retry::Soon => Some(self.soon.next(Duration::ZERO)),
        }
    }
}

impl Refusal {
    pub(super) fn new(stage: Stage, kind: &'static str, message: String) -> Self {
        Self { stage, kind, message, backtrace: Vec::new(), retry: Retry::Never }
    }

    /// Leaves out the plugin's own words, which may quote a Secret of its configuration.
    pub(super) fn withheld(self) -> Self {
        let message = "describe failed; the configuration has values of Secrets, so the plugin's message is not shown";
        Self { message: message.to_owned(), backtrace: Vec::new(), ..self }
    }

    pub(super) fn with_retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// The file cannot be loaded.
    pub(super) fn load(stage: Stage, error: &LoadError) -> Self {
        let retry = match error {
            // The compiler ran for long before it was killed.
            LoadError::Killed => Retry::Seldom,
            _ if error.passes() => Retry::Soon,
            _ => Retry::Never,
        };
        Self::new(stage, error.kind(), with_causes(error)).with_retry(retry)
    }

    /// The plugin's `describe` failed.
    pub(super) fn describe(error: &DescribeError) -> Self {
        let retry = match error {
            // The machine is too busy, or the plugin loops.
            DescribeError::Call(CallError::Deadline { .. }) => Retry::Seldom,
            DescribeError::Call(CallError::Host(_)) => Retry::Soon,
            _ => Retry::Never,
        };
        let backtrace = error.backtrace().to_vec();
        Self { backtrace, retry, ..Self::new(Stage::Describe, error.kind(), with_causes(error)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costly_tries_end_minutes_apart_and_others_within_one() {
        let retries = || Retries::of(&PluginName::new("red").expect("a name"));
        let mut tried = retries();
        let mut last = |retry| (0..20).fold(None, |_, _| tried.next(retry)).unwrap_or_default().as_secs();
        assert_eq!(last(Retry::Never), 0);
        assert!((150..300).contains(&last(Retry::Seldom)));
        assert!((30..60).contains(&last(Retry::Soon)));
        // The one kind of failure has not made the delays of the other longer.
        let mut fresh = retries();
        let first = [Retry::Seldom, Retry::Soon].map(|retry| fresh.next(retry).unwrap_or_default().as_secs());
        assert!(first.iter().all(|delay| *delay < 2), "{first:?}");
    }
}
