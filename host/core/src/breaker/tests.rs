#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(1000);

/// Reconciles `key` as soon as it may be, from `now` on, so often; whatever woke it. What was said meanwhile, and when
/// it ended.
fn reconcile<'a>(
    breaker: &mut Breaker<&'a str, &'a str>,
    mut now: Duration,
    key: &'a str,
    causes: &[&'a str],
    times: usize,
) -> (Vec<Storm<&'a str>>, Duration) {
    let mut said = Vec::new();
    for cause in causes.iter().cycle().take(times) {
        now += breaker.ask(now, &key, || cause);
        said.extend(breaker.reconciled(now, &key));
    }
    (said, now)
}

#[test]
fn a_key_that_is_woken_for_ever_is_reconciled_once_a_second_in_the_end() {
    let mut breaker = Breaker::new();
    let (opened, end) = reconcile(&mut breaker, NOW, "a", &["child"], 100);
    assert_eq!(end, NOW + OPEN * 40);
    let by = By { cause: "child", wakes: 51, of: 51 };
    let storm = Storm { since: NOW, open: Some(NOW), reconciles: 61, wakes: 51, by: Some(by) };
    assert_eq!(opened, [storm]);
    assert_eq!((breaker.open(), breaker.opened()), (1, 1));
    // Nobody else waits.
    assert_eq!(breaker.ask(end, &"b", || "child"), Duration::ZERO);
}

#[test]
fn the_main_cause_of_a_storm_is_named() {
    let names: Vec<String> = (0..30).map(|number| format!("other {number}")).collect();
    let mut breaker = Breaker::new();
    let mut causes: Vec<&str> = names.iter().map(String::as_str).collect();
    (0..30).for_each(|at| causes.insert(2 * at, "child"));
    let (opened, end) = reconcile(&mut breaker, NOW, "a", &causes, 61);
    assert_eq!(opened[0].by.as_ref().map(|by| by.cause), Some("child"));
    // What was is forgotten when it is another's turn.
    reconcile(&mut breaker, end, "a", &["new"], 500);
    let (_, storm) = breaker.storms().next().unwrap();
    let by = storm.by.unwrap();
    assert_eq!(by.cause, "new");
    assert!(by.of <= REMEMBERED && by.wakes > by.of - by.of / 8, "{by:?}");
}

#[test]
fn a_key_that_has_a_part_in_what_many_others_do_is_not_put_off() {
    let mut breaker = Breaker::new();
    for turn in 0..10_000 {
        let now = NOW + Duration::from_millis(100) * turn;
        assert_eq!(breaker.ask(now, &"a", || "neighbour"), Duration::ZERO, "{turn}");
        assert_eq!(breaker.reconciled(now, &"a"), None, "{turn}");
    }
    assert_eq!(breaker.opened(), 0);
}

#[test]
fn a_breaker_closes_after_quiet_and_not_in_a_pause() {
    let mut breaker = Breaker::new();
    let (_, end) = reconcile(&mut breaker, NOW, "a", &["child"], 70);
    let at = breaker.settle_at().unwrap();
    assert_eq!(breaker.settle(at), []);
    // A pause of 20 s, and it goes on: nothing new.
    let (opened, end) = reconcile(&mut breaker, end + Duration::from_secs(20), "a", &["child"], 30);
    assert_eq!(opened, []);
    assert_eq!(breaker.settle(end), []);
    let calm = breaker.settle_at().unwrap();
    // Who asked last was put off for a second.
    assert_eq!(calm, end - OPEN + CALM);
    let closed = breaker.settle(calm);
    assert_eq!(closed.iter().map(|(key, storm)| (*key, storm.reconciles)).collect::<Vec<_>>(), [("a", 100)]);
    assert_eq!((breaker.open(), breaker.opened(), breaker.settle_at()), (0, 1, None));
    // The next storm is another one.
    assert_eq!(reconcile(&mut breaker, calm, "a", &["child"], 100).0.len(), 1);
}

