//! The administrator's file: `<plugin>.yaml` beside the component.
//!
//! Read through serde, so that the host accepts YAML or JSON. An unknown key is rejected by name: a misspelt
//! `namespaces` must not grant the whole cluster.

use std::{collections::BTreeSet, num::NonZeroU32, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use super::{
    account::{self, ActAs},
    http::HttpRule,
};
use crate::{
    fair::{self, Share},
    manifest::Verb,
    object::Subresource,
    rate::Rate,
    references::{self, Reference},
    workqueue::{LIMITS, Limits as Backoff, Pace},
};

/// An administrator's settings for one plugin. The default, without a file: enabled, no configuration, nothing granted.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminFile {
    /// `false`: the plugin is loaded and shown, but not called.
    pub enabled: bool,
    /// The plugin's field manager is `pilothouse.<identity>`. `None` means that it is the plugin's name.
    #[serde(deserialize_with = "given")]
    pub identity: Option<String>,
    /// The service account as which the plugin's requests are sent. `None`: the host's own.
    #[serde(rename = "serviceAccount", deserialize_with = "account::member")]
    pub service_account: Option<ActAs>,
    /// The argument of `describe` and `reconcile`, any JSON; `{}` if the file has none. Its
    /// [references](references::find) are valid.
    #[serde(deserialize_with = "config")]
    pub config: Value,
    /// The allowed part of what the plugin asks for. Null grants nothing.
    #[serde(deserialize_with = "null_is_default")]
    pub grants: Vec<GrantRule>,
    /// Servers that the plugin may send requests to. Null grants none.
    #[serde(deserialize_with = "null_is_default")]
    pub http: Vec<HttpRule>,
    /// Names of the webhooks that the plugin may have. A webhook sees, delays and may deny requests of the whole
    /// cluster, so null is rejected.
    #[serde(deserialize_with = "webhooks")]
    pub webhooks: Vec<String>,
    /// Bounds that tighten the plugin's own. Null means the host's bounds, like a file without `limits`.
    #[serde(deserialize_with = "null_is_default")]
    pub limits: Limits,
}

impl AdminFile {
    /// Returns the keys of Secrets and ConfigMaps that the configuration and the headers refer to.
    pub fn references(&self) -> BTreeSet<Reference> {
        let mut all = references::find(&self.config).unwrap_or_default();
        all.extend(self.http.iter().flat_map(|rule| &rule.headers).map(|header| header.secret.clone()));
        all
    }
}

