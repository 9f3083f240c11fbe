//! Validates an object against a schema.
//!
//! The order is kube-apiserver's: types and keywords, then duplicates in sets and map lists, and then the CEL rules,
//! unless earlier errors make them pointless. Unchanged values are not validated again ("ratcheting"), so that a
//! stricter schema does not make old objects unwritable.

use serde_json::Value;

use super::{
    Cause, Reason, Schema, cel, formats, go,
    node::{Additional, ListKind, MAX_DEPTH, Node, Type},
    rules::{Range, Rules},
};

pub(super) fn validate(schema: &Schema, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut walk = Walk { causes: Vec::new(), builtin: schema.builtin };
    walk.check(&schema.root, object, Old(old), "", 0);
    let mut causes = walk.causes;
    if schema.builtin {
        return causes;
    }
    check_lists(&schema.root, object, "", &mut causes, 0);
    let pointless = |cause: &Cause| {
        matches!(
            cause.reason,
            Reason::NotSupported | Reason::Required | Reason::TooLong | Reason::TooMany | Reason::TypeInvalid
        )
    };
    if !has_expressions(&schema.root, 0) {
        return causes;
    }
    if causes.iter().any(pointless) {
        causes.push(nowhere(
            "Invalid value: null: some validation rules were not checked because the object was invalid; correct the \
             existing errors to complete validation",
        ));
        return causes;
    }
    let checked = cel::apart(|| {
        let mut causes = Vec::new();
        check_expressions(&schema.root, object, Old(old), "", &mut causes, 0);
        causes
    });
    causes.extend(
        checked.unwrap_or_else(|| vec![nowhere("Invalid value: null: the validation rules cannot be evaluated")]),
    );
    causes
}

/// A cause whose message names the field.
fn nowhere(message: &str) -> Cause {
    Cause { reason: Reason::Invalid, field: "<nil>".to_owned(), message: message.to_owned() }
}

/// The former value in the same place, if it can be identified.
#[derive(Debug, Clone, Copy)]
struct Old<'a>(Option<&'a Value>);

impl<'a> Old<'a> {
    fn field(self, name: &str) -> Old<'a> {
        Old(self.0.and_then(|old| old.get(name)))
    }

    /// Returns the corresponding item. Only items of a map list can be identified.
    fn item(self, list: &ListKind, item: &Value) -> Old<'a> {
        let ListKind::Map(keys) = list else { return Old(None) };
        let same = |old: &&Value| keys.iter().all(|key| old.get(key) == item.get(key));
        Old(self.0.and_then(Value::as_array).and_then(|old| old.iter().find(same)))
    }
}

struct Walk {
    causes: Vec<Cause>,
    builtin: bool,
}

