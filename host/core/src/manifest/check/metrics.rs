//! Checks metrics. The rules are those of OpenMetrics: no plugin can make the host's `/metrics` invalid.

use std::collections::BTreeSet;

use super::{
    super::{Metric, MetricType, raw},
    Problems, quoted, text,
};

/// Largest number of metrics of a plugin.
const MAX_METRICS: usize = 64;
/// Largest name of a metric or a label in bytes.
const MAX_NAME: usize = 128;
/// Largest number of labels of a metric.
const MAX_LABELS: usize = 8;
/// Largest number of buckets of a histogram. Each is a line for each series.
const MAX_BUCKETS: usize = 32;

/// Buckets of a histogram that names none, as in the clients of Prometheus.
const DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Ends of names that the samples of counters and histograms have.
const SUFFIXES: [&str; 5] = ["_total", "_sum", "_count", "_bucket", "_created"];

pub(super) fn check_metrics(metrics: Vec<raw::Metric>, problems: &mut Problems) -> Vec<Metric> {
    if metrics.len() > MAX_METRICS {
        problems.add("metrics", format!("has {} entries; at most {MAX_METRICS} are taken", metrics.len()));
    }
    let mut families = BTreeSet::new();
    let checked = metrics.into_iter().take(MAX_METRICS).zip(0..).map(|(metric, place)| {
        let at = format!("metrics[{place}]");
        let metric = metric.check(&at, problems);
        if !families.insert(metric.family().to_owned()) {
            let what = format!("{} names another metric already, perhaps with `_total`", quoted(&metric.name));
            problems.add(&format!("{at}.name"), what);
        }
        metric
    });
    checked.collect()
}

impl raw::Metric {
    fn check(self, at: &str, problems: &mut Problems) -> Metric {
        let name = format!("{at}.name");
        check_name(&self.name, &name, problems);
        let family: &str = match (self.of_type, self.name.strip_suffix("_total")) {
            (MetricType::Counter, None) => {
                problems.add(&name, format!("{} must end in `_total`, as it is a counter", quoted(&self.name)));
                &self.name
            }
            (MetricType::Counter, Some(family)) => family,
            (MetricType::Gauge | MetricType::Histogram, _) => &self.name,
        };
        if let Some(suffix) = SUFFIXES.into_iter().find(|suffix| family.ends_with(suffix)) {
            let rule = format!("must not end in `{suffix}`, which Prometheus adds to names of counters and histograms");
            problems.add(&name, format!("{} {rule}", quoted(&self.name)));
        }
        text(&self.help, &format!("{at}.help"), problems);
        check_labels(&self.labels, &format!("{at}.labels"), problems);
        let buckets = check_buckets(self.of_type, &self.buckets, &format!("{at}.buckets"), problems);
        Metric { name: self.name, of_type: self.of_type, help: self.help, labels: self.labels, buckets }
    }
}

fn check_name(name: &str, at: &str, problems: &mut Problems) {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty()
        || name.len() > MAX_NAME
        || !name.chars().all(fits)
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        let rule = "letters, digits and `_`, and begin with no digit";
        problems.add(at, format!("{} must be 1 to {MAX_NAME} {rule}", quoted(name)));
    }
}

fn check_labels(labels: &[String], at: &str, problems: &mut Problems) {
    if labels.len() > MAX_LABELS {
        problems.add(at, format!("has {} entries; at most {MAX_LABELS} are taken", labels.len()));
    }
    let mut seen = BTreeSet::new();
    for (label, place) in labels.iter().take(MAX_LABELS).zip(0..) {
        let at = format!("{at}[{place}]");
        check_name(label, &at, problems);
        if label == "plugin" || label == "le" || label.starts_with("__") {
            problems.add(&at, format!("{} is reserved: choose another name", quoted(label)));
        } else if !seen.insert(label) {
            problems.add(&at, format!("{} is there already", quoted(label)));
        }
    }
}

fn check_buckets(of_type: MetricType, buckets: &[String], at: &str, problems: &mut Problems) -> Vec<f64> {
    match (of_type, buckets) {
        (MetricType::Histogram, []) => return DEFAULT_BUCKETS.to_vec(),
        (MetricType::Histogram, _) => {}
        (MetricType::Counter | MetricType::Gauge, []) => return Vec::new(),
        (MetricType::Counter | MetricType::Gauge, _) => {
            problems.add(at, "must be empty: only a histogram has buckets");
            return Vec::new();
        }
    }
    if buckets.len() > MAX_BUCKETS {
        problems.add(at, format!("has {} entries; at most {MAX_BUCKETS} are taken", buckets.len()));
    }
    let mut checked: Vec<f64> = Vec::new();
    for (bucket, place) in buckets.iter().take(MAX_BUCKETS).zip(0..) {
        let at = format!("{at}[{place}]");
        match bucket.parse::<f64>() {
            Ok(value) if !value.is_finite() => {
                problems.add(&at, format!("{} is not finite; the last bucket is always infinite", quoted(bucket)));
            }
            Ok(value) if checked.last().is_some_and(|before| *before >= value) => {
                problems.add(&at, format!("{} is not larger than the bucket before it", quoted(bucket)));
            }
            Ok(value) => checked.push(value),
            Err(_) => problems.add(&at, format!("{} is not a number such as 0.25", quoted(bucket))),
        }
    }
    checked
}
