//! `MutatingWebhookConfiguration` and `ValidatingWebhookConfiguration`: defaults, rules, and the webhooks in them.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Hook,
    select::{Condition, Rule, Scope},
};
use crate::{
    names::{is_label, is_subdomain},
    object::array,
    schema::{Cause, cel::Expression},
    selector::{Selector, label_selector_text},
    webhook::{self, Endpoint},
};

pub(super) const GROUP: &str = "admissionregistration.k8s.io";

/// Upper bound for the match conditions of a webhook, as in kube-apiserver.
const CONDITIONS: usize = 64;

/// What a match condition may name, as in kube-apiserver.
const VARIABLES: [&str; 4] = ["object", "oldObject", "request", "authorizer"];

fn texts(value: &Value) -> Vec<String> {
    array(value).iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

/// Fills in defaults.
pub(crate) fn default(configuration: &mut Value) {
    let mutating = configuration["kind"] == "MutatingWebhookConfiguration";
    for hook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
        let Some(fields) = hook.as_object_mut() else { continue };
        let defaults = [
            ("failurePolicy", json!("Fail")),
            ("matchPolicy", json!("Equivalent")),
            ("namespaceSelector", json!({})),
            ("objectSelector", json!({})),
            ("timeoutSeconds", json!(10)),
        ];
        let reinvocation = mutating.then(|| ("reinvocationPolicy", json!("Never")));
        for (field, value) in defaults.into_iter().chain(reinvocation) {
            let place = fields.entry(field).or_insert(Value::Null);
            if place.is_null() {
                *place = value;
            }
        }
        for rule in hook["rules"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            rule.entry("scope").or_insert_with(|| "*".into());
        }
        if let Some(service) = hook.pointer_mut("/clientConfig/service").and_then(Value::as_object_mut) {
            service.entry("port").or_insert_with(|| 443.into());
        }
    }
}

/// Returns the webhooks of a valid configuration in their order.
pub(super) fn hooks(configuration: &Value) -> Vec<Hook> {
    array(&configuration["webhooks"]).iter().filter_map(hook).collect()
}

fn hook(hook: &Value) -> Option<Hook> {
    let selector = |field: &str| Selector::labels(&label_selector_text(&hook[field])).ok();
    let rules = array(&hook["rules"]).iter().map(|rule| Rule {
        groups: texts(&rule["apiGroups"]),
        versions: texts(&rule["apiVersions"]),
        resources: texts(&rule["resources"]),
        operations: texts(&rule["operations"]),
        scope: match rule["scope"].as_str() {
            Some("Cluster") => Scope::Cluster,
            Some("Namespaced") => Scope::Namespaced,
            _ => Scope::All,
        },
    });
    let conditions = array(&hook["matchConditions"]).iter().map(|condition| {
        let text = condition["expression"].as_str().unwrap_or_default();
        Some(Condition { expression: Expression::compile(text, &VARIABLES).ok()?, text: text.to_owned() })
    });
    Some(Hook {
        name: hook["name"].as_str().unwrap_or_default().to_owned(),
        endpoint: Endpoint::parse(&hook["clientConfig"])?,
        rules: rules.collect(),
        namespaces: selector("namespaceSelector")?,
        objects: selector("objectSelector")?,
        conditions: conditions.collect::<Option<_>>()?,
        equivalent: hook["matchPolicy"] != "Exact",
        fails_closed: hook["failurePolicy"] != "Ignore",
        timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30)),
        dry_runs: ["None", "NoneOnDryRun"].iter().any(|class| hook["sideEffects"] == *class),
        reinvoked: hook["reinvocationPolicy"] == "IfNeeded",
    })
}

/// Returns all violations of a configuration.
pub(crate) fn validate(configuration: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let hooks = array(&configuration["webhooks"]);
    for (index, hook) in hooks.iter().enumerate() {
        let at = format!("webhooks[{index}]");
        validate_name(&hook["name"], &format!("{at}.name"), &mut causes);
        if hooks[..index].iter().any(|other| other["name"] == hook["name"]) {
            causes.push(Cause::duplicate(&format!("{at}.name"), &hook["name"]));
        }
        for (place, rule) in array(&hook["rules"]).iter().enumerate() {
            validate_rule(rule, &format!("{at}.rules[{place}]"), &mut causes);
        }
        for (field, allowed) in [
            ("failurePolicy", &["Fail", "Ignore"][..]),
            ("matchPolicy", &["Equivalent", "Exact"]),
            ("reinvocationPolicy", &["IfNeeded", "Never"]),
            ("sideEffects", &["None", "NoneOnDryRun"]),
        ] {
            let value = &hook[field];
            if value.as_str().is_some_and(|value| !allowed.contains(&value)) {
                causes.push(Cause::not_supported(&format!("{at}.{field}"), value, allowed));
            }
        }
        if hook["sideEffects"].is_null() {
            causes.push(Cause::required(&format!("{at}.sideEffects"), "must specify one of None, NoneOnDryRun"));
        }
        let seconds = &hook["timeoutSeconds"];
        if seconds.as_i64().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
            let why = "the timeout value must be between 1 and 30 seconds";
            causes.push(Cause::invalid(&format!("{at}.timeoutSeconds"), seconds, why));
        }
        for field in ["namespaceSelector", "objectSelector"] {
            validate_selector(&hook[field], &format!("{at}.{field}"), &mut causes);
        }
        causes.extend(webhook::validate(&hook["clientConfig"], &format!("{at}.clientConfig")));
        validate_conditions(&hook["matchConditions"], &format!("{at}.matchConditions"), &mut causes);
        validate_review_versions(
            &hook["admissionReviewVersions"],
            &format!("{at}.admissionReviewVersions"),
            &mut causes,
        );
    }
    causes
}

