//! A thread for what allocates much in small parts, and gives it all back later.
//!
//! glibc has a heap for each thread. What the engine knows of a component is some 80 kB in small parts, and goes with the component's code;
//! made by whichever thread calls a plugin first, it would lie between what stays of the plugin, and of each page a little would stay too:
//! some 15 kB of each of a hundred idle plugins. Of several plugins one is mapped after the other: for one in Rust that is a tenth of a
//! millisecond.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

/// The thread. It ends when this is dropped and what it was given is done.
pub(super) struct Aside(Sender<Work>);

impl Aside {
    /// Starts it.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn start() -> std::io::Result<Self> {
        let (give, given) = mpsc::channel::<Work>();
        thread::Builder::new().name("wasm-aside".to_owned()).spawn(move || {
            for work in given {
                // Whoever waits for it sees that there is no result.
                let _failed = catch_unwind(AssertUnwindSafe(work));
            }
        })?;
        Ok(Self(give))
    }

    /// Does `work` there, and waits for it: no more is in line than there are threads that wait. None: it panicked.
    pub(super) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        let work = move || drop(answer.send(work()));
        self.0.send(Box::new(work)).ok()?;
        answered.recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_by_one_other_thread_and_a_panic_costs_nobody_else_anything() {
        let aside = Aside::start().expect("there is a thread");
        let who = || thread::current().id();
        let there = aside.run(who).expect("it does not panic");
        assert_ne!(there, who());
        assert_eq!(aside.run(|| panic!("on purpose")), None::<()>);
        assert_eq!(aside.run(who), Some(there));
    }
}
