//! A small server-side apply: what structured-merge-diff does, on the shapes that the properties need.
//!
//! It knows a schema, which [`super::text_holds`] must do without, and keeps one object with its managers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// What a schema says of a node.
pub(crate) enum Schema {
    Scalar,
    /// A map or a list that is owned as a whole.
    Atomic,
    Struct(Vec<(&'static str, Schema)>),
    /// A map with free keys.
    MapOf(Box<Schema>),
    /// An associative list; a key may have a default.
    ListBy(Vec<(&'static str, Option<Value>)>, Box<Schema>),
    SetOf,
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Field(String),
    Key(BTreeMap<String, String>),
    Item(String),
}

pub(crate) type Path = Vec<Step>;
pub(crate) type Paths = BTreeSet<Path>;

/// What becomes of empty values that are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Storage {
    /// Kept as written: a custom resource whose fields are nullable.
    Keep,
    /// Nulls go: other custom resources.
    DropNulls,
    /// Nulls, empty maps and lists, false, 0 and "" of struct fields go: built-in kinds.
    DropEmpty,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Server {
    pub(crate) object: Value,
    /// By manager; updates of a manager are another owner than its applies.
    pub(crate) owned: BTreeMap<(&'static str, Operation), Paths>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Apply,
    Update,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self { object: json!({}), owned: BTreeMap::new() }
    }

    /// A forced apply: merge, then prune what this manager applied before, does not apply now, and nobody else owns.
    pub(crate) fn apply(&mut self, schema: &Schema, storage: Storage, manager: &'static str, config: &Value) {
        let mine = (manager, Operation::Apply);
        let last = self.owned.insert(mine, paths(schema, config)).unwrap_or_default();
        let merged = merge(schema, Some(&self.object), Some(config)).unwrap_or_else(|| json!({}));

        let object = if last.is_empty() {
            merged
        } else {
            let set = |object: &Value| with_parents(schema, &paths(schema, object));
            let last = with_parents(schema, &last);
            let owned = self.owned.values().fold(Paths::new(), |all, owned| &all | &with_parents(schema, owned));
            let all = set(&merged);
            let unowned = &all - &(&set(&remove(schema, &merged, &last)) | &owned);
            let vanished = &all - &set(&remove(schema, &merged, &unowned));
            match remove(schema, &merged, &(&vanished & &last)) {
                Value::Null => json!({}),
                object => object,
            }
        };
        self.store(schema, storage, mine, object);
    }

    pub(crate) fn update(&mut self, schema: &Schema, storage: Storage, manager: &'static str, object: Value) {
        let mine = (manager, Operation::Update);
        let change = Change::between(schema, &self.object, &object);
        let owned = self.owned.entry(mine).or_default();
        *owned = &(&*owned - &change.removed) | &change.written;
        self.store(schema, storage, mine, object);
    }

    /// Others lose what was removed or written.
    fn store(&mut self, schema: &Schema, storage: Storage, mine: (&'static str, Operation), object: Value) {
        let change = Change::between(schema, &self.object, &object);
        for (owner, owned) in &mut self.owned {
            if *owner != mine {
                *owned = &(&*owned - &change.removed) - &change.written;
            }
        }
        self.owned.retain(|_, owned| !owned.is_empty());
        self.object = object;
        clean(schema, storage, &mut self.object);
    }

    /// The field set of a manager's applies, as the server writes it.
    pub(crate) fn fields(&self, manager: &'static str) -> String {
        let mut root = json!({});
        for path in self.owned.get(&(manager, Operation::Apply)).into_iter().flatten() {
            let mut node = &mut root;
            for step in path {
                let name = match step {
                    Step::Field(name) => format!("f:{name}"),
                    Step::Item(value) => format!("v:{value}"),
                    Step::Key(key) => {
                        let members: Vec<_> = key.iter().map(|(name, value)| format!("{name:?}:{value}")).collect();
                        format!("k:{{{}}}", members.join(","))
                    }
                };
                node = node.as_object_mut().unwrap().entry(name).or_insert_with(|| json!({}));
            }
            node.as_object_mut().unwrap().insert(".".to_owned(), json!({}));
        }
        fold(&mut root);
        root.to_string()
    }
}

/// `{".": {}}` alone is written `{}`.
fn fold(node: &mut Value) {
    let map = node.as_object_mut().unwrap();
    if map.len() == 1 {
        map.remove(".");
    }
    map.values_mut().for_each(fold);
}

fn element_step(keys: &[(&'static str, Option<Value>)], element: &Value) -> Step {
    let value = |name: &str, default: &Option<Value>| element.get(name).or(default.as_ref()).unwrap().to_string();
    Step::Key(keys.iter().map(|(name, default)| ((*name).to_owned(), value(name, default))).collect())
}

fn member_schema<'a>(schema: &'a Schema, name: &str) -> Option<&'a Schema> {
    match schema {
        Schema::Struct(fields) => fields.iter().find(|(field, _)| *field == name).map(|(_, schema)| schema),
        Schema::MapOf(of) => Some(of),
        _ => None,
    }
}

/// The paths that an apply of `value` owns.
pub(crate) fn paths(schema: &Schema, value: &Value) -> Paths {
    let mut out = Paths::new();
    walk(schema, value, &mut Vec::new(), &mut out);
    out
}

fn walk(schema: &Schema, value: &Value, path: &mut Path, out: &mut Paths) {
    match (schema, value) {
        (Schema::Scalar | Schema::Atomic, _) => {
            out.insert(path.clone());
        }
        (Schema::Struct(_) | Schema::MapOf(_), Value::Object(map)) => {
            for (name, value) in map {
                path.push(Step::Field(name.clone()));
                walk(member_schema(schema, name).unwrap(), value, path, out);
                let free = matches!(schema, Schema::MapOf(_));
                if free || value.is_null() || value.as_object().is_some_and(Map::is_empty) {
                    out.insert(path.clone());
                }
                path.pop();
            }
        }
        (Schema::ListBy(keys, of), Value::Array(list)) => {
            for element in list {
                path.push(element_step(keys, element));
                walk(of, element, path, out);
                out.insert(path.clone());
                path.pop();
            }
        }
        (Schema::SetOf, Value::Array(list)) => {
            for element in list {
                path.push(Step::Item(element.to_string()));
                out.insert(path.clone());
                path.pop();
            }
        }
        _ => {}
    }
}

/// With the struct fields on the way to each path.
fn with_parents(schema: &Schema, paths: &Paths) -> Paths {
    let is_named = |path: &[Step]| {
        let (last, parent) = path.split_last().unwrap();
        matches!(last, Step::Field(_)) && matches!(schema_at(schema, parent), Some(Schema::Struct(_)))
    };
    let parents = |path: &'_ Path| {
        let shorter = 1..path.len();
        shorter.map(|length| path[..length].to_vec()).filter(|path| is_named(path)).collect::<Vec<_>>()
    };
    paths.iter().flat_map(parents).chain(paths.iter().cloned()).collect()
}

struct Change {
    removed: Paths,
    /// New, or another value.
    written: Paths,
}

impl Change {
    fn between(schema: &Schema, old: &Value, new: &Value) -> Self {
        let mut change = Self { removed: Paths::new(), written: Paths::new() };
        change.walk(schema, Some(old), Some(new), &mut Vec::new());
        change
    }

    fn walk(&mut self, schema: &Schema, old: Option<&Value>, new: Option<&Value>, path: &mut Path) {
        let whole = matches!(schema, Schema::Scalar | Schema::Atomic) || is_empty(old) && is_empty(new);
        if !path.is_empty() {
            match (old, new) {
                (Some(_), None) => drop(self.removed.insert(path.clone())),
                (None, Some(_)) => drop(self.written.insert(path.clone())),
                (old, new) if whole && !equal(old, new) => drop(self.written.insert(path.clone())),
                _ => {}
            }
        }
        if whole {
            return;
        }
        let (old, new) = (children(schema, old), children(schema, new));
        let steps: BTreeSet<&Step> = old.iter().chain(&new).map(|(step, _)| step).collect();
        for step in steps {
            let of = |children: &[(Step, &'_ Value)]| children.iter().position(|(other, _)| other == step);
            let child = schema_at(schema, std::slice::from_ref(step)).unwrap();
            path.push(step.clone());
            self.walk(child, of(&old).map(|place| old[place].1), of(&new).map(|place| new[place].1), path);
            path.pop();
        }
    }
}

fn children<'a>(schema: &Schema, value: Option<&'a Value>) -> Vec<(Step, &'a Value)> {
    match (schema, value) {
        (Schema::Struct(_) | Schema::MapOf(_), Some(Value::Object(map))) => {
            map.iter().map(|(name, value)| (Step::Field(name.clone()), value)).collect()
        }
        (Schema::ListBy(keys, _), Some(Value::Array(list))) => {
            list.iter().map(|element| (element_step(keys, element), element)).collect()
        }
        (Schema::SetOf, Some(Value::Array(list))) => {
            list.iter().map(|element| (Step::Item(element.to_string()), element)).collect()
        }
        _ => Vec::new(),
    }
}

pub(crate) fn find<'a>(schema: &Schema, value: &'a Value, path: &[Step]) -> Option<&'a Value> {
    let Some((first, rest)) = path.split_first() else { return Some(value) };
    match (schema, first) {
        (_, Step::Field(name)) => find(member_schema(schema, name)?, value.get(name)?, rest),
        (Schema::ListBy(keys, of), step) => {
            find(of, value.as_array()?.iter().find(|element| element_step(keys, element) == *step)?, rest)
        }
        (_, Step::Item(item)) => value.as_array()?.iter().find(|element| element.to_string() == *item),
        _ => None,
    }
}

/// The schema at a path, or none where the path does not fit.
pub(crate) fn schema_at<'a>(schema: &'a Schema, path: &[Step]) -> Option<&'a Schema> {
    let Some((first, rest)) = path.split_first() else { return Some(schema) };
    match (schema, first) {
        (_, Step::Field(name)) => schema_at(member_schema(schema, name)?, rest),
        (Schema::ListBy(_, of), Step::Key(_)) => schema_at(of, rest),
        (Schema::SetOf, Step::Item(_)) => Some(&Schema::Scalar),
        _ => None,
    }
}

/// The value without these paths. What is emptied on the way becomes null, as there.
fn remove(schema: &Schema, value: &Value, paths: &Paths) -> Value {
    let below = |step: &Step| -> Paths {
        paths.iter().filter(|path| path.len() > 1 && path[0] == *step).map(|path| path[1..].to_vec()).collect()
    };
    let kept =
        children(schema, Some(value)).into_iter().filter(|(step, _)| !paths.contains(std::slice::from_ref(step)));
    let kept: Vec<(Step, Value)> = kept
        .map(|(step, value)| {
            let below = below(&step);
            let child = schema_at(schema, std::slice::from_ref(&step)).unwrap();
            let value = if below.is_empty() || matches!(child, Schema::Scalar) {
                value.clone()
            } else {
                remove(child, value, &below)
            };
            (step, value)
        })
        .collect();
    match schema {
        _ if kept.is_empty() => Value::Null,
        Schema::ListBy(..) | Schema::SetOf => kept.into_iter().map(|(_, value)| value).collect(),
        _ => kept
            .into_iter()
            .filter_map(|(step, value)| match step {
                Step::Field(name) => Some((name, value)),
                _ => None,
            })
            .collect(),
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

/// structured-merge-diff's merge: `rhs` wins leaf by leaf.
fn merge(schema: &Schema, lhs: Option<&Value>, rhs: Option<&Value>) -> Option<Value> {
    let leaf = matches!(schema, Schema::Scalar | Schema::Atomic) || is_empty(lhs) && is_empty(rhs);
    if leaf {
        return rhs.or(lhs).cloned();
    }
    match schema {
        Schema::Struct(_) | Schema::MapOf(_) => {
            let (lhs, rhs) = (lhs.and_then(Value::as_object), rhs.and_then(Value::as_object));
            let names: BTreeSet<&String> = lhs.into_iter().chain(rhs).flat_map(Map::keys).collect();
            let merged = names.into_iter().filter_map(|name| {
                let member = member_schema(schema, name).unwrap();
                let value = merge(member, lhs.and_then(|map| map.get(name)), rhs.and_then(|map| map.get(name)))?;
                Some((name.clone(), value))
            });
            let merged: Map<String, Value> = merged.collect();
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
        Schema::ListBy(keys, of) => {
            merge_list(lhs, rhs, |element| element_step(keys, element), |lhs, rhs| merge(of, lhs, rhs))
        }
        Schema::SetOf => {
            merge_list(lhs, rhs, |element| Step::Item(element.to_string()), |lhs, rhs| rhs.or(lhs).cloned())
        }
        Schema::Scalar | Schema::Atomic => None,
    }
}

/// Shared elements come in the order of `rhs`; the live ones that `rhs` does not name stay where they were among them.
fn merge_list(
    lhs: Option<&Value>,
    rhs: Option<&Value>,
    step: impl Fn(&Value) -> Step,
    item: impl Fn(Option<&Value>, Option<&Value>) -> Option<Value>,
) -> Option<Value> {
    let none = Vec::new();
    let lhs = lhs.and_then(Value::as_array).unwrap_or(&none);
    let rhs = rhs.and_then(Value::as_array).unwrap_or(&none);
    let find = |list: &'_ [Value], wanted: &Step| list.iter().position(|element| step(element) == *wanted);
    let mut shared = rhs.iter().map(&step).filter(|step| find(lhs, step).is_some());
    let mut next = shared.next();
    let mut merged = Vec::new();
    let (mut l, mut r) = (0, 0);
    while l < lhs.len() || r < rhs.len() {
        if let Some(left) = lhs.get(l) {
            match find(rhs, &step(left)) {
                None => {
                    merged.extend(item(Some(left), None));
                    l += 1;
                    continue;
                }
                // Shared, but another one's turn.
                Some(place) if r < rhs.len() && place != r && next.as_ref().is_some_and(|next| *next != step(left)) => {
                    l += 1;
                    continue;
                }
                // Merged before.
                Some(place) if place < r => l += 1,
                Some(_) => {}
            }
        }
        if let Some(right) = rhs.get(r) {
            let wanted = step(right);
            let place = find(lhs, &wanted);
            merged.extend(item(place.map(|place| &lhs[place]), Some(right)));
            r += 1;
            if place == Some(l) {
                l += 1;
            }
            if next == Some(wanted) {
                next = shared.next();
            }
        }
    }
    (!merged.is_empty()).then_some(Value::Array(merged))
}

fn clean(schema: &Schema, storage: Storage, value: &mut Value) {
    match (schema, value) {
        (Schema::Struct(_) | Schema::MapOf(_), Value::Object(map)) => {
            for (name, value) in map.iter_mut() {
                clean(member_schema(schema, name).unwrap(), storage, value);
            }
            let free = matches!(schema, Schema::MapOf(_));
            map.retain(|_, value| match storage {
                Storage::Keep => true,
                Storage::DropNulls => !value.is_null(),
                Storage::DropEmpty if free => !value.is_null(),
                Storage::DropEmpty => !is_zero(value),
            });
        }
        (Schema::ListBy(keys, of), Value::Array(list)) => {
            for element in list {
                clean(of, storage, element);
                // Defaults of keys are written to storage.
                for (name, default) in keys {
                    if let (Some(default), Value::Object(element)) = (default, &mut *element) {
                        element.entry(*name).or_insert_with(|| default.clone());
                    }
                }
            }
        }
        _ => {}
    }
}

pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        other => is_empty(Some(other)),
    }
}

/// Of all maps in it.
pub(crate) fn without_nulls(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(|value| *value = without_nulls(value.take()));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| *value = without_nulls(value.take())),
        _ => {}
    }
    value
}

fn equal(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => super::same(a, b),
        _ => false,
    }
}
