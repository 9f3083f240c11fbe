//! Records the calls of one plugin, over all its controllers: the last failure, the calls into the host, and the
//! quarantine.
//!
//! Only reconciles count for the quarantine. `map` and `observe` have backlogs of their own, which retry with backoff.
//! No reconcile waits for them, so an observer that traps must not stop reconciles either.
//!
//! ```text
//! reconcile ─► begin ─► call ─┬─ outcome, or an error that it returns ─► succeeded ─► not quarantined
//!                             └─ trap, deadline, memory, …  ───────────► failed ─┬─► quarantined: queues hand out no key
//!                                                                               └─► warning, Event, metric
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::{
    breaker::{OPEN, Storm},
    event::Level,
    key::Key,
    object::Object,
    quarantine::{Call, IN_A_ROW, Quarantine},
    series::{self, Change, Measured},
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    Observer, Parts,
    hook::{Hook, HookError},
    lines::{CALLS, LineLimit, STORMS},
    measures::Measures,
    queue::Cause,
    remembered::Remembered,
};
use crate::{
    acting::Acting,
    clock::Clock,
    name::PluginName,
    wasm::{CallCounts, CallError, Import, LogLine},
    writer::{Events, Fence, Source},
};

/// Time between two backtraces in the log for one kind of failure.
const BACKTRACE_EVERY: Duration = Duration::from_secs(60);

/// Replaces the error text of a plugin that may read Secrets in an Event. The text may repeat a Secret, and more people
/// may read Events.
pub(super) const WITHHELD: &str = "see the host's log; the plugin may read Secrets, so its text is not shown here";

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CallFailure {
    /// When the call ended.
    #[serde(serialize_with = "crate::metrics::as_text")]
    pub at: Timestamp,
    /// The function and its subject: `reconcile of default/a (apples)`.
    pub call: String,
    /// [`CallError::kind`].
    pub kind: &'static str,
    /// The error.
    pub message: String,
    /// Stack frames of the plugin, innermost first. Empty if they are not known.
    pub backtrace: Vec<String>,
}

/// What a plugin observes by pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedFigures {
    /// The kinds that it observes.
    pub kinds: usize,
    /// What it does not get, for people.
    pub left_out: Option<String>,
}

/// A quarantine. It lasts until a call succeeds.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Quarantined {
    /// Time until keys are handed out again. Zero while the plugin is being tried.
    #[serde(rename = "left_seconds", serialize_with = "crate::metrics::as_seconds")]
    pub left: Duration,
    /// Number of delays without a success in between.
    pub times: u32,
    /// The error of the last failure that began a delay.
    pub why: String,
}

/// The record of one plugin.
pub struct Record {
    plugin: PluginName,
    origin: Instant,
    calls: Mutex<Calls>,
    observer: Arc<dyn Observer>,
    events: Events,
    imports: CallCounts,
    remembered: Remembered,
    measures: Measures,
    lines: LineLimit,
    /// Lines about reconcile storms.
    storms: LineLimit,
    /// Decides whether the plugin may begin writes.
    fence: Arc<Fence>,
    /// `None` if its manifest has no patterns.
    matched: Mutex<Option<MatchedFigures>>,
    clock: Clock,
}

struct Calls {
    quarantine: Quarantine,
    /// The error of the failure that began the quarantine's last delay.
    why: String,
    last: Option<CallFailure>,
    /// Failed calls, by kind.
    traps: BTreeMap<&'static str, u64>,
    /// When a backtrace was logged, by kind of failure.
    backtraces: BTreeMap<&'static str, Instant>,
}

/// A reconcile whose call failed.
pub(super) struct Failed<'a> {
    pub(super) controller: &'a str,
    pub(super) key: &'a Key,
    pub(super) object: &'a Object,
    pub(super) error: &'a CallError,
    /// `true` if an Event may quote the plugin.
    pub(super) is_quotable: bool,
}

