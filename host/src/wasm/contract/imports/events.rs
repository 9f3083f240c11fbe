//! `events`: Events that plugins record during a call.

use pilothouse_core::event::{Event, Level, MAX_EVENTS};
use wasmtime::Result;

use super::{
    super::{
        arguments::{self, text_bytes},
        bindings::pilothouse::plugin::{events, types},
    },
    Imports,
    host_state::HostState,
    interface,
};
pub use crate::wasm::contract::bindings::pilothouse::plugin::events::Error as EventError;

interface!(EventsCall, "events", { Record = "record" });

/// What the caller supplies for `events`.
pub trait EventsImports {
    /// Queues an Event.
    fn record(&self, event: &Event) -> Result<(), EventError>;

    /// Counts Events that are dropped because the call recorded too many.
    fn drop_events(&self, count: usize);
}

/// What `events` remembers during one call.
#[derive(Default)]
pub(super) struct State {
    recorded: usize,
}

impl State {
    /// Reports how many Events of the call were dropped.
    pub(super) fn finish(&self, imports: &dyn Imports) {
        if let Some(dropped @ 1..) = self.recorded.checked_sub(MAX_EVENTS) {
            imports.drop_events(dropped);
        }
    }
}

impl events::Host for HostState {
    fn record(&mut self, event: types::Event) -> Result<Result<(), EventError>> {
        let imports = self.open(EventsCall::Record, event_bytes(&event))?;
        let recorded = &mut self.call.interfaces.events.recorded;
        *recorded = recorded.saturating_add(1);
        if *recorded > MAX_EVENTS {
            return Ok(Ok(()));
        }
        Ok(match read(event) {
            Ok(event) => imports.record(&event),
            Err(why) => Err(EventError::Invalid(why)),
        })
    }
}

/// Checks an Event of a plugin.
pub(crate) fn read(event: types::Event) -> Result<Event, String> {
    let types::Event { about, of_type, reason, message } = event;
    let about = about.map(|types::Reference { api_version, kind, namespace, name }| {
        let of = arguments::type_meta(&types::TypeMeta { api_version, kind })?;
        Ok::<_, String>((of, arguments::key(namespace.as_deref(), &name)?))
    });
    let level = match of_type {
        types::EventType::Normal => Level::Normal,
        types::EventType::Warning => Level::Warning,
    };
    Event::new(about.transpose()?, level, reason, &message)
}

/// Returns the bytes of what a guest hands over.
fn event_bytes(event: &types::Event) -> usize {
    let about = event.about.as_ref().map_or(0, |about| {
        about.api_version.len() + about.kind.len() + text_bytes(about.namespace.as_ref()) + about.name.len()
    });
    about + event.reason.len() + event.message.len()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::sync::Arc;

    use super::{
        super::super::super::testing::{Fake, state},
        *,
    };

    fn event(reason: &str, name: &str) -> types::Event {
        let about = types::Reference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: Some("n".to_owned()),
            name: name.to_owned(),
        };
        let (of_type, message) = (types::EventType::Warning, "no".to_owned());
        types::Event { about: Some(about), of_type, reason: reason.to_owned(), message }
    }

    #[test]
    fn events_of_a_call_are_bounded_and_the_rest_is_counted() {
        let imports = Arc::new(Fake::default());
        let mut state = state(&imports);
        for _ in 0..MAX_EVENTS + 3 {
            events::Host::record(&mut state, event("Failed", "a")).unwrap().unwrap();
        }
        state.close();
        assert_eq!((imports.events.lock().len(), *imports.dropped_events.lock()), (MAX_EVENTS, 3));
    }

    #[test]
    fn an_event_that_is_not_valid_is_not_recorded() {
        let imports = Arc::new(Fake::default());
        let mut state = state(&imports);
        let mut record = |reason: &str, name: &str| {
            let Err(EventError::Invalid(why)) = events::Host::record(&mut state, event(reason, name)).unwrap() else {
                panic!("it is recorded")
            };
            why
        };
        assert!(record("it failed", "a").contains("UpperCamelCase"));
        assert_eq!(record("Failed", ""), "the name is empty");
        assert_eq!(record("Failed", &"a".repeat(1025)), "the name: has 1025 bytes, and at most 1024 are taken");
        assert!(imports.events.lock().is_empty());
    }

    #[test]
    fn every_text_is_measured() {
        assert_eq!(event_bytes(&event("333", "22")), "v1Pod".len() + 1 + 2 + 3 + 2);
    }
}
