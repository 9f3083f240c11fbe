//! What an administrator does not grant is neither reconciled nor read (invariant 7).

use std::{collections::BTreeSet, fmt};

use pilothouse_core::{
    event,
    manifest::{self, Permission},
    object::Object,
    selector::Selector,
};
use serde_json::Value;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer, layer::SubscriberExt, registry::LookupSpan};

use super::*;
use crate::{
    dispatch::{
        activate::NAMED,
        hook::Hook,
        imports::{Access, CallImports},
    },
    wasm::{
        CacheCall, CacheImports, ClientCall, ClientError, ClientImports, EventError, EventsCall, EventsImports,
        ListQuery, PatchBody, Query, Request, testing::request,
    },
};

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
    // The plugin's own lease shows what it is granted. Another holder's shows that the others came and went.
    let all = scene.dispatch.parts.informers.acquire(InformerKey::all(apples()), "test");
    soon("all came and went", async {
        let key = |name| Key::new(Some("default"), name);
        while all.get(&key("other")).is_none()
            || all.get(&key("another")).is_some()
            || controller.active_workers() > 0
            || !controller.ledger().queue().lock().is_idle()
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(scene.ended.try_recv().is_err());
}

#[tokio::test]
async fn invariant_7_grants_are_revoked_at_once_though_the_new_revision_never_syncs() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new()).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    let (maps, key) = (TypeMeta::new("v1", "ConfigMap"), Key::new(Some("default"), "a"));
    assert!(controller.serving().access.may_see(&maps, &key));
    // The new revision asks for a kind that is not served, and ConfigMaps are no longer granted everywhere.
    let mut candidate = scene.candidate(&Guest::new().reads("example.com/v1", "Pear")).await;
    let file: grant::AdminFile = serde_saphyr::from_str(
        "grants:\n- {apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read]}\n\
         - {apiVersion: example.com/v1, kind: Pear, verbs: [read]}\n\
         - {apiVersion: v1, kind: ConfigMap, verbs: [read], namespaces: [other]}\n",
    )
    .expect("an administrator's file");
    candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
    waits_for_its_informers(&scene, candidate).await;
    assert!(!controller.serving().access.may_see(&maps, &key));
    assert!(controller.serving().access.may_see(&apples(), &key));
}