impl Record {
    /// Creates an empty record. What the host remembers for the plugin counts in `memory`.
    pub(super) fn new(plugin: PluginName, fence: Arc<Fence>, parts: &Parts, memory: &Arc<AtomicUsize>) -> Self {
        let remembered = Remembered::new(memory);
        let seed = plugin.as_str().bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        Self {
            origin: Instant::now(),
            calls: Mutex::new(Calls {
                quarantine: Quarantine::new(seed),
                why: String::new(),
                last: None,
                traps: BTreeMap::new(),
                backtraces: BTreeMap::new(),
            }),
            observer: parts.observer.clone(),
            events: parts.events.clone(),
            imports: Default::default(),
            measures: Measures::within(&remembered.metrics),
            remembered,
            lines: LineLimit::new(CALLS),
            storms: LineLimit::new(STORMS),
            fence,
            matched: Mutex::default(),
            clock: parts.clock,
            plugin,
        }
    }

    /// The plugin.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// The time that the plugin sees.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// Writes Events.
    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    /// Records what the plugin observes by pattern. Returns what it does not get, if that is news.
    pub(super) fn set_matched(&self, matched: Option<MatchedFigures>) -> Option<String> {
        let now = matched.as_ref().and_then(|matched| matched.left_out.clone());
        let before = std::mem::replace(&mut *self.matched.lock(), matched).and_then(|before| before.left_out);
        now.filter(|now| before.as_ref() != Some(now))
    }

    /// What the plugin observes by pattern. `None` if its manifest has no patterns.
    pub fn matched(&self) -> Option<MatchedFigures> {
        self.matched.lock().clone()
    }

    /// Decides whether the plugin may begin writes. All its revisions share it.
    pub(super) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Returns the switch of the plugin.
    pub(super) fn acting(&self) -> &Acting {
        self.fence.acting()
    }

    /// The budgets of what the host remembers for the plugin.
    pub(super) fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    /// Returns the quarantine, if there is one.
    pub fn quarantined(&self) -> Option<Quarantined> {
        let (calls, now) = (self.calls.lock(), self.origin.elapsed());
        calls.quarantine.is_quarantined().then(|| Quarantined {
            left: calls.quarantine.held(now).map_or(Duration::ZERO, |until| until.saturating_sub(now)),
            times: calls.quarantine.delays(),
            why: calls.why.clone(),
        })
    }

    /// `true` if the plugin is quarantined. Cheap: asked at each change.
    pub(super) fn is_quarantined(&self) -> bool {
        self.calls.lock().quarantine.is_quarantined()
    }

    /// Returns the last failed call.
    pub fn last_failure(&self) -> Option<CallFailure> {
        self.calls.lock().last.clone()
    }

