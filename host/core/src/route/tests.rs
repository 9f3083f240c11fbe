#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{collections::BTreeSet, sync::Arc};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn no_index(index: &str, value: &str, _: Option<&str>) -> Vec<Key> {
    panic!("index {index} is asked for {value}")
}

fn owned(namespace: Option<&str>, owners: &Value) -> Option<Arc<Object>> {
    let json = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "child", "namespace": namespace.unwrap_or(""), "uid": "u", "resourceVersion": "1", "ownerReferences": owners},
    });
    Some(Arc::new(Object::parse(json.to_string().as_bytes(), &TypeMeta::new("v1", "ConfigMap")).unwrap()))
}

fn reference(api_version: &str, kind: &str, name: &str, controller: bool) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": controller})
}

fn by(name: &str) -> Value {
    json!([reference("stable.example.com/v1", "MyApple", name, true)])
}

/// The keys of MyApples that the change concerns, as text.
fn routed(namespaced: bool, old: Option<Arc<Object>>, new: Option<Arc<Object>>) -> Vec<String> {
    let mapping = Mapping::Owner { of: TypeMeta::new("stable.example.com/v1", "MyApple"), namespaced };
    let mut out = Vec::new();
    keys(&mapping, &Change { old, new, missed: false }, no_index, &mut out);
    out.iter().map(Key::to_string).collect()
}

#[test]
fn an_object_of_the_own_kind_leads_to_its_key_before_and_after_its_life() {
    for (old, new) in [(None, owned(Some("ns"), &by("a"))), (owned(Some("ns"), &by("a")), owned(Some("ns"), &by("b")))]
    {
        let mut out = Vec::new();
        keys(&Mapping::SelfKey, &Change { old: old.clone(), new: new.clone(), missed: false }, no_index, &mut out);
        keys(&Mapping::SelfKey, &Change { old: new, new: None, missed: false }, no_index, &mut out);
        assert_eq!(out, [Key::new(Some("ns"), "child"), Key::new(Some("ns"), "child")]);
    }
}

#[test]
fn invariant_5_a_deleted_child_leads_to_its_owner() {
    assert_eq!(routed(true, owned(Some("ns"), &by("a")), None), ["ns/a"]);
}

#[test]
fn a_child_leads_to_its_owner_once() {
    assert_eq!(routed(true, None, owned(Some("ns"), &by("a"))), ["ns/a"]);
    assert_eq!(routed(true, owned(Some("ns"), &by("a")), owned(Some("ns"), &by("a"))), ["ns/a"]);
}

#[test]
fn a_child_that_changes_hands_leads_to_both_owners() {
    assert_eq!(routed(true, owned(Some("ns"), &by("a")), owned(Some("ns"), &by("b"))), ["ns/a", "ns/b"]);
    assert_eq!(routed(true, owned(Some("ns"), &by("a")), owned(Some("ns"), &json!([]))), ["ns/a"]);
    assert_eq!(routed(true, owned(Some("ns"), &json!([])), owned(Some("ns"), &by("b"))), ["ns/b"]);
}

#[test]
fn only_the_controlling_owner_counts() {
    let owners = json!([
        reference("stable.example.com/v1", "MyApple", "guest", false),
        reference("stable.example.com/v1", "MyApple", "host", true),
    ]);
    assert_eq!(routed(true, None, owned(Some("ns"), &owners)), ["ns/host"]);
    let guest = json!([reference("stable.example.com/v1", "MyApple", "guest", false)]);
    assert_eq!(routed(true, None, owned(Some("ns"), &guest)), [""; 0]);
}

#[test]
fn group_and_kind_have_to_agree_and_the_version_does_not() {
    let routed =
        |api_version, kind| routed(true, None, owned(Some("ns"), &json!([reference(api_version, kind, "a", true)])));
    assert_eq!(routed("stable.example.com/v1beta1", "MyApple"), ["ns/a"]);
    assert_eq!(routed("other.example.com/v1", "MyApple"), [""; 0]);
    assert_eq!(routed("v1", "MyApple"), [""; 0]);
    assert_eq!(routed("stable.example.com/v1", "MyPear"), [""; 0]);
}

#[test]
fn the_owner_of_the_core_group_is_found() {
    let mapping = Mapping::Owner { of: TypeMeta::new("v1", "Node"), namespaced: false };
    let mut out = Vec::new();
    let new = owned(Some("ns"), &json!([reference("v1", "Node", "n1", true)]));
    keys(&mapping, &Change { old: None, new, missed: false }, no_index, &mut out);
    assert_eq!(out, [Key::new(None, "n1")]);
}

