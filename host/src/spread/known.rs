//! All Leases that concern the sharing of plugins, as they were at one moment.

use std::{collections::BTreeMap, time::Duration};

use pilothouse_core::spread::{Live, Look, Replica, Table};
use serde_json::Value;

use crate::{
    acting,
    cluster::{Cluster, Error, Select},
    election::{
        Options,
        leases::{self, Watch, metadata},
    },
};

/// The annotation of a host's own Lease that names the Lease with the table.
pub(super) const SHARES: &str = "pilothouse.dev/spread";

/// The annotation of a host's own Lease with what it runs.
pub(super) const REVISION: &str = "pilothouse.dev/revision";

/// The annotation of a host's own Lease with the items that it can own: a JSON list.
pub(super) const ITEMS: &str = "pilothouse.dev/plugins";

/// The annotation with the table: JSON.
pub(super) const TABLE: &str = "pilothouse.dev/table";

/// Leases by one list, and by the watch from it on.
pub(super) struct Known {
    cluster: Cluster,
    namespace: String,
    table: String,
    leases: BTreeMap<Box<str>, Value>,
    watch: Option<Watch>,
    /// When the list or the last change came.
    heard_at: Duration,
    /// No list is sent before this.
    list_at: Duration,
    retry: Duration,
}

impl Known {
    /// Knows nothing yet.
    pub(super) fn new(cluster: Cluster, options: &Options) -> Self {
        let Options { namespace, name, timings, .. } = options;
        Self {
            cluster,
            namespace: namespace.clone(),
            table: name.clone(),
            leases: BTreeMap::new(),
            watch: None,
            heard_at: Duration::ZERO,
            list_at: Duration::ZERO,
            retry: timings.retry,
        }
    }

    /// Returns `true` if a list is due: there is no watch, or nothing was heard for `silence`. The renewals of the host's own Lease come more often.
    pub(super) fn is_due(&self, now: Duration, silence: Duration) -> bool {
        now >= self.list_at && (self.watch.is_none() || now.saturating_sub(self.heard_at) > silence)
    }

    /// Has the next list come at once.
    pub(super) fn forget(&mut self) {
        (self.watch, self.list_at) = (None, Duration::ZERO);
    }

    /// Lists all Leases, and opens the watch.
    pub(super) async fn list(&mut self) -> Result<(), Error> {
        self.watch = None;
        // A server that ends each watch at once is not asked without a pause.
        self.list_at = acting::now() + self.retry;
        let select = Select {
            namespace: Some(&self.namespace),
            labels: String::new(),
            fields: String::new(),
            metadata_only: false,
        };
        let (objects, version) = leases::list(&self.cluster, &select).await?;
        let watch = Watch::open(&self.cluster, &select, &version).await?;
        let named = objects.into_iter().map(|lease| (Box::<str>::from(metadata(&lease, "name")), lease));
        self.leases = named.filter(|(name, lease)| concerns(&self.table, name, lease)).collect();
        (self.watch, self.heard_at) = (Some(watch), acting::now());
        Ok(())
    }

    /// Waits until something has changed, or a list is due. For ever if the watch is not open.
    ///
    /// # Cancellation
    /// Safe.
    pub(super) async fn changed(&mut self) {
        let Some(watch) = &mut self.watch else { return std::future::pending().await };
        loop {
            let Some(change) = watch.next().await else {
                // It has ended, or the version is too old.
                self.watch = None;
                return;
            };
            self.heard_at = acting::now();
            let name = metadata(&change.object, "name");
            if concerns(&self.table, name, &change.object) {
                if change.is_gone {
                    self.leases.remove(name);
                } else {
                    self.leases.insert(name.into(), change.object);
                }
                return;
            }
        }
    }

    /// Returns a Lease.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.leases.get(name)
    }

    /// Returns the Lease with the table.
    pub(super) fn table(&self) -> Option<&Value> {
        self.leases.get(&*self.table)
    }

    /// Returns the hosts' own Leases, by name.
    pub(super) fn hosts(&self) -> impl Iterator<Item = (&Box<str>, &Value)> {
        self.leases.iter().filter(|(name, _)| ***name != *self.table)
    }

    /// Returns who owns what, and who is there.
    pub(super) fn look(&self) -> Look {
        let live: Live = self.hosts().map(|(name, lease)| (name.clone(), replica(lease))).collect();
        let (table, version) = match self.table() {
            Some(lease) => (table(lease), Some(metadata(lease, "resourceVersion").into())),
            None => (Table::default(), None),
        };
        Look { table, version, live }
    }
}

/// `true` if it is the Lease with this table, or that of a host that shares it.
fn concerns(table: &str, name: &str, lease: &Value) -> bool {
    name == table || annotation(lease, SHARES) == table
}

fn annotation<'a>(lease: &'a Value, name: &str) -> &'a str {
    lease["metadata"]["annotations"][name].as_str().unwrap_or_default()
}

/// Returns the table of a Lease. One that is not valid has no owners.
fn table(lease: &Value) -> Table {
    serde_json::from_str(annotation(lease, TABLE)).unwrap_or_default()
}

fn replica(lease: &Value) -> Replica {
    Replica {
        born: metadata(lease, "creationTimestamp").into(),
        revision: annotation(lease, REVISION).into(),
        items: serde_json::from_str(annotation(lease, ITEMS)).unwrap_or_default(),
    }
}
