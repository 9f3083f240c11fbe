//! Bounds the memory of all compilers together, so that they and the host stay within the container's limit.

use std::{path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    container::{Room, room},
    error::LoadError,
};

const MIB: u64 = 1 << 20;

/// The smallest grant, in MiB. The smallest plugins in Rust take about 60; a compiler takes about 25 before it reads
/// its file.
const LEAST: u64 = 48;

/// The host's reserve while compilers run, as a fraction of the container's limit. Its caches and its plugins' calls
/// grow meanwhile.
const RESERVED_PART: u64 = 8;

/// The least reserve, in MiB. Writing compiled code takes kernel memory.
const RESERVED: u64 = 24;

/// Memory for compilers. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Where the container's limits are read: `/`.
    root: PathBuf,
    /// MiB granted to running compilers.
    granted: Mutex<u64>,
    ended: Notify,
    /// Held by the next compilation, so that none overtakes it.
    next: tokio::sync::Mutex<()>,
}

/// Memory of one compiler, in MiB. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) mib: u64,
    /// The container's limit in MiB, if it is why the grant is smaller than requested.
    pub(crate) limit: Option<u64>,
    of: Budget,
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut granted = self.of.0.granted.lock();
        *granted = granted.saturating_sub(self.mib);
        drop(granted);
        self.of.0.ended.notify_one();
    }
}

impl Budget {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        let (granted, ended, next) = (Mutex::default(), Notify::new(), tokio::sync::Mutex::default());
        Self(Arc::new(Shared { root: root.into(), granted, ended, next }))
    }

    /// Grants `wanted` MiB. Waits for other compilers if the rest is too small; alone, a compiler gets what the
    /// container leaves.
    ///
    /// # Errors
    /// If what is left is too little for any file.
    pub(crate) async fn take(&self, wanted: u64) -> Result<Grant, LoadError> {
        let _next = self.0.next.lock().await;
        loop {
            let room = room(&self.0.root);
            {
                let mut granted = self.0.granted.lock();
                match judge(room, *granted, wanted) {
                    Verdict::Grant { mib, limit } => {
                        *granted += mib;
                        return Ok(Grant { mib, limit, of: self.clone() });
                    }
                    Verdict::Wait => {}
                    Verdict::Refuse { left, limit } => return Err(LoadError::NoRoom { left, limit }),
                }
            }
            self.0.ended.notified().await;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Grant { mib: u64, limit: Option<u64> },
    Wait,
    Refuse { left: u64, limit: u64 },
}

/// Decides what a compiler gets that wants `wanted` MiB. The holders of `granted` may not have used all of it yet.
fn judge(room: Option<Room>, granted: u64, wanted: u64) -> Verdict {
    let Some(Room { limit, left }) = room else { return Verdict::Grant { mib: wanted, limit: None } };
    let limit = limit / MIB;
    let reserved = (limit / RESERVED_PART).max(RESERVED);
    let left = (left / MIB).saturating_sub(reserved).saturating_sub(granted);
    match () {
        () if left >= wanted => Verdict::Grant { mib: wanted, limit: None },
        () if granted > 0 => Verdict::Wait,
        () if left >= LEAST => Verdict::Grant { mib: left, limit: Some(limit) },
        () => Verdict::Refuse { left, limit },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn of(limit: u64, left: u64) -> Option<Room> {
        Some(Room { limit: limit * MIB, left: left * MIB })
    }

    #[test]
    fn a_compiler_gets_what_the_container_leaves_and_no_more_than_it_wants() {
        let all = Verdict::Grant { mib: 2048, limit: None };
        assert_eq!(judge(None, 4096, 2048), all);
        assert_eq!(judge(of(8192, 8000), 512, 2048), all);
        assert_eq!(judge(of(512, 450), 0, 2048), Verdict::Grant { mib: 386, limit: Some(512) });
        assert_eq!(judge(of(128, 100), 0, 512), Verdict::Grant { mib: 76, limit: Some(128) });
        assert_eq!(judge(of(128, 50), 0, 512), Verdict::Refuse { left: 26, limit: 128 });
        assert_eq!(judge(of(128, 0), 0, 512), Verdict::Refuse { left: 0, limit: 128 });
    }

    #[test]
    fn a_compiler_waits_for_those_that_may_take_what_is_left() {
        assert_eq!(judge(of(1024, 900), 386, 512), Verdict::Wait);
        assert_eq!(judge(of(1024, 1024), 384, 512), Verdict::Grant { mib: 512, limit: None });
        assert_eq!(judge(of(128, 0), 10, 512), Verdict::Wait);
    }

    /// Creates a root directory with these files, of a container with 512 MiB of which 48 are used.
    fn container(mount: &str, files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let kernel = [("proc/self/cgroup", "4:memory:/\n0::/\n"), ("proc/self/mountinfo", mount)];
        for (path, text) in kernel.iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const V2: &str = "30 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const MAX: (&str, &str) = ("sys/fs/cgroup/memory.max", "536870912\n");
    const CURRENT: (&str, &str) = ("sys/fs/cgroup/memory.current", "50331648\n");

    #[tokio::test]
    async fn a_compiler_gets_the_same_whatever_limits_the_container_and_whomever_the_kernel_would_end() {
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let group = |text| ("sys/fs/cgroup/memory.oom.group", text);
        for (mount, files) in [
            (
                v1,
                &[
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
                    ("sys/fs/cgroup/memory/memory.usage_in_bytes", "50331648\n"),
                ][..],
            ),
            (V2, &[MAX, CURRENT, group("1\n")]),
            (V2, &[MAX, CURRENT, group("0\n")]),
            (V2, &[("sys/fs/cgroup/memory.high", MAX.1), CURRENT]),
        ] {
            let root = container(mount, files);
            let grant = Budget::new(root.path()).take(2048).await.unwrap();
            assert_eq!((grant.mib, grant.limit), (400, Some(512)), "{files:?}");
        }
    }

    #[tokio::test]
    async fn memory_is_given_back_and_the_first_who_waits_is_next() {
        let root = container(V2, &[MAX, CURRENT]);
        let budget = Budget::new(root.path());
        let first = budget.take(2048).await.unwrap();
        assert_eq!((first.mib, first.limit), (400, Some(512)));
        let mut second = std::pin::pin!(budget.take(300));
        let mut third = std::pin::pin!(budget.take(64));
        assert!(futures::poll!(&mut second).is_pending());
        assert!(futures::poll!(&mut third).is_pending());
        drop(first);
        let second = second.await.unwrap();
        assert_eq!((second.mib, second.limit), (300, None));
        assert_eq!(third.await.unwrap().mib, 64);
        assert_eq!(*budget.0.granted.lock(), 300);
    }
}