    /// Returns the number of failed calls since the plugin became active, by [`CallError::kind`].
    pub fn traps(&self) -> BTreeMap<&'static str, u64> {
        self.calls.lock().traps.clone()
    }

    /// Returns the number of calls into the host since the plugin became active, by import.
    pub fn imports(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.imports.iter()
    }

    /// Counts a call of an import.
    pub(super) fn imported(&self, import: Import) {
        self.imports.add(import);
    }

    /// Returns a copy of the plugin's metrics and their series.
    pub fn series(&self) -> Vec<Measured> {
        self.measures.series()
    }

    /// The plugin's metrics.
    pub(super) fn measures(&self) -> &Measures {
        &self.measures
    }

    /// Changes a metric of the plugin. Logs the first change of each sort that cannot be.
    pub(super) fn measure(&self, metric: &str, labels: &[String], change: Change) {
        if let Some(why) = self.measures.change(metric, labels, change)
            && self.may_log()
        {
            let (metric, why) = (&metric[..metric.floor_char_boundary(series::MAX_VALUE)], why.why());
            warn!(plugin = %self.plugin, metric, why, "a change of a metric is dropped; further ones of this sort are only counted");
        }
    }

    /// Logs a line of the plugin in the current span, unless its limit of lines is used up.
    pub(super) fn log(&self, line: &LogLine) {
        if line.is_wanted() && self.may_log_bytes(line.shown()) {
            line.emit();
        }
    }

    /// Returns `true` if one more line about the plugin may be logged; if not, it counts as dropped. To be asked before
    /// each line that a plugin can cause at will.
    pub(super) fn may_log(&self) -> bool {
        self.may_log_bytes(0)
    }

    fn may_log_bytes(&self, bytes: usize) -> bool {
        let verdict = self.lines.take(self.origin.elapsed(), bytes);
        if let Some(dropped) = verdict.report {
            warn!(plugin = %self.plugin, dropped, "the plugin logs too much, or fails too often: lines are dropped");
        }
        verdict.may_log
    }

    /// Logs that a key has been reconciled over and over for the time `within`. Returns `false` if the limit of such
    /// lines is used up.
    pub(super) fn log_storm(&self, controller: &str, key: &Key, storm: &Storm<Cause>, within: Duration) -> bool {
        let may_log = self.may_log_storm();
        if may_log {
            let (reconciles, within, by) = (storm.reconciles, within.as_secs_f32(), storm.by.as_ref());
            warn!(
                plugin = %self.plugin, controller, %key, reconciles, within,
                cause = by.map(|by| by.cause.to_string()), wakes = by.map(|by| by.wakes), of = by.map(|by| by.of),
                "an object is reconciled over and over: from now on once in {} s", OPEN.as_secs(),
            );
        }
        may_log
    }

    /// Logs that a storm has ended, the time `after` it began. Returns `false` if the limit of such lines is used up.
    pub(super) fn log_settled(&self, controller: &str, key: &Key, storm: &Storm<Cause>, after: Duration) -> bool {
        let may_log = self.may_log_storm();
        if may_log {
            let reconciles = storm.reconciles;
            info!(plugin = %self.plugin, controller, %key, reconciles, ?after, "an object is no longer reconciled over and over");
        }
        may_log
    }

    fn may_log_storm(&self) -> bool {
        let verdict = self.storms.take(self.origin.elapsed(), 0);
        if let Some(dropped) = verdict.report {
            let plugin = &self.plugin;
            warn!(%plugin, dropped, "too many objects are reconciled over and over to name each: see /debug/plugins");
        }
        verdict.may_log
    }

    /// Returns the number of dropped log lines by the plugin or about its failures.
    pub fn lines_dropped(&self) -> u64 {
        self.lines.dropped()
    }

    /// Returns the time until which the quarantine holds keys back, if it does now.
    pub(super) fn held_until(&self) -> Option<Instant> {
        let until = self.calls.lock().quarantine.held(self.origin.elapsed());
        until.map(|until| self.origin + until)
    }

    /// Records that a reconcile begins.
    pub(super) fn begin(&self) -> Call {
        self.calls.lock().quarantine.begin(self.origin.elapsed())
    }

    /// Records that a call of `reconcile` returned, with an outcome or with an error of the plugin.
    pub(super) fn succeeded(&self, call: Call) {
        if self.calls.lock().quarantine.succeeded(call) {
            info!(plugin = %self.plugin, "a call succeeded: the plugin is not quarantined any more");
            self.observer.quarantined(&self.plugin, false);
        }
    }

    /// Records and logs a failed call of `reconcile`. Writes an Event if it begins a quarantine.
    pub(super) fn failed(&self, call: Call, failed: &Failed<'_>) {
        let Failed { controller, key, object, error, is_quotable } = *failed;
        let (kind, message) = (error.kind(), error.to_string());
        let backtrace = self.record(format!("reconcile of {key} ({controller})"), error, &message);
        if let Some(frames) = backtrace {
            let backtrace = (!frames.is_empty()).then(|| frames.join("\n"));
            warn!(kind, error = message, backtrace, "reconcile failed");
        }
        if !is_its_own_fault(error) {
            return;
        }
        let sentence = {
            let calls = &mut *self.calls.lock();
            let now = self.origin.elapsed();
            calls.quarantine.failed(now, call).map(|until| {
                calls.why.clone_from(&message);
                (until.saturating_sub(now), calls.quarantine.delays())
            })
        };
        let Some((delay, times)) = sentence else { return };
        if times == 1 {
            self.observer.quarantined(&self.plugin, true);
        }
        warn!(
            plugin = %self.plugin, times, ?delay, error = message,
            "the plugin is quarantined: its calls fail; replace it by a better revision, or POST /debug/plugins/{}/release",
            self.plugin,
        );
        let last = if is_quotable { message } else { format!("{kind}; {WITHHELD}") };
        let message = format!(
            "plugin {} is quarantined and reconciles nothing for a while: {IN_A_ROW} calls in a row failed; the last error: {last}",
            self.plugin
        );
        self.events.record(Source::Host(self.plugin.clone()), object, Level::Warning, "PluginQuarantined", &message);
    }

    /// Logs in the current span that a reconcile failed, by an error that the plugin returned or by a failed write.
    /// Returns `false` if the limit of lines is used up.
    pub(super) fn log_failure(&self, error: &str, terminal: bool) -> bool {
        let may_log = self.may_log();
        if may_log {
            // Not as `%error`: line breaks in a plugin's text would begin new log lines.
            warn!(error, terminal, "reconcile failed");
        }
        may_log
    }

    /// Logs in the current span that `map` or `observe` failed. Returns the logged backtrace, or `None` if the limit of
    /// lines is used up.
    pub(super) fn hook_failed(&self, hook: Hook, objects: &str, error: &HookError) -> Option<Vec<String>> {
        let (message, kind, backtrace) = match error {
            HookError::Refused(message) => (message.clone(), None, self.may_log().then(Vec::new)),
            HookError::Call(error) => {
                let message = error.to_string();
                let backtrace = self.record(format!("{} of {objects}", hook.as_str()), error, &message);
                (message, Some(error.kind()), backtrace)
            }
        };
        let frames = backtrace?;
        let backtrace = (!frames.is_empty()).then(|| frames.join("\n"));
        let hook = hook.as_str();
        warn!(
            hook,
            error = message,
            kind,
            backtrace,
            objects,
            "the plugin could not take changes; they are retried one by one"
        );
        Some(frames)
    }

    /// Records and logs that a call of `validate`, `mutate` or `convert` failed.
    pub(super) fn review_failed(&self, call: &str, error: &HookError) {
        let (message, kind, backtrace) = match error {
            HookError::Refused(message) => (message.clone(), None, self.may_log().then(Vec::new)),
            HookError::Call(error) => {
                let message = error.to_string();
                let backtrace = self.record(call.to_owned(), error, &message);
                (message, Some(error.kind()), backtrace)
            }
        };
        let Some(frames) = backtrace else { return };
        let backtrace = (!frames.is_empty()).then(|| frames.join("\n"));
        warn!(plugin = %self.plugin, call, error = message, kind, backtrace, "the plugin could not answer the API server");
    }

    /// Ends a quarantine and forgets all failures. Returns `true` if the plugin was quarantined; the caller then wakes
    /// its workers.
    pub(super) fn release(&self) -> bool {
        let released = self.calls.lock().quarantine.release();
        if released {
            self.observer.quarantined(&self.plugin, false);
        }
        released
    }

    /// Records a failed call. Returns the backtrace to log, which is empty if one was logged recently. `None`: nothing
    /// is to be logged.
    fn record(&self, call: String, error: &CallError, message: &str) -> Option<Vec<String>> {
        let may_log = self.may_log();
        let backtrace = error.backtrace().to_vec();
        let calls = &mut *self.calls.lock();
        *calls.traps.entry(error.kind()).or_default() += 1;
        calls.last = Some(CallFailure {
            at: Timestamp::now(),
            call,
            kind: error.kind(),
            message: message.to_owned(),
            backtrace: backtrace.clone(),
        });
        if !may_log {
            return None;
        }
        if backtrace.is_empty() || calls.backtraces.get(error.kind()).is_some_and(|at| at.elapsed() < BACKTRACE_EVERY) {
            return Some(Vec::new());
        }
        calls.backtraces.insert(error.kind(), Instant::now());
        Some(backtrace)
    }
}

/// `false` if the plugin cannot help the failure: the deadline passed while the host waited for the API server, or the
/// host has no room for an instance.
fn is_its_own_fault(error: &CallError) -> bool {
    match error {
        CallError::Host(_) => false,
        CallError::Deadline { backtrace, .. } => !backtrace.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_that_passed_while_the_host_waited_is_not_the_plugins_fault() {
        let deadline = |backtrace| CallError::Deadline { after: Duration::from_secs(1), backtrace };
        assert!(!is_its_own_fault(&deadline(Vec::new())));
        assert!(is_its_own_fault(&deadline(vec!["0: apples!eat".to_owned()])));
        assert!(is_its_own_fault(&CallError::Answer("nonsense".to_owned())));
        assert!(is_its_own_fault(&CallError::Instantiate("a thousand instances".to_owned())));
    }

    #[test]
    fn lack_of_host_resources_is_not_the_plugins_fault() {
        assert!(!is_its_own_fault(&CallError::Host("Cannot allocate memory (os error 12)".to_owned())));
    }
}
