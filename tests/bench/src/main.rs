//! `pilothouse-bench [LINE…]`: measures all lines or those named, prints a table, and writes `bench.json` into the target folder.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use pilothouse_bench::lines::{ALL, Line, Measure, named};
use pilothouse_bench::report::{Measured, Row, shown, table};

/// Before a line's name: measure it once, in this process, and print the values as JSON.
const MEASURE: &str = "--measure";
/// The same of the line's peer.
const MEASURE_PEER: &str = "--measure-peer";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [MEASURE, name] => line(name).and_then(|line| measure(line.measure)),
        [MEASURE_PEER, name] => {
            line(name).and_then(|line| measure(line.peer.context("that line has no peer")?.measure))
        }
        [] => run(&ALL.iter().collect::<Vec<_>>()),
        ref names => names.iter().map(|name| line(name)).collect::<Result<Vec<_>>>().and_then(|lines| run(&lines)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn line(name: &str) -> Result<&'static Line> {
    named(name).with_context(|| {
        let names: Vec<&str> = ALL.iter().map(|line| line.name).collect();
        format!("there is no line {name:?}; there are {}", names.join(", "))
    })
}

fn measure(measure: Measure) -> Result<()> {
    println!("{}", serde_json::to_string(&measure()?).context("cannot write the values")?);
    Ok(())
}

/// Measures `lines`. A line that fails is named, and the others are measured all the same.
fn run(lines: &[&Line]) -> Result<()> {
    let path = target()?.join("bench.json");
    let before = load();
    let (mut measured, mut failed) = (Vec::new(), Vec::new());
    for line in lines {
        match rounds(line) {
            Ok(figures) => measured.extend(figures),
            Err(error) => {
                eprintln!("{}: {error:#}", line.name);
                failed.push(line.name);
            }
        }
    }
    let rows: Vec<Row> = measured.iter().filter_map(Measured::row).collect();
    fs::write(&path, serde_json::to_string_pretty(&rows).context("cannot write the report")? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;

    print!("{}", table(&measured));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("\nmedians of several rounds, each in a process of its own; spread: the lowest and the highest round");
    println!("{cores} cores; load {before} before, {} after; written to {}", load(), path.display());
    ensure!(failed.is_empty(), "could not be measured: {}", failed.join(", "));
    Ok(())
}

/// All rounds of a line, and of its peer in turn with it, so that a noisy neighbour meets both.
fn rounds(line: &Line) -> Result<Vec<Measured>> {
    let (mut own, mut peers) = (Vec::new(), Vec::new());
    for round in 1..=line.rounds {
        let values = in_child(MEASURE, line)?;
        ensure!(values.len() == line.figures.len(), "{} values of {}", values.len(), line.figures.len());
        let said: Vec<String> = line
            .figures
            .iter()
            .zip(&values)
            .map(|(figure, value)| format!("{} {}", shown(*value), figure.unit))
            .collect();
        eprintln!("{}: round {round} of {}: {}", line.name, line.rounds, said.join(", "));
        own.push(values);
        if let Some(peer) = line.peer {
            let values = in_child(MEASURE_PEER, line)?;
            let said: Vec<String> = values.iter().copied().map(shown).collect();
            eprintln!("{}: round {round} of {}: {}: {}", line.name, line.rounds, peer.name, said.join(", "));
            peers.push(values);
        }
    }
    let column =
        |rounds: &[Vec<f64>], index: usize| rounds.iter().filter_map(|round| round.get(index).copied()).collect();
    let figures = line.figures.iter().enumerate().map(|(index, figure)| Measured {
        name: figure.name,
        unit: figure.unit,
        budget: figure.budget,
        rounds: column(&own, index),
        peer: line.peer.map(|peer| (peer.name, column(&peers, index))),
    });
    Ok(figures.collect())
}

/// Measures once in a process of its own; what it says goes to standard error.
fn in_child(what: &str, line: &Line) -> Result<Vec<f64>> {
    let itself = env::current_exe().context("cannot find the program itself")?;
    let child = Command::new(itself).args([what, line.name]).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = child.context("cannot start a round")?;
    if !output.status.success() {
        bail!("a round ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("a round gave no values")
}

/// Where cargo builds: `target`, or what `CARGO_TARGET_DIR` says.
fn target() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").filter(|target| !target.is_empty());
    let path = root.join(target.unwrap_or_else(|| "target".into()));
    path.canonicalize().with_context(|| format!("nothing was built into {}", path.display()))
}

/// How many threads wanted to run in the last minute.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").to_owned()
}