#[test]
fn scope_decides_the_owners_namespace() {
    assert_eq!(routed(false, None, owned(Some("ns"), &by("a"))), ["a"]);
    assert_eq!(routed(false, None, owned(None, &by("a"))), ["a"]);
    assert_eq!(routed(true, None, owned(None, &by("a"))), [""; 0]);
}

fn apples() -> TypeMeta {
    TypeMeta::new("stable.example.com/v1", "MyApple")
}

fn mapped(mapping: &Mapping, old: Option<Arc<Object>>, new: Option<Arc<Object>>) -> Vec<String> {
    let mut out = Vec::new();
    keys(mapping, &Change { old, new, missed: false }, no_index, &mut out);
    out.iter().map(Key::to_string).collect()
}

fn labelled(namespace: Option<&str>, labels: &Value) -> Option<Arc<Object>> {
    let json = json!({"metadata": {"name": "child", "namespace": namespace, "uid": "u", "resourceVersion": "1", "labels": labels}});
    Some(Arc::new(Object::parse(json.to_string().as_bytes(), &TypeMeta::new("v1", "ConfigMap")).unwrap()))
}

#[test]
fn any_owner_of_the_kind_counts_once() {
    let owners = json!([
        reference("stable.example.com/v1", "MyApple", "a", false),
        reference("stable.example.com/v1", "MyPear", "p", false),
        reference("stable.example.com/v1beta1", "MyApple", "b", true),
        reference("stable.example.com/v1", "MyApple", "a", false),
    ]);
    let mapping = Mapping::AnyOwner { of: apples(), namespaced: true };
    assert_eq!(mapped(&mapping, None, owned(Some("ns"), &owners)), ["ns/a", "ns/b"]);
    assert_eq!(mapped(&mapping, owned(Some("ns"), &owners), owned(Some("ns"), &by("c"))), ["ns/a", "ns/b", "ns/c"]);
    assert_eq!(mapped(&mapping, owned(None, &owners), None), [""; 0]);
}

#[test]
fn the_same_key_is_where_the_controllers_kind_lives() {
    let (inside, outside) = (labelled(Some("ns"), &json!({})), labelled(None, &json!({})));
    let same = |namespaced, object: &Option<Arc<Object>>| {
        mapped(&Mapping::SameKey { namespaced }, object.clone(), object.clone())
    };
    assert_eq!(same(true, &inside), ["ns/child"]);
    assert_eq!(same(false, &inside), ["child"]);
    assert_eq!(same(false, &outside), ["child"]);
    assert_eq!(same(true, &outside), [""; 0]);
}

#[test]
fn a_label_names_a_key_before_and_after() {
    let label = |namespaced| Mapping::Label { label: "example.com/apple".to_owned(), namespaced };
    let apple = |name: &str| labelled(Some("ns"), &json!({"example.com/apple": name, "other": "x"}));
    assert_eq!(mapped(&label(true), apple("a"), apple("a")), ["ns/a"]);
    assert_eq!(mapped(&label(true), apple("a"), apple("b")), ["ns/a", "ns/b"]);
    assert_eq!(mapped(&label(true), apple("a"), labelled(Some("ns"), &json!({}))), ["ns/a"]);
    assert_eq!(mapped(&label(false), None, apple("a")), ["a"]);
    assert_eq!(mapped(&label(true), None, apple("")), [""; 0]);
    assert_eq!(mapped(&label(true), None, labelled(None, &json!({"example.com/apple": "a"}))), [""; 0]);
}

#[test]
fn an_index_is_asked_for_the_objects_name_where_both_live() {
    let asked = |namespaced, namespace| {
        let change = Change { old: None, new: labelled(namespace, &json!({})), missed: false };
        let (mut asked, mut out) = (String::new(), vec![Key::new(None, "before")]);
        let mapping = Mapping::Index { index: "by-map".to_owned(), namespaced };
        let look_up = |index: &str, value: &str, namespace: Option<&str>| {
            asked = format!("{index} {value} {namespace:?}");
            vec![Key::new(namespace, "a"), Key::new(namespace, "a"), Key::new(None, "before")]
        };
        keys(&mapping, &change, look_up, &mut out);
        (asked, out.iter().map(Key::to_string).collect::<Vec<_>>().join(" "))
    };
    let answer = |asked: &str, out: &str| (asked.to_owned(), out.to_owned());
    assert_eq!(asked(true, Some("ns")), answer("by-map child Some(\"ns\")", "before ns/a before"));
    assert_eq!(asked(true, None), answer("by-map child None", "before a before"));
    assert_eq!(asked(false, Some("ns")), answer("by-map child None", "before a before"));
}

