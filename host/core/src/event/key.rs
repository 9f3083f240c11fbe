//! Decides when the Events of one key's calls are written, and which of them a repeated call has returned before.
//!
//! A transition that an Event reports is a difference between what a call reads and what it writes. A call that is
//! repeated before the cluster shows what it wrote finds the same difference, and returns the same Event. So:
//!
//! - The Events of a call are written after its status. If the status is postponed, or cannot be written, they wait for
//!   the key's next call, and are written with the Events of that call. Equal Events are one.
//! - If another write of an outcome fails, its Events are written, because its status is there. Until a call of the key
//!   succeeds, equal Events of further outcomes are not written again.
//! - The Events of a failure that the plugin returns are written for each attempt. The
//!   [`Correlator`](super::Correlator) counts equal ones, so that people see how often it failed.

use super::draft::{Event, MAX_EVENTS};

/// The Events of one key's calls, as far as the next call of the key needs them.
///
/// ```
/// use pilothouse_core::event::{Event, KeyEvents, Level, StatusWrite};
///
/// let ready = || vec![Event::new(None, Level::Normal, "Ready".to_owned(), "all replicas run").unwrap()];
/// let mut events = KeyEvents::default();
/// // The status is postponed, so the call is repeated, and returns the Event again.
/// events.add(ready());
/// assert_eq!(events.release(StatusWrite::Open, false), []);
/// events.add(ready());
/// assert_eq!(events.release(StatusWrite::Written, false), ready());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyEvents {
    /// Wait for a status. At most [`MAX_EVENTS`].
    waiting: Vec<Event>,
    /// Written, and may be returned again by a call that is repeated. At most [`MAX_EVENTS`].
    written: Vec<Event>,
}

/// What became of the status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWrite {
    /// The call has no status.
    None,
    /// The cluster shows the status.
    Written,
    /// The status was postponed, or could not be written.
    Open,
}

/// What becomes of the Events of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the driver writes the Events"]
pub struct Release {
    /// The Events to write now, in the order in which calls returned them.
    pub events: Vec<Event>,
    /// Number of Events that were dropped because too many wait.
    pub dropped: usize,
}

