//! Reads many objects in the order of keys, page by page, with a bound on the work of each.
//!
//! ```text
//!  names ─────────────┐ the smallest of them
//!  labels ─ sets ─────┼──────────► in order of keys ──┐
//!  fields ─ set  ─────┘            (slots)            ├─ merge ─► does it match? ─► page
//!             what a snapshot sees differently ───────┘
//! ```
//!
//! Every source is ordered and can be entered anywhere. So a page costs what it looks at, wherever it begins.

use std::{iter, sync::Arc};

use super::{Snapshot, Store, fields::FieldIndex, in_namespace, set::Order};
use crate::{
    field::{FieldPath, FieldSet},
    key::Key,
    object::Object,
    selector::Selector,
};

/// Selects the objects of a read.
#[derive(Clone, Copy, Debug)]
pub struct Query<'q> {
    /// Only objects of this namespace; `None` for all.
    pub namespace: Option<&'q str>,
    /// Only objects whose labels it matches.
    pub selector: &'q Selector,
    /// Only objects with this value at this path, by an index that [`Store::add_index`] made.
    pub index: Option<(&'q FieldPath, &'q str)>,
    /// Only objects with greater keys.
    pub after: Option<&'q Key>,
    /// Largest number of objects; 0 counts as 1.
    pub limit: usize,
}

impl<'q> Query<'q> {
    /// Selects all objects that `selector` matches.
    pub fn new(selector: &'q Selector) -> Self {
        Self { namespace: None, selector, index: None, after: None, limit: usize::MAX }
    }
}

/// Part of the objects of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// In the order of keys.
    pub items: Vec<Arc<Object>>,
    /// The query's `after` for the next page; `None` at the end.
    pub next: Option<Key>,
}

/// A read by an index that is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The index was never added.
    #[error("there is no index by {0}")]
    Missing(FieldPath),
    /// [`Store::build_indexes`] has not finished.
    #[error("the index by {0} is still being built")]
    Building(FieldPath),
}

/// Largest number of an index's sets that are merged by comparing their heads.
const MERGED: usize = 16;

/// Largest number of objects that are sorted for one page, if an index yields them in more than [`MERGED`] sets.
const SORTED: usize = 1_000;

type Slots<'a> = Box<dyn Iterator<Item = u32> + 'a>;

impl Store {
    /// Returns a part of what `query` selects, and where to continue. Looks at no more than `work` objects (at least
    /// one), so that a lock is held for a bounded time. A page may therefore have fewer objects than the limit, even
    /// none, without being the last.
    ///
    /// With a `snapshot`, the objects are as they were when it was taken: pages fit together.
    ///
    /// # Errors
    /// Fails if the query names an index that the store does not have.
    pub fn page(&self, query: &Query<'_>, snapshot: Option<&Snapshot>, work: usize) -> Result<Page, IndexError> {
        let index = query.index.map(|(path, value)| Ok((self.index(path)?, value))).transpose()?;
        let path = query.index.map(|(path, _)| FieldSet::new([path.clone()]));
        let wanted = |object: &Object, slot: Option<u32>| {
            (query.selector.is_empty() || query.selector.matches(object.labels()))
                && index.is_none_or(|(index, value)| match slot {
                    Some(slot) => index.has(slot, value),
                    None => has_value(path.as_ref(), object, value),
                })
        };
        let mut present = self.candidates(query, index).peekable();
        let mut past =
            snapshot.map(|at| self.past.after(at, query.namespace, query.after)).into_iter().flatten().peekable();
        let mut page = Page { items: Vec::new(), next: None };
        let mut last = None;
        for _ in 0..work.max(1) {
            if page.items.len() >= query.limit.max(1) {
                break;
            }
            let now = present.peek().map(|slot| (self.object(*slot), *slot));
            let old = past.peek().copied();
            // If both have a key, the snapshot's version counts.
            let (key, object, slot) = match (now, old) {
                (None, None) => return Ok(page),
                (Some((now, slot)), _) if old.is_none_or(|(key, _)| now.key() < key) => {
                    present.next();
                    (now.key(), Some(now), Some(slot))
                }
                (_, None) => return Ok(page),
                (now, Some((key, object))) => {
                    past.next();
                    if now.is_some_and(|(now, _)| now.key() == key) {
                        present.next();
                    }
                    (key, object, None)
                }
            };
            last = Some(key);
            page.items.extend(object.filter(|object| wanted(object, slot)).cloned());
        }
        if present.peek().is_some() || past.peek().is_some() {
            page.next = last.or(query.after).cloned();
        }
        Ok(page)
    }

