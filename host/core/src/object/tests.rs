#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

/// Writes a value as another program might: members in any order, white space between tokens, any character of a string
/// as an escape. What is chosen comes out of `choice`.
fn write(value: &Value, choice: &mut impl FnMut(usize) -> usize, out: &mut String) {
    let space = ["", "", "", " ", "\n", "\t "][choice(6)];
    out.push_str(space);
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            for i in (1..members.len()).rev() {
                members.swap(i, choice(i + 1));
            }
            out.push('{');
            for (i, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                write(&name.as_str().into(), choice, out);
                out.push(':');
                write(value, choice, out);
            }
            out.push('}');
        }
        Value::Array(elements) => {
            out.push('[');
            for (i, element) in elements.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                write(element, choice, out);
            }
            out.push(']');
        }
        Value::String(text) => {
            out.push('"');
            for char in text.chars() {
                if choice(16) == 0 {
                    let mut units = [0; 2];
                    for unit in char.encode_utf16(&mut units) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                } else {
                    let quoted = Value::from(char.to_string()).to_string();
                    out.push_str(&quoted[1..quoted.len() - 1]);
                }
            }
            out.push('"');
        }
        other => out.push_str(&other.to_string()),
    }
    out.push_str(space);
}

pub(super) fn written(value: &Value, seed: u64) -> String {
    let mut state = seed | 1;
    let mut out = String::new();
    let mut choice = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    write(value, &mut choice, &mut out);
    out
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]([a-z0-9.-]{0,20}[a-z0-9])?", "[ -~é😀\"\\\\]{1,12}"]
}

