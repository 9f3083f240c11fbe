#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeSet;

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command};

const METRICS: &str = include_str!("../../../../docs/metrics.md");
const ALERTS: &str = include_str!("../../../../docs/operating/alerts.md");

/// Every optional part at once.
const EVERYTHING: [&str; 11] = [
    "spread=true",
    "webhooks=true",
    "metrics={certificateSecret: certificates, serviceMonitor: true, alerts: true}",
    "rbac={clusterAdmin: true, rules: [{apiGroups: [a.example.com], resources: [apples], verbs: [get]}]}",
    "networkPolicy.egress=[{ports: [{port: 8080}]}]",
    "plugins.copyFrom.image=registry.example.com/plugins:1",
    "args=[--log, debug]",
    "env=[{name: HTTPS_PROXY, value: 'http://proxy:3128'}]",
    "serviceAccount.annotations={example.com/role: host}",
    "podAnnotations={example.com/team: a}",
    "priorityClassName=system-cluster-critical",
];

/// Returns the objects of an installation `house` in the namespace `ship`.
fn installed(settings: &[&str]) -> Vec<Value> {
    let settings: Vec<_> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    let values = changed_values(&[], &settings).unwrap();
    let (documents, error) = yaml::documents(&objects("ship", "house", &values).unwrap());
    assert_eq!(error, None);
    documents.into_iter().map(|document| document.value).filter(|value| !value.is_null()).collect()
}

fn names(objects: &[Value]) -> Vec<String> {
    let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
    objects.iter().map(name).collect()
}

fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap()
}

fn pod(objects: &[Value]) -> &Value {
    &one(objects, "Deployment")["spec"]["template"]["spec"]
}

#[test]
fn an_installation_consists_of_what_runs_hosts_without_other_definitions() {
    let objects = installed(&[]);
    let wanted = [
        "Namespace ship",
        "ServiceAccount house",
        "Role house",
        "RoleBinding house",
        "ClusterRole house",
        "ClusterRoleBinding house",
        "ClusterRole house-metrics-reader",
        "ClusterRole house-viewer",
        "ClusterRole house-releaser",
        "Service house",
        "NetworkPolicy house",
        "PodDisruptionBudget house",
        "Deployment house",
    ];
    assert_eq!(names(&objects), wanted);
    for object in &objects {
        let namespace = &object["metadata"]["namespace"];
        let is_global = ["Namespace", "ClusterRole", "ClusterRoleBinding"].iter().any(|kind| object["kind"] == *kind);
        assert_eq!(*namespace, if is_global { Value::Null } else { "ship".into() }, "{object}");
    }
}

#[test]
fn containers_are_confined_as_the_restricted_standard_of_pods_wants_it() {
    let objects = installed(&EVERYTHING);
    let pod = pod(&objects);
    let wanted = json!({
        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    assert_eq!(pod["securityContext"], wanted);
    let containers: Vec<_> =
        ["containers", "initContainers"].iter().flat_map(|member| pod[*member].as_array().unwrap()).collect();
    assert_eq!(containers.len(), 2);
    for container in containers {
        let wanted = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        });
        assert_eq!(container["securityContext"], wanted);
        assert!(container["resources"]["limits"]["memory"].is_string(), "{container}");
    }
}

#[test]
fn every_argument_of_the_container_is_one_of_the_host() {
    for settings in [&[][..], &EVERYTHING] {
        let objects = installed(settings);
        let arguments = pod(&objects)["containers"][0]["args"].as_array().unwrap();
        let words = arguments.iter().map(|argument| argument.as_str().unwrap());
        let parsed = Cli::try_parse_from(["pilothouse"].into_iter().chain(words)).unwrap();
        assert!(matches!(parsed.command, Command::Run(_)));
    }
}

