//! Sets the scheduling of threads for when all cores are busy. Threads that mostly wait should run as soon as they are
//! woken, and background work should run last.
//!
//! By default a woken thread may wait until the running thread has used up its slice, some milliseconds. Guests that
//! never wait would then delay the events of others. Since Linux 6.12, a thread with a short slice runs at once. It
//! gets no more CPU time than other threads, and needs no privilege.

/// The shortest slice that the kernel grants, in nanoseconds.
#[cfg(target_os = "linux")]
const SLICE: u64 = 100_000;

/// A slice in nanoseconds that is longer than the default, so that all ordinary threads preempt its owner at once.
#[cfg(target_os = "linux")]
const LONG_SLICE: u64 = 10_000_000;

/// The nice value of background work. On a core that others use too it gets a quarter, so that it still makes progress.
pub(crate) const NICE: i32 = 5;

/// The nice value of background work that someone waits for. On a core that others use too it gets two fifths.
pub(crate) const NICE_AWAITED: i32 = 2;

/// Asks the kernel to run the calling thread as soon as it wakes. Threads and processes that it starts do not inherit
/// this. If the kernel cannot do it, or refuses, nothing changes.
pub(crate) fn be_prompt() {
    #[cfg(target_os = "linux")]
    schedule(|had| {
        // libc declares the constant signed and the field unsigned.
        let alone = u64::from(libc::SCHED_FLAG_RESET_ON_FORK.unsigned_abs());
        libc::sched_attr { sched_runtime: SLICE, sched_flags: had.sched_flags | alone, ..had }
    });
}

/// Asks the kernel to let any woken thread preempt the calling one, and to give it the smaller part of a shared core,
/// as `nice` says. It still gets some, because others may wait for a lock that it holds. Threads and processes that it
/// starts inherit both. If the kernel cannot do it, or refuses, nothing changes.
pub(crate) fn be_last(nice: i32) {
    #[cfg(target_os = "linux")]
    schedule(|had| libc::sched_attr { sched_nice: had.sched_nice.max(nice), sched_runtime: LONG_SLICE, ..had });
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

/// Changes the scheduling of the calling thread if it has an ordinary policy.
#[cfg(target_os = "linux")]
fn schedule(change: impl Fn(libc::sched_attr) -> libc::sched_attr) {
    if let Some(had) = kernel::attributes()
        && matches!(i32::try_from(had.sched_policy), Ok(libc::SCHED_OTHER | libc::SCHED_BATCH))
    {
        kernel::set_attributes(&change(had));
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use libc::sched_attr;

    /// The calling thread.
    const SELF: libc::pid_t = 0;

    const SIZE: u32 = size_of::<sched_attr>() as u32;

    /// Returns how the kernel schedules the calling thread, or `None` if the kernel refuses to say.
    pub(super) fn attributes() -> Option<sched_attr> {
        let mut attributes = sched_attr {
            size: SIZE,
            sched_policy: 0,
            sched_flags: 0,
            sched_nice: 0,
            sched_priority: 0,
            sched_runtime: 0,
            sched_deadline: 0,
            sched_period: 0,
        };
        #[expect(unsafe_code, reason = "neither libc nor rustix has a function for it")]
        // SAFETY: the kernel writes at most `SIZE` bytes, into a structure of integers of that size.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, SELF, &raw mut attributes, SIZE, 0) };
        (result == 0).then_some(attributes)
    }

    /// Changes how the kernel schedules the calling thread. A failure changes nothing.
    pub(super) fn set_attributes(attributes: &sched_attr) {
        #[expect(unsafe_code, reason = "neither libc nor rustix has a function for it")]
        // SAFETY: the kernel reads `size` bytes, which is the structure's size.
        let _refused = unsafe { libc::syscall(libc::SYS_sched_setattr, SELF, &raw const *attributes, 0) };
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use super::*;

    /// Returns policy, nice value and slice of the calling thread.
    fn scheduled() -> Option<(u32, i32, u64)> {
        kernel::attributes().map(|had| (had.sched_policy, had.sched_nice, had.sched_runtime))
    }

    #[test]
    fn last_thread_has_longer_and_fewer_slices_and_its_children_inherit_them() {
        let seen = thread::spawn(|| {
            let before = scheduled();
            be_last(NICE);
            let child = thread::spawn(scheduled).join().expect("it does not panic");
            (before, scheduled(), child)
        });
        let (before, last, child) = seen.join().expect("it does not panic");
        assert_eq!(child, last);
        // Kernels before 6.12 know no slices and report 0.
        let slice =
            |(policy, nice, slice): (u32, i32, u64)| (policy, nice.max(NICE), if slice == 0 { 0 } else { LONG_SLICE });
        assert_eq!(last, before.map(slice));
    }

    #[test]
    fn prompt_thread_has_short_slices_and_its_children_have_default_ones() {
        let seen = thread::spawn(|| {
            let before = scheduled();
            be_prompt();
            let child = thread::spawn(scheduled).join().expect("it does not panic");
            (before, scheduled(), child)
        });
        let (before, prompt, child) = seen.join().expect("it does not panic");
        assert_eq!(child, before);
        // Kernels before 6.12 know no slices and report 0.
        let slice = |(policy, nice, slice): (u32, i32, u64)| (policy, nice, if slice == 0 { 0 } else { SLICE });
        assert_eq!(prompt, before.map(slice));
    }
}
