//! Controllers with real components in the real sandbox, against the embedded API server.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pilothouse_apiserver::faults::{Fault, Requests, Rule, Verb};
use pilothouse_core::{
    grant,
    grant::Grants,
    key::{Key, TypeMeta},
    manifest::MAX_CONCURRENCY,
    predicate::{Condition, Expression, Predicate, Test},
    store::Change,
    workqueue::{CHANGE, INITIAL, Pace},
};
use serde_json::json;
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    Attempt, Called, Controller, Dispatch, Observer, Parts, ReconcileResult,
    judging::Relevance,
    record::Record,
    resync::wake_all,
    routes::{Part, Routes, Wanted},
};
use crate::{
    acting::Acting,
    clock::Clock,
    guests::Guests,
    informer::{InformerKey, Informers},
    name::PluginName,
    outbound::Outbound,
    plugin::{Activate, Candidate},
    references::References,
    testing::{Api, apple, comes_true, config_map, soon},
    wasm::{
        Engine, Limits, Phase,
        testing::{
            ANSWER, Answer, Guest, LOOP, MAPS, MISTAKE, MISTAKEN, Mapping, READS, READS_AND_TRAPS_IF_THERE,
            READS_LATER, TAKES, TRAP,
        },
    },
    writer::{Events, Fence, Identities},
};

mod acting;
mod events;
mod failures;
mod finalizers;
mod grants;
mod hooks;
mod http;
mod patterns;
mod queue;
mod reads;
mod reviews;
mod writes;

/// Records what controllers do.
struct Seen {
    results: mpsc::UnboundedSender<ReconcileResult>,
    log: Mutex<Vec<String>>,
    faults: Faults,
}

/// How often the host is still to panic.
#[derive(Default)]
struct Faults {
    /// After a reconcile.
    attempted: AtomicUsize,
    /// After a call of `map` or `observe`.
    called: AtomicUsize,
}

impl Faults {
    fn one_of(left: &AtomicUsize) {
        let left = left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(left.is_err(), "on purpose");
    }
}

impl Observer for Seen {
    fn started(&self, controller: &Controller) {
        self.log.lock().push(format!("{} started", controller.name()));
    }

    fn stopped(&self, controller: &Controller) {
        self.log.lock().push(format!("{} stopped", controller.name()));
    }

    fn picked(&self, _: &Controller, _: Duration) {}

    fn finished(&self, _: &Controller, _: Duration) {}

    fn attempted(&self, _: &Controller, attempt: &Attempt) {
        Faults::one_of(&self.faults.attempted);
        if attempt.panicked {
            self.log.lock().push(format!("panicked: {:?}, {:?}", attempt.in_guest, attempt.trap));
        }
        let _ = self.results.send(attempt.result);
    }

    fn called(&self, _: &PluginName, _: Option<&Controller>, called: &Called) {
        Faults::one_of(&self.faults.called);
        let how = if called.ok { "done" } else { "failed" };
        self.log.lock().push(format!("{} {how}", called.hook.as_str()));
    }

    fn quarantined(&self, _: &PluginName, quarantined: bool) {
        self.log.lock().push(if quarantined { "quarantined" } else { "free" }.to_owned());
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
        Self::at(Api::start().await).await
    }

    async fn at(api: Api) -> Self {
        let (results, ended) = mpsc::unbounded_channel();
        let seen = Arc::new(Seen { results, log: Mutex::default(), faults: Faults::default() });
        let acting = Acting::new(true);
        let dispatch = Arc::new(Dispatch::new(Parts {
            cluster: api.cluster.clone(),
            informers: Informers::new(api.cluster.clone(), Handle::current()),
            guests: Guests::within(&Handle::current()),
            observer: seen.clone(),
            writes: Arc::new(()),
            outbound: Outbound::new(Arc::default()),
            events: Events::start(api.cluster.clone(), acting.clone(), Arc::default(), "test", &Handle::current()),
            acting: acting.into(),
            webhooks: None,
            clock: Clock::System,
        }));
        Self { api, dispatch, engine: Engine::new().expect("the sandbox"), seen, ended }
    }

    async fn candidate(&self, guest: &Guest) -> Candidate {
        let compiled = self.engine.compile(&guest.file()).expect("a sound plugin");
        let linked = compiled.link().await.expect("it fits the contract");
        let name = PluginName::new("apples").expect("a name");
        let revision = linked.describe(name, "{}".into(), Limits::default()).await.expect("it describes itself");
        let grants = Grants::all_asked(&revision.manifest().permissions);
        let identity = Identities::default().claim(revision.plugin(), None).expect("it is alone");
        let (revision, grants) = (Arc::new(revision), Arc::new(grants));
        let webhooks = revision.manifest().webhooks.clone();
        let limits = grant::Limits::default();
        Candidate { revision, identity, act_as: None, grants, webhooks, limits, references: References::default() }
    }

