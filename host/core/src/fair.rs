//! Decides who runs next when many share a few threads: weighted fair queueing by used time.
//!
//! Owns accounts, their shares and their waiting tasks. Knows neither threads nor clocks: the caller runs a task and
//! reports its time.
//!
//! ```text
//! push(account, flow, task) ─┬─ flow ─┐ in turns
//!                            └─ flow ─┴───────────┐
//!                                                 ├─► next(lane): its account with the least use per weight
//! push(account, flow, task) ─── flow ─────────────┘         │
//!                                    charge(account, used) ◄┘ when the task yields
//! ```
//!
//! # Guarantees
//! - **Fairness.** While two accounts have work, one's use, divided by its weight, exceeds the other's by at most one
//!   turn of its tasks plus its saved credit. Ten thousand tasks of one account do not delay the first of another.
//! - **Bounded credit.** An idle account accumulates credit up to [`SAVED`]; an account that is throttled by its cap
//!   accumulates none. When it becomes runnable, it runs ahead of accounts without credit until the credit is used, and
//!   at its fair share from then on.
//! - **Flows.** Within one account, flows take turns: ten thousand tasks of one flow delay another by at most a turn of
//!   each.
//! - **Order.** Within one flow, tasks run in the order in which they came.
//! - **Lanes.** There are two lanes, each with its own threads, and all of the above holds within a lane. An account
//!   whose tasks held their thread for more than [`HOLDS`] twice moves to the suspect lane. It returns when that is
//!   forgotten: after [`SUSPECTED`] without another hold, or once its tasks have used [`CLEARED`] times as much time
//!   and yielded. Moving saves no credit, and excess use moves along.
//! - **Work conserving.** A task waits only for the threads of its lane, unless its account has used up its cap.
//!
//! ```
//! use std::time::Duration;
//! use pilothouse_core::fair::{FairQueue, Flow, Lane, NextTask, Share};
//!
//! let mut queue = FairQueue::new();
//! let (busy, quiet) = (queue.open(Share::default()), queue.open(Share::default()));
//! let now = Duration::ZERO;
//! (1..=10_000).try_for_each(|task| queue.push(now, busy, Flow(0), task))?;
//! assert!(matches!(queue.next(now, Lane::Ordinary), NextTask::Task(task) if task.task == 1));
//! queue.push(now, quiet, Flow(0), 0)?;
//! queue.charge(now, busy, Duration::from_millis(5));
//! assert!(matches!(queue.next(now, Lane::Ordinary), NextTask::Task(task) if task.task == 0));
//! # Ok::<(), i32>(())
//! ```

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    num::NonZeroU32,
    time::Duration,
};

/// Period of a cap: an account may use up at once what it left unused in this time. Equals the period of the kernel's
/// CPU limits.
pub const BURST: Duration = Duration::from_millis(100);

/// Largest credit of an account that was idle; longer than most calls. Without it, an account would wait for a turn of
/// every account with slightly less use each time it yields.
pub const SAVED: Duration = Duration::from_millis(1);

/// A turn that uses more CPU time than this holds its thread. Guests yield every quarter of a millisecond, except while
/// they fill memory or hand over much data.
pub const HOLDS: Duration = Duration::from_millis(1);

/// Time for which a hold is remembered.
pub const SUSPECTED: Duration = Duration::from_secs(10);

/// A hold is forgotten early once the account's tasks have used this many times the held time, and yielded. A task may
/// hold its thread through no fault of its own: the kernel takes a while for a page, or the machine has given the core
/// away.
pub const CLEARED: u32 = 10;

/// Default weight: that of the kernel's `cpu.weight`.
pub const DEFAULT_WEIGHT: NonZeroU32 = NonZeroU32::new(100).expect("it is not zero");

/// Largest weight.
pub const MAX_WEIGHT: u32 = 10_000;

/// An account's share of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Weight against other accounts when threads are scarce; at most [`MAX_WEIGHT`] counts.
    pub weight: NonZeroU32,
    /// Largest use in thousandths of a core, even on idle threads.
    pub cap: Option<NonZeroU32>,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: DEFAULT_WEIGHT, cap: None }
    }
}

