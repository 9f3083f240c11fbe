//! `pilothouse test`: runs cases against a plugin, in the real sandbox, through the real dispatcher, with an API server
//! in memory.
//!
//! ```text
//! files ─► cases ─► jobs, a world for each case ─► verdicts ─► text
//! ```

mod case;
mod check;
mod compare;
mod fill;
mod junit;
mod parked;
mod plugin;
mod record;
mod report;
mod servers;
mod update;
mod world;

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use parking_lot::Mutex;
use tracing::Level;
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use self::{
    case::Case,
    compare::Update,
    plugin::Plugin,
    record::Recorder,
    report::{Verdict, run},
    update::{Updated, update},
};
use super::config::{self, CacheArgs};
use crate::causes::with_causes;

/// Test a plugin with cases in YAML
///
/// Runs each case in a world of its own: an API server in memory with the objects that the case gives, and the plugin
/// in the sandbox, as the host runs it. Time stands still and moves only as the case says. docs/testing.md describes
/// the format.
///
/// Exits with 0 if all cases pass, with 1 if one fails, and with 2 if the arguments or a case file are wrong.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse test target/plugins/myapple.wasm plugins/myapple/cases
  pilothouse test greeter.wasm cases/morning.yaml --filter card --verbose
  pilothouse test greeter.wasm cases --update
  pilothouse test greeter.wasm cases --jobs 2 --junit target/cases.xml")]
pub(super) struct Args {
    /// The plugin: a component, or a core module that wit-bindgen made
    #[arg(value_name = "PLUGIN.wasm")]
    plugin: PathBuf,
    /// Files of cases, or folders of *.yaml files
    #[arg(value_name = "CASES", required = true)]
    cases: Vec<PathBuf>,
    /// Run only the cases whose file or name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Cases that run at once [default: the number of cores]
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Write what was found into the case files, in place of what was expected, and run the cases again
    ///
    /// Changes expectations that are there and differ, and fills an empty `then: {}` with what has happened. Adds no
    /// other, and removes none. Comments stay, except in a list whose length changes, and in a map that loses a member.
    #[arg(long)]
    update: bool,
    /// Write the results into this file as JUnit XML, for CI
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Name the cases that pass, too
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    cache: CacheArgs,
}

/// Exit code for wrong arguments and case files, as for arguments that clap refuses.
const MISUSE: u8 = 2;

pub(super) fn main(args: Args) -> ExitCode {
    match test(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", with_causes(error.as_ref()));
            ExitCode::from(MISUSE)
        }
    }
}

/// Returns `true` if all cases pass.
fn test(args: Args) -> anyhow::Result<bool> {
    let seen = Targets::new()
        .with_target("pilothouse", Level::INFO)
        .with_target("pilothouse::feed", Level::DEBUG)
        .with_target("pilothouse::plugin_log", Level::DEBUG);
    tracing_subscriber::registry().with(Recorder.with_filter(seen)).try_init().context("cannot start recording")?;
    let mut cases = read(&args.cases, args.filter.as_deref())?;
    let cache = args.cache.cache_dir.unwrap_or_else(config::cache_dir);
    let runtime = crate::app::io_runtime()?;
    let plugin = runtime
        .block_on(Plugin::load(&args.plugin, &cache))
        .with_context(|| format!("cannot test {}", args.plugin.display()))?;
    let jobs = args.jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let mut began = Instant::now();
    let mut verdicts = run_all(&plugin, &cases, jobs, args.update);
    if args.update && write(&verdicts)? {
        cases = read(&args.cases, args.filter.as_deref())?;
        began = Instant::now();
        verdicts = run_all(&plugin, &cases, jobs, false);
    }
    if let Some(path) = &args.junit {
        let xml = junit::report(plugin.name.as_str(), &verdicts);
        fs::write(path, xml).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(&verdicts, args.verbose, began.elapsed());
    runtime.shutdown_background();
    Ok(verdicts.iter().all(|verdict| verdict.failure.is_none()))
}

/// Runs the cases on `jobs` threads. The verdicts have the order of the cases. `fills`: what an empty `then` would be
/// is found out.
fn run_all(plugin: &Plugin, cases: &[Case], jobs: usize, fills: bool) -> Vec<Verdict> {
    let (next, verdicts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..jobs.min(cases.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(number) else { return };
                    let verdict = run(plugin, case, fills);
                    verdicts.lock().push((number, verdict));
                }
            });
        }
    });
    let mut verdicts = verdicts.into_inner();
    verdicts.sort_by_key(|(number, _)| *number);
    verdicts.into_iter().map(|(_, verdict)| verdict).collect()
}

