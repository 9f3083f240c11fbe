//! The interface `metrics` of the mock. What the host would drop fails the test.

use std::collections::BTreeMap;

use super::World;
use crate::{
    contract::exports::pilothouse::plugin::controller::{Metric, MetricType},
    metrics::import::Functions,
};

/// Series of a plugin, as in the host without `limits.metricSeries`.
const MAX_SERIES: usize = 1000;

/// Bytes of a label value, as in the host.
const MAX_VALUE: usize = 128;

/// The series, by metric and label values.
pub(super) type Series = BTreeMap<(String, Vec<String>), Value>;

pub(super) enum Value {
    Number(f64),
    Observations(Vec<f64>),
}

enum Change {
    Add,
    Set,
    Observe,
}

impl World {
    /// Returns a sample as the host exports it, without the prefix. Returns `None` if there is no such series.
    #[track_caller]
    pub(in super::super) fn metric(&self, sample: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let state = self.state();
        let of = |metric: &&Metric| match metric.of_type {
            MetricType::Histogram => suffix(metric, sample).is_some(),
            MetricType::Counter | MetricType::Gauge => metric.name == sample,
        };
        let Some(metric) = state.manifest.metrics.iter().find(of) else {
            panic!("the plugin declares no metric with the sample {sample:?}; a histogram has _bucket, _count and _sum")
        };
        let value = |name: &str| labels.iter().find(|(label, _)| *label == name).map(|(_, value)| (*value).to_owned());
        let le = (suffix(metric, sample) == Some("_bucket")).then(|| value("le")).flatten();
        let values: Option<Vec<String>> = metric.labels.iter().map(|label| value(label)).collect();
        let Some(values) = values.filter(|values| values.len() + usize::from(le.is_some()) == labels.len()) else {
            panic!("{sample} has the labels {:?}, and not {labels:?}", metric.labels)
        };
        match state.series.get(&(metric.name.clone(), values)) {
            Some(Value::Number(number)) => Some(*number),
            Some(Value::Observations(all)) => Some(match suffix(metric, sample) {
                Some("_sum") => all.iter().sum(),
                _ => {
                    let largest = le.map_or(f64::INFINITY, |le| le.parse().expect("`le` is a number"));
                    all.iter().filter(|observed| **observed <= largest).map(|_| 1.0).sum()
                }
            }),
            None => metric.labels.is_empty().then_some(0.0),
        }
    }

    fn change(&self, metric: &str, labels: &[String], change: &Change, value: f64) {
        let state = &mut *self.state_mut();
        let Some(declared) = state.manifest.metrics.iter().find(|declared| declared.name == metric) else {
            panic!("the plugin changes the metric {metric:?}, which it does not declare: add it with Plugin::metric")
        };
        assert_eq!(labels.len(), declared.labels.len(), "{metric} has another number of labels");
        let cut = |value: &String| value[..value.floor_char_boundary(MAX_VALUE)].to_owned();
        let values: Vec<String> = labels.iter().map(cut).collect();
        let id = (metric.to_owned(), values);
        let is_new = !state.series.contains_key(&id);
        assert!(!is_new || state.series.len() < MAX_SERIES, "the plugin has more than {MAX_SERIES} series");
        let new = || match declared.of_type {
            MetricType::Counter | MetricType::Gauge => Value::Number(0.0),
            MetricType::Histogram => Value::Observations(Vec::new()),
        };
        let finite = |value: f64| {
            assert!(value.is_finite(), "{metric} would become {value}");
            value
        };
        match (declared.of_type, change, state.series.entry(id).or_insert_with(new)) {
            (MetricType::Counter, Change::Add, Value::Number(sum)) => {
                assert!(value >= 0.0, "{metric} is a counter, and {value} is negative or not a number");
                *sum = finite(*sum + value);
            }
            (MetricType::Gauge, Change::Add, Value::Number(sum)) => *sum = finite(*sum + value),
            (MetricType::Gauge, Change::Set, Value::Number(sum)) => *sum = finite(value),
            (MetricType::Histogram, Change::Observe, Value::Observations(all)) => all.push(finite(value)),
            _ => panic!("{metric} has another type"),
        }
    }
}

impl Functions for World {
    fn add(&self, metric: &str, labels: &[String], value: f64) {
        self.change(metric, labels, &Change::Add, value);
    }

    fn set(&self, metric: &str, labels: &[String], value: f64) {
        self.change(metric, labels, &Change::Set, value);
    }

    fn observe(&self, metric: &str, labels: &[String], value: f64) {
        self.change(metric, labels, &Change::Observe, value);
    }
}

/// Returns the end of a histogram's sample.
fn suffix<'a>(metric: &Metric, sample: &'a str) -> Option<&'a str> {
    let suffix = sample.strip_prefix(metric.name.as_str())?;
    (metric.of_type == MetricType::Histogram && ["_bucket", "_count", "_sum"].contains(&suffix)).then_some(suffix)
}
