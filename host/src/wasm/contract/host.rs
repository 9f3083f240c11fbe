//! The host's side of the imports: the contract's words to [`Imports`] and back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use pilothouse_core::{
    key::{Key, TypeMeta},
    object::{Object, Subresource},
};
use wasmtime::Result;

use super::{
    super::{
        MAX_TRANSFER,
        limits::Limits,
        memory::{Held, Limiter},
    },
    arguments::{self, key_bytes, line_bytes, object_bytes, patch_bytes, preconditions_bytes, query_bytes},
    bindings::pilothouse::plugin::{cache, client, clock, log, types, types::KeyResult as WitKey},
    call::{MAX_MESSAGE, shorten},
    imports::{Import, Imports, LogLine},
};
use crate::guests::without_core;

/// What a store holds: as long as its instance, and for the call that it serves.
pub(crate) struct Host {
    pub(crate) call: Call,
    pub(crate) limits: Limiter,
    pub(crate) in_line: InLine,
    may: Limits,
}

/// What one call asked, was told and said.
pub(crate) struct Call {
    door: Door,
    pub(crate) began: Instant,
    pub(crate) budget: Duration,
    now: u64,
    /// Host calls so far, and bytes of what they were asked and answered.
    calls: u32,
    bytes: usize,
    lines: u32,
    /// The last error that the guest logged, fields included.
    pub(crate) said: Option<String>,
}

impl Call {
    fn begin(imports: Option<Arc<dyn Imports>>, budget: Duration) -> Self {
        let now = imports.as_ref().map_or(0, |imports| imports.now());
        let door = imports.map_or(Door::Closed, Door::Open);
        Self { door, began: Instant::now(), budget, now, calls: 0, bytes: 0, lines: 0, said: None }
    }
}

/// A call whose turns come late may take as many times its budget on top.
const LATE: u32 = 9;

/// For how long a call that gave way as it computed waited for its next turn, as others had the threads, or its plugin its cap, and for a core
/// in its turns: nothing of its budget, which says how long it may take where it has both at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct InLine(Arc<AtomicU64>);

impl InLine {
    /// Gives way to whoever is next.
    pub(crate) async fn give_way(self) {
        let without_core = without_core();
        let left = Instant::now();
        // The engine's plain `Yield` wakes itself at once, and starves the runtime's timers and sockets while a guest is busy.
        tokio::task::yield_now().await;
        let waited = u64::try_from((without_core + left.elapsed()).as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(waited, Ordering::Relaxed);
    }

    /// What a call of this budget may take from its beginning, as far as is known yet.
    pub(crate) fn allows(&self, budget: Duration) -> Duration {
        let waited = Duration::from_nanos(self.0.load(Ordering::Relaxed)).saturating_add(without_core());
        budget.saturating_add(waited.min(budget.saturating_mul(LATE)))
    }
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
pub(crate) struct Closed(pub(crate) Import);

/// More than one call may have of the host; with the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Host calls.
    #[error("called the host more than {0} times in one call")]
    Calls(u32),
    /// Bytes of their arguments and answers.
    #[error("exchanged more than {} MiB with the host in one call", .0 >> 20)]
    Bytes(usize),
    /// Bytes of one call's arguments, or of an answer, as the host copies them.
    #[error("handed more than {} MiB to the host at once", MAX_TRANSFER >> 20)]
    AtOnce,
}

impl Host {
    /// For one call: within `budget` from now, under these limits, with what the plugin's other instances hold, and no imports where there
    /// are none.
    pub(crate) fn new(imports: Option<Arc<dyn Imports>>, limits: Limits, held: Held, budget: Duration) -> Self {
        Self {
            call: Call::begin(imports, budget),
            limits: Limiter::new(limits.memory, limits.total_memory, held),
            in_line: InLine::default(),
            may: limits,
        }
    }

    /// The next call into the same instance begins.
    pub(crate) fn again(&mut self, imports: Option<Arc<dyn Imports>>, budget: Duration) {
        self.call = Call::begin(imports, budget);
        self.limits.again();
        self.in_line.0.store(0, Ordering::Relaxed);
    }

    /// The call is over: nothing is reached any more.
    pub(crate) fn close(&mut self) {
        self.finish_log();
        self.call.door = Door::Closed;
    }

    /// Begins a host call whose arguments have so many bytes.
    fn open(&mut self, import: Import, bytes: usize) -> Result<Arc<dyn Imports>> {
        let Door::Open(imports) = &self.call.door else { return Err(wasmtime::Error::new(Closed(import))) };
        let imports = Arc::clone(imports);
        if self.call.calls >= self.may.host_calls {
            return Err(wasmtime::Error::new(Excess::Calls(self.may.host_calls)));
        }
        self.call.calls += 1;
        self.exchanged(bytes)?;
        imports.called(import);
        Ok(imports)
    }

