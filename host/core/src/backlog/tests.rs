#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::ZERO;

fn pods() -> TypeMeta {
    TypeMeta::new("v1", "Pod")
}

fn pod(name: &str, version: u64) -> Option<Arc<Object>> {
    let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"{version}"}}}}"#);
    Some(Arc::new(Object::parse(json.as_bytes(), &pods()).unwrap()))
}

/// Versions of one Pod, as a change.
fn change(name: &str, old: u64, new: u64) -> Change {
    let version = |version| if version == 0 { None } else { pod(name, version) };
    Change { old: version(old), new: version(new), missed: false }
}

fn push(backlog: &mut Backlog, name: &str, old: u64, new: u64) {
    backlog.push(&pods(), &change(name, old, new));
}

fn take(backlog: &mut Backlog, now: Duration) -> Option<Batch> {
    backlog.take(now, 100, usize::MAX)
}

/// `a 1>2 ×3`: versions before and after, 0 for none, and how many changes.
fn told(batch: Option<&Batch>) -> Vec<String> {
    let show = |pending: &News| {
        let name = &pending.new.as_ref().or(pending.old.as_ref()).unwrap().key().name;
        let version = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |object| object.resource_version().0);
        let missed = if pending.missed { " missed" } else { "" };
        format!("{name} {}>{} ×{}{missed}", version(&pending.old), version(&pending.new), pending.merged)
    };
    batch.into_iter().flat_map(Batch::changes).map(show).collect()
}

#[test]
fn changes_of_different_objects_come_in_the_order_of_their_first() {
    let mut backlog = Backlog::new(MAPPER);
    push(&mut backlog, "b", 0, 1);
    push(&mut backlog, "a", 0, 2);
    push(&mut backlog, "b", 1, 3);
    let batch = take(&mut backlog, NOW);
    assert_eq!(told(batch.as_ref()), ["b 0>3 ×2", "a 0>2 ×1"]);
    assert_eq!(take(&mut backlog, NOW), None);
    backlog.done(batch.unwrap());
    assert_eq!((backlog.is_empty(), backlog.bytes()), (true, 0));
}

#[test]
fn several_changes_are_delivered_as_one_from_before_the_first_to_after_the_last() {
    for (changes, expected) in [
        (&[(0, 1), (1, 2)][..], "a 0>2 ×2"),
        (&[(1, 2), (2, 3), (3, 4)], "a 1>4 ×3"),
        (&[(1, 2), (2, 0)], "a 1>0 ×2"),
        (&[(0, 1), (2, 0)], "a 2>0 ×2"),
        (&[(0, 1), (1, 0), (0, 3)], "a 0>3 ×3"),
        (&[(1, 0), (0, 2)], "a 1>2 ×2"),
        (&[(1, 0), (0, 2), (2, 0)], "a 1>0 ×3"),
    ] {
        let mut backlog = Backlog::new(MAPPER);
        for (old, new) in changes {
            push(&mut backlog, "a", *old, *new);
        }
        assert_eq!(told(take(&mut backlog, NOW).as_ref()), [expected], "{changes:?}");
    }
}

#[test]
fn an_unseen_deletion_is_delivered_as_missed_until_the_object_is_back() {
    let mut backlog = Backlog::new(MAPPER);
    let missed = |name, old| Change { missed: true, ..change(name, old, 0) };
    backlog.push(&pods(), &missed("a", 1));
    backlog.push(&pods(), &missed("b", 1));
    push(&mut backlog, "b", 0, 2);
    push(&mut backlog, "c", 1, 2);
    backlog.push(&pods(), &missed("c", 2));
    let batch = take(&mut backlog, NOW);
    assert_eq!(told(batch.as_ref()), ["a 1>0 ×1 missed", "b 1>2 ×2", "c 1>0 ×2 missed"]);
}

