//! Tests the mock host's cache, and what wakes a key.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Node, Pod, Secret},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::core::PartialObjectMeta;
use pilothouse_sdk::{
    mock::{By, MockHost, Wake},
    prelude::*,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn object<K: DeserializeOwned>(name: &str, mut rest: Value) -> K {
    rest["metadata"]["namespace"] = json!("default");
    rest["metadata"]["name"] = json!(name);
    serde_json::from_value(rest).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "labels are made where they are given")]
fn map(name: &str, labels: Value) -> ConfigMap {
    object(name, json!({"metadata": {"labels": labels}, "data": {"color": "red", "size": "small"}}))
}

fn secret(name: &str) -> Secret {
    object(name, json!({}))
}

const S: (&str, &str) = ("default", "s");

fn s() -> Vec<Key> {
    vec![Key::from(S)]
}

/// Returns a plugin for Secrets that reads ConfigMaps, with the test's own reconcile.
fn plain_reader(
    reconcile: fn(&Context, &Secret) -> Result<Outcome, Error>,
    watch: fn() -> Watch<ConfigMap>,
) -> impl Fn() -> Plugin {
    move || {
        let controller = Controller::of::<Secret>()
            .when(Predicate::generation())
            .without_status()
            .reads_with(watch())
            .reconcile(reconcile);
        Plugin::new("Reads.").controller(controller)
    }
}

/// As [`plain_reader`], with an index.
fn reader(
    reconcile: fn(&Context, &Secret) -> Result<Outcome, Error>,
    watch: fn() -> Watch<ConfigMap>,
) -> impl Fn() -> Plugin {
    move || plain_reader(reconcile, watch)().index::<ConfigMap>("color", "data.color")
}

fn all() -> Watch<ConfigMap> {
    Watch::of::<ConfigMap>()
}

/// A name, a change, and whether it wakes the key.
type Step = (&'static str, fn(&mut MockHost), bool);

/// Checks what each change wakes, one after the other. Reconciles the key after each.
#[track_caller]
fn assert_woken(host: &mut MockHost, steps: &[Step]) {
    host.settle(S).unwrap();
    for (what, change, wakes) in steps {
        assert_eq!(host.woken_by(change), if *wakes { s() } else { vec![] }, "{what}");
        host.settle(S).unwrap();
    }
}

fn touch(host: &mut MockHost, name: &str, change: impl FnOnce(&mut ConfigMap)) {
    host.edit::<ConfigMap>(("default", name), change);
}

fn set(map: &mut ConfigMap, key: &str, value: &str) {
    map.data.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

fn label(map: &mut ConfigMap, value: &str) {
    map.metadata.labels = Some([("app".to_owned(), value.to_owned())].into());
}

#[test]
fn an_object_and_a_missing_object_wake_their_readers() {
    fn reconcile(ctx: &Context, _: &Secret) -> Result<Outcome, Error> {
        ctx.cache().get::<ConfigMap>(ctx.key().beside("m"))?;
        Ok(Outcome::new())
    }
    let mut host = MockHost::new(reader(reconcile, all)).with(secret("s"));
    assert_woken(
        &mut host,
        &[
            ("another appears", |host| host.put(map("other", json!({}))), false),
            ("it appears", |host| host.put(map("m", json!({}))), true),
            ("it changes", |host| touch(host, "m", |map| set(map, "a", "b")), true),
            ("the other changes", |host| touch(host, "other", |map| set(map, "a", "b")), false),
            ("it goes", |host| drop(host.remove::<ConfigMap>(("default", "m"))), true),
        ],
    );
}

#[test]
fn a_list_wakes_when_its_content_changes() {
    fn reconcile(ctx: &Context, _: &Secret) -> Result<Outcome, Error> {
        let list = ctx.cache().list::<ConfigMap>().beside(ctx.key()).labels("app=web").page_size(1);
        assert!(list.into_iter().all(|map| map.is_ok()));
        Ok(Outcome::new())
    }
    let mut host = MockHost::new(reader(reconcile, all)).with(secret("s")).with(map("m", json!({"app": "db"})));
    assert_woken(
        &mut host,
        &[
            ("what it does not hold", |host| touch(host, "m", |map| set(map, "a", "b")), false),
            ("what enters", |host| touch(host, "m", |map| label(map, "web")), true),
            ("what it holds", |host| touch(host, "m", |map| set(map, "a", "c")), true),
            ("what leaves", |host| touch(host, "m", |map| label(map, "db")), true),
        ],
    );
}

#[test]
fn keys_wake_by_membership_and_fields_by_their_values() {
    fn keys(ctx: &Context, _: &Secret) -> Result<Outcome, Error> {
        let keys = ctx.cache().list::<ConfigMap>().index("color", "red").keys().collect::<Result<Vec<_>, _>>()?;
        assert_eq!(keys, [Key::new("default", "m")]);
        Ok(Outcome::new())
    }
    let steps: &[Step] = &[
        ("another field", |host| touch(host, "m", |map| set(map, "size", "large")), false),
        ("another object", |host| host.put(object::<ConfigMap>("green", json!({"data": {"color": "green"}}))), false),
    ];
    let mut host = MockHost::new(reader(keys, all)).with(secret("s")).with(map("m", json!({})));
    assert_woken(&mut host, steps);
    assert_eq!(host.woken_by(|host| touch(host, "m", |map| set(map, "color", "green"))), s());

    fn fields(ctx: &Context, _: &Secret) -> Result<Outcome, Error> {
        let list = ctx.cache().list::<ConfigMap>().index("color", "red").fields::<Value>(["data.color"]);
        let found = list.into_iter().collect::<Result<Vec<_>, _>>()?;
        let metadata = json!({"name": "m", "namespace": "default"});
        let m = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"color": "red"}});
        assert_eq!(found, [m]);
        Ok(Outcome::new())
    }
    let mut host = MockHost::new(reader(fields, all)).with(secret("s")).with(map("m", json!({})));
    assert_woken(&mut host, steps);
    assert_eq!(host.woken_by(|host| touch(host, "m", |map| set(map, "color", "green"))), s());
}

