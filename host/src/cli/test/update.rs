//! `--update`: writes what was found into case files, in place of what was expected.
//!
//! Only the text of a value that differs is replaced, so comments around it stay. Where a member is missing, or a list
//! has another length, the map or the list around it is written anew, without its comments.

use std::fmt::Write as _;

use pilothouse_apiserver::yaml::located::documents;
use serde_json::Value;

use super::compare::Update;

/// Characters up to which a map or a list is written on one line.
const ONE_LINE: usize = 60;

/// What became of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Updated {
    pub(super) text: String,
    /// Values that were replaced.
    pub(super) replaced: usize,
    /// Lines of values that were not, because their text belongs to an anchor or is empty.
    pub(super) left: Vec<usize>,
}

/// Applies updates to the text of a file.
pub(super) fn update(text: &str, updates: &[Update]) -> Updated {
    let mut updates: Vec<&Update> = updates.iter().collect();
    // The outermost of nested ones first.
    updates.sort_by_key(|update| (update.place.range.start, usize::MAX - update.place.range.end));
    let (mut new, mut at, mut replaced, mut left) = (String::new(), 0, 0, Vec::new());
    for Update { place, value, member } in updates {
        let Some(old) = text.get(place.range.clone()).filter(|old| !old.is_empty() && !place.is_shared) else {
            left.push(place.line);
            continue;
        };
        // It lies in one that was written already.
        let Some(between) = text.get(at..place.range.start) else { continue };
        new.push_str(between);
        if let Some(column) = member.and_then(|member| column_of_block(text, member)) {
            new.truncate(new.trim_end_matches(' ').len());
            let _ = write!(new, "\n{}{}", " ".repeat(column + 2), block(value, column + 2));
            (at, replaced) = (place.range.end, replaced + 1);
            continue;
        }
        let is_block = !old.starts_with(['[', '{']) && matches!(value, Value::Array(_) | Value::Object(_));
        if is_block && old.contains(['\n', ':', '-']) {
            new.push_str(&block(value, place.column));
        } else {
            new.push_str(&flow(value));
        }
        // The text of a block scalar ends with its line.
        if old.ends_with('\n') {
            new.push('\n');
        }
        at = place.range.end;
        replaced += 1;
    }
    new.push_str(text.get(at..).unwrap_or_default());
    Updated { text: new, replaced, left }
}

/// Returns the column of a key, if the map around it is not written on one line.
fn column_of_block(text: &str, (map, key): (usize, usize)) -> Option<usize> {
    let is_flow = text.get(map..)?.starts_with('{');
    let line = text.get(..key)?.rfind('\n').map_or(0, |end| end + 1);
    (!is_flow).then_some(key - line)
}

/// Returns a value that begins in this column, over several lines if that is necessary.
fn block(value: &Value, column: usize) -> String {
    let next = format!("\n{}", " ".repeat(column));
    let nested = |value: &Value| match value {
        Value::Array(items) if !items.is_empty() => Some(flow(value)).filter(|flow| flow.len() > ONE_LINE),
        Value::Object(members) if !members.is_empty() => Some(flow(value)).filter(|flow| flow.len() > ONE_LINE),
        _ => None,
    };
    let lines: Vec<String> = match value {
        Value::Array(items) if !items.is_empty() => {
            let line = |item| match nested(item) {
                Some(_) => format!("- {}", block(item, column + 2)),
                None => format!("- {}", flow(item)),
            };
            items.iter().map(line).collect()
        }
        Value::Object(members) if !members.is_empty() => {
            let line = |(name, value): (&String, &Value)| match nested(value) {
                Some(_) => format!("{}:{next}  {}", scalar(name), block(value, column + 2)),
                None => format!("{}: {}", scalar(name), flow(value)),
            };
            members.iter().map(line).collect()
        }
        other => return flow(other),
    };
    lines.join(&next)
}