impl Share {
    fn weigh(self, used: Duration) -> Weighted {
        let weight = self.weight.get().min(MAX_WEIGHT);
        used.as_nanos() * u128::from(MAX_WEIGHT) / u128::from(weight)
    }
}

/// Identifies an account of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(u64);

/// Identifies a flow of tasks within one account. Exists while it has tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow(pub u64);

/// A group of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// For most accounts.
    #[default]
    Ordinary,
    /// For accounts whose tasks recently held their threads.
    Suspect,
}

impl Lane {
    /// Both lanes.
    pub const ALL: [Self; 2] = [Self::Ordinary, Self::Suspect];
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub enum NextTask<T> {
    /// Run this task, and [`charge`](FairQueue::charge) its account.
    Task(Taken<T>),
    /// Nothing before this time, or until a task is pushed: every account in the lane has used up its cap.
    At(Duration),
    /// Nothing until a task is pushed.
    Nothing,
}

/// A task to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken<T> {
    /// The account to charge.
    pub account: AccountId,
    /// The task.
    pub task: T,
    /// Time for which it waited for its turn.
    pub waited: Duration,
}

/// Use of an account, in nanoseconds at the largest weight.
type Weighted = u128;

#[derive(Debug)]
struct Account<T> {
    share: Share,
    /// Use so far, each part by the weight at its time. While waiting it is raised to nearly that of running accounts.
    weighted: Weighted,
    /// Flows with tasks, in the order of their turns.
    flows: VecDeque<(Flow, VecDeque<(T, Duration)>)>,
    running: usize,
    /// `true` if it was idle, and has not run since.
    rested: bool,
    stands: Stands,
    /// Time at which the cap lets it run again.
    free_at: Duration,
    used: Duration,
    turns: u64,
    waited: Duration,
    held: u64,
    /// The last hold, until it is forgotten.
    hold: Option<Hold>,
    closed: bool,
}

/// One or more holds of threads.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// The time of the last one.
    at: Duration,
    /// `true` if there were several.
    again: bool,
    /// Time that tasks must still use, and yield, until it is forgotten.
    owes: Duration,
}

impl Hold {
    /// Returns the hold to remember after a turn that used `used`.
    fn after(last: Option<Self>, now: Duration, used: Duration) -> Option<Self> {
        let last = last.filter(|last| now < last.at.saturating_add(SUSPECTED));
        if used > HOLDS {
            let owed = last.map_or(Duration::ZERO, |last| last.owes);
            let owes = owed.saturating_add(used.saturating_mul(CLEARED));
            return Some(Self { at: now, again: last.is_some(), owes });
        }
        let last = last.map(|last| Self { owes: last.owes.saturating_sub(used), ..last });
        last.filter(|last| !last.owes.is_zero())
    }
}

impl<T> Account<T> {
    fn lane(&self) -> Lane {
        if self.hold.is_some_and(|hold| hold.again) { Lane::Suspect } else { Lane::Ordinary }
    }

    /// Raises the use to `level`, that of running accounts, less the largest credit.
    fn begin_at(&mut self, level: Weighted) {
        self.weighted = self.weighted.max(level.saturating_sub(self.share.weigh(SAVED)));
    }
}

/// Counters of an account since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time used.
    pub used: Duration,
    /// Tasks run.
    pub turns: u64,
    /// Sum of the times that these waited.
    pub waited: Duration,
    /// Turns that used more than [`HOLDS`].
    pub held: u64,
    /// Tasks that wait now.
    pub waiting: usize,
}

/// Where an account waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// It has no waiting task.
    Nowhere,
    /// In its lane's `ready`, under this place.
    Ready(Precedence),
    /// In its lane's `capped`, under this time.
    Capped(Duration),
}

/// Order among accounts of equal use: first those that were idle, then those without a running task, whose use is not
/// charged yet, then the one that has waited longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    was_served: bool,
    at_work: bool,
    number: u64,
}

