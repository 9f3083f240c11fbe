//! Writes against the embedded API server: children, status and definitions.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use pilothouse_core::{
    event::Level,
    field::FieldPath,
    grant::Grants,
    key::{Key, TypeMeta},
    manifest::{Permission, Verb},
    object::{Keep, Object, Subresource},
    selector::Selector,
};
use serde_json::json;
use tokio::runtime::Handle;

use super::{ClientError, Error, Events, Fence, Identities, Owner, PluginEvents, Report, Source, Writer, mark::MARK};
use crate::{
    acting::Acting,
    cluster::{self, DeleteOptions, Patch},
    guests::Guests,
    informer::{InformerKey, Informers, Lease, View},
    name::PluginName,
    testing::{Api, apple, comes_true, config_map, soon},
    wasm::{Child, ListQuery, LogQuery, MAX_OBJECT, MAX_OUTCOME, Preconditions},
};

mod acting;
mod client;
mod events;
mod stale;

fn config_maps() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

fn apples() -> TypeMeta {
    TypeMeta::new("stable.example.com/v1", "MyApple")
}

fn deployments() -> TypeMeta {
    TypeMeta::new("apps/v1", "Deployment")
}

/// A writer that may do everything with ConfigMaps and Deployments, and apply definitions and the status of MyApples.
fn writer(api: &Api, informers: &Informers) -> Writer {
    acting_writer(api, informers, Acting::new(true))
}

/// Returns the same writer, which writes while `acting` is on.
fn acting_writer(api: &Api, informers: &Informers, acting: Acting) -> Writer {
    let everything = [Verb::Read, Verb::Create, Verb::Update, Verb::Patch, Verb::Apply, Verb::Delete];
    let asked = |of, subresource, verbs: &[Verb]| Permission {
        of,
        subresource,
        verbs: verbs.iter().copied().collect(),
        namespaces: Vec::new(),
        names: Vec::new(),
    };
    let asked = [
        asked(config_maps(), None, &everything),
        asked(deployments(), None, &everything),
        asked(TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition"), None, &[Verb::Apply]),
        asked(apples(), Some(Subresource::Status), &[Verb::Apply]),
    ];
    let grants = Arc::new(ArcSwap::from_pointee(Grants::all_asked(&asked)));
    let identity = Identities::default().claim(&plugin(), None).expect("it is alone");
    Writer::new(api.cluster.clone(), informers.clone(), identity, grants, Arc::new(Fence::new(acting)), Arc::new(()))
}

async fn lease(informers: &Informers, key: InformerKey) -> Arc<Lease> {
    let lease = informers.acquire(key, "apples");
    let mut synced = lease.synced();
    soon("the informer syncs", synced.wait_for(|synced| *synced)).await.expect("it lives");
    Arc::new(lease)
}

fn labelled(labels: &str) -> InformerKey {
    InformerKey { labels: Selector::parse(labels).expect("a selector"), ..InformerKey::all(config_maps()) }
}

async fn view(informers: &Informers, labels: &str) -> View {
    View::new([lease(informers, labelled(labels)).await])
}

fn keep(metadata_only: bool, without: &[&str]) -> Keep {
    let without = without.iter().map(|path| FieldPath::parse(path).expect("a path"));
    Keep::new(metadata_only, without).expect("it can be left out")
}

/// A MyApple that need not exist on the server.
fn parent() -> Arc<Object> {
    let mut object = apple("a");
    object["metadata"]["uid"] = "5f0d6a3e-0000-4000-8000-000000000001".into();
    object["metadata"]["resourceVersion"] = "1".into();
    Arc::new(Object::parse(object.to_string().as_bytes(), &apples()).expect("an object"))
}

#[tokio::test]
async fn an_object_that_the_selector_hides_is_not_taken_over() {
    let api = Api::start().await;
    let mut foreign = config_map("taken");
    foreign["data"] = json!({ "theirs": "1" });
    api.create(foreign).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let view = view(&informers, "app=web").await;
    let (object, owns) = (parent(), [config_maps()]);
    let owner = Owner { object: &object, owns: &owns };
    // An apply would have no conflict, and would make the object ours.
    let child = |name: &str| {
        let mut child = config_map(name);
        child["metadata"]["labels"] = json!({ "app": "web" });
        Child { object: child.to_string(), adopt: false, replace: false }
    };
    let report = writer(&api, &informers).children(&owner, &view, vec![child("taken"), child("free")]).await;
    assert!(matches!(&report.problems[..], [Error::Taken { key, .. }] if &*key.name == "taken"), "{report:?}");
    assert_eq!(report.written, 1);
    let live = api.cluster.get(&config_maps(), Some("default"), "taken").await.expect("it is there");
    let live = Object::parse(&live, &config_maps()).expect("an object");
    assert!(live.controller().is_none());
}

#[tokio::test]
async fn a_child_that_nobody_would_see_whole_is_not_written() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let elsewhere = InformerKey { namespace: Some("elsewhere".into()), ..InformerKey::all(config_maps()) };
    let names = InformerKey { keep: keep(true, &[]), ..InformerKey::all(config_maps()) };
    let view = View::new([lease(&informers, elsewhere).await, lease(&informers, names).await]);
    let (object, owns) = (parent(), [config_maps()]);
    let child = Child { object: config_map("c").to_string(), adopt: false, replace: false };
    let report = writer(&api, &informers).children(&Owner { object: &object, owns: &owns }, &view, vec![child]).await;
    let told = "child v1 ConfigMap default/c would not be seen: what the controller owns there is watched where v1 ConfigMap in \
                elsewhere or v1 ConfigMap, metadata only";
    assert_eq!((report.written, report.problem().as_deref()), (0, Some(told)));
}

