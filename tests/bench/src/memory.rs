//! What a process truly holds, as the kernel counts it.

use std::fs;

use anyhow::{Context, Result};

/// Bytes of memory that are resident in the process `id`.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub fn resident_of(id: u32) -> Result<usize> {
    resident(&id.to_string())
}

/// Bytes of memory that are resident in this process.
///
/// # Errors
/// There is no `/proc`.
pub fn resident_here() -> Result<usize> {
    resident("self")
}

fn resident(process: &str) -> Result<usize> {
    let path = format!("/proc/{process}/statm");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // proc(5): sizes in pages; the second is the resident set.
    let pages: usize =
        text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).context("no resident set in statm")?;
    Ok(pages * rustix::param::page_size())
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

/// The most bytes that were resident in this process since [`reset_peak`].
///
/// # Errors
/// There is no `/proc`.
pub fn peak() -> Result<usize> {
    highest("self")
}

/// The most bytes that were resident in the process `id` since [`reset_peak_of`], or its start.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub fn peak_of(id: u32) -> Result<usize> {
    highest(&id.to_string())
}

fn highest(process: &str) -> Result<usize> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let kilobytes: usize =
        kilobytes.and_then(|text| text.trim().parse().ok()).with_context(|| format!("no peak in {path}"))?;
    Ok(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use super::*;

    #[test]
    fn memory_that_is_touched_is_resident_and_its_peak_outlives_it() {
        const SIZE: usize = 64 << 20;
        let before = resident_here().unwrap();
        let touched = std::hint::black_box(vec![1_u8; SIZE]);
        assert!(resident_here().unwrap() >= before + SIZE / 2);
        drop(touched);
        assert!(peak().unwrap() >= before + SIZE / 2);
    }
}