    async fn activate(&self, guest: &Guest) {
        let candidate = self.candidate(guest).await;
        soon("the plugin becomes active", self.dispatch.activate(candidate)).await.expect("it can serve");
    }

    async fn next(&mut self) -> ReconcileResult {
        soon("a reconcile", self.ended.recv()).await.expect("the observer lives")
    }

    /// Waits until the observer has seen this so many times.
    async fn saw(&self, what: &str, times: usize) {
        soon(what, async {
            while self.seen.log.lock().iter().filter(|seen| *seen == what).count() < times {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Returns `true` if everything in flight was finished.
    async fn shut_down(&self) -> bool {
        self.dispatch.shut_down(Duration::from_secs(60)).await
    }

    fn controller(&self) -> Arc<Controller> {
        self.dispatch.controllers().into_iter().next().expect("a controller")
    }
}

/// A guest whose calls last until there is a ConfigMap `go`.
fn waits_for_go() -> Guest {
    Guest::new().owns_nothing().reads("v1", "ConfigMap").reconcile(READS_LATER).timeout_ms(60_000)
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
    // ConfigMaps are reconciled, and owned MyApples are not served: keys come in, and one informer is missing.
    scene.api.create(crate::testing::config_map("a")).await;
    scene.activate(&Guest::new().watches("v1", "ConfigMap").owns("stable.example.com/v1", "MyApple")).await;
    let controller = scene.controller();
    comes_true("keys are routed", || !controller.ledger().queue().lock().is_empty()).await;
    let waits_for: Vec<String> =
        controller.waking().waits_for().iter().map(|(informer, _)| informer.to_string()).collect();
    assert!(waits_for.contains(&"stable.example.com/v1 MyApple".to_owned()), "{waits_for:?}");
    assert!(scene.ended.try_recv().is_err());
    scene.api.serve_apples().await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
}

#[tokio::test]
async fn invariant_6_routes_have_synced_when_the_first_objects_are_judged() {
    let scene = Scene::new().await;
    for name in ["a", "b", "c"] {
        scene.api.create(config_map(name)).await;
    }
    let parts = &scene.dispatch.parts;
    let key = InformerKey { namespace: Some("default".into()), ..InformerKey::all(maps()) };
    let lease = Arc::new(parts.informers.acquire(key, "test"));
    let record = Record::new(
        PluginName::new("apples").expect("a name"),
        Arc::new(Fence::new(Acting::new(true))),
        parts,
        &Arc::default(),
    );
    let expression = Expression::compile("object.metadata.name == 'b'").expect("an expression");
    let when = Predicate::new(vec![vec![Condition { test: Test::Cel(expression), negated: false }]]);
    let routes = Arc::new(Routes::within(&record.remembered().unjudged));
    let needs_introduction = routes.replace(Part::Manifest, vec![Wanted { lease, source: (), when }], |listener| {
        let routes = Arc::downgrade(&routes);
        Box::new(move |change: &Change, origin| {
            let relevance = routes.upgrade().map(|routes| routes.hear(&listener, change, origin));
            assert_eq!(relevance, Some(Relevance::Undecided));
        })
    });
    assert!(!needs_introduction, "nothing is cached yet");
    let judged = Mutex::new(BTreeMap::new());
    let judge = routes.judge(&record, |case, matters| {
        judged.lock().insert(case.unseen.change.key().name.to_string(), matters);
    });
    tokio::select! {
        biased;
        () = soon("the routes sync", routes.synced(|()| true)) => {}
        () = judge => panic!("it goes on for ever"),
    }
    let mut judged = judged.into_inner();
    judged.remove("kube-root-ca.crt");
    assert_eq!(judged, [("a", false), ("b", true), ("c", false)].map(|(name, is)| (name.to_owned(), is)).into());
}

#[tokio::test]
async fn plugin_that_watches_an_unwatchable_kind_is_rejected_and_the_one_before_goes_on() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new()).await;
    let reads = Guest::new().version("2.0.0").reads("authorization.k8s.io/v1", "SelfSubjectAccessReview");
    let candidate = scene.candidate(&reads).await;
    let refused = soon("it is refused", scene.dispatch.activate(candidate)).await.expect_err("it cannot be followed");
    assert_eq!(
        refused.to_string(),
        "authorization.k8s.io/v1 SelfSubjectAccessReview cannot be watched: the server offers only create; remove its watch \
         and read it through `client`"
    );
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
}

#[tokio::test]
async fn changes_overtake_a_first_list_and_a_resync() {
    let scene = Scene::new().await;
    // Keys come in and stay, because MyApples are not served.
    scene.api.create(config_map("a")).await;
    scene.activate(&Guest::new().watches("v1", "ConfigMap").owns("stable.example.com/v1", "MyApple")).await;
    let controller = scene.controller();
    let depths = || controller.ledger().queue().lock().depths().collect::<Vec<_>>();
    comes_true("the first list is routed", || !depths().is_empty()).await;
    // The server has ConfigMaps of its own.
    let [(INITIAL, listed)] = *depths() else { panic!("{:?}", depths()) };
    scene.api.create(config_map("b")).await;
    comes_true("the change is routed", || depths() == [(CHANGE, 1), (INITIAL, listed)]).await;
    scene.api.serve_apples().await;
    // A key that a worker still has would not be among those that wait.
    comes_true("all are reconciled", || controller.ledger().queue().lock().is_idle()).await;
    // No other task has a turn before the depths are read.
    wake_all(controller.wakes()).await;
    assert_eq!(depths(), [(INITIAL, listed + 1)]);
}

#[tokio::test]
async fn invariant_5_deleted_object_is_reconciled_with_its_last_state_and_forgotten() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new()).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let key = Key::new(Some("default"), "a");
    scene.api.delete(&apples(), &key).await;
    // A key of which nothing is known causes no call.
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    comes_true("its last state is dropped", || controller.ledger().look_up(&controller.serving(), &key).is_none())
        .await;
}

