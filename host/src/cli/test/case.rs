//! Case files: YAML documents of given, when and then. Each document is a case.
//!
//! Everything has its line, and what is not known is an error.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::{HeaderName, HeaderValue, StatusCode};
use jiff::{SignedDuration, Timestamp};
use pilothouse_apiserver::{
    faults::{Answer, Delay, Fault, Requests, Rule, Verb},
    yaml::{
        self,
        located::{self, Content, Located, Member},
    },
};
use pilothouse_core::manifest::Operation;
use serde_json::Value;

use super::servers::Answer as HttpAnswer;

/// The time at which a case begins, if it does not say another.
const CLOCK: &str = "2026-01-01T00:00:00Z";

/// The User-Agent of the host's requests. Faults concern only them.
pub(super) const HOST: &str = "pilothouse";

/// A mistake in a case file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) file: PathBuf,
    /// 0 if it is not known.
    pub(super) line: usize,
    pub(super) message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.message),
            line => write!(f, "{}:{line}: {}", self.file.display(), self.message),
        }
    }
}

/// A line, and what is wrong there.
type Wrong = (usize, String);

/// One case.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) file: Arc<Path>,
    /// The line at which its document begins.
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) given: Given,
    pub(super) steps: Vec<Step>,
}

/// The state in which a case begins.
#[derive(Debug, Clone)]
pub(super) struct Given {
    /// Each with its line.
    pub(super) objects: Vec<(usize, Value)>,
    /// `None`: that of the file beside the plugin.
    pub(super) config: Option<Value>,
    pub(super) clock: Timestamp,
    /// How servers answer the plugin.
    pub(super) http: Vec<HttpAnswer>,
}

/// A request to the API server that the plugin reviews.
#[derive(Debug, Clone)]
pub(super) struct ReviewCall {
    /// `None`: the only one that the plugin has.
    pub(super) webhook: Option<String>,
    pub(super) operation: Operation,
    pub(super) object: Option<Value>,
    pub(super) old: Option<Value>,
    pub(super) user: String,
    pub(super) groups: Vec<String>,
    pub(super) dry_run: bool,
}

/// One step of a case.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) line: usize,
    /// Each with its line.
    pub(super) when: Vec<(usize, Action)>,
    pub(super) then: Then,
    /// If `then` is `{}`.
    pub(super) empty: Option<Empty>,
}

/// Something that happens to the cluster or to the host.
#[derive(Debug, Clone)]
pub(super) enum Action {
    /// Creates or changes an object, as `kubectl apply` does.
    Apply(Value),
    /// Merges this into an object.
    Patch(Value),
    /// Merges this into the status of an object, as its controller would.
    Status(Value),
    Delete(Reference),
    /// Lets time pass.
    Advance(Duration),
    /// Reconciles a key though nothing has changed.
    Reconcile {
        /// `None`: every controller.
        controller: Option<String>,
        namespace: Option<String>,
        name: String,
    },
    /// Replaces the configuration.
    Config(Value),
    /// Makes requests of the host fail.
    Fault(Box<Rule>),
    /// Makes servers answer the plugin in this way.
    Http(Box<HttpAnswer>),
    /// Asks a webhook of the plugin.
    Review(Box<ReviewCall>),
    /// Converts an object to another version of its kind.
    Convert {
        object: Value,
        /// An `apiVersion`.
        to: String,
    },
}

/// An empty `then`, and where it is.
#[derive(Debug, Clone)]
pub(super) struct Empty {
    pub(super) place: Located,
    /// The byte at which the step begins, and the one at which its member `then` does.
    pub(super) member: (usize, usize),
}

impl Step {
    /// Returns a step that expects no failure.
    pub(super) fn at_the_start(&self) -> Self {
        Self { line: self.line, when: Vec::new(), then: Then::default(), empty: None }
    }
}