impl Default for AdminFile {
    fn default() -> Self {
        Self {
            enabled: true,
            identity: None,
            service_account: None,
            config: no_config(),
            grants: Vec::new(),
            http: Vec::new(),
            webhooks: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// Bounds of a plugin; `None` for the host's. An explicit null is rejected: its author meant to set a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Linear memory of one instance, in MiB.
    #[serde(rename = "memoryMiB", deserialize_with = "given")]
    pub memory_mib: Option<NonZeroU32>,
    /// Memory and tables of all instances together, what they handed over, and what the host remembers for the plugin,
    /// in MiB. At least the memory of one instance.
    #[serde(rename = "totalMemoryMiB", deserialize_with = "given")]
    pub total_memory_mib: Option<NonZeroU32>,
    /// Watches at the API server that the plugin's manifest may cause.
    #[serde(deserialize_with = "given")]
    pub watches: Option<NonZeroU32>,
    /// Series of the plugin's own metrics: 1 to 10000.
    #[serde(rename = "metricSeries", deserialize_with = "series")]
    pub metric_series: Option<NonZeroU32>,
    /// Deadline of one call, in milliseconds.
    #[serde(rename = "timeoutMs", deserialize_with = "given")]
    pub timeout_ms: Option<NonZeroU32>,
    /// Calls to the host during one call.
    #[serde(rename = "hostCalls", deserialize_with = "given")]
    pub host_calls: Option<NonZeroU32>,
    /// Data that one call may exchange with the host, in MiB.
    #[serde(rename = "hostMiB", deserialize_with = "given")]
    pub host_mib: Option<NonZeroU32>,
    /// `false`: every call gets a fresh instance, even if the manifest asks for reuse. `true` changes nothing.
    #[serde(deserialize_with = "given")]
    pub reuse: Option<bool>,
    /// Keys of one controller that may be reconciled at once.
    #[serde(rename = "maxConcurrency", deserialize_with = "given")]
    pub max_concurrency: Option<NonZeroU32>,
    /// Weight against other plugins when the guests' threads are scarce: 1 to 10000, default 100.
    #[serde(rename = "cpuWeight", deserialize_with = "weight")]
    pub cpu_weight: Option<NonZeroU32>,
    /// Largest use of the guests' threads, in thousandths of a core.
    #[serde(rename = "cpuMilli", deserialize_with = "given")]
    pub cpu_milli: Option<NonZeroU32>,
    /// Reconciles that each controller may begin per second, on average and as a burst.
    #[serde(rename = "reconcilesPerSecond", deserialize_with = "rate")]
    pub reconciles_per_second: Option<NonZeroU32>,
    /// Requests that the plugin may send to the API server per second, on average and as a burst: writes and live
    /// reads.
    #[serde(rename = "requestsPerSecond", deserialize_with = "rate")]
    pub requests_per_second: Option<NonZeroU32>,
    /// Requests that the plugin may send to other servers per second, on average and as a burst.
    #[serde(rename = "httpRequestsPerSecond", deserialize_with = "rate")]
    pub http_requests_per_second: Option<NonZeroU32>,
    /// Delay of a key after its first failure, in milliseconds. It doubles with each further failure.
    #[serde(rename = "backoffBaseMs", deserialize_with = "given")]
    pub backoff_base_ms: Option<NonZeroU32>,
    /// Largest delay, in milliseconds.
    #[serde(rename = "backoffCapMs", deserialize_with = "given")]
    pub backoff_cap_ms: Option<NonZeroU32>,
}

/// Default number of watches that a manifest may cause: more kinds than most operators use. Each is a stream at the API
/// server, and a cache.
const WATCHES: NonZeroU32 = NonZeroU32::new(64).expect("it is not 0");

/// Default number of series of a plugin's own metrics. Each scrape writes all of them.
const METRIC_SERIES: NonZeroU32 = NonZeroU32::new(1000).expect("it is not 0");

/// Largest number of series that an administrator may allow: Prometheus recommends to stay far below it.
const MAX_METRIC_SERIES: u32 = 10_000;

impl Limits {
    /// Returns the number of watches that the manifest may cause.
    pub fn watches(&self) -> NonZeroU32 {
        self.watches.unwrap_or(WATCHES)
    }

    /// Returns the number of series that the plugin's own metrics may have.
    pub fn metric_series(&self) -> NonZeroU32 {
        self.metric_series.unwrap_or(METRIC_SERIES)
    }

    /// Returns the plugin's share of the guests' threads.
    pub fn share(&self) -> Share {
        Share { weight: self.cpu_weight.unwrap_or(fair::DEFAULT_WEIGHT), cap: self.cpu_milli }
    }

    /// Returns the pace of each of the plugin's queues.
    pub fn pace(&self) -> Pace {
        let millis = |millis: Option<NonZeroU32>| millis.map(|millis| Duration::from_millis(millis.get().into()));
        let backoff = Backoff {
            base: millis(self.backoff_base_ms).unwrap_or(LIMITS.base),
            cap: millis(self.backoff_cap_ms).unwrap_or(LIMITS.cap),
        };
        Pace { backoff, rate: self.reconciles_per_second.map(per_second) }
    }

    /// Returns the rate of requests to the API server.
    pub fn requests(&self) -> Option<Rate> {
        self.requests_per_second.map(per_second)
    }

    /// Returns the rate of requests to other servers.
    pub fn http_requests(&self) -> Option<Rate> {
        self.http_requests_per_second.map(per_second)
    }
}

fn per_second(often: NonZeroU32) -> Rate {
    Rate { burst: often.get(), every: Duration::from_secs(1) / often.get() }
}

fn weight<'de, D: Deserializer<'de>>(text: D) -> Result<Option<NonZeroU32>, D::Error> {
    let weight = NonZeroU32::deserialize(text)?;
    if weight.get() > fair::MAX_WEIGHT {
        return Err(D::Error::custom(format_args!("{weight} is no weight: it is 1 to {}", fair::MAX_WEIGHT)));
    }
    Ok(Some(weight))
}

fn series<'de, D: Deserializer<'de>>(text: D) -> Result<Option<NonZeroU32>, D::Error> {
    let series = NonZeroU32::deserialize(text)?;
    if series.get() > MAX_METRIC_SERIES {
        return Err(D::Error::custom(format_args!("{series} series are too many: it is 1 to {MAX_METRIC_SERIES}")));
    }
    Ok(Some(series))
}

/// No queue hands out keys faster than this anyway.
const MAX_RATE: u32 = 1_000_000;

fn rate<'de, D: Deserializer<'de>>(text: D) -> Result<Option<NonZeroU32>, D::Error> {
    let rate = NonZeroU32::deserialize(text)?;
    if rate.get() > MAX_RATE {
        return Err(D::Error::custom(format_args!("{rate} is too many a second: it is 1 to {MAX_RATE}")));
    }
    Ok(Some(rate))
}

/// One line of `grants`: `{ apiVersion: v1, kind: ConfigMap, verbs: [read] }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RuleText")]
pub struct GrantRule {
    /// For example `apps/v1`. With the kind `"*"` also `apps/*` for all versions of a group, and `*` for all groups.
    pub api_version: String,
    /// The kind, or `"*"`.
    pub kinds: Kinds,
    /// The suffix of the kind: none, `/status` or `/scale`; all if the kind is `"*"`.
    pub parts: Parts,
    /// At least one; `["*"]` for all.
    pub verbs: BTreeSet<Verb>,
    /// Empty (absent in the file) for every namespace and cluster-scoped objects.
    pub namespaces: Vec<String>,
    /// Empty (absent in the file) for every name.
    pub names: Vec<String>,
}

/// The kinds that a rule covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// All kinds of the apiVersion.
    All,
    /// This kind.
    One(String),
}

/// The parts of objects that a rule covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// The object and its subresources.
    All,
    /// The object itself.
    Object,
    /// One subresource.
    One(Subresource),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleText {
    api_version: String,
    kind: String,
    verbs: Vec<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    namespaces: Option<List>,
    #[serde(default, deserialize_with = "given")]
    names: Option<List>,
}

/// A list in the file; it and its items may be null.
type List = Option<Vec<Option<String>>>;

impl TryFrom<RuleText> for GrantRule {
    type Error = String;

