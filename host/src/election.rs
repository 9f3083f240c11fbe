//! Leader election: of several hosts on one cluster, the one that holds a Lease acts.
//!
//! ```text
//! Lease ─► look, watch ─► Election (core) ─► claim ─► API server
//!                                              └─ succeeded ─► Acting, for some seconds more
//! ```
//!
//! The others keep their caches and plugins warm, and watch the Lease: they take over at once when it is released, and when its time is over if
//! its holder is gone. `Acting` says until when this host may act. A host that has lost the Lease is a standby again. It takes the Lease
//! back only once the calls of its last term are over, and then looks at every key again.

pub(crate) mod leases;

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use pilothouse_core::election::{Election, Next, Record, Timings};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::leases::{MANAGER, RELEASE, Watch, kind, merged, metadata, parse, record, time};
use crate::{
    acting::{self, Acting},
    cluster::{Cluster, Error, Select, WriteOptions},
};

/// The Lease, and how long it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// How long it lasts.
    pub timings: Timings,
    /// `None` if one host acts for all plugins. If hosts share the plugins: what this host runs.
    pub revision: Option<String>,
}

/// What an election needs of the host.
pub(crate) trait Terms: Send + Sync {
    /// Called when this host begins to act for an item: a plugin, or the host's own work. `None` stands for all items.
    /// `is_again` is `true` if it has acted for it before, and others could meanwhile.
    fn begins(&self, item: Option<&str>, is_again: bool);
}

/// Who acts, for those who look at the host.
#[derive(Clone, Debug)]
pub(crate) struct Leadership(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    identity: String,
    acting: Acting,
    seen: Mutex<Seen>,
}

/// The last look at the Lease.
#[derive(Debug, Default)]
struct Seen {
    holder: Option<String>,
    /// Why the last request failed.
    error: Option<String>,
}

impl Leadership {
    /// `true` if this host acts.
    pub(crate) fn is_mine(&self) -> bool {
        self.0.acting.is_allowed()
    }

    /// Returns the name of the Lease.
    pub(crate) fn lease(&self) -> &str {
        &self.0.options.name
    }

    /// Returns the identity of the host that holds the Lease, by the last look.
    pub(crate) fn holder(&self) -> Option<String> {
        self.0.seen.lock().holder.clone()
    }

    /// Says who acts. An error says why this host cannot know it.
    pub(crate) fn describe(&self) -> Result<String, String> {
        let Options { namespace, name, .. } = &self.0.options;
        let lease = format!("the Lease {namespace}/{name}");
        let seen = self.0.seen.lock();
        match (&seen.error, &seen.holder) {
            _ if self.is_mine() => Ok(format!("this host acts: it holds {lease} as {}", self.0.identity)),
            (Some(error), _) => Err(format!("{lease} cannot be read or taken: {error}")),
            (None, Some(holder)) => Ok(format!("standby: {holder} holds {lease}")),
            (None, None) => Ok(format!("standby: nobody holds {lease} yet")),
        }
    }

    fn record(&self, election: &Election, error: Option<String>) {
        let holder = election.holder().map(str::to_owned);
        *self.0.seen.lock() = Seen { holder, error };
    }
}

/// A host that takes part in the election.
pub(crate) struct Candidate {
    cluster: Cluster,
    leadership: Leadership,
    election: Election,
    /// `None` if it is not known, or no longer.
    lease: Option<Lease>,
    watch: Option<(Watch, Instant)>,
    /// `true` from the first claim that succeeded until the Lease is lost.
    leads: bool,
    /// `true` once it has led.
    has_led: bool,
    random: RandomState,
    looks: u64,
}

/// The Lease as it is on the API server.
struct Lease {
    /// `None` if there is none.
    object: Option<Value>,
    /// The version of the list or the object, to watch from.
    version: String,
}