#[test]
fn each_source_of_plugins_becomes_the_volume_of_plugins() {
    let volume = |settings: &[&str]| {
        let objects = installed(settings);
        let volumes = pod(&objects)["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["name"] == "plugins").unwrap().clone()
    };
    let config_map = json!({"name": "plugins", "configMap": {"name": "house-plugins", "optional": true}});
    assert_eq!(volume(&[]), config_map);
    let claim = json!({"name": "plugins", "persistentVolumeClaim": {"claimName": "plugins"}});
    assert_eq!(volume(&["plugins.volume={persistentVolumeClaim: {claimName: plugins}}"]), claim);
    let image = json!({"name": "plugins", "image": {"reference": "registry.example.com/plugins:1.0"}});
    assert_eq!(volume(&["plugins.volume={image: {reference: registry.example.com/plugins:1.0}}"]), image);
    assert_eq!(volume(&["plugins.copyFrom.image=a:1"]), json!({"name": "plugins", "emptyDir": {}}));

    let objects = installed(&["plugins.copyFrom={image: 'a:1', command: [/copy]}"]);
    let copies = &pod(&objects)["initContainers"][0];
    assert_eq!((&copies["image"], &copies["command"]), (&json!("a:1"), &json!(["/copy"])));
}

#[test]
fn optional_parts_are_there_if_they_are_asked_for() {
    let (without, with) = (installed(&[]), installed(&EVERYTHING));
    let (without, all): (BTreeSet<_>, BTreeSet<_>) =
        (names(&without).into_iter().collect(), names(&with).into_iter().collect());
    let more: Vec<_> = all.difference(&without).map(String::as_str).collect();
    assert_eq!(more, ["ClusterRoleBinding house-admin", "PrometheusRule house", "ServiceMonitor house"]);

    let ports = &one(&with, "Service")["spec"]["ports"];
    assert_eq!(ports[1], json!({"name": "webhooks", "port": 443, "targetPort": "webhooks"}));
    let rules = one(&with, "ClusterRole")["rules"].as_array().unwrap();
    assert_eq!(rules.last(), Some(&json!({"apiGroups": ["a.example.com"], "resources": ["apples"], "verbs": ["get"]})));
    let egress = one(&with, "NetworkPolicy")["spec"]["egress"].as_array().unwrap();
    assert_eq!(egress.last(), Some(&json!({"ports": [{"port": 8080}]})));
    let container = &pod(&with)["containers"][0];
    let proxy = || json!({"name": "HTTPS_PROXY", "value": "http://proxy:3128"});
    assert_eq!(container["env"][1], proxy());
    let objects = installed(&["env=[{name: HTTPS_PROXY, value: 'http://proxy:3128'}]"]);
    assert_eq!(pod(&objects)["containers"][0]["env"], json!([proxy()]));
    assert_eq!(pod(&with)["priorityClassName"], "system-cluster-critical");
    assert_eq!(one(&with, "ServiceAccount")["metadata"]["annotations"], json!({"example.com/role": "host"}));

    let fewer = installed(&["networkPolicy.enabled=false", "podDisruptionBudget=false", "rbac.create=false"]);
    let fewer: BTreeSet<_> = names(&fewer).into_iter().collect();
    let fewer: Vec<_> = without.difference(&fewer).map(String::as_str).collect();
    let wanted = [
        "ClusterRole house",
        "ClusterRoleBinding house",
        "NetworkPolicy house",
        "PodDisruptionBudget house",
        "Role house",
        "RoleBinding house",
    ];
    assert_eq!(fewer, wanted);
}

#[test]
fn hosts_that_share_the_plugins_know_their_replica_set_and_may_remove_leases() {
    let installation = |settings: &[&str]| {
        let objects = installed(settings);
        let arguments = pod(&objects)["containers"][0]["args"].as_array().unwrap().clone();
        (
            arguments,
            one(&objects, "Role")["rules"].as_array().unwrap().clone(),
            pod(&objects)["containers"][0]["env"].clone(),
        )
    };
    let (arguments, rules, env) = installation(&["spread=true"]);
    assert!(
        arguments.contains(&json!("--spread")) && arguments.contains(&json!("--spread-revision=$(POD_TEMPLATE_HASH)"))
    );
    let verbs = json!(["list", "watch", "create", "update", "delete"]);
    assert_eq!(rules, [json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs})]);
    let hash = json!({"fieldRef": {"fieldPath": "metadata.labels['pod-template-hash']"}});
    assert_eq!(env, json!([{"name": "POD_TEMPLATE_HASH", "valueFrom": hash}]));
    let (arguments, rules, env) = installation(&[]);
    assert!(!arguments.iter().any(|argument| argument.as_str().unwrap().starts_with("--spread")));
    assert_eq!((rules[0]["resourceNames"].clone(), rules.len(), env), (json!(["house"]), 2, Value::Null));
}

#[test]
fn every_value_is_used_by_a_template() {
    fn paths(value: &Value, path: String, into: &mut Vec<String>) {
        match value {
            Value::Object(members) if !members.is_empty() && path != ".Values.resources" => {
                members.iter().for_each(|(name, value)| paths(value, format!("{path}.{name}"), into));
            }
            _ => into.push(path),
        }
    }
    let mut known = Vec::new();
    paths(&changed_values(&[], &[]).unwrap(), ".Values".to_owned(), &mut known);
    for path in known {
        assert!(CHART.iter().any(|(_, text)| text.contains(&format!("{path} "))), "{path} is not used");
    }
}

