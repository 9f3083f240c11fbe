//! What one instance may take of the host's memory.

use wasmtime::ResourceLimiter;

/// Core instances, memories and tables of one component: a guest in Rust has one to three of each, one that brings an
/// interpreter (JavaScript, Python) up to 50.
pub(super) const MAX_INSTANCES: usize = 64;

/// Elements of all tables together: each takes a pointer of the host's memory.
pub(super) const MAX_TABLE_ELEMENTS: usize = 100_000;

/// Counts what an instance's memories and tables take, and remembers that it wanted more than it may have: to the engine a
/// guest that runs out of memory dies of `unreachable`, like any other.
#[derive(Debug)]
pub(super) struct Limiter {
    memory: usize,
    used: usize,
    elements: usize,
    refused: bool,
    elements_refused: bool,
    /// What the last granted growth added, to be taken back where the growth fails all the same.
    last: (usize, usize),
}

impl Limiter {
    /// At most `memory` bytes of linear memory, in all memories together.
    pub(super) fn new(memory: usize) -> Self {
        Self { memory, used: 0, elements: 0, refused: false, elements_refused: false, last: (0, 0) }
    }

    /// The same for the next call into the same instance, which holds what it holds.
    pub(super) fn again(&self) -> Self {
        Self { refused: false, elements_refused: false, ..*self }
    }

    /// Bytes of linear memory that the instance holds. It gives none back.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Bytes of linear memory that are allowed.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Whether more was asked for.
    pub(super) fn memory_was_refused(&self) -> bool {
        self.refused
    }

    /// Whether more than [`MAX_TABLE_ELEMENTS`] were asked for.
    pub(super) fn table_was_refused(&self) -> bool {
        self.elements_refused
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current);
        let granted = self.used.checked_add(more).is_some_and(|sum| sum <= self.memory);
        if granted {
            self.used += more;
            self.last = (more, 0);
        } else {
            self.refused = true;
        }
        Ok(granted)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.used = self.used.saturating_sub(std::mem::take(&mut self.last.0));
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current);
        let granted = self.elements.checked_add(more).is_some_and(|sum| sum <= MAX_TABLE_ELEMENTS);
        if granted {
            self.elements += more;
            self.last = (0, more);
        } else {
            self.elements_refused = true;
        }
        Ok(granted)
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.elements = self.elements.saturating_sub(std::mem::take(&mut self.last.1));
        Ok(())
    }

    fn instances(&self) -> usize {
        MAX_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_INSTANCES
    }

    fn memories(&self) -> usize {
        MAX_INSTANCES
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    #[test]
    fn memories_share_one_limit() {
        let mut limiter = Limiter::new(100);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(!limiter.memory_growing(0, 41, None).unwrap());
        assert!(limiter.memory_was_refused());
        assert!(limiter.memory_growing(0, 40, None).unwrap());
        assert!(!limiter.memory_growing(60, usize::MAX, None).unwrap());
    }

    #[test]
    fn growth_that_failed_is_not_counted() {
        let mut limiter = Limiter::new(100);
        assert!(limiter.memory_growing(0, 100, None).unwrap());
        limiter.memory_grow_failed(wasmtime::Error::msg("no memory")).unwrap();
        assert!(limiter.memory_growing(0, 100, None).unwrap());
        assert!(!limiter.memory_was_refused());
    }

    #[test]
    fn next_call_has_what_the_one_before_left_of_the_limit_and_no_refusal() {
        let mut limiter = Limiter::new(100);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(!limiter.memory_growing(60, 101, None).unwrap());
        assert!(!limiter.table_growing(0, MAX_TABLE_ELEMENTS + 1, None).unwrap());
        let mut limiter = limiter.again();
        assert_eq!((limiter.used(), limiter.memory_was_refused(), limiter.table_was_refused()), (60, false, false));
        assert!(limiter.memory_growing(60, 100, None).unwrap());
        assert!(!limiter.memory_growing(100, 101, None).unwrap());
    }

    #[test]
    fn table_limit_is_not_taken_for_the_memory_limit() {
        let mut limiter = Limiter::new(100);
        assert!(!limiter.table_growing(0, MAX_TABLE_ELEMENTS + 1, None).unwrap());
        assert!(limiter.table_was_refused() && !limiter.memory_was_refused());
    }
}