/// What a step must come to. `None` expects nothing in particular.
#[derive(Debug, Clone, Default)]
pub(super) struct Then {
    pub(super) objects: Option<Located>,
    pub(super) absent: Option<Located>,
    pub(super) reconciled: Option<Located>,
    pub(super) requeue_after: Option<Located>,
    pub(super) error: Option<Located>,
    pub(super) refused: Option<Located>,
    pub(super) events: Option<Located>,
    pub(super) writes: Option<Located>,
    pub(super) log: Option<Located>,
    pub(super) http: Option<Located>,
    pub(super) metrics: Option<Located>,
    pub(super) review: Option<Located>,
    pub(super) converted: Option<Located>,
}

/// Names an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// Empty: `default`, or none for a cluster-scoped kind.
    pub(super) namespace: String,
    pub(super) name: String,
}

/// `v1 ConfigMap default/a`.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_version, kind, namespace, name } = self;
        let slash = if namespace.is_empty() { "" } else { "/" };
        write!(f, "{api_version} {kind} {namespace}{slash}{name}")
    }
}

impl Reference {
    /// Returns the name of an object.
    ///
    /// # Errors
    /// Something is missing.
    pub(super) fn of(object: &Value) -> Result<Self, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let found = Self {
            api_version: text(&object["apiVersion"]),
            kind: text(&object["kind"]),
            namespace: text(&object["metadata"]["namespace"]),
            name: text(&object["metadata"]["name"]),
        };
        let parts = [("apiVersion", &found.api_version), ("kind", &found.kind), ("metadata.name", &found.name)];
        if let Some((member, _)) = parts.into_iter().find(|(_, text)| text.is_empty()) {
            return Err(format!("an object needs {member}"));
        }
        Ok(found)
    }

    /// Reads an object, or its name as text: `v1 ConfigMap default/a`.
    ///
    /// # Errors
    /// It is neither.
    pub(super) fn read(node: &Located) -> Result<Self, String> {
        let Content::Scalar(Value::String(text)) = &node.content else { return Self::of(&node.value()) };
        let mut words = text.split_whitespace();
        let (Some(api_version), Some(kind), Some(object), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(format!("{text:?} does not name an object; write `v1 ConfigMap default/name`"));
        };
        let (namespace, name) = object.split_once('/').unwrap_or(("", object));
        let [api_version, kind, namespace, name] = [api_version, kind, namespace, name].map(str::to_owned);
        Ok(Self { api_version, kind, namespace, name })
    }
}

/// Reads the cases of a file.
///
/// # Errors
/// All mistakes of the file.
pub(super) fn read(file: &Path) -> Result<Vec<Case>, Vec<Mistake>> {
    let wrong = |(line, message)| vec![Mistake { file: file.to_owned(), line, message }];
    let text = fs::read_to_string(file).map_err(|error| wrong((0, format!("cannot be read: {error}"))))?;
    let documents = located::documents(&text).map_err(|error| wrong(with_line(&error.to_string())))?;
    let path: Arc<Path> = file.into();
    let (mut cases, mut mistakes): (Vec<Case>, Vec<Mistake>) = (Vec::new(), Vec::new());
    for document in &documents {
        match case(&path, document) {
            Ok(case) => match cases.iter().find(|other| other.name == case.name) {
                Some(other) => {
                    let message = format!(
                        "the case of line {} has the same name, {:?}; give each its own",
                        other.line, case.name
                    );
                    mistakes.extend(wrong((case.line, message)));
                }
                None => cases.push(case),
            },
            Err(mistake) => mistakes.extend(wrong(mistake)),
        }
    }
    if cases.is_empty() && mistakes.is_empty() {
        mistakes.extend(wrong((0, "has no case: a case has name, given, when and then".to_owned())));
    }
    if mistakes.is_empty() { Ok(cases) } else { Err(mistakes) }
}

/// Takes the line out of the parser's message, if it begins with one.
fn with_line(message: &str) -> Wrong {
    let found = message.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    let found = found.and_then(|(line, why)| Some((line.parse().ok()?, why.to_owned())));
    found.unwrap_or_else(|| (0, message.to_owned()))
}

