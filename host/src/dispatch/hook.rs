//! What is called of a plugin beside its reconciles, each time for a batch of changes.

use std::{fmt, pin::Pin, time::Duration};

use pilothouse_core::backlog::Batch;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::{pending, record::Record};
use crate::wasm::CallError;

/// What may be called of a plugin beside `reconcile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// `mapper.map`.
    Map,
    /// `observer.observe`.
    Observe,
}

impl Hook {
    /// One word for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Hook::Map => "map",
            Hook::Observe => "observe",
        }
    }
}

/// One call beside reconciles, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Called {
    /// What was called.
    pub hook: Hook,
    /// It did what it was called for.
    pub ok: bool,
    /// The call into the plugin, its imports included.
    pub took: Duration,
    /// If the call came to nothing: [`crate::wasm::CallError::kind`].
    pub trap: Option<&'static str>,
}

/// Why `map` or `observe` did not do what it was called for.
pub(super) enum HookError {
    /// In the plugin's own words.
    Refused(String),
    /// The call came to nothing.
    Call(CallError),
}

impl HookError {
    /// If the call came to nothing: [`CallError::kind`].
    pub(super) fn trap(&self) -> Option<&'static str> {
        match self {
            Self::Refused(_) => None,
            Self::Call(error) => Some(error.kind()),
        }
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(message) => f.write_str(message),
            Self::Call(error) => error.fmt(f),
        }
    }
}

/// Calls the plugin about a batch, and notes how that ended. Gives the answer, and how long it took.
///
/// `call` lies where it was made: as an argument it would lie here a second time, in each task of each idle plugin.
pub(super) async fn call<T>(
    hook: Hook,
    batch: &Batch,
    record: &Record,
    span: Span,
    called: impl FnOnce(&Called),
    call: Pin<&mut impl Future<Output = Result<Result<T, String>, CallError>>>,
) -> Result<(T, Duration), HookError> {
    let started = Instant::now();
    let answer = call.instrument(span.clone()).await;
    let took = started.elapsed();
    let answer = answer.map_err(HookError::Call).and_then(|answer| answer.map_err(HookError::Refused));
    let trap = answer.as_ref().err().and_then(HookError::trap);
    called(&Called { hook, ok: answer.is_ok(), took, trap });
    if let Err(error) = &answer {
        span.in_scope(|| record.hook_failed(hook, &pending::objects(batch), error));
    }
    answer.map(|answer| (answer, took))
}
