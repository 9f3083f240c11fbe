//! What wakes keys, what they have read, and what plugins are still to be told.

use std::{collections::BTreeMap, fmt};

use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{counters, gauges};

/// A controller's routes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    /// As in [`super::Metrics::add_controller`].
    pub controller: String,
    /// Keys that were woken since the start, by why: `self`, `child`, `mapping`, `read`.
    pub woken: Vec<(&'static str, u64)>,
    /// Keys that read something.
    pub reading_keys: usize,
    /// Objects and selections that were read.
    pub reads: usize,
    /// Bytes that it takes to remember.
    pub read_bytes: usize,
    /// Keys that are reconciled over and over, and put off.
    pub breakers_open: usize,
    /// Times that a key began to be, since the start.
    pub breakers_opened: u64,
    /// Objects that vanished and are still to be reconciled.
    pub gone: usize,
    /// Their bytes.
    pub gone_bytes: usize,
    /// Those that were given up, since the start.
    pub gone_dropped: u64,
}

/// What a plugin asks of the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostCalls {
    /// The plugin.
    pub plugin: String,
    /// Calls by import: `cache.get`, …
    pub calls: Vec<(&'static str, u64)>,
    /// Lines by or about it that were dropped, as they were too many.
    pub lines_dropped: u64,
}

/// Changes that a plugin is to be told of, by one of its exports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Backlog {
    /// The plugin.
    pub plugin: String,
    /// `map` or `observe`.
    pub hook: &'static str,
    /// Objects of which there is something to tell.
    pub objects: usize,
    /// Changes that were merged into earlier ones, since the start.
    pub merged: u64,
    /// Deletions that were given up, since the start.
    pub dropped: u64,
}

/// Changes of a plugin's kinds on which a predicate is still to be evaluated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Predicates {
    /// The plugin.
    pub plugin: String,
    /// Changes that wait.
    pub waiting: usize,
    /// Changes that counted as matches unseen since the start, as too many waited.
    pub unseen: u64,
    /// Predicates that are switched off, as they exceed their budget.
    pub off: usize,
}

#[derive(Default)]
struct RouteSum {
    woken: BTreeMap<&'static str, u64>,
    keys: u64,
    reads: u64,
    bytes: u64,
    open: u64,
    opened: u64,
    gone: u64,
    gone_bytes: u64,
    gone_dropped: u64,
}

