//! The host's informers through all that can go wrong, by a seed: are they right in the end, did they leave the server in peace, and
//! did they hold on to no memory?
//!
//! ```text
//!  writers ──► pilothouse apiserver (a process) ──faults──► 25 informers in 5 hosts (this process)
//!                  │  rules, cuts, compaction, restore            │ stores, what subscribers were told, what was asked
//!                  └──────────────── the truth ──────────────► judge ─► Report
//! ```
//!
//! Faults and changes follow from the seed. What they meet does not: requests come when they come. A run that fails will fail again
//! with the same seed more often than with another, not always.

mod faults;
mod random;
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
    faults::{Act, Episode},
    random::Random,
    server::Server,
    watched::{USER_AGENT, Watched},
};
use crate::wait::within;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Order {
    /// How long things go wrong. Under a minute: only what is recovered from in seconds, in short episodes.
    pub lasts: Duration,
    /// What all is drawn from.
    pub seed: u64,
    /// Changes a second.
    pub rate: u32,
    /// A folder for the server's log.
    pub folder: PathBuf,
}

/// A run is short below this.
const LONG: Duration = Duration::from_secs(60);

/// How long all may take to be right again. The longest waits follow one on another: for an answer that does not come, 65 s; after a
/// 403, 33 s; the longest backoff with its jitter, 60 s; the bookmark that ends a streaming list without an end, 60 s.
const SETTLES: Duration = Duration::from_secs(220);

/// In which requests are counted. After it began to fail, an informer sends in it what three delays leave room for: they double from
/// 0.8 s.
const WINDOW: Duration = Duration::from_secs(5);

/// How often progress is told, and memory looked at.
const TICK: Duration = Duration::from_secs(5);

/// Runs it; `say` gets a line every few seconds. What differs is in the report.
///
/// # Errors
/// It could not be run.
pub async fn run(order: &Order, mut say: impl FnMut(&str)) -> Result<Report> {
    let mut random = Random::new(order.seed);
    let server = Arc::new(Server::start(&order.folder).await?);
    server.fill(&mut random).await?;
    let short = order.lasts < LONG;
    let episodes = faults::schedule(order.lasts, short, &mut random);
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
        writer.await.context("a writer broke down")??;
    }
    run.server.clear().await?;
    say("the faults are over");
    let over = Instant::now();
    let settled = run.settle(true).await;
    run.memory.look(&run.watched, begun.elapsed());
    Ok(report::judge(order, run, settled, over.elapsed()))
}

/// A run under way.
struct Run {
    server: Arc<Server>,
    watched: Vec<Watched>,
    load: Arc<Load>,
    /// What each trouble did.
    struck: BTreeMap<&'static str, Struck>,
    memory: Memory,
    begun: Instant,
}

/// What one kind of trouble did.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Struck {
    /// How often it came.
    pub times: u64,
    /// How often it struck.
    pub hits: u64,
    /// The most requests that one informer sent in any five seconds while it, or what came with it, was there.
    pub densest: u64,
}

/// The writers.
#[derive(Debug, Default)]
struct Load {
    stop: AtomicBool,
    /// Held by a writer that writes; taken by who wants none to.
    pause: tokio::sync::RwLock<()>,
    written: AtomicU64,
    failed: AtomicU64,
}

impl Run {
    /// Starts four writers that make `rate` changes a second together.
    fn write(&self, rate: u32, random: &mut Random) -> Vec<tokio::task::JoinHandle<Result<()>>> {
        const WRITERS: u32 = 4;
        let each = Duration::from_secs(WRITERS.into()) / rate.max(1);
        (0..WRITERS)
            .map(|_| {
                let (server, load, mut random) = (self.server.clone(), self.load.clone(), random.fork());
                tokio::spawn(async move {
                    let mut ticks = tokio::time::interval(each);
                    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                    while !load.stop.load(Ordering::Relaxed) {
                        ticks.tick().await;
                        let _none_pauses = load.pause.read().await;
                        // Faults of connections befall writers too, and two of them meet at one object.
                        let done = server.write(&world::change(&mut random)).await.is_ok();
                        (if done { &load.written } else { &load.failed }).fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect()
    }

    /// Waits until a time of the run, and tells how it goes.
    async fn until(&mut self, time: Duration, say: &mut impl FnMut(&str)) {
        // At least once: a run whose informers take their time to be right is late for every episode.
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

    /// Lets an episode happen, and ends it.
    async fn play(&mut self, number: usize, episode: &Episode) -> Result<()> {
        let mut rules = Vec::new();
        for (name, act) in &episode.acts {
            let struck = self.struck.entry(name).or_default();
            struck.times += 1;
            match act {
                Act::Rules(of, cut) => {
                    for rule in of {
                        rules.push((*name, self.server.add(rule).await?));
                    }
                    if let Some(cut) = cut {
                        self.server.order("faults/cut", cut).await?;
                    }
                }
                Act::Order(path, body) => {
                    self.server.order(path, body).await?;
                    struck.hits += 1;
                }
                Act::Restore => {
                    struck.hits += 1;
                    self.restore(number, episode.lasts).await?;
                }
            }
        }
        tokio::time::sleep((episode.begins + episode.lasts).saturating_sub(self.begun.elapsed())).await;
        let hits: BTreeMap<u64, u64> = self.server.hits().await?.into_iter().collect();
        for (name, rule) in rules {
            self.server.remove(rule).await?;
            self.struck.entry(name).or_default().hits += hits.get(&rule).copied().unwrap_or_default();
        }
        let densest = self.watched.iter().map(|watched| watched.densest(WINDOW)).max().unwrap_or_default();
        for (name, _) in &episode.acts {
            let struck = self.struck.entry(name).or_default();
            struck.densest = struck.densest.max(densest);
        }
        Ok(())
    }

    /// Takes the server back to how it was a while ago, as it is done: nobody is served meanwhile. If the server comes past the version
    /// that it had before, nobody can tell: so nothing is written until all have found out.
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

    /// Returns when every store and every subscriber is right. `skipped`: informers that could not read an object are told to list
    /// anew, because nothing else tells them what it was.
    async fn settle(&self, skipped: bool) -> Result<()> {
        let anew = |watched: &Watched| skipped && watched.skipped() > 0;
        let truth = self.truth().await?;
        let mut cut_at: Option<Instant> = None;
        within(SETTLES, "every informer is right", async || {
            let differing: Vec<usize> = (0..self.watched.len())
                .filter(|index| difference(&self.watched[*index], &truth[*index]).is_some())
                .collect();
            // Time for a list in between.
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

    /// What each informer ought to hold.
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

/// An object of a list as a store has it: with its kind, without managedFields, and without all but metadata where nothing else is
/// watched.
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

/// In what an informer, or what its subscriber was told, is not the truth.
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
