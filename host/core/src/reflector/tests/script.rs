//! Plays scripts, whose lines say `what happened => what is to be done`, to the machine.
//!
//! ```text
//! resolved                   an input as it is called
//! page 7 a@5 b@6 + T         a page of a list of version 7: objects and their versions, continue token T
//! added a@8, modified …      a line of a watch; `deep a@8`: the object nests too deep
//! bookmark 9, complete 9     bookmarks; the latter with the annotation that ends the initial events
//! error 410, status 503      an ERROR event, an HTTP status; `status 429 after 7`: with Retry-After
//! restored                   another reflector has said `tell`
//! pass 120                   nothing happens for so many seconds
//! ```
//! A wait is checked for its range: `wait 0.8..1.6`, in seconds, the end excluded.

use std::{ops::Range, time::Duration};

use crate::{
    key::TypeMeta,
    list::Status,
    object::{Keep, Object},
    reflector::{Config, Effect, Failure, Input, PAGE_SIZE, Reflector, State, machine::WATCH_FOR},
};

pub(in crate::reflector) fn config() -> Config {
    Config {
        of: TypeMeta::new("v1", "ConfigMap"),
        keep: Keep::default(),
        page_size: PAGE_SIZE,
        streaming: true,
        seen: None,
        seed: 11,
    }
}

/// Plays scripts one after the other, and returns the effects of all.
pub(super) fn play(scripts: &[&str]) -> Vec<Effect> {
    play_on(&mut Reflector::new(config()), scripts)
}

/// The same with a machine of the caller's.
pub(super) fn play_on(reflector: &mut Reflector, scripts: &[&str]) -> Vec<Effect> {
    let mut now = Duration::from_secs(1_000_000);
    let mut all = Vec::new();
    for line in scripts.iter().flat_map(|script| script.lines()).map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(seconds) = line.strip_prefix("pass ") {
            now += Duration::from_secs(seconds.parse().unwrap());
            continue;
        }
        let (input, expected) = line.split_once("=>").unwrap();
        let input = input.trim();
        if input == "elapsed"
            && let Some(Effect::Wait(delay)) = all.last()
        {
            now += *delay;
        }
        let mut effects = Vec::new();
        feed(reflector, now, input, &mut effects);
        compare(line, expected, &effects);
        all.append(&mut effects);
    }
    all
}

