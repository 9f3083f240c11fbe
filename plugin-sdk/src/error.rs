//! How a reconcile fails, and what the host does about it.

use std::fmt::Display;

use serde::Serialize;

use crate::contract::exports::pilothouse::plugin::controller::Failure;

/// Why a reconcile did not succeed.
///
/// Any [`std::error::Error`] becomes one that is retried, so `?` works on everything. Use [`Error::terminal`] for what no
/// retry can mend.
///
/// ```
/// use pilothouse_sdk::Error;
///
/// fn replicas(text: &str) -> Result<u32, Error> {
///     if text == "none" {
///         return Err(Error::terminal("`replicas` is none: set a number"));
///     }
///     Ok(text.parse::<u32>()?)
/// }
///
/// assert!(!replicas("many").unwrap_err().is_terminal());
/// assert!(replicas("none").unwrap_err().is_terminal());
/// ```
#[derive(Debug)]
pub struct Error {
    message: String,
    terminal: bool,
    status: Option<String>,
}

impl Error {
    /// Try again: with a delay that grows from 5 ms to 1000 s (or as the administrator has it), or at once when the object or a child changes.
    pub fn retry(message: impl Display) -> Self {
        Self { message: message.to_string(), terminal: false, status: None }
    }

    /// Do not try again until the object or a child changes.
    pub fn terminal(message: impl Display) -> Self {
        Self { terminal: true, ..Self::retry(message) }
    }

    /// The whole `status` that the object should have although the reconcile failed.
    ///
    /// ```
    /// use pilothouse_sdk::Error;
    ///
    /// #[derive(serde::Serialize)]
    /// struct Status { ready: bool }
    ///
    /// let error = Error::terminal("`spec.size` is no size").with_status(Status { ready: false });
    /// assert_eq!(error.to_string(), "`spec.size` is no size");
    /// ```
    #[must_use]
    pub fn with_status(mut self, status: impl Serialize) -> Self {
        match serde_json::to_string(&status) {
            Ok(status) => self.status = Some(status),
            Err(error) => self.message = format!("{}; its status cannot be JSON: {error}", self.message),
        }
        self
    }

    /// Whether the host leaves the key alone until something changes.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// The whole chain of causes becomes the message, as nothing but text crosses the border.
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
        Self { message: error.message, terminal: error.terminal, status: error.status }
    }
}
