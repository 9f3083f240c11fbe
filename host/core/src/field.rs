//! Field paths: names of places in an object, and the values there, read from its JSON text.
//!
//! A manifest names a field by a [`FieldPath`]: for an index, for a projection of a list, or to leave it out of the
//! cache. A [`FieldSet`] holds several paths and finds all of them in one walk over a text, without building a tree.
//!
//! ```text
//! spec.nodeName                                  members, by their names
//! spec.volumes[*].configMap.name                 each element of an array
//! metadata.annotations["example.com/team"]       a name that is not a plain word; ['example.com/team'] means the same
//! ```
//!
//! A plain word consists of ASCII letters and digits, `_`, `-` and `$`. There are no positions (`[0]`), because they
//! change when another element is removed. A path that finds no member of a name, no object or no array has no values;
//! that is not an error.
//!
//! ```
//! use pilothouse_core::field::{FieldPath, FieldSet};
//!
//! let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"b","uid":"1"},
//!     "spec":{"nodeName":"n1","containers":[{"name":"x","image":"y"},{"name":"z"}]}}"#;
//! let image = FieldPath::parse("spec.containers[*].image")?;
//! let fields = FieldSet::new([image, FieldPath::parse("spec['nodeName']")?]);
//! assert_eq!(fields.values(pod)?, [["y"], ["n1"]]);
//! assert_eq!(
//!     fields.project(pod)?,
//!     r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"b"},"#.to_owned()
//!         + r#""spec":{"nodeName":"n1","containers":[{"image":"y"},{}]}}"#,
//! );
//! let cut = FieldSet::new([FieldPath::parse("spec")?, FieldPath::parse("metadata.uid")?]);
//! assert_eq!(cut.cut(pod)?, r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"b"}}"#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{borrow::Cow, fmt, str::FromStr};

use crate::json::Reader;

mod set;

pub use set::{FieldSet, MAX_VALUES};

/// Largest path in bytes. The longest annotation key has 317.
const MAX_LENGTH: usize = 1024;

/// Largest number of steps: built-in kinds have about twenty, schemas of CRDs a few more. Walks recurse this deep.
const MAX_STEPS: usize = 32;

/// The name of a place in an object. [`Display`](fmt::Display) prints one text for all notations of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldPath {
    /// At least one.
    steps: Box<[Step]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Step {
    /// The member of that name.
    Member(Box<str>),
    /// All elements.
    Each,
}

/// A text that is not a field path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read field path {path:?}, at byte {at}: {what}")]
pub struct FieldPathError {
    /// The text, shortened to the longest allowed path.
    pub path: String,
    /// The position of the problem, from 0.
    pub at: usize,
    /// The problem.
    pub what: Cow<'static, str>,
}

impl FieldPath {
    /// Parses a path as the [module](self) describes it: at most 1,024 bytes and 32 steps.
    ///
    /// # Errors
    /// The problem and its position.
    pub fn parse(text: &str) -> Result<Self, FieldPathError> {
        let mut parser = Parser { text, at: 0 };
        let steps = parser.steps().map_err(|what| FieldPathError {
            path: text[..text.floor_char_boundary(MAX_LENGTH)].to_owned(),
            at: parser.at,
            what,
        })?;
        Ok(Self { steps: steps.into() })
    }

    /// Returns `true` if `other` is this path or lies within it: `spec` covers `spec.volumes[*].name`.
    pub fn covers(&self, other: &Self) -> bool {
        other.steps.starts_with(&self.steps)
    }

    /// Returns the path of a member here: `status` and `images` give `status.images`. May be longer than a parsed path.
    #[must_use]
    pub fn member(&self, name: &str) -> Self {
        Self { steps: self.steps.iter().cloned().chain([Step::Member(name.into())]).collect() }
    }

    /// Returns the path of a top-level member. May be longer than a parsed path.
    pub(crate) fn top(name: &str) -> Self {
        Self { steps: Box::new([Step::Member(name.into())]) }
    }

    /// Returns the path of the elements of a list here. May be longer than a parsed path.
    pub(crate) fn each(&self) -> Self {
        Self { steps: self.steps.iter().cloned().chain([Step::Each]).collect() }
    }

