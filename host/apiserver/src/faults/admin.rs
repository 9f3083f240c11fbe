//! Faults and snapshots over HTTP, under paths that no Kubernetes client uses.
//!
//! Answers are a line of text or a table, for people. The answer to a new rule and the list of rules are also available
//! as JSON.

use std::{collections::BTreeMap, fmt::Write as _};

use bytes::Bytes;
use http::{Response, StatusCode, header, request};
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;

use super::{
    Listed, RuleId,
    rule::{By, InvalidRule, Requests, Rule, word},
};
use crate::{
    body,
    handle::{Body, respond},
    object::to_json,
    request::text_header,
    server::{Server, Snapshot},
};

/// Upper bound for snapshots. Each keeps the objects that have changed since.
const MAX_SNAPSHOTS: usize = 16;
/// The longest name of a snapshot: the length of a DNS label.
const MAX_NAME: usize = 63;

/// The snapshots taken over HTTP, by name.
#[derive(Debug, Default)]
pub(crate) struct Snapshots(Mutex<BTreeMap<String, Snapshot>>);

/// An answer: a code, and text or JSON.
struct Reply {
    code: StatusCode,
    json: bool,
    content: Bytes,
}

type Result<T> = std::result::Result<T, Reply>;

impl Reply {
    fn text(code: StatusCode, text: impl Into<String>) -> Self {
        let mut text = text.into();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Reply { code, json: false, content: text.into() }
    }

    fn ok(text: impl Into<String>) -> Self {
        Self::text(StatusCode::OK, text)
    }

    fn json(code: StatusCode, value: &impl serde::Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or_default();
        Reply { code, json: true, content: to_json(&value) }
    }
}

impl From<InvalidRule> for Reply {
    fn from(error: InvalidRule) -> Self {
        Reply::text(StatusCode::BAD_REQUEST, error.to_string())
    }
}

/// Answers a request to `/debug/`. `path` is the rest of the path.
pub(crate) async fn answer<B>(server: &Server, head: &request::Parts, incoming: B, path: &[String]) -> Response<Body>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let reply = match body::read(incoming).await {
        Ok(body) => perform(server, head, &body, path).unwrap_or_else(|refused| refused),
        Err(status) => Reply::text(status.code, status.message),
    };
    let content_type = if reply.json { "application/json" } else { "text/plain; charset=utf-8" };
    respond(reply.code, content_type, reply.content)
}

fn perform(server: &Server, head: &request::Parts, body: &[u8], path: &[String]) -> Result<Reply> {
    let faults = server.faults();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match (head.method.as_str(), path.as_slice()) {
        ("GET", ["faults"]) if text_header(&head.headers, header::ACCEPT).contains("json") => {
            Ok(Reply::json(StatusCode::OK, &faults.list()))
        }
        ("GET", ["faults"]) => Ok(Reply::ok(table(&faults.list()))),
        ("POST", ["faults"]) => {
            let id = faults.add(parse(body)?)?;
            Ok(Reply::json(StatusCode::CREATED, &json!({ "id": id })))
        }
        ("DELETE", ["faults"]) => {
            faults.clear();
            Ok(Reply::ok("no rule is left"))
        }
        ("DELETE", ["faults", id]) => match id.parse().map(RuleId) {
            Ok(id) if faults.remove(id) => Ok(Reply::ok(format!("rule {id} is removed"))),
            _ => Err(Reply::text(StatusCode::NOT_FOUND, format!("no rule {id}: GET /debug/faults lists them"))),
        },
        ("POST", ["faults", "cut"]) => cut(server, body),
        ("POST", ["compact"]) => {
            server.compact();
            Ok(Reply::ok(format!("the history before revision {} is forgotten", server.revision())))
        }
        (method, ["snapshots", rest @ ..]) => snapshots(server, method, rest, body),
        _ => Err(unknown()),
    }
}

fn unknown() -> Reply {
    Reply::text(
        StatusCode::NOT_FOUND,
        "possible are\n  GET, POST, DELETE /debug/faults\n  DELETE /debug/faults/ID\n  POST /debug/faults/cut\n  POST \
         /debug/compact\n  GET, POST /debug/snapshots\n  DELETE /debug/snapshots/NAME\n  POST /debug/snapshots/NAME/restore",
    )
}

/// The body of a request to cut open watches. Without a member, they end in an orderly way.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CutNow {
    on: Requests,
    /// Ends them with an ERROR event of this code.
    error: Option<u16>,
    /// Ends their connections.
    by: Option<By>,
}

