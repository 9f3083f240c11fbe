//! Lets requests of plugins through to the API server, a bounded number at a time and each plugin its fair part.
//!
//! Owns the permits behind a lock, and the requests that wait for one. Which request is next, and when, is [`pilothouse_core::permits`]'s to say.
//! Watches, lists and discovery never pass here: they are the informers', which plugins share.
//!
//! A request holds its permit from before it is sent until its whole answer is there, or it is given up.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use pilothouse_core::{
    permits::{AccountId, Next, Permits, Ticket, Usage},
    rate::Rate,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::{Duration, Instant},
};

/// Requests in flight, all plugins together. Each has a connection under HTTP/1.1. 64 hide the latency of a server that takes 20 ms for a
/// write up to 3,200 writes a second; kube-apiserver by default works on 600 requests at once, for all its clients.
const IN_FLIGHT: usize = 64;

/// The account of the host's own Events. No plugin can have this name.
pub(super) const EVENTS: &str = "(events)";

/// The permits of one API server.
pub(super) struct Gate {
    permits: Mutex<Permits<oneshot::Sender<Permit>>>,
    accounts: Mutex<BTreeMap<Arc<str>, Weak<Account>>>,
    origin: Instant,
    /// Rung when something waits for a time.
    bell: Arc<Notify>,
}

impl Gate {
    /// Its task, which lets requests go on whose time has come, runs on `io` until the gate is dropped.
    pub(super) fn new(io: &Handle) -> Arc<Self> {
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), IN_FLIGHT);
        let gate = Arc::new(Self {
            permits: Mutex::new(Permits::new(IN_FLIGHT, seed)),
            accounts: Mutex::default(),
            origin: Instant::now(),
            bell: Arc::default(),
        });
        io.spawn(keep_time(Arc::downgrade(&gate), gate.bell.clone()));
        gate
    }

    /// The account of this name, with this rate from now on. It lives as long as somebody holds it.
    pub(super) fn account(self: &Arc<Self>, name: &str, rate: Option<Rate>) -> Arc<Account> {
        let mut accounts = self.accounts.lock();
        if let Some(account) = accounts.get(name).and_then(Weak::upgrade) {
            self.permits.lock().set_rate(self.now(), account.id, rate);
            self.bell.notify_one();
            return account;
        }
        accounts.retain(|_, account| account.strong_count() > 0);
        let id = self.permits.lock().open(rate);
        let account = Arc::new(Account { gate: self.clone(), id });
        accounts.insert(name.into(), Arc::downgrade(&account));
        account
    }

    /// The state of every account, by name.
    pub(super) fn usage(&self) -> Vec<(Arc<str>, Usage)> {
        let accounts: Vec<_> = self
            .accounts
            .lock()
            .iter()
            .filter_map(|(name, account)| Some((name.clone(), account.upgrade()?)))
            .collect();
        let permits = self.permits.lock();
        accounts.iter().map(|(name, account)| (name.clone(), permits.usage(account.id))).collect()
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Hands out permits until none is left, or nothing that waits may go on.
    fn serve(self: &Arc<Self>) -> Served {
        let mut served = Served { any: false, again: None };
        loop {
            let next = self.permits.lock().next(self.now());
            let (id, waiter) = match next {
                Next::Begin(id, waiter) => (id, waiter),
                Next::At(at) => {
                    served.again = Some(self.origin + at);
                    return served;
                }
                Next::Nothing => return served,
            };
            served.any = true;
            if let Err(unheard) = waiter.send(Permit { gate: Some(self.clone()), id }) {
                // The request was given up at this moment. This loop goes on to the next one.
                unheard.give_back();
            }
        }
    }
}

/// What [`Gate::serve`] came to.
struct Served {
    /// A request got its permit.
    any: bool,
    /// When the next one may go on, if that is a matter of time.
    again: Option<Instant>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.bell.notify_one();
    }
}

/// Lets go on what waits for a time: a rate, or the end of a Retry-After.
async fn keep_time(gate: Weak<Gate>, bell: Arc<Notify>) {
    loop {
        let rung = bell.notified();
        let Some(served) = gate.upgrade().map(|gate| gate.serve()) else { return };
        match served.again {
            None => rung.await,
            Some(at) => {
                let _ = tokio::time::timeout_at(at, rung).await;
            }
        }
    }
}

/// What one plugin's requests are counted on.
pub(super) struct Account {
    gate: Arc<Gate>,
    id: AccountId,
}

