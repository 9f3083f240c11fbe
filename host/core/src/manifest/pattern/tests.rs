#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use super::{
    super::{Verb, raw},
    *,
};

const ALL: [&str; 4] = ["create", "delete", "list", "watch"];

fn of(api_version: &str, kind: &str) -> raw::TypeMeta {
    raw::TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() }
}

fn pattern(api_version: &str) -> raw::Watch {
    raw::Watch { of: of(api_version, "*"), ..raw::Watch::default() }
}

fn observing(observes: Vec<raw::Watch>) -> Result<Manifest, String> {
    let all = raw::Permission { of: of("*", "*"), verbs: vec![Verb::Read], ..raw::Permission::default() };
    let manifest =
        raw::Manifest { version: "1.0.0".to_owned(), observes, permissions: vec![all], ..raw::Manifest::default() };
    manifest.check().map_err(|invalid| invalid.to_string())
}

fn served(api_version: &str, kind: &str, verbs: &[&str]) -> Served {
    Served {
        of: TypeMeta::new(api_version, kind),
        namespaced: kind != "Node",
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
        preferred: true,
    }
}

fn cluster() -> Discovered {
    let kinds = vec![
        served("v1", "ConfigMap", &ALL),
        served("v1", "Secret", &ALL),
        served("v1", "Node", &ALL),
        served("v1", "Binding", &["create"]),
        served("v1", "Event", &["list", "watch"]),
        served("apps/v1", "Deployment", &ALL),
        Served { preferred: false, ..served("apps/v1beta1", "Deployment", &ALL) },
    ];
    Discovered { kinds, unknown: BTreeSet::new() }
}

fn names(selected: &[Selected]) -> String {
    selected.iter().map(|selected| selected.of.to_string()).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_pattern_matches_the_kinds_with_list_and_watch_in_one_version() {
    let matched = |observes| names(&observing(observes).unwrap().select(&cluster(), &[], |_| false));
    assert_eq!(matched(vec![pattern("*")]), "apps/v1 Deployment, v1 ConfigMap, v1 Event, v1 Node, v1 Secret");
    assert_eq!(matched(vec![pattern("apps/*")]), "apps/v1 Deployment");
    assert_eq!(matched(vec![pattern("apps/v1beta1")]), "apps/v1beta1 Deployment");
    assert_eq!(matched(vec![pattern("example.com/*")]), "");
    let some = raw::Watch {
        except: vec![of("v1", "Secret"), of("apps/*", "*")],
        with_verbs: vec!["create".into()],
        namespaces: vec!["web".into()],
        ..pattern("*")
    };
    assert_eq!(matched(vec![some]), "v1 ConfigMap");
}

#[test]
fn a_named_kind_has_its_own_watch_and_else_the_first_pattern_counts() {
    let named = raw::Watch { of: of("v1", "Secret"), compressed: true, ..raw::Watch::default() };
    let wide = raw::Watch { metadata_only: true, ..pattern("*") };
    let core = raw::Watch { except: vec![of("v1", "Event")], ..pattern("v1") };
    let manifest = observing(vec![core, named, wide]).unwrap();
    let keeps = |kind: &str| {
        let watch = manifest.observed(&TypeMeta::new("v1", kind));
        watch.map(|watch| (watch.of.to_string(), watch.keep.metadata_only()))
    };
    assert_eq!(keeps("Secret"), None);
    assert_eq!(keeps("ConfigMap"), Some(("v1 ConfigMap".to_owned(), false)));
    assert_eq!(keeps("Event"), Some(("v1 Event".to_owned(), true)));
    assert!(manifest.looks_at("apps/v1"));
    assert!(!observing(vec![pattern("v1"), pattern("apps/*")]).unwrap().looks_at("batch/v1"));
}

#[test]
fn a_kind_that_goes_stays_until_its_objects_are_gone() {
    let pattern = raw::Watch { with_verbs: vec!["create".into()], ..pattern("example.com/*") };
    let manifest = observing(vec![pattern]).unwrap();
    let pear =
        |verbs: &[&str]| Discovered { kinds: vec![served("example.com/v1", "Pear", verbs)], ..Discovered::default() };
    let before = manifest.select(&pear(&ALL), &[], |_| false);
    assert_eq!(names(&before), "example.com/v1 Pear");
    // A definition that is being deleted offers no `create`.
    let terminating = ["delete", "list", "watch"];
    assert_eq!(manifest.select(&pear(&terminating), &before, |_| true), before);
    assert_eq!(manifest.select(&pear(&terminating), &[], |_| true), []);
    let nothing = Discovered::default();
    assert_eq!(manifest.select(&nothing, &before, |_| true), before);
    assert_eq!(manifest.select(&nothing, &before, |_| false), []);
    // The objects live on in another version.
    let newer = Discovered { kinds: vec![served("example.com/v2", "Pear", &ALL)], ..Discovered::default() };
    assert_eq!(names(&manifest.select(&newer, &before, |_| true)), "example.com/v2 Pear");
    // An aggregated server that does not respond changes nothing.
    let silent = Discovered { unknown: ["example.com".to_owned()].into(), ..Discovered::default() };
    assert_eq!(manifest.select(&silent, &before, |_| false), before);
}

#[test]
fn only_a_pattern_has_exceptions_and_verbs() {
    let refused = |watch| observing(vec![watch]).unwrap_err();
    let named = || raw::Watch { of: of("v1", "Secret"), ..raw::Watch::default() };
    for (wrong, told) in [
        (
            raw::Watch { with_verbs: vec!["read".into()], ..pattern("*") },
            "observes[0].with-verbs[0]: \"read\" is no verb",
        ),
        (raw::Watch { fields: Some("metadata.name=a".into()), ..pattern("*") }, "observes[0].fields: must be empty"),
        (raw::Watch { except: vec![of("v1", "Pod")], ..named() }, "observes[0].except: must be empty"),
        (raw::Watch { with_verbs: vec!["create".into()], ..named() }, "observes[0].with-verbs: must be empty"),
        (raw::Watch { except: vec![of("*/v1", "*")], ..pattern("*") }, "observes[0].except[0].api-version"),
        (pattern("*/v1"), "observes[0].api-version"),
    ] {
        let message = refused(wrong);
        assert!(message.contains(told), "{message}");
    }
    let many = observing((0..17).map(|_| pattern("*")).collect()).unwrap_err();
    assert!(many.contains("observes: has 17 patterns; at most 16 are taken"), "{many}");
    let asked = Watch::asked(pattern("v1")).unwrap_err().to_string();
    assert!(asked.contains("of.kind: must name one kind: only `observes` takes patterns"), "{asked}");
}
