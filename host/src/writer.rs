//! Carries out the outcome of a reconcile: writes children and status, and deletes what is no longer a child.
//!
//! Every write passes the plugin's grants and its [`Fence`], and names the plugin's field manager. A write that would
//! change nothing, as the cache shows, is skipped. The server's answer enters the cache before the call returns
//! (invariants 3 and 7).
//!
//! ```text
//! outcome ─┬─ settled: nothing
//!          └─ desired (checked, owned) ─► diff against the cache ─┬─ holds: nothing, and settled
//!                                                                 └─ differs: apply ─► answer, settled ─► informers
//!                                                                                      └─ the diff cannot prove it: apply with a mark
//! children that this plugin applied − desired ─► delete
//! ```
//!
//! The cluster itself holds the inventory. A child is the plugin's if its controlling owner reference names the
//! reconciled object's uid, and its managedFields name the plugin's field manager. So the inventory survives restarts,
//! and nothing else is ever deleted.
//!
//! The cache lags behind the server. So each write to a child names the version that it was decided on (`Basis`), and
//! the server rejects it if the child has another. The host then reads the child's metadata once, and decides again:
//!
//! ```text
//! the cache shows     the write is good for     409
//! nothing             no object of that name ─┐
//! version 7           version 7 ──────────────┴► GET its metadata ─► ours: again, for its version │ not ours: refused, left alone
//! ```
//!
//! While the watch of an owned kind is down, its children are unknown ([`Lapse`](crate::informer::Lapse)). They are
//! applied, as the server checks each. None is deleted, and the reconcile fails with the reason.

mod apply;
mod basis;
mod children;
mod client;
mod configuration;
mod crd;
mod desired;
mod endpoint;
mod error;
mod events;
mod fence;
mod finalizer;
mod handle;
mod identity;
mod mark;
pub(crate) mod metrics;
mod report;
mod send;
mod settled;
mod status;

pub(crate) use basis::is_known;
pub use client::ClientError;
pub(crate) use configuration::remove_configuration;
pub use crd::CrdError;
pub use endpoint::{Address, Endpoint};
pub use events::{Events, Fate, PluginEvents, Source};
pub use fence::{Closed, Fence, WITHDRAWN_AFTER};
pub(crate) use finalizer::Finalizing;
pub use handle::{Owner, WriteObserver, Writer};
pub use identity::{Identities, Identity};
pub use report::Report;

pub use self::error::Error;

#[cfg(test)]
mod tests;
