#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Just so much that a thread is held.
const HELD: Duration = HOLDS.saturating_add(Duration::from_nanos(1));

/// The only one, where one is enough.
const FLOW: Flow = Flow(0);

fn share(weight: u32, cap: Option<u32>) -> Share {
    Share { weight: NonZeroU32::new(weight).unwrap(), cap: cap.map(|cap| NonZeroU32::new(cap).unwrap()) }
}

/// Takes the next task of most, which is there.
fn take<T: std::fmt::Debug>(queue: &mut FairQueue<T>, now: Duration) -> Taken<T> {
    match queue.next(now, Lane::Ordinary) {
        NextTask::Task(taken) => taken,
        other => panic!("no task but {other:?}"),
    }
}

#[test]
fn one_account_is_served_in_order() {
    let mut queue = FairQueue::new();
    let id = queue.open(Share::default());
    (0..3).for_each(|task| queue.push(MS * task, id, FLOW, task).unwrap());
    assert_eq!(take(&mut queue, 5 * MS), Taken { account: id, task: 0, waited: 5 * MS });
    assert_eq!(take(&mut queue, 5 * MS), Taken { account: id, task: 1, waited: 4 * MS });
    assert_eq!(take(&mut queue, 6 * MS), Taken { account: id, task: 2, waited: 4 * MS });
    assert_eq!(queue.next(6 * MS, Lane::Ordinary), NextTask::Nothing);
    assert_eq!(queue.usage(id), Usage { used: Duration::ZERO, turns: 3, waited: 13 * MS, held: 0, waiting: 0 });
}

#[test]
fn ten_thousand_tasks_of_one_do_not_delay_the_first_of_another() {
    let mut queue = FairQueue::new();
    let (busy, quiet) = (queue.open(Share::default()), queue.open(Share::default()));
    (0..10_000).for_each(|task| queue.push(MS, busy, FLOW, task).unwrap());
    // Two threads are at it.
    for _ in 0..100 {
        let pair = [take(&mut queue, MS).account, take(&mut queue, MS).account];
        assert_eq!(pair, [busy, busy]);
        pair.iter().for_each(|&id| queue.charge(MS, id, MS));
    }
    let _running = take(&mut queue, MS);
    queue.push(MS, quiet, FLOW, 10_000).unwrap();
    assert_eq!(take(&mut queue, MS).task, 10_000);
}

#[test]
fn ten_thousand_tasks_of_one_flow_do_not_delay_the_first_of_another() {
    let mut queue = FairQueue::new();
    let id = queue.open(Share::default());
    (0..10_000).for_each(|task| queue.push(MS, id, FLOW, task).unwrap());
    assert_eq!([take(&mut queue, MS).task, take(&mut queue, MS).task], [0, 1]);
    (10_000..10_002).for_each(|task| queue.push(MS, id, Flow(1), task).unwrap());
    let next: Vec<i32> = (0..5).map(|_| take(&mut queue, MS).task).collect();
    assert_eq!(next, [2, 10_000, 3, 10_001, 4]);
}

#[test]
fn weights_part_the_time() {
    let mut queue = FairQueue::new();
    let (heavy, light) = (queue.open(share(300, None)), queue.open(share(100, None)));
    for id in [heavy, light] {
        queue.push(MS, id, FLOW, ()).unwrap();
    }
    for _ in 0..4_000 {
        let id = take(&mut queue, MS).account;
        queue.push(MS, id, FLOW, ()).unwrap();
        queue.charge(MS, id, MS);
    }
    assert_eq!((queue.usage(heavy).used, queue.usage(light).used), (3_000 * MS, 1_000 * MS));
}

