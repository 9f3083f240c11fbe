//! Reads of calls against the embedded API server, while objects change.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use pilothouse_core::{
    manifest::{Index, Permission, Policy},
    reads::Tracker,
};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::*;
use crate::{
    informer::{InformerKey, Informers, Lease},
    testing::{Api, soon},
};

/// A plugin that caches ConfigMaps with an index by `data.app`.
struct Scene {
    api: Api,
    informers: Informers,
    view: View,
    reader: Reader,
}

/// The object that a call reads first.
type Read<'a> = &'a dyn Fn(&Reading);

fn of() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

fn key(name: &str) -> Key {
    Key::new(Some("default"), name)
}

fn map(name: &str, app: &str) -> Value {
    let mut map = crate::testing::config_map(name);
    map["metadata"]["labels"] = json!({ "of": "test" });
    map["data"] = json!({ "app": app });
    map
}

fn query() -> Query {
    let labels = Selector::parse("of=test").expect("a selector");
    Query { of: of(), namespace: None, labels, index: None, fields: Vec::new(), limit: 0, after: None }
}

impl Scene {
    async fn new(maps: &[(&str, &str)]) -> Self {
        let api = Api::start().await;
        for (name, app) in maps {
            api.create(map(name, app)).await;
        }
        let path = FieldPath::parse("data.app").expect("a path");
        let permission = Permission {
            of: of(),
            subresource: None,
            verbs: BTreeSet::from([Verb::Read]),
            namespaces: Vec::new(),
            names: Vec::new(),
        };
        let manifest = Manifest {
            webhooks: Vec::new(),
            metrics: Vec::new(),
            version: String::new(),
            description: String::new(),
            controllers: Vec::new(),
            indexes: vec![Index { name: "app".into(), of: of(), path: path.clone() }],
            observes: Vec::new(),
            patterns: Vec::new(),
            permissions: vec![permission],
            crds: Vec::new(),
            config_schema: None,
            instances: Policy::Fresh,
            http: Vec::new(),
        };
        let informers = Informers::new(api.cluster.clone(), Handle::current());
        let lease = informers.acquire_indexed(&informers.acquire(InformerKey::all(of()), "test"), [path]);
        soon("it syncs", lease.synced().wait_for(|synced| *synced)).await.expect("the informer lives");
        soon("its index is built", async {
            while lease.informer().is_indexing() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let grants = Arc::new(ArcSwap::from_pointee(Grants::all_asked(&manifest.permissions)));
        let view = View::new([Arc::new(lease)]);
        let reader = Reader::new(view.clone(), grants, &manifest);
        Self { api, informers, view, reader }
    }

    fn lease(&self) -> &Lease {
        self.view.leases().next().expect("there is one")
    }

    /// Waits until the cache shows something.
    async fn comes(&self, what: &str, mut shown: impl FnMut(&Lease) -> bool) {
        soon(what, async {
            while !shown(self.lease()) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Changes an object as somebody else, and waits until the watch has brought the change.
    async fn change(&self, name: &str, app: &str) {
        self.api.update(map(name, app)).await;
        let app = format!(r#""app":"{app}""#);
        let shows = |lease: &Lease| lease.get(&key(name)).is_some_and(|map| map.json().contains(&app));
        self.comes("the change", shows).await;
    }

    async fn create(&self, name: &str, app: &str) {
        self.api.create(map(name, app)).await;
        self.comes("the object", |lease| lease.get(&key(name)).is_some()).await;
    }

    async fn delete(&self, name: &str) {
        self.api.delete(&of(), &key(name)).await;
        self.comes("the end", |lease| lease.get(&key(name)).is_none()).await;
    }

    /// Begins a call that has read `a`.
    fn began(&self, tracker: &Arc<Mutex<Tracker>>) -> Reading {
        let reading = Reading::begin(tracker, &key("reconciled"), None);
        assert!(self.app("a", &reading).is_some());
        reading
    }

    /// Reads the `data.app` of an object.
    fn app(&self, name: &str, reading: &Reading) -> Option<String> {
        let object = self.reader.get(&of(), &key(name), reading).expect("it may be read")?;
        let object: Value = serde_json::from_str(&object.json()).expect("an object is JSON");
        object["data"]["app"].as_str().map(str::to_owned)
    }

    /// Reads names and `data.app` of a page, and its cursor.
    fn list(&self, query: &Query, reading: &Reading) -> (Vec<String>, Option<String>) {
        let page = self.reader.list(query, reading).expect("it may be read");
        let told = page.items.iter().map(|item| {
            let item: Value = serde_json::from_str(item).expect("an object is JSON");
            let text = |member: &str| item.pointer(member).and_then(Value::as_str).unwrap_or_default().to_owned();
            format!("{}={}", text("/metadata/name"), text("/data/app"))
        });
        (told.collect(), page.next)
    }
}

#[tokio::test]
async fn pages_of_one_call_fit_together_while_objects_change() {
    let scene = Scene::new(&[("a", "web"), ("c", "web"), ("d", "db"), ("e", "web")]).await;
    let reading = Reading::default();
    let some = Query { limit: 2, ..query() };
    let (first, next) = scene.list(&some, &reading);
    assert_eq!((first, next.as_deref()), (vec!["a=web".to_owned(), "c=web".to_owned()], Some("default/c")));
    scene.create("b", "web").await;
    scene.create("cc", "web").await;
    scene.change("d", "web").await;
    scene.delete("e").await;
    let rest = Query { after: next, ..some.clone() };
    assert_eq!(scene.list(&rest, &reading), (vec!["d=db".to_owned(), "e=web".to_owned()], None));
    let web = Query { index: Some(("app".into(), "web".into())), ..query() };
    assert_eq!(scene.list(&web, &reading), (["a=web", "c=web", "e=web"].map(str::to_owned).into(), None));
    let keys = scene.reader.keys(&query(), &reading).expect("it may be read");
    assert_eq!((keys.items, keys.next), (["a", "c", "d", "e"].map(key).into(), None));

    // Another call begins later.
    let (now, _) = scene.list(&web, &Reading::default());
    assert_eq!(now, ["a=web", "b=web", "c=web", "cc=web", "d=web"]);
}

#[tokio::test]
async fn invariant_7_page_that_ends_at_a_hidden_object_does_not_name_it() {
    let names: Vec<String> = (0..60).map(|number| format!("hidden-{number:02}")).collect();
    let mut maps: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "web")).collect();
    maps.push(("shown", "web"));
    let scene = Scene::new(&maps).await;
    let shown = Permission {
        of: of(),
        subresource: None,
        verbs: BTreeSet::from([Verb::Read]),
        namespaces: Vec::new(),
        names: vec!["shown".to_owned()],
    };
    scene.reader.grants.store(Arc::new(Grants::all_asked(&[shown])));
    let reading = Reading::default();
    let mut some = Query { limit: 1, ..query() };
    let mut cursors = Vec::new();
    let items = loop {
        let (items, next) = scene.list(&some, &reading);
        if !items.is_empty() {
            break items;
        }
        // A cursor of a list is valid for keys too.
        assert!(scene.reader.keys(&some, &reading).expect("it may be read").next.is_some());
        some.after = next;
        cursors.extend(some.after.clone());
    };
    assert_eq!(items, ["shown=web"]);
    assert!(!cursors.is_empty() && cursors.iter().all(|next| !next.contains("hidden")), "{cursors:?}");
}

#[tokio::test]
async fn invariant_3_own_writes_are_seen_by_calls_that_began_before() {
    let scene = Scene::new(&[("a", "web")]).await;
    let reading = Reading::default();
    assert_eq!(scene.list(&query(), &reading).0, ["a=web"]);
    let held = scene.lease().get(&key("a")).expect("it is there");
    let mut json: Value = serde_json::from_str(&held.json()).expect("an object is JSON");
    json["metadata"]["resourceVersion"] = "1000000".into();
    json["data"]["app"] = "own".into();
    let own = Arc::new(Object::parse(json.to_string().as_bytes(), &of()).expect("an object"));
    scene.informers.own_write(&own);
    assert_eq!(scene.list(&query(), &reading).0, ["a=own"]);
    assert_eq!(scene.reader.get(&of(), &key("a"), &reading).expect("it may be read"), Some(own));
}

#[tokio::test]
async fn invariant_11_change_that_the_moment_has_hidden_wakes() {
    let scene = Scene::new(&[("a", "web"), ("b", "web")]).await;
    let db = Query { index: Some(("app".into(), "db".into())), ..query() };
    let calls: [Reading; 5] = std::array::from_fn(|_| scene.began(&Arc::default()));
    scene.change("b", "db").await;
    scene.create("c", "web").await;
    let reads: [(Read<'_>, bool); 5] = [
        (&|_| {}, false),
        (&|reading| assert_eq!(scene.app("b", reading).as_deref(), Some("web")), true),
        (&|reading| assert_eq!(scene.app("c", reading), None), true),
        (&|reading| assert_eq!(scene.app("d", reading), None), false),
        (&|reading| assert_eq!(scene.list(&db, reading), (Vec::new(), None)), true),
    ];
    for (mut call, (read, wakes)) in calls.into_iter().zip(reads) {
        read(&call);
        assert_eq!(call.end(), wakes);
    }
}

#[tokio::test]
async fn invariant_11_own_write_does_not_hide_an_earlier_change() {
    let scene = Scene::new(&[("a", "web"), ("b", "web")]).await;
    let [mut before, mut after, mut never] = std::array::from_fn(|_| scene.began(&Arc::default()));
    scene.change("b", "db").await;
    assert_eq!(scene.app("b", &before).as_deref(), Some("web"));
    // The response to a write is no change if the watch was faster.
    scene.informers.own_write(&scene.lease().get(&key("b")).expect("it is there"));
    for reading in [&before, &after] {
        assert_eq!(scene.app("b", reading).as_deref(), Some("db"));
    }
    assert!(before.end());
    // Whether a read saw more than the write is not known. One wake-up too many does no harm.
    assert!(after.end());
    assert!(!never.end());
}

#[tokio::test]
async fn invariant_11_change_after_the_read_wakes() {
    let scene = Scene::new(&[("a", "web")]).await;
    let tracker = Arc::default();
    let mut reading = scene.began(&tracker);
    assert!(!reading.end());
    reading.commit();
    let old = scene.lease().get(&key("a"));
    scene.change("a", "db").await;
    let change = store::Change { old, new: scene.lease().get(&key("a")), missed: false };
    assert!(tracker.lock().wakes_key(&key("reconciled"), &of(), &change));
}

#[tokio::test]
async fn index_is_looked_up_in_the_namespace_of_a_name_and_everywhere_for_a_cluster_scoped_name() {
    let scene = Scene::new(&[("a", "web"), ("b", "db"), ("c", "web")]).await;
    let found = |name: &Key| scene.reader.indexed(&scene.view, "app", name);
    assert_eq!(found(&key("web")), ["a", "c"].map(key));
    assert_eq!(found(&Key::new(None, "web")), ["a", "c"].map(key));
    assert_eq!(found(&Key::new(Some("other"), "web")), []);
    assert_eq!(found(&key("none")), []);
    scene.change("c", "db").await;
    assert_eq!(found(&key("db")), ["b", "c"].map(key));
}
