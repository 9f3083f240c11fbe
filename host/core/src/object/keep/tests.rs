#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::object::tests::{object, written};

fn of() -> TypeMeta {
    TypeMeta::new("apps/v1", "Deployment")
}

fn path(text: &str) -> FieldPath {
    FieldPath::parse(text).unwrap()
}

fn keep(metadata_only: bool, without: &[&str]) -> Keep {
    Keep::new(metadata_only, without.iter().map(|text| path(text))).unwrap()
}

/// What is kept of an object, and its labels.
fn kept(json: &Value, keep: &Keep) -> (Value, Vec<(String, String)>) {
    let object = Object::parse_kept(json.to_string().as_bytes(), &of(), keep).unwrap();
    let labels = object.labels().map(|(name, value)| (name.into(), value.into())).collect();
    (serde_json::from_str(&object.json()).unwrap(), labels)
}

#[test]
fn partial_metadata_becomes_the_real_kind() {
    let metadata = json!({"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1", "labels": {"a": "b"}, "managedFields": []});
    let mut bare = metadata.clone();
    bare.as_object_mut().unwrap().remove("managedFields");
    let expected =
        (json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": bare}), vec![("a".into(), "b".into())]);
    for sent in [
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}),
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1beta1", "metadata": metadata}),
        json!({"metadata": metadata}),
        json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": metadata, "spec": {"metadata": {"labels": {"c": "d"}}}, "status": {}}),
    ] {
        assert_eq!(kept(&sent, &keep(true, &[])), expected, "{sent}");
    }
}

#[test]
fn partial_metadata_that_nobody_asked_for_stays_what_it_is() {
    let sent = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","uid":"u","resourceVersion":"1"}}"#;
    let object = Object::parse_kept(sent, &of(), &Keep::default()).unwrap();
    assert_eq!(object.type_meta(), &TypeMeta::new("meta.k8s.io/v1", "PartialObjectMetadata"));
}

#[test]
fn fields_are_left_out_and_labels_are_found_behind_them() {
    let sent = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "annotations": {"a/b": "long", "c": "d"}, "labels": {"a": "b"}, "name": "a", "resourceVersion": "1", "uid": "u",
        },
        "status": {"images": [{"names": ["x"], "sizeBytes": 1}, {"names": ["y"]}], "phase": "Ready"},
    });
    let mut expected = sent.clone();
    expected["metadata"]["annotations"].as_object_mut().unwrap().remove("a/b");
    expected["status"]["images"] = json!([{"sizeBytes": 1}, {}]);
    let without = keep(false, &[r#"metadata.annotations["a/b"]"#, "status.images[*].names", "spec.nothing"]);
    assert_eq!(kept(&sent, &without), (expected, vec![("a".into(), "b".into())]));
}

#[test]
fn both_kinds_of_cuts_go_together() {
    let sent =
        json!({"metadata": {"annotations": {"a": "b"}, "name": "a", "resourceVersion": "1", "uid": "u"}, "spec": {}});
    let metadata = json!({"annotations": {}, "name": "a", "resourceVersion": "1", "uid": "u"});
    let expected = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata});
    assert_eq!(kept(&sent, &keep(true, &["metadata.annotations.a", "spec.replicas"])), (expected, vec![]));
}