#[test]
fn a_failed_call_leaves_the_reads_of_the_last_success() {
    fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
        let fails = secret.immutable == Some(true);
        ctx.cache().get::<ConfigMap>(ctx.key().beside(if fails { "of-failure" } else { "of-success" }))?;
        if fails { Err(Error::terminal("on request")) } else { Ok(Outcome::new()) }
    }
    let mut host = MockHost::new(reader(reconcile, all)).with(secret("s"));
    host.settle(S).unwrap();
    host.edit::<Secret>(S, |secret| secret.immutable = Some(true));
    host.settle(S).unwrap_err();
    assert_eq!(host.woken_by(|host| host.put(map("of-failure", json!({})))), []);
    assert_eq!(host.woken_by(|host| host.put(map("of-success", json!({})))), s());
}

#[test]
fn reads_end_with_their_key() {
    fn reconcile(ctx: &Context, _: &Secret) -> Result<Outcome, Error> {
        ctx.cache().get::<ConfigMap>(ctx.key().beside("m"))?;
        Ok(Outcome::new())
    }
    let mut host = MockHost::new(reader(reconcile, all)).with(secret("s"));
    host.settle(S).unwrap();
    let last = host.remove::<Secret>(S);
    host.request(S).gone(&last).run().unwrap();
    assert_eq!(host.wakes(|host| host.put(map("m", json!({})))), []);
}

#[test]
fn a_watch_limits_what_is_seen() {
    fn reconcile(ctx: &Context, _: &Secret) -> Result<Outcome, Error> {
        let maps = ctx.cache().list::<ConfigMap>().into_iter().collect::<Result<Vec<_>, _>>()?;
        let seen = maps.into_iter().map(|map| (map.metadata.name.unwrap_or_default(), map.data.unwrap_or_default()));
        Err(Error::terminal(serde_json::to_string(&seen.collect::<BTreeMap<_, _>>())?))
    }
    type Case = (fn() -> Watch<ConfigMap>, Value);
    let cases: [Case; 6] = [
        (all, json!({"a": {"color": "red", "size": "small"}, "b": {"color": "red", "size": "small"}})),
        (|| all().fields("metadata.name!=a"), json!({"b": {"color": "red", "size": "small"}})),
        (|| all().labels("app=web"), json!({"a": {"color": "red", "size": "small"}})),
        (|| all().without(["data.color"]).labels("app"), json!({"a": {"size": "small"}, "b": {"size": "small"}})),
        (|| all().metadata_only(), json!({"a": {}, "b": {}})),
        (|| all().namespaces(["elsewhere"]), json!({})),
    ];
    for (watch, expected) in cases {
        let host = MockHost::new(plain_reader(reconcile, watch)).with(secret("s"));
        let host = host.with(map("a", json!({"app": "web"}))).with(map("b", json!({"app": "db"})));
        let seen: Value = serde_json::from_str(&host.reconcile(S).unwrap_err().message).unwrap();
        assert_eq!(seen, expected);
    }
}

