//! Calls on the threads for plugins: what a second thread brings.

use std::num::NonZeroUsize;
use std::time::Instant;

use anyhow::{Context, Result};
use pilothouse::guests::Guests;
use pilothouse::wasm::{Phase, PluginName};
use tokio::runtime::Builder;

use super::apples::{Calls, apple};

const SIZE: usize = 6_000;
const PLUGINS: usize = 4;
/// Of each plugin at once.
const WORKERS: usize = 4;
/// Of each worker.
const CALLS: usize = 500;

/// Calls in a second of the clock, each in a fresh instance on an object of 6 kB, on one thread and on two. Several plugins have several
/// workers each, and all give way after each call, as workers do.
pub(super) fn measure() -> Result<Vec<f64>> {
    [1, 2].into_iter().map(calls).collect()
}

fn calls(threads: usize) -> Result<f64> {
    let threads = NonZeroUsize::new(threads).context("no threads")?;
    // It has nothing to do but to run: timers and sockets are not waited for.
    let io = Builder::new_multi_thread().worker_threads(1).enable_time().build().context("cannot start a runtime")?;
    io.block_on(async {
        let calls = Calls::new(apple(SIZE)?, Phase::Live).await?;
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
