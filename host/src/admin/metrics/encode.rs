//! Families of samples, written through `prometheus-client`'s encoder.
//!
//! Names of counters come without `_total`: the encoder adds it.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, histogram::Histogram},
};

/// Label names and values.
pub(super) type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

pub(super) fn counters<'a, V: EncodeCounterValue, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels<'a, N>, V)>,
) -> fmt::Result {
    family(encoder, name, help, MetricType::Counter, samples.map(|(labels, value)| (labels, ConstCounter::new(value))))
}

pub(super) fn gauges<'a, V: EncodeGaugeValue, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels<'a, N>, V)>,
) -> fmt::Result {
    family(encoder, name, help, MetricType::Gauge, samples.map(|(labels, value)| (labels, ConstGauge::new(value))))
}

pub(super) fn histograms<'a, const N: usize>(
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