#[test]
fn the_widest_of_several_watches_decides_what_is_shown() {
    fn reconcile(ctx: &Context, _: &Secret) -> Result<Outcome, Error> {
        let map = ctx.cache().get::<ConfigMap>(("default", "m"))?;
        Err(Error::terminal(serde_json::to_string(&map.map(|map| (map.metadata.annotations, map.data)))?))
    }
    type Case = (fn() -> [Watch<ConfigMap>; 2], Value);
    let (note, data) = (json!({"note": "n"}), json!({"color": "red", "size": "small"}));
    let cases: [Case; 4] = [
        (|| [all(), all().metadata_only()], json!([note, data])),
        (|| [all().metadata_only(), all().without(["data.color"])], json!([note, {"size": "small"}])),
        (
            || [all().without(["data.color"]), all().without(["data.color", "metadata.annotations"])],
            json!([note, {"size": "small"}]),
        ),
        // Neither caches everything that the other caches. The choice must always be the same.
        (|| [all().metadata_only(), all().without(["metadata.annotations"])], json!([null, data])),
    ];
    for (watches, expected) in cases {
        for turned in [false, true] {
            let plugin = move || {
                let mut watches = watches();
                if turned {
                    watches.reverse();
                }
                let [one, other] = watches;
                let reads =
                    |builder: pilothouse_sdk::ControllerBuilder<Secret>| builder.reads_with(one).reads_with(other);
                let controller = reads(Controller::of::<Secret>().without_status()).reconcile(reconcile);
                Plugin::new("Reads.").controller(controller)
            };
            let rest = json!({"metadata": {"annotations": note}, "data": data});
            let host = MockHost::new(plugin).with(secret("s")).with(object::<ConfigMap>("m", rest));
            let seen: Value = serde_json::from_str(&host.reconcile(S).unwrap_err().message).unwrap();
            assert_eq!(seen, expected);
        }
    }
}

#[test]
fn a_status_that_the_watch_leaves_out_is_not_written() {
    fn plugin(watch: fn(Watch<Pod>) -> Watch<Pod>) -> impl Fn() -> Plugin {
        move || {
            let controller = Controller::watching(watch(Watch::of::<Pod>()));
            let status = json!({"message": "seen", "reason": "Test"});
            Plugin::new("Says.").controller(controller.reconcile(move |_, _| Ok(Outcome::new().status(&status))))
        }
    }
    type Case = (fn(Watch<Pod>) -> Watch<Pod>, Option<&'static str>);
    let cases: [Case; 5] = [
        (|pods| pods.without(["spec", "status.containerStatuses"]), None),
        (|pods| pods.metadata_only(), Some("status")),
        (|pods| pods.without(["status"]), Some("status")),
        (|pods| pods.without(["status.reason", "spec"]), Some("status.reason")),
        (|pods| pods.without(["status.message.text"]), Some("status.message")),
    ];
    for (watch, left_out) in cases {
        let mut host = MockHost::new(plugin(watch)).with(object::<Pod>("s", json!({})));
        let settled = host.settle(S).map(drop).map_err(|failure| failure.message);
        let expected = left_out.map_or(Ok(()), |path| {
            Err(format!(
                "cannot tell whether the status of v1 Pod default/s differs: {path} is left out of the cache; keep it in the watch (to \
                 go without the spec, name `spec` in `without`), or write it by `client`"
            ))
        });
        assert_eq!(settled, expected);
    }
}

#[test]
fn a_query_that_is_not_valid_is_an_error() {
    fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
        let list = ctx.cache().list::<ConfigMap>();
        match secret.type_.as_deref().unwrap_or_default() {
            "index" => drop(list.index("nothing", "red").keys().collect::<Result<Vec<_>, _>>()?),
            "labels" => drop(list.labels("a in b").keys().collect::<Result<Vec<_>, _>>()?),
            "name" => drop(ctx.cache().get::<ConfigMap>(ctx.key().beside("n".repeat(1025)))?),
            _ => drop(list.fields::<Value>(["data..color"]).into_iter().collect::<Result<Vec<_>, _>>()?),
        }
        Ok(Outcome::new())
    }
    for (what, problem) in [
        ("index", "the manifest declares no index \"nothing\""),
        ("labels", "labels: cannot read label selector \"a in b\": expected values in parentheses"),
        ("name", "the name: has 1025 bytes, and at most 1024 are taken"),
        ("fields", "fields: cannot read field path \"data..color\", at byte 5: expected a name"),
    ] {
        let host = MockHost::new(reader(reconcile, all)).with(object::<Secret>("s", json!({"type": what})));
        assert_eq!(host.reconcile(S).unwrap_err().message, format!("the query is not valid: {problem}"));
    }
}

