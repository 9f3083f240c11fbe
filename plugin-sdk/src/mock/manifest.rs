//! Checks a manifest, as far as that is possible without a cluster.

use std::{collections::BTreeSet, net::Ipv6Addr};

use super::{
    field::Path,
    keep::Keep,
    predicate,
    selector::{FieldSelector, Selector, is_label_key},
};
use crate::contract::exports::pilothouse::plugin::controller::{
    Controller, Manifest, Mapping, MetricType, Test, Watch,
};

/// Iterates over all watches of a manifest that are not patterns by their place: all but what is observed.
pub(super) fn named_watches(manifest: &Manifest) -> impl Iterator<Item = &Watch> {
    manifest.controllers.iter().flat_map(watches_of).chain(reviewed(manifest))
}

fn reviewed(manifest: &Manifest) -> impl Iterator<Item = &Watch> {
    manifest.webhooks.iter().flat_map(|webhook| &webhook.reads)
}

fn watches_of(controller: &Controller) -> impl Iterator<Item = &Watch> {
    let mapped = controller.watches.iter().map(|mapped| &mapped.watch);
    std::iter::once(&controller.for_).chain(&controller.owns).chain(mapped).chain(&controller.reads)
}

/// # Errors
/// Fails with the first reason for which the host would reject the manifest.
pub(super) fn check(manifest: &Manifest) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for controller in &manifest.controllers {
        let name = &controller.name;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
            return Err(format!(
                "{name:?} is not a valid controller name: use at most 63 lower-case letters, digits and -"
            ));
        }
        if !names.insert(name) {
            return Err(format!("two controllers are named {name:?}"));
        }
        let of_it = |problem: String| format!("controller {name:?} {problem}");
        watches_of(controller).try_for_each(check_watch).map_err(of_it)?;
        check_roles(manifest, controller).map_err(of_it)?;
        check_finalizer(manifest, controller).map_err(of_it)?;
    }
    check_webhooks(manifest)?;
    check_http(manifest)?;
    check_metrics(manifest)?;
    let observed = manifest.observes.iter().try_for_each(check_observed);
    observed
        .and_then(|()| reviewed(manifest).try_for_each(check_watch))
        .map_err(|problem| format!("the plugin {problem}"))?;
    check_indexes(manifest)
}

fn check_http(manifest: &Manifest) -> Result<(), String> {
    for asked in &manifest.http {
        let host = &asked.host;
        let bare = host.strip_prefix("*.").unwrap_or(host).trim_start_matches('[').trim_end_matches(']');
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if bare.is_empty() || !bare.chars().all(fits) || (bare.contains(':') && bare.parse::<Ipv6Addr>().is_err()) {
            return Err(format!(
                "asks for the host {host:?}: write a name, *.NAME, or an IP address, without scheme and port"
            ));
        }
        if asked.methods.is_empty() || asked.methods.iter().any(|method| !is_method(method)) {
            return Err(format!(
                "asks for the host {host:?} with the methods {:?}: write each as in POST",
                asked.methods
            ));
        }
    }
    Ok(())
}

fn check_webhooks(manifest: &Manifest) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for webhook in &manifest.webhooks {
        let name = &webhook.name;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) || name.starts_with('-') || name.ends_with('-')
        {
            return Err(format!(
                "{name:?} is not a valid name of a webhook: use at most 63 lower-case letters, digits and -"
            ));
        }
        if !names.insert(name) {
            return Err(format!("two webhooks are named {name:?}"));
        }
        if webhook.timeout_seconds.is_some_and(|seconds| !(1..=30).contains(&seconds)) {
            return Err(format!("the webhook {name:?} has a timeout that is not 1 to 30 seconds"));
        }
        for selector in [&webhook.namespaces, &webhook.labels] {
            Selector::parse(selector.as_deref().unwrap_or_default())
                .map_err(|problem| format!("the webhook {name:?} has a selector that is not valid: {problem}"))?;
        }
    }
    Ok(())
}

fn check_metrics(manifest: &Manifest) -> Result<(), String> {
    if manifest.metrics.len() > 64 {
        return Err("the plugin has more than 64 metrics".to_owned());
    }
    let mut families = BTreeSet::new();
    for metric in &manifest.metrics {
        let name = &metric.name;
        if !is_metric_name(name) {
            return Err(format!(
                "{name:?} is not a valid name of a metric: use at most 128 letters, digits and _, and begin with no digit"
            ));
        }
        let family = match (metric.of_type, name.strip_suffix("_total")) {
            (MetricType::Counter, None) => {
                return Err(format!("the counter {name:?} must end in _total"));
            }
            (MetricType::Counter, Some(family)) => family,
            (MetricType::Gauge | MetricType::Histogram, _) => name.as_str(),
        };
        let suffixes = ["_total", "_sum", "_count", "_bucket", "_created"];
        if let Some(suffix) = suffixes.iter().find(|suffix| family.ends_with(*suffix)) {
            return Err(format!("the metric {name:?} must not end in {suffix}"));
        }
        if !families.insert(family) {
            return Err(format!("two metrics are named {family:?}, perhaps with _total"));
        }
        let labels: BTreeSet<_> = metric.labels.iter().collect();
        let fits =
            |label: &str| is_metric_name(label) && label != "plugin" && label != "le" && !label.starts_with("__");
        if labels.len() < metric.labels.len() || labels.len() > 8 || !labels.iter().all(|label| fits(label)) {
            return Err(format!(
                "the metric {name:?} has the labels {labels:?}: use at most 8 names of letters, digits and _, each once, and none of \
                 plugin, le and __*"
            ));
        }
        let buckets: Result<Vec<f64>, _> = metric.buckets.iter().map(|bucket| bucket.parse::<f64>()).collect();
        let is_ascending = |buckets: &Vec<f64>| {
            buckets.iter().all(|bucket| bucket.is_finite()) && buckets.is_sorted_by(|one, next| one < next)
        };
        if !buckets.is_ok_and(|buckets| buckets.len() <= 32 && is_ascending(&buckets)) {
            return Err(format!("the histogram {name:?} needs at most 32 finite buckets, in ascending order"));
        }
    }
    Ok(())
}

