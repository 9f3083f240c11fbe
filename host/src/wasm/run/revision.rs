//! One version of a plugin, ready to be called.

mod review;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use pilothouse_core::{
    backlog::News,
    key::Key,
    manifest::{DEFAULT_TIMEOUT, Manifest},
};
use tracing::{Instrument as _, info_span};

use super::{
    super::{
        contract::{
            call::{self, Failure, Outcome, Request},
            error::{CallError, DescribeError},
            export::{Bound, Export},
            imports::Imports,
            manifest,
            text::{MAX_MESSAGE, shorten},
        },
        limits::Limits,
        load::digest::Digest,
        memory::MemoryCharge,
    },
    engine::component::Linked,
    instances::{Instance, Instances, calling},
};
use crate::name::PluginName;

/// Deadline of `describe`; the administrator's limit may lower it. It computes a constant. An interpreter takes a few
/// milliseconds to start.
pub const DESCRIBE_DEADLINE: Duration = Duration::from_secs(5);

/// A plugin's file with one configuration: described, and ready to be called.
///
/// # Guarantees
/// - **Isolation**: each call has an instance to itself. It sees its arguments and its [`Imports`]. With reuse, it also
///   sees what earlier calls of this revision under these limits left in memory.
/// - **Containment**: a call that loops, traps or exceeds a limit fails with a [`CallError`], and its instance is
///   dropped. Other calls are not affected.
#[derive(Clone)]
pub struct Revision {
    plugin: PluginName,
    linked: Linked,
    config: Arc<str>,
    manifest: Arc<Manifest>,
    instances: Arc<Instances>,
}

/// Leaves out the configuration, which may have values of Secrets.
impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revision").field("plugin", &self.plugin).field("linked", &self.linked).finish_non_exhaustive()
    }
}

impl Linked {
    /// Calls `describe` with `config`, which is JSON text, and checks the manifest.
    ///
    /// # Errors
    /// If the call fails, the plugin rejects `config`, or the manifest is not valid. A call of an import fails it.
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    pub async fn describe(
        &self,
        plugin: PluginName,
        config: Arc<str>,
        limits: Limits,
    ) -> Result<Revision, DescribeError> {
        let instances = Instances::once(self, &plugin, limits);
        let budget = limits.lowered(DESCRIBE_DEADLINE);
        let describe = async |instance: &mut Instance| {
            let (plugin, store) = instance.controller().await?;
            plugin.pilothouse_plugin_controller().call_describe(store, &config).await.map_err(calling)
        };
        // For what a runtime prints.
        let span = info_span!("describe", %plugin);
        let answer = instances.call(None, budget, describe, Ok).instrument(span).await?;
        let described = answer.map_err(|refusal| DescribeError::Refused(shorten(refusal, MAX_MESSAGE)))?;
        let manifest = manifest::from_wit(described)?;
        manifest::check_exports(&manifest, |export| self.has(export))?;
        let instances = Instances::new(self, &plugin, limits, manifest.instances);
        Ok(Revision { plugin, linked: self.clone(), config, manifest: Arc::new(manifest), instances })
    }
}

impl Revision {
    /// Returns the plugin's name.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// Returns the digest of the file.
    pub fn digest(&self) -> Digest {
        self.linked.digest()
    }

    /// Returns the component.
    pub fn linked(&self) -> &Linked {
        &self.linked
    }

    /// Returns the configuration as JSON text.
    pub fn config(&self) -> &Arc<str> {
        &self.config
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Returns the counter of what the host remembers for the plugin, over all its revisions. It counts as the plugin's
    /// memory.
    pub fn remembered(&self) -> &Arc<AtomicUsize> {
        self.instances.remembered()
    }

    /// Returns the limits of a call.
    pub fn limits(&self) -> Limits {
        self.instances.limits()
    }

    /// Returns the revision with other limits. The two share no instance.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        let policy = self.manifest.instances;
        Self { instances: Instances::new(&self.linked, &self.plugin, limits, policy), ..self.clone() }
    }

