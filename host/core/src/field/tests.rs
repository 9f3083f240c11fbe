#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn path(text: &str) -> FieldPath {
    FieldPath::parse(text).unwrap()
}

fn set(paths: &[&str]) -> FieldSet {
    FieldSet::new(paths.iter().map(|text| path(text)))
}

#[test]
fn each_writing_of_a_path_has_one_display() {
    for (text, shown) in [
        ("spec", "spec"),
        ("spec.nodeName", "spec.nodeName"),
        ("spec['nodeName']", "spec.nodeName"),
        ("[\"spec\"].nodeName", "spec.nodeName"),
        ("spec.volumes[*].configMap.name", "spec.volumes[*].configMap.name"),
        ("metadata.annotations['a/b.c']", "metadata.annotations[\"a/b.c\"]"),
        ("metadata.annotations[\"a/b.c\"]", "metadata.annotations[\"a/b.c\"]"),
        ("a[\"\\u0062\"]", "a.b"),
        ("a[\"\"]", "a[\"\"]"),
        ("a[\"\\\"\\n'\"]", "a[\"\\\"\\n'\"]"),
        ("a['\"é']", "a[\"\\\"é\"]"),
        ("a[*][*]", "a[*][*]"),
        ("[*]", "[*]"),
        ("$ref.x-kubernetes_1", "$ref.x-kubernetes_1"),
    ] {
        assert_eq!(path(text).to_string(), shown, "{text}");
        assert_eq!(path(shown), path(text), "{text}");
        assert_eq!(path(text).bytes(), path(shown).bytes());
    }
}

