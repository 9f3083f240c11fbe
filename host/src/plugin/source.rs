//! Watches a directory of plugins.
//!
//! `<name>.wasm` is a plugin, and `<name>.yaml` beside it holds the administrator's settings. Other files are ignored.
//! A [`Source`] looks at the directory when the system reports a change and has been quiet for a moment. It also looks
//! every two seconds, because network volumes report nothing and a watch can be lost. Changes are found by content, so
//! a file may be written in place, renamed over, or replaced by the symbolic links of a ConfigMap volume.
//!
//! ```text
//! events ─► quiet for 50 ms ─┐
//!                            ├─► look: names, stamps, contents ─► Found │ Removed │ Looked
//! every 2 s ─────────────────┘
//! ```
//!
//! # Guarantees
//! - The last [`Change`] of a name shows what the directory holds, at most two seconds after it was written.
//! - A file that is missing for a moment, as while it is replaced by hand, is not reported as removed. Nor is
//!   `<name>.yaml`.
//! - A directory that is missing or cannot be read removes nothing, and is reported. Most often a volume is away.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, timeout, timeout_at},
};
use tracing::warn;

use super::{
    change::Change,
    look::{Directory, Folder},
};
use crate::name::PluginName;

/// Time between looks when no event comes.
const POLL: Duration = Duration::from_secs(2);

/// Time without an event after which a file counts as written. Programs write a file within milliseconds.
const QUIET: Duration = Duration::from_millis(50);

/// Time after which the directory is looked at though events go on.
const RESTLESS: Duration = Duration::from_millis(500);

/// Watches one directory for plugins.
#[derive(Debug)]
pub struct Source {
    directory: PathBuf,
    poll: Duration,
    without: BTreeSet<PluginName>,
}

impl Source {
    /// Creates a source for `directory`, which need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), poll: POLL, without: BTreeSet::new() }
    }

    /// Sets the time between looks when no event comes.
    #[must_use]
    pub fn poll_every(self, poll: Duration) -> Self {
        Self { poll, ..self }
    }

    /// Reports no plugins of these names.
    #[must_use]
    pub fn without(self, names: impl IntoIterator<Item = PluginName>) -> Self {
        Self { without: names.into_iter().collect(), ..self }
    }

    /// Reports changes until the receiver is dropped.
    ///
    /// # Cancellation
    /// Dropping the future ends the watch.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with time.
    pub async fn run(self, changes: mpsc::Sender<Change>) {
        let mut directory = Directory::new(self.directory.clone());
        let mut watch = Watch::new(self.directory);
        loop {
            // The watch comes first, so that a change during the look is reported after it.
            watch.renew();
            let look = tokio::task::spawn_blocking(move || {
                let found = directory.look(std::time::Instant::now());
                (directory, found)
            });
            // Fails only when the runtime shuts down.
            let Ok((looked, found)) = look.await else { return };
            directory = looked;
            let reported = found.changes.into_iter().filter(|change| match change {
                Change::Found(found) => !self.without.contains(&found.name),
                Change::Removed(name) => !self.without.contains(name),
                Change::Looked(_) => true,
            });
            for change in reported {
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

/// The system's events of a directory.
struct Watch {
    path: PathBuf,
    events: Arc<Notify>,
    watched: Option<(Folder, RecommendedWatcher)>,
    /// The last error that was logged, so that it is logged once.
    logged: Option<String>,
}

impl Watch {
    fn new(path: PathBuf) -> Self {
        Self { path, events: Arc::default(), watched: None, logged: None }
    }

    /// Watches the directory that the path leads to now, if that is a new one.
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
                self.logged = None;
            }
            Err(error) => {
                let error = error.to_string();
                if self.logged.as_ref() != Some(&error) {
                    warn!(directory = %self.path.display(), error, "cannot watch the plugins' directory: looking at it every {POLL:?}");
                    self.logged = Some(error);
                }
            }
        }
    }

    /// Waits for an event and the quiet after it, or until `next`.
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
        // The host's own reads are events too. An error is a reason to look.
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
