//! Limits the requests of plugins to the API server, and shares the permits fairly among plugins.
//!
//! Owns the permits behind a lock, and the requests that wait for one. [`pilothouse_core::permits`] decides which
//! request is next, and when. Watches, lists and discovery need no permit: they belong to the informers, which plugins
//! share.
//!
//! A request holds its permit from before it is sent until its whole answer has arrived or the request is cancelled.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use pilothouse_core::{
    permits::{AccountId, NextPermit, Permits, Ticket, Usage},
    rate::Rate,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::{Duration, Instant},
};

/// Requests in flight for all plugins together. Under HTTP/1.1 each has a connection. If a write takes 20 ms, 64
/// requests in flight allow 3,200 writes a second. kube-apiserver by default serves 600 requests at once, for all its
/// clients.
const IN_FLIGHT: usize = 64;

/// The account of the host's own Events. No plugin can have this name.
pub(super) const EVENTS: &str = "(events)";

/// The permits of one API server.
pub(super) struct Gate {
    permits: Mutex<Permits<oneshot::Sender<Permit>>>,
    accounts: Mutex<BTreeMap<Arc<str>, Weak<Account>>>,
    origin: Instant,
    /// Notified when a request waits for a time.
    bell: Arc<Notify>,
}

impl Gate {
    /// Creates a gate. Its task runs on `io` until the gate is dropped, and starts requests whose time has come.
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

    /// Returns the account of this name, with this rate from now on. It is closed when the last handle is dropped.
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

    /// Hands out permits until none is left or no waiting request may go on.
    fn serve(self: &Arc<Self>) -> Served {
        let mut served = Served { any: false, again: None };
        loop {
            let next = self.permits.lock().next(self.now());
            let (id, waiter) = match next {
                NextPermit::Begin(id, waiter) => (id, waiter),
                NextPermit::At(at) => {
                    served.again = Some(self.origin + at);
                    return served;
                }
                NextPermit::Nothing => return served,
            };
            served.any = true;
            if let Err(unused) = waiter.send(Permit { gate: Some(self.clone()), id }) {
                // The request was cancelled at this moment. The loop goes on to the next one.
                unused.give_back();
            }
        }
    }
}

/// The result of [`Gate::serve`].
struct Served {
    /// `true` if a request got its permit.
    any: bool,
    /// When the next request may go on, if it waits for a time.
    again: Option<Instant>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.bell.notify_one();
    }
}

/// Starts requests that wait for a time: for a rate, or for the end of a Retry-After.
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

/// The account of one plugin's requests.
pub(super) struct Account {
    gate: Arc<Gate>,
    id: AccountId,
}

impl Account {
    /// Waits for a permit.
    ///
    /// # Cancellation
    /// Safe: a cancelled request waits no longer, and its permit goes to another.
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
        // The account may have to wait for a time.
        gate.bell.notify_one();
        let mut waiting = Waiting { account: self, ticket };
        match receiver.await {
            Ok(permit) => {
                waiting.ticket = None;
                permit
            }
            // Cannot happen: the account is open while it is borrowed, and only a cancellation drops a sender.
            Err(_) => std::future::pending().await,
        }
    }

    /// Applies the server's Retry-After to the account.
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

/// A waiting request. Dropping this cancels it.
struct Waiting<'a> {
    account: &'a Account,
    /// `None` once the request has its permit.
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

/// Permits one request in flight while it lives.
pub(super) struct Permit {
    /// `None` once the permit was given back.
    gate: Option<Arc<Gate>>,
    id: AccountId,
}

impl Permit {
    /// Gives the permit back without serving waiting requests, because the caller does that.
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
            // The served account may have to wait for its rate now.
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
    async fn a_cancelled_request_leaves_its_permit_to_the_next() {
        let gate = gate();
        let account = gate.account("a", None);
        let mut held = Vec::new();
        while let Some(permit) = soon(account.begin()).await {
            held.push(permit);
        }
        assert_eq!(held.len(), 48);
        assert!(soon(account.begin()).await.is_none());
        assert_eq!(gate.usage()[0].1.waiting, 0, "cancelled requests wait no longer");
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
            "all accounts pause for a second: {:?}",
            began.elapsed()
        );
        drop(refused.begin().await);
        assert!((10.0..12.6).contains(&began.elapsed().as_secs_f32()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_applies_to_waiting_requests() {
        let (gate, began) = (gate(), Instant::now());
        let account = gate.account("a", Some(Rate { burst: 1, every: Duration::from_secs(3600) }));
        drop(account.begin().await);
        let again = gate.account("a", None);
        drop(account.begin().await);
        assert!(Arc::ptr_eq(&account, &again) && began.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn an_account_ends_with_its_last_handle() {
        let gate = gate();
        let account = gate.account("a", None);
        let permit = account.begin().await;
        drop(account);
        drop(permit);
        assert!(gate.usage().is_empty());
        assert_eq!(Arc::strong_count(&gate), 1);
    }
}
