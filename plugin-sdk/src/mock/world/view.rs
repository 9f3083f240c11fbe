//! What the plugin can see of the cluster: which objects are cached for it, how much of each, and which it may read.

use std::{borrow::Cow, collections::BTreeMap, ops::Bound, sync::Arc};

use pilothouse_core::{
    field::{FieldPath, FieldSet},
    grant::Namespaces,
    key as core,
    manifest::{self, Manifest},
    object::{Keep, Object},
    selector::Selector,
    store::Change,
};
use serde_json::Value;

use super::{Id, State, World};
use crate::{
    Key, TypeMeta, Verb,
    contract::{
        exports::pilothouse::plugin::controller::{Permission, Watch},
        pilothouse::plugin::cache::{Query, ReadError},
    },
    mock::{bounds, convert, manifest::check_asked},
};

pub(super) type Objects = BTreeMap<Id, Value>;

fn is_in(watch: &manifest::Watch, namespace: Option<&str>) -> bool {
    watch.namespaces.is_empty() || namespace.is_none_or(|namespace| watch.namespaces.iter().any(|one| one == namespace))
}

/// Returns `true` if a watch caches this object.
pub(super) fn holds(watch: &manifest::Watch, object: &Object) -> bool {
    watch.of == *object.type_meta()
        && is_in(watch, object.key().namespace.as_deref())
        && watch.labels.as_ref().is_none_or(|labels| labels.matches(object.labels()))
        && watch.fields.as_ref().is_none_or(|fields| convert::selects(fields, object))
}

/// Returns both sides of a change as a watch caches them. `None` if the change does not matter to it.
pub(super) fn change(
    watch: &manifest::Watch,
    old: Option<&Value>,
    new: Option<&Value>,
    missed: bool,
) -> Option<Change> {
    let side = |side: Option<&Value>| {
        let object = side.map(convert::object).filter(|object| holds(watch, object));
        object.map(|object| Arc::new(object.kept(&watch.keep)))
    };
    let change = Change { old: side(old), new: side(new), missed };
    let [old, new] = [&change.old, &change.new].map(|side| side.as_ref().map(|object| object.json()));
    (old != new && watch.when.holds(&change, &mut |_| {})).then_some(change)
}

/// Returns which of two watches of an object decides what is shown, as the host does: the one that caches everything
/// that the other caches. If there is none, always the same one.
fn preferred<'a>(one: &'a Keep, other: &'a Keep) -> &'a Keep {
    match (one.covers(other), other.covers(one)) {
        (true, false) => one,
        (false, true) => other,
        _ => one.min(other),
    }
}

/// Everything that is cached for a plugin.
pub(super) struct View {
    manifest: Manifest,
    /// What keys ask for beside the manifest, by controller and key.
    asked: BTreeMap<(String, Key), Vec<(Watch, manifest::Watch)>>,
}

impl View {
    pub(super) fn new(manifest: &Manifest) -> Self {
        Self { manifest: manifest.clone(), asked: BTreeMap::new() }
    }

    /// Replaces what a key asks for. Returns `true` if it is something else than before.
    pub(super) fn ask(&mut self, controller: &str, key: &Key, watches: &[Watch]) -> bool {
        let id = (controller.to_owned(), key.clone());
        let before = self.asked.get(&id).map_or(&[][..], |asked| asked);
        if before.iter().map(|(watch, _)| watch).eq(watches) {
            return false;
        }
        let checked = |watch: &Watch| (watch.clone(), check_asked(watch).expect("the answer was checked"));
        let asked: Vec<_> = watches.iter().map(checked).collect();
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

    /// Returns what is cached of a kind. Every kind counts as served.
    fn of(&self, of: core::TypeMeta) -> impl Iterator<Item = Cow<'_, manifest::Watch>> {
        let asked = self.asked.values().flatten().map(|(_, watch)| watch);
        let observed = self.manifest.observed(&of).map(Cow::Owned);
        let named = self.manifest.watches().chain(asked).filter(move |watch| watch.of == of).map(Cow::Borrowed);
        named.chain(observed)
    }

    /// Returns an object as the plugin sees it. `None` if the object is not cached.
    pub(super) fn show(&self, object: &Value) -> Option<Arc<Object>> {
        let object = convert::object(object);
        let keep = self.keep(&object)?;
        Some(if keep.is_whole() { object } else { Arc::new(object.kept(&keep)) })
    }

    /// Returns what the plugin sees of an object. `None` if the object is not cached.
    pub(super) fn keep(&self, object: &Object) -> Option<Keep> {
        let holding = self.of(object.type_meta().clone()).filter(|watch| holds(watch, object));
        let keeps: Vec<Keep> = holding.map(|watch| watch.keep.clone()).collect();
        keeps.iter().reduce(preferred).cloned()
    }

    /// Returns `true` if objects of a kind are cached, in any namespace or in one.
    fn covers(&self, of: &TypeMeta, namespace: Option<&str>) -> bool {
        self.of(of.into()).any(|watch| is_in(&watch, namespace))
    }
}

