//! One key's turn: from the store, through the plugin, to the writer and back to the queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pilothouse_core::{
    key::Key,
    object::Object,
    workqueue::{Item, LIMITS},
};
use tokio::time::Instant;
use tracing::{Instrument, debug, info_span};

use super::{
    Attempt, ReconcileResult,
    controller::{Controller, Serving},
    imports::CallImports,
    queue::Next,
    reading::Reading,
    record::{Failed, WITHHELD},
};
use crate::{
    wasm::{CallError, Children, Failure, Outcome, Phase, Request},
    writer::{Level, Owner, Report},
};

/// The shortest `requeue-after`, as the contract says: a failing key is not tried again sooner either.
const REQUEUE_AFTER_MIN: Duration = LIMITS.base;

/// From so many failures in a row on people are told on the object: by its backoff that is after ten seconds. What lasts less is
/// nobody's business, and a bad moment of the API server would become an Event on every object there is.
const TOLD_FROM: u32 = 11;

/// Reconciles the key once, and says what is next for it.
pub(super) async fn run(controller: &Controller, item: &Item<Key>) -> Next {
    static LAST_ID: AtomicU64 = AtomicU64::new(0);
    let id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
    let serving = controller.serving();
    let span =
        info_span!("reconcile", plugin = %controller.plugin(), controller = controller.name(), key = %item.key, id);
    turn(controller, &serving, &item.key).instrument(span).await
}

async fn turn(controller: &Controller, serving: &Arc<Serving>, key: &Key) -> Next {
    let looked_up = controller.look_up(serving, key);
    let left = controller.take_deferred(key, looked_up.as_ref().map(|(object, _)| &**object)).map(String::from);
    let Some((object, there)) = looked_up else {
        // A child of something that this host never saw, or that is not for this plugin.
        controller.note_error(key, None);
        controller.forget_unless_there(key);
        return Next::Done;
    };
    let phase = match there {
        true if object.is_deleting() => Phase::Deleting,
        true => Phase::Live,
        false => Phase::Gone,
    };
    let failures = controller.queue().lock().failures(key);
    if let Some(why) = object.unreadable().filter(|_| phase != Phase::Gone) {
        // The plugin would take it for an object without a spec. Another try reads the same: its next version wakes the key.
        let end = End::Terminal(why.to_string());
        tell(controller, &object, failures, &end, true);
        return conclude(controller, key, end, &Report::default(), Duration::ZERO, Duration::ZERO);
    }
    let request = Request {
        controller: controller.name().into(),
        key: key.clone(),
        object: object.clone(),
        phase,
        attempt: failures.saturating_add(1),
        last_error: controller.last_error(key),
    };
    let call = controller.record().begin();
    let started = Instant::now();
    let reading = Arc::new(controller.begin_reading(key));
    let imports = Arc::new(CallImports::tracked(serving.access.clone(), reading.clone()));
    let answer = serving.revision.reconcile(imports, request).await;
    // It stays the plugin's memory as long as it is written.
    let answer = answer.and_then(|answer| Ok((serving.revision.charge(&answer)?, answer)));
    let in_guest = started.elapsed();
    // The call is over, and with it whoever else could read for it.
    let mut reading = Arc::into_inner(reading);
    let was_old = reading.as_mut().is_some_and(Reading::end);
    let retry_after = reading.as_ref().and_then(Reading::retry_after);
    let owner = Owner { object: &object, owns: &serving.owns };
    let (end, mut report) = match answer {
        Ok((_kept, answer)) => {
            controller.record().succeeded(call);
            match answer {
                Ok(mut outcome) => {
                    // Of two calls in a row one writes it: what never comes to rest has a status too.
                    let may_defer = left.is_none();
                    outcome.status = outcome.status.or(left);
                    let is_old = || reading.as_ref().is_some_and(Reading::is_old);
                    let defer = |status: &str| may_defer && is_old() && controller.defer(&object, status);
                    settle(serving, &owner, phase, outcome, defer).await
                }
                Err(mut failure) => {
                    failure.status = failure.status.or(left);
                    settle_failure(serving, &owner, phase, failure).await
                }
            }
        }
        Err(error) => {
            let (record, is_quotable) = (controller.record(), !serving.access.may_read_secrets());
            let failed = Failed { controller: controller.name(), key, object: &object, error: &error, is_quotable };
            record.failed(call, &failed);
            let mut report = Report::default();
            write_status(serving, &owner, phase, left.as_deref(), &mut report).await;
            (End::Trapped(error), report)
        }
    };
    if let (End::Done | End::After(_), Some(reading)) = (&end, reading) {
        reading.commit();
        if was_old {
            controller.read_old(key);
        }
    }
    if phase == Phase::Gone && matches!(end, End::Done | End::Terminal(_)) {
        controller.forget_gone(&object);
    }
    if report.awaits_watch {
        controller.await_watch(key);
    }
    let there = controller.forget_unless_there(key);
    tell(controller, &object, failures, &end, !serving.access.may_read_secrets());
    report.retry_after = report.retry_after.max(retry_after);
    let next = conclude(controller, key, end, &report, started.elapsed(), in_guest);
    if there {
        return next;
    }
    // It was let go of meanwhile. What comes under this key from now on enters the queue by itself.
    controller.note_error(key, None);
    Next::Done
}

