//! Decides which informers run for the requests to the cache: one copy of each object, as far as that can be proved.
//!
//! Owns the identity of an informer, and when one [covers](InformerKey::covers) another. A [`Filter`] then shows the
//! narrower one out of the wider one, with objects cut to the request. [`plan`] finds the fewest informers for a set of
//! requests, and [`bounded`] limits what one plugin may cause. The host starts and stops informers, and moves leases
//! between them.
//!
//! ```text
//! asked for                            run
//! v1 Pod                      ──┐
//! v1 Pod in web               ──┼────► v1 Pod
//! v1 Pod in db where app=a    ──┤
//! v1 Pod, metadata only       ──┘
//! v1 Node, without spec       ──┬────► v1 Node
//! v1 Node, without status     ──┘
//! v1 Secret in web            ───────► v1 Secret in web
//! v1 Secret in db             ───────► v1 Secret in db
//! ```
//!
//! ```
//! use pilothouse_core::{informer::{InformerKey, plan}, key::TypeMeta};
//!
//! let pods = InformerKey::all(TypeMeta::new("v1", "Pod"));
//! let some = InformerKey { namespace: Some("web".into()), ..pods.clone() };
//! assert!(pods.covers(&some) && !some.covers(&pods));
//! let wanted = plan(&[some.clone(), pods.clone()].into(), |_| false);
//! assert_eq!(wanted, [pods.clone()].into());
//! // While the API server denies the wide one, the narrow one runs beside it.
//! assert_eq!(plan(&[some.clone(), pods.clone()].into(), |key| *key == pods), [pods, some].into());
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use crate::{
    key::{Key, TypeMeta},
    object::{Keep, Object, SortedLabels},
    selector::{FieldRequirement, FieldSelector, Selector},
};

/// What an informer watches, or a request wants watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InformerKey {
    /// The kind.
    pub of: TypeMeta,
    /// One namespace, or all.
    pub namespace: Option<Arc<str>>,
    /// Empty for every object.
    pub labels: Selector,
    /// Empty for every object.
    pub fields: FieldSelector,
    /// What is held of each object. The last field, so that keys of the same objects sort together.
    pub keep: Keep,
}

impl InformerKey {
    /// Selects every whole object of a kind.
    pub fn all(of: TypeMeta) -> Self {
        Self {
            of,
            namespace: None,
            labels: Selector::default(),
            fields: FieldSelector::default(),
            keep: Keep::default(),
        }
    }

    /// Returns `true` if objects of this namespace are in scope, apart from selectors.
    pub fn covers_namespace(&self, namespace: Option<&str>) -> bool {
        self.namespace.is_none() || self.namespace.as_deref() == namespace
    }

    /// Returns `true` if both select the same objects, perhaps with different fields.
    pub fn same_objects(&self, other: &Self) -> bool {
        let Self { of, namespace, labels, fields, keep: _ } = self;
        (of, namespace, labels, fields) == (&other.of, &other.namespace, &other.labels, &other.fields)
    }

    /// Returns `true` if an informer of this key holds every object of `narrower`, with all that is kept of them there,
    /// and can tell which these are. Returns `false` if that cannot be proved: of fields, only name and namespace are
    /// known here.
    pub fn covers(&self, narrower: &Self) -> bool {
        let (own, other) = (self.fields.requirements(), narrower.fields.requirements());
        self.of == narrower.of
            && (self.namespace.is_none() || self.namespace == narrower.namespace)
            && self.keep.covers(&narrower.keep)
            && narrower.labels.implies(&self.labels)
            && own.iter().all(|own| other.iter().any(|other| field_implies(other, own)))
            && other.iter().all(|other| own.contains(other) || metadata_field(&other.field).is_some())
    }

    /// Returns the name, if only objects of one name are selected.
    pub fn name(&self) -> Option<&str> {
        let named = |required: &&FieldRequirement| required.equal && required.field == "metadata.name";
        self.fields.requirements().iter().find(named).map(|required| &*required.value)
    }

    fn breadth(&self) -> Breadth {
        match self.fields.requirements() {
            [] if self.labels.is_empty() => Breadth::Wide,
            [only] if self.labels.is_empty() && only.equal && only.field == "metadata.name" => Breadth::Named,
            fields if fields.iter().any(|required| metadata_field(&required.field).is_none()) => Breadth::Unknown,
            _ => Breadth::Selected,
        }
    }

    /// Returns `true` if only the API server can evaluate its fields: no other informer can show its objects.
    pub fn is_evaluated_by_server(&self) -> bool {
        matches!(self.breadth(), Breadth::Unknown)
    }

