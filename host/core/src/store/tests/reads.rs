//! Reads by index, page by page, and through snapshots.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use super::*;

/// Keys of all that `query` asks for, page by page, each looking at no more than `work` objects.
fn read(store: &Store, query: Query<'_>, snapshot: Option<&Snapshot>, work: usize) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut after = query.after.cloned();
    loop {
        let page = store.page(&Query { after: after.as_ref(), ..query }, snapshot, work).unwrap();
        assert!(page.items.len() <= work.min(query.limit), "{} items", page.items.len());
        keys.extend(page.items.iter().map(|object| object.key().clone()));
        match page.next {
            None => return keys,
            next => {
                assert!(next > after, "a page that goes nowhere: {after:?}");
                after = next;
            }
        }
    }
}

fn values(object: &Object, path: &str) -> Vec<String> {
    let object: Value = serde_json::from_str(&object.json()).unwrap();
    match path {
        "metadata.labels.app" => Vec::from_iter(object["metadata"]["labels"]["app"].as_str().map(str::to_owned)),
        "metadata.ownerReferences[*].uid" => {
            let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            owners.iter().map(|owner| owner["uid"].as_str().unwrap().to_owned()).collect()
        }
        _ => panic!("{path}"),
    }
}

/// Checks all kinds of reads against a scan of the model. Both paths must be indexed.
fn check_pages(store: &Store, snapshot: Option<&Snapshot>, model: &BTreeMap<Key, Arc<Object>>) {
    let afters = [None, Some(Key::new(None, "b")), Some(Key::new(Some("one"), "b")), Some(Key::new(Some("q"), "b"))];
    let model: Vec<_> =
        model.iter().map(|(key, object)| (key, object, PATHS.map(|path| values(object, path)))).collect();
    let mut indexes = vec![None];
    for number in 0..PATHS.len() {
        indexes.extend(["web", "o1", "none"].map(|value| Some((number, value))));
    }
    for (number, selector) in SELECTORS.map(|text| Selector::parse(text).unwrap()).iter().enumerate() {
        for (turn, index) in indexes.iter().enumerate() {
            let parsed = index.map(|(path_number, value)| (path(PATHS[path_number]), value));
            // Every selector meets every index, and some of the rest.
            for namespace in [None, [Some(""), Some("one"), Some("none")][(number + turn) % 3]] {
                let after = afters[(number + turn) % afters.len()].as_ref();
                let expected = model.iter().filter(|(key, object, values)| {
                    namespace.is_none_or(|namespace| in_namespace(key) == namespace)
                        && after.is_none_or(|after| *key > after)
                        && selector.matches(object.labels())
                        && index.is_none_or(|(path_number, value)| values[path_number].iter().any(|one| one == value))
                });
                let expected: Vec<Key> = expected.map(|(key, ..)| (*key).clone()).collect();
                let index = parsed.as_ref().map(|(path, value)| (path, *value));
                let query = Query { namespace, after, index, limit: 1 + turn % 5, ..Query::new(selector) };
                let found = read(store, query, snapshot, 1 + number % 7);
                assert_eq!(found, expected, "{selector} {index:?} in {namespace:?} after {after:?}");
            }
        }
    }
}

/// What every read through a snapshot should see.
struct Opened {
    snapshot: Snapshot,
    model: BTreeMap<Key, Arc<Object>>,
    /// What was seen when an own write came.
    shown: Vec<(Key, Option<Arc<Object>>)>,
    /// Of that, what was not the present before: nobody heard of a change from it.
    uncovered: Vec<(Key, Option<Arc<Object>>)>,
}

fn copy(store: &Store) -> BTreeMap<Key, Arc<Object>> {
    store.iter().map(|object| (object.key().clone(), object.clone())).collect()
}

