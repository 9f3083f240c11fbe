//! Tasks in line, threads that rest, and who is told when a task comes. Knows neither what a task is nor what a thread does.

use std::{task::Waker, time::Duration};

use pilothouse_core::fair::{AccountId, FairQueue, Flow, Lane, Next};

/// Those who run are not asked to give way more often than this. It costs each of them some microseconds: accounts that do little but come
/// again and again take a fiftieth from others by it.
const UNDISTURBED: Duration = Duration::from_micros(250);

/// What the threads share.
#[derive(Debug)]
pub(super) struct Line<T> {
    queue: FairQueue<T>,
    /// Threads with nothing to do, in the order in which they came to that: each at most once.
    resting: Vec<(Thread, Waker)>,
    /// When those who run were last asked to give way.
    interrupted: Option<Duration>,
    stopped: bool,
}

/// Which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    /// Its number in its lane.
    pub(super) number: usize,
    /// Whose tasks it runs.
    pub(super) lane: Lane,
}

/// A task that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    id: AccountId,
    /// It is the first of its account after a rest.
    rested: bool,
}

/// Who is to be told that a task has come.
#[derive(Debug)]
pub(super) enum Tell {
    /// Nobody: somebody looks at the line soon enough.
    Nobody,
    /// A thread that rested.
    Thread(Waker),
    /// Those who run: they are to give way.
    Running,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { queue: FairQueue::new(), resting: Vec::new(), interrupted: None, stopped: false }
    }
}

impl<T> Line<T> {
    /// Who has tasks, and may have what.
    pub(super) fn queue(&self) -> &FairQueue<T> {
        &self.queue
    }

    /// The same, to change it. What makes a task ready by that is to be followed by [`Self::wake_one`].
    pub(super) fn queue_mut(&mut self) -> &mut FairQueue<T> {
        &mut self.queue
    }

    /// Takes a task, at `now`. Unless it is from a thread that is about to [`look`](Self::look), [`tell`](Self::tell) says who is told of
    /// it.
    ///
    /// # Errors
    /// Nobody will run it any more: here it is again.
    pub(super) fn push(&mut self, now: Duration, (id, flow): (AccountId, Flow), task: T) -> Result<Came, T> {
        if self.stopped {
            return Err(task);
        }
        let rested = self.queue.is_at_rest(id);
        self.queue.push(now, id, flow, task)?;
        Ok(Came { id, rested })
    }

    /// Who is to be told, at `now`, of a task that came then or some time before.
    pub(super) fn tell(&mut self, now: Duration, Came { id, rested }: Came) -> Tell {
        let lane = self.queue.lane(id);
        if let Some(thread) = self.wake_one(lane) {
            return Tell::Thread(thread);
        }
        // Suspects run beside all others, and disturb none of them.
        if lane == Lane::Suspect {
            return Tell::Nobody;
        }
        let disturbs = self.interrupted.is_some_and(|last| now.saturating_sub(last) < UNDISTURBED);
        if !rested || disturbs || !self.queue.is_next(id) {
            return Tell::Nobody;
        }
        self.interrupted = Some(now);
        Tell::Running
    }

    /// A thread of the lane to wake, if one rests: the one that came to that last, as its core's caches hold most of what it needs.
    pub(super) fn wake_one(&mut self, lane: Lane) -> Option<Waker> {
        let last = self.resting.iter().rposition(|(resting, _)| resting.lane == lane)?;
        Some(self.resting.remove(last).1)
    }

    /// What the thread does next, after it ran something of an account for so long; and another that is to look too, as one
    /// waking may stand for several tasks. A thread that has nothing to do rests from here on, until `waker` is called. None: it ends.
    pub(super) fn look(
        &mut self,
        now: Duration,
        thread: Thread,
        waker: &Waker,
        ran: Option<(AccountId, Duration)>,
    ) -> Option<(Next<T>, Option<Waker>)> {
        if self.stopped {
            return None;
        }
        // It may have been woken by a timer.
        self.resting.retain(|&(resting, _)| resting != thread);
        let moved = ran.and_then(|(account, used)| {
            self.queue.charge(now, account, used);
            let lane = self.queue.lane(account);
            (lane != thread.lane && self.queue.usage(account).waiting > 0).then_some(lane)
        });
        let next = self.queue.next(now, thread.lane);
        if !matches!(next, Next::Task(_)) {
            self.resting.push((thread, waker.clone()));
        }
        // Where what ran belongs to the other lane now, nobody there knows of it, nor when its cap lets it run. Whoever is woken looks, too.
        let other = moved.and_then(|lane| self.wake_one(lane)).or_else(|| {
            Lane::ALL.into_iter().find_map(|lane| self.queue.is_ready(lane).then(|| self.wake_one(lane)).flatten())
        });
        Some((next, other))
    }