/// Returns a value on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| format!("{}: {}", scalar(name), flow(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Returns a text, quoted if it could be taken for something else.
fn scalar(text: &str) -> String {
    let is_word = text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./ -()".contains(c));
    let is_plain = is_word && documents(text).is_ok_and(|read| matches!(&*read, [one] if one.value() == *text));
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use pilothouse_apiserver::yaml::located::Located;
    use serde_json::json;

    use super::*;

    fn updated(text: &str, changes: &[(&[&str], Value)]) -> Updated {
        let root = documents(text).expect("it is YAML").pop().expect("a document");
        let find = |path: &[&str]| -> Located {
            path.iter().fold(root.clone(), |node, name| match name.parse::<usize>() {
                Ok(index) => node.items()[index].clone(),
                Err(_) => node.get(name).expect("a member").clone(),
            })
        };
        let updates: Vec<_> = changes.iter().map(|(path, value)| Update::new(&find(path), value.clone())).collect();
        update(text, &updates)
    }

    #[test]
    fn only_the_text_of_a_value_is_replaced() {
        let text = "# first\na: 1 # one\nb:\n  - x  # an x\n  - {c: yes, d: e}\nf: |\n  text\ng: 2\n";
        let changes: [(&[&str], Value); 5] = [
            (&["a"], json!("yes")),
            (&["b", "0"], json!("3 v1/x (failed)")),
            (&["b", "1", "c"], json!(false)),
            (&["f"], json!("more: text")),
            (&["g"], json!({ "h": [1, "2"] })),
        ];
        let new = "# first\na: \"yes\" # one\nb:\n  - 3 v1/x (failed)  # an x\n  - {c: false, d: e}\nf: \"more: text\"\ng: {h: [1, \"2\"]}\n";
        assert_eq!(updated(text, &changes), Updated { text: new.to_owned(), replaced: 5, left: Vec::new() });
    }

    #[test]
    fn lists_and_maps_keep_their_style_and_values_read_back() {
        let long = "x".repeat(ONE_LINE);
        let text = "a:\n- x\n- y\nb:\n    c: 1\n    d: 2\ne: [1, 2]\n";
        let b = json!({ "c": { "long": long, "list": [long] }, "z": [] });
        let changes: [(&[&str], Value); 3] =
            [(&["a"], json!(["one", "two", "three"])), (&["b"], b.clone()), (&["e"], json!([1]))];
        let new = updated(text, &changes).text;
        assert!(new.starts_with("a:\n- one\n- two\n- three\nb:\n    c:\n      list:"), "{new}");
        let read = documents(&new).expect("it is YAML").pop().expect("a document").value();
        assert_eq!(read, json!({ "a": ["one", "two", "three"], "b": b, "e": [1] }));
    }

    #[test]
    fn an_empty_map_gets_its_members_below_its_key() {
        let text = "a: 1\nthen: {} # so\n---\nsteps:\n- {when: 1, then: {}}\n- when: 1\n  then:   {}\n";
        let all = documents(text).expect("it is YAML");
        let steps = all[1].get("steps").map(Located::items).unwrap_or_default();
        let fill = |step: &Located| {
            let then = step.members().iter().find(|member| member.name == "then").expect("it is there");
            let value = json!({ "writes": [], "objects": ["x".repeat(ONE_LINE)] });
            Update { place: then.value.clone(), value, member: Some((step.range.start, then.range.start)) }
        };
        let updates: Vec<_> = [&all[0], &steps[0], &steps[1]].map(fill).into();
        let x = "x".repeat(ONE_LINE);
        let new = format!(
            "a: 1\nthen:\n  objects:\n    - {x}\n  writes: [] # so\n---\nsteps:\n- {{when: 1, then: {{objects: [{x}], writes: []}}}}\n- when: 1\n  \
             then:\n    objects:\n      - {x}\n    writes: []\n"
        );
        assert_eq!(update(text, &updates), Updated { text: new, replaced: 3, left: Vec::new() });
    }

    #[test]
    fn text_of_an_anchor_is_left_and_an_outer_update_covers_an_inner_one() {
        let text = "a: &a {x: 1}\nb: *a\nc: {d: 1}\n";
        let changes: [(&[&str], Value); 3] =
            [(&["b", "x"], json!(2)), (&["c"], json!({ "e": 2 })), (&["c", "d"], json!(3))];
        let new = "a: &a {x: 1}\nb: *a\nc: {e: 2}\n";
        assert_eq!(updated(text, &changes), Updated { text: new.to_owned(), replaced: 1, left: vec![1] });
    }
}