#[test]
fn a_rest_saves_up_a_millisecond_and_no_more() {
    let turn = SAVED / 10;
    let mut queue = FairQueue::new();
    let (busy, back) = (queue.open(Share::default()), queue.open(Share::default()));
    (0..200).for_each(|_| queue.push(MS, busy, FLOW, ()).unwrap());
    let served = |queue: &mut FairQueue<()>, turns: u32| {
        let before = queue.usage(back).used;
        for _ in 0..turns {
            let id = take(queue, MS).account;
            queue.charge(MS, id, turn);
        }
        queue.usage(back).used - before
    };
    assert_eq!(served(&mut queue, 100), Duration::ZERO);
    (0..100).for_each(|_| queue.push(MS, back, FLOW, ()).unwrap());
    // Before, one had a hundred turns and the other none.
    assert_eq!(served(&mut queue, 10), SAVED);
    assert!((10 * turn..=11 * turn).contains(&served(&mut queue, 20)));
}

#[test]
fn an_account_that_yields_soon_after_a_rest_runs_on_before_others() {
    let mut queue = FairQueue::new();
    let busy = [(); 5].map(|()| queue.open(Share::default()));
    let back = queue.open(Share::default());
    busy.iter().for_each(|&id| queue.push(MS, id, FLOW, ()).unwrap());
    let turn = |queue: &mut FairQueue<()>, used| {
        let id = take(queue, MS).account;
        queue.push(MS, id, FLOW, ()).unwrap();
        queue.charge(MS, id, used);
        id
    };
    // None of those at work has used as much as another.
    for turns in 1..=50 {
        turn(&mut queue, MS / 4 + MS / 100 * (turns % 5));
    }
    queue.push(MS, back, FLOW, ()).unwrap();
    for _ in 0..4 {
        assert_eq!(turn(&mut queue, SAVED / 4), back);
    }
    // It is where they are, and has a turn like any.
    let turns: Vec<AccountId> = (0..6).map(|_| turn(&mut queue, MS)).collect();
    assert_eq!(turns.iter().filter(|&&id| id == back).count(), 1, "{turns:?}");
}

#[test]
fn credit_of_a_light_account_counts_by_its_weight() {
    let mut queue = FairQueue::new();
    let [busy, light, heavy] = [100, 1, 100].map(|weight| queue.open(share(weight, None)));
    let turn = |queue: &mut FairQueue<()>| {
        let id = take(queue, MS).account;
        queue.push(MS, id, FLOW, ()).unwrap();
        queue.charge(MS, id, MS);
        id
    };
    queue.push(MS, busy, FLOW, ()).unwrap();
    (0..200).for_each(|_| assert_eq!(turn(&mut queue), busy));
    queue.push(MS, light, FLOW, ()).unwrap();
    queue.push(MS, heavy, FLOW, ()).unwrap();
    let turns: Vec<AccountId> = (0..21).map(|_| turn(&mut queue)).collect();
    let of = |id| turns.iter().filter(|&&turn| turn == id).count();
    assert!(of(light) <= 2 && of(heavy).abs_diff(of(busy)) <= 2, "{turns:?}");
    // The same where it was light until now.
    queue.set_share(MS, light, share(10_000, None));
    let turns: Vec<AccountId> = (0..6).map(|_| turn(&mut queue)).collect();
    assert!(turns.contains(&busy) || turns.contains(&heavy), "{turns:?}");
}

/// An account with one running task at a time cannot use its share. A new account does not wait for its lag.
#[test]
fn a_new_account_begins_where_most_accounts_are() {
    let mut queue = FairQueue::new();
    let [lags, busy, back] = [10_000, 100, 100].map(|weight| queue.open(share(weight, None)));
    for id in [lags, busy] {
        queue.push(MS, id, FLOW, ()).unwrap();
    }
    // Two threads, a millisecond after the other.
    let mut running: VecDeque<AccountId> = (0..2).map(|_| take(&mut queue, MS).account).collect();
    let mut turn = |queue: &mut FairQueue<()>| {
        let id = running.pop_front().unwrap();
        queue.push(MS, id, FLOW, ()).unwrap();
        queue.charge(MS, id, MS);
        running.push_back(take(queue, MS).account);
        id
    };
    for _ in 0..1_000 {
        turn(&mut queue);
    }
    queue.push(MS, back, FLOW, ()).unwrap();
    let turns: Vec<AccountId> = (0..400).map(|_| turn(&mut queue)).collect();
    let of = |id| turns.iter().filter(|&&turn| turn == id).count();
    assert!(of(back).abs_diff(of(busy)) <= 3, "{} {} {}", of(lags), of(busy), of(back));
}

