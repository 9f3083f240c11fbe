#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const LIMIT: usize = 64;

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn begun<T>(permits: &mut Permits<T>, now: Duration) -> Vec<(AccountId, T)> {
    let mut begun = Vec::new();
    while let NextPermit::Begin(id, request) = permits.next(now) {
        begun.push((id, request));
    }
    begun
}

#[test]
fn one_account_alone_leaves_a_quarter_of_the_permits() {
    let mut permits = Permits::<()>::new(LIMIT, 1);
    let alone = permits.open(None);
    assert_eq!((0..1000).filter(|_| permits.begin(at(0), alone)).count(), 48);
}

#[test]
fn invariant_8_the_next_permit_goes_to_the_account_with_the_fewest_requests_in_flight() {
    let mut permits = Permits::new(LIMIT, 1);
    let hogs: Vec<_> = (0..100).map(|_| permits.open(None)).collect();
    for &hog in &hogs {
        for _ in 0..256 {
            if !permits.begin(at(0), hog) {
                permits.push(at(0), hog, "flood");
            }
        }
    }
    assert_eq!(permits.in_flight, LIMIT);
    let quiet = permits.open(None);
    assert!(!permits.begin(at(0), quiet));
    permits.push(at(0), quiet, "quiet");
    // Others without a request in flight came before it; those with one come after it.
    let mut without = hogs.iter().filter(|hog| permits.usage(**hog).in_flight == 0).count();
    let mut before = 0;
    loop {
        let of = |least: usize| hogs.iter().find(|hog| permits.usage(**hog).in_flight >= least);
        let busy = of(2).or_else(|| of(1)).unwrap();
        // Its turn is older than that of the quiet one until it has begun another request.
        without += usize::from(permits.usage(*busy).in_flight == 1);
        permits.end(at(0), *busy);
        match begun(&mut permits, at(0)).as_slice() {
            [(id, _)] if *id == quiet => break,
            others => before += others.len(),
        }
        assert!(before <= without, "{before} requests of others went first, and {without} accounts had none in flight");
    }
}

#[test]
fn requests_of_one_account_begin_in_their_order() {
    let mut permits = Permits::new(1, 1);
    let id = permits.open(None);
    assert!(permits.begin(at(0), id));
    for request in 0..10 {
        permits.push(at(0), id, request);
    }
    for expected in 0..10 {
        permits.end(at(0), id);
        assert_eq!(begun(&mut permits, at(0)), [(id, expected)]);
    }
}

#[test]
fn a_cancelled_request_never_begins() {
    let mut permits = Permits::new(1, 1);
    let id = permits.open(None);
    assert!(permits.begin(at(0), id));
    let [first, second] = ["first", "second"].map(|request| permits.push(at(0), id, request).unwrap());
    assert_eq!(permits.cancel(at(0), id, first), Some("first"));
    assert_eq!(permits.cancel(at(0), id, first), None);
    permits.end(at(0), id);
    assert_eq!(begun(&mut permits, at(0)), [(id, "second")]);
    assert_eq!(permits.cancel(at(0), id, second), None);
}

#[test]
fn an_account_begins_no_more_than_its_rate() {
    let mut permits = Permits::new(LIMIT, 1);
    let id = permits.open(Some(Rate { burst: 2, every: at(500) }));
    let other = permits.open(None);
    assert_eq!((permits.begin(at(0), id), permits.begin(at(0), id), permits.begin(at(0), id)), (true, true, false));
    permits.push(at(0), id, "third");
    assert!(permits.begin(at(0), other));
    assert_eq!(permits.next(at(0)), NextPermit::At(at(500)));
    assert_eq!(permits.next(at(500)), NextPermit::Begin(id, "third"));
    permits.push(at(500), id, "fourth");
    permits.set_rate(at(501), id, None);
    assert_eq!(permits.next(at(501)), NextPermit::Begin(id, "fourth"));
}

#[test]
fn retry_after_stops_its_account_so_long_and_the_others_for_a_second() {
    let mut permits = Permits::new(LIMIT, 1);
    let [refused, other] = [(); 2].map(|()| permits.open(None));
    assert!(permits.begin(at(0), refused));
    permits.throttle(at(0), refused, Duration::from_secs(10));
    permits.end(at(0), refused);
    for id in [refused, other] {
        assert!(!permits.begin(at(999), id));
        permits.push(at(999), id, id);
    }
    let NextPermit::At(all) = permits.next(at(999)) else { panic!("something began") };
    assert!((at(1000)..=at(1250)).contains(&all), "{all:?}");
    assert_eq!(permits.next(all), NextPermit::Begin(other, other));
    let NextPermit::At(own) = permits.next(all) else { panic!("something began") };
    assert!((at(10_000)..=at(12_500)).contains(&own), "{own:?}");
    assert_eq!(permits.next(own), NextPermit::Begin(refused, refused));
    assert_eq!(permits.usage(refused).throttled, 1);
}