/// Accounts that wait for the same threads.
#[derive(Debug, Default)]
struct Row {
    /// Accounts with a task that may run; the first is next.
    ready: BTreeSet<(Weighted, Precedence, AccountId)>,
    /// Accounts that have used up their cap, and until when.
    capped: BTreeSet<(Duration, AccountId)>,
    /// The largest use of an account when it last ran: about that of running accounts, apart from those with credit or
    /// little work.
    level: Weighted,
}

/// Tasks of type `T` that wait for threads.
#[derive(Debug)]
pub struct FairQueue<T> {
    accounts: HashMap<AccountId, Account<T>>,
    /// By lane.
    rows: [Row; 2],
    last_id: u64,
    last_number: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> FairQueue<T> {
    /// Creates a queue without accounts.
    pub fn new() -> Self {
        Self { accounts: HashMap::new(), rows: Default::default(), last_id: 0, last_number: 0 }
    }

    /// Opens an account, in the ordinary lane.
    pub fn open(&mut self, share: Share) -> AccountId {
        self.last_id += 1;
        let id = AccountId(self.last_id);
        let account = Account {
            share,
            weighted: 0,
            flows: VecDeque::new(),
            running: 0,
            rested: true,
            stands: Stands::Nowhere,
            free_at: Duration::ZERO,
            used: Duration::ZERO,
            turns: 0,
            waited: Duration::ZERO,
            held: 0,
            hold: None,
            closed: false,
        };
        self.accounts.insert(id, account);
        id
    }

    /// Changes an account's share. If its old cap held it back, it waits no longer than the new one requires.
    pub fn set_share(&mut self, now: Duration, id: AccountId, share: Share) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        if account.share == share {
            return;
        }
        if account.share.cap != share.cap {
            account.free_at = account.free_at.min(now);
        }
        account.share = share;
        self.leave(id);
        self.stand(now, id);
    }

