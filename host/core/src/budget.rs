//! One bound for the sum of several buffers.
//!
//! A plugin has many buffers, some of them per controller. A [`Budget`] bounds the sum; each buffer reports its size
//! through a [`Share`], and decides itself what to do when the sum is too large.
//!
//! ```
//! use pilothouse_core::budget::Budget;
//!
//! let budget = Budget::new(100);
//! let [mut one, mut other] = [budget.share(), budget.share()];
//! one.set(60);
//! other.add(40);
//! assert!(!budget.is_over() && !one.fits(1));
//! one.add(1);
//! assert!(budget.is_over());
//! drop(other);
//! assert_eq!(budget.used(), 61);
//! ```

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A bound and its use. Clones are the same budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Sums>);

#[derive(Debug)]
struct Sums {
    used: AtomicUsize,
    most: AtomicUsize,
    /// Counter for several budgets together.
    total: Option<Arc<AtomicUsize>>,
}

impl Budget {
    /// Creates a budget of `most` units.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Sums { used: AtomicUsize::new(0), most: AtomicUsize::new(most), total: None }))
    }

    /// Creates a budget whose use also counts in `total`.
    pub fn within(total: Arc<AtomicUsize>, most: usize) -> Self {
        Self(Arc::new(Sums { used: AtomicUsize::new(0), most: AtomicUsize::new(most), total: Some(total) }))
    }

    /// Sets the bound. Present use stays.
    pub fn set_most(&self, most: usize) {
        self.0.most.store(most, Ordering::Relaxed);
    }

    /// Returns the use.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Returns `true` if more is used than the bound allows.
    pub fn is_over(&self) -> bool {
        self.used() > self.0.most.load(Ordering::Relaxed)
    }

    /// Returns the share of a new, empty buffer.
    pub fn share(&self) -> Share {
        Share { budget: self.clone(), holds: 0 }
    }

    fn grow(&self, by: usize) {
        self.0.used.fetch_add(by, Ordering::Relaxed);
        if let Some(total) = &self.0.total {
            total.fetch_add(by, Ordering::Relaxed);
        }
    }

    fn shrink(&self, by: usize) {
        self.0.used.fetch_sub(by, Ordering::Relaxed);
        if let Some(total) = &self.0.total {
            total.fetch_sub(by, Ordering::Relaxed);
        }
    }
}

/// One buffer's part of a budget; given back on drop.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    holds: usize,
}

impl Share {
    /// Returns what this buffer holds.
    pub fn holds(&self) -> usize {
        self.holds
    }

    /// Returns `true` if `more` fits within the bound.
    pub fn fits(&self, more: usize) -> bool {
        self.budget.used().saturating_add(more) <= self.budget.0.most.load(Ordering::Relaxed)
    }

    /// Returns `true` if the buffers together hold more than the bound allows.
    pub fn is_over(&self) -> bool {
        self.budget.is_over()
    }

    /// Adds to what this buffer holds.
    pub fn add(&mut self, more: usize) {
        self.budget.grow(more);
        self.holds += more;
    }

    /// Subtracts from what this buffer holds.
    pub fn remove(&mut self, less: usize) {
        debug_assert!(less <= self.holds, "{less} of {}", self.holds);
        let less = less.min(self.holds);
        self.budget.shrink(less);
        self.holds -= less;
    }

    /// Sets what this buffer holds.
    pub fn set(&mut self, holds: usize) {
        match holds.checked_sub(self.holds) {
            Some(0) => {}
            Some(more) => self.add(more),
            None => self.remove(self.holds - holds),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_buffers_count_in_every_sum_and_are_given_back() {
        let total = Arc::new(AtomicUsize::new(0));
        let [reads, gone] = [10, 20].map(|most| Budget::within(total.clone(), most));
        let (mut one, mut other) = (reads.share(), gone.share());
        one.set(8);
        other.set(5);
        one.set(3);
        assert_eq!((reads.used(), gone.used(), total.load(Ordering::Relaxed)), (3, 5, 8));
        assert!(one.fits(7) && !one.fits(8));
        reads.set_most(2);
        assert!(reads.is_over() && !gone.is_over());
        drop((one, other));
        assert_eq!((reads.used(), gone.used(), total.load(Ordering::Relaxed)), (0, 0, 0));
    }
}
