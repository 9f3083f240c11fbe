#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::*;
use crate::store::set;

type Sets<K> = BTreeMap<K, BTreeSet<u32>>;

/// Checks the indexes against ones built anew from the slots, and their counts.
pub(in crate::store) fn check(
    owners: &OwnerIndex,
    labels: &LabelIndex,
    slots: &BTreeMap<u32, &Arc<Object>>,
    order: Order<'_>,
) {
    let set = |set: &Set| set::tests::check(set, order).into_iter().collect::<BTreeSet<_>>();
    let held: Sets<Uid> = owners.owners.iter().map(|(uid, slots)| (uid.clone(), set(slots))).collect();
    let mut expected = Sets::new();
    for (slot, object) in slots {
        for owner in object.owners() {
            expected.entry(owner.uid.clone()).or_default().insert(*slot);
        }
    }
    assert_eq!(held, expected);
    assert_eq!(owners.heap, owners.owners.values().map(Set::heap).sum::<usize>());

    let mut held = Sets::new();
    for (key, of) in &labels.keys {
        assert_eq!(of.count, of.values.values().map(Set::len).sum::<usize>());
        assert!(!of.values.is_empty(), "no key is kept empty");
        held.extend(of.values.iter().map(|(value, slots)| ((key.to_string(), value.to_string()), set(slots))));
    }
    let mut expected = Sets::new();
    for (slot, object) in slots.iter().filter(|(slot, _)| labels.progress.has(**slot)) {
        for (key, value) in object.labels() {
            expected.entry((key.into_owned(), value.into_owned())).or_default().insert(*slot);
        }
    }
    assert_eq!(held, expected);
    let values = labels.keys.values().flat_map(|of| &of.values);
    assert_eq!(labels.heap, values.map(|(value, slots)| value.len() + slots.heap()).sum::<usize>());
}
