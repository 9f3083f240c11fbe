//! The metrics of a plugin itself, over all its revisions.
//!
//! A call changes them at once. They are kept while the plugin is active: see [`Series::declare`]. Nothing here is
//! locked or allocated for a plugin that has no metrics.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use pilothouse_core::{
    budget::Budget,
    manifest::Metric,
    series::{Change, Dropped, Measured, Series},
};

/// The metrics of one plugin, and what was wrong with changes of them.
#[derive(Debug)]
pub(super) struct Measures {
    series: Mutex<Series>,
    /// By [`Dropped`].
    dropped: [AtomicU64; Dropped::ALL.len()],
    /// The reasons that were reported since the last declaration, a bit for each.
    reported: AtomicU8,
}

impl Measures {
    /// Creates it without metrics. The bytes of its series count in this budget.
    pub(super) fn within(bytes: &Budget) -> Self {
        Self { series: Mutex::new(Series::within(bytes)), dropped: Default::default(), reported: AtomicU8::new(0) }
    }

    /// Replaces the declared metrics. Those that are declared as before keep their values.
    pub(super) fn declare(&self, metrics: &[Metric], most: usize) {
        self.series.lock().declare(metrics, most);
        self.reported.store(0, Ordering::Relaxed);
    }

    /// Changes a series. Returns why it could not, if that is to be reported: once for each reason and declaration.
    pub(super) fn change(&self, metric: &str, labels: &[String], change: Change) -> Option<Dropped> {
        let why = self.series.lock().change(metric, labels, change).err()?;
        self.dropped[why as usize].fetch_add(1, Ordering::Relaxed);
        let bit = 1 << why as u8;
        (self.reported.fetch_or(bit, Ordering::Relaxed) & bit == 0).then_some(why)
    }

    /// Returns the names of these metrics that have another type here.
    pub(super) fn conflicting(&self, metrics: &[Metric]) -> Vec<String> {
        let series = self.series.lock();
        let here: BTreeMap<_, _> = series.metrics().map(|here| (here.metric.family(), here.metric.of_type)).collect();
        let conflicts = |metric: &&Metric| here.get(metric.family()).is_some_and(|here| *here != metric.of_type);
        metrics.iter().filter(conflicts).map(|metric| metric.name.clone()).collect()
    }

    /// Returns a copy of all metrics and their series.
    pub(super) fn series(&self) -> Vec<Measured> {
        self.series.lock().metrics().cloned().collect()
    }

    /// Returns the number of changes that were dropped, for each reason.
    pub(super) fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Dropped::ALL.into_iter().map(|why| (why.as_str(), self.dropped[why as usize].load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_core::manifest::MetricType;

    use super::*;

    #[test]
    fn each_reason_is_reported_once_until_the_next_declaration_and_always_counted() {
        let measures = Measures::within(&Budget::new(1 << 20));
        let size = Metric {
            name: "size".to_owned(),
            of_type: MetricType::Gauge,
            help: String::new(),
            labels: Vec::new(),
            buckets: Vec::new(),
        };
        measures.declare(std::slice::from_ref(&size), 10);
        assert_eq!(measures.change("size", &[], Change::Set(1.0)), None);
        assert_eq!(measures.change("weight", &[], Change::Set(1.0)), Some(Dropped::Undeclared));
        assert_eq!(measures.change("height", &[], Change::Set(1.0)), None);
        assert_eq!(measures.change("size", &[], Change::Set(f64::NAN)), Some(Dropped::Value));
        measures.declare(&[size], 10);
        assert_eq!(measures.change("height", &[], Change::Set(1.0)), Some(Dropped::Undeclared));
        let dropped: Vec<_> = measures.dropped().collect();
        assert_eq!(dropped, [("undeclared", 3), ("type", 0), ("labels", 0), ("value", 1), ("series", 0)]);
    }
}
