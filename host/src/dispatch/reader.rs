//! Reads of one plugin out of its caches, within its grants.
//!
//! - Several leases may hold parts of a kind, and some objects in common. A page merges them by key.
//! - A page takes some objects of a lease at a time, so that no informer stays locked for long.
//! - Each call reads at one [moment](Reading::moment), so that its pages fit together.
//!
//! ```text
//! query ─ granted? cached? ─► leases on the kind ─ merged by key ─ granted? matches? ─► fields ─► page
//! ```

use std::{collections::BTreeMap, sync::Arc};

use arc_swap::ArcSwap;
use pilothouse_core::{
    field::{FieldPath, FieldSet},
    grant::{Grants, Namespaces},
    key::{Key, TypeMeta},
    manifest::{Manifest, Verb},
    object::{Keep, Object},
    reads::{Aspect, Selection},
    selector::Selector,
    store,
};

use super::{cursor, reading::Reading};
use crate::{
    informer::{InformerKey, Lease, View, WORK, precedes},
    wasm::{KeyPage, Page, Query, ReadError},
};

/// Objects in a page, unless the query asks for fewer.
const PAGE: usize = 500;

/// Keys in a page, unless the query asks for fewer: at most 3 MB.
const KEYS: usize = 10_000;

/// Rounds of [`WORK`] objects of each lease for one page: as many as a page of keys needs, and one more.
///
/// They take some milliseconds, in which the guest's thread serves no other plugin and checks no deadline.
const ROUNDS: usize = KEYS / WORK + 1;

/// Bytes of JSON in a page, and of one object, as the contract promises.
const PAGE_BYTES: usize = 4 << 20;

/// Reads of one plugin, within its grants.
pub(super) struct Reader {
    view: View,
    grants: Arc<ArcSwap<Grants>>,
    /// Kind and field of each of the manifest's indexes, by name.
    indexes: BTreeMap<String, (TypeMeta, FieldPath)>,
}

/// A query that was checked.
struct Search<'a> {
    query: &'a Query,
    /// The indexed field, and the value to look up.
    index: Option<(&'a FieldPath, &'a str)>,
    after: Option<Key>,
}

impl Reader {
    pub(super) fn new(view: View, grants: Arc<ArcSwap<Grants>>, manifest: &Manifest) -> Self {
        let indexes = manifest.indexes.iter().map(|index| (index.name.clone(), (index.of.clone(), index.path.clone())));
        Self { view, grants, indexes: indexes.collect() }
    }

    /// Returns an object as the cache has it now. The read is not tracked.
    pub(super) fn look_up(&self, of: &TypeMeta, key: &Key) -> Result<Option<Arc<Object>>, ReadError> {
        let (namespace, reading) = (key.namespace.as_deref(), Reading::default());
        self.granted(of, namespace, Some(&key.name))?;
        if self.view.covering(of, namespace).next().is_none() {
            return Err(not_cached(of, namespace, &reading));
        }
        self.may_read(of, namespace, Some(&key.name))?;
        Ok(self.view.get(of, key))
    }

    pub(super) fn get(&self, of: &TypeMeta, key: &Key, reading: &Reading) -> Result<Option<Arc<Object>>, ReadError> {
        let namespace = key.namespace.as_deref();
        self.granted(of, namespace, Some(&key.name))?;
        let view = self.view(reading);
        if view.covering(of, namespace).next().is_none() {
            return Err(not_cached(of, namespace, reading));
        }
        self.may_read(of, namespace, Some(&key.name))?;
        reading.object(of, key);
        match view.get_at(reading.moment(), of, key) {
            Some(object) if object.json_len() > PAGE_BYTES => Err(too_large(object.json_len())),
            Some(object) => match object.unreadable() {
                Some(why) => Err(ReadError::Invalid(why.to_string())),
                None => Ok(Some(object)),
            },
            None => Ok(None),
        }
    }