/// It could have had as much as others, and did not have the tasks for it.
#[test]
fn an_account_that_could_not_use_its_share_does_not_make_up_for_it() {
    let mut queue = FairQueue::new();
    let [single, busy, back] = [(); 3].map(|()| queue.open(Share::default()));
    for id in [single, busy] {
        queue.push(MS, id, FLOW, ()).unwrap();
    }
    (0..7).for_each(|_| queue.push(MS, busy, FLOW, ()).unwrap());
    // Eight threads.
    let mut running: VecDeque<AccountId> = (0..8).map(|_| take(&mut queue, MS).account).collect();
    let mut turn = |queue: &mut FairQueue<()>| {
        let id = running.pop_front().unwrap();
        queue.push(MS, id, FLOW, ()).unwrap();
        queue.charge(MS, id, MS);
        running.push_back(take(queue, MS).account);
        id
    };
    for _ in 0..8_000 {
        turn(&mut queue);
    }
    // Now it has them.
    (0..100).for_each(|_| queue.push(MS, single, FLOW, ()).unwrap());
    let turns: Vec<AccountId> = (0..80).map(|_| turn(&mut queue)).collect();
    let of = |turns: &[AccountId], id| turns.iter().filter(|&&turn| turn == id).count();
    assert!(of(&turns, busy).abs_diff(of(&turns, single)) <= 10, "{} {}", of(&turns, single), of(&turns, busy));
    queue.push(MS, back, FLOW, ()).unwrap();
    assert!(queue.is_next(back));
}

/// However often it was idle, it gets no more than its share.
#[test]
fn an_account_that_rests_often_gets_no_more_than_others() {
    let mut queue = FairQueue::new();
    let (busy, rests) = (queue.open(Share::default()), queue.open(Share::default()));
    queue.push(MS, busy, FLOW, ()).unwrap();
    for _ in 0..1_000 {
        if queue.is_at_rest(rests) {
            queue.push(MS, rests, FLOW, ()).unwrap();
        }
        let id = take(&mut queue, MS).account;
        if id == busy {
            queue.push(MS, busy, FLOW, ()).unwrap();
        }
        queue.charge(MS, id, MS / 3);
    }
    let [of_busy, of_rests] = [busy, rests].map(|id| queue.usage(id).used);
    assert!(of_rests <= of_busy + SAVED && of_busy <= of_rests + SAVED, "{of_busy:?} {of_rests:?}");
}

#[test]
fn an_account_that_was_idle_runs_before_one_that_yielded_early() {
    let mut queue = FairQueue::new();
    let ids = [(); 3].map(|()| queue.open(Share::default()));
    let [early, busy, back] = ids;
    // Two threads are at it. The one served last had used more than the other.
    queue.push(MS, early, FLOW, "early").unwrap();
    assert_eq!(take(&mut queue, MS).task, "early");
    queue.push(MS, busy, FLOW, "busy").unwrap();
    assert_eq!(take(&mut queue, MS).task, "busy");
    queue.push(MS, busy, FLOW, "busy").unwrap();
    queue.charge(MS, busy, SAVED / 2);
    assert_eq!(take(&mut queue, MS).task, "busy");
    queue.push(MS, back, FLOW, "back").unwrap();
    assert!(queue.is_next(back));
    for id in [early, busy] {
        queue.push(MS, id, FLOW, "again").unwrap();
        queue.charge(MS, id, MS / 100);
    }
    assert!(queue.is_next(back) && !queue.is_at_rest(back));
    assert_eq!(take(&mut queue, MS).task, "back");
    queue.charge(MS, back, Duration::ZERO);
    assert!(queue.is_at_rest(back));
}

