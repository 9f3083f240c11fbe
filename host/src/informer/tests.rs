//! Informers against the embedded API server.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use pilothouse_core::{
    key::{Key, TypeMeta},
    list,
    object::{Keep, Object},
    selector::Selector,
    store::Query,
};
use tokio::{runtime::Handle, sync::mpsc};

mod kinds;
mod local;
mod memory;
mod restores;

use super::{Informer, InformerKey, Informers, Intake, Lease, Moment, Origin, Use, View, driver, shared::Shared};
use crate::{
    cluster::Select,
    testing::{Api, config_map, soon},
};

fn config_maps() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

async fn synced(lease: &Lease) {
    let mut synced = lease.synced();
    soon("the informer syncs", synced.wait_for(|synced| *synced)).await.expect("the informer lives");
}

/// Returns all objects that a lease shows.
pub(super) fn all_of(lease: &Lease) -> Vec<Arc<Object>> {
    lease.page(&Query::new(&Selector::default()), None, usize::MAX).items
}

/// Returns the kinds, scopes and selectors of the running informers.
fn running(informers: &Informers) -> Vec<String> {
    informers.all().iter().map(|informer| informer.key().to_string()).collect()
}

/// Waits until exactly these informers run.
async fn become_exactly(informers: &Informers, expected: &[&str]) {
    soon("exactly these informers run", async {
        while running(informers) != expected {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn config_maps_in(namespace: &str) -> InformerKey {
    InformerKey { namespace: Some(namespace.into()), ..InformerKey::all(config_maps()) }
}

fn config_maps_where(labels: &str) -> InformerKey {
    InformerKey { labels: Selector::parse(labels).expect("a selector"), ..InformerKey::all(config_maps()) }
}

#[tokio::test]
async fn invariant_1_one_watch_serves_every_lease_and_ends_with_the_last() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let first = informers.acquire(InformerKey::all(config_maps()), "one");
    let second = informers.acquire(InformerKey::all(config_maps()), "two");
    let narrow = informers.acquire(config_maps_in("default"), "three");
    assert!(Arc::ptr_eq(&first.informer(), &second.informer()));
    assert!(Arc::ptr_eq(&first.informer(), &narrow.informer()));
    synced(&first).await;
    synced(&narrow).await;
    drop(first);
    drop(narrow);
    become_exactly(&informers, &["v1 ConfigMap"]).await;
    drop(second);
    become_exactly(&informers, &[]).await;
    // A watch is counted when it ends.
    let requests = async || api.requests("WATCH", "configmaps").await + api.requests("LIST", "configmaps").await;
    soon("the watch ends", async { while requests().await == 0 {} }).await;
    assert_eq!(requests().await, 1);
}

#[tokio::test]
async fn scopes_and_selectors_that_do_not_cover_each_other_have_informers_of_their_own() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let keys = [config_maps_in("kube-system"), config_maps_in("default"), config_maps_where("app=web")];
    let leases = keys.map(|key| informers.acquire(key, "test"));
    assert_eq!(
        running(&informers),
        ["v1 ConfigMap where app=web", "v1 ConfigMap in default", "v1 ConfigMap in kube-system"]
    );
    drop(leases);
}

/// Subscribes to a lease. Receives name and kind of each change of an object that the test made.
fn listen(lease: &Lease) -> mpsc::UnboundedReceiver<String> {
    let (sender, heard) = mpsc::unbounded_channel();
    lease.subscribe(Box::new(move |change, _| {
        let what = match (&change.old, &change.new) {
            (None, _) => "appears",
            (_, None) => "goes",
            _ => "changes",
        };
        if &*change.key().name != "kube-root-ca.crt" {
            let _ = sender.send(format!("{} {what}", change.key()));
        }
    }));
    heard
}

async fn hears(heard: &mut mpsc::UnboundedReceiver<String>) -> String {
    soon("the next change", heard.recv()).await.expect("the lease lives")
}

#[tokio::test]
async fn invariant_1_a_wider_informer_takes_over_and_gives_back_without_a_false_event() {
    let api = Api::start().await;
    api.create(config_map("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let narrow = informers.acquire(config_maps_in("default"), "one");
    synced(&narrow).await;
    let mut heard = listen(&narrow);
    assert_eq!(hears(&mut heard).await, "default/a appears");

    let wide = informers.acquire(InformerKey::all(config_maps()), "two");
    become_exactly(&informers, &["v1 ConfigMap"]).await;
    assert!(Arc::ptr_eq(&narrow.informer(), &wide.informer()));
    assert_eq!(
        narrow.keys(),
        all_of(&wide)
            .iter()
            .map(|object| object.key().clone())
            .filter(|key| key.namespace.as_deref() == Some("default"))
            .collect::<Vec<_>>()
    );
    api.create(config_map("b")).await;
    assert_eq!(hears(&mut heard).await, "default/b appears");

    drop(wide);
    become_exactly(&informers, &["v1 ConfigMap in default"]).await;
    api.delete(&config_maps(), &Key::new(Some("default"), "a")).await;
    assert_eq!(hears(&mut heard).await, "default/a goes");
    let holdings = informers.holdings();
    let leases: Vec<_> = holdings.iter().flat_map(|holding| &holding.leases).collect();
    assert_eq!(
        leases,
        [&Use { key: config_maps_in("default"), holder: "one".into(), compressed: false, indexes: [].into() }]
    );
}

fn secrets_without(label: &str) -> InformerKey {
    let labels = Selector::parse(&format!("!{label}")).expect("a selector");
    InformerKey { labels, ..InformerKey::all(TypeMeta::new("v1", "Secret")) }
}

#[tokio::test]
async fn invariant_12_a_hundred_selectors_of_one_plugin_hold_no_hundred_copies() {
    const SECRETS: usize = 100;
    let api = Api::start().await;
    for number in 0..SECRETS {
        let metadata = serde_json::json!({ "name": format!("secret-{number}"), "namespace": "default" });
        let data = serde_json::json!({ "p": "x".repeat(10 << 10) });
        api.create(
            serde_json::json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data }),
        )
        .await;
    }
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let wide = informers.acquire(InformerKey::all(TypeMeta::new("v1", "Secret")), "another");
    synced(&wide).await;
    let bytes = || informers.all().iter().map(|informer| informer.size().1).sum::<usize>();
    let of_one = bytes();
    assert!(of_one > SECRETS * (10 << 10), "{of_one}");
    drop(wide);
    become_exactly(&informers, &[]).await;

    let leases: Vec<_> =
        (0..100).map(|number| informers.acquire(secrets_without(&format!("w{number}")), "rogue")).collect();
    assert!(informers.all().len() <= 9, "{:?}", running(&informers));
    for lease in &leases {
        synced(lease).await;
        assert_eq!(all_of(lease).len(), SECRETS);
    }
    become_exactly(&informers, &["v1 Secret"]).await;
    assert!(bytes() <= 2 * of_one, "{} of {of_one}", bytes());
    // The bound is per holder: narrow requests of several plugins do not add up to a wide informer.
    drop(leases);
    become_exactly(&informers, &[]).await;
    let _each = ["a", "b", "c"].map(|holder| {
        [0, 1, 2, 3].map(|number| informers.acquire(secrets_without(&format!("{holder}{number}")), holder))
    });
    assert_eq!(informers.all().len(), 12);
}

#[tokio::test]
async fn a_selector_too_many_is_handed_over_and_back_without_a_false_event() {
    let api = Api::start().await;
    api.create(config_map("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let ask = |number: usize| informers.acquire(config_maps_where(&format!("!w{number}")), "one");
    let mut leases: Vec<_> = (0..8).map(ask).collect();
    assert_eq!(informers.all().len(), 8);
    for lease in &leases {
        synced(lease).await;
    }
    let mut heard = listen(&leases[0]);
    assert_eq!(hears(&mut heard).await, "default/a appears");
    leases.push(ask(8));
    become_exactly(&informers, &["v1 ConfigMap"]).await;
    api.create(config_map("b")).await;
    assert_eq!(hears(&mut heard).await, "default/b appears");
    // Dropping a few leases changes nothing.
    leases.truncate(5);
    api.create(config_map("c")).await;
    assert_eq!(hears(&mut heard).await, "default/c appears");
    assert_eq!(running(&informers), ["v1 ConfigMap"]);
    leases.truncate(1);
    become_exactly(&informers, &["v1 ConfigMap where !w0"]).await;
    api.delete(&config_maps(), &Key::new(Some("default"), "a")).await;
    assert_eq!(hears(&mut heard).await, "default/a goes");
}

#[tokio::test]
async fn a_lease_that_is_taken_over_during_a_call_shows_the_present_and_counts_as_changed() {
    let api = Api::start().await;
    for name in ["a", "b"] {
        api.create(config_map(name)).await;
    }
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let narrow = informers.acquire(config_maps_in("default"), "one");
    synced(&narrow).await;
    let key = Key::new(Some("default"), "a");
    let (mut read, mut unread) = (Moment::default(), Moment::default());
    for moment in [&read, &unread] {
        assert!(narrow.get_at(Some(moment), &key).is_some());
    }
    api.delete(&config_maps(), &key).await;
    soon("it goes", async {
        while narrow.get(&key).is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(narrow.get_at(Some(&read), &key).is_some());
    let _wide = informers.acquire(InformerKey::all(config_maps()), "two");
    become_exactly(&informers, &["v1 ConfigMap"]).await;
    assert_eq!(narrow.get_at(Some(&read), &key), None);
    assert!(read.hides(|_| false));
    // The other moment did not read since, so its changes are known.
    assert!(!unread.hides(|_| false));
    assert!(unread.hides(|change| *change.key() == key && change.new.is_none()));
}

#[tokio::test]
async fn objects_that_enter_or_leave_a_filter_appear_and_vanish() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let wide = informers.acquire(InformerKey::all(config_maps()), "one");
    let web = informers.acquire(config_maps_where("app=web"), "two");
    synced(&wide).await;
    assert_eq!(running(&informers), ["v1 ConfigMap"]);
    let mut heard = listen(&web);
    let labelled = |app: &str| {
        let mut object = config_map("a");
        object["metadata"]["labels"] = serde_json::json!({ "app": app });
        object
    };
    api.create(labelled("web")).await;
    assert_eq!(hears(&mut heard).await, "default/a appears");
    for (app, what) in [("db", "default/a goes"), ("web", "default/a appears")] {
        api.update(labelled(app)).await;
        assert_eq!(hears(&mut heard).await, what);
    }
    assert_eq!(web.keys(), [Key::new(Some("default"), "a")]);
}

#[tokio::test]
async fn a_driver_that_panics_is_counted_and_restarted() {
    let informer = Informer::new(InformerKey::all(config_maps()), Arc::new(Shared::default()));
    let runs = AtomicUsize::new(0);
    let feed = || async {
        assert!(runs.fetch_add(1, Ordering::Relaxed) > 0, "the first run fails");
        std::future::pending::<()>().await;
    };
    tokio::time::pause();
    let supervised = driver::supervise(&informer, 1, feed);
    assert!(tokio::time::timeout(std::time::Duration::from_secs(60), supervised).await.is_err());
    assert_eq!((runs.load(Ordering::Relaxed), informer.tally().restarts), (2, 1));
    assert_eq!(
        informer.state().to_string().split_once(": ").map(|(_, reason)| reason.to_owned()),
        Some("the host's driver panicked: the first run fails".to_owned())
    );
}

#[tokio::test]
async fn a_subscriber_gets_what_is_there_then_every_change_in_order() {
    let api = Api::start().await;
    api.create(config_map("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let lease = informers.acquire(config_maps_in("default"), "test");
    synced(&lease).await;
    let (sender, mut heard) = mpsc::unbounded_channel();
    let subscription = lease.subscribe(Box::new(move |change, origin| {
        let side = |object: &Option<Arc<Object>>| object.is_some();
        let _ = sender.send((change.key().name.to_string(), side(&change.old), side(&change.new), origin));
    }));
    api.create(config_map("b")).await;
    api.delete(&config_maps(), &Key::new(Some("default"), "b")).await;
    let mut all = Vec::new();
    while all.last() != Some(&("b".to_owned(), true, false, Origin::Change)) {
        let next = soon("the next change", heard.recv()).await.expect("the informer lives");
        if next.0 != "kube-root-ca.crt" {
            all.push(next);
        }
    }
    let expected = [
        ("a".to_owned(), false, true, Origin::Initial),
        ("b".to_owned(), false, true, Origin::Change),
        ("b".to_owned(), true, false, Origin::Change),
    ];
    assert_eq!(all, expected);
    lease.unsubscribe(subscription);
    assert_eq!(heard.recv().await, None);
}

#[tokio::test]
async fn invariant_3_an_own_write_is_in_every_informer_that_covers_it_at_once() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    // None of them covers another.
    let wide = informers.acquire(config_maps_where("app"), "test");
    let narrow = informers
        .acquire(InformerKey { labels: config_maps_where("app!=db").labels, ..config_maps_in("default") }, "test");
    let elsewhere = informers.acquire(config_maps_in("kube-system"), "test");
    for lease in [&wide, &narrow, &elsewhere] {
        synced(lease).await;
    }
    let written = |version: u64, app: &str| {
        let mut object = config_map("own");
        object["metadata"]["uid"] = "5f0d6a3e-0000-4000-8000-000000000001".into();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object["metadata"]["labels"] = serde_json::json!({ "app": app });
        Arc::new(Object::parse(object.to_string().as_bytes(), &config_maps()).expect("it is an object"))
    };
    let key = Key::new(Some("default"), "own");
    // Newer than everything that the watch has delivered.
    let object = written(1_000_000, "web");
    informers.own_write(&object);
    assert_eq!(wide.get(&key), Some(object.clone()));
    assert_eq!(narrow.get(&key), Some(object));
    assert_eq!(elsewhere.get(&key), None);

    // An own write can also take an object out of a selector.
    informers.own_write(&written(1_000_001, "db"));
    assert_eq!(narrow.get(&key), None);
    assert!(wide.get(&key).is_some());
}

/// A ConfigMap with data and an annotation.
fn full(name: &str, value: &str) -> serde_json::Value {
    let mut object = config_map(name);
    object["metadata"]["annotations"] = serde_json::json!({ "note": value });
    object["data"] = serde_json::json!({ "key": value });
    object
}

fn metadata_of(key: InformerKey) -> InformerKey {
    InformerKey { keep: Keep::new(true, []).expect("metadata can be kept alone"), ..key }
}

/// Returns the Accept headers of requests whose first line contains `line`. The body of a request precedes the head of
/// the next one.
fn accepted(sent: &[u8], line: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(sent).into_owned();
    let heads = text.split("\r\n\r\n").filter_map(|head| Some(&head[head.find(line)?..]));
    let accept = |head: &str| {
        let mut headers = head.lines().filter_map(|header| header.split_once(": "));
        headers.find(|(name, _)| name.eq_ignore_ascii_case("accept")).map(|(_, value)| value.to_owned())
    };
    heads.filter_map(accept).collect()
}

#[tokio::test]
async fn metadata_alone_is_asked_of_the_server() {
    let (api, sent) = Api::overheard().await;
    api.create(full("a", "one")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let lease = informers.acquire(metadata_of(config_maps_in("default")), "test");
    synced(&lease).await;
    let watches = accepted(&sent.lock(), "GET /api/v1/namespaces/default/configmaps?watch=true");
    assert_eq!(watches, [list::ACCEPT_METADATA]);
    let object = lease.get(&Key::new(Some("default"), "a")).expect("it is there");
    let expected = serde_json::json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {} });
    let mut shown: serde_json::Value = serde_json::from_str(&object.json()).expect("it is JSON");
    assert_eq!(shown["metadata"]["annotations"]["note"], "one");
    shown["metadata"] = serde_json::json!({});
    assert_eq!((shown, object.type_meta()), (expected, &config_maps()));

    // For a server without streaming lists, pages are requested.
    let endpoint = api.cluster.known(&config_maps()).expect("it was found");
    let select =
        Select { namespace: Some("default"), labels: String::new(), fields: String::new(), metadata_only: true };
    let page = api.cluster.list(&endpoint, &select, 500, None, None).await.expect("it is served");
    let page: serde_json::Value = serde_json::from_slice(&page).expect("it is JSON");
    assert_eq!(page["kind"], "PartialObjectMetadataList");
    let lists = accepted(&sent.lock(), "GET /api/v1/namespaces/default/configmaps?limit=500");
    assert_eq!(lists, [list::ACCEPT_METADATA_LIST]);
}

#[tokio::test]
async fn invariant_1_a_lease_on_less_is_shown_less_of_what_is_held_for_others() {
    let api = Api::start().await;
    api.create(full("a", "one")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let part = informers.acquire(metadata_of(config_maps_in("default")), "one");
    synced(&part).await;
    let (sender, mut changes) = mpsc::unbounded_channel();
    part.subscribe(Box::new(move |change, _| {
        if &*change.key().name == "a" {
            let text = |object: &Option<Arc<Object>>| object.as_ref().map(|object| object.json().into_owned());
            let _ = sender.send((text(&change.old), text(&change.new)));
        }
    }));
    let key = Key::new(Some("default"), "a");
    let whole = informers.acquire(InformerKey::all(config_maps()), "two");
    become_exactly(&informers, &["v1 ConfigMap"]).await;
    let held = whole.get(&key).expect("it is there");
    assert!(held.json().contains("\"data\""));
    let shown = held.kept(&part.key().keep);
    assert_eq!(part.get(&key).as_deref(), Some(&shown));
    let mut listed = all_of(&part);
    listed.retain(|object| !object.json().contains("\"data\""));
    assert_eq!(listed.iter().filter(|object| *object.key() == key).count(), 1);
    let first = soon("what is there", changes.recv()).await.expect("the lease lives");
    assert_eq!(first, (None, Some(shown.json().into_owned())));

    // Of what is shown, only the version differs.
    let mut changed = full("a", "one");
    changed["data"]["key"] = "two".into();
    api.update(changed).await;
    let (old, new) = soon("the change", changes.recv()).await.expect("the lease lives");
    assert_eq!(old, Some(shown.json().into_owned()));
    let now = whole.get(&key).expect("it is there").kept(&part.key().keep);
    assert!(now.resource_version() > shown.resource_version());
    assert_eq!(new, Some(now.json().into_owned()));
}

#[tokio::test]
async fn an_object_that_is_cached_whole_and_in_part_is_read_whole() {
    let api = Api::start().await;
    api.create(full("a", "one")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    // Neither lease covers the other.
    let part = Arc::new(informers.acquire(metadata_of(InformerKey::all(config_maps())), "test"));
    let whole = Arc::new(informers.acquire(config_maps_in("default"), "test"));
    synced(&part).await;
    synced(&whole).await;
    let view = View::new([whole.clone(), part.clone()]);
    let key = Key::new(Some("default"), "a");
    assert_eq!(view.get(&config_maps(), &key), whole.get(&key));
    // The whole object is read although the partial one is newer.
    let mut newer = full("a", "two");
    newer["metadata"]["uid"] = whole.get(&key).expect("it is there").uid().to_string().into();
    newer["metadata"]["resourceVersion"] = "1000000".into();
    let newer = Object::parse(newer.to_string().as_bytes(), &config_maps()).expect("it is an object");
    part.informer().upsert(newer.kept(&part.key().keep));
    assert_eq!(view.get(&config_maps(), &key), whole.get(&key));
    assert_ne!(part.get(&key).map(|object| object.resource_version()), whole.get(&key).map(|o| o.resource_version()));
    // An own write enters both, each with what it keeps.
    let mut own = full("a", "three");
    own["metadata"]["uid"] = whole.get(&key).expect("it is there").uid().to_string().into();
    own["metadata"]["resourceVersion"] = "1000001".into();
    let own = Arc::new(Object::parse(own.to_string().as_bytes(), &config_maps()).expect("it is an object"));
    informers.own_write(&own);
    assert_eq!(whole.get(&key), Some(own.clone()));
    assert_eq!(part.get(&key).as_deref(), Some(&own.kept(&part.key().keep)));
}

#[tokio::test]
async fn intake_ends_without_waiting_where_another_runtime_runs() {
    let intake = Intake::start().expect("there are threads");
    let endless = intake.handle().spawn(std::future::pending::<()>());
    drop(intake);
    assert!(endless.await.is_err_and(|ended| ended.is_cancelled()));
}
