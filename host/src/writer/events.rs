//! What the host tells people on the objects themselves: Events of the core group, as `kubectl describe` shows them.
//!
//! They are written by a task of their own, out of a queue with a bound, at a measured pace: whoever tells waits for nothing, and an API
//! server that is away, or does not let the host, costs the Events and nothing else. Which are written, counted or left out is
//! [`pilothouse_core::event`]'s to say.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::{
    event::{Act, Correlator},
    key::{Key, TypeMeta},
    object::{Object, Uid},
    rate::Rate,
};
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

use crate::{
    acting::Acting,
    cluster::{self, Cluster, Patch, WriteOptions},
    name::PluginName,
};

/// Events that wait to be written: client-go's broadcaster holds as many. They are the plugins' in turns, and where there is no room for
/// one more, a plugin that has most of them gives way.
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
    #[allow(dead_code, reason = "the other type of Event that Kubernetes has")]
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

#[derive(Debug)]
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
    waiting: Arc<Waiting>,
    counts: Arc<Counts>,
    /// Ends the task with the last clone.
    _open: Arc<DropGuard>,
}

/// What waits to be written, of all plugins.
#[derive(Debug, Default)]
struct Waiting {
    lines: Mutex<Lines>,
    added: Notify,
}

/// A line for each plugin that has something waiting.
#[derive(Debug, Default)]
struct Lines {
    of: BTreeMap<PluginName, VecDeque<Note>>,
    /// Whose note is next, then whose. Each plugin that has a line is there once.
    turns: VecDeque<PluginName>,
    len: usize,
}

impl Lines {
    /// Adds a note. Returns how many were dropped for want of room: none, or one of a plugin that has most.
    fn add(&mut self, plugin: &PluginName, note: Note) -> u64 {
        let line = match self.of.get_mut(plugin) {
            Some(line) => line,
            None => {
                self.turns.push_back(plugin.clone());
                self.of.entry(plugin.clone()).or_default()
            }
        };
        line.push_back(note);
        self.len += 1;
        if self.len <= WAITING {
            return 0;
        }
        let longest = self.of.iter().max_by_key(|(_, line)| line.len()).map(|(plugin, _)| plugin.clone());
        if let Some(longest) = longest {
            self.remove(&longest, VecDeque::pop_back);
        }
        1
    }

    /// The next note, of one plugin after the other.
    fn next(&mut self) -> Option<Note> {
        let plugin = self.turns.pop_front()?;
        self.turns.push_back(plugin.clone());
        self.remove(&plugin, VecDeque::pop_front)
    }

    fn remove(&mut self, plugin: &PluginName, take: impl Fn(&mut VecDeque<Note>) -> Option<Note>) -> Option<Note> {
        let line = self.of.get_mut(plugin)?;
        let note = take(line);
        self.len -= usize::from(note.is_some());
        if line.is_empty() {
            self.of.remove(plugin);
            self.turns.retain(|waits| waits != plugin);
        }
        note
    }
}

impl Waiting {
    async fn next(&self) -> Note {
        loop {
            if let Some(note) = self.lines.lock().next() {
                return note;
            }
            self.added.notified().await;
        }
    }
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
    /// Writes to `cluster`, on the runtime `io`, while `acting` is on. `instance` names this process among others, in `reportingInstance`.
    pub fn start(cluster: Cluster, acting: Acting, instance: &str, io: &Handle) -> Self {
        let (waiting, counts, open) = (Arc::<Waiting>::default(), Arc::<Counts>::default(), CancellationToken::new());
        let recorder = Recorder {
            cluster: cluster.for_events(),
            acting,
            instance: instance.to_owned(),
            counts: counts.clone(),
            correlator: Correlator::new(),
            origin: Instant::now(),
            complained: None,
        };
        io.spawn({
            let (waiting, open) = (waiting.clone(), open.clone());
            async move { _ = open.run_until_cancelled(recorder.run(&waiting)).await }
        });
        Self { waiting, counts, _open: Arc::new(open.drop_guard()) }
    }

