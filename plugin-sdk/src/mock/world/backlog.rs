//! The changes that an observer has not handled: one entry for each object, in the order of the first change.

use std::sync::Arc;

use pilothouse_core::{manifest::Watch, object::Object, store};
use serde_json::Value;

use super::{Id, State, view};
use crate::contract::observing::exports::pilothouse::plugin::observer::Change;

/// The changes of one object since the observer last handled it.
struct Pending {
    id: Id,
    before: Option<Arc<Object>>,
    now: Option<Arc<Object>>,
    /// The last known state of an object that was added and deleted in between.
    last: Option<Arc<Object>>,
    merged: u32,
    missed: bool,
    /// The last addition in it was of an object that existed before the first call of the observer.
    initial: bool,
}

/// Objects count as initial until the first call of the observer.
#[derive(Default)]
pub(super) struct Backlog {
    pending: Vec<Pending>,
    has_begun: bool,
}

impl Backlog {
    fn add(&mut self, id: &Id, store::Change { old, new, missed }: store::Change) {
        let initial = !self.has_begun;
        match self.pending.iter_mut().find(|pending| pending.id == *id) {
            Some(pending) => {
                pending.merged += 1;
                if old.is_none() {
                    pending.initial = initial;
                }
                pending.missed = missed;
                pending.last = old;
                pending.now = new;
            }
            None => {
                let last = old.clone();
                let pending = Pending { id: id.clone(), before: old, now: new, last, merged: 1, missed, initial };
                self.pending.push(pending);
            }
        }
    }

    /// Returns the changes for a call of the observer. They stay until [`clear`](Self::clear).
    pub(super) fn take(&mut self) -> Vec<Change> {
        self.has_begun = true;
        let text = |side: &Option<Arc<Object>>| side.as_ref().map(|object| object.json().into_owned());
        let change = |pending: &Pending| {
            let old = if pending.now.is_none() && pending.before.is_none() { &pending.last } else { &pending.before };
            // A deletion reports the last known state, not the state before earlier changes.
            let old = if pending.now.is_none() && pending.last.is_some() { &pending.last } else { old };
            Change {
                of: pending.id.0.clone(),
                old: text(old),
                new: text(&pending.now),
                merged: pending.merged,
                missed: pending.missed && pending.now.is_none(),
                initial: pending.initial && pending.before.is_none() && pending.now.is_some(),
            }
        };
        self.pending.iter().map(change).collect()
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }
}

impl State {
    /// Adds a change to the backlog, if it is observed.
    pub(super) fn record_change(&mut self, id: &Id, old: Option<&Value>, new: Option<&Value>, missed: bool) {
        let of = (&id.0).into();
        let named: Vec<&Watch> = self.checked.observes.iter().filter(|watch| watch.of == of).collect();
        let change = match self.checked.observed(&of) {
            Some(watch) => view::change(&watch, old, new, missed),
            None => named.into_iter().find_map(|watch| view::change(watch, old, new, missed)),
        };
        if let Some(change) = change {
            self.backlog.add(id, change);
        }
    }
}
