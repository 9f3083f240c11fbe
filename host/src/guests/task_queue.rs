//! Owns queued tasks and idle threads, and decides whom to wake for a task. Knows neither what a task is nor what a
//! thread does.

use std::{task::Waker, time::Duration};

use pilothouse_core::fair::{AccountId, FairQueue, Flow, Lane, NextTask};

/// The least time between two requests to yield. A request costs each running task some microseconds. At this interval,
/// accounts that come often with little work cost the others a fiftieth.
const UNDISTURBED: Duration = Duration::from_micros(250);

/// The tasks and idle threads of all lanes.
#[derive(Debug)]
pub(super) struct TaskQueue<T> {
    fair: FairQueue<T>,
    /// Idle threads in the order in which they became idle. Each is listed at most once.
    resting: Vec<(Thread, Waker)>,
    /// When the running tasks were last asked to yield.
    interrupted: Option<Duration>,
    stopped: bool,
}

/// Identifies a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    /// The thread's number within its lane.
    pub(super) number: usize,
    /// The lane whose tasks the thread runs.
    pub(super) lane: Lane,
}

/// A newly queued task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    id: AccountId,
    /// `true` if the task is the account's first after a rest.
    rested: bool,
}

/// Whom to wake for a newly queued task.
#[derive(Debug)]
pub(super) enum WakeUp {
    /// No one: a thread asks for the next task soon enough.
    NotNeeded,
    /// An idle thread.
    Thread(Waker),
    /// The running tasks, which should yield.
    Interrupt,
}

impl<T> Default for TaskQueue<T> {
    fn default() -> Self {
        Self { fair: FairQueue::new(), resting: Vec::new(), interrupted: None, stopped: false }
    }
}

impl<T> TaskQueue<T> {
    /// The accounts with their tasks and shares.
    pub(super) fn fair(&self) -> &FairQueue<T> {
        &self.fair
    }

    /// The accounts, to change them. After a change that may make a task ready, call [`Self::wake_one`].
    pub(super) fn fair_mut(&mut self) -> &mut FairQueue<T> {
        &mut self.fair
    }

    /// Queues a task. The caller then asks [`whom_to_wake`](Self::whom_to_wake), unless its own thread is about to ask
    /// for the [`next`](Self::next) task.
    ///
    /// # Errors
    /// Returns the task if the queue is stopped.
    pub(super) fn push(&mut self, now: Duration, (id, flow): (AccountId, Flow), task: T) -> Result<Arrival, T> {
        if self.stopped {
            return Err(task);
        }
        let rested = self.fair.is_at_rest(id);
        self.fair.push(now, id, flow, task)?;
        Ok(Arrival { id, rested })
    }

    /// Decides whom to wake for a task that was queued now or some time before.
    pub(super) fn whom_to_wake(&mut self, now: Duration, Arrival { id, rested }: Arrival) -> WakeUp {
        let lane = self.fair.lane(id);
        if let Some(thread) = self.wake_one(lane) {
            return WakeUp::Thread(thread);
        }
        // Suspects never interrupt the running tasks.
        if lane == Lane::Suspect {
            return WakeUp::NotNeeded;
        }
        let disturbs = self.interrupted.is_some_and(|last| now.saturating_sub(last) < UNDISTURBED);
        if !rested || disturbs || !self.fair.is_next(id) {
            return WakeUp::NotNeeded;
        }
        self.interrupted = Some(now);
        WakeUp::Interrupt
    }

    /// Removes and returns an idle thread of the lane. It takes the one that became idle last, because its core's
    /// caches are warmest.
    pub(super) fn wake_one(&mut self, lane: Lane) -> Option<Waker> {
        let last = self.resting.iter().rposition(|(resting, _)| resting.lane == lane)?;
        Some(self.resting.remove(last).1)
    }

