//! Puts the host together: which tasks run, what they share, and how they end.
//!
//! ```text
//! files ─► Source ─► Lifecycle ─► Dispatch ─► cluster
//!                        └───────────┴──► admin: /metrics /debug, and /healthz /readyz
//! ```
//!
//! The tasks that load plugins and serve health are started and joined here. If one of them ends by itself, the process
//! ends and names it. Tasks of informers and controllers belong to their registry and to dispatch, and end with them.

mod figures;

use std::{
    convert::Infallible,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use pilothouse_core::key::TypeMeta;
use tokio::{
    runtime::{Handle, Runtime},
    sync::mpsc,
    task::JoinHandle,
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::figures::Counters;
pub use crate::admin::{Certificates, Endpoints, Metrics};
use crate::{
    acting::{Acting, Switches},
    admin::{self, View},
    allocator::{self, Freed},
    causes::with_causes,
    clock::Clock,
    cluster::Cluster,
    dispatch::{Controller, Dispatch, Parts},
    election::{self, Candidate},
    guests::Guests,
    informer::{Informers, Intake},
    metrics::Registry,
    name::PluginName,
    outbound::Outbound,
    plugin::{Change, Found, Lifecycle, Mode, Source},
    prompt,
    spread::{Participant, Sharing},
    wasm::{CACHE_BYTES, Cache, Compiler, Engine, Optimizing},
    webhook::{self, Webhooks},
    writer::{Endpoint, Events},
};

/// Changes of plugins' files that may wait for the lifecycle. It is quick, and the source waits beyond them.
const CHANGES: usize = 16;

/// Interval at which the host forgets what it no longer needs. A burst leaves little.
const TIDY: Duration = Duration::from_secs(60);

/// The settings of a host.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of plugins.
    pub plugins: PathBuf,
    /// Plugins that serve beside those of the directory, and in place of those of the same names.
    pub stand_ins: Vec<Arc<Found>>,
    /// The directory of the code cache. Without it, files are compiled at every start.
    pub cache: Option<PathBuf>,
    /// Whether plugins need grants.
    pub mode: Mode,
    /// Time that calls in flight have to finish at the end.
    pub grace_period: Duration,
    /// How webhooks are served. `None` serves none.
    pub webhooks: Option<Arc<webhook::Options>>,
    /// The Lease that says who acts. With `None` this host acts, even if others do.
    pub election: Option<election::Options>,
    /// How often the service accounts of plugins are checked.
    pub check_accounts_every: Duration,
}

/// Creates the runtime for everything but guests and the intake of informers.
///
/// It has a thread for every two cores. One thread encrypts thousands of requests in a second, and idle threads cost
/// wake-ups.
///
/// # Errors
/// If threads cannot be started.
pub fn io_runtime() -> anyhow::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(2))
        .enable_all()
        .thread_name("io")
        .on_thread_start(prompt::be_prompt)
        .build()
        .context("cannot start the threads for input and output")
}

/// Starts the threads for guests of `engine`, one for each core. They serve no requests.
fn guests(engine: Engine) -> anyhow::Result<Guests> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Guests::start(threads, &Handle::current(), move || engine.give_way())
        .context("cannot start the threads for plugins")
}

/// Creates the sandbox. Files are compiled in processes of their own. The code cache keeps optimized code only.
///
/// # Errors
/// If it cannot be set up on this machine. A cache directory that cannot be used is logged.
pub(crate) fn engine(cache: Option<&Path>, optimizing: Optimizing) -> anyhow::Result<Engine> {
    let cache = cache.and_then(|dir| match Cache::open(dir, CACHE_BYTES) {
        Ok(cache) => {
            info!(directory = %dir.display(), "keeping compiled code");
            Some(cache)
        }
        Err(error) => {
            warn!(
                error = with_causes(&error),
                "cannot use the code cache; plugins will be recompiled at every start (see --cache-dir)"
            );
            None
        }
    });
    let compiler = Compiler::this_program().context("cannot find the program that compiles")?;
    Ok(Engine::with_compiler(compiler, optimizing, cache)?)
}

/// Raises the limit of open files. Each plugin needs one, or two while it is called, and many systems begin with 1,024.
fn allow_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        info!(%error, "cannot raise the limit of open files");
    }
}

/// Returns the hostname, which is the Pod's name in a cluster. It names this process in Events.
pub(crate) fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "pilothouse".to_owned() } else { name.to_owned() }
}

/// A host, ready to run.
pub struct Host {
    view: View,
    lifecycle: Lifecycle,
    options: Options,
    intake: Intake,
    registry: Arc<Registry>,
    webhooks: Option<webhook::Parts>,
    contender: Option<Contender>,
}

/// What makes this host act.
enum Contender {
    Candidate(Box<Candidate>),
    Participant(Box<Participant>),
}

