//! One task for each plugin, and what they share.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinError, JoinSet},
    time::MissedTickBehavior,
};
use tracing::{Instrument as _, error, info_span, warn};

use super::{
    candidate::Activate,
    source::{Change, Problem},
    status::{Observer, State, Statuses},
    task::{Task, Wish},
};
use crate::{guests::Guests, name::PluginName, wasm::Engine, writer::Identities};

/// A plugin that is not called for this long, or up to twice as long, has no code in memory.
const IDLE: Duration = Duration::from_secs(60);

/// How often is looked for instances that were kept and are idle: they end after a minute, or up to this much later.
const LOOK: Duration = Duration::from_secs(10);

/// Who says what a plugin may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The administrator, in `<name>.yaml`; without it nothing is granted.
    #[default]
    Granted,
    /// The plugin: all that it asks for is granted. `<name>.yaml` may give config and limits. For development.
    Dev,
}

/// Brings plugins up as their files come, change and go.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use pilothouse::plugin::{Activate, Lifecycle, Mode, Source};
/// # use pilothouse::wasm::Engine;
/// # async fn run(dispatch: Arc<dyn Activate>, guests: pilothouse::guests::Guests) -> Result<(), Box<dyn std::error::Error>> {
/// let lifecycle = Lifecycle::new(Engine::new()?, dispatch, Mode::Granted, guests, Arc::new(()));
/// let statuses = lifecycle.statuses();
/// let (changes, changed) = tokio::sync::mpsc::channel(16);
/// tokio::join!(Source::new("plugins").run(changes), lifecycle.run(changed));
/// # Ok(()) }
/// ```
pub struct Lifecycle {
    shared: Arc<Shared>,
}

/// What the plugins' tasks share.
pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) activate: Arc<dyn Activate>,
    pub(super) mode: Mode,
    /// Where guests run.
    pub(super) guests: Guests,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) statuses: Statuses,
    pub(super) identities: Identities,
}

/// A plugin's task as the lifecycle knows it.
struct Running {
    wish: watch::Sender<Wish>,
    id: Id,
}

impl Lifecycle {
    /// Guests say what they are on the threads `guests`; files are loaded as the engine does it; the rest runs where [`Self::run`]
    /// does.
    pub fn new(
        engine: Engine,
        activate: Arc<dyn Activate>,
        mode: Mode,
        guests: Guests,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let identities = Identities::default();
        let statuses = Statuses::new(identities.clone());
        Self { shared: Arc::new(Shared { engine, activate, mode, guests, observer, statuses, identities }) }
    }

    /// Where to read what became of them.
    pub fn statuses(&self) -> Statuses {
        self.shared.statuses.clone()
    }

    /// Follows the changes until there are no more to come. What serves then goes on serving.
    ///
    /// # Cancellation
    /// Dropping the future ends it in the same way; an activation under way is dropped.
    pub async fn run(self, mut changes: mpsc::Receiver<Change>) {
        let mut tasks: JoinSet<()> = JoinSet::new();
        let mut running: HashMap<PluginName, Running> = HashMap::new();
        let mut said: Vec<Problem> = Vec::new();
        let mut idle = tokio::time::interval(IDLE);
        idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    None => return,
                    Some(Change::Looked(problems)) => {
                        for Problem { path, message } in problems.iter().filter(|problem| !said.contains(problem)) {
                            warn!(path = %path.display(), error = message, "cannot use a file of the plugins' directory");
                        }
                        said.clone_from(&problems);
                        self.shared.statuses.looked(problems);
                        self.shared.identities.complete();
                    }
                    Some(Change::Found(found)) => {
                        self.shared.statuses.found(&found.name);
                        let name = found.name.clone();
                        let wish = Wish::Serve { found, seen: Instant::now() };
                        match running.get(&name) {
                            Some(task) => drop(task.wish.send_replace(wish)),
                            None => self.spawn(name, watch::Sender::new(wish), &mut tasks, &mut running),
                        }
                    }
                    Some(Change::Removed(name)) => match running.get(&name) {
                        Some(task) => drop(task.wish.send_replace(Wish::Gone)),
                        None if self.was_lost(&name) => {
                            self.spawn(name, watch::Sender::new(Wish::Gone), &mut tasks, &mut running);
                        }
                        None => {}
                    },
                },
                _ = idle.tick() => {
                    let engine = self.shared.engine.clone();
                    // Of a thousand plugins it takes a while; nobody waits for it.
                    drop(tokio::task::spawn_blocking(move || engine.unmap_idle()));
                }
                _ = look.tick() => {
                    let engine = self.shared.engine.clone();
                    drop(tokio::task::spawn_blocking(move || engine.drop_idle()));
                }
                Some(ended) = tasks.join_next_with_id() => {
                    let id = match &ended {
                        Ok((id, ())) => *id,
                        Err(error) => error.id(),
                    };
                    let Some(name) = running.iter().find(|(_, task)| task.id == id).map(|(name, _)| name.clone()) else {
                        continue;
                    };
                    let Some(Running { wish, .. }) = running.remove(&name) else { continue };
                    match ended {
                        // It came back while its task was on the way out.
                        Ok(_) if matches!(*wish.borrow(), Wish::Serve { .. }) => {
                            self.spawn(name, wish, &mut tasks, &mut running);
                        }
                        Ok(_) => {}
                        // The next change of its files begins anew; the other plugins are not concerned.
                        Err(failed) => self.report(&name, &failed),
                    }
                }
            }
        }
    }

    fn spawn(
        &self,
        name: PluginName,
        wish: watch::Sender<Wish>,
        tasks: &mut JoinSet<()>,
        running: &mut HashMap<PluginName, Running>,
    ) {
        let task = Task::new(Arc::clone(&self.shared), name.clone(), wish.subscribe(), self.was_lost(&name));
        let span = info_span!("plugin", plugin = %name);
        let id = tasks.spawn(task.run().instrument(span)).id();
        running.insert(name, Running { wish, id });
    }

    /// Whether a plugin without a task had one that did not come to its end: what that had brought up may serve.
    fn was_lost(&self, name: &PluginName) -> bool {
        self.shared.statuses.get(name).is_some_and(|status| status.state != State::Gone)
    }

    fn report(&self, name: &PluginName, failed: &JoinError) {
        error!(plugin = %name, error = %failed, "the plugin's task ended");
        self.shared.statuses.lost(name);
    }
}

impl std::fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lifecycle").field("mode", &self.shared.mode).finish_non_exhaustive()
    }
}
