//! Decides which file is compiled next. A small file never waits for a large one.
//!
//! ```text
//! large files ─► smallest first ─► a lane for any file, large ones before others
//!                                  ▲
//! small files ─► smallest first ─┬─┘
//!                                └► a lane for small files only
//!
//! code that can be optimized ─► in order of arrival ─► a lane that is used while nothing else is compiled
//! ```
//!
//! - **Bounded waiting**: at most [`OVERTAKEN`] later files go before a file, however many smaller ones arrive.
//! - **No double work**: a file is compiled once. A second request for it waits, and finds it compiled.
//! - **Reloads are fast**: a file that takes minutes delays only large files. Small files take about a tenth of a
//!   second each, and somebody waits for the reload.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::digest::Digest;

/// Files below this size in bytes are small. Plugins in Rust have half of it and take a tenth of a second. Those with
/// an embedded interpreter take ten times as long.
pub(crate) const SMALL: usize = 2 << 20;

/// How many smaller files that arrive later may go before a file. An update of a few plugins goes before a file that
/// takes minutes; later ones wait for it.
const OVERTAKEN: u32 = 8;

/// Waiting and running compilations. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<Mutex<Queues>>);

#[derive(Debug, Default)]
struct Queues {
    /// The file that each lane compiles.
    taken: [Option<Digest>; 2],
    /// Ordered by size, then by arrival.
    small: Waiting,
    large: Waiting,
    arrivals: u64,
    /// Background work, in order of arrival.
    last: VecDeque<oneshot::Sender<Turn>>,
    /// Tells the running background work that a file arrived.
    last_taken: Option<CancellationToken>,
}

type Waiting = BTreeMap<(usize, u64), QueuedFile>;

/// A file that waits.
#[derive(Debug)]
struct QueuedFile {
    file: Digest,
    turn: oneshot::Sender<Turn>,
    /// Turns that went to later files.
    overtaken: u32,
}

/// Where a file is compiled. Few lanes, because each takes several cores, and reconciles need cores too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Any file.
    Any,
    /// Small files only.
    Small,
    /// Background work.
    Last,
}

/// The right to compile, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    /// `None` if nobody received it.
    lane: Option<Lane>,
    wanted: CancellationToken,
}

impl Turns {
    /// Waits for a turn with this file, which has `bytes` bytes.
    ///
    /// # Cancellation
    /// Dropping the future leaves the queue.
    pub(crate) async fn take(&self, file: Digest, bytes: usize) -> Turn {
        let (sender, turn) = oneshot::channel();
        {
            let inner = &mut *self.0.lock();
            inner.arrivals += 1;
            let number = inner.arrivals;
            let waiting = if bytes < SMALL { &mut inner.small } else { &mut inner.large };
            // Otherwise, abandoned entries would stay until they are next.
            waiting.retain(|_, waits| !waits.turn.is_closed());
            waiting.insert((bytes, number), QueuedFile { file, turn: sender, overtaken: 0 });
            self.give(inner);
        }
        turn.await.expect("a waiting file keeps its sender until its turn")
    }

    /// Waits until nothing else is compiled or waits. Files that arrive later do not wait for the background work:
    /// see [`Turn::wanted`]. With `gave_up`, work that gave up its turn is the next again.
    ///
    /// # Cancellation
    /// Dropping the future leaves the queue.
    pub(crate) async fn take_last(&self, gave_up: bool) -> Turn {
        let (sender, turn) = oneshot::channel();
        {
            let inner = &mut *self.0.lock();
            if gave_up {
                inner.last.push_front(sender);
            } else {
                inner.last.push_back(sender);
            }
            self.give(inner);
        }
        turn.await.expect("a waiting file keeps its sender until its turn")
    }

    /// Returns the number of files that wait for a turn.
    pub(crate) fn waiting(&self) -> usize {
        let inner = self.0.lock();
        let wait = |waiting: &Waiting| waiting.values().filter(|waits| !waits.turn.is_closed()).count();
        wait(&inner.small) + wait(&inner.large)
    }

