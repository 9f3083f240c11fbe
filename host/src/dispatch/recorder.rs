//! Events of one plugin, within its grants.
//!
//! The object of an Event is looked up in the cache, with the grants of the plugin. So an Event reveals nothing that
//! the plugin could not read, and has the uid by which `kubectl describe` finds it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use pilothouse_core::{
    event::{Event, Release},
    grant::Grants,
    key::TypeMeta,
    manifest::Verb,
    object::Object,
};
use tracing::warn;

use super::{reader::Reader, record::Record};
use crate::{
    cluster::Actor,
    wasm::{EventError, ReadError},
    writer::{Fate, Source},
};

/// Writes the Events of one plugin.
pub(super) struct Recorder {
    record: Arc<Record>,
    grants: Arc<ArcSwap<Grants>>,
    /// The service account that sends the plugin's Events. `None` for the host's own.
    actor: Option<Arc<Actor>>,
}

impl Recorder {
    pub(super) fn new(record: Arc<Record>, grants: Arc<ArcSwap<Grants>>, actor: Option<Arc<Actor>>) -> Self {
        Self { record, grants, actor }
    }

    /// Queues an Event. `own` is the object that is reconciled. `None` outside of a reconcile.
    ///
    /// # Errors
    /// If the plugin may not write the Event, or if the object does not exist.
    pub(super) fn record(&self, reader: &Reader, own: Option<&Object>, event: &Event) -> Result<(), EventError> {
        let queued = self.queue(reader, own, event);
        if queued.is_err() {
            self.count(Fate::Refused, 1);
        }
        queued
    }

    /// Queues what is to be written of an outcome. Logs what is refused, which fails nothing.
    pub(super) fn release(&self, reader: &Reader, own: &Object, release: Release) {
        self.count(Fate::Dropped, release.dropped);
        for event in release.events {
            if let Err(error) = self.record(reader, Some(own), &event)
                && self.record.may_log()
            {
                let (EventError::NotGranted(why) | EventError::Invalid(why)) = error;
                warn!(reason = event.reason, why, "an Event of the plugin is not written");
            }
        }
    }

    /// Counts Events that are not written.
    pub(super) fn count(&self, fate: Fate, count: usize) {
        self.record.events().count(self.record.plugin(), fate, count);
    }

    fn queue(&self, reader: &Reader, own: Option<&Object>, event: &Event) -> Result<(), EventError> {
        let other;
        let object = match (&event.about, own) {
            (None, Some(own)) => own,
            (None, None) => {
                return Err(EventError::Invalid(
                    "the Event must say which object it is about: only a reconcile has an object of its own".to_owned(),
                ));
            }
            (Some((of, key)), Some(own)) if of == own.type_meta() && key == own.key() => own,
            (Some((of, key)), _) => {
                let found = reader.look_up(of, key).map_err(|error| match error {
                    ReadError::NotGranted(why) => EventError::NotGranted(why),
                    ReadError::Invalid(why) => EventError::Invalid(why),
                    ReadError::TooLarge(bytes) => EventError::Invalid(format!("{of} {key} has {bytes} bytes")),
                })?;
                let gone = || EventError::Invalid(format!("{of} {key} is not in the cache, so it can have no Event"));
                other = found.ok_or_else(gone)?;
                &*other
            }
        };
        // As for all Events about objects without a namespace.
        let namespace = object.key().namespace.as_deref().unwrap_or("default");
        let granted =
            self.grants.load().check(Verb::Create, &TypeMeta::new("v1", "Event"), None, Some(namespace), None);
        granted.map_err(|denied| EventError::NotGranted(denied.to_string()))?;
        if let Err(closed) = self.record.fence().check() {
            return Err(EventError::NotGranted(closed.to_string()));
        }
        let source = Source::Plugin(self.record.plugin().clone());
        let text = (&*event.reason, &*event.message);
        self.record.events().record_as(self.actor.clone(), source, object, event.level, text);
        Ok(())
    }
}