    /// Ends a host call whose answer has so many bytes.
    fn gives<T>(&mut self, answer: T, bytes: impl FnOnce(&T) -> usize) -> Result<T> {
        self.exchanged(bytes(&answer))?;
        Ok(answer)
    }

    fn exchanged(&mut self, bytes: usize) -> Result<()> {
        self.call.bytes = self.call.bytes.saturating_add(bytes);
        if self.call.bytes > self.may.host_bytes {
            return Err(wasmtime::Error::new(Excess::Bytes(self.may.host_bytes)));
        }
        Ok(())
    }

    /// Ends a host call whose answer is an object of the API server's.
    fn gives_object(&mut self, answer: &Result<Arc<Object>, client::Error>) -> Result<Result<String, client::Error>> {
        self.gives(answer.as_ref().map(json).map_err(Clone::clone), |answer| answer.as_ref().map_or(0, String::len))
    }

    /// Says how many lines were not kept, if any were not.
    fn finish_log(&self) {
        if let (Door::Open(imports), Some(dropped @ 1..)) =
            (&self.call.door, self.call.lines.checked_sub(LogLine::MAX_LINES))
        {
            let fields = vec![("dropped".to_owned(), dropped.to_string())];
            imports.log(&LogLine::new(log::Level::Warn, "plugin logged too many lines in one call".to_owned(), fields));
        }
    }
}

fn wit_key(key: &Key) -> WitKey {
    WitKey { namespace: key.namespace.as_deref().map(str::to_owned), name: key.name.as_ref().to_owned() }
}

/// Which object a request is about.
fn named(of: &types::TypeMeta, name: &WitKey) -> Result<(TypeMeta, Key), client::Error> {
    arguments::object(of, name).map_err(client::Error::Invalid)
}

pub(crate) fn subresource(subresource: types::Subresource) -> Subresource {
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
    fn get(&mut self, of: types::TypeMeta, name: WitKey) -> Result<Result<Option<String>, cache::ReadError>> {
        let imports = self.open(Import::CacheGet, object_bytes(&of, &name))?;
        let object = arguments::object(&of, &name).map_err(cache::ReadError::Invalid);
        let object = object.and_then(|(of, key)| imports.cached(&of, &key));
        let object = object.map(|object| object.as_ref().map(json));
        self.gives(object, |object| object.as_ref().ok().and_then(Option::as_ref).map_or(0, String::len))
    }

    fn list(&mut self, query: cache::Query) -> Result<Result<cache::Page, cache::ReadError>> {
        let imports = self.open(Import::CacheList, query_bytes(&query))?;
        let page = arguments::query(query).and_then(|query| imports.cached_list(&query));
        let page = page.map(|page| cache::Page { items: page.items, next: page.next });
        self.gives(page, |page| page.as_ref().map_or(0, |page| page.items.iter().map(String::len).sum()))
    }

    fn keys(&mut self, query: cache::Query) -> Result<Result<cache::KeyPage, cache::ReadError>> {
        let imports = self.open(Import::CacheKeys, query_bytes(&query))?;
        let page = arguments::query(query).and_then(|query| imports.cached_keys(&query));
        let page = page.map(|page| cache::KeyPage { items: page.items.iter().map(wit_key).collect(), next: page.next });
        self.gives(page, |page| page.as_ref().map_or(0, |page| page.items.iter().map(key_bytes).sum()))
    }
}

impl client::Host for Host {
    async fn get(&mut self, of: types::TypeMeta, name: WitKey) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientGet, object_bytes(&of, &name))?;
        let answer = match named(&of, &name) {
            Ok((of, key)) => imports.get(of, key).await,
            Err(error) => Err(error),
        };
        self.gives_object(&answer)
    }

    async fn create(&mut self, object: String) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientCreate, object.len())?;
        let answer = imports.create(object).await;
        self.gives_object(&answer)
    }

    async fn update(
        &mut self,
        object: String,
        part: Option<types::Subresource>,
    ) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientUpdate, object.len())?;
        let answer = imports.update(object, part.map(subresource)).await;
        self.gives_object(&answer)
    }

    async fn patch(
        &mut self,
        of: types::TypeMeta,
        name: WitKey,
        body: client::PatchBody,
        part: Option<types::Subresource>,
    ) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientPatch, object_bytes(&of, &name) + patch_bytes(&body))?;
        let answer = match named(&of, &name) {
            Ok((of, key)) => imports.patch(of, key, body, part.map(subresource)).await,
            Err(error) => Err(error),
        };
        self.gives_object(&answer)
    }

    async fn apply(
        &mut self,
        object: String,
        part: Option<types::Subresource>,
        force: bool,
    ) -> Result<Result<String, client::Error>> {
        let imports = self.open(Import::ClientApply, object.len())?;
        let answer = imports.apply(object, part.map(subresource), force).await;
        self.gives_object(&answer)
    }

    async fn delete(
        &mut self,
        of: types::TypeMeta,
        name: WitKey,
        propagation: client::Propagation,
        preconditions: client::Preconditions,
    ) -> Result<Result<(), client::Error>> {
        let bytes = object_bytes(&of, &name) + preconditions_bytes(&preconditions);
        let imports = self.open(Import::ClientDelete, bytes)?;
        Ok(match named(&of, &name) {
            Ok((of, key)) => imports.delete(of, key, propagation, preconditions).await,
            Err(error) => Err(error),
        })
    }
}

