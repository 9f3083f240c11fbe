//! The host's side of the imports: the contract's words to [`Imports`] and back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pilothouse_core::field::FieldPath;
use pilothouse_core::key::{Key, TypeMeta};
use pilothouse_core::object::{Object, Subresource};
use pilothouse_core::selector::Selector;
use wasmtime::Result;

use super::bindings::pilothouse::plugin::{cache, client, clock, log, types};
use super::call::{MAX_MESSAGE, shorten};
use super::imports::{Import, Imports, LogLine, Query};
use super::limits::{Held, Limiter};
use super::revision::Limits;

/// Field paths in a query: more than anybody reads of an object, and a bound on what is compared for each object.
const MAX_FIELDS: usize = 64;

/// What the store of one call holds.
pub(super) struct Host {
    door: Door,
    pub(super) limits: Limiter,
    pub(super) began: Instant,
    pub(super) budget: Duration,
    now: u64,
    /// Host calls so far, and bytes of what they answered.
    calls: u32,
    bytes: usize,
    may: Limits,
    lines: u32,
    /// The last error that the guest logged, fields included.
    pub(super) said: Option<String>,
}

/// Whether imports lead anywhere.
enum Door {
    /// `describe` is pure.
    Closed,
    Open(Arc<dyn Imports>),
}

/// An import was called where none may be.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("{} was called from describe", .0.name())]
pub(super) struct Closed(pub(super) Import);

/// More than one call may have of the host; with the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Host calls.
    #[error("called the host more than {0} times in one call")]
    Calls(u32),
    /// Bytes of their answers.
    #[error("was given more than {} MiB by the host in one call", .0 >> 20)]
    Bytes(usize),
}

impl Host {
    /// For one call: within `budget` from now, under these limits, with what the plugin's other instances hold, and no imports where there
    /// are none.
    pub(super) fn new(imports: Option<Arc<dyn Imports>>, limits: Limits, held: Held, budget: Duration) -> Self {
        let now = imports.as_ref().map_or(0, |imports| imports.now());
        Self {
            door: imports.map_or(Door::Closed, Door::Open),
            limits: Limiter::new(limits.memory, limits.total_memory, held),
            began: Instant::now(),
            budget,
            now,
            calls: 0,
            bytes: 0,
            may: limits,
            lines: 0,
            said: None,
        }
    }

    /// The same for the next call into the same instance. But for what that holds, nothing is left of the call before.
    pub(super) fn again(&mut self, imports: Option<Arc<dyn Imports>>, budget: Duration) {
        let mut fresh = Self::new(imports, self.may, Held::default(), budget);
        std::mem::swap(&mut fresh.limits, &mut self.limits);
        fresh.limits.again();
        *self = fresh;
    }

    /// The call is over: nothing is reached any more.
    pub(super) fn close(&mut self) {
        self.finish_log();
        self.door = Door::Closed;
    }

    /// Begins a host call.
    fn open(&mut self, import: Import) -> Result<Arc<dyn Imports>> {
        let Door::Open(imports) = &self.door else { return Err(wasmtime::Error::new(Closed(import))) };
        if self.calls >= self.may.host_calls {
            return Err(wasmtime::Error::new(Excess::Calls(self.may.host_calls)));
        }
        self.calls += 1;
        imports.called(import);
        Ok(Arc::clone(imports))
    }

    /// Ends a host call whose answer has so many bytes.
    fn gives<T>(&mut self, answer: T, bytes: impl FnOnce(&T) -> usize) -> Result<T> {
        self.bytes = self.bytes.saturating_add(bytes(&answer));
        if self.bytes > self.may.host_bytes {
            return Err(wasmtime::Error::new(Excess::Bytes(self.may.host_bytes)));
        }
        Ok(answer)
    }

    /// The same for an object of the API server's.
    fn gives_object(&mut self, answer: &Result<Arc<Object>, client::Error>) -> Result<Result<String, client::Error>> {
        self.gives(answer.as_ref().map(json).map_err(Clone::clone), |answer| answer.as_ref().map_or(0, String::len))
    }

    /// Says how many lines were not kept, if any were not.
    fn finish_log(&self) {
        if let (Door::Open(imports), Some(dropped @ 1..)) = (&self.door, self.lines.checked_sub(LogLine::MAX_LINES)) {
            let fields = vec![("dropped".to_owned(), dropped.to_string())];
            imports.log(&LogLine::new(log::Level::Warn, "plugin logged too many lines in one call".to_owned(), fields));
        }
    }
}

fn type_meta(of: &types::TypeMeta) -> TypeMeta {
    TypeMeta::new(&of.api_version, &of.kind)
}

fn key(key: &types::Key) -> Key {
    Key::new(key.namespace.as_deref(), &key.name)
}

fn key_bytes(key: &types::Key) -> usize {
    key.name.len() + key.namespace.as_ref().map_or(0, String::len)
}

fn wit_key(key: &Key) -> types::Key {
    types::Key { namespace: key.namespace.as_deref().map(str::to_owned), name: key.name.as_ref().to_owned() }
}

