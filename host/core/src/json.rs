//! Reading raw JSON without building a tree of it.

use std::borrow::Cow;

/// Bytes that are not JSON, or not of the shape that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct ParseError {
    /// Where, counted from 0 in the bytes that were given.
    pub at: usize,
    /// What is wrong there.
    pub what: Cow<'static, str>,
}

impl ParseError {
    pub(crate) fn new(at: usize, what: impl Into<Cow<'static, str>>) -> Self {
        Self {
            at,
            what: what.into(),
        }
    }
}
