//! The optional exports of a plugin that the host calls beside `reconcile`.

use std::{fmt, time::Duration};

use crate::wasm::CallError;

/// A function of a plugin that gets batches of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// `mapper.map`.
    Map,
    /// `observer.observe`.
    Observe,
}

impl Hook {
    /// Returns its name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Hook::Map => "map",
            Hook::Observe => "observe",
        }
    }
}

/// One call of a hook, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Called {
    /// The function that was called.
    pub hook: Hook,
    /// `true` if the plugin took the changes.
    pub ok: bool,
    /// Duration of the call, its imports included.
    pub took: Duration,
    /// [`crate::wasm::CallError::kind`], if the call itself failed.
    pub trap: Option<&'static str>,
}

/// Why `map` or `observe` did not take its changes.
pub(super) enum HookError {
    /// The plugin returned this error.
    Refused(String),
    /// The call failed.
    Call(CallError),
}

impl HookError {
    /// Returns [`CallError::kind`], if the call itself failed.
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
