//! One reconcile of a key: from the store, through the plugin, to the writer and back to the queue.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pilothouse_core::{
    event::{KeyEvents, Level, Release, StatusWrite},
    key::Key,
    object::Object,
    workqueue::LIMITS,
};
use tokio::time::Instant;
use tracing::{Instrument, debug, info_span};

use super::{
    Attempt, ReconcileResult,
    imports::CallImports,
    ledger::{Deferral, deferred::Left},
    queue::Next,
    reading::Reading,
    record::{Failed, WITHHELD},
    serving::Serving,
    wakes::Wakes,
};
use crate::{
    wasm::{CallError, Children, Failure, MemoryCharge, Outcome, Phase, Request},
    writer::{Events, Finalizing, Owner, Report, Source},
};

/// The shortest `requeue-after`, as the contract says. A failing key is not retried sooner either.
const REQUEUE_AFTER_MIN: Duration = LIMITS.base;

/// Consecutive failures before an Event is written on the object. With the default backoff that is after ten seconds.
///
/// A short disturbance of the API server must not become an Event on every object.
const EVENT_FROM: u32 = 11;

/// One reconcile of one key.
pub(super) struct Turn<'a> {
    pub(super) wakes: Wakes<'a>,
    /// What serves this reconcile. A swap meanwhile does not change it.
    pub(super) serving: Arc<Serving>,
    pub(super) events: &'a Events,
    pub(super) key: &'a Key,
}

/// How a turn ended.
pub(super) struct Ended {
    /// What becomes of the key.
    pub(super) next: Next,
    /// What to count. `None` if there was nothing to reconcile.
    pub(super) attempt: Option<Attempt>,
}

/// What is reconciled.
struct Subject {
    object: Arc<Object>,
    phase: Phase,
    /// Consecutive failures before this turn.
    failures: u32,
    /// What the last reconcile left to this one.
    left: Left,
}

/// A call of the plugin that is over.
struct Call {
    started: Instant,
    in_guest: Duration,
    /// What the call has read.
    reading: Option<Reading>,
    /// Something that the call read had changed before it was read.
    is_outdated: bool,
}

/// What the plugin answered. The outcome counts as the plugin's memory until it has been written.
type Answer = Result<(MemoryCharge, Result<Outcome, Failure>), CallError>;

/// What a reconcile comes to.
enum End {
    Done,
    After(Duration),
    /// Failed, and retried.
    Failed(String),
    /// Failed, and not retried until something changes.
    Terminal(String),
    /// The call itself failed. Retried.
    Trapped(CallError),
}

