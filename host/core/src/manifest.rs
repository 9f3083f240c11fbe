//! What a plugin declares about itself, checked.
//!
//! `describe` returns plain texts ([`raw`], the mirror of `wit/controller.wit`). [`raw::Manifest::check`] turns them
//! into a [`Manifest`] in which every name, selector and kind is well-formed. Otherwise it reports all problems at
//! once, so that an author can fix them together.
//!
//! ```
//! use pilothouse_core::manifest::raw;
//!
//! let manifest = raw::Manifest { version: "1.0".to_owned(), ..raw::Manifest::default() };
//! let invalid = manifest.check().expect_err("it has no controller");
//! assert_eq!(invalid.problems[0].to_string(), "controllers: there is none, so the plugin would never be called");
//! ```
//!
//! [`crate::grant`] decides what the plugin may do of what it asks for.

mod check;
mod pattern;
pub mod raw;

pub(crate) use check::{MAX_BY_FIELDS, MAX_CUTS};
pub use pattern::{Discovered, Selected, Served, WatchPattern};

use std::{collections::BTreeSet, fmt, time::Duration};

use crate::{
    field::FieldPath,
    http::Pattern,
    informer::InformerKey,
    key::TypeMeta,
    object::{Keep, Subresource},
    predicate::Predicate,
    selector::{FieldSelector, Selector},
};

/// Default deadline of one call (`wit/controller.wit`).
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest deadline that a manifest may ask for: a call may hold an instance this long, and a removed plugin may run on
/// this long. Longer work must be split over several reconciles.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(600);

/// Default time after which every key is reconciled again: controller-runtime's ten hours (`wit/controller.wit`).
pub const DEFAULT_RESYNC: Duration = Duration::from_secs(36_000);

/// Largest number of keys that one controller may reconcile at once (`wit/controller.wit`).
pub const MAX_CONCURRENCY: u32 = 256;

/// What a plugin is and needs. Created by [`raw::Manifest::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The plugin's own version, for people.
    pub version: String,
    /// One sentence, for people.
    pub description: String,
    /// Names are unique. May be empty only if something is observed, or there are webhooks.
    pub controllers: Vec<Controller>,
    /// Names are unique; each index is of a kind that a controller caches.
    pub indexes: Vec<Index>,
    /// The objects whose changes the plugin's `observer` receives, by kinds that are named.
    pub observes: Vec<Watch>,
    /// Kinds whose changes it receives, too, as far as the API server serves them.
    pub patterns: Vec<WatchPattern>,
    /// The accesses that the plugin asks for.
    pub permissions: Vec<Permission>,
    /// CustomResourceDefinitions as JSON, applied before the controllers start.
    pub crds: Vec<String>,
    /// JSON schema of the plugin's configuration.
    pub config_schema: Option<String>,
    /// Whether an instance is used for several calls.
    pub instances: Policy,
    /// The servers that the plugin asks to send requests to.
    pub http: Vec<HttpPermission>,
    /// Webhooks of the API server that the plugin's `admission` answers. Names are unique.
    pub webhooks: Vec<Webhook>,
    /// The plugin's own metrics. Their [families](Metric::family) are unique.
    pub metrics: Vec<Metric>,
}

impl Manifest {
    /// Returns the controller of that name.
    pub fn controller(&self, name: &str) -> Option<&Controller> {
        self.controllers.iter().find(|controller| controller.name == name)
    }

    /// Returns everything to cache while the plugin runs, in the order of the manifest. Repetitions are kept. What
    /// patterns match is left out.
    pub fn watches(&self) -> impl Iterator<Item = &Watch> {
        let reviewed = self.webhooks.iter().flat_map(|webhook| &webhook.reads);
        self.controllers.iter().flat_map(Controller::cached).chain(&self.observes).chain(reviewed)
    }

    /// Returns the distinct requests to the cache of [`watches`](Self::watches).
    pub fn requests(&self) -> BTreeSet<InformerKey> {
        self.watches().flat_map(Watch::requests).collect()
    }

    /// Returns the index of that name.
    pub fn index(&self, name: &str) -> Option<&Index> {
        self.indexes.iter().find(|index| index.name == name)
    }

    /// Returns the webhook of that name.
    pub fn webhook(&self, name: &str) -> Option<&Webhook> {
        self.webhooks.iter().find(|webhook| webhook.name == name)
    }

    /// Returns `true` if the plugin must export `conversion`: a definition of it has the conversion strategy `Webhook`.
    pub fn needs_conversion(&self) -> bool {
        self.crds.iter().any(|definition| needs_conversion(definition))
    }

    /// Returns `true` if the plugin must export `mapper`.
    pub fn needs_mapper(&self) -> bool {
        let mut mapped = self.controllers.iter().flat_map(|controller| &controller.watches);
        mapped.any(|mapped| mapped.mapping == Mapping::Plugin)
    }
}

/// What happens to an instance after a call that it answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The instance ends: every call gets a new one.
    #[default]
    Fresh,
    /// The instance may serve another call.
    Reuse,
}