#[test]
fn an_object_is_initial_until_it_was_delivered_or_another_took_its_name() {
    let seen = |initial| Seen { initial, ..Seen::default() };
    for (changes, expected) in [
        (&[(0, 1, true)][..], Some(true)),
        (&[(0, 1, false)], Some(false)),
        (&[(0, 1, true), (1, 2, false)], Some(true)),
        // The host wrote the object before the first list came to it.
        (&[(0, 1, false), (1, 2, true)], Some(false)),
        (&[(0, 1, true), (1, 0, false), (0, 3, false)], Some(false)),
        (&[(0, 1, true), (1, 0, false)], Some(false)),
    ] {
        let mut backlog = Backlog::new(MAPPER);
        for (old, new, initial) in changes {
            backlog.push_seen(&pods(), &change("a", *old, *new), seen(*initial));
        }
        assert_eq!(take(&mut backlog, NOW).map(|batch| batch.changes()[0].initial), expected, "{changes:?}");
    }
    // A failed delivery is repeated as it was, with what came meanwhile.
    let mut backlog = Backlog::new(MAPPER);
    backlog.push_seen(&pods(), &change("a", 0, 1), seen(true));
    let first = take(&mut backlog, NOW).unwrap();
    push(&mut backlog, "a", 1, 2);
    backlog.failed(first, NOW);
    let again = take(&mut backlog, MAPPER.base).unwrap();
    assert_eq!((told(Some(&again)), again.changes()[0].initial), (vec!["a 0>2 ×2".to_owned()], true));
    backlog.done(again);
    push(&mut backlog, "a", 2, 3);
    assert_eq!(take(&mut backlog, NOW).map(|batch| batch.changes()[0].initial), Some(false));
}

#[test]
fn an_object_in_flight_waits_with_what_comes_meanwhile() {
    let mut backlog = Backlog::new(MAPPER);
    push(&mut backlog, "a", 0, 1);
    let first = take(&mut backlog, NOW);
    push(&mut backlog, "a", 1, 2);
    push(&mut backlog, "a", 2, 3);
    push(&mut backlog, "b", 0, 4);
    let second = take(&mut backlog, NOW);
    assert_eq!(told(second.as_ref()), ["b 0>4 ×1"]);
    backlog.done(first.unwrap());
    assert_eq!(told(take(&mut backlog, NOW).as_ref()), ["a 1>3 ×2"]);
}

#[test]
fn failed_changes_are_retried_alone_with_growing_delays_in_turns_with_new_ones() {
    let limits = Limits { base: Duration::from_secs(1), cap: Duration::from_secs(2) };
    let mut backlog = Backlog::new(limits);
    let at = Duration::from_secs;
    push(&mut backlog, "a", 0, 1);
    push(&mut backlog, "b", 0, 2);
    let batch = take(&mut backlog, at(0)).unwrap();
    push(&mut backlog, "c", 0, 3);
    push(&mut backlog, "b", 2, 4);
    backlog.failed(batch, at(10));
    let c = take(&mut backlog, at(10));
    assert_eq!(told(c.as_ref()), ["c 0>3 ×1"]);
    backlog.done(c.unwrap());
    assert_eq!(backlog.next_due(), Some(at(11)));
    assert_eq!(take(&mut backlog, Duration::from_millis(10_999)), None);
    push(&mut backlog, "d", 0, 5);
    let a = take(&mut backlog, at(11));
    assert_eq!(told(a.as_ref()), ["a 0>1 ×1"]);
    assert_eq!(told(take(&mut backlog, at(11)).as_ref()), ["d 0>5 ×1"]);
    push(&mut backlog, "e", 0, 6);
    let b = take(&mut backlog, at(11));
    assert_eq!(told(b.as_ref()), ["b 0>4 ×2"]);
    assert_eq!(told(take(&mut backlog, at(11)).as_ref()), ["e 0>6 ×1"]);
    backlog.failed(a.unwrap(), at(11));
    assert_eq!(backlog.next_due(), Some(at(13)));
    let a = take(&mut backlog, at(13)).unwrap();
    backlog.failed(a, at(13));
    assert_eq!(backlog.next_due(), Some(at(15)), "the longest delay is reached");
    let a = take(&mut backlog, at(15)).unwrap();
    push(&mut backlog, "a", 1, 7);
    backlog.done(a);
    assert_eq!(told(take(&mut backlog, at(15)).as_ref()), ["a 1>7 ×1"], "a success is forgotten nothing of");
    backlog.done(b.unwrap());
}

#[test]
fn a_batch_is_bounded_by_objects_and_bytes_and_has_one_at_least() {
    let mut backlog = Backlog::new(MAPPER);
    for name in ["a", "b", "c", "d"] {
        push(&mut backlog, name, 0, 1);
    }
    let one = backlog.bytes() / 4;
    let first = backlog.take(NOW, 3, 2 * one);
    assert_eq!(told(first.as_ref()), ["a 0>1 ×1", "b 0>1 ×1"]);
    let second = backlog.take(NOW, 1, usize::MAX);
    assert_eq!(told(second.as_ref()), ["c 0>1 ×1"]);
    let third = backlog.take(NOW, 3, 1);
    assert_eq!(told(third.as_ref()), ["d 0>1 ×1"]);
}

