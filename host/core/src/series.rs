//! The values of a plugin's own metrics, within bounds.
//!
//! What is wrong with a change is a value, for the host to count: a plugin can be wrong as often as it likes.
//!
//! ```
//! use pilothouse_core::{manifest::{Metric, MetricType}, series::{Change, Dropped, Series, Value}};
//!
//! let metric = Metric {
//!     name: "apples_total".to_owned(),
//!     of_type: MetricType::Counter,
//!     help: "Apples seen.".to_owned(),
//!     labels: vec!["color".to_owned()],
//!     buckets: Vec::new(),
//! };
//! let mut series = Series::default();
//! series.declare(&[metric], 1);
//! assert_eq!(series.change("apples_total", &["red"], Change::Add(2.0)), Ok(()));
//! assert_eq!(series.change("apples_total", &["green"], Change::Add(1.0)), Err(Dropped::Series));
//! assert_eq!(series.value("apples_total", &["red"]), Some(&Value::Number(2.0)));
//! ```

use std::collections::BTreeMap;

use crate::{
    budget::{Budget, Share},
    manifest::{Metric, MetricType},
};

/// Bytes of a label value. Longer ones are cut.
pub const MAX_VALUE: usize = 128;

/// Bytes of a series beside its texts and buckets: its place in a map, of which half may be empty.
const ENTRY: usize = 2 * size_of::<(Box<[Box<str>]>, Value)>();

/// The series of all metrics of one plugin.
#[derive(Debug)]
pub struct Series {
    metrics: BTreeMap<String, Measured>,
    /// Number of series.
    count: usize,
    /// The largest number of series.
    most: usize,
    bytes: Share,
}

impl Default for Series {
    /// Without a bound of bytes.
    fn default() -> Self {
        Self::within(&Budget::new(usize::MAX))
    }
}

/// A metric, and its series.
#[derive(Clone, Debug)]
pub struct Measured {
    /// As the manifest declares it.
    pub metric: Metric,
    /// By the values of labels.
    pub series: BTreeMap<Box<[Box<str>]>, Value>,
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or a gauge. Finite.
    Number(f64),
    /// Of a histogram.
    Histogram {
        /// Observations in each bucket and in no smaller one. The last is the infinite bucket.
        counts: Box<[u64]>,
        /// Of all observations. Finite.
        sum: f64,
    },
}

/// What a plugin does with a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Adds to a counter or a gauge.
    Add(f64),
    /// Sets a gauge.
    Set(f64),
    /// Adds an observation to a histogram.
    Observe(f64),
}

/// Why a change has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The manifest does not declare the metric.
    Undeclared,
    /// The metric has another type.
    Type,
    /// The number of label values is not that of the declaration.
    Labels,
    /// The number is not finite, or would make the series so. Or it is negative, for a counter.
    Value,
    /// The plugin has as many series, or as many bytes of them, as it may have.
    Series,
}

impl Dropped {
    /// All reasons.
    pub const ALL: [Self; 5] = [Self::Undeclared, Self::Type, Self::Labels, Self::Value, Self::Series];

    /// Returns its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Undeclared => "undeclared",
            Self::Type => "type",
            Self::Labels => "labels",
            Self::Value => "value",
            Self::Series => "series",
        }
    }

    /// Says what is wrong, and what to do.
    pub fn why(self) -> &'static str {
        match self {
            Self::Undeclared => "the manifest does not declare it: add it to `metrics`",
            Self::Type => {
                "it has another type: `add` is for counters and gauges, `set` for gauges, `observe` for histograms"
            }
            Self::Labels => "the declaration has another number of labels",
            Self::Value => "the value is negative, too large, infinite or not a number",
            Self::Series => "the plugin has too many series: use labels with few values, or raise limits.metricSeries",
        }
    }
}

impl Series {
    /// Creates it without metrics. The bytes of its series count in this budget.
    pub fn within(bytes: &Budget) -> Self {
        Self { metrics: BTreeMap::new(), count: 0, most: 0, bytes: bytes.share() }
    }

