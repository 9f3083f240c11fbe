//! Tests `auditor` against the mock host.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]
#![allow(clippy::needless_pass_by_value, reason = "JSON is written where it is passed")]

use std::time::Duration;

use auditor::{AuditReport, AuditReportSpec, AuditReportStatus, auditor};
use kube::CustomResourceExt;
use pilothouse_sdk::{
    Dynamic, Key, Verb,
    mock::{MockHost, describe},
};
use serde_json::{Value, from_value, json};

fn cluster() -> Key {
    Key::cluster("cluster")
}

fn file() -> Value {
    serde_saphyr::from_str(include_str!("../auditor.yaml")).unwrap()
}

fn object(api_version: &str, kind: &str, namespace: &str, name: &str, more: Value) -> Dynamic {
    let mut object =
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name}});
    for (member, value) in more.as_object().unwrap() {
        match (member.as_str(), object.get_mut(member)) {
            ("metadata", Some(metadata)) => {
                metadata.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            }
            _ => object[member] = value.clone(),
        }
    }
    from_value(object).unwrap()
}

fn pod(namespace: &str, name: &str, owned: bool) -> Dynamic {
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1"});
    let metadata = if owned { json!({"ownerReferences": [owner]}) } else { json!({}) };
    object("v1", "Pod", namespace, name, json!({ "metadata": metadata }))
}

fn deployment(labels: Value, image: &str) -> Dynamic {
    let template = |image: &str| json!({"spec": {"containers": [{"name": "web", "image": image}]}});
    let applied = json!({"spec": {"replicas": 1, "template": template("web:1")}}).to_string();
    let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": applied});
    let metadata = json!({"labels": labels, "annotations": annotations});
    let spec = json!({"replicas": 5, "template": template(image)});
    object("apps/v1", "Deployment", "shop", "web", json!({"metadata": metadata, "spec": spec}))
}

fn booked() -> Value {
    json!({"team": "web", "cost-center": "7"})
}

fn host(spec: Value) -> MockHost {
    let report = AuditReport::new("cluster", from_value::<AuditReportSpec>(spec).unwrap());
    MockHost::configured(auditor, &file()["config"]).with(report)
}

fn audited(host: &mut MockHost) -> AuditReportStatus {
    host.advance(Duration::from_secs(10));
    host.settle(cluster()).unwrap();
    host.get::<AuditReport>(cluster()).unwrap().status.unwrap()
}

/// Returns the findings as `RULE KIND NAME: MESSAGE`.
fn found(status: &AuditReportStatus) -> Vec<String> {
    let line = |f: &auditor::Finding| format!("{} {} {}: {}", f.rule.as_str(), f.kind, f.name, f.message);
    status.findings.iter().map(line).collect()
}

#[test]
fn each_rule_finds_what_breaks_it_and_nothing_else() {
    let mut host = host(json!({}))
        .with(pod("shop", "owned", true))
        .with(pod("shop", "alone", false))
        .with(pod("kube-system", "excepted", false))
        .with(deployment(json!({"team": "web"}), "web:2"));
    let status = audited(&mut host);
    assert_eq!(
        found(&status),
        [
            "Ownerless Pod alone: nobody owns it",
            "MissingLabels Deployment web: it lacks the labels cost-center",
            "Drift Deployment web: not as it was applied: spec.template.spec.containers[web].image",
        ]
    );
    assert_eq!((status.ownerless, status.missing_labels, status.drift), (1, 1, 1));
    let clean = status.conditions.get("Clean").unwrap();
    assert_eq!((clean.status.as_str(), clean.message.as_str()), ("False", "1 ownerless, 1 without labels, 1 drifted"));
    for rule in ["Ownerless", "MissingLabels", "Drift"] {
        assert_eq!(host.metric("auditor_findings", [("report", "cluster"), ("rule", rule)]), Some(1.0));
    }
}

#[test]
fn an_object_is_compared_with_what_is_declared_for_it_before_what_was_applied() {
    let declared = |image: &str| {
        let template = json!({"spec": {"containers": [{"name": "web", "image": image}]}});
        let web = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"template": template},
        });
        let key =
            |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "shop", "name": "db"}});
        let list = json!({"kind": "List", "items": [key("Service"), key("Secret")]});
        let data = json!({"web": web.to_string(), "list": list.to_string()});
        object("v1", "ConfigMap", "ops", "desired", json!({ "data": data }))
    };
    let mut config = file()["config"].clone();
    config["desired"] = json!({"namespace": "ops", "name": "desired"});
    let report = AuditReport::new("cluster", AuditReportSpec::default());
    let mut host = MockHost::configured(auditor, &config).with(report).with(deployment(booked(), "web:2"));
    assert_eq!(
        found(&audited(&mut host)),
        [
            "Drift ConfigMap desired: it declares the desired state, and does not exist",
            "Drift Deployment web: not as it was applied: spec.template.spec.containers[web].image",
        ]
    );
    // An audit reads the ConfigMap, so a change of it wakes the report.
    host.advance(Duration::from_secs(10));
    host.reconcile(cluster()).unwrap();
    assert_eq!(host.woken_by(|host| host.put(declared("web:3"))), [cluster()]);
    let left = [
        "Drift ConfigMap desired: it declares the Secret shop/db, and that kind is not audited for drift",
        "Drift Service db: it is declared, and does not exist",
    ];
    let drift = "Drift Deployment web: not as it was declared: spec.template.spec.containers[web].image";
    assert_eq!(found(&audited(&mut host)), [drift, left[0], left[1]]);
    host.put(declared("web:2"));
    assert_eq!(found(&audited(&mut host)), left);
}

