//! What a value must satisfy besides its fields: JSON Schema's validation keywords and CEL expressions. `validate`
//! enforces them.

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::{
    cel,
    node::{Node, strings},
};

/// Upper bound for the bytes of a compiled pattern. A hostile pattern such as `(a{1000}){1000}` is rejected.
const PATTERN_SIZE: usize = 1 << 20;

/// A bound on a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) limit: f64,
    pub(crate) exclusive: bool,
}

/// Least and most of a count, if bounded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Range {
    pub(crate) min: Option<u64>,
    pub(crate) max: Option<u64>,
}

/// What a value must satisfy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    pub(crate) required: Vec<String>,
    /// The allowed values. Empty allows any.
    pub(crate) allowed: Vec<Value>,
    pub(crate) pattern: Option<Regex>,
    pub(crate) format: Option<String>,
    pub(crate) minimum: Option<Bound>,
    pub(crate) maximum: Option<Bound>,
    pub(crate) multiple_of: Option<f64>,
    /// In characters.
    pub(crate) length: Range,
    pub(crate) items: Range,
    pub(crate) fields: Range,
    pub(crate) all_of: Vec<Node>,
    pub(crate) any_of: Vec<Node>,
    pub(crate) one_of: Vec<Node>,
    pub(crate) not: Option<Node>,
    pub(crate) expressions: Vec<cel::Rule>,
}

impl Rules {
    /// Parses the validation keywords of a schema, or returns `None` if there are none. `child` parses a nested schema.
    pub(crate) fn parse(schema: &Map<String, Value>, child: &dyn Fn(&Value) -> Node) -> Option<Rules> {
        const KEYWORDS: [&str; 19] = [
            "required",
            "enum",
            "pattern",
            "format",
            "minimum",
            "maximum",
            "multipleOf",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "allOf",
            "anyOf",
            "oneOf",
            "not",
            "x-kubernetes-validations",
            "x-kubernetes-embedded-resource",
        ];
        if !KEYWORDS.iter().any(|keyword| schema.contains_key(*keyword)) {
            return None;
        }
        let number = |name: &str| schema.get(name).and_then(Value::as_f64);
        let range = |min: &str, max: &str| Range {
            min: schema.get(min).and_then(Value::as_u64),
            max: schema.get(max).and_then(Value::as_u64),
        };
        let bound = |name: &str, exclusive: &str| {
            let exclusive = schema.get(exclusive).and_then(Value::as_bool).unwrap_or(false);
            number(name).map(|limit| Bound { limit, exclusive })
        };
        let branches = |name: &str| -> Vec<Node> {
            schema.get(name).and_then(Value::as_array).into_iter().flatten().map(child).collect()
        };
        Some(Rules {
            required: strings(schema, "required"),
            allowed: schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            pattern: schema.get("pattern").and_then(Value::as_str).and_then(|text| pattern(text).ok()),
            format: schema.get("format").and_then(Value::as_str).map(str::to_owned),
            minimum: bound("minimum", "exclusiveMinimum"),
            maximum: bound("maximum", "exclusiveMaximum"),
            multiple_of: number("multipleOf").filter(|factor| *factor > 0.0),
            length: range("minLength", "maxLength"),
            items: range("minItems", "maxItems"),
            fields: range("minProperties", "maxProperties"),
            all_of: branches("allOf"),
            any_of: branches("anyOf"),
            one_of: branches("oneOf"),
            not: schema.get("not").filter(|not| not.is_object()).map(child),
            expressions: cel::Rule::parse_all(schema),
        })
    }
}

/// Compiles a schema's `pattern`. Matching takes linear time for every pattern.
pub(crate) fn pattern(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).size_limit(PATTERN_SIZE).build()
}
