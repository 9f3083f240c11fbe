#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(1000);

/// Makes `times` consecutive failed calls, and returns the result of the last.
fn failing(plugin: &mut Quarantine, now: Duration, times: u32) -> Option<Duration> {
    let fail = |_| {
        let call = plugin.begin(now);
        plugin.failed(now, call)
    };
    (0..times).map(fail).last().flatten()
}

/// A delay without its jitter.
fn is_about(until: Duration, now: Duration, seconds: u64) -> bool {
    let delay = Duration::from_secs(seconds);
    (delay..delay + delay / JITTER).contains(&(until - now))
}

#[test]
fn one_success_in_ten_keeps_a_plugin_free() {
    let mut plugin = Quarantine::new(1);
    for _ in 0..5 {
        assert_eq!(failing(&mut plugin, NOW, IN_A_ROW - 1), None);
        let call = plugin.begin(NOW);
        assert!(!plugin.succeeded(call));
    }
    assert!(!plugin.is_quarantined());
}

#[test]
fn delays_double_up_to_five_minutes_and_a_success_forgets_them() {
    let mut plugin = Quarantine::new(2);
    let mut now = NOW;
    for (times, seconds) in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300].into_iter().enumerate() {
        assert_eq!(failing(&mut plugin, now, IN_A_ROW - 1), None);
        let until = failing(&mut plugin, now, 1).unwrap();
        assert!(is_about(until, now, seconds), "{times}: {:?}", until - now);
        assert_eq!(plugin.delays() as usize, times + 1);
        now = until;
    }
    let call = plugin.begin(now);
    assert!(plugin.succeeded(call));
    assert_eq!((plugin.is_quarantined(), plugin.delays()), (false, 0));
    assert!(is_about(failing(&mut plugin, now, IN_A_ROW).unwrap(), now, 1));
}

#[test]
fn calls_in_flight_neither_lengthen_a_delay_nor_end_it() {
    let mut plugin = Quarantine::new(4);
    let before: Vec<Call> = (0..100).map(|_| plugin.begin(NOW)).collect();
    let until = failing(&mut plugin, NOW, IN_A_ROW).unwrap();
    // Its key was handed out just before.
    let late = plugin.begin(NOW);
    for call in &before[..50] {
        assert_eq!(plugin.failed(NOW, *call), None);
    }
    assert!(!plugin.succeeded(before[50]));
    assert_eq!(plugin.held(NOW), Some(until));
    // When they end after the delay, they still count for the time before it.
    assert!(!plugin.succeeded(late));
    for call in &before[51..] {
        assert_eq!(plugin.failed(until, *call), None);
    }
    let call = plugin.begin(until);
    assert!(plugin.succeeded(call));
    assert!(!plugin.is_quarantined());
}

#[test]
fn a_release_forgets_all() {
    let mut plugin = Quarantine::new(5);
    assert!(!plugin.release());
    let old = plugin.begin(NOW);
    failing(&mut plugin, NOW, IN_A_ROW);
    assert!(plugin.release());
    assert_eq!((plugin.held(NOW), plugin.is_quarantined(), plugin.delays()), (None, false, 0));
    assert_eq!(failing(&mut plugin, NOW, IN_A_ROW - 1), None);
    assert_eq!(plugin.failed(NOW, old), None);
    assert!(is_about(failing(&mut plugin, NOW, 1).unwrap(), NOW, 1));
}

#[derive(Clone, Debug)]
enum Step {
    Begin,
    Fail(prop::sample::Index),
    Succeed(prop::sample::Index),
    Pass(u64),
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => Just(Step::Begin),
        12 => any::<prop::sample::Index>().prop_map(Step::Fail),
        1 => any::<prop::sample::Index>().prop_map(Step::Succeed),
        3 => (0_u64..3000).prop_map(Step::Pass),
        1 => Just(Step::Release),
    ]
}

proptest! {
    #[test]
    fn a_delay_that_has_begun_ends_in_its_time_or_by_release(steps in prop::collection::vec(step(), 0..400)) {
        let mut plugin = Quarantine::new(6);
        let (mut now, mut calls, mut until) = (NOW, Vec::new(), None::<Duration>);
        for step in steps {
            match step {
                Step::Begin => calls.push(plugin.begin(now)),
                Step::Fail(call) if !calls.is_empty() => {
                    let held = plugin.held(now);
                    if let Some(again) = plugin.failed(now, calls.swap_remove(call.index(calls.len()))) {
                        prop_assert_eq!(held, None);
                        prop_assert!(again >= now + DELAYS.base && again <= now + DELAYS.cap + DELAYS.cap / JITTER);
                        until = Some(again);
                    }
                }
                Step::Succeed(call) if !calls.is_empty() => {
                    let held = plugin.held(now);
                    let freed = plugin.succeeded(calls.swap_remove(call.index(calls.len())));
                    prop_assert!(!freed || held.is_none());
                    if freed {
                        until = None;
                    }
                }
                Step::Fail(_) | Step::Succeed(_) => {}
                Step::Pass(millis) => now += Duration::from_millis(millis),
                Step::Release => {
                    prop_assert_eq!(plugin.release(), until.is_some());
                    until = None;
                }
            }
            prop_assert_eq!(plugin.held(now), until.filter(|until| now < *until));
            prop_assert_eq!(plugin.is_quarantined(), until.is_some());
            prop_assert_eq!(plugin.delays() > 0, until.is_some());
        }
    }
}
