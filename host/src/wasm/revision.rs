//! One content of a plugin, ready to be called.

use std::sync::Arc;
use std::time::Duration;

use pilothouse_core::key::Key;
use pilothouse_core::manifest::{DEFAULT_TIMEOUT, Manifest};
use wasmtime::{Store, UpdateDeadline};

use super::call::{self, Failure, News, Outcome, Request};
use super::code::Ready;
use super::component::Linked;
use super::engine::TICK;
use super::error::{CallError, DescribeError, Ended, Stage};
use super::host::Host;
use super::imports::Imports;
use super::{Digest, MAX_TRANSFER, PluginName, manifest};

/// How long `describe` may run, where the administrator does not say less. It computes a constant; runtimes that start slowly
/// (an interpreter) take some milliseconds.
pub const DESCRIBE_DEADLINE: Duration = Duration::from_secs(5);

/// What one call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory.
    pub memory: usize,
    /// Lowers the manifest's deadline; never raises it.
    pub deadline: Option<Duration>,
    /// Calls of imports.
    pub host_calls: u32,
    /// Bytes that these answer, in all.
    pub host_bytes: usize,
}

impl Default for Limits {
    /// 64 MiB, the manifest's deadline, 100,000 host calls and 1 GiB from them.
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            deadline: None,
            // Some tenths of a second, if the cache answers: a read for each object of a large cluster.
            host_calls: 100_000,
            // 200,000 Pods, page by page, as a whole.
            host_bytes: 1 << 30,
        }
    }
}

impl Limits {
    fn lowered(&self, asked: Duration) -> Duration {
        self.deadline.map_or(asked, |most| most.min(asked))
    }
}

/// One content of a plugin's file with one configuration: described, and ready to be called.
///
/// # Guarantees
/// Each call has an instance of its own, which sees nothing but its arguments and its [`Imports`]. A call that loops, traps or
/// takes too much ends with a [`CallError`], and costs no other call anything.
#[derive(Debug, Clone)]
pub struct Revision {
    plugin: PluginName,
    linked: Linked,
    config: Arc<str>,
    limits: Limits,
    manifest: Arc<Manifest>,
}

impl Linked {
    /// Calls `describe` with `config` (JSON text) and checks the manifest it gives.
    ///
    /// # Errors
    /// If the call fails (no import may be called from it), the plugin refuses `config`, or the manifest cannot be used.
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    pub async fn describe(
        &self,
        plugin: PluginName,
        config: Arc<str>,
        limits: Limits,
    ) -> Result<Revision, DescribeError> {
        let budget = limits.lowered(DESCRIBE_DEADLINE);
        let answer = self
            .call(None, limits, budget, async |ready, store| {
                let plugin = ready.plugin.instantiate_async(&mut *store).await.map_err(instantiating)?;
                plugin.pilothouse_plugin_controller().call_describe(store, &config).await.map_err(calling)
            })
            .await?;
        let described = answer.map_err(|refusal| DescribeError::Refused(call::shorten(refusal, call::MAX_MESSAGE)))?;
        let manifest = manifest::from_wit(described)?;
        manifest::check_exports(&manifest, self.mapper, self.observer)?;
        Ok(Revision { plugin, linked: self.clone(), config, limits, manifest: Arc::new(manifest) })
    }

    /// Lets `run` make an instance and call it, and drops it: all within `budget`.
    async fn call<R>(
        &self,
        imports: Option<Arc<dyn Imports>>,
        limits: Limits,
        budget: Duration,
        run: impl AsyncFnOnce(&Ready, &mut Store<Host>) -> Result<R, (Stage, wasmtime::Error)>,
    ) -> Result<R, CallError> {
        // The slot is given back after the store is gone.
        let (ready, _slot) = self.engine.ready(&self.code).map_err(|e| CallError::Instantiate(e.to_string()))?;
        let mut store = Store::new(&ready.engine, Host::new(imports, limits, budget));
        store.limiter(|host| &mut host.limits);
        store.set_hostcall_fuel(MAX_TRANSFER);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|store| {
            let host = store.data();
            if host.began.elapsed() >= host.budget {
                return Ok(UpdateDeadline::Interrupt);
            }
            // The plain `Yield` wakes itself at once, and starves the runtime's timers and sockets while a guest is busy.
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        // A busy guest is stopped by the epoch, and then its backtrace tells where. This is for one that waits: somewhat later,
        // so that it does not come first where both would do.
        let ended = tokio::time::timeout(budget + 2 * TICK, run(&ready, &mut store)).await;
        let host = store.data();
        host.finish_log();
        match ended {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err((stage, error))) => {
                let call = Ended { budget, limits: &host.limits, said: host.said.as_deref() };
                Err(CallError::of(&error, stage, &call))
            }
            Err(_) => Err(CallError::Deadline { after: budget, backtrace: Vec::new() }),
        }
    }
}