#[tokio::test]
async fn namespaces_of_a_cluster_scoped_kind_are_reported() {
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
            let states = controller.waking().waits_for();
            let expected = "v1 Node is cluster-scoped, so namespace a has none of its objects";
            if states.iter().any(|(_, state)| state.to_string().contains(expected)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A text in each object, which a plugin must not see.
const INSIDE: &str = "T09QU0VDUkVU";

/// A granted name.
const MINE: &str = "mine";

/// Another granted name.
const AFTER: &str = "mine-too";

/// A name that is not granted.
const OTHER: &str = "other";

/// Every way by which something of an object reaches a plugin. A way that is added here needs a row in
/// [`Shown::reaches`]; an import, a hook or a member of the request that is added needs a line in [`every_path`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Path {
    Reconcile,
    Gone,
    LastError,
    Map,
    Observe,
    ObserveDeleted,
    CacheGet,
    CacheList,
    CacheKeys,
    EventsRecord,
    NextOfList,
    NextOfKeys,
    ClientGet,
    ClientList,
    ClientCreate,
    ClientUpdate,
    ClientPatch,
    ClientPatchCopies,
    ClientApply,
}

impl Path {
    /// Returns `true` if the object may take this path, where only some names are granted.
    fn may_have(self, name: &str) -> bool {
        // A live list needs the grant of all names.
        name == MINE && self != Path::ClientList
    }
}

fn every_path() -> BTreeSet<Path> {
    // The other interfaces have nothing of an object: they do not reach the cache or the API server. An administrator's
    // file may put single values into the configuration, whatever the grants are: `plugin/tests/references.rs`. What a
    // webhook reviews comes with the grant of the webhook. What the outcome of a key asks to be cached is read by the
    // same imports.
    let cache = |call: CacheCall| -> &[Path] {
        match call {
            CacheCall::Get => &[Path::CacheGet],
            CacheCall::List => &[Path::CacheList, Path::NextOfList],
            CacheCall::Keys => &[Path::CacheKeys, Path::NextOfKeys],
        }
    };
    let client = |call: ClientCall| -> &[Path] {
        match call {
            ClientCall::Get => &[Path::ClientGet],
            ClientCall::List => &[Path::ClientList],
            ClientCall::Create => &[Path::ClientCreate],
            ClientCall::Update => &[Path::ClientUpdate],
            ClientCall::Patch => &[Path::ClientPatch, Path::ClientPatchCopies],
            ClientCall::Apply => &[Path::ClientApply],
            // Their answers have no part of an object.
            ClientCall::Delete | ClientCall::Evict | ClientCall::Logs => &[],
            // It makes the other calls.
            ClientCall::Send => &[],
        }
    };
    // Whether an object exists, and nothing else.
    let events = |call: EventsCall| -> &[Path] {
        match call {
            EventsCall::Record => &[Path::EventsRecord],
        }
    };
    let hook = |hook: Hook| -> &[Path] {
        match hook {
            Hook::Map => &[Path::Map],
            Hook::Observe => &[Path::Observe, Path::ObserveDeleted],
        }
    };
    let requested = |request: &Request| -> &[Path] {
        // The key comes with the object, and is its own.
        let Request { controller: _, key: _, object: _, phase: _, attempt: _, last_error: _ } = request;
        &[Path::Reconcile, Path::Gone, Path::LastError]
    };
    let imports = CacheCall::ALL.into_iter().flat_map(cache).chain(ClientCall::ALL.into_iter().flat_map(client));
    let imports = imports.chain(EventsCall::ALL.into_iter().flat_map(events));
    let hooks = [Hook::Map, Hook::Observe].into_iter().flat_map(hook);
    imports.chain(hooks).chain(requested(&request())).copied().collect()
}

/// Returns a guest that logs its arguments.
fn tells_all() -> Guest {
    tells_all_of("ConfigMap")
}

/// Returns a guest that logs its arguments and observes this kind, or all kinds by the pattern `*`.
fn tells_all_of(observed: &'static str) -> Guest {
    // Logs an optional text of a record.
    let option = |at: usize| {
        let (text, length) = (at + 4, at + 8);
        format!(
            "(if (i32.load8_u offset={at} (local.get $at)) (then (call $log (i32.const 2) \
             (i32.load offset={text} (local.get $at)) (i32.load offset={length} (local.get $at)) (i32.const 0) (i32.const 0))))"
        )
    };
    let changes = |first: usize, size: usize| {
        format!(
            "(local $at i32) (local $n i32) (local.set $at (local.get {first})) (local.set $n (local.get {})) \
             (loop $each {} {} (local.set $at (i32.add (local.get $at) (i32.const {size}))) \
             (br_if $each (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))",
            first + 1,
            option(16),
            option(28),
        )
    };
    let text = |at: usize| {
        format!("(call $log (i32.const 2) (local.get {at}) (local.get {}) (i32.const 0) (i32.const 0))", at + 1)
    };
    let reconcile = format!("{} (if (local.get 13) (then {})) {ANSWER}", text(9), text(14));
    Guest::new()
        .owns_nothing()
        .maps("v1", "ConfigMap", Mapping::Plugin)
        .observes("v1", observed)
        .reconcile(&reconcile)
        .map(&format!("{} {MAPS}", changes(4, 40)))
        .observe(&format!("{} {TAKES}", changes(2, 48)))
}

/// The lines that plugins write, each after the name of the call that writes it.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn has(&self, call: &str, name: &str) -> bool {
        let name = format!(r#""name":"{name}""#);
        self.0.lock().iter().any(|line| line.starts_with(call) && line.contains(&name))
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, context: layer::Context<'_, S>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        if event.metadata().target() == "pilothouse::plugin_log" {
            let mut text = Text(String::new());
            event.record(&mut text);
            let call = context.event_span(event).map_or("", |span| span.name());
            self.0.lock().push(format!("{call} {}", text.0));
        }
    }
}

/// A plugin that is granted some names.
struct Shown {
    scene: Scene,
    lines: Lines,
    imports: CallImports,
    controller: Arc<Controller>,
}

impl Shown {
    /// Grants two names, and `more` others.
    async fn new(more: usize, lines: Lines) -> Self {
        Self::with(granted(more), lines).await
    }

    async fn with(grants: Grants, lines: Lines) -> Self {
        Self::of(&tells_all(), grants, lines).await
    }