#[test]
fn a_mark_is_reached_when_all_before_it_were_tried() {
    let mut backlog = Backlog::new(MAPPER);
    push(&mut backlog, "a", 0, 1);
    push(&mut backlog, "b", 0, 1);
    let mark = backlog.mark();
    let a = backlog.take(NOW, 1, usize::MAX).unwrap();
    push(&mut backlog, "a", 1, 2);
    push(&mut backlog, "c", 0, 1);
    backlog.failed(a, NOW);
    assert!(!backlog.tried_until(mark));
    let b = backlog.take(NOW, 1, usize::MAX).unwrap();
    assert_eq!(told(Some(&b)), ["b 0>1 ×1"]);
    assert!(!backlog.tried_until(mark), "it is in flight");
    backlog.failed(b, NOW);
    assert_eq!((backlog.tried_until(mark), backlog.tried_until(backlog.mark())), (true, false));
    // The failed change is due, and has been tried before.
    let later = Duration::from_secs(1);
    assert_eq!(told(take(&mut backlog, later).as_ref()), ["a 0>2 ×2"]);
    assert!(backlog.tried_until(mark));
}

#[test]
fn changes_that_always_fail_delay_no_first_try() {
    let mut backlog = Backlog::new(MAPPER);
    let names: Vec<String> = (0..50).map(|number| format!("o{number:02}")).collect();
    names.iter().for_each(|name| push(&mut backlog, name, 0, 1));
    let (mark, mut now) = (backlog.mark(), NOW);
    let mut tries = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..500 {
        // Each call takes longer than the longest delay, so every earlier failure is due again.
        let batch = backlog.take(now, 1, usize::MAX).unwrap();
        *tries.entry(told(Some(&batch)).concat()).or_default() += 1;
        now += MAPPER.cap;
        backlog.failed(batch, now);
        assert!(backlog.tried_until(mark) || tries.values().sum::<u32>() < 100, "every other call is a first try");
    }
    assert_eq!(tries.len(), 50);
    assert!(tries.values().all(|tries| *tries >= 8), "{tries:?}");
}

#[test]
fn kinds_that_are_no_longer_delivered_are_forgotten_in_flight_too() {
    let mut backlog = Backlog::new(MAPPER);
    push(&mut backlog, "a", 0, 1);
    push(&mut backlog, "b", 0, 1);
    let batch = backlog.take(NOW, 1, usize::MAX).unwrap();
    push(&mut backlog, "a", 1, 2);
    backlog.retain(|of, _| *of != pods());
    assert_eq!((backlog.len(), backlog.bytes(), backlog.tried_until(u64::MAX)), (0, 0, true));
    push(&mut backlog, "a", 2, 3);
    backlog.failed(batch, NOW);
    assert_eq!(told(take(&mut backlog, NOW).as_ref()), ["a 2>3 ×1"]);
}

#[test]
fn undelivered_deletions_are_bounded() {
    let mut backlog = Backlog::within(MAPPER, &Vanished::new(2, usize::MAX));
    for name in ["a", "b", "c", "d"] {
        push(&mut backlog, name, 0, 1);
        push(&mut backlog, name, 1, 0);
    }
    push(&mut backlog, "e", 0, 1);
    assert_eq!((backlog.dropped(), backlog.len()), (2, 3));
    assert_eq!(told(take(&mut backlog, NOW).as_ref()), ["c 1>0 ×2", "d 1>0 ×2", "e 0>1 ×1"]);
}

#[test]
fn bytes_of_undelivered_deletions_are_bounded() {
    let mut one = Backlog::new(MAPPER);
    push(&mut one, "a", 1, 0);
    let mut backlog = Backlog::within(MAPPER, &Vanished::new(usize::MAX, 2 * one.bytes()));
    for name in ["a", "b", "c", "d"] {
        push(&mut backlog, name, 1, 0);
    }
    push(&mut backlog, "e", 0, 1);
    assert_eq!((backlog.dropped(), backlog.len()), (2, 3));
    assert_eq!(told(take(&mut backlog, NOW).as_ref()), ["c 1>0 ×1", "d 1>0 ×1", "e 0>1 ×1"]);
    // A delivered change makes room.
    push(&mut backlog, "f", 1, 0);
    assert_eq!(backlog.dropped(), 2);
}

