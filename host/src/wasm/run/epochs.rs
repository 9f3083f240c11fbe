//! The engines' epoch: it advances while guests run, and stands still while none does, so that an idle host does not wake up, nor one of
//! which all calls wait for the API server. Between two ticks it advances when somebody asks for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use self::timer::Timer;
use crate::prompt::be_prompt;

/// How often a running guest gives way to others. A key waits for about this where all threads are busy, and so may a thread that the kernel
/// lets in only when a guest's thread asks it for something; giving way costs a running guest a hundredth of it.
pub(crate) const TICK: Duration = Duration::from_micros(250);

/// The thread that advances the epoch. Joined on drop.
pub(crate) struct Epochs {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    advance: Box<dyn Fn() + Send + Sync>,
    timer: Timer,
    /// How many guests run.
    running: AtomicUsize,
    /// The timer stands still.
    rests: AtomicBool,
    ended: AtomicBool,
}

/// A guest that runs. While there is one, the epoch advances.
pub(crate) struct Running<'a> {
    shared: &'a Shared,
}

impl Epochs {
    /// Calls `advance` each [`TICK`] while guests run.
    ///
    /// # Errors
    /// There is no thread or no timer to be had.
    pub(crate) fn start(advance: impl Fn() + Send + Sync + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            advance: Box::new(advance),
            timer: Timer::new()?,
            running: AtomicUsize::new(0),
            rests: AtomicBool::new(true),
            ended: AtomicBool::new(false),
        });
        let ticking = Arc::clone(&shared);
        let thread = thread::Builder::new().name("wasm-epochs".to_owned()).spawn(move || {
            be_prompt();
            ticking.tick();
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Advances it now.
    pub(crate) fn advance(&self) {
        (self.shared.advance)();
    }

    /// It stands still.
    #[cfg(test)]
    pub(crate) fn rest(&self) -> bool {
        self.shared.rests.load(Ordering::SeqCst)
    }

    /// A guest runs, until this is dropped.
    pub(crate) fn running(&self) -> Running<'_> {
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.rests.load(Ordering::SeqCst) {
            self.shared.resume();
        }
        Running { shared: &self.shared }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.shared.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.resume();
        if let Some(thread) = self.thread.take() {
            // Ended, one way or another: nothing is left to do.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn tick(&self) {
        while !self.ended.load(Ordering::SeqCst) {
            self.timer.wait();
            (self.advance)();
            // A call alone costs one tick. Where calls follow each other, the next sets the timer going again, once a tick at most.
            if !self.is_needed() {
                self.rest();
            }
        }
    }

    /// Stops the timer, and whoever needs it next sets it going.
    fn rest(&self) {
        self.timer.stop();
        self.rests.store(true, Ordering::SeqCst);
        // Whoever began before that has seen no rest.
        if self.is_needed() {
            self.resume();
        }
    }

    fn resume(&self) {
        if self.rests.swap(false, Ordering::SeqCst) {
            self.timer.start();
        }
    }

    fn is_needed(&self) -> bool {
        self.running.load(Ordering::SeqCst) > 0 || self.ended.load(Ordering::SeqCst)
    }
}

/// The kernel's: to set it going wakes nobody, and so costs a call that is over before the tick next to nothing.
#[cfg(target_os = "linux")]
mod timer {
    use std::{io, os::fd::OwnedFd, thread};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };

    use super::TICK;

    pub(crate) struct Timer(OwnedFd);

    impl Timer {
        /// One that stands still.
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?))
        }

        /// From now on there is a tick each [`TICK`].
        pub(crate) fn start(&self) {
            self.set(Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() });
        }

        /// There are no more ticks.
        pub(crate) fn stop(&self) {
            self.set(Timespec { tv_sec: 0, tv_nsec: 0 });
        }

        fn set(&self, every: Timespec) {
            let times = Itimerspec { it_interval: every, it_value: every };
            // It fails only for what is no timer or no time.
            let _was = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &times);
        }

        /// Returns at the next tick, or at once if there was one since the last time.
        pub(crate) fn wait(&self) {
            let mut ticks = [0; 8];
            match rustix::io::read(&self.0, &mut ticks) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // Rather too many ticks than none: guests would never give way.
                Err(_) => thread::sleep(TICK),
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    use std::{io, thread};

    use parking_lot::{Condvar, Mutex};

    use super::TICK;

    pub(crate) struct Timer {
        goes: Mutex<bool>,
        started: Condvar,
    }

    impl Timer {
        /// One that stands still.
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self { goes: Mutex::new(false), started: Condvar::new() })
        }

        /// From now on there is a tick each [`TICK`].
        pub(crate) fn start(&self) {
            *self.goes.lock() = true;
            self.started.notify_one();
        }

        /// There are no more ticks.
        pub(crate) fn stop(&self) {
            *self.goes.lock() = false;
        }

        /// Returns at the next tick.
        pub(crate) fn wait(&self) {
            self.started.wait_while(&mut self.goes.lock(), |goes| !*goes);
            thread::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn epochs() -> (Epochs, mpsc::Receiver<()>) {
        let (tick, ticks) = mpsc::channel();
        (Epochs::start(move || tick.send(()).unwrap_or_default()).expect("there is a thread"), ticks)
    }

    fn rests(epochs: &Epochs) {
        while !epochs.rest() {
            thread::yield_now();
        }
    }

    #[test]
    fn epoch_advances_while_a_guest_runs_and_rests_when_none_does() {
        let (epochs, ticks) = epochs();
        for _ in 0..3 {
            rests(&epochs);
            ticks.try_iter().for_each(drop);
            let running = epochs.running();
            for _ in 0..10 {
                ticks.recv().expect("the thread lives");
            }
            assert!(!epochs.rest());
            drop(running);
        }
        rests(&epochs);
    }

    #[test]
    fn guest_that_begins_as_the_epoch_comes_to_rest_has_its_ticks() {
        let (epochs, ticks) = epochs();
        for _ in 0..1000 {
            // Now one sees the other first, and now the other.
            let running = epochs.running();
            ticks.recv().expect("the thread lives");
            ticks.recv().expect("the thread lives");
            drop(running);
        }
    }

    #[test]
    fn epoch_advances_when_it_is_asked_to() {
        let (epochs, ticks) = epochs();
        rests(&epochs);
        ticks.try_iter().for_each(drop);
        epochs.advance();
        assert_eq!(ticks.try_iter().count(), 1);
    }

    #[test]
    fn thread_that_rests_ends_with_its_engine() {
        let (epochs, ticks) = epochs();
        drop(epochs.running());
        ticks.recv().expect("the thread lives");
        rests(&epochs);
        drop(epochs);
        ticks.try_iter().for_each(drop);
        assert_eq!(ticks.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }
}
