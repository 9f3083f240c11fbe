//! Who goes next where many share a few threads: weighted fair queueing by the time that each has used.
//!
//! Owns accounts, their shares and their tasks in line. Knows neither threads nor clocks: whoever runs a task says what it took.
//!
//! ```text
//! push(account, flow, task) ─┬─ flow ─┐ in turns
//!                            └─ flow ─┴───────────┐
//!                                                 ├─► next(lane): the account in it that has used least of its share
//! push(account, flow, task) ─── flow ─────────────┘         │
//!                                    charge(account, used) ◄┘ when the task gives way
//! ```
//!
//! # Guarantees
//! - While two accounts have work, what one has used, divided by its weight, is ahead of the other's by no more than what its tasks
//!   took in one go, and what it had saved up: ten thousand tasks of one do not delay the first of another.
//! - An account that rests, or has less to do than its share would allow, saves up at most [`SAVED`], and none saves anything while its cap
//!   holds it back: whenever it stands in line it begins where those at work are, or so much before, and has its share from then on and no
//!   more. So one that had used less until then is next, but for others that have saved up; and what it does goes on before others', though
//!   it gives way, until it has used what it saved.
//! - Within one account, flows take turns: ten thousand tasks of one do not delay the first of another by more than a turn of each.
//! - Within one flow, tasks are served in the order in which they came.
//! - There are two lanes, each with threads of its own, and all of the above holds within a lane. An account of which a task held its thread
//!   for more than [`HOLDS`], and another before, leaves the one of most for the other. It comes back when the next gives way after that is
//!   forgotten: none held its thread for [`SUSPECTED`], or they used [`CLEARED`] times as much of a core without. It saves nothing up by that,
//!   and what it used more than others goes with it.
//! - A task waits for nothing but the threads of its lane, unless its account has a cap and has used it up.
//!
//! ```
//! use std::time::Duration;
//! use pilothouse_core::fair::{FairQueue, Flow, Lane, Next, Share};
//!
//! let mut queue = FairQueue::new();
//! let (busy, quiet) = (queue.open(Share::default()), queue.open(Share::default()));
//! let now = Duration::ZERO;
//! (1..=10_000).try_for_each(|task| queue.push(now, busy, Flow(0), task))?;
//! assert!(matches!(queue.next(now, Lane::Ordinary), Next::Task(task) if task.task == 1));
//! queue.push(now, quiet, Flow(0), 0)?;
//! queue.charge(now, busy, Duration::from_millis(5));
//! assert!(matches!(queue.next(now, Lane::Ordinary), Next::Task(task) if task.task == 0));
//! # Ok::<(), i32>(())
//! ```

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    num::NonZeroU32,
    time::Duration,
};

/// An account with a cap may use up at once what it left unused in so much time: the period of the kernel's own CPU limits.
pub const BURST: Duration = Duration::from_millis(100);

/// What an account that rested may have before those at work, of what it did not use. Most calls take less. One that had nothing saved up
/// would be behind all who had used a little less whenever it gives way, and they would have a turn each before it goes on.
pub const SAVED: Duration = Duration::from_millis(1);

/// A task that uses more of a core than this in one turn holds its thread. Guests are asked to give way every quarter of a millisecond, and
/// filling memory or handing over much data is one piece of work in which they cannot.
pub const HOLDS: Duration = Duration::from_millis(1);

/// How long it is remembered that a task held its thread.
pub const SUSPECTED: Duration = Duration::from_secs(10);

/// It is forgotten sooner once the account's tasks, giving way in time, have used this many times what those used that held their threads. One
/// task in many may hold its thread for nothing that it did: the kernel takes a while for a page, or the machine has given the core to
/// somebody else.
pub const CLEARED: u32 = 10;

/// The weight of who is given none: the kernel's `cpu.weight`.
pub const DEFAULT_WEIGHT: NonZeroU32 = NonZeroU32::new(100).expect("it is not zero");

/// Weights are at most this.
pub const MAX_WEIGHT: u32 = 10_000;

/// What an account may have of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its part where others want theirs too, against their weights; more than [`MAX_WEIGHT`] is as much as that.
    pub weight: NonZeroU32,
    /// At most so many thousandths of a core, though nobody else wants it.
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

/// Names an account of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(u64);

/// Names a flow of tasks within one account. It is there while tasks are in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow(pub u64);

/// Which of the threads an account's tasks run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// Those of most accounts.
    #[default]
    Ordinary,
    /// Those of accounts of which tasks lately held their threads, and did not give way.
    Suspect,
}

impl Lane {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ordinary, Self::Suspect];
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// Run this, and [`charge`](FairQueue::charge) its account.
    Task(Taken<T>),
    /// Nothing before this time, or until more is pushed: whoever has tasks in the lane has used up its cap.
    At(Duration),
    /// Nothing until more is pushed.
    Nothing,
}

/// A task that is to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken<T> {
    /// Who is to be charged.
    pub account: AccountId,
    /// What to run.
    pub task: T,
    /// How long it waited for its turn.
    pub waited: Duration,
}

/// What an account has used: nanoseconds of the largest weight.
type Weighted = u128;

