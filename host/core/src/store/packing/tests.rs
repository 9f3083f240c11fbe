#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::key::TypeMeta;

fn of() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

/// An object of about 2 kB, like others in its words and unlike them in what they say.
fn object(number: u32, version: u64) -> Object {
    let word = |i: u32| format!("{:08x}", number.wrapping_mul(0x9e37_79b9).rotate_left(i) ^ i);
    let settings: Vec<Value> =
        (0..25).map(|i| json!({"name": format!("SETTING_{i}"), "value": word(i), "enabled": i % 3 == 0})).collect();
    let value = json!({
        "metadata": {
            "name": format!("settings-{number}"), "namespace": "default", "uid": number.to_string(),
            "resourceVersion": version.to_string(), "labels": {"app": word(40), "part": "settings"},
        },
        "settings": settings,
    });
    Object::parse(value.to_string().as_bytes(), &of()).unwrap()
}

fn filled(objects: u32) -> Store {
    let mut store = Store::new(of());
    store.set_compressed(true);
    for number in 0..objects {
        store.upsert(object(number, 1)).unwrap();
    }
    store
}

/// Does all that is to be done; how often a dictionary was trained, and how many objects were looked at.
fn pack_all(store: &mut Store) -> (usize, usize) {
    let (mut trained, mut looked_at) = (0, 0);
    while let Some(work) = store.packing() {
        match &work.0 {
            Task::Train(_) => trained += 1,
            Task::Pack(_, objects) => looked_at += objects.len(),
        }
        let mut done = work.run();
        store.packed(&mut done);
    }
    (trained, looked_at)
}

fn texts(store: &Store) -> Vec<String> {
    store.iter().map(|object| object.json().into_owned()).collect()
}

fn packed(store: &Store) -> usize {
    store.iter().filter(|object| object.dictionary().is_some()).count()
}

#[test]
fn packed_store_reads_as_before_in_less_memory() {
    let mut store = filled(2_000);
    let (before, bytes) = (texts(&store), store.bytes());
    assert_eq!(pack_all(&mut store), (1, 2_000));
    assert_eq!(packed(&store), 2_000);
    assert_eq!(texts(&store), before);
    assert!(2 * store.bytes() < bytes, "{} of {bytes}", store.bytes());
    let selector = crate::selector::Selector::parse("part=settings").unwrap();
    assert_eq!(store.list(None, &selector, None).count(), 2_000);
}

#[test]
fn small_stores_are_left_alone() {
    let mut store = filled(100);
    assert_eq!(pack_all(&mut store), (0, 0));
    assert_eq!(packed(&store), 0);
}

#[test]
fn store_that_is_not_to_be_compressed_has_nothing_to_do() {
    let mut store = filled(2_000);
    store.set_compressed(false);
    assert!(store.packing().is_none());
    store.set_compressed(true);
    assert_eq!(pack_all(&mut store), (1, 2_000));
    store.set_compressed(false);
    store.upsert(object(7, 2)).unwrap();
    assert!(store.packing().is_none());
    assert_eq!(packed(&store), 1_999);
}

#[test]
fn list_that_goes_on_is_packed_after_its_first_thousand() {
    let mut store = Store::new(of());
    store.set_compressed(true);
    store.begin_replace(false);
    for number in 0..999 {
        store.upsert(object(number, 1));
    }
    assert!(store.packing().is_none());
    store.upsert(object(999, 1));
    assert_eq!(pack_all(&mut store), (1, 1_000));
}

#[test]
fn store_that_grew_much_learns_anew_and_still_reads_the_old() {
    let mut store = filled(1_000);
    assert_eq!(pack_all(&mut store), (1, 1_000));
    for number in 1_000..3_999 {
        store.upsert(object(number, 1));
    }
    assert_eq!(pack_all(&mut store), (0, 2_999));
    store.upsert(object(3_999, 1));
    assert_eq!(pack_all(&mut store), (1, 1));
    assert_eq!(store.packing.used.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [3_999, 1]);
    let expected: std::collections::BTreeSet<_> =
        (0..4_000).map(|number| object(number, 1).json().into_owned()).collect();
    assert_eq!(texts(&store).into_iter().collect::<std::collections::BTreeSet<_>>(), expected);
}

#[test]
fn objects_that_changed_meanwhile_are_not_replaced() {
    let mut store = filled(1_000);
    let mut trained = store.packing().unwrap().run();
    store.packed(&mut trained);
    let mut done = store.packing().unwrap().run();
    for number in 0..1_000 {
        store.upsert(object(number, 2)).unwrap();
    }
    store.packed(&mut done);
    assert_eq!(packed(&store), 0);
    assert_eq!(pack_all(&mut store), (0, 1_000));
    assert!(store.iter().all(|object| object.resource_version().0 == 2));
}

#[test]
fn dictionary_counts_once_and_goes_with_its_last_object() {
    let mut store = filled(1_000);
    pack_all(&mut store);
    let objects: usize = store.iter().map(|object| object.bytes()).sum();
    let dictionary = store.iter().next().unwrap().dictionary().unwrap().bytes();
    assert_eq!(store.object_bytes, objects);
    assert_eq!(store.packing.bytes(), store.packing.waiting.allocation_size() + dictionary);
    for number in 0..1_000 {
        store.remove(&object(number, 2)).unwrap();
    }
    store.set_compressed(false);
    assert_eq!(store.packing.bytes(), 0);
    assert_eq!(store.object_bytes, 0);
}

#[test]
fn text_that_would_not_get_smaller_stays_as_it_is() {
    // Labels stand beside what is packed: where they are all that there is, nothing is gained.
    let labels: Vec<_> =
        (0..9_u64).map(|i| format!(r#""l{i}":"{:016x}""#, (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let labels = labels.join(",");
    let text = format!(r#"{{"metadata":{{"name":"a","uid":"u","resourceVersion":"1","labels":{{{labels}}}}}}}"#);
    let object = Object::parse(text.as_bytes(), &of()).unwrap();
    assert_eq!(object.pack(&DICTIONARY), None);
}

static DICTIONARY: LazyLock<Arc<Dictionary>> = LazyLock::new(|| {
    Arc::new(Dictionary::train((0..200).map(|number| object(number, 1).json().into_owned())).unwrap())
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn packing_at_any_time_changes_nothing_but_bytes(events in prop::collection::vec((0_u32..12, 0_u8..6), 1..150)) {
        let (mut plain, mut packing) = (Store::new(of()), Store::new(of()));
        packing.set_compressed(true);
        packing.packing.dictionary = Some(DICTIONARY.clone());
        packing.packing.trained_at = usize::MAX / GROWTH;
        let mut given_out = None;
        for (version, (number, what)) in (2..).zip(events) {
            match what {
                0 => prop_assert_eq!(plain.remove(&object(number, version)), packing.remove(&object(number, version))),
                1 => given_out = packing.packing().map(Work::run),
                2 => if let Some(mut done) = given_out.take() { packing.packed(&mut done) },
                _ => prop_assert_eq!(plain.upsert(object(number, version)), packing.upsert(object(number, version))),
            }
            prop_assert_eq!(texts(&plain), texts(&packing));
            let bytes: usize = packing.iter().map(|object| object.bytes()).sum();
            prop_assert_eq!(packing.object_bytes, bytes);
            let used: usize = packing.packing.used.iter().map(|(_, count)| count).sum();
            prop_assert_eq!(used, packed(&packing));
            prop_assert_eq!(packing.packing.waiting.len() + used, packing.len());
        }
    }
}
