//! An error and its causes in one line, for people.

use std::error::Error;

/// Joins the messages of an error and its causes. A cause is left out if the text has it already: many errors repeat
/// their cause in their own message.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);

    #[test]
    fn a_cause_that_is_repeated_is_named_once() {
        let refused = || Layer("connection refused", None);
        let connect = || Layer("cannot connect: connection refused", Some(Box::new(refused())));
        let read = Layer("cannot read the object", Some(Box::new(connect())));
        assert_eq!(with_causes(&refused()), "connection refused");
        assert_eq!(with_causes(&read), "cannot read the object: cannot connect: connection refused");
    }
}
