//! Keeps the machine's cores awake, at the lowest priority.

use std::{
    hint::black_box,
    io::{self, Read},
    thread,
};

use anyhow::{Context, Result, ensure};
use tokio::runtime::Runtime;

use crate::{child::Child, processes};

pub(crate) const NAME: &str = "awake";

/// The lowest priority.
const BEHIND: i32 = 19;

/// Computes on each core until the input ends.
pub(crate) fn run() -> Result<()> {
    rustix::process::nice(BEHIND).context("cannot take a lower priority")?;
    let cores = thread::available_parallelism().context("cannot count the cores")?;
    for _ in 0..cores.get() {
        thread::spawn(|| {
            let mut number = 0_u64;
            loop {
                number = black_box(number.wrapping_add(1));
            }
        });
    }
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new()).context("cannot read")?;
    Ok(())
}

/// Measures while the cores stay awake.
pub(crate) fn awake(measure: impl FnOnce() -> Result<Vec<f64>>) -> Result<Vec<f64>> {
    let runtime = Runtime::new().context("cannot start a runtime")?;
    let _keeps = runtime.block_on(async {
        let mut keeps = Child::start(NAME, processes::command(NAME)?)?;
        ensure!(keeps.answer().await? == "ready", "{NAME} is not ready");
        anyhow::Ok(keeps)
    })?;
    measure()
}
