//! Selectors in Kubernetes' syntax: by labels, `app=web,tier!=cache,env in (a, b),x notin (y),z,!legacy`; by fields,
//! `spec.nodeName=n1,status.phase!=Succeeded`.

use serde_json::Value;

use super::field::Path;

/// All of these must hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selector(Vec<Requirement>);

#[derive(Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    /// Holds also where the label is absent.
    NotIn(Vec<String>),
    Exists,
    Absent,
}

impl Selector {
    /// # Errors
    /// Which part is none.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts = split(text)?;
        parts.into_iter().map(Requirement::parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether an object's labels satisfy it.
    pub(super) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|Requirement { key, operator }| {
            let value = object["metadata"]["labels"][key].as_str();
            let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
            match operator {
                Operator::In(values) => among(values),
                Operator::NotIn(values) => !among(values),
                Operator::Exists => value.is_some(),
                Operator::Absent => value.is_none(),
            }
        })
    }
}

impl Requirement {
    fn parse(part: &str) -> Result<Self, String> {
        let one = |key: &str, operator| {
            let key = key.trim();
            let fits = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
            if fits { Ok(Self { key: key.to_owned(), operator }) } else { Err(format!("{part:?} is no requirement")) }
        };
        if let Some((key, value)) = part.split_once("!=") {
            return one(key, Operator::NotIn(vec![value.trim().to_owned()]));
        }
        if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            return one(key, Operator::In(vec![value.trim().to_owned()]));
        }
        if let Some((left, values)) = part.strip_suffix(')').and_then(|part| part.split_once('(')) {
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            return match left.trim().rsplit_once(char::is_whitespace) {
                Some((key, "in")) => one(key, Operator::In(values)),
                Some((key, "notin")) => one(key, Operator::NotIn(values)),
                _ => Err(format!("{part:?} is no requirement")),
            };
        }
        match part.strip_prefix('!') {
            Some(key) => one(key, Operator::Absent),
            None => one(part, Operator::Exists),
        }
    }
}

/// All of these must hold. Which fields a server selects a kind by is not known here: any path of names will do.
#[derive(Debug, Default)]
pub(super) struct FieldSelector(Vec<FieldRequirement>);

#[derive(Debug)]
struct FieldRequirement {
    path: Path,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// # Errors
    /// Which part is none.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let requirement = |part: &str| {
            let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (path, value, true)
            } else {
                return Err(format!("{part:?} is no requirement of a field"));
            };
            Ok(FieldRequirement { path: Path::parse(path.trim())?, value: value.trim().to_owned(), equal })
        };
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(requirement).collect::<Result<_, _>>().map(Self)
    }

    /// Whether an object's fields satisfy it. What is absent is empty, as on a server.
    pub(super) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|FieldRequirement { path, value, equal }| {
            let values = path.values(object);
            let is = values.contains(value) || (values.is_empty() && value.is_empty());
            is == *equal
        })
    }
}

/// At the commas that are outside of parentheses. Nothing gives no part.
fn split(text: &str) -> Result<Vec<&str>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '(' if !inside => inside = true,
            ')' if inside => inside = false,
            '(' | ')' => return Err(format!("a parenthesis is in the wrong place in {text:?}")),
            ',' if !inside => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("a parenthesis is not closed in {text:?}"));
    }
    parts.push(text[start..].trim());
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FieldSelector, Selector};

    #[test]
    fn requirements_hold_as_in_kubernetes() {
        let object = json!({"metadata": {"labels": {"app": "web", "env": "prod"}}});
        for (selector, matches) in [
            ("", true),
            ("app=web", true),
            ("app==web,env!=test", true),
            ("app=db", false),
            ("tier!=cache", true),
            ("env in (prod, test), app", true),
            ("env in (test)", false),
            ("env notin (prod)", false),
            ("tier notin (cache)", true),
            ("!tier", true),
            ("!app", false),
        ] {
            assert_eq!(Selector::parse(selector).map(|s| s.matches(&object)), Ok(matches), "{selector}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for text in ["=web", "app in web", "app in (a", "app,,env", "a b", "!"] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fields_are_compared_as_text_and_absent_ones_are_empty() {
        let object = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "unschedulable": true}});
        for (selector, matches) in [
            ("", true),
            ("metadata.name=p", true),
            ("spec.nodeName==n1,spec.unschedulable=true", true),
            ("spec.nodeName!=n1", false),
            ("status.phase=", true),
            ("status.phase!=Failed", true),
        ] {
            assert_eq!(FieldSelector::parse(selector).map(|s| s.matches(&object)), Ok(matches), "{selector}");
        }
        assert!(FieldSelector::parse("spec.nodeName").is_err());
    }
}
