//! What the plugin can see of the cluster: which objects are cached for it, how much of each, and which it may read.

use std::{collections::BTreeMap, ops::Bound};

use serde_json::Value;

use super::{Id, State, World};
use crate::{
    Key, TypeMeta, Verb,
    contract::{
        exports::pilothouse::plugin::controller::{Condition, Manifest, Watch},
        pilothouse::plugin::cache::{Query, ReadError},
    },
    mock::{
        bounds,
        field::{Path, project},
        keep::Keep,
        manifest::named_watches,
        predicate,
        selector::{FieldSelector, Selector},
    },
};

pub(super) type Objects = BTreeMap<Id, Value>;

/// A watch of a manifest that has been checked.
pub(super) struct Cached {
    of: TypeMeta,
    /// What a pattern leaves out: kinds and patterns, each except others.
    but: Vec<(TypeMeta, Vec<TypeMeta>)>,
    namespaces: Vec<String>,
    labels: Selector,
    fields: FieldSelector,
    keep: Keep,
    when: Vec<Vec<Condition>>,
}

impl Cached {
    pub(super) fn new(watch: &Watch) -> Self {
        const CHECKED: &str = "the manifest was checked";
        Self {
            of: watch.of.clone(),
            but: watch.except.iter().map(|except| (except.clone(), Vec::new())).collect(),
            namespaces: watch.namespaces.clone(),
            labels: Selector::parse(watch.labels.as_deref().unwrap_or_default()).expect(CHECKED),
            fields: FieldSelector::parse(watch.fields.as_deref().unwrap_or_default()).expect(CHECKED),
            keep: Keep::new(watch).expect(CHECKED),
            when: watch.when.clone(),
        }
    }

    /// Returns what is observed. A kind is part of the first pattern that matches it, unless it is observed by its name. Every kind counts as
    /// served.
    pub(super) fn observed(observes: &[Watch]) -> impl Iterator<Item = Self> {
        let is_pattern = |watch: &&Watch| watch.of.kind == "*";
        observes.iter().enumerate().map(move |(place, watch)| {
            let mut cached = Self::new(watch);
            if is_pattern(&watch) {
                let named = observes.iter().filter(|other| !is_pattern(other));
                let others = observes[..place].iter().filter(is_pattern).chain(named);
                cached.but.extend(others.map(|other| (other.of.clone(), other.except.clone())));
            }
            cached
        })
    }

    fn selects(&self, of: &TypeMeta) -> bool {
        let is_out = |(kinds, except): &(TypeMeta, Vec<TypeMeta>)| {
            kinds.selects(of) && !except.iter().any(|except| except.selects(of))
        };
        self.of.selects(of) && !self.but.iter().any(is_out)
    }

    fn is_in(&self, namespace: Option<&String>) -> bool {
        self.namespaces.is_empty() || namespace.is_none_or(|namespace| self.namespaces.contains(namespace))
    }

    pub(super) fn holds(&self, (of, key): &Id, object: &Value) -> bool {
        self.selects(of)
            && self.is_in(key.namespace.as_ref())
            && self.labels.matches(object)
            && self.fields.matches(object)
    }

    /// Returns both sides of a change as this watch caches them. `None` if the change does not matter to it.
    pub(super) fn change(&self, id: &Id, old: Option<&Value>, new: Option<&Value>) -> Option<Sides> {
        let side =
            |side: Option<&Value>| side.filter(|object| self.holds(id, object)).map(|object| self.keep.cut(object));
        let (old, new) = (side(old), side(new));
        let changed = old != new && predicate::matters(&self.when, old.as_ref(), new.as_ref());
        changed.then_some((old, new))
    }
}

/// An object before and after a change.
pub(super) type Sides = (Option<Value>, Option<Value>);

/// Returns which of two watches of an object decides what is shown: the one that caches everything that the other
/// caches. If there is none, always the same one.
fn preferred<'a>(one: &'a Keep, other: &'a Keep) -> &'a Keep {
    match (one.covers(other), other.covers(one)) {
        (true, false) => one,
        (false, true) => other,
        _ => one.min(other),
    }
}

/// Everything that is cached for a plugin, and the indexes of it.
pub(super) struct View {
    cached: Vec<Cached>,
    /// What keys ask for beside the manifest, by controller and key.
    asked: BTreeMap<(String, Key), Vec<(Watch, Cached)>>,
    indexes: Vec<(String, TypeMeta, Path)>,
}

impl View {
    pub(super) fn new(manifest: &Manifest) -> Self {
        let indexes = manifest.indexes.iter().map(|index| {
            let path = Path::parse(&index.path).expect("the manifest was checked");
            (index.name.clone(), index.of.clone(), path)
        });
        let cached = named_watches(manifest).map(Cached::new).chain(Cached::observed(&manifest.observes)).collect();
        Self { cached, asked: BTreeMap::new(), indexes: indexes.collect() }
    }

    /// Replaces what a key asks for. Returns `true` if it is something else than before.
    pub(super) fn ask(&mut self, controller: &str, key: &Key, watches: &[Watch]) -> bool {
        let id = (controller.to_owned(), key.clone());
        let before = self.asked.get(&id).map_or(&[][..], |asked| asked);
        if before.iter().map(|(watch, _)| watch).eq(watches) {
            return false;
        }
        let asked: Vec<_> = watches.iter().map(|watch| (watch.clone(), Cached::new(watch))).collect();
        if asked.is_empty() {
            self.asked.remove(&id);
        } else {
            self.asked.insert(id, asked);
        }
        true
    }

