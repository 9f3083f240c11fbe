//! The time that the measuring thread itself was given, whatever else the machine does.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread while `work` runs, system calls included.
pub fn cpu_time(work: impl FnOnce()) -> Duration {
    let start = thread_time();
    work();
    thread_time().saturating_sub(start)
}

/// CPU time of the calling thread since it began.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).expect("a thread has run for no negative time");
    let nanoseconds = u32::try_from(time.tv_nsec).expect("nanoseconds are below a second");
    Duration::new(seconds, nanoseconds)
}

/// Microseconds each of `count` things took of `total`.
pub fn micros_each(total: Duration, count: usize) -> f64 {
    total.as_secs_f64() * 1e6 / count as f64
}
