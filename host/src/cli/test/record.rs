//! Records what the host does and logs on this thread, for one case at a time.
//!
//! Each case runs on one thread. So one layer of `tracing` serves all cases, and needs no lock.

use std::{cell::RefCell, time::Duration};

use tracing::{
    Event, Level, Subscriber,
    span::{Attributes, Id},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use super::super::fields::{self, Fields};

/// Happenings of one step that are kept. A key that never rests causes some hundred.
pub(super) const MAX_SEEN: usize = 10_000;

/// Something that happened in a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Seen {
    /// The plugin, or the host for it, wrote an object.
    Wrote {
        /// `apply`, `create`, `update`, `patch`, `delete` or `evict`.
        verb: String,
        /// The `apiVersion` of the kind.
        api_version: String,
        /// The kind with its subresource: `ConfigMap`, `MyApple/status`.
        kind: String,
        /// `namespace/name`.
        object: String,
        /// Why the API server refused it.
        error: Option<String>,
    },
    /// A reconcile ended.
    Reconciled {
        /// The controller's name.
        controller: String,
        /// `namespace/name`.
        key: String,
        /// `None` if it succeeded.
        error: Option<String>,
        /// When the plugin wants to be called again.
        requeue_after: Option<Duration>,
    },
    /// The plugin died in a call.
    Died {
        /// What was called.
        call: String,
        /// Why.
        error: String,
        /// Its stack, if there is one.
        backtrace: String,
    },
    /// The plugin logged a line.
    Logged {
        /// Its severity.
        level: Level,
        /// The message and its fields.
        line: String,
    },
    /// The host warned.
    Warned(String),
}

thread_local! {
    static SEEN: RefCell<Option<Vec<Seen>>> = const { RefCell::new(None) };
}

/// Begins to record on this thread. What was recorded before is dropped.
pub(super) fn begin() {
    SEEN.set(Some(Vec::new()));
}

/// Returns what has happened on this thread since the last call.
pub(super) fn take() -> Vec<Seen> {
    SEEN.with_borrow_mut(|seen| seen.as_mut().map(std::mem::take).unwrap_or_default())
}

/// Ends the record of this thread.
pub(super) fn end() {
    SEEN.set(None);
}

fn add(seen: Seen) {
    SEEN.with_borrow_mut(|all| {
        if let Some(all) = all.as_mut().filter(|all| all.len() < MAX_SEEN) {
            all.push(seen);
        }
    });
}

/// The messages of the host about calls that failed.
const FAILED: [&str; 3] = [
    "reconcile failed",
    "the plugin could not take changes; they are retried one by one",
    "the plugin could not answer the API server",
];

/// The layer that records.
pub(super) struct Recorder;

/// Reads one happening out of an event. `around` are the fields of the reconcile that it belongs to.
fn happened(target: &str, level: Level, event: &Fields, around: &Fields) -> Option<Seen> {
    let field = |name: &str| event.get(name).to_owned();
    match (target, event.get("what")) {
        ("pilothouse::plugin_log", _) => {
            let line = format!("{} {}", field("message"), field("fields"));
            Some(Seen::Logged { level, line: line.trim_end().to_owned() })
        }
        ("pilothouse::feed", "wrote" | "refused") => {
            let kind = match event.optional("part") {
                Some(part) => format!("{}/{part}", field("kind")),
                None => field("kind"),
            };
            let error = event.optional("error");
            Some(Seen::Wrote {
                verb: field("verb"),
                api_version: field("api_version"),
                kind,
                object: field("object"),
                error,
            })
        }
        ("pilothouse::feed", "reconciled") => Some(Seen::Reconciled {
            controller: around.get("controller").to_owned(),
            key: around.get("key").to_owned(),
            error: event.optional("error"),
            requeue_after: event.optional("requeue_after_ms").and_then(|ms| ms.parse().ok()).map(Duration::from_millis),
        }),
        ("pilothouse::feed", _) => None,
        _ if level > Level::WARN => None,
        // A call that died. If a reconcile returned an error, the feed has it.
        _ if event.has("kind") && FAILED.contains(&event.get("message")) => Some(Seen::Died {
            call: match (event.optional("call"), event.optional("hook"), around.optional("key")) {
                (Some(call), _, _) => call,
                (_, Some(hook), _) => format!("{hook} of {}", field("objects")),
                (_, _, Some(key)) => format!("reconcile of {key}"),
                _ => "a call".to_owned(),
            },
            error: field("error"),
            backtrace: field("backtrace"),
        }),
        _ if event.get("message") == "reconcile failed" => None,
        _ => Some(Seen::Warned(format!("{}{}", field("message"), event.without("message")))),
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        fields::keep(attributes, id, &context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let (target, level) = (event.metadata().target(), *event.metadata().level());
        if let Some(seen) = fields::read(event, &context, |event, around| happened(target, level, event, around)) {
            add(seen);
        }
    }
}
