//! Selectors in the syntax of Kubernetes. By labels: `app=web,tier!=cache,env in (a, b),x notin (y),z,!legacy,size>3`.
//! By fields: `spec.nodeName=n1,status.phase!=Succeeded`.
//!
//! Label selectors have the host's limits, and its messages.

use std::collections::BTreeSet;

use serde_json::Value;

use super::field::Path;

/// The contract's limits: requirements of a label selector, values of one of them, and bytes of all keys and values.
const REQUIREMENTS: usize = 64;
const VALUES: usize = 64;
const BYTES: usize = 4 << 10;

/// Characters that end a word of a label selector, besides white space.
const SYMBOLS: &str = "=!<>(),";

/// A label selector. All requirements must hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selector(Vec<Requirement>);

#[derive(Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, PartialEq, Eq)]
enum Operator {
    In(BTreeSet<String>),
    /// Also holds if the label is absent.
    NotIn(BTreeSet<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

impl Selector {
    /// # Errors
    /// Fails if it is not valid or too long. Says why.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let requirements = Labels { rest: text.trim_start(), bytes: 0 }.requirements();
        requirements.map(Self).map_err(|problem| format!("cannot read label selector {}: {problem}", shown(text)))
    }

    /// Returns `true` if an object's labels match.
    pub(super) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|Requirement { key, operator }| {
            let value = object["metadata"]["labels"][key].as_str();
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            match operator {
                Operator::In(values) => value.is_some_and(|value| values.contains(value)),
                Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Operator::Exists => value.is_some(),
                Operator::Absent => value.is_none(),
                Operator::Greater(bound) => number().is_some_and(|number| number > *bound),
                Operator::Less(bound) => number().is_some_and(|number| number < *bound),
            }
        })
    }
}

/// The rest of a label selector that is being parsed, and the bytes of its keys and values so far.
struct Labels<'a> {
    rest: &'a str,
    bytes: usize,
}

impl<'a> Labels<'a> {
    fn requirements(mut self) -> Result<Vec<Requirement>, String> {
        let mut all = Vec::new();
        if self.rest.is_empty() {
            return Ok(all);
        }
        loop {
            if all.len() == REQUIREMENTS {
                return Err(format!("has more than {REQUIREMENTS} requirements"));
            }
            all.push(self.requirement()?);
            if self.rest.is_empty() {
                return Ok(all);
            }
            if !self.skips(",") {
                return Err(format!("expected ',' before {}", shown(self.rest)));
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        if self.skips("!") {
            return Ok(Requirement { key: self.key()?, operator: Operator::Absent });
        }
        let key = self.key()?;
        let operator = if self.skips("==") || self.skips("=") {
            Operator::In([self.value()?].into())
        } else if self.skips("!=") {
            Operator::NotIn([self.value()?].into())
        } else if self.skips(">") {
            Operator::Greater(self.integer()?)
        } else if self.skips("<") {
            Operator::Less(self.integer()?)
        } else {
            match self.word() {
                "" => Operator::Exists,
                "in" => Operator::In(self.values()?),
                "notin" => Operator::NotIn(self.values()?),
                other => return Err(format!("expected an operator after {key:?}, found {}", shown(other))),
            }
        };
        Ok(Requirement { key, operator })
    }

    /// Parses values in parentheses.
    fn values(&mut self) -> Result<BTreeSet<String>, String> {
        if !self.skips("(") {
            return Err("expected values in parentheses".to_owned());
        }
        if self.skips(")") {
            return Err("expected a value between '(' and ')'".to_owned());
        }
        let mut values = BTreeSet::new();
        loop {
            if values.len() == VALUES {
                return Err(format!("lists more than {VALUES} values in one requirement"));
            }
            values.insert(self.value()?);
            if self.skips(")") {
                return Ok(values);
            }
            if !self.skips(",") {
                return Err("expected ',' or ')' after a value".to_owned());
            }
        }
    }

    fn key(&mut self) -> Result<String, String> {
        match self.word() {
            "" => Err("expected a label key".to_owned()),
            word if is_label_key(word) => self.counted(word),
            word => Err(format!("{} is no label key", shown(word))),
        }
    }

    fn value(&mut self) -> Result<String, String> {
        match self.word() {
            word if is_label_value(word) => self.counted(word),
            word => Err(format!("{} is no label value", shown(word))),
        }
    }

    fn integer(&mut self) -> Result<i64, String> {
        let word = self.word();
        word.parse().map_err(|_| format!("{} is no integer", shown(word)))
    }

    fn counted(&mut self, word: &str) -> Result<String, String> {
        self.bytes += word.len();
        if self.bytes > BYTES {
            return Err(format!("has more than {BYTES} bytes of keys and values"));
        }
        Ok(word.to_owned())
    }

    /// Skips `symbol`. Returns `false` if it is not next.
    fn skips(&mut self, symbol: &str) -> bool {
        let Some(behind) = self.rest.strip_prefix(symbol) else { return false };
        self.rest = behind.trim_start();
        true
    }

    /// Takes the text before the next white space or symbol. It may be empty.
    fn word(&mut self) -> &'a str {
        let ends = |c: char| c.is_whitespace() || SYMBOLS.contains(c);
        let (word, behind) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        self.rest = behind.trim_start();
        word
    }
}

/// Returns `true` for a valid label key: a name, optionally after a DNS subdomain and a slash.
pub(super) fn is_label_key(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    let is_label_of_dns = |label: &str| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(fits) && !label.starts_with('-') && !label.ends_with('-')
    };
    !name.is_empty()
        && is_label_value(name)
        && domain.is_none_or(|domain| domain.len() <= 253 && domain.split('.').all(is_label_of_dns))
}

