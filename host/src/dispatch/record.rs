//! What is known of one plugin's calls, over all its controllers: what failed last, what it asks of the host, and whether it is left
//! alone for a while.
//!
//! Only reconciles are judged. `map` and `observe` have backlogs of their own, which try again ever more seldom, and no reconcile waits
//! for them: an observer that traps must not stop reconciles either.
//!
//! ```text
//! reconcile ─► begin ─► call ─┬─ outcome, failure in its own words ─► succeeded ─► free
//!                             └─ trap, deadline, memory, …  ────────► failed ─┬─► held: queues hand out no key
//!                                                                            └─► warning, Event, metric
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
    key::Key,
    object::Object,
    quarantine::{Call, IN_A_ROW, Quarantine},
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    Observer, Parts,
    hook::{Hook, HookError},
    lines::{CALLS, LineLimit, STORMS},
    queue::Cause,
    remembered::Remembered,
};
use crate::{
    acting::Acting,
    name::PluginName,
    wasm::{CallCounts, CallError, Import, LogLine},
    writer::{Events, Fence, Level},
};

/// How often a backtrace is logged for one kind of failure.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// Stands in an Event for the words of a plugin that may read Secrets. Those may repeat what it read, and more people may read Events than
/// Secrets.
pub(super) const WITHHELD: &str = "its words are in the host's log alone, as it may read Secrets";

/// A call that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// When.
    pub at: Timestamp,
    /// What was called, and over what: `reconcile of default/a (apples)`.
    pub call: String,
    /// [`CallError::kind`].
    pub kind: &'static str,
    /// Why.
    pub message: String,
    /// Where the plugin was, innermost first; empty where that is not known.
    pub backtrace: Vec<String>,
}

/// A plugin that is left alone, or was and has not succeeded since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// How long its keys are still held back; zero: it is being tried.
    pub left: Duration,
    /// How often it was left alone without a success in between.
    pub times: u32,
    /// The failure that was the last straw.
    pub why: String,
}

/// One plugin's record.
pub struct Record {
    plugin: PluginName,
    origin: Instant,
    inner: Mutex<Inner>,
    observer: Arc<dyn Observer>,
    events: Events,
    imports: CallCounts,
    remembered: Remembered,
    lines: LineLimit,
    /// About objects that are reconciled over and over.
    storms: LineLimit,
    /// Whether the plugin may begin writes.
    fence: Arc<Fence>,
}

struct Inner {
    quarantine: Quarantine,
    why: String,
    last: Option<CallFailure>,
    /// Calls that came to nothing, by kind.
    traps: BTreeMap<&'static str, u64>,
    /// When a backtrace was logged, by kind of failure.
    said: BTreeMap<&'static str, Instant>,
}

/// The reconcile that failed.
pub(super) struct Failed<'a> {
    pub(super) controller: &'a str,
    pub(super) key: &'a Key,
    pub(super) object: &'a Object,
    pub(super) error: &'a CallError,
    /// Whether an Event may quote the plugin.
    pub(super) is_quotable: bool,
}

impl Record {
    /// Nothing is known yet. What is remembered for the plugin counts in `memory`.
    pub(super) fn new(plugin: PluginName, fence: Arc<Fence>, parts: &Parts, memory: &Arc<AtomicUsize>) -> Self {
        let seed = plugin.as_str().bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        Self {
            origin: Instant::now(),
            inner: Mutex::new(Inner {
                quarantine: Quarantine::new(seed),
                why: String::new(),
                last: None,
                traps: BTreeMap::new(),
                said: BTreeMap::new(),
            }),
            observer: parts.observer.clone(),
            events: parts.events.clone(),
            imports: Default::default(),
            remembered: Remembered::new(memory),
            lines: LineLimit::new(CALLS),
            storms: LineLimit::new(STORMS),
            fence,
            plugin,
        }
    }

    /// Whose it is.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// Whether it may begin writes. All its revisions share this.
    pub(super) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Returns the switch of this process.
    pub(super) fn acting(&self) -> &Acting {
        self.fence.acting()
    }

    /// What is remembered for it.
    pub(super) fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    /// Whether it is left alone.
    pub fn quarantined(&self) -> Option<Quarantined> {
        let (inner, now) = (self.inner.lock(), self.origin.elapsed());
        inner.quarantine.is_quarantined().then(|| Quarantined {
            left: inner.quarantine.held(now).map_or(Duration::ZERO, |until| until.saturating_sub(now)),
            times: inner.quarantine.delays(),
            why: inner.why.clone(),
        })
    }

