//! `metrics`: the plugin's own metrics.

use pilothouse_core::series::Change;
use wasmtime::Result;

use super::{super::bindings::pilothouse::plugin::metrics, host_state::HostState, interface};

interface!(MetricsCall, "metrics", { Add = "add", Observe = "observe", Set = "set" });

/// What the caller supplies for `metrics`.
pub trait MetricsImports {
    /// Changes a series of a metric, if the manifest declares it and the plugin's bounds allow it. Otherwise counts the
    /// change as dropped.
    fn change(&self, metric: &str, labels: &[String], change: Change);
}

impl metrics::Host for HostState {
    fn add(&mut self, metric: String, labels: Vec<String>, value: f64) -> Result<()> {
        self.change(MetricsCall::Add, &metric, &labels, Change::Add(value))
    }

    fn set(&mut self, metric: String, labels: Vec<String>, value: f64) -> Result<()> {
        self.change(MetricsCall::Set, &metric, &labels, Change::Set(value))
    }

    fn observe(&mut self, metric: String, labels: Vec<String>, value: f64) -> Result<()> {
        self.change(MetricsCall::Observe, &metric, &labels, Change::Observe(value))
    }
}

impl HostState {
    fn change(&mut self, call: MetricsCall, metric: &str, labels: &[String], change: Change) -> Result<()> {
        let bytes = metric.len() + labels.iter().map(String::len).sum::<usize>();
        self.open(call, bytes)?.change(metric, labels, change);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::{
        super::{
            super::super::{
                limits::Limits,
                memory::PluginMemory,
                testing::{Fake, state},
            },
            host_state::{Closed, Excess},
        },
        *,
    };

    #[test]
    fn each_function_is_a_change() {
        let imports = Arc::new(Fake::default());
        let mut state = state(&imports);
        let red = || vec!["red".to_owned()];
        metrics::Host::add(&mut state, "seen_total".to_owned(), red(), 2.0).unwrap();
        metrics::Host::set(&mut state, "size".to_owned(), Vec::new(), 3.0).unwrap();
        metrics::Host::observe(&mut state, "took_seconds".to_owned(), red(), 4.0).unwrap();
        let changes = imports.changes.lock();
        assert_eq!(
            *changes,
            [
                ("seen_total".to_owned(), red(), Change::Add(2.0)),
                ("size".to_owned(), Vec::new(), Change::Set(3.0)),
                ("took_seconds".to_owned(), red(), Change::Observe(4.0)),
            ]
        );
    }

    #[test]
    fn labels_count_as_exchanged_and_calls_are_bounded() {
        let new = |limits| {
            HostState::new(Some(Arc::new(Fake::default())), limits, PluginMemory::default(), Duration::from_secs(1))
        };
        let mut state = new(Limits { host_bytes: 1 << 20, ..Limits::default() });
        let mut add = |bytes: usize| metrics::Host::add(&mut state, String::new(), vec!["x".repeat(bytes)], 1.0);
        add(1 << 20).unwrap();
        assert_eq!(add(1).unwrap_err().downcast_ref(), Some(&Excess::Bytes(1 << 20)));
        let mut state = new(Limits { host_calls: 1, ..Limits::default() });
        let mut add = || metrics::Host::add(&mut state, String::new(), Vec::new(), 1.0);
        add().unwrap();
        assert_eq!(add().unwrap_err().downcast_ref(), Some(&Excess::Calls(1)));
    }

    #[test]
    fn describe_changes_no_metric() {
        let mut state = HostState::new(None, Limits::default(), PluginMemory::default(), Duration::from_secs(1));
        let error = metrics::Host::add(&mut state, String::new(), Vec::new(), 1.0).unwrap_err();
        assert!(error.is::<Closed>(), "{error}");
    }
}
