//! The time of the running call.

use jiff::Timestamp;

use crate::host;

host::interface!(clock {
    fn now() -> u64;
});

/// Returns when the running call began.
pub(crate) fn now() -> Timestamp {
    let millis = i64::try_from(import::now()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).expect("the host's clock is before the year 10000")
}
