//! Label selectors of `meta/v1`, for a query of the cache and for a look at one object.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use pilothouse_sdk::Error;

pub(crate) type Labels = BTreeMap<String, String>;

/// A label selector whose operators are known. Displays as text that a query takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selector(Vec<Requirement>);

#[derive(Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// # Errors
    /// Fails if an operator is not one of `In`, `NotIn`, `Exists` and `DoesNotExist`.
    pub(crate) fn new(selector: &LabelSelector) -> Result<Self, Error> {
        let equal = selector
            .match_labels
            .iter()
            .flatten()
            .map(|(key, value)| Ok(Requirement { key: key.clone(), operator: Operator::In(vec![value.clone()]) }));
        let expressions = selector.match_expressions.iter().flatten().map(Requirement::new);
        equal.chain(expressions).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn matches(&self, labels: Option<&Labels>) -> bool {
        self.0.iter().all(|Requirement { key, operator }| {
            let value = labels.and_then(|labels| labels.get(key));
            match operator {
                Operator::In(values) => value.is_some_and(|value| values.contains(value)),
                Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }
}

impl Requirement {
    fn new(requirement: &LabelSelectorRequirement) -> Result<Self, Error> {
        let LabelSelectorRequirement { key, operator, values } = requirement;
        let values = || values.clone().unwrap_or_default();
        let operator = match operator.as_str() {
            "In" => Operator::In(values()),
            "NotIn" => Operator::NotIn(values()),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            other => {
                let known = "In, NotIn, Exists or DoesNotExist";
                return Err(Error::terminal(format!("spec.selector: the operator {other:?} of {key} is not {known}")));
            }
        };
        Ok(Self { key: key.clone(), operator })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, Requirement { key, operator }) in self.0.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { "," })?;
            match operator {
                Operator::In(values) => write!(f, "{key} in ({})", values.join(","))?,
                Operator::NotIn(values) => write!(f, "{key} notin ({})", values.join(","))?,
                Operator::Exists => f.write_str(key)?,
                Operator::DoesNotExist => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::{Labels, Selector};

    fn selector(selector: Value) -> Selector {
        Selector::new(&from_value(selector).expect("a selector")).expect("known operators")
    }

    #[test]
    fn a_selector_is_text_for_a_query() {
        let all = json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["a", "b"]},
                {"key": "tier", "operator": "NotIn", "values": ["c"]},
                {"key": "zone", "operator": "Exists"},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        });
        assert_eq!(selector(all).to_string(), "app in (web),tier in (a,b),tier notin (c),zone,!old");
    }

    #[test]
    fn a_selector_matches_as_in_kubernetes() {
        let (web, none) = (Labels::from([("app".to_owned(), "web".to_owned())]), Labels::new());
        let expression = |operator: &str, values: &[&str]| {
            let one = json!({"key": "app", "operator": operator, "values": values});
            json!({"matchExpressions": [one]})
        };
        for (wanted, matches_web, matches_none) in [
            (json!({"matchLabels": {"app": "web"}}), true, false),
            (json!({"matchLabels": {"app": "db"}}), false, false),
            (expression("In", &["db", "web"]), true, false),
            (expression("NotIn", &["web"]), false, true),
            (expression("Exists", &[]), true, false),
            (expression("DoesNotExist", &[]), false, true),
            (json!({}), true, true),
        ] {
            let selector = selector(wanted.clone());
            assert_eq!((selector.matches(Some(&web)), selector.matches(Some(&none))), (matches_web, matches_none));
            assert_eq!(selector.matches(None), matches_none, "{wanted}");
        }
    }

    #[test]
    fn an_unknown_operator_is_a_terminal_error() {
        let wanted = json!({"matchExpressions": [{"key": "app", "operator": "Near"}]});
        let error = Selector::new(&from_value(wanted).expect("a selector")).expect_err("it is refused");
        assert!(error.is_terminal());
        assert_eq!(
            error.to_string(),
            "spec.selector: the operator \"Near\" of app is not In, NotIn, Exists or DoesNotExist"
        );
    }
}