#[test]
fn an_object_that_is_too_large_is_an_error_with_its_size() {
    fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
        let list = ctx.cache().list::<ConfigMap>();
        if secret.immutable == Some(true) {
            assert_eq!(list.fields::<Value>(["data.color"]).into_iter().count(), 1);
        } else {
            list.into_iter().try_for_each(|map| map.map(drop))?;
        }
        Ok(Outcome::new())
    }
    let huge = object::<ConfigMap>("m", json!({"data": {"huge": "x".repeat(5 << 20), "color": "red"}}));
    let mut host = MockHost::new(reader(reconcile, all)).with(secret("s")).with(huge);
    let message = host.reconcile(S).unwrap_err().message;
    assert!(message.starts_with("an object of 5") && message.ends_with("read some of its fields"), "{message}");
    host.edit::<Secret>(S, |secret| secret.immutable = Some(true));
    host.reconcile(S).unwrap();
}

#[test]
fn a_page_ends_before_four_mebibytes() {
    fn reconcile(ctx: &Context, _: &Secret) -> Result<Outcome, Error> {
        let names = ctx.cache().list::<ConfigMap>().into_iter().map(|map| map.map(|map| map.name().to_owned()));
        Err(Error::terminal(names.collect::<Result<Vec<_>, _>>()?.join(" ")))
    }
    let mut host = MockHost::new(reader(reconcile, all)).with(secret("s"));
    for i in 0..5 {
        host.put(object::<ConfigMap>(&format!("m-{i}"), json!({"data": {"large": "x".repeat(2 << 20)}})));
    }
    assert_eq!(host.reconcile(S).unwrap_err().message, "m-0 m-1 m-2 m-3 m-4");
}

/// Returns a plugin for ConfigMaps with one watch of Secrets for each mapping. A Secret's label `by` selects the watch.
fn mapped() -> Plugin {
    let by = |how: &str| Watch::of::<Secret>().labels(format!("by={how}"));
    let named = |_: &Cache<'_>, change: &Change<Secret>| {
        let names = change.sides().filter_map(|secret| secret.metadata.annotations.as_ref()?.get("maps"));
        Ok(names.flat_map(|names| names.split(' ')).map(|name| change.key().beside(name)).collect())
    };
    let controller = Controller::of::<ConfigMap>()
        .watches_with(by("owner"), Mapping::owner())
        .watches_with(by("any-owner"), Mapping::any_owner())
        .watches_with(by("same-key"), Mapping::same_key())
        .watches_with(by("label"), Mapping::label("map"))
        .watches_with(by("index"), Mapping::index("color"))
        .watches_with(by("function").when(Predicate::annotations()), Mapping::with(named))
        .reconcile(|_, _| Ok(Outcome::new()));
    Plugin::new("Is woken.").index::<ConfigMap>("color", "data.color").controller(controller)
}

