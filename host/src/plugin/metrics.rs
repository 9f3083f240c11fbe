//! What becomes of each plugin's files.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::{Observer, Stage, Status};
use crate::{
    metrics::{self, DescriptorEncoder, Registry, Series, counters, gauges},
    name::PluginName,
};

/// Of `pilothouse_plugin_load_failures_total`.
const LOAD_FAILURES: &str = "Files that did not come to serve, by the step that failed and why: of a call of describe what pilothouse_traps \
                             says, refused or manifest; of a compiler deadline, memory, stack, died or host; decode, link, grants, cluster";

/// Failures that happen to most plugins some day. They begin at zero, others when they happen.
const USUAL: [(&str, &str); 11] = [
    ("settings", "decode"),
    ("compile", "decode"),
    ("link", "link"),
    ("describe", "deadline"),
    ("describe", "manifest"),
    ("describe", "memory"),
    ("describe", "refused"),
    ("describe", "stack"),
    ("describe", "trap"),
    ("verify", "grants"),
    ("activate", "cluster"),
];

/// Counts what becomes of plugins' files, by plugin. `app` begins and ends the series.
pub(crate) type Loads = Series<Load>;

/// What is counted of one plugin's files.
#[derive(Debug)]
pub(crate) struct Load {
    active: AtomicBool,
    /// Revisions that came to serve.
    served: AtomicU64,
    /// By stage and kind.
    failures: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
}

impl Default for Load {
    fn default() -> Self {
        let failures = Mutex::new(USUAL.map(|failure| (failure, 0)).into());
        Self { active: AtomicBool::new(false), served: AtomicU64::new(0), failures }
    }
}

impl Observer for Loads {
    fn changed(&self, status: &Status) {
        if let Some(load) = self.get(status.plugin.as_str()) {
            load.active.store(status.serving.is_some(), Ordering::Relaxed);
        }
    }

    fn failed(&self, plugin: &PluginName, stage: Stage, kind: &'static str) {
        if let Some(load) = self.get(plugin.as_str()) {
            *load.failures.lock().entry((stage.as_str(), kind)).or_default() += 1;
        }
    }

    fn activated(&self, plugin: &PluginName, _: Duration) {
        if let Some(load) = self.get(plugin.as_str()) {
            load.served.fetch_add(1, Ordering::Relaxed);
            load.active.store(true, Ordering::Relaxed);
        }
    }
}

/// Registers what `loads` counts.
pub(crate) fn register(registry: &mut Registry, loads: &Arc<Loads>) {
    let loads = loads.clone();
    metrics::register(registry, move |encoder| encode(&loads, encoder));
}

fn encode(loads: &Loads, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = loads.all();
    let each = || all.iter().map(|(plugin, load)| ([("plugin", plugin.as_str())], load));
    let active = each().map(|(labels, load)| (labels, u64::from(load.active.load(Ordering::Relaxed))));
    gauges(encoder, "pilothouse_plugin_active", "1 where a revision of the plugin serves", active)?;
    let reloads = each().map(|(labels, load)| (labels, load.served.load(Ordering::Relaxed).saturating_sub(1)));
    let help = "Times that another file of the plugin, or other settings for it, came to serve";
    counters(encoder, "pilothouse_plugin_reloads", help, reloads)?;
    let failures = all.iter().flat_map(|(plugin, load)| {
        let failures = load.failures.lock().clone();
        failures
            .into_iter()
            .map(|((stage, kind), count)| ([("plugin", plugin.as_str()), ("stage", stage), ("kind", kind)], count))
    });
    counters(encoder, "pilothouse_plugin_load_failures", LOAD_FAILURES, failures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::samples;

    #[test]
    fn loads_of_a_plugin_begin_at_zero_and_grow() {
        let loads = Arc::<Loads>::default();
        let mut registry = Registry::default();
        register(&mut registry, &loads);
        let plugin = PluginName::new("myapple").expect("it is a name");
        // Not before its series begin.
        loads.failed(&plugin, Stage::Link, "link");
        loads.begin("myapple");
        insta::assert_snapshot!(samples(&registry, "pilothouse"), @r#"
        pilothouse_plugin_active{plugin="myapple"} 0
        pilothouse_plugin_reloads_total{plugin="myapple"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="activate",kind="cluster"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="compile",kind="decode"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="deadline"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="manifest"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="memory"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="refused"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="stack"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="describe",kind="trap"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="link",kind="link"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="settings",kind="decode"} 0
        pilothouse_plugin_load_failures_total{plugin="myapple",stage="verify",kind="grants"} 0
        "#);
        loads.activated(&plugin, Duration::ZERO);
        loads.activated(&plugin, Duration::ZERO);
        loads.failed(&plugin, Stage::Describe, "stack");
        let text = samples(&registry, "pilothouse");
        assert!(text.contains("pilothouse_plugin_active{plugin=\"myapple\"} 1\n"), "{text}");
        assert!(text.contains("pilothouse_plugin_reloads_total{plugin=\"myapple\"} 1\n"), "{text}");
        assert!(text.contains("stage=\"describe\",kind=\"stack\"} 1\n"), "{text}");
        loads.changed(&Status::new(plugin));
        assert_eq!(samples(&registry, "pilothouse_plugin_active"), r#"pilothouse_plugin_active{plugin="myapple"} 0"#);
    }
}