#[test]
fn helm_refuses_the_values_that_manifests_refuses() {
    fn schema(value: &Value, path: &str) -> Value {
        match value {
            Value::Object(members) if members.is_empty() || path == ".resources" => json!({"type": "object"}),
            Value::Object(members) => {
                let member =
                    |(name, value): (&String, &Value)| (name.clone(), schema(value, &format!("{path}.{name}")));
                let properties: serde_json::Map<_, _> = members.iter().map(member).collect();
                json!({"type": "object", "additionalProperties": false, "properties": properties})
            }
            Value::Array(_) => json!({"type": "array"}),
            Value::Bool(_) => json!({"type": "boolean"}),
            Value::Number(_) => json!({"type": "integer"}),
            Value::Null | Value::String(_) => json!({"type": "string"}),
        }
    }
    let mut wanted = schema(&changed_values(&[], &[]).unwrap(), "");
    // Helm's own.
    wanted["properties"]["global"] = json!({"type": "object"});
    let known: Value = serde_json::from_str(chart_file("values.schema.json")).unwrap();
    assert_eq!(known, wanted, "deploy/chart/values.schema.json must be:\n{wanted:#}");
}

#[test]
fn every_metric_of_an_alert_exists_and_every_alert_has_a_playbook() {
    let objects = installed(&EVERYTHING);
    let rules = one(&objects, "PrometheusRule")["spec"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 5);
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        let before: Vec<_> = expression.split('{').collect();
        let (_, before) = before.split_last().unwrap();
        assert!(!before.is_empty(), "{expression}");
        for text in before {
            let metric = text.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
            assert!(METRICS.contains(&format!("\n| `{metric}` |")), "docs/metrics.md has no {metric}: {expression}");
        }
        let heading = format!("\n## {}\n", rule["alert"].as_str().unwrap());
        assert!(ALERTS.contains(&heading), "docs/operating/alerts.md has no {heading}");
    }
    assert_eq!(ALERTS.matches("\n## Pilothouse").count(), rules.len(), "the page has alerts that are not there");
}

#[test]
fn plugins_of_a_directory_are_config_maps_unless_another_source_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| fs::write(directory.path().join(name), content).unwrap();
    write("my_site.wasm", b"\0asm");
    write("my-site.yaml", b"enabled: true\n");
    write("apple.wasm", b"\0asm");
    let plugins = PluginFiles::read_all(directory.path()).unwrap();
    let mut values = changed_values(&[], &[]).unwrap();
    let maps = config_maps(&plugins, "ship", "house", &mut values).unwrap();
    assert_eq!(names(&maps), ["ConfigMap house-plugin-apple", "ConfigMap house-plugin-my-site"]);
    assert_eq!(maps[1]["binaryData"], json!({"my_site.wasm": "AGFzbQ=="}));
    assert_eq!(maps[1]["data"], json!({"my-site.yaml": "enabled: true\n"}));
    let sources = json!({"projected": {"sources": [
        {"configMap": {"name": "house-plugin-apple"}}, {"configMap": {"name": "house-plugin-my-site"}},
    ]}});
    assert_eq!(values["plugins"]["volume"], sources);

    let mut values = changed_values(&[], &["plugins.copyFrom.image=a".to_owned()]).unwrap();
    assert_eq!(config_maps(&plugins, "ship", "house", &mut values).unwrap(), [] as [Value; 0]);

    write("apple.yaml", &vec![b'#'; MAX_CONFIG_MAP]);
    let plugins = PluginFiles::read_all(directory.path()).unwrap();
    let mut values = changed_values(&[], &[]).unwrap();
    let error = config_maps(&plugins, "ship", "house", &mut values).unwrap_err().to_string();
    assert!(error.starts_with("the plugin apple has 1048580 bytes, and a ConfigMap holds at most 1048576"), "{error}");

    let empty = tempfile::tempdir().unwrap();
    let error = PluginFiles::read_all(empty.path()).err().unwrap().to_string();
    assert!(error.starts_with("there is no plugin (NAME.wasm) in "), "{error}");
}

#[test]
fn the_chart_is_written_whole_and_has_the_version_of_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("chart");
    write_chart(&written).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart");
    let files = |folder: &Path| {
        let names = |folder: &Path| -> BTreeSet<_> {
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        (names(folder), names(&folder.join("templates")))
    };
    assert_eq!(files(&written), files(&source));
    let error = write_chart(&written).unwrap_err().to_string();
    assert!(error.ends_with("chart exists: name a new directory for the chart"), "{error}");

    let version = env!("CARGO_PKG_VERSION");
    let chart = yaml::first(chart_file("Chart.yaml")).unwrap().value;
    assert_eq!((&chart["version"], &chart["appVersion"]), (&version.into(), &version.into()));
    assert_eq!(changed_values(&[], &[]).unwrap()["image"], format!("pilothouse:{version}"));
}

#[test]
fn names_are_dns_labels() {
    for name in ["pilothouse", "a", "a-1"] {
        assert_eq!(label(name).as_deref(), Ok(name));
    }
    for name in ["", "-a", "a-", "A", "a.b", "a\nb", "1", "on", "null", &"a".repeat(64)] {
        assert!(label(name).is_err(), "{name}");
    }
}
