//! The administrator's file: `<plugin>.yaml` beside the component.
//!
//! It is read through serde, so that the host may take YAML or JSON. What is not understood is refused by name: a misspelt
//! `namespaces` must not grant the whole cluster.

use std::{collections::BTreeSet, num::NonZeroU32, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use crate::{
    fair::{self, Share},
    manifest::Verb,
    object::Subresource,
    rate::Rate,
    workqueue::{LIMITS, Limits as Backoff, Pace},
};

/// What an administrator says of one plugin. Without a file it is the default: enabled, no configuration, nothing granted.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminFile {
    /// False: the plugin is loaded and shown, and not called.
    pub enabled: bool,
    /// The argument of `describe` and `reconcile`, any JSON; `{}` where the file has none.
    #[serde(deserialize_with = "config")]
    pub config: Value,
    /// What the plugin may do of what it asks. Null grants nothing.
    #[serde(deserialize_with = "null_is_default")]
    pub grants: Vec<GrantRule>,
    /// Bounds that go before the plugin's own where they are tighter. Null leaves the host's bounds, as a file without `limits` does:
    /// it has no line that could be lost.
    #[serde(deserialize_with = "null_is_default")]
    pub limits: Limits,
}

impl Default for AdminFile {
    fn default() -> Self {
        Self { enabled: true, config: no_config(), grants: Vec::new(), limits: Limits::default() }
    }
}

/// Bounds of a plugin; none: the host's. A bound that is null is refused: its author meant to set one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Linear memory of one instance, in MiB.
    #[serde(rename = "memoryMiB", deserialize_with = "given")]
    pub memory_mib: Option<NonZeroU32>,
    /// Memory and tables of all instances of the plugin together, what they handed over, and what the host remembers for it, in MiB; at
    /// least what one may have.
    #[serde(rename = "totalMemoryMiB", deserialize_with = "given")]
    pub total_memory_mib: Option<NonZeroU32>,
    /// Watches at the API server that the plugin's manifest may cause.
    #[serde(deserialize_with = "given")]
    pub watches: Option<NonZeroU32>,
    /// How long one call may run, in milliseconds.
    #[serde(rename = "timeoutMs", deserialize_with = "given")]
    pub timeout_ms: Option<NonZeroU32>,
    /// How often one call may call the host.
    #[serde(rename = "hostCalls", deserialize_with = "given")]
    pub host_calls: Option<NonZeroU32>,
    /// How much one call may exchange with the host, in MiB.
    #[serde(rename = "hostMiB", deserialize_with = "given")]
    pub host_mib: Option<NonZeroU32>,
    /// False: every call has a fresh instance, though the manifest asks for reuse. True says no more than the manifest.
    #[serde(deserialize_with = "given")]
    pub reuse: Option<bool>,
    /// How many keys of one controller may be reconciled at once.
    #[serde(rename = "maxConcurrency", deserialize_with = "given")]
    pub max_concurrency: Option<NonZeroU32>,
    /// Its part of the guests' threads where others want theirs too, against their weights: 1 to 10000, 100 where none is given.
    #[serde(rename = "cpuWeight", deserialize_with = "weight")]
    pub cpu_weight: Option<NonZeroU32>,
    /// What it may use of the guests' threads at most, in thousandths of a core.
    #[serde(rename = "cpuMilli", deserialize_with = "given")]
    pub cpu_milli: Option<NonZeroU32>,
    /// How many reconciles a second each controller may begin in the long run, and at once after a rest.
    #[serde(rename = "reconcilesPerSecond", deserialize_with = "rate")]
    pub reconciles_per_second: Option<NonZeroU32>,
    /// How many requests a second the plugin may send to the API server in the long run, and at once after a rest: writes and live reads.
    #[serde(rename = "requestsPerSecond", deserialize_with = "rate")]
    pub requests_per_second: Option<NonZeroU32>,
    /// How long a key waits after its first failure, in milliseconds; twice as long after each further one.
    #[serde(rename = "backoffBaseMs", deserialize_with = "given")]
    pub backoff_base_ms: Option<NonZeroU32>,
    /// How long it waits at most.
    #[serde(rename = "backoffCapMs", deserialize_with = "given")]
    pub backoff_cap_ms: Option<NonZeroU32>,
}

