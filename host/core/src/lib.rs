//! The pure part of Pilothouse: store, reflector, routes, workqueue, diff, manifests and grants.
//!
//! Nothing here opens a socket, reads a clock or draws a random number: bytes, times and seeds come in as arguments, and
//! what should be done goes out as values. The crate `pilothouse` drives it.
//!
//! ```text
//!  bytes ─► list ─► object ─► store ─► Change ─► route ─► workqueue
//!            (split)  (scan)    (indexes)
//! ```

pub mod backlog;
pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod dictionary;
pub mod diff;
pub mod event;
pub mod fair;
pub mod field;
pub mod grant;
pub mod informer;
mod json;
pub mod key;
pub mod list;
pub mod manifest;
pub mod object;
pub mod permits;
pub mod predicate;
pub mod quarantine;
pub mod rate;
pub mod reads;
pub mod reflector;
pub mod route;
pub mod selector;
pub mod store;
pub mod unjudged;
pub mod workqueue;

pub use json::{ParseError, check_object};
