//! Keeps a store equal to one resource of the API server, as a pure state machine.
//!
//! Makes every decision of list and watch: what to request next, from which version, how long to wait after a failure,
//! and when to list again. [`Reflector::step`] takes an input and returns effects. The driver owns requests, time and
//! the [`Store`](crate::store::Store); it performs effects and decides nothing.
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
//! 2. If the last of them is a request ([`Effect::Resolve`], [`Effect::List`], [`Effect::Watch`]) or [`Effect::Wait`],
//!    drop
//! 2. If the last of them is a request ([`Effect::Resolve`], [`Effect::List`], [`Effect::Watch`]) or [`Effect::Wait`],
//!    drop any connection that is still open, perform it, and feed the result back.
//!
//! While it waits, the driver may feed [`Input::Elapsed`] early, when it has learnt that the kind has just appeared. An
//! input that the machine does not expect (a line of a watch that was given up) changes nothing.
//!
//! # What is retried how
//! | what | then |
//! |---|---|
//! | the kind is not served, or 404 | look the endpoint up again after 0.5 s growing to 30 s, then list anew |
//! | the kind is in no version of its group, for a minute | its objects are removed |
//! | 401, 403 | [`State::Unauthenticated`], [`State::Denied`]; retried after 30 s |
//! | a watch ends cleanly | watch again at once; if it ended within 5 s without an event, after a wait |
//! | connection lost, 429, 5xx, an unreadable answer | retried after 0.8 s growing to 30 s (each with up to as much of jitter), or after Retry-After if that is longer; a list continues with its page, a watch with its version, after a probe of the server's version |
//! | 410 as status or event, a version not accepted | look the endpoint up and list anew: the first time at once, then with the same delays |
//! | 410 for a continue token | the whole list once, unpaged |
//! | streaming list refused, or not understood | pages, at once and from then on |
//! | streaming list broken off | pages, once |
//! | one object cannot be read | its metadata alone is stored, with the reason; without a name, uid and version it is skipped |
//!
//! Delays return to their base after two minutes of watching without a failure.
//!
//! # A kind that is gone
//! Deleting a CustomResourceDefinition deletes its objects first, and an open watch reports that. Without one, the
//! objects are removed when discovery has reported for a minute that no version of the group has the kind. If the group
//! fails to answer, or only one version is no longer served, the objects stay.
//!
//! # Versions that go back
//! After etcd was restored from a backup, the server's versions are lower than those seen before. A list with such a
//! version replaces everything ([`Effect::BeginReplace`] with `went_back`). A watch from a future version is silent:
//! the server answers 200 and waits until it reaches that version.
//!
//! So after a watch was lost or refused, or ended early (as when a server stops), the machine probes first: it lists
//! one object, and the list's version shows whether the server went back. That is one small request for each such
//! watch. A watch that lasted as long as requested continues at once, because nobody restores etcd below a running
//! server. In case a server does not behave so, a watch that sent nothing for its whole time, not even a bookmark, is
//! also followed by a probe.
//!
//! A server may be restored and then written past the version seen before; its version then shows nothing. It suffices
//! that one reflector of the host noticed in time. It emits [`Effect::Restored`], and [`Input::Restored`] makes the
//! others list anew at once and replace everything, whatever the version. A reflector that found three restores within
//! ten minutes stops reporting them, but follows what it finds.
//!
//! An administrator can avoid all this: `etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted` raises
//! versions above all earlier ones, and makes watches from those expire.

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

/// What a reflector reflects, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The kind of the objects; list items may omit it.
    pub of: TypeMeta,
    /// What is kept of each object. For metadata only, the driver requests lists and watches with
    /// [`ACCEPT_METADATA_LIST`](crate::list::ACCEPT_METADATA_LIST) and
    /// [`ACCEPT_METADATA`](crate::list::ACCEPT_METADATA).
    pub keep: Keep,
    /// Objects in a page of a list: [`PAGE_SIZE`].
    pub page_size: u32,
    /// `true` to try streaming lists.
    pub streaming: bool,
    /// The newest version in the store, if another reflector fed it before. A server that has not reached it was
    /// restored.
    pub seen: Option<ResourceVersion>,
    /// Seed for jitter; different for each reflector.
    pub seed: u64,
}

/// Objects in a page: the size that client-go and kube-runtime use.
pub const PAGE_SIZE: u32 = 500;