    /// Closes the account. Waiting tasks still run; it is forgotten after the last.
    pub fn close(&mut self, id: AccountId) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.closed = true;
        }
        self.forget_if_over(id);
    }

    /// Adds a task at the end of a flow.
    ///
    /// # Errors
    /// Returns the task if the account is closed.
    pub fn push(&mut self, now: Duration, id: AccountId, flow: Flow, task: T) -> Result<(), T> {
        let begins = self.is_at_rest(id);
        let Some(account) = self.accounts.get_mut(&id) else { return Err(task) };
        account.rested |= begins;
        match account.flows.iter_mut().find(|(of, _)| *of == flow) {
            Some((_, tasks)) => tasks.push_back((task, now)),
            None => account.flows.push_back((flow, VecDeque::from([(task, now)]))),
        }
        if account.stands == Stands::Nowhere {
            self.stand(now, id);
        }
        Ok(())
    }

    /// Takes the next task of a lane.
    pub fn next(&mut self, now: Duration, lane: Lane) -> NextTask<T> {
        let row = lane as usize;
        while let Some(&(until, id)) = self.rows[row].capped.first()
            && until <= now
        {
            self.leave(id);
            self.stand(now, id);
        }
        let Some(&(weighted, _, id)) = self.rows[row].ready.first() else {
            return self.rows[row].capped.first().map_or(NextTask::Nothing, |&(until, _)| NextTask::At(until));
        };
        self.leave(id);
        self.rows[row].level = self.rows[row].level.max(weighted);
        let taken = self.accounts.get_mut(&id).and_then(|account| {
            let (flow, mut tasks) = account.flows.pop_front()?;
            let (task, since) = tasks.pop_front()?;
            if !tasks.is_empty() {
                account.flows.push_back((flow, tasks));
            }
            account.running += 1;
            account.rested = false;
            account.turns += 1;
            let waited = now.saturating_sub(since);
            account.waited = account.waited.saturating_add(waited);
            Some(Taken { account: id, task, waited })
        });
        self.stand(now, id);
        taken.map_or(NextTask::Nothing, NextTask::Task)
    }

    /// Records that a task of the account has yielded after it used `used`.
    pub fn charge(&mut self, now: Duration, id: AccountId, used: Duration) {
        self.leave(id);
        if let Some(account) = self.accounts.get_mut(&id) {
            account.running = account.running.saturating_sub(1);
            let from = account.lane();
            account.held += u64::from(used > HOLDS);
            account.hold = Hold::after(account.hold, now, used);
            if account.lane() != from {
                let [from, to] = [from, account.lane()].map(|lane| self.rows[lane as usize].level);
                account.weighted = to.saturating_add(account.weighted.saturating_sub(from));
            }
            account.used = account.used.saturating_add(used);
            account.weighted = account.weighted.saturating_add(account.share.weigh(used));
            if let Some(cap) = account.share.cap {
                let pays_for = used.saturating_mul(1000) / cap.get();
                account.free_at = account.free_at.max(now.saturating_sub(BURST)).saturating_add(pays_for);
            }
        }
        self.stand(now, id);
        self.forget_if_over(id);
    }

    /// Returns `true` if the account has no waiting and no running task.
    pub fn is_at_rest(&self, id: AccountId) -> bool {
        self.accounts.get(&id).is_some_and(|account| account.flows.is_empty() && account.running == 0)
    }

    /// Returns `true` if [`next`](Self::next) would return a task of the account. An account that had used up its cap
    /// counts only after a call of `next`.
    pub fn is_next(&self, id: AccountId) -> bool {
        let row = self.accounts.get(&id).map(|account| &self.rows[account.lane() as usize]);
        row.and_then(|row| row.ready.first()).is_some_and(|&(_, _, first)| first == id)
    }

    /// Returns `true` if an account in the lane may run now.
    pub fn is_ready(&self, lane: Lane) -> bool {
        !self.rows[lane as usize].ready.is_empty()
    }

    /// Returns the account's lane; the ordinary one if it is closed.
    pub fn lane(&self, id: AccountId) -> Lane {
        self.accounts.get(&id).map_or_else(Lane::default, Account::lane)
    }

    /// Returns the account's counters; zeros if it is closed.
    pub fn usage(&self, id: AccountId) -> Usage {
        self.accounts.get(&id).map_or_else(Usage::default, |account| Usage {
            used: account.used,
            turns: account.turns,
            waited: account.waited,
            held: account.held,
            waiting: account.flows.iter().map(|(_, tasks)| tasks.len()).sum(),
        })
    }

    /// Returns the account's share; `None` if it is closed.
    pub fn share(&self, id: AccountId) -> Option<Share> {
        self.accounts.get(&id).map(|account| account.share)
    }

    /// Removes the account from where it waits.
    fn leave(&mut self, id: AccountId) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        let row = &mut self.rows[account.lane() as usize];
        match std::mem::replace(&mut account.stands, Stands::Nowhere) {
            Stands::Nowhere => {}
            Stands::Ready(place) => drop(row.ready.remove(&(account.weighted, place, id))),
            Stands::Capped(until) => {
                row.capped.remove(&(until, id));
                account.weighted = account.weighted.max(row.level);
            }
        }
    }

    /// Puts an account that waits nowhere where it belongs.
    fn stand(&mut self, now: Duration, id: AccountId) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        if account.flows.is_empty() {
            return;
        }
        let row = &mut self.rows[account.lane() as usize];
        if account.share.cap.is_some() && account.free_at > now {
            account.stands = Stands::Capped(account.free_at);
            row.capped.insert((account.free_at, id));
        } else {
            self.last_number += 1;
            // Otherwise an account that could not use its share, with a single running task, would have all threads
            // later.
            account.begin_at(row.level);
            let place =
                Precedence { was_served: !account.rested, at_work: account.running > 0, number: self.last_number };
            account.stands = Stands::Ready(place);
            row.ready.insert((account.weighted, place, id));
        }
    }

    fn forget_if_over(&mut self, id: AccountId) {
        if self
            .accounts
            .get(&id)
            .is_some_and(|account| account.closed && account.running == 0 && account.flows.is_empty())
        {
            self.accounts.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests;
