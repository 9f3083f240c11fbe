//! The pure part of Pilothouse: store, reflector, routes, workqueue, diff, manifests and grants.
//!
//! Nothing here opens a socket, reads a clock or draws a random number. Bytes, times and seeds come in as arguments,
//! and effects go out as values. The crate `pilothouse` performs them.
//!
//! ```text
//!  bytes ─► list ─► object ─► store ─► Change ─► route ─► workqueue
//!            (split)  (scan)    (indexes)
//! ```
//!
//! # Layers
//!
//! A module imports only modules that stand before it in this list; `tests/layers.rs` checks it.
//!
//! - `json`, [`dictionary`], [`key`], [`field`], [`selector`], [`http`]: bytes, and the identity of objects and servers
//! - [`rate`], [`backoff`], [`budget`], [`breaker`], [`quarantine`], [`event`], [`election`], [`spread`]: limits in time, and who may act
//! - [`fair`], [`permits`], [`workqueue`]: who runs next
//! - [`list`], [`object`], [`store`]: objects, from a response's bytes to the cache
//! - [`informer`], [`reflector`]: what is watched, and how
//! - [`predicate`], [`manifest`], [`references`], [`grant`], [`series`]: what a plugin asks for, what it may do, and
//!   the values of its metrics
//! - [`route`], [`reads`], [`asked`], [`backlog`], [`unjudged`]: from a change to the keys that it wakes
//! - [`diff`]: what a declared child still needs

pub mod asked;
pub mod backlog;
pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod dictionary;
pub mod diff;
pub mod election;
pub mod event;
pub mod fair;
pub mod field;
pub mod grant;
pub mod http;
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
pub mod references;
pub mod reflector;
pub mod route;
pub mod selector;
pub mod series;
pub mod spread;
pub mod store;
pub mod unjudged;
pub mod workqueue;

pub use json::{ParseError, check_object};
