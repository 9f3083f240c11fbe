//! Calls on the threads for plugins: the gain of a second thread.

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
/// Number of workers of each plugin.
const WORKERS: usize = 4;
/// Number of calls of each worker.
const CALLS: usize = 500;

/// Calls per second of the wall clock, on one thread and on two:
///
/// - of the example plugin for a 6 kB object;
/// - of the guest `idling`, which does almost nothing, for a 600-byte object.
///
/// Each call has a fresh instance. Several plugins have several workers each, and each worker yields after each call,
/// as in the host.
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
    // The runtime needs neither timers nor sockets.
    let io = Builder::new_multi_thread().worker_threads(1).enable_time().build().context("cannot start a runtime")?;
    io.block_on(async {
        let calls = calls.await?;
        calls.check().await?;
        // All workers are always busy, so none has saved up credit.
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
