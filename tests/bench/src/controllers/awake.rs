//! Cores that do not sleep. A core that has nothing to do is sent to sleep, on a virtual machine by its host, and takes as long to wake up as
//! all that is measured here. A process on each that runs only when nobody else wants to keeps it awake.

use std::io::{self, Read};
use std::process::Stdio;
use std::thread;

use anyhow::{Context, Result};
use tokio::process::{Child, Command};

pub(crate) const NAME: &str = "controllers-awake";

/// While it is there, no core sleeps.
pub(crate) struct Awake {
    _processes: Vec<Child>,
}

impl Awake {
    pub(crate) fn start() -> Result<Self> {
        let cores = thread::available_parallelism().context("cannot count the cores")?.get();
        let itself = std::env::current_exe().context("cannot find the program itself")?;
        let process = |_| {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0"]).arg(&itself).args(["--be", NAME]);
            command.stdin(Stdio::piped()).kill_on_drop(true);
            command.spawn().context("cannot start chrt, which is in util-linux")
        };
        Ok(Self { _processes: (0..cores).map(process).collect::<Result<_>>()? })
    }
}

/// Keeps a core awake until its input ends.
pub(crate) fn run() -> Result<()> {
    let waits = thread::spawn(|| io::stdin().read_to_end(&mut Vec::new()));
    // Without a hint that it spins: virtual machines may be stopped for that.
    while !waits.is_finished() {
        std::hint::black_box(());
    }
    Ok(())
}
