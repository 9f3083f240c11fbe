//! Events of Kubernetes, as `kubectl describe` shows them.

use crate::{
    Key, Object, TypeMeta,
    contract::pilothouse::plugin::types::{self as wire, Reference},
};

/// An Event: what happened to an object, and why, for people.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use pilothouse_sdk::Event;
///
/// Event::normal("Scaled", "from 1 to 3 replicas");
/// Event::warning("Evicted", "the node is full").about::<Pod>(("default", "web-0"));
/// ```
///
/// An outcome's Events are written after its status: see [`Outcome::event`](crate::Outcome::event). To write one during a
/// call, use [`Events::record`](crate::events::Events::record).
///
/// A plugin with Events needs a permission: see [`ControllerBuilder::events`](crate::ControllerBuilder::events) and
/// [`Permission::events`](crate::Permission::events).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an Event does nothing by itself: give it to an outcome, or record it"]
pub struct Event(pub(crate) wire::Event);

impl Event {
    /// Creates an Event of the type `Normal`, about the reconciled object.
    ///
    /// `reason` is one word in `UpperCamelCase`, of at most 128 ASCII letters and digits. `message` is a sentence. The
    /// host cuts it to 1,024 bytes.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(wire::EventType::Normal, reason.into(), message.into())
    }

    /// Creates an Event of the type `Warning`, about the reconciled object: something that people should look at.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(wire::EventType::Warning, reason.into(), message.into())
    }

    fn new(of_type: wire::EventType, reason: String, message: String) -> Self {
        Self(wire::Event { about: None, of_type, reason, message })
    }

    /// Sets the object that the Event is about. The plugin must be able to read it from the [cache](crate::cache).
    pub fn about<K: Object>(self, key: impl Into<Key>) -> Self {
        self.about_a(K::type_meta(), key)
    }

    /// As [`about`](Self::about), for a kind that has no Rust type here.
    pub fn about_a(mut self, of: TypeMeta, key: impl Into<Key>) -> Self {
        let (TypeMeta { api_version, kind }, Key { namespace, name }) = (of, key.into());
        self.0.about = Some(Reference { api_version, kind, namespace, name });
        self
    }
}
