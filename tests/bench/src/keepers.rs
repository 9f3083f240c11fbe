//! Measures the memory and CPU time of working caches of 100,000 pods, each in its own process, on the same server.
//!
//! A keeper does what a controller's cache does, and no more. It lists and watches, drops managedFields, and stores. If
//! its library can, it indexes owners and enqueues the owner's key. It speaks a line protocol. Memory and CPU time come
//! from `/proc`.
//!
//! ```text
//!            keeper says ready        has done nothing: what it holds now is not the cache's
//! start URL  synced                   lists, and watches from then on
//! count      OBJECTS UPDATES          in the cache now; modifications seen so far
//! settle     BYTES, or nothing        collects garbage, if it has any; bytes that are live, where it knows
//! ```

pub(crate) mod host;
pub(crate) mod kube_runtime;

use std::{
    env,
    io::{self, BufRead},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{process::Command, time::sleep};

use crate::{child::Child, clock::cpu_time_of, memory, processes, server};

/// Environment variable with the number of objects. The default is 100,000.
const OBJECTS: &str = "BENCH_OBJECTS";
const BATCHES: u64 = 3;
/// Number of events: some hundred ticks of the kernel's clock for the fastest keeper.
const EVENTS: u64 = 30_000;
/// Polling interval, long enough to cost nothing.
const POLL: Duration = Duration::from_millis(50);
/// Window in which an idle process uses less than a fiftieth of a core.
const WINDOW: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(600);

/// The protocol's commands for a cache in this program.
trait Keeper: Sized {
    /// Lists, then watches in the background.
    async fn start(url: &str) -> Result<Self>;
    fn objects(&self) -> usize;
    fn updates(&self) -> u64;
    /// Live bytes, if the cache knows them.
    fn live(&self) -> Option<usize>;
}

/// Runs the keeper until its input ends.
fn be<K: Keeper>() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start a runtime")?;
    let mut keeper = None;
    server::say("ready")?;
    for line in io::stdin().lock().lines() {
        let line = line.context("cannot read a command")?;
        let answer = match (line.split_once(' '), line.as_str(), &keeper) {
            (Some(("start", url)), _, None) => {
                keeper = Some(runtime.block_on(K::start(url))?);
                "synced".to_owned()
            }
            (None, "count", Some(keeper)) => format!("{} {}", keeper.objects(), keeper.updates()),
            (None, "settle", Some(keeper)) => keeper.live().map_or_else(String::new, |bytes| bytes.to_string()),
            _ => bail!("not a command here: {line:?}"),
        };
        server::say(&answer)?;
    }
    Ok(())
}

/// Measures a keeper. The figures are, in this order:
///
/// 1. settled bytes for each object,
/// 2. the same divided by the object's stripped JSON,
/// 3. peak bytes for each object while it fills,
/// 4. peak of a relist divided by the settled size,
/// 5. events per second of CPU.
pub(crate) fn measure(name: &str, command: Command) -> Result<Vec<f64>> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start a runtime")?;
    runtime.block_on(async {
        let objects = objects()?;
        let mut bench = Bench::start(name, command, objects).await?;
        let (peak, live) = bench.fill().await?;
        let settled = bench.held()?;
        let events = bench.events().await?;
        let relist = bench.relist().await?;
        let each = |bytes: usize| bytes as f64 / objects as f64;
        let stripped = stripped(objects)?;
        if let Some(live) = live {
            eprintln!("    {:.0} B of each object live, of {stripped:.0} B of stripped JSON", each(live));
        }
        Ok(vec![each(settled), each(settled) / stripped, each(peak), relist, events])
    })
}

pub(crate) fn objects() -> Result<u64> {
    match env::var(OBJECTS) {
        Ok(text) => text.parse().ok().filter(|objects| *objects > 0).with_context(|| format!("{OBJECTS}={text}?")),
        Err(_) => Ok(100_000),
    }
}

/// The mean length of the first pods' JSON without managedFields.
fn stripped(objects: u64) -> Result<f64> {
    use pilothouse_core::{key::TypeMeta, object::Object};
    let (of, mut text, mut total) = (TypeMeta::new("v1", "Pod"), String::new(), 0);
    for number in 0..objects {
        text.clear();
        crate::objects::Pod::of(number).write(&mut text, number + 1, true);
        total += Object::parse(text.as_bytes(), &of)?.json().len();
    }
    Ok(total as f64 / objects as f64)
}

