//! Reads raw JSON without building a tree.
//!
//! [`Reader`] walks a text once, forwards. The caller enters objects and arrays and reads the members it needs. It
//! passes over others in one of two ways:
//!
//! - [`Reader::value`] checks every byte against RFC 8259. Everything in the store has passed this check, so that no
//!   later reader, guest or diff, finds an unreadable text. "Readable" is what `serde_json` reads into a `Value`: at
//!   most [`MAX_DEPTH`] levels, no lone surrogates, no number beyond an `f64`.
//! - [`Reader::skip`] only finds the end of a value. It splits a page into items that are checked afterwards, costs
//!   less, and is exact on valid JSON.
//!
//! Neither recurses, and neither panics on any text.
//!
//! ```text
//! reader.enter_object()?;
//! while let Some(name) = reader.member()? {      // reader stands at the member's value
//!     match &*name.decode() {
//!         "metadata" => …,
//!         _ => reader.value()?,
//!     }
//! }
//! reader.end()?;
//! ```

use std::{borrow::Cow, ops::Range};

mod grammar;

use grammar::{TOO_DEEP, byte, literal_end, number_end, skip_string, string_end, token, value_end, wrong};

/// Largest number of open objects and arrays: the limit of `serde_json`.
pub(crate) const MAX_DEPTH: u32 = 127;

/// Bytes that are not JSON, or not of the expected shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct ParseError {
    /// The position in the given bytes, from 0.
    pub at: usize,
    /// The problem.
    pub what: Cow<'static, str>,
}

impl ParseError {
    pub(crate) fn new(at: usize, what: impl Into<Cow<'static, str>>) -> Self {
        Self { at, what: what.into() }
    }

    /// Returns `true` if the nesting is the only known problem.
    pub(crate) fn is_too_deep(&self) -> bool {
        self.what == TOO_DEEP
    }
}

/// Checks that a text is one JSON object that `serde_json` reads into a `Value`, whatever its members.
///
/// ```
/// assert!(pilothouse_core::check_object(r#" {"a": [1]} "#).is_ok());
/// let error = pilothouse_core::check_object("[]").expect_err("a list");
/// assert_eq!(error.to_string(), "the text is not an object at byte 0");
/// ```
///
/// # Errors
/// The problem and its position.
pub fn check_object(text: &str) -> std::result::Result<(), ParseError> {
    let mut reader = Reader::new(text);
    if reader.peek() != Some(b'{') {
        return reader.unexpected("the text", "an object");
    }
    reader.value()?;
    reader.end()
}

/// Converts bytes to text.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|e| ParseError::new(e.valid_up_to(), "text is not UTF-8"))
}

/// Shortens a foreign text for an error.
pub(crate) fn excerpt(text: &str) -> &str {
    &text[..text.floor_char_boundary(100)]
}

type Result<T, E = ParseError> = std::result::Result<T, E>;

/// The content of a JSON string, between its quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    raw: &'a str,
    /// Position of `raw` in the whole text.
    at: usize,
}

impl<'a> Text<'a> {
    /// Returns the position of the opening quote.
    pub(crate) fn start(&self) -> usize {
        self.at - 1
    }

    /// Returns the string's text with its escapes.
    pub(crate) fn raw(&self) -> &'a str {
        self.raw
    }

    /// Returns the decoded string.
    pub(crate) fn decode(&self) -> Cow<'a, str> {
        if memchr::memchr(b'\\', self.raw.as_bytes()).is_some() {
            Cow::Owned(unescape(self.raw))
        } else {
            Cow::Borrowed(self.raw)
        }
    }
}

