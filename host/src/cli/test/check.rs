//! Compares what has happened in a step with what it must come to.

use std::{collections::BTreeMap, time::Duration};

use pilothouse_apiserver::yaml::located::{Content, Located};
use serde_json::{Value, json};

use super::{
    case::{Reference, Step, duration},
    compare::{Difference, Update, compare, shown},
    record::Seen,
    world::{Happened, World},
};

/// Returns all differences.
pub(super) async fn check(step: &Step, happened: &Happened, world: &World<'_>) -> Vec<Difference> {
    let (then, mut found) = (&step.then, Vec::new());
    failures(step, happened, &mut found);
    for node in then.objects.iter().flat_map(Located::items) {
        object(node, world, &mut found).await;
    }
    for node in then.absent.iter().flat_map(Located::items) {
        let Ok(of) = Reference::read(node) else { continue };
        match world.get(&of).await {
            Ok(None) => {}
            Ok(Some(object)) => {
                let held = object["metadata"].get("finalizers").map(|held| format!("; its finalizers are {held}"));
                let held = held.filter(|_| object["metadata"]["deletionTimestamp"].is_string()).unwrap_or_default();
                found.push(plain(node.line, format!("{of}: expected none, found one{held}")));
            }
            Err(why) => found.push(plain(node.line, why)),
        }
    }
    if let Some(node) = &then.reconciled {
        let keys: Vec<_> = last_reconciles(happened).into_keys().map(Value::from).collect();
        exactly("reconciled", node, &Value::Array(keys), true, &mut found);
    }
    if let Some(node) = &then.requeue_after {
        requeue_after(node, happened, &mut found);
    }
    if let Some(node) = &then.events {
        let events: Vec<Value> = happened.events.iter().map(event).collect();
        compare(node, &events.into(), "events", &mut found);
    }
    if let Some(node) = &then.writes {
        exactly("writes", node, &writes(happened).into(), false, &mut found);
    }
    if let Some(node) = &then.http {
        compare(node, &happened.requests.clone().into(), "http", &mut found);
    }
    found.extend(happened.unanswered.iter().map(|request| {
        plain(step.line, format!("the plugin sent {request}, and neither given.http nor an action answers that"))
    }));
    if let Some(node) = &then.metrics {
        compare(node, &world.metrics(), "metrics", &mut found);
    }
    if let Some(node) = &then.review {
        match happened.reviews.last() {
            Some(review) => compare(node, review, "review", &mut found),
            None => found.push(plain(node.line, "review: no action of this step asks for a review".to_owned())),
        }
    }
    if let Some(node) = &then.converted {
        match happened.conversions.last() {
            Some(Ok(object)) => compare(node, object, "converted", &mut found),
            // It is among the failures.
            Some(Err(_)) => {}
            None => found.push(plain(node.line, "converted: no action of this step converts an object".to_owned())),
        }
    }
    for node in then.log.iter().flat_map(Located::items) {
        let wanted = node.value();
        let wanted = wanted.as_str().unwrap_or_default();
        let lines = happened.seen.iter().filter_map(|seen| match seen {
            Seen::Logged { line, .. } => Some(line.as_str()),
            _ => None,
        });
        let lines: Vec<&str> = lines.collect();
        if !lines.iter().any(|line| line.contains(wanted)) {
            let there = if lines.is_empty() { "none".to_owned() } else { format!("{lines:?}") };
            found.push(plain(node.line, format!("log: expected a line with {wanted:?}, found {there}")));
        }
    }
    found
}

fn plain(line: usize, message: String) -> Difference {
    Difference { line, message, update: None }
}

/// Compares errors with the expected one. What fails and is not expected fails the case.
fn failures(step: &Step, happened: &Happened, found: &mut Vec<Difference>) {
    let mut errors = Vec::new();
    for seen in &happened.seen {
        match seen {
            Seen::Died { call, error, backtrace } => {
                let mut message = format!("{call} failed: {error}");
                for frame in backtrace.lines() {
                    message.push_str("\n    ");
                    message.push_str(frame);
                }
                errors.push((error.clone(), message));
            }
            // A call that died is in the list already, with its backtrace.
            Seen::Reconciled { key, error: Some(error), .. } if !errors.iter().any(|(known, _)| known == error) => {
                errors.push((error.clone(), format!("reconcile of {key} failed: {error}")));
            }
            _ => {}
        }
    }
    let conversions = happened.conversions.iter().filter_map(|converted| converted.as_ref().err());
    errors.extend(conversions.map(|error| (error.clone(), format!("the conversion failed: {error}"))));
    match &step.then.error {
        None => found.extend(errors.into_iter().map(|(_, message)| plain(step.line, message))),
        Some(node) => {
            let wanted = node.value();
            let wanted = wanted.as_str().unwrap_or_default();
            if !errors.iter().any(|(error, _)| error.contains(wanted)) {
                let there: Vec<&str> = errors.iter().map(|(error, _)| error.as_str()).collect();
                let there = if there.is_empty() { "none".to_owned() } else { there.join("; ") };
                found.push(Difference {
                    line: node.line,
                    message: format!("error: expected one with {wanted:?}, found {there}"),
                    update: errors.first().map(|(error, _)| Update::new(node, error.as_str().into())),
                });
            }
        }
    }
    match &step.then.refused {
        None => {
            let unexpected =
                happened.refused.iter().map(|why| plain(step.line, format!("the API server refused it: {why}")));
            found.extend(unexpected);
        }
        Some(node) => {
            let wanted = node.value();
            let wanted = wanted.as_str().unwrap_or_default();
            if !happened.refused.iter().any(|why| why.contains(wanted)) {
                let there = if happened.refused.is_empty() { "none".to_owned() } else { happened.refused.join("; ") };
                found.push(Difference {
                    line: node.line,
                    message: format!("refused: expected an error with {wanted:?}, found {there}"),
                    update: happened.refused.first().map(|why| Update::new(node, why.as_str().into())),
                });
            }
        }
    }
}

