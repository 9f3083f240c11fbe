//! Controllers of ConfigMaps, each in a process of its own: how soon each is called for a change.
//!
//! ```text
//! patch ─► API server ─► wire, which notes when the event passes ─► controller, which notes when it is called
//! ```
//!
//! The API server is the embedded one, in the measuring process. One object is changed at a time, and nobody has anything else to do
//! then. Both ends are read off the same clock: that of the day, of which all programs of a machine have one.
//!
//! Others than the host are told what to do in lines, and answer each with a line:
//!
//! ```text
//!            says ready
//! start URL  synced               lists, watches and reconciles from then on
//! next       NANOSECONDS MARK     the next reconcile, once there is one: when it was entered, since 1970, and the mark that it saw
//! ```

pub(crate) mod host;
pub(crate) mod kube_runtime;
pub(crate) mod reader;
pub(crate) mod wire;

use std::{
    io::{self, BufRead},
    sync::mpsc::{self, Receiver, Sender},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{Cluster, Kind};
use serde_json::{Value, from_value, json};
use tokio::{
    process::Command,
    time::{sleep, timeout},
};

use self::wire::Wire;
use crate::{child::Child, server::say};

/// The annotation by which changes are told apart.
pub(crate) const MARK: &str = "guests.example.com/mark";
/// Where all happens.
pub(crate) const NAMESPACE: &str = "orchard";
/// So many that none is changed often enough for a breaker to open.
const MAPS: usize = 40;
/// Bytes of each, about as many as a Pod has.
const SIZE: usize = 4 << 10;
/// Before and after a change is told: all threads are at rest again.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);
/// No change takes longer to be reconciled, however much else is to be done.
const LIMIT: Duration = Duration::from_secs(60);

/// Whoever is called for changes.
pub(crate) trait Called {
    /// When it was called for the change with this mark.
    async fn called(&mut self, mark: &str) -> Result<Duration>;
}

pub(crate) async fn create_namespace(cluster: &Cluster, name: &str) -> Result<()> {
    let namespace: Namespace = from_value(json!({"metadata": {"name": name}})).context("not a namespace")?;
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let created = namespaces.create(&PostParams::default(), &namespace).await;
    created.map(drop).with_context(|| format!("cannot create the namespace {name}"))
}

/// An API server with ConfigMaps, and the wire to it.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) wire: Wire,
    changes: usize,
}

impl Stage {
    pub(crate) async fn set() -> Result<Self> {
        let cluster = Cluster::start(Kind::Embedded).await?;
        let wire = Wire::before(&cluster.kubeconfig()).await?;
        let stage = Self { cluster, wire, changes: 0 };
        stage.create_namespace(NAMESPACE).await?;
        for number in 0..MAPS {
            let map: ConfigMap = from_value(map(number)).context("not a ConfigMap")?;
            stage.maps().create(&PostParams::default(), &map).await.context("cannot create a ConfigMap")?;
        }
        Ok(stage)
    }

    pub(crate) async fn create_namespace(&self, name: &str) -> Result<()> {
        create_namespace(&self.cluster, name).await
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.cluster.client(), NAMESPACE)
    }

    /// Microseconds from when the event is written to the controller's connection until the controller is called for it, of each of
    /// so many changes, one after another, with a pause before and after each is told.
    pub(crate) async fn latencies(
        &mut self,
        controller: &mut impl Called,
        changes: usize,
        pause: Duration,
    ) -> Result<Vec<f64>> {
        let mut latencies = Vec::with_capacity(changes);
        for _ in 0..changes {
            latencies.push(self.latency(controller, pause).await?.as_secs_f64() * 1e6);
            sleep(pause).await;
        }
        Ok(latencies)
    }

    /// Returns when a change is reconciled: whatever came before is too.
    pub(crate) async fn settles(&mut self, controller: &mut impl Called) -> Result<()> {
        self.latency(controller, PAUSE).await.map(drop)
    }

    async fn latency(&mut self, controller: &mut impl Called, pause: Duration) -> Result<Duration> {
        self.changes += 1;
        let mark = format!("mark-{:06}", self.changes);
        self.wire.look_for(&mark);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {MARK: mark}}}));
        let name = name(self.changes % MAPS);
        self.maps().patch(&name, &PatchParams::default(), &patch).await.context("cannot change a ConfigMap")?;
        // Whoever asks does not take the core that is needed to answer.
        sleep(pause).await;
        let called = timeout(LIMIT, controller.called(&mark)).await;
        let called = called.with_context(|| format!("{mark} is not reconciled within {} s", LIMIT.as_secs()))??;
        let passed = self.wire.passed().with_context(|| format!("{mark} did not pass the wire"))?;
        called.checked_sub(passed).with_context(|| format!("{mark} was reconciled before it was told"))
    }
}

fn name(number: usize) -> String {
    format!("map-{number:02}")
}

fn map(number: usize) -> Value {
    json!({
        "metadata": {"name": name(number), "labels": {"app.kubernetes.io/name": name(number)}, "annotations": {MARK: ""}},
        "data": {"settings": format!("step {number} of the rollout; ").repeat(SIZE / 23)},
    })
}

/// Nanoseconds since 1970, as all processes of the machine have them.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// When a reconcile was entered, and the mark that it saw.
type Seen = (Duration, String);

/// Speaks the protocol above until the input ends; `start` begins to work on the server of an address.
fn obey(start: impl Fn(&str, Sender<Seen>) -> Result<()>) -> Result<()> {
    let mut calls: Option<Receiver<Seen>> = None;
    say("ready")?;
    for line in io::stdin().lock().lines() {
        let line = line.context("cannot read a command")?;
        let answer = match (line.split_once(' '), line.as_str(), &calls) {
            (Some(("start", url)), _, None) => {
                let (seen, calls_of) = mpsc::channel();
                start(url, seen)?;
                calls = Some(calls_of);
                "synced".to_owned()
            }
            (None, "next", Some(calls)) => {
                let (at, mark) = calls.recv().context("the controller has ended")?;
                format!("{} {mark}", at.as_nanos())
            }
            _ => bail!("not a command here: {line:?}"),
        };
        say(&answer)?;
    }
    Ok(())
}

/// A program that speaks the protocol above.
pub(crate) struct Program(Child);

impl Program {
    /// Starts it, and lets it work on the server at that address.
    pub(crate) async fn start(name: &str, command: Command, url: &str) -> Result<Self> {
        let mut child = Child::start(name, command)?;
        ensure!(child.answer().await? == "ready", "{name} is not ready");
        let answer = child.ask(&format!("start {url}")).await?;
        ensure!(answer == "synced", "{name} says {answer:?} to its start");
        Ok(Self(child))
    }
}

impl Called for Program {
    async fn called(&mut self, mark: &str) -> Result<Duration> {
        loop {
            let answer = self.0.ask("next").await?;
            let (at, seen) = answer.split_once(' ').with_context(|| format!("no reconcile: {answer:?}"))?;
            // What it was called for before: the first list.
            if seen == mark {
                return Ok(Duration::from_nanos(at.parse().with_context(|| format!("no time: {answer:?}"))?));
            }
        }
    }
}
