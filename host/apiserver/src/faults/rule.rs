//! The data of a rule, the same in Rust and as JSON over HTTP.
//!
//! ```json
//! {"on": {"resource": "configmaps", "verbs": ["list"], "userAgent": "pilothouse"},
//!  "fault": {"status": {"code": 429, "retryAfterSeconds": 2}},
//!  "often": {"every": 3}, "count": 5}
//! ```
//!
//! A rule is checked when it is added. A rule that could never apply is rejected, and the error names the field.

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

use super::subject::Matcher;

/// A fault rule: which requests, which fault, and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Which requests. By default, all requests for resources.
    #[serde(default)]
    pub on: Requests,
    /// Which fault.
    pub fault: Fault,
    /// For [`Fault::Status`], [`Fault::Hang`] and [`Fault::Disconnect`]: `true` carries the request out and replaces
    /// only its answer. A write then happens without the client's knowledge.
    #[serde(default)]
    pub performed: bool,
    /// How often.
    #[serde(default)]
    pub often: Often,
    /// The rule is over after this many hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<NonZeroU64>,
    /// The rule is over this long after it was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_milliseconds: Option<u32>,
    /// The seed of random draws. The same seed and sequence of requests give the same faults. By default, the rule's
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Rule {
    /// Creates a rule that applies to every request that its fault can affect.
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

    /// Limits the rule to these requests.
    #[must_use]
    pub fn on(self, on: Requests) -> Self {
        Rule { on, ..self }
    }

    /// Limits the rule to `count` hits.
    ///
    /// # Panics
    /// `count` is 0.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        let count = Some(NonZeroU64::new(count).expect("a rule strikes at least once"));
        Rule { count, ..self }
    }
}

/// Selects requests. All members must match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Requests {
    /// `configmaps`, `deployments.apps`, `deployments.apps/status` or `*`. Without a subresource it selects the objects
    /// and all their subresources.
    pub resource: String,
    /// Empty selects every verb of resources that the fault can affect. [`Verb::Discovery`] and [`Verb::Connect`] must
    /// be named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<Verb>,
    /// Requests for this namespace. Requests over all namespaces do not match.
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
    /// Selects requests for a resource, written as in [`Requests::resource`], with these verbs.
    #[must_use]
    pub fn to(resource: &str, verbs: &[Verb]) -> Self {
        Requests { resource: resource.to_owned(), verbs: verbs.to_vec(), ..Requests::default() }
    }
}

/// The verb of a request.
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
    /// A server-side apply, which does not count as `Patch`.
    Apply,
    Delete,
    DeleteCollection,
    /// Requests for `/api`, `/apis`, `/openapi` and `/version`.
    Discovery,
    /// An accepted connection, before any request.
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

/// How often a rule applies. Faults of single events count the events of each watch; all others count matching
/// requests.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Often {
    /// Each time.
    #[default]
    Always,
    /// The nth, the 2nth, …
    Every(NonZeroU32),
    /// At random, with this probability: more than 0, at most 1.
    Probability(f64),
}

/// A fault of a request, a watch or an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// The answer is delayed.
    Delay(Delay),
    /// The answer is replaced, for example by 401, 403, 410, 429, 500 or 502.
    Status(Answer),
    /// There is no answer. With [`Verb::Connect`], the connection is accepted and never read.
    Hang,
    /// The connection ends instead of an answer.
    Disconnect(By),
    /// The connection ends in the middle of an answer's body or a watch's line.
    Truncate(Truncate),
    /// A page after the first is rejected with 410 and a token for an inconsistent continuation, as after a compaction.
    ExpiredContinue,
    /// 504 with the cause `ResourceVersionTooLarge`, as from a server whose cache is behind.
    TooLargeVersion,
    /// Gets, lists and initial events show the resource as it was some changes ago, with its version of that time.
    Stale(Stale),
    /// `sendInitialEvents` is answered as older servers do.
    StreamingLists(Streaming),
    /// The watch ends early.
    Cut(Cut),
    /// The watch sends no events while the rule exists, and then all at once.
    Hold,
    /// The watch sends nothing while the rule exists, not even its end, like a dead server behind a live connection.
    Silence,
    /// The watch delays its events.
    Lag(Lag),
    /// Bookmarks are not sent.
    Withhold(Bookmark),
    /// An event is sent twice.
    Duplicate,
    /// After an event, the previous event is sent again.
    RepeatOlder,
    /// An object cannot be decoded: that of the answer, one of a list, or that of an event.
    Mangle(Mangle),
}

/// The length of a delay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delay {
    /// The least delay.
    pub milliseconds: u32,
    /// The greatest delay. If set, the delay is drawn from between the two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u32>,
}

/// An answer that replaces the server's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Answer {
    /// From 200 to 599.
    pub code: u16,
    /// The value for the Retry-After header and the `Status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
    /// The reason in the `Status`. By default, Kubernetes' reason for the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The message. By default, Kubernetes' message for the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The form of the body.
    #[serde(default)]
    pub body: Content,
}

impl Answer {
    /// Creates an answer with a `Status` of this code.
    #[must_use]
    pub fn code(code: u16) -> Self {
        Answer { code, retry_after_seconds: None, reason: None, message: None, body: Content::Status }
    }
}

/// The form of the body of an [`Answer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// A Kubernetes `Status` object.
    #[default]
    Status,
    /// An HTML page, as proxies send it.
    Html,
    /// Only the message, as kube-apiserver sends it before it knows the requested resource.
    Text,
    /// No body.
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

/// Where an answer is cut off.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Truncate {
    /// How the connection ends.
    pub by: By,
    /// For a watch, the number of whole events before half of the next one is sent.
    pub after_events: u32,
}

/// How old the shown state is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stale {
    /// Number of the resource's last changes that are not shown, limited by the kept history.
    pub changes: NonZeroU32,
}