#[test]
fn a_key_that_goes_on_at_a_pace_that_nobody_minds_comes_to_rest() {
    let mut breaker = Breaker::new();
    let (_, end) = reconcile(&mut breaker, NOW, "a", &["child"], 70);
    for turn in 1..=30 {
        let now = end + OPEN * turn;
        assert_eq!(breaker.ask(now, &"a", || "child"), Duration::ZERO);
        breaker.reconciled(now, &"a");
    }
    assert_eq!(breaker.settle(end + CALM).len(), 1);
}

#[test]
fn keys_that_are_reconciled_now_and_then_are_forgotten() {
    let mut breaker: Breaker<u32, ()> = Breaker::new();
    for number in 0..100_000 {
        breaker.reconciled(NOW + Duration::from_millis(10) * number, &number);
    }
    assert!(breaker.keys.len() <= SWEEP, "{}", breaker.keys.len());
    assert!(breaker.keys.capacity() < 4 * SWEEP);
}

#[test]
fn keys_of_a_burst_are_forgotten_when_they_have_their_rate_again() {
    let mut breaker: Breaker<u32, ()> = Breaker::new();
    for number in 0..100_000 {
        breaker.reconciled(NOW, &number);
    }
    // One that is open, and one that is not as it was.
    for _ in 0..=RATE.burst {
        breaker.ask(NOW, &0, || ());
        breaker.reconciled(NOW, &0);
    }
    breaker.reconciled(NOW, &1);
    breaker.forget(NOW);
    assert_eq!((breaker.len(), breaker.open()), (100_000, 1));
    breaker.forget(NOW + RATE.every);
    let mut left: Vec<u32> = breaker.keys.keys().copied().collect();
    left.sort_unstable();
    assert_eq!(left, [0, 1]);
    assert!(breaker.keys.capacity() < 4 * SWEEP);
    breaker.settle(NOW + CALM);
    breaker.forget(NOW + CALM);
    assert_eq!((breaker.is_empty(), breaker.keys.capacity()), (true, 0));
}

proptest! {
    #[test]
    fn no_key_is_reconciled_more_often_than_its_rate_and_open_ones_are_counted(
        steps in prop::collection::vec((0_u64..300, 0_usize..3, any::<bool>()), 0..600),
    ) {
        let keys = ["a", "b", "c"];
        let mut breaker = Breaker::new();
        let (mut now, mut came) = (NOW, [const { Vec::new() }; 3]);
        for (pass, key, settles) in steps {
            now += Duration::from_millis(pass);
            if breaker.ask(now, &keys[key], || ()).is_zero() {
                let said = breaker.reconciled(now, &keys[key]);
                prop_assert!(said.is_none_or(|storm| storm.open.is_some()));
                came[key].push(now);
            }
            if settles {
                for (_, storm) in breaker.settle(now) {
                    prop_assert!(storm.open.is_some());
                }
                breaker.forget(now);
            }
            prop_assert_eq!(breaker.storms().count(), breaker.open());
            prop_assert_eq!(breaker.open() > 0, breaker.settle_at().is_some());
        }
        for came in came {
            for (at, now) in came.iter().enumerate() {
                let second = came[..at].iter().filter(|before| **before + Duration::from_secs(1) > *now).count();
                prop_assert!(second < 60 + 10);
            }
        }
    }

    #[test]
    fn a_key_that_asks_all_the_time_is_let_through_once_a_second(step in 1_u64..90, seconds in 20_u64..60) {
        let mut breaker = Breaker::new();
        let (mut now, mut came) = (NOW, Vec::new());
        while now < NOW + Duration::from_secs(seconds) {
            if breaker.ask(now, &"a", || ()).is_zero() {
                breaker.reconciled(now, &"a");
                came.push(now);
            }
            breaker.settle(now);
            now += Duration::from_millis(step);
        }
        let opened = came.windows(2).position(|pair| pair[1] >= pair[0] + OPEN);
        if let Some(opened) = opened {
            prop_assert!(came[opened..].windows(2).all(|pair| pair[1] >= pair[0] + OPEN));
        }
        // Ten a second more than the rate: sixty are used up in six seconds at most where it is twice the rate.
        prop_assert!(step > 50 || opened.is_some());
    }
}
