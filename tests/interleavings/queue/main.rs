//! A controller's workqueue (`host/src/dispatch/queue.rs`) among threads. In every order of their steps, each key that
//! was added is taken, by one worker at a time, and each waiter is woken.
//!
//! Shuttle runs each scenario about ten thousand times. It draws the orders from a seed: half of them at random, half
//! by priorities that change a few times (probabilistic concurrency testing), which finds faults that need one unlucky
//! moment. A lost wake-up leaves threads that wait for ever. Shuttle reports that as a deadlock, with the order of
//! steps for `shuttle::replay`.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

#[allow(dead_code, unreachable_pub, reason = "the host uses more of it")]
#[path = "../../../host/src/dispatch/queue.rs"]
mod queue;
mod sync;

use std::{process::ExitCode, sync::Arc, time::Duration};

use libtest_mimic::{Arguments, Trial};
use pilothouse_core::{
    breaker::Storm,
    key::Key,
    rate::Rate,
    workqueue::{CHANGE, Item, Pace},
};
use queue::{Cause, Next, Queue, Taker};
use shuttle::{
    Config, Runner,
    future::block_on,
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
};
use sync::{Instant, timeout_at};

/// The seed of all orders, the same at each run.
const SEED: u64 = 20_261_122;

/// Number of orders of each kind.
const ORDERS: usize = 40_000;

/// Moments at which an order by priorities changes them.
const CHANGES: usize = 3;

const SECOND: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let trials = [
        trial("every_change_is_seen_by_one_worker_at_a_time", every_change_is_seen_by_one_worker_at_a_time),
        trial("a_key_that_fails_or_asks_for_it_comes_again", a_key_that_fails_or_asks_for_it_comes_again),
        trial("a_worker_that_stops_waiting_takes_nothing_with_it", a_worker_that_stops_waiting_takes_nothing_with_it),
        trial(
            "a_worker_that_stops_waiting_leaves_to_others_when_the_next_key_is_due",
            a_worker_that_stops_waiting_leaves_to_others_when_the_next_key_is_due,
        ),
        trial(
            "a_worker_that_is_not_wanted_leaves_its_keys_to_others",
            a_worker_that_is_not_wanted_leaves_its_keys_to_others,
        ),
        trial(
            "worker_that_is_held_back_goes_on_when_it_is_released",
            worker_that_is_held_back_goes_on_when_it_is_released,
        ),
        trial("a_rate_that_is_lifted_holds_nobody", a_rate_that_is_lifted_holds_nobody),
        trial("keys_that_come_at_once_are_taken_at_once", keys_that_come_at_once_are_taken_at_once),
        trial("keys_that_become_due_at_once_are_taken_at_once", keys_that_become_due_at_once_are_taken_at_once),
        trial(
            "a_key_that_becomes_due_while_a_worker_is_at_work_is_taken_by_another",
            a_key_that_becomes_due_while_a_worker_is_at_work_is_taken_by_another,
        ),
        trial(
            "a_worker_that_ends_with_its_key_leaves_the_next_change_to_others",
            a_worker_that_ends_with_its_key_leaves_the_next_change_to_others,
        ),
        trial("everyone_who_waits_ends_with_the_queue", everyone_who_waits_ends_with_the_queue),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

fn trial(name: &str, scenario: fn()) -> Trial {
    Trial::test(name, move || {
        explore(RandomScheduler::new_from_seed(SEED, ORDERS), scenario);
        explore(PctScheduler::new_from_seed(SEED, CHANGES, ORDERS), scenario);
        Ok(())
    })
}

fn explore(orders: impl Scheduler + 'static, scenario: fn()) {
    Runner::new(orders, Config::new()).run(scenario);
}

/// A controller with two keys.
struct Scene {
    queue: Queue,
    keys: [Watched; 2],
    /// Number of workers that should run.
    wanted: AtomicU32,
    held: AtomicBool,
    /// The queue is shut down once each key was seen after this many changes and was taken this often.
    changes: u32,
    takes: u32,
}

/// The state of one key.
#[derive(Default)]
struct Watched {
    changes: AtomicU32,
    seen: AtomicU32,
    takes: AtomicU32,
    has_worker: AtomicBool,
}

struct Worker<'a> {
    scene: &'a Scene,
    number: u32,
}

impl Taker for Worker<'_> {
    fn goes_on(&self) -> bool {
        self.number < self.scene.wanted.load(SeqCst)
    }

    fn held_until(&self) -> Option<Instant> {
        self.scene.held.load(SeqCst).then(|| Instant::now() + SECOND)
    }

    fn settled(&self, _: &Key, _: &Storm<Cause>) {}
}