impl Account {
    /// Waits for a permit.
    ///
    /// # Cancellation
    /// Safe: a request that is given up waits no longer, and its permit goes to another.
    pub(super) async fn begin(&self) -> Permit {
        let gate = &self.gate;
        let permit = || Permit { gate: Some(gate.clone()), id: self.id };
        let (receiver, ticket) = {
            let (now, mut permits) = (gate.now(), gate.permits.lock());
            if permits.begin(now, self.id) {
                return permit();
            }
            let (sender, receiver) = oneshot::channel();
            (receiver, permits.push(now, self.id, sender))
        };
        // Its account may have to wait for a time.
        gate.bell.notify_one();
        let mut waiting = Waiting { account: self, ticket };
        match receiver.await {
            Ok(permit) => {
                waiting.ticket = None;
                permit
            }
            // The account is open as long as this is borrowed, and senders are dropped by who cancels alone.
            Err(_) => std::future::pending().await,
        }
    }

    /// The server asked to be left alone for so long.
    pub(super) fn throttle(&self, retry_after: Duration) {
        self.gate.permits.lock().throttle(self.gate.now(), self.id, retry_after);
        self.gate.bell.notify_one();
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.gate.permits.lock().close(self.id);
    }
}

/// A request that waits. Dropped, it waits no longer.
struct Waiting<'a> {
    account: &'a Account,
    /// None: it has its permit.
    ticket: Option<Ticket>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let gate = &self.account.gate;
            let sender = gate.permits.lock().cancel(gate.now(), self.account.id, ticket);
            drop(sender);
        }
    }
}

/// One request may be in flight as long as this lives.
pub(super) struct Permit {
    /// None: it was given back.
    gate: Option<Arc<Gate>>,
    id: AccountId,
}

impl Permit {
    /// Ends it without serving others, which the caller does.
    fn give_back(mut self) {
        if let Some(gate) = self.gate.take() {
            gate.permits.lock().end(gate.now(), self.id);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        let has_ready = {
            let mut permits = gate.permits.lock();
            permits.end(gate.now(), self.id);
            permits.has_ready()
        };
        if has_ready {
            let served = gate.serve();
            // An account that was served may have to wait for its rate now.
            if served.any && served.again.is_some() {
                gate.bell.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn gate() -> Arc<Gate> {
        Gate::new(&Handle::current())
    }

    async fn soon<T>(work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_millis(1), work).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_leaves_its_permit_to_the_next() {
        let gate = gate();
        let account = gate.account("a", None);
        let mut held = Vec::new();
        while let Some(permit) = soon(account.begin()).await {
            held.push(permit);
        }
        assert_eq!(held.len(), 48);
        assert!(soon(account.begin()).await.is_none());
        assert_eq!(gate.usage()[0].1.waiting, 0, "those that were given up wait no longer");
        let waiting = tokio::spawn({
            let account = account.clone();
            async move { account.begin().await }
        });
        tokio::task::yield_now().await;
        drop(held.pop());
        assert!(waiting.await.is_ok());
        drop(held);
        assert_eq!(gate.usage()[0].1.in_flight, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_and_a_retry_after_are_waited_for() {
        let (gate, began) = (gate(), Instant::now());
        let slow = gate.account("slow", Some(Rate { burst: 1, every: Duration::from_secs(2) }));
        for seconds in [0, 2, 4] {
            drop(slow.begin().await);
            assert_eq!(began.elapsed().as_secs(), seconds);
        }
        let (refused, other) = (gate.account("refused", None), gate.account("other", None));
        let began = Instant::now();
        refused.throttle(Duration::from_secs(10));
        drop(other.begin().await);
        assert!(
            (1.0..1.3).contains(&began.elapsed().as_secs_f32()),
            "all stand still for a second: {:?}",
            began.elapsed()
        );
        drop(refused.begin().await);
        assert!((10.0..12.6).contains(&began.elapsed().as_secs_f32()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_acts_on_what_waits() {
        let (gate, began) = (gate(), Instant::now());
        let account = gate.account("a", Some(Rate { burst: 1, every: Duration::from_secs(3600) }));
        drop(account.begin().await);
        let again = gate.account("a", None);
        drop(account.begin().await);
        assert!(Arc::ptr_eq(&account, &again) && began.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn an_account_ends_with_the_last_who_holds_it() {
        let gate = gate();
        let account = gate.account("a", None);
        let permit = account.begin().await;
        drop(account);
        drop(permit);
        assert!(gate.usage().is_empty());
        assert_eq!(Arc::strong_count(&gate), 1);
    }
}
