#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(1_000);
const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

type Queue = Workqueue<&'static str>;

fn queue() -> Queue {
    Workqueue::default()
}

/// Takes every ready key, without giving any back.
fn take_all(queue: &mut Queue, now: Duration) -> Vec<&'static str> {
    std::iter::from_fn(|| queue.get(now).map(|item| item.key)).collect()
}

#[test]
fn invariant_2_held_key_is_not_dispatched_twice() {
    let mut queue = queue();
    queue.add(NOW, "a", CHANGE);
    assert_eq!(take_all(&mut queue, NOW), ["a"]);
    queue.add(NOW, "a", CHANGE);
    queue.add_after(NOW, "a", CHANGE, MILLI);
    queue.add_rate_limited(NOW, "a", CHANGE, Duration::ZERO);
    let hour = NOW + 3600 * SECOND;
    assert_eq!(queue.get(hour), None);
    assert_eq!((queue.len(), queue.processing()), (0, 1));
}

#[test]
fn invariant_2_changes_during_a_run_cause_one_more_run() {
    let mut queue = queue();
    queue.add(NOW, "a", CHANGE);
    queue.get(NOW).unwrap();
    for _ in 0..3 {
        queue.add(NOW, "a", CHANGE);
    }
    queue.done(NOW, &"a");
    assert_eq!(take_all(&mut queue, NOW), ["a"]);
    queue.done(NOW, &"a");
    assert!(queue.is_idle());
    assert_eq!(queue.get(NOW), None);
}

#[test]
fn keys_leave_in_the_order_they_came_and_once() {
    let mut queue = queue();
    for key in ["c", "a", "b", "a", "c"] {
        queue.add(NOW, key, CHANGE);
    }
    assert_eq!(queue.len(), 3);
    assert_eq!(take_all(&mut queue, NOW), ["c", "a", "b"]);
}

#[test]
fn higher_priority_leaves_first() {
    let mut queue = queue();
    queue.add(NOW, "listed", INITIAL);
    queue.add(NOW, "changed", CHANGE);
    queue.add(NOW, "urgent", 7);
    assert_eq!(queue.depths().collect::<Vec<_>>(), [(7, 1), (CHANGE, 1), (INITIAL, 1)]);
    assert_eq!(take_all(&mut queue, NOW), ["urgent", "changed", "listed"]);
    assert_eq!(queue.depths().count(), 0);
}

#[test]
fn adding_again_keeps_the_higher_priority() {
    let mut queue = queue();
    for key in ["a", "b", "c"] {
        queue.add(NOW, key, INITIAL);
    }
    queue.add(NOW, "d", CHANGE);
    queue.add(NOW, "b", CHANGE); // rises, to the end of that line
    queue.add(NOW, "d", INITIAL); // does not sink
    assert_eq!(take_all(&mut queue, NOW), ["d", "b", "a", "c"]);
}

#[test]
fn adding_again_keeps_the_earlier_time() {
    let mut queue = queue();
    queue.add_after(NOW, "sooner", CHANGE, 10 * SECOND);
    queue.add_after(NOW, "sooner", CHANGE, 5 * SECOND);
    queue.add_after(NOW, "later", CHANGE, 5 * SECOND);
    queue.add_after(NOW, "later", CHANGE, 10 * SECOND);
    queue.add(NOW, "ready", CHANGE);
    queue.add_after(NOW, "ready", CHANGE, 10 * SECOND);
    assert_eq!((queue.len(), queue.delayed()), (1, 2));
    assert_eq!(take_all(&mut queue, NOW), ["ready"]);
    assert_eq!(queue.next_due(), Some(NOW + 5 * SECOND));
    assert_eq!(take_all(&mut queue, NOW + 5 * SECOND), ["sooner", "later"]);
    assert_eq!(queue.next_due(), None);
}