fn instantiating(error: wasmtime::Error) -> (Stage, wasmtime::Error) {
    (Stage::Instantiate, error)
}

fn calling(error: wasmtime::Error) -> (Stage, wasmtime::Error) {
    (Stage::Call, error)
}

impl Revision {
    /// Whose revision it is.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// The digest of the file.
    pub fn digest(&self) -> Digest {
        self.linked.digest()
    }

    /// The component behind it.
    pub fn linked(&self) -> &Linked {
        &self.linked
    }

    /// The configuration it was described with, as JSON text.
    pub fn config(&self) -> &Arc<str> {
        &self.config
    }

    /// What it said it is and needs.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// What a call may take.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The same revision under other limits.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        Self { limits, ..self.clone() }
    }

    /// How long a call of this controller may run: what the manifest says, or less by [`Limits::deadline`].
    pub fn deadline(&self, controller: &str) -> Option<Duration> {
        let controller = self.manifest.controller(controller)?;
        Some(self.limits.lowered(controller.timeout))
    }

    /// Calls `reconcile` in a fresh instance.
    ///
    /// The inner result is the plugin's own; the outer error says that the call came to nothing.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    ///
    /// # Cancellation
    /// Dropping the future ends the call and frees the instance. A request to the API server that was under way may still have
    /// happened.
    pub async fn reconcile(
        &self,
        imports: Arc<dyn Imports>,
        request: Request,
    ) -> Result<Result<Outcome, Failure>, CallError> {
        let Some(budget) = self.deadline(&request.controller) else {
            return Err(CallError::Controller(request.controller.as_ref().to_owned()));
        };
        let request = request.into_wit();
        let answer = self
            .linked
            .call(Some(imports), self.limits, budget, async |ready, store| {
                let plugin = ready.plugin.instantiate_async(&mut *store).await.map_err(instantiating)?;
                plugin
                    .pilothouse_plugin_controller()
                    .call_reconcile(store, &self.config, &request)
                    .await
                    .map_err(calling)
            })
            .await?;
        match answer {
            Ok(outcome) => Outcome::from_wit(outcome).map(Ok),
            Err(failure) => Failure::from_wit(failure).map(Err),
        }
    }

    /// Calls `map` in a fresh instance: the keys of the controller's kind that these changes concern, each once, at most
    /// [`call::MAX_KEYS`].
    ///
    /// The inner error is the plugin's own, and for people; the outer one says that the call came to nothing. A call has as long as
    /// one of `reconcile`.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    pub async fn map(
        &self,
        imports: Arc<dyn Imports>,
        controller: &str,
        news: &[News],
    ) -> Result<Result<Vec<Key>, String>, CallError> {
        let budget = self.deadline(controller).ok_or_else(|| CallError::Controller(controller.to_owned()))?;
        if !self.linked.mapper {
            return Err(CallError::Export("mapper"));
        }
        let changes: Vec<_> = news.iter().map(News::to_map).collect();
        let answer = self
            .linked
            .call(Some(imports), self.limits, budget, async |ready, store| {
                let mapper = ready.mapper.as_ref().expect("it is exported");
                let plugin = mapper.instantiate_async(&mut *store).await.map_err(instantiating)?;
                let mapper = plugin.pilothouse_plugin_mapper();
                mapper.call_map(store, &self.config, controller, &changes).await.map_err(calling)
            })
            .await?;
        match answer {
            Ok(keys) => call::keys(&keys).map(Ok),
            Err(message) => Ok(Err(call::shorten(message, call::MAX_MESSAGE))),
        }
    }

    /// Calls `observe` in a fresh instance.
    ///
    /// The inner error is the plugin's own, and for people; the outer one says that the call came to nothing. A call has as long as
    /// one of `reconcile` where the manifest says nothing, or less by [`Limits::deadline`].
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    pub async fn observe(&self, imports: Arc<dyn Imports>, news: &[News]) -> Result<Result<(), String>, CallError> {
        let budget = self.limits.lowered(DEFAULT_TIMEOUT);
        if !self.linked.observer {
            return Err(CallError::Export("observer"));
        }
        let changes: Vec<_> = news.iter().map(News::to_observe).collect();
        let answer = self
            .linked
            .call(Some(imports), self.limits, budget, async |ready, store| {
                let observer = ready.observer.as_ref().expect("it is exported");
                let plugin = observer.instantiate_async(&mut *store).await.map_err(instantiating)?;
                plugin.pilothouse_plugin_observer().call_observe(store, &self.config, &changes).await.map_err(calling)
            })
            .await?;
        Ok(answer.map_err(|message| call::shorten(message, call::MAX_MESSAGE)))
    }
}
