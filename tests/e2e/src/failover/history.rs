//! What the hosts of a run asked of the API server, from its audit log.

use std::{collections::HashSet, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use pilothouse_core::spread::Table;
use pilothouse_real::audit::Event;

use super::judge::{At, Claim, Name, Write};

/// The name of the Lease of leader election.
const LEASE: &str = "pilothouse";

/// The annotation of the Lease that says who owns which plugin.
const TABLE: &str = "pilothouse.dev/table";

/// How much later than others a request may be logged.
const LATE: Duration = Duration::from_secs(60);

/// Claims and writes of the hosts.
#[derive(Debug, Default)]
pub(super) struct History {
    /// How the usernames of the hosts begin. The rest is a host's name.
    accounts: String,
    pub(super) claims: Vec<Claim>,
    pub(super) writes: Vec<Write>,
    /// Who owned which plugin, with the version of the Lease: only with `--spread`.
    tables: Vec<(u64, Table)>,
    /// Hosts and keys. They occur often.
    texts: HashSet<Arc<str>>,
}

impl History {
    /// Begins for the service accounts of a namespace.
    pub(super) fn of(namespace: &str) -> Self {
        Self { accounts: format!("system:serviceaccount:{namespace}:"), ..Self::default() }
    }

    /// Adds requests of the audit log. Those of others than the hosts are left out.
    pub(super) fn extend(&mut self, events: Vec<Event>) -> Result<()> {
        for event in events {
            let Some(host) = event.account().strip_prefix(&self.accounts).map(str::to_owned) else { continue };
            let host = self.text(&host);
            if event.object_ref.resource != "leases" {
                if event.is_write() {
                    let key = self.text(&key(&event));
                    self.writes.push(Write { host, key, received: event.received, done: event.done });
                }
            } else if event.is_write() && event.succeeded() && event.object_ref.name == LEASE {
                let claim = claim(host, &event)?;
                let table = event.request_object.pointer("/metadata/annotations").and_then(|all| all[TABLE].as_str());
                if let Some(table) = table {
                    let table = serde_json::from_str(table).context("not a table of owners")?;
                    self.tables.push((claim.version, table));
                }
                self.claims.push(claim);
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        self.texts.insert(new.clone());
        new
    }

    /// Returns all tables of owners, in order.
    pub(super) fn tables(&self) -> Vec<&Table> {
        let mut tables: Vec<&(u64, Table)> = self.tables.iter().collect();
        tables.sort_by_key(|(version, _)| *version);
        tables.into_iter().map(|(_, table)| table).collect()
    }

    /// Returns the host that holds the Lease, and when the server got its last claim.
    pub(super) fn holder(&self) -> Option<(Name, At)> {
        let last = self.claims.iter().max_by_key(|claim| claim.version).filter(|claim| claim.holds)?;
        Some((last.host.clone(), last.received))
    }

    /// Returns the first write of a host that the server got after a time.
    pub(super) fn first_write(&self, host: &str, after: At) -> Option<At> {
        // They are almost in order. A request that was answered late is logged late.
        let recent = self.writes.iter().rev().take_while(|write| write.done + LATE >= after);
        let own = recent.filter(|write| &*write.host == host && write.received >= after);
        own.map(|write| write.received).min()
    }

    /// Returns the host that took the Lease from this one after a time, and when the server got its claim.
    pub(super) fn successor(&self, host: &str, after: At) -> Option<(Name, At)> {
        let others = self.claims.iter().filter(|claim| claim.holds && &*claim.host != host && claim.received > after);
        others.min_by_key(|claim| claim.version).map(|claim| (claim.host.clone(), claim.received))
    }

    /// Returns when a host released the Lease.
    pub(super) fn release(&self, host: &str) -> Option<At> {
        self.claims.iter().rev().find(|claim| &*claim.host == host && !claim.holds).map(|claim| claim.received)
    }

    /// Number of writes of a host.
    pub(super) fn writes_of(&self, host: &str) -> usize {
        self.writes.iter().filter(|write| &*write.host == host).count()
    }
}

fn claim(host: Name, event: &Event) -> Result<Claim> {
    let version = event.response_object.pointer("/metadata/resourceVersion").and_then(|version| version.as_str());
    let version = version.and_then(|version| version.parse().ok()).context("a Lease was written and has no version")?;
    let holder = event.request_object.pointer("/spec/holderIdentity").and_then(|holder| holder.as_str());
    let holds = holder.is_some_and(|holder| !holder.is_empty());
    Ok(Claim { host, version, received: event.received, holds })
}

/// Returns for the sake of which object a host sent this. A child of the plugin `myapple` is named after its MyApple and a number, and an Event
/// after its object and some digits.
fn key(event: &Event) -> String {
    let object = &event.object_ref;
    let name = match &*object.resource {
        "myapples" => &object.name,
        "configmaps" => object.name.rsplit_once('-').map_or(&*object.name, |(apple, _)| apple),
        "events" => object.name.split_once('.').map_or(&*object.name, |(apple, _)| apple),
        other => return format!("{other} {}/{}", object.namespace, object.name),
    };
    format!("{}/{name}", object.namespace)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use pilothouse_real::audit::events;
    use serde_json::{Value, json};

    use super::*;

    fn event(host: &str, verb: &str, resource: &str, name: &str, code: u16) -> Value {
        json!({
            "verb": verb, "requestURI": "/", "user": {"username": format!("system:serviceaccount:red:{host}")},
            "objectRef": {"resource": resource, "namespace": "red", "name": name}, "responseStatus": {"code": code},
            "requestReceivedTimestamp": "1970-01-01T00:00:01.000000Z", "stageTimestamp": "1970-01-01T00:00:02.000000Z",
        })
    }

    fn lease(host: &str, holder: &str, version: &str, code: u16) -> Value {
        let mut event = event(host, "update", "leases", "pilothouse", code);
        event["requestObject"] = json!({"spec": {"holderIdentity": holder}});
        event["responseObject"] = json!({"metadata": {"resourceVersion": version}});
        event
    }

    fn history(lines: &[Value]) -> History {
        let mut history = History::of("red");
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        history.extend(events(lines.as_bytes()).unwrap()).unwrap();
        history
    }

    #[test]
    fn writes_count_by_the_object_for_whose_sake_they_were_sent() {
        let history = history(&[
            event("host-1", "patch", "myapples", "apple-7", 200),
            event("host-1", "patch", "configmaps", "apple-7-0", 409),
            event("host-2", "create", "events", "apple-7.1a2b", 201),
            event("host-2", "patch", "customresourcedefinitions", "all", 200),
            event("host-2", "get", "configmaps", "apple-7-0", 200),
        ]);
        let of: Vec<(&str, &str)> = history.writes.iter().map(|write| (&*write.host, &*write.key)).collect();
        let all = "customresourcedefinitions red/all";
        assert_eq!(
            of,
            [("host-1", "red/apple-7"), ("host-1", "red/apple-7"), ("host-2", "red/apple-7"), ("host-2", all)]
        );
        let (from, until) = (Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!((history.writes[0].received, history.writes[0].done), (from, until));
        assert_eq!(history.first_write("host-2", from), Some(from));
        assert_eq!(history.first_write("host-2", until), None);
    }

    #[test]
    fn only_claims_that_succeeded_count() {
        let mut history = history(&[lease("host-1", "a_1", "9", 200), lease("host-2", "b_2", "10", 409)]);
        assert_eq!(history.holder().unwrap().0.as_ref(), "host-1");
        let released = lease("host-1", "", "10", 200);
        history.extend(events(released.to_string().as_bytes()).unwrap()).unwrap();
        assert_eq!(history.holder(), None);
        assert_eq!(history.claims.len(), 2);
        assert!(history.writes.is_empty());
    }

    #[test]
    fn tables_of_owners_are_in_the_order_of_versions() {
        let table = |version: &str, text: &str| {
            let mut event = lease("host-1", "(spread)", version, 200);
            event["requestObject"]["metadata"] = json!({"annotations": {TABLE: text}});
            event
        };
        let history = history(&[table("10", r#"{"a":{"owner":"x"}}"#), table("9", "{}")]);
        let sizes: Vec<usize> = history.tables().iter().map(|table| table.0.len()).collect();
        assert_eq!(sizes, [0, 1]);
    }

    #[test]
    fn those_of_other_namespaces_are_left_out() {
        let mut other = event("host-1", "patch", "configmaps", "apple-7-0", 200);
        other["user"]["username"] = json!("system:serviceaccount:blue:host-1");
        assert!(history(&[other]).writes.is_empty());
    }
}