#[test]
fn metadata_only_forgets_what_was_applied() {
    let managed = json!([{"manager": "pilothouse.a", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]);
    let sent =
        json!({"metadata": {"name": "a", "resourceVersion": "1", "uid": "u", "managedFields": managed}}).to_string();
    let applied = |keep: &Keep| {
        let object = Object::parse_kept(sent.as_bytes(), &of(), keep).unwrap();
        object.applied("pilothouse.a", None).map(str::to_owned)
    };
    assert_eq!(applied(&keep(true, &[])), None);
    assert_eq!(applied(&keep(false, &["status"])).as_deref(), Some(r#"{"f:spec":{}}"#));
}

#[test]
fn identity_cannot_be_left_out() {
    let refused = [
        "apiVersion",
        "kind",
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.resourceVersion",
        "metadata.labels",
        "metadata.labels.app",
        "metadata.ownerReferences[*].blockOwnerDeletion",
        "metadata.finalizers",
        "metadata.deletionTimestamp",
        "metadata.generation",
    ];
    let said = refused.map(|text| match Keep::new(false, [path("status"), path(text)]) {
        Err(KeepError::Identity { path, member }) => format!("{path}: {member}"),
        other => panic!("{text}: {other:?}"),
    });
    insta::assert_snapshot!(said.join("\n"), @r"
    apiVersion: apiVersion
    kind: kind
    metadata: metadata.name
    metadata.name: metadata.name
    metadata.namespace: metadata.namespace
    metadata.uid: metadata.uid
    metadata.resourceVersion: metadata.resourceVersion
    metadata.labels: metadata.labels
    metadata.labels.app: metadata.labels
    metadata.ownerReferences[*].blockOwnerDeletion: metadata.ownerReferences
    metadata.finalizers: metadata.finalizers
    metadata.deletionTimestamp: metadata.deletionTimestamp
    metadata.generation: metadata.generation
    ");
    let error = Keep::new(false, [path("metadata.labels.app")]).unwrap_err();
    insta::assert_snapshot!(error, @"cannot leave out metadata.labels.app: metadata.labels identifies the object or decides its fate, and is always kept; name the fields beside it");
}

#[test]
fn number_of_fields_is_bounded() {
    let fields = |count: usize| (0..count).map(|i| path(&format!("spec.f{i}")));
    assert!(Keep::new(false, fields(64)).is_ok());
    let error = Keep::new(false, fields(65)).unwrap_err();
    insta::assert_snapshot!(error, @"cannot leave out 65 fields: at most 64 are allowed; name a field that contains several");
}

#[test]
fn fields_within_others_and_those_left_out_anyway_are_not_named() {
    let names = |keep: &Keep| keep.without().iter().map(ToString::to_string).collect::<Vec<_>>();
    let fields =
        ["status.a", "spec.b", "status", "status.a.b", "spec.b", "metadata.managedFields[*].time", "metadata.selfLink"];
    assert_eq!(names(&keep(false, &fields)), ["metadata.selfLink", "spec.b", "status"]);
    assert_eq!(names(&keep(true, &fields)), ["metadata.selfLink"]);
    assert!(keep(false, &["metadata.managedFields"]).is_whole());
    assert_eq!(keep(false, &["status", "spec"]), keep(false, &["spec", "status", "spec.a"]));
}

#[test]
fn answer_to_a_write_is_cut_like_what_is_held() {
    let text =
        r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"1","labels":{"a":"b"}},"spec":{"a":1},"status":{}}"#;
    let keep = keep(false, &["spec.a"]);
    let answer = Object::parse(text.as_bytes(), &of()).unwrap().kept(&keep);
    assert_eq!(answer, Object::parse_kept(text.as_bytes(), &of(), &keep).unwrap());
    assert_eq!(answer.labels().count(), 1);
}

fn any_keep() -> impl Strategy<Value = Keep> {
    let paths = prop::sample::subsequence(
        vec![
            "spec",
            "spec.a",
            "spec.a.b",
            "status",
            "status[*].x",
            "data",
            "metadata.annotations",
            "metadata.annotations.c",
        ],
        0..6,
    );
    (any::<bool>(), paths).prop_map(|(metadata_only, paths)| keep(metadata_only, &paths))
}

fn sent() -> impl Strategy<Value = Value> {
    let spec = prop_oneof![
        Just(json!({"a": {"b": 1, "c": 2}, "d": 3})),
        Just(json!({"a": 1})),
        Just(json!([])),
        Just(Value::Null)
    ];
    let status = prop_oneof![Just(json!([{"x": 1, "y": 2}, {}, 3])), Just(json!({"x": 1}))];
    let annotations = prop_oneof![Just(json!({"c": "d"})), Just(json!({})), Just(Value::Null)];
    (object(), spec, status, annotations).prop_map(|(mut object, spec, status, annotations)| {
        object["spec"] = spec;
        object["status"] = status;
        object["metadata"]["annotations"] = annotations;
        object
    })
}

proptest! {
    #[test]
    fn kept_text_has_the_same_identity(value in sent(), keep in any_keep(), seed: u64) {
        let text = written(&value, seed);
        let whole = Object::parse(text.as_bytes(), &of()).unwrap();
        let kept = Object::parse_kept(text.as_bytes(), &of(), &keep).unwrap();
        // What is kept can itself be read, and says the same in all that is read of it.
        let again = Object::parse(kept.json().as_bytes(), &of()).unwrap();
        prop_assert_eq!(again.json(), kept.json());
        for read in [&kept, &again] {
            prop_assert_eq!(read.type_meta(), whole.type_meta());
            prop_assert_eq!(read.key(), whole.key());
            prop_assert_eq!(read.uid(), whole.uid());
            prop_assert_eq!(read.resource_version(), whole.resource_version());
            prop_assert_eq!(read.generation(), whole.generation());
            prop_assert_eq!(read.is_deleting(), whole.is_deleting());
            prop_assert!(read.owners().eq(whole.owners()));
            prop_assert_eq!(read.labels().collect::<Vec<_>>(), whole.labels().collect::<Vec<_>>());
        }
        prop_assert_eq!(&whole.kept(&keep), &kept);
        prop_assert_eq!(&kept.kept(&keep), &kept);
        let members: Value = serde_json::from_str(&kept.json()).unwrap();
        if keep.metadata_only() {
            prop_assert_eq!(members.as_object().unwrap().len(), 3);
        }
    }

    #[test]
    fn union_keeps_what_either_keeps(value in sent(), one in any_keep(), other in any_keep()) {
        let both = one.union(&other);
        prop_assert!(both.covers(&one) && both.covers(&other));
        prop_assert_eq!(&both, &other.union(&one));
        let object = Object::parse(value.to_string().as_bytes(), &of()).unwrap();
        // A narrower reader gets the same from it as from the whole.
        let held = object.kept(&both);
        for keep in [&one, &other] {
            let (cut, seen) = (held.kept(keep), object.kept(keep));
            let (cut, seen) = (cut.json().into_owned(), seen.json().into_owned());
            prop_assert_eq!(serde_json::from_str::<Value>(&cut).unwrap(), serde_json::from_str::<Value>(&seen).unwrap());
        }
        // And no more than that: what covers both covers it.
        prop_assert!(Keep::default().covers(&both));
        prop_assert_eq!(one.covers(&other), one.union(&other) == one);
    }
}