/// [`Reader::string`] has checked `raw`, so every escape is valid.
fn unescape(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((plain, escape)) = rest.split_once('\\') {
        text.push_str(plain);
        let mut chars = escape.chars();
        match chars.next() {
            Some('b') => text.push('\u{8}'),
            Some('f') => text.push('\u{c}'),
            Some('n') => text.push('\n'),
            Some('r') => text.push('\r'),
            Some('t') => text.push('\t'),
            Some('u') => {
                let unit = |s: &str, from: usize| {
                    s.get(from..from + 4).and_then(|hex| u16::from_str_radix(hex, 16).ok()).unwrap_or(0xfffd)
                };
                let mut units = vec![unit(escape, 1)];
                let mut length = 5;
                if (0xd800..0xdc00).contains(&units[0]) {
                    units.push(unit(escape, 7));
                    length = 11;
                }
                text.push_str(&String::from_utf16_lossy(&units));
                rest = escape.get(length..).unwrap_or("");
                continue;
            }
            Some(itself) => text.push(itself),
            None => {}
        }
        rest = chars.as_str();
    }
    text.push_str(rest);
    text
}

/// A position in a JSON text.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Number of objects and arrays that the caller has entered.
    depth: u32,
    /// `true` before the first member or element of the innermost one.
    fresh: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, fresh: false }
    }

    /// Returns the position.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the next byte that is not white space.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        self.at = token(self.bytes(), self.at);
        self.bytes().get(self.at).copied()
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    fn wrong<T>(&self, what: impl Into<Cow<'static, str>>) -> Result<T> {
        Err(wrong(self.bytes(), self.at, what))
    }

    /// Returns the error `"{what} is not {kind}"` for this position.
    pub(crate) fn unexpected<T>(&self, what: &str, kind: &str) -> Result<T> {
        self.wrong(format!("{what} is not {kind}"))
    }

    fn enter(&mut self) -> Result<()> {
        if self.depth == MAX_DEPTH {
            return self.wrong(TOO_DEEP);
        }
        self.at += 1;
        self.depth += 1;
        self.fresh = true;
        Ok(())
    }

    fn leave(&mut self) {
        self.at += 1;
        self.depth -= 1;
        self.fresh = false;
    }

    /// Enters the object `what`.
    pub(crate) fn enter_object(&mut self, what: &str) -> Result<()> {
        if self.peek() == Some(b'{') { self.enter() } else { self.unexpected(what, "an object") }
    }

    /// Enters the array `what`.
    pub(crate) fn enter_array(&mut self, what: &str) -> Result<()> {
        if self.peek() == Some(b'[') { self.enter() } else { self.unexpected(what, "an array") }
    }

    /// Reads the name of the next member of the entered object. The caller must read its value before the next call.
    /// Returns `None` at the end of the object, which is then left.
    pub(crate) fn member(&mut self) -> Result<Option<Text<'a>>> {
        match (self.peek(), self.fresh) {
            (Some(b'}'), _) => {
                self.leave();
                return Ok(None);
            }
            (_, true) => {}
            (Some(b','), false) => self.at += 1,
            _ => return self.wrong("expected ',' or '}'"),
        }
        if self.peek() != Some(b'"') {
            return self.wrong("expected a member's name");
        }
        let name = self.string()?;
        self.fresh = false;
        if self.peek() != Some(b':') {
            return self.wrong("expected ':'");
        }
        self.at += 1;
        self.peek();
        Ok(Some(name))
    }

    /// Returns `true` if the entered array has one more element, which is next. Returns `false` at its end; the array
    /// is then left.
    pub(crate) fn element(&mut self) -> Result<bool> {
        match (self.peek(), self.fresh) {
            (Some(b']'), _) => {
                self.leave();
                return Ok(false);
            }
            (_, true) => {}
            (Some(b','), false) => {
                self.at += 1;
                if self.peek() == Some(b']') {
                    return self.wrong("expected a value");
                }
            }
            _ => return self.wrong("expected ',' or ']'"),
        }
        self.fresh = false;
        Ok(true)
    }

    /// Checks that only white space follows.
    pub(crate) fn end(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.wrong("text goes on after its value"),
        }
    }

    /// Reads a string, checking every byte of it.
    pub(crate) fn string(&mut self) -> Result<Text<'a>> {
        let at = self.at + 1;
        self.at = string_end(self.bytes(), at)?;
        let raw = &self.text[at..self.at - 1];
        Ok(Text { raw, at })
    }

    /// Reads one value, checking every byte of it, and returns its range.
    pub(crate) fn value(&mut self) -> Result<Range<usize>> {
        self.peek();
        let start = self.at;
        self.at = value_end(self.bytes(), start, self.depth)?;
        Ok(start..self.at)
    }

    /// As [`Reader::value`], for a value that is taken out of the text: enclosing levels do not count towards its
    /// depth. Returns `None` if it still nests too deep; its inside is then not checked.
    pub(crate) fn value_apart(&mut self) -> Result<Option<Range<usize>>> {
        self.peek();
        let start = self.at;
        match value_end(self.bytes(), start, 0) {
            Ok(end) => self.at = end,
            Err(error) if error.is_too_deep() => {
                self.skip()?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        Ok(Some(start..self.at))
    }

    /// Returns a value that [`Reader::value`] has read, without white space between its tokens.
    pub(crate) fn compact(&self, value: Range<usize>) -> Box<str> {
        let text = &self.text[value];
        // Every other piece between unescaped quotes is a string.
        let (mut compact, mut in_string, mut escaped) = (String::with_capacity(text.len()), false, false);
        for char in text.chars() {
            if in_string {
                in_string = escaped || char != '"';
                escaped = !escaped && char == '\\';
            } else if matches!(char, ' ' | '\n' | '\r' | '\t') {
                continue;
            } else {
                in_string = char == '"';
            }
            compact.push(char);
        }
        compact.into()
    }

    /// Finds the end of one value by its quotes and brackets alone, and returns its text. Exact for valid JSON; for
    /// other texts it returns some piece, or an error.
    pub(crate) fn skip(&mut self) -> Result<&'a str> {
        let first = self.peek();
        let (text, start) = (self.bytes(), self.at);
        if matches!(first, Some(b'{' | b'[')) {
            let (mut at, mut depth) = (start, 0_usize);
            loop {
                match byte(text, at) {
                    b'"' => at = skip_string(text, at + 1) - 1,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ if at >= text.len() => return Err(wrong(text, at, "")),
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    break;
                }
            }
            self.at = at;
        } else if first == Some(b'"') {
            self.at = skip_string(text, start + 1);
        } else {
            self.value()?;
        }
        self.text.get(start..self.at).ok_or_else(|| wrong(text, text.len(), ""))
    }

    /// Reads a string, or null as `None`.
    pub(crate) fn string_or_null(&mut self, what: &str) -> Result<Option<Cow<'a, str>>> {
        match self.peek() {
            Some(b'"') => Ok(Some(self.string()?.decode())),
            Some(b'n') => self.literal("null").map(|()| None),
            _ => self.unexpected(what, "a string"),
        }
    }

    fn literal(&mut self, literal: &'static str) -> Result<()> {
        self.at = literal_end(self.bytes(), self.at, literal)?;
        Ok(())
    }

    /// Returns `true` if null is next, and reads it.
    pub(crate) fn null(&mut self) -> Result<bool> {
        if self.peek() != Some(b'n') {
            return Ok(false);
        }
        self.literal("null").map(|()| true)
    }

    /// Reads a boolean, or null as `false`.
    pub(crate) fn bool_or_null(&mut self, what: &str) -> Result<bool> {
        match self.peek() {
            Some(b't') => self.literal("true").map(|()| true),
            Some(b'f') => self.literal("false").map(|()| false),
            Some(b'n') => self.literal("null").map(|()| false),
            _ => self.unexpected(what, "a boolean"),
        }
    }

    /// Reads an integer, or null as `None`.
    pub(crate) fn integer_or_null(&mut self, what: &str) -> Result<Option<i64>> {
        if self.null()? {
            return Ok(None);
        }
        let start = self.at;
        let number = match self.peek() {
            Some(b'-' | b'0'..=b'9') => {
                self.at = number_end(self.bytes(), start)?;
                self.text[start..self.at].parse().ok()
            }
            _ => None,
        };
        number.map(Some).ok_or_else(|| ParseError::new(start, format!("{what} is not an integer")))
    }
}

#[cfg(test)]
mod tests;
