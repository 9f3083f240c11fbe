//! Tests `kubediff` against the mock host.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]
#![allow(clippy::needless_pass_by_value, reason = "JSON is written where it is passed")]

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kubediff::kubediff;
use pilothouse_sdk::{
    Dynamic, TypeMeta,
    http::Error,
    mock::{ExpectedHttp, MockHost, describe},
};
use serde_json::{Value, json};

const HOOK: &str = "https://hooks.example.com/changes";
const SLACK: &str = "https://hooks.slack.com/services/T/B/X";
const SETTINGS: (&str, &str) = ("default", "settings");

fn settings(color: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "settings"}, "data": {"color": color, "size": "small"},
    }))
    .unwrap()
}

/// Returns a host that has reported what there was.
fn watching(config: Value, objects: impl IntoIterator<Item = ConfigMap>) -> MockHost {
    let mut host = objects.into_iter().fold(MockHost::configured(kubediff, config), MockHost::with);
    host.observe().unwrap();
    host
}

/// Returns the lines without the kind.
fn lines(host: &MockHost) -> Vec<Value> {
    let line = |line: &pilothouse_sdk::mock::LogLine| {
        let mut line: Value = serde_json::from_str(&line.message).unwrap();
        line.as_object_mut().unwrap().retain(|name, _| !["apiVersion", "kind"].contains(&name.as_str()));
        line
    };
    host.lines().iter().map(line).collect()
}

#[test]
fn each_change_is_a_line_and_what_was_there_is_none() {
    let mut host = watching(json!({}), [settings("blue")]);
    assert_eq!(lines(&host), [json!(null); 0]);
    host.put(settings("red"));
    host.observe().unwrap();
    let mut other = settings("green");
    other.metadata.name = Some("other".to_owned());
    host.put(other);
    host.observe().unwrap();
    host.remove::<ConfigMap>(SETTINGS);
    host.observe().unwrap();
    let differences = json!([{"path": "data.color", "old": "blue", "new": "red"}]);
    assert_eq!(
        lines(&host),
        [
            json!({"event": "updated", "namespace": "default", "name": "settings", "differences": differences}),
            json!({"event": "added", "namespace": "default", "name": "other"}),
            json!({"event": "deleted", "namespace": "default", "name": "settings"}),
        ]
    );
    for event in ["added", "updated", "deleted"] {
        assert_eq!(host.metric("kubediff_changes_total", [("event", event)]), Some(1.0));
    }
}

#[test]
fn what_was_there_is_reported_if_the_administrator_wants_it() {
    let host = watching(json!({"initial": true}), [settings("blue")]);
    let expected = json!({"event": "added", "namespace": "default", "name": "settings", "initial": true});
    assert_eq!(lines(&host), [expected]);
}

#[test]
fn merged_changes_and_missed_deletions_are_reported_as_such() {
    let mut host = watching(json!({}), [settings("blue")]);
    host.put(settings("red"));
    host.put(settings("green"));
    host.observe().unwrap();
    host.lose::<ConfigMap>(SETTINGS);
    host.observe().unwrap();
    let lines = lines(&host);
    assert_eq!((&lines[0]["merged"], &lines[0]["differences"][0]["new"]), (&json!(2), &json!("green")));
    assert_eq!(lines[1]["missed"], true);
}

#[test]
fn the_administrator_chooses_kinds_namespaces_fields_and_events() {
    let backup = TypeMeta::new("example.com/v1", "Backup");
    let event = Dynamic::new(TypeMeta::new("v1", "Event"), "noise");
    let mut host = watching(json!({}), []);
    host.put(Dynamic::new(backup.clone(), "nightly"));
    host.put(event);
    host.observe().unwrap();
    assert_eq!(lines(&host), [json!({"event": "added", "name": "nightly"})], "Events are noise, and new kinds are not");

    for (config, reported) in [
        (json!({"resources": ["v1/ConfigMap"]}), true),
        (json!({"resources": ["v1/*"]}), true),
        (json!({"resources": ["apps/*"]}), false),
        (json!({"except": ["v1/ConfigMap"]}), false),
        (json!({"namespaces": ["default"]}), true),
        (json!({"namespaces": ["shop"]}), false),
        (json!({"ignore": ["data"]}), false),
        (json!({"ignore": ["data.size"]}), true),
        (json!({"events": ["updated"]}), true),
        (json!({"events": ["added", "deleted"]}), false),
        (json!({"labels": "app=web"}), false),
    ] {
        let mut host = watching(config.clone(), [settings("blue")]);
        host.put(settings("red"));
        host.observe().unwrap();
        assert_eq!(!lines(&host).is_empty(), reported, "{config}");
    }
}

#[test]
fn the_keys_of_a_secret_are_reported_and_its_values_are_not() {
    let secret = |data: &[(&str, &str)]| {
        let mut secret = Secret::default();
        secret.metadata.namespace = Some("default".to_owned());
        secret.metadata.name = Some("token".to_owned());
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
        secret.data = Some(data.collect());
        secret
    };
    let config = json!({"objects": true, "webhooks": [{"url": HOOK}]});
    let mut host = MockHost::configured(kubediff, config).with(secret(&[("key", "s3cret"), ("other", "s3cret")]));
    host.observe().unwrap();
    host.put(secret(&[("key", "s4cret"), ("other", "s3cret"), ("new", "s5cret")]));
    host.expect_http(ExpectedHttp::post(HOOK));
    host.observe().unwrap();
    let expected = json!([
        {"path": "data.key", "old": "(hidden)", "new": "(hidden)"}, {"path": "data.new", "new": "(hidden)"},
    ]);
    assert_eq!(lines(&host)[0]["differences"], expected);
    let posted = host.http_calls()[0].json();
    let hidden = json!({"key": "(hidden)", "new": "(hidden)", "other": "(hidden)"});
    assert_eq!((&posted["differences"], &posted["new"]["data"]), (&expected, &hidden));
    let all = format!("{posted} {:?}", host.lines());
    assert!(!all.contains("c2"), "a value in base64 is reported: {all}");
}

