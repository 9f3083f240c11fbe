#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn item() -> impl Strategy<Value = Value> {
    ("[ -~é\"\\\\{}\\[\\]]{0,30}", any::<i32>()).prop_map(|(text, number)| json!({text.clone(): [text, {"n": number}]}))
}

/// Members in the order of `order`, which holds each of 0..members.len() at least once.
fn object(members: &[(&str, String)], order: &[usize]) -> String {
    let mut members: Vec<_> = members.iter().enumerate().collect();
    members.sort_by_key(|(i, _)| order.iter().position(|o| o == i));
    let members: Vec<_> = members.into_iter().map(|(_, (name, value))| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

proptest! {
    #[test]
    fn page_gives_its_items_as_they_are(items in prop::collection::vec(item(), 0..6), order in Just([0, 1, 2, 3]).prop_shuffle()) {
        let texts: Vec<String> = items.iter().map(Value::to_string).collect();
        let metadata = json!({"remainingItemCount": 3, "resourceVersion": "12", "continue": "next"}).to_string();
        let members = [("kind", "\"PodList\"".to_owned()), ("apiVersion", "\"v1\"".to_owned()), ("metadata", metadata), ("items", format!("[{}]", texts.join(" , ")))];
        let body = object(&members, &order);
        let (meta, raw) = list_page(body.as_bytes()).unwrap();
        prop_assert_eq!(meta, ListMeta { resource_version: Some("12".into()), continue_token: Some("next".into()) });
        prop_assert_eq!(raw, texts.iter().map(String::as_bytes).collect::<Vec<_>>());
    }

    #[test]
    fn line_gives_its_object_as_it_is(item in item(), order in Just([0, 1]).prop_shuffle(), kind in 0_usize..3, newline: bool) {
        let text = item.to_string();
        let (name, event) = [("ADDED", WatchLine::Added as fn(_) -> _), ("MODIFIED", WatchLine::Modified), ("DELETED", WatchLine::Deleted)][kind];
        let mut line = object(&[("type", format!("\"{name}\"")), ("object", text.clone())], &order);
        if newline {
            line.push('\n');
        }
        prop_assert_eq!(watch_line(line.as_bytes()).unwrap(), event(text.as_bytes()));
    }

    #[test]
    fn hostile_bytes_are_errors(
        text in prop_oneof!["[{}\\[\\]\",:a-z0-9\\\\ ]{0,60}", Just(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#.to_owned())],
        at: prop::sample::Index,
        byte: u8,
    ) {
        let mut bytes = text.into_bytes();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for error in [list_page(&bytes).err(), watch_line(&bytes).err(), Status::parse(&bytes).err()].into_iter().flatten() {
            prop_assert!(error.at <= bytes.len(), "{error}");
        }
    }
}

#[test]
fn page_may_have_null_for_items_and_no_more_pages() {
    let (meta, items) = list_page(br#"{"items":null,"metadata":{"resourceVersion":"7","continue":""}}"#).unwrap();
    assert_eq!(meta, ListMeta { resource_version: Some("7".into()), continue_token: None });
    assert!(items.is_empty());
}

#[test]
fn body_that_is_no_list_is_refused() {
    let error = |body: &str| list_page(body.as_bytes()).unwrap_err().to_string();
    assert_eq!(error(r#"{"kind":"Status","metadata":{}}"#), "list page has no items at byte 30");
    assert_eq!(error(r#"{"items":[]}"#), "list page has no metadata at byte 11");
    assert_eq!(error(r#"{"items":[{},]}"#), "expected a value at byte 13");
    assert_eq!(error(r#"{"items":[],"metadata":{},"items":[]}"#), "items appears twice in its object at byte 26");
    assert_eq!(error(r#"{"metadata":{},"items":[],"metadata":{}}"#), "metadata appears twice in its object at byte 26");
    assert_eq!(error(r#"{"items":[{"a":"#), "text ends too early at byte 15");
}

#[test]
fn bookmark_says_where_it_is_and_if_initial_events_are_over() {
    let line = br#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12","creationTimestamp":null,"annotations":{"k8s.io/initial-events-end":"true"}},"spec":{}}}"#;
    let end = WatchLine::Bookmark { resource_version: "12".into(), initial_events_end: true };
    assert_eq!(watch_line(line).unwrap(), end);
    let line = br#"{"object":{"metadata":{"resourceVersion":"13"}},"type":"BOOKMARK"}"#;
    let plain = WatchLine::Bookmark { resource_version: "13".into(), initial_events_end: false };
    assert_eq!(watch_line(line).unwrap(), plain);
    // As a watch has it that asked for metadata only.
    let line = br#"{"type":"BOOKMARK","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"12","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    assert_eq!(watch_line(line).unwrap(), end);
    let error = watch_line(br#"{"type":"BOOKMARK","object":{"metadata":{}}}"#).unwrap_err();
    assert_eq!(error.to_string(), "bookmark has no metadata.resourceVersion at byte 28");
}

#[test]
fn error_line_carries_its_status() {
    let line = br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (2)","reason":"Expired","code":410}}"#;
    let status = Status {
        code: 410,
        reason: "Expired".into(),
        message: "too old resource version: 1 (2)".into(),
        retry_after: None,
    };
    assert_eq!(watch_line(line).unwrap(), WatchLine::Error(status));
}

#[test]
fn unknown_members_are_passed_over_and_unknown_types_refused() {
    let line = br#"{"extra":[1,{"type":"x"}],"type":"ADDED","object":{"a":1}}"#;
    assert_eq!(watch_line(line).unwrap(), WatchLine::Added(br#"{"a":1}"#));
    let error = watch_line(br#"{"type":"MOVED","object":{}}"#).unwrap_err();
    assert_eq!(error.to_string(), "unknown type of watch event \"MOVED\" at byte 0");
    assert_eq!(watch_line(br#"{"type":"ADDED"}"#).unwrap_err().to_string(), "watch event has no object at byte 15");
}

#[test]
fn member_after_the_object_fails_when_the_object_is_read() {
    use crate::{key::TypeMeta, object::Object};
    let line = br#"{"type":"ADDED","object":{"metadata":{"name":"a","uid":"u","resourceVersion":"1"}},"more":{}}"#;
    let WatchLine::Added(object) = watch_line(line).unwrap() else { panic!("not an object") };
    let error = Object::parse(object, &TypeMeta::new("v1", "Pod")).unwrap_err();
    assert_eq!(error.what, "text goes on after its value");
}

#[test]
fn status_says_when_to_come_again() {
    let body = br#"{"kind":"Status","reason":"TooManyRequests","message":"slow down","details":{"name":"x","retryAfterSeconds":3},"code":429}"#;
    let status = Status {
        code: 429,
        reason: "TooManyRequests".into(),
        message: "slow down".into(),
        retry_after: Some(Duration::from_secs(3)),
    };
    assert_eq!(Status::parse(body).unwrap(), status);
}