impl Walk {
    fn check(&mut self, node: &Node, value: &Value, old: Old<'_>, path: &str, depth: usize) {
        if old.0 == Some(value) {
            return;
        }
        if depth > MAX_DEPTH {
            self.causes.push(Cause::forbidden(path, "nested too deeply"));
            return;
        }
        if node.reference.is_some()
            && let Some(rules) = &node.rules
        {
            self.check_rules(rules, value, path, depth);
        }
        let node = node.resolve();
        self.check_type(node, value, path);
        if let (Type::Integer, Value::Number(number)) = (node.kind, value) {
            self.check_integer(node, number, path);
        }
        if let Some(rules) = &node.rules {
            self.check_rules(rules, value, path, depth);
        }
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let child = match (node.properties.get(name), &node.additional) {
                        (Some(field), _) => field,
                        (None, Some(Additional::Each(each))) => each,
                        _ => continue,
                    };
                    self.check(child, value, old.field(name), &join(path, name), depth + 1);
                }
                self.check_required(node, value, path);
            }
            Value::Array(items) => {
                if let Some(item) = &node.items {
                    for (index, value) in items.iter().enumerate() {
                        self.check(item, value, old.item(&node.list, value), &format!("{path}[{index}]"), depth + 1);
                    }
                }
            }
            _ => {}
        }
    }

    fn check_type(&mut self, node: &Node, value: &Value, path: &str) {
        let found = match value {
            // Null means absent in a built-in object.
            Value::Null if node.nullable || self.builtin => return,
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
            Value::Number(number) if number.as_f64().is_some_and(|float| float.fract() == 0.0) => "integer",
            Value::Number(_) => "number",
        };
        let wanted = if node.int_or_string { "integer,string" } else { node.kind.as_str() };
        let fits = match node.kind {
            Type::Any if node.int_or_string => matches!(found, "integer" | "string"),
            Type::Any => true,
            Type::Number => matches!(found, "integer" | "number"),
            kind => found == kind.as_str(),
        };
        if fits {
            return;
        }
        // With a format, kube-apiserver compares formats.
        let format = node.rules.as_ref().and_then(|rules| rules.format.as_deref());
        let (wanted, found) = match (format.filter(|format| formats::is_known(node.kind, format)), value) {
            (Some(_), Value::Array(_)) if node.kind == Type::String => return,
            (Some(format), Value::Bool(_) | Value::Object(_)) => (format, ""),
            (Some(format), Value::Number(number)) => (format, if number.is_f64() { "double" } else { "int64" }),
            _ => (wanted, found),
        };
        let detail = format!("{path} in body must be of type {wanted}: \"{found}\"");
        let cause = Cause::invalid_type_name(path, found, &detail);
        self.causes.push(Cause { reason: Reason::TypeInvalid, ..cause });
    }

    fn check_integer(&mut self, node: &Node, number: &serde_json::Number, path: &str) {
        let format = node.rules.as_ref().and_then(|rules| rules.format.as_deref()).unwrap_or_default();
        // 2⁶³ is the first float beyond 64-bit integers.
        let whole =
            |float: f64| (float.fract() == 0.0 && float.abs() < 9_223_372_036_854_775_808.0).then_some(float as i64);
        let integer = number.as_i64().or_else(|| number.as_f64().and_then(whole));
        let fits = integer.is_some_and(|integer| format != "int32" || i32::try_from(integer).is_ok());
        if !fits {
            let format = match format {
                "int32" | "int64" => format!("with format {format}"),
                _ => "(default format)".to_owned(),
            };
            self.causes.push(nowhere(&format!(
                "Invalid value: \"\": Checked value must be of type integer {format} in {path}"
            )));
        }
    }

    fn check_rules(&mut self, rules: &Rules, value: &Value, path: &str, depth: usize) {
        if value.is_null() {
            return;
        }
        self.check_branches(rules, value, path, depth);
        match value {
            Value::String(text) => self.check_text(rules, text, path),
            Value::Number(number) => self.check_number(rules, number, path),
            Value::Array(items) => self.check_count(rules.items, items.len(), path, "items"),
            Value::Object(fields) => self.check_count(rules.fields, fields.len(), path, "properties"),
            _ => {}
        }
        if !rules.allowed.is_empty() && !rules.allowed.iter().any(|allowed| equal(allowed, value)) {
            let allowed: Vec<String> = rules
                .allowed
                .iter()
                .map(|allowed| allowed.as_str().map_or_else(|| allowed.to_string(), str::to_owned))
                .collect();
            let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
            self.causes.push(Cause::not_supported(path, value, &allowed));
        }
    }

    fn check_text(&mut self, rules: &Rules, text: &str, path: &str) {
        let value = Value::from(text);
        let length = text.chars().count() as u64;
        if let Some(max) = rules.length.max.filter(|max| length > *max) {
            let bytes = if max == 1 { "byte" } else { "bytes" };
            let message = format!("Too long: may not be more than {max} {bytes}");
            self.causes.push(Cause { reason: Reason::TooLong, field: path.to_owned(), message });
        }
        if let Some(min) = rules.length.min.filter(|min| length < *min) {
            let detail = format!("{path} in body should be at least {min} chars long");
            self.causes.push(Cause::invalid(path, &value, &detail));
        }
        if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            let detail = format!("{path} in body should match '{}'", pattern.as_str());
            self.causes.push(Cause::invalid(path, &value, &detail));
        }
        if let Some(format) = rules.format.as_deref().filter(|format| !formats::holds(format, text)) {
            let detail = format!("{path} in body must be of type {format}: {}", go::quoted(text));
            self.causes.push(Cause { reason: Reason::TypeInvalid, ..Cause::invalid(path, &value, &detail) });
        }
    }

    fn check_number(&mut self, rules: &Rules, number: &serde_json::Number, path: &str) {
        let Some(float) = number.as_f64() else { return };
        // Kubernetes shows the limits of an integer as integers.
        let shown = |limit: f64| if number.is_f64() { go::shown_float(limit) } else { (limit as i64).to_string() };
        let mut breaks = |detail: String| {
            let detail = format!("{path} in body should be {detail}");
            self.causes.push(Cause::invalid(path, &Value::Number(number.clone()), &detail));
        };
        if let Some(max) = rules.maximum.filter(|max| float > max.limit || (max.exclusive && float == max.limit)) {
            let or_equal = if max.exclusive { "" } else { " or equal to" };
            breaks(format!("less than{or_equal} {}", shown(max.limit)));
        }
        if let Some(min) = rules.minimum.filter(|min| float < min.limit || (min.exclusive && float == min.limit)) {
            let or_equal = if min.exclusive { "" } else { " or equal to" };
            breaks(format!("greater than{or_equal} {}", shown(min.limit)));
        }
        if let Some(factor) = rules.multiple_of {
            let times = if factor < 1.0 { 1.0 / factor * float } else { float / factor };
            if times.fract() != 0.0 {
                breaks(format!("a multiple of {}", shown(factor)));
            }
        }
    }

    fn check_count(&mut self, range: Range, count: usize, path: &str, what: &str) {
        let count = count as u64;
        if let Some(max) = range.max.filter(|max| count > *max) {
            let items = if max == 1 { "item" } else { "items" };
            let message = format!("Too many: {count}: must have at most {max} {items}");
            self.causes.push(Cause { reason: Reason::TooMany, field: path.to_owned(), message });
        }
        if let Some(min) = range.min.filter(|min| count < *min) {
            let detail = format!("{path} in body should have at least {min} {what}");
            self.causes.push(Cause::invalid(path, &Value::from(count), &detail));
        }
    }

    fn check_branches(&mut self, rules: &Rules, value: &Value, path: &str, depth: usize) {
        let builtin = self.builtin;
        let causes_of = |branch: &Node| {
            let mut walk = Walk { causes: Vec::new(), builtin };
            walk.check(branch, value, Old(None), path, depth + 1);
            walk.causes
        };
        // If all branches fail, the one with the fewest errors explains most.
        let nearest = |failed: Vec<Vec<Cause>>| failed.into_iter().min_by_key(Vec::len).unwrap_or_default();
        let outcome = |branches: &[Node]| -> (usize, Vec<Vec<Cause>>) {
            let failed: Vec<_> = branches.iter().map(causes_of).filter(|causes| !causes.is_empty()).collect();
            (branches.len() - failed.len(), failed)
        };
        if !rules.any_of.is_empty() {
            let (valid, failed) = outcome(&rules.any_of);
            if valid == 0 {
                self.branches_fail(path, "must validate at least one schema (anyOf)");
                self.causes.extend(nearest(failed));
            }
        }
        if !rules.one_of.is_empty() {
            let (valid, failed) = outcome(&rules.one_of);
            if valid == 0 {
                self.branches_fail(path, "must validate one and only one schema (oneOf). Found none valid");
                self.causes.extend(nearest(failed));
            } else if valid > 1 {
                let found = format!("must validate one and only one schema (oneOf). Found {valid} valid alternatives");
                self.branches_fail(path, &found);
            }
        }
        if !rules.all_of.is_empty() {
            let (valid, failed) = outcome(&rules.all_of);
            if !failed.is_empty() {
                self.causes.extend(failed.into_iter().flatten());
                let none = if valid == 0 { ". None validated" } else { "" };
                self.branches_fail(path, &format!("must validate all the schemas (allOf){none}"));
            }
        }
        if rules.not.as_ref().is_some_and(|not| causes_of(not).is_empty()) {
            self.branches_fail(path, "must not validate the schema (not)");
        }
    }

    fn branches_fail(&mut self, path: &str, what: &str) {
        self.causes.push(nowhere(&format!("Invalid value: \"\": \"{path}\" {what}")));
    }

    fn check_required(&mut self, node: &Node, value: &Value, path: &str) {
        // kube-apiserver fills in the zero values of a built-in object's status.
        let lenient = self.builtin && (path == "status" || path.starts_with("status."));
        for name in node.rules.iter().flat_map(|rules| &rules.required).filter(|_| !lenient) {
            if value.get(name).is_none_or(|value| self.builtin && value.is_null()) {
                self.causes.push(Cause::required(&join(path, name), ""));
            }
        }
        if node.embedded {
            for name in ["apiVersion", "kind"] {
                if value.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
                    self.causes.push(Cause::required(&join(path, name), "must not be empty"));
                }
            }
        }
    }
}