#[test]
fn a_manifests_mapping_becomes_an_exact_one() {
    use crate::manifest::Mapping as Declared;
    let new = |declared: &Declared| Mapping::new(declared, &apples(), true);
    let label = || "example.com/apple".to_owned();
    assert_eq!(new(&Declared::Owner), Some(Mapping::Owner { of: apples(), namespaced: true }));
    assert_eq!(new(&Declared::AnyOwner), Some(Mapping::AnyOwner { of: apples(), namespaced: true }));
    assert_eq!(new(&Declared::SameKey), Some(Mapping::SameKey { namespaced: true }));
    assert_eq!(new(&Declared::Label(label())), Some(Mapping::Label { label: label(), namespaced: true }));
    assert_eq!(new(&Declared::Index(label())), Some(Mapping::Index { index: label(), namespaced: true }));
    assert_eq!(new(&Declared::Plugin), None);
}

/// Whom one side of a change names, said the plain way.
fn names(mapping: &Mapping, object: &Value) -> BTreeSet<String> {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    let at = |namespaced: bool, name: &str| match (namespaced, namespace) {
        (true, Some(namespace)) => Some(format!("{namespace}/{name}")),
        (true, None) => None,
        (false, _) => Some(name.to_owned()),
    };
    let owners = |namespaced, only_controller: bool| {
        let owners = metadata["ownerReferences"].as_array().unwrap().iter();
        let owners =
            owners.filter(|owner| owner["kind"] == "MyApple" && (!only_controller || owner["controller"] == true));
        // The first controller is the one: the API server allows no second.
        let most = if only_controller { 1 } else { usize::MAX };
        owners.take(most).filter_map(|owner| at(namespaced, owner["name"].as_str().unwrap())).collect()
    };
    match mapping {
        Mapping::Owner { namespaced, .. } => owners(*namespaced, true),
        Mapping::AnyOwner { namespaced, .. } => owners(*namespaced, false),
        Mapping::SameKey { namespaced } => at(*namespaced, metadata["name"].as_str().unwrap()).into_iter().collect(),
        Mapping::Label { label, namespaced } => {
            metadata["labels"][label].as_str().and_then(|name| at(*namespaced, name)).into_iter().collect()
        }
        Mapping::SelfKey | Mapping::Index { .. } => unreachable!("not among those that are tried"),
    }
}

fn children(namespace: Option<&'static str>) -> impl Strategy<Value = Option<Value>> {
    let reference = (prop::sample::select(vec!["MyApple", "MyPear"]), "[ab]", any::<bool>())
        .prop_map(|(kind, name, controller)| reference("stable.example.com/v1", kind, &name, controller));
    let owners = prop::collection::vec(reference, 0..3)
        .prop_filter("one controller", |owners| owners.iter().filter(|owner| owner["controller"] == true).count() <= 1);
    let child = (owners, prop::option::of("[ab]")).prop_map(move |(owners, label)| {
        let labels = label.map_or(json!({}), |label| json!({"apple": label}));
        json!({"metadata": {
            "name": "child", "namespace": namespace.unwrap_or(""), "uid": "u", "resourceVersion": "1", "ownerReferences": owners, "labels": labels,
        }})
    });
    prop::option::weighted(0.8, child)
}

proptest! {
    #[test]
    fn whoever_is_named_before_or_after_is_woken_and_nobody_else(
        (old, new) in prop::sample::select(vec![None, Some("ns")]).prop_flat_map(|namespace| (children(namespace), children(namespace))),
        namespaced in any::<bool>(),
    ) {
        prop_assume!(old.is_some() || new.is_some());
        let object = |json: &Option<Value>| {
            json.as_ref().map(|json| Arc::new(Object::parse(json.to_string().as_bytes(), &TypeMeta::new("v1", "ConfigMap")).unwrap()))
        };
        let mappings = [
            Mapping::Owner { of: apples(), namespaced },
            Mapping::AnyOwner { of: apples(), namespaced },
            Mapping::SameKey { namespaced },
            Mapping::Label { label: "apple".to_owned(), namespaced },
        ];
        for mapping in mappings {
            let expected: BTreeSet<_> = [&old, &new].into_iter().flatten().flat_map(|side| names(&mapping, side)).collect();
            let keys = mapped(&mapping, object(&old), object(&new));
            prop_assert_eq!(keys.len(), expected.len(), "each once");
            prop_assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }
}
