//! The code of one component: kept as a file, mapped while it is called.
//!
//! ```text
//! optimized ─ map, link ─► Ready (pool)     for an instance in a slot of the pool
//!           └ map, link ─► Ready (plain)    for an instance from nothing: describe, too large for a slot, or no slot is free
//! baseline ── map, link ─► Ready (plain)    serves for a short time only, so there is no pool
//! ```
//!
//! Each mapping is dropped when it is idle; calls in flight keep theirs. The file stays open. So the same bytes can be
//! mapped again without another check, even if the directory changed. Baseline code is dropped as a whole when
//! optimized code replaces it.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use wasmtime::component::{Component, HasSelf, InstancePre, Linker};

use super::{
    super::{
        contract::{
            bindings::{self, PluginIndices},
            error::{chain, is_shortage},
            export::{self, CONTROLLER, Indices, PerExport, ReconcileIndex},
            imports::{host_state::HostState, offered, wasi::refused::refusing},
            package::is_newer,
            text::{MAX_MESSAGE, shorten},
        },
        tier::Tier,
    },
    aside::Aside,
    cache::SEAL,
    child::Room,
    error::LoadError,
    settings::settings,
};

/// An engine with its settings, the linker, and the thread that maps code.
pub(crate) struct Sandbox {
    pub(crate) engine: wasmtime::Engine,
    /// The tier of the code that it runs.
    pub(crate) tier: Tier,
    linker: Arc<Linker<HostState>>,
    aside: Arc<Aside>,
}

impl Sandbox {
    /// Creates a sandbox without a pool.
    pub(crate) fn plain(tier: Tier, aside: Arc<Aside>) -> wasmtime::Result<Self> {
        Self::new(&settings(tier), tier, aside)
    }

    /// Creates a sandbox with settings for this tier.
    pub(crate) fn new(config: &wasmtime::Config, tier: Tier, aside: Arc<Aside>) -> wasmtime::Result<Self> {
        let engine = wasmtime::Engine::new(config)?;
        let mut linker = Linker::new(&engine);
        bindings::Plugin::add_to_linker::<_, HasSelf<_>>(&mut linker, |host: &mut HostState| host)?;
        bindings::wasi::Served::add_to_linker::<_, HasSelf<_>>(&mut linker, |host: &mut HostState| host)?;
        Ok(Self { engine, tier, linker: Arc::new(linker), aside })
    }

    /// Returns the thread that maps code.
    pub(crate) fn aside(&self) -> &Arc<Aside> {
        &self.aside
    }

    /// Maps and links code. The inner error is the engine's.
    async fn ready(&self, source: &Arc<Source>) -> Result<wasmtime::Result<Arc<Ready>>, LoadError> {
        let (engine, linker, source) = (self.engine.clone(), Arc::clone(&self.linker), Arc::clone(source));
        let tier = self.tier;
        let ready = self.aside.run(move || match source.load(&engine) {
            Ok(component) => Ready::link(&engine, tier, &linker, &component).map(|ready| Ok(Arc::new(ready))),
            Err(error) => Ok(Err(error)),
        });
        ready.await.unwrap_or_else(|| Err(LoadError::Code("a thread of the host panicked".to_owned())))
    }
}

/// Code, and `true` if it had to be mapped. The inner error is the engine's.
type MappedNow = Result<wasmtime::Result<(Arc<Ready>, bool)>, LoadError>;

/// Bytes of the names of imports and exports, which appear in error messages.
const MAX_NAMES: usize = 4 << 10;

/// Code that is mapped and linked.
pub(crate) struct Ready {
    pub(crate) engine: wasmtime::Engine,
    pub(crate) tier: Tier,
    pub(crate) instance: InstancePre<HostState>,
    pub(crate) plugin: PluginIndices,
    pub(crate) reconcile: ReconcileIndex,
    pub(crate) optional: PerExport<Indices>,
    pub(crate) imports: Arc<[String]>,
    pub(crate) exports: Arc<[String]>,
    /// `true` if it was called since the last check.
    called: AtomicBool,
}

impl Ready {
    /// Returns `true` if an instance was called since the last [`Code::unmap_idle`].
    pub(crate) fn was_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// Records a call of an instance.
    pub(crate) fn touch(&self) {
        self.called.store(true, Ordering::Relaxed);
    }

