//! The interface `events` of the mock, and the Events of outcomes.

use std::{fmt, time::Duration};

use pilothouse_core::{
    event::{Event, KeyEvents, Level},
    grant::LackedBy,
    key as core,
};

use super::{Id, State, World};
use crate::{
    Key, TypeMeta, Verb,
    contract::pilothouse::plugin::{
        events::Error,
        types::{self as wire, EventType},
    },
    events::import::Functions,
    mock::bounds,
};

/// An Event as the cluster has it after the host has counted and combined equal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// The kind of the object that the Event is about.
    pub of: TypeMeta,
    /// The key of that object.
    pub key: Key,
    /// The type.
    pub of_type: EventType,
    /// The reason.
    pub reason: String,
    /// The message.
    pub message: String,
    /// How often it was written.
    pub count: u32,
    /// The name under which it is counted.
    name: String,
}

/// Shows an Event as `Warning Failed v1 Pod default/web: no (x2)`.
impl fmt::Display for RecordedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_type = match self.of_type {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        write!(f, "{of_type} {} {} {}: {}", self.reason, self.of, self.key, self.message)?;
        if self.count > 1 { write!(f, " (x{})", self.count) } else { Ok(()) }
    }
}

/// What a call leaves to the key's next one.
#[derive(Default)]
pub(super) struct Left {
    pub(super) status: Option<String>,
    pub(super) events: KeyEvents,
}

/// Why an Event is not written.
enum Refusal {
    /// The plugin has to be changed.
    Mistake(String),
    /// The administrator does not grant it.
    Denied(String),
    /// The object does not exist.
    Missing(String),
}

impl Functions for World {
    fn record(&self, event: &wire::Event) -> Result<(), Error> {
        const MOST: usize = pilothouse_core::event::MAX_EVENTS;
        let mut state = self.state_mut();
        let event = bounds::event(event).map_err(Error::Invalid)?;
        state.recorded += 1;
        if state.recorded > MOST {
            return Ok(());
        }
        let Some(own) = state.own.clone().or_else(|| event.about.as_ref().map(id)) else {
            let why = "the Event must say which object it is about: only a reconcile has an object of its own";
            return Err(Error::Invalid(why.to_owned()));
        };
        state.write_event(&own, &event).map_err(|refusal| match refusal {
            Refusal::Mistake(why) | Refusal::Denied(why) => Error::NotGranted(why),
            Refusal::Missing(why) => Error::Invalid(why),
        })
    }
}

impl World {
    /// Returns the Events of the cluster, in the order in which they were first written.
    pub(in crate::mock) fn events(&self) -> Vec<RecordedEvent> {
        self.state().events.clone()
    }

    /// Begins a call about this object, or another call.
    pub(in crate::mock) fn begin_call(&self, own: Option<Id>) {
        let mut state = self.state_mut();
        (state.own, state.recorded) = (own, 0);
    }
}

impl State {
    /// Writes the Events of an outcome. The real host leaves out what is refused, and logs it.
    ///
    /// # Panics
    /// If the manifest lacks what an Event needs.
    #[track_caller]
    pub(super) fn write_events(&mut self, own: &Id, events: Vec<Event>) {
        for event in events {
            if let Err(Refusal::Mistake(why)) = self.write_event(own, &event) {
                panic!(
                    "the host does not write the Event {:?}: {why}; ask for the permission with ControllerBuilder::events or \
                     Permission::events, and read the object that it is about",
                    event.reason
                );
            }
        }
    }

    fn write_event(&mut self, own: &Id, event: &Event) -> Result<(), Refusal> {
        let about = event.about.as_ref().map_or_else(|| own.clone(), id);
        if about != *own {
            self.check_event(Verb::Read, &about)?;
            let covered = self.may_read(&about.0, about.1.namespace.as_deref());
            covered.map_err(|_| Refusal::Mistake(format!("{} {} is not cached for this plugin", about.0, about.1)))?;
            if self.objects.get(&about).is_none_or(|object| self.view.show(object).is_none()) {
                return Err(Refusal::Missing(format!(
                    "{} {} is not in the cache, so it can have no Event",
                    about.0, about.1
                )));
            }
        }
        let namespace = about.1.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let written = (TypeMeta::new("v1", "Event"), Key::new(namespace, ""));
        self.check_event(Verb::Create, &written)?;
        self.count_event(about, event);
        Ok(())
    }

    fn check_event(&self, verb: Verb, id: &Id) -> Result<(), Refusal> {
        let name = (!id.1.name.is_empty()).then_some(&*id.1.name);
        match self.denied(verb, &id.0, None, id.1.namespace.as_deref(), name) {
            None => Ok(()),
            Some(denied) if denied.by == LackedBy::Administrator => Err(Refusal::Denied(denied.to_string())),
            Some(denied) => Err(Refusal::Mistake(denied.to_string())),
        }
    }

    /// Counts, combines and drops Events as the host does.
    fn count_event(&mut self, about: Id, event: &Event) {
        let now = Duration::try_from(self.now.duration_since(jiff::Timestamp::UNIX_EPOCH)).unwrap_or_default();
        let reason = (event.level, event.reason.clone());
        let name = self.events.len().to_string();
        let Some(act) = self.correlator.judge(now, &about, &reason, &event.message, || name) else { return };
        match self.events.iter_mut().find(|known| known.name == act.name) {
            Some(known) => (known.count, known.message) = (act.count, act.message),
            None => self.events.push(RecordedEvent {
                of: about.0,
                key: about.1,
                of_type: match event.level {
                    Level::Normal => EventType::Normal,
                    Level::Warning => EventType::Warning,
                },
                reason: event.reason.clone(),
                message: act.message,
                count: act.count,
                name: act.name,
            }),
        }
    }
}

fn id((of, key): &(core::TypeMeta, core::Key)) -> Id {
    (of.into(), key.into())
}