impl Policy {
    /// Returns its name in the contract.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Reuse => "reuse",
        }
    }
}

/// One reconcile loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Unique within the plugin.
    pub name: String,
    /// The kind whose keys are reconciled.
    pub for_: Watch,
    /// Kinds of children; each group and kind once.
    pub owns: Vec<Watch>,
    /// Kinds of objects without an owner here, and their mappings.
    pub watches: Vec<MappedWatch>,
    /// Further kinds that a reconcile reads.
    pub reads: Vec<Watch>,
    /// Keys that may be reconciled at once: 1 to [`MAX_CONCURRENCY`].
    pub max_concurrency: u32,
    /// Time after which every key is reconciled again; `None` for never.
    pub resync: Option<Duration>,
    /// Deadline of one call; more than 0.
    pub timeout: Duration,
    /// The finalizer that the host keeps on each reconciled object: `domain/name`.
    ///
    /// `for_.when` then lets each deletion pass.
    pub finalizer: Option<String>,
}

impl Controller {
    /// Returns the watches of `for_`, `owns`, `watches` and `reads`, in this order.
    pub fn cached(&self) -> impl Iterator<Item = &Watch> {
        let watched = self.watches.iter().map(|mapped| &mapped.watch);
        std::iter::once(&self.for_).chain(&self.owns).chain(watched).chain(&self.reads)
    }
}

/// A kind to cache and to be woken by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    /// The kind.
    pub of: TypeMeta,
    /// Without duplicates. Empty for every granted namespace.
    pub namespaces: Vec<String>,
    /// `None` for every object.
    pub labels: Option<Selector>,
    /// `None` for every object.
    pub fields: Option<FieldSelector>,
    /// What is cached of each object.
    pub keep: Keep,
    /// `true` to hold it compressed; a hint.
    pub compressed: bool,
    /// The changes that matter.
    pub when: Predicate,
}

impl Watch {
    /// Checks a watch that a reconcile asks for (`outcome.watches`). Its predicate is ignored, as that of `reads`.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn asked(raw: raw::Watch) -> Result<Self, Invalid> {
        check::asked(raw)
    }

    /// Returns the requests to the cache: one for each namespace, or one for all namespaces.
    pub fn requests(&self) -> impl Iterator<Item = InformerKey> {
        let all = self.namespaces.is_empty().then(|| self.request_in(None, None));
        self.namespaces.iter().map(move |namespace| self.request_in(Some(namespace), None)).chain(all)
    }

    /// Returns the request to the cache for one namespace, or all; and for one name, or all.
    pub fn request_in(&self, namespace: Option<&str>, name: Option<&str>) -> InformerKey {
        let fields = self.fields.clone().unwrap_or_default();
        InformerKey {
            of: self.of.clone(),
            namespace: namespace.map(Into::into),
            labels: self.labels.clone().unwrap_or_default(),
            fields: match name {
                Some(name) => fields.and_equal("metadata.name", name),
                None => fields,
            },
            keep: self.keep.clone(),
        }
    }

    /// Returns about how many bytes it takes in memory.
    pub fn bytes(&self) -> usize {
        let text = |text: Option<String>| text.map_or(0, |text| 2 * text.len());
        let selectors =
            text(self.labels.as_ref().map(ToString::to_string)) + text(self.fields.as_ref().map(ToString::to_string));
        let namespaces: usize = self.namespaces.iter().map(|name| size_of::<String>() + name.len()).sum();
        let names = self.of.api_version.len() + self.of.kind.len();
        size_of::<Self>() + names + namespaces + selectors + 2 * self.keep.to_string().len()
    }

    /// Watches every whole object of a kind, and every change.
    pub fn all(of: TypeMeta) -> Self {
        Self {
            of,
            namespaces: Vec::new(),
            labels: None,
            fields: None,
            keep: Keep::default(),
            compressed: false,
            when: Predicate::default(),
        }
    }
}

/// A watched kind whose changes concern other objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedWatch {
    /// The watch.
    pub watch: Watch,
    /// The objects that a change concerns.
    pub mapping: Mapping,
}

/// Maps a changed object to keys of the controller's kind, as the manifest names it. [`crate::route`] applies it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// The key that its controlling owner reference names.
    Owner,
    /// The keys that its owner references name.
    AnyOwner,
    /// Its own name in its own namespace.
    SameKey,
    /// The name in this label's value, in the object's namespace.
    Label(String),
    /// Every object of the controller's kind for which the index of this name holds the changed object's name. The
    /// manifest declares the index, for that kind.
    Index(String),
    /// The keys that the plugin's `mapper` returns.
    Plugin,
}

/// An index of a kind's cached objects by the value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Index {
    /// Unique within the plugin.
    pub name: String,
    /// The kind.
    pub of: TypeMeta,
    /// The field path whose values are indexed.
    pub path: FieldPath,
}

/// An access that the plugin may use if the administrator grants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The kind.
    pub of: TypeMeta,
    /// `None` for the object itself.
    pub subresource: Option<Subresource>,
    /// At least one.
    pub verbs: BTreeSet<Verb>,
    /// Empty for every namespace and cluster-scoped objects.
    pub namespaces: Vec<String>,
    /// Empty for every name.
    pub names: Vec<String>,
}

