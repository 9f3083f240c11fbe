#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn pods() -> TypeMeta {
    TypeMeta::new("v1", "Pod")
}

fn key(text: &str) -> Key {
    text.split_once('/').map_or_else(|| Key::new(None, text), |(namespace, name)| Key::new(Some(namespace), name))
}

/// A Pod with labels `a=1,b=2` on a node, in a version.
fn pod(at: &str, labels: &str, node: &str, version: u64) -> Option<Arc<Object>> {
    let labels: serde_json::Map<_, _> = labels
        .split(',')
        .filter_map(|label| label.split_once('='))
        .map(|(label, value)| (label.to_owned(), value.into()))
        .collect();
    let Key { namespace, name } = key(at);
    let json = json!({
        "metadata": {"name": *name, "namespace": namespace.as_deref().unwrap_or(""), "uid": at, "resourceVersion": version.to_string(), "labels": labels},
        "spec": {"nodeName": node},
    });
    Some(Arc::new(Object::parse(json.to_string().as_bytes(), &pods()).unwrap()))
}

fn all() -> Selection {
    Selection { namespace: None, labels: Selector::default(), index: None, aspect: Aspect::Whole }
}

fn labelled(text: &str) -> Selection {
    Selection { labels: Selector::parse(text).unwrap(), ..all() }
}

fn path(text: &str) -> FieldPath {
    FieldPath::parse(text).unwrap()
}

fn on_node(node: &str) -> Selection {
    Selection { index: Some((path("spec.nodeName"), node.into())), ..all() }
}

/// A run of `key` that reads selections of Pods, and succeeds.
fn reads(tracker: &mut Tracker, text: &str, selections: impl IntoIterator<Item = Selection>) {
    let run = tracker.begin(&key(text));
    for selection in selections {
        tracker.read_selection(run, &pods(), selection);
    }
    tracker.commit(run);
}

fn woken(tracker: &mut Tracker, old: Option<Arc<Object>>, new: Option<Arc<Object>>) -> Vec<String> {
    let mut out = Vec::new();
    tracker.wakes(&pods(), &Change { old, new, missed: false }, &mut out);
    let mut out: Vec<_> = out.iter().map(Key::to_string).collect();
    out.sort();
    out
}

const NOBODY: [&str; 0] = [];

#[test]
fn selections_that_hang_on_the_same_are_compared_one_by_one_as_long_as_they_are_few() {
    let in_a = |selection: Selection| Selection { namespace: Some("a".into()), ..selection };
    let of_fields = |number: usize| Selection {
        aspect: Aspect::Fields(Box::new([path(&format!("spec.f{number}"))])),
        ..on_node("one")
    };
    // Each kind of selection, with a change that one of its like sees, and one that none does.
    type Like = Box<dyn Fn(usize) -> Selection>;
    let likes: [(Like, &str, &str); 6] = [
        (Box::new(|number| labelled(&format!("!x{number}"))), "x99=1", "x99=1"),
        (Box::new(|number| labelled(&format!("app=web,!x{number}"))), "app=web,x99=1", "x99=1"),
        (Box::new(|number| labelled(&format!("app=web,part=one,!x{number}"))), "app=web,part=one,x99=1", "part=one"),
        (Box::new(|number| labelled(&format!("app in (web,x{number})"))), "app=x99", "x99=1"),
        (Box::new(|number| labelled(&format!("app,x{number}"))), "app=1,x99=1", "x99=1"),
        (Box::new(of_fields), "", ""),
    ];
    for (like, seen, unseen) in likes {
        let mut tracker = Tracker { alike: 8, ..Tracker::default() };
        for number in 0..100 {
            reads(&mut tracker, &format!("a/{number}"), [in_a(like(number))]);
        }
        assert!(tracker.dependencies() <= 2 * 8 + 1, "{} things", tracker.dependencies());
        let last = "a/99".to_owned();
        assert!(woken(&mut tracker, None, pod("a/p", seen, "one", 1)).contains(&last), "{seen}");
        if unseen != seen {
            assert_eq!(woken(&mut tracker, None, pod("a/p", unseen, "one", 1)), NOBODY);
        }
        assert_eq!(woken(&mut tracker, None, pod("b/p", seen, "one", 1)), NOBODY, "another namespace");
        (0..100).for_each(|number| tracker.forget(&key(&format!("a/{number}"))));
        assert_eq!((tracker.dependencies(), tracker.heap), (0, 0));
    }
}

