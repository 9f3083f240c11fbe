//! The grammar of RFC 8259, as functions from the start of something to its end.
//!
//! Positions are byte offsets into the whole text, so that errors can name them.

use std::borrow::Cow;

use super::{MAX_DEPTH, ParseError, Result};

pub(super) const TOO_DEEP: &str = "objects and arrays are nested too deep";

#[cold]
pub(super) fn wrong(text: &[u8], at: usize, what: impl Into<Cow<'static, str>>) -> ParseError {
    if at < text.len() { ParseError::new(at, what) } else { ParseError::new(text.len(), "text ends too early") }
}

/// Returns the byte at `at`; 0, which JSON never contains, after the end.
pub(super) fn byte(text: &[u8], at: usize) -> u8 {
    text.get(at).copied().unwrap_or(0)
}

/// Returns the first position from `at` on that is not white space.
pub(super) fn token(text: &[u8], mut at: usize) -> usize {
    while matches!(byte(text, at), b' ' | b'\n' | b'\r' | b'\t') {
        at += 1;
    }
    at
}

/// Returns the end of the value that begins at `at`, inside `depth` open objects and arrays.
pub(super) fn value_end(text: &[u8], mut at: usize, depth: u32) -> Result<usize> {
    // One bit for each open object (1) or array (0) in this value, the innermost lowest; a 1 above them all.
    let mut open = 1_u128;
    let mut room = MAX_DEPTH - depth;
    'value: loop {
        match byte(text, at) {
            b'"' => at = string_end(text, at + 1)?,
            bracket @ (b'{' | b'[') => {
                if room == 0 {
                    return Err(wrong(text, at, TOO_DEEP));
                }
                at = token(text, at + 1);
                // '}' and ']' are two above '{' and '['.
                if byte(text, at) == bracket + 2 {
                    at += 1;
                } else {
                    room -= 1;
                    let object = bracket == b'{';
                    open = open << 1 | u128::from(object);
                    if object {
                        at = name_end(text, at)?;
                    }
                    continue 'value;
                }
            }
            b'-' | b'0'..=b'9' => at = number_end(text, at)?,
            b't' => at = literal_end(text, at, "true")?,
            b'f' => at = literal_end(text, at, "false")?,
            b'n' => at = literal_end(text, at, "null")?,
            _ => return Err(wrong(text, at, "expected a value")),
        }
        // A value ends; the enclosing ones may end too.
        loop {
            if open == 1 {
                return Ok(at);
            }
            at = token(text, at);
            let object = open & 1 == 1;
            match byte(text, at) {
                b',' => {
                    at = token(text, at + 1);
                    if object {
                        at = name_end(text, at)?;
                    }
                    continue 'value;
                }
                b'}' if object => {}
                b']' if !object => {}
                _ => return Err(wrong(text, at, if object { "expected ',' or '}'" } else { "expected ',' or ']'" })),
            }
            at += 1;
            room += 1;
            open >>= 1;
        }
    }
}

/// Returns the start of the value of the member whose name begins at `at`.
fn name_end(text: &[u8], at: usize) -> Result<usize> {
    if byte(text, at) != b'"' {
        return Err(wrong(text, at, "expected a member's name"));
    }
    let colon = token(text, string_end(text, at + 1)?);
    if byte(text, colon) != b':' {
        return Err(wrong(text, colon, "expected ':'"));
    }
    Ok(token(text, colon + 1))
}

/// Returns the end, after the closing quote, of the string whose content begins at `at`.
pub(super) fn string_end(text: &[u8], mut at: usize) -> Result<usize> {
    loop {
        at = plain_end(text, at);
        match byte(text, at) {
            b'"' => return Ok(at + 1),
            b'\\' => at = escape_end(text, at)?,
            _ => return Err(wrong(text, at, "control character in a string")),
        }
    }
}

/// Returns the end of a string by its quote alone, or the end of the text.
pub(super) fn skip_string(text: &[u8], mut at: usize) -> usize {
    loop {
        at = plain_end(text, at);
        match byte(text, at) {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ if at >= text.len() => return text.len().max(at),
            _ => at += 1,
        }
    }
}

fn escape_end(text: &[u8], at: usize) -> Result<usize> {
    let hex = |at: usize| {
        let digits = text.get(at..at + 4)?.iter();
        digits.copied().try_fold(0, |unit, digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
    };
    match byte(text, at + 1) {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(at + 2),
        b'u' => match hex(at + 2) {
            Some(0xd800..=0xdfff) => {
                let low = text.get(at + 6..at + 8).filter(|escape| escape == b"\\u").and_then(|_| hex(at + 8));
                let paired = hex(at + 2) < Some(0xdc00) && matches!(low, Some(0xdc00..=0xdfff));
                if paired { Ok(at + 12) } else { Err(wrong(text, at, "half of a surrogate pair in a string")) }
            }
            Some(_) => Ok(at + 6),
            None => Err(wrong(text, at, "bad escape in a string")),
        },
        _ => Err(wrong(text, at, "bad escape in a string")),
    }
}

pub(super) fn number_end(text: &[u8], start: usize) -> Result<usize> {
    let digits = |mut at: usize| {
        if !byte(text, at).is_ascii_digit() {
            return Err(wrong(text, at, "expected a digit"));
        }
        while byte(text, at).is_ascii_digit() {
            at += 1;
        }
        Ok(at)
    };
    let mut at = start + usize::from(byte(text, start) == b'-');
    at = if byte(text, at) == b'0' { at + 1 } else { digits(at)? };
    if byte(text, at) == b'.' {
        at = digits(at + 1)?;
    }
    let exponent = matches!(byte(text, at), b'e' | b'E');
    if exponent {
        at = digits(at + 1 + usize::from(matches!(byte(text, at + 1), b'+' | b'-')))?;
    }
    // An f64 holds every number of up to 308 digits. serde_json judges the others, as it rounds by its own rules at the
    // limit.
    if (exponent || at - start > 308) && serde_json::from_slice::<f64>(&text[start..at]).is_err() {
        return Err(ParseError::new(start, "number out of range"));
    }
    Ok(at)
}

pub(super) fn literal_end(text: &[u8], at: usize, literal: &'static str) -> Result<usize> {
    let end = at + literal.len();
    if text.get(at..end) == Some(literal.as_bytes()) { Ok(end) } else { Err(wrong(text, at, "expected a value")) }
}

/// Returns the first position from `at` on of a special byte in a string: a quote, a backslash or a control character;
/// or the end of the text.
pub(super) fn plain_end(text: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    // The high bit of each special byte. A borrow can set it for a byte after a special one, never before, so the
    // lowest is exact.
    fn special(chunk: &[u8]) -> u64 {
        let bytes = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        let quote = bytes ^ (ONES * u64::from(b'"'));
        let backslash = bytes ^ (ONES * u64::from(b'\\'));
        let found = quote.wrapping_sub(ONES) & !quote
            | backslash.wrapping_sub(ONES) & !backslash
            | bytes.wrapping_sub(ONES * 0x20) & !bytes;
        found & (ONES << 7)
    }
    // Sixteen bytes at a time: most names and values are shorter, and need one branch.
    while let Some(chunk) = text.get(at..at + 16) {
        let (low, high) = (special(&chunk[..8]), special(&chunk[8..]));
        if low | high != 0 {
            let (skipped, found) = if low != 0 { (0, low) } else { (8, high) };
            return at + skipped + found.trailing_zeros() as usize / 8;
        }
        at += 16;
    }
    while text.get(at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)) {
        at += 1;
    }
    at
}
