//! CPU time of the measuring thread or of another process. Other work on the machine does not change it.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// Measures the CPU time of the calling thread while `work` runs, including system calls.
pub fn cpu_time(work: impl FnOnce()) -> Duration {
    let start = thread_time();
    work();
    thread_time().saturating_sub(start)
}

/// CPU time of the calling thread since its start.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).expect("a thread has run for no negative time");
    let nanoseconds = u32::try_from(time.tv_nsec).expect("nanoseconds are below a second");
    Duration::new(seconds, nanoseconds)
}

/// CPU time of all threads of the process `id` since its start, in ticks of the kernel's clock, which are usually 10
/// ms.
///
/// # Errors
/// The process does not exist, or `/proc` is missing.
pub fn cpu_time_of(id: u32) -> Result<Duration> {
    let path = format!("/proc/{id}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // proc(5): the second field is the name, which may hold anything and ends with the last parenthesis. Fields 14 and
    // 15 are the time in user mode and in the kernel.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace().skip(11).take(2);
    let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
    let &[user, kernel] = &ticks[..] else { anyhow::bail!("no times in {path}") };
    Ok(Duration::from_secs_f64((user + kernel) as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Divides `total` by `count`, in microseconds.
pub fn micros_each(total: Duration, count: usize) -> f64 {
    total.as_secs_f64() * 1e6 / count as f64
}