/// An event that the driver reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The first input.
    Start,
    /// The endpoint is known.
    Resolved,
    /// The body of a list.
    Page(&'a [u8]),
    /// The watch was answered with 200; its lines follow.
    Opened,
    /// A line of the watch, without its end.
    Line(&'a [u8]),
    /// The watch ended without an error: after its time, or because the server stops.
    Ended,
    /// The request, or the watch that was open, failed.
    Failed(Failure),
    /// The wait is over.
    Elapsed,
    /// Another reflector of the same server has emitted [`Effect::Restored`]. May come at any time; a request under way
    /// continues.
    Restored,
}

/// Why a request or a watch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server does not serve the kind, according to discovery or a 404 without a `Status`. Holds the message.
    Missing(String),
    /// Discovery answers, and no version of the group has the kind. Holds the message.
    Gone(String),
    /// An HTTP status of 400 or more, with `retry_after` from the header.
    Status(Status),
    /// No answer, or one that broke off: refused, reset, timed out, or silent for too long. Holds the message.
    Transport(String),
}

impl Failure {
    /// Returns the label for metrics.
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

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Find the endpoint by discovery. Answered by [`Input::Resolved`] or [`Input::Failed`].
    Resolve,
    /// List. Answered by [`Input::Page`] or [`Input::Failed`].
    List {
        /// Largest number of objects; 0 for all.
        limit: u32,
        /// `continue`, from the previous page.
        continue_token: Option<String>,
        /// `resourceVersion`: an earlier one is not accepted. `None` for the most recent.
        resource_version: Option<String>,
    },
    /// Watch, with `allowWatchBookmarks`. Answered by [`Input::Opened`], [`Input::Line`]s, and [`Input::Ended`] or
    /// [`Input::Failed`].
    Watch {
        /// `resourceVersion`; omitted if empty.
        resource_version: String,
        /// `sendInitialEvents=true` and `resourceVersionMatch=NotOlderThan`.
        initial_events: bool,
        /// `timeoutSeconds`. A connection that outlives it by more than a few seconds is dead: [`Failure::Transport`].
        timeout: Duration,
    },
    /// Answered by [`Input::Elapsed`].
    Wait(Duration),

    /// For the store: a list begins.
    BeginReplace {
        /// The list is of another history: its version is lower than the newest seen, or a restore was reported.
        went_back: bool,
    },
    /// For the store: the present state of an object.
    Upsert(Object),
    /// For the store: the last state of an object that is gone.
    Remove(Object),
    /// For the store: the list is complete. Objects that it did not contain are gone.
    FinishReplace {
        /// The version of the list.
        version: ResourceVersion,
    },
    /// For the store: the list was given up.
    AbortReplace,
    /// For the store: the watch has delivered every change up to this version, according to a bookmark.
    Covered(ResourceVersion),

    /// The first list is complete. Emitted once.
    Synced,
    /// The state, for people and metrics. Emitted when it changes.
    State(State),
    /// An object could not be read. If its metadata could, an upsert of its [outline](Object::outline) came before.
    /// Otherwise the store keeps what it holds of the object, even if this was in a list.
    Unreadable {
        /// Its key, if that could be read.
        key: Option<Key>,
        /// Names the object and the reason, without its content.
        why: String,
    },
    /// A complete list is repeated.
    Relist(RelistReason),
    /// The server's versions went back. The driver passes it to all other reflectors of the server, as
    /// [`Input::Restored`].
    Restored,
}

/// What a reflector is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Looking for the endpoint.
    Resolving,
    /// The server does not serve the kind. Discovery is retried. Holds the message.
    Missing(String),
    /// Reading the list.
    Listing,
    /// Reading changes.
    Watching,
    /// Waiting after a failure.
    Waiting {
        /// The length of the wait.
        delay: Duration,
        /// What failed.
        reason: String,
    },
    /// The server rejected our credentials (401). Retried after 30 s. Holds the server's message.
    Unauthenticated(String),
    /// The server denied access (403). Retried after 30 s. Holds the server's message.
    Denied(String),
}

/// Prints the state for people, for example `denied; grant the host's account list and watch: …`.
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

/// Why a list is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RelistReason {
    /// The server no longer knows the changes since the last version.
    Expired,
    /// The server reports that it has not reached the last version.
    TooLarge,
    /// The server rejects the watch for another reason.
    Refused,
    /// The server's version is lower than before, for this kind or another.
    WentBack,
    /// The kind was not served for a while.
    Reappeared,
}

impl RelistReason {
    /// Returns the label for metrics.
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
