//! Informers without a server: compression, introductions and moments.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use pilothouse_core::{key::Key, object::Object, store::MAX_SUPERSEDED};

use super::{config_maps, config_maps_in};
use crate::{
    informer::{
        Informer, InformerKey, Lease, Moment, Origin,
        lease::LeaseRequest,
        packing,
        registry::{DriverTask, Registry},
        shared::Shared,
    },
    testing::config_map,
};

#[tokio::test(start_paused = true)]
async fn compression_frees_memory_and_keeps_every_object() {
    let informer = Informer::new(InformerKey::all(config_maps()), Arc::new(Shared::default()));
    let filled = |number: u64| {
        let mut object = config_map(&format!("map-{number}"));
        object["metadata"]["uid"] = number.to_string().into();
        object["metadata"]["resourceVersion"] = (number + 1).to_string().into();
        object["data"] = (0..100)
            .map(|line| {
                (format!("setting-{line}.properties"), format!("{:x}", number.wrapping_mul(0x9e37_79b9 + line)).into())
            })
            .collect::<serde_json::Map<String, serde_json::Value>>()
            .into();
        Object::parse(object.to_string().as_bytes(), &config_maps()).expect("it is an object")
    };
    let objects: Vec<_> = (0..500).map(filled).collect();
    objects.iter().for_each(|object| informer.upsert(object.clone()));
    let (count, plain) = informer.size();
    informer.set_compressed(true);
    let done = async {
        while informer.packing().is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = packing::run(&informer) => panic!("compression never ends by itself"),
        () = done => {}
    }
    let (still, packed) = informer.size();
    assert_eq!(still, count);
    assert!(packed < plain * 2 / 3, "{packed} bytes of {plain}");
    let cache = informer.cache.read();
    let held: Vec<_> = objects.iter().map(|object| cache.store.get(Some("default"), &object.key().name)).collect();
    assert!(objects.iter().zip(held).all(|(object, held)| held.is_some_and(|held| held.json() == object.json())));
}

/// A ConfigMap with this version.
fn version_of(name: &str, version: u64) -> Object {
    let json = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default","uid":"{name}","resourceVersion":"{version}"}}}}"#
    );
    Object::parse(json.as_bytes(), &config_maps()).expect("an object")
}

/// A lease on all ConfigMaps whose informer has no driver.
fn lease_without_driver() -> (Arc<Registry>, Lease) {
    let registry = Arc::new(Registry::new(Box::new(|_| DriverTask(None))));
    let lease = registry.acquire(LeaseRequest::new(InformerKey::all(config_maps()), "test"));
    (registry, lease)
}