#[derive(Debug)]
struct Account<T> {
    share: Share,
    /// Nanoseconds used, each by the weight of its time; in line not much less than those at work, after time under its cap not less.
    weighted: Weighted,
    /// Each with a task, in the order of their turns; as many as the account has who ask.
    flows: VecDeque<(Flow, VecDeque<(T, Duration)>)>,
    running: usize,
    /// It comes from a rest, and was not served since.
    rested: bool,
    stands: Stands,
    /// When the cap lets it run again.
    free_at: Duration,
    used: Duration,
    turns: u64,
    waited: Duration,
    held: u64,
    /// The last time that a task held its thread, until it is forgotten.
    hold: Option<Hold>,
    closed: bool,
}

/// Tasks held their threads.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// The last of them.
    at: Duration,
    /// It was not the only one.
    again: bool,
    /// What tasks are still to use, and give way, until it is forgotten.
    owes: Duration,
}

impl Hold {
    /// What is remembered after a task used so much.
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

    /// Those at work are at `level`: it is so much before them as it can have saved up, unless it has used more.
    fn begin_at(&mut self, level: Weighted) {
        self.weighted = self.weighted.max(level.saturating_sub(self.share.weigh(SAVED)));
    }
}

/// What an account has had since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time of a core.
    pub used: Duration,
    /// Tasks that were taken.
    pub turns: u64,
    /// How long those had waited in line, all together.
    pub waited: Duration,
    /// Turns in which a task used more than [`HOLDS`].
    pub held: u64,
    /// Tasks in line now.
    pub waiting: usize,
}

/// Where an account waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// It has no task in line.
    Nowhere,
    /// In its lane's `ready`, at this place.
    Ready(Place),
    /// In its lane's `capped`, under this time.
    Capped(Duration),
}

/// Among accounts that have used as much: those that come from a rest; then those without anything running, which is not charged yet;
/// then who has waited longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    was_served: bool,
    at_work: bool,
    number: u64,
}

/// Accounts that wait for the same threads.
#[derive(Debug, Default)]
struct Row {
    /// Those with a task that may run: the first is next.
    ready: BTreeSet<(Weighted, Place, AccountId)>,
    /// Those with tasks that have used up their cap, and until when.
    capped: BTreeSet<(Duration, AccountId)>,
    /// The most that anybody had used when it was served: about what those at work have used, but for who saved up, or cannot use its share.
    level: Weighted,
}

/// Tasks of type `T` in line for the threads.
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
    /// Without accounts.
    pub fn new() -> Self {
        Self { accounts: HashMap::new(), rows: Default::default(), last_id: 0, last_number: 0 }
    }

    /// A new account, in the lane of most.
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

    /// Another share from now on. An account that its old cap held back waits no longer than the new one asks.
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

    /// Takes no more tasks for the account; those in line are still run. It is forgotten after the last of them.
    pub fn close(&mut self, id: AccountId) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.closed = true;
        }
        self.forget_if_over(id);
    }

    /// Puts a task at the end of a flow. Gives it back if there is no such account any more.
    ///
    /// # Errors
    /// The account is over.
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

    /// Hands out the task that is next in a lane.
    pub fn next(&mut self, now: Duration, lane: Lane) -> Next<T> {
        let row = lane as usize;
        while let Some(&(until, id)) = self.rows[row].capped.first()
            && until <= now
        {
            self.leave(id);
            self.stand(now, id);
        }
        let Some(&(weighted, _, id)) = self.rows[row].ready.first() else {
            return self.rows[row].capped.first().map_or(Next::Nothing, |&(until, _)| Next::At(until));
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
        taken.map_or(Next::Nothing, Next::Task)
    }

    /// A task of the account has given way, after it used so much of a core.
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

    /// Whether the account has nothing in line, and nothing that runs.
    pub fn is_at_rest(&self, id: AccountId) -> bool {
        self.accounts.get(&id).is_some_and(|account| account.flows.is_empty() && account.running == 0)
    }

    /// Whether a task of the account is what [`next`](Self::next) would hand out in its lane; of who has used up its cap, only once that was
    /// asked.
    pub fn is_next(&self, id: AccountId) -> bool {
        let row = self.accounts.get(&id).map(|account| &self.rows[account.lane() as usize]);
        row.and_then(|row| row.ready.first()).is_some_and(|&(_, _, first)| first == id)
    }

    /// Whether somebody in the lane may run now.
    pub fn is_ready(&self, lane: Lane) -> bool {
        !self.rows[lane as usize].ready.is_empty()
    }

    /// Where the account's tasks wait; where those of most do, if it is over.
    pub fn lane(&self, id: AccountId) -> Lane {
        self.accounts.get(&id).map_or_else(Lane::default, Account::lane)
    }

    /// What the account has had so far; nothing if it is over.
    pub fn usage(&self, id: AccountId) -> Usage {
        self.accounts.get(&id).map_or_else(Usage::default, |account| Usage {
            used: account.used,
            turns: account.turns,
            waited: account.waited,
            held: account.held,
            waiting: account.flows.iter().map(|(_, tasks)| tasks.len()).sum(),
        })
    }

    /// What the account may have; none if it is over.
    pub fn share(&self, id: AccountId) -> Option<Share> {
        self.accounts.get(&id).map(|account| account.share)
    }

    /// Takes the account out of where it waits.
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

    /// Lets an account that waits nowhere wait where it belongs.
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
            // One that could not use its share, with a single task at work for one, would have the threads for itself later.
            account.begin_at(row.level);
            let place = Place { was_served: !account.rested, at_work: account.running > 0, number: self.last_number };
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
