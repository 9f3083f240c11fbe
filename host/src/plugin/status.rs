//! What is known of every plugin, for people, probes and metrics.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::manifest::Policy;

use super::source::Problem;
use crate::{name::PluginName, wasm::Digest, writer::Identities};

/// How many plugins that are gone are still shown.
const GONE: usize = 16;

/// How far a plugin is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// There is a file.
    Found,
    /// Its code is looked for in the cache, or it is being compiled, or waits for that.
    Compiling,
    /// It is WebAssembly.
    Compiled,
    /// It fits the contract.
    Linked,
    /// It said what it is and needs.
    Described,
    /// It may read what it must; now it waits to take over.
    Verified,
    /// It serves, and no newer file is on its way.
    Active,
    /// The administrator switched it off.
    Disabled,
    /// No file of it worked, and none serves.
    Failed,
    /// Calls in flight are awaited.
    Draining,
    /// Its file is gone, and so is it.
    Gone,
}

impl State {
    /// All there are.
    pub const ALL: [Self; 11] = [
        Self::Found,
        Self::Compiling,
        Self::Compiled,
        Self::Linked,
        Self::Described,
        Self::Verified,
        Self::Active,
        Self::Disabled,
        Self::Failed,
        Self::Draining,
        Self::Gone,
    ];

    /// One lower-case word, for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Compiling => "compiling",
            Self::Compiled => "compiled",
            Self::Linked => "linked",
            Self::Described => "described",
            Self::Verified => "verified",
            Self::Active => "active",
            Self::Disabled => "disabled",
            Self::Failed => "failed",
            Self::Draining => "draining",
            Self::Gone => "gone",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which step failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Reading `<name>.yaml`.
    Settings,
    /// Compiling the file.
    Compile,
    /// Linking it with the contract.
    Link,
    /// Asking it what it is and needs.
    Describe,
    /// Comparing what it must have with what is granted.
    Verify,
    /// Letting it serve.
    Activate,
}

impl Stage {
    /// All there are.
    pub const ALL: [Self; 6] =
        [Self::Settings, Self::Compile, Self::Link, Self::Describe, Self::Verify, Self::Activate];

    /// One lower-case word, for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Compile => "compile",
            Self::Link => "link",
            Self::Describe => "describe",
            Self::Verify => "verify",
            Self::Activate => "activate",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a file does not serve.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Failure {
    /// Which step failed.
    #[serde(serialize_with = "crate::metrics::as_text")]
    pub stage: Stage,
    /// What is wrong and what to do; may have several lines.
    pub message: String,
    /// Where the plugin was when its `describe` came to nothing, innermost first; empty where it was not called.
    pub backtrace: Vec<String>,
    /// Which content of the plugin's file.
    #[serde(serialize_with = "short")]
    pub digest: Digest,
    /// When.
    #[serde(serialize_with = "crate::metrics::as_text")]
    pub at: Timestamp,
}

fn short<S: serde::Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&digest.short())
}

/// The revision that serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Serving {
    /// The digest of its file.
    pub digest: Digest,
    /// The plugin's own version.
    pub version: String,
    /// Since when, with these settings.
    pub since: Timestamp,
    /// What it asks for.
    pub instances: Policy,
}

/// What is known of one plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Which.
    pub plugin: PluginName,
    /// How far its newest file is.
    pub state: State,
    /// What serves, whatever becomes of the newest file.
    pub serving: Option<Serving>,
    /// The newest file.
    pub found: Option<Digest>,
    /// The latest failure since the newest file or settings last worked.
    pub last_failure: Option<Failure>,
    /// What the plugin asks for and does not get, and can do without to begin with.
    pub warnings: Vec<String>,
}

impl Status {
    pub(super) fn new(plugin: PluginName) -> Self {
        Self { plugin, state: State::Found, serving: None, found: None, last_failure: None, warnings: Vec::new() }
    }

    /// Whether nothing is wrong with it: it serves its newest file, or is meant not to.
    pub fn is_ready(&self) -> bool {
        self.last_failure.is_none()
            && matches!(self.state, State::Active | State::Disabled | State::Draining | State::Gone)
    }
}