#[test]
fn a_mapping_wakes_the_keys_that_it_finds() {
    let owner = |name: &str, controller: bool| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        controller: Some(controller),
        ..OwnerReference::default()
    };
    let owners = json!([owner("a", true), owner("b", false)]);
    for (name, by, metadata, expected) in [
        ("s", "owner", json!({"ownerReferences": owners}), vec!["a"]),
        ("s", "any-owner", json!({"ownerReferences": owners}), vec!["a", "b"]),
        ("b", "same-key", json!({}), vec!["b"]),
        ("nowhere", "same-key", json!({}), vec![]),
        ("s", "label", json!({"labels": {"map": "c"}}), vec!["c"]),
        ("red", "index", json!({}), vec!["a", "b", "c"]),
        ("green", "index", json!({}), vec![]),
        ("s", "function", json!({"annotations": {"maps": "c a nowhere"}}), vec!["a", "c"]),
    ] {
        let mut host =
            ["a", "b", "c"].into_iter().fold(MockHost::new(mapped), |host, name| host.with(map(name, json!({}))));
        let mut secret = object::<Secret>(name, json!({ "metadata": metadata }));
        secret.metadata.labels.get_or_insert_default().insert("by".to_owned(), by.to_owned());
        let woken = host.woken_by(|host| host.put(secret));
        let expected: Vec<Key> = expected.into_iter().map(|name| Key::new("default", name)).collect();
        assert_eq!(woken, expected, "{by} of {name}");
    }
}

#[test]
fn both_sides_of_a_change_are_mapped_if_it_matters() {
    let secret = |maps: &str, data: &str| -> Secret {
        let metadata = json!({"labels": {"by": "function"}, "annotations": {"maps": maps}});
        object("s", json!({"metadata": metadata, "stringData": {"a": data}}))
    };
    let mut host = MockHost::new(mapped).with(map("a", json!({}))).with(map("b", json!({}))).with(secret("a", "1"));
    let key = |name: &str| Key::new("default", name);
    assert_eq!(host.woken_by(|host| host.put(secret("a", "2"))), [], "the predicate is about annotations");
    assert_eq!(host.woken_by(|host| host.put(secret("b", "2"))), [key("a"), key("b")]);
    assert_eq!(host.woken_by(|host| drop(host.remove::<Secret>(("default", "s")))), [key("b")]);
}

#[test]
fn a_wake_has_its_reason() {
    fn plugin() -> Plugin {
        fn reconcile(ctx: &Context, _: &Secret) -> Result<Outcome, Error> {
            ctx.cache().get::<ConfigMap>(ctx.key().beside("m"))?;
            Ok(Outcome::new())
        }
        let controller = |name: &str| Controller::of::<Secret>().named(name).without_status().owns::<ConfigMap>();
        Plugin::new("Wakes.").controller(controller("one").reconcile(reconcile)).controller(
            controller("two").watches::<ConfigMap>(Mapping::label("for")).reconcile(|_, _| Ok(Outcome::new())),
        )
    }
    let mut host = MockHost::new(plugin).with(secret("s"));
    host.request(S).controller("one").run().unwrap();
    let wake = |controller: &str, by| Wake { controller: controller.to_owned(), key: Key::from(S), by };
    assert_eq!(
        host.wakes(|host| host.put(map("m", json!({"for": "s"})))),
        [wake("one", By::Read), wake("two", By::Mapping)]
    );
    let touch = |host: &mut MockHost| host.edit::<Secret>(S, |secret| secret.immutable = Some(true));
    assert_eq!(host.wakes(touch), [wake("one", By::Itself), wake("two", By::Itself)]);
}

#[test]
#[should_panic(expected = "the plugin cannot map: cannot map v1 Secret default/s: on request")]
fn a_mapping_that_fails_fails_the_test() {
    fn plugin() -> Plugin {
        let fails = Mapping::with(|_, _: &Change<Secret>| Err(Error::retry("on request")));
        let controller = Controller::of::<ConfigMap>().watches(fails).reconcile(|_, _| Ok(Outcome::new()));
        Plugin::new("Fails.").controller(controller)
    }
    MockHost::new(plugin).wakes(|host| host.put(secret("s")));
}

