//! What a rule says: plain data, the same in Rust and as JSON over HTTP.
//!
//! ```json
//! {"on": {"resource": "configmaps", "verbs": ["list"], "userAgent": "pilothouse"},
//!  "fault": {"status": {"code": 429, "retryAfterSeconds": 2}},
//!  "often": {"every": 3}, "count": 5}
//! ```
//!
//! A rule is checked when it is added: one that could never strike is refused, with the field that prevents it.

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

use super::subject::Matcher;

/// Which requests, what befalls them, and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Which requests. All of resources, if it says nothing.
    #[serde(default)]
    pub on: Requests,
    /// What befalls them.
    pub fault: Fault,
    /// Of [`Fault::Status`], [`Fault::Hang`] and [`Fault::Disconnect`]: the request is carried out, and only its answer is
    /// replaced. So a write happens of which the client does not know.
    #[serde(default)]
    pub performed: bool,
    /// How often.
    #[serde(default)]
    pub often: Often,
    /// It is over after so many hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<NonZeroU64>,
    /// It is over so long after it was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_milliseconds: Option<u32>,
    /// What chance is drawn from: the same seed and the same sequence of requests, the same faults. If absent, the rule's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Rule {
    /// A rule that always strikes, wherever its fault can.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Rule {
            on: Requests::default(),
            fault,
            performed: false,
            often: Often::Always,
            count: None,
            for_milliseconds: None,
            seed: None,
        }
    }

    /// The same, for these requests.
    #[must_use]
    pub fn on(self, on: Requests) -> Self {
        Rule { on, ..self }
    }

    /// The same, for the first `count` that it strikes.
    ///
    /// # Panics
    /// `count` is 0.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        let count = Some(NonZeroU64::new(count).expect("a rule strikes at least once"));
        Rule { count, ..self }
    }
}

/// Which requests: those to which all of it applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Requests {
    /// `configmaps`, `deployments.apps`, with a subresource `deployments.apps/status`, or `*`. Without a subresource: the
    /// objects and all their subresources.
    pub resource: String,
    /// Empty: every verb of resources that the fault can befall. [`Verb::Discovery`] and [`Verb::Connect`] have to be named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<Verb>,
    /// Requests to this namespace, which those over all namespaces are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Clients whose User-Agent contains this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
}

impl Default for Requests {
    fn default() -> Self {
        Requests { resource: "*".to_owned(), verbs: Vec::new(), namespace: None, user_agent: None }
    }
}

impl Requests {
    /// Requests to a resource, written as in [`Requests::resource`], with these verbs.
    #[must_use]
    pub fn to(resource: &str, verbs: &[Verb]) -> Self {
        Requests { resource: resource.to_owned(), verbs: verbs.to_vec(), ..Requests::default() }
    }
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "they are Kubernetes' own verbs")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    /// A server-side apply, which is not a `Patch` here.
    Apply,
    Delete,
    DeleteCollection,
    /// What is served, in what form, by which version: `/api`, `/apis`, `/openapi`, `/version`.
    Discovery,
    /// A connection that is accepted, before any request.
    Connect,
}

impl Verb {
    /// The verbs of resources.
    pub(super) const OF_RESOURCES: [Verb; 9] = [
        Verb::Get,
        Verb::List,
        Verb::Watch,
        Verb::Create,
        Verb::Update,
        Verb::Patch,
        Verb::Apply,
        Verb::Delete,
        Verb::DeleteCollection,
    ];
}

/// How often a rule strikes. Faults of single events count the events of each watch, all others the requests that match.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Often {
    /// Each time.
    #[default]
    Always,
    /// The nth, the 2nth, …
    Every(NonZeroU32),
    /// By chance: more than 0, at most 1.
    Probability(f64),
}

/// What befalls a request, a watch or an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// The answer comes late.
    Delay(Delay),
    /// Another answer than the server's: 401, 403, 410, 429, 500, 502, …
    Status(Answer),
    /// No answer, for as long as the client waits. On [`Verb::Connect`]: the connection is accepted and never read.
    Hang,
    /// The connection ends instead of an answer.
    Disconnect(By),
    /// The connection ends in the middle: of an answer's body, or of a watch's line.
    Truncate(Truncate),
    /// A page after the first is refused with 410, and the token with which to go on inconsistently, as after a compaction.
    ExpiredContinue,
    /// 504 with the cause `ResourceVersionTooLarge`, as from a server whose cache is behind.
    TooLargeVersion,
    /// Gets, lists and initial events show the resource as it was some changes ago, at the version that it had.
    Stale(Stale),
    /// `sendInitialEvents` is answered as by older servers.
    StreamingLists(Streaming),
    /// The watch ends before its time.
    Cut(Cut),
    /// The watch sends no events, from now on and for as long as the rule is there; then all at once.
    Hold,
    /// The watch sends nothing at all, not even its end, for as long as the rule is there: a server that died behind a live
    /// connection.
    Silence,
    /// The watch sends its events late.
    Lag(Lag),
    /// Bookmarks do not come.
    Withhold(Bookmark),
    /// An event comes twice.
    Duplicate,
    /// After an event, the one before it comes again.
    RepeatOlder,
    /// An object cannot be decoded: the answer's, one of a list's, or an event's.
    Mangle(Mangle),
}

