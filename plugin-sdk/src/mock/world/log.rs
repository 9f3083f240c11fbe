//! The interface `log` of the mock.

use super::World;
use crate::log::{Level, import::Functions};

/// A line that the plugin logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The severity.
    pub level: Level,
    /// The constant message.
    pub message: String,
    /// The fields, in the plugin's order.
    pub fields: Vec<(String, String)>,
}

impl Functions for World {
    fn write(&self, level: Level, message: &str, fields: &[(String, String)]) {
        self.state_mut().lines.push(LogLine { level, message: message.to_owned(), fields: fields.to_vec() });
    }
}