    /// Gives free lanes to the next files.
    fn give(&self, inner: &mut Queues) {
        for lane in [Lane::Small, Lane::Any] {
            while inner.taken[lane as usize].is_none() {
                let taken = inner.taken;
                let large = if lane == Lane::Any { first(&mut inner.large, &taken) } else { None };
                let next = large.or_else(|| first(&mut inner.small, &taken));
                let Some(QueuedFile { file, turn, .. }) = next else { break };
                match turn.send(self.turn(lane)) {
                    Ok(()) => {
                        inner.taken[lane as usize] = Some(file);
                        inner.last_taken.iter().for_each(CancellationToken::cancel);
                    }
                    // It was abandoned. Nothing was taken, and the lock is held here.
                    Err(mut turn) => turn.lane = None,
                }
            }
        }
        // At this point the other queues are empty.
        while inner.last_taken.is_none() && inner.taken == [None, None] {
            let Some(next) = inner.last.pop_front() else { break };
            let turn = self.turn(Lane::Last);
            let wanted = turn.wanted.clone();
            match next.send(turn) {
                Ok(()) => inner.last_taken = Some(wanted),
                Err(mut turn) => turn.lane = None,
            }
        }
    }

    fn turn(&self, lane: Lane) -> Turn {
        Turn { turns: self.clone(), lane: Some(lane), wanted: CancellationToken::new() }
    }
}

/// Takes the next file out of a queue: the smallest one, or the first that was overtaken too often. Skips files that
/// are being compiled.
fn first(waiting: &mut Waiting, taken: &[Option<Digest>]) -> Option<QueuedFile> {
    let may = || {
        waiting
            .iter()
            .filter(|(_, waits)| !taken.contains(&Some(waits.file)))
            .map(|(position, waits)| (*position, waits))
    };
    let enough = may().filter(|(_, waits)| waits.overtaken >= OVERTAKEN).min_by_key(|((_, number), _)| *number);
    let (position, _) = enough.or_else(|| may().next())?;
    let next = waiting.remove(&position)?;
    waiting.iter_mut().filter(|((_, number), _)| *number < position.1).for_each(|(_, waits)| waits.overtaken += 1);
    Some(next)
}

impl Turn {
    /// Returns when the turn's background work should give way to a file. Never returns for other turns.
    pub(crate) async fn wanted(&self) {
        self.wanted.cancelled().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            let inner = &mut *self.turns.0.lock();
            match lane {
                Lane::Any | Lane::Small => inner.taken[lane as usize] = None,
                Lane::Last => inner.last_taken = None,
            }
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

    /// Queues a new file. Files queue in the order of calls.
    async fn waits(turns: &Turns, bytes: usize) -> JoinHandle<Turn> {
        let number = turns.0.lock().arrivals;
        waits_with(turns, &number.to_be_bytes(), bytes).await
    }

    async fn waits_with(turns: &Turns, file: &[u8], bytes: usize) -> JoinHandle<Turn> {
        let (turns, file) = (turns.clone(), Digest::of(file));
        let waits = tokio::spawn(async move { turns.take(file, bytes).await });
        tokio::task::yield_now().await;
        waits
    }

    async fn waits_last(turns: &Turns, gave_up: bool) -> JoinHandle<Turn> {
        let turns = turns.clone();
        let waits = tokio::spawn(async move { turns.take_last(gave_up).await });
        tokio::task::yield_now().await;
        waits
    }

    /// Returns the names of those that have their turn.
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
        assert_eq!(turns.waiting(), 2);
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
        // Without large files, both lanes are for small ones.
        ends(larger).await;
        assert_eq!(have(&[("b", &b), ("c", &c)]).await, ["b", "c"]);
    }

