//! The names of plugins.

use std::{fmt, str::FromStr, sync::Arc};

/// A plugin's name: the stem of its file, `myapple` of `myapple.wasm`.
///
/// Field managers (`pilothouse.<name>`), metric labels and URLs contain it, so it has the form of a DNS label. It has
/// at most 63 lower-case letters, digits and `-`, and begins and ends with a letter or a digit.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PluginName(Arc<str>);

/// Why a text is not a plugin name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("a plugin's name may not be empty")]
    Empty,
    /// The text is longer than a DNS label may be.
    #[error("plugin name {0:?} has {1} characters, and at most 63 are allowed")]
    Long(String, usize),
    /// The text has a character that is not allowed at its position.
    #[error(
        "plugin name {0:?} may only have lower-case letters, digits and `-`, and must begin and end with a letter or a digit"
    )]
    Character(String),
}

impl PluginName {
    /// The longest name in characters: the limit of a DNS label (RFC 1123).
    pub const MAX: usize = 63;

    /// Parses a name.
    ///
    /// # Errors
    /// The text does not have the form of a DNS label.
    ///
    /// ```
    /// # use pilothouse::name::PluginName;
    /// assert_eq!(PluginName::new("my-apple").unwrap().as_str(), "my-apple");
    /// assert!(PluginName::new("My_Apple").is_err());
    /// ```
    pub fn new(text: &str) -> Result<Self, NameError> {
        let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let (Some(first), Some(last)) = (text.bytes().next(), text.bytes().last()) else {
            return Err(NameError::Empty);
        };
        let characters = text.chars().count();
        if characters > Self::MAX {
            return Err(NameError::Long(text.chars().take(Self::MAX).chain(['…']).collect(), characters));
        }
        if !word(first) || !word(last) || !text.bytes().all(|b| word(b) || b == b'-') {
            return Err(NameError::Character(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    /// Returns the name of the plugin in a file with this stem. Capital letters become small ones. `_` becomes `-`,
    /// because Cargo writes `my_operator.wasm` for the package `my-operator`.
    ///
    /// # Errors
    /// The result is not a name.
    ///
    /// ```
    /// # use pilothouse::name::PluginName;
    /// assert_eq!(PluginName::of_file("my_operator").unwrap().as_str(), "my-operator");
    /// assert!(PluginName::of_file("my operator").is_err());
    /// ```
    pub fn of_file(stem: &str) -> Result<Self, NameError> {
        Self::new(&stem.to_ascii_lowercase().replace('_', "-")).map_err(|error| match error {
            NameError::Character(_) => NameError::Character(stem.to_owned()),
            other => other,
        })
    }

    /// Suggests a name similar to `stem`. Returns `None` if no character of `stem` can be kept.
    pub fn suggested(stem: &str) -> Option<Self> {
        let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let text: String = stem.chars().map(word).take(Self::MAX).collect();
        Self::new(text.trim_matches('-')).ok()
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PluginName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

impl fmt::Display for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PluginName({})", self.0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    #[test]
    fn plugin_name_has_the_form_of_a_dns_label() {
        for good in ["a", "my-apple", "0", "a1-2b", &"x".repeat(63)] {
            assert_eq!(PluginName::new(good).unwrap().as_str(), good);
        }
        assert_eq!(PluginName::new(""), Err(NameError::Empty));
        for bad in ["-a", "a-", "A", "a_b", "a.b", "a b", "ä", "a/b", "..", "a\n"] {
            assert_eq!(PluginName::new(bad), Err(NameError::Character(bad.to_owned())), "{bad:?}");
        }
        assert!(matches!(PluginName::new(&"ä".repeat(64)), Err(NameError::Long(_, 64))));
    }

    #[test]
    fn a_file_as_cargo_names_it_is_a_plugin_and_another_gets_a_suggestion() {
        for (stem, name) in
            [("my_operator", "my-operator"), ("my-operator", "my-operator"), ("MyOperator", "myoperator")]
        {
            assert_eq!(PluginName::of_file(stem).unwrap().as_str(), name);
        }
        assert_eq!(PluginName::of_file("my operator"), Err(NameError::Character("my operator".to_owned())));
        let suggested = |stem| PluginName::suggested(stem).map(|name| name.to_string());
        assert_eq!(suggested("My Operator (2)").as_deref(), Some("my-operator--2"));
        assert_eq!(suggested("_a.b_").as_deref(), Some("a-b"));
        assert_eq!(suggested("ä"), None);
        assert_eq!(suggested(&"x".repeat(100)).map(|name| name.len()), Some(PluginName::MAX));
    }
}
