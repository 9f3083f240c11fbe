//! A change of the directory of plugins.

use std::{fmt, path::PathBuf, sync::Arc};

use parking_lot::Mutex;

use crate::{
    name::PluginName,
    wasm::{Digest, PluginFile},
};

/// What a look at the directory found.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A plugin is new, or its file or settings changed.
    Found(Arc<Found>),
    /// A plugin's file is gone.
    Removed(PluginName),
    /// A look is over, and all its changes were reported. Sent for the first look, and when the problems change.
    Looked(Vec<Problem>),
}

/// A plugin's two files.
#[derive(PartialEq)]
pub struct Found {
    /// The plugin.
    pub name: PluginName,
    /// The content of `<name>.wasm`, which may be anything.
    pub wasm: Content,
    /// The digest of that content.
    pub digest: Digest,
    /// The content of `<name>.yaml`.
    pub settings: SettingsFile,
}

/// The content of a plugin's file, until the plugin is loaded.
pub struct Content(Mutex<Option<PluginFile>>);

impl Content {
    /// Returns the content, or `None` once it was dropped.
    pub fn get(&self) -> Option<PluginFile> {
        self.0.lock().clone()
    }

    /// Drops the content.
    pub fn clear(&self) {
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

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found")
            .field("name", &self.name)
            .field("digest", &self.digest)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// The administrator's file of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsFile {
    /// The file does not exist.
    Missing,
    /// The file's text.
    Text(Arc<str>),
    /// The file cannot be read, for this reason.
    Unreadable(String),
}

/// A file of the directory that cannot be used, or the directory itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file or the directory.
    pub path: PathBuf,
    /// What is wrong, and what to do.
    pub message: String,
}
