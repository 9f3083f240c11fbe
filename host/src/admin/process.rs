//! Figures of the process, from `/proc`. Other systems than Linux have none.

use std::fmt;

use crate::metrics::{self, DescriptorEncoder, Registry, counters, gauges};

/// Ticks of `/proc/*/stat` in a second. Linux fixes `USER_HZ`, whatever the kernel's own clock is.
const USER_HZ: f64 = 100.0;

/// Registers the figures of this process.
pub(crate) fn register(registry: &mut Registry) {
    metrics::register(registry, encode);
}

fn encode(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let cpu = std::fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(cpu_seconds);
    if let Some(cpu) = cpu {
        let help = "Processor time of the process, user and system";
        counters(encoder, "process_cpu_seconds", help, std::iter::once(([], cpu)))?;
    }
    let resident = std::fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident_bytes);
    if let Some(resident) = resident {
        let help = "Memory of the process that is in use";
        gauges(encoder, "process_resident_memory_bytes", help, std::iter::once(([], resident)))?;
    }
    Ok(())
}

/// Fields 14 and 15 of proc_pid_stat(5). The second field, in parentheses, may itself hold spaces and parentheses.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut ticks = rest.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    Some((user as f64 + system as f64) / USER_HZ)
}

/// `VmRSS` of proc_pid_status(5), which is in kB whatever the size of a page.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_a_name_with_parentheses() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 7 8 20 0 9 0 100 1 1";
        assert_eq!(cpu_seconds(stat), Some(1.75));
        assert_eq!(cpu_seconds("42 (a) S 1 2"), None);
        assert_eq!(cpu_seconds(""), None);
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(resident_bytes("Name:\ta\nVmHWM:\t  900 kB\nVmRSS:\t  812 kB\n"), Some(831_488));
        assert_eq!(resident_bytes("VmRSS:\tmuch\n"), None);
        assert_eq!(resident_bytes("VmRSS:\t99999999999999999999 kB"), None);
        assert_eq!(resident_bytes(""), None);
    }
}
