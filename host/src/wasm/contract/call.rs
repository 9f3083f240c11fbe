//! What goes into a call and what comes out of it.
//!
//! Objects stay JSON text: on the way in they are what the store holds, on the way out they are seen to be JSON objects here, which costs
//! little, and the writer parses them. What the guest returns is bounded here ([`MAX_CHILDREN`], [`MAX_OUTCOME`], [`MAX_OBJECT`],
//! [`MAX_KEYS`], [`MAX_MESSAGE`]) and, before it is copied, by [`super::super::MAX_TRANSFER`].

use std::{borrow::Cow, collections::BTreeSet, fmt, sync::Arc, time::Duration};

use pilothouse_core::{
    key::{Key, TypeMeta},
    object::Object,
};

use super::{
    arguments,
    bindings::{
        exports::pilothouse::plugin::controller as wit, mapping, mapping::exports::pilothouse::plugin::mapper,
        observing, observing::exports::pilothouse::plugin::observer, pilothouse::plugin::types::KeyParam,
    },
    error::CallError,
};

/// How many children an outcome may hold. A reconcile that wants more is rather one that is wrong.
pub const MAX_CHILDREN: usize = 10_000;

/// How many bytes the children and the status of an outcome may have together: as many children as there may be, of 1.6 kB each.
pub const MAX_OUTCOME: usize = 16 << 20;

/// How many bytes a child, or the status, may have: kube-apiserver takes no larger request (`MaxRequestBodyBytes`), and to find that out
/// would cost parsing it, comparing it and sending it.
pub const MAX_OBJECT: usize = 3 << 20;

/// How many keys a call of `map` may give. One change that concerns more objects is better told by an index, which needs no call.
pub const MAX_KEYS: usize = 10_000;

/// How many bytes of a failure's message are kept; it goes into logs and status, and is for people.
pub const MAX_MESSAGE: usize = 4 << 10;

/// Where an object is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It is there.
    Live,
    /// It is there with `metadata.deletionTimestamp`: finalizers hold it.
    Deleting,
    /// It is gone; the request holds its last known state.
    Gone,
}

/// One call of `reconcile`.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which of the manifest's controllers.
    pub controller: Arc<str>,
    /// Whom to reconcile.
    pub key: Key,
    /// The object, or its last known state.
    pub object: Arc<Object>,
    /// Where the object is in its life.
    pub phase: Phase,
    /// 1 for the first try since the last success.
    pub attempt: u32,
    /// Why the try before this one failed.
    pub last_error: Option<String>,
}

/// What a successful reconcile wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The children that should exist.
    pub children: Children,
    /// The whole status as JSON text; none: as it is.
    pub status: Option<String>,
    /// To be called again after this time though nothing changed.
    pub requeue_after: Option<Duration>,
}

/// The children of an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Children {
    /// Leave them as they are.
    Unchanged,
    /// These and no others.
    Desired(Vec<Child>),
}

/// One object that should exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// The text of a JSON object, as the plugin wrote it.
    pub object: String,
    /// May take over an object that exists already and that this plugin did not apply for this owner.
    pub adopt: bool,
}

/// The plugin says that the reconcile failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Why, for people; at most [`MAX_MESSAGE`] bytes.
    pub message: String,
    /// Not again until the object or a child changes.
    pub terminal: bool,
    /// As in [`Outcome::status`].
    pub status: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// What became of an object, for `map` and `observe`. One of `old` and `new` is there.
#[derive(Debug, Clone)]
pub struct News {
    /// The kind.
    pub of: TypeMeta,
    /// As it was before.
    pub old: Option<Arc<Object>>,
    /// As it is.
    pub new: Option<Arc<Object>>,
    /// How many changes this stands for.
    pub merged: u32,
    /// The deletion was found by a list, and not seen.
    pub missed: bool,
}

impl News {
    /// The objects as text, for as long as a call borrows it.
    pub(crate) fn texts(&self) -> Texts<'_> {
        Texts { old: text(self.old.as_ref()), new: text(self.new.as_ref()) }
    }

    pub(crate) fn to_map<'a>(&'a self, texts: &'a Texts<'_>) -> mapper::Change<'a> {
        let of =
            mapping::pilothouse::plugin::types::TypeMeta { api_version: &self.of.api_version, kind: &self.of.kind };
        mapper::Change { of, old: texts.old.as_deref(), new: texts.new.as_deref() }
    }

    pub(crate) fn to_observe(&self) -> observer::Change {
        let (api_version, kind) = (self.of.api_version.as_ref().to_owned(), self.of.kind.as_ref().to_owned());
        observer::Change {
            of: observing::pilothouse::plugin::types::TypeMeta { api_version, kind },
            old: text(self.old.as_ref()).map(Cow::into_owned),
            new: text(self.new.as_ref()).map(Cow::into_owned),
            merged: self.merged,
            missed: self.missed,
        }
    }
}

/// Both sides of [`News`] as JSON.
pub(crate) struct Texts<'a> {
    old: Option<Cow<'a, str>>,
    new: Option<Cow<'a, str>>,
}

fn text(object: Option<&Arc<Object>>) -> Option<Cow<'_, str>> {
    object.map(|object| object.json())
}

