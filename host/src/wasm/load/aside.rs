//! A thread for work that makes many small allocations and frees them together.
//!
//! glibc has a heap for each thread. The engine's data of a component is about 80 kB in small parts, and lives as long
//! as the component's code is mapped. On a worker's heap, that data would lie between longer-lived data, and part of
//! each page would stay allocated: about 15 kB for each of a hundred idle plugins.
//!
//! Plugins are therefore mapped one after the other. For a plugin in Rust that takes a tenth of a millisecond.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Sender},
    },
    thread,
};

#[cfg(test)]
use futures::FutureExt as _;
use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// The thread. It ends when this is dropped and its work is done.
pub(crate) struct Aside {
    work: Sender<Work>,
    /// Callers that wait.
    waiting: AtomicUsize,
}

impl Aside {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (give, given) = mpsc::channel::<Work>();
        thread::Builder::new().name("wasm-aside".to_owned()).spawn(move || {
            for work in given {
                // The caller sees that there is no result.
                let _failed = catch_unwind(AssertUnwindSafe(work));
            }
        })?;
        Ok(Self { work: give, waiting: AtomicUsize::new(0) })
    }

    /// Returns `true` if a caller waits for work.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Runs `work` on the thread, even if the caller stops waiting. Returns `None` if it panicked.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let _waits = Waits::new(&self.waiting);
        let (answer, answered) = oneshot::channel();
        let work = move || drop(answer.send(work()));
        self.work.send(Box::new(work)).ok()?;
        // A paused clock advances when the runtime is idle, and the runtime does not see this thread.
        #[cfg(test)]
        let answered = tokio::task::spawn_blocking(|| answered.blocking_recv())
            .map(|answered| answered.expect("it does not panic"));
        answered.await.ok()
    }
}

/// Counts a caller that waits.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_by_one_other_thread_and_a_panic_costs_nobody_else_anything() {
        let aside = Aside::start().expect("there is a thread");
        let who = || thread::current().id();
        let there = aside.run(who).await.expect("it does not panic");
        assert_ne!(there, who());
        assert_eq!(aside.run(|| panic!("on purpose")).await, None::<()>);
        assert_eq!(aside.run(who).await, Some(there));
    }
}
