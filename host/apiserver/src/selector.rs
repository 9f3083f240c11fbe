//! Label and field selectors of lists and watches.
//!
//! ```text
//! labelSelector=app=web,tier in (a,b),!canary       fieldSelector=metadata.name=x,status.phase!=Failed
//! ```

use serde_json::Value;

use crate::{
    object::{array, name, namespace},
    resources::Resource,
    status::{Result, Status},
};

/// The selectors of a list or a watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    path: String,
    value: String,
    equal: bool,
}

impl Selector {
    pub(crate) fn parse(labels: &str, fields: &str, of: &Resource) -> Result<Self> {
        Ok(Selector { labels: Labels::new(labels).parse()?, fields: parse_fields(fields, of)? })
    }

    /// Parses a selector of labels.
    pub(crate) fn labels(text: &str) -> Result<Self> {
        Ok(Selector { labels: Labels::new(text).parse()?, fields: Vec::new() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(object))
            && self.fields.iter().all(|field| (field_text(object, &field.path) == field.value) == field.equal)
    }
}

impl LabelRequirement {
    fn matches(&self, object: &Value) -> bool {
        let value = object["metadata"]["labels"].get(&self.key).and_then(Value::as_str);
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(values) => value.is_some_and(|value| values.iter().any(|wanted| wanted == value)),
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|unwanted| unwanted != value)),
            Test::Greater(bound) => number().is_some_and(|number| number > *bound),
            Test::Less(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// A parser of label selectors.
struct Labels<'a> {
    rest: &'a str,
}

impl<'a> Labels<'a> {
    fn new(text: &'a str) -> Self {
        Labels { rest: text }
    }

    fn parse(mut self) -> Result<Vec<LabelRequirement>> {
        let mut requirements = Vec::new();
        self.skip_space();
        while !self.rest.is_empty() {
            requirements.push(self.requirement()?);
            self.skip_space();
            if self.rest.is_empty() {
                break;
            }
            if !self.eat(",") {
                return Err(self.refuse("found '{}', expected: ',' or 'end of string'"));
            }
            self.skip_space();
            if self.rest.is_empty() {
                return Err(self.refuse("found '{}', expected: identifier after ','"));
            }
        }
        Ok(requirements)
    }

    fn requirement(&mut self) -> Result<LabelRequirement> {
        if self.eat("!") {
            let key = self.key()?;
            return Ok(LabelRequirement { key, test: Test::Absent });
        }
        let key = self.key()?;
        self.skip_space();
        let test = if self.rest.is_empty() || self.rest.starts_with(',') {
            Test::Exists
        } else if self.eat("!=") {
            Test::NotIn(vec![self.value()?])
        } else if self.eat("==") || self.eat("=") {
            Test::In(vec![self.value()?])
        } else if self.eat(">") {
            Test::Greater(self.number()?)
        } else if self.eat("<") {
            Test::Less(self.number()?)
        } else {
            match self.word() {
                "in" => Test::In(self.values()?),
                "notin" => Test::NotIn(self.values()?),
                _ => return Err(self.refuse("found '{}', expected: in, notin, =, ==, !=, gt, lt")),
            }
        };
        Ok(LabelRequirement { key, test })
    }

    fn values(&mut self) -> Result<Vec<String>> {
        self.skip_space();
        if !self.eat("(") {
            return Err(self.refuse("found '{}', expected: '('"));
        }
        let mut values = Vec::new();
        loop {
            values.push(self.value()?);
            self.skip_space();
            if self.eat(")") {
                return Ok(values);
            }
            if !self.eat(",") {
                return Err(self.refuse("found '{}', expected: ',' or ')'"));
            }
        }
    }

    fn key(&mut self) -> Result<String> {
        self.skip_space();
        let key = self.word();
        if !is_qualified_name(key) {
            let why = format!(
                "key: Invalid value: \"{key}\": name part must consist of alphanumeric characters, '-', '_' or '.', and \
                 must start and end with an alphanumeric character"
            );
            return Err(Status::bad_request(format!("unable to parse requirement: {why}")));
        }
        Ok(key.to_owned())
    }

    fn value(&mut self) -> Result<String> {
        self.skip_space();
        let value = self.word();
        if !is_label_value(value) {
            let why = format!(
                "values[0][{value}]: Invalid value: \"{value}\": a valid label must be an empty string or consist of \
                 alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
            );
            return Err(Status::bad_request(format!("unable to parse requirement: {why}")));
        }
        Ok(value.to_owned())
    }