    pub(super) fn list(&self, query: &Query, reading: &Reading) -> Result<Page, ReadError> {
        let search = self.search(query, reading)?;
        let aspect = match &*query.fields {
            [] => Aspect::Whole,
            fields => Aspect::Fields(fields.into()),
        };
        reading.selection(&query.of, search.selection(aspect));
        let limit = limit(query, PAGE);
        let fields = FieldSet::new(query.fields.iter().cloned());
        let mut page = Page::default();
        let (mut bytes, mut last) = (0, None);
        let mut refused = None;
        let rest = self.walk(&search, limit, reading, |object| {
            let text = match query.fields.is_empty() {
                true => object.json().into_owned(),
                // Objects are scanned when they enter the cache, so each can be projected.
                false => fields.project(&object.json()).unwrap_or_default(),
            };
            if page.items.is_empty() && text.len() > PAGE_BYTES {
                refused = Some(too_large(text.len()));
                return false;
            }
            if page.items.len() == limit || bytes + text.len() > PAGE_BYTES {
                page.next = last.as_ref().map(Key::to_string);
                return false;
            }
            bytes += text.len();
            page.items.push(text);
            last = Some(object.key().clone());
            true
        });
        page.next = page.next.or_else(|| Some(self.next(&query.of, rest.as_ref()?)));
        refused.map_or(Ok(page), Err)
    }

    pub(super) fn keys(&self, query: &Query, reading: &Reading) -> Result<KeyPage, ReadError> {
        let search = self.search(query, reading)?;
        reading.selection(&query.of, search.selection(Aspect::Keys));
        let limit = limit(query, KEYS);
        let mut page = KeyPage::default();
        let rest = self.walk(&search, limit, reading, |object| {
            if page.items.len() == limit {
                page.next = page.items.last().map(Key::to_string);
                return false;
            }
            page.items.push(object.key().clone());
            true
        });
        page.next = page.next.or_else(|| Some(self.next(&query.of, rest.as_ref()?)));
        Ok(page)
    }

    /// Returns what the manifest's leases are on.
    pub(super) fn leased(&self) -> impl Iterator<Item = &InformerKey> {
        self.view.leases().map(Lease::key)
    }

    /// Returns what a call reads.
    fn view<'a>(&'a self, reading: &'a Reading) -> &'a View {
        reading.cached().map_or(&self.view, |cached| &cached.view)
    }

    /// Returns the cursor of a page that ends at this key. It does not name an object that the plugin may not see.
    fn next(&self, of: &TypeMeta, last: &Key) -> String {
        if self.grants.load().may_see(of, last) { last.to_string() } else { cursor::seal(last) }
    }

