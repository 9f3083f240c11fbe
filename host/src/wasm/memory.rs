//! Counts and bounds the memory of an instance, and of all instances of a plugin.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use wasmtime::ResourceLimiter;

/// Core instances and tables of one component. A guest in Rust or componentize-js 0.23 has one to three of each. One of
/// componentize-py 0.25 has fourteen, or more than twenty with its WASI.
pub(crate) const MAX_INSTANCES: usize = 64;

/// Memories of one component. Components of componentize-js 0.23 and componentize-py 0.25 have one. Each reserves 4 GiB
/// of address space, out of 128 TiB for all plugins.
const MAX_MEMORIES: usize = 8;

/// Elements of all tables together, of [`ELEMENT`] bytes each. A component of componentize-js 0.23 has 7,690, one of
/// componentize-py 0.25 5,760.
pub(crate) const MAX_TABLE_ELEMENTS: usize = 100_000;

/// Bytes of a table's element.
const ELEMENT: usize = size_of::<usize>();

/// The bytes that a plugin holds. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct PluginMemory {
    /// Of its instances: memories, tables, functions, globals, and outcomes that they handed over.
    instances: Arc<AtomicUsize>,
    /// What the host remembers for it, such as the reads of its keys.
    remembered: Arc<AtomicUsize>,
}

/// How much memory a plugin's instances may hold together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryBound {
    /// Together with what the host remembers.
    pub(crate) total: usize,
    /// The memory limit of one instance. It is always left to instances: otherwise, remembered reads could fail every
    /// call.
    pub(crate) one: usize,
}

impl PluginMemory {
    /// Returns all bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.instances.load(Ordering::Relaxed) + self.remembered.load(Ordering::Relaxed)
    }

    /// Returns the counter of what the host remembers.
    pub(crate) fn remembered(&self) -> &Arc<AtomicUsize> {
        &self.remembered
    }

    /// Adds `more` bytes for instances. Returns `false`, and adds nothing, if that exceeds `most`.
    fn take(&self, more: usize, most: MemoryBound) -> bool {
        let most = most.total.saturating_sub(self.remembered.load(Ordering::Relaxed)).max(most.one.min(most.total));
        let sum = |held: usize| held.checked_add(more).filter(|sum| more == 0 || *sum <= most);
        self.instances.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.instances.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds bytes until the result is dropped. Returns `None` if that exceeds `most`.
    pub(crate) fn charge(&self, bytes: usize, most: MemoryBound) -> Option<MemoryCharge> {
        self.take(bytes, most).then(|| MemoryCharge { held: self.clone(), bytes })
    }
}

/// An outcome that the host still holds, counted as the plugin's memory.
#[derive(Debug)]
#[must_use = "dropped, it is not counted"]
pub struct MemoryCharge {
    held: PluginMemory,
    bytes: usize,
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.held.give_back(self.bytes);
    }
}

/// Which memory limit was reached. Holds the limit in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The limit of one instance.
    Instance(usize),
    /// The limit of all the plugin's instances, with what they handed over.
    Plugin(usize),
}

/// Counts an instance's memories and tables, and records refused growth. The engine does not tell: a guest that runs
/// out of memory ends with `unreachable`, as for any other reason.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory: usize,
    total: usize,
    held: PluginMemory,
    used: usize,
    elements: usize,
    /// Bytes for functions and globals.
    room: usize,
    refused: Option<MemoryLimit>,
    elements_refused: bool,
    /// The last granted growth of a memory, which is taken back if it fails.
    last: usize,
}

impl Limiter {
    /// Bounds all memories of the instance by `memory` bytes, and all instances of the plugin by `total`.
    pub(crate) fn new(memory: usize, total: usize, held: PluginMemory) -> Self {
        Self { memory, total, held, used: 0, elements: 0, room: 0, refused: None, elements_refused: false, last: 0 }
    }

    fn most(&self) -> MemoryBound {
        MemoryBound { total: self.total, one: self.memory }
    }

    /// Counts the bytes of a new instance besides memories and tables. Returns `false` if the plugin's limit does not
    /// allow them.
    pub(crate) fn make(&mut self, room: usize) -> bool {
        let may = self.held.take(room, self.most());
        if may {
            self.room += room;
        } else {
            self.refused = Some(MemoryLimit::Plugin(self.total));
        }
        may
    }

    /// Counts bytes that the host holds for the call, until the result is dropped. Returns `None` if the plugin's limit
    /// does not allow them.
    pub(crate) fn charge(&self, bytes: usize) -> Option<MemoryCharge> {
        self.held.charge(bytes, self.most())
    }