impl log::Host for Host {
    fn write(&mut self, level: log::Level, message: String, fields: Vec<(String, String)>) -> Result<()> {
        let bytes = line_bytes(&message, &fields);
        let line = LogLine::new(level, message, fields);
        if matches!(line.level, log::Level::Error) {
            self.call.said = Some(shorten(line.to_string(), MAX_MESSAGE));
        }
        let imports = self.open(Import::LogWrite, bytes)?;
        self.call.lines = self.call.lines.saturating_add(1);
        // What a guest says last may be why it dies, so that much is in `said` even when the log is full.
        if self.call.lines <= LogLine::MAX_LINES {
            imports.log(&line);
        }
        Ok(())
    }
}

impl clock::Host for Host {
    fn now(&mut self) -> Result<u64> {
        self.open(Import::ClockNow, 0)?;
        Ok(self.call.now)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::num::NonZeroUsize;

    use tokio::runtime::Handle;

    use super::{super::super::testing::Fake, *};
    use crate::guests::Guests;

    fn maps() -> types::TypeMeta {
        types::TypeMeta { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() }
    }

    #[tokio::test]
    async fn a_call_is_allowed_what_it_had_no_core_for() {
        let guests = Guests::start(NonZeroUsize::MIN, &Handle::current(), || ()).unwrap();
        let budget = Duration::from_secs(1);
        let stands = async move {
            let in_line = InLine::default();
            // As if the kernel had given the core to others.
            std::thread::sleep(Duration::from_millis(20));
            let in_its_turn = in_line.allows(budget);
            in_line.clone().give_way().await;
            (in_its_turn, in_line.allows(budget))
        };
        let account = guests.account(&"waiting".parse().unwrap());
        let (in_its_turn, later) = account.spawn(stands).ended().await.unwrap();
        assert!(in_its_turn >= budget + Duration::from_millis(20), "{in_its_turn:?}");
        assert!(later >= budget + Duration::from_millis(20), "{later:?}");
    }

    #[tokio::test]
    async fn nobody_is_asked_for_an_object_that_has_no_such_name() {
        // It panics over a request that it does not expect, and knows what was called.
        let imports = Arc::new(Fake::default());
        let mut host = Host::new(Some(imports.clone()), Limits::default(), Held::default(), Duration::from_secs(1));
        let none = || WitKey { namespace: None, name: String::new() };
        let why = "the name is empty".to_owned();
        let read = cache::Host::get(&mut host, maps(), none()).unwrap().unwrap_err();
        assert!(matches!(read, cache::ReadError::Invalid(said) if said == why));
        let patch = client::PatchBody::Merge("{}".to_owned());
        let preconditions = client::Preconditions { uid: None, resource_version: None };
        let refused = [
            client::Host::get(&mut host, maps(), none()).await.unwrap().unwrap_err(),
            client::Host::patch(&mut host, maps(), none(), patch, None).await.unwrap().unwrap_err(),
            client::Host::delete(&mut host, maps(), none(), client::Propagation::Orphan, preconditions)
                .await
                .unwrap()
                .unwrap_err(),
        ];
        assert!(refused.iter().all(|error| matches!(error, client::Error::Invalid(said) if *said == why)));
        assert_eq!(imports.calls.lock().len(), 4);
    }

    #[test]
    fn what_a_guest_hands_over_counts_like_what_it_is_given() {
        let limits = Limits { host_bytes: 1 << 20, ..Limits::default() };
        let mut host = Host::new(Some(Arc::new(Fake::default())), limits, Held::default(), Duration::from_secs(1));
        let mut says = |bytes: usize| log::Host::write(&mut host, log::Level::Info, "x".repeat(bytes), Vec::new());
        says(1 << 19).unwrap();
        says(1 << 19).unwrap();
        let excess = says(1).unwrap_err();
        assert_eq!(excess.downcast_ref(), Some(&Excess::Bytes(1 << 20)));
    }

    #[test]
    fn next_call_has_a_deadline_of_its_own() {
        let mut host = Host::new(None, Limits::default(), Held::default(), Duration::from_secs(1));
        let earlier = host.call.began - Duration::from_millis(1);
        host.call.began = earlier;
        host.again(None, Duration::from_secs(2));
        assert!(host.call.began > earlier);
        assert_eq!(host.call.budget, Duration::from_secs(2));
    }
}
