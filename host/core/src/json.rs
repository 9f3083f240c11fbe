//! Reading raw JSON without building a tree of it.
//!
//! [`Reader`] walks a text once, forwards. The caller opens objects and arrays and takes the members it wants; the others it
//! passes over in one of two ways:
//!
//! - [`Reader::value`] checks every byte against RFC 8259. What enters the store has gone through it, so that nothing
//!   later, no guest and no diff, meets a text that it cannot read. "Can read" is what `serde_json` reads into a
//!   `Value`: at most [`MAX_DEPTH`] levels, no lone surrogates, no number beyond an `f64`.
//! - [`Reader::skip`] only finds where a value ends: for splitting a page into items, each of which is read with care
//!   afterwards. It costs less, and mistakes nothing that is JSON.
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

/// How many objects and arrays may be open at once: what `serde_json` reads.
pub(crate) const MAX_DEPTH: u32 = 127;

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
        Self { at, what: what.into() }
    }
}

/// The text of bytes that were promised to be one.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|e| ParseError::new(e.valid_up_to(), "text is not UTF-8"))
}

type Result<T, E = ParseError> = std::result::Result<T, E>;

/// The inside of a JSON string, between its quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    raw: &'a str,
    /// Where `raw` begins in the whole text.
    at: usize,
}

impl<'a> Text<'a> {
    /// Where the opening quote stands.
    pub(crate) fn start(&self) -> usize {
        self.at - 1
    }

    /// The string that is meant.
    pub(crate) fn decode(&self) -> Cow<'a, str> {
        if memchr::memchr(b'\\', self.raw.as_bytes()).is_some() {
            Cow::Owned(unescape(self.raw))
        } else {
            Cow::Borrowed(self.raw)
        }
    }
}

/// `raw` has been checked by [`Reader::string`]: what could be wrong with an escape is not.
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

/// A place in a JSON text.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// How many objects and arrays the caller has entered.
    depth: u32,
    /// The innermost of them has had no member or element yet.
    fresh: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, fresh: false }
    }

    /// Where the reader stands.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The next byte that is no white space.
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

    /// An error about what stands here: `"{what} is not {kind}"`.
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

    /// Goes into the object `what`, before its first member.
    pub(crate) fn enter_object(&mut self, what: &str) -> Result<()> {
        if self.peek() == Some(b'{') { self.enter() } else { self.unexpected(what, "an object") }
    }

    /// Goes into the array `what`, before its first element.
    pub(crate) fn enter_array(&mut self, what: &str) -> Result<()> {
        if self.peek() == Some(b'[') { self.enter() } else { self.unexpected(what, "an array") }
    }

    /// The name of the next member of the object that was entered; the reader then stands at its value, which must be read
    /// before the next call. None: the object is over, and has been left.
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

    /// True if the array that was entered has one more element; the reader then stands at it. False: the array is over,
    /// and has been left.
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

    /// Nothing but white space may follow.
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

    /// Goes past one value, checking every byte of it, and gives the range where it stands.
    pub(crate) fn value(&mut self) -> Result<Range<usize>> {
        self.peek();
        let start = self.at;
        self.at = value_end(self.bytes(), start, self.depth)?;
        Ok(start..self.at)
    }

    /// What [`Reader::value`] went past, without white space between its tokens.
    pub(crate) fn compact(&self, value: Range<usize>) -> Box<str> {
        let text = &self.text[value];
        // Every other piece between quotes that are not escaped is a string.
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

    /// Finds the end of one value by its quotes and brackets alone, and gives its text. Right for whatever is JSON; of
    /// anything else it gives some piece, or an error.
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
        } else {
            self.value()?;
        }
        Ok(&self.text[start..self.at])
    }

    /// Reads a string or null (none).
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

    /// True, and goes past it, if null stands here.
    pub(crate) fn null(&mut self) -> Result<bool> {
        if self.peek() != Some(b'n') {
            return Ok(false);
        }
        self.literal("null").map(|()| true)
    }

    /// Reads a boolean or null (false).
    pub(crate) fn bool_or_null(&mut self, what: &str) -> Result<bool> {
        match self.peek() {
            Some(b't') => self.literal("true").map(|()| true),
            Some(b'f') => self.literal("false").map(|()| false),
            Some(b'n') => self.literal("null").map(|()| false),
            _ => self.unexpected(what, "a boolean"),
        }
    }

    /// Reads an integer or null (none).
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

const TOO_DEEP: &str = "objects and arrays are nested too deep";

#[cold]
fn wrong(text: &[u8], at: usize, what: impl Into<Cow<'static, str>>) -> ParseError {
    if at < text.len() { ParseError::new(at, what) } else { ParseError::new(text.len(), "text ends too early") }
}

/// The byte at `at`; 0, which JSON has nowhere, after the end.
fn byte(text: &[u8], at: usize) -> u8 {
    text.get(at).copied().unwrap_or(0)
}

/// The first place from `at` on that is no white space.
fn token(text: &[u8], mut at: usize) -> usize {
    while matches!(byte(text, at), b' ' | b'\n' | b'\r' | b'\t') {
        at += 1;
    }
    at
}

/// Where the value that begins at `at` ends. `depth` objects and arrays are open around it.
fn value_end(text: &[u8], mut at: usize, depth: u32) -> Result<usize> {
    // One bit for each object (1) or array (0) that is open in this value, the innermost lowest; a 1 above them all.
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
                // '}' and ']' stand two after '{' and '['.
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
        // A value is over; so may be what is around it.
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

/// Where the value begins of the member whose name begins at `at`.
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

/// Where the string ends, closing quote included, whose inside begins at `at`.
fn string_end(text: &[u8], mut at: usize) -> Result<usize> {
    loop {
        at = plain_end(text, at);
        match byte(text, at) {
            b'"' => return Ok(at + 1),
            b'\\' => at = escape_end(text, at)?,
            _ => return Err(wrong(text, at, "control character in a string")),
        }
    }
}

/// Where a string ends by its quote alone, or the text.
fn skip_string(text: &[u8], mut at: usize) -> usize {
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

fn number_end(text: &[u8], start: usize) -> Result<usize> {
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
    // An f64 holds every number of up to 308 digits.
    if exponent || at - start > 308 {
        let number = std::str::from_utf8(&text[start..at]).ok().and_then(|number| number.parse::<f64>().ok());
        if !number.is_some_and(f64::is_finite) {
            return Err(ParseError::new(start, "number out of range"));
        }
    }
    Ok(at)
}

fn literal_end(text: &[u8], at: usize, literal: &'static str) -> Result<usize> {
    let end = at + literal.len();
    if text.get(at..end) == Some(literal.as_bytes()) { Ok(end) } else { Err(wrong(text, at, "expected a value")) }
}

/// The first byte from `at` on that does not stand for itself in a string: a quote, a backslash or a control character; the
/// end of the text if there is none.
fn plain_end(text: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    // The high bit of each byte that is special. A borrow can set it for a byte after a special one, never before: the
    // lowest is right.
    fn special(chunk: &[u8]) -> u64 {
        let bytes = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        let quote = bytes ^ (ONES * u64::from(b'"'));
        let backslash = bytes ^ (ONES * u64::from(b'\\'));
        let found = quote.wrapping_sub(ONES) & !quote
            | backslash.wrapping_sub(ONES) & !backslash
            | bytes.wrapping_sub(ONES * 0x20) & !bytes;
        found & (ONES << 7)
    }
    // Sixteen bytes at a time: most names and values are shorter, and branch only once.
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

#[cfg(test)]
mod tests;