/// A guest's query, with what it writes as text read.
fn read(query: cache::Query) -> Result<Query, cache::ReadError> {
    let invalid = |what: &str, error: &dyn std::fmt::Display| cache::ReadError::Invalid(format!("{what}: {error}"));
    let labels =
        Selector::parse(query.labels.as_deref().unwrap_or_default()).map_err(|error| invalid("labels", &error))?;
    if query.fields.len() > MAX_FIELDS {
        return Err(invalid(
            "fields",
            &format!("{} are more than the {MAX_FIELDS} that a query may name", query.fields.len()),
        ));
    }
    let paths = query.fields.iter().map(|path| FieldPath::parse(path));
    let fields = paths.collect::<Result<_, _>>().map_err(|error| invalid("fields", &error))?;
    let of = type_meta(&query.of);
    Ok(Query {
        of,
        namespace: query.namespace,
        labels,
        index: query.index,
        fields,
        limit: query.limit,
        after: query.after,
    })
}

pub(super) fn subresource(subresource: types::Subresource) -> Subresource {
    match subresource {
        types::Subresource::Status => Subresource::Status,
        types::Subresource::Scale => Subresource::Scale,
    }
}

fn json(object: &Arc<Object>) -> String {
    object.json().into_owned()
}

impl types::Host for Host {}

impl cache::Host for Host {
    fn get(&mut self, of: types::TypeMeta, name: types::Key) -> Result<Result<Option<String>, cache::ReadError>> {
        let imports = self.open(Import::CacheGet)?;
        let object = imports.cached(&type_meta(&of), &key(&name)).map(|object| object.as_ref().map(json));
        self.gives(object, |object| object.as_ref().ok().and_then(Option::as_ref).map_or(0, String::len))
    }

    fn list(&mut self, query: cache::Query) -> Result<Result<cache::Page, cache::ReadError>> {
        let imports = self.open(Import::CacheList)?;
        let page = read(query).and_then(|query| imports.cached_list(&query));
        let page = page.map(|page| cache::Page { items: page.items, next: page.next });
        self.gives(page, |page| page.as_ref().map_or(0, |page| page.items.iter().map(String::len).sum()))
    }

    fn keys(&mut self, query: cache::Query) -> Result<Result<cache::KeyPage, cache::ReadError>> {
        let imports = self.open(Import::CacheKeys)?;
        let page = read(query).and_then(|query| imports.cached_keys(&query));
        let page = page.map(|page| cache::KeyPage { items: page.items.iter().map(wit_key).collect(), next: page.next });
        self.gives(page, |page| page.as_ref().map_or(0, |page| page.items.iter().map(key_bytes).sum()))
    }
}

impl client::Host for Host {
    async fn get(&mut self, of: types::TypeMeta, name: types::Key) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientGet)?;
        let answer = imports.get(type_meta(&of), key(&name)).await;
        self.gives_object(&answer)
    }

    async fn create(&mut self, object: String) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientCreate)?;
        let answer = imports.create(object).await;
        self.gives_object(&answer)
    }

    async fn update(
        &mut self,
        object: String,
        part: Option<types::Subresource>,
    ) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientUpdate)?;
        let answer = imports.update(object, part.map(subresource)).await;
        self.gives_object(&answer)
    }

    async fn patch(
        &mut self,
        of: types::TypeMeta,
        name: types::Key,
        body: client::PatchBody,
        part: Option<types::Subresource>,
    ) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientPatch)?;
        let answer = imports.patch(type_meta(&of), key(&name), body, part.map(subresource)).await;
        self.gives_object(&answer)
    }

    async fn apply(
        &mut self,
        object: String,
        part: Option<types::Subresource>,
        force: bool,
    ) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientApply)?;
        let answer = imports.apply(object, part.map(subresource), force).await;
        self.gives_object(&answer)
    }

    async fn delete(
        &mut self,
        of: types::TypeMeta,
        name: types::Key,
        propagation: client::Propagation,
        preconditions: client::Preconditions,
    ) -> Result<Result<(), client::Error>> {
        let imports = self.open(Import::ClientDelete)?;
        Ok(imports.delete(type_meta(&of), key(&name), propagation, preconditions).await)
    }
}

impl log::Host for Host {
    fn write(&mut self, level: log::Level, message: String, fields: Vec<(String, String)>) -> Result<()> {
        let line = LogLine::new(level, message, fields);
        if matches!(line.level, log::Level::Error) {
            self.said = Some(shorten(line.to_string(), MAX_MESSAGE));
        }
        let imports = self.open(Import::LogWrite)?;
        self.lines = self.lines.saturating_add(1);
        // What a guest says last may be why it dies, so that much is in `said` even when the log is full.
        if self.lines <= LogLine::MAX_LINES {
            imports.log(&line);
        }
        Ok(())
    }
}

impl clock::Host for Host {
    fn now(&mut self) -> Result<u64> {
        self.open(Import::ClockNow)?;
        Ok(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_call_has_a_deadline_of_its_own() {
        let mut host = Host::new(None, Limits::default(), Held::default(), Duration::from_secs(1));
        let earlier = host.began - Duration::from_millis(1);
        host.began = earlier;
        host.again(None, Duration::from_secs(2));
        assert!(host.began > earlier);
        assert_eq!(host.budget, Duration::from_secs(2));
    }
}
