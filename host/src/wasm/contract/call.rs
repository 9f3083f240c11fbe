//! What a call takes and returns.
//!
//! Objects are JSON text. Requests pass on what the store holds. Outcomes are checked here to be JSON objects, which is
//! cheap, and the writer parses them. The bounds of an answer are [`MAX_CHILDREN`], [`MAX_OUTCOME`], [`MAX_OBJECT`],
//! [`MAX_KEYS`] and [`MAX_MESSAGE`]. Before an answer is copied, [`super::super::MAX_TRANSFER`] bounds it.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use pilothouse_core::{
    asked::MAX_ASKED,
    backlog::News,
    event::{Event, MAX_EVENTS},
    key::Key,
    manifest::{Invalid, Watch},
    object::Object,
};

use super::{
    arguments,
    bindings::{
        exports::pilothouse::plugin::controller as wit,
        mapping,
        mapping::exports::pilothouse::plugin::mapper,
        observing,
        observing::exports::pilothouse::plugin::observer,
        pilothouse::plugin::types::{self, KeyParam},
    },
    error::CallError,
    imports::events,
    manifest,
    text::{MAX_MESSAGE, shorten},
};

/// Children of an outcome. A reconcile that returns more is probably wrong.
pub const MAX_CHILDREN: usize = 10_000;

/// Bytes of an outcome's children and status together: 1.6 kB for each of the most children.
pub const MAX_OUTCOME: usize = 16 << 20;

/// Bytes of a child or a status. kube-apiserver accepts no larger request (`MaxRequestBodyBytes`). Without this bound,
/// the host would parse, compare and send it for nothing.
pub const MAX_OBJECT: usize = 3 << 20;

/// Keys of one `map` call. If a change concerns more objects, use an index, which needs no call.
pub const MAX_KEYS: usize = 10_000;

/// The phase of an object's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The object exists.
    Live,
    /// The object exists with `metadata.deletionTimestamp`, and finalizers hold it.
    Deleting,
    /// The object is deleted. The request holds its last known state.
    Gone,
}

/// A call of `reconcile`.
#[derive(Debug, Clone)]
pub struct Request {
    /// The name of the controller in the manifest.
    pub controller: Arc<str>,
    /// The key to reconcile.
    pub key: Key,
    /// The object, or its last known state.
    pub object: Arc<Object>,
    /// The phase of the object.
    pub phase: Phase,
    /// Number of the try since the last success, from 1.
    pub attempt: u32,
    /// Why the last try failed.
    pub last_error: Option<String>,
}

/// The result of a successful reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The children that should exist.
    pub children: Children,
    /// The whole status as JSON text. `None` leaves it unchanged.
    pub status: Option<String>,
    /// Reconcile again after this time, even if nothing changed.
    pub requeue_after: Option<Duration>,
    /// What the key reads beside the manifest. `None` leaves it unchanged.
    pub watches: Option<Vec<Watch>>,
    /// At most [`MAX_EVENTS`].
    pub events: Vec<Event>,
}

/// The children of an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Children {
    /// Leaves them as they are.
    Unchanged,
    /// Exactly these.
    Desired(Vec<Child>),
}

/// An object that should exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// The JSON text, as the plugin wrote it.
    pub object: String,
    /// `true` if the host may take over an existing object that this plugin did not apply for this owner.
    pub adopt: bool,
    /// `true` if the host may delete an own child and create it again, when a field that differs is immutable.
    pub replace: bool,
}

/// A failure that the plugin reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The message for people, at most [`MAX_MESSAGE`] bytes.
    pub message: String,
    /// `true` if a retry must wait until the object or a child changes.
    pub terminal: bool,
    /// As in [`Outcome::status`].
    pub status: Option<String>,
    /// As in [`Outcome::events`].
    pub events: Vec<Event>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Converts a change to the record of `map`.
pub(crate) fn to_map(news: &News) -> mapper::Change {
    let (api_version, kind) = (news.of.api_version.as_ref().to_owned(), news.of.kind.as_ref().to_owned());
    mapper::Change {
        of: mapping::pilothouse::plugin::types::TypeMeta { api_version, kind },
        old: text(news.old.as_ref()),
        new: text(news.new.as_ref()),
    }
}

