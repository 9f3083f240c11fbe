//! Locks, bells and time, as the [queue](super::queue) uses them: one place in which tests/interleavings has others,
//! which make threads take turns in every order.

pub(super) use parking_lot::{Mutex, MutexGuard};
pub(super) use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
