//! One batch of changes in a call of `map` or `observe`.

use std::{pin::Pin, time::Duration};

use pilothouse_core::backlog::{Batch, News};
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::{
    hook::{Called, Hook, HookError},
    imports::Access,
    record::Record,
};
use crate::wasm::CallError;

/// Calls the plugin with a batch, and records how the call ended. Returns the answer, and how long the call took.
///
/// `called` gets the figures of the call. `call` is pinned by the caller: passed by value, it would take its
/// memory twice in each task of each idle plugin.
pub(super) async fn call<T>(
    hook: Hook,
    batch: &Batch,
    record: &Record,
    span: Span,
    called: impl FnOnce(&Called),
    call: Pin<&mut impl Future<Output = Result<Result<T, String>, CallError>>>,
) -> Result<(T, Duration), HookError> {
    let started = Instant::now();
    let answer = call.instrument(span.clone()).await;
    let took = started.elapsed();
    let answer = answer.map_err(HookError::Call).and_then(|answer| answer.map_err(HookError::Refused));
    let trap = answer.as_ref().err().and_then(HookError::trap);
    called(&Called { hook, ok: answer.is_ok(), took, trap });
    if let Err(error) = &answer {
        span.in_scope(|| record.hook_failed(hook, &objects(batch), error));
    }
    answer.map(|answer| (answer, took))
}

/// Returns the changes of a batch that the plugin may see now.
///
/// Both sides of a change have one kind and one key, so the plugin may see both or neither.
pub(super) fn news(batch: &Batch, access: &Access) -> Vec<News> {
    let is_visible = |change: &&News| {
        let object = change.new.as_ref().or(change.old.as_ref());
        object.is_some_and(|object| access.may_see(&change.of, object.key()))
    };
    batch.changes().iter().filter(is_visible).cloned().collect()
}

/// Names the first objects of a batch: `Pod a/b, Pod a/c and 7 more`.
pub(super) fn objects(batch: &Batch) -> String {
    const NAMED: usize = 3;
    let object = |change: &News| {
        let object = change.new.as_ref().or(change.old.as_ref());
        object.map_or_else(String::new, |object| format!("{} {}", change.of.kind, object.key()))
    };
    let named: Vec<String> = batch.changes().iter().take(NAMED).map(object).collect();
    let more = batch.changes().len() - named.len();
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}
