//! Controllers with real components in the real sandbox, against the embedded API server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pilothouse_core::{
    grant,
    grant::Grants,
    key::{Key, TypeMeta},
};
use tokio::{runtime::Handle, sync::mpsc};

use super::{Attempt, Called, Controller, Dispatch, Observer, Parts, Result as ReconcileResult};
use crate::{
    guests::Guests,
    informer::{InformerKey, Informers},
    plugin::{Activate, Candidate},
    testing::{Api, apple, config_map, soon},
    wasm::{
        Engine, Limits, PluginName,
        testing::{
            ANSWER, Answer, Guest, LOOP, MAPS, MISTAKE, MISTAKEN, Mapping, READS, READS_AND_TRAPS_IF_THERE,
            READS_LATER, TAKES, TRAP,
        },
    },
    writer::Events,
};

mod failures;
mod queue;

/// Tells each reconcile that ended.
struct Seen(mpsc::UnboundedSender<ReconcileResult>, Mutex<Vec<String>>, Faults);

/// So often the host fails over a call that is no reconcile.
#[derive(Default)]
struct Faults(AtomicUsize);

impl Observer for Seen {
    fn started(&self, controller: &Controller) {
        self.1.lock().push(format!("{} started", controller.name()));
    }

    fn stopped(&self, controller: &Controller) {
        self.1.lock().push(format!("{} stopped", controller.name()));
    }

    fn picked(&self, _: &Controller, _: Duration) {}

    fn finished(&self, _: &Controller, _: Duration) {}

    fn attempted(&self, _: &Controller, attempt: &Attempt) {
        let _ = self.0.send(attempt.result);
    }

    fn called(&self, _: &PluginName, _: Option<&Controller>, called: &Called) {
        let left = self.2.0.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(left.is_err(), "on purpose");
        let how = if called.ok { "done" } else { "failed" };
        self.1.lock().push(format!("{} {how}", called.hook.as_str()));
    }

    fn quarantined(&self, _: &PluginName, quarantined: bool) {
        self.1.lock().push(if quarantined { "quarantined" } else { "free" }.to_owned());
    }
}

struct Scene {
    api: Api,
    dispatch: Arc<Dispatch>,
    engine: Engine,
    seen: Arc<Seen>,
    ended: mpsc::UnboundedReceiver<ReconcileResult>,
}

impl Scene {
    async fn new() -> Self {
        let api = Api::start().await;
        let (sender, ended) = mpsc::unbounded_channel();
        let seen = Arc::new(Seen(sender, Mutex::default(), Faults::default()));
        let dispatch = Arc::new(Dispatch::new(Parts {
            cluster: api.cluster.clone(),
            informers: Informers::new(api.cluster.clone(), Handle::current()),
            guests: Guests::within(&Handle::current()),
            observer: seen.clone(),
            writes: Arc::new(()),
            events: Events::start(api.cluster.clone(), "test", &Handle::current()),
        }));
        Self { api, dispatch, engine: Engine::new().expect("the sandbox"), seen, ended }
    }

    async fn candidate(&self, guest: &Guest) -> Candidate {
        let linked = self.engine.compile(&guest.file()).and_then(|compiled| compiled.link()).expect("a sound plugin");
        let name = PluginName::new("apples").expect("a name");
        let revision = linked.describe(name, "{}".into(), Limits::default()).await.expect("it describes itself");
        let grants = Grants::all_asked(&revision.manifest().permissions);
        Candidate { revision: Arc::new(revision), grants: Arc::new(grants), limits: grant::Limits::default() }
    }

    async fn activate(&self, guest: &Guest) {
        let candidate = self.candidate(guest).await;
        soon("the plugin becomes active", self.dispatch.activate(candidate)).await.expect("it can serve");
    }

    async fn next(&mut self) -> ReconcileResult {
        soon("a reconcile", self.ended.recv()).await.expect("the observer lives")
    }