fn case(file: &Arc<Path>, document: &Located) -> Result<Case, Wrong> {
    let map = members(document, "a case", &["name", "given", "steps", "when", "then"])?;
    let name = text(find(map, "name").ok_or((document.line, "a case needs a name".to_owned()))?, "name")?;
    let given = given(file, document.get("given"))?;
    let is_short = document.get("when").is_some() || document.get("then").is_some();
    let steps = match document.get("steps") {
        Some(steps) if is_short => {
            return Err((steps.line, "a case has either steps, or when and then".to_owned()));
        }
        Some(steps) => list(steps, "steps")?.iter().map(step).collect::<Result<_, _>>()?,
        None if is_short => vec![step_of(document)?],
        None => return Err((document.line, "a case needs steps, or when and then".to_owned())),
    };
    Ok(Case { file: file.clone(), line: document.line, name, given, steps })
}

fn given(file: &Path, node: Option<&Located>) -> Result<Given, Wrong> {
    let mut given =
        Given { objects: Vec::new(), config: None, clock: CLOCK.parse().expect("it is a time"), http: Vec::new() };
    let Some(node) = node else { return Ok(given) };
    for member in members(node, "given", &["objects", "config", "clock", "http"])? {
        let value = &member.value;
        match &*member.name {
            "objects" => {
                for item in list(value, "objects")? {
                    match item.get("file") {
                        Some(path) => given.objects.extend(objects_of(file, item, path)?),
                        None => {
                            let object = item.value();
                            Reference::of(&object).map_err(|why| (item.line, why))?;
                            given.objects.push((item.line, object));
                        }
                    }
                }
            }
            "config" => given.config = Some(value.value()),
            "http" => given.http = list(value, "http")?.iter().map(http_answer).collect::<Result<_, _>>()?,
            _ => {
                let time = text(value, "clock")?;
                given.clock =
                    time.parse().map_err(|error| (value.line, format!("clock is not a time like {CLOCK}: {error}")))?;
            }
        }
    }
    Ok(given)
}

/// Reads the objects of `file: PATH`, which is relative to the case file.
fn objects_of(file: &Path, item: &Located, path: &Located) -> Result<Vec<(usize, Value)>, Wrong> {
    members(item, "an object of a file", &["file"])?;
    let path = file.parent().unwrap_or(Path::new("")).join(text(path, "file")?);
    let cannot = |why: String| (item.line, format!("cannot use {}: {why}", path.display()));
    let text = fs::read_to_string(&path).map_err(|error| cannot(error.to_string()))?;
    let (documents, error) = yaml::documents(&text);
    if let Some(error) = error {
        return Err(cannot(error.to_string()));
    }
    let objects = documents.into_iter().map(|document| document.value).filter(|value| !value.is_null());
    let objects = objects.map(|object| Reference::of(&object).map(|_| (item.line, object)).map_err(cannot));
    objects.collect()
}

fn step(node: &Located) -> Result<Step, Wrong> {
    members(node, "a step", &["when", "then"])?;
    step_of(node)
}

fn step_of(node: &Located) -> Result<Step, Wrong> {
    let when = match node.get("when") {
        None => Vec::new(),
        Some(when) => {
            let actions = if let Content::List(items) = &when.content { items } else { std::slice::from_ref(when) };
            actions.iter().map(action).collect::<Result<_, _>>()?
        }
    };
    let then = node.get("then").map(then).transpose()?.unwrap_or_default();
    let member = node.members().iter().find(|member| member.name == "then");
    let is_empty = |member: &&Member| matches!(&member.value.content, Content::Map(members) if members.is_empty());
    let empty = member
        .filter(is_empty)
        .map(|member| Empty { place: member.value.clone(), member: (node.range.start, member.range.start) });
    Ok(Step { line: node.line, when, then, empty })
}

const ACTIONS: [&str; 11] =
    ["apply", "patch", "status", "delete", "advance", "reconcile", "config", "fault", "http", "review", "convert"];