    /// Replaces the declarations, and sets the largest number of series.
    ///
    /// Metrics that are declared as before keep their series, unless the new bound is too small for all of them. A
    /// metric without labels begins at zero.
    pub fn declare(&mut self, metrics: &[Metric], most: usize) {
        let mut before = std::mem::take(&mut self.metrics);
        let kept = |metric: &Metric| {
            let measured = before.remove(&metric.name)?;
            let Metric { of_type, labels, buckets, .. } = &measured.metric;
            ((of_type, labels, buckets) == (&metric.of_type, &metric.labels, &metric.buckets))
                .then_some(measured.series)
        };
        let mut series: Vec<_> = metrics.iter().map(kept).map(Option::unwrap_or_default).collect();
        self.count = series.iter().map(BTreeMap::len).sum();
        self.most = most;
        self.bytes.set(series.iter().flatten().map(|(labels, value)| bytes_of(labels, value)).sum());
        if self.count > most || self.bytes.is_over() {
            series.iter_mut().for_each(BTreeMap::clear);
            self.count = 0;
            self.bytes.set(0);
        }
        for (metric, mut series) in metrics.iter().zip(series) {
            if metric.labels.is_empty() && series.is_empty() && self.count < most {
                let value = Value::zero(metric);
                self.count += 1;
                self.bytes.add(bytes_of(&[], &value));
                series.insert(Box::default(), value);
            }
            self.metrics.insert(metric.name.clone(), Measured { metric: metric.clone(), series });
        }
    }

    /// Changes a series, and begins it if there is none. A label value that is too long is cut.
    ///
    /// # Errors
    /// If the change has no effect.
    pub fn change(&mut self, metric: &str, labels: &[impl AsRef<str>], change: Change) -> Result<(), Dropped> {
        let Measured { metric, series } = self.metrics.get_mut(metric).ok_or(Dropped::Undeclared)?;
        if labels.len() != metric.labels.len() {
            return Err(Dropped::Labels);
        }
        let labels: Box<[Box<str>]> = labels.iter().map(|value| shortened(value.as_ref()).into()).collect();
        if let Some(value) = series.get_mut(&labels) {
            return value.change(metric, change);
        }
        let mut value = Value::zero(metric);
        value.change(metric, change)?;
        let bytes = bytes_of(&labels, &value);
        if self.count >= self.most || !self.bytes.fits(bytes) {
            return Err(Dropped::Series);
        }
        self.count += 1;
        self.bytes.add(bytes);
        series.insert(labels, value);
        Ok(())
    }

    /// Returns the number of series.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns all metrics, by name.
    pub fn metrics(&self) -> impl Iterator<Item = &Measured> {
        self.metrics.values()
    }

    /// Returns the value of a series.
    pub fn value(&self, metric: &str, labels: &[&str]) -> Option<&Value> {
        let labels: Box<[Box<str>]> = labels.iter().map(|value| Box::from(*value)).collect();
        self.metrics.get(metric)?.series.get(&labels)
    }
}

impl Value {
    fn zero(metric: &Metric) -> Self {
        match metric.of_type {
            MetricType::Counter | MetricType::Gauge => Self::Number(0.0),
            MetricType::Histogram => Self::Histogram { counts: vec![0; metric.buckets.len() + 1].into(), sum: 0.0 },
        }
    }

    fn change(&mut self, metric: &Metric, change: Change) -> Result<(), Dropped> {
        let finite = |value: f64| if value.is_finite() { Ok(value) } else { Err(Dropped::Value) };
        match (metric.of_type, self, change) {
            (MetricType::Counter, Self::Number(_), Change::Add(more)) if more < 0.0 => return Err(Dropped::Value),
            (MetricType::Counter | MetricType::Gauge, Self::Number(value), Change::Add(more)) => {
                *value = finite(*value + more)?;
            }
            (MetricType::Gauge, Self::Number(value), Change::Set(new)) => *value = finite(new)?,
            (MetricType::Histogram, Self::Histogram { counts, sum }, Change::Observe(value)) => {
                *sum = finite(*sum + value)?;
                let bucket = metric.buckets.partition_point(|largest| *largest < value);
                counts[bucket] += 1;
            }
            _ => return Err(Dropped::Type),
        }
        Ok(())
    }
}

