//! One place in a schema: which fields it has, how they merge, and what their values must satisfy.
//!
//! A [`Node`] is what all walks share, whether it was read from a CustomResourceDefinition or from the built-in definitions.
//! It is a tree, except that a built-in definition may be referred to by its number (definitions refer to each other, and
//! `JSONSchemaProps` to itself); [`Node::resolve`] follows that reference.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{builtin, rules::Rules};

/// How deep schemas and objects may nest. Beyond it walks end, so that no input can exhaust the stack. What the JSON parser
/// lets through is no deeper than 128.
pub(crate) const MAX_DEPTH: usize = 160;

/// The `type` of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Type {
    #[default]
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    fn parse(name: &str) -> Type {
        match name {
            "object" => Type::Object,
            "array" => Type::Array,
            "string" => Type::String,
            "integer" => Type::Integer,
            "number" => Type::Number,
            "boolean" => Type::Boolean,
            _ => Type::Any,
        }
    }

    /// As it stands in a schema; empty for any type.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Type::Any => "",
            Type::Object => "object",
            Type::Array => "array",
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
        }
    }
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ListKind {
    /// Owned and replaced as a whole.
    #[default]
    Atomic,
    /// Each value once.
    Set,
    /// Objects that these fields tell apart.
    Map(Vec<String>),
}

/// `additionalProperties`.
#[derive(Debug, Clone)]
pub(crate) enum Additional {
    /// `true`.
    Any,
    /// A schema for each.
    Each(Box<Node>),
}

/// `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`.
#[derive(Debug, Clone, Default)]
pub(crate) struct PatchStrategy {
    /// Lists merge by `merge_key`, or as sets of primitives without one.
    pub(crate) merge: bool,
    /// Objects are replaced, not merged.
    pub(crate) replace: bool,
    pub(crate) merge_key: Option<String>,
}

/// One place in a schema.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    /// Stands for this built-in definition.
    pub(crate) reference: Option<usize>,
    pub(crate) kind: Type,
    pub(crate) properties: BTreeMap<String, Node>,
    pub(crate) additional: Option<Additional>,
    pub(crate) items: Option<Box<Node>>,
    pub(crate) list: ListKind,
    /// `x-kubernetes-map-type: atomic`.
    pub(crate) atomic_map: bool,
    /// `x-kubernetes-preserve-unknown-fields`; of built-in definitions also those that say nothing about their fields.
    pub(crate) preserve: bool,
    pub(crate) embedded: bool,
    pub(crate) int_or_string: bool,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    pub(crate) patch: PatchStrategy,
    pub(crate) rules: Option<Box<Rules>>,
}

/// Anything goes, and all of it is kept.
pub(crate) static FREE: Node = Node {
    reference: None,
    kind: Type::Any,
    properties: BTreeMap::new(),
    additional: None,
    items: None,
    list: ListKind::Atomic,
    atomic_map: false,
    preserve: true,
    embedded: false,
    int_or_string: false,
    nullable: true,
    default: None,
    patch: PatchStrategy { merge: false, replace: false, merge_key: None },
    rules: None,
};

impl Node {
    /// Reads a schema. `number_of` gives the number of a definition that a `$ref` names; CustomResourceDefinitions have none.
    /// What the schema says wrongly is left out: `structural` is what complains.
    pub(crate) fn parse(schema: &Value, number_of: &dyn Fn(&str) -> Option<usize>) -> Node {
        Node::parse_at(schema, number_of, 0)
    }

    fn parse_at(schema: &Value, number_of: &dyn Fn(&str) -> Option<usize>, depth: usize) -> Node {
        let Some(schema) = schema.as_object().filter(|_| depth < MAX_DEPTH) else {
            return FREE.clone();
        };
        let child = |schema: &Value| Node::parse_at(schema, number_of, depth + 1);
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
        let text = |name: &str| schema.get(name).and_then(Value::as_str);
        let strategy = text("x-kubernetes-patch-strategy").unwrap_or_default();
        Node {
            reference: text("$ref").and_then(|reference| number_of(reference.rsplit('/').next().unwrap_or_default())),
            kind: text("type").map(Type::parse).unwrap_or_default(),
            properties: schema
                .get("properties")
                .and_then(Value::as_object)
                .map(|fields| fields.iter().map(|(name, field)| (name.clone(), child(field))).collect())
                .unwrap_or_default(),
            additional: match schema.get("additionalProperties") {
                None | Some(Value::Null | Value::Bool(false)) => None,
                Some(each @ Value::Object(_)) => Some(Additional::Each(Box::new(child(each)))),
                Some(_) => Some(Additional::Any),
            },
            items: schema.get("items").map(|items| Box::new(child(items))),
            list: match text("x-kubernetes-list-type") {
                Some("set") => ListKind::Set,
                Some("map") => ListKind::Map(strings(schema, "x-kubernetes-list-map-keys")),
                _ => ListKind::Atomic,
            },
            atomic_map: text("x-kubernetes-map-type") == Some("atomic"),
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            nullable: flag("nullable"),
            default: schema.get("default").filter(|default| !default.is_null()).cloned(),
            patch: PatchStrategy {
                merge: strategy.split(',').any(|part| part == "merge"),
                replace: strategy.split(',').any(|part| part == "replace"),
                merge_key: text("x-kubernetes-patch-merge-key").map(str::to_owned),
            },
            rules: Rules::parse(schema, &child).map(Box::new),
        }
    }

