//! `pilothouse-bench [LINE…]`: measures all lines or those named, prints a table, and writes `bench.json` into the
//! target folder.

use std::{
    env, fs,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use pilothouse_bench::{
    lines::{ALL, Line, Measure, Peer, named},
    processes,
    report::{Measured, Others, Row, shown, table},
    target,
};

/// Option before a line's name: measures it once, in this process, and prints the values as JSON.
const MEASURE: &str = "--measure";
/// Option before a line's name and a peer's position: measures that peer.
const MEASURE_PEER: &str = "--measure-peer";
/// Option before a name: runs as that process of a line.
const BE: &str = "--be";
/// The host's command for its compiler process. Some lines run a host, or its engine, in this program.
const COMPILE: &str = "compile";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == COMPILE) {
        return pilothouse::cli::main();
    }
    // As the host does, because some lines run it in this process.
    pilothouse::allocator::give_back_large_buffers();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [MEASURE, name] => line(name).and_then(|line| measure(line.measure)),
        [MEASURE_PEER, name, place] => peer(name, place).and_then(|peer| measure(peer.measure)),
        [BE, name] => processes::be(name),
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

fn peer(line_name: &str, place: &str) -> Result<&'static Peer> {
    let place: usize = place.parse().context("a peer's place is a number")?;
    line(line_name)?.peers.get(place).context("that line has no such peer")
}

fn measure(measure: Measure) -> Result<()> {
    println!("{}", serde_json::to_string(&measure()?).context("cannot write the values")?);
    Ok(())
}

/// Measures `lines`. If a line fails, the error names it, and the others are still measured.
fn run(lines: &[&Line]) -> Result<()> {
    let path = target()?.join("bench.json");
    let before = load();
    let (mut measured, mut failed, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        match rounds(line, &mut absent) {
            Ok(figures) => measured.extend(figures),
            Err(error) => {
                eprintln!("{}: {error:#}", line.name);
                failed.push(line.name);
            }
        }
    }
    let rows: Vec<Row> = measured.iter().flat_map(Measured::rows).collect();
    fs::write(&path, serde_json::to_string_pretty(&rows).context("cannot write the report")? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;

    print!("{}", table(&measured));
    for name in &absent {
        println!("not measured: {name}");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("\nmedians of several rounds, each in a process of its own; spread: the lowest and the highest round");
    println!("{cores} cores; load {before} before, {} after; written to {}", load(), path.display());
    ensure!(failed.is_empty(), "could not be measured: {}", failed.join(", "));
    Ok(())
}

/// A peer of a line and its measured rounds.
struct Side<'a> {
    peer: &'a Peer,
    /// Its position among the line's peers.
    place: usize,
    is_ready: bool,
    rounds: Vec<Vec<f64>>,
}

/// Measures all rounds of a line, in turn with its peers, so that noise hits all of them. Adds what cannot be measured
/// here to `absent`, with the reason.
fn rounds(line: &Line, absent: &mut Vec<String>) -> Result<Vec<Measured>> {
    if let Err(why) = (line.prepare)() {
        leave_out(format!("{}: {why:#}", line.name), absent);
        return Ok(Vec::new());
    }
    let mut sides: Vec<Side<'_>> =
        line.peers.iter().enumerate().map(|(place, peer)| side(line, place, peer, absent)).collect();
    let mut own = Vec::new();
    for round in 1..=line.rounds {
        let at = format!("{}: round {round} of {}", line.name, line.rounds);
        let values = in_child(&[MEASURE, line.name])?;
        ensure!(values.len() == line.figures.len(), "{} values of {}", values.len(), line.figures.len());
        eprintln!("{at}: {}", said(line, &values));
        own.push(values);
        for side in sides.iter_mut().filter(|side| side.is_ready) {
            let values = side.measure(line)?;
            eprintln!("{at}: {}: {}", side.peer.name, said(line, &values));
            side.rounds.push(values);
        }
    }
    let figures = line.figures.iter().enumerate().map(|(index, figure)| Measured {
        name: figure.name,
        unit: figure.unit,
        budget: figure.budget,
        rounds: column(&own, index),
        peers: sides.iter().map(|side| side.beside(index, figure.name)).collect(),
    });
    Ok(figures.collect())
}

fn side<'a>(line: &Line, place: usize, peer: &'a Peer, absent: &mut Vec<String>) -> Side<'a> {
    let ready = (peer.prepare)();
    let is_ready = ready.is_ok();
    if let Err(why) = ready {
        leave_out(format!("{}: {}: {why:#}", line.name, peer.name), absent);
    }
    Side { peer, place, is_ready, rounds: Vec::new() }
}

fn leave_out(what: String, absent: &mut Vec<String>) {
    eprintln!("not measured: {what}");
    absent.push(what);
}

impl Side<'_> {
    fn measure(&self, line: &Line) -> Result<Vec<f64>> {
        let Self { peer, place, .. } = self;
        let values = in_child(&[MEASURE_PEER, line.name, &place.to_string()])
            .with_context(|| format!("{} cannot be measured", peer.name))?;
        let is_there =
            |of: &str| line.figures.iter().position(|figure| figure.name == of).is_none_or(|at| at < values.len());
        ensure!(peer.allows.iter().all(|(of, _)| is_there(of)), "{} lacks a figure that a budget rests on", peer.name);
        Ok(values)
    }

    fn beside(&self, index: usize, figure: &str) -> Others {
        Others {
            name: self.peer.name,
            rounds: column(&self.rounds, index),
            allows: self.peer.allows.iter().find(|(name, _)| *name == figure).map(|&(_, times)| times),
        }
    }
}

/// Returns one figure of each round.
fn column(rounds: &[Vec<f64>], index: usize) -> Vec<f64> {
    rounds.iter().filter_map(|round| round.get(index).copied()).collect()
}

fn said(line: &Line, values: &[f64]) -> String {
    let figures = line.figures.iter().zip(values);
    figures.map(|(figure, value)| format!("{} {}", shown(*value), figure.unit)).collect::<Vec<_>>().join(", ")
}

/// Measures once in a new process. Its messages go to standard error.
fn in_child(arguments: &[&str]) -> Result<Vec<f64>> {
    let itself = env::current_exe().context("cannot find the program itself")?;
    let child = Command::new(itself).args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = child.context("cannot start a round")?;
    if !output.status.success() {
        bail!("a round ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("a round gave no values")
}

/// The load average of the last minute.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").to_owned()
}