fn cut(server: &Server, body: &[u8]) -> Result<Reply> {
    let cut: CutNow = if body.trim_ascii().is_empty() { CutNow::default() } else { parse(body)? };
    let count = match (cut.error, cut.by) {
        (None, None) => server.faults().cut(&cut.on)?,
        (Some(code), None) => server.faults().fail(&cut.on, code)?,
        (None, Some(by)) => server.faults().disconnect(&cut.on, by)?,
        (Some(_), Some(_)) => {
            return Err(InvalidRule::new("by", "error and by exclude each other: leave one out").into());
        }
    };
    Ok(Reply::json(StatusCode::OK, &json!({ "cut": count })))
}

/// The body of a request for a snapshot.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    name: String,
}

fn snapshots(server: &Server, method: &str, path: &[&str], body: &[u8]) -> Result<Reply> {
    let mut kept = server.snapshots.0.lock();
    let missing =
        |name: &str| Reply::text(StatusCode::NOT_FOUND, format!("no snapshot {name}: GET /debug/snapshots lists them"));
    match (method, path) {
        ("GET", []) => {
            let list: serde_json::Map<_, _> =
                kept.iter().map(|(name, snapshot)| (name.clone(), snapshot.revision().into())).collect();
            Ok(Reply::json(StatusCode::OK, &list))
        }
        ("POST", []) => {
            let Name { name } = parse(body)?;
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(allowed) {
                let why = format!("use 1 to {MAX_NAME} letters, digits, '-', '_' and '.'");
                return Err(InvalidRule::new("name", why).into());
            }
            if kept.len() >= MAX_SNAPSHOTS && !kept.contains_key(&name) {
                let why = format!("there are already {MAX_SNAPSHOTS} snapshots: DELETE some");
                return Err(InvalidRule::new("name", why).into());
            }
            let snapshot = server.snapshot();
            let revision = snapshot.revision();
            kept.insert(name.clone(), snapshot);
            Ok(Reply::json(StatusCode::CREATED, &json!({"name": name, "revision": revision})))
        }
        ("POST", [name, "restore"]) => {
            let snapshot = kept.get(*name).ok_or_else(|| missing(name))?;
            server.restore(snapshot);
            Ok(Reply::json(StatusCode::OK, &json!({"name": name, "revision": snapshot.revision()})))
        }
        ("DELETE", [name]) => match kept.remove(*name) {
            Some(_) => Ok(Reply::ok(format!("snapshot {name} is forgotten"))),
            None => Err(missing(name)),
        },
        _ => Err(unknown()),
    }
}

/// Parses JSON. An error names the field.
fn parse<T: DeserializeOwned>(body: &[u8]) -> std::result::Result<T, InvalidRule> {
    let mut text = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let field = match error.path().to_string().as_str() {
            "." => "body".to_owned(),
            path => path.to_owned(),
        };
        let why = error.into_inner().to_string();
        // serde's own text names Rust's variants.
        let why = match () {
            () if why.contains("unit variant, expected") => {
                "it has members, as in {\"delay\": {\"milliseconds\": 5}}".to_owned()
            }
            () if why.contains("expected unit") => "it is a word, without members".to_owned(),
            () => why,
        };
        InvalidRule::new(field, why)
    })?;
    text.end().map_err(|error| InvalidRule::new("body", error.to_string()))?;
    Ok(parsed)
}

/// Returns the rules as a table for people.
fn table(rules: &[Listed]) -> String {
    let mut rows = vec![["ID", "HITS", "OVER", "ON", "FAULT"].map(ToOwned::to_owned)];
    rows.extend(rules.iter().map(|Listed { id, hits, over, rule }| {
        let over = if *over { "yes" } else { "no" };
        [id.to_string(), hits.to_string(), over.to_owned(), on(rule), fault(rule)]
    }));
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3)];
    let mut text = String::new();
    for [id, hits, over, on, fault] in &rows {
        let [w0, w1, w2, w3] = widths;
        writeln!(text, "{id:w0$}  {hits:w1$}  {over:w2$}  {on:w3$}  {fault}").expect("writing to a string succeeds");
    }
    text
}

fn on(rule: &Rule) -> String {
    let Requests { resource, verbs, namespace, user_agent } = &rule.on;
    let verbs: Vec<String> = verbs.iter().copied().map(word).collect();
    let mut text = if verbs.is_empty() { resource.clone() } else { format!("{} {resource}", verbs.join(",")) };
    if let Some(namespace) = namespace {
        text.push_str(" in ");
        text.push_str(namespace);
    }
    if let Some(user_agent) = user_agent {
        text.push_str(" by ");
        text.push_str(user_agent);
    }
    text
}

/// Returns the other members of a rule as JSON.
fn fault(rule: &Rule) -> String {
    let mut value = serde_json::to_value(rule).unwrap_or_default();
    if let Some(members) = value.as_object_mut() {
        members.remove("on");
        let usual = |member: &str, value: &serde_json::Value| {
            (member == "performed" && *value == false) || (member == "often" && *value == "always")
        };
        members.retain(|member, value| !usual(member, value));
    }
    value.to_string()
}
