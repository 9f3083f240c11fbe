//! Runs the host's informers through every kind of fault, drawn from a seed. In the end it checks three things: their
//! caches are right, they did not overload the server, and they did not leak memory.
//!
//! ```text
//!  writers ──► pilothouse apiserver (a process) ──faults──► 25 informers in 5 hosts (this process)
//!                  │  rules, cuts, compaction, restore            │ stores, changes sent to subscribers, requests
//!                  └──────────────── the truth ──────────────► judge ─► Report
//! ```
//!
//! Faults and changes follow from the seed. The timing of requests does not. So a failed run fails again with the same
//! seed more often than with another one, but not always.

mod faults;
pub mod plugins;
mod report;
mod server;
mod watched;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use pilothouse_core::key::Key;
use serde_json::{Value, json};

pub use self::report::{Memory, Report};
use self::{
    faults::{Effects, Episode, Own, USER_AGENT},
    server::Server,
    watched::Watched,
};
use crate::{random::Random, wait::within};

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Order {
    /// How long faults happen. Below a minute there are only short episodes of faults that are recovered from in
    /// seconds.
    pub lasts: Duration,
    /// The seed of all draws.
    pub seed: u64,
    /// Changes per second.
    pub rate: u32,
    /// A folder for the server's log.
    pub folder: PathBuf,
}

/// A run is short below this.
const LONG: Duration = Duration::from_secs(60);

/// Time within which all caches must be right again.
///
/// The longest waits may follow one another: 65 s for a missing answer, 33 s after a 403, 60 s for the longest backoff
/// with its jitter. The bookmark that ends a streaming list may take another 60 s.
const SETTLES: Duration = Duration::from_secs(220);

/// The window in which requests are counted. A failing informer has three delays in it, which double from 0.8 s.
const WINDOW: Duration = Duration::from_secs(5);

/// Interval of progress reports and memory samples.
const TICK: Duration = Duration::from_secs(5);

/// Executes a run and reports what went wrong. `say` gets a line of progress every few seconds.
///
/// # Errors
/// The run could not be executed.
pub async fn run(order: &Order, mut say: impl FnMut(&str)) -> Result<Report> {
    let mut random = Random::new(order.seed);
    let server = Arc::new(Server::start(&order.folder).await?);
    server.fill(&mut random).await?;
    let short = order.lasts < LONG;
    let resources = world::KINDS.each_ref().map(|kind| kind.resource);
    let episodes = faults::schedule(&faults::of_informers(), &resources, order.lasts, short, &mut random);
    let begun = Instant::now();
    let mut watched = Vec::new();
    for subjects in world::hosts() {
        watched.extend(watched::start(server.url(), &subjects, begun)?);
    }
    let mut run =
        Run { server, watched, load: Arc::default(), struck: BTreeMap::new(), memory: Memory::default(), begun };
    run.settle(false).await.context("the informers never were right, and nothing had gone wrong yet")?;

    let writers = run.write(order.rate, &mut random);
    for (number, episode) in episodes.iter().enumerate() {
        run.until(episode.begins, &mut say).await;
        run.play(number, episode).await?;
    }
    for writer in writers {
        run.load.stop.store(true, Ordering::Relaxed);
        writer.await.context("a writer broke down")?;
    }
    run.server.clear().await?;
    say("the faults are over");
    let over = Instant::now();
    let settled = run.settle(true).await;
    run.memory.look(&run.watched, begun.elapsed());
    Ok(report::judge(order, run, settled, over.elapsed()))
}

/// A run in progress.
struct Run {
    server: Arc<Server>,
    watched: Vec<Watched>,
    load: Arc<Load>,
    /// The effects of each trouble.
    struck: Effects,
    memory: Memory,
    begun: Instant,
}

/// The effects of one kind of trouble.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Struck {
    /// Number of episodes.
    pub times: u64,
    /// Number of requests, watches or events that it hit.
    pub hits: u64,
    /// Maximum number of requests of one informer in any five seconds of its episodes.
    pub densest: u64,
}

/// The writers.
#[derive(Debug, Default)]
struct Load {
    stop: AtomicBool,
    /// Held shared by each writer while it writes. Held exclusively to stop all writers.
    pause: tokio::sync::RwLock<()>,
    written: AtomicU64,
    failed: AtomicU64,
}

