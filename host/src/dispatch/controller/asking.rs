//! Leases what the keys of a controller ask for (`outcome.watches`).
//!
//! ```text
//! outcome ─► asks ─► grants, bounds ─► leases ─► all synced, ─┬─ yes ─► calls read them; keys are woken
//!                                                and served?  └─ no ──► calls see why
//! ```
//!
//! Leases are acquired and dropped at most once in [`SPACING`]. So a plugin whose keys ask for something else in every
//! call costs the API server as many watches in that time as it may have.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::future::{OptionFuture, select_all};
use pilothouse_core::{
    asked::{Answer, admits},
    budget::Share,
    grant::{Grants, LeaseScope, Right, Scope},
    informer::InformerKey,
    manifest::{Verb, Watch},
    predicate::Predicate,
    reflector::State,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Controller, Source};
use crate::{
    dispatch::{
        reading::Cached,
        remembered::Remembered,
        routes::{Part, Wanted},
    },
    informer::{Lease, View},
};

/// The least time between two changes of the leases.
pub(super) const SPACING: Duration = Duration::from_secs(1);

/// Upper bound of one watch's leases on single names. With more names a watch holds the namespace.
const NAMED: usize = 8;

/// The leases on what keys ask for.
pub(super) struct Leased {
    leases: BTreeMap<InformerKey, Arc<Lease>>,
    /// Their number, within the plugin's bound.
    count: Share,
    /// Those that the last look found unsynced.
    unsynced: Vec<watch::Receiver<bool>>,
    /// Those whose kind the API server did not serve at the last look.
    missing: BTreeSet<InformerKey>,
}

impl Leased {
    /// Creates it without leases, whose number counts in the plugin's bound.
    pub(super) fn within(remembered: &Remembered) -> Self {
        Self {
            leases: BTreeMap::new(),
            count: remembered.watches.share(),
            unsynced: Vec::new(),
            missing: BTreeSet::new(),
        }
    }

    /// Drops the leases that are not in `needed`.
    fn retain(&mut self, needed: impl Fn(&InformerKey) -> bool) {
        self.leases.retain(|key, _| needed(key));
        self.count.set(self.leases.len());
    }

    /// Says what a lease lacks. `None` if it is synced, and its kind is served.
    ///
    /// A kind that is not served any more has no objects. That must not look as if there were none of them.
    fn lacks(&mut self, lease: &Lease) -> Option<Found> {
        let (synced, state) = (lease.synced(), lease.state());
        let (is_missing, why) = (is_missing(&state), state.to_string());
        if is_missing {
            self.missing.insert(lease.key().clone());
        }
        if *synced.borrow() {
            return is_missing.then_some(Found::Refused(why));
        }
        self.unsynced.push(synced);
        Some(if is_missing || matches!(state, State::Denied(_)) { Found::Refused(why) } else { Found::Pending(why) })
    }

    /// Returns `true` if the API server has begun or ceased to serve a kind since the last look.
    fn has_turned(&self) -> bool {
        self.leases.iter().any(|(key, lease)| is_missing(&lease.state()) != self.missing.contains(key))
    }
}

fn is_missing(state: &State) -> bool {
    matches!(state, State::Missing(_))
}

/// What became of one watch.
enum Found {
    Ready(Vec<Arc<Lease>>),
    Pending(String),
    Refused(String),
}

impl Controller {
    /// Starts the task that leases what keys ask for, unless it runs.
    pub(super) fn follow_asks(self: &Arc<Self>) {
        if !self.follows.swap(true, Ordering::AcqRel) {
            self.attendants.spawn(self, |this| async move { this.follow().await });
        }
    }