#[test]
fn a_change_ends_a_delay() {
    let mut queue = queue();
    queue.add_after(NOW, "a", INITIAL, 600 * SECOND);
    queue.add(NOW + SECOND, "a", CHANGE);
    let item = queue.get(NOW + 2 * SECOND).unwrap();
    assert_eq!(item, Item { key: "a", priority: CHANGE, waited: SECOND });
    queue.done(NOW + 2 * SECOND, &"a");
    assert_eq!((queue.delayed(), queue.get(NOW + 3600 * SECOND)), (0, None));
}

#[test]
fn a_delay_keeps_the_priority_and_is_not_waiting_time() {
    let mut queue = queue();
    queue.add_after(NOW, "a", INITIAL, 10 * SECOND);
    assert_eq!(queue.get(NOW + 10 * SECOND - MILLI), None);
    let item = queue.get(NOW + 13 * SECOND).unwrap();
    assert_eq!(item, Item { key: "a", priority: INITIAL, waited: 3 * SECOND });
}

#[test]
fn a_zero_delay_is_an_add() {
    let mut queue = queue();
    queue.add_after(NOW, "a", CHANGE, Duration::ZERO);
    assert_eq!((queue.len(), queue.delayed()), (1, 0));
}

#[test]
fn delays_that_end_together_leave_in_the_order_they_were_asked_for() {
    let mut queue = queue();
    for key in ["e", "a", "c", "b", "d"] {
        queue.add_after(NOW, key, CHANGE, SECOND);
    }
    assert_eq!(take_all(&mut queue, NOW + SECOND), ["e", "a", "c", "b", "d"]);
}

#[test]
fn a_key_added_during_its_run_keeps_its_place() {
    let mut queue = queue();
    for key in ["a", "b"] {
        queue.add(NOW, key, CHANGE);
    }
    assert_eq!([queue.get(NOW).unwrap().key, queue.get(NOW).unwrap().key], ["a", "b"]);
    for key in ["a", "b", "c", "d"] {
        queue.add(NOW, key, CHANGE);
    }
    assert_eq!(queue.len(), 2);
    assert_eq!(queue.get(NOW).unwrap().key, "c"); // passes both over
    queue.done(NOW, &"b");
    queue.done(NOW, &"a");
    assert_eq!(take_all(&mut queue, NOW), ["a", "b", "d"]);
}

#[test]
fn a_key_passed_over_during_its_run_can_still_rise() {
    let mut queue = queue();
    queue.add(NOW, "a", INITIAL);
    queue.get(NOW).unwrap();
    queue.add(NOW, "a", INITIAL);
    assert_eq!(queue.get(NOW), None);
    queue.add(NOW, "b", CHANGE);
    queue.add(NOW, "a", CHANGE);
    queue.done(NOW, &"a");
    assert_eq!(take_all(&mut queue, NOW), ["b", "a"]);
}

#[test]
fn failures_wait_from_5_ms_doubling_to_1000_s_until_forgotten() {
    let mut queue = queue();
    let mut delays = Vec::new();
    for failures in 0..20 {
        assert_eq!(queue.failures(&"a"), failures);
        delays.push(queue.add_rate_limited(NOW, "a", CHANGE, Duration::ZERO).as_millis());
        queue.get(NOW + 2_000 * SECOND).unwrap();
        queue.done(NOW, &"a");
    }
    assert_eq!(delays[..4], [5, 10, 20, 40]);
    assert_eq!(delays[17..], [655_360, 1_000_000, 1_000_000]);
    assert_eq!(queue.retries(), 20);
    queue.forget(&"a");
    assert_eq!(queue.failures(&"a"), 0);
    assert_eq!(queue.add_rate_limited(NOW, "a", CHANGE, Duration::ZERO), 5 * MILLI);
}

