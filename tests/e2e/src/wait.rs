//! Waits for a fact, not for a time.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::Instant;

/// Time after which a fact counts as false. A slow machine under load may need most of it. kube-controller-manager's
/// garbage collector needs a quarter: it looks for new kinds every 30 s.
const DEADLINE: Duration = Duration::from_secs(120);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(25);

/// Calls `look` until it succeeds, and returns its result.
///
/// # Errors
/// `look` did not succeed within 120 s. The error names `what` and has the last error of `look` as its cause.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    within(DEADLINE, what, look).await
}

/// As [`eventually`], with another deadline, for facts that take long even on an idle machine.
///
/// # Errors
/// As [`eventually`].
pub async fn within<T>(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    let late = || format!("not within {} s: {what}", limit.as_secs());
    let mut last = None;
    loop {
        match tokio::time::timeout_at(deadline, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = Some(last.unwrap_or_else(|| anyhow::anyhow!("the first look did not end"))),
        }
        match last {
            Some(error) if Instant::now() >= deadline => return Err(error).with_context(late),
            _ => tokio::time::sleep(POLL).await,
        }
    }
}