    /// Returns whether an informer of this key holds `object`; `None` if only the API server can tell, from fields.
    pub fn shows(&self, object: &Object) -> Option<bool> {
        let known = self.covers_namespace(object.key().namespace.as_deref()) && self.labels.matches(object.labels());
        let mut shown = Some(known);
        for required in self.fields.requirements() {
            match metadata_field(&required.field) {
                Some(field) if (field(object.key()) == required.value) != required.equal => return Some(false),
                Some(_) => {}
                None => shown = shown.filter(|shown| !shown),
            }
        }
        shown
    }
}

impl fmt::Display for InformerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.of)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        let selectors = [self.labels.to_string(), self.fields.to_string()];
        let mut selectors = selectors.iter().filter(|selector| !selector.is_empty());
        if let Some(first) = selectors.next() {
            write!(f, " where {first}")?;
        }
        selectors.try_for_each(|second| write!(f, " and {second}"))?;
        if self.keep.is_whole() { Ok(()) } else { write!(f, ", {}", self.keep) }
    }
}

/// The fields by which every kind can be selected, and which this crate can evaluate.
fn metadata_field(field: &str) -> Option<fn(&Key) -> &str> {
    match field {
        "metadata.name" => Some(|key| &key.name),
        "metadata.namespace" => Some(|key| key.namespace.as_deref().unwrap_or("")),
        _ => None,
    }
}

/// A field has one value, so a value that equals one text differs from all others.
fn field_implies(one: &FieldRequirement, other: &FieldRequirement) -> bool {
    one == other || (one.field == other.field && one.equal && !other.equal && one.value != other.value)
}

/// The part of a wider informer's objects that belongs to a narrower request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    namespace: Option<Arc<str>>,
    labels: Selector,
    fields: Vec<FieldRequirement>,
    /// `None` to keep everything that is held.
    keep: Option<Keep>,
}

impl Filter {
    /// Creates the filter that shows `narrower` out of `wider`, which must [cover](InformerKey::covers) it.
    pub fn new(wider: &InformerKey, narrower: &InformerKey) -> Self {
        debug_assert!(wider.covers(narrower), "{wider} does not cover {narrower}");
        let own = narrower.fields.requirements().iter().filter(|own| !wider.fields.requirements().contains(own));
        Self {
            namespace: narrower.namespace.clone().filter(|_| wider.namespace.is_none()),
            labels: narrower.labels.beyond(&wider.labels),
            fields: own.cloned().collect(),
            keep: Some(&narrower.keep).filter(|keep| **keep != wider.keep).cloned(),
        }
    }

    /// Returns the only namespace that passes; `None` if all do.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns the labels that pass.
    pub fn labels(&self) -> &Selector {
        &self.labels
    }

    /// Cuts an object to the request. If anything is cut, that takes a few microseconds and a copy.
    pub fn cut(&self, object: &Arc<Object>) -> Arc<Object> {
        match &self.keep {
            Some(keep) => Arc::new(object.kept(keep)),
            None => object.clone(),
        }
    }

    /// Returns what the request keeps of an object, if that may be less than is held.
    pub fn keep(&self) -> Option<&Keep> {
        self.keep.as_ref()
    }

    /// Returns `true` if objects may be cut.
    pub fn is_cutting(&self) -> bool {
        self.keep.is_some()
    }

    /// Returns `true` if the object belongs to the request.
    pub fn shows(&self, object: &Object) -> bool {
        let key = object.key();
        self.admits(key) && (self.labels.is_empty() || self.labels.matches(object.labels()))
    }

    /// As [`shows`](Self::shows). `labels` are asked for only if they decide; they serve many filters.
    pub fn shows_by<'a>(&self, object: &Object, labels: impl FnOnce() -> &'a SortedLabels<'a>) -> bool {
        self.admits(object.key())
            && (self.labels.is_empty() || {
                let labels = labels();
                self.labels.matches_by(|key| labels.get(key))
            })
    }

    /// Returns `true` if an object of this key may belong to the request.
    pub fn admits(&self, key: &Key) -> bool {
        let field = |required: &FieldRequirement| {
            let value = metadata_field(&required.field).map_or("", |field| field(key));
            (value == required.value) == required.equal
        };
        self.namespace.as_ref().is_none_or(|namespace| key.namespace.as_ref() == Some(namespace))
            && self.fields.iter().all(field)
    }
}

/// Returns the informers to run for these requests: the widest ones. Each keeps what any request for its objects keeps.
/// A wider one that is `denied` serves only the requests for its own objects; the ones that it would cover run beside
/// it.
///
/// Each request is [covered](InformerKey::covers) by a returned informer that is not denied, or by one for the
/// [same objects](InformerKey::same_objects).
pub fn plan(requests: &BTreeSet<InformerKey>, denied: impl Fn(&InformerKey) -> bool) -> BTreeSet<InformerKey> {
    uncovered(&joined(requests), denied).cloned().collect()
}

