//! What the host shows of its webhooks: the rows of `/debug/webhooks`.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::manifest::{MAX_REVIEW, Webhook, WebhookRule, WebhookType, needs_conversion};
use serde::Serialize;
use serde_json::Value;

use super::metrics::{self, Counters, LastFailure};
use crate::{
    dispatch::{Dispatch, Reviewing, UNSERVED},
    metrics::Registry,
    name::PluginName,
    tls::Serving,
};

/// Says that the keeper has not come to a webhook yet.
const NOT_WRITTEN: &str = "its configuration is not written yet";

/// One webhook, or the conversions of one plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WebhookRow {
    /// The plugin that answers.
    pub plugin: String,
    /// Its name in the manifest. `convert` for conversions.
    pub webhook: String,
    /// `validating`, `mutating` or `conversion`.
    #[serde(rename = "type")]
    pub of_type: &'static str,
    /// The requests that it reviews: `CREATE,UPDATE apps/v1 deployments`. The CustomResourceDefinitions of a
    /// conversion.
    pub rules: Vec<String>,
    /// What the API server does without an answer: `Fail` or `Ignore`.
    pub on_failure: String,
    /// Time that the API server waits for an answer.
    pub timeout_seconds: u64,
    /// `true` if the API server has its configuration, and the certificate is valid.
    pub in_force: bool,
    /// Why it is not in force, or that nobody answers.
    pub remark: Option<String>,
    /// When the certificate that the host serves ends.
    pub certificate_expires: Option<String>,
    /// Requests of the API server.
    pub calls: u64,
    /// Those that the plugin denied.
    pub denied: u64,
    /// Those without an answer, and failed conversions.
    pub failed: u64,
    /// The last of the failed.
    pub last_failure: Option<LastFailure>,
}

/// What is known of all webhooks. A host that serves none has an empty one.
#[derive(Debug, Default)]
pub(crate) struct Board {
    pub(super) counters: Arc<Counters>,
    pub(super) serving: Arc<Serving>,
    kept: Mutex<Kept>,
}

/// What the keeper found the last time.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Why the configuration of a webhook could not be written, or `None` if it is, by the webhook's path.
    pub(super) by_path: BTreeMap<String, Option<String>>,
    /// Webhooks at the API server whose plugin does not serve.
    pub(super) unanswered: Vec<WebhookRow>,
}

impl Board {
    /// Registers the figures for `/metrics`.
    pub(crate) fn register(&self, registry: &mut Registry) {
        metrics::register(registry, &self.counters, &self.serving);
    }

    /// Replaces what the keeper found.
    pub(super) fn keep(&self, kept: Kept) {
        *self.kept.lock() = kept;
    }

    /// Returns a row for each webhook that is granted, and for each that the API server has without its plugin.
    pub(crate) fn rows(&self, dispatch: &Dispatch) -> Vec<WebhookRow> {
        let (is_served, expires, now) = (dispatch.serves_webhooks(), self.serving.expires(), Timestamp::now());
        let row = |row: WebhookRow, path: &str| {
            let why = match (is_served, expires, self.kept.lock().by_path.get(path)) {
                (false, ..) => Some(UNSERVED.to_owned()),
                (true, None, _) => Some("the host has no certificate yet".to_owned()),
                (true, Some(end), _) if end <= now => Some(format!("the certificate ended at {end}")),
                (true, Some(_), None) => Some(NOT_WRITTEN.to_owned()),
                (true, Some(_), Some(failed)) => failed.clone(),
            };
            let counted = self.counters.of(path);
            WebhookRow {
                in_force: why.is_none(),
                remark: why,
                certificate_expires: expires.map(|end| end.to_string()),
                calls: counted.calls,
                denied: counted.denied,
                failed: counted.failed,
                last_failure: counted.last_failure,
                ..row
            }
        };
        let mut rows = Vec::new();
        for one in dispatch.reviewing() {
            let plugin = one.plugin();
            for webhook in one.webhooks() {
                rows.push(row(WebhookRow::of(plugin, &webhook), &admission_path(plugin, &webhook.name)));
            }
            if one.converts() {
                rows.push(row(WebhookRow::of_conversion(&one), &conversion_path(plugin)));
            }
        }
        rows.extend(self.kept.lock().unanswered.iter().cloned());
        rows
    }
}

/// Returns the path at which the API server calls a webhook.
pub(super) fn admission_path(plugin: &PluginName, webhook: &str) -> String {
    format!("/admission/{plugin}/{webhook}")
}

/// Returns the path at which the API server has a plugin convert objects.
pub(super) fn conversion_path(plugin: &PluginName) -> String {
    format!("/conversion/{plugin}")
}

impl WebhookRow {
    fn of(plugin: &PluginName, webhook: &Webhook) -> Self {
        Self {
            plugin: plugin.to_string(),
            webhook: webhook.name.clone(),
            of_type: type_name(webhook.of_type),
            rules: webhook.rules.iter().map(rule).collect(),
            on_failure: webhook.on_failure.as_str().to_owned(),
            timeout_seconds: webhook.timeout.as_secs(),
            ..Self::default()
        }
    }