    /// Returns the keys in `view` that an index has under an object's name. If both kinds are namespaced, only those in
    /// its namespace.
    pub(super) fn indexed(&self, view: &View, index: &str, name: &Key) -> Vec<Key> {
        let Some((of, path)) = self.indexes.get(index) else { return Vec::new() };
        let all = Selector::default();
        // A cluster-scoped name is looked up everywhere, a namespaced one in its namespace and among cluster-scoped
        // objects.
        let places: &[Option<&str>] = match name.namespace.as_deref() {
            None => &[None],
            Some(namespace) => &[Some(""), Some(namespace)],
        };
        let mut keys = Vec::new();
        for (lease, namespace) in view.of(of).flat_map(|lease| places.iter().map(move |place| (lease, *place))) {
            let mut after = None;
            loop {
                let index = Some((path, &*name.name));
                let query = store::Query { namespace, index, after: after.as_ref(), ..store::Query::new(&all) };
                let page = lease.page(&query, None, WORK);
                keys.extend(page.items.iter().map(|object| object.key().clone()));
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        keys
    }

    /// Checks a query.
    fn search<'a>(&'a self, query: &'a Query, reading: &Reading) -> Result<Search<'a>, ReadError> {
        let of = &query.of;
        let namespace = query.namespace.as_deref();
        self.list_granted(of, namespace)?;
        let view = self.view(reading);
        if view.covering(of, namespace).next().is_none() && view.of(of).next().is_none() {
            return Err(not_cached(of, namespace, reading));
        }
        self.may_read(of, namespace, None)?;
        let not_next = |text: &str| ReadError::Invalid(format!("after {text:?} is not the `next` of a page"));
        let after = query.after.as_deref().map(|text| cursor::open(text).ok_or_else(|| not_next(text))).transpose()?;
        let index = query.index.as_ref().map(|(name, value)| match self.indexes.get(name) {
            Some((kind, path)) if kind == of => Ok((path, value.as_str())),
            Some((kind, _)) => Err(ReadError::Invalid(format!("index {name:?} is of {kind}, and not of {of}"))),
            None => Err(ReadError::Invalid(format!("the manifest declares no index {name:?}"))),
        });
        Ok(Search { query, index: index.transpose()?, after })
    }

    /// Calls `take` with the objects that the search finds at a moment, in the order of keys, until it returns `false`.
    /// It is expected to take about `most`. Returns the last key that was looked at, if [`ROUNDS`] came to an end
    /// before the objects did.
    fn walk(
        &self,
        search: &Search<'_>,
        most: usize,
        reading: &Reading,
        mut take: impl FnMut(&Arc<Object>) -> bool,
    ) -> Option<Key> {
        let Query { of, namespace, labels, .. } = search.query;
        // One more object shows that the page is not the last.
        let mut wanted = most.saturating_add(1);
        let mut after = search.after.clone();
        for _ in 0..ROUNDS {
            let query = store::Query {
                namespace: namespace.as_deref(),
                index: search.index,
                after: after.as_ref(),
                limit: wanted,
                ..store::Query::new(labels)
            };
            let mut found: Vec<(Arc<Object>, &Keep)> = Vec::new();
            // Up to this key all leases have returned their objects.
            let mut complete: Option<Key> = None;
            for lease in self.view(reading).of(of) {
                let page = lease.page(&query, Some(reading.moment()), WORK);
                found.extend(page.items.into_iter().map(|object| (object, &lease.key().keep)));
                complete = match (complete, page.next) {
                    (Some(earlier), Some(next)) => Some(earlier.min(next)),
                    (complete, next) => complete.or(next),
                };
            }
            found.sort_by(|(a, _), (b, _)| a.key().cmp(b.key()));
            found.dedup_by(|next, kept| {
                let same = next.0.key() == kept.0.key();
                if same && precedes((&*next.0, next.1), (&*kept.0, kept.1)) {
                    std::mem::swap(next, kept);
                }
                same
            });
            let objects = found.iter().map(|(object, _)| object);
            let ready = |object: &&Arc<Object>| complete.as_ref().is_none_or(|last| object.key() <= last);
            for object in objects.take_while(ready) {
                if !self.grants.load().may_see(of, object.key()) {
                    continue;
                }
                if !take(object) {
                    return None;
                }
                wanted = wanted.saturating_sub(1);
            }
            after = Some(complete?);
        }
        after
    }

    fn granted(&self, of: &TypeMeta, namespace: Option<&str>, name: Option<&str>) -> Result<(), ReadError> {
        self.grants
            .load()
            .check(Verb::Read, of, None, namespace, name)
            .map_err(|denied| ReadError::NotGranted(denied.to_string()))
    }

    /// Checks that the plugin's service account may see all that a read concerns.
    fn may_read(&self, of: &TypeMeta, namespace: Option<&str>, name: Option<&str>) -> Result<(), ReadError> {
        self.grants.load().check_rights(of, namespace, name).map_err(ReadError::NotGranted)
    }

    /// Checks that some objects of the kind are granted. A list then leaves out each object that is not.
    fn list_granted(&self, of: &TypeMeta, namespace: Option<&str>) -> Result<(), ReadError> {
        let some = match (self.grants.load().readable_namespaces(of), namespace) {
            (Namespaces::All, _) | (Namespaces::Some(_), None) => true,
            (Namespaces::Some(readable), Some(asked)) => readable.iter().any(|namespace| namespace == asked),
            (Namespaces::None, _) => false,
        };
        if some { Ok(()) } else { self.granted(of, namespace, None) }
    }
}

impl Search<'_> {
    /// Returns what the search reads, for tracking. Pages do not matter.
    fn selection(&self, aspect: Aspect) -> Selection {
        Selection {
            namespace: self.query.namespace.as_deref().map(Into::into),
            labels: self.query.labels.clone(),
            index: self.index.map(|(path, value)| (path.clone(), value.into())),
            aspect,
        }
    }
}

/// Says why a kind cannot be read from the cache.
fn not_cached(of: &TypeMeta, namespace: Option<&str>, reading: &Reading) -> ReadError {
    let mut lacking = reading.cached().into_iter().flat_map(|cached| &cached.lacking);
    if let Some((_, why)) = lacking.find(|(kind, _)| kind == of) {
        return ReadError::NotGranted(format!("{of} is not cached yet: {why}"));
    }
    let place = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    ReadError::NotGranted(format!(
        "{of}{place} is not cached for this plugin: only what a controller is `for`, `owns`, `watches` or `reads`, what a webhook \
         `reads`, what the plugin `observes` and what the outcome of a reconcile asks for in `watches` is; use client.get"
    ))
}

fn limit(query: &Query, most: usize) -> usize {
    match query.limit {
        0 => most,
        limit => usize::try_from(limit).unwrap_or(most).min(most),
    }
}

fn too_large(bytes: usize) -> ReadError {
    ReadError::TooLarge(u64::try_from(bytes).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
