//! Memory of a process, as the kernel counts it.

use std::fs;

use anyhow::{Context, Result};

/// Returns the resident bytes of the process `id`, including its program's code.
///
/// # Errors
/// The process does not exist, or `/proc` is missing.
pub fn resident_of(id: u32) -> Result<usize> {
    status(&id.to_string(), "VmRSS:")
}

/// Returns the resident bytes of the process `id` without pages of files.
///
/// Pages of files are mostly the program's code, ten megabytes of some programs. The kernel reads them when they are
/// first used and drops them if memory is short.
///
/// # Errors
/// The process does not exist, or `/proc` is missing.
pub fn held_by(id: u32) -> Result<usize> {
    held(&id.to_string())
}

/// As [`held_by`] of this process.
///
/// # Errors
/// `/proc` is missing.
pub fn held_here() -> Result<usize> {
    held("self")
}

fn held(process: &str) -> Result<usize> {
    status(process, "RssAnon:")
}

/// Resets this process' peak to what is resident now.
///
/// # Errors
/// The kernel does not support it.
pub fn reset_peak() -> Result<()> {
    reset("self")
}

/// Resets the peak of the process `id`.
///
/// # Errors
/// This user has no such process, or the kernel does not support it.
pub fn reset_peak_of(id: u32) -> Result<()> {
    reset(&id.to_string())
}

fn reset(process: &str) -> Result<()> {
    // proc(5): 5 resets the peak resident set size.
    fs::write(format!("/proc/{process}/clear_refs"), "5").context("cannot reset the peak of the resident memory")
}

/// Returns the peak bytes of this process since [`reset_peak`].
///
/// # Errors
/// `/proc` is missing.
pub fn peak() -> Result<usize> {
    highest("self")
}

/// Returns the peak bytes of the process `id` since [`reset_peak_of`], or since its start.
///
/// # Errors
/// The process does not exist, or `/proc` is missing.
pub fn peak_of(id: u32) -> Result<usize> {
    highest(&id.to_string())
}

/// The kernel's peak includes pages of files. These are hardly ever dropped, so their present size is subtracted.
fn highest(process: &str) -> Result<usize> {
    Ok(status(process, "VmHWM:")?.saturating_sub(status(process, "RssFile:")? + status(process, "RssShmem:")?))
}

/// Returns a line of `/proc/PID/status`, in bytes.
fn status(process: &str, name: &str) -> Result<usize> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kilobytes = kilobytes(&text, name).with_context(|| format!("no {name} in {path}"))?;
    Ok(kilobytes << 10)
}

/// Memory of a process in bytes, by whether it is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollup {
    /// All resident memory.
    pub resident: usize,
    /// Private memory: written pages, and pages of files that only this process maps.
    pub private: usize,
    /// Memory without pages of files.
    pub anonymous: usize,
}

/// Returns the memory of the process `id`.
///
/// # Errors
/// This user has no such process, or `/proc` is missing.
pub fn rollup_of(id: u32) -> Result<Rollup> {
    let path = format!("/proc/{id}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    rollup(&text).with_context(|| format!("something is missing in {path}"))
}

fn rollup(text: &str) -> Option<Rollup> {
    let bytes = |name: &str| kilobytes(text, name).map(|kilobytes| kilobytes << 10);
    Some(Rollup {
        resident: bytes("Rss:")?,
        private: bytes("Private_Clean:")? + bytes("Private_Dirty:")?,
        anonymous: bytes("Anonymous:")?,
    })
}

/// Parses the number of a line such as `VmRSS:      1234 kB`.
fn kilobytes(text: &str, name: &str) -> Option<usize> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use super::*;

    #[test]
    fn memory_that_is_touched_is_held_and_its_peak_outlives_it() {
        const SIZE: usize = 64 << 20;
        let before = held_here().unwrap();
        let touched = std::hint::black_box(vec![1_u8; SIZE]);
        assert!(held_here().unwrap() >= before + SIZE / 2);
        drop(touched);
        assert!(peak().unwrap() >= before + SIZE / 2);
    }

    #[test]
    fn what_is_private_is_read_off_the_rollup() {
        let text = "55d0c0a00000-7ffd4e5fe000 ---p 00000000 00:00 0    [rollup]\n\
                    Rss:               12000 kB\nPss:                9000 kB\nShared_Clean:       4000 kB\n\
                    Private_Clean:       500 kB\nPrivate_Dirty:      7500 kB\nAnonymous:          7000 kB\n";
        let expected = Rollup { resident: 12_000 << 10, private: 8_000 << 10, anonymous: 7_000 << 10 };
        assert_eq!(rollup(text), Some(expected));
        assert_eq!(rollup("Rss:               12000 kB\n"), None);
    }

    #[test]
    fn a_process_holds_what_it_touched_for_itself_alone() {
        let own = rollup_of(std::process::id()).unwrap();
        assert!(own.private > 0 && own.anonymous > 0 && own.private <= own.resident, "{own:?}");
    }
}
