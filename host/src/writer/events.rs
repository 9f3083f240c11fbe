//! What the host tells people on the objects themselves: Events of the core group, as `kubectl describe` shows them.
//!
//! They are written by a task of their own, out of a queue with a bound, at a measured pace: whoever tells waits for nothing, and an API
//! server that is away, or does not let the host, costs the Events and nothing else. Which are written, counted or left out is
//! [`pilothouse_core::event`]'s to say.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use pilothouse_core::{
    event::{Act, Correlator},
    key::{Key, TypeMeta},
    object::{Object, Uid},
    rate::Rate,
};
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    sync::mpsc::{self, error::TrySendError},
    time::{Instant, timeout},
};
use tracing::{debug, warn};

use crate::cluster::{self, Cluster, Patch, WriteOptions};

/// Events that wait to be written: client-go's broadcaster holds as many.
const WAITING: usize = 1000;

/// Requests to the API server: client-go gives a client of its own, with the same figures, to those who write many Events.
const PACE: Rate = Rate { burst: 50, every: Duration::from_millis(100) };

/// How long one may take to be written: the next ones wait for it.
const WITHIN: Duration = Duration::from_secs(10);

/// The API server's own bound on `message`, in bytes.
const MESSAGE: usize = 1024;

/// How much of an object's name stands in the Event's: with the number after it it is a name of 253 characters at most.
const NAME: usize = 230;

/// So often at most it is said that Events cannot be written.
const SAID_AGAIN: Duration = Duration::from_secs(300);

/// Who tells, for people: `From` of `kubectl describe`.
const COMPONENT: &str = "pilothouse";

/// Whether all is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For information.
    Normal,
    /// Somebody should look at it.
    Warning,
}

impl Level {
    /// The Event's `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Normal => "Normal",
            Level::Warning => "Warning",
        }
    }
}

/// The object that is spoken of. A newer one of its name is another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct About {
    of: TypeMeta,
    key: Key,
    uid: Uid,
}

struct Note {
    about: About,
    resource_version: String,
    level: Level,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

/// Where to tell something of an object. Clones share the queue; its task ends with the last of them.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Note>,
    counts: Arc<Counts>,
}

/// Since the start.
#[derive(Default)]
struct Counts {
    written: AtomicU64,
    counted: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl Events {
    /// Writes to `cluster`, on the runtime `io`. `instance` names this process among others, in `reportingInstance`.
    pub fn start(cluster: Cluster, instance: &str, io: &Handle) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let counts = Arc::<Counts>::default();
        let recorder = Recorder {
            cluster,
            instance: instance.to_owned(),
            counts: counts.clone(),
            correlator: Correlator::new(),
            origin: Instant::now(),
            complained: None,
        };
        io.spawn(recorder.run(receiver));
        Self { sender, counts }
    }

