//! Keeping a store true to one resource of the API server, as a pure state machine.
//!
//! Owns every decision of list and watch: what to ask for next, from which version, how long to wait after which failure,
//! when a list has to be repeated. [`Reflector::step`] takes what happened and says what to do. Requests, time and the
//! [`Store`](crate::store::Store) are the driver's, which performs effects and decides nothing.
//!
//! ```text
//!  Start ─► Resolve ─► streaming list ─► Synced ─► watch ◄────────────┐
//!              ▲           │ refused       ▲         ├─ ended ────────┤ from the last version
//!              │           └► pages of 500 ┘         ├─ lost ─► Probe ┘ after 0.8 to 30 s
//!              │                                     │            │
//!              ├─── expired, gone back, refused ◄────┼────────────┘ list anew
//!              └─── not served ◄─────────────────────┘ look again after 0.5 to 30 s
//! ```
//!
//! The driver's part is a loop:
//!
//! 1. Feed an [`Input`] to `step`, and carry out the effects in order.
//! 2. If the last of them is a request ([`Effect::Resolve`], [`Effect::List`], [`Effect::Watch`]) or [`Effect::Wait`], drop
//!    whatever connection is still open, perform it, and feed the outcome back.
//! 3. If there is none of these, go on reading lines from the watch that is open.
//!
//! While it waits the driver may feed [`Input::Elapsed`] early, when it has learnt that the kind has just appeared. An input
//! that answers no question of the machine (a line of a watch given up already) changes nothing.
//!
//! # What is retried how
//! | what | then |
//! |---|---|
//! | the kind is not served, or 404 | look the endpoint up again after 0.5 s growing to 30 s, then list anew |
//! | the kind is in no version of its group, for a minute | its objects are gone |
//! | 401, 403 | [`State::Unauthenticated`], [`State::Denied`]; the same again after 30 s |
//! | a watch ends cleanly | watch again at once; if it ended within 5 s without an event, after a wait |
//! | connection lost, 429, 5xx, an answer that cannot be read | the same again after 0.8 s growing to 30 s (each with up to as much of jitter), or after Retry-After if that is longer; a list goes on from the last page, a watch from the last version, once the server was asked for its own |
//! | 410 as status or event, a version not accepted | look the endpoint up and list anew: the first time at once, then with the same delays |
//! | 410 for a continue token | the whole list once, unpaged |
//! | streaming list refused, or not understood | pages, at once and from then on |
//! | streaming list broken off | pages, once |
//! | one object cannot be read | its metadata alone is shown, with the reason; without a name, uid and version it is skipped |
//!
//! Delays go back to their base after two minutes of watching without a failure.
//!
//! # A kind that is gone
//! Who deletes a CustomResourceDefinition deletes its objects first, and a watch says so, if it is open. Where it is not, they are
//! swept when discovery has said for a minute on end that no version of the group has the kind. A group that fails to answer, or a
//! version that is only not served any more, says nothing about objects: they stay.
//!
//! # Versions that go back
//! After etcd was restored from a backup the server's versions are lower than those seen before. A list with such a version
//! is accepted as a whole ([`Effect::BeginReplace`] with `went_back`). A watch from a version in the future is silent: the
//! server answers 200 and waits until it has come there. So a watch that was lost, or refused, or ended before its time, as those of
//! a server that is stopped do, goes on only after a list of one object, whose version says whether the server went back. That is one
//! small request for each such watch; one that lasted as long as it was asked to goes on at once, since nobody restores etcd below a
//! server that runs. For servers that do not keep to that, a watch that said nothing for its whole time, not even a bookmark, is
//! followed by the same look.
//!
//! A server that was restored and has since been written to past the version seen before cannot be told from one that was not. It is
//! enough that one reflector of the host came in time: it says [`Effect::Restored`], and [`Input::Restored`] makes the others list anew,
//! at once, and take what they find as a whole, whatever its version. A reflector that found three restores in ten minutes says so no
//! more, but follows what it finds. Who restores can prevent that none does: `etcdutl snapshot restore
//! --bump-revision 1000000000 --mark-compacted` raises versions above all that were given out, and makes watches from them expire.

use std::{fmt, time::Duration};

use crate::{
    key::{Key, TypeMeta},
    list::Status,
    object::{Keep, Object, ResourceVersion},
};

mod answer;
mod machine;
#[cfg(test)]
mod model;

pub use machine::Reflector;

/// What to reflect, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The kind; list items that do not say theirs are of it.
    pub of: TypeMeta,
    /// What is kept of each object. Where it is metadata only, the driver asks for lists and watches with
    /// [`ACCEPT_METADATA_LIST`](crate::list::ACCEPT_METADATA_LIST) and [`ACCEPT_METADATA`](crate::list::ACCEPT_METADATA).
    pub keep: Keep,
    /// Objects in a page of a list: [`PAGE_SIZE`].
    pub page_size: u32,
    /// Try streaming lists.
    pub streaming: bool,
    /// The newest version that the store has been told of, if another reflector fed it before: a server that has not come so far
    /// was restored.
    pub seen: Option<ResourceVersion>,
    /// For jitter: another for each reflector.
    pub seed: u64,
}