    /// Tells something of an object that is a plugin's affair: `reason` is one word in `UpperCamelCase`, `message` a sentence for people.
    /// Waits for nothing.
    pub fn tell(&self, plugin: &PluginName, object: &Object, level: Level, reason: &'static str, message: &str) {
        let about = About { of: object.type_meta().clone(), key: object.key().clone(), uid: object.uid().clone() };
        let note = Note {
            about,
            resource_version: object.resource_version().to_string(),
            level,
            reason,
            message: cut(message, MESSAGE),
            at: Timestamp::now(),
        };
        let dropped = self.waiting.lines.lock().add(plugin, note);
        self.counts.dropped.fetch_add(dropped, Ordering::Relaxed);
        self.waiting.added.notify_one();
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
    acting: Acting,
    instance: String,
    counts: Arc<Counts>,
    correlator: Correlator<About>,
    origin: Instant,
    complained: Option<Instant>,
}

impl Recorder {
    async fn run(mut self, waiting: &Waiting) {
        let mut used = Duration::ZERO;
        loop {
            let note = waiting.next().await;
            if !self.acting.is_allowed() {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let name = || format!("{}.{:x}", event_name(&note.about.key.name), note.at.as_nanosecond());
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

/// The beginning of a name as it may stand before a dot in an Event's: that is a DNS subdomain, and names of roles may have colons and
/// capitals.
fn event_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let labels = name[..name.floor_char_boundary(NAME)].split('.');
    let labels = labels.map(|label| label.chars().map(allowed).collect::<String>().trim_matches('-').to_owned());
    let labels: Vec<_> = labels.filter(|label| !label.is_empty()).collect();
    if labels.is_empty() { "object".to_owned() } else { labels.join(".") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    fn plugin(name: &str) -> PluginName {
        PluginName::new(name).unwrap()
    }

    fn note(message: usize) -> Note {
        let object = br#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a","uid":"u","resourceVersion":"1"}}"#;
        let object = Object::parse(object, &TypeMeta::new("v1", "Node")).unwrap();
        let about = About { of: object.type_meta().clone(), key: object.key().clone(), uid: object.uid().clone() };
        let (resource_version, message) = ("1".to_owned(), message.to_string());
        Note { about, resource_version, level: Level::Normal, reason: "Looked", message, at: Timestamp::UNIX_EPOCH }
    }

    #[test]
    fn invariant_8_events_of_a_plugin_that_has_many_give_way_to_anothers() {
        let mut lines = Lines::default();
        let (busy, quiet) = (plugin("busy"), plugin("quiet"));
        let dropped: u64 = (0..10_000).map(|number| lines.add(&busy, note(number))).sum();
        assert_eq!((lines.len, dropped), (WAITING, 9_000));
        // Another's is taken all the same, and is next but one at the latest.
        assert_eq!(lines.add(&quiet, note(77)), 1);
        assert_eq!((lines.len, lines.of[&quiet].len()), (WAITING, 1));
        let first: Vec<_> = (0..3).map(|_| lines.next().unwrap().message).collect();
        assert_eq!(first, ["0", "77", "1"]);
        assert_eq!(lines.turns, std::slice::from_ref(&busy));
        while lines.next().is_some() {}
        assert_eq!((lines.len, lines.of.len(), lines.turns.len()), (0, 0, 0));
    }

    #[test]
    fn an_events_name_is_one_whatever_the_objects_is() {
        let long = "a".repeat(300);
        for (name, expected) in [
            ("my-apple.v1", "my-apple.v1"),
            ("system:controller:node", "system-controller-node"),
            ("system::", "system"),
            ("Admin.", "admin"),
            (":.:", "object"),
            ("ä.-b-", "b"),
            (long.as_str(), &long[..NAME]),
        ] {
            assert_eq!(event_name(name), expected, "{name}");
        }
    }
}
