//! Describes and runs one call of a reconcile.

use super::{Failure, MockHost, Outcome, bounds};
use crate::{Key, Object, Phase, contract::exports::pilothouse::plugin::controller as wire};

/// One call of a reconcile, from [`MockHost::request`].
#[derive(Clone, Debug)]
#[must_use = "call `run`"]
pub struct Request<'a> {
    host: &'a MockHost,
    key: Key,
    controller: Option<String>,
    gone: Option<String>,
    attempt: u32,
    last_error: Option<String>,
}

impl<'a> Request<'a> {
    pub(super) fn new(host: &'a MockHost, key: Key) -> Self {
        Self { host, key, controller: None, gone: None, attempt: 1, last_error: None }
    }

    /// Sets the controller, if the plugin has several.
    pub fn controller(mut self, name: impl Into<String>) -> Self {
        self.controller = Some(name.into());
        self
    }

    /// Sets the number of the attempt, and why the previous one failed.
    pub fn attempt(self, attempt: u32, last_error: impl Into<String>) -> Self {
        self.again(attempt, Some(last_error.into()))
    }

    pub(super) fn again(mut self, attempt: u32, last_error: Option<String>) -> Self {
        self.attempt = attempt;
        self.last_error = last_error;
        self
    }

    /// Reports the object as gone, with its last known state.
    ///
    /// # Panics
    /// Panics if it cannot be serialized.
    #[track_caller]
    pub fn gone(mut self, last: &impl Object) -> Self {
        self.gone = Some(last.to_json().expect("the object can be JSON"));
        self
    }

    /// Calls the plugin. If the call succeeds, its reads [wake](MockHost::woken_by) the key from then on.
    ///
    /// # Errors
    /// Fails if the plugin's call fails.
    ///
    /// # Panics
    /// Panics if the object or the controller does not exist.
    #[track_caller]
    pub fn run(self) -> Result<Outcome, Failure> {
        self.carried_out(|_| Ok(()))
    }

    /// Calls the plugin, and passes the result to `carry_out`. The call succeeds only if that succeeds, too.
    #[track_caller]
    pub(super) fn carried_out(
        self,
        carry_out: impl FnOnce(&Result<Outcome, Failure>) -> Result<(), Failure>,
    ) -> Result<Outcome, Failure> {
        let Self { host, key, controller, gone, attempt, last_error } = self;
        let controller = match &controller {
            None => host.only_controller(),
            Some(name) => match host.manifest.controllers.iter().find(|controller| controller.name == *name) {
                Some(controller) => controller,
                None => panic!("the plugin has no controller {name:?}"),
            },
        };
        let (object, phase) = match gone {
            Some(last) => (last, Phase::Gone),
            None => match host.world.reconciled(&controller.name, &key) {
                Some(object) if object.is_deleting() => (object.json().into_owned(), Phase::Deleting),
                Some(object) => (object.json().into_owned(), Phase::Live),
                None => panic!("there is no {} {key}: add it with MockHost::with", controller.for_.of),
            },
        };
        let name = &controller.name;
        let request = wire::Request { controller: name.clone(), key: key.clone(), object, phase, attempt, last_error };
        host.world.begin_call(Some((controller.for_.of.clone(), key.clone())));
        host.world.begin_reading(name, &key);
        let result = host.world.serve(|| (host.exported.reconcile)(request));
        let result = match bounds::answer(&result) {
            Ok(()) => result.map(Outcome::new).map_err(Failure::from),
            Err(unusable) => Err(Failure::retry(unusable)),
        };
        host.world.begin_call(None);
        let written = carry_out(&result);
        let result = result.and_then(|outcome| written.map(|()| outcome));
        host.world.end_reading(result.is_ok());
        if phase == Phase::Gone && result.is_ok() {
            host.world.forget_reads(name, &key);
        }
        result
    }
}
