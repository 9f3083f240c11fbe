#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{set::Order, *};
use crate::selector::Selector;

mod reads;
mod world;

fn of() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

fn labels(pairs: &[(&str, &str)]) -> Value {
    json!(pairs.iter().copied().collect::<BTreeMap<_, _>>())
}

fn owners(uids: &[&str]) -> Value {
    let owner = |uid| json!({"apiVersion": "v1", "kind": "Owner", "name": format!("name-of-{uid}"), "uid": uid});
    uids.iter().map(owner).collect()
}

fn object(namespace: &str, name: &str, uid: &str, version: u64, labels: &Value, owners: &Value) -> Object {
    let metadata = json!({
        "namespace": namespace, "name": name, "uid": uid, "resourceVersion": version.to_string(),
        "labels": labels, "ownerReferences": owners,
    });
    Object::parse(json!({"metadata": metadata}).to_string().as_bytes(), &of()).unwrap()
}

fn plain(name: &str, uid: &str, version: u64) -> Object {
    object("ns", name, uid, version, &Value::Null, &Value::Null)
}

/// A store that has listed `objects` at `version`.
fn listed(objects: Vec<Object>, version: u64) -> Store {
    let mut store = Store::new(of());
    store.begin_replace(false);
    for object in objects {
        store.upsert(object);
    }
    store.finish_replace(ResourceVersion(version));
    store
}

/// Returns the stored objects as "name@version".
fn held(store: &Store) -> Vec<String> {
    store.iter().map(|object| format!("{}@{}", object.key().name, object.resource_version())).collect()
}

/// A change as "old@version -> new@version".
fn said(change: &Change) -> String {
    let side = |object: &Option<Arc<Object>>| {
        object.as_ref().map_or("none".into(), |object| format!("{}@{}", object.uid(), object.resource_version()))
    };
    format!("{} -> {}", side(&change.old), side(&change.new))
}

fn versions(change: Option<Change>) -> Option<String> {
    change.map(|change| said(&change))
}

/// Checks every table against the slots, and every count.
fn check_tables(store: &Store) {
    let slots: BTreeMap<u32, &Arc<Object>> =
        (0..).zip(&store.slots).filter_map(|(slot, held)| Some((slot, &held.as_ref()?.object))).collect();
    assert_eq!(store.len(), slots.len());
    assert_eq!(store.object_bytes, slots.values().map(|object| object.bytes()).sum::<usize>());

    let names: BTreeMap<_, _> = store
        .names
        .iter()
        .flat_map(|(namespace, names)| {
            set::tests::check(names, Order(&store.slots)).into_iter().map(move |slot| (&**namespace, slot))
        })
        .map(|(namespace, slot)| ((namespace, &*store.object(slot).key().name), slot))
        .collect();
    let expected: BTreeMap<_, _> =
        slots.iter().map(|(slot, object)| ((in_namespace(object.key()), &*object.key().name), *slot)).collect();
    assert_eq!(names, expected);
    assert!(store.names.values().all(|names| names.len() > 0), "no namespace is kept empty");
    assert_eq!(store.keys.len(), slots.len());
    for (slot, object) in &slots {
        assert_eq!(store.find_key(object.key()), Some(*slot));
    }
    index::tests::check(&store.owners, &store.labels, &slots, Order(&store.slots));
    fields::tests::check(&store.fields, &store.slots);
    past::tests::check(&store.past);
}

#[test]
fn an_object_that_a_list_names_and_nobody_can_read_is_not_gone() {
    let mut store = listed(vec![plain("a", "u", 1), plain("b", "v", 2)], 2);
    store.begin_replace(false);
    store.keep(&Key::new(Some("ns"), "a"));
    store.keep(&Key::new(Some("ns"), "unheard-of"));
    let gone = store.finish_replace(ResourceVersion(9));
    assert_eq!(gone.iter().map(said).collect::<Vec<_>>(), ["v@2 -> none"]);
    assert_eq!(held(&store), ["a@1"]);
}

