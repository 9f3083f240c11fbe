//! Calls on the threads for plugins: what a second thread brings.

use std::{num::NonZeroUsize, time::Instant};

use anyhow::{Context, Result};
use pilothouse::{
    guests::Guests,
    name::PluginName,
    wasm::{Engine, Limits, Phase},
};
use pilothouse_e2e::Plugin;
use tokio::runtime::Builder;

use super::apples::{Calls, apple};

const PLUGINS: usize = 4;
/// Of each plugin at once.
const WORKERS: usize = 4;
/// Of each worker.
const CALLS: usize = 500;

/// Calls in a second of the clock, each in a fresh instance on an object of 6 kB, on one thread and on two; and calls of the guest
/// `idling` on an object of 600 bytes: fresh instances, with next to nothing done in them. Several plugins have several workers each, and
/// all give way after each call, as workers do.
pub(super) fn measure() -> Result<Vec<f64>> {
    let engine = Engine::new()?;
    let [apples, idling] = [Plugin::myapple()?, Plugin::guest("idling")?].map(|plugin| engine.compile(&plugin.wasm));
    let (apples, idling) = (apples?, idling?);
    let fresh = Limits { reuse: false, ..Limits::default() };
    let reconciles = |threads| calls(threads, Calls::within(fresh, &apples, apple(6_000)?, Phase::Live));
    let instances = |threads| calls(threads, Calls::within(fresh, &idling, apple(600)?, Phase::Gone));
    Ok(vec![reconciles(1)?, reconciles(2)?, instances(1)?, instances(2)?])
}

fn calls(threads: usize, calls: impl Future<Output = Result<Calls>>) -> Result<f64> {
    let threads = NonZeroUsize::new(threads).context("no threads")?;
    // It has nothing to do but to run: timers and sockets are not waited for.
    let io = Builder::new_multi_thread().worker_threads(1).enable_time().build().context("cannot start a runtime")?;
    io.block_on(async {
        let calls = calls.await?;
        calls.check().await?;
        // All are at work all the time: nobody comes from a rest.
        let guests = Guests::start(threads, io.handle(), || ()).context("cannot start the threads")?;
        let names = (0..PLUGINS).map(|number| PluginName::new(&format!("plugin-{number}")));
        let accounts = names.map(|name| Ok(guests.account(&name?))).collect::<Result<Vec<_>>>()?;
        let worker = |calls: Calls| async move {
            for _ in 0..CALLS {
                calls.call().await?;
                tokio::task::yield_now().await;
            }
            anyhow::Ok(())
        };
        let start = Instant::now();
        let workers: Vec<_> =
            accounts.iter().flat_map(|account| (0..WORKERS).map(|_| account.spawn(worker(calls.clone())))).collect();
        for worker in workers {
            worker.ended().await.context("a worker did not end")??;
        }
        Ok((PLUGINS * WORKERS * CALLS) as f64 / start.elapsed().as_secs_f64())
    })
}
