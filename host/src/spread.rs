//! Spread: several hosts act at a time, and each plugin has one of them as its owner.
//!
//! ```text
//! all Leases ─► one list, then a watch ─► Spread (core) ─┬─► part of each plugin ─► its switch (Acting)
//!                                                       └─► the table as it should be ─► API server
//! its own Lease ─► renewed ─► how long a switch may be on
//! ```
//!
//! [`pilothouse_core::spread`] decides who owns what, and `docs/design/leases.md` says why no two hosts act for a plugin. This file renews the
//! host's own Lease, removes those of hosts that are gone, writes the table, and turns the switches.
//!
//! The Lease with the table is the one of leader election. While hosts share the plugins, it is held by [`ALL`] of them together, and the owner of
//! the host's own work renews it now and then. So hosts with leader election stand by meanwhile, and these hosts stand by while another one
//! holds it.
//!
//! - `known`: all Leases as they were last seen
//! - `owners`: who acts, for those who look at the host
//! - `meter`: what each plugin uses

mod known;
mod meter;
mod owners;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pilothouse_core::{
    election::{Election, Next, Timings},
    object::Uid,
    spread::{HOST, Part, Spread, Table},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(crate) use self::owners::{Owners, Sharing, register_metrics};
use self::{
    known::{ITEMS, Known, REVISION, SHARES, TABLE},
    meter::Meter,
};
use crate::{
    acting::{self, Acting, Switches},
    cluster::{Cluster, DeleteOptions, Error, WriteOptions},
    election::{
        Options, Terms,
        leases::{MANAGER, RELEASE, kind, merged, metadata, parse, record, time},
    },
};

/// The holder of the Lease with the table: all hosts that share the plugins.
const ALL: &str = "(spread)";

/// How many times longer than a host's own Lease the one with the table lasts. Before that, another host does its owner's work.
const TABLE_LASTS: u32 = 4;

/// How long a host waits for its plugins and caches before it joins the others.
const WARM_WITHIN: Duration = Duration::from_secs(30);

/// Time between two looks whether they are ready.
const WARM_LOOK: Duration = Duration::from_millis(50);

/// Time between two renewals of its own Lease, if the host's plugins change one by one.
const ANNOUNCE: Duration = Duration::from_millis(250);

/// How long nothing has changed before it counts no more how often a plugin has moved.
const REST: Duration = Duration::from_secs(600);

/// What spread needs of the host.
pub(crate) trait Items: Terms {
    /// Returns the items for which this host could act.
    fn items(&self) -> BTreeSet<Box<str>>;

    /// Returns the processor time of each plugin since some moment.
    fn used(&self) -> BTreeMap<Box<str>, Duration>;
}

/// A host that shares the plugins with others.
pub(crate) struct Participant {
    cluster: Cluster,
    owners: Owners,
    revision: String,
    machine: String,
    spread: Spread,
    own: Own,
    known: Known,
    /// The Leases of the others.
    others: BTreeMap<Box<str>, Election>,
    /// The versions of expired Leases that need no removal by this host any more.
    removed: BTreeMap<Box<str>, String>,
    table: TableLease,
    /// Neither owners nor hosts have changed since.
    rests_since: Duration,
    /// Items for which it has acted.
    acted: BTreeSet<Box<str>>,
    meter: Meter,
}

/// The host's own Lease.
struct Own {
    election: Election,
    /// As it was last answered. `None` if it is not known.
    lease: Option<Value>,
    /// Until when this host may act.
    until: Duration,
    renew_at: Duration,
    /// The items that it lists.
    items: BTreeSet<Box<str>>,
    announce_at: Duration,
}

impl Own {
    fn new(name: &str, timings: Timings) -> Self {
        let election = Election::new(name, timings);
        let (until, items) = (Duration::ZERO, BTreeSet::new());
        Self { election, lease: None, until, renew_at: Duration::ZERO, items, announce_at: Duration::ZERO }
    }
}

/// The Lease with the table.
struct TableLease {
    election: Election,
    version: String,
    /// When this version was first seen.
    seen_at: Duration,
    /// The version that was replaced: by this host, or by another one that was quicker.
    replaced: Option<String>,
    /// Not before this time, after a write that failed.
    write_at: Duration,
}

impl Participant {
    /// Creates a host that turns `switches` on while it owns their items. `cluster` must not be fenced. `machine` is part of its Leases' names.
    pub(crate) fn new(options: Options, cluster: Cluster, switches: Switches, machine: &str) -> Self {
        let name = lease_name(machine);
        let timings = Timings { lease: options.timings.lease * TABLE_LASTS, ..options.timings };
        let table = TableLease {
            election: Election::new(ALL, timings),
            version: String::new(),
            seen_at: Duration::ZERO,
            replaced: None,
            write_at: Duration::ZERO,
        };
        Self {
            spread: Spread::new(&name),
            own: Own::new(&name, options.timings),
            known: Known::new(cluster.clone(), &options),
            revision: options.revision.clone().unwrap_or_default(),
            owners: Owners::new(options, switches),
            machine: machine.to_owned(),
            cluster,
            others: BTreeMap::new(),
            removed: BTreeMap::new(),
            table,
            rests_since: Duration::ZERO,
            acted: BTreeSet::new(),
            meter: Meter::default(),
        }
    }