impl Contender {
    fn new(options: election::Options, cluster: &Cluster, switches: &Switches) -> Self {
        let (cluster, machine) = (cluster.clone(), machine());
        match options.revision {
            None => Self::Candidate(Box::new(Candidate::new(options, cluster, switches.host().clone(), &machine))),
            Some(_) => Self::Participant(Box::new(Participant::new(options, cluster, switches.clone(), &machine))),
        }
    }

    fn sharing(&self) -> Sharing {
        match self {
            Self::Candidate(candidate) => Sharing::Leader(candidate.leadership()),
            Self::Participant(participant) => Sharing::Spread(participant.owners()),
        }
    }

    /// Contends until `stop`.
    async fn run(self, view: View, stop: CancellationToken) {
        match self {
            Self::Candidate(candidate) => candidate.run(&*view.dispatch, stop).await,
            Self::Participant(participant) => participant.run(&*view.dispatch, || view.is_warm(), stop).await,
        }
    }
}

impl Host {
    /// Puts the parts together. Nothing runs yet.
    ///
    /// # Errors
    /// If the sandbox or its threads cannot be set up on this machine.
    pub fn new(options: Options, cluster: &Cluster) -> anyhow::Result<Self> {
        let optimizing = match options.mode {
            Mode::Granted => Optimizing::Soon,
            Mode::Dev => Optimizing::Never,
        };
        let engine = engine(options.cache.as_deref(), optimizing)?;
        allow_open_files();
        let guests = guests(engine.clone())?;
        let intake = Intake::start().context("cannot start the threads for informers")?;
        let switches = match &options.election {
            Some(election) if election.revision.is_some() => Switches::each(),
            other => Acting::new(other.is_none()).into(),
        };
        let contender = options.election.clone().map(|election| Contender::new(election, cluster, &switches));
        let cluster = &cluster.clone().fenced(switches.host().clone());
        let informers = Informers::new(cluster.clone(), intake.handle().clone());
        let counters = Counters::default();
        let (counted, io) = (counters.events.clone(), Handle::current());
        let events = Events::start(cluster.clone(), switches.clone(), counted, &machine(), &io);
        let endpoint = options.webhooks.as_ref().map(|webhooks| Endpoint::new(webhooks.address.clone()));
        let dispatch = Arc::new(Dispatch::new(Parts {
            cluster: cluster.clone(),
            informers: informers.clone(),
            guests: guests.clone(),
            observer: counters.calls.clone(),
            writes: counters.writes.clone(),
            outbound: Outbound::new(counters.requests.clone()),
            events: events.clone(),
            acting: switches.clone(),
            webhooks: endpoint.clone(),
            clock: Clock::System,
        }));
        let observer = Arc::new(counters.clone());
        let lifecycle = Lifecycle::new(engine.clone(), dispatch.clone(), options.mode, guests.clone(), observer)
            .with_informers(informers.clone());
        let statuses = lifecycle.statuses();
        let cluster = cluster.clone();
        let sharing = contender.as_ref().map_or(Sharing::Alone, Contender::sharing);
        let webhooks = counters.webhooks.clone();
        let began = Arc::default();
        let view = View { cluster, informers, statuses, dispatch, guests, engine, sharing, webhooks, began };
        let registry = Arc::new(counters.register(&view, &events));
        let webhooks = endpoint.map(|endpoint| webhook::Parts {
            cluster: view.cluster.clone(),
            informers: view.informers.clone(),
            dispatch: view.dispatch.clone(),
            statuses: view.statuses.clone(),
            acting: switches.host().clone(),
            endpoint,
            board: view.webhooks.clone(),
        });
        Ok(Self { view, lifecycle, options, intake, registry, webhooks, contender })
    }

    /// Returns a handle to look at the host while it runs.
    pub fn view(&self) -> HostView {
        HostView(self.view.clone())
    }

