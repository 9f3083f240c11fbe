//! Who may compile now: whoever waits, waits no longer than for what is as small as itself.
//!
//! ```text
//! large files ─► the smallest first ─► a place for any file, large ones before others
//!                                      ▲
//! small files ─► the smallest first ─┬─┘
//!                                    └► a place for small files alone
//! ```
//!
//! A file that takes minutes holds up large ones and no small one: those have a tenth of a second each to wait for, and the reload of a
//! plugin in Rust is awaited by somebody.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Files below so many bytes are small: plugins in Rust have half of it and take a tenth of a second, those with an interpreter inside ten
/// times as much.
pub(super) const SMALL: usize = 2 << 20;

/// Those who wait for a turn, and those who have one. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Whose turn it is, by place.
    taken: [bool; 2],
    /// By size, then by arrival.
    small: Waiting,
    large: Waiting,
    arrivals: u64,
}

type Waiting = BTreeMap<(usize, u64), oneshot::Sender<Turn>>;

/// Where one may compile: each uses several cores, and those who serve need them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Whatever is next.
    Any,
    /// A small file.
    Small,
}

/// The right to compile, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    /// None: it was given to nobody.
    place: Option<Place>,
}

impl Turns {
    /// Waits for a turn with a file of so many bytes.
    ///
    /// # Cancellation
    /// Dropping the future leaves the line.
    pub(super) async fn take(&self, bytes: usize) -> Turn {
        let (sender, turn) = oneshot::channel();
        {
            let inner = &mut *self.0.lock();
            inner.arrivals += 1;
            let number = inner.arrivals;
            let waiting = if bytes < SMALL { &mut inner.small } else { &mut inner.large };
            // Who has left meanwhile would be found only when it is next.
            waiting.retain(|_, waits| !waits.is_closed());
            waiting.insert((bytes, number), sender);
            self.give(inner);
        }
        turn.await.expect("who waits is kept until it has its turn")
    }

    /// Gives free places to whoever is next.
    fn give(&self, inner: &mut Inner) {
        for place in [Place::Small, Place::Any] {
            while !inner.taken[place as usize] {
                let next = match place {
                    Place::Small => inner.small.pop_first(),
                    Place::Any => inner.large.pop_first().or_else(|| inner.small.pop_first()),
                };
                let Some((_, waits)) = next else { break };
                match waits.send(Turn { turns: self.clone(), place: Some(place) }) {
                    Ok(()) => inner.taken[place as usize] = true,
                    // It has left. Nothing was taken, and the lock is held.
                    Err(mut turn) => turn.place = None,
                }
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let inner = &mut *self.turns.0.lock();
            inner.taken[place as usize] = false;
            self.turns.give(inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::task::JoinHandle;

    use super::*;

    const LARGE: usize = SMALL;

    /// Waits in line, in the order of calls.
    async fn waits(turns: &Turns, bytes: usize) -> JoinHandle<Turn> {
        let turns = turns.clone();
        let waits = tokio::spawn(async move { turns.take(bytes).await });
        tokio::task::yield_now().await;
        waits
    }

    /// Who has its turn, by name.
    async fn have(waiting: &[(&'static str, &JoinHandle<Turn>)]) -> Vec<&'static str> {
        tokio::task::yield_now().await;
        waiting.iter().filter(|(_, waits)| waits.is_finished()).map(|(name, _)| *name).collect()
    }

    async fn ends(turn: JoinHandle<Turn>) {
        drop(turn.await.expect("it has its turn"));
    }

    #[tokio::test]
    async fn small_file_does_not_wait_for_a_large_one() {
        let turns = Turns::default();
        let (large, other) = (waits(&turns, LARGE).await, waits(&turns, LARGE).await);
        let (small, second) = (waits(&turns, 10).await, waits(&turns, 10).await);
        let all = async || have(&[("large", &large), ("other", &other), ("small", &small), ("second", &second)]).await;
        assert_eq!(all().await, ["large", "small"]);
        ends(small).await;
        assert_eq!(have(&[("large", &large), ("other", &other), ("second", &second)]).await, ["large", "second"]);
        ends(large).await;
        assert_eq!(have(&[("other", &other), ("second", &second)]).await, ["other", "second"]);
    }

    #[tokio::test]
    async fn smallest_is_next_and_of_equals_the_first() {
        let turns = Turns::default();
        let (large, small) = (waits(&turns, LARGE).await, waits(&turns, 1).await);
        let [c, b, a] = [waits(&turns, 7).await, waits(&turns, 7).await, waits(&turns, 5).await];
        let (larger, less) = (waits(&turns, LARGE + 2).await, waits(&turns, LARGE + 1).await);
        assert_eq!(have(&[("a", &a), ("b", &b), ("c", &c), ("larger", &larger), ("less", &less)]).await, [""; 0]);
        ends(small).await;
        assert_eq!(have(&[("a", &a), ("b", &b), ("c", &c)]).await, ["a"]);
        ends(a).await;
        assert_eq!(have(&[("b", &b), ("c", &c)]).await, ["c"]);
        ends(large).await;
        assert_eq!(have(&[("b", &b), ("larger", &larger), ("less", &less)]).await, ["less"]);
        ends(less).await;
        assert_eq!(have(&[("b", &b), ("larger", &larger)]).await, ["larger"]);
        // Where no large one waits, both places are there for small ones.
        ends(larger).await;
        assert_eq!(have(&[("b", &b), ("c", &c)]).await, ["b", "c"]);
    }

    #[tokio::test]
    async fn who_leaves_the_line_or_its_turn_holds_up_nobody() {
        let turns = Turns::default();
        let first = turns.take(LARGE).now_or_never().expect("nobody else is there");
        let (leaves, stays) = (waits(&turns, LARGE).await, waits(&turns, LARGE + 1).await);
        leaves.abort();
        leaves.await.expect_err("it was cancelled");
        drop(first);
        let turn = stays.await.expect("it has its turn");
        assert_eq!(turn.place, Some(Place::Any));
        // Given, and dropped before it was looked at.
        let mut given = Box::pin(turns.take(LARGE));
        assert!((&mut given).now_or_never().is_none());
        drop(turn);
        drop(given);
        assert!(turns.take(LARGE).now_or_never().is_some());
    }
}
