//! The figures of all rooms, registered for `/metrics`.

use std::{sync::Arc, time::Duration};

use crate::{
    admin, cluster, dispatch, guests, informer,
    metrics::Registry,
    name::PluginName,
    outbound,
    plugin::{self, Stage, State, Status},
    spread, wasm, webhook, writer,
};

/// What is counted of plugins, in the rooms that count it.
///
/// A plugin's series begin in all rooms when it is first heard of, and end when it is gone.
#[derive(Clone, Default)]
pub(super) struct Counters {
    loads: Arc<plugin::metrics::Loads>,
    pub(super) calls: Arc<dispatch::metrics::Calls>,
    pub(super) writes: Arc<writer::metrics::Writes>,
    pub(super) events: Arc<writer::PluginEvents>,
    pub(super) requests: Arc<outbound::metrics::Requests>,
    pub(super) webhooks: Arc<webhook::Board>,
}

impl Counters {
    /// Registers the figures of the host's parts.
    pub(super) fn register(&self, view: &admin::View, events: &writer::Events) -> Registry {
        let mut registry = Registry::default();
        dispatch::metrics::register(&mut registry, &self.calls, &view.dispatch);
        plugin::metrics::register(&mut registry, &self.loads);
        writer::metrics::register(&mut registry, &self.writes, &self.events, events);
        outbound::metrics::register(&mut registry, &self.requests);
        self.webhooks.register(&mut registry);
        informer::metrics::register(&mut registry, &view.informers);
        wasm::metrics::register(&mut registry, &view.engine);
        guests::metrics::register(&mut registry, &view.guests);
        cluster::metrics::register(&mut registry, &view.cluster);
        spread::register_metrics(&mut registry, &view.sharing);
        admin::register(&mut registry);
        registry
    }

    fn begin(&self, plugin: &PluginName) {
        self.loads.begin(plugin.as_str());
        self.calls.begin(plugin.as_str());
        self.writes.begin(plugin.as_str());
        self.events.begin(plugin.as_str());
        self.requests.begin(plugin.as_str());
    }

    fn remove(&self, plugin: &PluginName) {
        self.loads.remove(plugin.as_str());
        self.calls.remove(plugin.as_str());
        self.writes.remove(plugin.as_str());
        self.events.remove(plugin.as_str());
        self.requests.remove(plugin.as_str());
    }
}

impl plugin::Observer for Counters {
    fn changed(&self, status: &Status) {
        if status.state == State::Gone {
            self.remove(&status.plugin);
        } else {
            self.begin(&status.plugin);
            self.loads.changed(status);
        }
    }

    fn failed(&self, plugin: &PluginName, stage: Stage, kind: &'static str) {
        self.begin(plugin);
        self.loads.failed(plugin, stage, kind);
    }

    fn activated(&self, plugin: &PluginName, took: Duration) {
        self.begin(plugin);
        self.loads.activated(plugin, took);
    }
}

#[cfg(test)]
mod tests;
