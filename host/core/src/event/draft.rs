//! One Event of a plugin, within the bounds of the contract.

use std::fmt;

use crate::key::{Key, TypeMeta};

/// Largest number of Events that one outcome may have, that one call may record, and that may wait for a status.
pub const MAX_EVENTS: usize = 256;

/// Largest reason in bytes, as in Kubernetes.
pub const MAX_REASON: usize = 128;

/// Largest message in bytes, as in Kubernetes. A longer one is cut.
pub const MAX_MESSAGE: usize = 1024;

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Information.
    Normal,
    /// Something that people should look at.
    Warning,
}

impl Level {
    /// Returns the Event's `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An Event of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The object that the Event is about. `None` is the reconciled object.
    pub about: Option<(TypeMeta, Key)>,
    /// The type.
    pub level: Level,
    /// One word in `UpperCamelCase`, at most [`MAX_REASON`] bytes.
    pub reason: String,
    /// A sentence without control characters, at most [`MAX_MESSAGE`] bytes.
    pub message: String,
}

impl Event {
    /// Creates an Event. Cuts a long message, and replaces control characters in it by blanks.
    ///
    /// ```
    /// use pilothouse_core::event::{Event, Level};
    ///
    /// let event = Event::new(None, Level::Normal, "Scaled".to_owned(), "from 1\nto 3").unwrap();
    /// assert_eq!(event.message, "from 1 to 3");
    /// assert!(Event::new(None, Level::Normal, "scaled up".to_owned(), "").is_err());
    /// ```
    ///
    /// # Errors
    /// Says what is wrong with the reason.
    pub fn new(about: Option<(TypeMeta, Key)>, level: Level, reason: String, message: &str) -> Result<Self, String> {
        let is_word = reason.starts_with(|first: char| first.is_ascii_uppercase())
            && reason.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_word || reason.len() > MAX_REASON {
            let shown = cut(&reason, MAX_REASON);
            return Err(format!(
                "the reason {shown:?} of an Event is not one word in UpperCamelCase, such as `Scaled`, of at most {MAX_REASON} ASCII \
                 letters and digits"
            ));
        }
        let message = cut(message, MAX_MESSAGE).replace(char::is_control, " ");
        Ok(Self { about, level, reason, message })
    }

    /// Returns the bytes of memory that the Event takes.
    pub fn bytes(&self) -> usize {
        let about = self.about.as_ref().map_or(0, |(of, key)| {
            of.api_version.len()
                + of.kind.len()
                + key.namespace.as_ref().map_or(0, |namespace| namespace.len())
                + key.name.len()
        });
        size_of::<Self>() + about + self.reason.len() + self.message.len()
    }
}

/// Returns the beginning of a text, of at most so many bytes. A cut is marked with `…`.
pub fn cut(text: &str, bytes: usize) -> String {
    const MARK: char = '…';
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes.saturating_sub(MARK.len_utf8()));
    text[..end].chars().chain([MARK]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_word_in_upper_camel_case() {
        let new = |reason: &str| Event::new(None, Level::Normal, reason.to_owned(), "").map(|event| event.reason);
        let long = "A".repeat(MAX_REASON);
        for reason in ["Scaled", "A", "HTTP2Failed", &long] {
            assert_eq!(new(reason), Ok(reason.to_owned()));
        }
        let too_long = "A".repeat(MAX_REASON + 1);
        for reason in ["", "scaled", "Scaled up", "Scaled\n", "Ä", "1st", &too_long] {
            assert!(new(reason).is_err_and(|why| why.contains("UpperCamelCase")), "{reason:?}");
        }
    }

    #[test]
    fn a_message_is_cut_and_cannot_steer_a_terminal() {
        let message =
            |message: &str| Event::new(None, Level::Normal, "A".to_owned(), message).map(|event| event.message);
        assert_eq!(message("a\u{1b}[2J\r\nb").as_deref(), Ok("a [2J  b"));
        let long = "é".repeat(MAX_MESSAGE);
        assert!(message(&long).is_ok_and(|cut| cut.len() == MAX_MESSAGE - 1 && cut.ends_with('…')));
    }
}
