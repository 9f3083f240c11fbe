//! The arguments of leader election.

use std::time::Duration;

use anyhow::Context;
use pilothouse_core::election::Timings;
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
}

impl ElectionArgs {
    /// Returns the Lease and its timings by arguments, then the file, then defaults, or `None` if the host is alone.
    ///
    /// # Errors
    /// If two hosts could act at a time with the timings.
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
        if !self.leader_elect.or(file.leader_elect).unwrap_or(true) {
            return Ok(None);
        }
        Ok(Some(Lease {
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
}

impl Lease {
    /// Returns the options. The namespace is `default` where none is given.
    pub(super) fn in_namespace(self, default: &str) -> Options {
        let Self { namespace, name, timings } = self;
        Options { namespace: namespace.unwrap_or_else(|| default.to_owned()), name, timings }
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
            Some(args.or(file).unwrap()?.in_namespace("default"))
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
    fn timings_by_which_two_hosts_could_act_are_refused() {
        let args = ElectionArgs { leader_elect_lease_duration: Some(10), ..ElectionArgs::default() };
        let error = format!("{:#}", args.or(ElectionFile::default()).unwrap_err());
        assert!(error.contains("the Lease's duration (10s) must be longer"), "{error}");
    }
}