#[test]
fn invariant_3_an_own_write_out_of_the_selector_and_in_again_is_seen() {
    let mut store = listed(vec![plain("a", "u", 2)], 2);
    let key = Key::new(Some("ns"), "a");
    assert_eq!(versions(store.leave_own(&key, &Uid::parse("u"), ResourceVersion(5))).as_deref(), Some("u@2 -> none"));
    // The watch lags.
    assert_eq!(versions(store.upsert(plain("a", "u", 4))), None);
    assert_eq!(versions(store.upsert_own(plain("a", "u", 6))).as_deref(), Some("none -> u@6"));
    assert_eq!(versions(store.remove(&plain("a", "u", 5))), None);
    assert_eq!(versions(store.upsert(plain("a", "u", 6))), None);
    assert_eq!(held(&store), ["a@6"]);
    assert_eq!(versions(store.leave_own(&key, &Uid::parse("u"), ResourceVersion(6))), None);
}

#[test]
fn invariant_4_an_own_write_from_before_a_bookmark_says_nothing() {
    let mut store = listed(vec![], 2);
    store.advance(ResourceVersion(7));
    assert_eq!(store.covered(), ResourceVersion(7));
    assert_eq!(versions(store.upsert_own(plain("a", "u", 6))), None);
    assert_eq!(versions(store.upsert_own(plain("a", "u", 8))).as_deref(), Some("none -> u@8"));
    // Its events during a list belong to the previous watch.
    store.begin_replace(true);
    store.advance(ResourceVersion(9));
    assert_eq!(store.covered(), ResourceVersion(0));
}

#[test]
fn a_change_has_the_old_and_the_new_object() {
    let mut store = Store::new(of());
    assert_eq!(versions(store.upsert(plain("a", "u", 1))).as_deref(), Some("none -> u@1"));
    assert_eq!(versions(store.upsert(plain("a", "u", 2))).as_deref(), Some("u@1 -> u@2"));
    let change = store.remove(&plain("a", "u", 3)).unwrap();
    assert_eq!(said(&change), "u@2 -> none");
    assert_eq!(change.key(), &Key::new(Some("ns"), "a"));
    assert!(store.is_empty());
    assert_eq!(store.remove(&plain("a", "u", 3)), None);
}

#[test]
fn invariant_3_own_write_is_read_before_the_watch_delivers_it() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    assert_eq!(versions(store.upsert_own(plain("a", "u", 12))).as_deref(), Some("u@5 -> u@12"));
    assert_eq!(versions(store.upsert_own(plain("b", "v", 13))).as_deref(), Some("none -> v@13"));
    assert_eq!(versions(store.upsert(plain("a", "u", 11))), None, "the watch lags");
    assert_eq!(versions(store.upsert(plain("a", "u", 12))), None, "the event that repeats the write");
    assert_eq!(versions(store.upsert(plain("b", "v", 13))), None, "the event that repeats the create");
    assert_eq!(held(&store), ["a@12", "b@13"]);
}

#[test]
fn invariant_3_own_write_survives_a_list_that_began_before_it() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    store.begin_replace(false);
    store.upsert_own(plain("a", "u", 21));
    store.upsert_own(plain("b", "v", 22));
    assert_eq!(store.upsert(plain("a", "u", 5)), None);
    assert_eq!(store.finish_replace(ResourceVersion(20)), []);
    assert_eq!(held(&store), ["a@21", "b@22"]);
}

#[test]
fn invariant_3_own_answer_that_comes_late_does_not_raise_the_dead() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    // Our patch gave version 11, and someone deleted the object at 12: the watch was faster than the answer.
    store.upsert(plain("a", "u", 11));
    store.remove(&plain("a", "u", 12));
    assert_eq!(store.upsert_own(plain("a", "u", 11)), None);
    // The same with a list instead of the watch.
    store.begin_replace(false);
    store.finish_replace(ResourceVersion(20));
    assert_eq!(store.upsert_own(plain("b", "v", 15)), None);
    assert!(store.is_empty());
}