/// What plugins ask of the host, and what the host tells of objects.
pub(super) fn encode_calls(
    encoder: &mut DescriptorEncoder<'_>,
    calls: &[HostCalls],
    events: &[(&'static str, u64)],
) -> fmt::Result {
    let imports = calls.iter().flat_map(|of| {
        of.calls.iter().map(|(import, count)| ([("plugin", of.plugin.as_str()), ("import", *import)], *count))
    });
    counters(encoder, "pilothouse_host_calls", "Calls from the plugin into the host, by import", imports)?;
    let dropped = calls.iter().map(|of| ([("plugin", of.plugin.as_str())], of.lines_dropped));
    let help = "Lines of the plugin's log, and about its failures, that were dropped, as they were too many over all its calls";
    counters(encoder, "pilothouse_plugin_log_dropped", help, dropped)?;
    let events = events.iter().map(|(result, count)| ([("result", *result)], *count));
    let help = "What was to be told as Events on objects: created, counted as one more of the same, dropped as too much, or failed";
    counters(encoder, "pilothouse_events", help, events)
}

/// What predicates wait for, and which are switched off.
pub(super) fn encode_predicates(encoder: &mut DescriptorEncoder<'_>, predicates: &[Predicates]) -> fmt::Result {
    let mut all = BTreeMap::<&str, [u64; 3]>::new();
    for of in predicates {
        let [waiting, unseen, off] = all.entry(&of.plugin).or_default();
        *waiting += of.waiting as u64;
        *unseen += of.unseen;
        *off += of.off as u64;
    }
    let each = || all.iter().map(|(plugin, figures)| ([("plugin", *plugin)], figures));
    let waiting = each().map(|(labels, [waiting, ..])| (labels, *waiting));
    let help = "Changes on which a predicate of the plugin is still to be evaluated";
    gauges(encoder, "pilothouse_predicate_waiting", help, waiting)?;
    let unseen = each().map(|(labels, [_, unseen, _])| (labels, *unseen));
    let help = "Changes that counted as matches without a look, as too many waited for the plugin's predicates";
    counters(encoder, "pilothouse_predicate_unseen", help, unseen)?;
    let off = each().map(|(labels, [.., off])| (labels, *off));
    gauges(encoder, "pilothouse_predicates_off", "Predicates that are switched off, as they take too long", off)
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, routes: &[Routes], backlogs: &[Backlog]) -> fmt::Result {
    let mut all = BTreeMap::<&str, RouteSum>::new();
    for routes in routes {
        let sum = all.entry(&routes.controller).or_default();
        for (by, count) in &routes.woken {
            *sum.woken.entry(by).or_default() += count;
        }
        sum.keys += routes.reading_keys as u64;
        sum.reads += routes.reads as u64;
        sum.bytes += routes.read_bytes as u64;
        sum.open += routes.breakers_open as u64;
        sum.opened += routes.breakers_opened;
        sum.gone += routes.gone as u64;
        sum.gone_bytes += routes.gone_bytes as u64;
        sum.gone_dropped += routes.gone_dropped;
    }
    let woken = all.iter().flat_map(|(name, routes)| {
        routes.woken.iter().map(|(by, count)| ([("controller", *name), ("by", *by)], *count))
    });
    counters(encoder, "pilothouse_wakes", "Keys that a change woke, by why", woken)?;
    let controllers = || all.iter().map(|(name, routes)| ([("controller", *name)], routes));
    let keys = controllers().map(|(labels, routes)| (labels, routes.keys));
    gauges(encoder, "pilothouse_tracked_keys", "Keys that are woken by what they read", keys)?;
    let reads = controllers().map(|(labels, routes)| (labels, routes.reads));
    gauges(encoder, "pilothouse_tracked_reads", "Objects and selections that keys have read, each once", reads)?;
    let bytes = controllers().map(|(labels, routes)| (labels, routes.bytes));
    gauges(encoder, "pilothouse_tracked_bytes", "Bytes that it takes to remember what keys have read", bytes)?;
    let open = controllers().map(|(labels, routes)| (labels, routes.open));
    gauges(encoder, "pilothouse_breakers_open", "Keys that are reconciled over and over, and put off", open)?;
    let opened = controllers().map(|(labels, routes)| (labels, routes.opened));
    counters(encoder, "pilothouse_breakers_opened", "Times that a key began to be reconciled over and over", opened)?;
    let gone = controllers().map(|(labels, routes)| (labels, routes.gone));
    gauges(encoder, "pilothouse_gone_objects", "Objects that vanished and are still to be reconciled", gone)?;
    let bytes = controllers().map(|(labels, routes)| (labels, routes.gone_bytes));
    gauges(encoder, "pilothouse_gone_bytes", "Bytes of objects that vanished and are still to be reconciled", bytes)?;
    let dropped = controllers().map(|(labels, routes)| (labels, routes.gone_dropped));
    let help = "Deletions that were never reconciled, as there were too many";
    counters(encoder, "pilothouse_gone_dropped", help, dropped)?;

    let mut all = BTreeMap::<(&str, &str), [u64; 3]>::new();
    for backlog in backlogs {
        let [objects, merged, dropped] = all.entry((&backlog.plugin, backlog.hook)).or_default();
        *objects += backlog.objects as u64;
        *merged += backlog.merged;
        *dropped += backlog.dropped;
    }
    let each = || all.iter().map(|((plugin, hook), figures)| ([("plugin", *plugin), ("export", *hook)], figures));
    let objects = each().map(|(labels, [objects, ..])| (labels, *objects));
    let help = "Objects of which the plugin is still to be told something, by the export that is called";
    gauges(encoder, "pilothouse_backlog_objects", help, objects)?;
    let merged = each().map(|(labels, [_, merged, _])| (labels, *merged));
    counters(
        encoder,
        "pilothouse_backlog_merged",
        "Changes that came faster than they were told, and became one",
        merged,
    )?;
    let dropped = each().map(|(labels, [.., dropped])| (labels, *dropped));
    counters(encoder, "pilothouse_backlog_dropped", "Deletions that the plugin was never told of", dropped)
}
