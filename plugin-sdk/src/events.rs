//! Writes Events during a call.
//!
//! Prefer [`Outcome::event`](crate::Outcome::event), which needs no call into the host, and is written once if the call is
//! repeated. Record an Event about something that has happened already, such as a request that the call sent.

use std::marker::PhantomData;

use crate::{Event, contract::pilothouse::plugin::events as wire, host};

host::interface!(events {
    fn record(event: &Event) -> Result<(), Error>;
});

/// Why an Event is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not in the manifest's permissions, not granted by the administrator, or about an object that the plugin may not
    /// read from the cache.
    #[error("{0}")]
    NotGranted(String),
    /// The reason is not valid, the object is not in the cache, or an observer's Event names no object.
    #[error("the Event is not valid: {0}")]
    Invalid(String),
}

impl From<wire::Error> for Error {
    fn from(error: wire::Error) -> Self {
        match error {
            wire::Error::NotGranted(why) => Self::NotGranted(why),
            wire::Error::Invalid(why) => Self::Invalid(why),
        }
    }
}

/// Records Events during one call: see [`Context::events`](crate::Context::events).
///
/// ```
/// use k8s_openapi::api::core::v1::{Pod, Secret};
/// use pilothouse_sdk::prelude::*;
///
/// /// Deletes the Pod of the same name, and says so on the Pod.
/// fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
///     if ctx.cache().get::<Pod>(ctx.key())?.is_some() {
///         ctx.events().record(Event::normal("Restarting", "its Secret has changed").about::<Pod>(ctx.key()))?;
///         ctx.client().delete::<Pod>(ctx.key())?;
///     }
///     Ok(Outcome::new())
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Events<'a>(PhantomData<&'a ()>);

impl Events<'_> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }

    /// Queues an Event. Does not wait until it is written. A call may record 256 Events, and the host drops more.
    ///
    /// # Errors
    /// Fails with [`Error`] if the plugin may not write the Event.
    #[expect(clippy::needless_pass_by_value, reason = "an Event is built where it is passed")]
    pub fn record(&self, event: Event) -> Result<(), Error> {
        Ok(import::record(&event.0)?)
    }
}
