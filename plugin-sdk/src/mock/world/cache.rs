//! The interface `cache` of the mock.

use pilothouse_core::reads::{Aspect, Selection};

use super::{
    World,
    view::{Selected, page_after},
};
use crate::{
    Key, TypeMeta, Verb,
    cache::import::Functions,
    contract::pilothouse::plugin::cache::{KeyPage, Page, Query, ReadError},
    mock::bounds,
};

/// The contract's limits: objects in a page, keys in a page, and bytes of JSON in a page or an object.
const PAGE: usize = 500;
const KEYS: usize = 10_000;
const BYTES: usize = 4 << 20;

impl Functions for World {
    fn get(&self, of: &TypeMeta, key: &Key) -> Result<Option<String>, ReadError> {
        bounds::object(of, key).map_err(ReadError::Invalid)?;
        let mut state = self.state_mut();
        let id = (of.clone(), key.clone());
        state.check(Verb::Read, &id, None).map_err(ReadError::NotGranted)?;
        state.may_read(of, key.namespace.as_deref())?;
        state.reading.record(|tracker, run| tracker.read_object(run, &of.into(), &key.into()));
        let object = state.objects.get(&id).and_then(|object| state.view.show(object));
        let text = object.map(|object| object.json().into_owned());
        match text.as_ref().map_or(0, String::len) {
            bytes if bytes > BYTES => Err(ReadError::TooLarge(bytes as u64)),
            _ => Ok(text),
        }
    }

    fn list(&self, query: &Query) -> Result<Page, ReadError> {
        let mut state = self.state_mut();
        let selected = state.select(query)?;
        let aspect = match selected.fields.is_empty() {
            true => Aspect::Whole,
            false => Aspect::Fields(selected.fields.clone().into()),
        };
        let selection = selection(query, &selected, aspect);
        state.reading.record(|tracker, run| tracker.read_selection(run, &(&query.of).into(), selection));
        let (mut items, mut bytes) = (Vec::new(), 0);
        let mut last: Option<&Key> = None;
        for (key, object) in state.found(&selected) {
            let text = selected.text(&object);
            if text.len() > BYTES && items.is_empty() {
                return Err(ReadError::TooLarge(text.len() as u64));
            }
            bytes += text.len();
            if items.len() == limit(query, PAGE) || bytes > BYTES {
                return Ok(Page { items, next: last.map(page_after) });
            }
            items.push(text);
            last = Some(key);
        }
        Ok(Page { items, next: None })
    }

    fn keys(&self, query: &Query) -> Result<KeyPage, ReadError> {
        let mut state = self.state_mut();
        let selected = state.select(query)?;
        let selection = selection(query, &selected, Aspect::Keys);
        state.reading.record(|tracker, run| tracker.read_selection(run, &(&query.of).into(), selection));
        let limit = limit(query, KEYS);
        let mut items: Vec<Key> = state.found(&selected).map(|(key, _)| key.clone()).take(limit + 1).collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(page_after);
        Ok(KeyPage { items, next })
    }
}

/// Returns what a query reads, for tracking. Pages do not matter.
fn selection(query: &Query, selected: &Selected<'_>, aspect: Aspect) -> Selection {
    Selection {
        namespace: query.namespace.as_deref().map(Into::into),
        labels: selected.labels.clone(),
        index: selected.index.as_ref().map(|(path, value)| (path.clone(), (*value).into())),
        aspect,
    }
}

/// Returns how many items a page of the query may have.
fn limit(query: &Query, most: usize) -> usize {
    match usize::try_from(query.limit) {
        Ok(limit) if limit > 0 => limit.min(most),
        _ => most,
    }
}