#[test]
fn invariant_3_own_delete_is_not_undone_by_lagging_events() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    let key = Key::new(Some("ns"), "a");
    assert_eq!(versions(store.remove_own(&key, &Uid::parse("u"))).as_deref(), Some("u@5 -> none"));
    assert_eq!(store.upsert(plain("a", "u", 11)), None, "an event from before the delete");
    assert_eq!(store.upsert_own(plain("a", "u", 12)), None, "an answer from before the delete");
    assert_eq!(store.remove(&plain("a", "u", 13)), None, "its own DELETED");
    assert_eq!(versions(store.upsert(plain("a", "w", 14))).as_deref(), Some("none -> w@14"), "another life");
    assert_eq!(store.remove_own(&key, &Uid::parse("u")), None);
    assert_eq!(held(&store), ["a@14"]);
}

#[test]
fn invariant_3_own_delete_is_not_undone_by_a_list_that_was_under_way() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    store.begin_replace(false);
    store.remove_own(&Key::new(Some("ns"), "a"), &Uid::parse("u"));
    assert_eq!(store.upsert(plain("a", "u", 5)), None);
    assert_eq!(store.finish_replace(ResourceVersion(20)), []);
    assert_eq!(store.upsert(plain("a", "u", 21)), None, "the watch still has to come to the delete");
    assert_eq!(store.remove(&plain("a", "u", 22)), None);
    assert!(!store.deleted.hides(&plain("a", "u", 5)), "nothing older can come any more");
}

#[test]
fn invariant_3_own_delete_is_not_undone_by_an_earlier_life_of_the_name() {
    let mut store = listed(vec![], 10);
    // Someone created and deleted the first; the watch has brought neither.
    store.upsert_own(plain("a", "second", 13));
    store.remove_own(&Key::new(Some("ns"), "a"), &Uid::parse("second"));
    assert_eq!(store.upsert(plain("a", "first", 11)), None);
    assert_eq!(store.remove(&plain("a", "first", 12)), None);
    assert_eq!(store.upsert(plain("a", "second", 13)), None);
    assert_eq!(store.remove(&plain("a", "second", 14)), None);
    assert_eq!(versions(store.upsert(plain("a", "third", 15))).as_deref(), Some("none -> third@15"));
}

#[test]
fn invariant_4_older_version_never_replaces_newer() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    store.upsert(plain("a", "u", 12));
    assert_eq!(store.upsert(plain("a", "u", 11)), None);
    assert_eq!(store.upsert(plain("a", "u", 12)), None);
    assert_eq!(store.upsert_own(plain("a", "u", 11)), None);
    assert_eq!(store.remove(&plain("a", "u", 11)), None);
    assert_eq!(held(&store), ["a@12"]);
}

#[test]
fn invariant_4_earlier_life_never_replaces_a_later_one() {
    let mut store = listed(vec![plain("a", "first", 5)], 10);
    assert_eq!(versions(store.upsert_own(plain("a", "second", 15))).as_deref(), Some("first@5 -> second@15"));
    assert_eq!(store.upsert(plain("a", "first", 12)), None);
    assert_eq!(store.remove(&plain("a", "first", 13)), None);
    assert_eq!(held(&store), ["a@15"]);
}

#[test]
fn invariant_4_restored_history_is_accepted_as_a_whole() {
    let mut store = listed(vec![plain("a", "u", 90), plain("b", "v", 91), plain("c", "w", 50)], 100);
    store.remove_own(&Key::new(Some("ns"), "b"), &Uid::parse("v"));
    store.upsert_own(plain("d", "x", 105));
    store.begin_replace(true);
    assert_eq!(versions(store.upsert(plain("a", "u", 40))).as_deref(), Some("u@90 -> u@40"));
    assert_eq!(versions(store.upsert(plain("b", "v", 41))).as_deref(), Some("none -> v@41"), "the delete is undone");
    assert_eq!(store.upsert(plain("c", "w", 50)), None, "what is the same is no news");
    assert_eq!(store.upsert(plain("a", "u", 39)), None, "the new history has an order too");
    let gone = store.finish_replace(ResourceVersion(60));
    assert_eq!(gone.iter().map(said).collect::<Vec<_>>(), ["x@105 -> none"]);
    assert_eq!(held(&store), ["a@40", "b@41", "c@50"]);
    assert_eq!(versions(store.upsert(plain("a", "u", 61))).as_deref(), Some("u@40 -> u@61"));
    assert_eq!(versions(store.upsert_own(plain("e", "y", 62))).as_deref(), Some("none -> y@62"));
}