/// Converts a change to the record of `observe`.
pub(crate) fn to_observe(news: &News) -> observer::Change {
    let (api_version, kind) = (news.of.api_version.as_ref().to_owned(), news.of.kind.as_ref().to_owned());
    observer::Change {
        of: observing::pilothouse::plugin::types::TypeMeta { api_version, kind },
        old: text(news.old.as_ref()),
        new: text(news.new.as_ref()),
        merged: news.merged,
        missed: news.missed,
        initial: news.initial,
    }
}

fn text(object: Option<&Arc<Object>>) -> Option<String> {
    object.map(|object| object.json().into_owned())
}

/// Checks the keys of a `map` call, and removes duplicates.
pub(crate) fn keys(keys: &[mapping::pilothouse::plugin::types::Key]) -> Result<Vec<Key>, CallError> {
    if keys.len() > MAX_KEYS {
        return Err(CallError::Answer(format!("{} keys are more than the {MAX_KEYS} that map may give", keys.len())));
    }
    let keys: Result<BTreeSet<Key>, _> =
        keys.iter().map(|key| arguments::key(key.namespace.as_deref(), &key.name)).collect();
    let keys = keys.map_err(|why| CallError::Answer(format!("a key of map: {why}")))?;
    Ok(keys.into_iter().collect())
}

impl Request {
    /// Converts to the contract's record. `object` is the object's text.
    pub(crate) fn to_wit<'a>(&'a self, object: &'a str) -> wit::Request<'a> {
        wit::Request {
            controller: &self.controller,
            key: KeyParam { namespace: self.key.namespace.as_deref(), name: &self.key.name },
            object,
            phase: match self.phase {
                Phase::Live => wit::Phase::Live,
                Phase::Deleting => wit::Phase::Deleting,
                Phase::Gone => wit::Phase::Gone,
            },
            attempt: self.attempt,
            last_error: self.last_error.as_deref(),
        }
    }
}

impl Outcome {
    /// Returns the bytes of memory that the outcome takes.
    pub(crate) fn bytes(&self) -> usize {
        let children = match &self.children {
            Children::Unchanged => 0,
            Children::Desired(children) => {
                size_of_val(&**children) + children.iter().map(|child| child.object.len()).sum::<usize>()
            }
        };
        let watches: usize = self.watches.iter().flatten().map(Watch::bytes).sum();
        children + self.status.as_ref().map_or(0, String::len) + watches + events_bytes(&self.events)
    }

    pub(crate) fn from_wit(outcome: wit::Outcome) -> Result<Self, CallError> {
        let children = match outcome.children {
            wit::Children::Unchanged => None,
            wit::Children::Desired(children) => Some(children),
        };
        check(children.as_deref().unwrap_or_default(), outcome.status.as_deref())?;
        let child = |child: wit::Child| Child { object: child.object, adopt: child.adopt, replace: child.replace };
        let desired = |children: Vec<_>| Children::Desired(children.into_iter().map(child).collect());
        let children = children.map_or(Children::Unchanged, desired);
        let watches = match outcome.watches {
            wit::Watches::Unchanged => None,
            wit::Watches::Desired(watches) => Some(asked(watches)?),
        };
        let requeue_after = outcome.requeue_after.map(Duration::from_millis);
        Ok(Self { children, status: outcome.status, requeue_after, watches, events: read_events(outcome.events)? })
    }
}

impl Failure {
    /// Returns the bytes of memory that status and Events take.
    pub(crate) fn bytes(&self) -> usize {
        self.status.as_ref().map_or(0, String::len) + events_bytes(&self.events)
    }

    pub(crate) fn from_wit(failure: wit::Failure) -> Result<Self, CallError> {
        check(&[], failure.status.as_deref())?;
        let message = shorten(failure.message, MAX_MESSAGE);
        let events = read_events(failure.events)?;
        Ok(Self { message, terminal: failure.terminal, status: failure.status, events })
    }
}