fn action(node: &Located) -> Result<(usize, Action), Wrong> {
    let [member] = members(node, "when", &ACTIONS)? else {
        let several = "one entry of when does one thing; write `when` as a list for several";
        return Err((node.line, several.to_owned()));
    };
    let (value, line) = (&member.value, member.line);
    let object = |needs_name: bool| {
        let object = value.value();
        match Reference::of(&object) {
            Err(_) if !needs_name && object["metadata"]["generateName"].is_string() => Ok(object),
            Err(why) => Err((line, why)),
            Ok(_) => Ok(object),
        }
    };
    let action = match &*member.name {
        "apply" => Action::Apply(object(false)?),
        "patch" => Action::Patch(object(true)?),
        "status" => {
            let object = object(true)?;
            if object["status"].is_null() {
                return Err((line, "`status` needs an object with a status".to_owned()));
            }
            Action::Status(object)
        }
        "delete" => Action::Delete(Reference::read(value).map_err(|why| (line, why))?),
        "advance" => Action::Advance(duration(value)?),
        "reconcile" => {
            let (controller, key) = if value.members().is_empty() {
                (None, text(value, "reconcile")?)
            } else {
                let map = members(value, "reconcile", &["controller", "key"])?;
                let part = |name| find(map, name).map(|node| text(node, name)).transpose();
                let key = part("key")?.ok_or((line, "`reconcile` needs a key".to_owned()))?;
                (part("controller")?, key)
            };
            let (namespace, name) = match key.split_once('/') {
                Some((namespace, name)) => (Some(namespace.to_owned()), name.to_owned()),
                None => (None, key),
            };
            Action::Reconcile { controller, namespace, name }
        }
        "config" => Action::Config(value.value()),
        "http" => Action::Http(Box::new(http_answer(value)?)),
        "review" => Action::Review(Box::new(review(value)?)),
        "convert" => convert(value)?,
        _ => Action::Fault(Box::new(fault(value)?)),
    };
    Ok((line, action))
}

fn fault(node: &Located) -> Result<Rule, Wrong> {
    let members = members(
        node,
        "fault",
        &["resource", "verbs", "code", "message", "retryAfter", "delay", "hang", "times", "performed"],
    )?;
    let mut on = Requests { user_agent: Some(HOST.to_owned()), ..Requests::default() };
    let (mut fault, mut times, mut performed) = (None, Some(1), false);
    let (mut message, mut retry_after) = (None, None);
    for Member { name, value, .. } in members {
        let wrong = |why: &str| (value.line, why.to_owned());
        match &**name {
            "resource" => on.resource = text(value, "resource")?,
            "verbs" => {
                let verbs = list(value, "verbs")?.iter().map(|verb| {
                    serde_json::from_value::<Verb>(verb.value()).map_err(|error| (verb.line, error.to_string()))
                });
                on.verbs = verbs.collect::<Result<_, _>>()?;
            }
            "code" => {
                let code = value.value().as_u64().and_then(|code| u16::try_from(code).ok());
                let code = code.ok_or_else(|| wrong("code is an HTTP status from 400 to 599"))?;
                fault = Some(Fault::Status(Answer::code(code)));
            }
            "message" => message = Some(text(value, "message")?),
            "retryAfter" => retry_after = u32::try_from(duration(value)?.as_secs()).ok(),
            "delay" => {
                let milliseconds = u32::try_from(duration(value)?.as_millis()).unwrap_or(u32::MAX);
                fault = Some(Fault::Delay(Delay { milliseconds, up_to: None }));
            }
            "hang" if value.value() == true => fault = Some(Fault::Hang),
            "hang" => return Err(wrong("write `hang: true`")),
            "performed" => performed = value.value().as_bool().ok_or_else(|| wrong("performed is true or false"))?,
            _ => {
                times = match value.value() {
                    Value::String(word) if word == "always" => None,
                    number => Some(
                        number
                            .as_u64()
                            .filter(|times| *times > 0)
                            .ok_or_else(|| wrong("times is a number, or always"))?,
                    ),
                }
            }
        }
    }
    let mut fault = fault.ok_or((node.line, "a fault needs code, delay or hang".to_owned()))?;
    if let Fault::Status(answer) = &mut fault {
        answer.message = message;
        answer.retry_after_seconds = retry_after;
    }
    let rule = Rule { performed, ..Rule::new(fault).on(on) };
    Ok(match times {
        Some(times) => rule.times(times),
        None => rule,
    })
}