    async fn of(guest: &Guest, grants: Grants, lines: Lines) -> Self {
        let scene = Scene::new().await;
        scene.api.serve_apples().await;
        for name in [OTHER, MINE, AFTER] {
            scene.api.create(with_inside(config_map(name))).await;
        }
        let mut candidate = scene.candidate(guest).await;
        candidate.grants = Arc::new(grants);
        soon("it becomes active", scene.dispatch.activate(candidate)).await.expect("it can serve");
        let controller = scene.controller();
        comes_true("its informers sync", || controller.waking().waits_for().is_empty()).await;
        let imports = CallImports::new(controller.serving().access.clone());
        let shown = Self { scene, lines, imports, controller };
        shown.has_got(AFTER).await;
        shown
    }

    /// Lets an object take a path to the plugin. Returns `true` if any part of it came.
    async fn reaches(&self, path: Path, name: &str) -> bool {
        let (key, api) = (Key::new(Some("default"), name), &self.scene.api);
        let map = || with_inside(config_map(name));
        let inside = |answer: Result<Arc<Object>, ClientError>| match answer {
            Ok(object) => object.json().contains(INSIDE),
            Err(ClientError::NotGranted(_)) => false,
            Err(error) => panic!("{error:?}"),
        };
        let named = |texts: &[String]| texts.iter().any(|text| text.contains(&format!(r#""{name}""#)));
        match path {
            Path::Reconcile => {
                let came = self.comes("reconcile", name, async || api.create(apple(name)).await).await;
                self.forgets(name).await;
                came
            }
            Path::Gone => {
                api.create(apple(name)).await;
                if self.access().may_see(&apples(), &key) {
                    comes_true("it is reconciled", || self.lines.has("reconcile", name)).await;
                    self.rests().await;
                }
                self.comes("reconcile", name, async || api.delete(&apples(), &key).await).await
            }
            Path::LastError => {
                let come = async || {
                    self.controller.ledger().record_error(&key, Some(format!(r#"it has "name":"{name}""#)));
                    api.create(apple(name)).await;
                };
                // The object itself names it as well.
                let came = self.comes("reconcile it has", name, come).await;
                self.forgets(name).await;
                came
            }
            Path::Map => self.comes("map", name, async || api.update(map()).await).await,
            Path::Observe => self.comes("observe", name, async || api.update(map()).await).await,
            Path::ObserveDeleted => {
                let come = async || {
                    api.delete(&maps(), &key).await;
                    api.create(map()).await;
                };
                self.comes("observe", name, come).await
            }
            Path::CacheGet => matches!(self.imports.cached(&maps(), &key), Ok(Some(_))),
            Path::CacheList => named(&self.imports.cached_list(&query(0)).expect("some may be read").items),
            Path::CacheKeys => {
                let page = self.imports.cached_keys(&query(0)).expect("some may be read");
                page.items.contains(&key)
            }
            Path::EventsRecord => {
                let event = event::Event::new(Some((maps(), key)), event::Level::Normal, "Seen".to_owned(), "");
                let recorded = self.imports.record(&event.expect("an Event"));
                assert!(!matches!(recorded, Err(EventError::Invalid(_))), "{recorded:?}");
                recorded.is_ok()
            }
            Path::NextOfList | Path::NextOfKeys => {
                // More than are looked at for a page of one.
                let few =
                    |number: usize| format!("{name}-{}{number:02}", if path == Path::NextOfList { "l" } else { "k" });
                for number in 0..50 {
                    api.create(config_map(&few(number))).await;
                }
                let view = self.controller.serving().view.clone();
                let is_wide = view.leases().any(|lease| lease.key().of == maps() && lease.key().fields.is_empty());
                let last = Key::new(Some("default"), &few(49));
                comes_true("they are cached", || !is_wide || view.get(&maps(), &last).is_some()).await;
                let mut query = query(1);
                loop {
                    query.after = match path {
                        Path::NextOfList => self.imports.cached_list(&query).expect("some may be read").next,
                        _ => self.imports.cached_keys(&query).expect("some may be read").next,
                    };
                    match &query.after {
                        Some(next) if next.contains(name) && !next.ends_with(AFTER) => return true,
                        Some(_) => {}
                        None => return false,
                    }
                }
            }
            Path::ClientGet => inside(self.imports.get(maps(), key, None).await),
            Path::ClientList => {
                let query = ListQuery {
                    of: maps(),
                    namespace: None,
                    labels: String::new(),
                    fields: String::new(),
                    limit: 0,
                    after: None,
                };
                match self.imports.list(query).await {
                    Ok(page) => page.items.iter().any(|object| *object.key() == key),
                    Err(ClientError::NotGranted(_)) => false,
                    Err(error) => panic!("{error:?}"),
                }
            }
            Path::ClientCreate => {
                api.delete(&maps(), &key).await;
                inside(self.imports.create(map().to_string()).await)
            }
            Path::ClientUpdate => inside(self.imports.update(map().to_string(), None).await),
            Path::ClientPatch => inside(self.imports.patch(maps(), key, PatchBody::Merge("{}".to_owned()), None).await),
            Path::ClientPatchCopies => {
                let copies = r#"[{"op":"add","path":"/metadata/annotations","value":{}},
                    {"op":"copy","from":"/data/p","path":"/metadata/annotations/p"},
                    {"op":"remove","path":"/data"}]"#;
                inside(self.imports.patch(maps(), key, PatchBody::Json(copies.to_owned()), None).await)
            }
            Path::ClientApply => {
                let mut applied = config_map(name);
                applied["data"] = json!({ "q": "1" });
                inside(self.imports.apply(applied.to_string(), None, true).await)
            }
        }
    }

    /// Returns `true` if a call logs something of an object after `come`.
    ///
    /// Waits for an object that may be seen. For one that may not, waits until a later object was logged.
    async fn comes(&self, call: &str, name: &str, came: impl AsyncFn()) -> bool {
        self.lines.0.lock().clear();
        came().await;
        if self.access().may_see(&maps(), &Key::new(Some("default"), name)) {
            comes_true("it comes", || self.lines.has(call, name)).await;
            return true;
        }
        let api = &self.scene.api;
        if call.starts_with("reconcile") {
            api.create(apple(AFTER)).await;
            comes_true("what came later is reconciled", || self.lines.has("reconcile", AFTER)).await;
            self.forgets(AFTER).await;
        } else {
            api.update(with_inside(config_map(AFTER))).await;
            self.has_got(AFTER).await;
        }
        self.lines.has(call, name)
    }

    fn access(&self) -> Arc<Access> {
        self.controller.serving().access.clone()
    }

    /// Waits until mapper and observer got a ConfigMap.
    async fn has_got(&self, name: &str) {
        comes_true("both got it", || ["map", "observe"].into_iter().all(|call| self.lines.has(call, name))).await;
    }

    /// Deletes a MyApple, and waits until that is reconciled.
    async fn forgets(&self, name: &str) {
        let key = Key::new(Some("default"), name);
        self.scene.api.delete(&apples(), &key).await;
        let view = self.controller.serving().view.clone();
        comes_true("the cache knows", || view.get(&apples(), &key).is_none()).await;
        self.rests().await;
    }

    async fn rests(&self) {
        let controller = &self.controller;
        let rests = || controller.active_workers() == 0 && controller.ledger().queue().lock().is_idle();
        comes_true("nothing is to be reconciled", || rests() && controller.ledger().gone().objects == 0).await;
    }
}

fn query(limit: u32) -> Query {
    let labels = Selector::default();
    Query { of: maps(), namespace: None, labels, index: None, fields: Vec::new(), limit, after: None }
}

fn with_inside(mut map: Value) -> Value {
    static CHANGES: AtomicUsize = AtomicUsize::new(0);
    map["data"] = json!({ "p": INSIDE, "change": CHANGES.fetch_add(1, Ordering::Relaxed).to_string() });
    map
}

/// Permissions for all ConfigMaps, MyApples, Pears and Events.
fn asked() -> [Permission; 4] {
    [maps(), apples(), TypeMeta::new("example.com/v1", "Pear"), TypeMeta::new("v1", "Event")].map(|of| Permission {
        of,
        subresource: None,
        verbs: manifest::Verb::ALL.into(),
        namespaces: Vec::new(),
        names: Vec::new(),
    })
}

/// Grants reads of two names and `more` others, and all writes.
fn granted(more: usize) -> Grants {
    granted_names(&[], more)
}

fn granted_names(some: &[&str], more: usize) -> Grants {
    let more = (0..more).map(|number| format!("more-{number}"));
    let names: Vec<String> = [MINE, AFTER].iter().chain(some).map(|name| (*name).to_owned()).chain(more).collect();
    let names = names.join(", ");
    let file: grant::AdminFile = serde_saphyr::from_str(&format!(
        "grants:\n- {{apiVersion: v1, kind: ConfigMap, verbs: [create, update, patch, apply, delete]}}\n\
         - {{apiVersion: v1, kind: ConfigMap, verbs: [read], names: [{names}]}}\n\
         - {{apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read], names: [{names}]}}\n\
         - {{apiVersion: example.com/v1, kind: Pear, verbs: [read]}}\n\
         - {{apiVersion: v1, kind: Event, verbs: [create]}}\n"
    ))
    .expect("an administrator's file");
    Grants::new(&asked(), &file.grants)
}

async fn names_bind_every_path(more: usize) {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
    let shown = Shown::new(more, lines).await;
    for path in every_path() {
        for name in [OTHER, MINE] {
            assert_eq!(shown.reaches(path, name).await, path.may_have(name), "{path:?} of {name}");
        }
    }
}

#[tokio::test]
async fn invariant_7_names_bind_every_path_by_which_objects_reach_a_plugin() {
    names_bind_every_path(0).await;
}

/// With too many names for leases of their own, the cache holds other objects of the kind. They must not reach the
/// plugin.
#[tokio::test]
async fn invariant_7_names_bind_every_path_though_all_of_the_kind_is_cached() {
    names_bind_every_path(NAMED).await;
}

#[tokio::test]
async fn invariant_7_names_bind_what_is_observed_by_pattern() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
    for more in [0, NAMED] {
        let shown = Shown::of(&tells_all_of("*"), granted(more), lines.clone()).await;
        for path in [Path::Observe, Path::ObserveDeleted] {
            for name in [OTHER, MINE] {
                assert_eq!(shown.reaches(path, name).await, path.may_have(name), "{path:?} of {name}");
            }
        }
        lines.0.lock().clear();
    }
}

/// Activates a revision that never syncs, because it reads a kind that is not served. Its grants apply at once.
async fn narrows(scene: &Scene, guest: &Guest) {
    let mut candidate = scene.candidate(&guest.clone().version("2.0.0").reads("example.com/v1", "Pear")).await;
    candidate.grants = Arc::new(granted(0));
    waits_for_its_informers(scene, candidate).await;
}

/// Begins to activate a candidate, and returns when it waits.
async fn waits_for_its_informers(scene: &Scene, candidate: Candidate) {
    let waits = async {
        while scene.dispatch.waiting().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        activated = scene.dispatch.activate(candidate) => panic!("it waits for its informers: {activated:?}"),
        () = soon("it waits", waits) => {}
    }
}

#[tokio::test]
async fn invariant_7_revoked_objects_take_no_path_though_the_new_revision_never_syncs() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
    let shown = Shown::with(Grants::all_asked(&asked()), lines).await;
    for path in [Path::Observe, Path::Map, Path::Reconcile, Path::ClientList] {
        assert!(shown.reaches(path, OTHER).await, "{path:?}");
    }
    narrows(&shown.scene, &tells_all()).await;
    // What the manifest does not ask for is not what was taken away.
    let asked = |path: &Path| {
        let not_asked =
            [Path::ClientCreate, Path::ClientUpdate, Path::ClientPatch, Path::ClientPatchCopies, Path::EventsRecord];
        !not_asked.contains(path)
    };
    for path in every_path().into_iter().filter(asked) {
        for name in [OTHER, MINE] {
            assert_eq!(shown.reaches(path, name).await, path.may_have(name), "{path:?} of {name}");
        }
    }
}

#[tokio::test]
async fn invariant_7_waiting_changes_of_revoked_objects_are_forgotten_at_once() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    for name in [OTHER, MINE] {
        scene.api.create(config_map(name)).await;
        scene.api.create(apple(name)).await;
    }
    // The plugin takes no changes, so all of them wait.
    let message = "cannot".to_owned();
    let fails = Guest::new().answer(Answer::Failure { message, terminal: false, status: None }).owns_nothing();
    let fails =
        fails.maps("v1", "ConfigMap", Mapping::Plugin).map(MISTAKEN).observes("v1", "ConfigMap").observe(MISTAKEN);
    scene.activate(&fails).await;
    scene.saw("observe failed", 1).await;
    scene.saw("map failed", 1).await;
    let (controller, observing) = (scene.controller(), scene.dispatch.observing().remove(0));
    for name in [OTHER, MINE] {
        scene.api.delete(&apples(), &Key::new(Some("default"), name)).await;
    }
    comes_true("both vanished", || controller.ledger().gone().objects == 2).await;
    assert!(controller.waking().unmapped().objects > 1 && observing.figures().objects > 1);
    narrows(&scene, &fails).await;
    assert_eq!(
        [controller.waking().unmapped().objects, observing.figures().objects, controller.ledger().gone().objects],
        [1, 1, 1]
    );
    assert_eq!(controller.ledger().gone_keys(), [Key::new(Some("default"), MINE)]);
}

#[tokio::test]
async fn invariant_7_call_in_flight_loses_the_grants_that_a_second_change_revokes() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let candidate = async |version: &'static str, grants: Grants| {
        let mut candidate = scene.candidate(&Guest::new().version(version)).await;
        candidate.grants = Arc::new(grants);
        candidate
    };
    scene.dispatch.activate(candidate("1.0.0", Grants::all_asked(&asked())).await).await.expect("it can serve");
    let first = scene.controller().serving().access.clone();
    scene.dispatch.activate(candidate("2.0.0", Grants::all_asked(&asked())).await).await.expect("it can serve");
    let other = Key::new(Some("default"), OTHER);
    assert!(first.may_see(&apples(), &other));
    scene.dispatch.activate(candidate("3.0.0", granted(0)).await).await.expect("it can serve");
    assert!(!first.may_see(&apples(), &other));
    assert!(first.may_see(&apples(), &Key::new(Some("default"), MINE)));
}

