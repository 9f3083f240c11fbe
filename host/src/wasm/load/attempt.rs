//! Marks on disk which file is being compiled, so that the next start knows if the host died during the compilation.
//!
//! A compiler that exceeds the container's memory limit takes the host with it, and the next start would compile the
//! same file again.
//!
//! - While a compilation runs, `<digest>-<tier>.compiling` lies in the cache directory, locked by the host. It holds
//!   how often in a row the host has ended during this compilation.
//! - After one end, the file is compiled again at once, with half the memory. Somebody may have killed the host, or
//!   moved it to another node.
//! - From the third end on, each try waits ten minutes and halves the memory again.
//! - A changed file has another digest, and starts without a history.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Number of consecutive ends of the host after which a file has to wait.
const SUSPECT: u32 = 3;

/// How long it waits. In a crash loop the kubelet starts a container every five minutes.
const WAIT: Duration = Duration::from_secs(600);

/// Age at which a mark is ignored: by then the machine, its limits or the host have changed.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);

/// Suffix of a mark's file name.
const MARK: &str = ".compiling";

/// A compilation that is under way. Dropped, it keeps the count of a file that has no verdict.
#[derive(Debug)]
pub(crate) struct Attempt {
    path: PathBuf,
    mark: File,
    /// Consecutive ends of the host during this compilation.
    ended: u32,
    /// `true` if the compiler gave a verdict, which ends the history.
    settled: bool,
}

/// A compilation that has to wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    /// Consecutive ends of the host.
    pub(crate) ended: u32,
    pub(crate) wait: Duration,
    pub(crate) mark: PathBuf,
}

impl Attempt {
    /// Marks that a file is being compiled. `name` is its digest and tier.
    ///
    /// Returns `None` if another compilation of the file is under way, or if the directory takes no mark. Compiling
    /// goes on without one.
    ///
    /// # Errors
    /// If the host has ended over this file three times, the last time less than ten minutes before `now`.
    pub(crate) fn begin(dir: &Path, name: &str, now: SystemTime) -> Result<Option<Self>, Suspect> {
        let path = dir.join(format!("{name}{MARK}"));
        let Ok(Some((mut mark, ended))) = open(&path) else { return Ok(None) };
        let age = mark.metadata().and_then(|data| data.modified()).map(|at| now.duration_since(at).unwrap_or_default());
        let wait = WAIT.saturating_sub(age.unwrap_or(WAIT));
        if ended >= SUSPECT && !wait.is_zero() {
            return Err(Suspect { ended, wait, mark: path });
        }
        if write(&mut mark, ended.saturating_add(1)).is_err() {
            let _ = fs::remove_file(&path);
            return Ok(None);
        }
        Ok(Some(Self { path, mark, ended, settled: false }))
    }

    /// Returns how often in a row the host has ended during this compilation.
    pub(crate) fn ended(&self) -> u32 {
        self.ended
    }

    /// Returns the mark's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Records that the compiler gave a verdict, whichever it is. The history of the file ends.
    pub(crate) fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // The host is alive, so this attempt does not add to the count.
        if self.settled || self.ended == 0 || write(&mut self.mark, self.ended).is_err() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes marks that are older than [`FORGOTTEN`].
pub(crate) fn sweep(dir: &Path, now: SystemTime) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_mark = name.to_str().is_some_and(|name| name.ends_with(MARK) && begins_with_digest(name));
        let modified = entry.metadata().and_then(|data| data.modified());
        if is_mark && modified.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > FORGOTTEN)) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Returns `true` if the name is the host's. The directory may hold files of others.
fn begins_with_digest(name: &str) -> bool {
    name.get(..64).is_some_and(|digest| digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Opens and locks a mark, and reads its count. Returns `None` if another process has the lock.
fn open(path: &Path) -> io::Result<Option<(File, u32)>> {
    loop {
        let mut options = OpenOptions::new();
        let mut mark = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match mark.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The process that held the lock before may have removed the file.
        if mark.metadata()?.nlink() == 0 {
            continue;
        }
        let mut text = String::new();
        (&mut mark).take(16).read_to_string(&mut text)?;
        return Ok(Some((mark, text.trim().parse().unwrap_or(0))));
    }
}

fn write(mark: &mut File, ended: u32) -> io::Result<()> {
    mark.rewind()?;
    mark.set_len(0)?;
    writeln!(mark, "{ended}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::{super::digest::Digest, *};

    /// Simulates the end of the host: nothing is dropped, and the lock is gone.
    fn host_ends(attempt: Attempt) {
        attempt.mark.unlock().unwrap();
        std::mem::forget(attempt);
    }

    fn begin(dir: &Path, after: Duration) -> Result<Option<Attempt>, Suspect> {
        Attempt::begin(dir, &Digest::of(b"file").to_string(), SystemTime::now() + after)
    }

    #[test]
    fn a_file_over_which_the_host_ended_again_and_again_waits_and_another_does_not() {
        let dir = tempfile::tempdir().unwrap();
        for ended in 0..SUSPECT {
            let attempt = begin(dir.path(), Duration::ZERO).unwrap().unwrap();
            assert_eq!(attempt.ended(), ended);
            host_ends(attempt);
        }
        let suspect = begin(dir.path(), Duration::from_secs(60)).unwrap_err();
        assert_eq!(suspect.ended, 3);
        assert!(suspect.wait > Duration::from_secs(500) && suspect.wait <= Duration::from_secs(541), "{suspect:?}");
        assert!(Attempt::begin(dir.path(), &Digest::of(b"changed").to_string(), SystemTime::now()).unwrap().is_some());

        let later = begin(dir.path(), WAIT + Duration::from_secs(1)).unwrap().unwrap();
        assert_eq!(later.ended(), 3);
        host_ends(later);
        assert_eq!(begin(dir.path(), Duration::ZERO).unwrap_err().ended, 4);
    }

    #[test]
    fn a_compilation_that_comes_to_its_end_leaves_no_mark() {
        let dir = tempfile::tempdir().unwrap();
        let marks = || fs::read_dir(dir.path()).unwrap().count();
        drop(begin(dir.path(), Duration::ZERO).unwrap());
        assert_eq!(marks(), 0);
        host_ends(begin(dir.path(), Duration::ZERO).unwrap().unwrap());
        // Without a verdict, the count stays.
        drop(begin(dir.path(), Duration::ZERO).unwrap());
        let again = begin(dir.path(), Duration::ZERO).unwrap().unwrap();
        assert_eq!(again.ended(), 1);
        again.settle();
        assert_eq!(marks(), 0);
    }

    #[test]
    fn only_one_of_two_compilations_of_a_file_is_marked() {
        let dir = tempfile::tempdir().unwrap();
        let first = begin(dir.path(), Duration::ZERO).unwrap();
        assert!(begin(dir.path(), Duration::ZERO).unwrap().is_none());
        drop(first);
        assert!(begin(dir.path(), Duration::ZERO).unwrap().is_some());
        assert!(begin(&dir.path().join("missing"), Duration::ZERO).unwrap().is_none());
    }

    #[test]
    fn old_marks_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        host_ends(begin(dir.path(), Duration::ZERO).unwrap().unwrap());
        fs::write(dir.path().join("somebodys.compiling"), "").unwrap();
        let count = || fs::read_dir(dir.path()).unwrap().count();
        sweep(dir.path(), SystemTime::now() + FORGOTTEN / 2).unwrap();
        assert_eq!(count(), 2);
        sweep(dir.path(), SystemTime::now() + FORGOTTEN * 2).unwrap();
        assert_eq!(count(), 1);
    }
}