impl Candidate {
    /// Creates a candidate that turns `acting` on while it holds the Lease. `cluster` must not be fenced. `machine` is part of its identity.
    pub(crate) fn new(options: Options, cluster: Cluster, acting: Acting, machine: &str) -> Self {
        // As client-go does it. A process that is started again is another one.
        let identity = format!("{machine}_{}", uuid::Uuid::new_v4());
        let election = Election::new(&identity, options.timings);
        let leadership = Leadership(Arc::new(Shared { options, identity, acting, seen: Mutex::default() }));
        Self {
            cluster,
            leadership,
            election,
            lease: None,
            watch: None,
            leads: false,
            has_led: false,
            random: RandomState::new(),
            looks: 0,
        }
    }

    /// Returns a handle that says who acts.
    pub(crate) fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Takes part until `stop`, and then releases the Lease. Until then nothing that acts may be left.
    pub(crate) async fn run(mut self, terms: &impl Terms, stop: CancellationToken) {
        let mut again = Duration::ZERO;
        loop {
            let turn = async {
                self.wait(again).await;
                self.step(terms).await
            };
            tokio::select! {
                () = stop.cancelled() => break,
                next = turn => again = next,
            }
        }
        self.shared().acting.forbid();
        match timeout(RELEASE, self.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "cannot release the Lease; another host takes over when its time is over"),
            Err(_) => warn!("cannot release the Lease in time; another host takes over when its time is over"),
        }
    }

    fn shared(&self) -> &Shared {
        &self.leadership.0
    }

    /// Waits for this time, or until the Lease changes.
    async fn wait(&mut self, time: Duration) {
        let until = Instant::now() + time;
        if !time.is_zero() && !self.leads && self.lease.is_some() {
            if self.watch.is_none() {
                let _ = tokio::time::timeout_at(until, self.open()).await;
            }
            if let (Some((watch, opened)), Some(lease)) = (&mut self.watch, &mut self.lease) {
                tokio::select! {
                    () = sleep_until(until) => {}
                    change = watch.next() => {
                        if let Some(change) = change {
                            let version = metadata(&change.object, "resourceVersion").to_owned();
                            *lease = Lease { object: (!change.is_gone).then_some(change.object), version };
                            return;
                        }
                        // It has ended, or the version is too old. A server that ends each at once is not asked without a pause.
                        let lasted = opened.elapsed();
                        (self.watch, self.lease) = (None, None);
                        if lasted > self.election.timings().retry {
                            return;
                        }
                    }
                }
            }
        }
        tokio::select! {
            () = sleep_until(until) => {}
            () = self.shared().acting.ended(), if self.leads => {}
        }
    }

    async fn open(&mut self) {
        let Some(lease) = &self.lease else { return };
        match Watch::open(&self.cluster, &self.select(), &lease.version).await {
            Ok(watch) => self.watch = Some((watch, Instant::now())),
            Err(error) => {
                debug!(%error, "cannot watch the Lease; looking at it now and then");
                self.lease = None;
            }
        }
    }

    fn select(&self) -> Select<'_> {
        let Options { namespace, name, .. } = &self.shared().options;
        Select {
            namespace: Some(namespace),
            labels: String::new(),
            fields: format!("metadata.name={name}"),
            metadata_only: false,
        }
    }

    /// Looks at the Lease if it is not known, takes or renews it if that is due, and returns when to do so again.
    async fn step(&mut self, terms: &impl Terms) -> Duration {
        let retry = self.election.timings().retry;
        if self.leads && !self.shared().acting.is_allowed() {
            self.lose("it was not renewed in time");
        }
        let result = match timeout(self.election.timings().renew, self.try_step(terms)).await {
            Ok(result) => result,
            Err(_) => Err(Error::Unreachable("timed out".to_owned())),
        };
        match result {
            Ok(again) => {
                self.leadership.record(&self.election, None);
                again
            }
            Err(error) => {
                // What the Lease is now is not known.
                (self.lease, self.watch) = (None, None);
                if error.is_conflict() {
                    return Duration::from_millis(1);
                }
                self.report(&error);
                retry
            }
        }
    }

    fn report(&self, error: &Error) {
        let Options { namespace, name, .. } = &self.shared().options;
        let error = error.to_string();
        let is_new = self.shared().seen.lock().error.as_ref() != Some(&error);
        if is_new {
            warn!(
                error,
                "cannot take or renew the Lease {namespace}/{name}: the host's account needs list, watch, create and \
                update of leases.coordination.k8s.io there; a host that is alone needs none with --leader-elect=false"
            );
        }
        self.leadership.record(&self.election, Some(error));
    }

    async fn try_step(&mut self, terms: &impl Terms) -> Result<Duration, Error> {
        if self.lease.is_none() {
            self.lease = Some(self.look().await?);
        }
        let now = acting::now();
        let record = self.lease.as_ref().and_then(|lease| Some(record(lease.object.as_ref()?)));
        self.election.see(now, record);
        let timings = *self.election.timings();
        match self.election.next(now) {
            Next::Wait(expires) => {
                if self.leads {
                    self.shared().acting.forbid();
                    self.lose("another host has taken it");
                }
                self.looks += 1;
                let look = timings.look_after(self.random.hash_one(self.looks));
                Ok(look.min(expires.saturating_sub(now)))
            }
            // They could write what is out of date.
            Next::Take if !self.leads && !self.shared().acting.is_over() => Ok(timings.retry),
            Next::Take => {
                let sent = acting::now();
                self.claim().await?;
                self.shared().acting.allow_until(self.election.may_act_until(sent));
                if !self.leads {
                    self.win(terms);
                }
                Ok(timings.retry)
            }
        }
    }

    fn win(&mut self, terms: &impl Terms) {
        let Options { namespace, name, .. } = &self.shared().options;
        info!(lease = format!("{namespace}/{name}"), identity = self.election.identity(), "this host acts from now on");
        (self.leads, self.watch) = (true, None);
        let is_again = std::mem::replace(&mut self.has_led, true);
        terms.begins(None, is_again);
    }

    fn lose(&mut self, why: &str) {
        let Options { namespace, name, .. } = &self.shared().options;
        warn!(lease = format!("{namespace}/{name}"), "this host has lost the Lease and acts no more: {why}");
        self.leads = false;
    }

    async fn look(&self) -> Result<Lease, Error> {
        let (objects, version) = leases::list(&self.cluster, &self.select()).await?;
        Ok(Lease { object: objects.into_iter().next(), version })
    }

    /// Takes or renews the Lease as it was seen.
    async fn claim(&mut self) -> Result<(), Error> {
        self.write(self.election.claim(&time())).await
    }

    async fn release(&mut self) -> Result<(), Error> {
        // A claim may have been given up half way.
        let lease = self.look().await?;
        self.election.see(acting::now(), lease.object.as_ref().map(record));
        self.lease = Some(lease);
        let Some(released) = self.election.release(&time()) else { return Ok(()) };
        self.write(released).await?;
        info!("released the Lease");
        Ok(())
    }

    async fn write(&mut self, record: Record) -> Result<(), Error> {
        let Options { namespace, name, .. } = &self.shared().options;
        let spec = json!(record);
        let object = self.lease.as_ref().and_then(|lease| lease.object.clone());
        let answer = match object {
            Some(mut object) => {
                object["spec"] = merged(object["spec"].take(), spec);
                let options = WriteOptions { manager: MANAGER, subresource: None };
                let json = object.to_string().into_bytes();
                self.cluster.update(&kind(), Some(namespace), name, json, options).await?
            }
            None => {
                let object = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": name, "namespace": namespace}, "spec": spec,
                });
                self.cluster.create(&kind(), Some(namespace), object.to_string().into_bytes(), MANAGER).await?
            }
        };
        let object = parse(&answer, name)?;
        let version = metadata(&object, "resourceVersion").to_owned();
        self.lease = Some(Lease { version, object: Some(object) });
        self.election.see(acting::now(), Some(record));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