/// How late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delay {
    /// At least this.
    pub milliseconds: u32,
    /// If it is there: a time between the two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u32>,
}

/// An answer in place of the server's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Answer {
    /// From 200 to 599.
    pub code: u16,
    /// In the Retry-After header and in the `Status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
    /// Of the `Status`; if absent, the one that Kubernetes has for the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For people; if absent, what Kubernetes says with the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The form of the body.
    #[serde(default)]
    pub body: Content,
}

impl Answer {
    /// A `Status` object with this code.
    #[must_use]
    pub fn code(code: u16) -> Self {
        Answer { code, retry_after_seconds: None, reason: None, message: None, body: Content::Status }
    }
}

/// What the body of an [`Answer`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// A Kubernetes `Status` object.
    #[default]
    Status,
    /// A page, as proxies send it.
    Html,
    /// The message alone, as kube-apiserver sends it before it knows what is asked for.
    Text,
    /// Nothing.
    Empty,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// TCP RST: `connection reset by peer`.
    #[default]
    Reset,
    /// TCP FIN: `unexpected EOF`.
    Close,
}

/// Where an answer breaks off.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Truncate {
    /// How the connection ends.
    pub by: By,
    /// Of a watch: so many events are whole, half of the next one is sent.
    pub after_events: u32,
}

/// How old.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stale {
    /// Without the last so many changes of the resource; as far as its history is kept.
    pub changes: NonZeroU32,
}

/// How a server without streaming lists answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Streaming {
    /// 422: the feature gate is off.
    Refused,
    /// As if the parameter were not there.
    Ignored,
}

/// When a watch ends before its time: at whichever comes first, or at once if it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Cut {
    /// After so many events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_events: Option<u32>,
    /// So long after it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_milliseconds: Option<u32>,
    /// With an ERROR event of this code, from 400 to 599: 410 says that the watch's version is too old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<u16>,
}

/// How late events are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lag {
    /// At least this; what is committed meanwhile waits in its turn.
    pub milliseconds: u32,
}

/// A kind of bookmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Bookmark {
    /// Those that come from time to time, and at the end.
    Periodic,
    /// The one at the end of a streaming list.
    InitialEnd,
}

/// How an object is spoilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mangle {
    /// Its second half is missing, so that the text is no JSON.
    Json,
    /// It has no metadata.
    Metadata,
}

/// A rule that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidRule {
    /// The field, by its JSON path.
    pub field: String,
    /// What is wrong with it, and what is possible.
    pub why: String,
}

impl InvalidRule {
    pub(super) fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        InvalidRule { field: field.into(), why: why.into() }
    }
}

impl Fault {
    /// What it is called in JSON.
    fn name(&self) -> &'static str {
        match self {
            Fault::Delay(_) => "delay",
            Fault::Status(_) => "status",
            Fault::Hang => "hang",
            Fault::Disconnect(_) => "disconnect",
            Fault::Truncate(_) => "truncate",
            Fault::ExpiredContinue => "expiredContinue",
            Fault::TooLargeVersion => "tooLargeVersion",
            Fault::Stale(_) => "stale",
            Fault::StreamingLists(_) => "streamingLists",
            Fault::Cut(_) => "cut",
            Fault::Hold => "hold",
            Fault::Silence => "silence",
            Fault::Lag(_) => "lag",
            Fault::Withhold(_) => "withhold",
            Fault::Duplicate => "duplicate",
            Fault::RepeatOlder => "repeatOlder",
            Fault::Mangle(_) => "mangle",
        }
    }

    /// Whether it can befall a request of this verb at all.
    pub(super) fn befalls(&self, verb: Verb) -> bool {
        match self {
            Fault::Delay(_) | Fault::Hang | Fault::Disconnect(_) => true,
            Fault::Status(_) | Fault::Truncate(_) | Fault::Mangle(_) => verb != Verb::Connect,
            Fault::ExpiredContinue => verb == Verb::List,
            Fault::TooLargeVersion | Fault::Stale(_) => matches!(verb, Verb::Get | Verb::List | Verb::Watch),
            _ => verb == Verb::Watch,
        }
    }

    /// Whether it lasts as long as its rule, instead of striking again and again.
    pub(super) fn lasts(&self) -> bool {
        matches!(self, Fault::Hold | Fault::Silence | Fault::Lag(_))
    }

    /// Whether it is of a watch that goes on, rather than of a request when it comes.
    pub(super) fn is_of_streams(&self, verb: Verb) -> bool {
        match self {
            Fault::Mangle(_) => verb == Verb::Watch,
            Fault::Withhold(_) | Fault::Duplicate | Fault::RepeatOlder => true,
            other => other.lasts(),
        }
    }
}