fn http_answer(node: &Located) -> Result<HttpAnswer, Wrong> {
    let known = ["url", "method", "status", "headers", "body", "delay", "unreachable", "times"];
    let mut answer = HttpAnswer {
        method: None,
        url: String::new(),
        status: StatusCode::OK,
        headers: Vec::new(),
        body: bytes::Bytes::new(),
        delay: Duration::ZERO,
        is_unreachable: false,
        times: None,
    };
    for Member { name, value, .. } in members(node, "an HTTP answer", &known)? {
        let wrong = |why: &str| (value.line, why.to_owned());
        match &**name {
            "url" => answer.url = text(value, "url")?,
            "method" => answer.method = Some(text(value, "method")?),
            "status" => {
                let code = value.value().as_u64().and_then(|code| u16::try_from(code).ok());
                let code = code.and_then(|code| StatusCode::from_u16(code).ok());
                answer.status = code.ok_or_else(|| wrong("status is an HTTP status such as 200"))?;
            }
            "headers" => {
                for Member { name, value, .. } in value.members() {
                    let header = (HeaderName::try_from(name), HeaderValue::try_from(text(value, "a header")?));
                    let (Ok(name), Ok(value)) = header else { return Err((value.line, "is not a header".to_owned())) };
                    answer.headers.push((name, value));
                }
            }
            "body" => {
                answer.body = match value.value() {
                    Value::String(text) => text.into(),
                    json => json.to_string().into(),
                }
            }
            "delay" => answer.delay = duration(value)?,
            "unreachable" => {
                answer.is_unreachable = value.value().as_bool().ok_or_else(|| wrong("write `unreachable: true`"))?;
            }
            _ => answer.times = Some(value.value().as_u64().ok_or_else(|| wrong("times is a number"))?),
        }
    }
    if answer.url.is_empty() { Err((node.line, "an HTTP answer needs a url".to_owned())) } else { Ok(answer) }
}

fn review(node: &Located) -> Result<ReviewCall, Wrong> {
    let known = ["webhook", "operation", "object", "oldObject", "user", "groups", "dryRun"];
    let mut call = ReviewCall {
        webhook: None,
        operation: Operation::Create,
        object: None,
        old: None,
        user: "somebody".to_owned(),
        groups: Vec::new(),
        dry_run: false,
    };
    for Member { name, value, .. } in members(node, "a review", &known)? {
        let wrong = |why: &str| (value.line, why.to_owned());
        match &**name {
            "webhook" => call.webhook = Some(text(value, "webhook")?),
            "operation" => {
                let word = text(value, "operation")?;
                let operation = Operation::ALL.into_iter().find(|operation| operation.as_str() == word);
                call.operation = operation.ok_or_else(|| wrong("operation is CREATE, UPDATE, DELETE or CONNECT"))?;
            }
            "object" | "oldObject" => {
                let object = value.value();
                Reference::of(&object).map_err(|why| (value.line, why))?;
                *(if name == "object" { &mut call.object } else { &mut call.old }) = Some(object);
            }
            "user" => call.user = text(value, "user")?,
            "groups" => call.groups = texts(value, "groups")?,
            _ => call.dry_run = value.value().as_bool().ok_or_else(|| wrong("dryRun is true or false"))?,
        }
    }
    if call.object.is_none() && call.old.is_none() {
        return Err((node.line, "a review needs an object or an oldObject".to_owned()));
    }
    Ok(call)
}

fn convert(node: &Located) -> Result<Action, Wrong> {
    let map = members(node, "a conversion", &["object", "to"])?;
    let (Some(object), Some(to)) = (find(map, "object"), find(map, "to")) else {
        return Err((node.line, "a conversion needs an object, and the version `to` which it is converted".to_owned()));
    };
    let (line, object, to) = (object.line, object.value(), text(to, "to")?);
    let of = Reference::of(&object).map_err(|why| (line, why))?;
    let to = match of.api_version.split_once('/') {
        Some((group, _)) if !to.contains('/') => format!("{group}/{to}"),
        _ => to,
    };
    Ok(Action::Convert { object, to })
}

