//! Follows the changes of the directory, with one task for each plugin.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinError, JoinSet, spawn_blocking},
    time::{Interval, MissedTickBehavior},
};
use tracing::{Instrument as _, error, info_span, warn};

use super::{
    candidate::Activate,
    change::{Change, Problem},
    mode::Mode,
    shared::Shared,
    status::{Observer, State, Statuses},
    task::{Task, Wish},
};
use crate::{guests::Guests, informer::Informers, name::PluginName, wasm::Engine, writer::Identities};

/// The code of a plugin that is not called for this long, or up to twice as long, is unmapped.
const UNMAP_EVERY: Duration = Duration::from_secs(60);

/// Idle instances are dropped a minute after their last call, or up to this much later.
const DROP_INSTANCES_EVERY: Duration = Duration::from_secs(10);

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
    tasks: JoinSet<()>,
    plugins: HashMap<PluginName, PluginTask>,
    /// Problems of the directory that were logged.
    logged: Vec<Problem>,
}

/// A plugin's task, as the lifecycle sees it.
struct PluginTask {
    wish: watch::Sender<Wish>,
    id: Id,
}

impl Lifecycle {
    /// Creates the lifecycle. `describe` runs on the threads of `guests`, and the rest where [`Self::run`] does.
    pub fn new(
        engine: Engine,
        activate: Arc<dyn Activate>,
        mode: Mode,
        guests: Guests,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let identities = Identities::default();
        let statuses = Statuses::new(identities.clone());
        let shared =
            Arc::new(Shared { engine, activate, mode, guests, observer, statuses, identities, informers: None });
        Self { shared, tasks: JoinSet::new(), plugins: HashMap::new(), logged: Vec::new() }
    }

    /// Lets files refer to Secrets and ConfigMaps. Call it before [`Self::run`].
    #[must_use]
    pub fn with_informers(mut self, informers: Informers) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.informers = Some(informers);
        }
        self
    }

    /// Returns the statuses of all plugins.
    pub fn statuses(&self) -> Statuses {
        self.shared.statuses.clone()
    }

    /// Follows the changes until there are no more. What serves then goes on.
    ///
    /// # Cancellation
    /// Dropping the future ends it in the same way. An activation under way is dropped.
    pub async fn run(mut self, mut changes: mpsc::Receiver<Change>) {
        let (mut unmap, mut drop_instances) = (every(UNMAP_EVERY), every(DROP_INSTANCES_EVERY));
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    Some(change) => self.follow(change),
                    None => return,
                },
                // With a thousand plugins either takes a while.
                _ = unmap.tick() => {
                    let engine = self.shared.engine.clone();
                    drop(spawn_blocking(move || engine.unmap_idle()));
                }
                _ = drop_instances.tick() => {
                    let engine = self.shared.engine.clone();
                    drop(spawn_blocking(move || engine.drop_idle()));
                }
                Some(ended) = self.tasks.join_next_with_id() => self.clean_up(ended),
            }
        }
    }

    fn follow(&mut self, change: Change) {
        match change {
            Change::Found(found) => {
                self.shared.statuses.found(&found.name);
                let name = found.name.clone();
                let wish = Wish::Serve { found, seen: Instant::now() };
                match self.plugins.get(&name) {
                    Some(task) => drop(task.wish.send_replace(wish)),
                    None => self.spawn(name, watch::Sender::new(wish)),
                }
            }
            Change::Removed(name) => match self.plugins.get(&name) {
                Some(task) => drop(task.wish.send_replace(Wish::Gone)),
                None if self.was_lost(&name) => self.spawn(name, watch::Sender::new(Wish::Gone)),
                None => {}
            },
            Change::Looked(problems) => {
                for Problem { path, message } in problems.iter().filter(|problem| !self.logged.contains(problem)) {
                    warn!(path = %path.display(), error = message, "cannot use a file of the plugins' directory");
                }
                self.logged.clone_from(&problems);
                self.shared.statuses.looked(problems);
                self.shared.identities.complete();
            }
        }
    }

    /// Forgets a task that ended, and starts the plugin again if its file came back meanwhile.
    fn clean_up(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let Some(name) = self.plugins.iter().find(|(_, task)| task.id == id).map(|(name, _)| name.clone()) else {
            return;
        };
        let Some(PluginTask { wish, .. }) = self.plugins.remove(&name) else { return };
        match ended {
            Ok(_) if matches!(*wish.borrow(), Wish::Serve { .. }) => self.spawn(name, wish),
            Ok(_) => {}
            // The next change of its files starts a new task. Other plugins are not affected.
            Err(error) => {
                error!(plugin = %name, %error, "the plugin's task ended");
                self.shared.statuses.lost(&name);
            }
        }
    }

    fn spawn(&mut self, name: PluginName, wish: watch::Sender<Wish>) {
        let task = Task::new(Arc::clone(&self.shared), name.clone(), wish.subscribe(), self.was_lost(&name));
        let span = info_span!("plugin", plugin = %name);
        let id = self.tasks.spawn(task.run().instrument(span)).id();
        self.plugins.insert(name, PluginTask { wish, id });
    }

    /// `true` if an earlier task of the plugin panicked. What it had brought up may still serve.
    fn was_lost(&self, name: &PluginName) -> bool {
        self.shared.statuses.get(name).is_some_and(|status| status.state != State::Gone)
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

impl std::fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lifecycle").field("mode", &self.shared.mode).finish_non_exhaustive()
    }
}