    #[tokio::test]
    async fn file_is_overtaken_by_smaller_ones_so_often_and_no_more() {
        for size in [LARGE + 100, SMALL - 1] {
            let turns = Turns::default();
            // Each queue has one lane.
            let _any = if size < SMALL { Some(waits(&turns, LARGE).await) } else { None };
            let mut turn = waits(&turns, size).await;
            let (largest, larger) = (waits(&turns, size).await, waits(&turns, size - 1).await);
            let both = || [("largest", &largest), ("larger", &larger)];
            for smaller in 2..OVERTAKEN as usize + 2 {
                let overtakes = waits(&turns, size - smaller).await;
                ends(turn).await;
                assert_eq!(have(&both()).await, [""; 0]);
                turn = overtakes;
            }
            let smallest = waits(&turns, size - 50).await;
            ends(turn).await;
            // The other one was overtaken as often, and is smaller.
            assert_eq!(have(&both()).await, ["largest"]);
            ends(largest).await;
            assert_eq!(have(&[("larger", &larger), ("smallest", &smallest)]).await, ["larger"]);
            ends(larger).await;
            assert_eq!(have(&[("smallest", &smallest)]).await, ["smallest"]);
        }
    }

    #[tokio::test]
    async fn same_file_waits_for_itself_and_holds_up_no_other() {
        let turns = Turns::default();
        let first = waits_with(&turns, b"a", 1).await;
        let (same, other) = (waits_with(&turns, b"a", 1).await, waits_with(&turns, b"b", 2).await);
        assert_eq!(have(&[("first", &first), ("same", &same), ("other", &other)]).await, ["first", "other"]);
        ends(other).await;
        assert_eq!(have(&[("same", &same)]).await, [""; 0]);
        ends(first).await;
        assert_eq!(have(&[("same", &same)]).await, ["same"]);
    }

    #[tokio::test]
    async fn background_work_runs_only_while_nothing_else_is_compiled_and_delays_nothing() {
        let turns = Turns::default();
        let (small, large) = (waits(&turns, 1).await, waits(&turns, LARGE).await);
        let (a, leaves, b, c) = (
            waits_last(&turns, false).await,
            waits_last(&turns, false).await,
            waits_last(&turns, false).await,
            waits_last(&turns, false).await,
        );
        leaves.abort();
        leaves.await.expect_err("it was cancelled");
        assert_eq!(turns.waiting(), 0);
        ends(small).await;
        assert_eq!(have(&[("a", &a), ("b", &b)]).await, [""; 0]);
        ends(large).await;
        assert_eq!(have(&[("a", &a), ("b", &b)]).await, ["a"]);
        let a = a.await.expect("it has its turn");
        assert!(a.wanted().now_or_never().is_none());
        // Files start at once, and the background work is asked to give way.
        let (small, large) = (waits(&turns, 1).await, waits(&turns, LARGE).await);
        assert_eq!(have(&[("small", &small), ("large", &large), ("b", &b)]).await, ["small", "large"]);
        assert!(a.wanted().now_or_never().is_some());
        drop(a);
        let a = waits_last(&turns, true).await;
        ends(large).await;
        assert_eq!(have(&[("a", &a), ("b", &b), ("c", &c)]).await, [""; 0]);
        ends(small).await;
        assert_eq!(have(&[("a", &a), ("b", &b), ("c", &c)]).await, ["a"]);
        ends(a).await;
        assert_eq!(have(&[("b", &b), ("c", &c)]).await, ["b"]);
        ends(b).await;
        assert_eq!(have(&[("c", &c)]).await, ["c"]);
    }

    #[tokio::test]
    async fn a_file_that_leaves_the_queue_or_its_turn_delays_no_other() {
        let turns = Turns::default();
        let take = || turns.take(Digest::of(b"other"), LARGE);
        let first = take().now_or_never().expect("nobody else is there");
        let (leaves, stays) = (waits(&turns, LARGE).await, waits(&turns, LARGE + 1).await);
        leaves.abort();
        leaves.await.expect_err("it was cancelled");
        drop(first);
        let turn = stays.await.expect("it has its turn");
        assert_eq!(turn.lane, Some(Lane::Any));
        // Received, and dropped unseen.
        let mut given = Box::pin(take());
        assert!((&mut given).now_or_never().is_none());
        drop(turn);
        drop(given);
        assert!(take().now_or_never().is_some());
    }
}
