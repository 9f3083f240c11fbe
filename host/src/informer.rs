//! Caches the cluster's objects with the fewest informers that serve all plugins.
//!
//! An [`Informer`] is a store. Its driver performs the effects of the reflector, a state machine in `pilothouse-core`,
//! and the host adds the answers to its own writes. To read objects, code [acquires](Informers::acquire) a [`Lease`],
//! which reads from an informer that covers the request. Subscribers of a lease receive the existing objects first,
//! then each change once and in order.
//!
//! ```text
//!                       ┌ Lease: Pods in web ──filter─┐
//! Informers ─ acquire ─►├ Lease: Pods               ──┼─► Informer ─┬─ store   ◄── driver ◄─► API server
//!                       └ Lease: Pods in db ──filter──┘   (Pods)    └─ outlets ◄── own writes
//! ```
//!
//! A lease shows only the requested parts of an object, even if the informer holds more. If all leases on an informer
//! allow it, its objects are compressed (`packing.rs`).
//!
//! `pilothouse_core::informer::plan` decides which informers run. If another informer should serve a lease, it starts
//! beside the old one. It takes the lease over once it is synced and knows at least what the lease has shown
//! (`handover.rs`).
//!
//! A plugin's call reads at a [`Moment`]: changes from the watch do not alter what the call sees.
//!
//! # Locks
//! In this order: the registry's table; informers, by number; the locks of subscribers, and a moment's. Dropping a
//! lease takes none of them, because a subscriber may own the last handle of a lease. The lease is queued for the
//! registry's task instead.

mod driver;
mod handover;
mod health;
#[expect(clippy::module_inception, reason = "the file has the name of its type")]
mod informer;
mod kinds;
mod lease;
mod lines;
pub(crate) mod metrics;
#[cfg(test)]
mod model;
mod moment;
mod outlet;
mod packing;
mod registry;
mod shared;
mod view;

pub use health::{Failures, Health, Lapse, Relists, Tally};
pub use informer::Informer;
pub use kinds::KindsWatch;
pub use lease::{Lease, Subscription};
pub use metrics::{InformerRow, LeaseRow};
pub use moment::Moment;
pub use pilothouse_core::informer::InformerKey;
use pilothouse_core::store::Change;
pub use registry::{Holding, Informers, Intake, Use};
pub use view::{View, precedes};

/// Objects that a read looks at under one lock of the informer. If it compares labels, they take some hundred
/// microseconds.
pub const WORK: usize = 500;

/// Receives each change, in order, while the store is locked. It must be quick and must not read the lease.
pub type Subscriber = Box<dyn Fn(&Change, Origin) + Send + Sync>;

/// The origin of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The first list, or an object that existed when the subscription began.
    Initial,
    /// A watch event, a relist, or an own write.
    Change,
}

#[cfg(test)]
mod tests;