    /// Runs until `stop` is ready and everything in flight is finished.
    ///
    /// # Errors
    /// If an endpoint cannot be served, a vital task ends by itself, or calls had to be cut off when the grace period was over.
    pub async fn run(self, endpoints: Endpoints, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let ended = CancellationToken::new();
        let view = Arc::new(self.view.clone());
        let state =
            admin::State { registry: self.registry, readiness: view.clone(), inspect: view.clone(), control: view };
        let reviews = Arc::new(self.view.cluster.clone());
        let mut admin = admin::start(endpoints, &ended, state, reviews).context("cannot serve probes and metrics")?;
        let mut webhooks = match (&self.options.webhooks, self.webhooks) {
            (Some(options), Some(parts)) => Some(Webhooks::start(options, parts).context("cannot serve webhooks")?),
            _ => None,
        };
        let (sender, changes) = mpsc::channel(CHANGES);
        info!(directory = %self.options.plugins.display(), "watching for plugins");
        let (view, mut freed) = (HostView(self.view.clone()), Freed::default());
        let stand_ins = self.options.stand_ins;
        let watched =
            Source::new(self.options.plugins.clone()).without(stand_ins.iter().map(|found| found.name.clone()));
        let mut source = tokio::spawn(async move {
            for found in stand_ins {
                // Fails only when the host ends.
                drop(sender.send(Change::Found(found)).await);
            }
            watched.run(sender).await;
        });
        let mut lifecycle = tokio::spawn(self.lifecycle.run(changes));
        let resigns = CancellationToken::new();
        let mut election =
            self.contender.map(|contender| tokio::spawn(contender.run(self.view.clone(), resigns.clone())));

        let checking = &self.view.dispatch;
        let failed = tokio::select! {
            () = stop => None,
            _ = &mut source => Some("the task that watches plugins' files"),
            _ = &mut lifecycle => Some("the task that loads plugins"),
            () = admin.one_ends() => Some("the thread that serves probes or metrics"),
            ended = webhook::ended(&mut webhooks) => Some(ended),
            () = ended_early(&mut election) => Some("the task that renews the Lease"),
            never = tidy(|| view.tidy(&mut freed)) => match never {},
            never = checking.check_rights(self.options.check_accounts_every) => match never {},
        };
        // No plugin is loaded from here on. Those that serve finish their calls.
        source.abort();
        lifecycle.abort();
        // Reviews in flight are calls in flight. New ones go to another host.
        let reviewed = async {
            if let Some(webhooks) = webhooks {
                webhooks.stopped().await;
            }
        };
        let reviewed = tokio::time::timeout(self.options.grace_period, reviewed);
        let (drained, _late) = tokio::join!(self.view.dispatch.shut_down(self.options.grace_period), reviewed);
        ended.cancel();
        self.view.guests.stop();
        // Nothing acts any more. Another host may.
        resigns.cancel();
        if let Some(election) = election {
            let _ = election.await;
        }
        drop(self.intake);
        if let Some(task) = failed {
            bail!("{task} ended by itself");
        }
        if !drained {
            bail!("calls in flight were cut off after the grace period of {} s", self.options.grace_period.as_secs());
        }
        info!("stopped; every call in flight was finished");
        Ok(())
    }
}

/// Waits for the end of a task, if there is one.
async fn ended_early(task: &mut Option<JoinHandle<()>>) {
    match task {
        Some(task) => drop(task.await),
        None => std::future::pending().await,
    }
}

/// Calls `forget` at once, and then every [`TIDY`].
async fn tidy(mut forget: impl FnMut()) -> Infallible {
    let mut due = tokio::time::interval(TIDY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        forget();
    }
}

/// A running host, to look at.
#[derive(Clone)]
pub struct HostView(View);

impl HostView {
    /// Forgets what the host no longer needs, and returns unused memory to the system.
    fn tidy(&self, freed: &mut Freed) {
        self.0.dispatch.forget_rested();
        let held = self.0.informers.all().iter().map(|informer| informer.size().1).sum::<usize>()
            + self.0.engine.instances().iter().map(|(_, of)| of.memory).sum::<usize>();
        if freed.is_due(self.0.informers.stopped() + self.0.dispatch.ended(), held) {
            // It walks over all free memory, which takes a while.
            drop(tokio::task::spawn_blocking(allocator::give_back_freed));
        }
    }

    /// Unmaps the code of plugins that were not called since the last time. The host does this once a minute.
    pub fn unmap_idle(&self) {
        self.0.engine.unmap_idle();
    }

    /// Returns the number of files whose code is not optimized yet.
    pub fn unoptimized(&self) -> usize {
        self.0.engine.figures().unoptimized
    }

    /// Returns `true` if every plugin that was found is up, and no key is ready or being reconciled.
    pub fn is_idle(&self) -> bool {
        let controllers = self.0.dispatch.controllers();
        self.0.statuses.snapshot().settled
            && controllers.iter().all(|controller| {
                // Not under the queue's lock: a route adds keys under its own lock.
                let synced = controller.waking().waits_for().is_empty() && controller.waking().judging().waiting == 0;
                let queue = controller.ledger().queue().lock();
                synced && queue.is_empty() && queue.processing() == 0
            })
    }
}

/// What one controller works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// The controller's plugin.
    pub plugin: PluginName,
    /// The kind whose keys it reconciles.
    pub reconciles: TypeMeta,
    /// The kinds of its children.
    pub owns: Vec<TypeMeta>,
}

impl HostView {
    /// Returns what the controllers work on, in the order of plugin and controller.
    pub fn kinds(&self) -> Vec<Kinds> {
        let kinds = |controller: &Arc<Controller>| {
            let spec = controller.spec();
            let owns = spec.owns.into_iter().map(|owned| owned.of).collect();
            Kinds { plugin: controller.plugin().clone(), reconciles: spec.for_.of, owns }
        };
        self.0.dispatch.controllers().iter().map(kinds).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_host_forgets_at_once_and_then_once_a_minute() {
        let (began, called) = (tokio::time::Instant::now(), RefCell::new(Vec::new()));
        let tidying = tidy(|| called.borrow_mut().push(began.elapsed().as_secs()));
        assert!(tokio::time::timeout(Duration::from_secs(150), tidying).await.is_err());
        assert_eq!(*called.borrow(), [0, 60, 120]);
    }
}