#[test]
fn a_subscriber_that_is_introduced_in_steps_misses_nothing_and_receives_nothing_twice() {
    let (_registry, lease) = lease_without_driver();
    let informer = lease.informer();
    let name = |number: u64| format!("o{number:03}");
    (0..200).for_each(|number| informer.upsert(version_of(&name(number), number + 1)));
    informer.mark_synced();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let received = heard.clone();
    let (subscription, introduced) = lease.begin(Box::new(move |change, origin| {
        let version = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |object| object.resource_version().0);
        let name = change.key().name.to_string();
        received.lock().push((name, version(&change.old), version(&change.new), origin));
    }));
    assert!(!introduced);
    let first = heard.lock().len();
    assert!((1..100).contains(&first), "{first} under one lock");
    // A known object changes, and an unknown one twice. One is deleted, one is deleted and recreated, one is created
    // and deleted.
    informer.upsert(version_of("o000", 1_000));
    informer.upsert(version_of("o150", 1_001));
    informer.upsert(version_of("o150", 1_002));
    informer.remove(&version_of("o160", 1_003));
    informer.remove(&version_of("o170", 1_004));
    informer.upsert(version_of("o170", 1_005));
    informer.upsert(version_of("o180a", 1_006));
    informer.remove(&version_of("o180a", 1_007));
    let (change, initial) = (Origin::Change, Origin::Initial);
    let expected = [
        ("o000", 1, 1_000, change),
        ("o150", 0, 151, initial),
        ("o150", 151, 1_001, change),
        ("o150", 1_001, 1_002, change),
        ("o160", 0, 161, initial),
        ("o160", 161, 0, change),
        ("o170", 0, 171, initial),
        ("o170", 171, 0, change),
        ("o170", 0, 1_005, change),
        ("o180a", 0, 1_006, change),
        ("o180a", 1_006, 0, change),
    ];
    let expected = expected.map(|(name, old, new, origin)| (name.to_owned(), old, new, origin));
    assert_eq!(heard.lock().split_off(first), expected);
    let mut steps = 1;
    while !lease.introduce(subscription) {
        steps += 1;
    }
    assert!(steps > 1);
    informer.upsert(version_of("o199", 1_008));
    let heard = heard.lock();
    let rest: Vec<_> = heard[first..].iter().map(|(name, old, new, _)| (name.clone(), *old, *new)).collect();
    let remaining = (first as u64..200).filter(|number| ![150, 160, 170].contains(number));
    let expected = remaining.map(|number| (name(number), 0, number + 1)).chain([(name(199), 200, 1_008)]);
    assert_eq!(rest, expected.collect::<Vec<_>>());
}

#[test]
fn superseded_versions_are_freed_with_their_moment() {
    let (_registry, lease) = lease_without_driver();
    let (informer, key) = (lease.informer(), Key::new(Some("default"), "a"));
    informer.upsert(version_of("a", 10));
    let empty = informer.size();
    let (one, other) = (Moment::default(), Moment::default());
    for moment in [&one, &other] {
        assert_eq!(lease.get_at(Some(moment), &key).map(|object| object.resource_version().0), Some(10));
    }
    informer.upsert(version_of("a", 11));
    let kept = informer.size();
    assert!(kept > empty, "{kept:?} {empty:?}");
    drop(one);
    assert_eq!((informer.size(), informer.snapshots()), (kept, 1));
    drop(other);
    assert_eq!((informer.size(), informer.snapshots()), (empty, 0));
}

#[test]
fn a_moment_that_is_given_up_shows_the_present_counts_as_changed_and_is_counted() {
    let (_registry, lease) = lease_without_driver();
    let (informer, key) = (lease.informer(), Key::new(Some("default"), "a"));
    informer.upsert(version_of("a", 1));
    let mut moment = Moment::default();
    let shown = |moment| lease.get_at(Some(moment), &key).map(|object| object.resource_version().0);
    assert_eq!(shown(&moment), Some(1));
    informer.upsert(version_of("a", 2));
    assert_eq!(shown(&moment), Some(1));
    for version in 3..3 + MAX_SUPERSEDED as u64 {
        informer.upsert(version_of(&format!("o{version}"), version));
    }
    assert_eq!(shown(&moment), Some(2));
    assert!(moment.hides(|_| false));
    assert_eq!((informer.tally().snapshots_given_up, informer.snapshots()), (1, 0));
}

#[test]
fn an_informer_is_compressed_while_all_its_leases_allow_it() {
    let registry = Arc::new(Registry::new(Box::new(|_| DriverTask(None))));
    let acquire =
        |key: InformerKey, compressed| registry.acquire(LeaseRequest { compressed, ..LeaseRequest::new(key, "test") });
    let one = acquire(InformerKey::all(config_maps()), true);
    let informer = one.informer();
    let is_compressed = || {
        registry.tend();
        informer.is_compressed()
    };
    assert!(is_compressed());
    let two = acquire(config_maps_in("default"), false);
    assert!(!is_compressed());
    two.set_compressed(true);
    assert!(is_compressed());
    two.set_compressed(false);
    assert!(!is_compressed());
    drop(two);
    assert!(is_compressed());
}