#[tokio::test]
async fn observer_gets_names_that_are_granted_later() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
    // With leases of single names, and with one lease for the kind.
    for more in [0, NAMED] {
        let shown = Shown::new(more, lines.clone()).await;
        assert!(shown.reaches(Path::Observe, MINE).await);
        assert!(!lines.has("observe", OTHER));
        let mut candidate = shown.scene.candidate(&tells_all()).await;
        candidate.grants = Arc::new(granted_names(&[OTHER], more));
        soon("it becomes active", shown.scene.dispatch.activate(candidate)).await.expect("it can serve");
        comes_true("it is observed", || lines.has("observe", OTHER)).await;
        lines.0.lock().clear();
    }
}

#[tokio::test]
async fn one_granted_name_needs_neither_the_others_in_memory_nor_a_role_to_list_them() {
    let (api, sent) = Api::overheard().await;
    let mut scene = Scene::at(api).await;
    scene.api.serve_apples().await;
    let secret = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "default", "name": name },
            "stringData": { "p": "x".repeat(10_000) },
        })
    };
    for number in 0..20 {
        scene.api.create(secret(&format!("other-{number}"))).await;
    }
    scene.api.create(secret("token")).await;
    sent.lock().clear();
    let guest = Guest::new().owns_nothing().reads("v1", "Secret").observes("v1", "Secret").observe(TAKES);
    let mut candidate = scene.candidate(&guest).await;
    let file: grant::AdminFile = serde_saphyr::from_str(
        "grants:\n- {apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read]}\n\
         - {apiVersion: v1, kind: Secret, verbs: [read], namespaces: [default], names: [token, to-come]}\n",
    )
    .expect("an administrator's file");
    candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
    soon("it becomes active", scene.dispatch.activate(candidate)).await.expect("it can serve");
    scene.saw("observe done", 1).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let secrets = TypeMeta::new("v1", "Secret");
    let informers = scene.dispatch.parts.informers.all();
    let of_secrets = informers.iter().filter(|informer| informer.key().of == secrets);
    let held: Vec<(String, usize)> =
        of_secrets.map(|informer| (informer.key().to_string(), informer.size().0)).collect();
    assert_eq!(
        held,
        [
            ("v1 Secret in default where metadata.name=to-come".to_owned(), 0),
            ("v1 Secret in default where metadata.name=token".to_owned(), 1),
        ]
    );
    // Each request names the object, as RBAC's `resourceNames` requires.
    let sent = String::from_utf8_lossy(&sent.lock()).into_owned();
    let asked: Vec<&str> = sent.lines().filter(|line| line.starts_with("GET ") && line.contains("/secrets")).collect();
    let named = |line: &&str| {
        line.starts_with("GET /api/v1/namespaces/default/secrets?") && line.contains("fieldSelector=metadata.name%3Dto")
    };
    assert!(!asked.is_empty() && asked.iter().all(named), "{asked:?}");
}