#[test]
fn selections_by_several_labels_are_filed_under_the_most_selective_one() {
    let mut tracker = Tracker { alike: 8, ..Tracker::default() };
    for number in 0..100 {
        reads(&mut tracker, &format!("a/{number}"), [labelled(&format!("component=db,instance=i{number},part=all"))]);
    }
    assert_eq!(tracker.dependencies(), 100);
    for number in [0, 7, 8, 99] {
        let seen = pod("a/p", &format!("component=db,instance=i{number},part=all"), "", 1);
        assert_eq!(woken(&mut tracker, None, seen), [format!("a/{number}")]);
    }
    assert_eq!(woken(&mut tracker, None, pod("a/p", "component=db,part=all", "", 1)), NOBODY);
    (0..100).for_each(|number| tracker.forget(&key(&format!("a/{number}"))));
    assert_eq!((tracker.dependencies(), tracker.heap, tracker.kinds[0].selections.heap), (0, 0, 0));
}

#[test]
fn reads_beyond_the_memory_of_all_keys_depend_on_whole_kinds() {
    let mut tracker = Tracker::within(&Budget::new(8 << 10));
    let name = "x".repeat(100);
    for number in 0..200 {
        let run = tracker.begin(&key(&format!("a/{number}")));
        tracker.read_object(run, &pods(), &key(&format!("a/{name}-{number}")));
        tracker.commit(run);
    }
    assert!((2..8192 / 100).contains(&tracker.dependencies()), "{} things", tracker.dependencies());
    for number in [0, 199] {
        let seen = woken(&mut tracker, None, pod(&format!("a/{name}-{number}"), "", "", 1));
        assert!(seen.contains(&format!("a/{number}")), "{number}");
    }
}

#[test]
fn invariant_11_an_object_and_its_absence_wake_their_readers() {
    let mut tracker = Tracker::default();
    let run = tracker.begin(&key("a/web"));
    tracker.read_object(run, &pods(), &key("a/x"));
    tracker.commit(run);
    let versions = [None, pod("a/x", "", "", 1), pod("a/x", "", "", 2), None];
    for pair in versions.windows(2) {
        assert_eq!(woken(&mut tracker, pair[0].clone(), pair[1].clone()), ["a/web"]);
    }
    assert_eq!(woken(&mut tracker, pod("a/x", "", "", 1), pod("a/x", "", "", 1)), NOBODY);
    assert_eq!(woken(&mut tracker, None, pod("a/y", "", "", 1)), NOBODY);
    assert_eq!(woken(&mut tracker, None, pod("b/x", "", "", 1)), NOBODY);
    let mut out = Vec::new();
    tracker.wakes(
        &TypeMeta::new("v1", "Secret"),
        &Change { old: None, new: pod("a/x", "", "", 1), missed: false },
        &mut out,
    );
    assert_eq!(out, []);
}

#[test]
fn invariant_11_a_selection_wakes_by_what_was_seen_of_it() {
    let keys = Selection { aspect: Aspect::Keys, ..labelled("app=web") };
    let nodes = Selection { aspect: Aspect::Fields([path("spec.nodeName")].into()), ..labelled("app=web") };
    let mut tracker = Tracker::default();
    reads(&mut tracker, "whole", [labelled("app=web")]);
    reads(&mut tracker, "keys", [keys]);
    reads(&mut tracker, "fields", [nodes]);
    let web = |node, version| pod("a/x", "app=web", node, version);
    assert_eq!(woken(&mut tracker, None, web("n1", 1)), ["fields", "keys", "whole"]);
    assert_eq!(woken(&mut tracker, web("n1", 1), None), ["fields", "keys", "whole"]);
    assert_eq!(woken(&mut tracker, web("n1", 1), pod("a/x", "app=db", "n1", 2)), ["fields", "keys", "whole"]);
    assert_eq!(woken(&mut tracker, web("n1", 1), web("n2", 2)), ["fields", "whole"]);
    assert_eq!(woken(&mut tracker, web("n1", 1), web("n1", 2)), ["whole"]);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=db", "n1", 1)), NOBODY);
}

