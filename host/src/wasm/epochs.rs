//! The engines' epoch: it advances while guests are called, and stands still while none is, so that an idle host does not wake up.
//! Between two ticks it advances when somebody asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crate::prompt::be_prompt;

/// How often a running guest gives way to others. A key waits for about this where all threads are busy, and so may a thread that the kernel
/// lets in only when a guest's thread asks it for something; giving way costs a running guest a hundredth of it.
pub(super) const TICK: Duration = Duration::from_micros(250);

/// For so long after the last call it goes on: so calls that follow each other need not wake the thread each time.
const LINGER: u32 = 20;

/// The thread that advances the epoch. Joined on drop.
pub(super) struct Epochs {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    advance: Box<dyn Fn() + Send + Sync>,
    calls: AtomicUsize,
    /// The thread sleeps until it is woken.
    rests: AtomicBool,
    ended: AtomicBool,
}

/// A call that is under way. While there is one, the epoch advances.
pub(super) struct Calling<'a> {
    shared: &'a Shared,
}

impl Epochs {
    /// Calls `advance` each [`TICK`] while there are calls.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn start(advance: impl Fn() + Send + Sync + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            advance: Box::new(advance),
            calls: AtomicUsize::new(0),
            rests: AtomicBool::new(false),
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
    pub(super) fn advance(&self) {
        (self.shared.advance)();
    }

    /// A call begins.
    pub(super) fn calling(&self) -> Calling<'_> {
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        if self.shared.rests.load(Ordering::SeqCst) && self.shared.rests.swap(false, Ordering::SeqCst) {
            self.wake();
        }
        Calling { shared: &self.shared }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.as_ref().map(JoinHandle::thread) {
            Thread::unpark(thread);
        }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.shared.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // Ended, one way or another: nothing is left to do.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn tick(&self) {
        let mut quiet = 0;
        while !self.ended.load(Ordering::SeqCst) {
            quiet = if self.is_called() { 0 } else { quiet + 1 };
            if quiet > LINGER {
                self.rest();
                quiet = 0;
            }
            thread::sleep(TICK);
            (self.advance)();
        }
    }

    /// Returns when there is a call, or at the end.
    fn rest(&self) {
        // Whoever begins a call after this wakes the thread; whoever began one before is seen.
        self.rests.store(true, Ordering::SeqCst);
        while self.rests.load(Ordering::SeqCst) && !self.is_called() && !self.ended.load(Ordering::SeqCst) {
            thread::park();
        }
        self.rests.store(false, Ordering::SeqCst);
    }

    fn is_called(&self) -> bool {
        self.calls.load(Ordering::SeqCst) > 0
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
        while !epochs.shared.rests.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }

    #[test]
    fn epoch_advances_while_there_is_a_call_and_rests_when_there_is_none() {
        let (epochs, ticks) = epochs();
        for _ in 0..3 {
            rests(&epochs);
            ticks.try_iter().for_each(drop);
            let calling = epochs.calling();
            for _ in 0..2 * LINGER {
                ticks.recv().expect("the thread lives");
            }
            assert!(!epochs.shared.rests.load(Ordering::SeqCst));
            drop(calling);
        }
        rests(&epochs);
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
        rests(&epochs);
        drop(epochs);
        assert!(ticks.into_iter().count() > 0);
    }
}
