//! Runs several hosts on a real API server while objects change, and ends, kills, stops or cuts off the one that acts, again and again, as a
//! seed says. The API server's audit log then shows whether two of them worked at one key at a time, and whether one wrote when it might not.
//!
//! ```text
//!  writers ──────────────────────────────────► kube-apiserver ──► audit log ──► history ──► judge ─► Report
//!  host-1 (acts)    ── relay ── its account ──►     │
//!  host-2 (standby) ── relay ── its account ──►     └── specs, children ──► deviations
//! ```
//!
//! [`judge`](mod@judge) is pure, and its own tests show what it finds.

mod history;
pub mod judge;
mod load;
mod replica;
mod report;
pub mod update;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use pilothouse_real::audit;
use tempfile::TempDir;

pub use self::report::{Report, Round};
use self::{
    history::History,
    judge::{At, Name, Timings, judge},
    load::{Load, deviations},
    replica::Replica,
};
use crate::{
    apple::Apple,
    cluster::{Cluster, Kind},
    host::{self, files_in},
    plugin::Plugin,
    random::Random,
    relay::Line,
    scene::Scene,
    wait::{eventually, within},
};

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Order {
    /// How often the acting host is struck.
    pub rounds: usize,
    /// The seed of all draws.
    pub seed: u64,
    /// Number of hosts. `None`: two in the first half of the rounds, and three in the second.
    pub replicas: Option<usize>,
    /// The Lease's duration, its deadline for renewals and the time between two, in seconds. `None`: without leader election. Then there are no
    /// rounds, and the run ends when all hosts have written.
    pub election: Option<[u32; 3]>,
    /// Number of MyApples.
    pub objects: u32,
    /// Changes per second.
    pub rate: u32,
}

/// client-go's timings, and the host's.
pub const DEFAULT: [u32; 3] = [15, 10, 2];

/// What happens to the acting host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Terminate,
    Kill,
    Stop,
    Silence,
    Cut,
}

const FAULTS: [Fault; 5] = [Fault::Terminate, Fault::Kill, Fault::Stop, Fault::Silence, Fault::Cut];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Terminate => "SIGTERM",
            Self::Kill => "SIGKILL",
            Self::Stop => "SIGSTOP",
            Self::Silence => "network silent",
            Self::Cut => "network refuses",
        }
    }
}

/// A host that stops for less than the Lease's duration finds the Lease its own when it goes on.
const SHORT_STOP: &str = "SIGSTOP, short";

/// Time within which another host takes over. The Lease lasts 15 s.
const TAKES_OVER: Duration = Duration::from_secs(90);

/// Number of writes after which a host without leader election has worked at many keys.
const MANY: usize = 200;

/// Number of objects in a report.
const SHOWN: usize = 40;

/// Starts an API server and executes a run on it. `say` gets a line after each round.
///
/// # Errors
/// The run could not be executed. The error has the last lines of the hosts' logs.
pub async fn run_alone(order: &Order, say: impl FnMut(&str)) -> Result<Report> {
    let cluster = Cluster::start(Kind::Real).await?;
    let mut scene = Scene::new(cluster.into()).await?;
    let logs = scene.logs();
    run(&mut scene, order, say).await.with_context(|| logs.last_lines(20))
}

/// Executes a run and reports what went wrong. `say` gets a line after each round.
///
/// # Errors
/// The run could not be executed.
pub async fn run(scene: &mut Scene, order: &Order, mut say: impl FnMut(&str)) -> Result<Report> {
    let mut run = Run::start(scene, order).await?;
    let apples: Vec<Apple> = (0..order.objects).map(|number| run.scene.apple(&format!("apple-{number}"))).collect();
    let load = Load::start(&apples, order.rate, &mut run.random).await?;
    match order.election {
        None => run.all_write().await?,
        Some(_) => {
            let mut faults: Vec<Fault> = Vec::new();
            for number in 0..order.rounds {
                while run.replicas.len() < order.hosts(number) {
                    run.add().await?;
                }
                // Each fault once before any comes again.
                if faults.is_empty() {
                    faults = FAULTS.to_vec();
                    run.random.shuffle(&mut faults);
                }
                let fault = faults.pop().context("a fault is left")?;
                let round = run.round(fault).await.with_context(|| format!("round {number}, {}", fault.name()))?;
                say(&format!("{:3} of {}: {}, {} changes", number + 1, order.rounds, round.line(), load.changes()));
                run.rounds.push(round);
            }
        }
    }
    let (changes, rate) = load.stop().await?;
    run.finish(order, changes, rate).await
}