impl Turn<'_> {
    /// Reconciles the key once.
    pub(super) async fn run(self) -> Ended {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        let (plugin, controller) = (&self.wakes.id.plugin, &*self.wakes.id.name);
        let span = info_span!("reconcile", %plugin, controller, key = %self.key, id);
        self.reconcile().instrument(span).await
    }

    async fn reconcile(&self) -> Ended {
        let subject = match self.prepare().await {
            ControlFlow::Continue(subject) => subject,
            ControlFlow::Break(ended) => return ended,
        };
        let (answer, call) = self.call(&subject).await;
        let (end, report) = self.carry_out(&subject, answer, call.reading.as_ref()).await;
        self.conclude(&subject, call, end, report)
    }

    /// Finds out what there is to reconcile. Breaks if that is nothing, or cannot be read.
    async fn prepare(&self) -> ControlFlow<Ended, Subject> {
        let Wakes { ledger, .. } = self.wakes;
        let found = ledger.look_up(&self.serving, self.key);
        if let (Some(finalizer), Some((object, phase))) = (&self.serving.spec.finalizer, &found) {
            self.hold(finalizer, object, *phase).await?;
        }
        let left = ledger.take_deferred(self.key, found.as_ref().map(|(object, _)| &**object));
        let Some((object, phase)) = found else {
            // A child named an object that this host never saw, or that this plugin may not see.
            ledger.record_error(self.key, None);
            ledger.forget_unknown(&self.wakes.serving(), self.key);
            return ControlFlow::Break(Ended { next: Next::Done, attempt: None });
        };
        let failures = ledger.queue().lock().failures(self.key);
        if let Some(why) = object.unreadable().filter(|_| phase != Phase::Gone) {
            // The plugin would take it for an object without a spec. A retry would read the same; its next version
            // wakes the key.
            let end = End::Terminal(why.to_string());
            self.send_event(&object, failures, &end, true);
            return ControlFlow::Break(self.record_end(end, &Report::default(), Duration::ZERO, Duration::ZERO));
        }
        ControlFlow::Continue(Subject { object, phase, failures, left })
    }

    /// Makes sure that a live object has the controller's finalizer, before its first call. Breaks if there is nothing
    /// to call for now.
    ///
    /// An object that is being deleted without the finalizer is finished: its cleanup is done, or it was never
    /// reconciled.
    async fn hold(&self, finalizer: &str, object: &Arc<Object>, phase: Phase) -> ControlFlow<Ended> {
        let Wakes { ledger, .. } = self.wakes;
        if object.has_finalizer(finalizer) || (phase == Phase::Live && object.unreadable().is_some()) {
            return ControlFlow::Continue(());
        }
        if phase != Phase::Live {
            if !object.is_deleting() {
                // It left the selection of the controller, or was deleted before it got the finalizer.
                return ControlFlow::Continue(());
            }
            ledger.finish(self.key, object.uid());
            ledger.record_error(self.key, None);
            ledger.forget_unknown(&self.wakes.serving(), self.key);
            return ControlFlow::Break(Ended { next: Next::Done, attempt: None });
        }
        let error = match self.serving.access.writer.add_finalizer(object, finalizer).await {
            // The cache lags.
            Ok(Finalizing::Unchanged) => return ControlFlow::Continue(()),
            // The write has woken the key already, unless the controller's predicate filters it out. So there is one
            // call and not two.
            Ok(Finalizing::Written) => {
                return ControlFlow::Break(Ended { next: Next::After(Duration::ZERO), attempt: None });
            }
            // The watch wakes the key again when it shows that.
            Ok(Finalizing::Ended) => return ControlFlow::Break(Ended { next: Next::Done, attempt: None }),
            Err(error) => error,
        };
        let mut report = Report::default();
        report.failed(error);
        let problem = report.problem().unwrap_or_default();
        let end = End::Failed(format!("cannot add the finalizer {finalizer}: {problem}"));
        let failures = ledger.queue().lock().failures(self.key);
        self.send_event(object, failures, &end, true);
        ControlFlow::Break(self.record_end(end, &report, Duration::ZERO, Duration::ZERO))
    }

    /// Removes the controller's finalizer after a successful cleanup. If that fails, the reconcile has failed.
    ///
    /// An object that left the selection of the controller, and exists, is freed in the same way.
    async fn release(&self, subject: &Subject, report: &mut Report) -> End {
        let object = &subject.object;
        let Some(finalizer) = &self.serving.spec.finalizer else { return End::Done };
        if subject.phase == Phase::Live || !object.has_finalizer(finalizer) {
            return End::Done;
        }
        // The status was written since the plugin saw the object.
        let newest = self.serving.reconciles.get(object.type_meta(), self.key);
        let newest = newest.filter(|newest| newest.uid() == object.uid());
        let cached = newest.as_ref().unwrap_or(object);
        match self.serving.access.writer.remove_finalizer(cached, newest.is_some(), finalizer).await {
            Ok(_) => {
                self.wakes.ledger.finish(self.key, object.uid());
                End::Done
            }
            Err(error) => {
                report.failed(error);
                let problem = report.problem().unwrap_or_default();
                End::Failed(format!("cannot remove the finalizer {finalizer}: {problem}"))
            }
        }
    }

    /// Calls the plugin, and records whether the call itself failed.
    async fn call(&self, subject: &Subject) -> (Answer, Call) {
        let (Wakes { id, ledger, record, .. }, serving) = (self.wakes, &self.serving);
        let request = Request {
            controller: id.name.clone(),
            key: self.key.clone(),
            object: subject.object.clone(),
            phase: subject.phase,
            attempt: subject.failures.saturating_add(1),
            last_error: ledger.last_error(self.key),
        };
        let call = record.begin();
        let started = Instant::now();
        let reading = Arc::new(ledger.begin_reading(serving, self.key));
        let own = subject.object.clone();
        let imports = Arc::new(CallImports::tracked(serving.access.clone(), reading.clone(), own));
        let answer = serving.revision.reconcile(imports, request).await;
        let answer = answer.and_then(|answer| Ok((serving.revision.charge(&answer)?, answer)));
        let in_guest = started.elapsed();
        // The call has dropped its imports, and with them the other reference.
        let mut reading = Arc::into_inner(reading);
        let is_outdated = reading.as_mut().is_some_and(Reading::end);
        match &answer {
            Ok(_) => record.succeeded(call),
            Err(error) => {
                let (controller, object) = (&*id.name, &*subject.object);
                let is_quotable = !serving.access.may_read_secrets();
                record.failed(call, &Failed { controller, key: self.key, object, error, is_quotable });
            }
        }
        (answer, Call { started, in_guest, reading, is_outdated })
    }

    /// Writes what the plugin answered.
    async fn carry_out(&self, subject: &Subject, answer: Answer, reading: Option<&Reading>) -> (End, Report) {
        match answer {
            Ok((_charge, Ok(outcome))) => self.write_outcome(subject, outcome, reading).await,
            Ok((_charge, Err(failure))) => self.write_failure(subject, failure).await,
            Err(error) => {
                let mut report = Report::default();
                let mut events = subject.left.events.clone();
                let status = self.write_status(subject, subject.left.status.as_deref(), &mut report).await;
                self.write_events(subject, events.failure(Vec::new(), status, false), events);
                (End::Trapped(error), report)
            }
        }
    }

    /// Writes the children and the status, removes the finalizer, and writes the Events. A failed write makes the
    /// reconcile a failed one.
    async fn write_outcome(&self, subject: &Subject, outcome: Outcome, reading: Option<&Reading>) -> (End, Report) {
        let Serving { access, view, .. } = &*self.serving;
        let Outcome { children, status, requeue_after, watches, events: new } = outcome;
        let asked = match watches {
            // A key that is gone asks for nothing, even if the plugin goes on to be called for it.
            _ if subject.phase == Phase::Gone => {
                self.wakes.ledger.asks().forget(self.key);
                Ok(())
            }
            Some(watches) => self.wakes.ledger.asks().replace(self.key, watches),
            None => Ok(()),
        };
        let mut report = match children {
            Children::Desired(children) if subject.phase == Phase::Live => {
                access.writer.children(&self.owner(subject), view, children).await
            }
            // The garbage collector removes the children of a deleted object.
            Children::Desired(_) | Children::Unchanged => Report::default(),
        };
        let status = status.as_deref().or(subject.left.status.as_deref());
        let mut events = subject.left.events.clone();
        let dropped = events.add(new);
        let status = if status.is_some_and(|status| self.postpones(subject, status, &events, reading, &report)) {
            access.writer.deferred();
            None
        } else {
            Some(self.write_status(subject, status, &mut report).await)
        };
        let problem = report.problem().or_else(|| asked.err().map(|full| full.to_string()));
        let end = match (problem, requeue_after) {
            (Some(problem), _) => End::Failed(problem),
            (None, Some(delay)) => End::After(delay.max(REQUEUE_AFTER_MIN)),
            (None, None) => self.release(subject, &mut report).await,
        };
        match status {
            // The Events wait with the status.
            None => access.drop_events(dropped),
            Some(status) => {
                let is_failed = matches!(end, End::Failed(_));
                let release = Release { events: events.release(status, is_failed), dropped };
                self.write_events(subject, release, events);
            }
        }
        (end, report)
    }

    /// Postpones a stale status to the next reconcile of the key, if that comes at once. Returns `true` if it did.
    ///
    /// A status is stale if this turn has written children and something that the call read has changed since. Saves
    /// one request in five for a change of three children. At most every second status is postponed, so an object that
    /// never settles still gets one.
    fn postpones(
        &self,
        subject: &Subject,
        status: &str,
        events: &KeyEvents,
        reading: Option<&Reading>,
        report: &Report,
    ) -> bool {
        let Wakes { ledger, record, .. } = self.wakes;
        let has_written = report.written > 0 && report.problems.is_empty();
        has_written
            && subject.left.status.is_none()
            && reading.is_some_and(Reading::is_stale)
            && ledger.defer(record, &subject.object, status, events) == Deferral::Postponed
    }

    /// Writes the status that comes with a failure.
    async fn write_failure(&self, subject: &Subject, failure: Failure) -> (End, Report) {
        let mut report = Report::default();
        let status = failure.status.as_deref().or(subject.left.status.as_deref());
        let status = self.write_status(subject, status, &mut report).await;
        let mut events = subject.left.events.clone();
        let release = events.failure(failure.events, status, failure.terminal);
        self.write_events(subject, release, events);
        let message = match report.problem() {
            Some(problem) => format!("{}; {problem}", failure.message),
            None => failure.message,
        };
        (if failure.terminal { End::Terminal(message) } else { End::Failed(message) }, report)
    }

    async fn write_status(&self, subject: &Subject, status: Option<&str>, report: &mut Report) -> StatusWrite {
        let Some(status) = status.filter(|_| subject.phase != Phase::Gone) else { return StatusWrite::None };
        match self.serving.access.writer.status(&self.owner(subject), &self.serving.view, status).await {
            Ok(status) => {
                report.written += status.written;
                report.skipped += status.skipped;
                StatusWrite::Written
            }
            Err(error) => {
                report.failed(error);
                StatusWrite::Open
            }
        }
    }

    /// Queues the Events that are to be written now, and leaves the others to the key's next reconcile.
    fn write_events(&self, subject: &Subject, release: Release, left: KeyEvents) {
        let access = &self.serving.access;
        access.release_events(&subject.object, release);
        let waiting = left.waiting();
        if !self.wakes.ledger.leave_events(&subject.object, left) {
            access.drop_events(waiting);
        }
    }

    fn owner<'a>(&'a self, subject: &'a Subject) -> Owner<'a> {
        Owner { object: &subject.object, owns: &self.serving.owns }
    }

    /// Records what the turn has read, written and failed at, and decides what becomes of the key.
    fn conclude(&self, subject: &Subject, call: Call, end: End, mut report: Report) -> Ended {
        let Wakes { ledger, .. } = self.wakes;
        report.retry_after = report.retry_after.max(call.reading.as_ref().and_then(Reading::retry_after));
        if let (End::Done | End::After(_), Some(reading)) = (&end, call.reading) {
            reading.commit();
            if call.is_outdated {
                self.wakes.wake_outdated(self.key);
            }
        }
        if subject.phase == Phase::Gone && matches!(end, End::Done | End::Terminal(_)) {
            ledger.forget_gone(&subject.object);
        }
        if report.awaits_watch {
            ledger.await_watch(&self.wakes.serving(), self.key);
        }
        self.send_event(&subject.object, subject.failures, &end, !self.serving.access.may_read_secrets());
        let mut ended = self.record_end(end, &report, call.started.elapsed(), call.in_guest);
        if ledger.forget_unknown(&self.wakes.serving(), self.key) {
            ended.next = Next::Done;
        }
        ended
    }

    /// Writes an Event on the object if people may have to act. It quotes the plugin if `is_quotable`.
    fn send_event(&self, object: &Object, failures: u32, end: &End, is_quotable: bool) {
        let plugin = &self.wakes.id.plugin;
        let times = failures.saturating_add(1);
        let (what, error) = match end {
            End::Done | End::After(_) => return,
            End::Failed(_) | End::Trapped(_) if times < EVENT_FROM => return,
            End::Terminal(error) => ("gave up until something changes", error.clone()),
            End::Failed(error) => ("keeps failing", error.clone()),
            End::Trapped(error) => ("keeps failing", error.to_string()),
        };
        let quoted = if is_quotable { &error } else { WITHHELD };
        let message = format!("plugin {plugin} {what}: {quoted}");
        self.events.record(Source::Host(plugin.clone()), object, Level::Warning, "ReconcileFailed", &message);
    }

    /// Logs and records how the turn ended.
    fn record_end(&self, end: End, report: &Report, took: Duration, in_guest: Duration) -> Ended {
        let Wakes { ledger, record, .. } = self.wakes;
        let panicked = matches!(&end, End::Trapped(error) if error.is_panic());
        let requeue_after_ms = match &end {
            End::After(delay) => u64::try_from(delay.as_millis()).ok(),
            _ => None,
        };
        let retry = report.retry_after.map_or(Next::Retry, Next::RetryAfter);
        let (result, next, error, trap) = match end {
            End::Done => (ReconcileResult::Success, Next::Done, None, None),
            End::After(delay) => (ReconcileResult::RequeueAfter, Next::After(delay), None, None),
            End::Failed(error) => (ReconcileResult::Error, retry, Some(error), None),
            End::Terminal(error) => (ReconcileResult::Terminal, Next::Done, Some(error), None),
            End::Trapped(error) => (ReconcileResult::Error, retry, Some(error.to_string()), Some(error.kind())),
        };
        // A trap was logged when the call ended.
        if let Some(error) = error.as_deref().filter(|_| trap.is_none()) {
            record.log_failure(error, result == ReconcileResult::Terminal);
        }
        debug!(
            target: "pilothouse::feed",
            what = "reconciled", result = result.as_str(), written = report.written, unchanged = report.skipped, ?took, ?in_guest,
            error = error.as_deref(), requeue_after_ms,
        );
        match error {
            Some(error) if result == ReconcileResult::Terminal => ledger.give_up(self.key, &error),
            error => ledger.record_error(self.key, error),
        }
        Ended { next, attempt: Some(Attempt { result, took, in_guest: Some(in_guest), trap, panicked }) }
    }
}