#[test]
fn a_webhook_gets_json_and_slack_gets_a_message() {
    let slack = json!({"url": SLACK, "title": "a & b"});
    let config = json!({"objects": true, "webhooks": [{"url": HOOK}], "slack": slack});
    let mut host = watching(config, [settings("blue")]);
    host.put(settings("<red>"));
    host.expect_http(ExpectedHttp::post(HOOK));
    host.expect_http(ExpectedHttp::post(SLACK).returns(200, "ok"));
    host.observe().unwrap();
    let mut posted = host.http_calls()[0].json();
    assert_eq!(posted["old"]["data"]["color"], "blue");
    posted.as_object_mut().unwrap().retain(|member, _| !["old", "new"].contains(&member.as_str()));
    let expected = json!({
        "event": "updated", "time": "2026-01-01T00:00:00Z", "apiVersion": "v1", "kind": "ConfigMap",
        "namespace": "default", "name": "settings",
        "differences": [{"path": "data.color", "old": "blue", "new": "<red>"}],
    });
    assert_eq!(posted, expected);
    let text = "*a &amp; b*: v1 ConfigMap default/settings updated\n• `data.color`: blue → &lt;red&gt;";
    assert_eq!(host.http_calls()[1].json(), json!({ "text": text }));
}

#[test]
fn a_post_that_fails_holds_up_nothing_and_a_server_that_is_away_is_asked_once_in_a_call() {
    let channel = json!({"url": "https://slack.com/api/chat.postMessage", "channel": "ops"});
    let mut host = watching(json!({"webhooks": [{"url": HOOK}], "slack": channel}), [settings("blue")]);
    host.put(settings("red"));
    let mut other = settings("green");
    other.metadata.name = Some("other".to_owned());
    host.put(other);
    host.expect_http(ExpectedHttp::post(HOOK).fail(Error::Timeout));
    for _ in 0..2 {
        let rejected = json!({"ok": false, "error": "channel_not_found"});
        host.expect_http(ExpectedHttp::post("https://slack.com/api/chat.postMessage").json(200, &rejected));
    }
    host.observe().unwrap();
    assert_eq!(host.http_calls()[1].json()["channel"], "ops");
    let failed: Vec<bool> = host.lines().iter().map(|line| line.message == "cannot post a change").collect();
    assert_eq!(failed, [false, true, true, false, true]);
    let count = |target, result| host.metric("kubediff_notifications_total", [("target", target), ("result", result)]);
    assert_eq!(
        (count("webhook", "error"), count("webhook", "skipped"), count("slack", "error")),
        (Some(1.0), Some(1.0), Some(2.0))
    );
}

#[test]
fn what_has_no_room_in_a_line_is_counted() {
    let map = |value: &str| {
        let mut map = settings("blue");
        let data = map.data.as_mut().unwrap();
        (0..90).for_each(|i| drop(data.insert(format!("key-{i:02}"), value.to_owned())));
        data.insert("color".to_owned(), value.repeat(2000));
        map
    };
    let mut host = watching(json!({}), [map("a")]);
    host.put(map("b"));
    host.observe().unwrap();
    let line = &lines(&host)[0];
    let shown = line["differences"].as_array().unwrap();
    assert_eq!(shown[0]["path"], "data.color");
    assert!(shown[0]["new"].as_str().unwrap().ends_with('…'));
    let more = usize::try_from(line["more"].as_u64().unwrap()).unwrap();
    assert_eq!(shown.len() + more, 91);
    assert!(host.lines()[0].message.len() <= 4096);
}

#[test]
fn a_configuration_that_is_not_valid_is_refused_with_what_to_write() {
    for (config, problem) in [
        (r#"{"resources": ["v1/pods"]}"#, r#""v1/pods" is not a kind: write v1/Pod"#),
        (r#"{"ignore": ["a..b"]}"#, r#""a..b" is not a path: write it as spec.containers[*].image or"#),
        (r#"{"webhooks": [{"url": "here"}]}"#, "the URL does not begin with https:// or http://"),
    ] {
        let found = describe(kubediff, config).unwrap_err();
        assert!(found.contains(problem), "{found}");
    }
}

#[test]
fn the_administrators_file_grants_exactly_what_is_asked() {
    let file: Value = serde_saphyr::from_str(include_str!("../kubediff.yaml")).unwrap();
    MockHost::configured(kubediff, &file["config"]).assert_granted(&file);
}

#[test]
fn the_example_is_reported_when_it_changes() {
    let file: Value = serde_saphyr::from_str(include_str!("../kubediff.yaml")).unwrap();
    let map: ConfigMap = serde_saphyr::from_str(include_str!("../examples/settings.yaml")).unwrap();
    let mut host = watching(file["config"].clone(), [map]);
    host.put(settings("red"));
    host.observe().unwrap();
    assert_eq!(lines(&host)[0]["differences"][0]["path"], "data.color");
}