    /// Checks imports and exports against the contract.
    fn link(
        engine: &wasmtime::Engine,
        tier: Tier,
        linker: &Linker<HostState>,
        component: &Component,
    ) -> Result<Self, LoadError> {
        let ty = component.component_type();
        let imports: Vec<String> = ty.imports(engine).map(|(name, _)| name.to_owned()).collect();
        let exports: Vec<String> = ty.exports(engine).map(|(name, _)| name.to_owned()).collect();
        let bytes = imports.iter().chain(&exports).map(String::len).sum::<usize>();
        if bytes > MAX_NAMES {
            let what = "the names of its imports and exports have";
            return Err(LoadError::Types(format!("{what} {bytes} bytes, and at most {MAX_NAMES} are allowed")));
        }
        let foreign: Vec<String> = imports.iter().filter(|name| !offered(name)).cloned().collect();
        if !foreign.is_empty() {
            return Err(LoadError::Imports(foreign));
        }
        if !export::has(&exports, CONTROLLER) {
            return Err(LoadError::Export { found: export::found(&exports) });
        }
        let types = |error: wasmtime::Error| {
            let reason = shorten(chain(&error), MAX_MESSAGE);
            match imports.iter().chain(&exports).find(|name| is_newer(name)) {
                Some(newer) => LoadError::Newer { newer: newer.clone(), reason },
                None => LoadError::Types(reason),
            }
        };
        let refusing = refusing(linker, component).map_err(types)?;
        let instance = refusing.as_ref().unwrap_or(linker).instantiate_pre(component).map_err(types)?;
        let optional = PerExport::new(|export| {
            export::has(&exports, export.interface()).then(|| Indices::new(export, &instance)).transpose()
        });
        let optional = optional.map_err(types)?;
        let plugin = PluginIndices::new(&instance).map_err(types)?;
        let reconcile = ReconcileIndex::new(component, &exports).map_err(types)?;
        let (imports, exports) = (imports.into(), exports.into());
        let called = AtomicBool::new(true);
        Ok(Self { engine: engine.clone(), tier, instance, plugin, reconcile, optional, imports, exports, called })
    }
}

/// The code of one component, in the best form so far.
pub(crate) struct Code {
    form: ArcSwap<Form>,
    /// Upper bound of an instance's bytes for functions and globals.
    room: usize,
}

/// The code that one compiler produced.
pub(crate) struct Form {
    source: Arc<Source>,
    sandbox: Arc<Sandbox>,
    pool: Mapped,
    plain: Mapped,
    /// `true` if it seems too large for a slot of the pool.
    large: AtomicBool,
}

/// Code for one engine, if it is mapped.
#[derive(Default)]
struct Mapped {
    ready: Mutex<Option<Arc<Ready>>>,
    /// Held while the code is mapped. Other callers wait for it without blocking a thread.
    mapping: tokio::sync::Mutex<()>,
}

/// Where code is kept while it is not mapped.
pub(crate) enum Source {
    /// Verified, and never written again.
    File(File),
    /// Compiled by this process.
    Bytes(Vec<u8>),
}

impl Code {
    /// Creates the code from what was compiled for `sandbox`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn new(source: Source, sandbox: &Arc<Sandbox>) -> io::Result<Self> {
        let room = source.room()?;
        Ok(Self { form: ArcSwap::from_pointee(Form::new(source, sandbox)), room })
    }

    /// Replaces the code with `source`, which was compiled for `sandbox` from the same file. Calls in flight keep the
    /// old code.
    pub(crate) fn replace(&self, source: Source, sandbox: &Arc<Sandbox>) {
        self.form.store(Arc::new(Form::new(source, sandbox)));
    }

    /// Returns the most bytes that an instance needs for functions and globals. They are not part of its memories.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Returns the present form.
    pub(crate) fn form(&self) -> Arc<Form> {
        self.form.load_full()
    }

    /// Returns the tier of the present form.
    pub(crate) fn tier(&self) -> Tier {
        self.form.load().sandbox.tier
    }

    /// Drops mappings that were not called since the last check. Returns `true` if it dropped one.
    pub(crate) fn unmap_idle(&self) -> bool {
        self.form.load().unmap_idle()
    }

    /// Returns `true` if it is mapped for an engine.
    pub(crate) fn is_mapped(&self) -> bool {
        self.form.load().is_mapped()
    }
}

impl Form {
    fn new(source: Source, sandbox: &Arc<Sandbox>) -> Self {
        Self {
            source: Arc::new(source),
            sandbox: Arc::clone(sandbox),
            pool: Mapped::default(),
            plain: Mapped::default(),
            large: AtomicBool::new(false),
        }
    }

    /// Returns code for an instance without a slot, and `true` if it had to be mapped.
    pub(crate) async fn plain(&self) -> Result<(Arc<Ready>, bool), LoadError> {
        let ready = self.plain.get(&self.sandbox, &self.source).await?;
        ready.map_err(|error| LoadError::Code(chain(&error)))
    }

