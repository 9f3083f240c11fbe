//! The first call of a plugin after a long pause.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pilothouse::wasm::{CACHE_BYTES, Cache, Compiler, Engine, Limits, Optimizing, Phase, PluginFile};
use pilothouse_e2e::Plugin;
use tokio::{
    runtime::Runtime,
    time::{sleep, timeout},
};

use super::apples::{Calls, apple};
use crate::{
    statistics::percentile,
    toolchains::{JAVASCRIPT, PYTHON},
};

const SIZE: usize = 6_000;
const TIMES: usize = 300;
/// Time to compile an interpreter, which takes some seconds.
const OPTIMIZED: Duration = Duration::from_secs(120);

pub(super) fn rust() -> Result<Vec<f64>> {
    measure(Plugin::myapple()?.wasm)
}

pub(super) fn javascript() -> Result<Vec<f64>> {
    measure(JAVASCRIPT.plugin()?)
}

pub(super) fn python() -> Result<Vec<f64>> {
    measure(PYTHON.plugin()?)
}

/// Milliseconds of a call whose plugin's code is not mapped: the host maps, links and instantiates it, and the plugin
/// reconciles a 6 kB object. Median and 99th percentile. The file is in the kernel's cache.
fn measure(plugin: Vec<u8>) -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let folder = tempfile::tempdir().context("cannot create a folder for code")?;
        let compiler = Compiler::this_program().context("cannot find the program itself")?;
        let engine = Engine::with_compiler(
            compiler,
            Optimizing::Soon,
            Some(Cache::open(&folder.path().join("cache"), CACHE_BYTES)?),
        )?;
        let compiled = engine.load(PluginFile::new(plugin)).await?;
        // A reused instance would keep the code mapped, too.
        let limits = Limits { reuse: false, ..Limits::default() };
        let calls = Calls::within(limits, &compiled, apple(SIZE)?, Phase::Live).await?;
        calls.check().await?;
        let optimized = async {
            while engine.figures().unoptimized > 0 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(OPTIMIZED, optimized).await.context("the code is not optimized in time")?;
        let mut times = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            // The first sweep sees that no call came, the second unmaps.
            engine.unmap_idle();
            engine.unmap_idle();
            ensure!(engine.figures().mapped == 0, "the plugin is mapped");
            let start = Instant::now();
            calls.call().await?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok([50.0, 99.0].into_iter().filter_map(|percent| percentile(&times, percent)).collect())
    })
}