#[test]
fn a_cap_holds_though_nobody_else_is_there() {
    let mut queue = FairQueue::new();
    let id = queue.open(share(100, Some(250)));
    let mut now = Duration::from_secs(60);
    queue.push(now, id, FLOW, ()).unwrap();
    let (began, mut turns) = (now, 0);
    while now < began + Duration::from_secs(10) {
        match queue.next(now, Lane::Ordinary) {
            NextTask::Task(_) => {
                now += MS;
                turns += 1;
                queue.push(now, id, FLOW, ()).unwrap();
                queue.charge(now, id, MS);
            }
            NextTask::At(until) => {
                assert!(until > now);
                now = until;
            }
            NextTask::Nothing => panic!("its task is gone"),
        }
    }
    // A quarter of ten seconds, what it had left of the time before, and the turn that went over it.
    let used = turns * MS;
    assert!((2_500 * MS..=2_530 * MS).contains(&used), "{used:?}");
}

#[test]
fn a_cap_that_is_lifted_holds_back_no_longer() {
    let mut queue = FairQueue::new();
    let id = queue.open(share(100, Some(1)));
    queue.push(MS, id, FLOW, "first").unwrap();
    take(&mut queue, MS);
    queue.push(MS, id, FLOW, "second").unwrap();
    queue.charge(MS, id, MS);
    assert!(matches!(queue.next(MS, Lane::Ordinary), NextTask::At(until) if until > 900 * MS));
    queue.set_share(MS, id, Share::default());
    assert_eq!(take(&mut queue, MS).task, "second");
}

#[test]
fn an_account_whose_cap_is_lifted_makes_up_for_nothing() {
    let mut queue = FairQueue::new();
    let (capped, free) = (queue.open(share(100, Some(100))), queue.open(Share::default()));
    [capped, free].iter().for_each(|&id| queue.push(MS, id, FLOW, ()).unwrap());
    let mut now = MS;
    let mut turns = |queue: &mut FairQueue<()>, count: u32| {
        let before = queue.usage(capped).used;
        for _ in 0..count {
            let id = take(queue, now).account;
            now += MS;
            queue.push(now, id, FLOW, ()).unwrap();
            queue.charge(now, id, MS);
        }
        queue.usage(capped).used - before
    };
    assert!(turns(&mut queue, 1_000) <= 110 * MS);
    queue.set_share(Duration::from_secs(2), capped, Share::default());
    let after = turns(&mut queue, 1_000);
    assert!((499 * MS..=501 * MS).contains(&after), "{after:?}");
}

/// Twice the account holds a thread; it has nothing else in line, and is alone in its lane.
fn hold(queue: &mut FairQueue<()>, now: Duration, id: AccountId) {
    for _ in 0..2 {
        assert_eq!(queue.lane(id), Lane::Ordinary);
        run(queue, now, id, HELD);
    }
    assert_eq!(queue.lane(id), Lane::Suspect);
}

/// A task of the account uses so much and ends; it has nothing else in line, and is alone in its lane.
fn run(queue: &mut FairQueue<()>, now: Duration, id: AccountId, used: Duration) {
    queue.push(now, id, FLOW, ()).unwrap();
    let NextTask::Task(taken) = queue.next(now, queue.lane(id)) else { panic!("it has a task") };
    assert_eq!(taken.account, id);
    queue.charge(now, id, used);
}

