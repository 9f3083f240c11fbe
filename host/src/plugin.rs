//! From files to revisions that serve.
//!
//! Owns the directory of plugins and what becomes of each file in it; leaves the sandbox to [`crate::wasm`], and calls,
//! queues and informers to whoever implements [`Activate`].
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
//! - A file that fails on the way never replaces a revision that works (invariant 9); why it failed is in the plugin's
//!   [`Status`] until a file works.
//! - What the administrator's file says holds as soon as it can be read: for the new revision if there is one that works,
//!   else for the one that serves. A grant that is taken away is gone though the plugin's own file is broken, and a plugin that
//!   may not read what it reconciles any more is stopped (invariant 7).
//! - A file that changes while an older content is on its way takes its place.

mod candidate;
mod lifecycle;
mod look;
pub(crate) mod metrics;
mod source;
mod status;
mod task;

pub(crate) use candidate::call_limits;
pub use candidate::{Activate, ActivateError, Candidate};
pub use lifecycle::{Lifecycle, Mode};
pub use source::{Change, Content, Found, Problem, SettingsFile, Source};
pub use status::{Failure, Observer, Serving, Snapshot, Stage, State, Status, Statuses};

#[cfg(test)]
mod tests;
