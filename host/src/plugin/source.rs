//! A directory's plugins, as they come, change and go.
//!
//! `<name>.wasm` is a plugin, `<name>.yaml` beside it the administrator's side of it; everything else is let be. A
//! [`Source`] looks at the directory when the system tells of a change, once it has been quiet for a moment, and every two
//! seconds besides: network volumes tell nothing, and a watch can be lost. Whether something changed is seen by content, so
//! that it does not matter how a file is replaced: written in place, renamed over, or by the symbolic links of a ConfigMap
//! volume.
//!
//! ```text
//! events ─► quiet for 50 ms ─┐
//!                            ├─► look: names, stamps, contents ─► Found │ Removed │ Looked
//! every 2 s ─────────────────┘
//! ```
//!
//! # Guarantees
//! - The last [`Change`] of a name tells what the directory holds, at the latest two seconds after it was written.
//! - A file that is gone for a moment, as while it is replaced by hand, is not reported as removed. That holds for `<name>.yaml` too.
//! - A directory that is missing or cannot be read removes nothing: that is said, and what was found stays. More often than
//!   not it is a volume that is away.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, timeout, timeout_at},
};
use tracing::warn;

use super::look::{Directory, Folder};
use crate::{
    name::PluginName,
    wasm::{Digest, PluginFile},
};

/// How often to look where no event comes.
const POLL: Duration = Duration::from_secs(2);

/// So long without an event means that whoever writes has finished: programs write a file within milliseconds.
const QUIET: Duration = Duration::from_millis(50);

/// And at the latest after this, where events never end.
const RESTLESS: Duration = Duration::from_millis(500);

/// What a look at the directory brought.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A plugin that is new, or whose file or settings changed.
    Found(Arc<Found>),
    /// A plugin's file is gone.
    Removed(PluginName),
    /// A look is over, the first or one with other problems than the one before: all its changes were reported.
    Looked(Vec<Problem>),
}

/// A plugin's two files.
#[derive(PartialEq)]
pub struct Found {
    /// Whose they are.
    pub name: PluginName,
    /// What `<name>.wasm` holds: anything.
    pub wasm: Content,
    /// The digest of that.
    pub digest: Digest,
    /// What `<name>.yaml` holds.
    pub settings: SettingsFile,
}

/// What a file holds, as long as somebody may ask for it: of what is loaded, nobody does.
pub struct Content(Mutex<Option<PluginFile>>);

impl Content {
    /// It; none if it was let go.
    pub fn get(&self) -> Option<PluginFile> {
        self.0.lock().clone()
    }

    /// Nobody will ask for it any more.
    pub fn let_go(&self) {
        self.0.lock().take();
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl From<PluginFile> for Content {
    fn from(file: PluginFile) -> Self {
        Self(Mutex::new(Some(file)))
    }
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Found")
            .field("name", &self.name)
            .field("digest", &self.digest)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// The file with the administrator's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsFile {
    /// There is none.
    Missing,
    /// Its text.
    Text(Arc<str>),
    /// It is there and cannot be read; says why.
    Unreadable(String),
}

/// A file of the directory that is no plugin though it should be, or the directory itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which.
    pub path: PathBuf,
    /// What is wrong, and what to do.
    pub message: String,
}

/// Watches one directory for plugins.
#[derive(Debug)]
pub struct Source {
    directory: PathBuf,
    poll: Duration,
}

impl Source {
    /// Will watch `directory`, which need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), poll: POLL }
    }

    /// Looks this often where no event comes.
    #[must_use]
    pub fn poll_every(self, poll: Duration) -> Self {
        Self { poll, ..self }
    }

    /// Reports changes until nobody receives them.
    ///
    /// # Cancellation
    /// Dropping the future ends the watch.
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    pub async fn run(self, changes: mpsc::Sender<Change>) {
        let mut directory = Directory::new(self.directory.clone());
        let mut watch = Watch::new(self.directory);
        loop {
            // First the watch: what changes during the look is then told after it.
            watch.renew();
            let look = tokio::task::spawn_blocking(move || {
                let found = directory.look(std::time::Instant::now());
                (directory, found)
            });
            // Fails only where the runtime is going.
            let Ok((looked, found)) = look.await else { return };
            directory = looked;
            for change in found.changes {
                if changes.send(change).await.is_err() {
                    return;
                }
            }
            let next = Instant::now() + found.again.map_or(self.poll, |again| again.min(self.poll));
            tokio::select! {
                () = watch.changed_or(next) => {}
                () = changes.closed() => return,
            }
        }
    }
}

/// The system's events of a directory, as long as it is the same directory.
struct Watch {
    path: PathBuf,
    events: Arc<Notify>,
    watched: Option<(Folder, RecommendedWatcher)>,
    /// What was last said of it, so as to say it once.
    complaint: Option<String>,
}

impl Watch {
    fn new(path: PathBuf) -> Self {
        Self { path, events: Arc::default(), watched: None, complaint: None }
    }

    /// Begins to watch the directory that now has this path, if it is another than before.
    fn renew(&mut self) {
        let now = Folder::at(&self.path);
        if self.watched.as_ref().map(|(watched, _)| watched) == now.as_ref() {
            return;
        }
        self.watched = None;
        let Some(folder) = now else { return };
        match watcher(&self.path, Arc::clone(&self.events)) {
            Ok(watcher) => {
                self.watched = Some((folder, watcher));
                self.complaint = None;
            }
            Err(error) => {
                let error = error.to_string();
                if self.complaint.as_ref() != Some(&error) {
                    warn!(directory = %self.path.display(), error, "cannot watch the plugins' directory: looking at it every {POLL:?}");
                    self.complaint = Some(error);
                }
            }
        }
    }

    /// Waits until something changed and it is quiet again, or until `next`.
    async fn changed_or(&self, next: Instant) {
        if timeout_at(next, self.events.notified()).await.is_err() {
            return;
        }
        let latest = Instant::now() + RESTLESS;
        while Instant::now() < latest && timeout(QUIET, self.events.notified()).await.is_ok() {}
    }
}

fn watcher(path: &Path, events: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading is no change; we do so ourselves. An error is a reason to look.
        let read = event.is_ok_and(|event| match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
            EventKind::Access(_) => true,
            _ => false,
        });
        if !read {
            events.notify_one();
        }
    })?;
    watcher.watch(path, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}
