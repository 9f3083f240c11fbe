//! What came of cases, for people.

use std::{
    fmt::Write as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    case::Case,
    check::{check, writes},
    compare::{Difference, Update},
    fill::fill,
    parked::Parked,
    plugin::Plugin,
    record::{self, Seen},
    world::{Happened, World},
};

/// Lines about what has happened in a step that failed.
const TOLD: usize = 30;

/// What came of one case.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) file: Arc<Path>,
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) took: Duration,
    /// `None` if the case passed.
    pub(super) failure: Option<String>,
    /// What `--update` would write.
    pub(super) updates: Vec<Update>,
}

/// Runs a case to its end, or until it cannot go on. `fills`: the updates have what an empty `then` would be.
pub(super) fn run(plugin: &Plugin, case: &Case, fills: bool) -> Verdict {
    let began = Instant::now();
    let mut updates = Vec::new();
    let ran = Parked::run(async |parked| steps(plugin, case, parked, fills, &mut updates).await);
    record::end();
    let failure = match ran {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(error) => Some(format!("cannot be run: {error:#}")),
    };
    let Case { file, name, line, .. } = case;
    Verdict { file: file.clone(), name: name.clone(), line: *line, took: began.elapsed(), failure, updates }
}

async fn steps(
    plugin: &Plugin,
    case: &Case,
    parked: Parked,
    fills: bool,
    updates: &mut Vec<Update>,
) -> Result<(), String> {
    let mut world = match World::begin(plugin, case, parked).await {
        Ok(world) => world,
        Err(error) => return Err(told(&format!("the case cannot begin: {error:#}"), &seen_so_far())),
    };
    let mut failed = None;
    for (number, step) in (1..).zip(&case.steps) {
        if !step.when.is_empty() && number == 1 {
            // What the given state has caused is not part of the first step.
            let happened = world.happened().await;
            let unexpected: Vec<_> = check(&step.at_the_start(), &happened, &world).await;
            if !unexpected.is_empty() {
                return Err(told(&listed(case, "before the first step", &unexpected), &happened));
            }
        }
        let refused = match world.perform(&step.when).await {
            Ok(refused) => refused,
            Err(error) => {
                let happened = world.happened().await;
                return Err(told(
                    &format!("{}:{}: step {number}: {error:#}", case.file.display(), step.line),
                    &happened,
                ));
            }
        };
        let happened = Happened { refused, ..world.happened().await };
        let differences = check(step, &happened, &world).await;
        if differences.is_empty() {
            if let Some(empty) = step.empty.as_ref().filter(|_| fills) {
                updates.push(fill(empty, &happened, &world).await);
            }
            continue;
        }
        updates.extend(differences.iter().filter_map(|difference| difference.update.clone()));
        let step = if case.steps.len() == 1 { String::new() } else { format!("step {number}") };
        failed.get_or_insert_with(|| told(&listed(case, &step, &differences), &happened));
    }
    failed.map_or(Ok(()), Err)
}

fn seen_so_far() -> Happened {
    Happened { seen: record::take(), ..Happened::default() }
}

fn listed(case: &Case, step: &str, differences: &[Difference]) -> String {
    let mut text = String::new();
    if !step.is_empty() {
        let _ = writeln!(text, "{step}:");
    }
    for Difference { line, message, .. } in differences {
        let _ = writeln!(text, "{}:{line}: {message}", case.file.display());
    }
    text.trim_end().to_owned()
}

/// Adds what has happened.
fn told(failure: &str, happened: &Happened) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut writes = writes(happened).into_iter();
    for seen in &happened.seen {
        lines.extend(match seen {
            Seen::Wrote { error, .. } => {
                let write = writes.next().unwrap_or_default();
                Some(error.as_ref().map_or_else(|| write.clone(), |error| format!("{write}: {error}")))
            }
            Seen::Reconciled { key, error, requeue_after, .. } => Some(match (error, requeue_after) {
                (Some(_), _) => format!("reconciled {key}: failed"),
                (None, Some(after)) => format!("reconciled {key}, again after {}", super::check::written(*after)),
                (None, None) => format!("reconciled {key}"),
            }),
            Seen::Logged { level, line } => Some(format!("log {level}: {line}")),
            Seen::Warned(line) => Some(format!("host: {line}")),
            Seen::Died { .. } => None,
        });
    }
    lines.extend(happened.waits_for.iter().map(|waits| format!("the plugin waits for {waits}")));
    if lines.is_empty() {
        return format!("{failure}\nwhat happened: nothing");
    }
    let more = lines.len().saturating_sub(TOLD);
    lines.truncate(TOLD);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    format!("{failure}\nwhat happened:\n  {}", lines.join("\n  "))
}
