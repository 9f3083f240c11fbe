#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::field::FieldPath;

/// `ns | labels | fields | keep`, each of which may be empty. To keep: `metadata`, or `-` and what is not kept, or
/// both.
fn key(text: &str) -> InformerKey {
    let mut parts = text.split('|').map(str::trim);
    let mut next = || parts.next().unwrap_or_default();
    InformerKey {
        namespace: Some(next()).filter(|namespace| !namespace.is_empty()).map(Arc::from),
        labels: Selector::parse(next()).unwrap(),
        fields: FieldSelector::parse(next()).unwrap(),
        keep: keep(next()),
        ..InformerKey::all(TypeMeta::new("v1", "Pod"))
    }
}

fn keep(text: &str) -> Keep {
    let (head, without) = text.split_once('-').unwrap_or((text, ""));
    let without = without.split_whitespace().map(|path| FieldPath::parse(path).unwrap());
    Keep::new(head.trim() == "metadata", without).unwrap()
}

fn object(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Object {
    let labels: serde_json::Map<_, _> = labels.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
    let metadata = json!({ "namespace": namespace, "name": name, "uid": "u", "resourceVersion": "1", "labels": labels, "annotations": { "a": "b" } });
    let json = json!({ "metadata": metadata, "spec": { "x": 1, "y": 2 } });
    Object::parse(json.to_string().as_bytes(), &TypeMeta::new("v1", "Pod")).unwrap()
}

#[test]
fn wider_is_what_surely_holds_all_of_the_narrower() {
    for (wide, narrow, covers) in [
        ("", "", true),
        ("", "a", true),
        ("a", "", false),
        ("a", "a", true),
        ("a", "b", false),
        ("", "| app=web", true),
        ("| app=web", "", false),
        ("| app=web", "a | app=web, tier=db", true),
        ("| app in (web,db)", "| app=web", true),
        ("| app", "| app=web", true),
        ("| app!=db", "| app=web", true),
        ("| app!=db", "| !app", true),
        ("| app=web", "| app!=db", false),
        ("| app", "| !app", false),
        ("| n>3", "| n>4", true),
        ("| n>4", "| n>3", false),
        ("a | app=web", "| app=web", false),
        ("", "|| metadata.name=x", true),
        ("", "a || metadata.namespace!=b", true),
        ("|| metadata.name!=y", "|| metadata.name=x", true),
        ("|| metadata.name=x", "|| metadata.name=y", false),
        // Only the API server knows what that is of an object.
        ("", "|| spec.nodeName=n", false),
        ("|| spec.nodeName=n", "", false),
        ("|| spec.nodeName=n", "|| spec.nodeName=n", true),
        ("|| spec.nodeName=n", "a | app=web | spec.nodeName=n,metadata.name=x", true),
        ("|| spec.nodeName!=m", "|| spec.nodeName=n", false),
        ("", "||| metadata", true),
        ("||| metadata", "", false),
        ("||| metadata", "||| metadata - metadata.annotations", true),
        ("||| - spec.x", "a ||| - spec", true),
        ("||| - spec.x", "||| - spec.y", false),
        ("||| - spec.x", "||| metadata", true),
        ("a ||| metadata", "||| metadata", false),
    ] {
        assert_eq!(key(wide).covers(&key(narrow)), covers, "{wide:?} and {narrow:?}");
    }
    let other = InformerKey { of: TypeMeta::new("v2", "Pod"), ..key("") };
    assert!(!key("").covers(&other));
}

#[test]
fn a_filter_asks_only_for_what_the_wider_does_not() {
    let filter = |wide, narrow| Filter::new(&key(wide), &key(narrow));
    assert_eq!(filter("a | app=web | spec.x=1", "a | app=web | spec.x=1"), Filter::default());
    let only = filter("| app", "a | app,tier=db | metadata.name=x");
    assert_eq!((only.namespace(), only.labels().to_string()), (Some("a"), "tier=db".to_owned()));
    assert!(only.shows(&object("a", "x", &[("tier", "db")])));
    assert!(!only.shows(&object("a", "y", &[("tier", "db")])));
    assert!(!only.shows(&object("b", "x", &[("tier", "db")])));
    assert!(!only.shows(&object("a", "x", &[])));
}

#[test]
fn a_filter_cuts_what_the_wider_has_beyond() {
    let filter = |wide, narrow| Filter::new(&key(wide), &key(narrow));
    let held = Arc::new(object("a", "x", &[]));
    assert_eq!(filter("||| - spec.x", "||| - spec.x"), Filter::default());
    assert!(Arc::ptr_eq(&filter("", "a").cut(&held), &held), "no copy where nothing is cut");
    for narrow in ["||| metadata", "a ||| - spec.x", "||| metadata - metadata.annotations"] {
        assert_eq!(*filter("", narrow).cut(&held), held.kept(&key(narrow).keep), "{narrow}");
    }
}

#[test]
fn fields_that_only_the_server_evaluates_are_unknown() {
    let web = object("a", "x", &[("app", "web")]);
    for (text, shows) in [
        ("", Some(true)),
        ("b", Some(false)),
        ("a | app=web | metadata.name=x", Some(true)),
        ("a | app=web | metadata.name!=x", Some(false)),
        ("a | app=web | spec.nodeName=n", None),
        ("a | app=db | spec.nodeName=n", Some(false)),
        ("|| spec.nodeName=n,metadata.name=y", Some(false)),
        ("|| metadata.name=x,spec.nodeName=n", None),
    ] {
        assert_eq!(key(text).shows(&web), shows, "{text:?}");
    }
}

#[test]
fn a_key_is_displayed_in_one_line() {
    assert_eq!(key("").to_string(), "v1 Pod");
    assert_eq!(key("a | app=web").to_string(), "v1 Pod in a where app=web");
    assert_eq!(key("|| spec.nodeName=n").to_string(), "v1 Pod where spec.nodeName=n");
    assert_eq!(key("a | app=web | spec.nodeName=n").to_string(), "v1 Pod in a where app=web and spec.nodeName=n");
    assert_eq!(key("a ||| metadata").to_string(), "v1 Pod in a, metadata only");
    assert_eq!(key("| app || - spec.y spec.x").to_string(), "v1 Pod where app, without spec.x, spec.y");
    assert_eq!(
        key("||| metadata - metadata.annotations").to_string(),
        "v1 Pod, metadata only, without metadata.annotations"
    );
}

#[test]
fn a_denied_informer_serves_only_requests_for_its_own_objects() {
    let requests: BTreeSet<_> = ["", "a", "a | app=web", "b"].map(key).into();
    let planned = |denied: &[&str]| plan(&requests, |asked| denied.iter().any(|denied| key(denied) == *asked));
    assert_eq!(planned(&[]), [key("")].into());
    assert_eq!(planned(&[""]), ["", "a", "b"].map(key).into());
    assert_eq!(planned(&["", "a"]), ["", "a", "b", "a | app=web"].map(key).into());
}

#[test]
fn requests_for_the_same_objects_share_one_informer() {
    let planned = |requests: &[&str]| plan(&requests.iter().map(|text| key(text)).collect(), |_| false);
    assert_eq!(planned(&["||| - spec.x", "||| - spec.y"]), [key("")].into());
    assert_eq!(planned(&["||| metadata", "||| - spec.x", "a ||| - spec"]), [key("||| - spec.x")].into());
    assert_eq!(
        planned(&["||| metadata - metadata.annotations", "||| - spec.x metadata.annotations"]),
        [key("||| - spec.x metadata.annotations")].into()
    );
    // A wider one is not made to hold more for the sake of a narrower one.
    assert_eq!(planned(&["||| metadata", "a"]), ["||| metadata", "a"].map(key).into());
}

fn keys() -> impl Strategy<Value = InformerKey> {
    let any = |of: &[&'static str]| prop::sample::select(of.to_vec());
    let labels = any(&["", "app", "app=web", "app=db", "app in (web,db)", "app!=db", "!app", "app=web,tier=x", "tier"]);
    let fields = any(&[
        "",
        "metadata.name=x",
        "metadata.name!=x",
        "metadata.namespace=a",
        "spec.y=1",
        "spec.y=1,metadata.name=x",
    ]);
    let keep = any(&[
        "",
        "",
        "metadata",
        "metadata - metadata.annotations",
        "- spec.x",
        "- spec.y",
        "- spec",
        "- spec.x spec.y",
    ]);
    (any(&["", "a", "b"]), labels, fields, keep)
        .prop_map(|(namespace, labels, fields, keep)| key(&format!("{namespace} | {labels} | {fields} | {keep}")))
}

fn objects() -> impl Strategy<Value = Object> {
    let label = |key: &'static str, values: &[&'static str]| {
        prop::option::of(prop::sample::select(values.to_vec())).prop_map(move |value| value.map(|value| (key, value)))
    };
    let name = prop::sample::select(vec!["x", "y"]);
    let namespace = prop::sample::select(vec!["a", "b", "c"]);
    (namespace, name, label("app", &["web", "db", "z"]), label("tier", &["x", "y"])).prop_map(
        |(namespace, name, app, tier)| object(namespace, name, &app.into_iter().chain(tier).collect::<Vec<_>>()),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn through_its_filter_a_wider_informer_shows_exactly_the_narrower(wide in keys(), narrow in keys(), object in objects()) {
        // What only the server can tell is the same of both.
        let shown = |key: &InformerKey| key.shows(&object) != Some(false);
        if wide.covers(&narrow) {
            prop_assert!(shown(&wide) || !shown(&narrow));
            if shown(&wide) {
                let (filter, held) = (Filter::new(&wide, &narrow), Arc::new(object.kept(&wide.keep)));
                prop_assert_eq!(filter.shows(&held), shown(&narrow));
                let labels = held.sorted_labels();
                prop_assert_eq!(filter.shows_by(&held, || &labels), shown(&narrow));
                prop_assert_eq!(&*filter.cut(&held), &object.kept(&narrow.keep));
            }
        }
    }

    #[test]
    fn invariant_1_a_plan_serves_every_request_and_has_nothing_twice(
        requests in prop::collection::btree_set(keys(), 0..12),
        denied in prop::collection::vec(any::<bool>(), 12),
    ) {
        let denied: Vec<_> = requests.iter().zip(denied).filter(|(_, denied)| *denied).map(|(key, _)| key).collect();
        let denied = |key: &InformerKey| denied.iter().any(|denied| denied.same_objects(key));
        let planned = plan(&requests, denied);
        for request in &requests {
            let serves = |key: &&InformerKey| key.covers(request) && (!denied(key) || key.same_objects(request));
            prop_assert!(planned.iter().any(|key| serves(&key)), "{} is served by none of {:?}", request, planned);
        }
        for key in &planned {
            let other = planned.iter().find(|other| *other != key && other.covers(key) && !denied(other));
            prop_assert_eq!(other, None, "covers {}", key);
        }
    }
}

/// Pods without each of so many labels: of two none covers the other, and all may hold the same Pods.
fn without_labels(count: usize) -> BTreeSet<InformerKey> {
    (0..count).map(|number| key(&format!("| !w{number}"))).collect()
}

#[test]
fn invariant_12_many_narrow_requests_of_a_holder_become_a_wide_one() {
    let bounded = |requests| bounded(requests, |_| Runs::No);
    assert_eq!(bounded(without_labels(MAX_NARROW)), without_labels(MAX_NARROW));
    assert_eq!(bounded(without_labels(MAX_NARROW + 1)), [key("")].into());
    assert_eq!(bounded(without_labels(1000)), [key("")].into());
    // Those that another covers have no informer as it is.
    let covered: BTreeSet<_> = (0..20).map(|number| key(&format!("| app={number}"))).chain([key("| app")]).collect();
    assert_eq!(plan(&bounded(covered), |_| false), [key("| app")].into());
    // What is kept is what any of them keeps.
    let metadata: BTreeSet<_> = (0..20).map(|number| key(&format!("a | !w{number} || metadata"))).collect();
    assert_eq!(bounded(metadata), [key("a ||| metadata")].into());
    // One scope does not make another one wider.
    let scopes: BTreeSet<_> =
        without_labels(6).into_iter().chain((0..6).map(|number| key(&format!("a | x{number}")))).collect();
    assert_eq!(bounded(scopes.clone()), scopes);
}

#[test]
fn invariant_12_requests_by_name_have_a_bound_of_their_own() {
    let named = |count| (0..count).map(|number| key(&format!("a || metadata.name=n{number}"))).collect::<BTreeSet<_>>();
    let bounded = |requests| bounded(requests, |_| Runs::No);
    assert_eq!(bounded(named(MAX_NAMED)), named(MAX_NAMED));
    assert_eq!(bounded(named(MAX_NAMED + 1)), [key("a")].into());
    let fields: BTreeSet<_> = (0..20).map(|number| key(&format!("|| spec.x=n{number}"))).collect();
    assert_eq!(bounded(fields.clone()), fields, "only the server can tell them apart");
    // Selected by labels besides, they may all hold the same objects.
    let both = (0..20).map(|number| key(&format!("| !w{number} | metadata.name=x")));
    assert_eq!(bounded(both.collect()), [key("")].into());
}

#[test]
fn a_request_that_comes_and_goes_makes_no_informer_come_and_go() {
    let runs = |wide: &InformerKey| if *wide == key("") { Runs::Yes } else { Runs::No };
    for count in (MAX_NARROW / 2 + 1)..=MAX_NARROW {
        assert_eq!(bounded(without_labels(count), runs), [key("")].into(), "{count}");
    }
    assert_eq!(bounded(without_labels(MAX_NARROW / 2), runs), without_labels(MAX_NARROW / 2));
}

#[test]
fn while_a_wide_one_is_denied_as_many_narrow_ones_as_may_run_are_beside_it() {
    let denied = |wide: &InformerKey| if *wide == key("") { Runs::Denied } else { Runs::No };
    let beside = bounded(without_labels(100), denied);
    assert_eq!((beside.len(), beside.contains(&key(""))), (MAX_NARROW + 1, true));
    // Those that run already go on.
    let running: BTreeSet<_> = without_labels(100).into_iter().skip(50).take(MAX_NARROW).collect();
    let runs = |asked: &InformerKey| if running.contains(asked) { Runs::Yes } else { denied(asked) };
    assert_eq!(bounded(without_labels(100), runs), running.iter().cloned().chain([key("")]).collect());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn invariant_12_what_is_bounded_serves_every_request_and_is_few(
        requests in prop::collection::btree_set(keys(), 0..12),
        more in prop::collection::btree_set(
            (prop::sample::select(vec!["", "a"]), 0..40_usize).prop_map(|(namespace, label)| key(&format!("{namespace} | !w{label}"))),
            0..60,
        ),
    ) {
        let requests: BTreeSet<_> = requests.into_iter().chain(more).collect();
        let planned = plan(&bounded(requests.clone(), |_| Runs::No), |_| false);
        prop_assert!(planned.len() <= plan(&requests, |_| false).len());
        for request in &requests {
            prop_assert!(planned.iter().any(|key| key.covers(request)), "{} is served by none of {:?}", request, planned);
        }
        for scope in [None, Some("a"), Some("b")] {
            let narrow = planned.iter().filter(|key| {
                key.namespace.as_deref() == scope && matches!(key.breadth(), Breadth::Selected)
            });
            let narrow = narrow.count();
            prop_assert!(narrow <= MAX_NARROW, "{} in {:?}", narrow, scope);
        }
    }
}
