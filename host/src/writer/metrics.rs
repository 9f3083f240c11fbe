//! Writes by plugin, and what became of Events.

use std::{collections::BTreeMap, fmt, sync::Arc};

use parking_lot::Mutex;

use super::{Events, PluginEvents, WriteObserver};
use crate::metrics::{self, DescriptorEncoder, Registry, Series, counters};

/// Frequent writes. Their series begin at zero; those of other writes begin when they happen.
const USUAL: [(&str, &str); 6] = [
    ("apply", "success"),
    ("apply", "skipped"),
    ("apply", "deferred"),
    ("apply", "error"),
    ("delete", "success"),
    ("delete", "error"),
];

/// Counts writes by plugin.
pub type Writes = Series<Counts>;

/// One plugin's writes, by verb and result.
#[derive(Debug)]
pub struct Counts(Mutex<BTreeMap<(&'static str, &'static str), u64>>);

impl Default for Counts {
    fn default() -> Self {
        Self(Mutex::new(USUAL.map(|write| (write, 0)).into()))
    }
}

impl WriteObserver for Writes {
    fn wrote(&self, plugin: &str, verb: &'static str, result: &'static str) {
        if let Some(Counts(counts)) = self.get(plugin).as_deref() {
            *counts.lock().entry((verb, result)).or_default() += 1;
        }
    }
}

/// Registers what `writes` counts, and what became of the host's `events` and of those of plugins.
pub(crate) fn register(registry: &mut Registry, writes: &Arc<Writes>, plugins: &Arc<PluginEvents>, events: &Events) {
    let (writes, plugins, events) = (writes.clone(), plugins.clone(), events.clone());
    metrics::register(registry, move |encoder| {
        encode(&writes, encoder)?;
        let samples = events.figures().map(|(result, count)| ([("result", result)], count));
        let help = "Events by the host: created, counted as one more of the same, dropped as too many, or failed";
        counters(encoder, "pilothouse_events", help, samples)?;
        encode_events(&plugins, encoder)
    });
}

fn encode_events(plugins: &PluginEvents, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = plugins.all();
    let samples = all.iter().flat_map(|(plugin, counts)| {
        counts.iter().map(|(result, count)| ([("plugin", plugin.as_str()), ("result", result)], count))
    });
    let help = "Events by plugins: as for the host, or refused because the plugin may not write them";
    counters(encoder, "pilothouse_plugin_events", help, samples)
}

fn encode(writes: &Writes, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = writes.all();
    let samples = all.iter().flat_map(|(plugin, counts)| {
        let counts = counts.0.lock().clone();
        counts
            .into_iter()
            .map(|((verb, result), count)| ([("plugin", plugin.as_str()), ("verb", verb), ("result", result)], count))
    });
    let help = "Writes by the plugin's field manager; skipped are those that would have changed nothing";
    counters(encoder, "pilothouse_writes", help, samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_a_plugin_begin_at_zero_and_grow() {
        let writes = Arc::<Writes>::default();
        let mut registry = Registry::default();
        metrics::register(&mut registry, {
            let writes = writes.clone();
            move |encoder| encode(&writes, encoder)
        });
        writes.begin("myapple");
        writes.wrote("myapple", "apply", "skipped");
        writes.wrote("myapple", "create", "success");
        writes.wrote("unknown", "create", "success");
        insta::assert_snapshot!(metrics::samples(&registry, "pilothouse"), @r#"
        pilothouse_writes_total{plugin="myapple",verb="apply",result="deferred"} 0
        pilothouse_writes_total{plugin="myapple",verb="apply",result="error"} 0
        pilothouse_writes_total{plugin="myapple",verb="apply",result="skipped"} 1
        pilothouse_writes_total{plugin="myapple",verb="apply",result="success"} 0
        pilothouse_writes_total{plugin="myapple",verb="create",result="success"} 1
        pilothouse_writes_total{plugin="myapple",verb="delete",result="error"} 0
        pilothouse_writes_total{plugin="myapple",verb="delete",result="success"} 0
        "#);
    }
}