impl Load {
    /// Returns the turns of a writer that makes a change at each interval.
    fn turns(self: &Arc<Self>, every: Duration) -> Turns {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Turns { load: self.clone(), ticks }
    }

    /// Counts a change that succeeded or failed.
    fn count(&self, done: bool) {
        (if done { &self.written } else { &self.failed }).fetch_add(1, Ordering::Relaxed);
    }
}

/// The turns of one writer.
struct Turns {
    load: Arc<Load>,
    ticks: tokio::time::Interval,
}

impl Turns {
    /// Waits for the next turn, which lasts as long as the guard. Returns `None` if the writers have been stopped.
    async fn next(&mut self) -> Option<tokio::sync::RwLockReadGuard<'_, ()>> {
        self.ticks.tick().await;
        let turn = self.load.pause.read().await;
        (!self.load.stop.load(Ordering::Relaxed)).then_some(turn)
    }
}

/// Number of writers.
const WRITERS: u32 = 4;

impl Run {
    /// Starts the writers, which make `rate` changes a second together.
    fn write(&self, rate: u32, random: &mut Random) -> Vec<tokio::task::JoinHandle<()>> {
        let every = Duration::from_secs(WRITERS.into()) / rate.max(1);
        (0..WRITERS)
            .map(|_| {
                let (server, load, mut random) = (self.server.clone(), self.load.clone(), random.fork());
                tokio::spawn(async move {
                    let mut turns = load.turns(every);
                    while let Some(_turn) = turns.next().await {
                        // Connection faults hit writers too, and two writers may change one object at the same time.
                        load.count(server.write(&world::change(&mut random)).await.is_ok());
                    }
                })
            })
            .collect()
    }

    /// Waits until a time of the run, and reports progress.
    async fn until(&mut self, time: Duration, say: &mut impl FnMut(&str)) {
        // At least once: if informers recover slowly, the run is late for every episode.
        loop {
            if self.memory.is_due(self.begun.elapsed(), TICK) {
                self.memory.look(&self.watched, self.begun.elapsed());
                say(&self.told());
            }
            let Some(left) = time.checked_sub(self.begun.elapsed()) else { return };
            tokio::time::sleep(left.min(Duration::from_millis(200))).await;
        }
    }

    fn told(&self) -> String {
        let watching = self.watched.iter().filter(|watched| watched.is_watching()).count();
        let changes: u64 = self.watched.iter().map(Watched::changes).sum();
        let strikes: u64 = self.struck.values().map(|struck| struck.hits).sum();
        format!(
            "{:4} s: {} written, {changes} changes told, {strikes} faults struck, {watching} of {} watching, {}",
            self.begun.elapsed().as_secs(),
            self.load.written.load(Ordering::Relaxed),
            self.watched.len(),
            self.memory.told(),
        )
    }

    /// Starts an episode and ends it.
    async fn play(&mut self, number: usize, episode: &Episode) -> Result<()> {
        let applied = episode.begin(&self.server, &mut self.struck).await?;
        if episode.own() == Some(Own::Restore) {
            self.restore(number, episode.lasts).await?;
        }
        tokio::time::sleep((episode.begins + episode.lasts).saturating_sub(self.begun.elapsed())).await;
        applied.end(&self.server, &mut self.struck).await?;
        let densest = self.watched.iter().map(|watched| watched.densest(WINDOW)).max().unwrap_or_default();
        for (name, _) in &episode.acts {
            let struck = self.struck.entry(name).or_default();
            struck.densest = struck.densest.max(densest);
        }
        Ok(())
    }

    /// Restores the server's data of a while ago. As in real restores, the server is stopped meanwhile. Nothing is
    /// written until all informers have noticed, because they cannot once the server passes its former version.
    async fn restore(&mut self, number: usize, ago: Duration) -> Result<()> {
        let name = format!("episode-{number}");
        self.server.order("snapshots", &json!({ "name": name })).await?;
        tokio::time::sleep(ago).await;
        let load = self.load.clone();
        let _paused = load.pause.write().await;
        let down = self.server.add(&faults::down()).await?;
        self.server.order("faults/cut", &json!({"on": {"userAgent": USER_AGENT}, "by": "reset"})).await?;
        self.server.order(&format!("snapshots/{name}/restore"), &json!({})).await?;
        self.server.forget(&name).await?;
        self.server.remove(down).await?;
        self.settle(true).await.context("after the server's data went back")
    }

