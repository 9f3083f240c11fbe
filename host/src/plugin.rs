//! Turns the files of a directory into revisions that serve.
//!
//! Owns the directory and the state of each plugin. The sandbox is [`crate::wasm`]'s. Calls, queues and informers
//! belong to the implementation of [`Activate`].
//!
//! ```text
//! directory ─ Source ─► Change ─ Lifecycle ─► one task a plugin:
//!
//!   found ─► compiling ─► compiled ─► linked ─► described ─► verified ─► active ─► draining ─► gone
//!                  │           │          │           │            │
//!                  └───────────┴──────────┴───────────┴────────────┴─► failed, unless an older revision serves on
//! ```
//!
//! # Guarantees
//! - A file that fails never replaces a revision that works (invariant 9). The plugin's [`Status`] has the reason until
//!   a file works.
//! - The administrator's file takes effect as soon as it can be read: for the new revision if that works, else for the
//!   one that serves. So a grant can be withdrawn though the plugin's own file is broken. A plugin that may no longer
//!   read what it reconciles is stopped (invariant 7).
//! - A file that changes while its older content is being brought up replaces that content.

mod candidate;
mod change;
mod lifecycle;
mod look;
pub(crate) mod metrics;
mod mode;
mod refusal;
mod shared;
mod source;
mod status;
mod task;

pub use candidate::{Activate, ActivateError, Candidate};
pub(crate) use candidate::{all_grants, call_limits, ungranted};
pub use change::{Change, Content, Found, Problem, SettingsFile};
pub use lifecycle::Lifecycle;
pub use mode::Mode;
pub use source::Source;
pub use status::{Failure, Observer, Serving, Snapshot, Stage, State, Status, Statuses};

#[cfg(test)]
mod tests;
