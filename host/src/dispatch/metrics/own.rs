//! The metrics that plugins declare, under the label `plugin` and the prefix `plugin_`.
//!
//! The exposition is valid whatever plugins declare. A family has one type. If plugins disagree about it, the first of
//! them by name decides, and the metric of the others is hidden.

use std::{collections::BTreeMap, fmt, sync::Arc};

use pilothouse_core::{
    manifest::{Metric, MetricType},
    series::{Measured, Value},
};
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::MetricType as Encoded,
};

use super::super::Record;
use crate::metrics::{DescriptorEncoder, counters, gauges};

/// Begins the name of each exported metric. No figure of the host begins like that.
const PREFIX: &str = "plugin_";

/// Encodes the metrics of all plugins, in the order of plugins.
pub(super) fn encode(records: &[Arc<Record>], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all: Vec<(&str, Vec<Measured>)> =
        records.iter().map(|record| (record.plugin().as_str(), record.measures().series())).collect();
    let count = |metrics: &[Measured]| metrics.iter().map(|metric| metric.series.len() as u64).sum::<u64>();
    let count = all.iter().map(|(plugin, metrics)| ([("plugin", *plugin)], count(metrics)));
    gauges(encoder, "pilothouse_plugin_metric_series", "Series of the plugin's own metrics", count)?;
    let (families, hidden) = families(&all);
    let hidden = hidden.into_iter().map(|(plugin, hidden)| ([("plugin", plugin)], hidden));
    let help = "Metrics of the plugin that are not exported, as another plugin has that name with another type";
    gauges(encoder, "pilothouse_plugin_metrics_hidden", help, hidden)?;
    let dropped = records.iter().flat_map(|record| {
        let plugin = record.plugin().as_str();
        record.measures().dropped().map(move |(why, count)| ([("plugin", plugin), ("reason", why)], count))
    });
    let help = "Changes of the plugin's own metrics that were dropped, by why: undeclared, type, labels, value, or too many series";
    counters(encoder, "pilothouse_plugin_metric_changes_dropped", help, dropped)?;
    families.iter().try_for_each(|(name, family)| family.encode(name, encoder))
}

/// The metrics of one name.
struct Family<'a> {
    /// Decides type and help.
    first: &'a Metric,
    /// By plugin.
    all: Vec<(&'a str, &'a Measured)>,
}

/// Returns all families by name, and how many metrics of each plugin are in none.
fn families<'a>(plugins: &'a [(&'a str, Vec<Measured>)]) -> (BTreeMap<&'a str, Family<'a>>, Vec<(&'a str, u64)>) {
    let mut families = BTreeMap::<&str, Family<'_>>::new();
    let hidden = plugins.iter().map(|(plugin, metrics)| {
        let mut hidden = 0;
        for measured in metrics {
            let metric = &measured.metric;
            let new = || Family { first: metric, all: Vec::new() };
            let family = families.entry(metric.family()).or_insert_with(new);
            if family.first.of_type == metric.of_type {
                family.all.push((*plugin, measured));
            } else {
                hidden += 1;
            }
        }
        (*plugin, hidden)
    });
    let hidden = hidden.collect();
    (families, hidden)
}

impl Family<'_> {
    fn encode(&self, name: &str, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of_type = match self.first.of_type {
            MetricType::Counter => Encoded::Counter,
            MetricType::Gauge => Encoded::Gauge,
            MetricType::Histogram => Encoded::Histogram,
        };
        let (name, help) = (format!("{PREFIX}{name}"), escaped(&self.first.help));
        let mut family = encoder.encode_descriptor(&name, &help, None, of_type)?;
        for (plugin, Measured { metric, series }) in &self.all {
            for (values, value) in series {
                let own = metric.labels.iter().map(String::as_str).zip(values.iter().map(AsRef::as_ref));
                let labels: Vec<(&str, &str)> = std::iter::once(("plugin", *plugin)).chain(own).collect();
                Sample { metric, value }.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Labels of exemplars, which are never written.
type NoLabels = [(&'static str, &'static str); 0];

struct Sample<'a> {
    metric: &'a Metric,
    value: &'a Value,
}

impl EncodeMetric for Sample<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self.value {
            Value::Number(value) if self.metric.of_type == MetricType::Counter => {
                encoder.encode_counter::<NoLabels, _, f64>(value, None)
            }
            Value::Number(value) => encoder.encode_gauge(value),
            Value::Histogram { counts, sum } => {
                let largest = self.metric.buckets.iter().copied().chain([f64::INFINITY]);
                let buckets: Vec<_> = largest.zip(counts.iter().copied()).collect();
                encoder.encode_histogram::<NoLabels>(*sum, counts.iter().sum(), &buckets, None)
            }
        }
    }

    fn metric_type(&self) -> Encoded {
        Encoded::Unknown
    }
}

