//! Grants as lines of YAML.

use std::borrow::Cow;

use crate::manifest::Permission;

/// Returns for example `{ apiVersion: v1, kind: ConfigMap, verbs: [read, apply] }`.
pub(super) fn rule(asked: &Permission) -> String {
    let kind = match asked.subresource {
        Some(subresource) => format!("{}/{subresource}", asked.of.kind),
        None => asked.of.kind.to_string(),
    };
    let verbs: Vec<_> = asked.verbs.iter().map(|verb| verb.as_str()).collect();
    let verbs = verbs.join(", ");
    let mut rule =
        format!("{{ apiVersion: {}, kind: {}, verbs: [{verbs}]", scalar(&asked.of.api_version), scalar(&kind));
    for (name, list) in [("namespaces", &asked.namespaces), ("names", &asked.names)] {
        if !list.is_empty() {
            let list: Vec<_> = list.iter().map(|item| scalar(item)).collect();
            rule.push_str(&format!(", {name}: [{}]", list.join(", ")));
        }
    }
    rule.push_str(" }");
    rule
}

/// Returns the text plain if every YAML reader takes it as this text, or else quoted as JSON, which is YAML.
fn scalar(text: &str) -> Cow<'_, str> {
    // Words that YAML 1.1 or 1.2 does not read as strings.
    const OTHERWISE: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/' | b'-' | b'_'))
        && !OTHERWISE.contains(&text.to_ascii_lowercase().as_str());
    if plain { Cow::Borrowed(text) } else { Cow::Owned(serde_json::Value::from(text).to_string()) }
}
