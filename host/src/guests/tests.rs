#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pilothouse_core::fair::HOLDS;
use tokio::sync::{Barrier, oneshot};

use super::*;
use crate::testing::soon;

fn name(name: &str) -> PluginName {
    PluginName::new(name).unwrap()
}

fn threads(threads: usize) -> Guests {
    Guests::start(NonZeroUsize::new(threads).unwrap(), &Handle::current(), || ()).unwrap()
}

/// Uses a core for about `time`.
fn burn(time: Duration) {
    let began = cpu_time();
    while cpu_time() < began + time {
        std::hint::spin_loop();
    }
}

#[tokio::test]
async fn a_task_gives_its_result() {
    let account = threads(1).account(&name("a"));
    assert_eq!(account.spawn(async { 7 }).ended().await, Some(7));
}

#[tokio::test]
async fn deferred_wakes_come_when_the_outermost_guard_is_dropped() {
    let guests = Guests::within(&Handle::current());
    let account = guests.account(&name("a"));
    let ran = || account.usage().waiting == 0;
    let others_run = async || {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    };
    account.spawn(async {}).ended().await.unwrap();
    // The one thread becomes idle.
    others_run().await;
    let later = defer_wakes();
    let task = account.spawn(async {});
    drop(defer_wakes());
    others_run().await;
    assert!(!ran());
    drop(later);
    task.ended().await.unwrap();
    assert!(ran());
    account.spawn(async {}).ended().await.unwrap();
}

#[tokio::test]
async fn deferred_wakes_of_one_thread_do_not_delay_those_of_another() {
    let account = threads(1).account(&name("a"));
    let later = defer_wakes();
    let first = account.spawn(async {});
    let others = account.clone();
    let second = std::thread::spawn(move || others.spawn(async {})).join().unwrap();
    soon("the task of the thread that defers nothing", second.ended()).await.unwrap();
    drop(later);
    soon("the other", first.ended()).await.unwrap();
}

#[tokio::test]
async fn a_task_that_panics_ends_itself_and_nothing_else() {
    let account = threads(1).account(&name("a"));
    assert_eq!(account.spawn(async { panic!("on purpose") }).ended().await, None::<()>);
    assert_eq!(account.spawn(async { 7 }).ended().await, Some(7));
}

#[tokio::test]
async fn a_task_whose_handle_is_dropped_is_cancelled_where_it_waits() {
    let account = threads(1).account(&name("a"));
    let (held, freed) = oneshot::channel::<()>();
    let (began, begun) = oneshot::channel();
    let running = account.spawn(async move {
        began.send(()).unwrap();
        std::future::pending::<()>().await;
        drop(held);
    });
    begun.await.unwrap();
    drop(running);
    soon("what the task owned is dropped", freed).await.unwrap_err();
}

#[tokio::test]
async fn lifted_caps_delay_no_task() {
    let guests = threads(1);
    let account = guests.account(&name("a"));
    // With the cap, the next task would wait for minutes.
    account.set_share(Share { cap: std::num::NonZeroU32::new(1), ..Share::default() });
    account.spawn(async { burn(Duration::from_millis(200)) }).ended().await.unwrap();
    let next = account.spawn(async { 7 });
    guests.lift_caps();
    assert_eq!(soon("the next task", next.ended()).await, Some(7));
    assert_eq!(guests.shares().into_values().collect::<Vec<_>>(), [Share::default()]);
}

/// A hundred calls that wait for the API server hold no thread.
#[tokio::test]
async fn tasks_that_wait_hold_no_thread() {
    let account = threads(1).account(&name("a"));
    let all = Arc::new(Barrier::new(101));
    for _ in 0..100 {
        let all = all.clone();
        account.spawn(async move { all.wait().await }).detach();
    }
    soon("all of them wait at once", all.wait()).await;
}

#[tokio::test]
async fn tasks_use_the_timers_of_the_runtime() {
    let account = threads(1).account(&name("a"));
    let slept = account.spawn(tokio::time::sleep(Duration::from_millis(1)));
    soon("the timer", slept.ended()).await.unwrap();
}

/// One plugin has ten thousand keys and another has one. While the first works all the time, the second is served after
/// one turn. So is another controller of the same plugin.
#[tokio::test]
async fn ten_thousand_tasks_of_one_flow_do_not_delay_another_flow() {
    for (other, turns) in [("quiet", 0), ("busy", 1)] {
        let guests = threads(1);
        let (busy, other) = (guests.account(&name("busy")), guests.account(&name(other)));
        let done = Arc::new(AtomicUsize::new(0));
        let (began, begun) = oneshot::channel();
        let (open, gate) = std::sync::mpsc::channel::<()>();
        // The only thread waits at the gate while the tasks are queued.
        let stands = async move {
            began.send(()).unwrap();
            gate.recv().unwrap_err();
            burn(Duration::from_micros(100));
        };
        busy.spawn(stands).detach();
        begun.await.unwrap();
        for _ in 0..10_000 {
            let done = done.clone();
            busy.spawn(async move { done.fetch_add(1, Ordering::SeqCst) }).detach();
        }
        let before = {
            let done = done.clone();
            other.spawn(async move { done.load(Ordering::SeqCst) })
        };
        drop(open);
        assert_eq!(soon("the other is served", before.ended()).await, Some(turns));
    }
}

