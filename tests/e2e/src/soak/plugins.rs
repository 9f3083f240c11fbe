//! Runs `kubediff`, `deployment` and `resource-watch` together on a thousand objects that change at random, with
//! faults, restarts of the host and reloads. In the end it compares the cluster with what a model expects.
//!
//! ```text
//!  writers ──► pilothouse apiserver ──faults──► pilothouse run: kubediff, deployment, resource-watch, kubelet-stand-in
//!     │ histories        │ lists                       │ log
//!     ▼                  ▼                             ▼
//!   lines ◄────────────────────────────────── lines of kubediff          laws: Deployments, ReplicaSets, Pods, ResourceWatches
//! ```

mod changes;
mod laws;
mod lines;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::future::{join, join_all};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, from_value, json};

pub use self::lines::Told;
use self::{
    changes::{COUNTED, DEPLOYMENTS, FIGS, MAPS, PEARS, PLUMS, PODS, SETS, WATCHES, Writer, definition},
    laws::Listed,
    lines::{Histories, IGNORED, Life},
};
use super::{
    LONG, Load, Order, SETTLES, WRITERS,
    faults::{self, Effects, Episode, Own, USER_AGENT},
    report,
    server::{DEFINITIONS, Server},
    world::{Kind, NAMESPACES},
};
use crate::{
    host::{self, Access, Host, LogLine, built, files_in, keep},
    plugin::{Plugin, Plugins},
    random::Random,
    wait::{eventually, within},
};

/// A time since the start of the run.
type At = Duration;

/// Interval of progress reports.
const TICK: Duration = Duration::from_secs(10);

/// Number of revisions of each plugin. Their compiled code is kept for the next run.
const REVISIONS: u8 = 3;

/// Number of problems in a table.
const SHOWN: usize = 40;

/// Counters of the host that are added up over its lives. Those that must stay 0 come first.
const COUNTERS: [&str; 6] = [
    LINES_DROPPED,
    "pilothouse_backlog_dropped_total",
    "pilothouse_plugin_quarantines_total",
    "pilothouse_backlog_merged_total",
    "pilothouse_plugin_reloads_total",
    "pilothouse_writes_total",
];
const ZERO: usize = 3;
/// Counted for `kubediff` only, whose lines are compared.
const LINES_DROPPED: &str = "pilothouse_plugin_log_dropped_total";

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed of all draws.
    pub seed: u64,
    /// How long faults happened, in seconds.
    pub seconds: u64,
    /// Number of objects at the end, by kind.
    pub objects: BTreeMap<&'static str, usize>,
    /// Changes that succeeded, and changes that failed.
    pub written: (u64, u64),
    /// Number of states that `kubediff` had to report: those of the kinds that it observes.
    pub states: usize,
    /// The lines of `kubediff`.
    pub lines: Told,
    /// Number of processes of the host.
    pub lives: usize,
    /// The effects of each trouble.
    pub troubles: Effects,
    /// Counters of the host.
    pub counters: BTreeMap<&'static str, f64>,
    /// Calls of plugins that failed, by plugin, kind and error. A call that waits for a delayed answer reaches its
    /// deadline. Every other kind is a problem.
    pub failed: BTreeMap<String, u64>,
    /// How long it took until all was as expected, in seconds.
    pub settled_after: f64,
    /// Problems found. Empty means success.
    pub wrong: Vec<String>,
}

/// Executes a run and reports what went wrong. `say` gets a line of progress every few seconds.
///
/// # Errors
/// The run could not be executed.
pub async fn run(order: &Order, say: impl FnMut(&str)) -> Result<Report> {
    let report = run_in_folder(order, say).await;
    if !report.as_ref().is_ok_and(|report| report.wrong.is_empty()) {
        let hosts = order.folder.join("hosts");
        keep("soak-plugins", if hosts.exists() { files_in(&hosts)? } else { Vec::new() })?;
    }
    report
}

