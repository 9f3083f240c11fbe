//! Parses as much of the Prometheus text format as the tests need.

use std::collections::BTreeMap;

/// One scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Parses the answer of a `/metrics` endpoint. Skips lines that are not samples.
    pub fn parse(text: &str) -> Self {
        Self { samples: text.lines().filter_map(sample).collect() }
    }

    /// Returns the sum of all samples of `name` in which every label of `labels` has the given value, or 0.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.sum_where(name, |sample| labels.iter().all(|(label, value)| sample(label) == *value))
    }

    /// Returns the sum of all samples of `name` whose labels satisfy `wanted`. An absent label reads as empty.
    pub fn sum_where(&self, name: &str, wanted: impl Fn(&dyn Fn(&str) -> String) -> bool) -> f64 {
        self.samples
            .iter()
            .filter(|sample| sample.name == name)
            .filter(|sample| wanted(&|label| sample.labels.get(label).cloned().unwrap_or_default()))
            .map(|sample| sample.value)
            .sum()
    }

    /// Returns `true` if `name` has a sample.
    pub fn has(&self, name: &str) -> bool {
        self.samples.iter().any(|sample| sample.name == name)
    }

    /// Returns the distinct values of `label` in the samples of `name`, sorted.
    pub fn values(&self, name: &str, label: &str) -> Vec<String> {
        let mut values: Vec<String> = self
            .samples
            .iter()
            .filter(|sample| sample.name == name)
            .filter_map(|sample| sample.labels.get(label).cloned())
            .collect();
        values.sort();
        values.dedup();
        values
    }
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    // A timestamp or an exemplar may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The labels up to the closing brace, and what follows it.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (label, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next()? {
                (end, '"') => break end,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.insert(label.to_owned(), value);
        text = &rest[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP requests Requests.
# TYPE requests counter
requests_total{verb="GET",code="200"} 3
requests_total{verb="POST",code="201"} 4 1700000000
requests_total{verb="POST",code="409",why="a \"b\", {c}\\"} 0.5
up 1
# EOF
"#;

    #[test]
    fn samples_are_summed_by_label() {
        let metrics = Metrics::parse(TEXT);
        assert_eq!(metrics.sum("requests_total", &[]), 7.5);
        assert_eq!(metrics.sum("requests_total", &[("verb", "POST")]), 4.5);
        assert_eq!(metrics.sum("requests_total", &[("why", r#"a "b", {c}\"#)]), 0.5);
        assert_eq!(metrics.sum("up", &[]), 1.0);
        assert_eq!(metrics.sum("down", &[]), 0.0);
        assert_eq!(metrics.sum_where("requests_total", |label| label("code") != "200"), 4.5);
        assert_eq!(metrics.values("requests_total", "verb"), ["GET", "POST"]);
        assert!(metrics.has("up") && !metrics.has("down"));
    }

    #[test]
    fn lines_that_are_no_samples_are_passed_over() {
        assert_eq!(Metrics::parse("\nname\nname{a=\"b\nname{} x\n"), Metrics::default());
    }
}