/// Logs each change, and fails for a ConfigMap with the key `fail`.
fn observing() -> Plugin {
    let seen = |_: &ObserverContext, seen: &Observed<ConfigMap>| {
        let value = |map: &ConfigMap| map.data.iter().flatten().map(|(_, value)| value.as_str()).collect::<String>();
        if seen.change.latest().data.iter().flatten().any(|(key, _)| key == "fail") {
            return Err(Error::retry("on request"));
        }
        let what = match &seen.change {
            Change::Added(new) => format!("+{}", value(new)),
            Change::Updated { old, new } => format!("{}>{}", value(old), value(new)),
            Change::Deleted(last) => format!("-{}", value(last)),
        };
        let initial = if seen.initial { " initial" } else { "" };
        info!("seen", what = format!("{} {what} {} {}{initial}", seen.change.key().name, seen.merged, seen.missed));
        Ok(())
    };
    Plugin::new("Observes.").observe(Watch::of::<ConfigMap>().labels("seen"), seen)
}

fn valued(name: &str, key: &str, value: &str) -> ConfigMap {
    object(name, json!({"metadata": {"labels": {"seen": "yes"}}, "data": {key: value}}))
}

/// Calls the observer once. Returns what it logged, and whether it succeeded.
fn observe(host: &mut MockHost) -> (Vec<String>, bool) {
    let before = host.lines().len();
    let succeeded = host.observe().is_ok();
    let lines = host.lines().into_iter().skip(before).map(|line| line.fields[0].1.clone());
    (lines.collect(), succeeded)
}

#[test]
fn an_observer_gets_changes_in_order_and_once() {
    let mut host = MockHost::new(observing).with(valued("a", "v", "1")).with(map("unseen", json!({})));
    let m = |name: &'static str| ("default", name);
    assert_eq!(observe(&mut host), (vec!["a +1 1 false initial".to_owned()], true));
    assert_eq!(observe(&mut host), (vec![], true));

    host.put(valued("b", "v", "1"));
    host.put(valued("a", "v", "2"));
    host.put(valued("b", "v", "2"));
    assert_eq!(observe(&mut host), (vec!["b +2 2 false".to_owned(), "a 1>2 1 false".to_owned()], true));

    host.put(valued("c", "v", "1"));
    host.remove::<ConfigMap>(m("c"));
    host.put(valued("a", "v", "3"));
    host.lose::<ConfigMap>(m("a"));
    host.edit::<ConfigMap>(m("b"), |map| map.metadata.labels = None);
    let expected = ["c -1 2 false", "a -3 2 true", "b -2 1 false"].map(ToOwned::to_owned);
    assert_eq!(observe(&mut host), (expected.into(), true));
}

#[test]
fn a_failed_observer_gets_its_changes_again_with_newer_ones() {
    let mut host = MockHost::new(observing).with(valued("a", "v", "1")).with(valued("b", "fail", "1"));
    assert_eq!(observe(&mut host), (vec!["a +1 1 false initial".to_owned()], false));
    host.put(valued("b", "v", "2"));
    let both = ["a +1 1 false initial", "b +2 2 false initial"].map(ToOwned::to_owned);
    assert_eq!(observe(&mut host), (both.into(), true));
}

#[test]
fn partial_metadata_is_a_kind_too() {
    fn plugin() -> Plugin {
        fn reconcile(ctx: &Context, node: &PartialObjectMeta<Node>) -> Result<Outcome, Error> {
            let pods = ctx.cache().list::<PartialObjectMeta<Pod>>().into_iter().collect::<Result<Vec<_>, _>>()?;
            Err(Error::terminal(format!("{} {}", node.name(), pods.len())))
        }
        let nodes = Watch::of::<PartialObjectMeta<Node>>().metadata_only();
        let pods = Watch::of::<PartialObjectMeta<Pod>>().metadata_only();
        Plugin::new("Counts.").controller(Controller::watching(nodes).reads_with(pods).reconcile(reconcile))
    }
    let mut node = Node::default();
    node.metadata.name = Some("n".to_owned());
    let pod = object::<Pod>("p", json!({"spec": {"containers": []}}));
    let host = MockHost::new(plugin).with(node).with(pod);
    assert_eq!(host.reconcile(Key::cluster("n")).unwrap_err().message, "n 1");
}