    fn of_conversion(reviewing: &Reviewing) -> Self {
        let name = |definition: &String| {
            let definition: Value = serde_json::from_str(definition).ok()?;
            Some(definition["metadata"]["name"].as_str()?.to_owned())
        };
        let revision = reviewing.revision();
        let definitions = revision.manifest().crds.iter().filter(|definition| needs_conversion(definition));
        Self {
            plugin: reviewing.plugin().to_string(),
            webhook: "convert".to_owned(),
            of_type: "conversion",
            rules: definitions.filter_map(name).collect(),
            on_failure: "Fail".to_owned(),
            timeout_seconds: MAX_REVIEW.as_secs(),
            ..Self::default()
        }
    }

    /// Returns the rows of a configuration at the API server whose plugin does not serve.
    pub(super) fn unanswered(plugin: &str, of_type: WebhookType, configuration: &Value) -> Vec<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let webhooks = configuration["webhooks"].as_array().into_iter().flatten();
        webhooks
            .map(|webhook| {
                let (name, on_failure) = (text(&webhook["name"]), text(&webhook["failurePolicy"]));
                let rules = webhook["rules"].as_array().into_iter().flatten();
                Self {
                    plugin: plugin.to_owned(),
                    webhook: name.split('.').next().unwrap_or_default().to_owned(),
                    of_type: type_name(of_type),
                    rules: rules.map(written_rule).collect(),
                    timeout_seconds: webhook["timeoutSeconds"].as_u64().unwrap_or_default(),
                    in_force: true,
                    remark: Some(format!("its plugin does not serve, so the policy {on_failure} decides")),
                    on_failure,
                    ..Self::default()
                }
            })
            .collect()
    }
}

fn type_name(of_type: WebhookType) -> &'static str {
    match of_type {
        WebhookType::Validating => "validating",
        WebhookType::Mutating => "mutating",
    }
}

fn rule(rule: &WebhookRule) -> String {
    let WebhookRule { api_groups, api_versions, resources, operations } = rule;
    let operations: Vec<_> = operations.iter().map(|operation| operation.as_str()).collect();
    let [groups, versions, resources] =
        [api_groups, api_versions, resources].map(|list| list.iter().map(String::as_str).collect::<Vec<_>>());
    shown([&operations, &groups, &versions, &resources])
}

/// As [`rule`], for a rule of a configuration.
fn written_rule(rule: &Value) -> String {
    let texts =
        |field: &str| rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
    let lists = ["operations", "apiGroups", "apiVersions", "resources"].map(texts);
    shown(lists.each_ref())
}

/// Returns `CREATE,UPDATE apps/v1 deployments`.
fn shown([operations, groups, versions, resources]: [&Vec<&str>; 4]) -> String {
    let (operations, versions, resources) = (operations.join(","), versions.join(","), resources.join(","));
    if groups[..] == [""] {
        return format!("{operations} {versions} {resources}");
    }
    let groups: Vec<_> = groups.iter().map(|group| if group.is_empty() { "core" } else { group }).collect();
    format!("{operations} {}/{versions} {resources}", groups.join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_read_like_kinds() {
        let rule = |groups: Value| {
            written_rule(&json!({
                "operations": ["CREATE", "UPDATE"], "apiGroups": groups, "apiVersions": ["v1"], "resources": ["pods", "pods/status"],
            }))
        };
        assert_eq!(rule(json!([""])), "CREATE,UPDATE v1 pods,pods/status");
        assert_eq!(rule(json!(["apps"])), "CREATE,UPDATE apps/v1 pods,pods/status");
        assert_eq!(rule(json!(["", "*"])), "CREATE,UPDATE core,*/v1 pods,pods/status");
    }

    #[test]
    fn configuration_without_its_plugin_says_who_decides() {
        let rule =
            json!({"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]});
        let webhook = json!({
            "name": "images.police.pilothouse.dev", "rules": [rule], "failurePolicy": "Fail", "timeoutSeconds": 5,
        });
        let rows = WebhookRow::unanswered("police", WebhookType::Validating, &json!({"webhooks": [webhook]}));
        let expected = WebhookRow {
            plugin: "police".to_owned(),
            webhook: "images".to_owned(),
            of_type: "validating",
            rules: vec!["* apps/v1 deployments".to_owned()],
            on_failure: "Fail".to_owned(),
            timeout_seconds: 5,
            in_force: true,
            remark: Some("its plugin does not serve, so the policy Fail decides".to_owned()),
            ..WebhookRow::default()
        };
        assert_eq!(rows, [expected]);
        assert_eq!(WebhookRow::unanswered("police", WebhookType::Mutating, &json!({"webhooks": null})), []);
    }
}