/// Objects in a page: what client-go and kube-runtime ask for.
pub const PAGE_SIZE: u32 = 500;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// Once, before all else.
    Start,
    /// The endpoint is known.
    Resolved,
    /// The body of a list.
    Page(&'a [u8]),
    /// The watch was answered with 200; its lines follow.
    Opened,
    /// A line of the watch, without its end.
    Line(&'a [u8]),
    /// The watch ended without an error: in its time, or since the server stops.
    Ended,
    /// The request, or the watch that was open, failed.
    Failed(Failure),
    /// The wait is over.
    Elapsed,
    /// Another reflector of the same server has said [`Effect::Restored`]. At any time; a request that was asked for stays asked for.
    Restored,
}

/// Why a request or a watch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server does not serve the kind, as discovery or a 404 without a `Status` says; for people.
    Missing(String),
    /// Discovery answers, and the kind is served in no version of its group; for people.
    Gone(String),
    /// An HTTP status of 400 or more. `retry_after` is the header's where it has one.
    Status(Status),
    /// No answer, or one that broke off: refused, reset, timed out, silent for too long; for people.
    Transport(String),
}

impl Failure {
    /// For metrics' labels.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Missing(_) | Self::Gone(_) => "missing",
            Self::Transport(_) => "unreachable",
            Self::Status(status) => match status.code {
                401 => "unauthenticated",
                403 => "denied",
                404 => "missing",
                410 => "expired",
                429 => "throttled",
                500.. => "server_error",
                _ => "refused",
            },
        }
    }
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Find the endpoint by discovery. Answered by [`Input::Resolved`] or [`Input::Failed`].
    Resolve,
    /// List. Answered by [`Input::Page`] or [`Input::Failed`].
    List {
        /// At most so many objects; 0: all.
        limit: u32,
        /// `continue`: of the page before.
        continue_token: Option<String>,
        /// `resourceVersion`: no older than this, and none: the most recent.
        resource_version: Option<String>,
    },
    /// Watch, with `allowWatchBookmarks`. Answered by [`Input::Opened`], [`Input::Line`]s, and [`Input::Ended`] or
    /// [`Input::Failed`].
    Watch {
        /// `resourceVersion`; to be left out if it is empty.
        resource_version: String,
        /// `sendInitialEvents=true` and `resourceVersionMatch=NotOlderThan`.
        initial_events: bool,
        /// `timeoutSeconds`. A connection that outlives it by more than a few seconds is dead: a [`Failure::Transport`].
        timeout: Duration,
    },
    /// Answered by [`Input::Elapsed`].
    Wait(Duration),

    /// For the store: a list begins.
    BeginReplace {
        /// It is of another history than what is held: its version is lower than what the server said before, or a restore was told of.
        went_back: bool,
    },
    /// For the store: an object as it is now.
    Upsert(Object),
    /// For the store: the last state of an object that is gone.
    Remove(Object),
    /// For the store: the list is complete, and objects that it did not contain are gone.
    FinishReplace {
        /// The point in history that it shows.
        version: ResourceVersion,
    },
    /// For the store: the list is given up.
    AbortReplace,
    /// For the store: the watch has delivered all that happened up to here, as a bookmark says.
    Covered(ResourceVersion),

    /// The first list is complete. Once.
    Synced,
    /// For people and metrics; only when it changes.
    State(State),
    /// An object could not be read. An upsert of its [outline](Object::outline) came before, if its metadata could be read. Without one,
    /// what the store holds of it stays, also if this was in a list: it is not gone.
    Unreadable {
        /// Its key, if that could be read.
        key: Option<Key>,
        /// Which object, and why; without its content.
        why: String,
    },
    /// A list that was complete is begun anew.
    Relist(RelistReason),
    /// The server's versions went back. For all other reflectors of the server, as [`Input::Restored`].
    Restored,
}

/// What a reflector is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Looking for the endpoint.
    Resolving,
    /// The server does not serve the kind; it is looked for again and again.
    Missing(String),
    /// Reading the list.
    Listing,
    /// Reading changes.
    Watching,
    /// After a failure.
    Waiting {
        /// For how long.
        delay: Duration,
        /// What failed.
        reason: String,
    },
    /// The server does not know who asks (401); it is tried again from time to time. What the server says.
    Unauthenticated(String),
    /// The server does not allow it (403); it is tried again from time to time. What the server says.
    Denied(String),
}

/// `denied; grant the host's account list and watch: …`, for people.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolving => f.write_str("looking for the kind"),
            Self::Missing(why) => write!(f, "waiting for the kind to be served: {why}"),
            Self::Listing => f.write_str("listing"),
            Self::Watching => f.write_str("watching"),
            Self::Waiting { delay, reason } => write!(f, "trying again in {:.1} s: {reason}", delay.as_secs_f32()),
            Self::Unauthenticated(why) => write!(f, "not authenticated; renew the host's credentials: {why}"),
            Self::Denied(why) => write!(f, "denied; grant the host's account list and watch: {why}"),
        }
    }
}

/// Why a list is begun anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RelistReason {
    /// The server no longer knows the changes since the last version.
    Expired,
    /// The server says that it has not come to the last version yet.
    TooLarge,
    /// The server does not accept the watch for another reason.
    Refused,
    /// The server's version is lower than it was, for this kind or another.
    WentBack,
    /// The kind was not served for a while.
    Reappeared,
}

impl RelistReason {
    /// For metrics' labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::TooLarge => "too_large",
            Self::Refused => "refused",
            Self::WentBack => "went_back",
            Self::Reappeared => "reappeared",
        }
    }
}

#[cfg(test)]
mod tests;
