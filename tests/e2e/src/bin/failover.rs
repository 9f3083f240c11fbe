//! `failover [--rounds N] [--seed N] [--replicas N] [--rate N]`: strikes the acting one of several hosts again and again, on a real API server.

use std::{env, fs, process::ExitCode};

use anyhow::{Context, Result, bail};
use pilothouse_e2e::{
    failover::{DEFAULT, Order, run_alone},
    host::built,
};

const HELP: &str = "\
Runs two and then three hosts with leader election on a real kube-apiserver, while 100 changes a second are made. The one that
acts is ended, killed, stopped and cut off, in an order that the seed determines. In the end the API server's audit log shows
whether two hosts worked at one key at overlapping times, and whether one wrote after it might not any more. No change may be lost.

Usage: failover [--rounds N] [--seed N] [--replicas N] [--rate N]

  --rounds N    how often the acting host is struck [50]
  --seed N      what faults and changes are drawn from; it is printed [from the clock]
  --replicas N  number of hosts [2 in the first half of the rounds, then 3]
  --rate N      changes a second [100]

Ends with 1 if something is wrong, and says what. Writes failover.json into the target folder, and if something is wrong, all logs
into its folder failover.

Examples:
  make failover
  make failover ROUNDS=5 SEED=42
  failover --rounds 10 --replicas 3
";

/// Number of MyApples.
const OBJECTS: u32 = 100;

fn main() -> ExitCode {
    match failed_over() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("failover: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn failed_over() -> Result<bool> {
    let mut order =
        Order { rounds: 50, seed: clock(), replicas: None, election: Some(DEFAULT), objects: OBJECTS, rate: 100 };
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number =
            || words.next().and_then(|number| number.parse::<u32>().ok()).context(format!("{word} wants a number"));
        match word.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(true);
            }
            "--rounds" => order.rounds = usize::try_from(number()?)?,
            "--seed" => order.seed = number()?.into(),
            "--replicas" => {
                let hosts = usize::try_from(number()?).ok().filter(|hosts| (2..=5).contains(hosts));
                order.replicas = Some(hosts.context("--replicas is from 2 to 5")?);
            }
            "--rate" => {
                order.rate =
                    Some(number()?).filter(|rate| (1..=1000).contains(rate)).context("--rate is from 1 to 1000")?;
            }
            _ => bail!("{word} is not known: see failover --help"),
        }
    }
    println!("{} rounds, seed {}", order.rounds, order.seed);
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    let report = runtime.block_on(run_alone(&order, |line| println!("{line}")))?;
    print!("\n{}", report.table());
    let path = built("failover.json");
    let text = serde_json::to_string_pretty(&report).context("cannot write the report")? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(report.wrong.is_empty())
}

fn clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() & 0xffff_ffff)
}