    /// Waits until the observer was told this so often.
    async fn told(&self, what: &str, times: usize) {
        soon(what, async {
            while self.seen.1.lock().iter().filter(|told| *told == what).count() < times {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    fn controller(&self) -> Arc<Controller> {
        self.dispatch.controllers().into_iter().next().expect("a controller")
    }
}

fn maps() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

fn apples() -> TypeMeta {
    TypeMeta::new("stable.example.com/v1", "MyApple")
}

#[tokio::test]
async fn invariant_6_no_key_is_reconciled_before_every_informer_has_synced() {
    let mut scene = Scene::new().await;
    // ConfigMaps are served, and MyApples are not: with the kinds' parts exchanged, keys come in and one informer is missing.
    scene.api.create(crate::testing::config_map("a")).await;
    scene.activate(&Guest::new().watches("v1", "ConfigMap").owns("stable.example.com/v1", "MyApple")).await;
    let controller = scene.controller();
    soon("keys are routed", async {
        while controller.queue().lock().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let waits_for: Vec<String> = controller.waits_for().iter().map(|(informer, _)| informer.to_string()).collect();
    assert!(waits_for.contains(&"stable.example.com/v1 MyApple".to_owned()), "{waits_for:?}");
    assert!(scene.ended.try_recv().is_err());
    scene.api.serve_apples().await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
}

#[tokio::test]
async fn invariant_5_a_deleted_object_is_reconciled_with_its_last_state_and_forgotten() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new()).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let key = Key::new(Some("default"), "a");
    scene.api.delete(&apples(), &key).await;
    // A key of which nothing is known calls nobody.
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    soon("its last state is dropped", async {
        while controller.look_up(&controller.serving(), &key).is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn invariant_9_a_swap_keeps_the_controller_and_looks_at_every_key_again() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new()).await;
    for name in ["a", "b"] {
        scene.api.create(apple(name)).await;
        assert_eq!(scene.next().await, ReconcileResult::Success);
    }
    let before = scene.controller();
    let asks_again = Answer::Children { children: Vec::new(), status: None, requeue_after: Some(3_600_000) };
    scene.activate(&Guest::new().version("2.0.0").answer(asks_again)).await;
    assert!(Arc::ptr_eq(&before, &scene.controller()));
    // Both keys, by the new revision.
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::RequeueAfter; 2]);

    // A controller of another name is another controller.
    scene.activate(&Guest::new().version("3.0.0").controller("pears")).await;
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Success; 2]);
    assert_eq!(*scene.seen.1.lock(), ["apples started", "pears started", "apples stopped"]);
}

#[tokio::test]
async fn a_swap_leaves_as_many_workers_as_are_wanted() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    for wanted in [4, 1, 3, 0] {
        scene.activate(&Guest::new().concurrency(wanted)).await;
        let controller = scene.controller();
        soon("workers come and go", async {
            while controller.tasks() != wanted.max(1) as usize {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    scene.activate(&Guest::new().concurrency(u32::MAX)).await;
    assert_eq!(scene.controller().max_concurrency(), super::MAX_CONCURRENCY);
}

#[tokio::test]
async fn a_controller_that_still_waits_for_an_informer_can_be_replaced() {
    let mut scene = Scene::new().await;
    scene.api.create(crate::testing::config_map("a")).await;
    let guest = Guest::new().watches("v1", "ConfigMap").owns("stable.example.com/v1", "MyApple");
    scene.activate(&guest).await;
    // New grants must not wait for a kind that may never come.
    scene.activate(&guest.clone().version("2.0.0").concurrency(2)).await;
    let controller = scene.controller();
    assert!(!controller.waits_for().is_empty());
    assert!(scene.ended.try_recv().is_err());
    scene.api.serve_apples().await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(controller.tasks(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_10_a_controller_that_a_dropped_activation_ended_is_waited_for() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new().reconcile(LOOP).timeout_ms(2000)).await;
    scene.api.create(apple("a")).await;
    let old = scene.controller();
    soon("a call begins", async {
        while old.active_workers() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let candidate = scene.candidate(&Guest::new().controller("pears")).await;
    let swapped = async {
        while scene.controller().name() != "pears" {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = scene.dispatch.activate(candidate) => panic!("it waits for the call in flight"),
        () = soon("the swap", swapped) => {}
    }
    assert_eq!(old.active_workers(), 1);
    assert!(scene.dispatch.shut_down(Duration::from_secs(30)).await);
    assert_eq!(old.active_workers(), 0);
    let mut told = scene.seen.1.lock().clone();
    told.sort();
    assert_eq!(told, ["apples started", "apples stopped", "pears started", "pears stopped"]);
    // What comes later comes too late.
    let late = scene.candidate(&Guest::new()).await;
    assert!(scene.dispatch.activate(late).await.is_err());
    assert!(scene.dispatch.controllers().is_empty());
}

#[tokio::test]
async fn invariant_7_an_object_whose_name_is_not_granted_is_not_reconciled() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let mut candidate = scene.candidate(&Guest::new()).await;
    let file: grant::AdminFile = serde_saphyr::from_str(
        "grants:\n- {apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read], names: [mine]}\n",
    )
    .expect("an administrator's file");
    candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
    soon("it becomes active", scene.dispatch.activate(candidate)).await.expect("it can serve");
    // One worker takes them in order.
    for name in ["another", "mine", "other"] {
        scene.api.create(apple(name)).await;
    }
    scene.api.delete(&apples(), &Key::new(Some("default"), "another")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    let view = controller.serving().view.clone();
    soon("all came and went", async {
        let key = |name| Key::new(Some("default"), name);
        while view.get(&apples(), &key("other")).is_none()
            || view.get(&apples(), &key("another")).is_some()
            || controller.active_workers() > 0
            || !controller.queue().lock().is_idle()
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(scene.ended.try_recv().is_err());
}

#[tokio::test]
async fn invariant_7_what_is_taken_away_is_gone_though_what_is_new_never_comes() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new()).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    let (maps, key) = (TypeMeta::new("v1", "ConfigMap"), Key::new(Some("default"), "a"));
    assert!(controller.serving().access.reader.may_read(&maps, &key));
    // It asks for a kind that nobody serves, and ConfigMaps are no longer granted everywhere.
    let mut candidate = scene.candidate(&Guest::new().reads("example.com/v1", "Pear")).await;
    let file: grant::AdminFile = serde_saphyr::from_str(
        "grants:\n- {apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read]}\n\
         - {apiVersion: example.com/v1, kind: Pear, verbs: [read]}\n\
         - {apiVersion: v1, kind: ConfigMap, verbs: [read], namespaces: [other]}\n",
    )
    .expect("an administrator's file");
    candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
    let waits = async {
        while scene.dispatch.waiting().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        activated = scene.dispatch.activate(candidate) => panic!("it waits for its informers: {activated:?}"),
        () = soon("it waits", waits) => {}
    }
    assert!(!controller.serving().access.reader.may_read(&maps, &key));
    assert!(controller.serving().access.reader.may_read(&apples(), &key));
}

#[tokio::test]
async fn namespaces_of_a_kind_that_has_none_are_said() {
    let scene = Scene::new().await;
    let mut candidate = scene.candidate(&Guest::new().watches("v1", "Node").owns_nothing()).await;
    let file: grant::AdminFile =
        serde_saphyr::from_str("grants:\n- {apiVersion: v1, kind: Node, verbs: [read], namespaces: [a]}\n")
            .expect("an administrator's file");
    candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
    soon("it becomes active", scene.dispatch.activate(candidate)).await.expect("it can serve");
    let controller = scene.controller();
    soon("the informer says so", async {
        loop {
            let states = controller.waits_for();
            let told: Vec<String> = states.iter().map(|(_, state)| crate::informer::told(state)).collect();
            if told.iter().any(|told| told.contains("v1 Node is cluster-scoped: there is nothing of it in namespace a"))
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn every_key_is_looked_at_again_when_its_time_has_come() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new().resync(1)).await;
    scene.api.create(apple("a")).await;
    // The first is for the change.
    for _ in 0..3 {
        assert_eq!(scene.next().await, ReconcileResult::Success);
    }
    assert_eq!(scene.controller().spec().resync, Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn invariant_11_a_key_is_woken_by_what_it_read_and_by_nothing_else() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new().owns_nothing().reads("v1", "ConfigMap").reconcile(READS)).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    // It found none: that one comes concerns it, and others do not.
    for name in ["another", "settings", "other"] {
        scene.api.create(config_map(name)).await;
    }
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.api.delete(&maps(), &Key::new(Some("default"), "other")).await;
    scene.api.delete(&maps(), &Key::new(Some("default"), "settings")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(controller.woken(), [("self", 1), ("child", 0), ("mapping", 0), ("read", 2)]);
    assert_eq!((controller.reads().keys, controller.reads().things), (1, 1));
    // Nobody is woken for a key that is gone and reconciled.
    scene.api.delete(&apples(), &Key::new(Some("default"), "a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    soon("its reads are forgotten", async {
        while controller.reads().keys > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_watch_does_not_ask_for_is_neither_held_nor_shown() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let mut gala = apple("gala");
    gala["metadata"]["labels"] = serde_json::json!({ "app": "web" });
    gala["metadata"]["annotations"] = serde_json::json!({ "large": "text" });
    scene.api.create(gala).await;
    let guest = Guest::new().maps("v1", "Secret", Mapping::SameKey).reads("v1", "Service").observes("v1", "Node");
    scene.activate(&guest.observe(TAKES).frugal()).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);

    // Children are compared whole.
    let holdings = scene.dispatch.parts.informers.holdings();
    let used: Vec<_> = holdings.iter().flat_map(|holding| &holding.leases).map(ToString::to_string).collect();
    let frugal = |kind: &str| format!("{kind}, metadata only, without metadata.annotations, compressed");
    let [secrets, services, nodes] = ["v1 Secret", "v1 Service", "v1 Node"].map(frugal);
    let expected = [frugal("stable.example.com/v1 MyApple"), "v1 ConfigMap".to_owned(), nodes, secrets, services];
    assert_eq!(used, expected);

    let controller = scene.controller();
    let key = Key::new(Some("default"), "gala");
    let (object, _) = controller.look_up(&controller.serving(), &key).expect("it is there");
    let object: serde_json::Value = serde_json::from_str(&object.json()).expect("it is JSON");
    let members = |object: &serde_json::Value| {
        object.as_object().map(|members| members.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
    };
    assert_eq!(members(&object), ["apiVersion", "kind", "metadata"]);
    assert_eq!((&object["kind"], &object["metadata"]["labels"]["app"]), (&"MyApple".into(), &"web".into()));
    assert_eq!(object["metadata"].get("annotations"), None);
}

#[tokio::test]
async fn invariant_11_a_key_is_woken_by_what_had_changed_before_it_was_read_as_it_was() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new().owns_nothing().reads("v1", "ConfigMap").reconcile(READS_LATER)).await;
    scene.api.create(apple("a")).await;
    let controller = scene.controller();
    let lease = scene.dispatch.parts.informers.acquire(InformerKey::all(maps()), "test");
    soon("the call sees a moment", async {
        while lease.informer().snapshots() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Nobody has read it yet: nobody is woken.
    scene.api.create(config_map("settings")).await;
    soon("the cache has it", async {
        while lease.get(&Key::new(Some("default"), "settings")).is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(controller.woken(), [("self", 1), ("child", 0), ("mapping", 0), ("read", 0)]);
    scene.api.create(config_map("go")).await;
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Success; 2]);
    assert_eq!(controller.woken(), [("self", 1), ("child", 0), ("mapping", 0), ("read", 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_call_sees_is_let_go_however_the_call_ends() {
    for (end, result) in
        [(ANSWER, ReconcileResult::Success), (TRAP, ReconcileResult::Error), (LOOP, ReconcileResult::Error)]
    {
        let mut scene = Scene::new().await;
        scene.api.serve_apples().await;
        // It outlives the plugin's.
        let lease = scene.dispatch.parts.informers.acquire(InformerKey::all(maps()), "test");
        let body = format!("(call $cache_get {{settings}} (i32.const 512)) {end}");
        let guest = Guest::new().owns_nothing().reads("v1", "ConfigMap").reconcile(&body).timeout_ms(300);
        scene.activate(&guest).await;
        scene.api.create(apple("a")).await;
        if end == LOOP {
            soon("the call sees a moment", async {
                while lease.informer().snapshots() == 0 {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
        assert_eq!(scene.next().await, result);
        assert!(scene.dispatch.shut_down(Duration::from_secs(30)).await);
        assert_eq!(lease.informer().snapshots(), 0);
    }
}

#[tokio::test]
async fn an_index_lives_as_long_as_the_revision_that_declares_it() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let informers = scene.dispatch.parts.informers.clone();
    let indexed = || -> Vec<String> {
        let uses = informers.holdings().into_iter().flat_map(|holding| holding.leases);
        uses.filter(|used| !used.indexes.is_empty()).map(|used| used.to_string()).collect()
    };
    let apple = ("stable.example.com/v1", "MyApple");
    for (guest, expected) in [
        (Guest::new().index("size", apple, "spec.size"), vec!["stable.example.com/v1 MyApple, indexed by spec.size"]),
        (
            Guest::new().version("2").index("sort", apple, "spec.sort"),
            vec!["stable.example.com/v1 MyApple, indexed by spec.sort"],
        ),
        (Guest::new().version("3"), vec![]),
    ] {
        scene.activate(&guest).await;
        soon("nobody needs the old one", async {
            while indexed() != expected {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn invariant_11_a_failed_call_changes_nothing() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new().owns_nothing().reads("v1", "ConfigMap").reconcile(READS_AND_TRAPS_IF_THERE)).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.api.create(config_map("settings")).await;
    assert_eq!(scene.next().await, ReconcileResult::Error);
    let controller = scene.controller();
    // The read of the last success stays: it wakes once more when what failed it goes, or a retry finds it gone.
    assert_eq!((controller.reads().keys, controller.reads().things), (1, 1));
    scene.api.delete(&maps(), &Key::new(Some("default"), "settings")).await;
    while scene.next().await != ReconcileResult::Success {}
}

#[tokio::test]
async fn a_mapping_names_whom_a_change_concerns() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(apple("mapped")).await;
    for (guest, name) in [
        (Guest::new().maps("v1", "ConfigMap", Mapping::SameKey), "mapped"),
        (Guest::new().maps("v1", "ConfigMap", Mapping::Plugin).map(MAPS), "any"),
        (
            Guest::new().index("named", ("stable.example.com/v1", "MyApple"), "metadata.name").maps(
                "v1",
                "ConfigMap",
                Mapping::Index("named"),
            ),
            "mapped",
        ),
    ] {
        let key = Key::new(Some("default"), name);
        scene.activate(&guest.owns_nothing()).await;
        assert_eq!(scene.next().await, ReconcileResult::Success);
        scene.api.create(config_map("unrelated")).await;
        scene.api.create(config_map(name)).await;
        assert_eq!(scene.next().await, ReconcileResult::Success);
        scene.api.delete(&maps(), &key).await;
        scene.api.delete(&maps(), &Key::new(Some("default"), "unrelated")).await;
        let controller = scene.controller();
        soon("all is quiet", async {
            let view = controller.serving().view.clone();
            while view.get(&maps(), &key).is_some()
                || view.get(&maps(), &Key::new(Some("default"), "unrelated")).is_some()
                || controller.unmapped().objects > 0
                || controller.active_workers() > 0
                || !controller.queue().lock().is_idle()
            {
                tokio::task::yield_now().await;
            }
        })
        .await;
        scene.dispatch.deactivate(controller.plugin()).await;
        while scene.ended.try_recv().is_ok() {}
    }
}

#[tokio::test]
async fn a_key_that_a_mapper_names_wakes_where_there_is_such_an_object() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    // It names `mapped`, whatever changes.
    scene.activate(&Guest::new().owns_nothing().maps("v1", "ConfigMap", Mapping::Plugin).map(MAPS)).await;
    scene.api.create(config_map("a")).await;
    scene.told("map done", 1).await;
    let controller = scene.controller();
    soon("it is mapped", async {
        while controller.unmapped().objects > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(controller.queue().lock().is_idle());
    assert_eq!(controller.woken()[2], ("mapping", 0));
    scene.api.create(apple("mapped")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.api.create(config_map("b")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(controller.woken()[2], ("mapping", 1));
}

#[tokio::test]
async fn a_mapper_that_fails_is_asked_again_and_holds_up_no_reconcile() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(apple("a")).await;
    scene.api.create(config_map("b")).await;
    scene.activate(&Guest::new().owns_nothing().maps("v1", "ConfigMap", Mapping::Plugin).map(MISTAKEN)).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.told("map failed", 3).await;
    let last = scene.controller().last_unmapped().map(|last| last.message);
    assert_eq!(last.as_deref(), Some(MISTAKE));
    // A newer revision knows.
    scene
        .activate(&Guest::new().version("2.0.0").owns_nothing().maps("v1", "ConfigMap", Mapping::Plugin).map(MAPS))
        .await;
    scene.told("map done", 1).await;
    let controller = scene.controller();
    soon("all is mapped", async {
        while controller.unmapped().objects > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_observer_that_fails_holds_up_no_reconcile_and_loses_nothing_to_a_newer_revision() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(config_map("b")).await;
    scene.activate(&Guest::new().owns_nothing().observes("v1", "ConfigMap").observe(MISTAKEN)).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.told("observe failed", 3).await;
    let last = scene.dispatch.observing()[0].last_failure().map(|last| last.message);
    assert_eq!(last.as_deref(), Some(MISTAKE));
    scene.activate(&Guest::new().version("2.0.0").owns_nothing().observes("v1", "ConfigMap").observe(TAKES)).await;
    scene.told("observe done", 1).await;
    let observing = scene.dispatch.observing();
    soon("all is told", async {
        while observing[0].figures().objects > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A revision that observes nothing ends it.
    scene.activate(&Guest::new().version("3.0.0").owns_nothing()).await;
    assert!(scene.dispatch.observing().is_empty());
}

#[tokio::test]
async fn a_mapper_over_which_the_host_failed_is_asked_again_and_reconciles_begin() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(apple("a")).await;
    scene.api.create(config_map("b")).await;
    scene.seen.2.0.store(1, Ordering::Relaxed);
    scene.activate(&Guest::new().owns_nothing().maps("v1", "ConfigMap", Mapping::Plugin).map(MAPS)).await;
    scene.told("map done", 1).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
}

#[tokio::test]
async fn an_observer_over_which_the_host_failed_is_told_again() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(config_map("b")).await;
    scene.seen.2.0.store(1, Ordering::Relaxed);
    scene.activate(&Guest::new().owns_nothing().observes("v1", "ConfigMap").observe(TAKES)).await;
    scene.told("observe done", 1).await;
    let observing = scene.dispatch.observing();
    soon("all is told", async {
        while observing[0].figures().objects > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    scene.dispatch.deactivate(observing[0].plugin()).await;
}

#[tokio::test]
async fn a_vanished_object_that_is_to_be_reconciled_later_is_kept() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let later = Answer::Children { children: Vec::new(), status: None, requeue_after: Some(3_600_000) };
    scene.activate(&Guest::new().answer(later)).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::RequeueAfter);
    let key = Key::new(Some("default"), "a");
    scene.api.delete(&apples(), &key).await;
    assert_eq!(scene.next().await, ReconcileResult::RequeueAfter);
    let controller = scene.controller();
    soon("the key waits", async {
        while controller.active_workers() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let found = controller.look_up(&controller.serving(), &key);
    assert!(found.is_some_and(|(_, there)| !there));
}

#[tokio::test]
async fn a_failure_is_tried_again_and_a_terminal_one_is_not() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let failure = |terminal| Answer::Failure { message: "no".into(), terminal, status: None };
    scene.activate(&Guest::new().answer(failure(false))).await;
    scene.api.create(apple("a")).await;
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Error; 2]);
    let key = Key::new(Some("default"), "a");
    assert_eq!(scene.controller().last_error(&key).as_deref(), Some("no"));

    scene.activate(&Guest::new().answer(failure(true))).await;
    while scene.next().await != ReconcileResult::Terminal {}
    let controller = scene.controller();
    soon("the key rests", async {
        while controller.queue().lock().processing() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let queue = controller.queue().lock();
    assert_eq!((queue.len(), queue.failures(&key)), (0, 0));
    assert_eq!(controller.last_error(&key), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_10_the_call_in_flight_is_finished_and_no_other_begins() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    // Runs until its deadline: a call that is surely in flight.
    scene.activate(&Guest::new().reconcile(LOOP).timeout_ms(300)).await;
    for name in ["a", "b"] {
        scene.api.create(apple(name)).await;
    }
    let controller = scene.controller();
    soon("a call begins", async {
        while controller.active_workers() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(scene.dispatch.shut_down(Duration::from_secs(30)).await);
    assert_eq!(scene.next().await, ReconcileResult::Error);
    assert!(scene.ended.try_recv().is_err());
    assert_eq!(*scene.seen.1.lock(), ["apples started", "apples stopped"]);
}