#[test]
fn failures_are_counted_by_key() {
    let mut queue = queue();
    queue.add_rate_limited(NOW, "a", CHANGE, Duration::ZERO);
    queue.add_rate_limited(NOW, "a", CHANGE, Duration::ZERO);
    assert_eq!(queue.add_rate_limited(NOW, "b", CHANGE, Duration::ZERO), 5 * MILLI);
    assert_eq!((queue.failures(&"a"), queue.failures(&"b"), queue.failures(&"c")), (2, 1, 0));
}

#[test]
fn work_is_timed() {
    let mut queue = queue();
    for key in ["a", "b", "c"] {
        queue.add(NOW, key, CHANGE);
    }
    queue.get(NOW).unwrap();
    queue.get(NOW + SECOND).unwrap();
    let later = NOW + 5 * SECOND;
    assert_eq!((queue.longest_running(later), queue.unfinished(later)), (5 * SECOND, 9 * SECOND));
    assert_eq!(queue.done(later, &"a"), 5 * SECOND);
    assert_eq!((queue.longest_running(later), queue.unfinished(later)), (4 * SECOND, 4 * SECOND));
    assert_eq!(queue.get(later).unwrap().waited, 5 * SECOND);
}

#[test]
fn a_key_that_no_worker_has_cannot_be_done() {
    let mut queue = queue();
    queue.add(NOW, "a", CHANGE);
    assert_eq!(queue.done(NOW + SECOND, &"a"), Duration::ZERO);
    assert_eq!(queue.done(NOW + SECOND, &"unknown"), Duration::ZERO);
    assert_eq!(take_all(&mut queue, NOW), ["a"]);
}

#[test]
fn adds_count_the_beginnings_of_waiting() {
    let mut queue = queue();
    queue.add(NOW, "a", CHANGE);
    queue.add(NOW, "a", CHANGE); // waits already
    queue.get(NOW).unwrap();
    queue.add_after(NOW, "a", CHANGE, SECOND);
    queue.add(NOW, "a", CHANGE); // waits already
    assert_eq!((queue.adds(), queue.retries()), (2, 0));
}

#[test]
fn invariant_10_a_queue_that_is_shut_down_waits_for_its_workers_and_hands_out_no_more() {
    let mut queue = queue();
    for key in ["running", "ready"] {
        queue.add(NOW, key, CHANGE);
    }
    queue.add_rate_limited(NOW, "delayed", CHANGE, Duration::ZERO);
    queue.get(NOW).unwrap();
    queue.add(NOW, "running", CHANGE);
    queue.shut_down();
    queue.add(NOW, "late", CHANGE);
    queue.add_after(NOW, "late", CHANGE, SECOND);
    queue.add_rate_limited(NOW, "late", CHANGE, Duration::ZERO);
    assert_eq!((queue.len(), queue.delayed(), queue.processing()), (0, 0, 1));
    assert_eq!((queue.get(NOW + 10 * SECOND), queue.is_idle()), (None, false));
    assert_eq!(queue.done(NOW + SECOND, &"running"), SECOND);
    assert_eq!((queue.get(NOW + 10 * SECOND), queue.is_idle()), (None, true));
}

#[test]
fn a_queue_with_a_rate_hands_out_a_burst_and_then_one_at_a_time() {
    let rate = Rate { burst: 2, every: SECOND };
    let mut queue = Workqueue::new(Pace { rate: Some(rate), ..Pace::default() });
    for key in ["a", "b", "c", "d"] {
        queue.add(NOW, key, CHANGE);
    }
    assert_eq!(take_all(&mut queue, NOW), ["a", "b"]);
    assert_eq!((queue.len(), queue.next_due()), (2, Some(NOW + SECOND)));
    assert_eq!(take_all(&mut queue, NOW + SECOND), ["c"]);
    // Without a rate it need not wait, and another rate begins anew.
    queue.set_pace(Pace::default());
    assert_eq!(take_all(&mut queue, NOW + SECOND), ["d"]);
    queue.set_pace(Pace { rate: Some(rate), ..Pace::default() });
    queue.add(NOW + SECOND, "e", CHANGE);
    assert_eq!(take_all(&mut queue, NOW + SECOND), ["e"]);
}

