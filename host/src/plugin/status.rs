//! The status of every plugin, for people, probes and metrics.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::{grant::ActAs, manifest::Policy};

use super::change::Problem;
use crate::{name::PluginName, wasm::Digest, writer::Identities};

/// Plugins that are gone and still shown.
const GONE: usize = 16;

/// The state of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Its file exists.
    Found,
    /// Its code is read from the cache, or the file is compiled, or waits to be.
    Compiling,
    /// The file is valid WebAssembly.
    Compiled,
    /// It fits the contract.
    Linked,
    /// Its `describe` returned a manifest.
    Described,
    /// Its grants suffice. It waits until it can take over.
    Verified,
    /// It serves, and no newer file is being brought up.
    Active,
    /// The administrator disabled it.
    Disabled,
    /// No file of it works, and no older revision serves.
    Failed,
    /// It ends when its calls in flight have.
    Draining,
    /// Its file was removed, and nothing serves.
    Gone,
}

impl State {
    /// All states.
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

/// A step from a file to a revision that serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Reading `<name>.yaml`.
    Settings,
    /// Compiling the file.
    Compile,
    /// Linking it against the contract.
    Link,
    /// Calling its `describe`.
    Describe,
    /// Comparing its needs with its grants.
    Verify,
    /// Making it serve.
    Activate,
}

impl Stage {
    /// All stages.
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

    /// What a revision failed to do, for people.
    pub fn act(self) -> &'static str {
        match self {
            Self::Settings => "use its settings",
            other => other.as_str(),
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
    /// What is wrong, and what to do. May have several lines.
    pub message: String,
    /// The plugin's frames when its `describe` failed, innermost first. Empty if it was not called.
    pub backtrace: Vec<String>,
    /// The digest of the plugin's file.
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
    /// When it began to serve, with these settings.
    pub since: Timestamp,
    /// The instance policy of its manifest.
    pub instances: Policy,
}

/// The status of one plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The plugin.
    pub plugin: PluginName,
    /// The state of its newest file.
    pub state: State,
    /// The revision that serves. It may be older than the newest file.
    pub serving: Option<Serving>,
    /// The service account as which the requests of the revision that serves are sent. `None`: the host's own.
    pub act_as: Option<ActAs>,
    /// The digest of the newest file.
    pub found: Option<Digest>,
    /// The latest failure since its newest file or settings last worked.
    pub last_failure: Option<Failure>,
    /// Permissions that it asks for and does not get, and what it may have left behind under another name.
    pub warnings: Vec<String>,
}

impl Status {
    pub(super) fn new(plugin: PluginName) -> Self {
        Self {
            plugin,
            state: State::Found,
            serving: None,
            act_as: None,
            found: None,
            last_failure: None,
            warnings: Vec::new(),
        }
    }

    /// `true` if its newest file serves, or nothing is meant to serve.
    pub fn is_ready(&self) -> bool {
        self.last_failure.is_none()
            && matches!(self.state, State::Active | State::Disabled | State::Draining | State::Gone)
    }
}

/// The statuses of all plugins at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// `true` once every plugin of the first look at the directory serves or has failed.
    pub settled: bool,
    /// Plugins of the first look that neither serve nor have failed. `None` before that look.
    pub unsettled: Option<Vec<PluginName>>,
    /// By name. Of those that are gone, the latest 16.
    pub plugins: Vec<Status>,
    /// Files that cannot be used, and the directory if it cannot be read.
    pub problems: Vec<Problem>,
}

/// Observes plugins, for metrics. Called in the plugin's task, so it must not block.
pub trait Observer: Send + Sync + 'static {
    /// A plugin's status changed.
    fn changed(&self, status: &Status) {
        let _ = status;
    }

    /// A file failed at `stage`, in one word: [`LoadError::kind`](crate::wasm::LoadError::kind) or
    /// [`DescribeError::kind`](crate::wasm::DescribeError::kind), `decode` or `identity` for settings, `grants`,
    /// `cluster`.
    fn failed(&self, plugin: &PluginName, stage: Stage, kind: &'static str) {
        let _ = (plugin, stage, kind);
    }

    /// A revision serves, `took` after its file was seen.
    fn activated(&self, plugin: &PluginName, took: Duration) {
        let _ = (plugin, took);
    }
}

/// Ignores everything.
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
    /// Plugins of the first look that neither serve nor have failed.
    unsettled: Vec<PluginName>,
    plugins: BTreeMap<PluginName, Status>,
    gone: VecDeque<PluginName>,
    problems: Vec<Problem>,
}

impl Statuses {
    pub(super) fn new(identities: Identities) -> Self {
        Self { board: Arc::default(), identities }
    }

    /// Returns all statuses as they are now.
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

    /// Returns the status of one plugin.
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

    /// Records that the plugin's task panicked.
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
            // A state that lasts settles the plugin. Waiting for informers or the API server does not.
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