    /// Returns what a thread does next, and another thread to wake, because one wake-up may stand for several tasks.
    /// `ran` is the account that the thread has just served, with the CPU time used. A thread without a task is idle
    /// until `waker` is called. Returns `None` if the queue is stopped.
    pub(super) fn next(
        &mut self,
        now: Duration,
        thread: Thread,
        waker: &Waker,
        ran: Option<(AccountId, Duration)>,
    ) -> Option<(NextTask<T>, Option<Waker>)> {
        if self.stopped {
            return None;
        }
        // A timer may have woken the thread, so it may still be listed as idle.
        self.resting.retain(|&(resting, _)| resting != thread);
        let moved = ran.and_then(|(account, used)| {
            self.fair.charge(now, account, used);
            let lane = self.fair.lane(account);
            (lane != thread.lane && self.fair.usage(account).waiting > 0).then_some(lane)
        });
        let next = self.fair.next(now, thread.lane);
        if !matches!(next, NextTask::Task(_)) {
            self.resting.push((thread, waker.clone()));
        }
        // If the account has moved to the other lane, a thread there must find out about its tasks, or when its cap
        // lets them run.
        let other = moved.and_then(|lane| self.wake_one(lane)).or_else(|| {
            Lane::ALL.into_iter().find_map(|lane| self.fair.is_ready(lane).then(|| self.wake_one(lane)).flatten())
        });
        Some((next, other))
    }