impl Order {
    fn hosts(&self, round: usize) -> usize {
        self.replicas.unwrap_or(if round < self.rounds / 2 { 2 } else { 3 })
    }

    fn timings(&self) -> Timings {
        let [lease, renew, _] = self.election.unwrap_or(DEFAULT).map(|seconds| Duration::from_secs(seconds.into()));
        Timings { lease, renew, air: lease - renew }
    }
}

/// A run in progress.
struct Run<'a> {
    scene: &'a Scene,
    /// A folder for the hosts' kubeconfigs.
    files: TempDir,
    log: audit::Log,
    history: History,
    replicas: Vec<Replica>,
    /// Number of hosts that were started.
    started: usize,
    rounds: Vec<Round>,
    timings: Timings,
    random: Random,
}

impl<'a> Run<'a> {
    async fn start(scene: &'a mut Scene, order: &Order) -> Result<Self> {
        let log = scene.cluster.audit().context("only a real API server has an audit log")?;
        let namespace = scene.namespace.clone();
        replica::grant(&scene.client(), &namespace).await?;
        if let Some(timings) = order.election {
            scene.elect(&namespace, timings);
        }
        scene.with(&[Plugin::myapple()?])?;
        let mut run = Self {
            scene,
            files: tempfile::tempdir().context("cannot create a folder for kubeconfigs")?,
            log,
            history: History::of(&namespace),
            replicas: Vec::new(),
            started: 0,
            rounds: Vec::new(),
            timings: order.timings(),
            random: Random::new(order.seed),
        };
        for _ in 0..order.hosts(0) {
            run.add().await?;
        }
        Ok(run)
    }

    /// Starts one more host.
    async fn add(&mut self) -> Result<()> {
        self.started += 1;
        let mut replica = Replica::start(self.scene, self.files.path(), self.started).await?;
        replica.is_ready().await?;
        self.replicas.push(replica);
        Ok(())
    }

    /// Reads what was asked of the API server meanwhile.
    fn read(&mut self) -> Result<()> {
        self.history.extend(self.log.more()?)
    }

    /// Waits until all hosts have written much.
    async fn all_write(&mut self) -> Result<()> {
        eventually("all hosts write", async || {
            self.read()?;
            for Replica { name, .. } in &self.replicas {
                let writes = self.history.writes_of(name);
                ensure!(writes >= MANY, "{name} has sent {writes} writes");
            }
            Ok(())
        })
        .await
    }

    /// Returns the number of the host that holds the Lease.
    async fn acting(&mut self) -> Result<usize> {
        eventually("a host acts", async || {
            self.read()?;
            let (holder, _) = self.history.holder().context("nobody holds the Lease")?;
            let is_holder = |replica: &Replica| replica.name == holder;
            self.replicas.iter().position(is_holder).with_context(|| format!("{holder} is gone and holds the Lease"))
        })
        .await
    }

    /// Strikes the acting host, waits until another one writes, and makes good what was done.
    async fn round(&mut self, fault: Fault) -> Result<Round> {
        self.acting().await?;
        self.pause(Duration::from_secs(1), Duration::from_secs(3)).await;
        let struck = self.acting().await?;
        let (name, at) = (self.replicas[struck].name.clone(), now());
        let mut round = Round::new(fault.name(), self.replicas.len(), &name);
        let replica = &mut self.replicas[struck];
        match fault {
            Fault::Terminate => replica.host.terminate().await?,
            Fault::Kill => replica.host.crash(),
            Fault::Stop => {
                replica.host.suspend();
                if self.random.below(4) == 0 {
                    return self.short_stop(struck, round).await;
                }
            }
            Fault::Silence => replica.set(Line::Silent),
            Fault::Cut => replica.set(Line::Closed),
        }
        let (taken, wrote) = self.taken_over(&name, at).await?;
        let since = |from: At, to: At| to.saturating_sub(from).as_secs_f64();
        (round.taken, round.wrote) = (Some(since(at, taken)), Some(since(at, wrote)));
        round.after_release = self.history.release(&name).map(|released| since(released, taken));
        self.pause(Duration::ZERO, self.timings.air).await;
        let replica = &mut self.replicas[struck];
        match fault {
            Fault::Terminate | Fault::Kill => {
                drop(self.replicas.swap_remove(struck));
                self.add().await?;
                return Ok(round);
            }
            Fault::Stop => replica.host.resume(),
            Fault::Silence | Fault::Cut => replica.set(Line::Open),
        }
        replica.is_ready().await?;
        Ok(round)
    }