fn feed(reflector: &mut Reflector, now: Duration, input: &str, effects: &mut Vec<Effect>) {
    let (verb, rest) = input.split_once(' ').unwrap_or((input, ""));
    let bytes;
    let input = match verb {
        "start" => Input::Start,
        "resolved" => Input::Resolved,
        "opened" => Input::Opened,
        "ended" => Input::Ended,
        "restored" => Input::Restored,
        "elapsed" => Input::Elapsed,
        "cut" => Input::Failed(Failure::Transport("connection reset".to_owned())),
        "missing" => Input::Failed(Failure::Missing("no such kind".to_owned())),
        "gone" => Input::Failed(Failure::Gone("no such kind any more".to_owned())),
        "status" => Input::Failed(Failure::Status(status(rest))),
        "body" => Input::Page(rest.as_bytes()),
        "page" => {
            bytes = page(rest);
            Input::Page(bytes.as_bytes())
        }
        "line" => Input::Line(rest.as_bytes()),
        "added" | "modified" | "deleted" => {
            let deep = if rest.starts_with("deep ") {
                format!(r#""spec":{}{},"#, "[".repeat(200), "]".repeat(200))
            } else {
                String::new()
            };
            let rest = rest.trim_start_matches("deep ");
            let object = object(rest, &format!(r#"{deep}"apiVersion":"v1","kind":"ConfigMap","#));
            bytes = format!(r#"{{"type":"{}","object":{object}}}"#, verb.to_uppercase());
            Input::Line(bytes.as_bytes())
        }
        "bookmark" | "complete" => {
            let end = if verb == "complete" { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
            let object = format!(r#"{{"kind":"ConfigMap","metadata":{{"resourceVersion":"{rest}"{end}}}}}"#);
            bytes = format!(r#"{{"type":"BOOKMARK","object":{object}}}"#);
            Input::Line(bytes.as_bytes())
        }
        "error" => {
            let Status { code, reason, message, retry_after } = status(rest);
            let details = retry_after.map_or(0, |after| after.as_secs());
            bytes = format!(
                r#"{{"type":"ERROR","object":{{"kind":"Status","status":"Failure","message":"{message}","reason":"{reason}","code":{code},"details":{{"retryAfterSeconds":{details}}}}}}}"#
            );
            Input::Line(bytes.as_bytes())
        }
        other => panic!("{other:?} is no input"),
    };
    reflector.step(now, input, effects);
}

/// `503`, `429 after 7`, `504 too large after 1`, `403 words of the message`.
fn status(text: &str) -> Status {
    let (text, after) = text.split_once(" after ").map_or((text, None), |(text, after)| (text, Some(after)));
    let (code, words) = text.split_once(' ').unwrap_or((text, "status of the test"));
    let message = if words == "too large" { "Timeout: Too large resource version: 9, current: 7" } else { words };
    Status {
        code: code.parse().unwrap(),
        reason: "Because".to_owned(),
        message: message.to_owned(),
        retry_after: after.map(|after| Duration::from_secs(after.parse().unwrap())),
    }
}

/// `a@5`.
fn object(text: &str, kind: &str) -> String {
    let (name, version) = text.split_once('@').unwrap();
    format!(r#"{{{kind}"metadata":{{"name":"{name}","namespace":"ns","uid":"{name}","resourceVersion":"{version}"}}}}"#)
}

/// `7 a@5 b@6 + T`.
fn page(text: &str) -> String {
    let (text, token) = text.split_once(" + ").unwrap_or((text, ""));
    let mut words = text.split(' ');
    let version = words.next().unwrap();
    let items: Vec<_> = words.map(|item| object(item, "")).collect();
    let meta = format!(r#"{{"resourceVersion":"{version}","continue":"{token}"}}"#);
    format!(r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{meta},"items":[{}]}}"#, items.join(","))
}

fn compare(line: &str, expected: &str, effects: &[Effect]) {
    let mut expected = expected.split(", ").map(str::trim).filter(|word| !word.is_empty());
    let mut waiting = None;
    for effect in effects {
        let word = expected.next().unwrap_or_else(|| panic!("{line}\nand then too much: {effect:?}"));
        match effect {
            Effect::Wait(delay) => {
                assert!(range(word).contains(delay), "{line}\nwaits {delay:?}");
                assert_eq!(*delay, waiting.take().unwrap_or(*delay), "{line}");
            }
            Effect::State(State::Waiting { delay, .. }) => {
                assert_eq!(word, "waiting", "{line}");
                waiting = Some(*delay);
            }
            effect => assert_eq!(word, in_a_word(effect), "{line}\nin {effects:?}"),
        }
    }
    let rest: Vec<_> = expected.collect();
    assert!(rest.is_empty(), "{line}\nlacks {rest:?} after {effects:?}");
}

/// `wait 0.8..1.6`.
fn range(word: &str) -> Range<Duration> {
    let seconds = word.strip_prefix("wait ").and_then(|word| word.split_once(".."));
    let (low, high) = seconds.unwrap_or_else(|| panic!("{word:?} is no wait"));
    Duration::from_secs_f64(low.parse().unwrap())..Duration::from_secs_f64(high.parse().unwrap())
}

fn in_a_word(effect: &Effect) -> String {
    let item = |object: &Object| format!("{}@{}", object.key().name, object.resource_version());
    match effect {
        Effect::Resolve => "resolve".to_owned(),
        Effect::List { limit: 0, continue_token: None, resource_version: Some(version) } => {
            format!("list all since {version}")
        }
        Effect::List { limit, continue_token: None, resource_version: None } => format!("list {limit}"),
        Effect::List { limit, continue_token: Some(token), resource_version: None } => {
            format!("list {limit} from {token}")
        }
        Effect::List { .. } => format!("{effect:?}"),
        Effect::Watch { resource_version, initial_events, timeout } => {
            assert!((WATCH_FOR.0..WATCH_FOR.1).contains(timeout), "{timeout:?}");
            match initial_events {
                true if resource_version.is_empty() => "stream".to_owned(),
                true => format!("stream {resource_version}"),
                false => format!("watch {resource_version}"),
            }
        }
        Effect::Wait(_) | Effect::State(State::Waiting { .. }) => unreachable!("compared by range"),
        Effect::BeginReplace { went_back: false } => "begin".to_owned(),
        Effect::BeginReplace { went_back: true } => "begin back".to_owned(),
        Effect::Upsert(object) => format!("upsert {}", item(object)),
        Effect::Remove(object) => format!("remove {}", item(object)),
        Effect::FinishReplace { version } => format!("finish {version}"),
        Effect::AbortReplace => "abort".to_owned(),
        Effect::Covered(version) => format!("covered {version}"),
        Effect::Synced => "synced".to_owned(),
        Effect::Unreadable { .. } => "unreadable".to_owned(),
        Effect::Relist(reason) => format!("relist {}", reason.as_str()),
        Effect::Restored => "tell".to_owned(),
        Effect::State(State::Resolving) => "resolving".to_owned(),
        Effect::State(State::Missing(_)) => "missing".to_owned(),
        Effect::State(State::Listing) => "listing".to_owned(),
        Effect::State(State::Watching) => "watching".to_owned(),
        Effect::State(State::Unauthenticated(_)) => "unauthenticated".to_owned(),
        Effect::State(State::Denied(_)) => "denied".to_owned(),
    }
}
