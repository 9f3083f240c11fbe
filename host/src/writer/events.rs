//! Writes Events of the core group about objects, as `kubectl describe` shows them.
//!
//! A task of their own writes them, from a bounded queue and at a limited rate. Callers do not wait. If the API server is away or forbids
//! them, only the Events are lost. [`pilothouse_core::event`] decides which are written, counted or dropped.

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

/// Upper bound for Events that wait, as in client-go's broadcaster. Plugins take turns. When it is reached, the plugin with the most waiting
/// Events loses its newest.
const WAITING: usize = 1000;

/// Rate of requests to the API server. client-go's clients for Events have the same.
const PACE: Rate = Rate { burst: 50, every: Duration::from_millis(100) };

/// Time for the request of one Event. The next Events wait for it.
const WITHIN: Duration = Duration::from_secs(10);

/// The API server's own bound on `message`, in bytes.
const MESSAGE: usize = 1024;

/// Characters of the object's name in the Event's name. With the number after it, a name has at most 253.
const NAME: usize = 230;

/// Time between warnings that Events cannot be written.
const WARN_EVERY: Duration = Duration::from_secs(300);

/// The reporting component: `From` in `kubectl describe`.
const COMPONENT: &str = "pilothouse";

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Information.
    #[allow(dead_code, reason = "the other type of Event that Kubernetes has")]
    Normal,
    /// Something that people should look at.
    Warning,
}

impl Level {
    /// Returns the Event's `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Normal => "Normal",
            Level::Warning => "Warning",
        }
    }
}

/// The object that an Event is about. A later object of the same name is another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct About {
    of: TypeMeta,
    key: Key,
    uid: Uid,
}

#[derive(Debug)]
struct Draft {
    about: About,
    resource_version: String,
    level: Level,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

/// Writes Events. Clones share the queue, and its task ends with the last of them.
#[derive(Clone)]
pub struct Events {
    waiting: Arc<Waiting>,
    counts: Arc<Counts>,
    /// Ends the task with the last clone.
    _open: Arc<DropGuard>,
}

/// The Events of all plugins that wait.
#[derive(Debug, Default)]
struct Waiting {
    queues: Mutex<Queues>,
    added: Notify,
}

/// A queue for each plugin that has waiting Events.
#[derive(Debug, Default)]
struct Queues {
    of: BTreeMap<PluginName, VecDeque<Draft>>,
    /// The order in which plugins take turns. Each plugin with a queue is in it once.
    turns: VecDeque<PluginName>,
    len: usize,
}

impl Queues {
    /// Adds an Event. Returns how many were dropped to make room: none, or one of the plugin with the most.
    fn add(&mut self, plugin: &PluginName, draft: Draft) -> u64 {
        let queue = match self.of.get_mut(plugin) {
            Some(queue) => queue,
            None => {
                self.turns.push_back(plugin.clone());
                self.of.entry(plugin.clone()).or_default()
            }
        };
        queue.push_back(draft);
        self.len += 1;
        if self.len <= WAITING {
            return 0;
        }
        let longest = self.of.iter().max_by_key(|(_, queue)| queue.len()).map(|(plugin, _)| plugin.clone());
        if let Some(longest) = longest {
            self.remove(&longest, VecDeque::pop_back);
        }
        1
    }

    /// Removes the next Event. Plugins take turns.
    fn next(&mut self) -> Option<Draft> {
        let plugin = self.turns.pop_front()?;
        self.turns.push_back(plugin.clone());
        self.remove(&plugin, VecDeque::pop_front)
    }

    fn remove(&mut self, plugin: &PluginName, take: impl Fn(&mut VecDeque<Draft>) -> Option<Draft>) -> Option<Draft> {
        let queue = self.of.get_mut(plugin)?;
        let draft = take(queue);
        self.len -= usize::from(draft.is_some());
        if queue.is_empty() {
            self.of.remove(plugin);
            self.turns.retain(|waits| waits != plugin);
        }
        draft
    }
}

impl Waiting {
    async fn next(&self) -> Draft {
        loop {
            if let Some(draft) = self.queues.lock().next() {
                return draft;
            }
            self.added.notified().await;
        }
    }
}

/// Counts since the start.
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
            warned: None,
        };
        io.spawn({
            let (waiting, open) = (waiting.clone(), open.clone());
            async move { _ = open.run_until_cancelled(recorder.run(&waiting)).await }
        });
        Self { waiting, counts, _open: Arc::new(open.drop_guard()) }
    }

    /// Queues an Event about an object, on behalf of a plugin. `reason` is one word in `UpperCamelCase`, `message` a sentence. Never waits.
    pub fn tell(&self, plugin: &PluginName, object: &Object, level: Level, reason: &'static str, message: &str) {
        let about = About { of: object.type_meta().clone(), key: object.key().clone(), uid: object.uid().clone() };
        let draft = Draft {
            about,
            resource_version: object.resource_version().to_string(),
            level,
            reason,
            message: cut(message, MESSAGE),
            at: Timestamp::now(),
        };
        let dropped = self.waiting.queues.lock().add(plugin, draft);
        self.counts.dropped.fetch_add(dropped, Ordering::Relaxed);
        self.waiting.added.notify_one();
    }

    /// Returns the number of Events since the start: `created`, `counted` as a repetition, `dropped` as too many, and `failed`.
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
    warned: Option<Instant>,
}