    /// Takes and gives nothing any more. What was in line, and who rested.
    pub(super) fn stop(&mut self) -> (FairQueue<T>, Vec<Waker>) {
        let Self { queue, resting, .. } = std::mem::replace(self, Self { stopped: true, ..Self::default() });
        (queue, resting.into_iter().map(|(_, thread)| thread).collect())
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
        line: Line<u32>,
        threads: [Arc<Woken>; 2],
        ids: [AccountId; 2],
    }

    impl Scene {
        fn new() -> Self {
            let mut line = Line::default();
            let ids = [(); 2].map(|()| line.queue_mut().open(Share::default()));
            Self { line, threads: Default::default(), ids }
        }

        /// A task comes: who was told.
        fn push(&mut self, now: Duration, account: usize, task: u32, gave_way: bool) -> Told {
            let before = self.woken();
            let came = self.line.push(now, (self.ids[account], FLOW), task).unwrap();
            match if gave_way { Tell::Nobody } else { self.line.tell(now, came) } {
                Tell::Nobody => Told::Nobody,
                Tell::Running => Told::Running,
                Tell::Thread(thread) => {
                    thread.wake();
                    self.told(before)
                }
            }
        }

        /// A thread looks, after it ran something of an account for so long: its task, and who else was told to look.
        fn look(&mut self, now: Duration, number: usize, ran: Option<(usize, Duration)>) -> (Option<u32>, Told) {
            let before = self.woken();
            let waker = Waker::from(self.threads[number].clone());
            let ran = ran.map(|(account, used)| (self.ids[account], used));
            let (next, other) = self.line.look(now, ordinary(number), &waker, ran).unwrap();
            let task = match next {
                Next::Task(taken) => Some(taken.task),
                Next::At(_) | Next::Nothing => None,
            };
            match other {
                None => (task, Told::Nobody),
                Some(other) => {
                    other.wake();
                    (task, self.told(before))
                }
            }
        }

        fn woken(&self) -> [usize; 2] {
            [0, 1].map(|number| self.threads[number].0.load(Ordering::Relaxed))
        }

        fn told(&self, before: [usize; 2]) -> Told {
            let after = self.woken();
            Told::Thread((0..2).position(|number| before[number] != after[number]).unwrap())
        }
    }