/// A query that has been checked.
pub(super) struct Selected<'a> {
    query: &'a Query,
    pub(super) labels: Selector,
    pub(super) index: Option<(FieldPath, &'a str)>,
    pub(super) fields: Vec<FieldPath>,
    after: Option<Key>,
}

impl Selected<'_> {
    /// Returns the text of an object that was found.
    pub(super) fn text(&self, object: &Object) -> String {
        match self.fields.is_empty() {
            true => object.json().into_owned(),
            false => {
                FieldSet::new(self.fields.iter().cloned()).project(&object.json()).expect("the object is valid JSON")
            }
        }
    }
}

impl World {
    /// Returns an object as a reconcile of a controller gets it.
    pub(in crate::mock) fn reconciled(&self, controller: &str, key: &Key) -> Option<Arc<Object>> {
        let state = self.state();
        let watch = &state.checked.controller(controller).expect("it is a controller of the manifest").for_;
        let object = state.objects.get(&((&watch.of).into(), key.clone())).map(convert::object)?;
        holds(watch, &object).then(|| Arc::new(object.kept(&watch.keep)))
    }
}

impl State {
    /// # Errors
    /// Fails if the plugin may not read any object of the kind.
    pub(super) fn may_read(&self, of: &TypeMeta, namespace: Option<&str>) -> Result<(), ReadError> {
        if !self.view.covers(of, namespace) {
            let place = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
            return Err(ReadError::NotGranted(format!(
                "{of}{place} is not cached for this plugin: only what a controller is `for`, `owns`, `watches` or `reads`, what a \
                 webhook `reads`, what the plugin `observes` and what the outcome of a reconcile asks for in `watches` is; use client.get"
            )));
        }
        Ok(())
    }

    /// # Errors
    /// Fails if the query is not valid or not granted.
    pub(super) fn select<'a>(&self, query: &'a Query) -> Result<Selected<'a>, ReadError> {
        let of = &query.of;
        let (labels, fields) = bounds::query(query).map_err(ReadError::Invalid)?;
        let namespace = query.namespace.as_deref();
        self.may_list(of, namespace)?;
        self.may_read(of, namespace)?;
        let index = match &query.index {
            None => None,
            Some((name, value)) => match self.checked.index(name) {
                Some(index) if index.of == of.into() => Some((index.path.clone(), value.as_str())),
                Some(index) => {
                    return Err(ReadError::Invalid(format!("index {name:?} is of {}, and not of {of}", index.of)));
                }
                None => return Err(ReadError::Invalid(format!("the manifest declares no index {name:?}"))),
            },
        };
        let after = query.after.as_deref().map(cursor).transpose()?;
        Ok(Selected { query, labels, index, fields, after })
    }

    /// Checks that some objects of the kind are granted. A list leaves out the others.
    fn may_list(&self, of: &TypeMeta, namespace: Option<&str>) -> Result<(), ReadError> {
        let some = match (self.grants.readable_namespaces(&of.into()), namespace) {
            (Namespaces::All, _) | (Namespaces::Some(_), None) => true,
            (Namespaces::Some(readable), Some(asked)) => readable.iter().any(|namespace| namespace == asked),
            (Namespaces::None, _) => false,
        };
        let everything = |permission: &&Permission| {
            permission.of.selects(of)
                && permission.subresource.is_none()
                && permission.verbs.contains(&Verb::Read)
                && permission.names.is_empty()
                && (permission.namespaces.is_empty()
                    || namespace.is_some_and(|asked| permission.namespaces.iter().any(|one| one == asked)))
        };
        if some && !self.refused.iter().any(|permission| everything(&permission)) {
            return Ok(());
        }
        self.check_any(Verb::Read, of, namespace).map_err(ReadError::NotGranted)
    }

    /// Iterates over what a query finds, in order, as the plugin sees it.
    pub(super) fn found<'a>(&'a self, selected: &'a Selected<'a>) -> impl Iterator<Item = (&'a Key, Arc<Object>)> {
        let of = &selected.query.of;
        let start = match &selected.after {
            None => Bound::Included((of.clone(), Key { namespace: None, name: String::new() })),
            Some(after) => Bound::Excluded((of.clone(), after.clone())),
        };
        let of_kind = self.objects.range((start, Bound::Unbounded)).take_while(move |((kind, _), _)| kind == of);
        of_kind.filter_map(move |(id, object)| {
            let here = selected.query.namespace.is_none() || id.1.namespace == selected.query.namespace;
            let readable = here && self.check(Verb::Read, id, None).is_ok();
            let shown = readable.then(|| self.view.show(object)).flatten()?;
            let indexed = selected
                .index
                .as_ref()
                .is_none_or(|(path, value)| convert::values(&shown, path).iter().any(|found| found == value));
            (indexed && selected.labels.matches(shown.labels())).then_some((&id.1, shown))
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
