//! The arguments of leader election and spread.

use std::time::Duration;

use anyhow::{Context, ensure};
use pilothouse_core::{election::Timings, spread};
use serde::Deserialize;

use crate::election::Options;

/// The Lease's name, where none is given.
const NAME: &str = "pilothouse";

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(super) struct ElectionArgs {
    /// Act only while this host holds a Lease; others stand by with full caches [default: true]
    ///
    /// With `false` the host needs no right on Leases, and must be the only one on the cluster.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) leader_elect: Option<bool>,
    /// The namespace of the Lease [default: the pod's, or that of the kubeconfig's context]
    #[arg(long, value_name = "NAMESPACE")]
    pub(super) leader_elect_resource_namespace: Option<String>,
    /// The name of the Lease [default: pilothouse]
    #[arg(long, value_name = "NAME")]
    pub(super) leader_elect_resource_name: Option<String>,
    /// Time without a renewal after which another host takes over [default: 15]
    #[arg(long, value_name = "SECONDS")]
    pub(super) leader_elect_lease_duration: Option<u64>,
    /// Time without a renewal after which this host acts no more [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub(super) leader_elect_renew_deadline: Option<u64>,
    /// Time between two renewals [default: 2]
    #[arg(long, value_name = "SECONDS")]
    pub(super) leader_elect_retry_period: Option<u64>,
    /// Share the plugins with the other hosts: each plugin has one of them as its owner, and all are active [default: false]
    ///
    /// All hosts with the same Lease need this. The host's account also needs `delete` on Leases in their namespace.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) spread: Option<bool>,
    /// What this host runs; in a rolling update, plugins go only to hosts of the youngest revision [default: the pod's ReplicaSet]
    #[arg(long, value_name = "TEXT")]
    pub(super) spread_revision: Option<String>,
}

/// The member `leaderElection` of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ElectionFile {
    leader_elect: Option<bool>,
    resource_namespace: Option<String>,
    resource_name: Option<String>,
    lease_duration_seconds: Option<u64>,
    renew_deadline_seconds: Option<u64>,
    retry_period_seconds: Option<u64>,
    spread: Option<bool>,
    spread_revision: Option<String>,
}

impl ElectionArgs {
    /// Returns the Lease and its timings by arguments, then the file, then defaults, or `None` if the host is alone.
    ///
    /// # Errors
    /// If two hosts could act at a time with the timings, or an argument contradicts another.
    pub(super) fn or(self, file: ElectionFile) -> anyhow::Result<Option<Lease>> {
        let defaults = Timings::default();
        let seconds = |argument: Option<u64>, member: Option<u64>, default: Duration| {
            argument.or(member).map_or(default, Duration::from_secs)
        };
        let timings = Timings {
            lease: seconds(self.leader_elect_lease_duration, file.lease_duration_seconds, defaults.lease),
            renew: seconds(self.leader_elect_renew_deadline, file.renew_deadline_seconds, defaults.renew),
            retry: seconds(self.leader_elect_retry_period, file.retry_period_seconds, defaults.retry),
        };
        timings.check().context("cannot use these timings of leader election")?;
        let spread = self.spread.or(file.spread).unwrap_or(false);
        let revision = self.spread_revision.or(file.spread_revision);
        ensure!(
            spread || revision.is_none(),
            "--spread-revision has no effect without --spread: add it, or leave both out"
        );
        if !self.leader_elect.or(file.leader_elect).unwrap_or(true) {
            ensure!(
                !spread,
                "a host with --leader-elect=false acts for all plugins, and cannot share them: leave out either this or --spread"
            );
            return Ok(None);
        }
        Ok(Some(Lease {
            spread: spread.then_some(revision),
            namespace: self.leader_elect_resource_namespace.or(file.resource_namespace),
            name: self.leader_elect_resource_name.or(file.resource_name).unwrap_or_else(|| NAME.to_owned()),
            timings,
        }))
    }
}

/// The Lease as it is configured.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lease {
    namespace: Option<String>,
    name: String,
    timings: Timings,
    /// With spread: what the host runs, if that is given.
    #[allow(clippy::option_option, reason = "the outer one is the mode")]
    spread: Option<Option<String>>,
}

impl Lease {
    /// Returns the options. The namespace is `default` where none is given, and the revision is that of the pod `machine`.
    pub(super) fn in_namespace(self, default: &str, machine: &str) -> Options {
        let Self { namespace, name, timings, spread } = self;
        let revision = spread.map(|given| given.unwrap_or_else(|| spread::revision(machine).to_owned()));
        Options { namespace: namespace.unwrap_or_else(|| default.to_owned()), name, timings, revision }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    #[test]
    fn a_host_stands_for_election_unless_it_is_told_to_be_alone() {
        let options = |args: ElectionArgs, file: &str| {
            let file: ElectionFile = serde_saphyr::from_str(file).unwrap();
            Some(args.or(file).unwrap()?.in_namespace("default", "house-7d4b9c6f5-x2x9z"))
        };
        let by_default = options(ElectionArgs::default(), "{}").unwrap();
        assert_eq!((&*by_default.namespace, &*by_default.name), ("default", "pilothouse"));
        assert_eq!(by_default.timings, Timings::default());
        assert_eq!(options(ElectionArgs::default(), "leaderElect: false"), None);
        let args = ElectionArgs {
            leader_elect: Some(true),
            leader_elect_resource_name: Some("other".to_owned()),
            leader_elect_lease_duration: Some(60),
            ..ElectionArgs::default()
        };
        let file = "{leaderElect: false, resourceName: x, resourceNamespace: a, renewDeadlineSeconds: 40}";
        let given = options(args, file).unwrap();
        assert_eq!((&*given.namespace, &*given.name), ("a", "other"));
        assert_eq!((given.timings.lease, given.timings.renew), (Duration::from_secs(60), Duration::from_secs(40)));
    }

    #[test]
    fn a_host_shares_the_plugins_if_it_is_asked_to_and_not_alone() {
        let revision = |args: ElectionArgs, file: &str| {
            let lease = args.or(serde_saphyr::from_str(file).unwrap())?.unwrap();
            anyhow::Ok(lease.in_namespace("default", "house-7d4b9c6f5-x2x9z").revision)
        };
        let spread = || ElectionArgs { spread: Some(true), ..ElectionArgs::default() };
        assert_eq!(revision(ElectionArgs::default(), "{}").unwrap(), None);
        assert_eq!(revision(spread(), "{}").unwrap().as_deref(), Some("house-7d4b9c6f5"));
        assert_eq!(revision(spread(), "spreadRevision: b").unwrap().as_deref(), Some("b"));
        let given = ElectionArgs { spread_revision: Some("a".to_owned()), ..ElectionArgs::default() };
        assert_eq!(revision(given, "spread: true").unwrap().as_deref(), Some("a"));
        let error = revision(spread(), "leaderElect: false").unwrap_err().to_string();
        assert!(error.ends_with("leave out either this or --spread"), "{error}");
        let error = revision(ElectionArgs::default(), "spreadRevision: b").unwrap_err().to_string();
        assert!(error.starts_with("--spread-revision has no effect without --spread"), "{error}");
    }

    #[test]
    fn timings_by_which_two_hosts_could_act_are_refused() {
        let args = ElectionArgs { leader_elect_lease_duration: Some(10), ..ElectionArgs::default() };
        let error = format!("{:#}", args.or(ElectionFile::default()).unwrap_err());
        assert!(error.contains("the Lease's duration (10s) must be longer"), "{error}");
    }
}
