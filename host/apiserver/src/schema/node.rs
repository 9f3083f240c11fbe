//! A node of a schema: its fields, how they merge, and what their values must satisfy.
//!
//! All walks use [`Node`], for CustomResourceDefinitions and for built-in definitions. Nodes form a tree, except that a
//! built-in definition may be referred to by its number, because definitions refer to each other and `JSONSchemaProps`
//! to itself. [`Node::resolve`] follows such a reference.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{builtin, rules::Rules};

/// Upper bound for the depth of schemas and objects. Walks end there, so that no input can exhaust the stack. The JSON
/// parser's limit is 128.
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

    /// The type's name in a schema. Empty for any type.
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
    /// A set of distinct values.
    Set,
    /// Objects that these fields identify.
    Map(Vec<String>),
}

/// `additionalProperties`.
#[derive(Debug, Clone)]
pub(crate) enum Additional {
    /// `true`.
    Any,
    /// A schema for each value.
    Each(Box<Node>),
}

/// `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`.
#[derive(Debug, Clone, Default)]
pub(crate) struct PatchStrategy {
    /// `true` if lists merge, by `merge_key` or as sets of primitives.
    pub(crate) merge: bool,
    /// `true` if objects are replaced instead of merged.
    pub(crate) replace: bool,
    pub(crate) merge_key: Option<String>,
}

/// A node of a schema.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    /// The number of the built-in definition that this node refers to.
    pub(crate) reference: Option<usize>,
    pub(crate) kind: Type,
    pub(crate) properties: BTreeMap<String, Node>,
    pub(crate) additional: Option<Additional>,
    pub(crate) items: Option<Box<Node>>,
    pub(crate) list: ListKind,
    /// `x-kubernetes-map-type: atomic`.
    pub(crate) atomic_map: bool,
    /// `x-kubernetes-preserve-unknown-fields`. Also `true` for built-in definitions without declared fields.
    pub(crate) preserve: bool,
    pub(crate) embedded: bool,
    pub(crate) int_or_string: bool,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    pub(crate) patch: PatchStrategy,
    pub(crate) rules: Option<Box<Rules>>,
}

/// A node that accepts and keeps everything.
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
    /// Parses a schema. `number_of` returns the number of a definition that a `$ref` names; CustomResourceDefinitions
    /// have none. Invalid parts are skipped, because `structural` reports them.
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

    /// Returns the node that declares the fields.
    pub(crate) fn resolve(&self) -> &Node {
        match self.reference {
            // A definition is never a reference itself.
            Some(number) => builtin::definition(number),
            None => self,
        }
    }

    /// Returns the node of a field, or `None` if the field is unknown.
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

    /// Returns the node of a list's items.
    pub(crate) fn item(&self) -> &Node {
        self.resolve().items.as_deref().unwrap_or(&FREE)
    }

    /// Returns how items of a list are identified. A reference may override its definition.
    pub(crate) fn list(&self) -> &ListKind {
        if self.list == ListKind::Atomic { &self.resolve().list } else { &self.list }
    }

    /// `true` if an object here is owned and replaced as a whole.
    pub(crate) fn is_atomic_map(&self) -> bool {
        self.atomic_map || self.resolve().atomic_map
    }

    /// Returns the value of an absent key of a list's items.
    pub(crate) fn key_default(&self, key: &str, builtin: bool) -> Option<Value> {
        let field = self.field(key)?;
        field.default.clone().or_else(|| match field.resolve().kind {
            // A built-in object is a Go struct, so an absent string is empty.
            Type::String if builtin => Some(Value::from("")),
            Type::Integer if builtin => Some(Value::from(0)),
            _ => None,
        })
    }

    /// Adds the fields of every object: `apiVersion`, `kind` and `metadata`.
    pub(crate) fn add_object_fields(&mut self) {
        let string = || Node { kind: Type::String, ..Node::default() };
        self.properties.entry("apiVersion".to_owned()).or_insert_with(string);
        self.properties.entry("kind".to_owned()).or_insert_with(string);
        let restrictions = self.properties.remove("metadata");
        let metadata = Node {
            reference: Some(builtin::object_meta()),
            // A definition may restrict names further, but may not change the fields.
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

/// Returns the strings in a schema's list.
pub(crate) fn strings(schema: &Map<String, Value>, name: &str) -> Vec<String> {
    let list = schema.get(name).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// `true` if an object is deeper than walks go.
pub(crate) fn too_deep(value: &Value) -> bool {
    deeper_than(value, MAX_DEPTH)
}

/// `true` if lists and objects are more than `levels` deep. A scalar has no level.
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