/// Returns the keys of `joined` that no other key covers and could serve.
fn uncovered(joined: &[InformerKey], denied: impl Fn(&InformerKey) -> bool) -> impl Iterator<Item = &InformerKey> {
    // A covering key has the same namespace, or none.
    let mut wide: HashMap<(&TypeMeta, Option<&str>), Vec<&InformerKey>> = HashMap::new();
    for key in joined.iter().filter(|key| !denied(key)) {
        wide.entry((&key.of, key.namespace.as_deref())).or_default().push(key);
    }
    let is_covered = move |narrow: &&InformerKey| {
        let mut scopes = vec![(&narrow.of, None)];
        scopes.extend(narrow.namespace.as_deref().map(|namespace| (&narrow.of, Some(namespace))));
        let mut candidates = scopes.iter().filter_map(|scope| wide.get(scope)).flatten();
        // Of keys that cover each other, the first runs, even if one of them is denied.
        candidates.any(|other| {
            other != narrow && other.covers(narrow) && (other < narrow || denied(narrow) || !narrow.covers(other))
        })
    };
    joined.iter().filter(move |key| !is_covered(key))
}

/// Largest number of one holder's narrow requests that run as separate informers, per kind and scope (a namespace, or
/// all). Each may hold a copy of the same objects, so a holder causes at most eight copies, and a ninth during a
/// handover.
pub const MAX_NARROW: usize = 8;

/// The same for requests by name. They share no objects, so they cost watches and no copies.
pub const MAX_NAMED: usize = 64;

/// The state of an informer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// It does not run.
    No,
    /// It runs.
    Yes,
    /// It runs, and the API server denies it.
    Denied,
}

/// Returns the requests to give to [`plan`] in place of one holder's requests.
///
/// - **Narrow requests are bounded.** If more than [`MAX_NARROW`] requests with selectors, for one kind and scope, do
///   not cover each other, one wide request replaces them and serves each through a [`Filter`]. The same holds for more
///   than [`MAX_NAMED`] requests by name.
/// - **A wide informer stays** until only half as many narrow requests remain, so that one that comes and goes changes
///   nothing.
/// - **While the wide informer is denied**, as many narrow ones as are allowed run beside it, those that already run
///   first. The others wait for the wide one.
///
/// Requests by fields that only the API server can evaluate stay as they are; the check of a manifest bounds them.
pub fn bounded(mut requests: BTreeSet<InformerKey>, runs: impl Fn(&InformerKey) -> Runs) -> BTreeSet<InformerKey> {
    let mut scopes: BTreeMap<(&TypeMeta, Option<&str>), [Vec<&InformerKey>; 2]> = BTreeMap::new();
    for key in &requests {
        let narrow = match key.breadth() {
            Breadth::Selected => 0,
            Breadth::Named => 1,
            Breadth::Wide | Breadth::Unknown => continue,
        };
        scopes.entry((&key.of, key.namespace.as_deref())).or_default()[narrow].push(key);
    }
    let (mut served, mut wider) = (Vec::new(), Vec::new());
    for ((of, namespace), narrow) in scopes {
        for (mut narrow, most) in narrow.into_iter().zip([MAX_NARROW, MAX_NAMED]) {
            // The usual case.
            if narrow.len() <= most / 2 {
                continue;
            }
            let keep = narrow.iter().map(|key| key.keep.clone()).reduce(|all, keep| all.union(&keep));
            let wide = InformerKey {
                namespace: namespace.map(Into::into),
                keep: keep.unwrap_or_default(),
                ..InformerKey::all(of.clone())
            };
            let wide_runs = runs(&wide);
            let most = if wide_runs == Runs::Yes { most / 2 } else { most };
            let joined = joined(narrow.iter().copied());
            if uncovered(&joined, |key| runs(key) == Runs::Denied).nth(most).is_none() {
                continue;
            }
            narrow.sort_by_key(|key| runs(key) != Runs::Yes);
            let beside = if wide_runs == Runs::Denied { most } else { 0 };
            served.extend(narrow.into_iter().skip(beside).cloned());
            wider.push(wide);
        }
    }
    for key in &served {
        requests.remove(key);
    }
    requests.extend(wider);
    requests
}

/// The part of a scope that a request selects.
enum Breadth {
    /// The whole scope.
    Wide,
    /// A part by selectors. Requests may share objects.
    Selected,
    /// All objects of one name.
    Named,
    /// A part by selectors that only the API server can evaluate.
    Unknown,
}

/// Joins all requests for the same objects into one that keeps what any of them keeps.
fn joined<'a>(requests: impl IntoIterator<Item = &'a InformerKey>) -> Vec<InformerKey> {
    let mut joined: Vec<InformerKey> = Vec::new();
    for key in requests {
        match joined.last_mut() {
            // They sort together, as `keep` is compared last.
            Some(last) if last.same_objects(key) => last.keep = last.keep.union(&key.keep),
            _ => joined.push(key.clone()),
        }
    }
    joined
}

#[cfg(test)]
mod tests;