/// Compares one object.
async fn object(node: &Located, world: &World<'_>, found: &mut Vec<Difference>) {
    let Ok(of) = Reference::read(node) else { return };
    match world.get(&of).await {
        Ok(Some(actual)) if matches!(node.content, Content::Map(_)) => {
            let (of, before) = (Reference::of(&actual).unwrap_or(of), found.len());
            compare(node, &actual, "", found);
            for difference in found.iter_mut().skip(before) {
                difference.message = format!("{of}: {}", difference.message);
            }
        }
        Ok(Some(_)) => {}
        Ok(None) => {
            let names = world.names(&of).await;
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            found.push(plain(
                node.line,
                format!("{of}: expected one, and it does not exist; of this kind there are: {there}"),
            ));
        }
        Err(why) => found.push(plain(node.line, why)),
    }
}

/// Compares a list of texts as a whole.
fn exactly(what: &str, node: &Located, actual: &Value, is_set: bool, found: &mut Vec<Difference>) {
    let mut wanted = node.value();
    if is_set && let Value::Array(items) = &mut wanted {
        items.sort_by_key(ToString::to_string);
        items.dedup();
    }
    if wanted != *actual {
        let lines = |value: &Value| {
            let items = value.as_array().into_iter().flatten();
            let items: Vec<String> = items.map(|item| item.as_str().unwrap_or_default().to_owned()).collect();
            if items.is_empty() { " none".to_owned() } else { format!("\n      {}", items.join("\n      ")) }
        };
        found.push(Difference {
            line: node.line,
            message: format!("{what}:\n    expected:{}\n    found:{}", lines(&wanted), lines(actual)),
            update: Some(Update::new(node, actual.clone())),
        });
    }
}

/// Returns the requeue-after of the last reconcile of each key, in the order of keys.
pub(super) fn last_reconciles(happened: &Happened) -> BTreeMap<&str, Option<Duration>> {
    let ended = happened.seen.iter().filter_map(|seen| match seen {
        Seen::Reconciled { key, requeue_after, .. } => Some((key.as_str(), *requeue_after)),
        _ => None,
    });
    ended.collect()
}

fn requeue_after(node: &Located, happened: &Happened, found: &mut Vec<Difference>) {
    let wanted = duration(node).ok();
    let all = last_reconciles(happened);
    let is_met = match wanted {
        None => all.values().all(Option::is_none),
        Some(wanted) => {
            let mut times = all.values().flatten().peekable();
            times.peek().is_some() && times.all(|time| *time == wanted)
        }
    };
    if !is_met {
        let text = |time: &Option<Duration>| time.map_or_else(|| "none".to_owned(), written);
        let there: Vec<String> = all.iter().map(|(key, time)| format!("{} of {key}", text(time))).collect();
        let there = if there.is_empty() { "no reconcile".to_owned() } else { there.join(", ") };
        let now = all.values().flatten().next().copied();
        found.push(Difference {
            line: node.line,
            message: format!("requeueAfter: expected {}, found {there}", shown(&node.value())),
            update: Some(Update::new(node, text(&now).into())),
        });
    }
}

/// Returns a time as a case has it.
pub(super) fn written(time: Duration) -> String {
    let (seconds, millis) = (time.as_secs(), time.subsec_millis());
    match (seconds, millis) {
        (0, millis) => format!("{millis}ms"),
        (seconds, 0) if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        (seconds, 0) if seconds % 60 == 0 => format!("{}m", seconds / 60),
        (seconds, 0) => format!("{seconds}s"),
        _ => format!("{seconds}s{millis}ms"),
    }
}

/// Returns an Event as a case has it.
pub(super) fn event(event: &Value) -> Value {
    let about = &event["involvedObject"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    json!({
        "type": event["type"], "reason": event["reason"], "message": event["message"], "count": event["count"],
        "about": format!("{} {}", text(&about["kind"]), text(&about["name"])),
    })
}

/// Returns the writes as a case has them.
pub(super) fn writes(happened: &Happened) -> Vec<String> {
    let writes = happened.seen.iter().filter_map(|seen| match seen {
        Seen::Wrote { verb, kind, object, error, .. } => {
            let failed = error.as_ref().map_or("", |_| " (failed)");
            Some(format!("{verb} {kind} {object}{failed}"))
        }
        _ => None,
    });
    writes.collect()
}
