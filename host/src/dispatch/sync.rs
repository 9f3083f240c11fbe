//! The locks, wake-ups and clock of the [queue](super::queue). tests/interleavings replaces this module by one that
//! makes threads take turns in every order.

pub(super) use parking_lot::{Mutex, MutexGuard};
pub(super) use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
