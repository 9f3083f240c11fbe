//! Tests `bundle` against the mock host: its results, and what wakes it.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeMap;

use bundle::{Bundle, BundleSpec, BundleStatus, CHECKSUM, FOR, bundle};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::CustomResourceExt;
use pilothouse_sdk::{Key, Permission, Verb, mock::MockHost};

const SHOP: (&str, &str) = ("default", "shop");

fn shop(spec: BundleSpec) -> Bundle {
    let mut shop = Bundle::new("shop", BundleSpec { config_map: "defaults".to_owned(), ..spec });
    shop.metadata.namespace = Some("default".to_owned());
    shop
}

fn map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.metadata.namespace = Some("default".to_owned());
    map.data = Some(pairs(data));
    map
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn labelled(mut map: ConfigMap, labels: &[(&str, &str)]) -> ConfigMap {
    map.metadata.labels = Some(pairs(labels));
    map
}

fn volunteer(mut map: ConfigMap, bundle: &str) -> ConfigMap {
    map.metadata.annotations = Some(pairs(&[(FOR, bundle)]));
    map
}

fn secret(token: &str) -> Secret {
    let mut secret = Secret::default();
    secret.metadata.name = Some("token".to_owned());
    secret.metadata.namespace = Some("default".to_owned());
    secret.type_ = Some("Opaque".to_owned());
    secret.data = Some([("token".to_owned(), ByteString(token.as_bytes().to_vec()))].into());
    secret
}

/// Returns a host with a settled Bundle that uses everything.
fn settled() -> MockHost {
    let spec = BundleSpec {
        selector: Some("bundle=shop".to_owned()),
        secret: Some("token".to_owned()),
        ..BundleSpec::default()
    };
    let mut host = MockHost::new(bundle)
        .with(shop(spec))
        .with(map("defaults", &[("color", "blue"), ("currency", "EUR")]))
        .with(labelled(map("theme", &[("color", "red")]), &[("bundle", "shop")]))
        .with(volunteer(map("payments", &[("url", "https://payments")]), "shop"))
        .with(map("stranger", &[("color", "black")]))
        .with(secret("s3cret"));
    host.settle(SHOP).unwrap();
    host
}

fn checksum(host: &MockHost) -> String {
    let result = host.get::<ConfigMap>(("default", "shop-bundle")).unwrap();
    let checksum = result.metadata.annotations.unwrap().remove(CHECKSUM).unwrap();
    assert_eq!(host.get::<Bundle>(SHOP).unwrap().status.unwrap().checksum, Some(checksum.clone()));
    checksum
}

#[test]
fn what_comes_later_wins() {
    let host = settled();
    let merged = host.get::<ConfigMap>(("default", "shop-bundle")).unwrap();
    let expected = pairs(&[("color", "red"), ("currency", "EUR"), ("url", "https://payments")]);
    assert_eq!(merged.data, Some(expected));
    let status = host.get::<Bundle>(SHOP).unwrap().status.unwrap();
    assert_eq!((status.sources, status.conditions.is_true("Ready")), (4, true));
}

#[test]
fn only_what_is_in_a_bundle_wakes_it() {
    let mut host = settled();
    let mut woken = |what: &str, change: fn(&mut MockHost), expected: bool| {
        let keys = host.woken_by(change);
        assert_eq!(keys, if expected { vec![Key::from(SHOP)] } else { vec![] }, "{what}");
        host.settle(SHOP).unwrap();
    };
    woken("the defaults", |host| host.put(map("defaults", &[("color", "green")])), true);
    woken("the Secret", |host| host.put(secret("s4cret")), true);
    woken("a stranger", |host| host.put(map("stranger", &[("color", "white")])), false);
    woken("a new stranger", |host| host.put(map("another", &[])), false);
    woken("a label", |host| host.put(labelled(map("stranger", &[]), &[("bundle", "shop")])), true);
    woken("no label", |host| host.put(map("stranger", &[])), true);
    woken("an annotation", |host| host.put(volunteer(map("stranger", &[]), "shop")), true);
    woken("another's annotation", |host| host.put(volunteer(map("stranger", &[]), "forge")), true);
    woken("another's still", |host| host.put(volunteer(map("stranger", &[("a", "b")]), "forge")), false);
    woken("its result", |host| drop(host.remove::<ConfigMap>(("default", "shop-bundle"))), true);
    woken("its status", |host| host.edit::<Bundle>(SHOP, |shop| shop.status = None), false);
    woken(
        "its labels",
        |host| host.edit::<Bundle>(SHOP, |shop| shop.metadata.labels = Some(pairs(&[("a", "b")]))),
        false,
    );
    woken("its spec", |host| host.edit::<Bundle>(SHOP, |shop| shop.spec.selector = None), true);
}