/// Returns `true` for a valid label value.
fn is_label_value(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63 && text.chars().all(fits) && ends(text.chars().next()) && ends(text.chars().next_back())
}

/// Quotes the beginning of a text, for a message.
fn shown(text: &str) -> String {
    let end = text.floor_char_boundary(80);
    format!("{:?}{}", &text[..end], if end < text.len() { "…" } else { "" })
}

/// A field selector. All requirements must hold. The mock does not know by which fields a server selects a kind, so any
/// path of names is accepted.
#[derive(Debug, Default)]
pub(super) struct FieldSelector(Vec<FieldRequirement>);

#[derive(Debug)]
struct FieldRequirement {
    path: Path,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// # Errors
    /// Fails if a part is not valid. Says which.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let requirement = |part: &str| {
            let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (path, value, true)
            } else {
                return Err(format!("{part:?} is not a field requirement"));
            };
            Ok(FieldRequirement { path: Path::parse(path.trim())?, value: value.trim().to_owned(), equal })
        };
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(requirement).collect::<Result<_, _>>().map(Self)
    }

    /// Returns `true` if an object's fields match. A missing field counts as empty, as on an API server.
    pub(super) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|FieldRequirement { path, value, equal }| {
            let values = path.values(object);
            let is = values.contains(value) || (values.is_empty() && value.is_empty());
            is == *equal
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FieldSelector, Selector};

    #[test]
    fn requirements_hold_as_in_kubernetes() {
        let object = json!({"metadata": {"labels": {"app": "web", "env": "prod", "size": "3", "a.b/c": ""}}});
        for (selector, matches) in [
            ("", true),
            ("app=web", true),
            ("app==web,env!=test", true),
            ("app=db", false),
            ("tier!=cache", true),
            ("env in (prod, test), app", true),
            ("env in (test)", false),
            ("env notin (prod)", false),
            ("tier notin (cache)", true),
            ("!tier", true),
            ("!app", false),
            ("size>2, size<4", true),
            ("size>3", false),
            ("size<3", false),
            ("app>1", false),
            ("tier<1", false),
            (" a.b/c = , app", true),
        ] {
            assert_eq!(Selector::parse(selector).map(|s| s.matches(&object)), Ok(matches), "{selector}");
        }
    }

    /// The host has the same messages.
    #[test]
    fn what_is_no_selector_is_refused() {
        for (text, problem) in [
            ("a b", "expected an operator after \"a\", found \"b\""),
            ("a=b c", "expected ',' before \"c\""),
            ("a=b=c", "expected ',' before \"=c\""),
            (",", "expected a label key"),
            ("a,,b", "expected a label key"),
            ("a,", "expected a label key"),
            ("=web", "expected a label key"),
            ("!", "expected a label key"),
            ("a in", "expected values in parentheses"),
            ("app in web", "expected values in parentheses"),
            ("a in ()", "expected a value between '(' and ')'"),
            ("app in (a", "expected ',' or ')' after a value"),
            ("a notin (x y)", "expected ',' or ')' after a value"),
            ("a>x", "\"x\" is no integer"),
            ("-a", "\"-a\" is no label key"),
            ("A/b/c", "\"A/b/c\" is no label key"),
            ("a_b.io/c", "\"a_b.io/c\" is no label key"),
            ("ab/", "\"ab/\" is no label key"),
            ("a=b-", "\"b-\" is no label value"),
        ] {
            let refused = format!("cannot read label selector {text:?}: {problem}");
            assert_eq!(Selector::parse(text).map(drop), Err(refused));
        }
    }

    #[test]
    fn selector_has_the_bounds_of_the_contract() {
        let joined = |count: usize, text: &dyn Fn(usize) -> String| (0..count).map(text).collect::<Vec<_>>().join(",");
        let absent = |count| joined(count, &|number| format!("!a{number}"));
        let listed = |count| format!("a in ({})", joined(count, &|number| number.to_string()));
        let long = |key: &str| joined(64, &|number| format!("{key}={number:063}"));
        let keyed = |labels: usize| format!("{}/{}", vec!["a"; labels].join("."), "b".repeat(63));
        for fits in [absent(64), listed(64), long("a"), format!("{}={}", keyed(127), "c".repeat(63))] {
            assert_eq!(Selector::parse(&fits).map(drop), Ok(()));
        }
        let too_long = "a".repeat(64);
        for (text, problem) in [
            (absent(65), "has more than 64 requirements".to_owned()),
            (listed(65), "lists more than 64 values in one requirement".to_owned()),
            (long("ab"), "has more than 4096 bytes of keys and values".to_owned()),
            (too_long.clone(), format!("{too_long:?} is no label key")),
            (format!("a={too_long}"), format!("{too_long:?} is no label value")),
            (keyed(128), format!("{:?}… is no label key", &keyed(128)[..80])),
        ] {
            let refused = Selector::parse(&text).expect_err("it is too much");
            let cut = if text.len() > 80 { format!("{:?}…", &text[..80]) } else { format!("{text:?}") };
            assert_eq!(refused, format!("cannot read label selector {cut}: {problem}"));
        }
    }

    #[test]
    fn fields_are_compared_as_text_and_absent_ones_are_empty() {
        let object = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "unschedulable": true}});
        for (selector, matches) in [
            ("", true),
            ("metadata.name=p", true),
            ("spec.nodeName==n1,spec.unschedulable=true", true),
            ("spec.nodeName!=n1", false),
            ("status.phase=", true),
            ("status.phase!=Failed", true),
        ] {
            assert_eq!(FieldSelector::parse(selector).map(|s| s.matches(&object)), Ok(matches), "{selector}");
        }
        assert!(FieldSelector::parse("spec.nodeName").is_err());
    }
}