impl Scene {
    fn new(pace: Pace, changes: u32, takes: u32) -> Self {
        Self {
            queue: Queue::new(pace),
            keys: Default::default(),
            wanted: AtomicU32::new(u32::MAX),
            held: AtomicBool::new(false),
            changes,
            takes,
        }
    }

    fn change(&self, key: usize) {
        self.keys[key].changes.fetch_add(1, SeqCst);
        self.queue.add(Key::new(None, &key.to_string()), CHANGE, || Cause::Itself);
    }

    /// One reconcile.
    fn work(&self, item: &Item<Key>, next: Next) {
        let key: usize = item.key.name.parse().unwrap();
        let watched = &self.keys[key];
        assert!(!watched.has_worker.swap(true, SeqCst), "two workers have {key}");
        watched.seen.store(watched.changes.load(SeqCst), SeqCst);
        watched.takes.fetch_add(1, SeqCst);
        watched.has_worker.store(false, SeqCst);
        self.queue.finish(item, next);
        let is_over =
            |watched: &Watched| watched.seen.load(SeqCst) >= self.changes && watched.takes.load(SeqCst) >= self.takes;
        if self.keys.iter().all(is_over) {
            self.queue.shut_down();
        }
    }
}

/// Starts a worker that runs until the queue ends or the worker is not wanted any more.
fn worker(scene: &Arc<Scene>, number: u32, next: fn(u32) -> Next) -> JoinHandle<()> {
    let scene = scene.clone();
    thread::spawn(move || {
        block_on(async {
            let worker = Worker { scene: &scene, number };
            while let Some((item, _)) = scene.queue.next(&worker).await {
                let key: usize = item.key.name.parse().unwrap();
                let takes = scene.keys[key].takes.load(SeqCst);
                scene.work(&item, next(takes));
            }
        });
    })
}

/// Starts a worker that waits at most this long.
fn impatient(scene: &Arc<Scene>, patience: Duration) -> JoinHandle<()> {
    let scene = scene.clone();
    thread::spawn(move || {
        block_on(async {
            let worker = Worker { scene: &scene, number: 0 };
            let due = Instant::now() + patience;
            while let Ok(Some((item, _))) = timeout_at(due, scene.queue.next(&worker)).await {
                scene.work(&item, Next::Done);
            }
        });
    })
}

/// Changes both keys, and takes them.
fn taken(scene: &Scene) -> [Item<Key>; 2] {
    [0, 1].map(|key| {
        scene.change(key);
        block_on(scene.queue.next(&Worker { scene, number: 0 })).unwrap().0
    })
}

/// Changes both keys, in this order.
fn changer(scene: &Arc<Scene>, order: [usize; 2]) -> JoinHandle<()> {
    let scene = scene.clone();
    thread::spawn(move || order.into_iter().for_each(|key| scene.change(key)))
}