#[test]
fn invariant_11_a_failed_run_changes_nothing() {
    let mut tracker = Tracker::default();
    reads(&mut tracker, "a", [labelled("app=web")]);
    let run = tracker.begin(&key("a"));
    tracker.read_selection(run, &pods(), labelled("app=db"));
    tracker.read_selection(run, &pods(), labelled("app=web"));
    tracker.abandon(run);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=web", "", 1)), ["a"]);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=db", "", 1)), NOBODY);
    assert_eq!((tracker.keys(), tracker.dependencies()), (1, 1));
}

#[test]
fn invariant_11_a_read_counts_before_its_run_is_over() {
    let mut tracker = Tracker::default();
    reads(&mut tracker, "a", [labelled("app=web")]);
    let run = tracker.begin(&key("a"));
    tracker.read_selection(run, &pods(), labelled("app=db"));
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=db", "", 1)), ["a"]);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=web", "", 1)), ["a"]);
    tracker.commit(run);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=db", "", 1)), ["a"]);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=web", "", 1)), NOBODY);
}

#[test]
fn a_run_learns_whether_its_reads_have_changed_since() {
    let mut tracker = Tracker::default();
    let run = tracker.begin(&key("a"));
    tracker.read_selection(run, &pods(), labelled("app=web"));
    woken(&mut tracker, None, pod("a/x", "app=db", "", 1));
    assert!(!tracker.is_woken(run));
    woken(&mut tracker, None, pod("a/y", "app=web", "", 1));
    assert!(tracker.is_woken(run));
    tracker.commit(run);
    assert!(!tracker.is_woken(run));
    // What it reads anew it reads as it is, and of the last one it knows what that had read.
    let next = tracker.begin(&key("a"));
    assert!(!tracker.is_woken(next));
    woken(&mut tracker, pod("a/y", "app=web", "", 1), None);
    assert!(tracker.is_woken(next) && !tracker.is_woken(run));
}

#[test]
fn a_run_that_was_ended_by_another_says_nothing_more() {
    let mut tracker = Tracker::default();
    let first = tracker.begin(&key("a"));
    tracker.read_selection(first, &pods(), labelled("app=db"));
    let second = tracker.begin(&key("a"));
    tracker.read_selection(first, &pods(), labelled("app=db"));
    tracker.read_selection(second, &pods(), labelled("app=web"));
    tracker.commit(first);
    tracker.abandon(first);
    tracker.commit(second);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=db", "", 1)), NOBODY);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=web", "", 1)), ["a"]);
}

#[test]
fn a_key_that_is_gone_is_woken_no_more() {
    let mut tracker = Tracker::default();
    reads(&mut tracker, "a", [labelled("app=web"), on_node("n1")]);
    reads(&mut tracker, "b", [labelled("app=web")]);
    let run = tracker.begin(&key("a"));
    tracker.read_object(run, &pods(), &key("a/x"));
    tracker.forget(&key("a"));
    tracker.forget(&key("never seen"));
    tracker.commit(run);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "app=web", "n1", 1)), ["b"]);
    assert_eq!((tracker.keys(), tracker.dependencies()), (1, 1));
}

#[test]
fn a_kind_that_is_read_no_more_wakes_nobody() {
    let mut tracker = Tracker::default();
    let secrets = TypeMeta::new("v1", "Secret");
    let run = tracker.begin(&key("a"));
    tracker.read_object(run, &pods(), &key("a/x"));
    tracker.read_object(run, &secrets, &key("a/x"));
    tracker.commit(run);
    let run = tracker.begin(&key("b"));
    tracker.read_object(run, &pods(), &key("a/x"));
    tracker.retain(|of| *of == secrets);
    tracker.commit(run);
    assert_eq!(woken(&mut tracker, None, pod("a/x", "", "", 1)), NOBODY);
    let mut out = Vec::new();
    tracker.wakes(&secrets, &Change { old: None, new: pod("a/x", "", "", 1), missed: false }, &mut out);
    assert_eq!(out, [key("a")]);
    assert_eq!((tracker.keys(), tracker.dependencies()), (1, 1));
}