#[derive(Clone, Debug)]
enum Step {
    /// The object of this number becomes another, or goes.
    Change(usize, bool),
    Take(usize),
    /// The batch at this place of those in flight.
    Done(usize),
    Failed(usize),
    Wait,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..4_usize, any::<bool>()).prop_map(|(object, there)| Step::Change(object, there)),
        3 => (1..4_usize).prop_map(Step::Take),
        2 => (0..4_usize).prop_map(Step::Done),
        1 => (0..4_usize).prop_map(Step::Failed),
        1 => Just(Step::Wait),
    ]
}

/// What an observer knows, and the changes that it has not accepted.
#[derive(Clone, Default)]
struct Model {
    /// The present version; 0 for none.
    now: u64,
    /// The version in the last successful call.
    known: u64,
    /// Changes that no successful call delivered.
    open: u32,
    flying: Option<(u64, u32)>,
    /// The latest version that existed.
    last: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn each_delivery_begins_where_the_last_one_ended_and_nothing_is_lost(steps in prop::collection::vec(steps(), 1..60)) {
        let names = ["a", "b", "c", "d"];
        let mut backlog = Backlog::new(Limits { base: Duration::from_secs(1), cap: Duration::from_secs(4) });
        let mut objects = vec![Model::default(); names.len()];
        let (mut flying, mut now, mut versions): (Vec<Batch>, _, _) = (Vec::new(), Duration::ZERO, 0);
        let place = |pending: &News| {
            let name = &pending.new.as_ref().or(pending.old.as_ref()).unwrap().key().name;
            names.iter().position(|one| **one == **name).unwrap()
        };
        let settle = |backlog: &mut Backlog, objects: &mut Vec<Model>, batch: Batch, now: Duration, ok: bool| {
            for pending in batch.changes() {
                let object = &mut objects[place(pending)];
                let (version, merged) = object.flying.take().unwrap();
                if ok {
                    object.known = version;
                    object.open -= merged;
                }
            }
            if ok { backlog.done(batch) } else { backlog.failed(batch, now) }
        };
        let drain = steps.len()..steps.len() + 200;
        let steps = steps.into_iter().chain(drain.flat_map(|_| [Step::Wait, Step::Take(4), Step::Done(0)]));
        for step in steps {
            match step {
                Step::Change(at, there) => {
                    let object = &mut objects[at];
                    if !there && object.now == 0 {
                        continue;
                    }
                    versions += 1;
                    let new = if there { versions } else { 0 };
                    push(&mut backlog, names[at], object.now, new);
                    object.last = if there { new } else { object.now };
                    object.now = new;
                    object.open += 1;
                }
                Step::Take(most) => {
                    let Some(batch) = backlog.take(now, most, usize::MAX) else { continue };
                    prop_assert!(batch.changes().len() <= most);
                    for pending in batch.changes() {
                        let object = &mut objects[place(pending)];
                        prop_assert!(object.flying.is_none(), "never two calls about one object");
                        let version = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |object| object.resource_version().0);
                        prop_assert_eq!(version(&pending.new), object.now);
                        let came_and_went = object.known == 0 && object.now == 0;
                        prop_assert_eq!(version(&pending.old), if came_and_went { object.last } else { object.known });
                        prop_assert_eq!(pending.merged, object.open, "each change is stood for");
                        object.flying = Some((object.now, object.open));
                    }
                    flying.push(batch);
                }
                Step::Done(at) | Step::Failed(at) if at < flying.len() => {
                    let batch = flying.remove(at);
                    settle(&mut backlog, &mut objects, batch, now, matches!(step, Step::Done(_)));
                }
                Step::Done(_) | Step::Failed(_) => {}
                Step::Wait => now += Duration::from_secs(4),
            }
        }
        for object in &objects {
            prop_assert_eq!((object.open, object.known), (0, object.now));
        }
        prop_assert_eq!((backlog.len(), backlog.bytes(), backlog.next_due()), (0, 0, None));
        prop_assert!(backlog.ready.is_empty() && backlog.again.is_empty() && backlog.gone.is_empty() && backlog.untried.is_empty());
    }
}