fn print(verdicts: &[Verdict], verbose: bool, took: Duration) {
    for Verdict { file, name, line, took, failure, .. } in verdicts {
        match failure {
            None if verbose => println!("ok      {}:{line}: {name} ({took:.1?})", file.display()),
            None => {}
            Some(failure) => {
                println!("FAILED  {}:{line}: {name}", file.display());
                failure.lines().for_each(|line| println!("  {line}"));
                println!();
            }
        }
    }
    let failed = verdicts.iter().filter(|verdict| verdict.failure.is_some()).count();
    println!("{} passed, {failed} failed, in {:.2} s", verdicts.len() - failed, took.as_secs_f32());
}

/// Writes the updates of all cases into their files. Returns `true` if a file has changed.
fn write(verdicts: &[Verdict]) -> anyhow::Result<bool> {
    let mut files: BTreeMap<&Path, Vec<Update>> = BTreeMap::new();
    for Verdict { file, updates, .. } in verdicts {
        files.entry(&**file).or_default().extend(updates.iter().cloned());
    }
    files.retain(|_, updates| !updates.is_empty());
    for (file, updates) in &files {
        let cannot = || format!("cannot update {}", file.display());
        let Updated { text, replaced, left } = update(&fs::read_to_string(file).with_context(cannot)?, updates);
        fs::write(file, text).with_context(cannot)?;
        println!("updated {} ({replaced} values)", file.display());
        for line in left {
            println!("  {}:{line}: not updated: the text belongs to an anchor, or is empty", file.display());
        }
    }
    Ok(!files.is_empty())
}

/// Reads all case files, and leaves out the cases that do not match the filter.
fn read(paths: &[PathBuf], filter: Option<&str>) -> anyhow::Result<Vec<Case>> {
    let mut files = Vec::new();
    for path in paths {
        find(path, &mut files)?;
    }
    if files.is_empty() {
        bail!("no case file: name a file, or a folder with *.yaml files");
    }
    let (mut cases, mut mistakes) = (Vec::new(), Vec::new());
    for file in &files {
        match case::read(file) {
            Ok(found) => cases.extend(found),
            Err(found) => mistakes.extend(found.iter().map(ToString::to_string)),
        }
    }
    if !mistakes.is_empty() {
        bail!("the case files have mistakes:\n{}", mistakes.join("\n"));
    }
    if let Some(filter) = filter {
        cases.retain(|case| case.name.contains(filter) || case.file.to_string_lossy().contains(filter));
        if cases.is_empty() {
            bail!("no case matches --filter {filter:?}");
        }
    }
    Ok(cases)
}

/// Finds the case files of a path, in the order of their names. Folders in folders are searched, too.
fn find(path: &Path, into: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let cannot = || format!("cannot read cases from {}", path.display());
    if !fs::metadata(path).with_context(cannot)?.is_dir() {
        into.push(path.to_owned());
        return Ok(());
    }
    let entries = fs::read_dir(path).with_context(cannot)?.collect::<Result<Vec<_>, _>>().with_context(cannot)?;
    let mut entries: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    entries.sort();
    for entry in entries {
        let is_case = entry.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if is_case || entry.is_dir() {
            find(&entry, into)?;
        }
    }
    Ok(())
}
