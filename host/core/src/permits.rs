//! Shares the requests that may be in flight to one API server among accounts.
//!
//! Owns the permits, the accounts and the requests that wait. Knows neither sockets nor clocks: the driver sends a
//! request when it gets a permit, and gives the permit back when the answer is there.
//!
//! ```text
//! begin(account) ─► permit            the common case: nothing waits, nothing is throttled
//!      │ none
//!      └► push(account, request) ─► next() ─► the waiting account with the fewest requests in flight
//!                                     ▲
//!                     end(account) ───┤  throttle(account, Retry-After): this account stands still, and all for a moment
//! ```
//!
//! # Guarantees
//! - At most `limit` requests are in flight.
//! - An account begins a request only while it has fewer than [`SHARE`] × the free permits in flight. So one account
//!   alone leaves a quarter of the permits free, and a request that never ends costs its own account most.
//! - A permit goes to the waiting account with the fewest requests in flight; among equals to the one that has waited
//!   longest for its turn.
//! - Within one account requests begin in the order in which they came.
//! - An account never begins more than its rate allows, nor anything before its Retry-After is over.
//!
//! ```
//! use std::time::Duration;
//! use pilothouse_core::permits::{NextPermit, Permits};
//!
//! let now = Duration::ZERO;
//! let mut permits = Permits::new(4, 1);
//! let (busy, quiet) = (permits.open(None), permits.open(None));
//! assert!((0..3).all(|_| permits.begin(now, busy)));
//! assert!(!permits.begin(now, busy), "the last permit is for others");
//! permits.push(now, busy, "late");
//! assert!(permits.begin(now, quiet));
//! permits.end(now, busy);
//! assert_eq!(permits.next(now), NextPermit::Begin(busy, "late"));
//! ```

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use crate::{backoff::Random, rate::Rate};

/// Largest ratio of an account's requests in flight to the free permits: of 64 permits one account alone gets 48, and
/// two get 27 each.
pub const SHARE: usize = 3;

/// Longest time that an account stands still for one Retry-After: as long as a list or watch waits. Kube-apiserver asks
/// for 1 s; a proxy that asks for an hour must not stop a plugin for an hour.
pub const ACCOUNT_STANDS: Duration = Duration::from_secs(60);

/// Longest time that all accounts stand still for one Retry-After. The server may mean one kind or one account only, so
/// others wait no longer than kube-apiserver's usual Retry-After.
pub const ALL_STAND: Duration = Duration::from_secs(1);

/// Identifies an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(u64);

/// Identifies a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub enum NextPermit<T> {
    /// Send this request of this account, which now has a permit.
    Begin(AccountId, T),
    /// Nothing before this time, unless a permit is returned.
    At(Duration),
    /// Nothing until a permit is returned, or a request is pushed.
    Nothing,
}

/// The state of one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests in flight.
    pub in_flight: usize,
    /// Requests that wait for a permit.
    pub waiting: usize,
    /// Requests that got a permit, since the account was opened.
    pub begun: u64,
    /// Requests that had to wait for their permit.
    pub waited: u64,
    /// Answers with a Retry-After.
    pub throttled: u64,
}

#[derive(Debug)]
struct Account<T> {
    rate: Option<Rate>,
    /// What [`Rate::take`] returned last.
    used: Duration,
    /// The end of its Retry-After.
    stands_until: Duration,
    requests: VecDeque<(Ticket, T)>,
    waits: Waits,
    usage: Usage,
    closed: bool,
}

impl<T> Account<T> {
    /// Returns when the account may begin the next request, apart from other accounts.
    fn free_at(&self, now: Duration) -> Duration {
        let paced = self.rate.map_or(now, |rate| now.saturating_add(rate.wait(self.used, now)));
        paced.max(self.stands_until)
    }

    fn takes(&mut self, now: Duration) {
        if let Some(rate) = self.rate {
            self.used = rate.take(self.used, now);
        }
        self.usage.in_flight += 1;
        self.usage.begun += 1;
    }
}

/// Where an account waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// It has no waiting request.
    Nowhere,
    /// In `line`, under its number of requests in flight and its turn.
    InLine(usize, u64),
    /// In `resting`, under this time.
    Until(Duration),
}

/// The permits of one API server, and the requests of type `T` that wait for one.
#[derive(Debug)]
pub struct Permits<T> {
    limit: usize,
    in_flight: usize,
    accounts: HashMap<AccountId, Account<T>>,
    /// Accounts with a request that may begin as soon as a permit is free, the next one first.
    line: BTreeSet<(usize, u64, AccountId)>,
    /// Accounts with requests that may not begin before this time.
    resting: BTreeSet<(Duration, AccountId)>,
    /// No account begins anything before this time.
    all_stand_until: Duration,
    last: u64,
    random: Random,
}

impl<T> Permits<T> {
    /// Creates `limit` permits without accounts. `seed` decides the jitter of waits.
    pub fn new(limit: usize, seed: u64) -> Self {
        Self {
            limit,
            in_flight: 0,
            accounts: HashMap::new(),
            line: BTreeSet::new(),
            resting: BTreeSet::new(),
            all_stand_until: Duration::ZERO,
            last: 0,
            random: Random::new(seed),
        }
    }

    /// Opens an account with this rate of requests; `None` for no rate.
    pub fn open(&mut self, rate: Option<Rate>) -> AccountId {
        let id = AccountId(self.number());
        let account = Account {
            rate,
            used: Duration::ZERO,
            stands_until: Duration::ZERO,
            requests: VecDeque::new(),
            waits: Waits::Nowhere,
            usage: Usage::default(),
            closed: false,
        };
        self.accounts.insert(id, account);
        id
    }