    fn try_from(text: RuleText) -> Result<Self, String> {
        if text.api_version.is_empty() {
            return Err("apiVersion is empty".to_owned());
        }
        let (kinds, parts) = kind(&text.kind)?;
        api_version(&text.api_version, &kinds)?;
        Ok(Self {
            api_version: text.api_version,
            kinds,
            parts,
            verbs: verbs(&text.verbs)?,
            namespaces: some(text.namespaces, "namespaces")?,
            names: some(text.names, "names")?,
        })
    }
}

/// Rejects forms of `*` that look as if they granted something and do not.
fn api_version(text: &str, kinds: &Kinds) -> Result<(), String> {
    let group = text.strip_suffix("/*").unwrap_or_default();
    if !text.contains('*') {
        return Ok(());
    }
    if text != "*" && (group.is_empty() || group.contains(['*', '/'])) {
        return Err(format!(
            "apiVersion {text:?} is no pattern: write a version as in apps/v1, a group as in apps/*, or \"*\""
        ));
    }
    match kinds {
        Kinds::All => Ok(()),
        Kinds::One(kind) => Err(format!("apiVersion {text:?} needs kind \"*\": name the version of {kind}")),
    }
}

fn kind(text: &str) -> Result<(Kinds, Parts), String> {
    let (kind, part) = text.split_once('/').map_or((text, None), |(kind, part)| (kind, Some(part)));
    let kinds = match kind {
        "" => return Err(format!("kind {text:?} names no kind")),
        "*" => Kinds::All,
        kind => Kinds::One(kind.to_owned()),
    };
    let parts = match (part, &kinds) {
        (None, Kinds::All) => Parts::All,
        (None, Kinds::One(_)) => Parts::Object,
        (Some(part), _) => Parts::One(Subresource::of_name(part).ok_or_else(|| {
            let all = Subresource::ALL.map(Subresource::as_str).join(", ");
            format!("unknown subresource {part:?} in kind {text:?}: there are {all}")
        })?),
    };
    Ok((kinds, parts))
}

fn verbs(texts: &[Option<String>]) -> Result<BTreeSet<Verb>, String> {
    let mut verbs = BTreeSet::new();
    for text in texts {
        let text = text.as_deref().unwrap_or_default();
        if text == "*" {
            verbs.extend(Verb::ALL);
            continue;
        }
        let Some(verb) = Verb::ALL.into_iter().find(|verb| verb.as_str() == text) else {
            let hint = if matches!(text, "get" | "list" | "watch") { " it is part of read;" } else { "" };
            let all = Verb::ALL.map(Verb::as_str).join(", ");
            return Err(format!("unknown verb {text:?}:{hint} there are {all}, and \"*\" for all"));
        };
        verbs.insert(verb);
    }
    if verbs.is_empty() { Err("verbs is empty, so the rule grants nothing".to_owned()) } else { Ok(verbs) }
}

/// Rejects empty lists: one reader would take them for "none", another for "all". That includes lists whose lines are
/// commented out.
fn some(list: Option<List>, name: &str) -> Result<Vec<String>, String> {
    let Some(list) = list else { return Ok(Vec::new()) };
    let Some(list) = list else { return Err(format!("{name} is null: leave the key out to grant all")) };
    if list.is_empty() {
        return Err(format!("{name} is empty: leave it out to grant all"));
    }
    let listed = list.into_iter().map(|one| one.filter(|one| !one.is_empty()));
    listed.collect::<Option<_>>().ok_or_else(|| format!("{name} has an entry that is empty or null"))
}

fn webhooks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let Some(names) = List::deserialize(deserializer)? else {
        return Err(D::Error::custom("webhooks is null: leave the key out to grant none"));
    };
    let names = names.into_iter().map(|name| name.filter(|name| !name.is_empty()));
    let names: Option<_> = names.collect();
    names.ok_or_else(|| D::Error::custom("webhooks has an entry that is empty or null"))
}

fn no_config() -> Value {
    Value::Object(serde_json::Map::new())
}

fn config<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let config = Option::deserialize(deserializer)?.unwrap_or_else(no_config);
    references::find(&config).map_err(D::Error::custom)?;
    Ok(config)
}

/// Reads a key that is present. An explicit null is not the same as an absent key.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads null, which YAML gives for a key whose lines are all commented out, as the default.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