#[test]
fn a_run_with_more_reads_than_the_bound_depends_on_whole_scopes() {
    let mut tracker = Tracker::default();
    for (text, namespaces) in [("one", 1), ("two", 2)] {
        let run = tracker.begin(&key(text));
        for i in 0..=MAX_READS {
            tracker.read_object(run, &pods(), &key(&format!("n{}/{i}", i % namespaces)));
        }
        tracker.commit(run);
    }
    assert_eq!(tracker.dependencies(), 2);
    assert_eq!(woken(&mut tracker, None, pod("n0/new", "", "", 1)), ["one", "two"]);
    assert_eq!(woken(&mut tracker, None, pod("other/new", "", "", 1)), ["two"]);
    // What it reads afterwards widens the scope.
    let run = tracker.begin(&key("one"));
    for i in 0..=MAX_READS {
        tracker.read_object(run, &pods(), &key(&format!("n0/{i}")));
    }
    tracker.read_selection(run, &pods(), on_node("n1"));
    tracker.commit(run);
    assert_eq!(woken(&mut tracker, None, pod("other/new", "", "", 1)), ["one", "two"]);
    assert_eq!(tracker.dependencies(), 1);
}

#[test]
fn a_run_with_reads_of_more_bytes_than_the_bound_depends_on_whole_scopes() {
    let mut tracker = Tracker::default();
    let long = |number: usize| key(&format!("n/{number:01024}"));
    for (text, many) in [("fits", MAX_READ_BYTES / 1024), ("more", MAX_READ_BYTES / 1024 + 1)] {
        let run = tracker.begin(&key(text));
        // Again costs nothing.
        for number in (0..many).chain(0..many) {
            tracker.read_object(run, &pods(), &long(number));
        }
        tracker.commit(run);
    }
    assert_eq!(tracker.dependencies(), MAX_READ_BYTES / 1024 + 1);
    assert_eq!(woken(&mut tracker, None, pod("n/new", "", "", 1)), ["more"]);
}

#[test]
fn reads_up_to_the_bound_are_tracked_one_by_one() {
    let mut tracker = Tracker::default();
    let run = tracker.begin(&key("a"));
    for _ in 0..2 {
        for i in 0..MAX_READS {
            tracker.read_object(run, &pods(), &key(&format!("n/{i}")));
        }
    }
    tracker.commit(run);
    assert_eq!(tracker.dependencies(), MAX_READS);
    assert_eq!(woken(&mut tracker, None, pod("n/new", "", "", 1)), NOBODY);
}

#[test]
fn nothing_is_held_when_all_keys_are_forgotten() {
    let mut tracker = Tracker::default();
    for i in 0..1000 {
        reads(
            &mut tracker,
            &format!("a/{i}"),
            [labelled(&format!("app={i}")), on_node(&format!("n{i}")), labelled("tier,!old")],
        );
    }
    let full = tracker.bytes();
    for i in 0..1000 {
        tracker.forget(&key(&format!("a/{i}")));
    }
    assert_eq!((tracker.keys(), tracker.dependencies(), tracker.heap), (0, 0, 0));
    assert!(tracker.bytes() < full / 2, "{} of {full}", tracker.bytes());
}

/// What a run of the model reads.
#[derive(Clone, Debug)]
enum Read {
    Object(Key),
    Selection(Selection),
}

#[derive(Clone, Debug)]
enum Step {
    /// A run that succeeds or not.
    Run(usize, Vec<Read>, bool),
    Forget(usize),
    Put(Key, String, String),
    Delete(Key),
}

const KEYS: [&str; 4] = ["a/k", "a/l", "b/k", "m"];

/// The world as a whole, which each read is asked of again at each change.
#[derive(Default)]
struct Model {
    world: BTreeMap<Key, Arc<Object>>,
    reads: BTreeMap<Key, Vec<Read>>,
    versions: u64,
}

impl Model {
    /// What a read gives.
    fn result(world: &BTreeMap<Key, Arc<Object>>, read: &Read) -> Vec<String> {
        let selection = match read {
            Read::Object(key) => return world.get(key).map(|object| object.json().into_owned()).into_iter().collect(),
            Read::Selection(selection) => selection,
        };
        let is_in = |object: &Object| {
            let (index, labels) = (&selection.index, &selection.labels);
            (selection.namespace.is_none() || selection.namespace == object.key().namespace)
                && labels.matches(object.labels())
                && index.as_ref().is_none_or(|(path, value)| {
                    let set = FieldSet::new([path.clone()]);
                    set.values(&object.json()).unwrap()[0].iter().any(|one| **one == **value)
                })
        };
        let show = |object: &Object| match &selection.aspect {
            Aspect::Whole => object.json().into_owned(),
            Aspect::Keys => object.key().to_string(),
            Aspect::Fields(paths) => FieldSet::new(paths.iter().cloned()).project(&object.json()).unwrap(),
        };
        world.values().filter(|object| is_in(object)).map(|object| show(object)).collect()
    }

