//! What the host knows of the cluster: the fewest informers that serve all plugins.
//!
//! An [`Informer`] is a store, fed by a driver that performs what the reflector's state machine of `pilothouse-core` decides, and
//! by the answers to the host's own writes. Nobody holds one: who wants objects [acquires](Informers::acquire) a [`Lease`], which
//! shows what was asked for, out of whichever informer covers it just now. Subscribers of a lease see each change once, in
//! order, and begin with what is already there.
//!
//! ```text
//!                       ┌ Lease: Pods in web ──filter─┐
//! Informers ─ acquire ─►├ Lease: Pods               ──┼─► Informer ─┬─ store   ◄── driver ◄─► API server
//!                       └ Lease: Pods in db ──filter──┘   (Pods)    └─ outlets ◄── own writes
//! ```
//!
//! A lease shows of each object what it asks for, though the informer hold more: objects are cut as they are read or told. Where all
//! leases on an informer ask for it, what it holds is compressed (`packing.rs`).
//!
//! Which informers run is `pilothouse_core::informer::plan`'s to say. When another one than before should serve a lease, it starts
//! beside, and takes the lease over when it has synced and knows at least what the lease has shown (`handover.rs`).
//!
//! A call of a plugin reads at a [`Moment`]: while it lasts, the watch does not move what it sees.
//!
//! # Locks
//! In this order: the registry's table; informers, by number; then whatever subscribers take, and a moment's. A lease that is
//! dropped takes none of these, because a subscriber may be the last to hold one: it leaves a note for the registry's task.

mod driver;
mod handover;
mod health;
#[expect(clippy::module_inception, reason = "the file has the name of its type")]
mod informer;
mod kinds;
mod lease;
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
pub use lease::{Lease, Subscription};
pub use moment::Moment;
pub use pilothouse_core::informer::InformerKey;
use pilothouse_core::{reflector::State, store::Change};
pub use registry::{Holding, Informers, Intake, Use};
pub use view::{View, precedes};

/// Objects that a read looks at before it lets the informer go on: some hundred microseconds, where it has to look at labels.
pub const WORK: usize = 500;

/// Told of each change, in order, while the store is locked: it must be quick, and must not read the lease.
pub type Subscriber = Box<dyn Fn(&Change, Origin) + Send + Sync>;

/// Where a change comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The first list, or what was there when the subscription began.
    Initial,
    /// A watch event, a relist, or an own write.
    Change,
}

/// What an informer is doing, for people.
pub fn told(state: &State) -> String {
    match state {
        State::Resolving => "looking for the kind".into(),
        State::Missing(why) => format!("waiting for the kind to be served: {why}"),
        State::Listing => "listing".into(),
        State::Watching => "watching".into(),
        State::Waiting { delay, reason } => format!("trying again in {:.1} s: {reason}", delay.as_secs_f32()),
        State::Unauthenticated(why) => format!("not authenticated; renew the host's credentials: {why}"),
        State::Denied(why) => format!("denied; grant the host's account list and watch: {why}"),
    }
}

#[cfg(test)]
mod tests;
