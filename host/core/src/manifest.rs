//! What a plugin says of itself, checked.
//!
//! `describe` answers with plain texts ([`raw`], the mirror of `wit/controller.wit`). [`raw::Manifest::check`] turns them into
//! a [`Manifest`] whose every name, selector and kind is well-formed, or names all that is wrong at once, so that an author
//! fixes a manifest in one go.
//!
//! ```
//! use pilothouse_core::manifest::raw;
//!
//! let manifest = raw::Manifest { version: "1.0".to_owned(), ..raw::Manifest::default() };
//! let invalid = manifest.check().expect_err("it has no controller");
//! assert_eq!(invalid.problems[0].to_string(), "controllers: there is none, so the plugin would never be called");
//! ```
//!
//! What the plugin may do of what it asks for is [`crate::grant`]'s.

mod check;
pub mod raw;

use std::{collections::BTreeSet, fmt, time::Duration};

use crate::{
    field::FieldPath,
    informer::InformerKey,
    key::TypeMeta,
    object::{Keep, Subresource},
    predicate::Predicate,
    selector::{FieldSelector, Selector},
};

/// How long one call may run where the manifest says nothing (`wit/controller.wit`).
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// A manifest may ask for no more: so long a call may hold an instance, and a plugin that was removed may go on. What takes longer is to be
/// done over several reconciles.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(600);

/// How often every key is looked at again where the manifest says nothing: controller-runtime's ten hours
/// (`wit/controller.wit`).
pub const DEFAULT_RESYNC: Duration = Duration::from_secs(36_000);

/// More keys at once than this are not reconciled in one controller (`wit/controller.wit`).
pub const MAX_CONCURRENCY: u32 = 256;

/// What a plugin is and needs. Made by [`raw::Manifest::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The plugin's own version, for people.
    pub version: String,
    /// One sentence, for people.
    pub description: String,
    /// Names are unique. At least one, or something is observed.
    pub controllers: Vec<Controller>,
    /// Names are unique; each is of a kind that a controller caches.
    pub indexes: Vec<Index>,
    /// What the plugin's `observer` is told of.
    pub observes: Vec<Watch>,
    /// What the plugin asks to be allowed.
    pub permissions: Vec<Permission>,
    /// CustomResourceDefinitions as JSON, to be applied before the controllers start.
    pub crds: Vec<String>,
    /// JSON schema of the plugin's configuration.
    pub config_schema: Option<String>,
    /// What becomes of an instance after a call.
    pub instances: Policy,
}

impl Manifest {
    /// The controller of that name.
    pub fn controller(&self, name: &str) -> Option<&Controller> {
        self.controllers.iter().find(|controller| controller.name == name)
    }

    /// Everything that must be cached while the plugin runs, in the order of the manifest; repeated where it is named again.
    pub fn watches(&self) -> impl Iterator<Item = &Watch> {
        self.controllers.iter().flat_map(Controller::cached).chain(&self.observes)
    }

    /// What is asked of the cache for these, each once: one with namespaces as often as it has some, one without for all of them.
    pub fn requests(&self) -> BTreeSet<InformerKey> {
        let request = |watch: &Watch, namespace: Option<&String>| InformerKey {
            of: watch.of.clone(),
            namespace: namespace.map(|namespace| namespace.as_str().into()),
            labels: watch.labels.clone().unwrap_or_default(),
            fields: watch.fields.clone().unwrap_or_default(),
            keep: watch.keep.clone(),
        };
        let requests = self.watches().flat_map(|watch| {
            let all = watch.namespaces.is_empty().then(|| request(watch, None));
            watch.namespaces.iter().map(|namespace| request(watch, Some(namespace))).chain(all)
        });
        requests.collect()
    }

    /// The index of that name.
    pub fn index(&self, name: &str) -> Option<&Index> {
        self.indexes.iter().find(|index| index.name == name)
    }

