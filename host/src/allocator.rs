//! Makes the allocator return freed memory to the system.

/// Allocations of at least this many bytes get a mapping of their own, which is returned to the system when they are
/// freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED: i32 = 128 << 10;

/// Makes the process return large buffers to the system when they are freed. Call it once, before threads start.
///
/// glibc raises its threshold to the size of each mapped buffer that is freed, up to 32 MiB. After the first plugin's
/// file, files and compiled code would therefore come from heaps. Heaps never shrink, because a small allocation always
/// lies behind the large ones. With a thousand plugins, 400 MB stayed unused. Other C libraries have no such threshold.
pub fn give_back_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "mallopt sets a number of the C library under its lock")]
        // SAFETY: any value is allowed for this parameter, and the result reports a rejected one.
        let taken = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED) };
        debug_assert_eq!(taken, 1, "glibc takes thresholds up to 32 MiB");
    }
}

/// Freed bytes below this stay with the allocator. They will be used again, and returning them walks over all free
/// memory.
const WORTHWHILE: usize = 32 << 20;

/// Decides when [`give_back_freed`] is worth its time.
#[derive(Debug, Default)]
pub struct Freed {
    /// The value of `ended` when memory was last given back.
    ended: u64,
    /// The largest value of `held` since then, in bytes.
    most: usize,
}

impl Freed {
    /// `true` if memory should be given back now, because something has ended since the last time or much less is held
    /// than before.
    ///
    /// `ended` counts the informers, controllers and observers that have ended since the start. `held` is the accounted
    /// memory in bytes.
    pub fn is_due(&mut self, ended: u64, held: usize) -> bool {
        self.most = self.most.max(held);
        let is_due = ended != self.ended || self.most - held >= WORTHWHILE;
        if is_due {
            *self = Self { ended, most: held };
        }
        is_due
    }
}

/// Returns fully free pages to the system. Use it after many small allocations were freed, because allocations behind
/// them keep their heap from shrinking. The engine's data about a component, for example, is some 80 kB in small parts.
///
/// Do not call it on a thread that others wait for: it walks over all free memory of each heap under the heap's lock.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "malloc_trim locks the heaps itself")]
        // SAFETY: it takes a number and touches no memory in use.
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
