//! One step of a path into an object, as `FieldsV1` writes it.
//!
//! ```text
//! f:spec  f:containers  k:{"name":"web"}  f:image       .spec.containers[name="web"].image
//! f:metadata  f:finalizers  v:"example.com/keep"        .metadata.finalizers[="example.com/keep"]
//! ```

use std::{cmp::Ordering, fmt};

use serde_json::{Map, Number, Value};

/// A step. The order is Kubernetes': fields, keys, values, indexes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Element {
    /// A field of an object, or a key of a map.
    Field(String),
    /// The item of a map list with these keys, sorted by name.
    Key(Vec<(String, Atom)>),
    /// The item of a set.
    Value(Atom),
    /// The item at an index.
    Index(i64),
}

impl Element {
    /// Parses a key of `FieldsV1`. Returns `None` for an unknown kind.
    pub(super) fn parse(text: &str) -> Option<Element> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Element::Field(rest.to_owned())),
            "k" => {
                let fields: Map<String, Value> = serde_json::from_str(rest).ok()?;
                Some(Element::key(fields.into_iter().collect()))
            }
            "v" => Some(Element::Value(Atom::new(serde_json::from_str(rest).ok()?))),
            "i" => rest.parse().ok().map(Element::Index),
            _ => None,
        }
    }

    /// Creates the step to the item with these keys.
    pub(super) fn key(fields: Vec<(String, Value)>) -> Element {
        let mut fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, Atom::new(value))).collect();
        fields.sort();
        Element::Key(fields)
    }

    /// Returns the step as a key of `FieldsV1`.
    pub(super) fn serialize(&self) -> String {
        match self {
            Element::Field(name) => format!("f:{name}"),
            Element::Key(fields) => {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|(name, value)| format!("{}:{value}", escaped(&Value::from(name.as_str()))))
                    .collect();
                format!("k:{{{}}}", fields.join(","))
            }
            Element::Value(value) => format!("v:{value}"),
            Element::Index(index) => format!("i:{index}"),
        }
    }
}

/// The step in a path for people.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Key(fields) => {
                let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={}", value.0)).collect();
                write!(f, "[{}]", fields.join(","))
            }
            Element::Value(value) => write!(f, "[={}]", value.0),
            Element::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A value that identifies an item. 1 and 1.0 are equal.
#[derive(Debug, Clone)]
pub(super) struct Atom(Value);

/// Beyond this, not every integer is a float.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Atom {
    pub(super) fn new(value: Value) -> Atom {
        match value.as_f64() {
            Some(float) if value.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => {
                Atom(Value::from(float as i64))
            }
            _ => Atom(value),
        }
    }

    /// The order of types: numbers, strings, booleans, and invalid values last.
    fn rank(&self) -> u8 {
        match self.0 {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
}

impl Ord for Atom {
    fn cmp(&self, other: &Atom) -> Ordering {
        match (&self.0, &other.0) {
            (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => {
                self.0.to_string().cmp(&other.0.to_string())
            }
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    let float = |number: &Number| number.as_f64().unwrap_or_default();
    let integer = |number: &Number| number.as_i128().unwrap_or_default();
    float(a).total_cmp(&float(b)).then_with(|| integer(a).cmp(&integer(b))).then_with(|| a.is_f64().cmp(&b.is_f64()))
}

impl PartialOrd for Atom {
    fn partial_cmp(&self, other: &Atom) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Atom {
    fn eq(&self, other: &Atom) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Atom {}

/// Kubernetes' canonical JSON.
impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(&self.0))
    }
}

/// Returns JSON as Go writes it, with HTML characters escaped.
fn escaped(value: &Value) -> String {
    let text = value.to_string();
    if !text.contains(['<', '>', '&']) {
        return text;
    }
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
