//! Label selectors, in the syntax of `kubectl -l` and the API server; and [field selectors](FieldSelector).
//!
//! Texts that differ only in order or notation give equal [`Selector`]s and one [`Display`](fmt::Display), so that a
//! selector can be part of an informer's identity. Set-based selectors of specs (`matchLabels`, `matchExpressions`) are
//! not parsed here.
//!
//! Selectors come from untrusted plugins, and each object of a kind is matched against them under a lock. So a selector
//! is bounded by [`MAX_REQUIREMENTS`], [`MAX_VALUES`] for each, and [`MAX_BYTES`].
//!
//! ```
//! use pilothouse_core::selector::Selector;
//!
//! let selector = Selector::parse("tier notin (cache, db), app == web, !legacy").expect("a selector");
//! assert_eq!(selector.to_string(), "app=web,!legacy,tier notin (cache,db)");
//! assert!(selector.matches([("app", "web")]));
//! assert!(!selector.matches([("app", "web"), ("tier", "db")]));
//! ```

use std::{collections::BTreeSet, fmt};

mod fields;

pub use fields::{FieldRequirement, FieldSelector, FieldSelectorError};

/// Largest number of requirements in one selector. An object has a dozen labels.
pub const MAX_REQUIREMENTS: usize = 64;

/// Largest number of values in one requirement.
pub const MAX_VALUES: usize = 64;

/// Largest sum of keys and values in one selector, in bytes: what fits a URL. Also bounds the memory of tracked reads.
pub const MAX_BYTES: usize = 4 << 10;

/// Requirements on labels. Without any, everything matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    /// Sorted by key, without duplicates.
    requirements: Box<[Requirement]>,
}

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Requirement {
    /// `key=value`, `key in (a,b)`: one of these values.
    In(String, Values),
    /// `key!=value`, `key notin (a,b)`: none of these values, or absent.
    NotIn(String, Values),
    /// `key`: present, with any value.
    Exists(String),
    /// `!key`.
    Absent(String),
    /// `key>5`: an integer greater than that.
    Greater(String, i64),
    /// `key<5`: an integer less than that.
    Less(String, i64),
}

/// Distinct values of one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Values(
    /// Sorted. A tree would take some 300 bytes for a single value, the usual number.
    Box<[Box<str>]>,
);

impl Values {
    /// Returns `true` if `value` is one of them.
    pub fn contains(&self, value: &str) -> bool {
        match &*self.0 {
            [only] => **only == *value,
            values => values.binary_search_by(|one| (**one).cmp(value)).is_ok(),
        }
    }

    /// Returns their number; at least one.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns them in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|value| &**value)
    }

    /// Returns the bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        size_of_val(&*self.0) + self.iter().map(str::len).sum::<usize>()
    }
}

impl<T: Into<Box<str>>> FromIterator<T> for Values {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut values: Vec<Box<str>> = values.into_iter().map(Into::into).collect();
        values.sort_unstable();
        values.dedup();
        Self(values.into())
    }
}

impl Requirement {
    /// Returns the label's key.
    pub fn key(&self) -> &str {
        match self {
            Self::In(key, _)
            | Self::NotIn(key, _)
            | Self::Exists(key)
            | Self::Absent(key)
            | Self::Greater(key, _)
            | Self::Less(key, _) => key,
        }
    }

    /// Returns the bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        let values = if let Self::In(_, values) | Self::NotIn(_, values) = self { values.heap() } else { 0 };
        self.key().len() + values
    }

    /// Returns `true` if the label may have this value.
    fn admits(&self, value: &str) -> bool {
        match self {
            Self::In(_, values) => values.contains(value),
            Self::NotIn(_, values) => !values.contains(value),
            Self::Exists(_) => true,
            Self::Absent(_) => false,
            Self::Greater(_, bound) => value.parse::<i64>().is_ok_and(|value| value > *bound),
            Self::Less(_, bound) => value.parse::<i64>().is_ok_and(|value| value < *bound),
        }
    }

    /// Returns `true` if the label may be absent.
    fn admits_absence(&self) -> bool {
        matches!(self, Self::NotIn(..) | Self::Absent(_))
    }

    /// Returns `true` if all labels that meet this also meet `other`, as far as these two alone can show.
    fn implies(&self, other: &Self) -> bool {
        if self.key() != other.key() {
            return false;
        }
        match (self, other) {
            (Self::In(_, values), _) => values.iter().all(|value| other.admits(value)),
            (Self::Absent(_), _) => other.admits_absence(),
            (Self::NotIn(_, more), Self::NotIn(_, values)) => values.iter().all(|value| more.contains(value)),
            (Self::Exists(_) | Self::Greater(..) | Self::Less(..), Self::Exists(_)) => true,
            (Self::Greater(_, bound), Self::Greater(_, lower)) => bound >= lower,
            (Self::Less(_, bound), Self::Less(_, higher)) => bound <= higher,
            (Self::Greater(..) | Self::Less(..), Self::NotIn(_, values)) => {
                !values.iter().any(|value| self.admits(value))
            }
            _ => false,
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &Values| values.iter().collect::<Vec<_>>().join(",");
        match self {
            Self::In(key, values) if values.count() == 1 => write!(f, "{key}={}", list(values)),
            Self::In(key, values) => write!(f, "{key} in ({})", list(values)),
            Self::NotIn(key, values) if values.count() == 1 => write!(f, "{key}!={}", list(values)),
            Self::NotIn(key, values) => write!(f, "{key} notin ({})", list(values)),
            Self::Exists(key) => f.write_str(key),
            Self::Absent(key) => write!(f, "!{key}"),
            Self::Greater(key, bound) => write!(f, "{key}>{bound}"),
            Self::Less(key, bound) => write!(f, "{key}<{bound}"),
        }
    }
}

