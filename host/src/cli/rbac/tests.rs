#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeSet;

use insta::assert_snapshot;
use pilothouse_core::{
    grant::AdminFile,
    key::TypeMeta,
    manifest::{Controller, Manifest, Permission, Verb, Watch, WatchPattern, raw},
    object::Subresource,
};

use super::*;
use crate::name::PluginName;

fn asks(api_version: &str, kind: &str, verbs: &[Verb]) -> Permission {
    Permission {
        of: TypeMeta::new(api_version, kind),
        subresource: None,
        verbs: verbs.iter().copied().collect(),
        namespaces: Vec::new(),
        names: Vec::new(),
    }
}

/// A plugin for apples with ConfigMaps as children, which brings its kind.
fn apples() -> Manifest {
    let raw = raw::Manifest { version: "1".to_owned(), ..raw::Manifest::default() };
    let of = TypeMeta::new("stable.example.com/v1", "MyApple");
    let controller = Controller {
        name: "apples".to_owned(),
        for_: Watch::all(of.clone()),
        owns: vec![Watch::all(TypeMeta::new("v1", "ConfigMap"))],
        watches: Vec::new(),
        reads: Vec::new(),
        max_concurrency: 1,
        resync: None,
        timeout: std::time::Duration::from_secs(1),
        finalizer: None,
    };
    let definition = serde_json::json!({
        "metadata": {"name": "myapples.stable.example.com"},
        "spec": {"group": "stable.example.com", "scope": "Namespaced", "names": {"kind": "MyApple", "plural": "myapples"}},
    });
    Manifest {
        version: raw.version,
        description: String::new(),
        controllers: vec![controller],
        indexes: Vec::new(),
        observes: Vec::new(),
        patterns: Vec::new(),
        permissions: vec![
            asks("stable.example.com/v1", "MyApple", &[Verb::Read]),
            Permission {
                subresource: Some(Subresource::Status),
                ..asks("stable.example.com/v1", "MyApple", &[Verb::Apply])
            },
            asks("v1", "ConfigMap", &[Verb::Read, Verb::Apply, Verb::Delete]),
            asks("v1", "Event", &[Verb::Create]),
            asks("apiextensions.k8s.io/v1", "CustomResourceDefinition", &[Verb::Apply]),
            asks("example.org/v1", "Fancy", &[Verb::Update]),
        ],
        crds: vec![definition.to_string()],
        config_schema: None,
        instances: Default::default(),
        http: Vec::new(),
        webhooks: Vec::new(),
        metrics: Vec::new(),
    }
}

const GRANTS: &str = "
config: {token: {valueFrom: {secretKeyRef: {namespace: ops, name: slack, key: token}}}}
grants:
  - {apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read]}
  - {apiVersion: stable.example.com/v1, kind: MyApple/status, verbs: [apply]}
  - {apiVersion: v1, kind: ConfigMap, verbs: [read, apply, delete], namespaces: [shop]}
  - {apiVersion: v1, kind: Event, verbs: [create]}
  - {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, verbs: [apply]}
  - {apiVersion: example.org/v1, kind: Fancy, verbs: ['*'], names: [one]}
  - {apiVersion: v1, kind: Pod, verbs: ['*']}
";

fn printed(more: &str) -> String {
    let (manifest, host) = (apples(), ServiceAccount { namespace: "ship".to_owned(), name: "house".to_owned() });
    let file: AdminFile = serde_saphyr::from_str(&format!("{GRANTS}{more}")).unwrap();
    let resources = Resources::of([&manifest]);
    let mut collecting = Collecting { host: &host, resources: &resources, needs: Needs::new() };
    collecting.add(&PluginName::new("apples").unwrap(), &manifest, &file);
    let roles = roles::of_needs(&collecting.needs, &host, &host.name);
    for role in &roles {
        let text = roles::print(role, "house");
        let (documents, error) = pilothouse_apiserver::yaml::documents(&text);
        assert_eq!(error, None);
        let rules: Vec<_> = documents.iter().find_map(|document| document.value["rules"].as_array()).unwrap().clone();
        let read: Vec<_> = rules.iter().map(roles::rule_of).collect();
        let unreasoned: Vec<_> =
            role.rules.iter().map(|rule| roles::Rule { reasons: Vec::new(), ..rule.clone() }).collect();
        assert_eq!(read, unreasoned);
    }
    roles.iter().map(|role| roles::print(role, "house")).collect()
}