#[test]
fn failures_wait_as_the_pace_of_the_moment_says() {
    let mut queue = queue();
    assert_eq!(queue.add_rate_limited(NOW, "a", CHANGE, Duration::ZERO), LIMITS.base);
    queue.set_pace(Pace { backoff: Limits { base: SECOND, cap: 3 * SECOND }, rate: None });
    assert_eq!(queue.add_rate_limited(NOW, "a", CHANGE, Duration::ZERO), 2 * SECOND);
    assert_eq!(queue.add_rate_limited(NOW, "a", CHANGE, Duration::ZERO), 3 * SECOND);
}

#[test]
fn invariant_12_an_empty_queue_holds_nothing_of_what_went_through() {
    let mut queue = Workqueue::default();
    for round in 0..3_u64 {
        for key in 0..10_000 {
            queue.add(NOW, round << 32 | key, INITIAL);
            queue.add_after(NOW, round << 32 | key, CHANGE, SECOND);
        }
        while let Some(item) = queue.get(NOW) {
            queue.done(NOW, &item.key);
        }
        assert!(queue.slab.capacity() <= KEPT && queue.index.capacity() <= 2 * KEPT, "round {round}");
    }
}

#[test]
fn invariant_12_nothing_is_left_of_what_is_discarded() {
    let mut queue = queue();
    queue.add(NOW, "running", CHANGE);
    queue.get(NOW).unwrap();
    queue.add_rate_limited(NOW, "running", CHANGE, Duration::ZERO);
    queue.add_rate_limited(NOW, "failed", CHANGE, Duration::ZERO);
    queue.add(NOW, "ready", CHANGE);
    for key in ["running", "failed", "ready", "unknown"] {
        queue.discard(&key);
    }
    assert_eq!((queue.len(), queue.delayed(), queue.next_due(), queue.index.len()), (0, 0, None, 1));
    // A worker has it still, and it changes meanwhile.
    queue.add(NOW, "running", CHANGE);
    assert_eq!(queue.get(NOW), None);
    queue.done(NOW, &"running");
    assert_eq!(take_all(&mut queue, NOW), ["running"]);
    queue.done(NOW, &"running");
    assert_eq!(queue.index.len(), 0);
}

#[test]
fn invariant_12_a_delay_moved_again_and_again_is_held_once() {
    let mut queue = queue();
    for n in 0..10_000 {
        queue.add_after(NOW, "a", CHANGE, (20_000 - n) * SECOND);
        queue.add(NOW, "b", CHANGE);
        queue.get(NOW).unwrap();
        queue.done(NOW, &"b");
        queue.add_after(NOW, "b", CHANGE, 600 * SECOND);
    }
    assert_eq!((queue.delayed.len(), queue.slab.len()), (2, 2));
}

/// The same queue written for clarity: a list that is searched from end to end.
#[derive(Default)]
struct Plain {
    keys: Vec<Known>,
    order: u64,
    adds: u64,
    retries: u64,
    shut_down: bool,
    pace: Pace,
    bucket: Option<Bucket>,
}

struct Known {
    key: u8,
    /// Of the waiting key.
    priority: i32,
    wait: PlainWait,
    started: Option<Duration>,
    failures: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum PlainWait {
    No,
    Ready { since: Duration, order: u64 },
    Delayed { due: Duration, order: u64 },
}

impl Plain {
    fn set_pace(&mut self, pace: Pace) {
        if pace.rate != self.pace.rate {
            self.bucket = pace.rate.map(Bucket::new);
        }
        self.pace = pace;
    }

    /// After so many failures.
    fn delay(&self, failures: u32) -> Duration {
        let Limits { base, cap } = self.pace.backoff;
        (0..failures).fold(base, |delay, _| (delay * 2).min(cap)).min(cap)
    }