    /// True if the plugin has to export `mapper`.
    pub fn needs_mapper(&self) -> bool {
        let mut mapped = self.controllers.iter().flat_map(|controller| &controller.watches);
        mapped.any(|mapped| mapped.mapping == Mapping::Plugin)
    }
}

/// What becomes of an instance after a call that it has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// It ends: every call has a new one.
    #[default]
    Fresh,
    /// It may serve again.
    Reuse,
}

impl Policy {
    /// As the contract writes it.
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
    /// Unique in the plugin.
    pub name: String,
    /// The kind whose keys are reconciled.
    pub for_: Watch,
    /// Kinds of children: each group and kind once.
    pub owns: Vec<Watch>,
    /// Kinds that are nobody's children, and whom they concern.
    pub watches: Vec<MappedWatch>,
    /// Kinds that a reconcile reads besides.
    pub reads: Vec<Watch>,
    /// How many keys may be reconciled at once: 1 to [`MAX_CONCURRENCY`].
    pub max_concurrency: u32,
    /// How often to look at every key again; none: never.
    pub resync: Option<Duration>,
    /// How long one call may run, more than 0.
    pub timeout: Duration,
}

impl Controller {
    /// What it is for, owns, watches and reads, in this order.
    pub fn cached(&self) -> impl Iterator<Item = &Watch> {
        let watched = self.watches.iter().map(|mapped| &mapped.watch);
        std::iter::once(&self.for_).chain(&self.owns).chain(watched).chain(&self.reads)
    }
}

/// A kind to keep in the cache and to be woken by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    /// The kind.
    pub of: TypeMeta,
    /// Empty: every namespace that is granted. No duplicates.
    pub namespaces: Vec<String>,
    /// None: every object.
    pub labels: Option<Selector>,
    /// None: every object.
    pub fields: Option<FieldSelector>,
    /// What is cached of each object.
    pub keep: Keep,
    /// Keep it compressed: a hint.
    pub compressed: bool,
    /// Which changes matter.
    pub when: Predicate,
}

impl Watch {
    /// Every whole object of a kind, and every change.
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

/// A kind whose changes concern other objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedWatch {
    /// What to watch.
    pub watch: Watch,
    /// Whom it concerns.
    pub mapping: Mapping,
}

/// From a changed object to keys of the controller's kind, as the manifest names it; [`crate::route`] carries it out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// The key that its controlling owner reference names.
    Owner,
    /// The keys that any of its owner references names.
    AnyOwner,
    /// Its own name in its own namespace.
    SameKey,
    /// The name that this label of it holds, in its own namespace.
    Label(String),
    /// Every object of the controller's kind for which the index of this name holds the changed object's name. The manifest
    /// declares it, for that kind.
    Index(String),
    /// Whatever the plugin's `mapper` says.
    Plugin,
}

/// Cached objects of a kind by the value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Index {
    /// Unique in the plugin.
    pub name: String,
    /// The kind.
    pub of: TypeMeta,
    /// The field path whose values are indexed.
    pub path: FieldPath,
}

/// Something the plugin may do if the administrator grants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The kind.
    pub of: TypeMeta,
    /// None: the object itself.
    pub subresource: Option<Subresource>,
    /// At least one.
    pub verbs: BTreeSet<Verb>,
    /// Empty: every namespace, and objects without one.
    pub namespaces: Vec<String>,
    /// Empty: every name.
    pub names: Vec<String>,
}

/// What a plugin does to objects. `Read` is get, list and watch.
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
    /// `client.delete`, and children that are no longer wanted.
    Delete,
}

impl Verb {
    /// All there are, in the order of the contract.
    pub const ALL: [Self; 6] = [Self::Read, Self::Create, Self::Update, Self::Patch, Self::Apply, Self::Delete];

    /// As the contract and the administrator's file write it.
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

/// One thing that is wrong with a manifest: `controllers[0].for.kind: is empty`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, in the contract's words.
    pub at: String,
    /// What is wrong, and what to write instead. What the plugin wrote is quoted, escaped and cut short.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what)
    }
}

/// A manifest that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    /// All that is wrong: at least one.
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
