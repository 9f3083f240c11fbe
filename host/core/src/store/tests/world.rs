//! A model of an API server, a watch that lags behind it, and answers that come whenever they come: whatever the order,
//! the store keeps its guarantees.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use super::*;

/// What happens next. Numbers choose among what is there.
#[derive(Clone, Debug)]
enum Step {
    /// Someone else creates or updates.
    Put(usize),
    /// Someone else deletes.
    Delete(usize),
    /// This host creates or updates; the answer is on its way.
    OwnPut(usize),
    /// This host deletes; the answer is on its way.
    OwnDelete(usize),
    /// One of the answers arrives.
    Answer(prop::sample::Index),
    /// The watch brings so many events.
    Watch(usize),
    /// The watch breaks; a list is asked for and answered.
    Ask,
    /// The answer to the list begins to arrive at the store.
    Begin,
    /// So many objects of the list arrive.
    Page(usize),
    /// The rest arrives, and the watch goes on from there.
    Finish,
    /// The list breaks.
    Abort,
    /// etcd is restored from a backup, so many versions old, and the server starts again.
    Restore(u64),
    /// Likewise, and all versions to come are above those that were given out: what was watched is compacted.
    RestoreRaised(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0_usize..4;
    prop_oneof![
        4 => key().prop_map(Step::Put),
        3 => key().prop_map(Step::Delete),
        4 => key().prop_map(Step::OwnPut),
        3 => key().prop_map(Step::OwnDelete),
        6 => any::<prop::sample::Index>().prop_map(Step::Answer),
        4 => (1_usize..4).prop_map(Step::Watch),
        2 => Just(Step::Ask),
        2 => Just(Step::Begin),
        3 => (1_usize..3).prop_map(Step::Page),
        2 => Just(Step::Finish),
        1 => Just(Step::Abort),
        1 => (1_u64..12).prop_map(Step::Restore),
        1 => (1_u64..12).prop_map(Step::RestoreRaised),
    ]
}

#[derive(Clone, Debug)]
struct Event {
    deleted: bool,
    object: Object,
}

#[derive(Clone, Debug)]
enum Answer {
    Put(Object),
    Delete(Key, Uid),
}

/// A list that was asked for.
#[derive(Debug)]
struct List {
    version: u64,
    left: Vec<Object>,
    begun: bool,
    went_back: bool,
}

#[derive(Debug)]
struct World {
    // The server.
    version: u64,
    lives: u64,
    history: Vec<Event>,
    // On the way.
    answers: Vec<Answer>,
    /// The watch has delivered up to here.
    watched: u64,
    list: Option<List>,
    // This host.
    store: Store,
    /// The state that the changes reported, by key.
    told: BTreeMap<Key, Arc<Object>>,
    /// The newest reported version of each life, since the last restore.
    newest: BTreeMap<Uid, u64>,
    /// Lives that were reported as ended, since the last restore.
    over: BTreeSet<Uid>,
    /// Own writes that were answered, since the last restore.
    written: Vec<Object>,
    /// Own deletes that were answered, since the last restore.
    erased: BTreeSet<Uid>,
}

impl World {
    fn new() -> Self {
        Self {
            version: 0,
            lives: 0,
            history: Vec::new(),
            answers: Vec::new(),
            watched: 0,
            list: Some(List { version: 0, left: Vec::new(), begun: false, went_back: false }),
            store: Store::new(of()),
            told: BTreeMap::new(),
            newest: BTreeMap::new(),
            over: BTreeSet::new(),
            written: Vec::new(),
            erased: BTreeSet::new(),
        }
    }

    /// What the server had at `version`.
    fn state(&self, version: u64) -> BTreeMap<Key, Object> {
        let mut state = BTreeMap::new();
        for Event { deleted, object } in self.history.iter().filter(|e| e.object.resource_version().0 <= version) {
            if *deleted {
                state.remove(object.key());
            } else {
                state.insert(object.key().clone(), object.clone());
            }
        }
        state
    }

    fn put(&mut self, key: usize) -> Object {
        let name = ["a", "b", "c", "d"][key];
        let uid = match self.state(self.version).get(&Key::new(Some("ns"), name)) {
            Some(object) => object.uid().to_string(),
            None => {
                self.lives += 1;
                format!("life-{}", self.lives)
            }
        };
        self.version += 1;
        // Another label each time the same version is given out.
        let label = self.history.len().to_string();
        let object = object("ns", name, &uid, self.version, &labels(&[("at", &label)]), &Value::Null);
        self.history.push(Event { deleted: false, object: object.clone() });
        object
    }

    fn delete(&mut self, key: usize) -> Option<(Key, Uid)> {
        let key = Key::new(Some("ns"), ["a", "b", "c", "d"][key]);
        let uid = self.state(self.version).get(&key)?.uid().clone();
        self.version += 1;
        let last = plain(&key.name, &uid.to_string(), self.version);
        self.history.push(Event { deleted: true, object: last });
        Some((key, uid))
    }

    fn ask(&mut self) {
        let went_back = self.version < self.watched;
        let left = self.state(self.version).into_values().collect();
        self.list = Some(List { version: self.version, left, begun: false, went_back });
    }

    fn begin(&mut self) {
        if let Some(list) = self.list.as_mut().filter(|list| !list.begun) {
            list.begun = true;
            self.store.begin_replace(list.went_back);
        }
    }

    fn page(&mut self, count: usize) {
        for _ in 0..count {
            let object = self.list.as_mut().filter(|list| list.begun).and_then(|list| list.left.pop());
            let change = object.and_then(|object| self.store.upsert(object));
            self.tell(change);
        }
    }

