//! The workqueue in time. Not in the queue's own file, because tests/interleavings compiles that.

use std::{cell::RefCell, time::Duration};

use parking_lot::Mutex;
use pilothouse_core::{
    breaker::{BUSY, Storm},
    key::{Key, TypeMeta},
    rate::Rate,
    workqueue::{CHANGE, LIMITS, Pace},
};
use tokio::time::Instant;

use super::Scene;
use crate::{
    dispatch::queue::{Cause, Next, Queue, Taker},
    wasm::testing::Guest,
};

/// Takes any key, but not before a time.
#[derive(Default)]
struct Patient {
    until: Mutex<Option<Instant>>,
    settled: RefCell<Vec<String>>,
}

impl Taker for Patient {
    fn goes_on(&self) -> bool {
        true
    }

    fn held_until(&self) -> Option<Instant> {
        self.until.lock().filter(|until| Instant::now() < *until)
    }

    fn settled(&self, key: &Key, storm: &Storm<Cause>) {
        self.settled.borrow_mut().push(format!("{key} after {} reconciles", storm.reconciles));
    }
}

fn key(name: &str) -> Key {
    Key::new(Some("n"), name)
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_held_back_keep_their_order_and_come_when_the_time_is_over() {
    let (queue, taker) = (Queue::new(Pace::default()), Patient::default());
    for name in ["a", "b"] {
        queue.add(key(name), CHANGE, || Cause::Itself);
    }
    let until = Instant::now() + Duration::from_secs(300);
    *taker.until.lock() = Some(until);
    for name in ["a", "b"] {
        let (item, _) = queue.next(&taker).await.expect("it is not shut down");
        assert_eq!(item.key, key(name));
        assert!(Instant::now() >= until);
    }
}

#[tokio::test(start_paused = true)]
async fn keys_come_no_faster_than_their_rate_and_at_once_where_it_is_lifted() {
    let rate = |every| Pace { rate: Some(Rate { burst: 1, every }), ..Pace::default() };
    let (queue, taker) = (Queue::new(rate(Duration::from_secs(10))), Patient::default());
    for name in ["a", "b", "c"] {
        queue.add(key(name), CHANGE, || Cause::Itself);
    }
    let began = Instant::now();
    for (name, after) in [("a", 0), ("b", 10)] {
        let (item, _) = queue.next(&taker).await.expect("it is not shut down");
        assert_eq!((item.key, began.elapsed().as_secs()), (key(name), after));
    }
    let lift = async {
        tokio::task::yield_now().await;
        queue.set_pace(Pace::default());
        queue.wake_all();
    };
    let (taken, ()) = tokio::join!(queue.next(&taker), lift);
    assert_eq!(taken.map(|(item, _)| item.key), Some(key("c")));
    assert_eq!(began.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn worker_that_is_held_back_goes_on_when_it_is_released() {
    let (queue, taker) = (Queue::new(Pace::default()), Patient::default());
    *taker.until.lock() = Some(Instant::now() + Duration::from_secs(300));
    queue.add(key("a"), CHANGE, || Cause::Itself);
    let began = Instant::now();
    let release = async {
        tokio::task::yield_now().await;
        *taker.until.lock() = None;
        queue.wake_all();
    };
    let (taken, ()) = tokio::join!(queue.next(&taker), release);
    assert_eq!(taken.map(|(item, _)| item.key), Some(key("a")));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn worker_that_is_held_back_ends_with_the_queue() {
    let (queue, taker) = (Queue::new(Pace::default()), Patient::default());
    *taker.until.lock() = Some(Instant::now() + Duration::from_secs(300));
    queue.add(key("a"), CHANGE, || Cause::Itself);
    let end = async {
        tokio::task::yield_now().await;
        queue.shut_down();
    };
    let (taken, ()) = tokio::join!(queue.next(&taker), end);
    assert_eq!(taken, None);
}

/// Reconciles `a` a hundred times, each time as soon as it is handed out. If `wakes`, something wakes it each time too.
async fn storm(next: Next, wakes: bool) -> (Duration, Vec<Storm<Cause>>, Vec<String>) {
    let (queue, taker) = (Queue::new(Pace::default()), Patient::default());
    let child = || Cause::Child(TypeMeta::new("v1", "ConfigMap"), key("child"));
    queue.add(key("a"), CHANGE, child);
    let (began, mut storms) = (Instant::now(), Vec::new());
    for _ in 0..100 {
        let (item, storm) = queue.next(&taker).await.expect("it is not shut down");
        storms.extend(storm);
        if wakes {
            queue.add(key("a"), CHANGE, child);
        }
        queue.finish(&item, next);
    }
    let took = began.elapsed();
    assert_eq!(queue.breakers(), (1, 1));
    // Other keys do not wait.
    queue.add(key("b"), CHANGE, child);
    let (item, _) = queue.next(&taker).await.expect("it is not shut down");
    assert_eq!((item.key, began.elapsed()), (key("b"), took));
    // The storm ends, and the waiting worker notices without another key.
    let (item, _) = queue.next(&taker).await.expect("it is not shut down");
    queue.finish(&item, Next::Done);
    assert!(tokio::time::timeout(Duration::from_secs(60), queue.next(&taker)).await.is_err());
    assert_eq!(queue.breakers(), (0, 1));
    (took, storms, taker.settled.into_inner())
}

#[tokio::test(start_paused = true)]
async fn key_that_is_woken_for_ever_is_handed_out_once_a_second_in_the_end() {
    for next in [Next::Done, Next::Retry] {
        let (took, storms, settled) = storm(next, true).await;
        assert!(took >= Duration::from_secs(39) && took < Duration::from_secs(42), "{next:?}: {took:?}");
        let causes: Vec<_> = storms.iter().filter_map(|storm| Some(storm.by.as_ref()?.cause.to_string())).collect();
        assert_eq!(causes, ["changes of its child v1 ConfigMap n/child"], "{next:?}");
        assert_eq!(settled, ["n/a after 101 reconciles"], "{next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn key_waits_as_long_as_the_retry_after_of_the_server() {
    for (asked, waits) in [(0, 0), (7, 7), (3600, 300)] {
        let (queue, taker, began) = (Queue::new(Pace::default()), Patient::default(), Instant::now());
        queue.add(key("a"), CHANGE, || Cause::Itself);
        let (item, _) = queue.next(&taker).await.expect("it is not shut down");
        queue.finish(&item, Next::RetryAfter(Duration::from_secs(asked)));
        let (item, _) = queue.next(&taker).await.expect("it is not shut down");
        assert_eq!((item.key, began.elapsed().as_secs()), (key("a"), waits));
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_asks_to_be_called_at_once_for_ever_is_called_once_a_second() {
    let (took, storms, _) = storm(Next::After(LIMITS.base), false).await;
    // Its rate refills meanwhile, which allows some more.
    assert!(took >= Duration::from_secs(36) && took < Duration::from_secs(39), "{took:?}");
    let causes: Vec<_> = storms.iter().filter_map(|storm| Some(storm.by.as_ref()?.cause.clone())).collect();
    assert_eq!(causes, [Cause::RequeueAfter]);
}

/// Reconciles a key until it is busy.
async fn keep_busy(queue: &Queue, name: &str) {
    for _ in 0..BUSY {
        queue.add(key(name), CHANGE, || Cause::Itself);
        let (item, _) = queue.next(&Patient::default()).await.expect("it is not shut down");
        assert_eq!(item.key, key(name));
        queue.finish(&item, Next::Done);
    }
}

/// Returns `true` if the queue remembers that a key was busy. Only then it asks for a cause.
fn is_remembered(queue: &Queue, name: &str) -> bool {
    let mut asked = false;
    queue.add(key(name), CHANGE, || {
        asked = true;
        Cause::Itself
    });
    asked
}

#[tokio::test(start_paused = true)]
async fn rate_of_an_idle_key_is_forgotten_on_request_and_that_of_a_busy_one_is_not() {
    let queue = Queue::new(Pace::default());
    keep_busy(&queue, "rests").await;
    tokio::time::advance(Duration::from_secs(60)).await;
    keep_busy(&queue, "goes on").await;
    let remembered = || ["rests", "goes on"].map(|name| is_remembered(&queue, name));
    // Nothing is forgotten without the call.
    assert_eq!(remembered(), [true, true]);
    queue.forget_rested();
    assert_eq!(remembered(), [false, true]);
}

#[tokio::test]
async fn rates_of_idle_keys_are_forgotten_in_the_queues_of_all_controllers() {
    let scene = Scene::new().await;
    // The controller's workers wait for a kind that is not served, so they take no keys.
    scene.activate(&Guest::new().watches("v1", "ConfigMap").owns("stable.example.com/v1", "MyApple")).await;
    let controller = scene.controller();
    tokio::time::pause();
    keep_busy(controller.ledger().queue(), "a").await;
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(is_remembered(controller.ledger().queue(), "a"));
    scene.dispatch.forget_rested();
    assert!(!is_remembered(controller.ledger().queue(), "a"));
}