/// Checks what a key asks to be watched.
fn asked(watches: Vec<wit::Watch>) -> Result<Vec<Watch>, CallError> {
    if watches.len() > MAX_ASKED {
        let count = watches.len();
        return Err(CallError::Answer(format!("{count} watches are more than the {MAX_ASKED} that a key may ask for")));
    }
    let checked = watches.into_iter().zip(0..).map(|(watch, place)| {
        let problem = |invalid: Invalid| invalid.problems.first().map_or_else(String::new, ToString::to_string);
        let invalid = |invalid| CallError::Answer(format!("watches[{place}]: {}", problem(invalid)));
        Watch::asked(manifest::watch(watch)).map_err(invalid)
    });
    checked.collect()
}

fn events_bytes(events: &[Event]) -> usize {
    events.iter().map(Event::bytes).sum()
}

/// Checks the Events of an answer.
fn read_events(events: Vec<types::Event>) -> Result<Vec<Event>, CallError> {
    if events.len() > MAX_EVENTS {
        let count = events.len();
        return Err(CallError::Answer(format!(
            "{count} Events are more than the {MAX_EVENTS} that an outcome may hold"
        )));
    }
    let read = |(at, event)| events::read(event).map_err(|why| CallError::Answer(format!("event {at}: {why}")));
    events.into_iter().enumerate().map(read).collect()
}