    fn finish(&mut self) {
        self.page(self.list.as_ref().map_or(0, |list| list.left.len()));
        if let Some(list) = self.list.take_if(|list| list.begun) {
            let changes = self.store.finish_replace(ResourceVersion(list.version));
            self.tell(changes);
            self.watched = list.version;
        }
    }

    fn watch(&mut self, count: usize) {
        if self.list.is_some() {
            return;
        }
        let news = self.history.iter().filter(|event| event.object.resource_version().0 > self.watched);
        for Event { deleted, object } in news.take(count).cloned().collect::<Vec<_>>() {
            self.watched = object.resource_version().0;
            let change = if deleted { self.store.remove(&object) } else { self.store.upsert(object) };
            self.tell(change);
        }
    }

    fn answer(&mut self, answer: Answer) {
        let change = match answer {
            Answer::Put(object) => {
                self.written.push(object.clone());
                self.store.upsert_own(object)
            }
            Answer::Delete(key, uid) => {
                self.erased.insert(uid.clone());
                self.store.remove_own(&key, &uid)
            }
        };
        self.tell(change);
    }

    fn restore(&mut self, back: u64) {
        let to = self.version.saturating_sub(back);
        // A restore is undetectable once versions have caught up; here the reflector looks at once.
        if to >= self.watched || self.list.is_some() {
            return;
        }
        self.lose_after(to);
        self.ask();
        self.begin();
    }

    fn restore_raised(&mut self, back: u64) {
        // What this host deleted lately stays hidden for the next list: it may be from before the delete.
        if self.list.is_some()
            || !self.erased.is_empty()
            || self.answers.iter().any(|answer| matches!(answer, Answer::Delete(..)))
        {
            return;
        }
        let raised = self.version + 1;
        self.lose_after(self.version.saturating_sub(back));
        self.version = raised;
        self.ask();
        self.begin();
    }

    fn lose_after(&mut self, to: u64) {
        self.history.retain(|event| event.object.resource_version().0 <= to);
        self.version = to;
        self.answers.clear();
        self.newest.clear();
        self.over.clear();
        self.written.clear();
        self.erased.clear();
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put(key) => {
                self.put(key);
            }
            Step::Delete(key) => {
                self.delete(key);
            }
            Step::OwnPut(key) => {
                let object = self.put(key);
                self.answers.push(Answer::Put(object));
            }
            Step::OwnDelete(key) => {
                if let Some((key, uid)) = self.delete(key) {
                    self.answers.push(Answer::Delete(key, uid));
                }
            }
            Step::Answer(ref which) if !self.answers.is_empty() => {
                let answer = self.answers.swap_remove(which.index(self.answers.len()));
                self.answer(answer);
            }
            Step::Answer(_) => {}
            Step::Watch(count) => self.watch(count),
            Step::Ask if self.list.is_none() => self.ask(),
            Step::Ask => {}
            Step::Begin => self.begin(),
            Step::Page(count) => self.page(count),
            Step::Finish => self.finish(),
            // After a restore nothing but a list can follow.
            Step::Abort if self.list.as_ref().is_some_and(|list| list.begun && !list.went_back) => {
                self.store.abort_replace();
                self.ask();
            }
            Step::Abort => {}
            Step::Restore(back) => self.restore(back),
            Step::RestoreRaised(back) => self.restore_raised(back),
        }
        self.check();
    }

    /// Follows changes, and holds them against what was said before.
    fn tell(&mut self, changes: impl IntoIterator<Item = Change>) {
        let lost_history = self.list.as_ref().is_some_and(|list| list.went_back);
        for change in changes {
            let key = change.key().clone();
            let old = self.told.remove(&key);
            let uid = |object: &Arc<Object>| object.uid().clone();
            assert_eq!(old.as_ref().map(uid), change.old.as_ref().map(uid), "told of another past: {change:?}");
            let Some(new) = change.new else {
                self.over.extend(old.filter(|_| !lost_history).as_ref().map(uid));
                continue;
            };
            let version = new.resource_version().0;
            let newest = self.newest.insert(new.uid().clone(), version);
            assert!(newest.is_none_or(|newest| newest < version), "{key} went back from {newest:?} to {version}");
            assert!(!self.over.contains(new.uid()), "{key} came back from the dead");
            self.told.insert(key, new);
        }
    }

    fn check(&self) {
        assert!(self.store.iter().eq(self.told.values()), "the changes do not add up to the store");
        for write in &self.written {
            let held = self.told.get(write.key());
            let held = held.filter(|held| held.resource_version() >= write.resource_version());
            let deleted = self.history.iter().any(|e| e.deleted && e.object.uid() == write.uid());
            assert!(held.is_some() || deleted, "own write {} is not seen", write.json());
        }
        for object in self.store.iter() {
            assert!(!self.erased.contains(object.uid()), "own delete of {} is not seen", object.json());
        }
    }

    /// Everything that is on its way arrives.
    fn settle(&mut self) {
        for answer in std::mem::take(&mut self.answers) {
            self.answer(answer);
            self.check();
        }
        self.begin();
        self.finish();
        self.check();
        self.watch(usize::MAX);
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn invariants_3_4_5_hold_in_any_order_of_arrival(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in steps {
            world.step(&step);
        }
        world.settle();
        let truth = world.state(world.version);
        prop_assert!(world.store.iter().map(|object| &**object).eq(truth.values()), "{:?}", held(&world.store));
        check_tables(&world.store);
    }
}
