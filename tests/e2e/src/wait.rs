//! Waiting for a fact instead of for a time.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::Instant;

/// What does not happen by then is taken never to happen. A slow machine under load may need most of it, and the garbage collector of
/// kube-controller-manager a quarter of it: it looks for new kinds every 30 s.
const DEADLINE: Duration = Duration::from_secs(120);
/// How often a fact is looked for.
const POLL: Duration = Duration::from_millis(25);

/// Looks until `look` succeeds, and returns what it found.
///
/// # Errors
/// It did not within 120 s: the error names `what`, and has the last error of `look` as its cause.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    within(DEADLINE, what, look).await
}

/// As [`eventually`], with another deadline: for what is long even on an idle machine.
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
