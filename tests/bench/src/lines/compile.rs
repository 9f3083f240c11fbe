//! A plugin's file to machine code, on all cores.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use pilothouse::wasm::Engine;
use pilothouse_e2e::Plugin;

use crate::statistics::median;

const TIMES: usize = 5;

/// Milliseconds by the wall clock.
pub(super) fn measure() -> Result<Vec<f64>> {
    let engine = Engine::new()?;
    let file = Plugin::myapple()?.wasm;
    eprintln!("  myapple.wasm has {} kB", file.len() / 1000);
    let mut times = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let start = Instant::now();
        black_box(engine.compile(&file)?);
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&times).into_iter().collect())
}