    /// As [`charge`](Self::charge), with an error that ends the call.
    pub(crate) fn charge_or_end(&mut self, bytes: usize) -> wasmtime::Result<MemoryCharge> {
        let charge = self.charge(bytes);
        charge.ok_or_else(|| {
            self.refused = Some(MemoryLimit::Plugin(self.total));
            wasmtime::Error::msg("the answers are larger than what is left of the plugin's memory")
        })
    }

    /// Starts the next call into the same instance, which keeps its memory.
    pub(crate) fn again(&mut self) {
        (self.refused, self.elements_refused) = (None, false);
    }

    /// Ends the instance, and stops counting it. Returns the bytes of linear memory that it held.
    pub(crate) fn release(&mut self) -> usize {
        let (used, elements) = (std::mem::take(&mut self.used), std::mem::take(&mut self.elements));
        self.held.give_back(used + elements * ELEMENT + std::mem::take(&mut self.room));
        used
    }

    /// Returns the bytes of linear memory. They never shrink.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns the limit that refused memory in this call, if one did.
    pub(crate) fn memory_refused(&self) -> Option<MemoryLimit> {
        self.refused
    }

    /// Returns `true` if a table would have exceeded [`MAX_TABLE_ELEMENTS`] in this call.
    pub(crate) fn table_was_refused(&self) -> bool {
        self.elements_refused
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current);
        self.last = 0;
        if self.used.checked_add(more).is_none_or(|sum| sum > self.memory) {
            self.refused = Some(MemoryLimit::Instance(self.memory));
            return Ok(false);
        }
        if !self.held.take(more, self.most()) {
            self.refused = Some(MemoryLimit::Plugin(self.total));
            return Ok(false);
        }
        self.used += more;
        self.last = more;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        let failed = std::mem::take(&mut self.last);
        self.used = self.used.saturating_sub(failed);
        self.held.give_back(failed);
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, most: Option<usize>) -> wasmtime::Result<bool> {
        let sum = self.elements.saturating_add(desired.saturating_sub(current));
        if sum > MAX_TABLE_ELEMENTS {
            self.elements_refused = true;
            return Ok(false);
        }
        // The growth would fail anyway. What is granted is never taken back, because a failure does not say which
        // growth it was.
        if most.is_some_and(|most| desired > most) {
            return Ok(false);
        }
        if !self.held.take((sum - self.elements) * ELEMENT, self.most()) {
            self.refused = Some(MemoryLimit::Plugin(self.total));
            return Ok(false);
        }
        self.elements = sum;
        Ok(true)
    }

    fn instances(&self) -> usize {
        MAX_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_INSTANCES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    fn limiter(memory: usize) -> Limiter {
        Limiter::new(memory, usize::MAX, PluginMemory::default())
    }

    #[test]
    fn instances_of_a_plugin_share_a_limit_and_give_back_what_they_held() {
        let held = PluginMemory::default();
        let [mut first, mut second] = [(); 2].map(|()| Limiter::new(100, 150, held.clone()));
        assert!(first.memory_growing(0, 100, None).unwrap());
        assert!(!second.memory_growing(0, 51, None).unwrap());
        assert_eq!(second.memory_refused(), Some(MemoryLimit::Plugin(150)));
        assert!(second.memory_growing(0, 50, None).unwrap());
        assert_eq!(held.bytes(), 150);
        drop(first);
        assert_eq!(held.bytes(), 50);
        assert!(second.memory_growing(50, 100, None).unwrap());
        drop(second);
        assert_eq!(held.bytes(), 0);
    }

    #[test]
    fn answers_of_a_batch_are_the_plugins_memory() {
        let held = PluginMemory::default();
        let mut limiter = Limiter::new(100, 150, held.clone());
        let first = limiter.charge_or_end(100).unwrap();
        assert!(limiter.charge_or_end(51).is_err());
        assert_eq!((held.bytes(), limiter.memory_refused()), (100, Some(MemoryLimit::Plugin(150))));
        drop(first);
        assert_eq!(held.bytes(), 0);
    }

    #[test]
    fn memories_share_one_limit() {
        let mut limiter = limiter(100);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(!limiter.memory_growing(0, 41, None).unwrap());
        assert_eq!(limiter.memory_refused(), Some(MemoryLimit::Instance(100)));
        assert!(limiter.memory_growing(0, 40, None).unwrap());
        assert!(!limiter.memory_growing(60, usize::MAX, None).unwrap());
    }

    #[test]
    fn growth_that_failed_is_not_counted() {
        let mut limiter = limiter(100);
        assert!(limiter.memory_growing(0, 100, None).unwrap());
        limiter.memory_grow_failed(wasmtime::Error::msg("no memory")).unwrap();
        assert_eq!(limiter.held.bytes(), 0);
        assert!(limiter.memory_growing(0, 100, None).unwrap());
        assert_eq!(limiter.memory_refused(), None);
    }

    #[test]
    fn elements_that_were_granted_are_not_taken_back() {
        let mut limiter = limiter(100);
        assert!(limiter.table_growing(0, MAX_TABLE_ELEMENTS, None).unwrap());
        limiter.table_grow_failed(wasmtime::Error::msg("overflow")).unwrap();
        assert!(!limiter.table_growing(MAX_TABLE_ELEMENTS, MAX_TABLE_ELEMENTS + 1, None).unwrap());
    }

    #[test]
    fn growth_beyond_what_the_table_declares_takes_nothing() {
        let mut limiter = limiter(100);
        assert!(!limiter.table_growing(0, 11, Some(10)).unwrap());
        assert!(!limiter.table_was_refused());
        assert!(limiter.table_growing(0, MAX_TABLE_ELEMENTS, None).unwrap());
    }

    #[test]
    fn memory_of_an_instance_is_given_back_once() {
        let held = PluginMemory::default();
        let [mut ends, mut stays] = [100, 100].map(|memory| Limiter::new(memory, usize::MAX, held.clone()));
        assert!(ends.memory_growing(0, 60, None).unwrap() && stays.memory_growing(0, 50, None).unwrap());
        assert_eq!((ends.release(), held.bytes()), (60, 50));
        drop(ends);
        assert_eq!(held.bytes(), 50);
    }

    #[test]
    fn next_call_has_what_the_one_before_left_of_the_limit_and_no_refusal() {
        let mut limiter = limiter(100);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(!limiter.memory_growing(60, 101, None).unwrap());
        assert!(!limiter.table_growing(0, MAX_TABLE_ELEMENTS + 1, None).unwrap());
        limiter.again();
        assert_eq!((limiter.used(), limiter.memory_refused(), limiter.table_was_refused()), (60, None, false));
        assert!(limiter.memory_growing(60, 100, None).unwrap());
        assert!(!limiter.memory_growing(100, 101, None).unwrap());
    }

    #[test]
    fn tables_and_what_was_handed_over_count_like_memory() {
        let held = PluginMemory::default();
        let mut limiter = Limiter::new(100, 100, held.clone());
        assert!(limiter.table_growing(0, 5, None).unwrap());
        let kept = held.charge(50, MemoryBound { total: 100, one: 0 }).unwrap();
        assert!(held.charge(11, MemoryBound { total: 100, one: 0 }).is_none());
        assert!(!limiter.table_growing(5, 7, None).unwrap());
        assert_eq!((limiter.memory_refused(), limiter.table_was_refused()), (Some(MemoryLimit::Plugin(100)), false));
        drop(kept);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert_eq!((limiter.release(), held.bytes()), (60, 0));
    }

    #[test]
    fn invariant_12_what_the_host_remembers_is_the_plugins_memory_and_leaves_room_for_one_instance() {
        let held = PluginMemory::default();
        held.remembered().store(70, Ordering::Relaxed);
        let [mut first, mut second] = [(); 2].map(|()| Limiter::new(50, 100, held.clone()));
        assert!(first.memory_growing(0, 50, None).unwrap());
        assert!(!second.memory_growing(0, 1, None).unwrap());
        assert_eq!((second.memory_refused(), held.bytes()), (Some(MemoryLimit::Plugin(100)), 120));
        held.remembered().store(40, Ordering::Relaxed);
        assert!(second.memory_growing(0, 10, None).unwrap());
    }

    #[test]
    fn room_of_an_instance_counts_like_memory() {
        let held = PluginMemory::default();
        let [mut first, mut second] = [(); 2].map(|()| Limiter::new(100, 100, held.clone()));
        assert!(first.make(60));
        assert!(!second.make(41));
        assert_eq!((second.memory_refused(), held.bytes()), (Some(MemoryLimit::Plugin(100)), 60));
        assert!(!first.memory_growing(0, 41, None).unwrap());
        assert!(first.memory_growing(0, 40, None).unwrap());
        assert_eq!((first.release(), held.bytes()), (40, 0));
        drop(first);
        assert_eq!(held.bytes(), 0);
    }

    #[test]
    fn table_limit_is_not_taken_for_the_memory_limit() {
        let mut limiter = limiter(100);
        assert!(!limiter.table_growing(0, MAX_TABLE_ELEMENTS + 1, None).unwrap());
        assert!(limiter.table_was_refused() && limiter.memory_refused().is_none());
    }
}
