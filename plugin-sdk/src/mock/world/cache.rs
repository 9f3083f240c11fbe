//! The interface `cache` of the mock.

use serde_json::Value;

use super::{State, World, view::page_after, wakes::Read};
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
        state.may_read(of, key.namespace.as_ref())?;
        state.record_read(|| Read::Object(id.clone()));
        let object = state.objects.get(&id).and_then(|object| state.view.show(&id, object));
        let text = object.as_ref().map(Value::to_string);
        match text.as_ref().map_or(0, String::len) {
            bytes if bytes > BYTES => Err(ReadError::TooLarge(bytes as u64)),
            _ => Ok(text),
        }
    }

    fn list(&self, query: &Query) -> Result<Page, ReadError> {
        let mut state = self.state_mut();
        let selected = state.select(query)?;
        state.record_read(|| Read::list(query));
        let (mut items, mut bytes) = (Vec::new(), 0);
        let mut last: Option<&Key> = None;
        for (key, object) in state.found(&state.objects, &selected) {
            let text = object.to_string();
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
        state.record_read(|| Read::keys(query));
        let limit = limit(query, KEYS);
        let mut items: Vec<Key> =
            state.found(&state.objects, &selected).map(|(key, _)| key.clone()).take(limit + 1).collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(page_after);
        Ok(KeyPage { items, next })
    }
}

impl State {
    /// Adds a read to those of the running call.
    fn record_read(&mut self, read: impl FnOnce() -> Read) {
        if let Some(reading) = &mut self.reading {
            reading.insert(read());
        }
    }
}

/// Returns how many items a page of the query may have.
fn limit(query: &Query, most: usize) -> usize {
    match usize::try_from(query.limit) {
        Ok(limit) if limit > 0 => limit.min(most),
        _ => most,
    }
}