    /// Changes the rate of an account.
    pub fn set_rate(&mut self, now: Duration, id: AccountId, rate: Option<Rate>) {
        self.place(now, id, |account| account.rate = rate);
    }

    /// Closes an account. It is forgotten after its last request.
    pub fn close(&mut self, id: AccountId) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.closed = true;
        }
        self.forget_if_over(id);
    }

    /// Takes a permit. Returns `false` if the request must wait; [push](Self::push) it then.
    pub fn begin(&mut self, now: Duration, id: AccountId) -> bool {
        let free = self.limit.saturating_sub(self.in_flight);
        let Some(account) = self.accounts.get_mut(&id) else { return false };
        let may_begin = now >= self.all_stand_until
            && account.requests.is_empty()
            && account.usage.in_flight < free.saturating_mul(SHARE)
            && account.free_at(now) <= now;
        if may_begin {
            account.takes(now);
            self.in_flight += 1;
        }
        may_begin
    }

    /// Puts a request at the end of its account's line. Returns `None` if the account does not exist.
    pub fn push(&mut self, now: Duration, id: AccountId, request: T) -> Option<Ticket> {
        let ticket = Ticket(self.number());
        self.accounts.contains_key(&id).then(|| {
            self.place(now, id, |account| {
                account.usage.waited += 1;
                account.requests.push_back((ticket, request));
            });
            ticket
        })
    }

    /// Removes a request from the line. Returns `None` if it is not there.
    pub fn cancel(&mut self, now: Duration, id: AccountId, ticket: Ticket) -> Option<T> {
        let mut cancelled = None;
        self.place(now, id, |account| {
            if let Ok(at) = account.requests.binary_search_by_key(&ticket, |(of, _)| *of) {
                cancelled = account.requests.remove(at);
            }
        });
        self.forget_if_over(id);
        cancelled.map(|(_, request)| request)
    }

    /// Takes a permit for the next request. Call it until it returns none.
    pub fn next(&mut self, now: Duration) -> NextPermit<T> {
        while let Some(&(until, id)) = self.resting.first()
            && until <= now
        {
            self.place(now, id, |_| ());
        }
        let free = self.limit.saturating_sub(self.in_flight);
        let first = self.line.first().filter(|(in_flight, ..)| *in_flight < free.saturating_mul(SHARE));
        match first {
            Some(_) if now < self.all_stand_until => NextPermit::At(self.all_stand_until),
            Some(&(_, _, id)) => {
                let mut taken = None;
                self.place(now, id, |account| {
                    taken = account.requests.pop_front();
                    if taken.is_some() {
                        account.takes(now);
                    }
                });
                let Some((_, request)) = taken else { return NextPermit::Nothing };
                self.in_flight += 1;
                NextPermit::Begin(id, request)
            }
            None => self.resting.first().map_or(NextPermit::Nothing, |&(until, _)| NextPermit::At(until)),
        }
    }

    /// Returns a permit.
    pub fn end(&mut self, now: Duration, id: AccountId) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.place(now, id, |account| account.usage.in_flight = account.usage.in_flight.saturating_sub(1));
        self.forget_if_over(id);
    }

    /// Records an answer with a Retry-After. The account pauses for that time, at most [`ACCOUNT_STANDS`], and all
    /// accounts for at most [`ALL_STAND`]. Both pauses get up to a quarter longer, so that hosts do not return
    /// together.
    pub fn throttle(&mut self, now: Duration, id: AccountId, retry_after: Duration) {
        let account = retry_after.min(ACCOUNT_STANDS);
        let account = self.random.between(account, account.saturating_add(account / 4));
        let all = retry_after.min(ALL_STAND);
        let all = self.random.between(all, all.saturating_add(all / 4));
        self.all_stand_until = self.all_stand_until.max(now.saturating_add(all));
        self.place(now, id, |of| {
            of.stands_until = of.stands_until.max(now.saturating_add(account));
            of.usage.throttled += 1;
        });
    }

    /// Returns `true` if a request waits only for a permit.
    pub fn has_ready(&self) -> bool {
        !self.line.is_empty()
    }

    /// Returns the state of an account; all zero if it does not exist.
    pub fn usage(&self, id: AccountId) -> Usage {
        self.accounts
            .get(&id)
            .map_or_else(Usage::default, |account| Usage { waiting: account.requests.len(), ..account.usage })
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Changes an account and updates where it waits. It keeps its turn if it stays in line.
    fn place(&mut self, now: Duration, id: AccountId, change: impl FnOnce(&mut Account<T>)) {
        let number = self.number();
        let Some(account) = self.accounts.get_mut(&id) else { return };
        let begun = account.usage.begun;
        let mut turn = number;
        match std::mem::replace(&mut account.waits, Waits::Nowhere) {
            Waits::Nowhere => {}
            Waits::InLine(in_flight, at) => {
                self.line.remove(&(in_flight, at, id));
                turn = at;
            }
            Waits::Until(until) => drop(self.resting.remove(&(until, id))),
        }
        change(account);
        if account.usage.begun != begun {
            turn = number;
        }
        if account.requests.is_empty() {
            return;
        }
        let free_at = account.free_at(now);
        if free_at > now {
            account.waits = Waits::Until(free_at);
            self.resting.insert((free_at, id));
        } else {
            account.waits = Waits::InLine(account.usage.in_flight, turn);
            self.line.insert((account.usage.in_flight, turn, id));
        }
    }

    fn forget_if_over(&mut self, id: AccountId) {
        let over = |account: &Account<T>| account.closed && account.usage.in_flight == 0 && account.requests.is_empty();
        if self.accounts.get(&id).is_some_and(over) {
            self.accounts.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests;
