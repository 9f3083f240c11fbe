//! A thread on which large instances are dropped.
//!
//! Dropping an instance returns its memory to the kernel in one step: 4 ms for 64 MiB, in which a worker thread would
//! serve nobody. Normally guests give way sixteen times in that time. This thread has a low priority, and no plugin is
//! charged for it.
//!
//! Plugins that block their threads [run apart](crate::guests), and their instances are dropped where they ran, at
//! their charge. Otherwise the next call of such a plugin would run beside the end of the last instance. Both change
//! the process's memory map, for which the kernel holds one lock.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{self, SyncSender, TrySendError},
    thread,
};

use crate::prompt::{NICE, be_last};

/// Instances that may wait to be dropped. Their memory is not charged to a plugin. If instances fill faster than the
/// thread empties them, the caller drops the next one itself.
const WAITING: usize = 1;

/// The thread. It ends when this is dropped and its work is done.
pub(crate) struct Ending<T>(SyncSender<T>);

impl<T: Send + 'static> Ending<T> {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (give, given) = mpsc::sync_channel(WAITING);
        thread::Builder::new().name("wasm-ending".to_owned()).spawn(move || {
            be_last(NICE);
            for ends in given {
                // A panic must not stop the thread.
                let _failed = catch_unwind(AssertUnwindSafe(|| drop(ends)));
            }
        })?;
        Ok(Self(give))
    }

    /// Drops the value on the thread, or here if the queue is full.
    pub(crate) fn end(&self, ends: T) {
        match self.0.try_send(ends) {
            Ok(()) => {}
            Err(TrySendError::Full(ends) | TrySendError::Disconnected(ends)) => drop(ends),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, Sender, channel},
        thread::ThreadId,
    };

    use super::*;

    /// Reports the thread on which it is dropped. Waits for `may` first.
    struct Large {
        ended: Sender<ThreadId>,
        may: Option<Receiver<()>>,
        fails: bool,
    }

    impl Drop for Large {
        fn drop(&mut self) {
            if let Some(may) = &self.may {
                may.recv().expect("the test lets it end");
            }
            self.ended.send(thread::current().id()).expect("the test waits for it");
            assert!(!self.fails, "on purpose");
        }
    }

    #[test]
    fn so_many_end_on_another_thread_and_the_others_where_they_are() {
        let ending = Ending::start().expect("there is a thread");
        let (ended, ends) = channel();
        let (let_it, may) = channel();
        ending.end(Large { ended: ended.clone(), may: Some(may), fails: true });
        let large = || Large { ended: ended.clone(), may: None, fails: false };
        // One waits for the first to end; then the queue is full.
        let here = thread::current().id();
        let mut given = 0;
        let at = loop {
            ending.end(large());
            given += 1;
            if let Ok(at) = ends.try_recv() {
                break at;
            }
        };
        assert_eq!(at, here);
        assert!(given <= WAITING + 2, "{given} had a place");
        let_it.send(()).expect("it waits");
        let there: Vec<_> = (0..given).map(|_| ends.recv().expect("all end")).collect();
        assert!(there.iter().all(|at| *at == there[0] && *at != here));
        // The panic of the first one does no harm.
        ending.end(large());
        assert_eq!(ends.recv(), Ok(there[0]));
    }
}
