//! Watches the sources of a project.
//!
//! ```text
//! events ─► quiet for 50 ms ─┐
//!                            ├─► look: folders to watch, contents ─► the file that changed
//! every 2 s ─────────────────┘
//! ```
//!
//! Changes are found by content: a tool that writes the same source again causes no build. What tools make, and what editors write beside a file,
//! is not a source.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher, event::AccessKind};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

/// Time between looks when no event comes.
const POLL: Duration = Duration::from_secs(2);

/// Time without an event after which files count as written.
const QUIET: Duration = Duration::from_millis(50);

/// Time after which the folders are looked at though events go on.
const RESTLESS: Duration = Duration::from_millis(500);

/// Upper bound for files that are watched. A project has some hundreds.
const MAX_FILES: usize = 10_000;

/// Upper bound for bytes of a file that are compared. Larger files are compared by size and time.
const MAX_COMPARED: u64 = 1 << 20;

/// Folders that tools make.
const MADE: [&str; 5] = ["target", "build", "node_modules", "__pycache__", "venv"];

/// Files that package managers write during a build.
const LOCKS: [&str; 3] = ["Cargo.lock", "package-lock.json", "go.sum"];

/// The sources below some files and folders.
pub(super) struct Sources {
    roots: Vec<PathBuf>,
    files: BTreeMap<PathBuf, Seen>,
    events: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    /// `true` once it was said that there are too many files.
    said: bool,
}

/// A file as the last look found it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    modified: Option<SystemTime>,
    content: Option<[u8; 32]>,
}

impl Sources {
    /// Looks at the sources for the first time.
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        let events = Arc::new(Notify::new());
        let notified = Arc::clone(&events);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // The own reads are events too. An error is a reason to look.
            let is_read = event.is_ok_and(
                |event| matches!(event.kind, EventKind::Access(kind) if !matches!(kind, AccessKind::Close(_))),
            );
            if !is_read {
                notified.notify_one();
            }
        });
        // Without events, it looks every two seconds.
        let watcher = watcher.ok();
        let (files, watched) = (BTreeMap::new(), BTreeSet::new());
        let mut sources = Self { roots, files, events, watcher, watched, said: false };
        sources.look();
        sources
    }

    /// Waits for a change, and returns a file that changed, was added or removed.
    ///
    /// # Cancellation
    /// Dropping the future loses no change.
    pub(super) async fn changed(&mut self) -> PathBuf {
        loop {
            if let Some(changed) = self.look() {
                return changed;
            }
            if timeout(POLL, self.events.notified()).await.is_ok() {
                let latest = Instant::now() + RESTLESS;
                while Instant::now() < latest && timeout(QUIET, self.events.notified()).await.is_ok() {}
            }
        }
    }

    /// Compares the sources with those of the look before, and returns the first file that differs.
    pub(super) fn look(&mut self) -> Option<PathBuf> {
        let (mut files, mut folders) = (BTreeMap::new(), BTreeSet::new());
        let mut left = self.roots.clone();
        while let Some(path) = left.pop() {
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if !metadata.is_dir() {
                if files.len() < MAX_FILES {
                    let seen = self.see(&path, &metadata);
                    files.insert(path, seen);
                } else if !std::mem::replace(&mut self.said, true) {
                    eprintln!("There are more than {MAX_FILES} sources. Changes of the rest are not noticed.");
                }
                continue;
            }
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            // A symbolic link to a folder may lead in a circle.
            let entries = entries.filter(|entry| {
                let is_link = entry.file_type().is_ok_and(|of| of.is_symlink());
                is_source(&entry.file_name().to_string_lossy()) && !(is_link && entry.path().is_dir())
            });
            left.extend(entries.map(|entry| entry.path()));
            folders.insert(path);
        }
        self.watch(folders);
        let changed = files.iter().find(|(path, seen)| self.files.get(*path).map(Seen::key) != Some(seen.key()));
        let gone = || self.files.keys().find(|path| !files.contains_key(*path));
        let changed = changed.map(|(path, _)| path).or_else(gone).cloned();
        self.files = files;
        changed
    }

    /// Reads a file, unless it surely is as it was.
    fn see(&self, path: &Path, metadata: &fs::Metadata) -> Seen {
        let (bytes, modified) = (metadata.len(), metadata.modified().ok());
        // Two changes may have the same time, if that is recent.
        let is_recent =
            modified.and_then(|at| SystemTime::now().duration_since(at).ok()).is_none_or(|age| age < POLL * 2);
        match self.files.get(path) {
            Some(seen) if !is_recent && seen.bytes == bytes && seen.modified == modified => seen.clone(),
            _ => {
                let content = (bytes <= MAX_COMPARED).then(|| fs::read(path).ok()).flatten();
                Seen { bytes, modified, content: content.map(|content| Sha256::digest(content).into()) }
            }
        }
    }

    /// Watches these folders, and no others.
    fn watch(&mut self, folders: BTreeSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        for gone in self.watched.difference(&folders) {
            // The system has dropped the watch of a folder that is gone.
            let _ = watcher.unwatch(gone);
        }
        for new in folders.difference(&self.watched) {
            // A folder that cannot be watched is looked at every two seconds.
            let _ = watcher.watch(new, RecursiveMode::NonRecursive);
        }
        self.watched = folders;
    }
}

impl Seen {
    /// Returns what a change is noticed by.
    fn key(&self) -> (u64, Option<[u8; 32]>, Option<SystemTime>) {
        (self.bytes, self.content, if self.content.is_some() { None } else { self.modified })
    }
}

/// Returns `true` unless tools or editors make a file or folder of this name.
fn is_source(name: &str) -> bool {
    !name.starts_with('.')
        && !name.ends_with('~')
        && !name.ends_with(".wasm")
        && !name.ends_with(".kubeconfig")
        && !name.ends_with(".egg-info")
        && !MADE.contains(&name)
        && !LOCKS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("it has a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn only_new_content_of_sources_is_a_change() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |path: &str| dir.path().join(path);
        write(&at("src/lib.rs"), "one");
        let mut sources = Sources::new(vec![dir.path().to_owned()]);
        assert_eq!(sources.look(), None);
        for made in [
            "target/x.rs",
            "build/a.wasm",
            ".git/index",
            "Cargo.lock",
            "dev.kubeconfig",
            "src/lib.rs~",
            "src/.lib.rs.swp",
        ] {
            write(&at(made), "made");
        }
        write(&at("src/lib.rs"), "one");
        assert_eq!(sources.look(), None);
        write(&at("src/lib.rs"), "two");
        assert_eq!(sources.look(), Some(at("src/lib.rs")));
        write(&at("src/deep/new.rs"), "");
        assert_eq!(sources.look(), Some(at("src/deep/new.rs")));
        fs::remove_file(at("src/lib.rs")).expect("it is removed");
        assert_eq!(sources.look(), Some(at("src/lib.rs")));
        assert_eq!(sources.look(), None);
    }

    #[tokio::test]
    async fn a_change_in_a_new_folder_is_noticed() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("new/lib.rs");
        let mut sources = Sources::new(vec![dir.path().to_owned()]);
        let (changed, ()) = tokio::join!(sources.changed(), async { write(&file, "one") });
        assert_eq!(changed, file);
        let (changed, ()) = tokio::join!(sources.changed(), async { write(&file, "two") });
        assert_eq!(changed, file);
    }
}
