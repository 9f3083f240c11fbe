//! Results of a plugin's calls, for tests to inspect.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Dynamic, Event, Object, TypeMeta, contract::exports::pilothouse::plugin::controller as wire};

/// The outcome of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome(wire::Outcome);

impl Outcome {
    pub(super) fn new(wire: wire::Outcome) -> Self {
        Self(wire)
    }

    /// Returns an outcome that changes nothing.
    pub(super) fn empty() -> Self {
        let (children, watches) = (wire::Children::Unchanged, wire::Watches::Unchanged);
        Self(wire::Outcome { children, status: None, requeue_after: None, watches, events: Vec::new() })
    }

    /// Returns the desired children of kind `K`, in the plugin's order. Returns none if the children are left as they
    /// are: see [`leaves_children`](Self::leaves_children).
    ///
    /// # Panics
    /// Panics if one of them cannot be decoded as `K`.
    #[track_caller]
    pub fn children<K: Object>(&self) -> Vec<K> {
        let wire::Children::Desired(children) = &self.0.children else { return Vec::new() };
        let children =
            children.iter().map(|child| serde_json::from_str::<Value>(&child.object).expect("a child is JSON"));
        let of = |child: &Value| {
            let text = |member: &str| child[member].as_str().unwrap_or_default().to_owned();
            TypeMeta::new(text("apiVersion"), text("kind"))
        };
        let fitting = children.filter(|child| of(child) == K::type_meta());
        fitting.map(|child| serde_json::from_value(child).expect("the child fits its type")).collect()
    }

    /// As [`children`](Self::children), for a kind that is known only at run time.
    ///
    /// # Panics
    /// Panics if one of them has no valid metadata.
    #[track_caller]
    pub fn children_of(&self, of: &TypeMeta) -> Vec<Dynamic> {
        let wire::Children::Desired(children) = &self.0.children else { return Vec::new() };
        let children =
            children.iter().map(|child| serde_json::from_str::<Dynamic>(&child.object).expect("a child is an object"));
        children.filter(|child| child.type_meta() == *of).collect()
    }

    /// Returns `true` if the children are left as they are.
    pub fn leaves_children(&self) -> bool {
        self.0.children == wire::Children::Unchanged
    }

    /// Returns the desired status.
    ///
    /// # Panics
    /// Panics if there is none, or if it cannot be decoded as `S`.
    #[track_caller]
    pub fn status<S: DeserializeOwned>(&self) -> S {
        let Some(status) = &self.0.status else { panic!("the outcome has no status") };
        serde_json::from_str(status).expect("the status fits its type")
    }

    /// Returns `true` if the status is left as it is.
    pub fn leaves_status(&self) -> bool {
        self.0.status.is_none()
    }

    /// Returns the kinds that the outcome asks to be watched, in the plugin's order. Returns none if it leaves the
    /// watches as they are: see [`leaves_watches`](Self::leaves_watches).
    pub fn watches(&self) -> Vec<TypeMeta> {
        let wire::Watches::Desired(watches) = &self.0.watches else { return Vec::new() };
        watches.iter().map(|watch| watch.of.clone()).collect()
    }

    /// Returns `true` if the watches of the key are left as they are.
    pub fn leaves_watches(&self) -> bool {
        matches!(self.0.watches, wire::Watches::Unchanged)
    }

    /// Returns the Events, in the plugin's order.
    pub fn events(&self) -> Vec<Event> {
        self.0.events.iter().cloned().map(Event).collect()
    }

    /// Returns the time after which the plugin wants to be called again.
    pub fn requeue_after(&self) -> Option<Duration> {
        self.0.requeue_after.map(Duration::from_millis)
    }

    /// Returns the outcome in the types of the contract.
    pub fn wire(&self) -> &wire::Outcome {
        &self.0
    }
}

/// Why a reconcile failed, or why its outcome could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The message of the plugin, or of the write that failed.
    pub message: String,
    /// `true` if the host does not retry until something changes.
    pub terminal: bool,
    /// The status that is written in spite of the failure, as JSON.
    pub status: Option<String>,
    /// The Events that are written in spite of the failure.
    pub events: Vec<Event>,
}

impl Failure {
    pub(super) fn retry(message: String) -> Self {
        Self { message, terminal: false, status: None, events: Vec::new() }
    }
}

impl From<wire::Failure> for Failure {
    fn from(wire::Failure { message, terminal, status, events }: wire::Failure) -> Self {
        Self { message, terminal, status, events: events.into_iter().map(Event).collect() }
    }
}