    /// Changes the world, and says which keys have read something else than is there now.
    fn change(&mut self, key: &Key, new: Option<Arc<Object>>) -> (Change, Vec<String>) {
        let before = self.world.clone();
        let old = match &new {
            Some(object) => self.world.insert(key.clone(), object.clone()),
            None => self.world.remove(key),
        };
        let differs = |read: &Read| Self::result(&before, read) != Self::result(&self.world, read);
        let woken = self.reads.iter().filter(|(_, reads)| reads.iter().any(differs));
        let mut woken: Vec<_> = woken.map(|(key, _)| key.to_string()).collect();
        woken.sort();
        (Change { old, new, missed: false }, woken)
    }
}

fn objects() -> impl Strategy<Value = Key> {
    prop::sample::select(vec!["a/x", "a/y", "b/x", "z"]).prop_map(key)
}

fn selections() -> impl Strategy<Value = Selection> {
    let labels = [
        "",
        "app=1",
        "app in (1,2)",
        "app",
        "app!=1",
        "!app",
        "app=1,tier=2",
        "tier>1",
        "tier=2,!app",
        "app notin (2),tier",
    ];
    let aspects = [Aspect::Whole, Aspect::Keys, Aspect::Fields([path("spec.nodeName")].into())];
    (
        prop::sample::select(vec![None, Some("a"), Some("b")]),
        prop::sample::select(labels.to_vec()),
        prop::sample::select(vec![None, Some("n1"), Some("n2")]),
        prop::sample::select(aspects.to_vec()),
    )
        .prop_map(|(namespace, labels, node, aspect)| Selection {
            namespace: namespace.map(Into::into),
            labels: Selector::parse(labels).unwrap(),
            index: node.map(|node| (path("spec.nodeName"), node.into())),
            aspect,
        })
}

fn steps() -> impl Strategy<Value = Step> {
    let read = prop_oneof![objects().prop_map(Read::Object), selections().prop_map(Read::Selection)];
    let labels = prop::sample::select(vec!["", "app=1", "app=2", "app=1,tier=2", "tier=1", "app=3,tier=2"]);
    let nodes = prop::sample::select(vec!["", "n1", "n2"]);
    prop_oneof![
        3 => (0..KEYS.len(), prop::collection::vec(read, 0..4), any::<bool>()).prop_map(|(key, reads, ok)| Step::Run(key, reads, ok)),
        1 => (0..KEYS.len()).prop_map(Step::Forget),
        6 => (objects(), labels, nodes).prop_map(|(key, labels, node)| Step::Put(key, labels.to_owned(), node.to_owned())),
        2 => objects().prop_map(Step::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Against asking every read again at every change.
    #[test]
    fn invariant_11_a_key_is_woken_if_and_only_if_what_it_read_is_another(steps in prop::collection::vec(steps(), 1..30)) {
        let (mut tracker, mut model) = (Tracker::default(), Model::default());
        for step in steps {
            let (at, new) = match step {
                Step::Run(at, reads, succeeds) => {
                    let run = tracker.begin(&key(KEYS[at]));
                    for read in &reads {
                        match read {
                            Read::Object(key) => tracker.read_object(run, &pods(), key),
                            Read::Selection(selection) => tracker.read_selection(run, &pods(), selection.clone()),
                        }
                    }
                    if succeeds {
                        tracker.commit(run);
                        model.reads.insert(key(KEYS[at]), reads);
                    } else {
                        tracker.abandon(run);
                    }
                    continue;
                }
                Step::Forget(at) => {
                    tracker.forget(&key(KEYS[at]));
                    model.reads.remove(&key(KEYS[at]));
                    continue;
                }
                Step::Put(at, labels, node) => {
                    model.versions += 1;
                    let new = pod(&at.to_string(), &labels, &node, model.versions);
                    (at, new)
                }
                Step::Delete(at) => (at, None),
            };
            if new.is_none() && !model.world.contains_key(&at) {
                continue;
            }
            let (change, expected) = model.change(&at, new);
            prop_assert_eq!(woken(&mut tracker, change.old, change.new), expected);
        }
        for at in KEYS {
            tracker.forget(&key(at));
        }
        prop_assert_eq!((tracker.keys(), tracker.dependencies(), tracker.heap), (0, 0, 0));
    }
}