/// A text that is not a label selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read label selector {}: {problem}", quoted(.selector))]
pub struct SelectorError {
    /// The text, shortened to the longest allowed selector.
    pub selector: String,
    /// The problem.
    pub problem: String,
}

impl Selector {
    /// Parses requirements joined by commas: `a=b`, `a==b`, `c!=d`, `e in (f,g)`, `h notin (i)`, `j`, `!k`, `l>5`,
    /// `m<7`. An empty text matches everything.
    ///
    /// # Errors
    /// Fails if Kubernetes would reject the text, also for keys and values that no label can have. Fails if it exceeds
    /// [`MAX_REQUIREMENTS`], [`MAX_VALUES`] or [`MAX_BYTES`].
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let parsed = Parser { rest: text.trim_start(), bytes: 0 }.requirements();
        let selector = || text[..text.floor_char_boundary(MAX_BYTES)].to_owned();
        parsed.map(Self::of).map_err(|problem| SelectorError { selector: selector(), problem })
    }

    /// Returns `true` if there are no requirements.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns the requirements, sorted by key. All of them must hold.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Returns `true` if `labels`, each key at most once, meet every requirement.
    pub fn matches<K: AsRef<str>, V: AsRef<str>>(&self, labels: impl IntoIterator<Item = (K, V)>) -> bool {
        // Requirements whose label must be present, and has not been found yet.
        let mut open = self.requirements.iter().filter(|requirement| !requirement.admits_absence()).count();
        for (key, value) in labels {
            for requirement in self.requirements.iter().filter(|requirement| requirement.key() == key.as_ref()) {
                if !requirement.admits(value.as_ref()) {
                    return false;
                }
                open -= usize::from(!requirement.admits_absence());
            }
        }
        open == 0
    }

    /// Returns `true` if the labels that `label` looks up meet every requirement. Asks once for each requirement, so
    /// many labels cost no more than few.
    pub fn matches_by<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|required| match label(required.key()) {
            Some(value) => required.admits(value),
            None => required.admits_absence(),
        })
    }

    /// Returns `true` if `other` matches everything that this matches, as far as single requirements can show.
    ///
    /// ```
    /// use pilothouse_core::selector::Selector;
    ///
    /// let selector = |text| Selector::parse(text).expect("a selector");
    /// assert!(selector("app=web,tier").implies(&selector("app in (web,db)")));
    /// assert!(!selector("app in (web,db)").implies(&selector("app=web,tier")));
    /// ```
    pub fn implies(&self, other: &Self) -> bool {
        other.requirements.iter().all(|other| self.requirements.iter().any(|own| own.implies(other)))
    }

    /// Returns the selector of what both match.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::of(self.requirements.iter().chain(&*other.requirements).cloned().collect())
    }

    /// Returns what this requires beyond `wider`, which it must [imply](Self::implies).
    #[must_use]
    pub fn beyond(&self, wider: &Self) -> Self {
        let own = self.requirements.iter().filter(|own| !wider.requirements.contains(own));
        Self { requirements: own.cloned().collect() }
    }

    pub(crate) fn of(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key().cmp(b.key()).then_with(|| a.cmp(b)));
        requirements.dedup();
        Self { requirements: requirements.into() }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

/// The rest of the text, without leading white space.
struct Parser<'a> {
    rest: &'a str,
    /// Bytes of keys and values so far.
    bytes: usize,
}