#[test]
fn a_thread_may_be_held_now_and_then() {
    let mut queue = FairQueue::new();
    let id = queue.open(Share::default());
    for second in 0..100 {
        run(&mut queue, second * (SUSPECTED / 10), id, HELD);
        (0..21).for_each(|_| run(&mut queue, second * (SUSPECTED / 10), id, HOLDS / 2));
        assert_eq!(queue.lane(id), Lane::Ordinary);
    }
    // Or very seldom, whatever comes between.
    for second in 100..110 {
        run(&mut queue, second * SUSPECTED, id, HELD);
        assert_eq!(queue.lane(id), Lane::Ordinary);
    }
    assert_eq!(queue.usage(id).held, 110);
}

#[test]
fn a_suspect_that_used_enough_time_and_yielded_returns_at_once() {
    let mut queue = FairQueue::new();
    let id = queue.open(Share::default());
    hold(&mut queue, MS, id);
    // Ten times as much as it held its thread, which was twice.
    (0..40).for_each(|_| run(&mut queue, MS, id, HOLDS / 2));
    assert_eq!(queue.lane(id), Lane::Suspect);
    run(&mut queue, MS, id, HOLDS / 2);
    assert_eq!(queue.lane(id), Lane::Ordinary);
    // What was, is forgotten; but not soon if it was long.
    run(&mut queue, MS, id, 20 * HOLDS);
    assert_eq!(queue.lane(id), Lane::Ordinary);
    (0..399).for_each(|_| run(&mut queue, MS, id, HOLDS / 2));
    run(&mut queue, MS, id, HELD);
    assert_eq!(queue.lane(id), Lane::Suspect);
    (0..21).for_each(|_| run(&mut queue, MS, id, HOLDS / 2));
    assert_eq!(queue.lane(id), Lane::Suspect);
    run(&mut queue, MS, id, HOLDS / 2);
    assert_eq!(queue.lane(id), Lane::Ordinary);
}

#[test]
fn an_account_that_holds_a_thread_changes_lanes_for_a_while() {
    let mut queue = FairQueue::new();
    let [bad, good] = [(); 2].map(|()| queue.open(Share::default()));
    hold(&mut queue, MS, bad);
    for id in [bad, good] {
        (0..2).for_each(|_| queue.push(MS, id, FLOW, ()).unwrap());
    }
    let next = |queue: &mut FairQueue<()>, now, lane| match queue.next(now, lane) {
        NextTask::Task(taken) => Some(taken.account),
        NextTask::At(_) | NextTask::Nothing => None,
    };
    let ordinary = [(); 3].map(|()| next(&mut queue, MS, Lane::Ordinary));
    assert_eq!(ordinary, [Some(good), Some(good), None]);
    assert!(queue.is_ready(Lane::Suspect) && queue.is_next(bad));
    assert_eq!(next(&mut queue, MS, Lane::Suspect), Some(bad));
    // What ran of it gives way in time, and again when it has done so for long enough.
    queue.charge(MS, bad, HOLDS / 2);
    assert_eq!((queue.lane(bad), queue.is_ready(Lane::Ordinary)), (Lane::Suspect, false));
    assert_eq!(next(&mut queue, MS, Lane::Suspect), Some(bad));
    queue.push(MS, bad, FLOW, ()).unwrap();
    queue.charge(MS + SUSPECTED, bad, HOLDS / 2);
    assert_eq!(queue.lane(bad), Lane::Ordinary);
    assert_eq!(next(&mut queue, MS + SUSPECTED, Lane::Suspect), None);
    assert_eq!(next(&mut queue, MS + SUSPECTED, Lane::Ordinary), Some(bad));
    assert_eq!([bad, good].map(|id| queue.usage(id).held), [2, 0]);
}

