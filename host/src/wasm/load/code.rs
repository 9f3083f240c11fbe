//! The code of one component: kept as a file, mapped while it is called.
//!
//! ```text
//! optimized ─ map, link ─► Ready (pool)        an instance from a pool's slot
//!           └ map, link ─► Ready (plain)       one that is made from nothing: to describe itself, too large for a slot, or all are taken
//! baseline ── map, link ─► Ready (plain)       as it is there for a while only, it has no pool
//! ```
//!
//! Each is dropped when nobody called it for a while; calls in flight keep theirs. The file stays open, so that the same
//! bytes are mapped again, whatever became of the directory, and nothing has to be verified anew. Baseline code goes as a whole when what is
//! optimized takes its place.

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
            call::{MAX_MESSAGE, shorten},
            error::{chain, is_shortage},
            export::{self, CONTROLLER, Indices, PerExport},
            host_state::HostState,
            imports::offered,
        },
        tier::Tier,
    },
    aside::Aside,
    cache::SEAL,
    child::Room,
    error::LoadError,
    settings::settings,
};

/// An engine of the one settings or the other, what it links, and where.
pub(crate) struct Sandbox {
    pub(crate) engine: wasmtime::Engine,
    /// Of the code that it runs.
    pub(crate) tier: Tier,
    linker: Arc<Linker<HostState>>,
    aside: Arc<Aside>,
}

impl Sandbox {
    /// One that makes instances from nothing.
    pub(crate) fn plain(tier: Tier, aside: Arc<Aside>) -> wasmtime::Result<Self> {
        Self::new(&settings(tier), tier, aside)
    }

    /// One of settings for this tier.
    pub(crate) fn new(config: &wasmtime::Config, tier: Tier, aside: Arc<Aside>) -> wasmtime::Result<Self> {
        let engine = wasmtime::Engine::new(config)?;
        let mut linker = Linker::new(&engine);
        bindings::Plugin::add_to_linker::<_, HasSelf<_>>(&mut linker, |host: &mut HostState| host)?;
        Ok(Self { engine, tier, linker: Arc::new(linker), aside })
    }

    /// Where code is mapped.
    pub(crate) fn aside(&self) -> &Arc<Aside> {
        &self.aside
    }

    /// Maps and links code. The inner error is what the engine has against it.
    async fn ready(&self, source: &Arc<Source>) -> Result<wasmtime::Result<Arc<Ready>>, LoadError> {
        let (engine, linker, source) = (self.engine.clone(), Arc::clone(&self.linker), Arc::clone(source));
        let tier = self.tier;
        let ready = self.aside.run(move || match source.load(&engine) {
            Ok(component) => Ready::link(&engine, tier, &linker, &component).map(|ready| Ok(Arc::new(ready))),
            Err(error) => Ok(Err(error)),
        });
        ready.await.unwrap_or_else(|| Err(LoadError::Code("the host failed over it".to_owned())))
    }
}

/// What [`Mapped::get`] gives.
type MappedNow = Result<wasmtime::Result<(Arc<Ready>, bool)>, LoadError>;

/// Names of imports and exports, in bytes. They are told where a component does not fit.
const MAX_NAMES: usize = 4 << 10;

/// Code that is mapped and linked.
pub(crate) struct Ready {
    pub(crate) engine: wasmtime::Engine,
    pub(crate) tier: Tier,
    pub(crate) instance: InstancePre<HostState>,
    pub(crate) plugin: PluginIndices,
    pub(crate) optional: PerExport<Indices>,
    pub(crate) imports: Arc<[String]>,
    pub(crate) exports: Arc<[String]>,
    /// Called since it was last asked.
    called: AtomicBool,
}

impl Ready {
    /// Whether an instance of it was called of late: since [`Code::unmap_idle`].
    pub(crate) fn was_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// An instance of it is called.
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
            let told = "the names of what it imports and exports have";
            return Err(LoadError::Types(format!("{told} {bytes} bytes, and at most {MAX_NAMES} are allowed")));
        }
        let foreign: Vec<String> = imports.iter().filter(|name| !offered(name)).cloned().collect();
        if !foreign.is_empty() {
            return Err(LoadError::Imports(foreign));
        }
        if !export::has(&exports, CONTROLLER) {
            return Err(LoadError::Export { found: export::found(&exports) });
        }
        let types = |error: wasmtime::Error| LoadError::Types(shorten(chain(&error), MAX_MESSAGE));
        let instance = linker.instantiate_pre(component).map_err(types)?;
        let optional = PerExport::new(|export| {
            export::has(&exports, export.interface()).then(|| Indices::new(export, &instance)).transpose()
        });
        let optional = optional.map_err(types)?;
        let plugin = PluginIndices::new(&instance).map_err(types)?;
        let (imports, exports) = (imports.into(), exports.into());
        let called = AtomicBool::new(true);
        Ok(Self { engine: engine.clone(), tier, instance, plugin, optional, imports, exports, called })
    }
}

/// The code of one component, as well compiled as it has been so far.
pub(crate) struct Code {
    form: ArcSwap<Form>,
    /// Bytes that an instance has for functions and globals, at most.
    room: usize,
}

