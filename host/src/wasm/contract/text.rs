//! Bounds the texts that people read.

/// Bytes of a message that are kept: of a failure, an error or a log line. It goes into logs and status.
pub const MAX_MESSAGE: usize = 4 << 10;

/// Cuts a text to at most `bytes` bytes at a character boundary, and marks the cut.
pub(crate) fn shorten(mut text: String, bytes: usize) -> String {
    const MARK: &str = "…";
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes.saturating_sub(MARK.len())));
        text.push_str(MARK);
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_characters_boundary() {
        assert_eq!(shorten("short".to_owned(), 5), "short");
        assert_eq!(shorten("äöüäöü".to_owned(), 8), "äö…");
        assert_eq!(shorten("äöüäöü".to_owned(), 0), "…");
    }
}