#[tokio::test]
async fn invariant_9_swap_keeps_the_controller_and_reconciles_every_key_again() {
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
    assert_eq!(*scene.seen.log.lock(), ["apples started", "pears started", "apples stopped"]);
}

#[tokio::test]
async fn invariant_9_swap_during_the_resync_of_another_leaves_no_key_out() {
    // More than are looked at in one turn.
    const KEYS: usize = 200;
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new()).await;
    for number in 0..KEYS {
        scene.api.create(apple(&number.to_string())).await;
        assert_eq!(scene.next().await, ReconcileResult::Success);
    }
    scene.activate(&Guest::new().version("2.0.0")).await;
    let asks_again = Answer::Children { children: Vec::new(), status: None, requeue_after: Some(3_600_000) };
    scene.activate(&Guest::new().version("3.0.0").answer(asks_again)).await;
    let controller = scene.controller();
    comes_true("the last one has been called for each", || controller.ledger().queue().lock().delayed() == KEYS).await;
}

#[tokio::test]
async fn a_swap_leaves_as_many_workers_as_are_wanted() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    for wanted in [4, 1, 3, 0] {
        scene.activate(&Guest::new().concurrency(wanted)).await;
        let controller = scene.controller();
        comes_true("workers come and go", || controller.tasks() == wanted.max(1) as usize).await;
    }
    scene.activate(&Guest::new().concurrency(u32::MAX)).await;
    assert_eq!(scene.controller().max_concurrency(), MAX_CONCURRENCY as usize);
}

#[tokio::test]
async fn outcome_counts_as_the_plugins_memory_while_it_is_written() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let hangs = Rule::new(Fault::Hang).on(Requests::to("configmaps", &[Verb::Apply]));
    let hangs = scene.api.server.faults().add(hangs).expect("it is a rule");
    let mut child = config_map("child");
    child["data"] = json!({ "much": "x".repeat(10_000) });
    let children = vec![(child.to_string(), false)];
    scene.activate(&Guest::new().answer(Answer::Children { children, status: None, requeue_after: None })).await;
    scene.api.create(apple("a")).await;
    let memory = || scene.engine.instances().first().map_or(0, |(_, figures)| figures.memory);
    comes_true("the child is being written", || scene.api.server.faults().hits(hangs) == Some(1)).await;
    // The call's instance is dropped, and the next one is pre-warmed only after the reconcile.
    assert!((10_000..11_000).contains(&memory()), "{}", memory());
}

