//! What a process truly holds, as the kernel counts it.

use std::fs;

use anyhow::{Context, Result};

/// Bytes of memory that are resident in the process `id`, its program's code included.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub fn resident_of(id: u32) -> Result<usize> {
    status(&id.to_string(), "VmRSS:")
}

/// Bytes of memory that the process `id` holds for itself: resident, and not the pages of a file. Those are its program's code,
/// which is read in as it first runs, and which the kernel takes away again where memory is short: no part of a cache, but ten
/// megabytes of some programs.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub fn held_by(id: u32) -> Result<usize> {
    held(&id.to_string())
}

/// The same of this process.
///
/// # Errors
/// There is no `/proc`.
pub fn held_here() -> Result<usize> {
    held("self")
}

fn held(process: &str) -> Result<usize> {
    status(process, "RssAnon:")
}

/// Forgets the peak of this process: it is what is resident now.
///
/// # Errors
/// The kernel does not offer it.
pub fn reset_peak() -> Result<()> {
    reset("self")
}

/// Forgets the peak of the process `id`.
///
/// # Errors
/// There is no such process of this user, or the kernel does not offer it.
pub fn reset_peak_of(id: u32) -> Result<()> {
    reset(&id.to_string())
}

fn reset(process: &str) -> Result<()> {
    // proc(5): 5 resets the peak resident set size.
    fs::write(format!("/proc/{process}/clear_refs"), "5").context("cannot reset the peak of the resident memory")
}

/// The most bytes that this process has held since [`reset_peak`].
///
/// # Errors
/// There is no `/proc`.
pub fn peak() -> Result<usize> {
    highest("self")
}

/// The most bytes that the process `id` has held since [`reset_peak_of`], or its start.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub fn peak_of(id: u32) -> Result<usize> {
    highest(&id.to_string())
}

/// The kernel notes the peak of all that is resident. Pages of files hardly ever go: what there is of them now, there was then.
fn highest(process: &str) -> Result<usize> {
    Ok(status(process, "VmHWM:")?.saturating_sub(status(process, "RssFile:")? + status(process, "RssShmem:")?))
}

/// A line of `/proc/PID/status`, in bytes.
fn status(process: &str, name: &str) -> Result<usize> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kilobytes = kilobytes(&text, name).with_context(|| format!("no {name} in {path}"))?;
    Ok(kilobytes << 10)
}

/// What a process holds, by whether others have it too. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollup {
    /// All that is resident.
    pub resident: usize,
    /// What of it nobody else has: memory that it wrote to, and pages of files that only it maps.
    pub private: usize,
    /// What of it is not a file's.
    pub anonymous: usize,
}

/// What the process `id` holds.
///
/// # Errors
/// There is no such process of this user, or no `/proc`.
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

/// The number of a line such as `VmRSS:      1234 kB`.
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
