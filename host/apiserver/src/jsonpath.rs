//! The JSONPath of printer columns: fields, indexes, and filters for one value.
//!
//! `.spec.color`, `.status.conditions[?(@.type=="Ready")].status`, `.spec.ports[0].port`, `.metadata.labels.app\.kind`

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(i64),
    Every,
    /// Selects elements whose field has the value.
    Where {
        path: Vec<Step>,
        value: String,
        equal: bool,
    },
}

/// Returns the first value at a path, or `None` if there is none or the path is invalid.
pub(crate) fn first<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut found = vec![object];
    for step in &parse(path)? {
        found = found.into_iter().flat_map(|value| take(value, step)).collect();
    }
    found.first().copied()
}

fn take<'a>(value: &'a Value, step: &Step) -> Vec<&'a Value> {
    let elements = || value.as_array().into_iter().flatten();
    match step {
        Step::Field(field) => value.get(field).into_iter().collect(),
        Step::Index(index) => {
            let length = value.as_array().map_or(0, Vec::len);
            let index = if *index < 0 {
                length.checked_sub(index.unsigned_abs() as usize)
            } else {
                usize::try_from(*index).ok()
            };
            index.and_then(|index| value.get(index)).into_iter().collect()
        }
        Step::Every => match value {
            Value::Object(fields) => fields.values().collect(),
            _ => elements().collect(),
        },
        Step::Where { path, value: wanted, equal } => {
            let text = |element: &Value| -> Option<String> {
                let mut found = Some(element);
                for step in path {
                    found = found.and_then(|value| take(value, step).first().copied());
                }
                found.map(|value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned))
            };
            elements().filter(|element| text(element).is_some_and(|text| (text == *wanted) == *equal)).collect()
        }
    }
}

fn parse(path: &str) -> Option<Vec<Step>> {
    let path = path.trim();
    let path = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path);
    let mut steps = Vec::new();
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let end = after.find(']')?;
            let (inner, after) = after.split_at(end);
            steps.push(bracket(inner)?);
            rest = &after[1..];
        } else {
            let after = rest.strip_prefix('.').unwrap_or(rest);
            let (field, after) = field(after);
            match field.as_str() {
                "" => return None,
                "*" => steps.push(Step::Every),
                _ => steps.push(Step::Field(field)),
            }
            rest = after;
        }
    }
    Some(steps)
}

/// Parses a field's name up to the next `.` or `[` without a backslash.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((index, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
            '.' | '[' => return (name, &text[index..]),
            _ => name.push(c),
        }
    }
    (name, "")
}

fn bracket(inner: &str) -> Option<Step> {
    let inner = inner.trim();
    if inner == "*" {
        return Some(Step::Every);
    }
    if let Some(quoted) = unquote(inner) {
        return Some(Step::Field(quoted.to_owned()));
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|filter| filter.strip_suffix(')')) {
        let (left, right, equal) = match filter.split_once("==") {
            Some((left, right)) => (left, right, true),
            None => filter.split_once("!=").map(|(left, right)| (left, right, false))?,
        };
        let path = parse(left.trim().strip_prefix('@')?)?;
        let right = right.trim();
        return Some(Step::Where { path, value: unquote(right).unwrap_or(right).to_owned(), equal });
    }
    inner.parse().ok().map(Step::Index)
}

fn unquote(text: &str) -> Option<&str> {
    let quoted = |quote: char| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    quoted('\'').or_else(|| quoted('"'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_printer_columns_find_their_value() {
        let object = json!({
            "metadata": {"labels": {"app.kind": "web"}},
            "spec": {"ports": [{"port": 1}, {"port": 2}]},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        for (path, value) in [
            (".spec.ports[1].port", Some(json!(2))),
            (".spec.ports[-1].port", Some(json!(2))),
            (".spec.ports[*].port", Some(json!(1))),
            (".status.conditions[?(@.type==\"Ready\")].status", Some(json!("True"))),
            (".status.conditions[?(@.type!='A')].type", Some(json!("Ready"))),
            (".metadata.labels.app\\.kind", Some(json!("web"))),
            (".metadata.labels['app.kind']", Some(json!("web"))),
            ("{.spec.ports[0].port}", Some(json!(1))),
            (".spec.absent.deeper", None),
            (".spec.ports[", None),
            (".spec.ports[?(x)]", None),
            ("", Some(object.clone())),
        ] {
            assert_eq!(first(&object, path).cloned(), value, "{path}");
        }
    }
}