    fn ordinary(number: usize) -> Thread {
        Thread { number, lane: Lane::Ordinary }
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Told {
        Nobody,
        Thread(usize),
        Running,
    }

    #[test]
    fn thread_that_rested_last_is_woken_first_and_each_once() {
        let mut scene = Scene::new();
        for number in [0, 1] {
            assert_eq!(scene.look(MS, number, None), (None, Told::Nobody));
        }
        assert_eq!(scene.push(MS, 0, 1, false), Told::Thread(1));
        assert_eq!(scene.push(MS, 0, 2, false), Told::Thread(0));
        // Both are awake, and have not looked yet.
        assert_eq!(scene.push(MS, 0, 3, false), Told::Nobody);
    }

    #[test]
    fn thread_that_finds_more_than_it_takes_wakes_another() {
        let mut scene = Scene::new();
        assert_eq!(scene.look(MS, 0, None), (None, Told::Nobody));
        assert_eq!(scene.push(MS, 0, 1, false), Told::Thread(0));
        assert_eq!(scene.push(MS, 0, 2, false), Told::Nobody);
        // This one came to rest before the other looked.
        scene.line.resting.push((ordinary(1), Waker::from(scene.threads[1].clone())));
        assert_eq!(scene.look(MS, 0, None), (Some(1), Told::Thread(1)));
        assert_eq!(scene.look(MS, 1, None), (Some(2), Told::Nobody));
    }

    #[test]
    fn thread_that_woke_by_itself_is_not_told_of_what_comes_later() {
        let mut scene = Scene::new();
        for _ in 0..3 {
            assert_eq!(scene.look(MS, 0, None), (None, Told::Nobody));
        }
        assert_eq!(scene.push(MS, 0, 1, false), Told::Thread(0));
        assert_eq!(scene.push(MS, 0, 2, false), Told::Nobody);
    }

    #[test]
    fn task_that_gives_way_wakes_nobody_for_itself() {
        let mut scene = Scene::new();
        assert_eq!(scene.look(MS, 0, None), (None, Told::Nobody));
        assert_eq!(scene.push(MS, 0, 1, false), Told::Thread(0));
        assert_eq!(scene.look(MS, 0, None), (Some(1), Told::Nobody));
        assert_eq!(scene.look(MS, 1, None), (None, Told::Nobody));
        assert_eq!(scene.push(2 * MS, 0, 1, true), Told::Nobody);
        assert_eq!(scene.look(2 * MS, 0, Some((0, MS))), (Some(1), Told::Nobody));
    }

    #[test]
    fn who_comes_from_a_rest_interrupts_those_who_run_but_seldom() {
        let mut scene = Scene::new();
        assert_eq!([0, 1].map(|number| scene.look(MS, number, None).0), [None, None]);
        assert_eq!([1, 2].map(|task| scene.push(MS, 0, task, false)), [Told::Thread(1), Told::Thread(0)]);
        assert_eq!([0, 1].map(|number| scene.look(MS, number, None).0), [Some(1), Some(2)]);
        // The one that is busy disturbs nobody.
        assert_eq!(scene.push(MS, 0, 3, false), Told::Nobody);
        assert_eq!(scene.push(MS, 1, 4, false), Told::Running);
        assert_eq!(scene.push(MS, 0, 1, true), Told::Nobody);
        assert_eq!(scene.look(MS, 0, Some((0, MS))), (Some(4), Told::Nobody));
        assert_eq!(scene.look(MS, 0, Some((1, Duration::ZERO))), (Some(3), Told::Nobody));
        // It comes again too soon, and waits until somebody gives way.
        assert_eq!(scene.push(MS, 1, 5, false), Told::Nobody);
        assert_eq!(scene.look(MS, 0, Some((0, MS))), (Some(5), Told::Nobody));
        assert_eq!(scene.look(MS, 0, Some((1, Duration::ZERO))), (Some(1), Told::Nobody));
        assert_eq!(scene.push(MS + UNDISTURBED, 1, 6, false), Told::Running);
    }

    #[test]
    fn who_held_its_thread_is_served_by_one_of_the_other_lane_from_then_on() {
        let mut scene = Scene::new();
        let suspects = Thread { number: 0, lane: Lane::Suspect };
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(matches!(scene.line.look(MS, suspects, &waker, None), Some((Next::Nothing, None))));
        // Not for the first time.
        scene.line.queue_mut().charge(MS, scene.ids[0], 2 * HOLDS);
        assert_eq!(scene.look(MS, 0, None), (None, Told::Nobody));
        assert_eq!(scene.push(MS, 0, 1, false), Told::Thread(0));
        assert_eq!(scene.look(MS, 0, None), (Some(1), Told::Nobody));
        // It gives way, too late: the thread that it ran on has nothing to do, and tells the other.
        assert_eq!(scene.push(MS, 0, 1, true), Told::Nobody);
        let ran = Some((scene.ids[0], 2 * HOLDS));
        let (next, other) = scene.line.look(MS, ordinary(0), &Waker::from(scene.threads[0].clone()), ran).unwrap();
        assert_eq!(next, Next::Nothing);
        other.unwrap().wake();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        let (next, other) = scene.line.look(MS, suspects, &waker, None).unwrap();
        assert!(matches!(next, Next::Task(taken) if taken.task == 1) && other.is_none());
        // It is none any more: its next task is told to a thread of most.
        let later = MS + SUSPECTED;
        assert!(matches!(
            scene.line.look(later, suspects, &waker, Some((scene.ids[0], MS))),
            Some((Next::Nothing, None))
        ));
        assert_eq!(scene.push(later, 0, 2, false), Told::Thread(0));
        assert_eq!(scene.look(later, 0, None), (Some(2), Told::Nobody));
    }

    #[test]
    fn threads_of_the_other_lane_know_when_the_cap_of_who_comes_to_it_lets_it_run() {
        let mut scene = Scene::new();
        let cap = Share { cap: NonZeroU32::new(100), ..Share::default() };
        // Not for the first time.
        scene.line.queue_mut().charge(MS, scene.ids[0], 2 * HOLDS);
        scene.line.queue_mut().set_share(MS, scene.ids[0], cap);
        let suspects = Thread { number: 0, lane: Lane::Suspect };
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(matches!(scene.line.look(MS, suspects, &waker, None), Some((Next::Nothing, None))));
        assert_eq!(scene.push(MS, 0, 1, false), Told::Running);
        assert_eq!(scene.look(MS, 0, None), (Some(1), Told::Nobody));
        assert_eq!(scene.push(MS, 0, 1, true), Told::Nobody);
        let ran = Some((scene.ids[0], 100 * MS));
        let (next, other) = scene.line.look(MS, ordinary(0), Waker::noop(), ran).unwrap();
        assert_eq!(next, Next::Nothing);
        other.unwrap().wake();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        let (next, _) = scene.line.look(MS, suspects, &waker, None).unwrap();
        assert!(matches!(next, Next::At(until) if until > 900 * MS), "{next:?}");
    }

    #[test]
    fn stopped_line_gives_back_what_it_had_and_takes_nothing() {
        let mut scene = Scene::new();
        assert_eq!(scene.look(MS, 0, None), (None, Told::Nobody));
        scene.line.queue_mut().push(MS, scene.ids[0], FLOW, 1).unwrap();
        let (left, resting) = scene.line.stop();
        assert_eq!((left.usage(scene.ids[0]).waiting, resting.len()), (1, 1));
        assert_eq!(scene.line.push(MS, (scene.ids[0], FLOW), 2).unwrap_err(), 2);
        assert!(scene.line.look(MS, ordinary(0), Waker::noop(), None).is_none());
    }
}
