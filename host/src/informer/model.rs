//! A model test of the registry. Every watch of the server has its own lag, and leases come and go. At the end, each
//! subscriber must have received the history of what it requested.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use pilothouse_core::{
    field::{FieldPath, FieldSet},
    informer::{InformerKey, MAX_NARROW, Runs, bounded, plan},
    key::{Key, TypeMeta},
    object::{Keep, Object, ResourceVersion},
    reflector::State,
    selector::{FieldSelector, Selector},
    store::Query,
};
use proptest::prelude::*;
use serde_json::json;

use super::{
    Informer, Lease,
    lease::LeaseRequest,
    registry::{DriverTask, Registry},
    tests::all_of,
};

fn of() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

/// What leases request: namespace, labels, fields, and which parts of an object.
const REQUESTS: [(&str, &str, &str, Of); 14] = [
    ("", "", "", Of::Whole),
    ("a", "", "", Of::Whole),
    ("b", "", "", Of::Whole),
    ("", "app", "", Of::Whole),
    ("", "app=web", "", Of::Whole),
    ("a", "app=web", "", Of::Whole),
    ("", "", "metadata.name=x", Of::Whole),
    ("a", "", "metadata.name!=x", Of::Whole),
    ("", "app!=web", "", Of::Whole),
    ("", "", "", Of::Metadata),
    ("a", "", "", Of::Metadata),
    ("", "", "", Of::AllBut("spec.a")),
    ("", "", "", Of::AllBut("spec.b")),
    ("b", "", "", Of::AllBut("spec.b")),
];