    /// Returns the deadline of a controller's calls: the manifest's, or a lower [`Limits::deadline`].
    pub fn deadline(&self, controller: &str) -> Option<Duration> {
        let controller = self.manifest.controller(controller)?;
        Some(self.limits().lowered(controller.timeout))
    }

    /// Calls `reconcile`. The inner error is the plugin's own failure; the outer one means that the call failed.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    ///
    /// # Cancellation
    /// Dropping the future ends the call and frees the instance. A request to the API server that was under way may
    /// still take effect.
    pub async fn reconcile(
        &self,
        imports: Arc<dyn Imports>,
        request: Request,
    ) -> Result<Result<Outcome, Failure>, CallError> {
        let Some(budget) = self.deadline(&request.controller) else {
            return Err(CallError::Controller(request.controller.as_ref().to_owned()));
        };
        let object = request.object.json();
        let request = request.to_wit(&object);
        let reconcile = async |instance: &mut Instance| {
            let (reconcile, store) = instance.reconcile().await?;
            reconcile.call(store, &self.config, request).await.map_err(calling)
        };
        let read = |answer| match answer {
            Ok(outcome) => Outcome::from_wit(outcome).map(Ok),
            Err(failure) => Failure::from_wit(failure).map(Err),
        };
        self.instances.call(Some(imports), budget, reconcile, read).await
    }

    /// Counts what a reconcile returned as the plugin's memory, until the result is dropped.
    ///
    /// # Errors
    /// [`CallError::Memory`] if the plugin then holds more than [`Limits::total_memory`].
    pub fn charge(&self, answer: &Result<Outcome, Failure>) -> Result<MemoryCharge, CallError> {
        let bytes = match answer {
            Ok(outcome) => outcome.bytes(),
            Err(failure) => failure.bytes(),
        };
        self.instances.charge(bytes)
    }

    /// Pre-warms the instance of the next call. Call it when there is nothing else to do: it takes as long as it saves
    /// the next call. A failure is logged and has no other effect.
    pub async fn prepare(&self) {
        self.instances.prepare().await;
    }

    /// Calls `map`. Returns the keys that the changes concern, without duplicates, at most [`call::MAX_KEYS`].
    ///
    /// The inner error is the plugin's own message; the outer one means that the call failed. The deadline is the
    /// controller's.
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
        self.check_exported(Export::Mapper)?;
        let changes: Vec<_> = news.iter().map(call::to_map).collect();
        let map = async |instance: &mut Instance| {
            let (Bound::Mapper(mapper), store) = instance.export(Export::Mapper).await? else { unreachable!() };
            let mapper = mapper.pilothouse_plugin_mapper();
            mapper.call_map(store, &self.config, controller, &changes).await.map_err(calling)
        };
        let read = |answer: Result<Vec<_>, String>| match answer {
            Ok(keys) => call::keys(&keys).map(Ok),
            Err(message) => Ok(Err(shorten(message, MAX_MESSAGE))),
        };
        self.instances.call(Some(imports), budget, map, read).await
    }

    /// Calls `observe`. The inner error is the plugin's own message; the outer one means that the call failed. The
    /// deadline is the default one, or a lower [`Limits::deadline`].
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    pub async fn observe(&self, imports: Arc<dyn Imports>, news: &[News]) -> Result<Result<(), String>, CallError> {
        let budget = self.limits().lowered(DEFAULT_TIMEOUT);
        self.check_exported(Export::Observer)?;
        let changes: Vec<_> = news.iter().map(call::to_observe).collect();
        let observe = async |instance: &mut Instance| {
            let (Bound::Observer(observer), store) = instance.export(Export::Observer).await? else { unreachable!() };
            let observer = observer.pilothouse_plugin_observer();
            observer.call_observe(store, &self.config, &changes).await.map_err(calling)
        };
        let read = |answer: Result<(), String>| Ok(answer.map_err(|message| shorten(message, MAX_MESSAGE)));
        self.instances.call(Some(imports), budget, observe, read).await
    }

    fn check_exported(&self, export: Export) -> Result<(), CallError> {
        if self.linked.has(export) { Ok(()) } else { Err(CallError::Export(export)) }
    }
}