#[test]
fn invariant_4_what_a_restore_that_raised_versions_undid_becomes_what_the_list_says() {
    let mut store =
        listed(vec![plain("a", "u", 90), plain("b", "v", 91), plain("c", "w", 50), plain("e", "y", 92)], 100);
    store.begin_replace(false);
    assert_eq!(store.upsert(plain("a", "u", 40)), None, "an own write may not have come to the list");
    assert_eq!(store.upsert(plain("b", "before", 41)), None);
    assert_eq!(store.upsert(plain("c", "w", 50)), None);
    assert_eq!(versions(store.upsert_own(plain("d", "x", 1_005))).as_deref(), Some("none -> x@1005"));
    assert_eq!(store.upsert(plain("e", "y", 42)), None);
    assert_eq!(versions(store.upsert_own(plain("e", "y", 1_006))).as_deref(), Some("y@92 -> y@1006"));
    let changes = store.finish_replace(ResourceVersion(1_000));
    let mut changes: Vec<_> = changes.iter().map(said).collect();
    changes.sort();
    assert_eq!(changes, ["u@90 -> u@40", "v@91 -> before@41"]);
    assert_eq!(held(&store), ["a@40", "b@41", "c@50", "d@1005", "e@1006"]);
}

#[test]
fn invariant_3_own_delete_of_what_a_restore_brought_back_holds_against_its_list() {
    let mut store = listed(vec![plain("a", "second", 90)], 100);
    store.begin_replace(false);
    assert_eq!(store.upsert(plain("a", "first", 40)), None);
    assert_eq!(store.remove_own(&Key::new(Some("ns"), "a"), &Uid::parse("first")), None);
    let changes = store.finish_replace(ResourceVersion(1_000));
    assert_eq!(changes.iter().map(said).collect::<Vec<_>>(), ["second@90 -> none"]);
    assert!(store.is_empty());
}

#[test]
fn the_last_word_of_a_streaming_list_counts() {
    let mut store = listed(vec![plain("a", "u", 5), plain("b", "v", 5), plain("c", "w", 5)], 6);
    store.begin_replace(false);
    for name in ["a", "b", "c"] {
        let uid = held_uid(&store, name);
        store.upsert_own(plain(name, &uid, 8));
        // What there was when it began, and what came after.
        assert_eq!(store.upsert(plain(name, &uid, 5)), None);
    }
    assert_eq!(store.upsert(plain("a", "u", 8)), None);
    assert_eq!(versions(store.upsert(plain("b", "v", 9))).as_deref(), Some("v@8 -> v@9"));
    assert_eq!(versions(store.remove(&plain("c", "w", 9))).as_deref(), Some("w@8 -> none"));
    assert_eq!(store.finish_replace(ResourceVersion(9)), []);
    assert_eq!(held(&store), ["a@8", "b@9"]);
}

fn held_uid(store: &Store, name: &str) -> String {
    store.get(Some("ns"), name).unwrap().uid().to_string()
}

#[test]
fn invariant_4_version_given_out_twice_is_not_taken_for_the_same() {
    let mut store = listed(vec![object("ns", "a", "u", 50, &labels(&[("x", "old")]), &Value::Null)], 100);
    store.begin_replace(true);
    let change = store.upsert(object("ns", "a", "u", 50, &labels(&[("x", "new")]), &Value::Null));
    assert_eq!(versions(change).as_deref(), Some("u@50 -> u@50"));
}

#[test]
fn invariant_4_own_write_in_a_restored_history_holds_against_its_list() {
    let mut store = listed(vec![plain("a", "u", 90), plain("b", "v", 91)], 100);
    store.begin_replace(true);
    assert_eq!(versions(store.upsert_own(plain("a", "u", 62))).as_deref(), Some("u@90 -> u@62"));
    assert_eq!(versions(store.upsert_own(plain("c", "w", 63))).as_deref(), Some("none -> w@63"));
    assert_eq!(store.upsert(plain("a", "u", 40)), None);
    let gone = store.finish_replace(ResourceVersion(60));
    assert_eq!(gone.iter().map(said).collect::<Vec<_>>(), ["v@91 -> none"]);
    assert_eq!(held(&store), ["a@62", "c@63"]);
}

