//! What the mock host lets a webhook read, and what an administrator must grant for it.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use pilothouse_sdk::{Decision, Operation, Webhook, mock::MockHost, prelude::*};
use serde_json::{Value, json};

/// Denies Pods for which the ConfigMap `policy` has no key of their name.
fn plugin() -> Plugin {
    let policies = Watch::of::<ConfigMap>().namespaces(["default"]).labels("policy=pods");
    let webhook = Webhook::of::<Pod>("pods").operations([Operation::Create]).reads(policies);
    Plugin::new("Reviews Pods.").validate(webhook, |ctx, review| {
        let policy = ctx.cache().get::<ConfigMap>(("default", "policy"))?;
        let allowed = policy.and_then(|policy| policy.data).unwrap_or_default();
        Ok(if allowed.contains_key(&review.key.name) { Decision::allow() } else { Decision::deny("no policy has it") })
    })
}

/// As [`plugin`], and reads what its manifest does not ask for.
fn curious() -> Plugin {
    let webhook = Webhook::of::<Pod>("pods").operations([Operation::Create]).reads(Watch::of::<ConfigMap>());
    Plugin::new("Reviews Pods.").validate(webhook, |ctx, _| {
        let _secret = ctx.cache().get::<Secret>(("default", "token"))?;
        Ok(Decision::allow())
    })
}

fn pod(name: &str) -> Pod {
    let mut pod = Pod::default();
    (pod.metadata.namespace, pod.metadata.name) = (Some("default".into()), Some(name.into()));
    pod
}

fn policy(labels: &[(&str, &str)]) -> ConfigMap {
    let mut policy = ConfigMap::default();
    (policy.metadata.namespace, policy.metadata.name) = (Some("default".into()), Some("policy".into()));
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    policy.metadata.labels = Some(labels.iter().map(text).collect());
    policy.data = Some([("web".to_owned(), String::new())].into());
    policy
}

/// Returns the reason for which the creation of a Pod is denied.
fn denied(host: &MockHost, name: &str) -> Option<String> {
    host.review("pods").create(pod(name)).run().expect("it answers").denied().map(str::to_owned)
}

#[test]
fn a_webhook_sees_what_its_watch_selects_and_nothing_else() {
    let mut host = MockHost::new(plugin).with(policy(&[("policy", "pods")]));
    assert_eq!(denied(&host, "web"), None);
    assert_eq!(denied(&host, "db").as_deref(), Some("no policy has it"));
    host.put(policy(&[("policy", "other")]));
    assert_eq!(denied(&host, "web").as_deref(), Some("no policy has it"));
}

#[test]
fn a_read_that_the_manifest_does_not_ask_for_is_refused() {
    let host = MockHost::new(curious);
    let failure = host.review("pods").create(pod("web")).run().expect_err("it reads a Secret");
    let expected = "not granted: read v1 Secret";
    assert!(format!("{failure:?}").contains(expected), "{failure:?}");
}

#[test]
fn the_administrators_file_grants_the_webhook_and_what_it_reads() {
    MockHost::new(plugin).assert_granted(&file(&json!(["pods"])));
}

#[test]
#[should_panic(expected = "asked and not granted: webhook pods\ngranted and not asked: webhook others")]
fn a_webhook_that_is_not_granted_fails_the_test() {
    MockHost::new(plugin).assert_granted(&file(&json!(["others"])));
}

#[test]
#[should_panic(expected = "the file has no valid `webhooks`: ")]
fn webhooks_that_are_no_list_fail_the_test() {
    MockHost::new(plugin).assert_granted(&file(&json!("pods")));
}

fn file(webhooks: &Value) -> Value {
    let read = json!({"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["read"], "namespaces": ["default"]});
    json!({"grants": [read], "webhooks": webhooks})
}