/// Checks the bounds of children and status, and that each is a JSON object.
fn check(children: &[wit::Child], status: Option<&str>) -> Result<(), CallError> {
    let invalid = |why: String| Err(CallError::Answer(why));
    if children.len() > MAX_CHILDREN {
        let count = children.len();
        return invalid(format!("{count} children are more than the {MAX_CHILDREN} that an outcome may hold"));
    }
    let texts = || children.iter().map(|child| child.object.as_str()).chain(status).enumerate();
    let what = |at: usize| if at < children.len() { format!("child {at}") } else { "the status".to_owned() };
    let bytes: usize = texts().map(|(_, text)| text.len()).sum();
    if bytes > MAX_OUTCOME {
        return invalid(format!(
            "{bytes} bytes of children and status are more than the {MAX_OUTCOME} that an outcome may hold"
        ));
    }
    if let Some((at, text)) = texts().find(|(_, text)| text.len() > MAX_OBJECT) {
        let (what, bytes) = (what(at), text.len());
        return invalid(format!("{what} has {bytes} bytes, and an API server takes at most {MAX_OBJECT}"));
    }
    texts().try_for_each(|(at, text)| {
        pilothouse_core::check_object(text).map_err(|error| CallError::Decode {
            reason: format!("{} is not a JSON object: {error}", what(at)),
            backtrace: Vec::new(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome_of(children: wit::Children) -> wit::Outcome {
        wit::Outcome {
            children,
            status: None,
            requeue_after: None,
            watches: wit::Watches::Unchanged,
            events: Vec::new(),
        }
    }

    #[test]
    fn keys_of_a_mapping_are_bounded_named_and_each_once() {
        let key = |name: &str| mapping::pilothouse::plugin::types::Key {
            namespace: Some("n".to_owned()),
            name: name.to_owned(),
        };
        let taken = |keys: Vec<_>| super::keys(&keys).map_err(|error| error.to_string());
        assert_eq!(
            taken(vec![key("b"), key("a"), key("b")]),
            Ok(vec![Key::new(Some("n"), "a"), Key::new(Some("n"), "b")])
        );
        let said = |why: &str| Err(format!("plugin gave an unusable answer: a key of map: {why}"));
        assert_eq!(taken(vec![key("a"), key("")]), said("the name is empty"));
        let long = "a".repeat(1025);
        assert_eq!(taken(vec![key(&long)]), said("the name: has 1025 bytes, and at most 1024 are taken"));
        assert_eq!(
            taken(vec![key("a"); MAX_KEYS + 1]),
            Err("plugin gave an unusable answer: 10001 keys are more than the 10000 that map may give".to_owned())
        );
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let said = |why: &str| Err(format!("plugin gave an unusable answer: {why}"));
        let much = said("16777217 bytes of children and status are more than the 16777216 that an outcome may hold");
        let object = |bytes: usize| format!("{{{}}}", " ".repeat(bytes - 2));
        let outcome = |children: &[usize], status: usize| {
            let child = |bytes: &usize| wit::Child { object: object(*bytes), adopt: false, replace: false };
            let children = wit::Children::Desired(children.iter().map(child).collect());
            Outcome::from_wit(wit::Outcome { status: Some(object(status)), ..outcome_of(children) })
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert_eq!(outcome(&[MAX_OBJECT; 5], 1 << 20), Ok(()));
        assert_eq!(outcome(&[MAX_OBJECT; 5], (1 << 20) + 1), much);
        assert_eq!(outcome(&[2], MAX_OBJECT), Ok(()));
        let large = |what: &str| said(&format!("{what} has 3145729 bytes, and an API server takes at most 3145728"));
        assert_eq!(outcome(&[2], MAX_OBJECT + 1), large("the status"));
        assert_eq!(outcome(&[2, MAX_OBJECT + 1], 2), large("child 1"));
        let failure = wit::Failure {
            message: String::new(),
            terminal: false,
            status: Some(object(MAX_OBJECT + 1)),
            events: Vec::new(),
        };
        assert_eq!(Failure::from_wit(failure).map(drop).map_err(|error| error.to_string()), large("the status"));
    }

    #[test]
    fn children_and_status_are_json_objects() {
        let outcome = |child: &str, status: Option<&str>| {
            let children = wit::Children::Desired(
                ["{}", child]
                    .map(|object| wit::Child { object: object.to_owned(), adopt: false, replace: false })
                    .into(),
            );
            let outcome = wit::Outcome { status: status.map(str::to_owned), ..outcome_of(children) };
            Outcome::from_wit(outcome).map(drop).map_err(|error| (error.kind(), error.to_string()))
        };
        let said = |why: &str| Err(("decode", format!("plugin passed text that is not valid: {why}")));
        assert_eq!(outcome("{}", Some(" {\"available\": 1}\n")), Ok(()));
        assert_eq!(outcome("{", None), said("child 1 is not a JSON object: text ends too early at byte 1"));
        assert_eq!(
            outcome("{}", Some("1")),
            said("the status is not a JSON object: the text is not an object at byte 0")
        );
        let failure = wit::Failure {
            message: String::new(),
            terminal: true,
            status: Some("{}{}".to_owned()),
            events: Vec::new(),
        };
        let failure = Failure::from_wit(failure).map(drop).map_err(|error| (error.kind(), error.to_string()));
        assert_eq!(failure, said("the status is not a JSON object: text goes on after its value at byte 2"));
    }

    #[test]
    fn events_are_bounded_and_valid() {
        let event = |reason: &str| types::Event {
            about: None,
            of_type: types::EventType::Normal,
            reason: reason.to_owned(),
            message: "done".to_owned(),
        };
        let outcome = |events: Vec<types::Event>| {
            let outcome = wit::Outcome { events, ..outcome_of(wit::Children::Unchanged) };
            Outcome::from_wit(outcome).map(|outcome| outcome.events.len()).map_err(|error| error.to_string())
        };
        let said = |why: &str| Err(format!("plugin gave an unusable answer: {why}"));
        assert_eq!(outcome(vec![event("Scaled"); MAX_EVENTS]), Ok(MAX_EVENTS));
        assert_eq!(
            outcome(vec![event("Scaled"); MAX_EVENTS + 1]),
            said("257 Events are more than the 256 that an outcome may hold")
        );
        let refused = outcome(vec![event("Scaled"), event("scaled")]);
        assert!(refused.is_err_and(|why| why.contains("event 1: the reason \"scaled\" of an Event is not one word")));
    }

    #[test]
    fn too_many_children_are_refused() {
        let child = wit::Child { object: "{}".to_owned(), adopt: false, replace: false };
        let outcome = |count| wit::Outcome {
            requeue_after: Some(1500),
            ..outcome_of(wit::Children::Desired(vec![child.clone(); count]))
        };
        let kept = Outcome::from_wit(outcome(MAX_CHILDREN)).map(|o| o.requeue_after);
        assert_eq!(kept.ok(), Some(Some(Duration::from_millis(1500))));
        let refused = Outcome::from_wit(outcome(MAX_CHILDREN + 1)).map_err(|e| e.to_string());
        assert_eq!(
            refused,
            Err("plugin gave an unusable answer: 10001 children are more than the 10000 that an outcome may hold"
                .to_owned())
        );
    }
}
