//! Writes families of samples, for the `metrics.rs` of each room.
//!
//! A room registers a function that encodes its figures from its own state. `/metrics` calls all of them at every
//! scrape. They run on a thread that may wait for a lock, and hold each lock only while they copy figures out of it.
//!
//! Names of counters come without `_total`: the encoder adds it. No label grows with the cluster: there are plugins,
//! controllers and kinds among them, and never objects.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::RwLock;
use prometheus_client::{
    collector::Collector,
    encoding::{EncodeCounterValue, EncodeGaugeValue, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, histogram::Histogram},
};
pub(crate) use prometheus_client::{encoding::DescriptorEncoder, registry::Registry};
use serde::Serializer;

/// Label names and values.
pub(crate) type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// Encodes with `encode` at every scrape.
pub(crate) fn register(
    registry: &mut Registry,
    encode: impl Fn(&mut DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
) {
    registry.register_collector(Box::new(Scrape(encode)));
}

struct Scrape<F>(F);

impl<F: Fn(&mut DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static> Collector for Scrape<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0(&mut encoder)
    }
}

impl<F> fmt::Debug for Scrape<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

pub(crate) fn counters<'a, V: EncodeCounterValue, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels<'a, N>, V)>,
) -> fmt::Result {
    family(encoder, name, help, MetricType::Counter, samples.map(|(labels, value)| (labels, ConstCounter::new(value))))
}

pub(crate) fn gauges<'a, V: EncodeGaugeValue, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels<'a, N>, V)>,
) -> fmt::Result {
    family(encoder, name, help, MetricType::Gauge, samples.map(|(labels, value)| (labels, ConstGauge::new(value))))
}

/// Encodes a gauge without labels.
pub(crate) fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: usize) -> fmt::Result {
    gauges(encoder, name, help, std::iter::once(([], value as u64)))
}

pub(crate) fn histograms<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels<'a, N>, &'a Histogram)>,
) -> fmt::Result {
    family(encoder, name, help, MetricType::Histogram, samples.map(|(labels, value)| (labels, value.clone())))
}

fn family<'a, M: EncodeMetric, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    of: MetricType,
    samples: impl Iterator<Item = (Labels<'a, N>, M)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, of)?;
    for (labels, metric) in samples {
        if N == 0 {
            metric.encode(family)?;
            return Ok(());
        }
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// The counters of everything that has a name, such as plugins or controllers. They start at zero.
#[derive(Debug)]
pub(crate) struct Series<T>(RwLock<BTreeMap<String, (Arc<T>, usize)>>);

impl<T> Default for Series<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T: Default> Series<T> {
    /// Begins the series of a name, or keeps those that there are until [`Self::remove`] has been called as often as
    /// this. A new controller begins before the old one of its name ends: nothing is lost.
    pub(crate) fn add(&self, name: &str) {
        self.0.write().entry(name.to_owned()).or_default().1 += 1;
    }

    /// Begins the series of a name, unless there are some. One [`Self::remove`] ends them.
    pub(crate) fn begin(&self, name: &str) {
        self.0.write().entry(name.to_owned()).or_default().1 = 1;
    }

    /// Ends the series of a name.
    pub(crate) fn remove(&self, name: &str) {
        let mut all = self.0.write();
        if let Some((_, uses)) = all.get_mut(name) {
            *uses -= 1;
            if *uses == 0 {
                all.remove(name);
            }
        }
    }

    /// Returns the counters of a name that has begun.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<T>> {
        self.0.read().get(name).map(|(counters, _)| counters.clone())
    }

    /// Returns all counters, by name. No lock is held while they are encoded.
    pub(crate) fn all(&self) -> Vec<(String, Arc<T>)> {
        self.0.read().iter().map(|(name, (counters, _))| (name.clone(), counters.clone())).collect()
    }
}

/// Serializes what has a `Display` as its text.
pub(crate) fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Serializes a duration in seconds.
pub(crate) fn as_seconds<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(value.as_secs_f64())
}

/// Returns everything in `registry` as OpenMetrics text.
pub(crate) fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("a string takes everything");
    text
}

/// Returns the samples of families whose names begin with `prefix`, without comments and buckets.
#[cfg(test)]
pub(crate) fn samples(registry: &Registry, prefix: &str) -> String {
    let text = encode(registry);
    let of_family = |line: &&str| line.starts_with(prefix) && !line.contains("_bucket{");
    text.lines().filter(of_family).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_end_with_the_last_of_their_name() {
        let series = Series::<()>::default();
        series.add("a/b");
        // A new revision's controller begins before the old one ends.
        series.add("a/b");
        series.remove("a/b");
        assert!(series.get("a/b").is_some());
        series.remove("a/b");
        series.remove("a/b");
        assert!(series.get("a/b").is_none());
        series.begin("a");
        series.begin("a");
        series.remove("a");
        assert!(series.all().is_empty());
    }
}