#[test]
fn accounts_that_hold_threads_get_time_by_their_weights() {
    let mut queue = FairQueue::new();
    let ids = [300, 100].map(|weight| queue.open(share(weight, None)));
    for id in ids {
        hold(&mut queue, MS, id);
        queue.push(MS, id, FLOW, ()).unwrap();
    }
    for _ in 0..4_000 {
        let NextTask::Task(Taken { account, .. }) = queue.next(MS, Lane::Suspect) else { panic!("both have tasks") };
        queue.push(MS, account, FLOW, ()).unwrap();
        queue.charge(MS, account, HELD);
    }
    let [heavy, light] = ids.map(|id| queue.usage(id).held);
    assert!(heavy.abs_diff(3_000) <= 3 && light.abs_diff(1_000) <= 3, "{heavy} {light}");
}

/// An account keeps its excess use in the other lane, and gains no credit there.
#[test]
fn nobody_gains_by_changing_lanes() {
    let mut queue = FairQueue::new();
    let [busy, bad] = [(); 2].map(|()| queue.open(Share::default()));
    // The lanes are at different levels.
    for _ in 0..1_000 {
        queue.push(MS, busy, FLOW, ()).unwrap();
        let id = take(&mut queue, MS).account;
        queue.charge(MS, id, MS);
    }
    hold(&mut queue, MS, bad);
    queue.push(MS, bad, FLOW, ()).unwrap();
    let NextTask::Task(_) = queue.next(MS, Lane::Suspect) else { panic!("it has a task") };
    let now = MS + SUSPECTED;
    (0..200).for_each(|_| queue.push(now, busy, FLOW, ()).unwrap());
    (0..200).for_each(|_| queue.push(now, bad, FLOW, ()).unwrap());
    queue.charge(now, bad, Duration::ZERO);
    let turns: Vec<AccountId> = (0..100)
        .map(|_| {
            let id = take(&mut queue, now).account;
            queue.charge(now, id, MS);
            id
        })
        .collect();
    let of_bad = turns.iter().filter(|&&id| id == bad).count();
    assert!(of_bad.abs_diff(50) <= 2, "{of_bad}");
}

#[test]
fn a_closed_account_is_served_to_its_end_and_forgotten() {
    let mut queue = FairQueue::new();
    let id = queue.open(Share::default());
    (0..2).for_each(|task| queue.push(MS, id, FLOW, task).unwrap());
    let first = take(&mut queue, MS);
    queue.close(id);
    // It gives way, and comes again.
    queue.push(MS, id, FLOW, first.task).unwrap();
    queue.charge(MS, id, MS);
    for task in [1, 0] {
        assert_eq!(take(&mut queue, MS).task, task);
        assert_eq!(queue.accounts.len(), 1);
        queue.charge(MS, id, MS);
    }
    assert!(queue.accounts.is_empty());
    assert_eq!(queue.push(MS, id, FLOW, 7), Err(7));
}

/// What happens to a queue.
#[derive(Clone, Debug)]
enum Step {
    /// By this account, in this flow.
    Push(usize, u64),
    NextTask(Lane),
    /// The task that runs longest gives way after so many microseconds; true: it comes again.
    GiveWay(u64, bool),
    Pass(u64),
    Share(usize, Share),
}

fn step() -> impl Strategy<Value = Step> {
    let account = 0..4_usize;
    prop_oneof![
        4 => (account.clone(), 0..3_u64).prop_map(|(id, flow)| Step::Push(id, flow)),
        4 => prop_oneof![3 => Just(Lane::Ordinary), 1 => Just(Lane::Suspect)].prop_map(Step::NextTask),
        4 => (prop_oneof![5 => 0..1_000_u64, 1 => 1_000..2_500_u64], any::<bool>()).prop_map(|(used, again)| Step::GiveWay(used, again)),
        2 => prop_oneof![3 => 0..50_000_u64, 1 => 5_000_000..15_000_000_u64].prop_map(Step::Pass),
        1 => (account, 1..20_000_u32, prop::option::of(1..4_000_u32)).prop_map(|(id, weight, cap)| Step::Share(id, share(weight, cap))),
    ]
}