/// Everything at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Whether the directory was looked at once, and every plugin found then was brought up or failed.
    pub settled: bool,
    /// Found by the first look, and not yet brought up or failed; none before it.
    pub unsettled: Option<Vec<PluginName>>,
    /// By name. Of those that are gone the latest 16.
    pub plugins: Vec<Status>,
    /// Files that are no plugins though they should be; the directory itself, if it cannot be read.
    pub problems: Vec<Problem>,
}

/// Hears of what becomes of plugins; for metrics. Called in the plugin's task: must not block.
pub trait Observer: Send + Sync + 'static {
    /// The status changed.
    fn changed(&self, status: &Status) {
        let _ = status;
    }

    /// A file failed at `stage`, in one word: [`LoadError::kind`](crate::wasm::LoadError::kind) or
    /// [`DescribeError::kind`](crate::wasm::DescribeError::kind), `decode` or `identity` for settings, `grants`, `cluster`.
    fn failed(&self, plugin: &PluginName, stage: Stage, kind: &'static str) {
        let _ = (plugin, stage, kind);
    }

    /// A revision serves, `took` after its file was seen.
    fn activated(&self, plugin: &PluginName, took: Duration) {
        let _ = (plugin, took);
    }
}

/// For whom nobody listens.
impl Observer for () {}

/// The statuses of all plugins. Clones share them.
#[derive(Clone, Default)]
pub struct Statuses {
    board: Arc<Mutex<Board>>,
    identities: Identities,
}

#[derive(Default)]
struct Board {
    looked: bool,
    /// Found by the first look, and not yet brought up or failed.
    unsettled: Vec<PluginName>,
    plugins: BTreeMap<PluginName, Status>,
    gone: VecDeque<PluginName>,
    problems: Vec<Problem>,
}

impl Statuses {
    pub(super) fn new(identities: Identities) -> Self {
        Self { board: Arc::default(), identities }
    }

    /// What is known now.
    pub fn snapshot(&self) -> Snapshot {
        let board = self.board.lock();
        let with_leftovers = |status: &Status| {
            let mut status = status.clone();
            status.warnings.extend(self.identities.leftovers(&status.plugin));
            status
        };
        Snapshot {
            settled: board.looked && board.unsettled.is_empty(),
            unsettled: board.looked.then(|| board.unsettled.clone()),
            plugins: board.plugins.values().map(with_leftovers).collect(),
            problems: board.problems.clone(),
        }
    }

    /// What is known of one plugin.
    pub fn get(&self, plugin: &PluginName) -> Option<Status> {
        self.board.lock().plugins.get(plugin).cloned()
    }

    pub(super) fn found(&self, plugin: &PluginName) {
        let mut board = self.board.lock();
        if !board.looked {
            board.unsettled.push(plugin.clone());
        }
    }

    pub(super) fn looked(&self, problems: Vec<Problem>) {
        let mut board = self.board.lock();
        board.looked = true;
        board.problems = problems;
    }

    /// The plugin's task ended where it should not have.
    pub(super) fn lost(&self, plugin: &PluginName) {
        let mut board = self.board.lock();
        board.unsettled.retain(|unsettled| unsettled != plugin);
        if let Some(status) = board.plugins.get_mut(plugin) {
            status.state = State::Failed;
        }
    }

    pub(super) fn put(&self, status: Status) {
        let mut board = self.board.lock();
        let name = status.plugin.clone();
        board.gone.retain(|gone| *gone != name);
        match status.state {
            State::Found | State::Compiling | State::Compiled | State::Linked | State::Described | State::Verified => {}
            // Waiting for informers or the API server does not settle it; anything that lasts does.
            State::Active | State::Disabled | State::Failed | State::Draining | State::Gone => {
                board.unsettled.retain(|unsettled| *unsettled != name);
            }
        }
        if status.state == State::Gone {
            board.gone.push_back(name.clone());
            if board.gone.len() > GONE
                && let Some(oldest) = board.gone.pop_front()
            {
                board.plugins.remove(&oldest);
            }
        }
        board.plugins.insert(name, status);
    }
}

impl fmt::Debug for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.snapshot(), f)
    }
}