/// How a server without streaming lists answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Streaming {
    /// Answers 422, as with the feature gate off.
    Refused,
    /// Ignores the parameter.
    Ignored,
}

/// When a watch ends early: at whichever comes first, or at once if neither is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Cut {
    /// After this many events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_events: Option<u32>,
    /// This long after the watch began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_milliseconds: Option<u32>,
    /// Ends with an ERROR event of this code, from 400 to 599. 410 means that the watch's version is too old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<u16>,
}

/// The delay of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lag {
    /// The least delay. Events committed meanwhile wait in order.
    pub milliseconds: u32,
}

/// A kind of bookmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Bookmark {
    /// The bookmarks sent from time to time and at the end of a watch.
    Periodic,
    /// The bookmark at the end of a streaming list.
    InitialEnd,
}

/// How an object is corrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mangle {
    /// Its second half is missing, so that it is not valid JSON.
    Json,
    /// It has no metadata.
    Metadata,
}

/// An invalid rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidRule {
    /// The field, by its JSON path.
    pub field: String,
    /// What is wrong, and what is possible.
    pub why: String,
}

impl InvalidRule {
    pub(super) fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        InvalidRule { field: field.into(), why: why.into() }
    }
}

impl Fault {
    /// The fault's name in JSON.
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

    /// `true` if the fault can affect requests of this verb.
    pub(super) fn affects(&self, verb: Verb) -> bool {
        match self {
            Fault::Delay(_) | Fault::Hang | Fault::Disconnect(_) => true,
            Fault::Status(_) | Fault::Truncate(_) | Fault::Mangle(_) => verb != Verb::Connect,
            Fault::ExpiredContinue => verb == Verb::List,
            Fault::TooLargeVersion | Fault::Stale(_) => matches!(verb, Verb::Get | Verb::List | Verb::Watch),
            _ => verb == Verb::Watch,
        }
    }

    /// `true` if the fault lasts as long as its rule, instead of applying to single occasions.
    pub(super) fn lasts(&self) -> bool {
        matches!(self, Fault::Hold | Fault::Silence | Fault::Lag(_))
    }

    /// `true` if the fault affects an open watch, rather than a request.
    pub(super) fn is_of_streams(&self, verb: Verb) -> bool {
        match self {
            Fault::Mangle(_) => verb == Verb::Watch,
            Fault::Withhold(_) | Fault::Duplicate | Fault::RepeatOlder => true,
            other => other.lasts(),
        }
    }
}

impl Rule {
    /// Validates the rule and returns its matcher.
    pub(super) fn check(&self) -> Result<Matcher, InvalidRule> {
        let name = self.fault.name();
        for verb in &self.on.verbs {
            if !self.fault.affects(*verb) {
                let possible = Verb::OF_RESOURCES.into_iter().chain([Verb::Discovery, Verb::Connect]);
                let possible: Vec<String> = possible.filter(|verb| self.fault.affects(*verb)).map(word).collect();
                let why = format!("{name} cannot affect {}: use {}", word(*verb), possible.join(", "));
                return Err(InvalidRule::new("on.verbs", why));
            }
        }
        self.check_place()?;
        self.check_frequency()?;
        self.check_fault()?;
        Matcher::new(&self.on, |verb| self.fault.affects(verb))
    }

    fn check_place(&self) -> Result<(), InvalidRule> {
        let Requests { resource, verbs, namespace, user_agent } = &self.on;
        for verb in verbs.iter().filter(|verb| matches!(verb, Verb::Discovery | Verb::Connect)) {
            let why = || format!("requests of {} have no resource and no namespace: leave it out", word(*verb));
            if resource != "*" {
                return Err(InvalidRule::new("on.resource", why()));
            }
            if namespace.is_some() {
                return Err(InvalidRule::new("on.namespace", why()));
            }
            if *verb == Verb::Connect && user_agent.is_some() {
                let why = "a connection has no user agent: leave it out, or use other verbs than connect";
                return Err(InvalidRule::new("on.userAgent", why));
            }
        }
        let replaces = matches!(self.fault, Fault::Status(_) | Fault::Hang | Fault::Disconnect(_));
        if self.performed && (!replaces || verbs.contains(&Verb::Connect)) {
            let why = "only for the faults status, hang and disconnect of requests: leave it out";
            return Err(InvalidRule::new("performed", why));
        }
        Ok(())
    }

    fn check_frequency(&self) -> Result<(), InvalidRule> {
        if let Often::Probability(chance) = self.often
            && !(chance > 0.0 && chance <= 1.0)
        {
            let why = format!("{chance} is not a probability: use more than 0 and at most 1");
            return Err(InvalidRule::new("often.probability", why));
        }
        if self.fault.lasts() {
            let name = self.fault.name();
            let why = format!("{name} lasts until its rule is removed or forMilliseconds have passed: leave it out");
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
            Fault::Status(answer) if !(200..600).contains(&answer.code) => Err(InvalidRule::new(
                "fault.status.code",
                format!("{} is not a possible code: use 200 to 599", answer.code),
            )),
            // HTTP allows no body with these codes.
            Fault::Status(Answer { code: code @ (204 | 205 | 304), body, .. }) if *body != Content::Empty => {
                Err(InvalidRule::new("fault.status.body", format!("{code} has none: say empty")))
            }
            Fault::Cut(Cut { error: Some(code), .. }) if !(400..600).contains(code) => {
                Err(InvalidRule::new("fault.cut.error", format!("{code} is not an error code: use 400 to 599")))
            }
            _ => Ok(()),
        }
    }
}

/// Returns a verb as written in JSON.
pub(super) fn word(verb: Verb) -> String {
    format!("{verb:?}").to_lowercase()
}