/// A task comes: `tasks` has all in the order in which they came, `next` the flows that have some in the order of their
/// turns.
fn enter(tasks: &mut VecDeque<(u64, u32)>, next: &mut Vec<u64>, flow: u64, task: u32) {
    tasks.push_back((flow, task));
    if !next.contains(&flow) {
        next.push(flow);
    }
}

proptest! {
    /// Against plain lists: nothing is lost or served twice, order holds within a flow, and flows of an account take
    /// turns. Each account is served in its lane, and waits there only if it has a cap.
    #[test]
    fn every_task_is_served_once_in_its_flows_order_and_turn(steps in prop::collection::vec(step(), 0..200)) {
        let mut queue = FairQueue::new();
        let ids: Vec<AccountId> = (0..4).map(|_| queue.open(Share::default())).collect();
        // Of each account: when a task last held its thread, if another had before, and what is to be used until that
        // is forgotten.
        let mut holds: [Option<(Duration, bool, Duration)>; 4] = [None; 4];
        let mut lines: Vec<VecDeque<(u64, u32)>> = vec![VecDeque::new(); 4];
        let mut served: Vec<Vec<u64>> = vec![Vec::new(); 4];
        let mut caps = [false; 4];
        let mut running: VecDeque<(AccountId, u64, u32)> = VecDeque::new();
        let (mut now, mut last) = (Duration::from_secs(1), 0);
        for step in steps {
            let lane_of = |account: usize| match holds[account] {
                Some((_, true, _)) => Lane::Suspect,
                _ => Lane::Ordinary,
            };
            match step {
                Step::Push(account, flow) => {
                    last += 1;
                    enter(&mut lines[account], &mut served[account], flow, last);
                    prop_assert_eq!(queue.push(now, ids[account], Flow(flow), last), Ok(()));
                }
                Step::NextTask(lane) => match queue.next(now, lane) {
                    NextTask::Task(taken) => {
                        let account = ids.iter().position(|&id| id == taken.account).unwrap();
                        prop_assert_eq!(lane_of(account), lane);
                        let flow = served[account].remove(0);
                        let place = lines[account].iter().position(|(of, _)| *of == flow).unwrap();
                        prop_assert_eq!(Some((flow, taken.task)), lines[account].remove(place));
                        if lines[account].iter().any(|(of, _)| *of == flow) {
                            served[account].push(flow);
                        }
                        running.push_back((taken.account, flow, taken.task));
                    }
                    NextTask::At(until) => {
                        prop_assert!(until > now);
                        for (account, tasks) in lines.iter().enumerate() {
                            prop_assert!(tasks.is_empty() || caps[account] || lane_of(account) != lane);
                        }
                        prop_assert!(lines.iter().any(|tasks| !tasks.is_empty()));
                    }
                    NextTask::Nothing => for (account, tasks) in lines.iter().enumerate() {
                        prop_assert!(tasks.is_empty() || lane_of(account) != lane);
                    },
                },
                Step::GiveWay(used, again) => {
                    if let Some((id, flow, task)) = running.pop_front() {
                        let used = Duration::from_micros(used);
                        now += used;
                        let account = ids.iter().position(|&known| known == id).unwrap();
                        if again {
                            enter(&mut lines[account], &mut served[account], flow, task);
                            prop_assert_eq!(queue.push(now, id, Flow(flow), task), Ok(()));
                        }
                        queue.charge(now, id, used);
                        if holds[account].is_some_and(|(at, ..)| now >= at + SUSPECTED) {
                            holds[account] = None;
                        }
                        holds[account] = match holds[account] {
                            None if used > HOLDS => Some((now, false, used * CLEARED)),
                            Some((.., owes)) if used > HOLDS => Some((now, true, owes + used * CLEARED)),
                            Some((at, again, owes)) if used < owes => Some((at, again, owes - used)),
                            _ => None,
                        };
                    }
                }
                Step::Pass(micros) => now += Duration::from_micros(micros),
                Step::Share(account, share) => {
                    caps[account] = share.cap.is_some();
                    queue.set_share(now, ids[account], share);
                }
            }
        }
        for (id, tasks) in ids.iter().zip(&lines) {
            prop_assert_eq!(queue.usage(*id).waiting, tasks.len());
        }
    }

    /// An idle account comes before all that have run since they were idle, unless those lag by more than its credit.
    #[test]
    fn nobody_at_work_is_before_one_that_comes_from_a_rest(steps in prop::collection::vec(step(), 0..200)) {
        let mut queue = FairQueue::new();
        let ids: Vec<AccountId> = (0..5).map(|_| queue.open(Share::default())).collect();
        let (mut running, mut rested) = (VecDeque::new(), BTreeSet::new());
        let mut now = Duration::from_secs(1);
        for step in steps {
            match step {
                // The last one stays idle.
                Step::Push(account, flow) => {
                    if queue.is_at_rest(ids[account]) {
                        rested.insert(ids[account]);
                    }
                    queue.push(now, ids[account], Flow(flow), ()).unwrap();
                }
                Step::NextTask(_) => {
                    if let NextTask::Task(taken) = queue.next(now, Lane::Ordinary) {
                        rested.remove(&taken.account);
                        running.push_back(taken.account);
                    }
                }
                Step::GiveWay(used, again) => {
                    if let Some(id) = running.pop_front() {
                        // None of them is in the suspect lane.
                        let used = used.min(999);
                        now += Duration::from_micros(used);
                        if again {
                            queue.push(now, id, FLOW, ()).unwrap();
                        }
                        queue.charge(now, id, Duration::from_micros(used));
                    }
                }
                Step::Pass(micros) => now += Duration::from_micros(micros),
                Step::Share(account, share) => queue.set_share(now, ids[account], Share { cap: None, ..share }),
            }
        }
        let saved = queue.rows[Lane::Ordinary as usize].level.saturating_sub(queue.accounts[&ids[4]].share.weigh(SAVED));
        let lag: BTreeSet<AccountId> = ids.iter().copied().filter(|id| queue.accounts[id].weighted < saved).collect();
        queue.push(now, ids[4], FLOW, ()).unwrap();
        rested.insert(ids[4]);
        let taken = take(&mut queue, now);
        prop_assert!(rested.contains(&taken.account) || lag.contains(&taken.account), "{taken:?}");
    }

    /// While all have work, no account is ahead of another by more than one turn of each, for any weights and turns.
    #[test]
    fn nobody_is_ahead_by_more_than_a_turn(
        weights in prop::collection::vec(1..1_000_u32, 2..6),
        turns in prop::collection::vec(1..1_001_u64, 1..500),
    ) {
        let mut queue = FairQueue::new();
        let accounts: Vec<(AccountId, u32)> = weights.iter().map(|&weight| (queue.open(share(weight, None)), weight)).collect();
        for (id, _) in &accounts {
            queue.push(MS, *id, FLOW, ()).unwrap();
        }
        for turn in turns {
            let id = take(&mut queue, MS).account;
            queue.push(MS, id, FLOW, ()).unwrap();
            queue.charge(MS, id, Duration::from_micros(turn));
            let ahead = |of: &(AccountId, u32)| queue.usage(of.0).used.as_secs_f64() / f64::from(of.1);
            let most = accounts.iter().map(ahead).fold(0.0, f64::max);
            let least = accounts.iter().map(ahead).fold(f64::MAX, f64::min);
            let lightest = f64::from(*weights.iter().min().unwrap());
            prop_assert!(most - least <= 0.001 / lightest + 1e-12, "{most} {least}");
        }
    }
}

#[test]
fn the_list_of_lanes_has_each_lane_once() {
    // A new lane does not compile here.
    let place = |lane: Lane| match lane {
        Lane::Ordinary => 0,
        Lane::Suspect => 1,
    };
    assert!(Lane::ALL.into_iter().map(place).eq(0..2));
}