/// Two plugins have held a thread repeatedly without yielding. When they do so again, a third plugin finds the ordinary
/// threads free.
#[tokio::test]
async fn plugins_that_held_a_thread_run_apart_from_others() {
    let guests = threads(1);
    let [bad, worse, good] = ["bad", "worse", "good"].map(|plugin| guests.account(&name(plugin)));
    for account in [&bad, &bad, &worse, &worse] {
        soon("it yields at last", account.spawn(async { burn(2 * HOLDS) }).ended()).await.unwrap();
        // A task is charged after it has ended.
        soon("the next", account.spawn(async {}).ended()).await.unwrap();
    }
    let (began, begun) = std::sync::mpsc::channel();
    let mut gates = Vec::new();
    for account in [&bad, &worse] {
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let began = began.clone();
        let stands = async move {
            began.send(runs_suspect()).unwrap();
            gate.recv().unwrap_err();
        };
        account.spawn(stands).detach();
        gates.push(open);
    }
    assert_eq!(soon("it is served", good.spawn(async { runs_suspect() }).ended()).await, Some(false));
    assert!(begun.recv().unwrap() && !runs_suspect());
    assert!(begun.try_recv().is_err());
    assert_eq!([&bad, &worse, &good].map(|account| account.usage().held), [2, 2, 0]);
    // The suspect that waits has its turn when the other is done.
    drop(gates);
    soon("the second begins", tokio::task::spawn_blocking(move || begun.recv().unwrap())).await.unwrap();
}

#[tokio::test]
async fn time_without_a_core_is_known_during_the_turn() {
    let guests = threads(1);
    let account = guests.account(&name("waiting"));
    assert_eq!(without_core(), Duration::ZERO);
    let stands = async {
        let before = without_core();
        // Sleeps as if the kernel ran others on the core.
        std::thread::sleep(Duration::from_millis(20));
        (before, without_core())
    };
    let (before, stood) = soon("it ends", account.spawn(stands).ended()).await.unwrap();
    // The one thread charges a task before it takes the next.
    soon("it ends", account.spawn(async {}).ended()).await.unwrap();
    assert!(stood.saturating_sub(before) >= Duration::from_millis(20), "{before:?} {stood:?}");
    assert!(account.usage().used < Duration::from_millis(20));
}

/// The only thread runs a task that ends only when it is interrupted.
#[tokio::test]
async fn first_task_after_a_rest_waits_for_no_turn_of_others() {
    let interrupted = Arc::new(AtomicBool::new(false));
    let guests = {
        let interrupted = interrupted.clone();
        Guests::start(NonZeroUsize::MIN, &Handle::current(), move || interrupted.store(true, Ordering::SeqCst)).unwrap()
    };
    let (busy, quiet) = (guests.account(&name("busy")), guests.account(&name("quiet")));
    let (began, begun) = oneshot::channel();
    let loops = async move {
        began.send(()).unwrap();
        while !interrupted.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    };
    busy.spawn(loops).detach();
    begun.await.unwrap();
    assert_eq!(soon("the other is served", quiet.spawn(async { 7 }).ended()).await, Some(7));
}

#[tokio::test]
async fn computing_time_of_a_task_is_charged_to_its_account() {
    let guests = threads(2);
    let (busy, quiet) = (guests.account(&name("busy")), guests.account(&name("quiet")));
    busy.spawn(async { burn(Duration::from_millis(20)) }).ended().await.unwrap();
    quiet.spawn(async {}).ended().await.unwrap();
    // A task is charged after its end.
    let charged = async {
        while busy.usage().used < Duration::from_millis(20) {
            tokio::task::yield_now().await;
        }
    };
    soon("the time is charged", charged).await;
    let usage = guests.usage();
    assert!(usage[&name("quiet")].used < Duration::from_millis(20), "{usage:?}");
    assert_eq!((usage[&name("busy")].turns, usage[&name("quiet")].turns), (1, 1));
}

#[tokio::test]
async fn one_name_has_one_account_until_all_handles_are_dropped() {
    let guests = threads(1);
    let first = guests.account(&name("a"));
    first.spawn(async {}).ended().await.unwrap();
    let again = guests.account(&name("a"));
    drop(first);
    assert_eq!(again.usage().turns, 1);
    drop(again);
    let forgotten = async {
        while !guests.usage().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    soon("the account is closed", forgotten).await;
}

#[tokio::test]
async fn stopped_threads_take_nothing_more() {
    let guests = threads(2);
    let account = guests.account(&name("a"));
    guests.stop();
    for account in [account, guests.account(&name("b"))] {
        assert_eq!(account.spawn(async { 7 }).ended().await, None);
    }
}