proptest! {
    #[test]
    fn snapshot_sees_what_was_there_and_own_writes(calls in prop::collection::vec(call(), 1..80)) {
        let mut store = Store::new(of());
        let mut opened: [Option<Opened>; 3] = [const { None }; 3];
        for path in PATHS.map(path) {
            store.add_index(&path);
        }
        store.build_indexes(0);
        for call in calls {
            match call {
                Call::Snapshot(which) => {
                    let (snapshot, model) = (store.snapshot(), copy(&store));
                    opened[which] = Some(Opened { snapshot, model, shown: Vec::new(), uncovered: Vec::new() });
                }
                Call::EndSnapshot(which) => opened[which] = None,
                Call::DropIndex(_) => continue,
                _ => {}
            }
            let before = copy(&store);
            let (_, own) = apply(&mut store, &call);
            check_tables(&store);
            for Opened { snapshot, model, shown, uncovered } in opened.iter_mut().flatten() {
                if let Some(key) = &own {
                    shown.push((key.clone(), model.get(key).cloned()));
                    if model.get(key) != before.get(key) {
                        uncovered.push((key.clone(), model.get(key).cloned()));
                    }
                    match store.get(key.namespace.as_deref(), &key.name) {
                        Some(object) => model.insert(key.clone(), object.clone()),
                        None => model.remove(key),
                    };
                }
                for key in (0..12).map(|number| variant(number, 1).key().clone()) {
                    prop_assert_eq!(store.get_at(snapshot, &key), model.get(&key));
                }
                let seen: BTreeMap<_, _> = store.superseded(snapshot).unwrap().collect();
                for (key, object) in &seen {
                    prop_assert_eq!(*object, model.get(*key));
                }
                let changes = changes_since(&store, snapshot);
                for change in &changes {
                    let key = change.key();
                    prop_assert_eq!(&change.new, &store.get(key.namespace.as_deref(), &key.name).cloned());
                    let is_seen = seen.get(key).is_some_and(|then| *then == change.old.as_ref());
                    prop_assert!(is_seen || shown.contains(&(key.clone(), change.old.clone())), "{}", key);
                }
                for (key, then) in seen.iter().map(|(key, then)| (*key, *then)).chain(uncovered.iter().map(|(key, then)| (key, then.as_ref()))) {
                    let new = store.get(key.namespace.as_deref(), &key.name);
                    let is_told = |change: &Change| change.key() == key && change.old.as_ref() == then;
                    prop_assert!(then == new || changes.iter().any(is_told), "{}", key);
                }
                let mut now = copy(&store);
                for (key, object) in seen {
                    match object {
                        Some(object) => now.insert(key.clone(), object.clone()),
                        None => now.remove(key),
                    };
                }
                prop_assert_eq!(&now, &*model);
            }
        }
        check_pages(&store, None, &copy(&store));
        for Opened { snapshot, model, .. } in opened.iter().flatten() {
            check_pages(&store, Some(snapshot), model);
        }
        drop(opened);
        store.release();
        prop_assert_eq!(store.past.bytes(), 0, "nothing is kept for nobody");
    }
}

/// Reads all of them, three keys at a time.
fn changes_since(store: &Store, snapshot: &Snapshot) -> Vec<Change> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (changes, last) = store.changes_since(snapshot, after.as_ref(), 3).unwrap();
        all.extend(changes);
        match last {
            Some(last) => after = Some(last),
            None => return all,
        }
    }
}

#[test]
fn an_object_that_an_own_write_hides_is_reported() {
    let mut store = listed(vec![plain("a", "u", 5), plain("b", "v", 6)], 10);
    let (key, other) = (Key::new(Some("ns"), "a"), Key::new(Some("ns"), "b"));
    let snapshot = store.snapshot();
    let version = |store: &Store, key| store.get_at(&snapshot, key).map(|object| object.resource_version().0);
    store.upsert(plain("a", "u", 11));
    assert_eq!(version(&store, &key), Some(5));
    // The answer comes after the event: nothing is news, and yet the read is another.
    assert_eq!(store.upsert_own(plain("a", "u", 11)), None);
    assert_eq!(version(&store, &key), Some(11));
    store.upsert(plain("b", "v", 12));
    store.leave_own(&other, &Uid::parse("v"), ResourceVersion(13));
    assert_eq!(version(&store, &other), None);
    let changes: Vec<_> = changes_since(&store, &snapshot).iter().map(said).collect();
    assert_eq!(changes, ["u@5 -> u@11", "v@6 -> none"]);
    check_tables(&store);
}

#[test]
fn nothing_is_kept_while_no_snapshot_is_open() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    drop(store.snapshot());
    store.upsert(plain("a", "u", 11));
    assert_eq!(store.past.bytes(), 0);
    let snapshot = store.snapshot();
    store.upsert(plain("a", "u", 12));
    assert!(store.past.bytes() > 0);
    drop(snapshot);
    store.release();
    assert_eq!(store.past.bytes(), 0);
}

#[test]
fn snapshots_share_what_they_see() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    let snapshots: Vec<_> = (0..100).map(|_| store.snapshot()).collect();
    for version in 11..1000 {
        store.upsert(plain("a", "u", version));
    }
    assert_eq!(past::tests::sizes(&store.past), (1, 1), "what came between is seen by none");
    let key = Key::new(Some("ns"), "a");
    assert!(snapshots.iter().all(|snapshot| store.get_at(snapshot, &key).unwrap().resource_version().0 == 5));
}

#[test]
fn many_snapshots_that_ended_leave_nothing_behind_an_old_one() {
    let mut store = listed(vec![plain("a", "u", 5)], 10);
    let oldest = store.snapshot();
    for version in 11..10_000 {
        let _ended = store.snapshot();
        store.upsert(plain("b", "v", version));
    }
    let (epochs, _) = past::tests::sizes(&store.past);
    assert!(epochs < 16, "{epochs}");
    assert_eq!(store.get_at(&oldest, &Key::new(Some("ns"), "b")), None);
}