/// Returns the lines of rules, without bindings.
fn rules(text: &str) -> String {
    let of_rules = |line: &&str| {
        ["kind: Role", "kind: ClusterRole", "  name: ", "  namespace: ", "  # ", "  - api", "    res", "    verbs"]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let documents = text.split("---\n").filter(|document| document.contains("\nrules:\n"));
    documents.flat_map(|document| document.lines().filter(of_rules)).map(|line| format!("{line}\n")).collect()
}

#[test]
fn what_a_plugin_needs_is_granted_to_the_host_or_to_its_own_account() {
    assert_snapshot!("as_host", rules(&printed("")));
    assert_snapshot!("as_account", rules(&printed("serviceAccount: shop/apples")));
    let by_token = printed("serviceAccount: {namespace: shop, name: apples, by: token}");
    assert!(by_token.contains("resources: [serviceaccounts/token]\n    resourceNames: [apples]\n    verbs: [create]"));
}

#[test]
fn a_kind_that_a_pattern_excludes_is_not_cached() {
    let all = Watch::all(TypeMeta::new("*", "*"));
    let mut manifest = Manifest { controllers: Vec::new(), ..apples() };
    manifest.permissions = vec![asks("*", "*", &[Verb::Read])];
    let file = "grants: [{apiVersion: v1, kind: ConfigMap, verbs: [read]}]";
    let file: AdminFile = serde_saphyr::from_str(file).unwrap();
    let host = ServiceAccount { namespace: "ship".to_owned(), name: "house".to_owned() };
    for (except, verbs) in [(Vec::new(), "[get, list, watch]"), (vec![TypeMeta::new("v1", "ConfigMap")], "[get, list]")]
    {
        manifest.patterns = vec![WatchPattern { watch: all.clone(), except, with_verbs: Vec::new() }];
        let resources = Resources::of([&manifest]);
        let mut collecting = Collecting { host: &host, resources: &resources, needs: Needs::new() };
        collecting.add(&PluginName::new("apples").unwrap(), &manifest, &file);
        let roles = roles::of_needs(&collecting.needs, &host, &host.name);
        let text: String = roles.iter().map(|role| roles::print(role, "house")).collect();
        assert!(text.contains(&format!("resources: [configmaps]\n    verbs: {verbs}\n")), "{text}");
    }
}

#[test]
fn every_rule_of_the_chart_has_a_reason() {
    let host = ServiceAccount { namespace: "ship".to_owned(), name: "house".to_owned() };
    let uses = install::Uses { webhooks: true, spread: false };
    let of_chart = roles::of_chart(&install::rbac("ship", "house", uses).unwrap(), &host).unwrap();
    let kinds: Vec<_> = of_chart.iter().map(|role| role.namespace.as_deref()).collect();
    assert_eq!(kinds, [Some("ship"), None]);
    for role in &of_chart {
        assert!(role.rules.iter().all(|rule| !rule.reasons.is_empty()), "{role:?}");
    }
    let verbs: BTreeSet<_> = of_chart.iter().flat_map(|role| &role.rules).flat_map(|rule| &rule.verbs).collect();
    assert!(verbs.contains(&"update".to_owned()));
}

#[test]
fn hosts_that_share_plugins_create_and_delete_leases() {
    let host = ServiceAccount { namespace: "ship".to_owned(), name: "house".to_owned() };
    let printed = |spread| {
        let uses = install::Uses { webhooks: false, spread };
        documents(&roles::of_chart(&install::rbac("ship", "house", uses).unwrap(), &host).unwrap(), &host)
    };
    assert!(printed(true).contains("delete") && !printed(false).contains("delete"), "{}", printed(true));
}