#[test]
fn invariant_4_own_delete_in_a_restored_history_does_not_hide_what_follows() {
    let mut store = listed(vec![plain("a", "u", 90)], 100);
    store.begin_replace(true);
    assert_eq!(
        versions(store.remove_own(&Key::new(Some("ns"), "a"), &Uid::parse("u"))).as_deref(),
        Some("u@90 -> none")
    );
    assert_eq!(versions(store.upsert_own(plain("a", "v", 62))).as_deref(), Some("none -> v@62"));
}

#[test]
fn invariant_5_delete_missed_by_the_watch_is_found_by_the_relist() {
    let mut store = listed(vec![plain("a", "u", 5), plain("b", "v", 6)], 10);
    store.begin_replace(false);
    assert_eq!(store.upsert(plain("b", "v", 6)), None, "equal versions are no news");
    let gone = store.finish_replace(ResourceVersion(20));
    assert_eq!(gone.iter().map(said).collect::<Vec<_>>(), ["u@5 -> none"]);
    assert_eq!(held(&store), ["b@6"]);
}

#[test]
fn invariant_5_a_deletion_ends_the_last_delivered_state() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    let held = store.get(Some("ns"), "a").cloned();
    // An event between was not understood.
    let last = object("ns", "a", "u", 12, &labels(&[("x", "last")]), &Value::Null);
    assert_eq!(store.remove(&last), Some(Change { old: held, new: None, missed: false }));
}

#[test]
fn own_write_that_leaves_the_selector_ends_earlier_objects_of_the_name() {
    let mut store = listed(vec![plain("a", "first", 5)], 10);
    let held = store.get(Some("ns"), "a").cloned();
    let leave = |store: &mut Store, version| {
        store.leave_own(&Key::new(Some("ns"), "a"), &Uid::parse("second"), ResourceVersion(version))
    };
    assert_eq!(leave(&mut store, 14), Some(Change { old: held, new: None, missed: true }));
    // What the watch still brings of them.
    assert_eq!(store.upsert(plain("a", "first", 11)), None);
    assert_eq!(store.remove(&plain("a", "first", 12)), None);
    assert_eq!(store.upsert(plain("a", "second", 13)), None);
    assert_eq!(versions(store.upsert(plain("a", "second", 15))).as_deref(), Some("none -> second@15"));
    assert_eq!(leave(&mut store, 14), None, "what is held is newer");
}

#[test]
fn aborted_list_sweeps_nothing() {
    let mut store = listed(vec![plain("a", "u", 5), plain("b", "v", 6)], 10);
    store.begin_replace(false);
    store.upsert(plain("a", "u", 15));
    store.abort_replace();
    assert_eq!(held(&store), ["a@15", "b@6"]);
    assert_eq!(store.finish_replace(ResourceVersion(20)), [], "nothing had begun");
    store.begin_replace(false);
    store.upsert(plain("b", "v", 6));
    let gone = store.finish_replace(ResourceVersion(20));
    assert_eq!(gone.iter().map(said).collect::<Vec<_>>(), ["u@15 -> none"]);
}

#[test]
fn own_deletes_are_remembered_within_bounds() {
    let mut store = Store::new(of());
    for i in 0..100_000 {
        store.remove_own(&Key::new(None, "x"), &Uid::parse(&format!("uid-{i}")));
    }
    assert!(store.deleted.hides(&plain("x", "uid-99999", 1)));
    assert!(!store.deleted.hides(&plain("x", "uid-0", 1)));
    let full = store.bytes();
    assert!(full < 4 << 20, "{full}");
    for _ in 0..2 {
        store.begin_replace(false);
        store.finish_replace(ResourceVersion(1));
    }
    assert!(!store.deleted.hides(&plain("x", "uid-99999", 1)), "two lists later nothing can lag so far");
    assert!(store.bytes() < 1000, "{}", store.bytes());
}