    /// Returns code for an instance in a slot of the pool, and `true` if it had to be mapped. Returns `None` if it was
    /// not compiled for the pool, or does not fit a slot.
    pub(crate) async fn pooled(&self, pool: &Sandbox) -> Result<Option<(Arc<Ready>, bool)>, LoadError> {
        if self.sandbox.tier != pool.tier || self.large.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // If the code itself is damaged, loading it without the pool reports that.
        match self.pool.get(pool, &self.source).await? {
            Ok(ready) => Ok(Some(ready)),
            Err(error) => {
                // A shortage on the machine says nothing about the code's size.
                self.large.store(!is_shortage(&error), Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    fn unmap_idle(&self) -> bool {
        let idle = [&self.pool, &self.plain].map(Mapped::take_idle);
        if !self.plain.is_mapped() {
            // Tries the pool again. That is cheap, and the failure may not have been due to its size.
            self.large.store(false, Ordering::Relaxed);
        }
        idle.iter().any(Option::is_some)
    }

    fn is_mapped(&self) -> bool {
        self.pool.is_mapped() || self.plain.is_mapped()
    }
}

impl Mapped {
    /// Returns the code, and maps it if necessary.
    async fn get(&self, sandbox: &Sandbox, source: &Arc<Source>) -> MappedNow {
        if let Some(ready) = self.mapped() {
            return Ok(Ok((ready, false)));
        }
        let _mapping = self.mapping.lock().await;
        if let Some(ready) = self.mapped() {
            return Ok(Ok((ready, false)));
        }
        let ready = sandbox.ready(source).await?;
        Ok(ready.map(|ready| (Arc::clone(self.ready.lock().insert(ready)), true)))
    }

    /// Returns the code if it is mapped, and records a call.
    fn mapped(&self) -> Option<Arc<Ready>> {
        self.ready.lock().as_ref().inspect(|ready| ready.touch()).cloned()
    }

    /// Takes the code if it was not called since the last check.
    fn take_idle(&self) -> Option<Arc<Ready>> {
        self.ready.lock().take_if(|ready| !ready.called.swap(false, Ordering::Relaxed))
    }

    fn is_mapped(&self) -> bool {
        self.ready.lock().is_some()
    }
}

impl Source {
    /// Reads the [`Room`], which the compiler appended.
    fn room(&self) -> io::Result<usize> {
        let mut room = Room::default().to_le_bytes();
        match self {
            Self::Bytes(code) => room = *code.last_chunk().ok_or(io::ErrorKind::UnexpectedEof)?,
            Self::File(file) => {
                let end = file.metadata()?.len().checked_sub((SEAL + room.len()) as u64);
                file.read_exact_at(&mut room, end.ok_or(io::ErrorKind::UnexpectedEof)?)?;
            }
        }
        Ok(usize::try_from(Room::from_le_bytes(room)).unwrap_or(usize::MAX))
    }

    #[expect(unsafe_code, reason = "the engine runs compiled code as it finds it")]
    fn load(&self, engine: &wasmtime::Engine) -> wasmtime::Result<Component> {
        let file = match self {
            // SAFETY: this process compiled these bytes, with the same settings of the same engine.
            Self::Bytes(code) => return unsafe { Component::deserialize(engine, code) },
            Self::File(file) => file,
        };
        // The engine opens files by name. This name leads to the open file, even if it has no other name.
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: the same settings of the same engine compiled it, as its checksum proves. Only this user may write to
        // the file, and this program never writes to it again.
        match unsafe { Component::deserialize_file(engine, name) } {
            Ok(component) => Ok(component),
            // The file may be on a `noexec` mount, or /proc may be missing: use a copy.
            Err(error) => match copy(file) {
                // SAFETY: the same bytes.
                Ok(code) => unsafe { Component::deserialize(engine, code) },
                Err(_) => Err(error),
            },
        }
    }
}

fn copy(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let mut code = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut code, 0)?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn code_that_cannot_be_mapped_fails_every_waiting_call_and_is_tried_again() {
        let aside = Arc::new(Aside::start().expect("there is a thread"));
        let sandbox = Arc::new(Sandbox::plain(Tier::Optimized, aside).expect("the engine takes its own settings"));
        let code = Code::new(Source::Bytes(vec![0; 100]), &sandbox).expect("it is long enough");
        let form = code.form();
        for _ in 0..2 {
            let waiting = join_all((0..10).map(|_| form.plain())).await;
            let failed = waiting.iter().filter(|ready| matches!(ready, Err(LoadError::Code(_)))).count();
            assert_eq!(failed, 10);
            assert!(!code.is_mapped());
        }
        // The pool regards it as too large until idle code is unmapped.
        let waiting = join_all((0..10).map(|_| form.pooled(&sandbox))).await;
        assert!(waiting.iter().all(|ready| matches!(ready, Ok(None))));
        assert!(form.large.load(Ordering::Relaxed));
        code.unmap_idle();
        assert!(!form.large.load(Ordering::Relaxed));
    }
}
