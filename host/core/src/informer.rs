//! Which informers run for what is asked of the cache: one copy of each object, as far as that can be shown.
//!
//! Owns what an informer is identified by, when one [covers](InformerKey::covers) another, the [`Filter`] through which the wider
//! one then shows the narrower, with objects cut to what was asked for, and the [`plan`]: the fewest informers that serve a set of
//! requests. Starting and stopping them, and moving whoever uses one to another, are the host's.
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
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use crate::{
    key::{Key, TypeMeta},
    object::{Keep, Object},
    selector::{FieldRequirement, FieldSelector, Selector},
};

/// What an informer watches, or somebody wants to be watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InformerKey {
    /// The kind.
    pub of: TypeMeta,
    /// One namespace, or all.
    pub namespace: Option<Arc<str>>,
    /// Empty: every object.
    pub labels: Selector,
    /// Empty: every object.
    pub fields: FieldSelector,
    /// What is held of each object. Last, so that in order those of the same objects stand together.
    pub keep: Keep,
}

impl InformerKey {
    /// Every whole object of a kind.
    pub fn all(of: TypeMeta) -> Self {
        Self {
            of,
            namespace: None,
            labels: Selector::default(),
            fields: FieldSelector::default(),
            keep: Keep::default(),
        }
    }

    /// True if an object of this kind, in this namespace, would be here if it existed (and the selectors matched).
    pub fn covers_namespace(&self, namespace: Option<&str>) -> bool {
        self.namespace.is_none() || self.namespace.as_deref() == namespace
    }

    /// True if both ask for the same objects, though perhaps for more or other fields of each.
    pub fn same_objects(&self, other: &Self) -> bool {
        let Self { of, namespace, labels, fields, keep: _ } = self;
        (of, namespace, labels, fields) == (&other.of, &other.namespace, &other.labels, &other.fields)
    }

    /// True if an informer of this key holds every object of `narrower`, with all that is kept of them there, and can tell which
    /// these are. False also where that cannot be shown: of fields only an object's name and namespace are known here.
    pub fn covers(&self, narrower: &Self) -> bool {
        let (own, other) = (self.fields.requirements(), narrower.fields.requirements());
        self.of == narrower.of
            && (self.namespace.is_none() || self.namespace == narrower.namespace)
            && self.keep.covers(&narrower.keep)
            && narrower.labels.implies(&self.labels)
            && own.iter().all(|own| other.iter().any(|other| field_implies(other, own)))
            && other.iter().all(|other| own.contains(other) || metadata_field(&other.field).is_some())
    }

    /// Whether an informer of this key holds `object`. None: the API server alone can tell, from fields.
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

/// The fields that every kind can be selected by, and that this crate can evaluate.
fn metadata_field(field: &str) -> Option<fn(&Key) -> &str> {
    match field {
        "metadata.name" => Some(|key| &key.name),
        "metadata.namespace" => Some(|key| key.namespace.as_deref().unwrap_or("")),
        _ => None,
    }
}

/// A field has one value: what equals something differs from all else.
fn field_implies(one: &FieldRequirement, other: &FieldRequirement) -> bool {
    one == other || (one.field == other.field && one.equal && !other.equal && one.value != other.value)
}

/// What of a wider informer's objects belongs to a narrower request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    namespace: Option<Arc<str>>,
    labels: Selector,
    fields: Vec<FieldRequirement>,
    /// None: what is held.
    keep: Option<Keep>,
}

impl Filter {
    /// Shows `narrower` out of an informer of `wider`, which must [cover](InformerKey::covers) it.
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

    /// The only namespace that it lets through, if it does not let all through.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The labels that it asks for.
    pub fn labels(&self) -> &Selector {
        &self.labels
    }

    /// What of an object belongs to the request. Where that is not all that is held, it costs a few microseconds and a copy.
    pub fn cut(&self, object: &Arc<Object>) -> Arc<Object> {
        match &self.keep {
            Some(keep) => Arc::new(object.kept(keep)),
            None => object.clone(),
        }
    }

    /// What the request keeps of an object, where that may be less than is held.
    pub fn keep(&self) -> Option<&Keep> {
        self.keep.as_ref()
    }

    /// True if what belongs to the request may be less than an object that is held.
    pub fn is_cutting(&self) -> bool {
        self.keep.is_some()
    }

    /// True if the object belongs to the request.
    pub fn shows(&self, object: &Object) -> bool {
        let key = object.key();
        self.admits(key) && (self.labels.is_empty() || self.labels.matches(object.labels()))
    }

    /// True if an object of this key may belong to the request.
    pub fn admits(&self, key: &Key) -> bool {
        let field = |required: &FieldRequirement| {
            let value = metadata_field(&required.field).map_or("", |field| field(key));
            (value == required.value) == required.equal
        };
        self.namespace.as_ref().is_none_or(|namespace| key.namespace.as_ref() == Some(namespace))
            && self.fields.iter().all(field)
    }
}

/// The informers that should run for these requests: the widest of them, each with what any request for the same objects keeps.
/// Where a wider one is `denied`, it serves nobody but those who asked for its objects, and what it would cover runs beside it.
///
/// Each request is [covered](InformerKey::covers) by one of the result that is not denied, or that is of the
/// [same objects](InformerKey::same_objects).
pub fn plan(requests: &BTreeSet<InformerKey>, denied: impl Fn(&InformerKey) -> bool) -> BTreeSet<InformerKey> {
    let joined = joined(requests);
    // Who covers another has its namespace, or none.
    let mut wide: HashMap<(&TypeMeta, Option<&str>), Vec<&InformerKey>> = HashMap::new();
    for key in joined.iter().filter(|key| !denied(key)) {
        wide.entry((&key.of, key.namespace.as_deref())).or_default().push(key);
    }
    let is_covered = |narrow: &&InformerKey| {
        let mut scopes = vec![(&narrow.of, None)];
        scopes.extend(narrow.namespace.as_deref().map(|namespace| (&narrow.of, Some(namespace))));
        let mut candidates = scopes.iter().filter_map(|scope| wide.get(scope)).flatten();
        // Of those that cover each other the first runs; a denied one among them does not hinder it.
        candidates.any(|other| {
            other != narrow && other.covers(narrow) && (other < narrow || denied(narrow) || !narrow.covers(other))
        })
    };
    joined.iter().filter(|key| !is_covered(key)).cloned().collect()
}

/// One in place of all requests for the same objects, which keeps what any of them keeps.
fn joined(requests: &BTreeSet<InformerKey>) -> Vec<InformerKey> {
    let mut joined: Vec<InformerKey> = Vec::with_capacity(requests.len());
    for key in requests {
        match joined.last_mut() {
            // They stand together: what is kept is compared last.
            Some(last) if last.same_objects(key) => last.keep = last.keep.union(&key.keep),
            _ => joined.push(key.clone()),
        }
    }
    joined
}

#[cfg(test)]
mod tests;