#[test]
fn equal_texts_are_held_once() {
    let mut store = Store::new(of());
    store.upsert(object("ns", "a", "u", 1, &Value::Null, &Value::Null));
    store.upsert(object("ns", "b", "v", 2, &Value::Null, &Value::Null));
    store.upsert(object("ns", "a", "u", 3, &Value::Null, &Value::Null));
    let [a, b] = ["a", "b"].map(|name| store.get(Some("ns"), name).unwrap());
    assert!(Arc::ptr_eq(a.key().namespace.as_ref().unwrap(), b.key().namespace.as_ref().unwrap()));
    assert!(std::ptr::eq(&*a.type_meta().kind, &*store.type_meta().kind));
}

#[test]
fn large_sets_shrink_again() {
    let mut store = Store::new(of());
    let (labels, owners) = (labels(&[("app", "web")]), owners(&["owner"]));
    index_labels(&mut store);
    let empty = store.bytes();
    for i in 0..1000 {
        store.upsert(object("ns", &format!("o{i}"), &format!("u{i}"), i + 1, &labels, &owners));
        check_tables_sometimes(&store, i);
    }
    let full = store.bytes();
    for i in 0..1000 {
        store.remove(&object("ns", &format!("o{i}"), &format!("u{i}"), 2000 + i, &labels, &owners));
        check_tables_sometimes(&store, i);
    }
    assert!(store.is_empty());
    // What stays are empty slots and tables.
    assert!(store.bytes() - empty < full / 4, "{empty} {full} {}", store.bytes());
    assert_eq!(store.owned_by(&Uid::parse("owner")).count(), 0);
}

/// Asks for some, and builds what was missing.
fn index_labels(store: &mut Store) {
    let selector = Selector::parse("app").unwrap();
    assert!(!store.lacks_labels());
    store.page(&Query::new(&selector), None, 1).unwrap();
    assert!(store.lacks_labels());
    assert!(store.build_indexes(usize::MAX));
    assert!(!store.lacks_labels());
}

#[test]
fn labels_are_indexed_when_somebody_has_asked_for_some() {
    let labelled = |i: u64, version| {
        let labels = labels(&[("app", "web"), ("number", &i.to_string())]);
        object("ns", &format!("o{i}"), &format!("u{i}"), version, &labels, &Value::Null)
    };
    let mut store = listed((0..100).map(|i| labelled(i, 1 + i)).collect(), 100);
    let selector = Selector::parse("number=7").unwrap();
    let found = |store: &Store| {
        let page = store.page(&Query::new(&selector), None, 1000).unwrap();
        page.items.iter().map(|object| object.key().name.to_string()).collect::<Vec<_>>()
    };
    assert!(store.build_indexes(0), "nobody has asked");
    let before = store.bytes();
    assert_eq!(found(&store), ["o7"]);
    assert!(!store.build_indexes(50));
    // Changes come in between, on both sides of where it stands.
    for i in [7, 8, 77] {
        store.remove(&labelled(i, 200 + i));
    }
    store.upsert(labelled(7, 300));
    store.upsert(labelled(101, 301));
    check_tables(&store);
    assert_eq!(found(&store), ["o7"]);
    assert!(store.build_indexes(60));
    check_tables(&store);
    assert_eq!(found(&store), ["o7"]);
    assert!(store.bytes() > before + 1000, "it is there now");
    // One look at one object is enough.
    let page = store.page(&Query::new(&selector), None, 1).unwrap();
    assert_eq!((page.items.len(), page.next), (1, None));
}

fn check_tables_sometimes(store: &Store, i: u64) {
    if i.is_multiple_of(50) || !(40..=960).contains(&i) {
        check_tables(store);
    }
}

