//! Counts requests like kube-apiserver, so that the same queries work for both.
//!
//! ```text
//! apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",
//!                         subresource="",verb="POST",version="v1"} 3
//! ```
//!
//! A request is counted when it has been answered, and a watch when it ends.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use parking_lot::Mutex;

/// The labels of one counter. They have neither names nor namespaces, so their number is bounded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Labels {
    pub(crate) code: u16,
    pub(crate) dry_run: bool,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    /// `resource`, `namespace` or `cluster`.
    pub(crate) scope: &'static str,
    pub(crate) verb: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<Labels, u64>>,
}

impl Metrics {
    pub(crate) fn count(&self, labels: Labels) {
        *self.requests.lock().entry(labels).or_default() += 1;
    }

    /// Returns the counters in the Prometheus text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from(
            "# HELP apiserver_request_total Counter of apiserver requests broken out for each verb, dry run value, group, \
             version, resource, scope, component, and HTTP response code.\n# TYPE apiserver_request_total counter\n",
        );
        for (labels, count) in self.requests.lock().iter() {
            let Labels { code, dry_run, group, version, resource, subresource, scope, verb } = labels;
            let dry_run = if *dry_run { "All" } else { "" };
            writeln!(
                text,
                "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"{dry_run}\",group=\"{group}\",\
                 resource=\"{resource}\",scope=\"{scope}\",subresource=\"{subresource}\",verb=\"{verb}\",\
                 version=\"{version}\"}} {count}"
            )
            .expect("writing to a string succeeds");
        }
        text
    }
}

/// Counts a watch when it is dropped.
#[derive(Debug)]
pub(crate) struct OnEnd {
    pub(crate) server: Arc<crate::server::Server>,
    pub(crate) labels: Labels,
}

impl Drop for OnEnd {
    fn drop(&mut self) {
        self.server.metrics.count(self.labels.clone());
    }
}
