//! Counts instances, for each plugin over all its revisions.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::super::memory::PluginMemory;
use crate::name::PluginName;

/// Counts the instances of one plugin, over all its revisions.
#[derive(Debug)]
pub(crate) struct Tally {
    plugin: PluginName,
    alive: AtomicUsize,
    made: AtomicU64,
    pub(crate) reused: AtomicU64,
    pub(crate) mapped: AtomicU64,
    /// Nanoseconds.
    pub(crate) computed: AtomicU64,
    pub(crate) held: PluginMemory,
    /// One for each revision under each set of limits, while it is in use.
    each: Mutex<Vec<Weak<dyn InstanceSet>>>,
}

/// The instances of one revision under one set of limits.
pub(crate) trait InstanceSet: fmt::Debug + Send + Sync {
    /// Returns the number of idle instances.
    fn kept(&self) -> usize;

    /// Returns the most bytes that an instance has held.
    fn peak(&self) -> usize;

    /// Drops reused instances that have been idle for too long.
    fn drop_idle(&self);

    /// Drops pre-warmed instances whose code was not called recently.
    fn drop_ahead(&self);
}

/// What is known of a plugin's instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct InstanceFigures {
    /// Instances that exist: in a call, or ready for one.
    pub alive: usize,
    /// Those of them that are ready for a call: kept after one, or pre-warmed.
    pub kept: usize,
    /// Instances that were created since the plugin was loaded.
    pub made: u64,
    /// Calls that a reused instance served.
    pub reused: u64,
    /// Calls that had to map the code first, because the plugin had been idle.
    pub mapped: u64,
    /// Time that calls and pre-warmed starts ran in the sandbox. Includes their imports, but not their waiting.
    #[serde(skip)]
    pub computed: Duration,
    /// Bytes of their memories and tables, and of the outcomes that the host holds for them.
    #[serde(rename = "memory_bytes")]
    pub memory: usize,
    /// The most bytes that one instance of the serving revision has held under its present limits.
    #[serde(rename = "peak_bytes")]
    pub peak: usize,
}

impl Tally {
    fn new(plugin: PluginName) -> Self {
        Self {
            plugin,
            alive: AtomicUsize::new(0),
            made: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            mapped: AtomicU64::new(0),
            computed: AtomicU64::new(0),
            held: PluginMemory::default(),
            each: Mutex::default(),
        }
    }

    /// Returns the plugin.
    pub(crate) fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// Counts the instances of this set from now on.
    pub(crate) fn add(&self, instances: Weak<dyn InstanceSet>) {
        self.each.lock().push(instances);
    }

    /// Returns the figures.
    pub(crate) fn figures(&self) -> InstanceFigures {
        let each = self.each();
        InstanceFigures {
            alive: self.alive.load(Ordering::Relaxed),
            kept: each.iter().map(|instances| instances.kept()).sum(),
            made: self.made.load(Ordering::Relaxed),
            reused: self.reused.load(Ordering::Relaxed),
            mapped: self.mapped.load(Ordering::Relaxed),
            computed: Duration::from_nanos(self.computed.load(Ordering::Relaxed)),
            memory: self.held.bytes(),
            peak: each.iter().map(|instances| instances.peak()).max().unwrap_or_default(),
        }
    }

    /// Drops reused instances that have been idle for too long.
    pub(crate) fn drop_idle(&self) {
        self.each().iter().for_each(|instances| instances.drop_idle());
    }

    /// Drops pre-warmed instances whose code was not called recently.
    pub(crate) fn drop_ahead(&self) {
        self.each().iter().for_each(|instances| instances.drop_ahead());
    }

    /// Releases the lock before use: the last reference to a set drops its instances.
    fn each(&self) -> Vec<Arc<dyn InstanceSet>> {
        let mut each = self.each.lock();
        each.retain(|instances| instances.strong_count() > 0);
        each.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A living instance. Dropped, it is no longer counted.
#[derive(Debug)]
pub(crate) struct Alive(Arc<Tally>);

impl Alive {
    pub(crate) fn new(tally: Arc<Tally>) -> Self {
        tally.alive.fetch_add(1, Ordering::Relaxed);
        Self(tally)
    }

    /// Counts the creation of the instance.
    pub(crate) fn made(&self) {
        self.0.made.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters of all plugins with instances.
#[derive(Debug, Default)]
pub(crate) struct Tallies(Mutex<BTreeMap<PluginName, Weak<Tally>>>);

impl Tallies {
    /// Returns the plugin's counters, and creates them if necessary.
    pub(crate) fn of(&self, plugin: &PluginName) -> Arc<Tally> {
        let mut tallies = self.0.lock();
        if let Some(tally) = tallies.get(plugin).and_then(Weak::upgrade) {
            return tally;
        }
        tallies.retain(|_, tally| tally.strong_count() > 0);
        let tally = Arc::new(Tally::new(plugin.clone()));
        tallies.insert(plugin.clone(), Arc::downgrade(&tally));
        tally
    }

    /// Returns all counters, ordered by plugin.
    pub(crate) fn all(&self) -> Vec<Arc<Tally>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}