impl KeyEvents {
    /// Returns `true` if the next call of the key needs nothing of it.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.written.is_empty()
    }

    /// Returns how many Events wait for a status.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the bytes of memory that the Events take.
    pub fn bytes(&self) -> usize {
        self.waiting.iter().chain(&self.written).map(Event::bytes).sum()
    }

    /// Adds the Events of an outcome, which then wait for its status. Returns how many were dropped because too many
    /// wait.
    pub fn add(&mut self, events: Vec<Event>) -> usize {
        let new = self.new_ones(events);
        self.waiting.extend(new);
        let dropped = self.waiting.len().saturating_sub(MAX_EVENTS);
        self.waiting.truncate(MAX_EVENTS);
        dropped
    }

    /// Returns the Events to write now that an outcome was carried out. `is_failed` is `true` if one of its writes
    /// failed, so that the call is repeated.
    pub fn release(&mut self, status: StatusWrite, is_failed: bool) -> Vec<Event> {
        if status == StatusWrite::Open {
            return Vec::new();
        }
        let events = std::mem::take(&mut self.waiting);
        if is_failed {
            self.remember(&events);
        } else {
            self.written.clear();
        }
        events
    }

    /// Adds the Events of a failure that the plugin returned. `is_last` is `true` if the host does not call again.
    pub fn failure(&mut self, events: Vec<Event>, status: StatusWrite, is_last: bool) -> Release {
        if status == StatusWrite::Open && !is_last {
            return Release { events: Vec::new(), dropped: self.add(events) };
        }
        let new = self.new_ones(events);
        match status {
            // What waits belongs to another status, which the next outcome writes.
            StatusWrite::None if !is_last => Release { events: new, dropped: 0 },
            _ => {
                let mut events = std::mem::take(&mut self.waiting);
                if is_last {
                    self.written.clear();
                } else {
                    self.remember(&events);
                }
                events.extend(new);
                Release { events, dropped: 0 }
            }
        }
    }

    /// Returns the Events that wait, after their status was written without a further call.
    pub fn into_waiting(self) -> Vec<Event> {
        self.waiting
    }

    /// Returns the Events that no earlier call returned, each once.
    fn new_ones(&self, events: Vec<Event>) -> Vec<Event> {
        let mut new: Vec<Event> = Vec::new();
        for event in events {
            if !self.waiting.contains(&event) && !self.written.contains(&event) && !new.contains(&event) {
                new.push(event);
            }
        }
        new
    }

    fn remember(&mut self, events: &[Event]) {
        self.written.extend_from_slice(events);
        let surplus = self.written.len().saturating_sub(MAX_EVENTS);
        self.written.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Level;

    fn event(reason: &str) -> Event {
        Event { about: None, level: Level::Normal, reason: reason.to_owned(), message: String::new() }
    }

    fn events(reasons: &[&str]) -> Vec<Event> {
        reasons.iter().map(|reason| event(reason)).collect()
    }

    /// Adds an outcome, and returns the reasons of what is written.
    fn outcome(of: &mut KeyEvents, reasons: &[&str], status: StatusWrite, is_failed: bool) -> Vec<String> {
        assert_eq!(of.add(events(reasons)), 0);
        of.release(status, is_failed).into_iter().map(|event| event.reason).collect()
    }

    fn failure(of: &mut KeyEvents, reasons: &[&str], status: StatusWrite, is_last: bool) -> Vec<String> {
        let release = of.failure(events(reasons), status, is_last);
        release.events.into_iter().map(|event| event.reason).collect()
    }

    #[test]
    fn a_transition_that_waits_for_its_status_and_is_returned_again_is_one_event() {
        let of = &mut KeyEvents::default();
        assert_eq!(outcome(of, &["Ready", "Made"], StatusWrite::Open, false), [""; 0]);
        // The next call sees the child, and not the status.
        assert_eq!(outcome(of, &["Ready"], StatusWrite::Written, false), ["Ready", "Made"]);
        assert!(of.is_empty());
        // The same transition later is another one.
        assert_eq!(outcome(of, &["Ready"], StatusWrite::Written, false), ["Ready"]);
        assert!(of.is_empty());
    }

    #[test]
    fn events_of_a_status_that_cannot_be_written_wait_until_it_can() {
        let of = &mut KeyEvents::default();
        for _ in 0..5 {
            assert_eq!(outcome(of, &["Ready"], StatusWrite::Open, true), [""; 0]);
        }
        // The plugin fails meanwhile, and says nothing of a status.
        assert_eq!(failure(of, &["Away"], StatusWrite::None, false), ["Away"]);
        assert_eq!(outcome(of, &["Ready"], StatusWrite::Written, false), ["Ready"]);
        assert!(of.is_empty());
    }

    #[test]
    fn an_event_of_an_outcome_whose_child_failed_is_written_once_until_a_call_succeeds() {
        let of = &mut KeyEvents::default();
        assert_eq!(outcome(of, &["Making"], StatusWrite::Written, true), ["Making"]);
        assert_eq!(outcome(of, &["Making"], StatusWrite::None, true), [""; 0]);
        assert_eq!(failure(of, &["Away"], StatusWrite::None, false), ["Away"]);
        assert_eq!(outcome(of, &["Making"], StatusWrite::None, false), [""; 0]);
        assert!(of.is_empty());
        assert_eq!(outcome(of, &["Making"], StatusWrite::None, false), ["Making"]);
    }

    #[test]
    fn each_attempt_that_fails_has_its_events() {
        let of = &mut KeyEvents::default();
        for status in [StatusWrite::None, StatusWrite::Written, StatusWrite::None] {
            assert_eq!(failure(of, &["Away", "Away"], status, false), ["Away"]);
        }
        assert!(of.is_empty());
    }

    #[test]
    fn nothing_waits_for_a_call_that_does_not_come() {
        let of = &mut KeyEvents::default();
        assert_eq!(outcome(of, &["Ready"], StatusWrite::Open, true), [""; 0]);
        assert_eq!(failure(of, &["GaveUp"], StatusWrite::Open, true), ["Ready", "GaveUp"]);
        assert!(of.is_empty());
    }

    #[test]
    fn an_event_of_a_postponed_status_that_a_failure_writes_is_not_written_again() {
        let of = &mut KeyEvents::default();
        assert_eq!(outcome(of, &["Ready"], StatusWrite::Open, false), [""; 0]);
        assert_eq!(failure(of, &["Away"], StatusWrite::Written, false), ["Ready", "Away"]);
        assert_eq!(outcome(of, &["Ready"], StatusWrite::Written, false), [""; 0]);
        assert!(of.is_empty());
    }

    #[test]
    fn invariant_12_what_waits_and_what_is_remembered_is_bounded() {
        let of = &mut KeyEvents::default();
        let many = |from: usize| (from..from + 200).map(|number| event(&format!("E{number}"))).collect::<Vec<_>>();
        assert_eq!(of.add(many(0)), 0);
        assert_eq!(of.add(many(200)), 400 - MAX_EVENTS);
        assert_eq!(of.add(many(0)), 0);
        assert_eq!(of.release(StatusWrite::Written, true).len(), MAX_EVENTS);
        assert_eq!(of.add(many(1_000)), 0);
        assert_eq!(of.release(StatusWrite::Written, true).len(), 200);
        assert_eq!((of.waiting.len(), of.written.len()), (0, MAX_EVENTS));
    }
}
