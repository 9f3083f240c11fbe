//! The time that the measuring thread, or another process, was given, whatever else the machine does.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
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

/// CPU time of all threads of the process `id` since it began, in ticks of the kernel's clock: 10 ms, as a rule.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub fn cpu_time_of(id: u32) -> Result<Duration> {
    let path = format!("/proc/{id}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // proc(5): the fields after the name, which may hold anything but ends with the last parenthesis, begin with the third; the
    // 14th and the 15th are the time in user mode and in the kernel.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace().skip(11).take(2);
    let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
    let &[user, kernel] = &ticks[..] else { anyhow::bail!("no times in {path}") };
    Ok(Duration::from_secs_f64((user + kernel) as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Microseconds each of `count` things took of `total`.
pub fn micros_each(total: Duration, count: usize) -> f64 {
    total.as_secs_f64() * 1e6 / count as f64
}
