//! Who is let in first where others use every core, and who last: threads that wait most of the time, and are to run as soon as they are
//! woken; and those for whose work nobody waits.
//!
//! Where nothing is said, a woken thread may wait until whoever has the core has used up its slice, some milliseconds: guests that never
//! wait would hold up the event that somebody else's reconcile is for. Since Linux 6.12 a thread that asks for short slices is let in at
//! once. It gets no more of the core than any other, and needs no privilege for it.

/// Nanoseconds: the shortest slice that the kernel gives.
#[cfg(target_os = "linux")]
const SLICE: u64 = 100_000;

/// Nanoseconds: longer than any slice of who asked for none, so that all of those are let in at once.
#[cfg(target_os = "linux")]
const LONG_SLICE: u64 = 10_000_000;

/// So much below who serves, and not so low that what is begun waits until they rest: of a core that others use too it has a quarter.
pub(crate) const NICE: i32 = 5;

/// The same for what somebody waits for: it has two fifths.
pub(crate) const NICE_AWAITED: i32 = 2;

/// Asks the kernel to let the calling thread in as soon as it wakes. Threads and processes that it starts do not inherit that. Where the
/// kernel cannot do it, or may not, nothing changes: it is then as it would be without.
pub(crate) fn be_prompt() {
    #[cfg(target_os = "linux")]
    schedule(|had| {
        // libc has it signed, and the structure it is for unsigned.
        let alone = u64::from(libc::SCHED_FLAG_RESET_ON_FORK.unsigned_abs());
        libc::sched_attr { sched_runtime: SLICE, sched_flags: had.sched_flags | alone, ..had }
    });
}

/// Asks the kernel to take the core from the calling thread for whoever wakes, and to give it the smaller part of a core that others want
/// too: some of it, as others may wait for what the thread holds. How small it is says `nice`. Threads and processes that it starts inherit
/// both. Otherwise as [`be_prompt`].
pub(crate) fn be_last(nice: i32) {
    #[cfg(target_os = "linux")]
    schedule(|had| libc::sched_attr { sched_nice: had.sched_nice.max(nice), sched_runtime: LONG_SLICE, ..had });
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

/// Schedules the calling thread otherwise, if it is one that shares cores with others.
#[cfg(target_os = "linux")]
fn schedule(otherwise: impl Fn(libc::sched_attr) -> libc::sched_attr) {
    if let Some(had) = kernel::attributes()
        && matches!(i32::try_from(had.sched_policy), Ok(libc::SCHED_OTHER | libc::SCHED_BATCH))
    {
        kernel::set_attributes(&otherwise(had));
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use libc::sched_attr;

    /// The calling thread.
    const SELF: libc::pid_t = 0;

    const SIZE: u32 = size_of::<sched_attr>() as u32;

    /// How the kernel schedules the calling thread, if it says.
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
        // SAFETY: the kernel writes at most as many bytes as it is told, into a structure of integers that has as many.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, SELF, &raw mut attributes, SIZE, 0) };
        (result == 0).then_some(attributes)
    }

    /// Changes that. A failure changes nothing.
    pub(super) fn set_attributes(attributes: &sched_attr) {
        #[expect(unsafe_code, reason = "neither libc nor rustix has a function for it")]
        // SAFETY: the kernel reads as many bytes as `size` says, which the structure has.
        let _refused = unsafe { libc::syscall(libc::SYS_sched_setattr, SELF, &raw const *attributes, 0) };
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use super::*;

    /// What the test may see of how a thread is scheduled: policy, nice value and slice.
    fn scheduled() -> Option<(u32, i32, u64)> {
        kernel::attributes().map(|had| (had.sched_policy, had.sched_nice, had.sched_runtime))
    }

    #[test]
    fn last_thread_has_long_slices_and_fewer_of_them_and_so_have_its_children() {
        let seen = thread::spawn(|| {
            let before = scheduled();
            be_last(NICE);
            let child = thread::spawn(scheduled).join().expect("it does not panic");
            (before, scheduled(), child)
        });
        let (before, last, child) = seen.join().expect("it does not panic");
        assert_eq!(child, last);
        // A kernel that knows of no slices, before 6.12, says 0.
        let slice =
            |(policy, nice, slice): (u32, i32, u64)| (policy, nice.max(NICE), if slice == 0 { 0 } else { LONG_SLICE });
        assert_eq!(last, before.map(slice));
    }

    #[test]
    fn prompt_thread_has_short_slices_and_its_children_what_others_have() {
        let seen = thread::spawn(|| {
            let before = scheduled();
            be_prompt();
            let child = thread::spawn(scheduled).join().expect("it does not panic");
            (before, scheduled(), child)
        });
        let (before, prompt, child) = seen.join().expect("it does not panic");
        assert_eq!(child, before);
        // A kernel that knows of no slices, before 6.12, says 0.
        let slice = |(policy, nice, slice): (u32, i32, u64)| (policy, nice, if slice == 0 { 0 } else { SLICE });
        assert_eq!(prompt, before.map(slice));
    }
}
