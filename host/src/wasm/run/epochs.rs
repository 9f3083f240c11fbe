//! Advances the engines' epoch while guests run, which makes them give way to others.
//!
//! The epoch stands still while no guest runs, so an idle host does not wake up. That includes a host whose calls all
//! wait for the API server. A caller can also advance it between two ticks.

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

/// How often a running guest gives way. If all threads are busy, a key waits about this long. So may a thread that the
/// kernel schedules only when a guest's thread makes a system call. Giving way costs a running guest one percent.
pub(crate) const TICK: Duration = Duration::from_micros(250);

/// The thread that advances the epoch. Joined on drop.
pub(crate) struct Epochs {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    advance: Box<dyn Fn() + Send + Sync>,
    timer: Timer,
    /// The number of running guests.
    running: AtomicUsize,
    /// `true` while the timer is stopped.
    stopped: AtomicBool,
    ended: AtomicBool,
}

/// A running guest. The epoch advances while there is one.
pub(crate) struct RunningGuest<'a> {
    shared: &'a Shared,
}

impl Epochs {
    /// Starts the thread, which calls `advance` at each [`TICK`] while guests run.
    ///
    /// # Errors
    /// If no thread or timer is available.
    pub(crate) fn start(advance: impl Fn() + Send + Sync + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            advance: Box::new(advance),
            timer: Timer::new()?,
            running: AtomicUsize::new(0),
            stopped: AtomicBool::new(true),
            ended: AtomicBool::new(false),
        });
        let ticking = Arc::clone(&shared);
        let thread = thread::Builder::new().name("wasm-epochs".to_owned()).spawn(move || {
            be_prompt();
            ticking.tick();
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Advances the epoch now.
    pub(crate) fn advance(&self) {
        (self.shared.advance)();
    }

    /// Returns `true` if the timer is stopped.
    #[cfg(test)]
    pub(crate) fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::SeqCst)
    }

    /// Counts a running guest until the result is dropped.
    pub(crate) fn running(&self) -> RunningGuest<'_> {
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.stopped.load(Ordering::SeqCst) {
            self.shared.resume();
        }
        RunningGuest { shared: &self.shared }
    }
}

impl Drop for RunningGuest<'_> {
    fn drop(&mut self) {
        self.shared.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.resume();
        if let Some(thread) = self.thread.take() {
            // It has ended either way.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn tick(&self) {
        while !self.ended.load(Ordering::SeqCst) {
            self.timer.wait();
            (self.advance)();
            // A single call costs one tick. Consecutive calls restart the timer at most once a tick.
            if !self.is_needed() {
                self.stop();
            }
        }
    }

    /// Stops the timer. The next guest starts it.
    fn stop(&self) {
        self.timer.stop();
        self.stopped.store(true, Ordering::SeqCst);
        // A guest that began before that did not see the stop.
        if self.is_needed() {
            self.resume();
        }
    }

    fn resume(&self) {
        if self.stopped.swap(false, Ordering::SeqCst) {
            self.timer.start();
        }
    }

    fn is_needed(&self) -> bool {
        self.running.load(Ordering::SeqCst) > 0 || self.ended.load(Ordering::SeqCst)
    }
}

/// A timer of the kernel. Starting it wakes no thread, so it costs little for a call that ends before the tick.
#[cfg(target_os = "linux")]
mod timer {
    use std::{io, os::fd::OwnedFd, thread};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };

    use super::TICK;

    pub(crate) struct Timer(OwnedFd);

    impl Timer {
        /// Creates a stopped timer.
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?))
        }

        /// Starts the ticks, one each [`TICK`].
        pub(crate) fn start(&self) {
            self.set(Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() });
        }

        /// Stops the ticks.
        pub(crate) fn stop(&self) {
            self.set(Timespec { tv_sec: 0, tv_nsec: 0 });
        }

        fn set(&self, every: Timespec) {
            let times = Itimerspec { it_interval: every, it_value: every };
            // It fails only for an invalid timer or time.
            let _was = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &times);
        }

        /// Waits for the next tick. Returns at once if there was one since the last call.
        pub(crate) fn wait(&self) {
            let mut ticks = [0; 8];
            match rustix::io::read(&self.0, &mut ticks) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // Too many ticks are better than none: without ticks, guests never give way.
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
        /// Creates a stopped timer.
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self { goes: Mutex::new(false), started: Condvar::new() })
        }

        /// Starts the ticks, one each [`TICK`].
        pub(crate) fn start(&self) {
            *self.goes.lock() = true;
            self.started.notify_one();
        }

        /// Stops the ticks.
        pub(crate) fn stop(&self) {
            *self.goes.lock() = false;
        }

        /// Waits for the next tick.
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

    fn wait_until_stopped(epochs: &Epochs) {
        while !epochs.is_stopped() {
            thread::yield_now();
        }
    }

    #[test]
    fn epoch_advances_only_while_a_guest_runs() {
        let (epochs, ticks) = epochs();
        for _ in 0..3 {
            wait_until_stopped(&epochs);
            ticks.try_iter().for_each(drop);
            let running = epochs.running();
            for _ in 0..10 {
                ticks.recv().expect("the thread lives");
            }
            assert!(!epochs.is_stopped());
            drop(running);
        }
        wait_until_stopped(&epochs);
    }

    #[test]
    fn guest_that_starts_as_the_epoch_stops_has_its_ticks() {
        let (epochs, ticks) = epochs();
        for _ in 0..1000 {
            // Either side may win the race.
            let running = epochs.running();
            ticks.recv().expect("the thread lives");
            ticks.recv().expect("the thread lives");
            drop(running);
        }
    }

    #[test]
    fn epoch_advances_when_it_is_asked_to() {
        let (epochs, ticks) = epochs();
        wait_until_stopped(&epochs);
        ticks.try_iter().for_each(drop);
        epochs.advance();
        assert_eq!(ticks.try_iter().count(), 1);
    }

    #[test]
    fn stopped_thread_ends_with_its_engine() {
        let (epochs, ticks) = epochs();
        drop(epochs.running());
        ticks.recv().expect("the thread lives");
        wait_until_stopped(&epochs);
        drop(epochs);
        ticks.try_iter().for_each(drop);
        assert_eq!(ticks.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }
}