impl Recorder {
    async fn run(mut self, waiting: &Waiting) {
        let mut used = Duration::ZERO;
        loop {
            let draft = waiting.next().await;
            if !self.acting.is_allowed() {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let name = || format!("{}.{:x}", event_name(&draft.about.key.name), draft.at.as_nanosecond());
            let Some(act) =
                self.correlator.judge(self.origin.elapsed(), &draft.about, draft.reason, &draft.message, name)
            else {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            tokio::time::sleep(PACE.wait(used, self.origin.elapsed())).await;
            used = PACE.take(used, self.origin.elapsed());
            let written = match timeout(WITHIN, self.write(&draft, &act)).await {
                Ok(written) => written.map_err(|error| (is_expected(&error), error.to_string())),
                Err(_) => Err((false, format!("no answer within {} s", WITHIN.as_secs()))),
            };
            let count = match written {
                Ok(()) if act.count > 1 => &self.counts.counted,
                Ok(()) => &self.counts.written,
                Err((expected, error)) => {
                    self.log_failure(expected, &error);
                    &self.counts.failed
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn write(&self, draft: &Draft, act: &Act) -> Result<(), cluster::Error> {
        let of = TypeMeta::new("v1", "Event");
        // As for all Events about objects without a namespace.
        let namespace = draft.about.key.namespace.as_deref().unwrap_or("default");
        let at = draft.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if act.count > 1 {
            let again = json!({ "count": act.count, "lastTimestamp": at, "message": cut(&act.message, MESSAGE) });
            let options = WriteOptions { manager: COMPONENT, subresource: None };
            let body = again.to_string().into_bytes();
            match self.cluster.patch(&of, Some(namespace), &act.name, Patch::Merge, body, options).await {
                // The Event was never written, or has expired.
                Err(error) if error.is_not_found() => {}
                patched => return patched.map(drop),
            }
        }
        let body = self.event(draft, act, namespace, &at).to_string().into_bytes();
        self.cluster.create(&of, Some(namespace), body, COMPONENT).await.map(drop)
    }

    fn event(&self, draft: &Draft, act: &Act, namespace: &str, at: &str) -> Value {
        let About { of, key, uid } = &draft.about;
        let mut about = json!({
            "apiVersion": *of.api_version, "kind": *of.kind, "name": *key.name, "uid": uid.to_string(),
            "resourceVersion": draft.resource_version,
        });
        if let Some(namespace) = &key.namespace {
            about["namespace"] = (**namespace).into();
        }
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": { "namespace": namespace, "name": act.name },
            "involvedObject": about,
            "type": draft.level.as_str(), "reason": draft.reason, "message": cut(&act.message, MESSAGE),
            "count": act.count, "firstTimestamp": at, "lastTimestamp": at,
            "source": { "component": COMPONENT, "host": self.instance },
            "reportingComponent": COMPONENT, "reportingInstance": self.instance,
        })
    }

    /// Logs that an Event is lost, as a warning now and then.
    fn log_failure(&mut self, expected: bool, error: &str) {
        if expected || self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            debug!(error, "cannot write an Event");
            return;
        }
        self.warned = Some(Instant::now());
        warn!(
            error,
            "cannot write Events: nothing else depends on them; the host's account needs create and patch on events"
        );
    }
}

/// `true` if the namespace is gone or terminating.
fn is_expected(error: &cluster::Error) -> bool {
    match error {
        cluster::Error::Status(status) => {
            status.code == 404 || status.code == 403 && status.message.contains("being terminated")
        }
        _ => false,
    }
}

/// Returns the beginning of a text, of at most so many bytes. A cut is marked with `…`.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    const MARK: char = '…';
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes.saturating_sub(MARK.len_utf8()));
    text[..end].chars().chain([MARK]).collect()
}

/// Returns the beginning of an object's name as part of an Event's name. That is a DNS subdomain, while names of roles may have colons and
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

    fn draft(message: usize) -> Draft {
        let object = br#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a","uid":"u","resourceVersion":"1"}}"#;
        let object = Object::parse(object, &TypeMeta::new("v1", "Node")).unwrap();
        let about = About { of: object.type_meta().clone(), key: object.key().clone(), uid: object.uid().clone() };
        let (resource_version, message) = ("1".to_owned(), message.to_string());
        Draft { about, resource_version, level: Level::Normal, reason: "Looked", message, at: Timestamp::UNIX_EPOCH }
    }

    #[test]
    fn invariant_8_events_of_a_plugin_that_has_many_give_way_to_anothers() {
        let mut queues = Queues::default();
        let (busy, quiet) = (plugin("busy"), plugin("quiet"));
        let dropped: u64 = (0..10_000).map(|number| queues.add(&busy, draft(number))).sum();
        assert_eq!((queues.len, dropped), (WAITING, 9_000));
        // Another's is taken all the same, and is next but one at the latest.
        assert_eq!(queues.add(&quiet, draft(77)), 1);
        assert_eq!((queues.len, queues.of[&quiet].len()), (WAITING, 1));
        let first: Vec<_> = (0..3).map(|_| queues.next().unwrap().message).collect();
        assert_eq!(first, ["0", "77", "1"]);
        assert_eq!(queues.turns, std::slice::from_ref(&busy));
        while queues.next().is_some() {}
        assert_eq!((queues.len, queues.of.len(), queues.turns.len()), (0, 0, 0));
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
