//! Errors of a reconcile, and how the host reacts to them.

use std::fmt::Display;

use serde::Serialize;

use crate::{Event, contract::exports::pilothouse::plugin::controller::Failure};

/// Why a reconcile failed.
///
/// Any [`std::error::Error`] becomes an error that is retried, so `?` works everywhere. Use [`Error::terminal`] if a
/// retry cannot help.
///
/// ```
/// use pilothouse_sdk::Error;
///
/// fn replicas(text: &str) -> Result<u32, Error> {
///     if text.is_empty() {
///         return Err(Error::terminal("`replicas` is not set: set a number"));
///     }
///     Ok(text.parse::<u32>()?)
/// }
///
/// assert!(!replicas("many").unwrap_err().is_terminal());
/// assert!(replicas("").unwrap_err().is_terminal());
/// ```
#[derive(Debug)]
pub struct Error {
    message: String,
    terminal: bool,
    status: Option<String>,
    events: Vec<Event>,
}

impl Error {
    /// Creates an error that is retried. The delay grows from 5 ms to 1,000 s, unless the administrator sets other
    /// values. A change of the object or a child ends the delay.
    pub fn retry(message: impl Display) -> Self {
        Self { message: message.to_string(), terminal: false, status: None, events: Vec::new() }
    }

    /// Creates an error that is not retried until the object or a child changes.
    pub fn terminal(message: impl Display) -> Self {
        Self { terminal: true, ..Self::retry(message) }
    }

    /// Adds the complete `status` of the object, which is written even though the reconcile failed.
    ///
    /// ```
    /// use pilothouse_sdk::Error;
    ///
    /// #[derive(serde::Serialize)]
    /// struct Status { ready: bool }
    ///
    /// let error = Error::terminal("`spec.size` is not a size").with_status(Status { ready: false });
    /// assert_eq!(error.to_string(), "`spec.size` is not a size");
    /// ```
    #[must_use]
    pub fn with_status(mut self, status: impl Serialize) -> Self {
        match serde_json::to_string(&status) {
            Ok(status) => self.status = Some(status),
            Err(error) => self.message = format!("{}; its status cannot be serialized: {error}", self.message),
        }
        self
    }

    /// Adds an Event, which is written after the status. Each attempt that fails has its Events. The host counts equal
    /// ones, so people see how often it failed.
    ///
    /// ```
    /// use pilothouse_sdk::{Error, Event};
    ///
    /// let event = Event::warning("Unreachable", "the registry does not answer");
    /// let error = Error::retry("connection refused").with_event(event);
    /// ```
    #[must_use]
    pub fn with_event(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }

    /// Returns `true` if the host does not retry until something changes.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// The message holds the whole chain of causes, because only text reaches the host.
impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::retry(message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let events = error.events.into_iter().map(|event| event.0).collect();
        Self { message: error.message, terminal: error.terminal, status: error.status, events }
    }
}