/// Returns a help text as OpenMetrics writes it. It has no line breaks.
fn escaped(help: &str) -> String {
    help.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use pilothouse_core::series::{Change, Series};

    use super::*;
    use crate::metrics::{Registry, encode as text, register};

    fn metric(name: &str, of_type: MetricType, labels: &[&str]) -> Metric {
        let buckets = if of_type == MetricType::Histogram { vec![0.5, 2.0] } else { Vec::new() };
        Metric {
            name: name.to_owned(),
            of_type,
            help: format!("Help of {name}, with \\ and \"."),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            buckets,
        }
    }

    fn series(metrics: &[Metric], changes: &[(&str, &[&str], Change)]) -> Vec<Measured> {
        let mut series = Series::default();
        series.declare(metrics, 10);
        for (metric, labels, change) in changes {
            series.change(metric, labels, *change).expect("it is declared");
        }
        series.metrics().cloned().collect()
    }

    /// Returns the families of these plugins as text, and how many metrics are hidden.
    fn exposed(plugins: Vec<(&'static str, Vec<Measured>)>) -> (String, u64) {
        let hidden = families(&plugins).1.iter().map(|(_, hidden)| hidden).sum();
        let mut registry = Registry::default();
        register(&mut registry, move |encoder| {
            families(&plugins).0.iter().try_for_each(|(name, family)| family.encode(name, encoder))
        });
        (text(&registry), hidden)
    }

    #[test]
    fn families_are_exposed_under_the_label_of_the_plugin() {
        let seen = metric("seen_total", MetricType::Counter, &["color"]);
        let (size, took) = (metric("size", MetricType::Gauge, &[]), metric("took", MetricType::Histogram, &["color"]));
        let apples = series(
            &[seen.clone(), size, took],
            &[
                ("seen_total", &["a \"b\"\n\\"], Change::Add(1e21)),
                ("took", &["red"], Change::Observe(0.5)),
                ("took", &["red"], Change::Observe(7.0)),
            ],
        );
        let pears = series(&[seen], &[("seen_total", &["green"], Change::Add(2.5))]);
        let (text, hidden) = exposed(vec![("apples", apples), ("pears", pears)]);
        assert_snapshot!(text, @r#"
        # HELP plugin_seen Help of seen_total, with \\ and \".
        # TYPE plugin_seen counter
        plugin_seen_total{plugin="apples",color="a \"b\"\n\\"} 1e21
        plugin_seen_total{plugin="pears",color="green"} 2.5
        # HELP plugin_size Help of size, with \\ and \".
        # TYPE plugin_size gauge
        plugin_size{plugin="apples"} 0.0
        # HELP plugin_took Help of took, with \\ and \".
        # TYPE plugin_took histogram
        plugin_took_sum{plugin="apples",color="red"} 7.5
        plugin_took_count{plugin="apples",color="red"} 2
        plugin_took_bucket{le="0.5",plugin="apples",color="red"} 1
        plugin_took_bucket{le="2.0",plugin="apples",color="red"} 1
        plugin_took_bucket{le="+Inf",plugin="apples",color="red"} 2
        # EOF
        "#);
        assert_eq!(hidden, 0);
    }

    #[test]
    fn plugins_that_disagree_about_a_type_leave_one_family() {
        let one =
            series(&[metric("size_total", MetricType::Counter, &["a"])], &[("size_total", &["1"], Change::Add(1.0))]);
        let other = series(&[metric("size", MetricType::Gauge, &[])], &[]);
        let same = series(&[metric("size_total", MetricType::Counter, &[])], &[]);
        let (text, hidden) = exposed(vec![("a", one), ("b", other), ("c", same)]);
        assert_snapshot!(text, @r#"
        # HELP plugin_size Help of size_total, with \\ and \".
        # TYPE plugin_size counter
        plugin_size_total{plugin="a",a="1"} 1.0
        plugin_size_total{plugin="c"} 0.0
        # EOF
        "#);
        assert_eq!(hidden, 1);
    }
}