#[test]
fn list_goes_on_after_a_key_that_is_gone() {
    let objects = ["a/x", "a/z", "b/a", "b/c"].map(|key| {
        let (namespace, name) = key.split_once('/').unwrap();
        object(namespace, name, key, 1, &Value::Null, &Value::Null)
    });
    let store = listed(objects.into(), 10);
    let keys = |namespace, after: Key| {
        store.list(namespace, &Selector::default(), Some(&after)).map(|o| o.key().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(keys(None, Key::new(Some("a"), "y")), ["a/z", "b/a", "b/c"]);
    assert_eq!(keys(None, Key::new(Some("aa"), "y")), ["b/a", "b/c"]);
    assert_eq!(keys(Some("b"), Key::new(Some("a"), "y")), ["b/a", "b/c"]);
    assert_eq!(keys(Some("b"), Key::new(Some("b"), "b")), ["b/c"]);
    assert_eq!(keys(Some("a"), Key::new(Some("b"), "b")), [""; 0]);
    assert_eq!(keys(None, Key::new(None, "zzz")), ["a/x", "a/z", "b/a", "b/c"]);
}

/// One call to the store.
#[derive(Clone, Debug)]
enum Call {
    Upsert(usize, u64),
    UpsertOwn(usize, u64),
    LeaveOwn(usize, u64),
    Remove(usize, u64),
    RemoveOwn(usize),
    Begin(bool),
    Finish(u64),
    Abort,
    AddIndex(usize),
    Build(usize),
    DropIndex(usize),
    /// Opens a snapshot, in place of one that was opened before.
    Snapshot(usize),
    EndSnapshot(usize),
    Release,
}

fn call() -> impl Strategy<Value = Call> {
    let object = || (0_usize..24, 1_u64..60);
    prop_oneof![
        12 => object().prop_map(|(object, version)| Call::Upsert(object, version)),
        4 => object().prop_map(|(object, version)| Call::UpsertOwn(object, version)),
        2 => object().prop_map(|(object, version)| Call::LeaveOwn(object, version)),
        4 => object().prop_map(|(object, version)| Call::Remove(object, version)),
        2 => (0_usize..24).prop_map(Call::RemoveOwn),
        1 => prop::bool::weighted(0.3).prop_map(Call::Begin),
        1 => (1_u64..60).prop_map(Call::Finish),
        1 => Just(Call::Abort),
        1 => (0_usize..2).prop_map(Call::AddIndex),
        2 => (1_usize..20).prop_map(Call::Build),
        1 => (0_usize..2).prop_map(Call::DropIndex),
        2 => (0_usize..3).prop_map(Call::Snapshot),
        1 => (0_usize..3).prop_map(Call::EndSnapshot),
        1 => Just(Call::Release),
    ]
}

/// Makes the call. Returns the changes, and the key of an own answer.
fn apply(store: &mut Store, call: &Call) -> (Vec<Change>, Option<Key>) {
    let own = match *call {
        Call::UpsertOwn(object, version) | Call::LeaveOwn(object, version) => {
            Some(variant(object, version).key().clone())
        }
        Call::RemoveOwn(object) => Some(variant(object, 1).key().clone()),
        _ => None,
    };
    let changes = match *call {
        Call::Upsert(object, version) => Vec::from_iter(store.upsert(variant(object, version))),
        Call::UpsertOwn(object, version) => Vec::from_iter(store.upsert_own(variant(object, version))),
        Call::LeaveOwn(object, version) => {
            let object = variant(object, version);
            Vec::from_iter(store.leave_own(object.key(), object.uid(), object.resource_version()))
        }
        Call::Remove(object, version) => Vec::from_iter(store.remove(&variant(object, version))),
        Call::RemoveOwn(object) => {
            let object = variant(object, 1);
            Vec::from_iter(store.remove_own(object.key(), object.uid()))
        }
        Call::Finish(version) => store.finish_replace(ResourceVersion(version)),
        Call::Begin(_)
        | Call::Abort
        | Call::AddIndex(_)
        | Call::Build(_)
        | Call::DropIndex(_)
        | Call::Snapshot(_)
        | Call::EndSnapshot(_)
        | Call::Release => Vec::new(),
    };
    match *call {
        Call::Begin(went_back) => store.begin_replace(went_back),
        Call::Abort => store.abort_replace(),
        Call::AddIndex(number) => store.add_index(&path(PATHS[number])),
        Call::Build(work) => {
            store.build_indexes(work);
        }
        Call::DropIndex(number) => {
            drop(store.drop_index(&path(PATHS[number])));
        }
        Call::Release => store.release(),
        _ => {}
    }
    (changes, own)
}

/// Paths of indexes: one value, and several.
const PATHS: [&str; 2] = ["metadata.labels.app", "metadata.ownerReferences[*].uid"];

fn path(text: &str) -> FieldPath {
    FieldPath::parse(text).unwrap()
}

/// One of 24 objects (two lives of twelve keys), whose labels and owners vary with the version.
fn variant(object_number: usize, version: u64) -> Object {
    let namespace = ["", "one", "two"][object_number % 3];
    let name = ["a", "b", "c", "d"][object_number / 3 % 4];
    let all = [("app", "web"), ("app", "db"), ("tier", "x"), ("tier", "\u{e9}\""), ("n", "5"), ("n", "7")];
    let some: Vec<_> = all.iter().enumerate().filter(|(i, _)| version >> i & 1 == 1).map(|(_, pair)| *pair).collect();
    let uids: Vec<_> =
        ["o1", "o2", "o3"].into_iter().enumerate().filter(|(i, _)| version >> (i + 1) & 1 == 1).collect();
    let uids: Vec<_> = uids.into_iter().map(|(_, uid)| uid).collect();
    object(namespace, name, &format!("uid-{object_number}"), version, &labels(&some), &owners(&uids))
}

const SELECTORS: [&str; 11] = [
    "",
    "app",
    "!app",
    "app=web",
    "app!=web",
    "app in (web,db),tier",
    "tier=x,n>5",
    "n<6",
    "none=x",
    "n=5,!tier",
    "app notin (db)",
];

/// Checks reads against a scan of all objects.
fn check_reads(store: &Store) {
    let all: BTreeMap<Key, &Arc<Object>> = store.iter().map(|object| (object.key().clone(), object)).collect();
    assert!(store.iter().map(|object| object.key()).eq(all.keys()), "in the order of keys");
    for (key, object) in &all {
        assert_eq!(store.get(key.namespace.as_deref(), &key.name), Some(*object));
    }
    for owner in ["o1", "o2", "o3", "none"].map(Uid::parse) {
        let found: BTreeSet<_> = store.owned_by(&owner).map(|object| object.key()).collect();
        let expected = all.iter().filter(|(_, object)| object.owners().any(|o| o.uid == owner));
        assert_eq!(found, expected.map(|(key, _)| key).collect());
        assert_eq!(store.owned_by(&owner).count(), found.len(), "each once");
    }
    let afters = [None, Some(Key::new(None, "b")), Some(Key::new(Some("one"), "b")), Some(Key::new(Some("q"), "b"))];
    for selector in SELECTORS.map(|text| Selector::parse(text).unwrap()) {
        for namespace in [None, Some(""), Some("one"), Some("none")] {
            for after in &afters {
                let expected = all.iter().filter(|(key, object)| {
                    namespace.is_none_or(|namespace| in_namespace(key) == namespace)
                        && after.as_ref().is_none_or(|after| *key > after)
                        && selector.matches(object.labels())
                });
                let found = store.list(namespace, &selector, after.as_ref()).map(|object| object.key());
                assert!(found.eq(expected.map(|(key, _)| key)), "{selector} in {namespace:?} after {after:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn indexes_equal_a_rebuild_after_any_calls(calls in prop::collection::vec(call(), 1..80)) {
        let mut store = Store::new(of());
        let mut replica = BTreeMap::new();
        for call in calls {
            let (changes, _) = apply(&mut store, &call);
            // A follower of the changes has the same objects as the store.
            for change in changes {
                let missed = match call {
                    Call::Finish(_) => change.new.is_none(),
                    Call::LeaveOwn(object, version) => change.object().uid() != variant(object, version).uid(),
                    _ => false,
                };
                prop_assert_eq!(change.missed, missed);
                let before = match &change.new {
                    Some(new) => replica.insert(change.key().clone(), new.clone()),
                    None => replica.remove(change.key()),
                };
                prop_assert_eq!(before, change.old);
            }
            prop_assert!(store.iter().eq(replica.values()));
            check_tables(&store);
        }
        check_reads(&store);
        let mut rebuilt = Store::new(of());
        for path in PATHS.map(path) {
            rebuilt.add_index(&path);
            store.add_index(&path);
        }
        prop_assert!(rebuilt.build_indexes(0));
        while !store.build_indexes(3) {}
        for object in store.iter() {
            rebuilt.upsert(Object::clone(object));
        }
        check_tables(&rebuilt);
        check_tables(&store);
        check_reads(&rebuilt);
        prop_assert!(store.iter().eq(rebuilt.iter()));
    }
}
