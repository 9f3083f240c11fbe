//! Compilation of a plugin's file to machine code.

use std::{hint::black_box, time::Instant};

use anyhow::{Context, Result};
use pilothouse::wasm::{Compiler, Engine, Optimizing, PluginFile};
use pilothouse_e2e::Plugin;
use tokio::runtime::Runtime;

use crate::statistics::median;

const TIMES: usize = 5;

/// Milliseconds by the wall clock: optimized, in this process on all cores; and by the baseline compiler in its own
/// process, for which a new plugin waits.
pub(super) fn measure() -> Result<Vec<f64>> {
    let file = Plugin::myapple()?.wasm;
    eprintln!("  myapple.wasm has {} kB", file.len() / 1000);
    let (optimized, baseline) = (optimized(&file)?, baseline(&file)?);
    Ok([optimized, baseline].iter().filter_map(|times| median(times)).collect())
}

fn optimized(file: &[u8]) -> Result<Vec<f64>> {
    let engine = Engine::new()?;
    let mut times = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let start = Instant::now();
        black_box(engine.compile(file)?);
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

fn baseline(file: &[u8]) -> Result<Vec<f64>> {
    let file = PluginFile::new(file.to_vec());
    let compiler = Compiler::this_program().context("cannot find the program itself")?;
    let mut times = Vec::with_capacity(TIMES);
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        for _ in 0..TIMES {
            // A new engine, because one does not compile a file twice.
            let engine = Engine::with_compiler(compiler.clone(), Optimizing::Never, None)?;
            let start = Instant::now();
            black_box(engine.load(file.clone()).await?);
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(times)
    })
}