async fn run_in_folder(order: &Order, mut say: impl FnMut(&str)) -> Result<Report> {
    let mut random = Random::new(order.seed);
    let server = Arc::new(Server::start(&order.folder).await?);
    server.prepare(&NAMESPACES, &[&PEARS, &PLUMS, &FIGS].map(definition)).await?;
    let begun = Instant::now();
    let writer = |number| Writer::new(server.clone(), random.fork(), number, begun);
    let mut writers: Vec<Writer> = (0..usize::try_from(WRITERS)?).map(writer).collect();
    for writer in &mut writers {
        writer.fill(&[&MAPS, &DEPLOYMENTS, &PEARS, &PLUMS, &FIGS]).await?;
    }
    let mut run = Run::start(order, server, begun).await?;
    for writer in &mut writers {
        writer.fill(&[&WATCHES]).await?;
    }
    say(&format!("{:4} s: all objects are there", begun.elapsed().as_secs()));

    let load = Arc::new(Load::default());
    let every = Duration::from_secs(WRITERS.into()) / order.rate.max(1);
    let write = async |writer: &mut Writer| {
        let mut turns = load.turns(every);
        while let Some(_turn) = turns.next().await {
            load.count(writer.change().await);
        }
    };
    let play = async {
        let played = run.play_all(order, &mut random, &load, &mut say).await;
        load.stop.store(true, Ordering::Relaxed);
        played
    };
    let (played, _ended) = join(play, join_all(writers.iter_mut().map(write))).await;
    played?;

    let mut histories = Histories::new();
    for mut writer in writers {
        writer.finish().await?;
        histories.extend(writer.histories());
    }
    run.server.clear().await?;
    say("the faults are over");
    let written = (load.written.load(Ordering::Relaxed), load.failed.load(Ordering::Relaxed));
    run.judge(order, &histories, written).await
}

/// A run in progress.
struct Run {
    server: Arc<Server>,
    host: Host,
    plugins: Plugins,
    files: Vec<Plugin>,
    revision: u8,
    lives: Vec<Life>,
    /// When the present life began, and when it was settled.
    life: (At, At),
    struck: Effects,
    counters: BTreeMap<&'static str, f64>,
    failed: BTreeMap<String, u64>,
    wrong: Vec<String>,
    begun: Instant,
}

impl Run {
    /// Starts the host with the plugins.
    async fn start(order: &Order, server: Arc<Server>, begun: Instant) -> Result<Self> {
        let files = plugins()?;
        let plugins = Plugins::empty()?;
        files.iter().try_for_each(|plugin| plugins.put(plugin))?;
        let logs = order.folder.join("hosts");
        fs::create_dir(&logs).context("cannot create a folder for logs")?;
        let began = begun.elapsed();
        let host = Host::start(host::Order {
            plugins: plugins.path().to_owned(),
            cache: built("e2e-cache"),
            is_full: false,
            access: Access::Kubeconfig(server.kubeconfig().to_owned()),
            image: None,
            logs,
            arguments: Vec::new(),
        })?;
        let (struck, counters) = (Effects::new(), COUNTERS.map(|name| (name, 0.0)).into());
        let (lives, life) = (Vec::new(), (began, began));
        let (failed, wrong) = (BTreeMap::new(), Vec::new());
        let mut run =
            Self { server, host, plugins, files, revision: 0, lives, life, struck, counters, failed, wrong, begun };
        run.settled().await?;
        Ok(run)
    }

    /// Plays all episodes.
    async fn play_all(
        &mut self,
        order: &Order,
        random: &mut Random,
        load: &Load,
        say: &mut impl FnMut(&str),
    ) -> Result<()> {
        let short = order.lasts < LONG;
        let resources = [&MAPS, &DEPLOYMENTS, &SETS, &PODS, &PEARS, &WATCHES].map(|kind| kind.resource);
        let started = self.begun.elapsed();
        let (mut spoken, mut named) = (started, Vec::new());
        for episode in faults::schedule(&faults::of_plugins(), &resources, order.lasts, short, random) {
            let begins = started + episode.begins;
            tokio::time::sleep(begins.saturating_sub(self.begun.elapsed())).await;
            if self.begun.elapsed() >= spoken + TICK {
                spoken = self.begun.elapsed();
                let written = load.written.load(Ordering::Relaxed);
                let strikes: u64 = self.struck.values().map(|struck| struck.hits).sum();
                let names = named.join(", ");
                say(&format!("{:4} s: {written} written, {strikes} faults struck: {names}", spoken.as_secs()));
                named.clear();
            }
            named.extend(episode.names());
            self.play(&episode, begins + episode.lasts).await?;
        }
        Ok(())
    }

    /// Waits until the host is ready, and `kubediff` has the objects of the first lists.
    async fn settled(&mut self) -> Result<()> {
        self.host.ready().await?;
        self.is_told().await?;
        self.life.1 = self.begun.elapsed();
        Ok(())
    }

    async fn is_told(&mut self) -> Result<()> {
        eventually("kubediff is told of all changes", async || {
            let waiting = self.host.metrics().await?.sum("pilothouse_backlog_objects", &[("plugin", "kubediff")]);
            ensure!(waiting == 0.0, "{waiting} objects wait");
            Ok(())
        })
        .await
    }