    fn number(&mut self) -> Result<i64> {
        let value = self.value()?;
        value.parse().map_err(|_| {
            let why = format!(
                "values[0][{value}]: Invalid value: \"{value}\": for 'Gt', 'Lt' operators, the value must be an integer"
            );
            Status::bad_request(format!("unable to parse requirement: {why}"))
        })
    }

    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| c.is_whitespace() || "=!<>(),".contains(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn eat(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        self.rest = rest;
        true
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn refuse(&self, why: &str) -> Status {
        let found: String = self.rest.chars().take(40).collect();
        Status::bad_request(format!("unable to parse requirement: {}", why.replace("{}", &found)))
    }
}

fn parse_fields(text: &str, of: &Resource) -> Result<Vec<FieldRequirement>> {
    let mut requirements = Vec::new();
    for part in split_unescaped(text, ',') {
        if part.is_empty() {
            continue;
        }
        let invalid = || Status::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"));
        let position = part.find('=').ok_or_else(invalid)?;
        let (left, right) = part.split_at(position);
        let right = right.strip_prefix("==").or_else(|| right.strip_prefix('=')).ok_or_else(invalid)?;
        let (path, equal) = left.strip_suffix('!').map_or((left, true), |path| (path, false));
        let known = path == "metadata.name"
            || (path == "metadata.namespace" && of.namespaced)
            || of.selectable.iter().any(|selectable| selectable == path);
        if !known {
            return Err(Status::bad_request(match of.selectable.is_empty() && !of.custom {
                true => {
                    format!("\"{path}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
                }
                false => format!("field label not supported: {path}"),
            }));
        }
        requirements.push(FieldRequirement { path: path.to_owned(), value: unescape(right), equal });
    }
    Ok(requirements)
}

fn split_unescaped(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (index, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == separator {
            parts.push(&text[start..index]);
            start = index + c.len_utf8();
        }
    }
    parts.push(&text[start..]);
    parts
}

fn unescape(text: &str) -> String {
    let mut escaped = false;
    text.chars()
        .filter(|c| {
            escaped = *c == '\\' && !escaped;
            !escaped
        })
        .collect()
}

/// Returns a selectable field as text. An absent field is empty, unless Kubernetes' type has another zero value.
fn field_text(object: &Value, path: &str) -> String {
    match path {
        "metadata.name" => return name(object).to_owned(),
        "metadata.namespace" => return namespace(object).to_owned(),
        "source" => {
            let component = object["source"]["component"].as_str().filter(|component| !component.is_empty());
            return component.or(object["reportingComponent"].as_str()).unwrap_or_default().to_owned();
        }
        "spec.unschedulable" | "spec.hostNetwork" => {
            let pointer = format!("/{}", path.replace('.', "/"));
            return object.pointer(&pointer).and_then(Value::as_bool).unwrap_or_default().to_string();
        }
        _ => {}
    }
    let mut value = object;
    for step in path.split('.') {
        value = &value[step];
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        _ if path.starts_with("status.") && (path.ends_with("replicas") || path.ends_with("successful")) => {
            "0".to_owned()
        }
        _ => String::new(),
    }
}

/// `true` for a label's value: empty, or at most 63 letters, digits, `-`, `_` and `.`, with alphanumeric ends.
pub(crate) fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_name_part(value)
}

/// `true` for the key of a label or annotation: `name` or `prefix/name`.
pub(crate) fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        None => is_name_part(key),
        Some((prefix, name)) => crate::names::is_subdomain(prefix) && is_name_part(name),
    }
}

fn is_name_part(text: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Returns the text of a `LabelSelector` object or a plain map of labels, as in `scale.status.selector`.
pub(crate) fn label_selector_text(selector: &Value) -> String {
    if let Some(text) = selector.as_str() {
        return text.to_owned();
    }
    let structured = selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let labels = if structured { &selector["matchLabels"] } else { selector };
    let mut parts: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    for expression in array(&selector["matchExpressions"]) {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: Vec<&str> = array(&expression["values"]).iter().filter_map(Value::as_str).collect();
        let values = values.join(",");
        parts.push(match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.join(",")
}