/// The keys that `map` gave, each once.
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
    /// As the contract has it; `object` is the object's text.
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
    /// Bytes of the host's memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let children = match &self.children {
            Children::Unchanged => 0,
            Children::Desired(children) => {
                size_of_val(&**children) + children.iter().map(|child| child.object.len()).sum::<usize>()
            }
        };
        children + self.status.as_ref().map_or(0, String::len)
    }

    pub(crate) fn from_wit(outcome: wit::Outcome) -> Result<Self, CallError> {
        let children = match outcome.children {
            wit::Children::Unchanged => None,
            wit::Children::Desired(children) => Some(children),
        };
        check(children.as_deref().unwrap_or_default(), outcome.status.as_deref())?;
        let child = |child: wit::Child| Child { object: child.object, adopt: child.adopt };
        let desired = |children: Vec<_>| Children::Desired(children.into_iter().map(child).collect());
        let children = children.map_or(Children::Unchanged, desired);
        Ok(Self { children, status: outcome.status, requeue_after: outcome.requeue_after.map(Duration::from_millis) })
    }
}

impl Failure {
    pub(crate) fn from_wit(failure: wit::Failure) -> Result<Self, CallError> {
        check(&[], failure.status.as_deref())?;
        let message = shorten(failure.message, MAX_MESSAGE);
        Ok(Self { message, terminal: failure.terminal, status: failure.status })
    }
}

/// Refuses children that are too many, children and a status that are too much, each or together, and what is no JSON object.
fn check(children: &[wit::Child], status: Option<&str>) -> Result<(), CallError> {
    let refused = |why: String| Err(CallError::Answer(why));
    if children.len() > MAX_CHILDREN {
        let count = children.len();
        return refused(format!("{count} children are more than the {MAX_CHILDREN} that an outcome may hold"));
    }
    let texts = || children.iter().map(|child| child.object.as_str()).chain(status).enumerate();
    let what = |at: usize| if at < children.len() { format!("child {at}") } else { "the status".to_owned() };
    let bytes: usize = texts().map(|(_, text)| text.len()).sum();
    if bytes > MAX_OUTCOME {
        return refused(format!(
            "{bytes} bytes of children and status are more than the {MAX_OUTCOME} that an outcome may hold"
        ));
    }
    if let Some((at, text)) = texts().find(|(_, text)| text.len() > MAX_OBJECT) {
        let (what, bytes) = (what(at), text.len());
        return refused(format!("{what} has {bytes} bytes, and an API server takes at most {MAX_OBJECT}"));
    }
    texts().try_for_each(|(at, text)| {
        pilothouse_core::check_object(text).map_err(|error| CallError::Decode {
            reason: format!("{} is no JSON object: {error}", what(at)),
            backtrace: Vec::new(),
        })
    })
}

/// Cuts a text to at most `bytes` bytes, at a character's boundary, and marks the cut.
pub(crate) fn shorten(mut text: String, bytes: usize) -> String {
    const MARK: &str = "…";
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes.saturating_sub(MARK.len())));
        text.push_str(MARK);
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_characters_boundary() {
        assert_eq!(shorten("short".to_owned(), 5), "short");
        assert_eq!(shorten("äöüäöü".to_owned(), 8), "äö…");
        assert_eq!(shorten("äöüäöü".to_owned(), 0), "…");
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
            let child = |bytes: &usize| wit::Child { object: object(*bytes), adopt: false };
            let children = wit::Children::Desired(children.iter().map(child).collect());
            Outcome::from_wit(wit::Outcome { children, status: Some(object(status)), requeue_after: None })
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert_eq!(outcome(&[MAX_OBJECT; 5], 1 << 20), Ok(()));
        assert_eq!(outcome(&[MAX_OBJECT; 5], (1 << 20) + 1), much);
        assert_eq!(outcome(&[2], MAX_OBJECT), Ok(()));
        let large = |what: &str| said(&format!("{what} has 3145729 bytes, and an API server takes at most 3145728"));
        assert_eq!(outcome(&[2], MAX_OBJECT + 1), large("the status"));
        assert_eq!(outcome(&[2, MAX_OBJECT + 1], 2), large("child 1"));
        let failure = wit::Failure { message: String::new(), terminal: false, status: Some(object(MAX_OBJECT + 1)) };
        assert_eq!(Failure::from_wit(failure).map(drop).map_err(|error| error.to_string()), large("the status"));
    }

    #[test]
    fn children_and_status_are_json_objects() {
        let outcome = |child: &str, status: Option<&str>| {
            let children = wit::Children::Desired(
                ["{}", child].map(|object| wit::Child { object: object.to_owned(), adopt: false }).into(),
            );
            let outcome = wit::Outcome { children, status: status.map(str::to_owned), requeue_after: None };
            Outcome::from_wit(outcome).map(drop).map_err(|error| (error.kind(), error.to_string()))
        };
        let said = |why: &str| Err(("decode", format!("plugin handed over what cannot be read: {why}")));
        assert_eq!(outcome("{}", Some(" {\"available\": 1}\n")), Ok(()));
        assert_eq!(outcome("{", None), said("child 1 is no JSON object: text ends too early at byte 1"));
        assert_eq!(outcome("{}", Some("1")), said("the status is no JSON object: the text is not an object at byte 0"));
        let failure = wit::Failure { message: String::new(), terminal: true, status: Some("{}{}".to_owned()) };
        let failure = Failure::from_wit(failure).map(drop).map_err(|error| (error.kind(), error.to_string()));
        assert_eq!(failure, said("the status is no JSON object: text goes on after its value at byte 2"));
    }

    #[test]
    fn too_many_children_are_refused() {
        let outcome = |count| wit::Outcome {
            children: wit::Children::Desired(vec![wit::Child { object: "{}".to_owned(), adopt: false }; count]),
            status: None,
            requeue_after: Some(1500),
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