    /// Plays an episode, which lasts until `ends`.
    async fn play(&mut self, episode: &Episode, ends: At) -> Result<()> {
        let server = self.server.clone();
        let applied = episode.begin(&server, &mut self.struck).await?;
        match episode.own() {
            Some(Own::Crash) => {
                self.count().await?;
                self.host.crash();
                self.live_again().await?;
            }
            Some(Own::Terminate) => {
                self.count().await?;
                let ended = self.host.terminate().await;
                // A request on a connection that hangs outlasts the grace period.
                if !self.host.text()?.contains("calls in flight were cut off after the grace period") {
                    ended?;
                }
                self.live_again().await?;
            }
            Some(Own::Reload) => {
                self.revision = (self.revision + 1) % REVISIONS;
                for plugin in &self.files {
                    self.plugins.put(&plugin.clone().revision(self.revision))?;
                }
            }
            Some(Own::Restore) | None => {}
        }
        tokio::time::sleep(ends.saturating_sub(self.begun.elapsed())).await;
        applied.end(&server, &mut self.struck).await
    }

    /// Keeps what the ended host reported, and starts it again.
    async fn live_again(&mut self) -> Result<()> {
        self.end_life()?;
        self.life.0 = self.begun.elapsed();
        self.host.start_again()?;
        self.settled().await
    }

    /// Keeps what is in the log of the host that ended.
    fn end_life(&mut self) -> Result<()> {
        let (began, settled) = self.life;
        let log = self.host.log()?;
        self.lives.push(Life { began, settled, lines: lines_of(&log) });
        for line in &log {
            let (Some(kind), Some(error), Some(plugin)) = (line.field("kind"), line.field("error"), line.plugin())
            else {
                continue;
            };
            *self.failed.entry(format!("{plugin}: {kind}: {error}")).or_default() += 1;
            if kind != "deadline" {
                self.wrong.push(format!("a call of a plugin failed: {}", line.text));
            }
        }
        Ok(())
    }

    /// Adds the host's counters.
    async fn count(&mut self) -> Result<()> {
        let metrics = self.host.metrics().await?;
        for (name, sum) in &mut self.counters {
            // While writes fail, the other plugins fail more often than the log has room for.
            let of = if *name == LINES_DROPPED { &[("plugin", "kubediff")][..] } else { &[] };
            *sum += metrics.sum(name, of);
        }
        Ok(())
    }