#[test]
fn errors_say_what_and_where() {
    let long = "a".repeat(MAX_LENGTH + 1);
    let deep = ["a"; MAX_STEPS + 1].join(".");
    let cases = [
        "",
        ".a",
        "a.",
        "a..b",
        "a.b/c",
        "a b",
        "é",
        "a[",
        "a[]",
        "a[0]",
        "a[-1]",
        "a[b]",
        "a[*",
        "a[*]b",
        "a[\"b]",
        "a[\"\\x\"]",
        "a['b]",
        "a['b\\'c']",
        "a['b'",
        "a.*",
        "a]",
    ];
    let said = |text: &str| FieldPath::parse(text).unwrap_err().to_string();
    insta::assert_snapshot!(cases.map(said).join("\n"), @r#"
    cannot read field path "", at byte 0: the path is empty
    cannot read field path ".a", at byte 0: a path begins with a name, not with '.'
    cannot read field path "a.", at byte 2: expected a name
    cannot read field path "a..b", at byte 2: expected a name
    cannot read field path "a.b/c", at byte 3: expected '.' or '[': a name that is no plain word is written ["name"]
    cannot read field path "a b", at byte 1: expected '.' or '[': a name that is no plain word is written ["name"]
    cannot read field path "é", at byte 0: expected '.' or '[': a name that is no plain word is written ["name"]
    cannot read field path "a[", at byte 2: expected *, or a name in quotes
    cannot read field path "a[]", at byte 2: expected *, or a name in quotes
    cannot read field path "a[0]", at byte 2: positions are not stable, and cannot be named: write [*] for each element
    cannot read field path "a[-1]", at byte 2: positions are not stable, and cannot be named: write [*] for each element
    cannot read field path "a[b]", at byte 2: expected *, or a name in quotes
    cannot read field path "a[*", at byte 3: expected ']'
    cannot read field path "a[*]b", at byte 4: expected '.' or '[': a name that is no plain word is written ["name"]
    cannot read field path "a[\"b]", at byte 5: text ends too early
    cannot read field path "a[\"\\x\"]", at byte 3: bad escape in a string
    cannot read field path "a['b]", at byte 5: expected a closing quote
    cannot read field path "a['b\\'c']", at byte 4: no escapes in single quotes: write double quotes
    cannot read field path "a['b'", at byte 5: expected ']'
    cannot read field path "a.*", at byte 2: expected '.' or '[': a name that is no plain word is written ["name"]
    cannot read field path "a]", at byte 1: expected '.' or '[': a name that is no plain word is written ["name"]
    "#);
    assert_eq!(
        said(&long),
        format!("cannot read field path {:?}, at byte 1024: the path is longer than 1024 bytes", &long[1..])
    );
    assert_eq!(said(&deep), format!("cannot read field path {deep:?}, at byte 63: the path has more than 32 steps"));
    assert!(FieldPath::parse(&long[1..]).is_ok());
    assert!(FieldPath::parse(&deep[2..]).is_ok());
}

#[test]
fn a_path_covers_what_lies_within_it() {
    assert!(path("spec").covers(&path("spec")));
    assert!(path("spec").covers(&path("spec.volumes[*].name")));
    assert!(!path("spec.volumes").covers(&path("spec")));
    assert!(!path("spec").covers(&path("specification")));
    assert!(!path("a[*]").covers(&path("a.b")));
}

#[test]
fn values_are_compared_decoded() {
    let json = r#"{"a":["x","\u0078","é\n",1.50,-0,true,null,{"b":1},["c"]],"b":"y"}"#;
    assert_eq!(
        set(&["a[*]", "b", "a", "a[*].b", "c", "b"]).values(json).unwrap(),
        [&["-0", "1.50", "true", "x", "é\n"][..], &["y"], &[], &["1"], &[], &["y"]]
    );
}

#[test]
fn values_of_one_path_are_bounded() {
    let json = json!({"a": (0..MAX_VALUES + 9).collect::<Vec<_>>(), "b": "x"}).to_string();
    let [a, b] = <[_; 2]>::try_from(set(&["a[*]", "b"]).values(&json).unwrap()).unwrap();
    let first: BTreeSet<String> = (0..MAX_VALUES).map(|number| number.to_string()).collect();
    assert!(a.iter().eq(&first));
    assert_eq!(b, ["x"]);
}

#[test]
fn projection_keeps_arrays_element_by_element() {
    let json = r#"{"kind":"K","metadata":{"uid":"u","name":"n"},"a":[{"b":1,"c":2},{"c":3},7,{}],"d":{},"e":{"f":1}}"#;
    assert_eq!(
        set(&["a[*].b", "d.x", "e.f.g"]).project(json).unwrap(),
        r#"{"kind":"K","metadata":{"name":"n"},"a":[{"b":1},{},null,{}],"d":{},"e":{}}"#
    );
    assert_eq!(set(&["a[*].b", "a"]).project(r#"{"a":[{"c":3}]}"#).unwrap(), r#"{"a":[{"c":3}]}"#);
    assert_eq!(set(&[]).project(r#"{"a":1}"#).unwrap(), "{}");
}

#[test]
fn cut_leaves_all_else_byte_for_byte() {
    let json = r#" { "a" : 1 , "b" : { "c" : 2 , "d" : [ 1 , { "x" : 1 , "y" : 2 } ] } , "e" : 3 } "#;
    for (paths, left) in [
        (&["a"][..], r#" { "b" : { "c" : 2 , "d" : [ 1 , { "x" : 1 , "y" : 2 } ] } , "e" : 3 } "#),
        (&["e"], r#" { "a" : 1 , "b" : { "c" : 2 , "d" : [ 1 , { "x" : 1 , "y" : 2 } ] } } "#),
        (&["b"], r#" { "a" : 1 , "e" : 3 } "#),
        (&["b", "e"], r#" { "a" : 1 } "#),
        (&["a", "b"], r#" { "e" : 3 } "#),
        (&["a", "b", "e"], r#" { } "#),
        (&["b.c", "b.d[*].x", "e"], r#" { "a" : 1 , "b" : { "d" : [ 1 , { "y" : 2 } ] } } "#),
        (&["b.d[*]"], r#" { "a" : 1 , "b" : { "c" : 2 , "d" : [ ] } , "e" : 3 } "#),
        (&["a.x", "z", "b[*]", "b.c.d"], json),
    ] {
        assert_eq!(set(paths).cut(json).unwrap(), left, "{paths:?}");
    }
    assert!(matches!(set(&["z"]).cut(json).unwrap(), Cow::Borrowed(_)));
}

/// Names that paths and objects have in common.
const NAMES: [&str; 5] = ["a", "b", "metadata", "name", "x/\"\\é"];

fn any_path() -> impl Strategy<Value = FieldPath> {
    let step = prop_oneof![
        4 => prop::sample::select(&NAMES[..]).prop_map(|name| Step::Member(name.into())),
        1 => Just(Step::Each),
    ];
    prop::collection::vec(step, 1..5).prop_map(|steps| FieldPath { steps: steps.into() })
}

fn any_object() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..3).prop_map(Value::from),
        prop::sample::select(&["a", "b\"", "\\", "é\n", "1", ""][..]).prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(5, 60, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            members(inner).prop_map(Value::Object),
        ]
    });
    members(value).prop_map(Value::Object)
}

fn members(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::vec((prop::sample::select(&NAMES[..]), value), 0..5)
        .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn written(value: &Value, pretty: bool) -> String {
    if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) }.unwrap()
}

/// All that the steps lead to.
fn found<'v>(value: &'v Value, steps: &[Step]) -> Vec<&'v Value> {
    match (steps.split_first(), value) {
        (None, _) => vec![value],
        (Some((Step::Member(name), rest)), Value::Object(members)) => {
            members.get(&**name).map_or(Vec::new(), |member| found(member, rest))
        }
        (Some((Step::Each, rest)), Value::Array(elements)) => {
            elements.iter().flat_map(|element| found(element, rest)).collect()
        }
        _ => Vec::new(),
    }
}

fn remove(value: &mut Value, steps: &[Step]) {
    match (steps, value) {
        ([Step::Member(name)], Value::Object(members)) => {
            members.remove(&**name);
        }
        ([Step::Each], Value::Array(elements)) => elements.clear(),
        ([Step::Member(name), rest @ ..], Value::Object(members)) => {
            members.get_mut(&**name).into_iter().for_each(|member| remove(member, rest));
        }
        ([Step::Each, rest @ ..], Value::Array(elements)) => {
            elements.iter_mut().for_each(|element| remove(element, rest));
        }
        _ => {}
    }
}

/// What is left of `value` for steps that begin there; none: nothing.
fn projected(value: &Value, paths: &[&[Step]]) -> Option<Value> {
    if paths.iter().any(|steps| steps.is_empty()) {
        return Some(value.clone());
    }
    let into = |wanted: &Step| -> Vec<&[Step]> {
        let next = paths.iter().filter_map(|steps| steps.split_first());
        next.filter(|(first, _)| *first == wanted).map(|(_, rest)| rest).collect()
    };
    let leads = |each: bool| paths.iter().any(|steps| (steps[0] == Step::Each) == each);
    match value {
        Value::Object(members) if leads(false) => {
            let kept = members.iter().filter_map(|(name, member)| {
                Some((name.clone(), projected(member, &into(&Step::Member(name.as_str().into())))?))
            });
            Some(kept.collect::<Map<_, _>>().into())
        }
        Value::Array(elements) if leads(true) => {
            let kept = elements.iter().map(|element| projected(element, &into(&Step::Each)).unwrap_or(Value::Null));
            Some(kept.collect())
        }
        _ => None,
    }
}

proptest! {
    #[test]
    fn display_reads_back_as_the_same_path(path in any_path()) {
        prop_assert_eq!(FieldPath::parse(&path.to_string()).unwrap(), path);
    }

    #[test]
    fn reading_a_path_never_panics(text in "[a-c\\[\\]*.\"'\\\\0é/ -]{0,12}") {
        match FieldPath::parse(&text) {
            Ok(path) => prop_assert_eq!(FieldPath::parse(&path.to_string()), Ok(path)),
            Err(error) => prop_assert!(text.is_char_boundary(error.at), "{}", error),
        }
    }

    #[test]
    fn values_are_those_of_a_tree(object in any_object(), pretty: bool, paths in prop::collection::vec(any_path(), 0..6)) {
        let text = written(&object, pretty);
        let values = FieldSet::new(paths.iter().cloned()).values(&text).unwrap();
        let expected = paths.iter().map(|path| {
            let values = found(&object, &path.steps).into_iter().filter_map(|value| match value {
                Value::String(text) => Some(text.clone()),
                Value::Null | Value::Array(_) | Value::Object(_) => None,
                scalar => Some(scalar.to_string()),
            });
            Vec::from_iter(values.collect::<BTreeSet<_>>())
        });
        prop_assert_eq!(values, expected.collect::<Vec<_>>());
    }

    #[test]
    fn cut_is_removal_from_a_tree(object in any_object(), pretty: bool, paths in prop::collection::vec(any_path(), 0..6)) {
        let text = written(&object, pretty);
        let left = FieldSet::new(paths.iter().cloned()).cut(&text).unwrap();
        let mut expected = object.clone();
        for path in &paths {
            remove(&mut expected, &path.steps);
        }
        prop_assert_eq!(serde_json::from_str::<Value>(&left).unwrap(), expected);
    }

    #[test]
    fn projection_is_that_of_a_tree(object in any_object(), pretty: bool, paths in prop::collection::vec(any_path(), 0..6)) {
        let text = written(&object, pretty);
        let left = FieldSet::new(paths.iter().cloned()).project(&text).unwrap();
        let identity = ["apiVersion", "kind", "metadata.name", "metadata.namespace"].map(path);
        let steps: Vec<&[Step]> = paths.iter().chain(&identity).map(|path| &*path.steps).collect();
        prop_assert_eq!(serde_json::from_str::<Value>(&left).unwrap(), projected(&object, &steps).unwrap());
    }

    #[test]
    fn no_text_makes_a_walk_panic(
        object in any_object(),
        at: prop::sample::Index,
        piece in "[\\[\\]{}\",:\\\\ua1-]{0,3}",
        paths in prop::collection::vec(any_path(), 0..4),
    ) {
        let mut text = object.to_string();
        let start = text.floor_char_boundary(at.index(text.len()));
        text.replace_range(start..start + text[start..].chars().next().map_or(0, char::len_utf8), &piece);
        let fields = FieldSet::new(paths);
        let valid = serde_json::from_str::<Map<String, Value>>(&text).is_ok();
        prop_assert!(fields.values(&text).is_ok() || !valid);
        prop_assert!(fields.project(&text).is_ok() || !valid);
        prop_assert!(fields.cut(&text).is_ok() || !valid);
    }
}