#[tokio::test]
async fn new_limits_apply_to_the_running_controller() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let guest = Guest::new().concurrency(4);
    scene.activate(&guest).await;
    let controller = scene.controller();
    assert_eq!((controller.max_concurrency(), controller.pace()), (4, Pace::default()));
    let mut candidate = scene.candidate(&guest).await;
    candidate.limits = grant::Limits {
        max_concurrency: NonZeroU32::new(2),
        reconciles_per_second: NonZeroU32::new(10),
        backoff_base_ms: NonZeroU32::new(20),
        backoff_cap_ms: NonZeroU32::new(30_000),
        ..grant::Limits::default()
    };
    let pace = candidate.limits.pace();
    scene.dispatch.activate(candidate).await.expect("it can serve");
    assert_eq!((controller.max_concurrency(), controller.pace()), (2, pace));
    assert_eq!(controller.ledger().queue().lock().pace(), pace);
    assert_eq!((pace.backoff.base, pace.backoff.cap), (Duration::from_millis(20), Duration::from_secs(30)));
    assert_eq!(pace.rate.map(|rate| (rate.burst, rate.every)), Some((10, Duration::from_millis(100))));
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
    assert!(!controller.waking().waits_for().is_empty());
    assert!(scene.ended.try_recv().is_err());
    scene.api.serve_apples().await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(controller.tasks(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_10_a_controller_that_a_dropped_activation_ended_is_waited_for() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&waits_for_go()).await;
    let candidate = scene.candidate(&Guest::new().controller("pears")).await;
    scene.api.create(apple("a")).await;
    let old = scene.controller();
    comes_true("a call begins", || old.active_workers() > 0).await;
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
    // The shutdown begins before `go` lets the call end.
    let (ended, ()) = tokio::join!(scene.shut_down(), scene.api.create(config_map("go")));
    assert!(ended);
    assert_eq!(old.active_workers(), 0);
    let mut log = scene.seen.log.lock().clone();
    log.sort();
    assert_eq!(log, ["apples started", "apples stopped", "pears started", "pears stopped"]);
    // No plugin is activated any more.
    let late = scene.candidate(&Guest::new()).await;
    assert!(scene.dispatch.activate(late).await.is_err());
    assert!(scene.dispatch.controllers().is_empty());
}

#[tokio::test]
async fn every_key_is_reconciled_again_after_the_resync_period() {
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
async fn deleted_object_that_is_to_be_reconciled_later_is_kept() {
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
    comes_true("the key waits", || controller.active_workers() == 0).await;
    let found = controller.ledger().look_up(&controller.serving(), &key);
    assert!(found.is_some_and(|(_, phase)| phase == Phase::Gone));
}

#[tokio::test]
async fn failure_is_retried_and_a_terminal_one_is_not() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let failure = |terminal| Answer::Failure { message: "no".into(), terminal, status: None };
    scene.activate(&Guest::new().answer(failure(false))).await;
    scene.api.create(apple("a")).await;
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Error; 2]);
    let key = Key::new(Some("default"), "a");
    assert_eq!(scene.controller().ledger().last_error(&key).as_deref(), Some("no"));

    scene.activate(&Guest::new().answer(failure(true))).await;
    while scene.next().await != ReconcileResult::Terminal {}
    let controller = scene.controller();
    // The swap may look at the key once more, which ends likewise.
    comes_true("the key rests and is forgotten", || {
        let queue = controller.ledger().queue().lock();
        let counts = (queue.processing(), queue.len(), queue.failures(&key));
        drop(queue);
        counts == (0, 0, 0) && controller.ledger().last_error(&key).is_none()
    })
    .await;
}

#[tokio::test]
async fn key_over_which_the_host_panicked_is_retried_and_its_worker_stays() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.seen.faults.attempted.store(1, Ordering::Relaxed);
    scene.activate(&Guest::new()).await;
    scene.api.create(apple("a")).await;
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Error, ReconcileResult::Success]);
    assert_eq!(*scene.seen.log.lock(), ["apples started", "panicked: None, None"]);
    let controller = scene.controller();
    comes_true("the key rests", || controller.active_workers() == 0).await;
    // The first reconcile was counted before the panic.
    let ended = [("success", 2), ("requeue_after", 0), ("error", 1), ("terminal", 0)];
    assert_eq!((controller.tasks(), controller.results()), (1, ended));
    assert_eq!(controller.ledger().last_error(&Key::new(Some("default"), "a")), None);
}

#[tokio::test]
async fn panic_in_the_report_of_a_panic_ends_no_worker() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.seen.faults.attempted.store(2, Ordering::Relaxed);
    scene.activate(&Guest::new()).await;
    scene.api.create(apple("a")).await;
    // The observer did not see the first try.
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!((scene.controller().tasks(), scene.seen.faults.attempted.load(Ordering::Relaxed)), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invariant_10_the_call_in_flight_is_finished_and_no_other_begins() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&waits_for_go()).await;
    for name in ["a", "b"] {
        scene.api.create(apple(name)).await;
    }
    let controller = scene.controller();
    comes_true("a call begins", || controller.active_workers() > 0).await;
    // The shutdown begins before `go` lets the call end.
    let (ended, ()) = tokio::join!(scene.shut_down(), scene.api.create(config_map("go")));
    assert!(ended);
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert!(scene.ended.try_recv().is_err());
    assert_eq!(*scene.seen.log.lock(), ["apples started", "apples stopped"]);
}