#[test]
fn permissions_to_read_are_asked_for() {
    let manifest =
        pilothouse_sdk::mock::describe(reader(|_, _| Ok(Outcome::new()), || all().namespaces(["shop"])), "{}");
    let asked = manifest.unwrap().permissions.into_iter();
    let asked = asked.map(|permission| (permission.of.to_string(), permission.verbs, permission.namespaces));
    assert_eq!(
        asked.collect::<Vec<_>>(),
        [
            ("v1 Secret".to_owned(), vec![Verb::Read], vec![]),
            ("v1 ConfigMap".to_owned(), vec![Verb::Read], vec!["shop".to_owned()]),
        ]
    );
}

#[test]
fn a_manifest_that_is_not_valid_is_rejected_with_the_reason() {
    fn controller() -> pilothouse_sdk::ControllerBuilder<Secret> {
        Controller::of::<Secret>()
    }
    fn with(controller: pilothouse_sdk::ControllerBuilder<Secret>) -> Plugin {
        Plugin::new("Is not valid.").controller(controller.reconcile(|_, _| Ok(Outcome::new())))
    }
    type Case = (fn() -> Plugin, &'static str);
    let cases: [Case; 14] = [
        (
            || with(controller().reads_with(all().without(["data", "metadata.labels.app"]))),
            "controllers[0].reads[0].without: cannot leave out metadata.labels.app: metadata.labels identifies the object",
        ),
        (
            || with(controller().reads_with(all().without(["data.a", "data[\"a\"]"]))),
            "controllers[0].reads[0].without[1]: data.a is there already",
        ),
        (
            || with(controller().reads_with(all().metadata_only())).index::<ConfigMap>("color", "data.color"),
            "indexes[0].path: data.color is not cached: `metadata-only` or `without` leave it out",
        ),
        (
            || with(controller().owns_with(all().metadata_only())),
            "controllers[0].owns[0].metadata-only: must be false: the host compares children whole",
        ),
        (
            || with(controller().reads_with(all().fields("data"))),
            "controllers[0].reads[0].fields: \"data\": \"data\" has no `=` or `!=`",
        ),
        (
            || with(controller().reads_with(all().without(["data."]))),
            "controllers[0].reads[0].without[0]: \"data.\": expected a name at byte 5",
        ),
        (
            || with(controller().when(Predicate::cel("object.spec =="))),
            "controllers[0].for.when[0][0].cel: \"object.spec ==\": Syntax error",
        ),
        (
            || with(controller().watches::<ConfigMap>(Mapping::index("color"))),
            "controllers[0].watches[0].mapping.index: none of `indexes` has the name \"color\"",
        ),
        (
            || with(controller()).index::<Secret>("a", "type").index::<Secret>("a", "type"),
            "indexes[1].name: \"a\" names another index already",
        ),
        (
            || with(controller()).index::<Secret>("a b", "type"),
            "indexes[0].name: \"a b\" must be 1 to 63 letters, digits, `-`, `_` and `.`",
        ),
        (
            || with(controller().watches::<ConfigMap>(Mapping::label("for it"))),
            "controllers[0].watches[0].mapping.label: \"for it\" is no label key",
        ),
        (|| with(controller().reads_with(all().labels("!a,".repeat(65)))), "…: has more than 64 requirements"),
        (
            || with(controller()).index::<Node>("a", "metadata.name"),
            "indexes[0]: no controller is for, owns, watches or reads v1 Node",
        ),
        (
            || {
                let either = |i: usize| Predicate::cel(format!("a{i}")).or(Predicate::cel(format!("b{i}")));
                let watch = (0..9).fold(Watch::of::<Secret>(), |watch, i| watch.when(either(i)));
                with(Controller::watching(watch))
            },
            "the watch of v1 Secret: a predicate has more than 64 alternatives",
        ),
    ];
    for (plugin, expected) in cases {
        let panic = std::panic::catch_unwind(|| drop(MockHost::new(plugin))).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains(expected), "{message}\nexpected {expected}");
    }
}