    /// The node that says what the fields are.
    pub(crate) fn resolve(&self) -> &Node {
        match self.reference {
            // A reference names a definition, which is no reference itself.
            Some(number) => builtin::definition(number),
            None => self,
        }
    }

    /// The node of a field; none if the schema does not know the field.
    pub(crate) fn field(&self, name: &str) -> Option<&Node> {
        let node = self.resolve();
        if let Some(field) = node.properties.get(name) {
            return Some(field);
        }
        match &node.additional {
            Some(Additional::Each(each)) => Some(each),
            Some(Additional::Any) => Some(&FREE),
            None if node.preserve => Some(&FREE),
            None => None,
        }
    }

    /// The node of a list's items.
    pub(crate) fn item(&self) -> &Node {
        self.resolve().items.as_deref().unwrap_or(&FREE)
    }

    /// How items of a list tell apart. The place where a definition is used may say it, or the definition.
    pub(crate) fn list(&self) -> &ListKind {
        if self.list == ListKind::Atomic { &self.resolve().list } else { &self.list }
    }

    /// Whether an object here is owned and replaced as a whole.
    pub(crate) fn is_atomic_map(&self) -> bool {
        self.atomic_map || self.resolve().atomic_map
    }

    /// What stands for an absent field among the keys of a list's items.
    pub(crate) fn key_default(&self, key: &str, builtin: bool) -> Option<Value> {
        let field = self.field(key)?;
        field.default.clone().or_else(|| match field.resolve().kind {
            // A built-in object is a Go struct: an absent string is an empty one.
            Type::String if builtin => Some(Value::from("")),
            Type::Integer if builtin => Some(Value::from(0)),
            _ => None,
        })
    }

    /// Makes the fields that every object has known here, whatever the schema says: `apiVersion`, `kind`, `metadata`.
    pub(crate) fn add_object_fields(&mut self) {
        let string = || Node { kind: Type::String, ..Node::default() };
        self.properties.entry("apiVersion".to_owned()).or_insert_with(string);
        self.properties.entry("kind".to_owned()).or_insert_with(string);
        let restrictions = self.properties.remove("metadata");
        let metadata = Node {
            reference: Some(builtin::object_meta()),
            // Names may be restricted further; the fields themselves are not the definition's to change.
            rules: restrictions.map(|node| Box::new(Rules { all_of: vec![node], ..Rules::default() })),
            ..Node::default()
        };
        self.properties.insert("metadata".to_owned(), metadata);
    }

    /// Calls [`Node::add_object_fields`] on every embedded resource beneath.
    pub(crate) fn complete_embedded(&mut self) {
        if self.embedded {
            self.add_object_fields();
        }
        self.properties.values_mut().for_each(Node::complete_embedded);
        if let Some(Additional::Each(each)) = &mut self.additional {
            each.complete_embedded();
        }
        if let Some(items) = &mut self.items {
            items.complete_embedded();
        }
    }
}

/// The strings in a schema's list.
pub(crate) fn strings(schema: &Map<String, Value>, name: &str) -> Vec<String> {
    let list = schema.get(name).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Whether an object nests deeper than walks go.
pub(crate) fn too_deep(value: &Value) -> bool {
    deeper_than(value, MAX_DEPTH)
}

/// Whether lists and objects nest more than `levels` deep. A scalar has no level.
pub(crate) fn deeper_than(value: &Value, levels: usize) -> bool {
    let mut level: Vec<&Value> = vec![value];
    let mut next = Vec::new();
    for _ in 0..=levels {
        level.retain(|value| value.is_array() || value.is_object());
        if level.is_empty() {
            return false;
        }
        for value in level.drain(..) {
            match value {
                Value::Array(items) => next.extend(items),
                Value::Object(fields) => next.extend(fields.values()),
                _ => {}
            }
        }
        std::mem::swap(&mut level, &mut next);
    }
    true
}