/// Tells people on the object what they may have to do something about, and in the plugin's words if these are quotable.
fn tell(controller: &Controller, object: &Object, failures: u32, end: &End, is_quotable: bool) {
    let plugin = controller.plugin();
    let times = failures.saturating_add(1);
    let (what, error) = match end {
        End::Done | End::After(_) => return,
        End::Failed(_) | End::Trapped(_) if times < TOLD_FROM => return,
        End::Terminal(error) => ("gave it up until something changes", error.clone()),
        End::Failed(error) => ("fails over it", error.clone()),
        End::Trapped(error) => ("fails over it", error.to_string()),
    };
    let said = if is_quotable { &error } else { WITHHELD };
    let message = format!("plugin {plugin} {what}: {said}");
    controller.events().tell(plugin, object, Level::Warning, "ReconcileFailed", &message);
}

/// How a turn ended.
enum End {
    Done,
    After(Duration),
    /// To be tried again.
    Failed(String),
    /// Not to be tried again until something changes.
    Terminal(String),
    Trapped(CallError),
}

/// Children first, then status; what could not be written makes the reconcile a failed one.
///
/// A status that says what was there before this very outcome's children were written may be left to the next call, which comes at once and
/// sees them, by `defer`. Nobody reads the first of two statuses within a millisecond, and its request is one in five of those that a
/// change of three children takes.
async fn settle(
    serving: &Serving,
    owner: &Owner<'_>,
    phase: Phase,
    outcome: Outcome,
    defer: impl Fn(&str) -> bool,
) -> (End, Report) {
    let mut report = match outcome.children {
        Children::Desired(children) if phase == Phase::Live => {
            serving.access.writer.children(owner, &serving.view, children).await
        }
        // What a deleted object leaves is the garbage collector's.
        Children::Desired(_) | Children::Unchanged => Report::default(),
    };
    match outcome.status.as_deref() {
        Some(status) if report.written > 0 && report.problems.is_empty() && defer(status) => {
            serving.access.writer.deferred();
        }
        status => write_status(serving, owner, phase, status, &mut report).await,
    }
    let end = match (report.problem(), outcome.requeue_after) {
        (Some(problem), _) => End::Failed(problem),
        (None, Some(delay)) => End::After(delay.max(REQUEUE_AFTER_MIN)),
        (None, None) => End::Done,
    };
    (end, report)
}

async fn settle_failure(serving: &Serving, owner: &Owner<'_>, phase: Phase, failure: Failure) -> (End, Report) {
    let mut report = Report::default();
    write_status(serving, owner, phase, failure.status.as_deref(), &mut report).await;
    let message = match report.problem() {
        Some(problem) => format!("{}; {problem}", failure.message),
        None => failure.message,
    };
    (if failure.terminal { End::Terminal(message) } else { End::Failed(message) }, report)
}

async fn write_status(serving: &Serving, owner: &Owner<'_>, phase: Phase, status: Option<&str>, report: &mut Report) {
    let Some(status) = status.filter(|_| phase != Phase::Gone) else { return };
    match serving.access.writer.status(owner, &serving.view, status).await {
        Ok(status) => {
            report.written += status.written;
            report.skipped += status.skipped;
        }
        Err(error) => report.failed(error),
    }
}

fn conclude(controller: &Controller, key: &Key, end: End, report: &Report, took: Duration, in_guest: Duration) -> Next {
    let panicked = matches!(&end, End::Trapped(error) if error.is_panic());
    let retry = report.retry_after.map_or(Next::Retry, Next::RetryAfter);
    let (result, next, error, trap) = match end {
        End::Done => (ReconcileResult::Success, Next::Done, None, None),
        End::After(delay) => (ReconcileResult::RequeueAfter, Next::After(delay), None, None),
        End::Failed(error) => (ReconcileResult::Error, retry, Some(error), None),
        End::Terminal(error) => (ReconcileResult::Terminal, Next::Done, Some(error), None),
        // It was said when the call ended.
        End::Trapped(error) => (ReconcileResult::Error, retry, Some(error.to_string()), Some(error.kind())),
    };
    if let Some(error) = error.as_deref().filter(|_| trap.is_none()) {
        controller.record().refused(error, result == ReconcileResult::Terminal);
    }
    debug!(
        target: "pilothouse::feed",
        what = "reconciled", result = result.as_str(), written = report.written, unchanged = report.skipped, ?took, ?in_guest,
        error = error.as_deref(),
    );
    match error {
        // The next try is a first one.
        Some(error) if result == ReconcileResult::Terminal => controller.give_up(key, &error),
        error => controller.note_error(key, error),
    }
    controller.attempted(&Attempt { result, took, in_guest: Some(in_guest), trap, panicked });
    next
}
