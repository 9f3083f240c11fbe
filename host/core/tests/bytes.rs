//! `Store::bytes` against an allocator that counts: what the store says it holds is what it asked for.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

#[path = "support/counting.rs"]
mod counting;

use counting::live;

use pilothouse_core::{
    field::FieldPath,
    key::TypeMeta,
    object::{Object, ResourceVersion},
    store::Store,
};

const OBJECTS: u64 = 5_000;

fn pod(number: u64, version: u64) -> Object {
    // Names that come in no order.
    let name = number.wrapping_mul(2_654_435_761) % (1 << 32);
    let (namespace, owner, node) = (number % 10, number, number % 50);
    let text = format!(
        r#"{{"metadata":{{"name":"web-{name:08x}","namespace":"ns-{namespace}","uid":"{number:08x}-0000-4000-8000-000000000000",
        "resourceVersion":"{version}","labels":{{"app":"web","number":"{number}","part":"{namespace}"}},
        "ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-{owner}","uid":"{owner:08x}-0000-4000-9000-000000000000"}}]}},
        "spec":{{"nodeName":"node-{node}","ports":[{{"port":{node}}},{{"port":{number}}}]}},"status":{{"phase":"Running"}}}}"#
    );
    Object::parse(text.as_bytes(), &TypeMeta::new("v1", "Pod")).unwrap()
}

/// Where both stand now, and that they are the same but for a few in a hundred.
fn compare(when: &str, store: &Store, before: usize) -> usize {
    let (says, holds) = (store.bytes(), live().wrapping_sub(before));
    assert!(says.abs_diff(holds) * 100 <= holds * 5 + 100 * 4096, "{when}: says {says}, holds {holds}");
    holds
}

#[test]
fn bytes_are_those_that_were_allocated() {
    let before = live();
    let mut store = Store::new(TypeMeta::new("v1", "Pod"));
    for number in 0..OBJECTS {
        store.upsert(pod(number, number + 1));
    }
    let filled = compare("filled", &store, before);

    for path in ["spec.nodeName", "spec.ports[*].port", "metadata.labels.number"] {
        store.add_index(&FieldPath::parse(path).unwrap());
    }
    while !store.build_indexes(1_000) {}
    let indexed = compare("indexed", &store, before);

    let snapshot = store.snapshot();
    for number in 0..OBJECTS / 2 {
        store.upsert(pod(number, OBJECTS + number + 1));
    }
    compare("superseded", &store, before);
    drop(snapshot);
    store.release();
    compare("released", &store, before);

    // Four times as many come and go.
    for round in 1..=4 {
        for number in 0..OBJECTS {
            store.upsert(pod(round * OBJECTS + number, 2 * round * OBJECTS + number));
            store.remove(&pod((round - 1) * OBJECTS + number, (2 * round + 1) * OBJECTS + number));
        }
    }
    let churned = compare("churned", &store, before);
    assert!(churned < indexed * 3 / 2, "{indexed} grew to {churned}");

    store.begin_replace(false);
    drop(store.finish_replace(ResourceVersion(1 << 40)));
    let empty = compare("empty", &store, before);
    assert!(empty < filled / 20, "{empty} of {filled} are left");
}