    async fn follow(self: Arc<Self>) {
        let mut turns = self.informers.turns();
        let mut due = Some(Instant::now());
        let mut last: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let may_change = due.is_some_and(|due| due <= now);
            if may_change {
                (due, last) = (None, Some(now));
            }
            let unsynced = self.lease_asked(may_change);
            let has_unsynced = !unsynced.is_empty();
            let synced = unsynced
                .into_iter()
                .map(|mut synced| Box::pin(async move { drop(synced.wait_for(|synced| *synced).await) }));
            let synced: OptionFuture<_> = has_unsynced.then(|| select_all(synced)).into();
            let timer: OptionFuture<_> = due.map(sleep_until).into();
            tokio::select! {
                () = self.ledger.asks().changed() => {
                    due = due.or_else(|| Some(last.map_or(now, |last| last + SPACING)));
                }
                Some(_) = synced => {}
                // The API server may deny one, or not serve its kind any more.
                () = self.turned(&mut turns, has_unsynced) => {}
                Some(()) = timer => {}
            }
        }
    }

    /// Waits until an informer's state concerns what is asked for.
    async fn turned(&self, turns: &mut watch::Receiver<u64>, has_unsynced: bool) {
        loop {
            if turns.changed().await.is_err() {
                return std::future::pending().await;
            }
            if has_unsynced || self.asked.lock().has_turned() {
                return;
            }
        }
    }

    /// Adapts what is asked for to a revision or to grants that have just changed.
    pub(super) fn lease_asked_anew(self: &Arc<Self>) {
        if self.ledger.asks().is_used() {
            self.lease_asked(false);
            self.ledger.asks().look();
        }
    }

    /// Returns the scopes of what keys ask for.
    pub(in crate::dispatch) fn asked_scopes(&self) -> Vec<LeaseScope> {
        if !self.ledger.asks().is_used() {
            return Vec::new();
        }
        let grants = self.serving().access.grants();
        let watches: Vec<_> = self.ledger.asks().lock().watches().map(|(_, watch)| watch.clone()).collect();
        watches.iter().flat_map(|watch| keys(&grants, watch)).map(|key| LeaseScope::from(&key)).collect()
    }

    /// Drops all leases.
    pub(super) fn end_asked(&self) {
        self.asked.lock().retain(|_| false);
        self.ledger.asks().publish(None);
    }

    /// Finds out what became of each watch, publishes it to the next calls, and wakes the keys that must learn of it.
    ///
    /// Acquires and drops leases if it `may_change` them. Returns the leases that were found unsynced. One that syncs
    /// during this look is among them, so that the next look finds it ready.
    fn lease_asked(self: &Arc<Self>, may_change: bool) -> Vec<watch::Receiver<bool>> {
        let leased = &mut *self.asked.lock();
        leased.unsynced.clear();
        leased.missing.clear();
        let serving = self.serving();
        let grants = serving.access.grants();
        let asked: Vec<_> =
            self.ledger.asks().lock().watches().map(|(number, watch)| (number, watch.clone())).collect();
        let keyed: Vec<_> = asked.into_iter().map(|(number, watch)| (number, keys(&grants, &watch), watch)).collect();
        if may_change {
            let needed: BTreeSet<&InformerKey> = keyed.iter().flat_map(|(_, keys, _)| keys).collect();
            leased.retain(|key| needed.contains(key));
        }
        let (mut ready, mut lacking, mut answers) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (number, keys, watch) in &keyed {
            let answer = match self.find(leased, &serving.view, &grants, watch, keys, may_change) {
                Found::Ready(leases) => {
                    ready.extend(leases.into_iter().map(|lease| (lease.key().clone(), lease)));
                    Answer::Ready
                }
                Found::Pending(why) => {
                    lacking.push((watch.of.clone(), why));
                    Answer::Pending
                }
                Found::Refused(why) => {
                    lacking.push((watch.of.clone(), why));
                    Answer::Refused
                }
            };
            answers.push((*number, answer));
        }
        let wanted = leased.leases.values().map(|lease| Wanted {
            lease: lease.clone(),
            source: Source::Reads { awaited: false },
            when: Predicate::default(),
        });
        self.route(Part::Asked, wanted.collect());
        let cached = (!keyed.is_empty()).then(|| Cached {
            fixed: serving.view.clone(),
            view: serving.view.with(ready.into_values()),
            lacking,
        });
        self.ledger.asks().publish(cached);
        for (number, answer) in answers {
            let keys = self.ledger.asks().lock().settle(number, answer);
            self.wakes().wake_asking(keys);
        }
        std::mem::take(&mut leased.unsynced)
    }

    /// Finds out what became of one watch.
    fn find(
        &self,
        leased: &mut Leased,
        fixed: &View,
        grants: &Grants,
        watch: &Watch,
        keys: &[InformerKey],
        may_acquire: bool,
    ) -> Found {
        if keys.is_empty() {
            let namespace = watch.namespaces.first().map(String::as_str);
            let denied = grants.check(Verb::Read, &watch.of, None, namespace, None).err();
            return Found::Refused(denied.map_or_else(|| "not granted".to_owned(), |denied| denied.to_string()));
        }
        let (mut leases, mut pending) = (Vec::new(), None);
        for key in keys {
            // A lease would show the plugin what its account may not read.
            match grants.rights().map(|rights| (rights, rights.of(&key.into()))) {
                None | Some((_, Some(Right::Given))) => {}
                Some((rights, Some(Right::Lacking(why)))) => {
                    return Found::Refused(format!("the service account {} {why}", rights.account()));
                }
                Some((rights, None)) => {
                    let why =
                        format!("it is about to be checked what the service account {} may read", rights.account());
                    pending = pending.or(Some(Found::Pending(why)));
                    continue;
                }
            }
            // What the manifest caches needs no lease. Its reads do not fail when its kind goes.
            if let Some(lease) = fixed.leases().find(|lease| lease.key() == key) {
                if !*lease.synced().borrow() {
                    let lacks = leased.lacks(lease);
                    pending = pending.or(lacks);
                }
                continue;
            }
            let lease = match leased.leases.get(key) {
                Some(lease) => lease.clone(),
                None if !may_acquire => {
                    pending = pending.or_else(|| Some(Found::Pending("it is about to be watched".to_owned())));
                    continue;
                }
                None => match self.acquire(leased, watch, key) {
                    Ok(lease) => lease,
                    Err(why) => return Found::Refused(why),
                },
            };
            let lacks = leased.lacks(&lease);
            pending = pending.or(lacks);
            leases.push(lease);
        }
        pending.unwrap_or(Found::Ready(leases))
    }

    fn acquire(&self, leased: &mut Leased, watch: &Watch, key: &InformerKey) -> Result<Arc<Lease>, String> {
        if !leased.count.fits(1) {
            return Err("the plugin has as many watches as limits.watches allows".to_owned());
        }
        admits(leased.leases.keys(), key)?;
        let holder = self.plugin().as_str();
        let lease = Arc::new(if watch.compressed {
            self.informers.acquire_compressed(key.clone(), holder)
        } else {
            self.informers.acquire(key.clone(), holder)
        });
        leased.leases.insert(key.clone(), lease.clone());
        leased.count.add(1);
        Ok(lease)
    }
}

/// Returns the informers of a watch.
fn keys(grants: &Grants, watch: &Watch) -> Vec<InformerKey> {
    let key = |scope: Scope| watch.request_in(scope.namespace.as_deref(), scope.name.as_deref());
    grants.scopes(watch, NAMED).into_iter().map(key).collect()
}