const EXPECTATIONS: [&str; 13] = [
    "objects",
    "absent",
    "reconciled",
    "requeueAfter",
    "error",
    "refused",
    "events",
    "writes",
    "log",
    "http",
    "metrics",
    "review",
    "converted",
];

fn then(node: &Located) -> Result<Then, Wrong> {
    let mut then = Then::default();
    for Member { name, value, .. } in members(node, "then", &EXPECTATIONS)? {
        let value = value.clone();
        match &**name {
            "objects" => {
                for object in list(&value, "objects")? {
                    Reference::read(object).map_err(|why| (object.line, why))?;
                }
                then.objects = Some(value);
            }
            "absent" => {
                for object in list(&value, "absent")? {
                    Reference::read(object).map_err(|why| (object.line, why))?;
                }
                then.absent = Some(value);
            }
            "reconciled" => {
                texts(&value, "reconciled")?;
                then.reconciled = Some(value);
            }
            "requeueAfter" => {
                if value.value() != "none" {
                    duration(&value)?;
                }
                then.requeue_after = Some(value);
            }
            "error" => {
                text(&value, "error")?;
                then.error = Some(value);
            }
            "refused" => {
                text(&value, "refused")?;
                then.refused = Some(value);
            }
            "events" => {
                for event in list(&value, "events")? {
                    members(event, "an Event", &["type", "reason", "message", "about", "count"])?;
                }
                then.events = Some(value);
            }
            "writes" => {
                texts(&value, "writes")?;
                then.writes = Some(value);
            }
            "http" => {
                for request in list(&value, "http")? {
                    members(request, "a request", &["method", "url", "headers", "body"])?;
                }
                then.http = Some(value);
            }
            "metrics" => {
                if !matches!(value.content, Content::Map(_)) {
                    return Err((value.line, "metrics must be a map of names and values".to_owned()));
                }
                then.metrics = Some(value);
            }
            "review" => {
                members(&value, "a review", &["allowed", "message", "code", "warnings", "object", "error"])?;
                then.review = Some(value);
            }
            "converted" => {
                if !matches!(value.content, Content::Map(_)) {
                    return Err((value.line, "converted must be an object, or a part of one".to_owned()));
                }
                then.converted = Some(value);
            }
            _ => {
                texts(&value, "log")?;
                then.log = Some(value);
            }
        }
    }
    Ok(then)
}

/// Returns the members of a map, which may have these names only.
fn members<'a>(node: &'a Located, what: &str, known: &[&str]) -> Result<&'a [Member], Wrong> {
    let Content::Map(map) = &node.content else {
        return Err((node.line, format!("{what} must be a map with {}", known.join(", "))));
    };
    match map.iter().find(|member| !known.contains(&&*member.name)) {
        Some(member) => {
            Err((member.line, format!("{} is not known here; {what} has {}", member.name, known.join(", "))))
        }
        None => Ok(map),
    }
}

fn find<'a>(members: &'a [Member], name: &str) -> Option<&'a Located> {
    members.iter().find(|member| member.name == name).map(|member| &member.value)
}

fn list<'a>(node: &'a Located, what: &str) -> Result<&'a [Located], Wrong> {
    match &node.content {
        Content::List(items) => Ok(items),
        Content::Scalar(_) | Content::Map(_) => Err((node.line, format!("{what} must be a list"))),
    }
}

fn texts(node: &Located, what: &str) -> Result<Vec<String>, Wrong> {
    list(node, what)?.iter().map(|item| text(item, what)).collect()
}

fn text(node: &Located, what: &str) -> Result<String, Wrong> {
    match &node.content {
        Content::Scalar(Value::String(text)) => Ok(text.clone()),
        Content::Scalar(Value::Number(number)) => Ok(number.to_string()),
        _ => Err((node.line, format!("{what} must be a text"))),
    }
}