#[test]
fn a_retry_after_of_an_hour_is_bounded() {
    let mut permits = Permits::new(LIMIT, 1);
    let id = permits.open(None);
    permits.throttle(at(0), id, Duration::from_secs(3600));
    permits.push(at(2000), id, ());
    let NextPermit::At(own) = permits.next(at(2000)) else { panic!("something began") };
    assert!((ACCOUNT_STANDS..=ACCOUNT_STANDS * 5 / 4).contains(&own), "{own:?}");
}

#[test]
fn a_closed_account_is_forgotten_after_its_last_request() {
    let mut permits = Permits::new(1, 1);
    let id = permits.open(None);
    assert!(permits.begin(at(0), id));
    permits.push(at(0), id, ());
    permits.close(id);
    permits.end(at(0), id);
    assert_eq!(begun(&mut permits, at(0)).len(), 1);
    permits.end(at(0), id);
    assert!(permits.accounts.is_empty() && permits.line.is_empty() && permits.resting.is_empty());
}

#[derive(Clone, Debug)]
enum Act {
    Ask(usize),
    End(usize),
    Throttle(usize, u64),
    Cancel(usize),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..4_usize).prop_map(Act::Ask),
        4 => (0..4_usize).prop_map(Act::End),
        1 => (0..4_usize, 0..3000_u64).prop_map(|(of, millis)| Act::Throttle(of, millis)),
        1 => (0..4_usize).prop_map(Act::Cancel),
        2 => (0..500_u64).prop_map(Act::Pass),
    ]
}

proptest! {
    #[test]
    fn permits_are_bounded_fair_and_never_lost(acts in prop::collection::vec(act(), 1..400), limit in 1..8_usize, rated in any::<bool>()) {
        let mut permits = Permits::new(limit, 7);
        let rate = rated.then_some(Rate { burst: 2, every: at(100) });
        let ids: Vec<_> = (0..4).map(|of| permits.open(if of == 0 { rate } else { None })).collect();
        let (mut now, mut number) = (at(0), 0_u64);
        let mut flying: HashMap<AccountId, usize> = HashMap::new();
        let mut waiting: HashMap<AccountId, VecDeque<(Ticket, u64)>> = HashMap::new();
        let mut stands: HashMap<AccountId, Duration> = HashMap::new();
        for act in acts {
            match act {
                Act::Ask(of) => {
                    number += 1;
                    let id = ids[of];
                    if permits.begin(now, id) {
                        prop_assert!(waiting.get(&id).is_none_or(VecDeque::is_empty), "it went before those that wait");
                        prop_assert!(stands.get(&id).is_none_or(|until| *until <= now));
                        *flying.entry(id).or_default() += 1;
                    } else {
                        let ticket = permits.push(now, id, number).unwrap();
                        waiting.entry(id).or_default().push_back((ticket, number));
                    }
                }
                Act::End(of) => {
                    if let Some(count) = flying.get_mut(&ids[of]).filter(|count| **count > 0) {
                        *count -= 1;
                        permits.end(now, ids[of]);
                    }
                }
                Act::Throttle(of, millis) => {
                    permits.throttle(now, ids[of], at(millis));
                    let until = stands.entry(ids[of]).or_default();
                    *until = (*until).max(now + at(millis));
                }
                Act::Cancel(of) => {
                    let lines = waiting.entry(ids[of]).or_default();
                    if let Some((ticket, number)) = lines.pop_back() {
                        prop_assert_eq!(permits.cancel(now, ids[of], ticket), Some(number));
                    }
                }
                Act::Pass(millis) => now += at(millis),
            }
            while let NextPermit::Begin(id, number) = permits.next(now) {
                prop_assert!(stands.get(&id).is_none_or(|until| *until <= now));
                prop_assert_eq!(waiting.get_mut(&id).and_then(VecDeque::pop_front).map(|(_, of)| of), Some(number));
                let own = flying.get(&id).copied().unwrap_or_default();
                for other in ids.iter().filter(|other| **other != id && permits.accounts[*other].waits != Waits::Nowhere) {
                    if let Waits::InLine(of_other, _) = permits.accounts[other].waits {
                        prop_assert!(own <= of_other, "an account with more in flight went first");
                    }
                }
                *flying.entry(id).or_default() += 1;
            }
            prop_assert!(flying.values().sum::<usize>() <= limit);
            prop_assert_eq!(permits.in_flight, flying.values().sum::<usize>());
        }
        // All that waits begins when permits come back and time passes.
        for _ in 0..4000 {
            for id in &ids {
                for _ in 0..flying.insert(*id, 0).unwrap_or_default() {
                    permits.end(now, *id);
                }
            }
            while let NextPermit::Begin(id, number) = permits.next(now) {
                prop_assert_eq!(waiting.get_mut(&id).and_then(VecDeque::pop_front).map(|(_, of)| of), Some(number));
                *flying.entry(id).or_default() += 1;
            }
            now += at(100);
        }
        prop_assert!(waiting.values().all(VecDeque::is_empty), "{:?}", waiting);
    }
}