impl<'a> Parser<'a> {
    fn take(&mut self, symbol: &str) -> bool {
        let rest = self.rest.strip_prefix(symbol);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }

    /// Reads up to white space or a symbol; may be empty.
    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| c.is_whitespace() || "=!<>(),".contains(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn requirements(mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        while !self.rest.is_empty() || !requirements.is_empty() {
            if requirements.len() == MAX_REQUIREMENTS {
                return Err(format!("has more than {MAX_REQUIREMENTS} requirements"));
            }
            requirements.push(self.requirement()?);
            if self.rest.is_empty() {
                break;
            }
            if !self.take(",") {
                return Err(format!("expected ',' before {}", quoted(self.rest)));
            }
        }
        Ok(requirements)
    }

    fn key(&mut self) -> Result<String, String> {
        let key = key(self.word())?;
        self.count(&key)?;
        Ok(key)
    }

    fn value(&mut self) -> Result<String, String> {
        let word = self.word();
        if !is_label_text(word) {
            return Err(format!("{} is no label value", quoted(word)));
        }
        self.count(word)?;
        Ok(word.to_owned())
    }

    fn count(&mut self, word: &str) -> Result<(), String> {
        self.bytes += word.len();
        if self.bytes <= MAX_BYTES {
            return Ok(());
        }
        Err(format!("has more than {MAX_BYTES} bytes of keys and values"))
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        if self.take("!") {
            return Ok(Requirement::Absent(self.key()?));
        }
        let key = self.key()?;
        if self.take("==") || self.take("=") {
            return Ok(Requirement::In(key, [self.value()?].into_iter().collect()));
        }
        if self.take("!=") {
            return Ok(Requirement::NotIn(key, [self.value()?].into_iter().collect()));
        }
        if self.take(">") {
            return Ok(Requirement::Greater(key, integer(self.word())?));
        }
        if self.take("<") {
            return Ok(Requirement::Less(key, integer(self.word())?));
        }
        match self.word() {
            "" => Ok(Requirement::Exists(key)),
            "in" => Ok(Requirement::In(key, self.values()?)),
            "notin" => Ok(Requirement::NotIn(key, self.values()?)),
            other => Err(format!("expected an operator after {key:?}, found {}", quoted(other))),
        }
    }

    fn values(&mut self) -> Result<Values, String> {
        let mut values = BTreeSet::new();
        if !self.take("(") {
            return Err("expected values in parentheses".to_owned());
        }
        if self.take(")") {
            return Err("expected a value between '(' and ')'".to_owned());
        }
        loop {
            if values.len() == MAX_VALUES {
                return Err(format!("lists more than {MAX_VALUES} values in one requirement"));
            }
            values.insert(self.value()?);
            if self.take(")") {
                return Ok(values.into_iter().collect());
            }
            if !self.take(",") {
                return Err("expected ',' or ')' after a value".to_owned());
            }
        }
    }
}

/// Returns `true` if a label can have this key.
pub(crate) fn is_label_key(text: &str) -> bool {
    key(text).is_ok()
}

/// Checks a qualified name: `name` or `prefix/name`, with a DNS subdomain as prefix.
fn key(word: &str) -> Result<String, String> {
    let (prefix, name) = word.split_once('/').map_or((None, word), |(prefix, name)| (Some(prefix), name));
    let is_part = |part: &str| {
        let is_inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(is_inside) && !part.starts_with('-') && !part.ends_with('-')
    };
    let is_prefix = |prefix: &str| prefix.len() <= 253 && prefix.split('.').all(is_part);
    if name.is_empty() || !is_label_text(name) || !prefix.is_none_or(is_prefix) {
        return Err(if word.is_empty() {
            "expected a label key".to_owned()
        } else {
            format!("{} is no label key", quoted(word))
        });
    }
    Ok(word.to_owned())
}

fn integer(word: &str) -> Result<i64, String> {
    word.parse().map_err(|_| format!("{} is no integer", quoted(word)))
}

/// Shortens a text for an error.
fn quoted(text: &str) -> String {
    // More than the longest value, so that a value one byte too long is shown whole.
    const SHOWN: usize = 80;
    let end = text.floor_char_boundary(SHOWN);
    let more = if end < text.len() { "…" } else { "" };
    format!("{:?}{more}", &text[..end])
}

/// At most 63 letters, digits, `-`, `_` and `.`, the first and the last a letter or a digit.
fn is_label_text(text: &str) -> bool {
    let is_inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_end = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    text.len() <= 63 && text.bytes().all(is_inside) && is_end(text.bytes().next()) && is_end(text.bytes().last())
}

#[cfg(test)]
mod tests;