    /// Returns the bytes on the heap.
    pub fn bytes(&self) -> usize {
        let name = |step: &Step| if let Step::Member(name) = step { name.len() } else { 0 };
        self.steps.iter().map(|step| size_of::<Step>() + name(step)).sum()
    }
}

impl FromStr for FieldPath {
    type Err = FieldPathError;

    fn from_str(text: &str) -> Result<Self, FieldPathError> {
        Self::parse(text)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps.iter().enumerate() {
            match step {
                Step::Each => f.write_str("[*]")?,
                Step::Member(name) if is_word(name) => write!(f, "{}{name}", if i == 0 { "" } else { "." })?,
                Step::Member(name) => write!(f, "[{}]", serde_json::Value::from(&**name))?,
            }
        }
        Ok(())
    }
}

fn is_in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'$')
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(is_in_word)
}

/// Points to the next byte; after an error, to its position.
struct Parser<'a> {
    text: &'a str,
    at: usize,
}

type Parsed<T> = Result<T, Cow<'static, str>>;

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn steps(&mut self) -> Parsed<Vec<Step>> {
        if self.text.len() > MAX_LENGTH {
            self.at = MAX_LENGTH;
            return Err(format!("the path is longer than {MAX_LENGTH} bytes").into());
        }
        let mut steps = Vec::new();
        while let Some(byte) = self.peek() {
            if steps.len() == MAX_STEPS {
                return Err(format!("the path has more than {MAX_STEPS} steps").into());
            }
            steps.push(match byte {
                b'[' => self.brackets()?,
                b'.' if steps.is_empty() => return Err("a path begins with a name, not with '.'".into()),
                b'.' => {
                    self.at += 1;
                    self.word()?
                }
                _ if steps.is_empty() => self.word()?,
                _ => return Err(UNQUOTED.into()),
            });
        }
        if steps.is_empty() { Err("the path is empty".into()) } else { Ok(steps) }
    }

    fn word(&mut self) -> Parsed<Step> {
        let rest = &self.text[self.at..];
        let length = rest.bytes().take_while(|byte| is_in_word(*byte)).count();
        if length == 0 {
            let quoted = matches!(self.peek(), None | Some(b'.' | b'['));
            return Err(if quoted { "expected a name" } else { UNQUOTED }.into());
        }
        self.at += length;
        Ok(Step::Member(rest[..length].into()))
    }

    /// Parses `[*]`, `["name"]` or `['name']`.
    fn brackets(&mut self) -> Parsed<Step> {
        self.at += 1;
        let step = match self.peek() {
            Some(b'*') => {
                self.at += 1;
                Step::Each
            }
            Some(b'"') => Step::Member(self.double_quoted()?),
            Some(b'\'') => Step::Member(self.single_quoted()?),
            Some(b'0'..=b'9' | b'-' | b':') => {
                return Err("positions are not stable, and cannot be named: write [*] for each element".into());
            }
            _ => return Err("expected *, or a name in quotes".into()),
        };
        if self.peek() != Some(b']') {
            return Err("expected ']'".into());
        }
        self.at += 1;
        Ok(step)
    }

    /// Parses a JSON string.
    fn double_quoted(&mut self) -> Parsed<Box<str>> {
        let mut reader = Reader::new(&self.text[self.at..]);
        reader.peek();
        match reader.string() {
            Ok(name) => {
                self.at += reader.at();
                Ok(name.decode().into())
            }
            Err(error) => {
                self.at += error.at;
                Err(error.what)
            }
        }
    }

    /// Parses up to the next quote, without escapes.
    fn single_quoted(&mut self) -> Parsed<Box<str>> {
        let inside = &self.text[self.at + 1..];
        let Some(length) = inside.find('\'') else {
            self.at = self.text.len();
            return Err("expected a closing quote".into());
        };
        if let Some(at) = inside[..length].find('\\') {
            self.at += 1 + at;
            return Err("no escapes in single quotes: write double quotes".into());
        }
        self.at += length + 2;
        Ok(inside[..length].into())
    }
}

const UNQUOTED: &str = "expected '.' or '[': a name that is no plain word is written [\"name\"]";

#[cfg(test)]
mod tests;