    /// Forgets what a key asks for.
    pub(super) fn forget(&mut self, controller: &str, key: &Key) {
        self.asked.remove(&(controller.to_owned(), key.clone()));
    }

    fn all(&self) -> impl Iterator<Item = &Cached> {
        self.cached.iter().chain(self.asked.values().flatten().map(|(_, cached)| cached))
    }

    /// Returns an object as the plugin sees it. `None` if the object is not cached.
    pub(super) fn show(&self, id: &Id, object: &Value) -> Option<Value> {
        self.keep(id, object).map(|keep| keep.cut(object))
    }

    /// Returns what the plugin sees of an object. `None` if the object is not cached.
    pub(super) fn keep(&self, id: &Id, object: &Value) -> Option<&Keep> {
        let holding = self.all().filter(|cached| cached.holds(id, object));
        holding.map(|cached| &cached.keep).reduce(preferred)
    }

    /// Returns `true` if objects of a kind are cached, in any namespace or in one.
    fn covers(&self, of: &TypeMeta, namespace: Option<&String>) -> bool {
        self.all().any(|cached| cached.selects(of) && cached.is_in(namespace))
    }

    pub(super) fn index(&self, of: &TypeMeta, name: &str) -> Option<&Path> {
        let mut all = self.indexes.iter();
        all.find(|(known, kind, _)| known == name && kind == of).map(|(_, _, path)| path)
    }
}

/// A query that has been checked.
pub(super) struct Selected<'a> {
    query: &'a Query,
    labels: Selector,
    index: Option<(Path, &'a str)>,
    fields: Vec<Path>,
    after: Option<Key>,
}

impl World {
    /// Returns an object as a reconcile gets it that is for this watch.
    pub(in crate::mock) fn reconciled(&self, watch: &Watch, key: &Key) -> Option<Value> {
        let id = (watch.of.clone(), key.clone());
        let cached = Cached::new(watch);
        let state = self.state();
        let object = state.objects.get(&id).filter(|object| cached.holds(&id, object))?;
        Some(cached.keep.cut(object))
    }
}

impl State {
    /// # Errors
    /// Fails if the plugin may not read any object of the kind.
    pub(super) fn may_read(&self, of: &TypeMeta, namespace: Option<&String>) -> Result<(), ReadError> {
        if !self.view.covers(of, namespace) {
            let place = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
            return Err(ReadError::NotGranted(format!(
                "read of {of}{place}: it is not cached for this plugin: no controller is for it, owns, watches or reads it, \
                 it is not observed, and no key asks for it"
            )));
        }
        Ok(())
    }

    /// # Errors
    /// Fails if the query is not valid or not granted.
    pub(super) fn select<'a>(&self, query: &'a Query) -> Result<Selected<'a>, ReadError> {
        let of = &query.of;
        let (labels, fields) = bounds::query(query).map_err(ReadError::Invalid)?;
        if let Err(who) = self.granted_somewhere(Verb::Read, of, query.namespace.as_ref()) {
            let place =
                query.namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
            return Err(ReadError::NotGranted(format!("read of {of}{place}: {who}")));
        }
        self.may_read(of, query.namespace.as_ref())?;
        let index = match &query.index {
            None => None,
            Some((name, value)) => match self.view.index(of, name) {
                Some(path) => Some((path.clone(), value.as_str())),
                None => {
                    return Err(ReadError::Invalid(format!(
                        "{name:?} is not an index of {of}: add it with Plugin::index"
                    )));
                }
            },
        };
        let after = query.after.as_deref().map(cursor).transpose()?;
        Ok(Selected { query, labels, index, fields, after })
    }

    /// Iterates over what a query finds, in order: whole objects as the plugin sees them, or the requested fields.
    pub(super) fn found<'a>(
        &'a self,
        objects: &'a Objects,
        selected: &'a Selected<'a>,
    ) -> impl Iterator<Item = (&'a Key, Value)> {
        let of = &selected.query.of;
        let start = match &selected.after {
            None => Bound::Included((of.clone(), Key { namespace: None, name: String::new() })),
            Some(after) => Bound::Excluded((of.clone(), after.clone())),
        };
        let of_kind = objects.range((start, Bound::Unbounded)).take_while(move |((kind, _), _)| kind == of);
        of_kind.filter_map(move |(id, object)| {
            let here = selected.query.namespace.is_none() || id.1.namespace == selected.query.namespace;
            let readable = here && self.check(Verb::Read, id, None).is_ok();
            let shown = readable.then(|| self.view.show(id, object)).flatten()?;
            let indexed = selected.index.as_ref().is_none_or(|(path, value)| path.values(&shown).contains(*value));
            let fits = indexed && selected.labels.matches(&shown);
            fits.then(|| (&id.1, if selected.fields.is_empty() { shown } else { project(&shown, &selected.fields) }))
        })
    }
}

/// Returns the cursor of the page after a key.
pub(super) fn page_after(key: &Key) -> String {
    format!("{}/{}", key.namespace.as_deref().unwrap_or_default(), key.name)
}

fn cursor(after: &str) -> Result<Key, ReadError> {
    let (namespace, name) =
        after.rsplit_once('/').ok_or_else(|| ReadError::Invalid(format!("no page begins after {after:?}")))?;
    let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
    Ok(Key { namespace, name: name.to_owned() })
}