    /// Returns a handle that says who acts.
    pub(crate) fn owners(&self) -> Owners {
        self.owners.clone()
    }

    /// Joins the others when `is_warm`, takes part until `stop`, and then gives its Lease up. Until then nothing that acts may be left.
    pub(crate) async fn run(
        mut self,
        items: &impl Items,
        is_warm: impl Fn() -> bool + Send + Sync,
        stop: CancellationToken,
    ) {
        if stop.run_until_cancelled(warm(is_warm)).await.is_none() {
            return;
        }
        while stop.run_until_cancelled(self.turn(items)).await.is_some() {}
        self.forbid();
        match timeout(RELEASE, self.leave()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(%error, "cannot remove this host's Lease; others take its plugins when its time is over");
            }
            Err(_) => warn!("cannot remove this host's Lease in time; others take its plugins when its time is over"),
        }
    }

    fn options(&self) -> &Options {
        self.owners.options()
    }

    fn forbid(&self) {
        self.owners.switches().all().values().for_each(Acting::forbid);
    }

    /// Does what is due, and waits until something changes or is due again.
    async fn turn(&mut self, items: &impl Items) {
        let next = match self.step(items).await {
            Ok(next) => {
                self.owners.record_error(None);
                next
            }
            Err(error) if error.is_conflict() => acting::now() + Duration::from_millis(1),
            Err(error) => {
                self.report(&error);
                acting::now() + self.options().timings.retry
            }
        };
        let pause = next.saturating_sub(acting::now());
        tokio::select! {
            () = sleep(pause) => {}
            () = self.known.changed() => {}
            () = self.owners.switches().changed() => {}
        }
    }

    fn report(&self, error: &Error) {
        let namespace = &self.options().namespace;
        let error = error.to_string();
        if self.owners.record_error(Some(error.clone())) {
            warn!(
                error,
                "cannot share the plugins by Leases of {namespace}: the host's account needs list, watch, create, update and delete of \
                leases.coordination.k8s.io there"
            );
        }
    }

    /// Does what is due. Returns when something is due again.
    async fn step(&mut self, items: &impl Items) -> Result<Duration, Error> {
        let mine = items.items();
        if self.own.lease.is_some() {
            self.renew(&mine).await?;
        }
        if self.known.is_due(acting::now(), self.options().timings.renew) {
            let listed = timeout(self.patience(), self.known.list()).await;
            listed.unwrap_or_else(|_| Err(late()))?;
            if self.own.lease.is_none() {
                // An earlier request has arrived.
                self.own.lease = self.known.get(self.spread.name()).cloned();
                if self.own.lease.is_some() {
                    self.own.renew_at = Duration::ZERO;
                }
            }
        }
        self.see();
        if self.own.lease.is_none() {
            self.renew(&mine).await?;
        }
        self.turn_switches(items);
        let expires = self.remove_expired().await?;
        let write = self.write_table(items).await?;
        let announce = if mine == self.own.items { Duration::MAX } else { self.own.announce_at };
        Ok([self.own.renew_at, expires, write, announce].into_iter().min().unwrap_or_default())
    }