/// What one compiler made of a component.
pub(crate) struct Form {
    source: Arc<Source>,
    sandbox: Arc<Sandbox>,
    pool: Mapped,
    plain: Mapped,
    /// It is too large for a slot of the pool, as far as is known.
    large: AtomicBool,
}

/// Code for one engine, if it is mapped.
#[derive(Default)]
struct Mapped {
    ready: Mutex<Option<Arc<Ready>>>,
    /// Whoever maps it has this, and whoever calls the plugin meanwhile waits for it, without a thread.
    mapping: tokio::sync::Mutex<()>,
}

/// Where code is while it is not mapped.
pub(crate) enum Source {
    /// Verified, and never written again.
    File(File),
    /// Compiled by this process.
    Bytes(Vec<u8>),
}

impl Code {
    /// Of `source`, which was compiled for `sandbox`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn new(source: Source, sandbox: &Arc<Sandbox>) -> io::Result<Self> {
        let room = source.room()?;
        Ok(Self { form: ArcSwap::from_pointee(Form::new(source, sandbox)), room })
    }

    /// From now on instances are made of `source`, which was compiled from the same file for `sandbox`. Calls in flight end with what they have.
    pub(crate) fn replace(&self, source: Source, sandbox: &Arc<Sandbox>) {
        self.form.store(Arc::new(Form::new(source, sandbox)));
    }

    /// Bytes that an instance has for functions and globals, at most, which no memory of its counts.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// What instances are made of now.
    pub(crate) fn form(&self) -> Arc<Form> {
        self.form.load_full()
    }

    /// How well it is compiled.
    pub(crate) fn tier(&self) -> Tier {
        self.form.load().sandbox.tier
    }

    /// Drops what is mapped and was not called since this was last asked. Whether something was.
    pub(crate) fn unmap_idle(&self) -> bool {
        self.form.load().unmap_idle()
    }

    /// Whether it is mapped for any engine.
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

    /// Ready for an instance from nothing, and whether it had to be mapped for that.
    pub(crate) async fn plain(&self) -> Result<(Arc<Ready>, bool), LoadError> {
        let ready = self.plain.get(&self.sandbox, &self.source).await?;
        ready.map_err(|error| LoadError::Code(chain(&error)))
    }

    /// The same for an instance from the pool. None where it was not compiled for that, or a slot does not take it.
    pub(crate) async fn pooled(&self, pool: &Sandbox) -> Result<Option<(Arc<Ready>, bool)>, LoadError> {
        if self.sandbox.tier != pool.tier || self.large.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // What is wrong with it, if anything is, is found by who loads it without the pool.
        match self.pool.get(pool, &self.source).await? {
            Ok(ready) => Ok(Some(ready)),
            Err(error) => {
                // A machine that was out of something says nothing of its size.
                self.large.store(!is_shortage(&error), Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    fn unmap_idle(&self) -> bool {
        let idle = [&self.pool, &self.plain].map(Mapped::take_idle);
        if !self.plain.is_mapped() {
            // The pool is tried again: that costs little, and what was wrong need not have been its size.
            self.large.store(false, Ordering::Relaxed);
        }
        idle.iter().any(Option::is_some)
    }

    fn is_mapped(&self) -> bool {
        self.pool.is_mapped() || self.plain.is_mapped()
    }
}

impl Mapped {
    /// The code, mapped now if it was not, and whether that had to be done. The inner error is what the engine has against it.
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

    /// It is about to be called, if it is mapped.
    fn mapped(&self) -> Option<Arc<Ready>> {
        self.ready.lock().as_ref().inspect(|ready| ready.touch()).cloned()
    }

    /// Takes what was not called since this was last asked.
    fn take_idle(&self) -> Option<Arc<Ready>> {
        self.ready.lock().take_if(|ready| !ready.called.swap(false, Ordering::Relaxed))
    }

    fn is_mapped(&self) -> bool {
        self.ready.lock().is_some()
    }
}

impl Source {
    /// What the compiler says of an instance's room.
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
            // SAFETY: these are what the same settings of the same engine compiled, in this process.
            Self::Bytes(code) => return unsafe { Component::deserialize(engine, code) },
            Self::File(file) => file,
        };
        // The engine opens files by their names. This one leads to the file that is open, even where it has no other any more.
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: what the same settings of the same engine compiled, as its checksum says, in a file that nobody but this user may
        // write, and that this program never writes again.
        match unsafe { Component::deserialize_file(engine, name) } {
            Ok(component) => Ok(component),
            // The file may lie where nothing may be run from (`noexec`), or there is no /proc: then a copy does it.
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
    async fn code_that_cannot_be_mapped_fails_all_who_wait_for_it_and_is_tried_again() {
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
        // For the pool it counts as too large, until what is idle is unmapped.
        let waiting = join_all((0..10).map(|_| form.pooled(&sandbox))).await;
        assert!(waiting.iter().all(|ready| matches!(ready, Ok(None))));
        assert!(form.large.load(Ordering::Relaxed));
        code.unmap_idle();
        assert!(!form.large.load(Ordering::Relaxed));
    }
}