impl Rule {
    /// What it is about, if it can be.
    pub(super) fn check(&self) -> Result<Matcher, InvalidRule> {
        let name = self.fault.name();
        for verb in &self.on.verbs {
            if !self.fault.befalls(*verb) {
                let possible = Verb::OF_RESOURCES.into_iter().chain([Verb::Discovery, Verb::Connect]);
                let possible: Vec<String> = possible.filter(|verb| self.fault.befalls(*verb)).map(word).collect();
                let why = format!("{name} cannot befall {}: possible are {}", word(*verb), possible.join(", "));
                return Err(InvalidRule::new("on.verbs", why));
            }
        }
        self.check_place()?;
        self.check_frequency()?;
        self.check_fault()?;
        Matcher::new(&self.on, |verb| self.fault.befalls(verb))
    }

    fn check_place(&self) -> Result<(), InvalidRule> {
        let Requests { resource, verbs, namespace, user_agent } = &self.on;
        for verb in verbs.iter().filter(|verb| matches!(verb, Verb::Discovery | Verb::Connect)) {
            let why = || format!("{} is of no resource and no namespace: leave it out", word(*verb));
            if resource != "*" {
                return Err(InvalidRule::new("on.resource", why()));
            }
            if namespace.is_some() {
                return Err(InvalidRule::new("on.namespace", why()));
            }
            if *verb == Verb::Connect && user_agent.is_some() {
                let why = "nobody knows who connects: leave it out, or name other verbs than connect";
                return Err(InvalidRule::new("on.userAgent", why));
            }
        }
        let replaces = matches!(self.fault, Fault::Status(_) | Fault::Hang | Fault::Disconnect(_));
        if self.performed && (!replaces || verbs.contains(&Verb::Connect)) {
            let why = "only of a request's status, hang and disconnect: leave it out";
            return Err(InvalidRule::new("performed", why));
        }
        Ok(())
    }

    fn check_frequency(&self) -> Result<(), InvalidRule> {
        if let Often::Probability(chance) = self.often
            && !(chance > 0.0 && chance <= 1.0)
        {
            let why = format!("{chance} is no chance: possible is more than 0, and at most 1");
            return Err(InvalidRule::new("often.probability", why));
        }
        if self.fault.lasts() {
            let name = self.fault.name();
            let why = format!("{name} lasts until its rule is removed, or for forMilliseconds: leave it out");
            if self.often != Often::Always {
                return Err(InvalidRule::new("often", why));
            }
            if self.count.is_some() {
                return Err(InvalidRule::new("count", why));
            }
        }
        Ok(())
    }

    fn check_fault(&self) -> Result<(), InvalidRule> {
        match &self.fault {
            Fault::Delay(Delay { milliseconds, up_to: Some(up_to) }) if up_to < milliseconds => {
                Err(InvalidRule::new("fault.delay.upTo", format!("less than the {milliseconds} milliseconds at least")))
            }
            Fault::Status(answer) if !(200..600).contains(&answer.code) => {
                Err(InvalidRule::new("fault.status.code", format!("{}: possible are 200 to 599", answer.code)))
            }
            // HTTP knows no body with these.
            Fault::Status(Answer { code: code @ (204 | 205 | 304), body, .. }) if *body != Content::Empty => {
                Err(InvalidRule::new("fault.status.body", format!("{code} has none: say empty")))
            }
            Fault::Cut(Cut { error: Some(code), .. }) if !(400..600).contains(code) => {
                Err(InvalidRule::new("fault.cut.error", format!("{code} is no error: possible are 400 to 599")))
            }
            _ => Ok(()),
        }
    }
}

/// A verb as JSON has it.
pub(super) fn word(verb: Verb) -> String {
    format!("{verb:?}").to_lowercase()
}