    /// Stops the queue. Returns the queued tasks and the idle threads.
    pub(super) fn stop(&mut self) -> (FairQueue<T>, Vec<Waker>) {
        let Self { fair, resting, .. } = std::mem::replace(self, Self { stopped: true, ..Self::default() });
        (fair, resting.into_iter().map(|(_, thread)| thread).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use std::{
        num::NonZeroU32,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use pilothouse_core::fair::{HOLDS, SUSPECTED, Share};

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const FLOW: Flow = Flow(0);

    /// Counts how often a thread is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Two threads, and two accounts.
    struct Scene {
        queue: TaskQueue<u32>,
        threads: [Arc<Woken>; 2],
        ids: [AccountId; 2],
    }

    impl Scene {
        fn new() -> Self {
            let mut queue = TaskQueue::default();
            let ids = [(); 2].map(|()| queue.fair_mut().open(Share::default()));
            Self { queue, threads: Default::default(), ids }
        }

        /// Queues a task. Returns what was woken for it.
        fn push(&mut self, now: Duration, account: usize, task: u32, yielded: bool) -> Woke {
            let before = self.woken();
            let arrival = self.queue.push(now, (self.ids[account], FLOW), task).unwrap();
            match if yielded { WakeUp::NotNeeded } else { self.queue.whom_to_wake(now, arrival) } {
                WakeUp::NotNeeded => Woke::Nothing,
                WakeUp::Interrupt => Woke::RunningTasks,
                WakeUp::Thread(thread) => {
                    thread.wake();
                    self.woken_since(before)
                }
            }
        }

        /// A thread that `ran` an account asks for its next task. Returns the task, and what else was woken.
        fn next(&mut self, now: Duration, number: usize, ran: Option<(usize, Duration)>) -> (Option<u32>, Woke) {
            let before = self.woken();
            let waker = Waker::from(self.threads[number].clone());
            let ran = ran.map(|(account, used)| (self.ids[account], used));
            let (next, other) = self.queue.next(now, ordinary(number), &waker, ran).unwrap();
            let task = match next {
                NextTask::Task(taken) => Some(taken.task),
                NextTask::At(_) | NextTask::Nothing => None,
            };
            match other {
                None => (task, Woke::Nothing),
                Some(other) => {
                    other.wake();
                    (task, self.woken_since(before))
                }
            }
        }

        fn woken(&self) -> [usize; 2] {
            [0, 1].map(|number| self.threads[number].0.load(Ordering::Relaxed))
        }

        fn woken_since(&self, before: [usize; 2]) -> Woke {
            let after = self.woken();
            Woke::Thread((0..2).position(|number| before[number] != after[number]).unwrap())
        }
    }

    fn ordinary(number: usize) -> Thread {
        Thread { number, lane: Lane::Ordinary }
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Woke {
        Nothing,
        Thread(usize),
        RunningTasks,
    }

    #[test]
    fn thread_that_rested_last_is_woken_first_and_each_once() {
        let mut scene = Scene::new();
        for number in [0, 1] {
            assert_eq!(scene.next(MS, number, None), (None, Woke::Nothing));
        }
        assert_eq!(scene.push(MS, 0, 1, false), Woke::Thread(1));
        assert_eq!(scene.push(MS, 0, 2, false), Woke::Thread(0));
        // Both threads are awake and have not asked yet.
        assert_eq!(scene.push(MS, 0, 3, false), Woke::Nothing);
    }

    #[test]
    fn thread_that_finds_more_than_it_takes_wakes_another() {
        let mut scene = Scene::new();
        assert_eq!(scene.next(MS, 0, None), (None, Woke::Nothing));
        assert_eq!(scene.push(MS, 0, 1, false), Woke::Thread(0));
        assert_eq!(scene.push(MS, 0, 2, false), Woke::Nothing);
        // This thread became idle before the other asked.
        scene.queue.resting.push((ordinary(1), Waker::from(scene.threads[1].clone())));
        assert_eq!(scene.next(MS, 0, None), (Some(1), Woke::Thread(1)));
        assert_eq!(scene.next(MS, 1, None), (Some(2), Woke::Nothing));
    }

    #[test]
    fn thread_that_woke_by_itself_is_listed_as_idle_once() {
        let mut scene = Scene::new();
        for _ in 0..3 {
            assert_eq!(scene.next(MS, 0, None), (None, Woke::Nothing));
        }
        assert_eq!(scene.push(MS, 0, 1, false), Woke::Thread(0));
        assert_eq!(scene.push(MS, 0, 2, false), Woke::Nothing);
    }

    #[test]
    fn task_that_yields_wakes_no_thread_for_itself() {
        let mut scene = Scene::new();
        assert_eq!(scene.next(MS, 0, None), (None, Woke::Nothing));
        assert_eq!(scene.push(MS, 0, 1, false), Woke::Thread(0));
        assert_eq!(scene.next(MS, 0, None), (Some(1), Woke::Nothing));
        assert_eq!(scene.next(MS, 1, None), (None, Woke::Nothing));
        assert_eq!(scene.push(2 * MS, 0, 1, true), Woke::Nothing);
        assert_eq!(scene.next(2 * MS, 0, Some((0, MS))), (Some(1), Woke::Nothing));
    }

    #[test]
    fn first_task_after_a_rest_interrupts_running_tasks_but_seldom() {
        let mut scene = Scene::new();
        assert_eq!([0, 1].map(|number| scene.next(MS, number, None).0), [None, None]);
        assert_eq!([1, 2].map(|task| scene.push(MS, 0, task, false)), [Woke::Thread(1), Woke::Thread(0)]);
        assert_eq!([0, 1].map(|number| scene.next(MS, number, None).0), [Some(1), Some(2)]);
        // A busy account interrupts no task.
        assert_eq!(scene.push(MS, 0, 3, false), Woke::Nothing);
        assert_eq!(scene.push(MS, 1, 4, false), Woke::RunningTasks);
        assert_eq!(scene.push(MS, 0, 1, true), Woke::Nothing);
        assert_eq!(scene.next(MS, 0, Some((0, MS))), (Some(4), Woke::Nothing));
        assert_eq!(scene.next(MS, 0, Some((1, Duration::ZERO))), (Some(3), Woke::Nothing));
        // The account comes again too soon, so its task waits until a running one yields.
        assert_eq!(scene.push(MS, 1, 5, false), Woke::Nothing);
        assert_eq!(scene.next(MS, 0, Some((0, MS))), (Some(5), Woke::Nothing));
        assert_eq!(scene.next(MS, 0, Some((1, Duration::ZERO))), (Some(1), Woke::Nothing));
        assert_eq!(scene.push(MS + UNDISTURBED, 1, 6, false), Woke::RunningTasks);
    }

    #[test]
    fn account_that_held_its_thread_is_served_by_the_suspects_lane_from_then_on() {
        let mut scene = Scene::new();
        let suspects = Thread { number: 0, lane: Lane::Suspect };
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(matches!(scene.queue.next(MS, suspects, &waker, None), Some((NextTask::Nothing, None))));
        // The second time makes a suspect.
        scene.queue.fair_mut().charge(MS, scene.ids[0], 2 * HOLDS);
        assert_eq!(scene.next(MS, 0, None), (None, Woke::Nothing));
        assert_eq!(scene.push(MS, 0, 1, false), Woke::Thread(0));
        assert_eq!(scene.next(MS, 0, None), (Some(1), Woke::Nothing));
        // It yields too late. Its thread has no task, and wakes one of the other lane.
        assert_eq!(scene.push(MS, 0, 1, true), Woke::Nothing);
        let ran = Some((scene.ids[0], 2 * HOLDS));
        let (next, other) = scene.queue.next(MS, ordinary(0), &Waker::from(scene.threads[0].clone()), ran).unwrap();
        assert_eq!(next, NextTask::Nothing);
        other.unwrap().wake();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        let (next, other) = scene.queue.next(MS, suspects, &waker, None).unwrap();
        assert!(matches!(next, NextTask::Task(taken) if taken.task == 1) && other.is_none());
        // The account is no longer suspected: an ordinary thread is woken for its next task.
        let later = MS + SUSPECTED;
        assert!(matches!(
            scene.queue.next(later, suspects, &waker, Some((scene.ids[0], MS))),
            Some((NextTask::Nothing, None))
        ));
        assert_eq!(scene.push(later, 0, 2, false), Woke::Thread(0));
        assert_eq!(scene.next(later, 0, None), (Some(2), Woke::Nothing));
    }

    #[test]
    fn threads_of_the_other_lane_know_when_the_cap_of_a_new_suspect_lets_it_run() {
        let mut scene = Scene::new();
        let cap = Share { cap: NonZeroU32::new(100), ..Share::default() };
        // The second time makes a suspect.
        scene.queue.fair_mut().charge(MS, scene.ids[0], 2 * HOLDS);
        scene.queue.fair_mut().set_share(MS, scene.ids[0], cap);
        let suspects = Thread { number: 0, lane: Lane::Suspect };
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(matches!(scene.queue.next(MS, suspects, &waker, None), Some((NextTask::Nothing, None))));
        assert_eq!(scene.push(MS, 0, 1, false), Woke::RunningTasks);
        assert_eq!(scene.next(MS, 0, None), (Some(1), Woke::Nothing));
        assert_eq!(scene.push(MS, 0, 1, true), Woke::Nothing);
        let ran = Some((scene.ids[0], 100 * MS));
        let (next, other) = scene.queue.next(MS, ordinary(0), Waker::noop(), ran).unwrap();
        assert_eq!(next, NextTask::Nothing);
        other.unwrap().wake();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        let (next, _) = scene.queue.next(MS, suspects, &waker, None).unwrap();
        assert!(matches!(next, NextTask::At(until) if until > 900 * MS), "{next:?}");
    }

    #[test]
    fn stopped_queue_returns_its_tasks_and_takes_nothing() {
        let mut scene = Scene::new();
        assert_eq!(scene.next(MS, 0, None), (None, Woke::Nothing));
        scene.queue.fair_mut().push(MS, scene.ids[0], FLOW, 1).unwrap();
        let (left, resting) = scene.queue.stop();
        assert_eq!((left.usage(scene.ids[0]).waiting, resting.len()), (1, 1));
        assert_eq!(scene.queue.push(MS, (scene.ids[0], FLOW), 2).unwrap_err(), 2);
        assert!(scene.queue.next(MS, ordinary(0), Waker::noop(), None).is_none());
    }
}
