//! `soak [--plugins] [--seconds N] [--seed N] [--rate N]`: runs the host's informers, or its plugins, through every
//! fault of the embedded API server.

use std::{env, fs, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use pilothouse_e2e::soak::{Order, plugins, run};
use serde::Serialize;

const HELP: &str = "\
Runs 25 informers of the host against the embedded API server while objects change and every fault of the server comes,
several times, alone and in pairs. At the end each informer must hold what the server holds, subscribers must have been told the
same, no informer may have asked more often than its backoff allows, and memory must be as after the second minute.

With --plugins, runs kubediff, deployment and resource-watch together on 1,000 objects, with the host as a process that is killed,
ended and given other revisions besides. At the end each Deployment and ResourceWatch must be as a model expects, and the lines of
kubediff must lead from each state of each object to the next.

Usage: soak [--plugins] [--seconds N] [--seed N] [--rate N]

  --plugins    run plugins in place of informers
  --seconds N  how long things go wrong [600]; under 60: only what is recovered from in seconds
  --seed N     what faults and changes are drawn from; it is printed [from the clock]
  --rate N     changes a second [40; with --plugins 20]

Ends with 1 if something is wrong, and says what. Writes soak.json or soak-plugins.json into the target folder. With --plugins, if
something is wrong, it writes the host's logs and what the API server has into its folder soak-plugins.

Examples:
  make soak SECONDS=600
  make soak-plugins SECONDS=60 SEED=42
  soak --seconds 3600 --seed 42
";

fn main() -> ExitCode {
    match soaked() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn soaked() -> Result<bool> {
    let (mut seconds, mut seed, mut rate, mut of_plugins) = (600, clock(), None, false);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number =
            || words.next().and_then(|number| number.parse::<u64>().ok()).context(format!("{word} wants a number"));
        match word.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(true);
            }
            "--plugins" => of_plugins = true,
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            "--rate" => {
                let number = u32::try_from(number()?).ok().filter(|rate| (1..=1000).contains(rate));
                rate = Some(number.context("--rate is from 1 to 1000")?);
            }
            _ => bail!("{word} is not known: see soak --help"),
        }
    }
    let folder = tempfile::tempdir().context("cannot create a folder for the server")?;
    let rate = rate.unwrap_or(if of_plugins { 20 } else { 40 });
    let order = Order { lasts: Duration::from_secs(seconds), seed, rate, folder: folder.path().to_owned() };
    println!("{seconds} s, seed {seed}");
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    let say = |line: &str| println!("{line}");
    if of_plugins {
        let report = runtime.block_on(plugins::run(&order, say))?;
        print!("\n{}", report.table());
        save("soak-plugins.json", &report)?;
        return Ok(report.wrong.is_empty());
    }
    let report = runtime.block_on(run(&order, say))?;
    print!("\n{}", report.table());
    save("soak.json", &report)?;
    Ok(report.wrong.is_empty())
}

/// Writes a report into the target folder.
fn save(name: &str, report: &impl Serialize) -> Result<()> {
    let target = env::var_os("CARGO_TARGET_DIR").filter(|target| !target.is_empty()).unwrap_or_else(|| "target".into());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(target).join(name);
    let text = serde_json::to_string_pretty(report).context("cannot write the report")? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::from(since.subsec_nanos()) ^ since.as_secs())
}
