//! Laws of the store: every kept revision can be read again, and every watch leads from its revision to the present.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Returns the objects by name.
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

/// Returns the state at `revision` after applying the log in steps of `batch`.
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

proptest! {
    #[test]
    fn a_restored_store_goes_on_as_the_saved_one_would_have(
        before in proptest::collection::vec((0..5usize, any::<bool>()), 0..20),
        lost in proptest::collection::vec((0..5usize, any::<bool>()), 0..20),
        after in proptest::collection::vec((0..5usize, any::<bool>()), 0..20),
    ) {
        let write_all = |store: &Store, writes: &[(usize, bool)], round: usize| {
            for (index, remove) in writes {
                write(store, &format!("m{index}"), round, *remove);
            }
        };
        let (store, never_lost) = (Store::new(), Store::new());
        write_all(&store, &before, 0);
        write_all(&never_lost, &before, 0);
        let saved = store.save(|| {});
        write_all(&store, &lost, 1);
        store.restore(&saved, || {});
        write_all(&store, &after, 2);
        write_all(&never_lost, &after, 2);
        prop_assert_eq!(store.revision(), never_lost.revision());
        for revision in 1..=store.revision() {
            prop_assert_eq!(state(&store, Some(revision)), state(&never_lost, Some(revision)));
        }
        prop_assert_eq!(replayed(&store, 1, 3), state(&store, None).unwrap());
    }
}

#[test]
fn a_commit_on_what_a_restore_took_away_is_refused_though_the_revision_is_the_same() {
    let store = Store::new();
    write(&store, "a", 0, false);
    let saved = store.save(|| {});
    write(&store, "a", 1, false);
    let lost = store.get(&maps(), &Key::new("", "a")).unwrap();
    store.restore(&saved, || {});
    write(&store, "a", 2, false);
    let overtaking = store.get(&maps(), &Key::new("", "a")).unwrap();
    assert_eq!(overtaking.value["metadata"]["resourceVersion"], lost.value["metadata"]["resourceVersion"]);
    assert_eq!(
        store.update(&maps(), &lost, lost.value.clone(), || panic!("not committed")).unwrap_err(),
        Refused::Stale
    );
}

#[test]
fn a_restore_ends_subscriptions() {
    let store = Store::new();
    let subscribed = store.subscribe(&maps());
    store.restore(&store.save(|| {}), || {});
    assert!(subscribed.has_changed().is_err());
    assert!(store.subscribe(&maps()).has_changed().is_ok());
}