    fn order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    fn find(&mut self, key: u8) -> &mut Known {
        if let Some(place) = self.keys.iter().position(|known| known.key == key) {
            return &mut self.keys[place];
        }
        self.keys.push(Known { key, priority: 0, wait: PlainWait::No, started: None, failures: 0 });
        self.keys.last_mut().unwrap()
    }

    fn promote(&mut self, now: Duration) {
        loop {
            let due = self.keys.iter_mut().filter_map(|known| match known.wait {
                PlainWait::Delayed { due, order } if due <= now => Some((due, order, known)),
                _ => None,
            });
            let Some((due, _, first)) = due.min_by_key(|&(due, order, _)| (due, order)) else { return };
            let key = first.key;
            let order = self.order();
            self.find(key).wait = PlainWait::Ready { since: due, order };
        }
    }

    fn add(&mut self, now: Duration, key: u8, priority: i32, delay: Duration) {
        if self.shut_down {
            return;
        }
        let order = self.order();
        let known = self.find(key);
        let asked = match delay {
            Duration::ZERO => PlainWait::Ready { since: now, order },
            delay => PlainWait::Delayed { due: now + delay, order },
        };
        let higher = known.priority < priority;
        match (known.wait, asked) {
            (PlainWait::No, _) => {
                (known.wait, known.priority) = (asked, priority);
                self.adds += 1;
                return;
            }
            (PlainWait::Delayed { .. }, PlainWait::Ready { .. }) => known.wait = asked,
            (PlainWait::Delayed { due, .. }, PlainWait::Delayed { due: sooner, .. }) if sooner < due => {
                known.wait = asked;
            }
            (PlainWait::Ready { since, .. }, _) if higher => known.wait = PlainWait::Ready { since, order },
            _ => {}
        }
        known.priority = known.priority.max(priority);
    }

    fn ready(&mut self) -> Vec<&mut Known> {
        let free = self.keys.iter_mut().filter(|known| known.started.is_none());
        free.filter(|known| matches!(known.wait, PlainWait::Ready { .. })).collect()
    }

    fn get(&mut self, now: Duration) -> Option<Item<u8>> {
        if self.bucket.as_ref().is_some_and(|bucket| bucket.not_before() > now) {
            return None;
        }
        let first = self.ready().into_iter().min_by_key(|known| match known.wait {
            PlainWait::Ready { order, .. } => (-known.priority, order),
            _ => unreachable!("only ready keys are looked at"),
        })?;
        let PlainWait::Ready { since, .. } = first.wait else { unreachable!("likewise") };
        (first.wait, first.started) = (PlainWait::No, Some(now));
        let item = Item { key: first.key, priority: first.priority, waited: now - since };
        if let Some(bucket) = &mut self.bucket {
            bucket.take(now);
        }
        Some(item)
    }

    fn next_due(&mut self) -> Option<Duration> {
        let ready = (!self.ready().is_empty()).then_some(Duration::ZERO);
        let due = ready.or_else(|| self.dues().into_iter().min())?;
        Some(self.bucket.as_ref().map_or(due, |bucket| due.max(bucket.not_before())))
    }

    fn dues(&self) -> Vec<Duration> {
        self.keys
            .iter()
            .filter_map(|known| if let PlainWait::Delayed { due, .. } = known.wait { Some(due) } else { None })
            .collect()
    }

    fn shut_down(&mut self) {
        self.shut_down = true;
        for known in &mut self.keys {
            (known.wait, known.failures) = (PlainWait::No, 0);
        }
    }
}

/// A bucket that fills by a token each time `rate.every` has passed, and holds `rate.burst` of them.
struct Bucket {
    rate: Rate,
    /// In time: a token is `rate.every`.
    level: Duration,
    at: Duration,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        Self { rate, level: rate.every * rate.burst, at: Duration::ZERO }
    }

