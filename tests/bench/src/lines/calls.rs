//! Calls of real plugins in the real sandbox: the cost of a call without cache and writes.

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
/// Bytes of the objects: a minimal one, a usual one without managedFields, and a large one.
const SIZES: [usize; 3] = [1_500, 6_000, 50_000];
/// Bytes of an object that needs no work.
const SMALL: usize = 600;

/// The same work in native code. Ours may take five times as long. The budget was 40 µs for a reconcile of 6 kB, on a
/// machine where the native work took 7.9 µs.
pub(super) const NATIVE: Peer = Peer {
    name: "the same in Rust, without a sandbox",
    prepare: || Ok(()),
    measure: native,
    allows: &[("reconcile-6k", 5.0)],
};

/// The first figure without the host: the engine alone copies the texts, calls and returns. Ours may take twice as
/// long. The budget of an empty call, 0.5 µs, is twice what a call without arguments took in the engine, 0.25 µs.
pub(super) const ENGINE: Peer = Peer {
    name: "wasmtime 48 alone, the same call",
    prepare: || Ok(()),
    measure: engine,
    allows: &[("empty-call", 2.0)],
};

fn engine() -> Result<Vec<f64>> {
    Ok(vec![engine::call(&Plugin::guest("idling")?.wasm, &apple(SMALL)?.json(), CALLS, PASSES)?])
}

/// Microseconds of a call for a 600-byte object that needs no work.
///
/// - the guest `idling`, which ignores its arguments, in a reused instance;
/// - the same in fresh instances;
/// - the example plugin in fresh instances. It reads its configuration, parses the object, and sees that the object is
///   gone.
///
/// In each call the host copies five texts into the guest's memory: configuration, controller, namespace, name and
/// object.
pub(super) fn empty() -> Result<Vec<f64>> {
    let compiled = Engine::new()?.compile(&Plugin::guest("idling")?.wasm)?;
    let idling =
        |reuse| time(Calls::within(Limits { reuse, ..Limits::default() }, &compiled, apple(SMALL)?, Phase::Gone));
    Ok(vec![idling(true)?, idling(false)?, measure(SMALL, Phase::Gone)?])
}

/// Microseconds of a call that parses an object of each size, reads a cached child, and returns a child and a status.
pub(super) fn reconcile() -> Result<Vec<f64>> {
    SIZES.into_iter().map(|size| measure(size, Phase::Live)).collect()
}

/// Microseconds of the same work in the guest `reusing`: objects of each size and a small deleted one, in reused and in
/// fresh instances.
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

/// The example plugin's work in native code, with serde_json and k8s-openapi's types: from the texts of the object and
/// its child to the texts of the desired child and the status. It has neither the SDK nor the contract.
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

/// Returns a child and a status for a MyApple of quantity 1.
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