/// Servers outside the API that the plugin may send requests to if the administrator grants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpPermission {
    /// The hosts.
    pub host: Pattern,
    /// The port.
    pub port: u16,
    /// `true` for `http://` instead of `https://`.
    pub plain: bool,
    /// At least one.
    pub methods: BTreeSet<String>,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A number that only grows.
    Counter,
    /// A number.
    Gauge,
    /// How many observations were at most as large as each of some numbers.
    Histogram,
}

/// A metric of the plugin itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// A counter's ends in `_total`.
    pub name: String,
    /// The type.
    pub of_type: MetricType,
    /// One sentence, for people.
    pub help: String,
    /// Names of labels, each once.
    pub labels: Vec<String>,
    /// The largest value of each bucket, in ascending order and finite. Empty unless it is a histogram.
    pub buckets: Vec<f64>,
}

/// Its numbers are finite.
impl Eq for Metric {}

impl Metric {
    /// Returns the name without the `_total` of a counter. OpenMetrics names a metric like this.
    pub fn family(&self) -> &str {
        self.name.strip_suffix("_total").unwrap_or(&self.name)
    }
}

/// Returns `true` if a CustomResourceDefinition asks for conversion by a webhook.
pub fn needs_conversion(definition: &str) -> bool {
    // Most definitions are large, and few have a conversion.
    definition.contains("\"Webhook\"")
        && serde_json::from_str::<serde_json::Value>(definition)
            .is_ok_and(|definition| definition["spec"]["conversion"]["strategy"] == "Webhook")
}

/// Default time that the API server waits for a webhook's answer (`wit/controller.wit`).
pub const DEFAULT_REVIEW: Duration = Duration::from_secs(10);

/// Largest time that the API server waits for a webhook's answer: its own bound.
pub const MAX_REVIEW: Duration = Duration::from_secs(30);

/// A webhook of the API server that the plugin answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Unique within the plugin.
    pub name: String,
    /// Whether it may change objects.
    pub of_type: WebhookType,
    /// The requests that it reviews; at least one rule.
    pub rules: Vec<WebhookRule>,
    /// What the API server does if the host does not answer.
    pub on_failure: FailurePolicy,
    /// Time that the API server waits for the answer: 1 s to [`MAX_REVIEW`].
    pub timeout: Duration,
    /// Selects namespaces of objects; `None` for every namespace.
    pub namespaces: Option<Selector>,
    /// Selects objects; `None` for every object.
    pub labels: Option<Selector>,
    /// Name and CEL expression of each further condition. The API server compiles them.
    pub match_conditions: Vec<(String, String)>,
    /// `true` if the API server should call a mutating webhook again after later ones.
    pub reinvoke: bool,
    /// What the plugin reads to answer.
    pub reads: Vec<Watch>,
}

/// Whether a webhook may change objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WebhookType {
    /// It allows or denies.
    Validating,
    /// It may change the object, too.
    Mutating,
}

/// What the API server does if a webhook does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It denies the request.
    Fail,
    /// It allows the request.
    Ignore,
}

impl FailurePolicy {
    /// Returns its name in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        }
    }
}

/// Requests that a webhook reviews. `*` is allowed in each list of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookRule {
    /// The core group is the empty text.
    pub api_groups: Vec<String>,
    /// Such as `v1`.
    pub api_versions: Vec<String>,
    /// Plural names, such as `pods` and `pods/status`.
    pub resources: Vec<String>,
    /// What the requests do.
    pub operations: Vec<Operation>,
}

/// What a request to the API server does with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Creates it.
    Create,
    /// Changes it.
    Update,
    /// Deletes it.
    Delete,
    /// Connects to it, such as `kubectl exec`.
    Connect,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Create, Self::Update, Self::Delete, Self::Connect];

    /// Returns its name in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// An operation on objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// Get, list and watch, through the cache or live.
    Read,
    /// `client.create`.
    Create,
    /// `client.update`.
    Update,
    /// `client.patch`.
    Patch,
    /// Server-side apply: `client.apply`, children and status of an outcome.
    Apply,
    /// `client.delete`, and pruned children.
    Delete,
}

impl Verb {
    /// All verbs, in the order of the contract.
    pub const ALL: [Self; 6] = [Self::Read, Self::Create, Self::Update, Self::Patch, Self::Apply, Self::Delete];

    /// Returns its name in the contract and in the administrator's file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Apply => "apply",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One problem in a manifest, for example `controllers[0].for.kind: is empty`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The location, in the contract's words.
    pub at: String,
    /// The problem, and what to write instead. Texts of the plugin are quoted, escaped and shortened.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what)
    }
}

/// A manifest that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    /// All problems; at least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the plugin's manifest cannot be used")?;
        match &*self.problems {
            [problem] => write!(f, ": {problem}"),
            problems => problems.iter().try_for_each(|problem| write!(f, "\n  {problem}")),
        }
    }
}

#[cfg(test)]
mod tests;