    /// Tells something of an object: `reason` is one word in `UpperCamelCase`, `message` a sentence for people. Waits for nothing.
    pub fn tell(&self, object: &Object, level: Level, reason: &'static str, message: &str) {
        let about = About { of: object.type_meta().clone(), key: object.key().clone(), uid: object.uid().clone() };
        let note = Note {
            about,
            resource_version: object.resource_version().to_string(),
            level,
            reason,
            message: cut(message, MESSAGE),
            at: Timestamp::now(),
        };
        if let Err(TrySendError::Full(_)) = self.sender.try_send(note) {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What became of what was told, since the start: `created`, `counted` as one more of the same, `dropped` as too much, or `failed`.
    pub fn figures(&self) -> [(&'static str, u64); 4] {
        let Counts { written, counted, dropped, failed } = &*self.counts;
        [("created", written), ("counted", counted), ("dropped", dropped), ("failed", failed)]
            .map(|(result, count)| (result, count.load(Ordering::Relaxed)))
    }
}

struct Recorder {
    cluster: Cluster,
    instance: String,
    counts: Arc<Counts>,
    correlator: Correlator<About>,
    origin: Instant,
    complained: Option<Instant>,
}

impl Recorder {
    async fn run(mut self, mut notes: mpsc::Receiver<Note>) {
        let mut used = Duration::ZERO;
        while let Some(note) = notes.recv().await {
            let name = || format!("{}.{:x}", short(&note.about.key.name), note.at.as_nanosecond());
            let Some(act) = self.correlator.judge(self.origin.elapsed(), &note.about, note.reason, &note.message, name)
            else {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            tokio::time::sleep(PACE.wait(used, self.origin.elapsed())).await;
            used = PACE.take(used, self.origin.elapsed());
            let written = match timeout(WITHIN, self.write(&note, &act)).await {
                Ok(written) => written.map_err(|error| (is_expected(&error), error.to_string())),
                Err(_) => Err((false, format!("no answer within {} s", WITHIN.as_secs()))),
            };
            let count = match written {
                Ok(()) if act.count > 1 => &self.counts.counted,
                Ok(()) => &self.counts.written,
                Err((expected, error)) => {
                    self.complain(expected, &error);
                    &self.counts.failed
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn write(&self, note: &Note, act: &Act) -> Result<(), cluster::Error> {
        let of = TypeMeta::new("v1", "Event");
        // Where everybody looks for the Events of what lives in no namespace.
        let namespace = note.about.key.namespace.as_deref().unwrap_or("default");
        let at = note.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if act.count > 1 {
            let again = json!({ "count": act.count, "lastTimestamp": at, "message": cut(&act.message, MESSAGE) });
            let options = WriteOptions { manager: COMPONENT, subresource: None };
            let body = again.to_string().into_bytes();
            match self.cluster.patch(&of, Some(namespace), &act.name, Patch::Merge, body, options).await {
                // It was never written, or is gone already.
                Err(error) if error.is_not_found() => {}
                patched => return patched.map(drop),
            }
        }
        let body = self.event(note, act, namespace, &at).to_string().into_bytes();
        self.cluster.create(&of, Some(namespace), body, COMPONENT).await.map(drop)
    }

    fn event(&self, note: &Note, act: &Act, namespace: &str, at: &str) -> Value {
        let About { of, key, uid } = &note.about;
        let mut about = json!({
            "apiVersion": *of.api_version, "kind": *of.kind, "name": *key.name, "uid": uid.to_string(),
            "resourceVersion": note.resource_version,
        });
        if let Some(namespace) = &key.namespace {
            about["namespace"] = (**namespace).into();
        }
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": { "namespace": namespace, "name": act.name },
            "involvedObject": about,
            "type": note.level.as_str(), "reason": note.reason, "message": cut(&act.message, MESSAGE),
            "count": act.count, "firstTimestamp": at, "lastTimestamp": at,
            "source": { "component": COMPONENT, "host": self.instance },
            "reportingComponent": COMPONENT, "reportingInstance": self.instance,
        })
    }

    /// Says once in a while that Events are lost.
    fn complain(&mut self, expected: bool, error: &str) {
        if expected || self.complained.is_some_and(|at| at.elapsed() < SAID_AGAIN) {
            debug!(error, "cannot write an Event");
            return;
        }
        self.complained = Some(Instant::now());
        warn!(
            error,
            "cannot write Events: nothing else depends on them; the host's account needs create and patch on events"
        );
    }
}

/// The namespace is gone, or going.
fn is_expected(error: &cluster::Error) -> bool {
    match error {
        cluster::Error::Status(status) => {
            status.code == 404 || status.code == 403 && status.message.contains("being terminated")
        }
        _ => false,
    }
}

/// The beginning of a text, at most so many bytes; a cut is marked.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    const MARK: char = '…';
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes.saturating_sub(MARK.len_utf8()));
    text[..end].chars().chain([MARK]).collect()
}

/// The beginning of a name that may stand before a dot.
fn short(name: &str) -> &str {
    name[..name.floor_char_boundary(NAME)].trim_end_matches(|last: char| !last.is_ascii_alphanumeric())
}
