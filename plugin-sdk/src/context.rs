//! One call of a reconcile: which key, why, when, and the way to the host.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

pub use crate::contract::exports::pilothouse::plugin::controller::Phase;
use crate::{
    Key, Object,
    cache::Cache,
    client::Client,
    clock,
    condition::{self, ConditionStatus},
    contract::exports::pilothouse::plugin::controller::Request,
};

/// What a reconcile knows besides the object, and what it may ask of the host.
#[derive(Debug)]
pub struct Context {
    controller: String,
    key: Key,
    phase: Phase,
    attempt: u32,
    last_error: Option<String>,
    generation: Option<i64>,
}

impl Context {
    pub(crate) fn new<K: Object>(request: Request, object: &K) -> Self {
        Self {
            controller: request.controller,
            key: request.key,
            phase: request.phase,
            attempt: request.attempt,
            last_error: request.last_error,
            generation: object.metadata().generation,
        }
    }

    /// The controller's name in the manifest.
    pub fn controller(&self) -> &str {
        &self.controller
    }

    /// Which object is reconciled.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Whether the object is there, marked for deletion, or gone (then it is its last known state).
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// 1 for the first try since the last success.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Why the try before this one failed, where [`attempt`](Self::attempt) is greater than 1: an error of the plugin, a
    /// child that could not be written, a status that was refused.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// When this call began. The same all through the call.
    ///
    /// # Panics
    /// Where the host's clock stands beyond the year 9999, which the contract cannot rule out.
    pub fn now(&self) -> Timestamp {
        clock::now()
    }

    /// Reads from the host's cache: what the plugin's controllers are for, own, watch or read, and what it observes.
    ///
    /// What is read is remembered: see [`ControllerBuilder::reads`](crate::ControllerBuilder::reads).
    pub fn cache(&self) -> Cache<'_> {
        Cache::new()
    }

    /// Requests to the API server in the plugin's name.
    pub fn client(&self) -> Client<'_> {
        Client::new()
    }

    /// A condition of the reconciled object as of now, to be put into its [`Conditions`](crate::Conditions).
    ///
    /// `observedGeneration` is the object's `metadata.generation`; `lastTransitionTime` is [`now`](Self::now), which
    /// [`Conditions::set`](crate::Conditions::set) replaces where the status has not changed. `reason` is one word in
    /// CamelCase for programs, `message` a sentence for people.
    pub fn condition(
        &self,
        type_: impl Into<String>,
        status: impl Into<ConditionStatus>,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Condition {
        condition::at(self.now(), self.generation, type_.into(), status.into(), reason.into(), message.into())
    }
}
