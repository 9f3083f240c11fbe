//! The context of one call of a reconcile: the key, the reason, the time, and access to the host.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

pub use crate::contract::exports::pilothouse::plugin::controller::Phase;
use crate::{
    AnyObject, Key,
    cache::Cache,
    client::Client,
    clock,
    condition::{self, ConditionStatus},
    contract::exports::pilothouse::plugin::controller::Request,
    events::Events,
    http::Http,
};

/// What a reconcile knows about its call, and what it can call in the host.
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
    pub(crate) fn new<K: AnyObject>(request: Request, object: &K) -> Self {
        Self {
            controller: request.controller,
            key: request.key,
            phase: request.phase,
            attempt: request.attempt,
            last_error: request.last_error,
            generation: object.meta_of().generation,
        }
    }

    /// Returns the controller's name in the manifest.
    pub fn controller(&self) -> &str {
        &self.controller
    }

    /// Returns the key of the reconciled object.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns whether the object exists, is being deleted, or is gone. If it is gone, the reconcile gets its last
    /// known state.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns 1 for the first attempt after a success, then 2, and so on.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns why the previous attempt failed, if [`attempt`](Self::attempt) is greater than 1. It may be an error of
    /// the plugin, a child that could not be written, or a status that was rejected.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Returns when this call began. The time stays the same during the call.
    ///
    /// # Panics
    /// Panics if the host's clock is past the year 9999. The contract cannot rule that out.
    pub fn now(&self) -> Timestamp {
        clock::now()
    }

    /// Returns the host's cache, with the kinds that the plugin's controllers are for, own, watch or read, and those
    /// that it observes.
    ///
    /// The host tracks these reads: see [`ControllerBuilder::reads`](crate::ControllerBuilder::reads).
    pub fn cache(&self) -> Cache<'_> {
        Cache::new()
    }

    /// Returns the client, which sends requests to the API server in the plugin's name.
    pub fn client(&self) -> Client<'_> {
        Client::new()
    }

    /// Returns what records Events during the call. [`Outcome::event`](crate::Outcome::event) is better for an Event about
    /// what the outcome changes.
    pub fn events(&self) -> Events<'_> {
        Events::new()
    }

    /// Returns the client for servers outside the cluster's API.
    pub fn http(&self) -> Http<'_> {
        Http::new()
    }

    /// Creates a condition of the reconciled object, for its [`Conditions`](crate::Conditions).
    ///
    /// `reason` is one CamelCase word for programs, and `message` a sentence for people. `observedGeneration` is set to
    /// the object's `metadata.generation`, and `lastTransitionTime` to [`now`](Self::now).
    /// [`Conditions::set`](crate::Conditions::set) keeps the old time if the status is the same.
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
