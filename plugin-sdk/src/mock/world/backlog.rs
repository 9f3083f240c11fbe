//! The changes that an observer has not handled: one entry for each object, in the order of the first change.

use serde_json::Value;

use super::{
    Id, State,
    view::{Cached, Sides},
};
use crate::contract::observing::exports::pilothouse::plugin::observer::Change;

/// The changes of one object since the observer last handled it.
struct Pending {
    id: Id,
    before: Option<Value>,
    now: Option<Value>,
    /// The last known state of an object that was added and deleted in between.
    last: Option<Value>,
    merged: u32,
    missed: bool,
}

#[derive(Default)]
pub(super) struct Backlog(Vec<Pending>);

impl Backlog {
    fn add(&mut self, id: &Id, (old, new): Sides, missed: bool) {
        match self.0.iter_mut().find(|pending| pending.id == *id) {
            Some(pending) => {
                pending.merged += 1;
                pending.missed = missed;
                pending.last = old;
                pending.now = new;
            }
            None => {
                let last = old.clone();
                self.0.push(Pending { id: id.clone(), before: old, now: new, last, merged: 1, missed });
            }
        }
    }

    /// Returns the changes as the observer gets them. They stay until [`clear`](Self::clear).
    pub(super) fn changes(&self) -> Vec<Change> {
        let text = |side: &Option<Value>| side.as_ref().map(Value::to_string);
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
                initial: false,
            }
        };
        self.0.iter().map(change).collect()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl State {
    /// Adds a change to the backlog, if it is observed.
    pub(super) fn record_change(&mut self, id: &Id, old: Option<&Value>, new: Option<&Value>, missed: bool) {
        let sides = self.manifest.observes.iter().find_map(|watch| Cached::new(watch).change(id, old, new));
        if let Some(sides) = sides {
            self.backlog.add(id, sides, missed);
        }
    }
}
