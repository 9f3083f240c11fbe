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

#[derive(Default)]
struct RouteSum {
    woken: BTreeMap<&'static str, u64>,
    keys: u64,
    reads: u64,
    bytes: u64,
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
