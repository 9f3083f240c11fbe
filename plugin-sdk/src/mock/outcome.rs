//! What a plugin answered, to be looked at by a test.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Object, TypeMeta, contract::exports::pilothouse::plugin::controller as wire};

/// What a reconcile wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome(wire::Outcome);

impl Outcome {
    pub(super) fn new(wire: wire::Outcome) -> Self {
        Self(wire)
    }

    /// The children of kind `K` that should exist, in the order in which the plugin names them. None where there are no such
    /// children, and where children are left as they are: [`leaves_children`](Self::leaves_children) tells the two apart.
    ///
    /// # Panics
    /// Where one does not fit `K`.
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

    /// Whether the children are left as they are.
    pub fn leaves_children(&self) -> bool {
        self.0.children == wire::Children::Unchanged
    }

    /// The status that the object should have.
    ///
    /// # Panics
    /// Where the plugin gave none, or it does not fit `S`.
    #[track_caller]
    pub fn status<S: DeserializeOwned>(&self) -> S {
        let Some(status) = &self.0.status else { panic!("the outcome has no status") };
        serde_json::from_str(status).expect("the status fits its type")
    }

    /// Whether the status is left as it is.
    pub fn leaves_status(&self) -> bool {
        self.0.status.is_none()
    }

    /// After which time the plugin wants to be called again though nothing changes.
    pub fn requeue_after(&self) -> Option<Duration> {
        self.0.requeue_after.map(Duration::from_millis)
    }

    /// As it crosses the border.
    pub fn wire(&self) -> &wire::Outcome {
        &self.0
    }
}

/// Why a reconcile did not succeed, or why what it wanted could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What the plugin said, or what a write failed with.
    pub message: String,
    /// Whether the host tries again before something changes: not if this is true.
    pub terminal: bool,
    /// The status that the object should have although, as JSON.
    pub status: Option<String>,
}

impl Failure {
    pub(super) fn retry(message: String) -> Self {
        Self { message, terminal: false, status: None }
    }
}

impl From<wire::Failure> for Failure {
    fn from(wire::Failure { message, terminal, status }: wire::Failure) -> Self {
        Self { message, terminal, status }
    }
}
