//! A thread for what allocates much in small parts, and gives it all back later.
//!
//! glibc has a heap for each thread. What the engine knows of a component is some 80 kB in small parts, and goes with the component's code;
//! made by whichever thread calls a plugin first, it would lie between what stays of the plugin, and of each page a little would stay too:
//! some 15 kB of each of a hundred idle plugins. Of several plugins one is mapped after the other: for one in Rust that is a tenth of a
//! millisecond.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{self, Sender},
    thread,
};

#[cfg(test)]
use futures::FutureExt as _;
use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// The thread. It ends when this is dropped and what it was given is done.
pub(crate) struct Aside(Sender<Work>);

impl Aside {
    /// Starts it.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (give, given) = mpsc::channel::<Work>();
        thread::Builder::new().name("wasm-aside".to_owned()).spawn(move || {
            for work in given {
                // Whoever waits for it sees that there is no result.
                let _failed = catch_unwind(AssertUnwindSafe(work));
            }
        })?;
        Ok(Self(give))
    }

    /// Does `work` there, whether or not anybody waits for it to the end. None: it panicked.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let work = move || drop(answer.send(work()));
        self.0.send(Box::new(work)).ok()?;
        // A clock that stands still in a test goes on where nobody has anything to do, and that of this thread it would not see.
        #[cfg(test)]
        let answered = tokio::task::spawn_blocking(|| answered.blocking_recv())
            .map(|answered| answered.expect("it does not panic"));
        answered.await.ok()
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
