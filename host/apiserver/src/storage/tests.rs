//! Laws of the store: any kept past can be read again, and any watch leads from its past to the present.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// What is there, by name.
type State = BTreeMap<String, Value>;

fn maps() -> GroupResource {
    GroupResource::new("", "configmaps")
}

fn write(store: &Store, name: &str, round: usize, remove: bool) {
    let key = Key::new("", name);
    let value = json!({"metadata": {"name": name, "uid": name}, "round": round});
    match store.get(&maps(), &key) {
        None => drop(store.create(&maps(), value, || {})),
        Some(current) if remove => drop(store.remove(&maps(), &current, current.value.clone(), || {})),
        Some(current) => drop(store.update(&maps(), &current, value, || {})),
    }
}

fn state(store: &Store, at: Option<u64>) -> std::result::Result<State, Compacted> {
    let snapshot = store.list(&maps(), None, None, at)?;
    Ok(snapshot.objects.iter().map(|object| (object.key().name.to_string(), object.value.clone())).collect())
}

/// The state at `revision`, brought forward by the log in steps of `batch`.
fn replayed(store: &Store, revision: u64, batch: usize) -> State {
    let mut found = state(store, Some(revision)).unwrap();
    let mut seen = revision;
    while seen < store.revision() {
        let (events, next) = store.events(&maps(), seen, batch).unwrap();
        for event in events {
            assert!(event.revision > seen && event.revision <= next);
            let name = event.object.key().name.to_string();
            let before = event.previous.as_ref().map(|object| object.value.clone());
            assert_eq!(found.get(&name).cloned(), before);
            match event.change {
                Change::Deleted => found.remove(&name),
                Change::Added | Change::Modified => found.insert(name, event.object.value.clone()),
            };
        }
        seen = next;
    }
    found
}

proptest! {
    #[test]
    fn every_revision_can_be_listed_and_watched_from(
        writes in proptest::collection::vec((0..5usize, any::<bool>()), 1..60),
        batch in 1..7usize,
    ) {
        let store = Store::new();
        let mut past = vec![(store.revision(), State::new())];
        for (round, (index, remove)) in writes.into_iter().enumerate() {
            write(&store, &format!("m{index}"), round, remove);
            past.push((store.revision(), state(&store, None).unwrap()));
        }
        let (_, now) = past.last().unwrap().clone();
        for (revision, then) in past {
            prop_assert_eq!(&state(&store, Some(revision)).unwrap(), &then);
            prop_assert_eq!(&replayed(&store, revision, batch), &now);
        }
    }
}

#[test]
fn the_log_is_bounded_and_says_from_where_it_can_be_read() {
    let store = Store::new();
    let start = store.revision();
    for round in 0..=HISTORY_EVENTS {
        write(&store, "a", round, false);
    }
    let oldest = store.events(&maps(), start, 1).unwrap_err().oldest;
    assert_eq!(oldest, start + 1);
    assert_eq!(store.events(&maps(), oldest, 1).unwrap().0[0].revision, oldest + 1);
    assert_eq!(state(&store, Some(start)).unwrap_err(), Compacted { oldest });
}

#[test]
fn a_quiet_resource_keeps_its_past_while_another_is_busy() {
    let store = Store::new();
    let quiet = GroupResource::new("", "secrets");
    store.create(&quiet, json!({"metadata": {"name": "s", "uid": "s"}}), || {}).unwrap();
    let then = store.revision();
    for round in 0..=HISTORY_EVENTS {
        write(&store, "a", round, false);
    }
    let (events, seen) = store.events(&quiet, then, 1).unwrap();
    assert!(events.is_empty());
    assert_eq!(seen, store.revision());
}

#[test]
fn a_commit_on_what_was_overtaken_is_refused() {
    let store = Store::new();
    write(&store, "a", 0, false);
    let old = store.get(&maps(), &Key::new("", "a")).unwrap();
    write(&store, "a", 1, false);
    assert_eq!(store.update(&maps(), &old, old.value.clone(), || panic!("not committed")).unwrap_err(), Refused::Stale);
    assert_eq!(store.remove(&maps(), &old, old.value.clone(), || panic!("not committed")).unwrap_err(), Refused::Stale);
    assert_eq!(store.create(&maps(), old.value.clone(), || panic!("not committed")).unwrap_err(), Refused::Exists);
}
