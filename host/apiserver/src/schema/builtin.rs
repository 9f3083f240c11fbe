//! The built-in kinds. `builtin/README.md` documents the origin of their definitions.

use std::{
    collections::{BTreeMap, HashMap},
    io::Read,
    sync::{Arc, OnceLock},
};

use flate2::read::GzDecoder;
use serde_json::{Map, Value};

use super::{
    Schema,
    node::{FREE, Node, Type},
};

static COMPRESSED: &[u8] = include_bytes!("builtin/definitions.json.gz");

/// The prefix of a reference in the document that `definitions.json.gz` holds, and in OpenAPI v3.
const REFERENCE: &str = "#/components/schemas/";

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// All definitions, by OpenAPI name and by number.
struct Definitions {
    sources: BTreeMap<String, Value>,
    nodes: Vec<Node>,
    object_meta: usize,
    schemas: HashMap<(String, String, String), Arc<Schema>>,
}

fn definitions() -> &'static Definitions {
    static DEFINITIONS: OnceLock<Definitions> = OnceLock::new();
    DEFINITIONS.get_or_init(|| {
        let mut text = Vec::new();
        GzDecoder::new(COMPRESSED).read_to_end(&mut text).expect("the definitions in this binary are whole");
        let sources: BTreeMap<String, Value> =
            serde_json::from_slice(&text).expect("the definitions in this binary are JSON");
        let numbers: HashMap<&str, usize> =
            sources.keys().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
        let nodes: Vec<Node> = sources
            .iter()
            .map(|(name, source)| node(name, source, &|reference| numbers.get(reference).copied()))
            .collect();
        let object_meta = *numbers.get(OBJECT_META).expect("the definitions have ObjectMeta");
        let mut schemas = HashMap::new();
        for (name, source) in &sources {
            let number = numbers.get(name.as_str()).copied();
            for gvk in source.get("x-kubernetes-group-version-kind").and_then(Value::as_array).into_iter().flatten() {
                let part = |key: &str| gvk.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
                let root = Node { reference: number, ..Node::default() };
                let schema = Schema { root, source: Arc::new(source.clone()), builtin: true };
                schemas.insert((part("group"), part("version"), part("kind")), Arc::new(schema));
            }
        }
        Definitions { object_meta, nodes, schemas, sources }
    })
}

/// Parses a definition. Corrects Go types that OpenAPI cannot express.
fn node(name: &str, source: &Value, number_of: &dyn Fn(&str) -> Option<usize>) -> Node {
    let mut node = Node::parse(source, number_of);
    match name.rsplit('.').next() {
        Some("IntOrString") => return Node { int_or_string: true, ..Node::default() },
        // A string, but numbers are accepted too.
        Some("Quantity") => return node,
        // A Time with exactly six digits of fraction.
        Some("MicroTime") => node.rules.get_or_insert_default().format = Some("micro-time".to_owned()),
        _ => {}
    }
    free_where_silent(&mut node);
    node
}

/// Allows any field where a built-in schema declares none (`RawExtension`, `JSON`).
fn free_where_silent(node: &mut Node) {
    if node.reference.is_none()
        && matches!(node.kind, Type::Any | Type::Object)
        && node.properties.is_empty()
        && node.additional.is_none()
    {
        node.preserve = true;
    }
    node.properties.values_mut().for_each(free_where_silent);
    if let Some(items) = &mut node.items {
        free_where_silent(items);
    }
}

pub(super) fn schema(group: &str, version: &str, kind: &str) -> Option<Arc<Schema>> {
    definitions().schemas.get(&(group.to_owned(), version.to_owned(), kind.to_owned())).cloned()
}

/// Returns a definition by the number in [`Node::reference`].
pub(super) fn definition(number: usize) -> &'static Node {
    definitions().nodes.get(number).unwrap_or(&FREE)
}

/// The number of `ObjectMeta`.
pub(super) fn object_meta() -> usize {
    definitions().object_meta
}

/// A reference to `ObjectMeta`, for documents.
pub(super) fn object_meta_reference() -> Value {
    serde_json::json!({ "$ref": format!("{REFERENCE}{OBJECT_META}") })
}

/// Returns all definitions that a schema refers to directly or indirectly, by name.
pub(super) fn referred(source: &Value) -> Map<String, Value> {
    let all = &definitions().sources;
    let mut found = Map::new();
    let mut wanted = Vec::new();
    references(source, &mut wanted);
    while let Some(name) = wanted.pop() {
        if let Some(definition) = all.get(&name).filter(|_| !found.contains_key(&name)) {
            references(definition, &mut wanted);
            found.insert(name, definition.clone());
        }
    }
    found
}

fn references(source: &Value, into: &mut Vec<String>) {
    match source {
        Value::Object(fields) => {
            if let Some(name) = fields.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(REFERENCE)) {
                into.push(name.to_owned());
            }
            fields.values().for_each(|value| references(value, into));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, into)),
        _ => {}
    }
}
