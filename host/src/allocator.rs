//! What the process's allocator gives back to the system, and when.

/// From so many bytes on an allocation is mapped by itself, and given back to the system as soon as it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED: i32 = 128 << 10;

/// Makes the process give large buffers back when they are freed. To be called once, before there are threads.
///
/// glibc begins so, and then raises its threshold to the size of whatever mapped buffer is freed, up to 32 MiB: from the first plugin's file
/// on, files and their compiled code are cut out of heaps that never shrink, as something small always lies behind them. With a thousand
/// plugins that was 400 MB which nobody used. Other C libraries have no such threshold.
pub fn give_back_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "it sets a number of the C library, under its lock")]
        // SAFETY: any value is allowed for this parameter; one that is not taken is reported by the result.
        let taken = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED) };
        debug_assert_eq!(taken, 1, "glibc takes thresholds up to 32 MiB");
    }
}

/// Fewer freed bytes than this are left to the allocator: they will be used again, and it walks over all that is free to give them back.
const WORTHWHILE: usize = 32 << 20;

/// Decides when [`give_back_freed`] is worth its time.
#[derive(Debug, Default)]
pub struct Freed {
    /// What had ended when memory was last given back.
    ended: u64,
    /// The most that was held since.
    most: usize,
}

impl Freed {
    /// `true` if memory should be given back now: something has ended since it last was, or much less is held than before.
    ///
    /// `ended` counts informers, controllers and observers that have ended since the start. `held` is the sum of what is counted, in bytes.
    pub fn is_due(&mut self, ended: u64, held: usize) -> bool {
        self.most = self.most.max(held);
        let is_due = ended != self.ended || self.most - held >= WORTHWHILE;
        if is_due {
            *self = Self { ended, most: held };
        }
        is_due
    }
}

/// Gives pages back that hold nothing but what was freed. For after much that is small was freed: what lies behind it in a heap keeps it
/// otherwise. What the engine knows of a component is some 80 kB in small parts, and goes with its code.
///
/// It walks over all that is free in each heap, under that heap's lock: not for a thread that others wait for.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "it is the C library's own, under its locks")]
        // SAFETY: it takes a number, and touches nothing that is in use.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invariant_12_memory_goes_back_when_something_ended_and_when_much_was_freed() {
        let mut freed = Freed::default();
        let mut looks = |ended, held| freed.is_due(ended, held);
        assert!(!looks(0, 10 * WORTHWHILE));
        assert!(!looks(0, 9 * WORTHWHILE + 1));
        assert!(looks(0, 9 * WORTHWHILE), "much was freed");
        assert!(!looks(0, 9 * WORTHWHILE), "it was given back");
        assert!(looks(2, 9 * WORTHWHILE), "something ended");
        assert!(!looks(2, 9 * WORTHWHILE));
        assert!(!looks(2, 10 * WORTHWHILE), "more is held");
    }
}
