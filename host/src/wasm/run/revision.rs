//! One content of a plugin, ready to be called.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use pilothouse_core::{
    key::Key,
    manifest::{DEFAULT_TIMEOUT, Manifest},
};

use super::{
    super::{
        contract::{
            call::{self, Failure, News, Outcome, Request},
            error::{CallError, DescribeError},
            export::{Bound, Export},
            imports::Imports,
            manifest,
        },
        limits::Limits,
        load::digest::Digest,
        memory::Kept,
    },
    component::Linked,
    instances::{Instance, Instances, calling},
};
use crate::name::PluginName;

/// How long `describe` may run, where the administrator does not say less. It computes a constant; runtimes that start slowly
/// (an interpreter) take some milliseconds.
pub const DESCRIBE_DEADLINE: Duration = Duration::from_secs(5);

/// One content of a plugin's file with one configuration: described, and ready to be called.
///
/// # Guarantees
/// Each call has an instance to itself, which sees nothing but its arguments and its [`Imports`]; and, where the manifest asks for reuse, what
/// earlier calls of this revision under these limits have left in its memory. A call that loops, traps or takes too much ends with a
/// [`CallError`], and costs no other call anything: its instance ends with it.
#[derive(Debug, Clone)]
pub struct Revision {
    plugin: PluginName,
    linked: Linked,
    config: Arc<str>,
    manifest: Arc<Manifest>,
    instances: Arc<Instances>,
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
        let instances = Instances::once(self, &plugin, limits);
        let budget = limits.lowered(DESCRIBE_DEADLINE);
        let describe = async |instance: &mut Instance| {
            let (plugin, store) = instance.controller().await?;
            plugin.pilothouse_plugin_controller().call_describe(store, &config).await.map_err(calling)
        };
        let answer = instances.call(None, budget, describe, Ok).await?;
        let described = answer.map_err(|refusal| DescribeError::Refused(call::shorten(refusal, call::MAX_MESSAGE)))?;
        let manifest = manifest::from_wit(described)?;
        manifest::check_exports(&manifest, |export| self.has(export))?;
        let instances = Instances::new(self, &plugin, limits, manifest.instances);
        Ok(Revision { plugin, linked: self.clone(), config, manifest: Arc::new(manifest), instances })
    }
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

    /// Counts what the host remembers for the plugin, over all its revisions: with its instances it is the plugin's memory.
    pub fn remembered(&self) -> &Arc<AtomicUsize> {
        self.instances.remembered()
    }

    /// What a call may take.
    pub fn limits(&self) -> Limits {
        self.instances.limits()
    }

    /// The same revision under other limits. It shares no instance with this one.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        let policy = self.manifest.instances;
        Self { instances: Instances::new(&self.linked, &self.plugin, limits, policy), ..self.clone() }
    }

    /// How long a call of this controller may run: what the manifest says, or less by [`Limits::deadline`].
    pub fn deadline(&self, controller: &str) -> Option<Duration> {
        let controller = self.manifest.controller(controller)?;
        Some(self.limits().lowered(controller.timeout))
    }

    /// Calls `reconcile`.
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
        let object = request.object.json();
        let request = request.to_wit(&object);
        let reconcile = async |instance: &mut Instance| {
            let (plugin, store) = instance.controller().await?;
            let controller = plugin.pilothouse_plugin_controller();
            controller.call_reconcile(store, &self.config, request).await.map_err(calling)
        };
        let read = |answer| match answer {
            Ok(outcome) => Outcome::from_wit(outcome).map(Ok),
            Err(failure) => Failure::from_wit(failure).map(Err),
        };
        self.instances.call(Some(imports), budget, reconcile, read).await
    }

    /// Counts what a reconcile handed over as the plugin's memory, for as long as somebody holds it.
    ///
    /// # Errors
    /// [`CallError::Memory`] where it is more than [`Limits::total_memory`] with what there is already.
    pub fn keep(&self, answer: &Result<Outcome, Failure>) -> Result<Kept, CallError> {
        let bytes = match answer {
            Ok(outcome) => outcome.bytes(),
            Err(failure) => failure.status.as_ref().map_or(0, String::len),
        };
        self.instances.keep_for(bytes)
    }

    /// Makes ready what the next call needs, where its instance is a fresh one. For when there is nothing else to do: it takes as long as the
    /// call will not have to wait. Where the host fails over it, that is logged, and calls are served as if it had not been tried.
    pub async fn prepare(&self) {
        self.instances.prepare().await;
    }

    /// Calls `map`: the keys of the controller's kind that these changes concern, each once, at most
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
        self.check_exported(Export::Mapper)?;
        let texts: Vec<_> = news.iter().map(News::texts).collect();
        let changes: Vec<_> = news.iter().zip(&texts).map(|(news, texts)| news.to_map(texts)).collect();
        let map = async |instance: &mut Instance| {
            let (Bound::Mapper(mapper), store) = instance.export(Export::Mapper).await? else { unreachable!() };
            let mapper = mapper.pilothouse_plugin_mapper();
            mapper.call_map(store, &self.config, controller, &changes).await.map_err(calling)
        };
        let read = |answer: Result<Vec<_>, String>| match answer {
            Ok(keys) => call::keys(&keys).map(Ok),
            Err(message) => Ok(Err(call::shorten(message, call::MAX_MESSAGE))),
        };
        self.instances.call(Some(imports), budget, map, read).await
    }

    /// Calls `observe`.
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
        let budget = self.limits().lowered(DEFAULT_TIMEOUT);
        self.check_exported(Export::Observer)?;
        let changes: Vec<_> = news.iter().map(News::to_observe).collect();
        let observe = async |instance: &mut Instance| {
            let (Bound::Observer(observer), store) = instance.export(Export::Observer).await? else { unreachable!() };
            let observer = observer.pilothouse_plugin_observer();
            observer.call_observe(store, &self.config, &changes).await.map_err(calling)
        };
        let read = |answer: Result<(), String>| Ok(answer.map_err(|message| call::shorten(message, call::MAX_MESSAGE)));
        self.instances.call(Some(imports), budget, observe, read).await
    }

    fn check_exported(&self, export: Export) -> Result<(), CallError> {
        if self.linked.has(export) { Ok(()) } else { Err(CallError::Export(export)) }
    }
}