#[test]
fn each_finding_is_an_event_on_its_object_once() {
    let mut host = host(json!({})).with(pod("shop", "alone", false));
    audited(&mut host);
    host.put(pod("shop", "other", false));
    audited(&mut host);
    let events: Vec<String> = host.events().iter().map(ToString::to_string).collect();
    assert_eq!(
        events,
        ["Warning Ownerless v1 Pod shop/alone: nobody owns it", "Warning Ownerless v1 Pod shop/other: nobody owns it",]
    );
}

#[test]
fn a_change_of_an_audited_field_wakes_the_report_and_what_is_repaired_is_clean() {
    let mut host = host(json!({})).with(deployment(booked(), "web:2"));
    assert_eq!(audited(&mut host).drift, 1);
    // `settle` ends with a call that is put off, and reads nothing.
    host.advance(Duration::from_secs(10));
    host.reconcile(cluster()).unwrap();
    let mut status = deployment(booked(), "web:2");
    status.data["status"] = json!({"replicas": 5});
    assert_eq!(host.woken_by(|host| host.put(status)), []);
    assert_eq!(host.woken_by(|host| host.put(deployment(booked(), "web:1"))), [cluster()]);
    let status = audited(&mut host);
    assert!(status.findings.is_empty() && status.conditions.is_true("Clean"));
    assert_eq!(host.metric("auditor_findings", [("report", "cluster"), ("rule", "Drift")]), Some(0.0));
}

#[test]
fn an_audit_too_soon_after_another_is_put_off() {
    let mut host = host(json!({}));
    audited(&mut host);
    host.put(pod("shop", "alone", false));
    host.advance(Duration::from_secs(4));
    let outcome = host.reconcile(cluster()).unwrap();
    assert_eq!(outcome.requeue_after(), Some(Duration::from_secs(6)));
    assert!(outcome.leaves_status());
    host.advance(Duration::from_secs(6));
    assert_eq!(host.reconcile(cluster()).unwrap().status::<AuditReportStatus>().ownerless, 1);
    assert_eq!(host.metric("auditor_audits_total", []), Some(2.0));
}

#[test]
fn a_report_about_some_namespaces_has_those_only() {
    let mut host = host(json!({"namespaces": ["shop", "none"]}))
        .with(pod("shop", "alone", false))
        .with(pod("other", "alone", false));
    assert_eq!(found(&audited(&mut host)).len(), 1);
}

#[test]
fn many_findings_are_counted_and_some_are_listed() {
    let mut host = host(json!({}));
    (0..150).for_each(|i| host.put(pod("shop", &format!("pod-{i:03}"), false)));
    let status = audited(&mut host);
    assert_eq!((status.ownerless, status.findings.len(), host.events().len()), (150, 100, 20));
}

#[test]
fn an_annotation_that_is_not_json_is_a_finding() {
    let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": "{"});
    let map = object("v1", "ConfigMap", "shop", "odd", json!({"metadata": {"annotations": annotations}}));
    let mut host = host(json!({})).with(map);
    assert_eq!(found(&audited(&mut host)), ["Drift ConfigMap odd: its annotation of what was applied is not JSON"]);
}

#[test]
fn it_asks_for_no_write_but_its_status_its_events_and_its_definition() {
    let writes: Vec<String> = host(json!({}))
        .manifest()
        .permissions
        .iter()
        .filter(|permission| permission.verbs.iter().any(|verb| *verb != Verb::Read))
        .map(|permission| permission.of.to_string())
        .collect();
    let expected = ["audit.example.com/v1 AuditReport", "apiextensions.k8s.io/v1 CustomResourceDefinition", "v1 Event"];
    assert_eq!(writes, expected);
}

#[test]
fn a_kind_that_is_none_is_refused() {
    let problem = describe(auditor, r#"{"owned": ["pods"]}"#).unwrap_err();
    assert_eq!(problem, r#""pods" is not a kind: write v1/Pod, apps/v1/Deployment, apps/* or *"#);
}

#[test]
fn the_custom_resource_definition_is_as_reviewed() {
    insta::assert_snapshot!("crd", serde_saphyr::to_string(&AuditReport::crd()).unwrap());
}

#[test]
fn the_administrators_file_grants_exactly_what_is_asked() {
    host(json!({})).assert_granted(&file());
}

#[test]
fn the_example_is_a_report() {
    let report: AuditReport = serde_saphyr::from_str(include_str!("../examples/cluster.yaml")).unwrap();
    let mut host = MockHost::configured(auditor, &file()["config"]).with(report);
    assert!(audited(&mut host).conditions.is_true("Clean"));
}