#[tokio::test]
async fn a_child_of_which_only_a_part_is_seen_is_taken_for_different() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let part = InformerKey { keep: keep(false, &["data.color"]), ..InformerKey::all(config_maps()) };
    let view = View::new([lease(&informers, labelled("!hidden")).await, lease(&informers, part).await]);
    let (object, owns, writer) = (parent(), [config_maps()], writer(&api, &informers));
    let owner = Owner { object: &object, owns: &owns };
    let write = async |color: serde_json::Value| {
        let mut child = config_map("c");
        child["data"] = json!({ "color": color });
        let report = writer
            .children(&owner, &view, vec![Child { object: child.to_string(), adopt: false, replace: false }])
            .await;
        assert_eq!(report.problem(), None);
        report.written
    };
    let key = Key::new(Some("default"), "c");
    let live = async || writer.get(&config_maps(), &key, None).await.expect("it is there");
    assert_eq!((write("red".into()).await, write("red".into()).await), (1, 0));

    let mut hidden: serde_json::Value = serde_json::from_str(&live().await.json()).expect("it is JSON");
    hidden["metadata"]["labels"] = json!({ "hidden": "yes" });
    api.update(hidden).await;
    soon("it is hidden", async {
        while view.find(&config_maps(), &key).is_none_or(|(_, keep)| keep.is_whole()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The cache does not show that the colour still exists.
    assert_eq!(write(json!(null)).await, 1);
    assert!(!live().await.json().contains("red"));
}

/// A server, a plugin's writer, a cache of everything that the plugin owns, and the owner of its children.
struct Orchard {
    api: Api,
    writer: Writer,
    view: View,
    object: Arc<Object>,
}

impl Orchard {
    async fn plant() -> Self {
        Self::on(Api::start().await).await
    }

    async fn on(api: Api) -> Self {
        let informers = Informers::new(api.cluster.clone(), Handle::current());
        let leases = [InformerKey::all(config_maps()), InformerKey::all(deployments())];
        let [maps, deployments] = leases.map(|key| lease(&informers, key));
        let view = View::new([maps.await, deployments.await]);
        Self { writer: writer(&api, &informers), api, view, object: parent() }
    }

    /// Restarts the host: only the server's state remains.
    async fn restarted(self) -> Self {
        Self::on(self.api).await
    }

    async fn children(&self, children: &[serde_json::Value]) -> Report {
        let children =
            children.iter().map(|child| Child { object: child.to_string(), adopt: false, replace: false }).collect();
        let owns = [config_maps(), deployments()];
        self.writer.children(&Owner { object: &self.object, owns: &owns }, &self.view, children).await
    }

    /// Returns the Deployment `d` once the cache shows it as `wanted`.
    async fn deployment(&self, wanted: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let key = Key::new(Some("default"), "d");
        soon("the cache shows it", async {
            loop {
                let held = self.view.get(&deployments(), &key).expect("it is there");
                let held = serde_json::from_str(&held.json()).expect("it is JSON");
                if wanted(&held) {
                    break held;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// Changes the Deployment `d` as another manager.
    async fn others_change(&self, patch: serde_json::Value, kind: Patch) {
        let options = cluster::WriteOptions { manager: "somebody", subresource: None };
        let body = patch.to_string().into_bytes();
        let patched = self.api.cluster.patch(&deployments(), Some("default"), "d", kind, body, options).await;
        let version =
            Object::parse(&patched.expect("it is there"), &deployments()).expect("an object").resource_version();
        self.deployment(|held| held["metadata"]["resourceVersion"] == version.to_string()).await;
    }

    /// Changes the child's `data` as another manager.
    async fn others_data(&self, data: serde_json::Value) {
        let (of, key) = (config_maps(), Key::new(Some("default"), "c"));
        let body = json!({ "data": data }).to_string().into_bytes();
        let options = cluster::WriteOptions { manager: "somebody", subresource: None };
        let patched = self.api.cluster.patch(&of, Some("default"), "c", Patch::Merge, body, options).await;
        let version = Object::parse(&patched.expect("it is there"), &of).expect("an object").resource_version();
        soon("the watch shows it", async {
            while self.view.get(&of, &key).is_none_or(|held| held.resource_version() < version) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn an_empty_map_in_which_others_put_something_costs_one_request_and_no_further_one() {
    let orchard = Orchard::plant().await;
    let mut child = config_map("c");
    // The server drops it: from the values it cannot be seen that an apply changes nothing.
    child["data"] = json!({});
    let children = [child];
    let write = async |orchard: &Orchard| {
        let report = orchard.children(&children).await;
        (report.problem(), report.written, report.skipped)
    };
    assert_eq!(write(&orchard).await, (None, 1, 0));
    // The first makes a map of nothing, and takes the field of it from the plugin: it is applied once more. The second
    // changes a field that the plugin does not have.
    for (size, first) in [("small", (None, 1, 0)), ("large", (None, 0, 1))] {
        orchard.others_data(json!({ "size": size })).await;
        assert_eq!((write(&orchard).await, write(&orchard).await), (first, (None, 0, 1)), "{size}");
    }
    assert_eq!(write(&orchard.restarted().await).await, (None, 0, 1));
}

/// A Deployment in which the server adds to an atomic map. The diff cannot prove that it is as it was applied.
fn deployment(reference: &str, image: &str) -> serde_json::Value {
    let labels = json!({ "app": "d" });
    let env = json!([{ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": reference } } }]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "d", "image": image, "env": env }] } },
        },
    })
}

const REFERENCE: &str = "/spec/template/spec/containers/0/env/0/valueFrom/fieldRef";

#[tokio::test]
async fn a_child_that_the_server_stores_in_another_form_costs_no_request_after_a_restart() {
    let orchard = Orchard::plant().await;
    let children = [deployment("spec.nodeName", "a:1"), config_map("c")];
    let mark = |held: &serde_json::Value| held["metadata"]["annotations"][MARK].as_str().map(str::to_owned);
    let requests = async |orchard: &Orchard| orchard.api.requests("APPLY", "deployments").await;
    assert_eq!(orchard.children(&children).await.written, 2);
    let first = orchard.deployment(|held| mark(held).is_some()).await;
    assert_eq!(first.pointer(&format!("{REFERENCE}/apiVersion")), Some(&"v1".into()), "the server adds nothing");
    let map = orchard.view.get(&config_maps(), &Key::new(Some("default"), "c")).expect("it is there");
    assert!(!map.json().contains(MARK), "a child that the diff can prove has no mark");
    let sent = requests(&orchard).await;

    let orchard = orchard.restarted().await;
    let report = orchard.children(&children).await;
    assert_eq!((report.problem(), report.written, report.skipped), (None, 0, 2));
    assert_eq!(requests(&orchard).await, sent);

    // A plugin that returns the object that it read returns the mark too.
    let mut copied = children[0].clone();
    copied["metadata"]["annotations"] = json!({ MARK: "0" });
    assert_eq!(orchard.children(&[copied, config_map("c")]).await.written, 0);

    // Another text takes one request, and has another mark.
    let other = [deployment("spec.nodeName", "a:2"), config_map("c")];
    assert_eq!(orchard.children(&other).await.written, 1);
    assert_eq!(requests(&orchard).await, sent + 1);
    let second = orchard.deployment(|held| mark(held) != mark(&first)).await;
    assert!(mark(&second).is_some());
    assert_eq!(orchard.restarted().await.children(&other).await.written, 0);
}

#[tokio::test]
async fn a_foreign_change_of_a_marked_child_is_repaired() {
    let mut orchard = Orchard::plant().await;
    let children = [deployment("spec.nodeName", "a:1")];
    assert_eq!(orchard.children(&children).await.written, 1);
    let marked = orchard.deployment(|held| held["metadata"]["annotations"][MARK].is_string()).await;
    let content = |held: &serde_json::Value| {
        let annotations = held["metadata"]["annotations"].clone();
        (annotations, held["spec"].clone())
    };
    let replace = |path: &str, value: &str| json!([{ "op": "replace", "path": path, "value": value }]);
    let changes = [
        vec![(replace(&format!("{REFERENCE}/fieldPath"), "metadata.name"), Patch::Json)],
        vec![(replace("/spec/template/spec/containers/0/image", "b:1"), Patch::Json)],
        vec![(json!({ "metadata": { "annotations": { MARK: "0" } } }), Patch::Merge)],
        vec![(json!({ "metadata": { "annotations": null } }), Patch::Merge)],
        // To and fro: the value is right, and is no longer known to be ours.
        vec![
            (json!({ "metadata": { "annotations": { MARK: "0" } } }), Patch::Merge),
            (json!({ "metadata": { "annotations": marked["metadata"]["annotations"] } }), Patch::Merge),
        ],
    ];
    for restart in [false, true] {
        for change in &changes {
            for (patch, kind) in change {
                orchard.others_change(patch.clone(), *kind).await;
            }
            if restart {
                orchard = orchard.restarted().await;
            }
            assert_eq!(orchard.children(&children).await.written, 1, "{change:?}");
            let held = orchard.deployment(|held| content(held) == content(&marked)).await;
            assert_eq!(content(&held), content(&marked));
            assert_eq!(orchard.children(&children).await.written, 0, "{change:?}");
        }
    }
}

#[tokio::test]
async fn a_status_that_the_server_stores_in_another_form_is_sent_once() {
    let api = Api::start().await;
    let mut definition = crate::testing::apples("Namespaced", &[("v1", true)]);
    let item = json!({ "type": "object", "properties": { "name": { "type": "string" }, "unit": { "type": "string", "default": "kg" } } });
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] =
        json!({ "status": { "type": "object", "properties": { "items": { "type": "array", "items": item } } } });
    api.create(definition).await;
    api.create(apple("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let view = View::new([lease(&informers, InformerKey::all(apples())).await]);
    let (writer, key) = (writer(&api, &informers), Key::new(Some("default"), "a"));
    let write = async |name: &str| {
        let object = view.get(&apples(), &key).expect("it is there");
        let status = json!({ "items": [{ "name": name }] }).to_string();
        let report =
            writer.status(&Owner { object: &object, owns: &[] }, &view, &status).await.expect("it can be written");
        report.written
    };
    assert_eq!([write("a").await, write("a").await, write("a").await], [1, 0, 0]);
    let held = view.get(&apples(), &key).expect("it is there");
    assert!(held.json().contains(r#""unit":"kg""#), "the server adds nothing: {}", held.json());
    assert_eq!([write("b").await, write("b").await], [1, 0]);
    // Another manager changes the status.
    let body = json!({ "status": { "items": [] } }).to_string().into_bytes();
    let options = cluster::WriteOptions { manager: "somebody", subresource: Some(Subresource::Status) };
    api.cluster.patch(&apples(), Some("default"), "a", Patch::Merge, body, options).await.expect("it is there");
    soon("the watch shows it", async {
        while view.get(&apples(), &key).is_some_and(|held| held.json().contains("kg")) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!([write("b").await, write("b").await], [1, 0]);
}

#[tokio::test]
async fn a_settled_child_is_written_again_as_soon_as_it_or_its_text_differs() {
    let orchard = Orchard::plant().await;
    let mut child = config_map("c");
    let red = json!({ "color": "red" });
    let mut write = async |data: &serde_json::Value| {
        child["data"] = data.clone();
        orchard.children(std::slice::from_ref(&child)).await.written
    };
    assert_eq!([write(&red).await, write(&red).await, write(&red).await], [1, 0, 0]);
    orchard.others_data(json!({ "color": "blue" })).await;
    assert_eq!([write(&red).await, write(&red).await], [1, 0]);
    let green = json!({ "color": "green" });
    assert_eq!([write(&green).await, write(&green).await], [1, 0]);
    // Another version in which the child still holds.
    orchard.others_data(json!({ "size": "small" })).await;
    assert_eq!([write(&green).await, write(&red).await, write(&red).await], [0, 1, 0]);
}

#[tokio::test]
async fn a_settled_child_is_checked_like_any_other() {
    let orchard = Orchard::plant().await;
    let mut child = config_map("c");
    child["data"] = json!({ "color": "red" });
    let write = async |children: &[&serde_json::Value]| {
        let children: Vec<_> = children.iter().map(|child| (*child).clone()).collect();
        orchard.children(&children).await
    };
    assert_eq!(write(&[&child]).await.written, 1);
    assert_eq!(write(&[&child]).await.skipped, 1);
    let twice = write(&[&child, &child]).await;
    assert_eq!((twice.skipped, twice.problem().as_deref()), (1, Some("child v1 ConfigMap default/c is named twice")));
    // It is not among what is no longer wanted, and the next one is.
    assert_eq!(write(&[&child, &config_map("d")]).await.written, 1);
    assert_eq!(write(&[&child]).await.written, 1);
    assert!(orchard.view.get(&config_maps(), &Key::new(Some("default"), "c")).is_some());
    let grants = orchard.writer.grants.swap(Arc::new(Grants::all_asked(&[])));
    let denied = write(&[&child]).await;
    assert!(matches!(&denied.problems[..], [Error::Denied(_)]), "{denied:?}");
    assert_eq!((denied.written, denied.skipped), (0, 0));
    orchard.writer.grants.store(grants);
    // The child is not ours any more, though it was settled.
    let (of, key) = (config_maps(), Key::new(Some("default"), "c"));
    let body = json!({ "metadata": { "ownerReferences": null } }).to_string().into_bytes();
    let options = cluster::WriteOptions { manager: "somebody", subresource: None };
    orchard.api.cluster.patch(&of, Some("default"), "c", Patch::Merge, body, options).await.expect("it is there");
    let held = soon("the watch shows it", async {
        loop {
            let held = orchard.view.get(&of, &key).filter(|held| held.controller().is_none());
            match held {
                Some(held) => break held,
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    let owner = Owner { object: &orchard.object, owns: &[config_maps()] };
    let text = Child { object: child.to_string(), adopt: false, replace: false };
    let digest = orchard.writer.digest(&owner, &text);
    held.settle(digest, &orchard.writer.digests);
    assert!(held.is_settled(digest, &orchard.writer.digests));
    let taken = write(&[&child]).await;
    assert!(matches!(&taken.problems[..], [Error::Taken { .. }]), "{taken:?}");
}

#[tokio::test]
async fn a_status_is_not_written_where_the_cache_cannot_tell_whether_it_differs() {
    let api = Api::start().await;
    api.serve_apples().await;
    api.create(apple("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let writer = writer(&api, &informers);
    let status = json!({ "phase": "Ripe", "colour": { "shade": "dark" } }).to_string();
    let cases: [(bool, &[&str], Option<&str>); 5] = [
        (true, &[], Some("status")),
        (false, &["status"], Some("status")),
        (false, &["status.phase", "spec"], Some("status.phase")),
        (false, &["status.colour.hue"], Some("status.colour")),
        (false, &["spec", "status.images"], None),
    ];
    for (metadata_only, without, expected) in cases {
        let key = InformerKey { keep: keep(metadata_only, without), ..InformerKey::all(apples()) };
        let view = View::new([lease(&informers, key).await]);
        let object = view.get(&apples(), &Key::new(Some("default"), "a")).expect("it is there");
        let owner = Owner { object: &object, owns: &[] };
        let left_out = match writer.status(&owner, &view, &status).await {
            Ok(report) => {
                assert_eq!((report.written, report.skipped), (1, 0));
                let again = writer.status(&owner, &view, &status).await.expect("it is compared");
                assert_eq!((again.written, again.skipped), (0, 1));
                None
            }
            Err(Error::LeftOut { path, .. }) => Some(path.to_string()),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(left_out.as_deref(), expected, "without {without:?}");
    }
}

#[tokio::test]
async fn texts_of_a_plugin_that_are_parsed_at_once_are_bounded() {
    let api = Api::start().await;
    let writer = writer(&api, &Informers::new(api.cluster.clone(), Handle::current()));
    let (object, view) = (parent(), View::new([]));
    let owner = Owner { object: &object, owns: &[] };
    let most = writer.room(MAX_OUTCOME).await;
    let mut children =
        Box::pin(writer.children(&owner, &view, vec![Child { object: "{}".to_owned(), adopt: false, replace: false }]));
    let mut status = Box::pin(writer.status(&owner, &view, "[]"));
    assert!(futures::poll!(&mut children).is_pending() && futures::poll!(&mut status).is_pending());
    drop(most);
    assert_eq!(children.await.problem().as_deref(), Some("child 0 has no apiVersion"));
    assert!(matches!(status.await, Err(Error::Status(_))));
    // A request for more than all gets all, and every part was returned.
    assert!(futures::poll!(Box::pin(writer.room(usize::MAX))).is_ready());
}

#[test]
fn a_problem_is_shown_in_bounds() {
    let mut report = super::Report::default();
    report.failed(Error::Status("ä".repeat(1 << 20)));
    assert!(report.problem().is_some_and(|shown| shown.chars().count() == super::report::SHOWN_CHARS + 1));
    for _ in 0..9_999 {
        report.failed(Error::Status("no".to_owned()));
    }
    assert_eq!(report.problems.len(), super::report::SHOWN);
    assert!(report.problem().is_some_and(|told| told.ends_with("; and 9995 more")));
}

fn parsed(object: &serde_json::Value) -> Object {
    let of = TypeMeta::new("v1", "ConfigMap");
    Object::parse(object.to_string().as_bytes(), &of).expect("an object")
}

fn plugin() -> PluginName {
    PluginName::new("apples").expect("a name")
}

fn host() -> Source {
    Source::Host(plugin())
}

/// Waits until so many Events were created, counted, dropped, and have failed.
async fn settled(events: &Events, expected: [u64; 4]) {
    soon("the Events are written", async {
        while !events.figures().map(|(_, count)| count).eq(expected) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// With many children that need no request, on a single thread.
#[tokio::test]
async fn another_plugin_is_served_while_the_children_of_an_outcome_are_looked_at() {
    let api = Api::start().await;
    let names: Vec<String> = (0..200).map(|number| format!("c-{number}")).collect();
    for name in &names {
        api.create(config_map(name)).await;
    }
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let view = view(&informers, "").await;
    let guests = Guests::start(NonZeroUsize::MIN, &Handle::current(), || ()).expect("a thread");
    let account = |name| guests.account(&PluginName::new(name).expect("a name"));
    let (busy, quiet) = (account("busy"), account("quiet"));
    // An object that exists and is no child is a problem, without a request.
    let taken = |names: &[String]| -> Vec<Child> {
        names.iter().map(|name| Child { object: config_map(name).to_string(), adopt: false, replace: false }).collect()
    };
    let large = |count| vec![Child { object: " ".repeat(256 << 10), adopt: false, replace: false }; count];
    let writer = writer(&api, &informers);
    // The first child causes a discovery request.
    for (children, expected) in [
        (taken(&names[..1]), None),
        (taken(&names), Some(1 + 3 + 3)),
        (large(4), Some(1 + 4)),
        (taken(&names[..31]), Some(1)),
    ] {
        let count = children.len();
        let ended = Arc::new(AtomicBool::new(false));
        let look = {
            let (writer, view, quiet, ended) = (writer.clone(), view.clone(), quiet.clone(), ended.clone());
            async move {
                let other = quiet.spawn({
                    let ended = ended.clone();
                    async move { !ended.load(Ordering::Relaxed) }
                });
                let (object, owns) = (parent(), [config_maps()]);
                let report = writer.children(&Owner { object: &object, owns: &owns }, &view, children).await;
                ended.store(true, Ordering::Relaxed);
                (report.problems.len() + report.more_problems, other)
            }
        };
        let before = busy.usage().turns;
        let (problems, other) = soon("they are looked at", busy.spawn(look).ended()).await.expect("it does not fail");
        let turns = busy.usage().turns - before;
        assert_eq!(problems, count);
        let between = soon("the other is served", other.ended()).await.expect("it does not fail");
        if let Some(expected) = expected {
            assert_eq!(turns, expected, "{count} children");
            // In a single turn a slow machine may serve the other one from a spare thread.
            assert!(between || expected == 1, "{count} children");
        }
    }
}

#[tokio::test]
async fn a_definition_is_applied_to_the_version_that_was_compared() {
    let (api, sent) = Api::overheard().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let writer = writer(&api, &informers);
    let install = async |versions: &[(&str, bool)]| {
        let definition = crate::testing::apples("Namespaced", versions).to_string();
        sent.lock().clear();
        soon("it is installed", writer.install(&[definition], None)).await.expect("it may be");
        String::from_utf8_lossy(&sent.lock()).into_owned()
    };
    let of = TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    let made = install(&[("v1", true)]).await;
    assert!(!made.contains("force=true") && !made.contains("resourceVersion"), "{made}");
    let live = api.cluster.get(&of, None, "myapples.stable.example.com").await.expect("it is there");
    let version = Object::parse(&live, &of).expect("an object").resource_version();
    let changed = install(&[("v1", true), ("v2", true)]).await;
    assert!(
        changed.contains(&format!(r#""resourceVersion":"{version}""#)) && changed.contains("force=true"),
        "{changed}"
    );
}

#[test]
fn an_answer_that_cannot_be_read_is_reported_with_the_reason() {
    let why = Object::parse(b"[]", &config_maps()).expect_err("it is no object");
    let text = format!("v1 ConfigMap default/a was written, and the API server's answer cannot be read: {why}");
    let error = Error::Answer { of: config_maps(), key: Key::new(Some("default"), "a"), why };
    assert_eq!(error.to_string(), text);
}
