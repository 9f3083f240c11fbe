//! A thread on which large instances end.
//!
//! What an instance had of memory goes back to the kernel in one piece: of 64 MiB in 4 ms, in which a guest's thread would serve nobody,
//! where guests give way sixteen times. Here guests go on meanwhile, and are let in first. Nobody is charged for it.
//!
//! Plugins that hold their threads anyway [run apart](crate::guests), and their instances end where they ran, at their charge: one that fills
//! much in each call would begin the next beside the end of the last. The kernel lets nobody change the process's memory map while much of it is
//! given back, as the next call wants to, and nobody look at it while somebody waits to change it, as the end of every instance does.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{self, SyncSender, TrySendError},
    thread,
};

use crate::prompt::{NICE, be_last};

/// How many may wait for their end while one ends: they hold memory that counts as nobody's. Where instances fill faster than one thread
/// empties them, whoever has the next one ends it itself.
const WAITING: usize = 1;

/// The thread. It ends when this is dropped and what it was given has ended.
pub(crate) struct Ending<T>(SyncSender<T>);

impl<T: Send + 'static> Ending<T> {
    /// Starts it.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (give, given) = mpsc::sync_channel(WAITING);
        thread::Builder::new().name("wasm-ending".to_owned()).spawn(move || {
            be_last(NICE);
            for ends in given {
                // The next one is to end too.
                let _failed = catch_unwind(AssertUnwindSafe(|| drop(ends)));
            }
        })?;
        Ok(Self(give))
    }

    /// Drops it there, or here where others wait already.
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

    /// Says where it ends, and does not before it may.
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
        // One waits for the first, at the latest when that is at it; then there is no place.
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
        // Though the first one failed.
        ending.end(large());
        assert_eq!(ends.recv(), Ok(there[0]));
    }
}