/// Starts a server with pods, which lives as long as the child. Returns its address, too.
pub(crate) async fn serve(objects: u64) -> Result<(Child, String)> {
    let mut command = processes::command(server::NAME)?;
    command.env(server::OBJECTS, objects.to_string());
    let mut server = Child::start("the server", command)?;
    let url = server.answer().await?;
    Ok((server, url))
}

/// A keeper with its own server.
struct Bench {
    server: Child,
    url: String,
    keeper: Child,
    objects: u64,
    id: u32,
    /// Bytes that it held before its start.
    base: usize,
}

impl Bench {
    async fn start(name: &str, command: Command, objects: u64) -> Result<Self> {
        let (server, url) = serve(objects).await?;
        let mut keeper = Child::start(name, command)?;
        ensure!(keeper.answer().await? == "ready", "{name} is not ready");
        let id = keeper.id()?;
        Ok(Self { server, url, keeper, objects, id, base: memory::held_by(id)? })
    }

    /// Returns the bytes that the cache holds now.
    fn held(&self) -> Result<usize> {
        Ok(memory::held_by(self.id)?.saturating_sub(self.base))
    }

    /// Returns the peak bytes, and the live bytes once it has settled.
    async fn fill(&mut self) -> Result<(usize, Option<usize>)> {
        let start = Instant::now();
        let answer = self.keeper.ask(&format!("start {}", self.url)).await?;
        ensure!(answer == "synced", "the keeper says {answer:?} to its start");
        let (objects, _) = self.count().await?;
        ensure!(objects == self.objects, "{objects} of {} objects are there", self.objects);
        let cpu = cpu_time_of(self.id)?;
        let micros = cpu.as_secs_f64() * 1e6 / self.objects as f64;
        eprintln!("    filled in {:.1} s, {micros:.1} µs of CPU for each object", start.elapsed().as_secs_f64());
        let peak = memory::peak_of(self.id)?.saturating_sub(self.base);
        let live = self.settle().await?;
        Ok((peak, live))
    }

    async fn settle(&mut self) -> Result<Option<usize>> {
        self.rests().await?;
        let live = self.keeper.ask("settle").await?.parse().ok();
        self.rests().await?;
        Ok(live)
    }

    /// Waits until the keeper is idle.
    async fn rests(&self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            let before = cpu_time_of(self.id)?;
            sleep(WINDOW).await;
            if cpu_time_of(self.id)?.saturating_sub(before) < WINDOW / 50 {
                return Ok(());
            }
        }
        bail!("the keeper does not become idle");
    }

    /// Returns the number of objects in the cache, and of modifications that it has seen.
    async fn count(&mut self) -> Result<(u64, u64)> {
        let answer = self.keeper.ask("count").await?;
        let numbers = answer.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        numbers.with_context(|| format!("no count: {answer:?}"))
    }

    async fn counts(&mut self, what: &str, enough: impl Fn(u64, u64) -> bool) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            let (objects, updates) = self.count().await?;
            if enough(objects, updates) {
                return Ok(());
            }
            sleep(POLL).await;
        }
        bail!("{what} does not come to its end");
    }

    /// Measures the events per second of CPU.
    async fn events(&mut self) -> Result<f64> {
        let mut total = Duration::ZERO;
        for _ in 0..BATCHES {
            let (_, before) = self.count().await?;
            let start = cpu_time_of(self.id)?;
            self.server.ask(&format!("modify {EVENTS}")).await?;
            self.counts("a batch of events", |_, updates| updates >= before + EVENTS).await?;
            total += cpu_time_of(self.id)?.saturating_sub(start);
        }
        Ok((BATCHES * EVENTS) as f64 / total.as_secs_f64())
    }

    /// Measures the peak of a relist with one new object, divided by the settled size before.
    async fn relist(&mut self) -> Result<f64> {
        self.settle().await?;
        let settled = self.held()?;
        memory::reset_peak_of(self.id)?;
        self.server.ask("expire").await?;
        let all = self.objects + 1;
        self.counts("a relist", |objects, _| objects == all).await?;
        // Some keepers report the new object before they have processed the others.
        self.rests().await?;
        Ok(memory::peak_of(self.id)?.saturating_sub(self.base) as f64 / settled as f64)
    }
}