/// Which parts of an object are kept.
#[derive(Clone, Copy)]
enum Of {
    Whole,
    Metadata,
    AllBut(&'static str),
}

fn request((namespace, labels, fields, of_object): (&str, &str, &str, Of)) -> InformerKey {
    let without = match of_object {
        Of::AllBut(path) => vec![FieldPath::parse(path).expect("a path")],
        Of::Whole | Of::Metadata => Vec::new(),
    };
    InformerKey {
        of: of(),
        namespace: Some(namespace).filter(|namespace| !namespace.is_empty()).map(Into::into),
        labels: Selector::parse(labels).expect("a selector"),
        fields: FieldSelector::parse(fields).expect("a selector"),
        keep: Keep::new(matches!(of_object, Of::Metadata), without).expect("it can be left out"),
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// This host (`own`) or another client creates an object with this label, changes it, or deletes it (`None`).
    Write {
        slot: usize,
        app: Option<&'static str>,
        own: bool,
    },
    Acquire(usize),
    /// A holder requests more narrow selectors than may have informers of their own.
    Flood,
    Release(usize),
    /// An informer lists, for the first time or again.
    List(usize),
    /// An informer's watch delivers up to this many events.
    Watch(usize, usize),
    /// An informer's watch delivers all events and a bookmark.
    Bookmark(usize),
    Deny(usize),
    Allow(usize),
    Tend,
    /// Some objects are added to indexes.
    Build,
}

fn ops() -> impl Strategy<Value = Op> {
    let app = prop::sample::select(vec![None, Some(""), Some("web"), Some("db")]);
    prop_oneof![
        8 => (0..6_usize, app, any::<bool>()).prop_map(|(slot, app, own)| Op::Write { slot, app, own }),
        3 => (0..REQUESTS.len()).prop_map(Op::Acquire),
        1 => Just(Op::Flood),
        3 => any::<usize>().prop_map(Op::Release),
        3 => any::<usize>().prop_map(Op::List),
        6 => (any::<usize>(), 1..4_usize).prop_map(|(which, count)| Op::Watch(which, count)),
        2 => any::<usize>().prop_map(Op::Bookmark),
        1 => any::<usize>().prop_map(Op::Deny),
        1 => any::<usize>().prop_map(Op::Allow),
        6 => Just(Op::Tend),
        2 => Just(Op::Build),
    ]
}

/// A change on the server: an object before and after.
type Event = (Option<Arc<Object>>, Option<Arc<Object>>);

/// A watch, and how much of the log it has delivered.
struct Feed {
    informer: Arc<Informer>,
    at: usize,
}

/// A lease, and what its subscriber has received.
struct User {
    lease: Lease,
    indexed: bool,
    heard: Arc<Mutex<BTreeMap<Key, Arc<Object>>>>,
}

struct World {
    registry: Arc<Registry>,
    started: Arc<Mutex<Vec<Arc<Informer>>>>,
    feeds: Vec<Feed>,
    users: Vec<User>,
    acquired: usize,
    log: Vec<Event>,
    objects: BTreeMap<Key, Arc<Object>>,
    /// Wrong deliveries. Collected here, because the informer catches a panic of a subscriber.
    faults: Arc<Mutex<Vec<String>>>,
}

fn object(key: &Key, born: usize, version: usize, app: &str) -> Arc<Object> {
    let labels = if app.is_empty() { json!({}) } else { json!({ "app": app }) };
    let metadata = json!({
        "namespace": key.namespace.as_deref(), "name": &*key.name, "uid": format!("{key}-{born}"),
        "resourceVersion": version.to_string(), "labels": labels,
    });
    let json = json!({ "metadata": metadata, "spec": { "a": version, "b": app } }).to_string();
    Arc::new(Object::parse(json.as_bytes(), &of()).expect("it is an object"))
}

/// Returns an object at a later version, as a DELETED event carries it.
fn last_state(object: &Object, version: usize) -> Object {
    let mut json: serde_json::Value = serde_json::from_str(&object.json()).expect("it is JSON");
    json["metadata"]["resourceVersion"] = version.to_string().into();
    Object::parse(json.to_string().as_bytes(), &of()).expect("it is an object")
}

/// The indexed paths of some leases. Every request keeps the first path, and some leave the second out.
fn paths() -> [FieldPath; 2] {
    ["metadata.labels.app", "spec.b"].map(|path| FieldPath::parse(path).expect("a path"))
}

/// Checks page by page that lookups find what the lease shows, whether their index is complete, being built or missing.
fn look_ups_equal_scans(lease: &Lease) {
    let all = Selector::default();
    for (path, value) in paths().iter().flat_map(|path| ["web", "db", "none"].map(|value| (path, value))) {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let query = Query { index: Some((path, value)), after: after.as_ref(), ..Query::new(&all) };
            let page = lease.page(&query, None, 2);
            assert!(page.items.len() <= 2);
            found.extend(page.items);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let fields = FieldSet::new([path.clone()]);
        let has_value = |object: &Object| {
            fields.values(&object.json()).expect("it is JSON").iter().flatten().any(|found| found == value)
        };
        let mut scanned = all_of(lease);
        scanned.retain(|object| has_value(object));
        assert_eq!(found, scanned, "{path} is {value} in {}", lease.key());
    }
}

impl World {
    fn new() -> Self {
        let started = Arc::<Mutex<Vec<Arc<Informer>>>>::default();
        let starts = started.clone();
        let registry = Registry::new(Box::new(move |informer| {
            starts.lock().push(informer.clone());
            DriverTask(None)
        }));
        Self {
            registry: Arc::new(registry),
            started,
            feeds: Vec::new(),
            users: Vec::new(),
            acquired: 0,
            log: Vec::new(),
            objects: BTreeMap::new(),
            faults: Arc::default(),
        }
    }

    fn run(&mut self, op: &Op) {
        self.look();
        let some = |which: &usize, count: usize| (count > 0).then(|| which % count);
        match op {
            Op::Write { slot, app, own } => self.write(*slot, *app, *own),
            Op::Acquire(which) => self.acquire(request(REQUESTS[*which])),
            Op::Flood => {
                for number in 0..=MAX_NARROW {
                    let labels = Selector::parse(&format!("!w{number}")).expect("a selector");
                    self.acquire(InformerKey { labels, ..InformerKey::all(of()) });
                }
            }
            Op::Release(which) => drop(some(which, self.users.len()).map(|at| self.users.swap_remove(at))),
            Op::List(which) => drop(some(which, self.feeds.len()).map(|at| self.list(at))),
            Op::Watch(which, count) => drop(some(which, self.feeds.len()).map(|at| self.watch(at, *count))),
            Op::Bookmark(which) => drop(some(which, self.feeds.len()).map(|at| self.bookmark(at))),
            Op::Deny(which) => self.set_state(*which, &State::Denied("no".into())),
            Op::Allow(which) => self.set_state(*which, &State::Watching),
            Op::Tend => self.registry.tend(),
            Op::Build => drop(self.registry.build_indexes()),
        }
        self.users.iter().for_each(|user| look_ups_equal_scans(&user.lease));
    }

    /// Gives started informers a watch and removes the watches of stopped ones.
    fn look(&mut self) {
        let running = self.registry.all();
        self.feeds.retain(|feed| running.iter().any(|informer| Arc::ptr_eq(informer, &feed.informer)));
        self.feeds.extend(self.started.lock().drain(..).map(|informer| Feed { informer, at: 0 }));
    }

    fn write(&mut self, slot: usize, app: Option<&str>, own: bool) {
        let key = Key::new(Some(["a", "b", "c"][slot % 3]), ["x", "y"][slot / 3]);
        let version = self.log.len() + 1;
        let before = self.objects.get(&key).cloned();
        let after = app.map(|app| {
            let born = before.as_ref().map_or(version, |before| {
                before.uid().to_string().rsplit_once('-').and_then(|(_, born)| born.parse().ok()).expect("its own")
            });
            object(&key, born, version, app)
        });
        match (&before, &after) {
            (None, None) => return,
            (_, Some(after)) => drop(self.objects.insert(key.clone(), after.clone())),
            (Some(_), None) => drop(self.objects.remove(&key)),
        }
        self.log.push((before.clone(), after.clone()));
        if !own {
            return;
        }
        match (&before, &after) {
            (_, Some(after)) => self.registry.own_write(after),
            (Some(before), None) => self.registry.own_delete(&of(), &key, before.uid()),
            (None, None) => {}
        }
        // Invariant 3, of every lease that has synced.
        let Some(written) = after.as_ref().or(before.as_ref()) else { return };
        for User { lease, .. } in self.users.iter().filter(|user| *user.lease.synced().borrow()) {
            let found = lease.get(&key);
            match &after {
                Some(after) if lease.key().shows(after) == Some(true) => {
                    let kept = after.kept(&lease.key().keep);
                    assert_eq!(found.as_deref(), Some(&kept), "an own write in {}", lease.key());
                }
                Some(_) => assert_eq!(found, None, "what an own write took out of {}", lease.key()),
                // An earlier object of the same name may still be there, because this host did not delete it.
                None => {
                    let is_it = found.is_some_and(|found| found.uid() == written.uid());
                    assert!(!is_it, "what was deleted, in {}", lease.key());
                }
            }
        }
    }

    fn acquire(&mut self, key: InformerKey) {
        // Every second lease has indexes.
        let indexed = self.acquired.is_multiple_of(2);
        let indexes = if indexed { Box::new(paths()) as Box<[_]> } else { Box::default() };
        self.acquired += 1;
        let lease = self.registry.acquire(LeaseRequest { indexes, ..LeaseRequest::new(key.clone(), "test") });
        let heard = Arc::<Mutex<BTreeMap<Key, Arc<Object>>>>::default();
        let (received, faults) = (heard.clone(), self.faults.clone());
        lease.subscribe(Box::new(move |change, _| {
            let mut received = received.lock();
            let before = received.remove(change.key());
            let uid = |object: &Option<Arc<Object>>| object.as_ref().map(|object| object.uid().clone());
            let version = |object: &Option<Arc<Object>>| object.as_ref().map(|object| object.resource_version());
            let is_next = uid(&change.old) == uid(&before)
                && version(&change.old) == version(&before)
                && (change.new.is_none() || version(&before) < version(&change.new))
                && change.new.as_ref().is_none_or(|new| key.shows(new) == Some(true))
                && change.old.iter().chain(&change.new).all(|object| object.kept(&key.keep) == **object);
            if !is_next {
                faults.lock().push(format!("{key}: after {before:?} came {change:?}"));
            }
            if let Some(new) = &change.new {
                received.insert(new.key().clone(), new.clone());
            }
        }));
        self.users.push(User { lease, heard, indexed });
    }

    fn list(&mut self, at: usize) {
        let Feed { informer, at } = &mut self.feeds[at];
        informer.begin_replace(false);
        for object in self.objects.values().filter(|object| informer.key.shows(object) == Some(true)) {
            informer.upsert(object.kept(&informer.key.keep));
        }
        *at = self.log.len();
        informer.finish_replace(ResourceVersion(self.log.len() as u64));
        informer.mark_synced();
    }

    fn watch(&mut self, at: usize, count: usize) {
        let Feed { informer, at } = &mut self.feeds[at];
        if !informer.is_synced() {
            return;
        }
        for (number, (before, after)) in self.log.iter().enumerate().skip(*at).take(count) {
            *at = number + 1;
            let shown =
                |object: &Option<Arc<Object>>| object.clone().filter(|object| informer.key.shows(object) == Some(true));
            match (shown(before), shown(after)) {
                (_, Some(after)) => informer.upsert(after.kept(&informer.key.keep)),
                (Some(before), None) => informer.remove(&last_state(&before, number + 1).kept(&informer.key.keep)),
                (None, None) => {}
            }
        }
    }

    fn bookmark(&mut self, at: usize) {
        self.watch(at, usize::MAX);
        let Feed { informer, at } = &self.feeds[at];
        if informer.is_synced() {
            informer.advance(ResourceVersion(*at as u64));
        }
    }

    fn set_state(&self, which: usize, state: &State) {
        if let Some(feed) = self.feeds.get(which % self.feeds.len().max(1)) {
            feed.informer.set_state(state.clone());
        }
    }

    /// Allows everything and lets every watch deliver all events.
    fn settle(&mut self) {
        // An informer starts in one round, lists in the next, takes over in the one after, and then others stop.
        for _ in 0..6 {
            self.look();
            for at in 0..self.feeds.len() {
                self.set_state(at, &State::Watching);
                if !self.feeds[at].informer.is_synced() {
                    self.list(at);
                }
                self.bookmark(at);
            }
            self.registry.tend();
        }
    }

    fn check(&self) {
        assert_eq!(*self.faults.lock(), Vec::<String>::new());
        let requests: BTreeSet<_> = self.users.iter().map(|user| user.lease.key().clone()).collect();
        let running: BTreeSet<_> = self.registry.all().iter().map(|informer| informer.key.clone()).collect();
        let runs = |key: &InformerKey| {
            if running.iter().any(|running| running.same_objects(key)) { Runs::Yes } else { Runs::No }
        };
        assert_eq!(running, plan(&bounded(requests, runs), |_| false), "one copy of each");
        while self.registry.build_indexes() {}
        for informer in self.registry.all() {
            let shows = |user: &&User| Arc::ptr_eq(&user.lease.informer(), &informer);
            let wanted = self.users.iter().filter(shows).any(|user| user.indexed);
            for path in &paths() {
                let all = Selector::default();
                let query = Query { index: Some((path, "web")), ..Query::new(&all) };
                let found = informer.cache.read().store.page(&query, None, 1);
                assert_eq!(found.is_ok(), wanted, "the index by {path} of {}", informer.key);
            }
        }
        for User { lease, heard, .. } in &self.users {
            let shown = self.objects.values().filter(|object| lease.key().shows(object) == Some(true));
            let truth: Vec<_> = shown.map(|object| Arc::new(object.kept(&lease.key().keep))).collect();
            assert_eq!(heard.lock().values().cloned().collect::<Vec<_>>(), truth, "heard of {}", lease.key());
            assert_eq!(all_of(lease), truth, "in {}", lease.key());
            assert_eq!(lease.keys(), truth.iter().map(|object| object.key().clone()).collect::<Vec<_>>());
            for object in self.objects.values() {
                assert_eq!(
                    lease.get(object.key()).is_some(),
                    truth.iter().any(|shown| shown.key() == object.key()),
                    "{} in {}",
                    object.key(),
                    lease.key()
                );
            }
            assert!(*lease.synced().borrow());
        }
    }
}

#[test]
fn lease_receives_the_deletion_of_an_object_whose_name_an_own_write_takes_out_of_the_selector() {
    let mut world = World::new();
    let write = |app, own| Op::Write { slot: 4, app, own };
    let steps = [
        Op::Acquire(3),
        Op::List(0),
        write(Some("web"), true),
        // The watch has delivered neither of these two when the next object of the name is written.
        write(Some("db"), false),
        write(None, false),
        write(Some(""), true),
        Op::Watch(0, 1),
        Op::Acquire(4),
    ];
    steps.iter().for_each(|step| world.run(step));
    world.settle();
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn invariant_1_one_copy_shows_every_lease_its_own_history(ops in prop::collection::vec(ops(), 0..120)) {
        let mut world = World::new();
        for op in &ops {
            world.run(op);
        }
        world.settle();
        world.check();
        world.users.clear();
        world.registry.tend();
        assert_eq!(world.registry.all().len(), 0, "unused ones stop");
    }
}