fn is_metric_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.len() <= 128 && name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit())
}

fn is_method(method: &str) -> bool {
    !method.is_empty()
        && method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-')
        && !["CONNECT", "TRACE"].contains(&method)
}

/// Checks a watch that may be a pattern.
fn check_observed(watch: &Watch) -> Result<(), String> {
    const SERVED: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    if watch.of.kind != "*" {
        return check_watch(watch);
    }
    let of = &watch.of;
    if watch.fields.is_some() {
        return Err(format!("watches {of} by fields: kinds are selected by different fields"));
    }
    if let Some(verb) = watch.with_verbs.iter().find(|verb| !SERVED.contains(&verb.as_str())) {
        return Err(format!("watches {of} with {verb:?}: the API server has the verbs {}", SERVED.join(", ")));
    }
    check_rest(watch)
}

/// # Errors
/// Fails with the first thing that is wrong with a watch of one kind.
pub(super) fn check_watch(watch: &Watch) -> Result<(), String> {
    let of = &watch.of;
    if of.kind == "*" {
        return Err(format!("watches {of}: only Plugin::observe takes a pattern"));
    }
    if !watch.except.is_empty() || !watch.with_verbs.is_empty() {
        return Err(format!("watches {of}, which is one kind, with exceptions or verbs: only a pattern has them"));
    }
    check_rest(watch)
}

fn check_rest(watch: &Watch) -> Result<(), String> {
    let of = &watch.of;
    if of.api_version.is_empty() || of.kind.is_empty() {
        return Err("watches a kind without apiVersion or kind".to_owned());
    }
    let refused = |problem: String| format!("watches {of} by a selector that is not valid: {problem}");
    Selector::parse(watch.labels.as_deref().unwrap_or_default()).map_err(refused)?;
    FieldSelector::parse(watch.fields.as_deref().unwrap_or_default()).map_err(refused)?;
    Keep::new(watch).map_err(|problem| format!("leaves out fields of {of}: {problem}"))?;
    for condition in watch.when.iter().flatten() {
        if let Test::Cel(expression) = &condition.test {
            predicate::compile(expression).map_err(|problem| format!("has a predicate for {of}: {problem}"))?;
        }
    }
    Ok(())
}

/// Checks what depends on the use of a watch.
fn check_roles(manifest: &Manifest, controller: &Controller) -> Result<(), String> {
    if let Some(watch) = controller.owns.iter().find(|watch| watch.metadata_only || !watch.without.is_empty()) {
        return Err(format!("owns {}: children must be cached whole, without metadata_only and without", watch.of));
    }
    for mapped in &controller.watches {
        if let Mapping::Label(label) = &mapped.mapping
            && !is_label_key(label)
        {
            return Err(format!("maps {} by {label:?}, which is not a valid label key", mapped.watch.of));
        }
        let Mapping::Index(wanted) = &mapped.mapping else { continue };
        let of = &controller.for_.of;
        if !manifest.indexes.iter().any(|index| index.name == *wanted && index.of == *of) {
            return Err(format!(
                "maps {} by the index {wanted:?}, which {of} does not have: add it with Plugin::index",
                mapped.watch.of
            ));
        }
    }
    Ok(())
}

fn check_finalizer(manifest: &Manifest, controller: &Controller) -> Result<(), String> {
    let Some(finalizer) = &controller.finalizer else { return Ok(()) };
    let of = &controller.for_.of;
    if !finalizer.contains('/') || !is_label_key(finalizer) {
        return Err(format!("has the finalizer {finalizer:?}: write a domain and a name, such as example.com/cleanup"));
    }
    let same = |other: &&Controller| other.for_.of == *of && other.finalizer.as_ref() == Some(finalizer);
    if manifest.controllers.iter().filter(same).count() > 1 {
        return Err(format!("has the finalizer {finalizer:?}, which another controller for {of} has, too"));
    }
    Ok(())
}

fn check_indexes(manifest: &Manifest) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for index in &manifest.indexes {
        let name = &index.name;
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
            return Err(format!("{name:?} is not a valid index name: use at most 63 letters, digits, -, _ and ."));
        }
        if !names.insert(name) {
            return Err(format!("two indexes are named {name:?}"));
        }
        let mut of_kind =
            manifest.controllers.iter().flat_map(watches_of).filter(|watch| watch.of == index.of).peekable();
        if of_kind.peek().is_none() {
            return Err(format!(
                "index {name:?} is of {}, which no controller is for, owns, watches or reads",
                index.of
            ));
        }
        let path = Path::parse(&index.path).map_err(|problem| format!("index {name:?}: {problem}"))?;
        if !of_kind.any(|watch| Keep::new(watch).is_ok_and(|keep| keep.keeps(&path))) {
            return Err(format!("index {name:?}: {path} is not cached, because of `metadata-only` or `without`"));
        }
    }
    Ok(())
}