    /// The same, for whoever asks at each change.
    pub(super) fn is_quarantined(&self) -> bool {
        self.inner.lock().quarantine.is_quarantined()
    }

    /// The last call that came to nothing.
    pub fn last_failure(&self) -> Option<CallFailure> {
        self.inner.lock().last.clone()
    }

    /// Calls that came to nothing since it is active, by [`CallError::kind`].
    pub fn traps(&self) -> BTreeMap<&'static str, u64> {
        self.inner.lock().traps.clone()
    }

    /// What the plugin asked of the host since it is active, by import.
    pub fn imports(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.imports.iter()
    }

    /// The plugin calls an import.
    pub(super) fn imported(&self, import: Import) {
        self.imports.add(import);
    }

    /// The plugin logs a line, which is written in the present span unless it was too many of late.
    pub(super) fn log(&self, line: &LogLine) {
        if line.is_wanted() && self.may_log_bytes(line.shown()) {
            line.emit();
        }
    }

    /// Whether one more line about the plugin may be logged; if not, it counts as dropped. Whoever logs what a plugin causes, as often as
    /// it likes, asks before.
    pub(super) fn may_log(&self) -> bool {
        self.may_log_bytes(0)
    }

    fn may_log_bytes(&self, bytes: usize) -> bool {
        let verdict = self.lines.take(self.origin.elapsed(), bytes);
        if let Some(dropped) = verdict.report {
            warn!(plugin = %self.plugin, dropped, "too much is logged by the plugin, or about its failures: lines are dropped");
        }
        verdict.may_log
    }

    /// A key of a controller is reconciled over and over, so long as `within` already. Says so; false: that was said of too many of late.
    pub(super) fn log_storm(&self, controller: &str, key: &Key, storm: &Storm<Cause>, within: Duration) -> bool {
        let said = self.may_log_storm();
        if said {
            let (reconciles, within, by) = (storm.reconciles, within.as_secs_f32(), storm.by.as_ref());
            warn!(
                plugin = %self.plugin, controller, %key, reconciles, within,
                cause = by.map(|by| by.cause.to_string()), wakes = by.map(|by| by.wakes), of = by.map(|by| by.of),
                "an object is reconciled over and over: from now on once in {} s", OPEN.as_secs(),
            );
        }
        said
    }

    /// A key has come to rest, so long `after` that began. Says so; false: that was said of too many of late.
    pub(super) fn log_settled(&self, controller: &str, key: &Key, storm: &Storm<Cause>, after: Duration) -> bool {
        let said = self.may_log_storm();
        if said {
            let reconciles = storm.reconciles;
            info!(plugin = %self.plugin, controller, %key, reconciles, ?after, "an object has come to rest");
        }
        said
    }

    fn may_log_storm(&self) -> bool {
        let verdict = self.storms.take(self.origin.elapsed(), 0);
        if let Some(dropped) = verdict.report {
            let plugin = &self.plugin;
            warn!(%plugin, dropped, "too many objects are reconciled over and over to name each: see /debug/plugins");
        }
        verdict.may_log
    }

    /// Lines by the plugin, or about its failures, that were dropped, as they were too many.
    pub fn lines_dropped(&self) -> u64 {
        self.lines.dropped()
    }

    /// Until when no key is to be handed out; none: they are.
    pub(super) fn held(&self) -> Option<Instant> {
        let held = self.inner.lock().quarantine.held(self.origin.elapsed());
        held.map(|until| self.origin + until)
    }

    /// A reconcile begins.
    pub(super) fn begin(&self) -> Call {
        self.inner.lock().quarantine.begin(self.origin.elapsed())
    }

    /// A reconcile ended as the contract has it, whether well or not.
    pub(super) fn succeeded(&self, call: Call) {
        if self.inner.lock().quarantine.succeeded(call) {
            info!(plugin = %self.plugin, "a call succeeded: the plugin is not quarantined any more");
            self.observer.quarantined(&self.plugin, false);
        }
    }

    /// A reconcile came to nothing. Notes it, and says it to people.
    pub(super) fn failed(&self, call: Call, failed: &Failed<'_>) {
        let Failed { controller, key, object, error, is_quotable } = *failed;
        let (kind, message) = (error.kind(), error.to_string());
        let backtrace = self.note(format!("reconcile of {key} ({controller})"), error, &message);
        if let Some(frames) = backtrace {
            let backtrace = (!frames.is_empty()).then(|| frames.join("\n"));
            warn!(kind, error = message, backtrace, "reconcile failed");
        }
        if !is_its_own_fault(error) {
            return;
        }
        let sentence = {
            let inner = &mut *self.inner.lock();
            let now = self.origin.elapsed();
            inner.quarantine.failed(now, call).map(|until| {
                inner.why.clone_from(&message);
                (until.saturating_sub(now), inner.quarantine.delays())
            })
        };
        let Some((delay, times)) = sentence else { return };
        if times == 1 {
            self.observer.quarantined(&self.plugin, true);
        }
        warn!(
            plugin = %self.plugin, times, ?delay, error = message,
            "the plugin is quarantined: its calls come to nothing; put a better one in its place, or POST /debug/plugins/{}/release",
            self.plugin,
        );
        let last = if is_quotable { message } else { format!("{kind}; {WITHHELD}") };
        let message = format!(
            "plugin {} is quarantined, and reconciles nothing for a while: {IN_A_ROW} calls in a row came to nothing; the last one: \
             {last}",
            self.plugin
        );
        self.events.tell(&self.plugin, object, Level::Warning, "PluginQuarantined", &message);
    }

    /// A reconcile failed in the plugin's own words, or over what it wants written. Says it in the present span; false: that was too much.
    pub(super) fn log_failure(&self, error: &str, terminal: bool) -> bool {
        let said = self.may_log();
        if said {
            // Not as `%error`: a plugin's text with line breaks would begin log lines of its own.
            warn!(error, terminal, "reconcile failed");
        }
        said
    }

    /// `map` or `observe` came to nothing, or failed in the plugin's own words. Says it in the present span, with the backtrace that this
    /// gives; none: that was too much.
    pub(super) fn hook_failed(&self, hook: Hook, objects: &str, error: &HookError) -> Option<Vec<String>> {
        let (message, kind, backtrace) = match error {
            HookError::Refused(message) => (message.clone(), None, self.may_log().then(Vec::new)),
            HookError::Call(error) => {
                let message = error.to_string();
                let backtrace = self.note(format!("{} of {objects}", hook.as_str()), error, &message);
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
            "the plugin could not take changes; they are tried again, each alone"
        );
        Some(frames)
    }

    /// Forgets all failures, for another revision or by hand. True: the plugin was quarantined. Whoever waits for its end must be woken.
    pub(super) fn release(&self) -> bool {
        let released = self.inner.lock().quarantine.release();
        if released {
            self.observer.quarantined(&self.plugin, false);
        }
        released
    }

    /// Keeps a failure to be looked at. None: it is not to be logged; else with its backtrace, where that was not logged of late.
    fn note(&self, call: String, error: &CallError, message: &str) -> Option<Vec<String>> {
        let said = self.may_log();
        let backtrace = error.backtrace().to_vec();
        let inner = &mut *self.inner.lock();
        *inner.traps.entry(error.kind()).or_default() += 1;
        inner.last = Some(CallFailure {
            at: Timestamp::now(),
            call,
            kind: error.kind(),
            message: message.to_owned(),
            backtrace: backtrace.clone(),
        });
        if !said {
            return None;
        }
        if backtrace.is_empty() || inner.said.get(error.kind()).is_some_and(|at| at.elapsed() < SAID_AGAIN) {
            return Some(Vec::new());
        }
        inner.said.insert(error.kind(), Instant::now());
        Some(backtrace)
    }
}

/// Where the deadline came while the host waited for the API server, or the host has not what an instance takes, the plugin can do nothing
/// about it.
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
    fn a_plugin_is_not_blamed_for_a_deadline_that_came_while_the_host_waited() {
        let deadline = |backtrace| CallError::Deadline { after: Duration::from_secs(1), backtrace };
        assert!(!is_its_own_fault(&deadline(Vec::new())));
        assert!(is_its_own_fault(&deadline(vec!["0: apples!eat".to_owned()])));
        assert!(is_its_own_fault(&CallError::Answer("nonsense".to_owned())));
        assert!(is_its_own_fault(&CallError::Instantiate("a thousand instances".to_owned())));
    }

    #[test]
    fn a_plugin_is_not_blamed_for_what_the_host_is_short_of() {
        assert!(!is_its_own_fault(&CallError::Host("Cannot allocate memory (os error 12)".to_owned())));
    }
}