    /// Returns the objects that `selector` matches, ordered by key, after the key `after`. `namespace`: `None` for all.
    ///
    /// For callers that take few objects, or hold no lock: only [`page`](Self::page) bounds the time.
    pub fn list<'a>(
        &'a self,
        namespace: Option<&'a str>,
        selector: &'a Selector,
        after: Option<&'a Key>,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        let query = Query { namespace, after, ..Query::new(selector) };
        let objects = self.candidates(&query, None).map(|slot| self.object(slot));
        objects.filter(|object| selector.is_empty() || selector.matches(object.labels()))
    }

    /// Returns the slots of all objects that a query may select, in the order of keys. Others of the same namespace and
    /// after the same key may be among them.
    fn candidates<'a>(&'a self, query: &Query<'a>, index: Option<(&'a FieldIndex, &'a str)>) -> Slots<'a> {
        let order = Order(&self.slots);
        let Query { namespace, after, .. } = *query;
        let is_before = move |slot: u32| {
            let key = order.key(slot);
            after.is_some_and(|after| key <= after) || namespace.is_some_and(|namespace| in_namespace(key) < namespace)
        };
        let is_within = move |slot: &u32| namespace.is_none_or(|namespace| in_namespace(order.key(*slot)) == namespace);

        let labels = query.selector.requirements().iter().filter_map(|r| Some((self.labels.count(r)?, r)));
        let rarest = labels.min_by_key(|(count, _)| *count);
        if let Some((index, value)) = index {
            let Some(set) = index.slots(value) else { return Box::new(iter::empty()) };
            if rarest.is_none_or(|(count, _)| set.len() <= count) {
                return Box::new(set.after(is_before).take_while(is_within));
            }
        }
        let Some((count, requirement)) = rarest else { return Box::new(self.in_order(namespace, after)) };
        let sets = || self.labels.sets(requirement);
        if sets().nth(MERGED).is_none() {
            let sets = sets().map(|set| -> Slots<'a> { Box::new(set.after(is_before).take_while(is_within)) });
            let mut sets: Vec<_> = sets.map(Iterator::peekable).collect();
            return match sets.len() {
                1 => Box::new(sets.remove(0)),
                _ => Box::new(iter::from_fn(move || {
                    let heads = sets.iter_mut().enumerate().filter_map(|(at, set)| Some((at, order.key(*set.peek()?))));
                    let (at, _) = heads.min_by(|(_, a), (_, b)| a.cmp(b))?;
                    sets[at].next()
                })),
            };
        }
        if count <= SORTED {
            let slots = sets().flat_map(|set| set.iter()).filter(|slot| !is_before(*slot) && is_within(slot));
            let mut slots: Vec<u32> = slots.collect();
            slots.sort_unstable_by(|a, b| order.key(*a).cmp(order.key(*b)));
            return Box::new(slots.into_iter());
        }
        Box::new(self.in_order(namespace, after))
    }

    fn index(&self, path: &FieldPath) -> Result<&FieldIndex, IndexError> {
        match self.fields.get(path) {
            Some(index) if index.is_done() => Ok(index),
            Some(_) => Err(IndexError::Building(path.clone())),
            None => Err(IndexError::Missing(path.clone())),
        }
    }
}

/// Checks an object of the past, which is in no index.
fn has_value(path: Option<&FieldSet>, object: &Object, value: &str) -> bool {
    let json = object.json();
    let values = path.and_then(|path| path.values(&json).ok()).and_then(|mut values| values.pop());
    values.is_some_and(|values| values.iter().any(|one| one == value))
}