/// Reports duplicate items of sets and map lists.
fn check_lists(node: &Node, value: &Value, path: &str, causes: &mut Vec<Cause>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_key = !node.resolve().properties.contains_key(name);
                if let Some(field) = node.field(name) {
                    let path = if is_key { format!("{path}[{name}]") } else { join(path, name) };
                    check_lists(field, value, &path, causes, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            let identity = |item: &Value| match node.list() {
                ListKind::Atomic => None,
                ListKind::Set => Some(item.clone()),
                ListKind::Map(keys) => {
                    let pair = |key: &String| Some((key.clone(), item.get(key)?.clone()));
                    Some(Value::Object(keys.iter().filter_map(pair).collect()))
                }
            };
            let mut seen = std::collections::HashMap::new();
            for (index, item) in items.iter().enumerate() {
                if let Some(identity) = identity(item) {
                    let times = seen.entry(identity.to_string()).or_insert(0_usize);
                    *times += 1;
                    if *times == 2 {
                        causes.push(Cause::duplicate(&format!("{path}[{index}]"), &identity));
                    }
                }
                check_lists(node.item(), item, &format!("{path}[{index}]"), causes, depth + 1);
            }
        }
        _ => {}
    }
}

fn check_expressions(node: &Node, value: &Value, old: Old<'_>, path: &str, causes: &mut Vec<Cause>, depth: usize) {
    if depth > MAX_DEPTH || value.is_null() {
        return;
    }
    let node = node.resolve();
    if let Some(rules) = node.rules.as_ref().filter(|rules| !rules.expressions.is_empty()) {
        causes.extend(cel::check(node, &rules.expressions, value, old.0, path));
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_key = !node.properties.contains_key(name);
                if let Some(field) = node.field(name) {
                    let path = if is_key { format!("{path}[{name}]") } else { join(path, name) };
                    check_expressions(field, value, old.field(name), &path, causes, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let old = old.item(&node.list, item);
                check_expressions(node.item(), item, old, &format!("{path}[{index}]"), causes, depth + 1);
            }
        }
        _ => {}
    }
}

fn has_expressions(node: &Node, depth: usize) -> bool {
    let beneath = |node: &Node| has_expressions(node, depth + 1);
    // Built-in definitions, which may be recursive, have none.
    depth <= MAX_DEPTH
        && node.reference.is_none()
        && (node.rules.as_ref().is_some_and(|rules| !rules.expressions.is_empty())
            || node.properties.values().any(beneath)
            || node.items.as_deref().is_some_and(beneath)
            || matches!(&node.additional, Some(Additional::Each(each)) if beneath(each)))
}

/// Compares JSON values. 1 and 1.0 are equal.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