    /// Lets a stopped host go on after it may not write any more, and before others may.
    async fn short_stop(&mut self, struck: usize, mut round: Round) -> Result<Round> {
        round.fault = SHORT_STOP;
        let Timings { lease, renew, .. } = self.timings;
        self.pause(renew, lease - (lease - renew) / 4).await;
        let at = now();
        self.replicas[struck].host.resume();
        within(TAKES_OVER, "a host writes again", async || {
            self.read()?;
            let (holder, renewed) = self.history.holder().context("nobody holds the Lease")?;
            ensure!(renewed > at, "{holder} has not renewed the Lease");
            self.history.first_write(&holder, renewed).with_context(|| format!("{holder} does not write"))
        })
        .await?;
        self.replicas[struck].is_ready().await?;
        Ok(round)
    }

    /// Waits until another host has taken the Lease of this one, and has written. Returns when the server got both.
    async fn taken_over(&mut self, name: &Name, at: At) -> Result<(At, At)> {
        within(TAKES_OVER, "another host takes over", async || {
            self.read()?;
            let (successor, taken) = self.history.successor(name, at).context("nobody else took the Lease")?;
            let wrote = self.history.first_write(&successor, taken);
            Ok((taken, wrote.with_context(|| format!("{successor} has not written yet"))?))
        })
        .await
    }

    /// Waits for a drawn time.
    async fn pause(&mut self, from: Duration, to: Duration) {
        let span = usize::try_from((to - from).as_millis()).unwrap_or(usize::MAX).max(1);
        let drawn = Duration::from_millis(self.random.below(span) as u64);
        tokio::time::sleep(from + drawn).await;
    }

    /// Waits until nothing differs from the last specs, ends the hosts, and judges all that they have sent.
    async fn finish(mut self, order: &Order, changes: u64, rate: f64) -> Result<Report> {
        let over = now();
        let mut wrong = settled(self.scene).await;
        let settled_after = (now() - over).as_secs_f64();
        for replica in &mut self.replicas {
            replica.host.terminate().await?;
        }
        self.read()?;
        let verdict = judge(self.history.claims, &self.history.writes, self.timings);
        wrong.extend(verdict.faults.iter().take(SHOWN).map(ToString::to_string));
        if !wrong.is_empty() && order.election.is_some() {
            keep(self.scene, &self.log)?;
        }
        Ok(Report {
            seed: order.seed,
            timings: order.election,
            hosts: self.started,
            changes,
            rate,
            judged: verdict.judged,
            terms: verdict.terms.len(),
            latest: verdict.latest.as_secs_f64(),
            settled_after,
            rounds: self.rounds,
            faults: verdict.faults,
            wrong,
        })
    }
}

/// Waits until every object has what it asks for. Returns what differs if that does not come.
async fn settled(scene: &Scene) -> Vec<String> {
    let mut wrong = Vec::new();
    let settled = eventually("every object has what it asks for", async || {
        wrong = deviations(scene).await?;
        ensure!(wrong.is_empty(), "{} deviations", wrong.len());
        Ok(())
    })
    .await;
    wrong.extend(settled.err().map(|error| format!("{error:#}")));
    wrong
}

/// Copies the audit log and the hosts' logs to `target/failover`.
fn keep(scene: &Scene, log: &audit::Log) -> Result<()> {
    let logs = files_in(scene.folder())?.into_iter().filter(|path| path.extension().is_some_and(|of| of == "log"));
    host::keep("failover", logs.chain([log.path().to_owned()]))
}

/// Returns the time of this machine, which is the API server's too.
fn now() -> At {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