fn bytes_of(labels: &[Box<str>], value: &Value) -> usize {
    let counts = match value {
        Value::Number(_) => 0,
        Value::Histogram { counts, .. } => size_of_val::<[u64]>(counts),
    };
    ENTRY + size_of_val(labels) + labels.iter().map(|label| label.len()).sum::<usize>() + counts
}

/// Returns as much of a label value as is kept.
fn shortened(value: &str) -> &str {
    &value[..value.floor_char_boundary(MAX_VALUE)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn metric(name: &str, of_type: MetricType, labels: &[&str], buckets: &[f64]) -> Metric {
        Metric {
            name: name.to_owned(),
            of_type,
            help: String::new(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            buckets: buckets.to_vec(),
        }
    }

    fn declared() -> [Metric; 4] {
        [
            metric("seen_total", MetricType::Counter, &["color"], &[]),
            metric("runs_total", MetricType::Counter, &[], &[]),
            metric("size", MetricType::Gauge, &["color"], &[]),
            metric("took_seconds", MetricType::Histogram, &["color"], &[0.5, 2.0]),
        ]
    }

    fn series(most: usize) -> Series {
        let mut series = Series::default();
        series.declare(&declared(), most);
        series
    }

    #[test]
    fn each_type_has_its_changes() {
        let mut series = series(10);
        assert_eq!(series.value("runs_total", &[]), Some(&Value::Number(0.0)), "it has no labels");
        assert_eq!(series.value("seen_total", &["red"]), None);
        for (metric, change) in [
            ("seen_total", Change::Add(2.0)),
            ("seen_total", Change::Add(0.5)),
            ("size", Change::Set(7.0)),
            ("size", Change::Add(-9.0)),
            ("took_seconds", Change::Observe(0.5)),
            ("took_seconds", Change::Observe(0.6)),
            ("took_seconds", Change::Observe(60.0)),
        ] {
            assert_eq!(series.change(metric, &["red"], change), Ok(()), "{metric} {change:?}");
        }
        assert_eq!(series.value("seen_total", &["red"]), Some(&Value::Number(2.5)));
        assert_eq!(series.value("size", &["red"]), Some(&Value::Number(-2.0)));
        let histogram = Value::Histogram { counts: [1, 1, 1].into(), sum: 61.1 };
        assert_eq!(series.value("took_seconds", &["red"]), Some(&histogram));
        assert_eq!(series.count(), 4);
    }

    #[test]
    fn a_change_that_cannot_be_is_dropped_and_changes_nothing() {
        let mut series = series(10);
        series.change("size", &["red"], Change::Set(f64::MAX)).expect("it is a number");
        for (metric, change, why) in [
            ("eaten_total", Change::Add(1.0), Dropped::Undeclared),
            ("seen_total", Change::Set(1.0), Dropped::Type),
            ("seen_total", Change::Observe(1.0), Dropped::Type),
            ("size", Change::Observe(1.0), Dropped::Type),
            ("took_seconds", Change::Add(1.0), Dropped::Type),
            ("runs_total", Change::Add(1.0), Dropped::Labels),
            ("seen_total", Change::Add(-1.0), Dropped::Value),
            ("seen_total", Change::Add(f64::NAN), Dropped::Value),
            ("seen_total", Change::Add(f64::INFINITY), Dropped::Value),
            ("size", Change::Set(f64::NAN), Dropped::Value),
            ("size", Change::Add(f64::MAX), Dropped::Value),
            ("took_seconds", Change::Observe(f64::NEG_INFINITY), Dropped::Value),
        ] {
            assert_eq!(series.change(metric, &["red"], change), Err(why), "{metric} {change:?}");
        }
        assert_eq!(series.count(), 2);
        assert_eq!(series.value("size", &["red"]), Some(&Value::Number(f64::MAX)));
        assert_eq!(Dropped::ALL.map(|why| why as usize), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn series_are_bounded_and_those_that_exist_go_on() {
        let mut series = series(3);
        let add = |series: &mut Series, color: &str| series.change("seen_total", &[color], Change::Add(1.0));
        assert_eq!(["a", "b", "c"].map(|color| add(&mut series, color)), [Ok(()), Ok(()), Err(Dropped::Series)]);
        assert_eq!(add(&mut series, "a"), Ok(()));
        assert_eq!(series.value("seen_total", &["a"]), Some(&Value::Number(2.0)));
        assert_eq!(series.count(), 3);
    }

    #[test]
    fn bytes_of_series_are_bounded_and_given_back() {
        let budget = Budget::new(usize::MAX);
        let mut series = Series::within(&budget);
        series.declare(&declared(), 10);
        let (empty, long) = (budget.used(), "x".repeat(MAX_VALUE));
        assert_eq!(empty, ENTRY, "runs_total has no labels");
        assert_eq!(series.change("took_seconds", &["red"], Change::Observe(1.0)), Ok(()));
        assert_eq!(budget.used(), 2 * ENTRY + size_of::<Box<str>>() + "red".len() + 3 * size_of::<u64>());
        assert_eq!(series.change("size", &[&long], Change::Set(1.0)), Ok(()));
        let used = budget.used();
        budget.set_most(used + ENTRY);
        assert_eq!(series.change("size", &["y"], Change::Set(1.0)), Err(Dropped::Series));
        assert_eq!(series.change("size", &[&long], Change::Set(2.0)), Ok(()));
        assert_eq!((budget.used(), series.count()), (used, 3));
        // A smaller bound ends the series, as too small a number of them does.
        budget.set_most(used - 1);
        series.declare(&declared(), 10);
        assert_eq!((budget.used(), series.count()), (ENTRY, 1));
        drop(series);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn long_label_values_are_cut_between_characters() {
        let mut series = series(10);
        let long = format!("{}ä", "x".repeat(MAX_VALUE - 1));
        assert_eq!(series.change("size", &[&long], Change::Set(1.0)), Ok(()));
        assert_eq!(series.value("size", &[&long[..MAX_VALUE - 1]]), Some(&Value::Number(1.0)));
    }

    #[test]
    fn series_outlive_a_declaration_that_is_the_same() {
        let mut series = series(10);
        for metric in ["seen_total", "size"] {
            series.change(metric, &["red"], Change::Add(1.0)).expect("it is declared");
        }
        let [mut seen, runs, mut size, took] = declared();
        seen.help = "Better help.".to_owned();
        size.labels = vec!["colour".to_owned()];
        series.declare(&[seen, runs.clone(), size], 10);
        assert_eq!(series.value("seen_total", &["red"]), Some(&Value::Number(1.0)));
        assert_eq!(series.value("size", &["red"]), None);
        assert_eq!(series.count(), 2);
        assert_eq!(series.change("took_seconds", &["red"], Change::Observe(1.0)), Err(Dropped::Undeclared));
        // A smaller bound that does not fit them is kept, too.
        series.declare(&[took, runs], 0);
        assert_eq!(series.count(), 0);
    }

    proptest! {
        #[test]
        fn whatever_a_plugin_does_its_series_stay_bounded_and_finite(
            changes in prop::collection::vec((0..4usize, 0..3usize, 0..6u8, any::<f64>()), 0..200),
        ) {
            let mut series = series(4);
            for (metric, what, color, value) in changes {
                let name = &declared()[metric].name;
                let change = [Change::Add(value), Change::Set(value), Change::Observe(value)][what];
                let _ = series.change(name, &[color.to_string()], change);
            }
            let all: Vec<_> = series.metrics().flat_map(|measured| measured.series.values()).collect();
            prop_assert!(all.len() <= 4 && all.len() == series.count());
            for value in all {
                let (Value::Number(number) | Value::Histogram { sum: number, .. }) = value;
                prop_assert!(number.is_finite());
            }
        }
    }
}