#[test]
fn oldest_snapshot_is_given_up_when_too_much_is_superseded() {
    let mut store = Store::new(of());
    let (old, twin) = (store.snapshot(), store.snapshot());
    for version in 1..=MAX_SUPERSEDED as u64 {
        store.upsert(plain(&format!("o{version}"), &format!("u{version}"), version));
    }
    let young = store.snapshot();
    assert_eq!(store.snapshots_given_up(), 0);
    assert_eq!(store.superseded(&old).map(Iterator::count), Some(MAX_SUPERSEDED));
    assert_eq!(store.snapshots(), 3);
    store.upsert(plain("one-more", "u", 1 << 20));
    assert_eq!((store.snapshots(), store.snapshots_given_up()), (1, 2));
    assert_eq!(store.changes_since(&old, None, 1), None);
    assert!(store.superseded(&old).is_none() && store.superseded(&twin).is_none());
    assert_eq!(store.superseded(&young).map(Iterator::count), Some(1));
    let key = Key::new(Some("ns"), "one-more");
    assert!(store.get_at(&old, &key).is_some(), "it sees the present");
    assert!(store.get_at(&young, &key).is_none());
    let all = Selector::default();
    assert_eq!(read(&store, Query::new(&all), Some(&old), 5_000).len(), MAX_SUPERSEDED + 1);
    assert_eq!(read(&store, Query::new(&all), Some(&young), 5_000).len(), MAX_SUPERSEDED);
    check_tables(&store);
}

#[test]
fn superseded_bytes_are_bounded() {
    let mut store = Store::new(of());
    let big = labels(&[("x", &"x".repeat(1 << 20))]);
    for i in 0..40 {
        store.upsert(object("ns", &format!("o{i}"), &format!("u{i}"), i + 1, &big, &Value::Null));
    }
    let snapshot = store.snapshot();
    for i in 0..40 {
        store.remove(&plain(&format!("o{i}"), &format!("u{i}"), 100 + i));
    }
    assert!(store.superseded(&snapshot).is_none());
    assert_eq!(store.snapshots_given_up(), 1);
    assert!(store.past.bytes() < MAX_SUPERSEDED_BYTES + (1 << 20));
}

#[test]
fn index_is_read_only_when_it_is_complete() {
    let path = path(PATHS[0]);
    let all = Selector::default();
    let mut store = Store::new(of());
    for i in 0..10 {
        let labels = labels(&[("app", "web")]);
        store.upsert(object("ns", &format!("o{i}"), &format!("u{i}"), i + 1, &labels, &Value::Null));
    }
    let query = Query { index: Some((&path, "web")), ..Query::new(&all) };
    assert_eq!(store.page(&query, None, 100), Err(IndexError::Missing(path.clone())));
    assert!(store.drop_index(&path).is_none());
    store.add_index(&path);
    store.add_index(&path);
    assert!(!store.build_indexes(6));
    assert_eq!(store.page(&query, None, 100), Err(IndexError::Building(path.clone())));
    store.upsert(plain("o0", "u0", 20));
    store.upsert(plain("o9", "u9", 21));
    assert!(store.build_indexes(6));
    let page = store.page(&query, None, 100).unwrap();
    assert_eq!(
        page.items.iter().map(|o| &*o.key().name).collect::<Vec<_>>(),
        ["o1", "o2", "o3", "o4", "o5", "o6", "o7", "o8"]
    );
    assert_eq!(page.next, None);
    assert!(store.drop_index(&path).is_some());
    assert!(store.page(&query, None, 100).is_ok(), "it was added twice");
    assert!(store.drop_index(&path).is_some());
    assert_eq!(store.page(&query, None, 100), Err(IndexError::Missing(path.clone())));
    assert_eq!(IndexError::Missing(path).to_string(), "there is no index by metadata.labels.app");
}

#[test]
fn page_that_finds_too_little_goes_on_where_it_stopped() {
    let objects = (0..100).map(|i| {
        let labels = labels(&[(if i == 57 { "rare" } else { "common" }, "x"), ("app", "web")]);
        object("ns", &format!("o{i:02}"), &format!("u{i}"), 1, &labels, &Value::Null)
    });
    let store = listed(objects.collect(), 10);
    let selector = Selector::parse("!common").unwrap();
    let query = Query::new(&selector);
    let first = store.page(&query, None, 30).unwrap();
    assert_eq!(first, Page { items: Vec::new(), next: Some(Key::new(Some("ns"), "o29")) });
    let second = store.page(&Query { after: first.next.as_ref(), ..query }, None, 30).unwrap();
    assert_eq!(second.items.iter().map(|o| &*o.key().name).collect::<Vec<_>>(), ["o57"]);
    assert_eq!(second.next, Some(Key::new(Some("ns"), "o59")));
    assert_eq!(read(&store, query, None, 1), [Key::new(Some("ns"), "o57")]);
}