fn uid() -> impl Strategy<Value = String> {
    prop_oneof!["[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", word()]
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~é😀\"\\\\\\n]{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z:/.]{1,8}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

prop_compose! {
    fn owner()(api_version in word(), kind in word(), name in word(), uid in uid(), controller in prop::option::of(any::<bool>()))
        -> Value {
        let mut owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": true});
        if let Some(controller) = controller {
            owner["controller"] = controller.into();
        }
        owner
    }
}

prop_compose! {
    fn managed()(
        manager in prop::sample::select(vec!["kubectl", "pilothouse.a", "pilothouse.b", "pilothouse"]),
        operation in prop::sample::select(vec!["Apply", "Update"]),
        subresource in prop::option::of(prop::sample::select(vec!["status", "scale", "ephemeralcontainers", ""])),
        fields in anything(),
    ) -> Value {
        let mut entry = json!({"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields});
        if let Some(subresource) = subresource {
            entry["subresource"] = subresource.into();
        }
        entry
    }
}

prop_compose! {
    pub(super) fn object()(
        types in prop::option::of((word(), word())),
        name in word(),
        namespace in prop::option::of(word()),
        uid in uid(),
        version in any::<u64>(),
        generation in prop::option::of(any::<i64>()),
        deleting in prop::option::of(prop_oneof![Just(Value::Null), Just(json!("2026-01-01T00:00:00Z"))]),
        labels in prop::option::of(prop::collection::btree_map(word(), "[ -~]{0,12}", 0..5)),
        owners in prop::option::of(prop::collection::vec(owner(), 0..3)),
        managed in prop::option::of(prop::collection::vec(managed(), 0..4)),
        rest in prop::collection::btree_map("x[a-z]{1,6}", anything(), 0..4),
        more in prop::collection::btree_map("x[a-z]{1,6}", anything(), 0..3),
    ) -> Value {
        let mut metadata: Map<String, Value> = more.into_iter().collect();
        metadata.insert("name".into(), name.into());
        metadata.insert("uid".into(), uid.into());
        metadata.insert("resourceVersion".into(), version.to_string().into());
        let optional = [
            ("namespace", namespace.map(Value::from)),
            ("generation", generation.map(Value::from)),
            ("deletionTimestamp", deleting),
            ("labels", labels.map(|labels| json!(labels))),
            ("ownerReferences", owners.map(Value::from)),
            ("managedFields", managed.map(Value::from)),
        ];
        metadata.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        let mut object: Map<String, Value> = rest.into_iter().collect();
        object.insert("metadata".into(), metadata.into());
        if let Some((api_version, kind)) = types {
            object.insert("apiVersion".into(), api_version.into());
            object.insert("kind".into(), kind.into());
        }
        object.into()
    }
}

fn default() -> TypeMeta {
    TypeMeta::new("apps/v1", "Thing \"quoted\"")
}

/// Everything that is read of an object is what `serde_json` reads of it.
fn agrees(object: &Object, whole: &Value) {
    let mut expected = whole.clone();
    let root = expected.as_object_mut().unwrap();
    root.entry("apiVersion").or_insert_with(|| json!("apps/v1"));
    root.entry("kind").or_insert_with(|| json!("Thing \"quoted\""));
    let managed = root["metadata"].as_object_mut().unwrap().remove("managedFields").unwrap_or_default();
    let json: Value = serde_json::from_str(&object.json()).unwrap();
    assert_eq!(json, expected, "text");

    let metadata = &expected["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    assert_eq!(object.type_meta(), &TypeMeta::new(&text(&expected["apiVersion"]), &text(&expected["kind"])));
    assert_eq!(object.key(), &Key::new(metadata["namespace"].as_str(), &text(&metadata["name"])));
    assert_eq!(object.uid().to_string(), text(&metadata["uid"]));
    assert_eq!(object.resource_version().to_string(), text(&metadata["resourceVersion"]));
    assert_eq!(object.generation(), metadata["generation"].as_i64().filter(|generation| *generation != 0));
    assert_eq!(object.is_deleting(), metadata["deletionTimestamp"].is_string());
    let labels: BTreeMap<_, _> = object.labels().collect();
    assert_eq!(json!(labels), metadata.get("labels").filter(|labels| !labels.is_null()).cloned().unwrap_or(json!({})));
    assert_eq!(object.labels().count(), labels.len(), "each label once");
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten().map(|owner| OwnerRef {
        api_version: text(&owner["apiVersion"]).into(),
        kind: text(&owner["kind"]).into(),
        name: text(&owner["name"]).into(),
        uid: Uid::parse(&text(&owner["uid"])),
        controller: owner["controller"] == true,
    });
    assert_eq!(object.owners().collect::<Vec<_>>(), owners.collect::<Vec<_>>());

    for manager in ["kubectl", "pilothouse", "pilothouse.a", "pilothouse.b"] {
        for subresource in [None, Some(Subresource::Status), Some(Subresource::Scale)] {
            let name = subresource.map_or("", Subresource::as_str);
            let entry = managed.as_array().into_iter().flatten().find(|entry| {
                entry["manager"] == manager
                    && manager.starts_with("pilothouse.")
                    && entry["operation"] == "Apply"
                    && entry["subresource"].as_str().unwrap_or_default() == name
                    && entry.get("fieldsV1").is_some()
            });
            let fields = object.applied(manager, subresource).map(|fields| serde_json::from_str(fields).unwrap());
            assert_eq!(fields.as_ref(), entry.map(|entry| &entry["fieldsV1"]), "{manager} {name}");
        }
    }
}

proptest! {
    #[test]
    fn scan_reads_what_serde_json_reads(value in object(), seed: u64) {
        let text = written(&value, seed);
        let object = Object::parse(text.as_bytes(), &default()).unwrap();
        agrees(&object, &value);
    }

    #[test]
    fn cut_leaves_the_rest_byte_for_byte(value in object(), seed: u64) {
        let mut with = value.clone();
        with["metadata"].as_object_mut().unwrap().remove("managedFields");
        // Without managedFields there is nothing to cut; with apiVersion and kind there is nothing to insert.
        with["apiVersion"] = "v1".into();
        with["kind"] = "Pod".into();
        let text = written(&with, seed);
        let object = Object::parse(text.as_bytes(), &default()).unwrap();
        prop_assert_eq!(object.json(), text.trim());
    }

    #[test]
    fn damaged_text_is_an_error_or_reads_as_serde_json_reads_it(
        value in object(),
        seed: u64,
        at: prop::sample::Index,
        length in 0_usize..12,
        with in prop_oneof![Just(vec![]), prop::collection::vec(any::<u8>(), 1..3), "[\\[\\]{}\",:\\\\0-9a-z ]{1,4}".prop_map(String::into_bytes)],
    ) {
        let mut bytes = written(&value, seed).into_bytes();
        let start = at.index(bytes.len());
        let end = (start + length).min(bytes.len());
        bytes.splice(start..end, with);
        match (Object::parse(&bytes, &default()), serde_json::from_slice::<Value>(&bytes)) {
            (Ok(object), Ok(value)) => agrees(&object, &value),
            (Ok(object), Err(error)) => panic!("accepted {}: {error}", object.json()),
            (Err(error), _) => prop_assert!(error.at <= bytes.len(), "{error}"),
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Object::parse(&bytes, &default()).is_err());
    }

    #[test]
    fn uid_gives_its_text_back(text in uid()) {
        let uid = Uid::parse(&text);
        let is_uuid = text.len() == 36 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-'));
        prop_assert_eq!(matches!(uid, Uid::Uuid(_)), is_uuid);
        prop_assert_eq!(uid.to_string(), text);
    }

    #[test]
    fn resource_version_is_plain_digits_or_nothing(text in "[+-]?[0-9]{0,22}[a-z ]?") {
        match ResourceVersion::parse(&text) {
            Some(version) => prop_assert_eq!(version.to_string(), text),
            None => prop_assert!(text.parse::<u64>().map_or(true, |number| number.to_string() != text)),
        }
    }
}

fn parse(json: &str) -> Result<Object, ParseError> {
    Object::parse(json.as_bytes(), &TypeMeta::new("v1", "Pod"))
}

#[test]
fn managed_fields_leave_no_comma_behind() {
    let ids = r#""name":"a","uid":"u","resourceVersion":"1""#;
    for (metadata, expected) in [
        (format!(r#"{{"managedFields":[],{ids}}}"#), format!("{{{ids}}}")),
        (format!(r#"{{{ids},"managedFields":[{{"a":"]}}\\\""}}]}}"#), format!("{{{ids}}}")),
        (format!(r#"{{ {ids} , "managedFields" : [ ] }}"#), format!("{{ {ids} }}")),
        (format!(r#"{{{ids},"managedFields":null,"x":1}}"#), format!(r#"{{{ids},"x":1}}"#)),
    ] {
        let json = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata},"spec":{{"managedFields":1}}}}"#);
        let expected = json.replace(&metadata, &expected);
        assert_eq!(parse(&json).unwrap().json(), expected);
    }
}

#[test]
fn labels_are_found_on_either_side_of_the_cut() {
    for metadata in [
        r#"{"labels":{"a":"b"},"managedFields":[{}],"name":"a","uid":"u","resourceVersion":"1"}"#,
        r#"{"managedFields":[{}],"labels":{"a":"b"},"name":"a","uid":"u","resourceVersion":"1"}"#,
        r#"{"name":"a","managedFields":[{}],"uid":"u","resourceVersion":"1","labels":{"a":"b"}}"#,
    ] {
        let object = parse(&format!(r#" {{"spec":{{}},"metadata":{metadata}}}"#)).unwrap();
        assert_eq!(object.labels_json(), r#"{"a":"b"}"#);
        assert_eq!(object.labels().collect::<Vec<_>>(), [("a".into(), "b".into())]);
    }
}

#[test]
fn missing_half_of_the_type_is_inserted() {
    let metadata = r#""metadata":{"name":"a","uid":"u","resourceVersion":"1"}"#;
    let object = parse(&format!(r#"{{"kind":"Node",{metadata}}}"#)).unwrap();
    assert_eq!(object.json(), format!(r#"{{"apiVersion":"v1","kind":"Node",{metadata}}}"#));
    assert_eq!(object.type_meta(), &TypeMeta::new("v1", "Node"));
}

#[test]
fn errors_say_what_and_where() {
    let cases = [
        r#"[]"#,
        r#"{}"#,
        r#"{"metadata":{}}"#,
        r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"x1"}}"#,
        r#"{"metadata":{"name":"a","uid":"u","resourceVersion":7}}"#,
        r#"{"metadata":{"name":"a","name":"b"}}"#,
        r#"{"metadata":{"name":"a","n\u0061me":"b"}}"#,
        r#"{"metadata":{"labels":{"b":"1","a":"2","b":"3"}}}"#,
        r#"{"metadata":{"labels":{"b":1}}}"#,
        r#"{"metadata":{"ownerReferences":[{"name":"a"}]}}"#,
        r#"{"metadata":{"generation":1.5}}"#,
        r#"{"metadata":{"name":""}}"#,
        r#"{"kind":null}"#,
        r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"1"}} {}"#,
        r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"1"},"spec":{"a":[1,}}"#,
    ];
    let errors = cases.map(|json| format!("{json}\n    {}", parse(json).unwrap_err())).join("\n");
    insta::assert_snapshot!(errors, @r#"
    []
        text is not an object at byte 0
    {}
        metadata is missing at byte 1
    {"metadata":{}}
        metadata.name is missing at byte 13
    {"metadata":{"name":"a","uid":"u","resourceVersion":"x1"}}
        metadata.resourceVersion "x1" is not a decimal number at byte 52
    {"metadata":{"name":"a","uid":"u","resourceVersion":7}}
        metadata.resourceVersion is not a string at byte 52
    {"metadata":{"name":"a","name":"b"}}
        name appears twice in its object at byte 24
    {"metadata":{"name":"a","n\u0061me":"b"}}
        name appears twice in its object at byte 24
    {"metadata":{"labels":{"b":"1","a":"2","b":"3"}}}
        label b appears twice at byte 39
    {"metadata":{"labels":{"b":1}}}
        a label is not a string at byte 27
    {"metadata":{"ownerReferences":[{"name":"a"}]}}
        an owner reference lacks apiVersion, kind, name or uid at byte 32
    {"metadata":{"generation":1.5}}
        metadata.generation is not an integer at byte 26
    {"metadata":{"name":""}}
        metadata.name is empty at byte 20
    {"kind":null}
        kind is empty at byte 8
    {"metadata":{"name":"a","uid":"u","resourceVersion":"1"}} {}
        text goes on after its value at byte 58
    {"metadata":{"name":"a","uid":"u","resourceVersion":"1"},"spec":{"a":[1,}}
        expected a value at byte 72
    "#);
}

#[test]
fn bytes_are_what_is_held() {
    let ids = r#""apiVersion":"v1","kind":"Pod","metadata":{"name":"abc","uid":"u","resourceVersion":"1""#;
    let bare = parse(&format!("{{{ids}}}}}")).unwrap();
    let arc = 2 * size_of::<usize>();
    assert_eq!(bare.bytes(), arc + size_of::<Object>() + bare.json().len() + arc + "abc".len() + "u".len());
    let longer = parse(&format!("{{{ids}}},\"data\":\"0123456789\"}}")).unwrap();
    assert_eq!(longer.bytes() - bare.bytes(), longer.json().len() - bare.json().len());
}

#[test]
fn entry_stays_small() {
    // Beside some 4 kB of JSON. Names, owners and a B-tree's share come to it.
    assert!(size_of::<Object>() <= 184, "{}", size_of::<Object>());
}

fn applied(metadata: &str, rest: &str, fields: &str) -> Object {
    let managed = format!(
        r#"[{{"manager":"pilothouse.a","operation":"Apply","fieldsType":"FieldsV1","fieldsV1":{fields}}},
            {{"manager":"pilothouse.a","operation":"Apply","subresource":"status","fieldsType":"FieldsV1","fieldsV1":{{}}}}]"#
    );
    let text = format!(r#"{{"metadata":{{"name":"a","uid":"u",{metadata},"managedFields":{managed}}}{rest}}}"#);
    parse(&text).unwrap()
}

#[test]
fn a_settled_object_stays_settled_until_more_than_its_status_differs() {
    let hash = std::hash::RandomState::new();
    let fields = r#"{"f:spec":{}}"#;
    let first = applied(r#""resourceVersion":"1""#, r#","spec":{"a":1},"status":{"b":1}"#, fields);
    assert!(!first.is_settled(7, &hash));
    first.settle(7, &hash);
    assert!(first.is_settled(7, &hash) && !first.is_settled(8, &hash) && first.clone().is_settled(7, &hash));
    assert_eq!(first, applied(r#""resourceVersion":"1""#, r#","spec":{"a":1},"status":{"b":1}"#, fields));

    let is_settled = |mut next: Object| {
        next.share_with(&first);
        let settled = next.is_settled(7, &hash);
        // It is known now, and the next version has it from this one.
        assert_eq!(next.is_settled(7, &hash), settled);
        settled
    };
    let version = r#""resourceVersion":"2""#;
    assert!(is_settled(applied(version, r#","spec":{"a":1},"status":{"b":2}"#, fields)));
    assert!(is_settled(applied(version, r#","spec":{"a":1}"#, fields)));
    assert!(!is_settled(applied(version, r#","spec":{"a":2},"status":{"b":1}"#, fields)));
    assert!(!is_settled(applied(version, r#","spec":{"a":1},"data":{},"status":{"b":1}"#, fields)));
    assert!(!is_settled(applied(version, r#","spec":{"a":1},"status":{"b":1}"#, r#"{"f:data":{}}"#)));
    let annotated = r#""resourceVersion":"2","annotations":{"c":"d"}"#;
    assert!(!is_settled(applied(annotated, r#","spec":{"a":1},"status":{"b":1}"#, fields)));
    // The same version again may mean something else, after a restore.
    assert!(!is_settled(applied(r#""resourceVersion":"1""#, r#","spec":{"a":2}"#, fields)));
    let bare = parse(&format!(r#"{{"metadata":{{"name":"a","uid":"u",{version}}},"spec":{{"a":1}}}}"#)).unwrap();
    assert!(!is_settled(bare));

    let mut next = applied(version, r#","spec":{"a":1}"#, fields);
    next.share_with(&first);
    next.settle(8, &hash);
    assert!(next.is_settled(8, &hash) && !next.is_settled(7, &hash) && first.is_settled(7, &hash));
}

#[test]
fn a_settled_status_stays_so_until_it_differs() {
    let hash = std::hash::RandomState::new();
    let fields = r#"{"f:spec":{}}"#;
    let first = applied(r#""resourceVersion":"1""#, r#","spec":{"a":1},"status":{"b":1}"#, fields);
    first.settle(6, &hash);
    let counted = first.bytes();
    first.settle_status(7, &hash);
    assert_eq!(first.bytes(), counted, "a store subtracts what it has added");
    assert!(first.is_status_settled(7, &hash) && !first.is_status_settled(6, &hash) && first.is_settled(6, &hash));
    let is_settled = |rest: &str| {
        let mut next = applied(r#""resourceVersion":"2""#, rest, fields);
        next.share_with(&first);
        next.is_status_settled(7, &hash)
    };
    assert!(is_settled(r#","spec":{"a":2},"status":{"b":1}"#));
    assert!(!is_settled(r#","spec":{"a":1},"status":{"b":2}"#));
    assert!(!is_settled(r#","spec":{"a":1}"#));
}

#[test]
fn the_list_of_subresources_has_each_subresource_once() {
    // A new subresource does not compile here.
    let place = |subresource: Subresource| match subresource {
        Subresource::Status => 0,
        Subresource::Scale => 1,
        Subresource::Eviction => 2,
        Subresource::Log => 3,
        Subresource::Approval => 4,
        Subresource::EphemeralContainers => 5,
        Subresource::Resize => 6,
    };
    assert!(Subresource::ALL.into_iter().map(place).eq(0..7));
    assert!(Subresource::ALL.into_iter().all(|one| Subresource::of_name(one.as_str()) == Some(one)));
}