fn validate_name(name: &Value, at: &str, causes: &mut Vec<Cause>) {
    let text = name.as_str().unwrap_or_default();
    if text.is_empty() {
        causes.push(Cause::required(at, ""));
    } else if !is_subdomain(text) {
        causes.push(Cause::invalid(at, name, "must be a lowercase RFC 1123 subdomain"));
    } else if text.split('.').count() < 3 {
        let why = "should be a domain with at least three segments separated by dots";
        causes.push(Cause::invalid(at, name, why));
    }
}

fn validate_rule(rule: &Value, at: &str, causes: &mut Vec<Cause>) {
    let wildcard = |values: &[Value]| values.len() > 1 && values.iter().any(|value| value == "*");
    for (field, what) in [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let at = format!("{at}.{field}");
        let values = array(&rule[field]);
        if values.is_empty() {
            causes.push(Cause::required(&at, ""));
        }
        if wildcard(values) {
            let why = format!("if '*' is present, must not specify other {what}");
            causes.push(Cause::invalid(&at, &rule[field], &why));
        }
        for (index, value) in values.iter().enumerate() {
            let at = format!("{at}[{index}]");
            let operations = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
            match value.as_str().unwrap_or_default() {
                "" if field == "apiVersions" => causes.push(Cause::required(&at, "")),
                operation if field == "operations" && !operations.contains(&operation) => {
                    causes.push(Cause::not_supported(&at, value, &operations));
                }
                _ => {}
            }
        }
    }
    let (at_resources, resources) = (format!("{at}.resources"), texts(&rule["resources"]));
    if resources.is_empty() {
        causes.push(Cause::required(&at_resources, ""));
    }
    for (index, resource) in resources.iter().enumerate() {
        let before = &resources[..index];
        let mut refuse = |why: String| {
            causes.push(Cause::invalid(&format!("{at_resources}[{index}]"), &resource.as_str().into(), &why));
        };
        match resource.split_once('/') {
            None if resource.is_empty() => causes.push(Cause::required(&format!("{at_resources}[{index}]"), "")),
            None => {}
            Some((plural, below)) => {
                for wider in [format!("{plural}/*"), format!("*/{below}")] {
                    if before.contains(&wider) {
                        refuse(format!("if '{wider}' is present, must not specify {resource}"));
                    }
                }
            }
        }
    }
    if resources.len() > 1 && resources.iter().any(|resource| resource == "*/*") {
        let why = "if '*/*' is present, must not specify other resources";
        causes.push(Cause::invalid(&at_resources, &rule["resources"], why));
    }
    let bare = |resource: &String| !resource.contains('/') && resource != "*";
    if resources.iter().any(|resource| resource == "*") && resources.iter().any(bare) {
        let why = "if '*' is present, must not specify other resources without subresources";
        causes.push(Cause::invalid(&at_resources, &rule["resources"], why));
    }
    let scopes = ["*", "Cluster", "Namespaced"];
    if rule["scope"].as_str().is_some_and(|scope| !scopes.contains(&scope)) {
        causes.push(Cause::not_supported(&format!("{at}.scope"), &rule["scope"], &scopes));
    }
}

fn validate_selector(selector: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (index, expression) in array(&selector["matchExpressions"]).iter().enumerate() {
        let at = format!("{at}.matchExpressions[{index}]");
        let none = array(&expression["values"]).is_empty();
        match expression["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if none => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                causes.push(Cause::required(&format!("{at}.values"), why));
            }
            "Exists" | "DoesNotExist" if !none => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                causes.push(Cause::forbidden(&format!("{at}.values"), why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => {
                let why = "not a valid selector operator";
                causes.push(Cause::invalid(&format!("{at}.operator"), &expression["operator"], why));
            }
        }
    }
    if causes.is_empty()
        && let Err(status) = Selector::labels(&label_selector_text(selector))
    {
        causes.push(Cause::invalid(at, selector, &status.message));
    }
}

fn validate_conditions(conditions: &Value, at: &str, causes: &mut Vec<Cause>) {
    let all = array(conditions);
    if all.len() > CONDITIONS {
        let why = format!("must have at most {CONDITIONS} items");
        causes.push(Cause::invalid(at, &all.len().into(), &why));
        return;
    }
    for (index, condition) in all.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let (name, expression) = (&condition["name"], condition["expression"].as_str().unwrap_or_default());
        if name.as_str().unwrap_or_default().is_empty() {
            causes.push(Cause::required(&format!("{at}.name"), ""));
        } else if all[..index].iter().any(|other| other["name"] == *name) {
            causes.push(Cause::duplicate(&format!("{at}.name"), name));
        }
        if expression.trim().is_empty() {
            causes.push(Cause::required(&format!("{at}.expression"), ""));
        } else if let Err(why) = Expression::compile(expression, &VARIABLES) {
            let why = format!("compilation failed: {why}");
            causes.push(Cause::invalid(&format!("{at}.expression"), &expression.into(), &why));
        }
    }
}

fn validate_review_versions(versions: &Value, at: &str, causes: &mut Vec<Cause>) {
    let all = array(versions);
    if all.is_empty() {
        causes.push(Cause::required(at, "must specify one of v1, v1beta1"));
        return;
    }
    for (index, version) in all.iter().enumerate() {
        let at = format!("{at}[{index}]");
        if all[..index].contains(version) {
            causes.push(Cause::invalid(&at, version, "duplicate version"));
        } else if !is_label(version.as_str().unwrap_or_default()) {
            causes.push(Cause::invalid(&at, version, "must be a DNS-1035 label"));
        }
    }
    // Unlike kube-apiserver, this server does not speak v1beta1.
    if !all.iter().any(|version| version == "v1") {
        causes.push(Cause::invalid(at, versions, "must include at least one of v1"));
    }
}