#[test]
fn what_is_missing_is_waited_for() {
    let spec = BundleSpec { secret: Some("token".to_owned()), ..BundleSpec::default() };
    let mut host = MockHost::new(bundle).with(shop(spec));
    let mut step = |missing: &str, arrival: fn(&mut MockHost)| {
        let BundleStatus { conditions, .. } = host.settle(SHOP).unwrap().status();
        let ready = conditions.get("Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.message.as_str()), ("False", missing));
        assert_eq!(host.get::<ConfigMap>(("default", "shop-bundle")), None);
        assert_eq!(host.woken_by(arrival), [Key::from(SHOP)]);
    };
    step("the ConfigMap defaults does not exist", |host| host.put(map("defaults", &[])));
    step("the Secret token does not exist", |host| host.put(secret("s3cret")));
    let status: BundleStatus = host.settle(SHOP).unwrap().status();
    assert!(status.conditions.is_true("Ready"));
}

#[test]
fn a_result_stays_while_a_source_is_away() {
    let mut host = settled();
    let before = checksum(&host);
    assert_eq!(host.woken_by(|host| drop(host.remove::<Secret>(("default", "token")))), [Key::from(SHOP)]);
    let outcome = host.settle(SHOP).unwrap();
    assert!(outcome.leaves_children() && !outcome.status::<BundleStatus>().conditions.is_true("Ready"));
    assert_eq!(checksum(&host), before);
}

#[test]
fn the_checksum_follows_every_source_and_nothing_else() {
    let mut host = settled();
    let mut seen = vec![checksum(&host)];
    let changes: [fn(&mut MockHost); 3] = [
        |host| host.put(secret("s4cret")),
        |host| host.put(map("defaults", &[("color", "blue"), ("currency", "USD")])),
        |host| host.put(volunteer(map("payments", &[("url", "https://elsewhere")]), "shop")),
    ];
    for change in changes {
        change(&mut host);
        host.settle(SHOP).unwrap();
        let now = checksum(&host);
        assert!(!seen.contains(&now));
        seen.push(now);
    }
    host.put(map("stranger", &[("color", "white")]));
    host.settle(SHOP).unwrap();
    assert_eq!(seen.last(), Some(&checksum(&host)));
}

#[test]
fn a_selector_that_is_not_valid_is_an_error() {
    let spec = BundleSpec { selector: Some("bundle in shop".to_owned()), ..BundleSpec::default() };
    let host = MockHost::new(bundle).with(shop(spec)).with(map("defaults", &[]));
    let failure = host.reconcile(SHOP).unwrap_err();
    assert!(failure.message.starts_with("the query is not valid: "), "{failure}");
}

#[test]
fn a_secret_that_may_not_be_read_is_an_error() {
    let spec = BundleSpec { secret: Some("token".to_owned()), ..BundleSpec::default() };
    let refused = Permission::of::<Secret>().verbs([Verb::Read]);
    let host = MockHost::new(bundle).refuse(refused).with(shop(spec)).with(map("defaults", &[])).with(secret("s3cret"));
    assert_eq!(
        host.reconcile(SHOP).unwrap_err().message,
        "cannot read the cache: not granted: read v1 Secret default/token: the administrator's file does not allow it; add under grants: - { apiVersion: v1, kind: Secret, verbs: [read], namespaces: [default] }"
    );
}

#[test]
fn a_result_is_no_source_though_the_selector_fits_it() {
    let spec = BundleSpec { selector: Some("!private".to_owned()), ..BundleSpec::default() };
    let mut host = MockHost::new(bundle).with(shop(spec)).with(map("defaults", &[("a", "1"), ("b", "2")]));
    host.settle(SHOP).unwrap();
    host.put(map("defaults", &[("a", "1")]));
    host.settle(SHOP).unwrap();
    let merged = host.get::<ConfigMap>(("default", "shop-bundle")).unwrap();
    assert_eq!(merged.data, Some(pairs(&[("a", "1")])));
    assert_eq!(host.get::<Bundle>(SHOP).unwrap().status.unwrap().sources, 1);
}

#[test]
fn the_custom_resource_definition_is_as_reviewed() {
    insta::assert_snapshot!("crd", serde_saphyr::to_string(&Bundle::crd()).unwrap());
}

#[test]
fn the_administrators_file_grants_exactly_what_is_asked() {
    let file = serde_saphyr::from_str(include_str!("../bundle.yaml")).unwrap();
    MockHost::new(bundle).assert_granted(&file);
}

#[test]
fn the_example_is_a_bundle_and_what_it_names() {
    let text = include_str!("../examples/shop.yaml");
    let objects: Vec<serde_json::Value> = serde_saphyr::from_multiple(text).unwrap();
    let mut host = MockHost::new(bundle).with(serde_json::from_value::<Bundle>(objects[0].clone()).unwrap());
    for map in &objects[1..] {
        host.put(serde_json::from_value::<ConfigMap>(map.clone()).unwrap());
    }
    let status: BundleStatus = host.settle(SHOP).unwrap().status();
    assert_eq!(status.conditions.get("Ready").unwrap().message, "the Secret shop-token does not exist");
    let mut token = secret("s3cret");
    token.metadata.name = Some("shop-token".to_owned());
    assert_eq!(host.woken_by(|host| host.put(token)), [Key::from(SHOP)]);
    assert_eq!(host.settle(SHOP).unwrap().status::<BundleStatus>().sources, 4);
}