    fn take(&mut self, now: Duration) {
        let level = (self.level + (now - self.at)).min(self.rate.every * self.rate.burst);
        (self.level, self.at) = (level - self.rate.every, now);
    }

    fn not_before(&self) -> Duration {
        match self.level < self.rate.every {
            true => self.at + (self.rate.every - self.level),
            false => Duration::ZERO,
        }
    }
}

fn rate() -> impl Strategy<Value = Option<Rate>> {
    let rate = (1..5_u32, 1..30_u64).prop_map(|(burst, every)| Rate { burst, every: MILLI * every as u32 });
    prop::option::weighted(0.3, rate)
}

fn pace() -> impl Strategy<Value = Pace> {
    let backoff = prop_oneof![Just((5, 1_000_000)), (1..50_u64, 1..5_000_u64)];
    (backoff, rate()).prop_map(|((base, cap), rate)| {
        let [base, cap] = [base, cap].map(Duration::from_millis);
        Pace { backoff: Limits { base, cap }, rate }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8, i32),
    AddAfter(u8, i32, u64),
    /// And no sooner than after so many milliseconds.
    AddRateLimited(u8, i32, u64),
    Pace(Pace),
    Get,
    Done(u8),
    Forget(u8),
    Discard(u8),
    Pass(u64),
    ShutDown,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..12_u8;
    let priority = || prop_oneof![3 => Just(CHANGE), 3 => Just(INITIAL), 1 => -2..3_i32];
    let step = prop_oneof![
        60 => (key(), priority()).prop_map(|(key, priority)| Step::Add(key, priority)),
        30 => (key(), priority(), 0..40_u64).prop_map(|(key, priority, delay)| Step::AddAfter(key, priority, delay)),
        30 => (key(), priority(), prop_oneof![3 => Just(0), 1 => 0..40_u64])
            .prop_map(|(key, priority, least)| Step::AddRateLimited(key, priority, least)),
        3 => pace().prop_map(Step::Pace),
        80 => Just(Step::Get),
        60 => key().prop_map(Step::Done),
        10 => key().prop_map(Step::Forget),
        10 => key().prop_map(Step::Discard),
        30 => (0..60_u64).prop_map(Step::Pass),
        1 => Just(Step::ShutDown),
    ];
    prop::collection::vec(step, 0..300)
}

proptest! {
    #[test]
    fn it_does_what_the_plain_queue_does(steps in steps(), pace in pace()) {
        let mut queue = Workqueue::new(pace);
        let mut plain = Plain::default();
        plain.set_pace(pace);
        let mut now = NOW;
        for step in steps {
            plain.promote(now);
            match step {
                Step::Add(key, priority) => {
                    queue.add(now, key, priority);
                    plain.add(now, key, priority, Duration::ZERO);
                }
                Step::AddAfter(key, priority, delay) => {
                    queue.add_after(now, key, priority, MILLI * delay as u32);
                    plain.add(now, key, priority, MILLI * delay as u32);
                }
                Step::AddRateLimited(key, priority, least) => {
                    let least = Duration::from_millis(least);
                    let failures = plain.find(key).failures;
                    let delay = plain.delay(failures).max(least);
                    prop_assert_eq!(queue.add_rate_limited(now, key, priority, least), delay);
                    plain.add(now, key, priority, delay);
                    plain.find(key).failures += u32::from(!plain.shut_down);
                    plain.retries += u64::from(!plain.shut_down);
                }
                Step::Pace(pace) => {
                    queue.set_pace(pace);
                    plain.set_pace(pace);
                }
                Step::Get => prop_assert_eq!(queue.get(now), plain.get(now)),
                Step::Done(key) => {
                    let worked = plain.find(key).started.take().map(|since| now - since);
                    prop_assert_eq!(queue.done(now, &key), worked.unwrap_or_default());
                }
                Step::Forget(key) => {
                    queue.forget(&key);
                    plain.find(key).failures = 0;
                }
                Step::Discard(key) => {
                    queue.discard(&key);
                    let known = plain.find(key);
                    (known.wait, known.failures) = (PlainWait::No, 0);
                }
                Step::Pass(millis) => {
                    now += MILLI * millis as u32;
                    plain.promote(now);
                    queue.done(now, &u8::MAX); // a call that says what time it is
                }
                Step::ShutDown => {
                    queue.shut_down();
                    plain.shut_down();
                }
            }
            prop_assert_eq!(queue.len(), plain.ready().len());
            prop_assert_eq!(queue.depths().map(|(_, depth)| depth).sum::<usize>(), queue.len());
            prop_assert_eq!(queue.delayed(), plain.dues().len());
            prop_assert_eq!(queue.next_due().map(|due| due.max(now)), plain.next_due().map(|due| due.max(now)));
            let started: Vec<_> = plain.keys.iter().filter_map(|known| known.started).collect();
            prop_assert_eq!(queue.processing(), started.len());
            prop_assert_eq!(queue.unfinished(now), started.iter().map(|&since| now - since).sum::<Duration>());
            prop_assert_eq!(queue.longest_running(now), started.iter().map(|&since| now - since).max().unwrap_or_default());
            prop_assert_eq!((queue.adds(), queue.retries(), queue.pace()), (plain.adds, plain.retries, plain.pace));
            for known in &plain.keys {
                prop_assert_eq!(queue.failures(&known.key), known.failures);
                prop_assert_eq!(queue.is_ready(&known.key), matches!(known.wait, PlainWait::Ready { .. }));
            }
            let used = plain.keys.iter().filter(|known| known.wait != PlainWait::No || known.started.is_some() || known.failures > 0);
            prop_assert_eq!(queue.index.len(), used.count());
        }
    }

    /// Without a model: whatever the workers do, each added key is handed out after its last add, never to two at once.
    #[test]
    fn invariant_2_nothing_is_lost_and_nothing_runs_twice_at_once(steps in steps(), pace in pace()) {
        let mut queue = Workqueue::new(pace);
        let mut now = NOW;
        let mut owed = HashSet::new();
        let mut held = HashMap::new();
        for step in steps.into_iter().filter(|step| !matches!(step, Step::ShutDown)) {
            match step {
                Step::Add(key, priority) => { queue.add(now, key, priority); owed.insert(key); }
                Step::AddAfter(key, priority, delay) => { queue.add_after(now, key, priority, MILLI * delay as u32); owed.insert(key); }
                Step::AddRateLimited(key, priority, least) => {
                    queue.add_rate_limited(now, key, priority, Duration::from_millis(least));
                    owed.insert(key);
                }
                Step::Pace(pace) => queue.set_pace(pace),
                Step::Get => if let Some(item) = queue.get(now) {
                    prop_assert_eq!(held.insert(item.key, now), None);
                    prop_assert!(owed.remove(&item.key), "{} was handed out and not owed", item.key);
                },
                Step::Done(key) => prop_assert_eq!(queue.done(now, &key), held.remove(&key).map_or(Duration::ZERO, |since| now - since)),
                Step::Forget(key) => queue.forget(&key),
                Step::Discard(key) => { queue.discard(&key); owed.remove(&key); }
                Step::Pass(millis) => now += MILLI * millis as u32,
                Step::ShutDown => unreachable!("filtered out"),
            }
        }
        for (key, _) in held.drain() {
            queue.done(now, &key);
        }
        loop {
            while let Some(item) = queue.get(now) {
                prop_assert!(owed.remove(&item.key), "{} was handed out and not owed", item.key);
                queue.done(now, &item.key);
            }
            let Some(due) = queue.next_due() else { break };
            prop_assert!(due > now, "what was due at {due:?} was not handed out at {now:?}");
            now = due;
        }
        prop_assert!(owed.is_empty(), "lost: {owed:?}");
        prop_assert!(queue.is_idle());
    }
}
