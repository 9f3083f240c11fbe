//! Calls of real plugins in the real sandbox: all that a call costs besides cache and writes.

use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
    jiff::Timestamp,
};
use pilothouse::wasm::{Engine, Limits, Phase};
use pilothouse_e2e::Plugin;
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use super::{
    Peer,
    apples::{Calls, apple, child},
};
use crate::{
    clock::{cpu_time, micros_each, thread_time},
    peers::engine,
    statistics::median,
};

const CALLS: usize = 500;
const PASSES: usize = 9;
/// Bytes of the objects: the least that people write, what is usual with managedFields taken away, and what is large.
const SIZES: [usize; 3] = [1_500, 6_000, 50_000];
/// Bytes of one of which nothing is to be done.
const SMALL: usize = 600;

/// The same work with nothing in between. Ours may take five times as long: the budget was 40 µs for a reconcile of 6 kB, on a machine where
/// the native work took 7.9 µs.
pub(super) const NATIVE: Peer = Peer {
    name: "the same in Rust, without a sandbox",
    prepare: || Ok(()),
    measure: native,
    allows: &[("reconcile-6k", 5.0)],
};

/// What the first of them costs without the host: what the engine itself takes to lay the texts, to call and to come back. Of that ours may
/// have twice as much: the 0.5 µs of an empty call are twice what one without arguments took in the engine, 0.25.
pub(super) const ENGINE: Peer = Peer {
    name: "wasmtime 48 alone, the same call",
    prepare: || Ok(()),
    measure: engine,
    allows: &[("empty-call", 2.0)],
};

fn engine() -> Result<Vec<f64>> {
    Ok(vec![engine::call(&Plugin::guest("idling")?.wasm, &apple(SMALL)?.json(), CALLS, PASSES)?])
}

/// Microseconds of a call on an object of 600 bytes, of which nothing is to be done: of the guest `idling`, which does not look at what it is
/// called with, in an instance that is kept, and in fresh ones; and of the example plugin, which makes itself out of its configuration, parses
/// the object, sees that it is gone, and leaves all as it is, in fresh ones. In each, the host lays five texts into the guest's memory:
/// configuration, controller, namespace, name and object.
pub(super) fn empty() -> Result<Vec<f64>> {
    let compiled = Engine::new()?.compile(&Plugin::guest("idling")?.wasm)?;
    let idling =
        |reuse| time(Calls::within(Limits { reuse, ..Limits::default() }, &compiled, apple(SMALL)?, Phase::Gone));
    Ok(vec![idling(true)?, idling(false)?, measure(SMALL, Phase::Gone)?])
}

/// An object of each size is parsed, a cached child is read, a child and a status come back. Microseconds.
pub(super) fn reconcile() -> Result<Vec<f64>> {
    SIZES.into_iter().map(|size| measure(size, Phase::Live)).collect()
}

/// The guest `reusing`, which does about the same: objects of each size, and a small one that is gone; in instances that are kept, and in
/// fresh ones, as an administrator may have it. Microseconds.
pub(super) fn reuse() -> Result<Vec<f64>> {
    let compiled = Engine::new()?.compile(&Plugin::guest("reusing")?.wasm)?;
    let mut figures = Vec::new();
    for reuse in [true, false] {
        let limits = Limits { reuse, ..Limits::default() };
        for (bytes, phase) in SIZES.map(|bytes| (bytes, Phase::Live)).into_iter().chain([(SMALL, Phase::Gone)]) {
            figures.push(time(Calls::within(limits, &compiled, apple(bytes)?, phase))?);
        }
    }
    Ok(figures)
}

fn measure(bytes: usize, phase: Phase) -> Result<f64> {
    time(Calls::new(apple(bytes)?, phase))
}

fn time(calls: impl Future<Output = Result<Calls>>) -> Result<f64> {
    let runtime = Builder::new_current_thread().enable_time().build().context("cannot start a runtime")?;
    runtime.block_on(async {
        let calls = calls.await?;
        calls.check().await?;
        let mut passes = Vec::with_capacity(PASSES);
        for _ in 0..PASSES {
            let start = thread_time();
            for _ in 0..CALLS {
                black_box(calls.call().await?);
            }
            passes.push(micros_each(thread_time().saturating_sub(start), CALLS));
        }
        median(&passes).context("there are no passes")
    })
}

/// The example plugin's work, done by what it is made of: serde_json and k8s-openapi's types. From the texts of the object and its child
/// to the texts of the wanted child and of the status; neither the SDK nor the contract is in it, which the plugin has besides.
fn native() -> Result<Vec<f64>> {
    let time = |bytes: usize| {
        let (object, child) = (apple(bytes)?, child()?);
        let call = || answer(&object.json(), &child.json());
        let (_, status) = call()?;
        ensure!(status.contains(r#""available":1"#), "the status is {status}");
        let pass = || micros_each(cpu_time(|| (0..CALLS).for_each(|_| drop(black_box(call())))), CALLS);
        median(&(0..PASSES).map(|_| pass()).collect::<Vec<_>>()).context("there are no passes")
    };
    SIZES.into_iter().map(time).collect()
}

#[derive(Deserialize)]
struct MyApple {
    metadata: ObjectMeta,
    spec: Spec,
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Spec {
    color: String,
    size: String,
    quantity: i32,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    available: i32,
    conditions: Vec<Condition>,
    observed_generation: Option<i64>,
}

/// A child and a status for an apple of quantity 1.
fn answer(object: &str, child: &str) -> Result<(String, String)> {
    let apple: MyApple = serde_json::from_str(object)?;
    let MyApple { metadata, spec, status } = apple;
    let data = [("color", spec.color), ("size", spec.size)].map(|(key, value)| (key.to_owned(), value));
    let wanted = ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("{}-0", metadata.name.as_deref().unwrap_or_default())),
            ..ObjectMeta::default()
        },
        data: Some(data.into()),
        ..ConfigMap::default()
    };
    let found: ConfigMap = serde_json::from_str(child)?;
    let mut owners = found.metadata.owner_references.iter().flatten();
    let fits = owners.any(|owner| Some(&owner.uid) == metadata.uid.as_ref()) && found.data == wanted.data;
    let available = i32::from(fits);
    let mut conditions = status.map(|status| status.conditions).unwrap_or_default();
    conditions.retain(|condition| condition.type_ != "Ready");
    conditions.push(Condition {
        type_: "Ready".to_owned(),
        status: if available == spec.quantity { "True" } else { "False" }.to_owned(),
        reason: "AllAvailable".to_owned(),
        message: format!("{available} of {} available", spec.quantity),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: metadata.generation,
    });
    let status = Status { available, conditions, observed_generation: metadata.generation };
    Ok((serde_json::to_string(&wanted)?, serde_json::to_string(&status)?))
}