/// Reads a time such as `30s`, `5m` or `1h30m`.
pub(super) fn duration(node: &Located) -> Result<Duration, Wrong> {
    let wrong = || (node.line, "a time is written like 500ms, 30s, 5m or 1h30m".to_owned());
    let Content::Scalar(Value::String(text)) = &node.content else { return Err(wrong()) };
    let duration: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(duration).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Case>, Vec<String>> {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("c.yaml");
        fs::write(&file, text).expect("a file");
        fs::write(dir.path().join("objects.yaml"), "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n")
            .expect("a file");
        let shown = |mistake: &Mistake| format!("{}: {}", mistake.line, mistake.message);
        read(&file).map_err(|mistakes| mistakes.iter().map(shown).collect())
    }

    #[test]
    fn cases_have_steps_or_one_when_and_then() {
        let text = "name: a\ngiven: {clock: 2030-01-01T00:00:00Z, objects: [{file: objects.yaml}]}\nwhen: [{advance: 1m}, {reconcile: x/y}]\n\
                    then: {writes: []}\n---\nname: b\nsteps:\n- then: {requeueAfter: none}\n- when: {delete: v1 ConfigMap a}\n";
        let cases = read_text(text).expect("they are cases");
        let [a, b] = &*cases else { panic!("{cases:?}") };
        assert_eq!((a.line, a.steps.len(), a.given.clock.to_string()), (1, 1, "2030-01-01T00:00:00Z".to_owned()));
        assert_eq!(a.given.objects[0].1["kind"], "Secret");
        assert!(
            matches!(&*a.steps[0].when, [(3, Action::Advance(time)), (3, Action::Reconcile { .. })] if time.as_secs() == 60)
        );
        assert_eq!((b.line, b.steps.len()), (6, 2));
        let Action::Delete(of) = &b.steps[1].when[0].1 else { panic!("{b:?}") };
        assert_eq!(of.to_string(), "v1 ConfigMap a");
    }

    #[test]
    fn each_mistake_has_its_line() {
        for (text, mistake) in [
            ("", "0: has no case: a case has name, given, when and then"),
            ("when: {}\nthen: {}\n", "1: a case needs a name"),
            (
                "name: a\ngiven:\n  object: []\nthen: {}\n",
                "3: object is not known here; given has objects, config, clock, http",
            ),
            ("name: a\ngiven:\n  clock: noon\nthen: {}\n", "3: clock is not a time like 2026-01-01T00:00:00Z"),
            ("name: a\n", "1: a case needs steps, or when and then"),
            ("name: a\nsteps: []\nthen: {}\n", "2: a case has either steps, or when and then"),
            ("name: a\nwhen:\n- advance: 1m\n  delete: v1 A b\n", "3: one entry of when does one thing"),
            ("name: a\nwhen:\n  apply: {kind: A}\n", "3: an object needs apiVersion"),
            ("name: a\nwhen:\n  delete: ConfigMap a\n", "3: \"ConfigMap a\" does not name an object"),
            ("name: a\nwhen:\n  advance: 10\n", "3: a time is written like 500ms, 30s, 5m or 1h30m"),
            ("name: a\nwhen:\n  fault: {verbs: [aply], code: 500}\n", "3: unknown variant `aply`"),
            ("name: a\nwhen:\n  fault: {verbs: [apply]}\n", "3: a fault needs code, delay or hang"),
            ("name: a\nwhen:\n  convert: {to: v2}\n", "3: a conversion needs an object, and the version `to`"),
            ("name: a\nthen:\n  converted: v2\n", "3: converted must be an object"),
            ("name: a\nthen:\n  writes: none\n", "3: writes must be a list"),
            ("name: a\nthen:\n  events: [{reson: A}]\n", "3: reson is not known here"),
        ] {
            let mistakes = read_text(text).expect_err("it has a mistake");
            assert!(mistakes.len() == 1 && mistakes[0].starts_with(mistake), "{text}: {mistakes:?}");
        }
    }
}