/// Watches that a manifest may cause where the file does not say: more kinds than most operators work on. Each is a stream at the API server,
/// and a cache.
const WATCHES: NonZeroU32 = NonZeroU32::new(64).expect("it is not 0");

impl Limits {
    /// How many watches its manifest may cause.
    pub fn watches(&self) -> NonZeroU32 {
        self.watches.unwrap_or(WATCHES)
    }

    /// What the plugin may have of the guests' threads.
    pub fn share(&self) -> Share {
        Share { weight: self.cpu_weight.unwrap_or(fair::DEFAULT_WEIGHT), cap: self.cpu_milli }
    }

    /// How fast each of its controllers' queues hands out keys.
    pub fn pace(&self) -> Pace {
        let millis = |millis: Option<NonZeroU32>| millis.map(|millis| Duration::from_millis(millis.get().into()));
        let backoff = Backoff {
            base: millis(self.backoff_base_ms).unwrap_or(LIMITS.base),
            cap: millis(self.backoff_cap_ms).unwrap_or(LIMITS.cap),
        };
        Pace { backoff, rate: self.reconciles_per_second.map(per_second) }
    }

    /// How fast it may send requests to the API server.
    pub fn requests(&self) -> Option<Rate> {
        self.requests_per_second.map(per_second)
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

/// Faster than this no queue hands out keys anyway.
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
    /// `apps/v1`, exactly.
    pub api_version: String,
    /// The kind, or `"*"`.
    pub kinds: Kinds,
    /// What follows the kind: nothing, `/status`, `/scale`; all where the kind is `"*"`.
    pub parts: Parts,
    /// At least one; `["*"]` is all.
    pub verbs: BTreeSet<Verb>,
    /// Empty (the file does not say): every namespace, and objects without one.
    pub namespaces: Vec<String>,
    /// Empty (the file does not say): every name.
    pub names: Vec<String>,
}

/// Kinds that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// All of the apiVersion.
    All,
    /// This one.
    One(String),
}

/// Parts of objects that a rule is for.
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

/// A list as the file has it: it may be null, and so may what is in it.
type List = Option<Vec<Option<String>>>;

impl TryFrom<RuleText> for GrantRule {
    type Error = String;

    fn try_from(text: RuleText) -> Result<Self, String> {
        if text.api_version.is_empty() {
            return Err("apiVersion is empty".to_owned());
        }
        let (kinds, parts) = kind(&text.kind)?;
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
        (Some("status"), _) => Parts::One(Subresource::Status),
        (Some("scale"), _) => Parts::One(Subresource::Scale),
        (Some(part), _) => {
            return Err(format!("unknown subresource {part:?} in kind {text:?}: there are status and scale"));
        }
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

/// An empty list would read as "none" to one person and as "all" to the next. So would a list whose lines are all commented out.
fn some(list: Option<List>, name: &str) -> Result<Vec<String>, String> {
    let Some(list) = list else { return Ok(Vec::new()) };
    let Some(list) = list else { return Err(format!("{name} is null: leave the key out to grant all")) };
    if list.is_empty() {
        return Err(format!("{name} is empty: leave it out to grant all"));
    }
    let listed = list.into_iter().map(|one| one.filter(|one| !one.is_empty()));
    listed.collect::<Option<_>>().ok_or_else(|| format!("{name} has an entry that is empty or null"))
}

fn no_config() -> Value {
    Value::Object(serde_json::Map::new())
}

fn config<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(no_config))
}

/// Reads a key that is there, as its type takes it: null is not as good as no key.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A key whose lines are all commented out is null in YAML.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