fn all(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

fn every_change_is_seen_by_one_worker_at_a_time() {
    let scene = Arc::new(Scene::new(Pace::default(), 2, 1));
    let workers = [0, 1].map(|number| worker(&scene, number, |_| Next::Done));
    let changers = [[0, 1], [1, 0]].map(|order| changer(&scene, order));
    all(changers.into_iter().chain(workers));
}

fn a_key_that_fails_or_asks_for_it_comes_again() {
    let scene = Arc::new(Scene::new(Pace::default(), 1, 3));
    let time = thread::spawn(sync::pass);
    let workers = [0, 1].map(|number| {
        worker(&scene, number, |takes| match takes {
            0 => Next::Retry,
            1 => Next::After(SECOND),
            _ => Next::Done,
        })
    });
    all([changer(&scene, [0, 1])].into_iter().chain(workers));
    sync::stop();
    all([time]);
}

fn a_worker_that_stops_waiting_takes_nothing_with_it() {
    let scene = Arc::new(Scene::new(Pace::default(), 2, 1));
    let time = thread::spawn(sync::pass);
    let workers = [impatient(&scene, SECOND), worker(&scene, 1, |_| Next::Done)];
    let changers = [[0, 1], [1, 0]].map(|order| changer(&scene, order));
    all(changers.into_iter().chain(workers));
    sync::stop();
    all([time]);
}

fn a_worker_that_stops_waiting_leaves_to_others_when_the_next_key_is_due() {
    let scene = Arc::new(Scene::new(Pace::default(), 1, 1));
    let items = taken(&scene);
    let workers = [impatient(&scene, SECOND / 2), worker(&scene, 1, |_| Next::Done)];
    let time = thread::spawn(sync::pass);
    for item in &items {
        scene.queue.finish(item, Next::After(SECOND));
    }
    all(workers);
    sync::stop();
    all([time]);
}

fn a_worker_that_is_not_wanted_leaves_its_keys_to_others() {
    let scene = Arc::new(Scene::new(Pace::default(), 2, 1));
    let workers = [0, 1, 2].map(|number| worker(&scene, number, |_| Next::Done));
    let fewer = {
        let scene = scene.clone();
        thread::spawn(move || {
            // The others end when they are woken: for a key, which they pass on, or by the end of the queue.
            scene.wanted.store(1, SeqCst);
        })
    };
    let changers = [[0, 1], [1, 0]].map(|order| changer(&scene, order));
    all(changers.into_iter().chain([fewer]).chain(workers));
}

fn worker_that_is_held_back_goes_on_when_it_is_released() {
    let scene = Arc::new(Scene::new(Pace::default(), 2, 1));
    scene.held.store(true, SeqCst);
    let workers = [0, 1].map(|number| worker(&scene, number, |_| Next::Done));
    let release = {
        let scene = scene.clone();
        thread::spawn(move || {
            scene.held.store(false, SeqCst);
            scene.queue.wake_all();
        })
    };
    let changers = [[0, 1], [1, 0]].map(|order| changer(&scene, order));
    // No time passes: who is not woken waits for ever.
    all(changers.into_iter().chain([release]).chain(workers));
}

fn a_rate_that_is_lifted_holds_nobody() {
    let rate = Rate { burst: 1, every: SECOND };
    let scene = Arc::new(Scene::new(Pace { rate: Some(rate), ..Pace::default() }, 2, 1));
    let workers = [0, 1].map(|number| worker(&scene, number, |_| Next::Done));
    let lift = {
        let scene = scene.clone();
        thread::spawn(move || {
            scene.queue.set_pace(Pace::default());
            scene.queue.wake_all();
        })
    };
    let changers = [[0, 1], [1, 0]].map(|order| changer(&scene, order));
    all(changers.into_iter().chain([lift]).chain(workers));
}

/// Two workers that go on only together, each with a key.
fn pair(scene: &Arc<Scene>) -> [JoinHandle<()>; 2] {
    let both = Arc::new(Barrier::new(2));
    [1, 2].map(|number| {
        let (scene, both) = (scene.clone(), both.clone());
        thread::spawn(move || {
            block_on(async {
                while let Some((item, _)) = scene.queue.next(&Worker { scene: &scene, number }).await {
                    both.wait();
                    scene.work(&item, Next::Done);
                }
            });
        })
    })
}

/// Adds keys with these delays. No worker may sleep through a key that comes due while another works.
fn together(delays: [Duration; 2]) {
    let scene = Arc::new(Scene::new(Pace::default(), 1, 1));
    let items = taken(&scene);
    let workers = pair(&scene);
    let time = thread::spawn(sync::pass);
    for (item, delay) in items.iter().zip(delays) {
        scene.queue.finish(item, Next::After(delay));
    }
    all(workers);
    sync::stop();
    all([time]);
}

fn keys_that_become_due_at_once_are_taken_at_once() {
    together([SECOND, SECOND]);
}

fn keys_that_come_at_once_are_taken_at_once() {
    let scene = Arc::new(Scene::new(Pace::default(), 1, 1));
    // No time passes: who is not woken waits for ever.
    all(pair(&scene).into_iter().chain([changer(&scene, [0, 1])]));
}

fn a_key_that_becomes_due_while_a_worker_is_at_work_is_taken_by_another() {
    together([SECOND, 2 * SECOND]);
}

fn a_worker_that_ends_with_its_key_leaves_the_next_change_to_others() {
    let scene = Arc::new(Scene::new(Pace::default(), 2, 1));
    let ends = {
        let scene = scene.clone();
        thread::spawn(move || {
            block_on(async {
                if let Some((item, _)) = scene.queue.next(&Worker { scene: &scene, number: 0 }).await {
                    scene.change(item.key.name.parse().unwrap());
                    scene.queue.finish(&item, Next::Done);
                }
            });
        })
    };
    let changers = [[0, 1], [1, 0]].map(|order| changer(&scene, order));
    all(changers);
    // Only now, so that nothing else wakes the worker.
    let stays = worker(&scene, 1, |_| Next::Done);
    all([ends, stays]);
}

fn everyone_who_waits_ends_with_the_queue() {
    let scene = Arc::new(Scene::new(Pace::default(), u32::MAX, 0));
    let workers = [0, 1, 2].map(|number| worker(&scene, number, |_| Next::Done));
    scene.queue.shut_down();
    all(workers);
}