    /// Waits until every store and every subscriber is right. With `skipped`, informers that could not read an object
    /// list again, because nothing else shows them that object.
    async fn settle(&self, skipped: bool) -> Result<()> {
        let anew = |watched: &Watched| skipped && watched.skipped() > 0;
        let truth = self.truth().await?;
        let mut cut_at: Option<Instant> = None;
        within(SETTLES, "every informer is right", async || {
            let differing: Vec<usize> = (0..self.watched.len())
                .filter(|index| difference(&self.watched[*index], &truth[*index]).is_some())
                .collect();
            // Leave time for a list.
            let due = cut_at.is_none_or(|at| at.elapsed() > Duration::from_secs(3));
            let watching = differing.iter().map(|index| &self.watched[*index]).filter(|watched| watched.is_watching());
            let resources: BTreeSet<&str> =
                watching.filter(|watched| anew(watched)).map(|watched| watched.subject.kind.resource).collect();
            if due && !resources.is_empty() {
                cut_at = Some(Instant::now());
                for resource in resources {
                    let on = json!({"resource": resource, "userAgent": USER_AGENT});
                    self.server.order("faults/cut", &json!({"on": on, "error": 410})).await?;
                }
            }
            let first = differing.first().and_then(|index| {
                Some(format!(
                    "{}: {}",
                    self.watched[*index].subject,
                    difference(&self.watched[*index], &truth[*index])?
                ))
            });
            ensure!(differing.is_empty(), "{} differ; {}", differing.len(), first.unwrap_or_default());
            Ok(())
        })
        .await
    }

    /// Returns what each informer should hold.
    async fn truth(&self) -> Result<Vec<Truth>> {
        let mut all = Vec::new();
        for watched in &self.watched {
            let subject = &watched.subject;
            let path = subject.kind.path(subject.namespace);
            let items = self.server.list(&path, subject.labels, subject.fields).await?;
            all.push(items.into_iter().map(|item| true_object(subject, item)).collect::<Result<_>>()?);
        }
        Ok(all)
    }
}

/// Objects by key: version, and the whole object.
type Truth = BTreeMap<Key, (u64, Value)>;

/// Turns an object of a list into what a store keeps: with its kind, without managedFields, and metadata only for a
/// metadata watch.
fn true_object(subject: &world::Subject, mut item: Value) -> Result<(Key, (u64, Value))> {
    item["apiVersion"] = subject.kind.api_version.into();
    item["kind"] = subject.kind.kind.into();
    let metadata = item["metadata"].as_object_mut().context("an object without metadata")?;
    metadata.remove("managedFields");
    let text = |member: &str| metadata.get(member).and_then(Value::as_str);
    let version = text("resourceVersion").and_then(|version| version.parse().ok()).context("no resourceVersion")?;
    let key = Key::new(text("namespace"), text("name").context("an object without a name")?);
    if subject.metadata_only
        && let Some(members) = item.as_object_mut()
    {
        members.retain(|name, _| matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
    }
    Ok((key, (version, item)))
}

/// Compares an informer and its subscriber with the truth, and describes the differences.
fn difference(watched: &Watched, truth: &Truth) -> Option<String> {
    let store = watched.store();
    let kept = |key: &Key| store.get(key).map(|(version, _)| *version);
    for key in truth.keys().chain(store.keys()).collect::<BTreeSet<_>>() {
        let wanted = truth.get(key).map(|(version, _)| *version);
        if kept(key) != wanted {
            return Some(format!("{key} is at {wanted:?}, and the store has {:?} ({})", kept(key), watched.told()));
        }
    }
    for (key, (_, text)) in &store {
        let held: Value = serde_json::from_str(text).unwrap_or_default();
        if truth.get(key).is_some_and(|(_, wanted)| held != *wanted) {
            return Some(format!("{key} has the right version and another text: {text}"));
        }
    }
    let replayed = watched.replayed();
    let wanted: BTreeMap<Key, watched::Seen> =
        store.iter().map(|(key, (version, text))| (key.clone(), watched::seen(*version, text))).collect();
    let told = replayed.keys().chain(wanted.keys()).find(|key| replayed.get(key) != wanted.get(key));
    told.map(|key| format!("the subscriber was not told the truth of {key}"))
}