    async fn judge(mut self, order: &Order, histories: &Histories, written: (u64, u64)) -> Result<Report> {
        let over = Instant::now();
        // As objects that a fault hid are shown only by another list.
        let on = json!({"userAgent": USER_AGENT});
        self.server.order("faults/cut", &json!({"on": on, "error": 410})).await?;
        let mut wrong = Vec::new();
        let settled = within(SETTLES, "the cluster is as expected", async || {
            wrong = self.deviations().await?;
            if !wrong.is_empty() {
                // A look costs the server some work.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            ensure!(wrong.is_empty(), "{} deviations", wrong.len());
            Ok(())
        })
        .await;
        if let Err(error) = settled {
            wrong.push(format!("{error:#}"));
            self.write_state(&order.folder.join("hosts")).await?;
        }
        self.is_told().await?;
        let settled_after = over.elapsed().as_secs_f64();
        self.count().await?;
        // An orderly end writes all lines.
        self.host.terminate().await?;
        self.end_life()?;
        let compared = lines::compare(histories, &self.lives);
        wrong.append(&mut self.wrong);
        wrong.extend(compared.wrong);
        wrong.extend(compared.unreported.into_iter().map(|what| format!("not reported: {what}")));
        for name in &COUNTERS[..ZERO] {
            if self.counters[name] > 0.0 {
                wrong.push(format!("{name} is {}", self.counters[name]));
            }
        }
        let mut objects = BTreeMap::new();
        for kind in [&MAPS, &DEPLOYMENTS, &SETS, &PODS, &PEARS, &PLUMS, &WATCHES] {
            objects.insert(kind.kind, self.server.list(&kind.path(None), "", "").await?.len());
        }
        Ok(Report {
            seed: order.seed,
            seconds: order.lasts.as_secs(),
            objects,
            written,
            states: histories.values().map(|versions| versions.len() - 1).sum(),
            lines: compared.told,
            lives: self.lives.len(),
            troubles: self.struck,
            counters: self.counters,
            failed: self.failed,
            settled_after,
            wrong,
        })
    }

    /// Writes files of what the host and the API server have, for a person who looks for the reason of a deviation.
    async fn write_state(&mut self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: String| {
            fs::write(folder.join(name), text).with_context(|| format!("cannot write {name} into {}", folder.display()))
        };
        write("plugins.json", self.host.get("/debug/plugins?format=json").await?.1)?;
        write("informers.json", self.host.get("/debug/informers?format=json").await?.1)?;
        for kind in [&DEPLOYMENTS, &SETS, &PODS, &WATCHES] {
            let objects = self.server.list(&kind.path(None), "", "").await?;
            write(&format!("{}.json", kind.resource), serde_json::to_string_pretty(&objects)?)?;
        }
        Ok(())
    }

    /// Returns how the cluster differs from what is expected.
    async fn deviations(&self) -> Result<Vec<String>> {
        let deployments = self.all(&DEPLOYMENTS).await?;
        let mut wrong = laws::of_deployments(&deployments, &self.all(&SETS).await?, &self.all(&PODS).await?);
        for watch in self.server.list(&WATCHES.path(None), "", "").await? {
            let mut listed = Vec::new();
            for entry in watch["spec"]["resources"].as_array().into_iter().flatten() {
                listed.push(self.listed(entry).await?);
            }
            wrong.extend(laws::of_watch(&watch, &listed));
        }
        Ok(wrong)
    }

    async fn all<K: DeserializeOwned>(&self, kind: &Kind) -> Result<Vec<K>> {
        let items = self.server.list(&kind.path(None), "", "").await?;
        items.into_iter().map(|item| from_value(item).context("not an object of its kind")).collect()
    }

    /// Returns what the server lists for an entry of a ResourceWatch.
    async fn listed(&self, entry: &Value) -> Result<Listed> {
        let kind = COUNTED.into_iter().find(|kind| entry["kind"] == kind.kind).context("an entry of another kind")?;
        if kind.kind == "Secret" {
            return Ok(Listed::NotGranted);
        }
        if kind == &FIGS && self.server.get(DEFINITIONS, FIGS.resource).await?.is_none() {
            return Ok(Listed::Undefined);
        }
        let labels = entry["labels"].as_str().unwrap_or_default();
        let namespaces: Vec<&str> =
            entry["namespaces"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut objects = BTreeSet::new();
        for item in self.server.list(&kind.path(None), labels, "").await? {
            let text = |member: &str| item["metadata"][member].as_str().unwrap_or_default().to_owned();
            if namespaces.is_empty() || namespaces.contains(&&*text("namespace")) {
                objects.insert((text("namespace"), text("name")));
            }
        }
        Ok(Listed::Objects(objects))
    }
}

/// Returns the plugins with their configuration and grants.
fn plugins() -> Result<Vec<Plugin>> {
    let fruit = "soak.example.com/*";
    let read = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind, "verbs": ["read"]});
    let config = json!({
        "resources": ["v1/ConfigMap", "apps/v1/Deployment", fruit], "except": ["soak.example.com/v1/Fig"], "ignore": IGNORED,
    });
    let grants = json!([read("v1", "ConfigMap"), read("apps/v1", "Deployment"), read(fruit, "*")]);
    let kubediff = Plugin::example("kubediff")?.with("config", &config)?.with("grants", &grants)?;
    let watch = Plugin::example("resource-watch")?;
    let yaml = watch.yaml.clone().unwrap_or_default() + &format!("  - {}\n", read(fruit, "*"));
    Ok(vec![kubediff, Plugin::deployment()?, Plugin::kubelet_stand_in()?, watch.with_yaml(yaml)])
}

/// Returns the lines that `kubediff` wrote.
fn lines_of(log: &[LogLine]) -> Vec<Value> {
    let plugin = |line: &&LogLine| line.field("target") == Some("pilothouse::plugin_log");
    let parsed = |line: &LogLine| serde_json::from_str(line.field("message")?).ok();
    let lines = log.iter().filter(plugin).filter_map(parsed);
    lines.filter(|line: &Value| line["event"].is_string()).collect()
}

impl Report {
    /// Formats the report for people.
    pub fn table(&self) -> String {
        let mut text = report::troubles(&self.troubles);
        let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("writing to a string succeeds");
        line(format_args!("\nOBJECTS {:?}: {}", self.objects, self.objects.values().sum::<usize>()));
        line(format_args!("COUNTERS {:?}", self.counters));
        self.failed.iter().for_each(|(what, times)| line(format_args!("FAILED {times} times: {what}")));
        line(format_args!(
            "{} changes were made, {} failed; the host had {} lives",
            self.written.0, self.written.1, self.lives
        ));
        let Told { events, merged, missed } = &self.lines;
        let lines: u64 = events.values().sum();
        line(format_args!("{lines} lines {events:?}, {merged} merged, {missed} missed, of {} states", self.states));
        line(format_args!("all was as expected {:.1} s after the last fault; seed {}", self.settled_after, self.seed));
        for wrong in self.wrong.iter().take(SHOWN) {
            line(format_args!("WRONG: {wrong}"));
        }
        if self.wrong.len() > SHOWN {
            line(format_args!("WRONG: {} more, see soak-plugins.json", self.wrong.len() - SHOWN));
        }
        text
    }
}