    /// Time for one request. There are two of them before this host may act no more.
    fn patience(&self) -> Duration {
        self.options().timings.renew / 2
    }

    async fn in_time<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        timeout(self.patience(), request).await.unwrap_or_else(|_| Err(late()))
    }

    /// Creates or renews the host's own Lease, if that is due.
    async fn renew(&mut self, mine: &BTreeSet<Box<str>>) -> Result<(), Error> {
        let sent = acting::now();
        let is_news = *mine != self.own.items && sent >= self.own.announce_at;
        if sent < self.own.renew_at && !is_news {
            return Ok(());
        }
        (self.own.renew_at, self.own.announce_at) = (sent + self.options().timings.retry, sent + ANNOUNCE);
        let Options { namespace, name: table, .. } = self.options();
        let name = self.spread.name();
        let spec = json!(self.own.election.claim(&time()));
        let mut object = self.own.lease.clone().unwrap_or_else(|| {
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": namespace},
            })
        });
        object["spec"] = merged(object["spec"].take(), spec);
        for (annotation, text) in [(SHARES, table), (REVISION, &self.revision), (ITEMS, &json!(mine).to_string())] {
            object["metadata"]["annotations"][annotation] = text.as_str().into();
        }
        let body = object.to_string().into_bytes();
        let answer = self.in_time(async {
            if self.own.lease.is_some() {
                let options = WriteOptions { manager: MANAGER, subresource: None };
                self.cluster.update(&kind(), Some(namespace), name, body, options).await
            } else {
                self.cluster.create(&kind(), Some(namespace), body, MANAGER).await
            }
        });
        let answer = answer.await.and_then(|answer| parse(&answer, name));
        match answer {
            // An update creates what does not exist: the Lease was removed, and others own its plugins.
            Ok(lease) if self.own.lease.as_ref().is_some_and(|own| metadata(own, "uid") != metadata(&lease, "uid")) => {
                self.begin_anew();
                self.known.forget();
                Ok(())
            }
            Ok(lease) => {
                self.own.election.see(sent, Some(record(&lease)));
                self.own.until = self.own.election.may_act_until(sent);
                self.own.items.clone_from(mine);
                self.own.lease = Some(lease);
                Ok(())
            }
            Err(error) => {
                if error.is_conflict() || error.is_not_found() {
                    // It is there already, was edited, or is gone.
                    self.own.lease = None;
                    self.known.forget();
                }
                Err(error)
            }
        }
    }

    /// Takes note of all Leases as they are known now.
    fn see(&mut self) {
        let now = acting::now();
        let own = self.spread.name();
        let timings = self.options().timings;
        for (name, lease) in self.known.hosts().filter(|(name, _)| ***name != *own) {
            // Nobody's name: what another host holds is free for this one when its time is over.
            let other = self.others.entry(name.clone()).or_insert_with(|| Election::new("", timings));
            other.see(now, Some(record(lease)));
        }
        self.others.retain(|name, _| self.known.get(name).is_some());
        self.removed.retain(|name, _| self.known.get(name).is_some());
        let table = self.known.table();
        self.table.election.see(now, table.map(record));
        let version = table.map(|table| metadata(table, "resourceVersion").to_owned()).unwrap_or_default();
        if version != self.table.version {
            (self.table.version, self.table.seen_at) = (version, now);
        }
        let leader = match self.table.election.next(now) {
            Next::Wait(_) => self.table.election.holder().map(str::to_owned),
            Next::Take => None,
        };
        let (look, before) = (self.known.look(), self.spread.look());
        if look != *before {
            if (&look.table, &look.live) != (&before.table, &before.live) {
                self.rests_since = now;
            }
            if !self.spread.see(look.clone()) {
                self.begin_anew();
                self.spread.see(look);
            }
        }
        self.owners.record(&self.spread, leader);
    }

    /// Goes on under another name, after its own Lease was lost.
    fn begin_anew(&mut self) {
        self.forbid();
        let (before, name) = (self.spread.name().to_owned(), lease_name(&self.machine));
        warn!(
            lease = before,
            next = name,
            "this host has lost its Lease, and its plugins are others'; it joins them again"
        );
        let timings = self.options().timings;
        self.spread = Spread::new(&name);
        // If this process was stopped, its caches have to catch up.
        self.own = Own { renew_at: acting::now() + timings.retry, ..Own::new(&name, timings) };
    }

    /// Turns each switch as its item's part is now.
    fn turn_switches(&mut self, items: &impl Items) {
        let (now, until, switches) = (acting::now(), self.own.until, self.owners.switches().all());
        let is_led = matches!(self.table.election.next(now), Next::Wait(_));
        self.acted.retain(|item| switches.contains_key(item));
        for (item, acting) in switches {
            let part = if is_led { Part::None } else { self.spread.part(&item) };
            match part {
                Part::Owns if acting.is_allowed() => acting.allow_until(until),
                // Calls of its last term could write what is out of date.
                Part::Owns if until > now && acting.is_over() => {
                    acting.allow_until(until);
                    info!(plugin = &*item, "this host acts for the plugin from now on");
                    let is_again = !self.acted.insert(item.clone());
                    items.begins(Some(&item), is_again);
                }
                Part::Leaves if acting.is_allowed() => {
                    if acting.may_begin() {
                        info!(plugin = &*item, "this host hands the plugin over when its calls are over");
                    }
                    acting.finish_until(until);
                }
                Part::Owns | Part::Leaves => {}
                Part::None => {
                    if acting.is_allowed() {
                        info!(plugin = &*item, "this host acts for the plugin no more");
                    }
                    acting.forbid();
                }
            }
        }
    }

    /// Removes the Leases of hosts that are gone. Returns when the next one expires.
    async fn remove_expired(&mut self) -> Result<Duration, Error> {
        let (now, mut next, mut expired) = (acting::now(), Duration::MAX, Vec::new());
        for (name, other) in &self.others {
            match other.next(now) {
                Next::Wait(until) => next = next.min(until),
                Next::Take => expired.push(name.clone()),
            }
        }
        for name in expired {
            let Some(lease) = self.known.get(&name) else { continue };
            let version = metadata(lease, "resourceVersion").to_owned();
            if self.removed.get(&name) == Some(&version) {
                continue;
            }
            let options = DeleteOptions {
                propagation: "Background",
                uid: Some(Uid::parse(metadata(lease, "uid"))),
                resource_version: Some(version.clone()),
            };
            let namespace = &self.options().namespace;
            match self.in_time(self.cluster.delete(&kind(), Some(namespace), &name, &options)).await {
                Ok(_) => info!(lease = &*name, "removed the Lease of a host that is gone"),
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error),
            }
            self.removed.insert(name, version);
        }
        Ok(next)
    }

    /// Writes the table if it is not as it should be. Returns when to look again.
    async fn write_table(&mut self, items: &impl Items) -> Result<Duration, Error> {
        let now = acting::now();
        if let Next::Wait(until) = self.table.election.next(now) {
            return Ok(until);
        }
        if self.table.replaced.as_ref() == Some(&self.table.version) {
            return Ok(Duration::MAX);
        }
        if now < self.table.write_at {
            return Ok(self.table.write_at);
        }
        let switches = self.owners.switches().all();
        let owned = |item: &str| self.spread.part(item) == Part::Owns;
        self.meter.look(now, owned, || items.used());
        let is_over = |item: &str| switches.get(item).is_none_or(Acting::is_over);
        let is_at_rest = now.saturating_sub(self.rests_since) >= REST;
        let planned = self.spread.next(is_over, |item| self.meter.weight(item), is_at_rest);
        // It stops before the request that gives an item away.
        self.turn_switches(items);
        let lasts = self.options().timings.lease;
        let is_old = self.spread.part(HOST) == Part::Owns && now >= self.table.seen_at + lasts;
        let Some(table) = planned.or_else(|| is_old.then(|| self.spread.look().table.clone())) else {
            return Ok(Duration::MAX);
        };
        let written = self.in_time(self.put(&table)).await;
        match written {
            Err(error) if !error.is_conflict() => {
                self.table.write_at = acting::now() + self.options().timings.retry;
                Err(error)
            }
            _ => {
                self.table.replaced = Some(self.table.version.clone());
                Ok(Duration::MAX)
            }
        }
    }

    /// Replaces the version of the last look by this table.
    async fn put(&self, table: &Table) -> Result<(), Error> {
        let Options { namespace, name, .. } = self.options();
        let known = self.known.table();
        let mut object = known.cloned().unwrap_or_else(|| {
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": namespace},
            })
        });
        object["metadata"]["annotations"][TABLE] = json!(table).to_string().into();
        object["spec"] = merged(object["spec"].take(), json!(self.table.election.claim(&time())));
        let body = object.to_string().into_bytes();
        if known.is_some() {
            let options = WriteOptions { manager: MANAGER, subresource: None };
            self.cluster.update(&kind(), Some(namespace), name, body, options).await?;
        } else {
            self.cluster.create(&kind(), Some(namespace), body, MANAGER).await?;
        }
        Ok(())
    }

    /// Removes the host's own Lease. The last host gives up the table, too.
    async fn leave(&mut self) -> Result<(), Error> {
        let Options { namespace, name, .. } = &self.options().clone();
        let options = DeleteOptions { propagation: "Background", ..DeleteOptions::default() };
        match self.cluster.delete(&kind(), Some(namespace), self.spread.name(), &options).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => info!(lease = self.spread.name(), "removed this host's Lease"),
        }
        // A request that was given up half way may have arrived.
        self.known.list().await?;
        let is_last = self.known.hosts().next().is_none();
        let Some(mut object) = self.known.table().filter(|_| is_last).cloned() else { return Ok(()) };
        self.table.election.see(acting::now(), Some(record(&object)));
        let Some(released) = self.table.election.release(&time()) else { return Ok(()) };
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove(TABLE);
        }
        object["spec"] = merged(object["spec"].take(), json!(released));
        let options = WriteOptions { manager: MANAGER, subresource: None };
        match self.cluster.update(&kind(), Some(namespace), name, object.to_string().into_bytes(), options).await {
            // Another host has joined.
            Err(error) if error.is_conflict() => Ok(()),
            written => written.map(drop),
        }
    }
}

fn late() -> Error {
    Error::Unreachable("timed out".to_owned())
}

/// Waits until the plugins are loaded and the caches are full, but not for long: otherwise a plugin that takes minutes to compile would keep this
/// host from acting for all others.
async fn warm(is_warm: impl Fn() -> bool) {
    let until = Instant::now() + WARM_WITHIN;
    while !is_warm() && Instant::now() < until {
        sleep(WARM_LOOK).await;
    }
}

/// Returns a name that no Lease had before.
fn lease_name(machine: &str) -> String {
    let is_fit = |char: &char| char.is_ascii_alphanumeric() || *char == '-';
    let machine: String =
        machine.chars().map(|char| if is_fit(&char) { char.to_ascii_lowercase() } else { '-' }).collect();
    let machine = machine.trim_matches('-');
    let machine = if machine.is_empty() { "pilothouse" } else { machine };
    let mut unique = uuid::Uuid::new_v4().simple().to_string();
    unique.truncate(12);
    format!("{machine}-{unique}")
}

#[cfg(test)]
mod tests;
