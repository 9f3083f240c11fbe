//! Measures how soon a controller of ConfigMaps is called for a change. Each controller has its own process.
//!
//! ```text
//! patch ─► API server ─► wire, which records when the event passes ─► controller, which records when it is called
//! ```
//!
//! The API server is the embedded one, in the measuring process. One object is changed at a time, while nothing else
//! runs. Both ends read the wall clock, which all programs of a machine share.
//!
//! Controllers other than the host speak a line protocol:
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

/// The annotation that identifies a change.
pub(crate) const MARK: &str = "guests.example.com/mark";
/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "orchard";
/// Number of objects: enough that no object changes often enough to open a breaker.
const MAPS: usize = 40;
/// Bytes of each object, about as many as a Pod has.
const SIZE: usize = 4 << 10;
/// Pause before and after a change, in which all threads become idle again.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);
/// Maximum time until a change is reconciled, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(60);

/// A controller under measurement.
pub(crate) trait Called {
    /// Returns when it was called for the change with this mark.
    async fn called(&mut self, mark: &str) -> Result<Duration>;
}

pub(crate) async fn create_namespace(cluster: &Cluster, name: &str) -> Result<()> {
    let namespace: Namespace = from_value(json!({"metadata": {"name": name}})).context("not a namespace")?;
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let created = namespaces.create(&PostParams::default(), &namespace).await;
    created.map(drop).with_context(|| format!("cannot create the namespace {name}"))
}

/// An API server with ConfigMaps, and the wire in front of it.
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

    /// Makes changes one after another, with pauses, and measures each: microseconds from when the event is written to
    /// the controller's connection until the controller is called.
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

    /// Waits until a change is reconciled. All earlier ones are then reconciled too.
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
        // Polling must not take the core that is needed for the answer.
        sleep(pause).await;
        let called = timeout(LIMIT, controller.called(&mark)).await;
        let called = called.with_context(|| format!("{mark} is not reconciled within {} s", LIMIT.as_secs()))??;
        let passed = self.wire.passed().with_context(|| format!("{mark} did not pass the wire"))?;
        called.checked_sub(passed).with_context(|| format!("{mark} was reconciled before its event passed"))
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

/// Nanoseconds since 1970, by the wall clock.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A reconcile: when it was entered, and the mark that it saw.
type Seen = (Duration, String);

/// Speaks the protocol above until the input ends. `start` starts the controller for the server at an address.
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
    /// Starts the program and connects it to the server at that address.
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
            // Earlier calls are for the first list.
            if seen == mark {
                return Ok(Duration::from_nanos(at.parse().with_context(|| format!("no time: {answer:?}"))?));
            }
        }
    }
}
