//! Writes Events of the core group about objects, as `kubectl describe` shows them.
//!
//! A task of their own writes them, from a bounded queue and at a limited rate. Callers do not wait. If the API server
//! is away or forbids them, only the Events are lost. [`pilothouse_core::event`] decides which are written, counted or
//! dropped.
//!
//! Each Event has a [`Source`]: the host, or a plugin. Sources take turns, and each has its own rate for an object.

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
    event::{Act, Correlator, Level, MAX_MESSAGE, cut},
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
    acting::{Acting, Switches},
    causes::with_causes,
    clock::Clock,
    cluster::{self, Actor, Cluster, Patch, WriteOptions},
    metrics::Series,
    name::PluginName,
};

/// Upper bound for Events that wait, as in client-go's broadcaster. Sources take turns. When it is reached, the source
/// with the most waiting Events loses its newest.
const WAITING: usize = 1000;

/// Rate of requests to the API server. client-go's clients for Events have the same.
const PACE: Rate = Rate { burst: 50, every: Duration::from_millis(100) };

/// Time for the request of one Event. The next Events wait for it.
const WITHIN: Duration = Duration::from_secs(10);

/// Characters of the object's name in the Event's name. With the number after it, a name has at most 253.
const NAME: usize = 230;

/// Time between warnings that Events cannot be written.
const WARN_EVERY: Duration = Duration::from_secs(300);

/// The field manager of Events, and the component that reports the host's own.
const COMPONENT: &str = "pilothouse";

/// Who reports an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The host, about the work of this plugin.
    Host(PluginName),
    /// The plugin.
    Plugin(PluginName),
}

impl Source {
    /// Returns the plugin.
    fn plugin(&self) -> &PluginName {
        match self {
            Self::Host(plugin) | Self::Plugin(plugin) => plugin,
        }
    }

    /// Returns the reporting component: `From` in `kubectl describe`.
    fn component(&self) -> String {
        match self {
            Self::Host(_) => COMPONENT.to_owned(),
            Self::Plugin(plugin) => format!("{COMPONENT}/{plugin}"),
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

/// What the correlator takes together: Events of one source about one object.
type Subject = (Source, About);

/// The level and the reason of an Event.
type Reason = (Level, Arc<str>);

#[derive(Debug)]
struct Draft {
    subject: Subject,
    resource_version: String,
    reason: Reason,
    message: String,
    at: Timestamp,
    /// The service account that sends it. `None` for the host's own.
    actor: Option<Arc<Actor>>,
}

/// Writes Events. Clones share the queue, and its task ends with the last of them.
#[derive(Clone)]
pub struct Events {
    waiting: Arc<Waiting>,
    counts: Counts,
    clock: Clock,
    /// Ends the task with the last clone.
    _open: Arc<DropGuard>,
}

/// The Events of all sources that wait.
#[derive(Debug, Default)]
struct Waiting {
    queues: Mutex<Queues>,
    added: Notify,
}

/// A queue for each source that has waiting Events.
#[derive(Debug, Default)]
struct Queues {
    of: BTreeMap<Source, VecDeque<Draft>>,
    /// The order in which sources take turns. Each source with a queue is in it once.
    turns: VecDeque<Source>,
    len: usize,
}

impl Queues {
    /// Adds an Event. If there is no room, drops one of the source with the most, and returns that source.
    fn add(&mut self, draft: Draft) -> Option<Source> {
        let (source, _) = &draft.subject;
        let queue = match self.of.get_mut(source) {
            Some(queue) => queue,
            None => {
                self.turns.push_back(source.clone());
                self.of.entry(source.clone()).or_default()
            }
        };
        queue.push_back(draft);
        self.len += 1;
        if self.len <= WAITING {
            return None;
        }
        let longest = self.of.iter().max_by_key(|(_, queue)| queue.len()).map(|(source, _)| source.clone())?;
        self.remove(&longest, VecDeque::pop_back);
        Some(longest)
    }

    /// Removes the next Event. Sources take turns.
    fn next(&mut self) -> Option<Draft> {
        let source = self.turns.pop_front()?;
        self.turns.push_back(source.clone());
        self.remove(&source, VecDeque::pop_front)
    }

    fn remove(&mut self, source: &Source, take: impl Fn(&mut VecDeque<Draft>) -> Option<Draft>) -> Option<Draft> {
        let queue = self.of.get_mut(source)?;
        let draft = take(queue);
        self.len -= usize::from(draft.is_some());
        if queue.is_empty() {
            self.of.remove(source);
            self.turns.retain(|waits| waits != source);
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

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A new Event was written.
    Created,
    /// An Event was counted as a repetition of an earlier one.
    Counted,
    /// There were too many, or this process may not act.
    Dropped,
    /// The API server did not take it.
    Failed,
    /// The plugin may not write it.
    Refused,
}

impl Fate {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Created, "created"),
        (Self::Counted, "counted"),
        (Self::Dropped, "dropped"),
        (Self::Failed, "failed"),
        (Self::Refused, "refused"),
    ];
}

/// The number of Events of one source, by what became of them.
#[derive(Debug, Default)]
pub struct EventCounts([AtomicU64; Fate::ALL.len()]);

impl EventCounts {
    fn add(&self, fate: Fate, count: u64) {
        self.0[fate as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the label `result` and the number of each fate.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Fate::ALL.into_iter().map(|(fate, result)| (result, self.0[fate as usize].load(Ordering::Relaxed)))
    }
}

/// Counts Events by plugin.
pub type PluginEvents = Series<EventCounts>;

#[derive(Clone)]
struct Counts {
    /// Events of the host itself.
    host: Arc<EventCounts>,
    plugins: Arc<PluginEvents>,
}

impl Counts {
    fn add(&self, source: &Source, fate: Fate, count: u64) {
        match source {
            Source::Host(_) => self.host.add(fate, count),
            Source::Plugin(plugin) => {
                if let Some(counts) = self.plugins.get(plugin.as_str()) {
                    counts.add(fate, count);
                }
            }
        }
    }
}

impl Events {
    /// Writes to `cluster`, on the runtime `io`, while `acting` is on for the Event's plugin. `instance` names this process among others, in
    /// `reportingInstance`. Counts the Events of plugins in `plugins`.
    pub fn start(
        cluster: Cluster,
        acting: impl Into<Switches>,
        plugins: Arc<PluginEvents>,
        instance: &str,
        io: &Handle,
    ) -> Self {
        let (waiting, open) = (Arc::<Waiting>::default(), CancellationToken::new());
        let counts = Counts { host: Arc::default(), plugins };
        let recorder = Recorder {
            cluster: cluster.for_events(),
            acting: acting.into(),
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
        Self { waiting, counts, clock: Clock::System, _open: Arc::new(open.drop_guard()) }
    }

    /// Takes the times of Events from `clock`.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Queues an Event about an object. `reason` is one word in `UpperCamelCase`, `message` a sentence. Never waits.
    pub fn record(&self, source: Source, object: &Object, level: Level, reason: &str, message: &str) {
        self.record_as(None, source, object, level, (reason, message));
    }

    /// As [`record`](Self::record), with reason and message. The Event is sent by `actor`, or by the host.
    pub(crate) fn record_as(
        &self,
        actor: Option<Arc<Actor>>,
        source: Source,
        object: &Object,
        level: Level,
        (reason, message): (&str, &str),
    ) {
        let about = About { of: object.type_meta().clone(), key: object.key().clone(), uid: object.uid().clone() };
        let draft = Draft {
            subject: (source, about),
            resource_version: object.resource_version().to_string(),
            reason: (level, reason.into()),
            message: cut(message, MAX_MESSAGE),
            at: self.clock.now(),
            actor,
        };
        let loser = self.waiting.queues.lock().add(draft);
        if let Some(loser) = loser {
            self.counts.add(&loser, Fate::Dropped, 1);
        }
        self.waiting.added.notify_one();
    }

    /// Counts Events of a plugin that are not written.
    pub fn count(&self, plugin: &PluginName, fate: Fate, count: usize) {
        if count > 0 {
            self.counts.add(&Source::Plugin(plugin.clone()), fate, count as u64);
        }
    }

    /// Returns the number of the host's own Events since the start, by what became of them. None is refused.
    pub fn figures(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.counts.host.iter().filter(|(result, _)| *result != "refused")
    }
}

struct Recorder {
    cluster: Cluster,
    acting: Switches,
    instance: String,
    counts: Counts,
    correlator: Correlator<Subject, Reason>,
    origin: Instant,
    warned: Option<Instant>,
}

impl Recorder {
    async fn run(mut self, waiting: &Waiting) {
        let mut used = Duration::ZERO;
        loop {
            let draft = waiting.next().await;
            let (source, about) = &draft.subject;
            let acting = self.acting.of(source.plugin().as_str());
            if !acting.is_allowed() {
                self.counts.add(source, Fate::Dropped, 1);
                continue;
            }
            let name = || format!("{}.{:x}", event_name(&about.key.name), draft.at.as_nanosecond());
            let now = self.origin.elapsed();
            let Some(act) = self.correlator.judge(now, &draft.subject, &draft.reason, &draft.message, name) else {
                self.counts.add(source, Fate::Dropped, 1);
                continue;
            };
            tokio::time::sleep(PACE.wait(used, self.origin.elapsed())).await;
            used = PACE.take(used, self.origin.elapsed());
            let written = match timeout(WITHIN, self.write(&draft, &act, acting)).await {
                Ok(written) => written.map_err(|error| (is_expected(&error), with_causes(&error))),
                Err(_) => Err((false, format!("no answer within {} s", WITHIN.as_secs()))),
            };
            let fate = match written {
                Ok(()) if act.count > 1 => Fate::Counted,
                Ok(()) => Fate::Created,
                Err((expected, error)) => {
                    self.log_failure(draft.actor.as_deref(), expected, &error);
                    Fate::Failed
                }
            };
            self.counts.add(source, fate, 1);
        }
    }

    async fn write(&self, draft: &Draft, act: &Act, acting: Acting) -> Result<(), cluster::Error> {
        let of = TypeMeta::new("v1", "Event");
        let cluster = self.cluster.clone().sent_by(draft.actor.clone()).fenced(acting);
        // As for all Events about objects without a namespace.
        let namespace = draft.subject.1.key.namespace.as_deref().unwrap_or("default");
        let at = draft.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if act.count > 1 {
            let again = json!({ "count": act.count, "lastTimestamp": at, "message": cut(&act.message, MAX_MESSAGE) });
            let options = WriteOptions { manager: COMPONENT, subresource: None };
            let body = again.to_string().into_bytes();
            match cluster.patch(&of, Some(namespace), &act.name, Patch::Merge, body, options).await {
                // The Event was never written, or has expired.
                Err(error) if error.is_not_found() => {}
                patched => return patched.map(drop),
            }
        }
        let body = self.event(draft, act, namespace, &at).to_string().into_bytes();
        cluster.create(&of, Some(namespace), body, COMPONENT).await.map(drop)
    }

    fn event(&self, draft: &Draft, act: &Act, namespace: &str, at: &str) -> Value {
        let (source, About { of, key, uid }) = &draft.subject;
        let ((level, reason), component) = (&draft.reason, source.component());
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
            "type": level.as_str(), "reason": **reason, "message": cut(&act.message, MAX_MESSAGE),
            "count": act.count, "firstTimestamp": at, "lastTimestamp": at,
            "source": { "component": component, "host": self.instance },
            "reportingComponent": component, "reportingInstance": self.instance,
        })
    }

    /// Logs that an Event is lost, as a warning now and then.
    fn log_failure(&mut self, actor: Option<&Actor>, expected: bool, error: &str) {
        if expected || self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            debug!(error, "cannot write an Event");
            return;
        }
        self.warned = Some(Instant::now());
        let account = actor.map_or_else(
            || "the host's account".to_owned(),
            |actor| format!("the service account {}", actor.account()),
        );
        warn!(error, "cannot write Events: nothing else depends on them; {account} needs create and patch on events");
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

/// Returns the beginning of an object's name as part of an Event's name. That is a DNS subdomain, while names of roles
/// may have colons and capitals.
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

    fn draft(source: &Source, message: usize) -> Draft {
        let object = br#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a","uid":"u","resourceVersion":"1"}}"#;
        let object = Object::parse(object, &TypeMeta::new("v1", "Node")).unwrap();
        let about = About { of: object.type_meta().clone(), key: object.key().clone(), uid: object.uid().clone() };
        let (resource_version, message) = ("1".to_owned(), message.to_string());
        let (subject, reason) = ((source.clone(), about), (Level::Normal, "Looked".into()));
        Draft { subject, resource_version, reason, message, at: Timestamp::UNIX_EPOCH, actor: None }
    }

    #[test]
    fn invariant_8_events_of_a_plugin_that_has_many_give_way_to_anothers() {
        let mut queues = Queues::default();
        let (busy, quiet) = (Source::Plugin(plugin("busy")), Source::Plugin(plugin("quiet")));
        let lost = (0..10_000).filter_map(|number| queues.add(draft(&busy, number)));
        let lost = lost.filter(|loser| *loser == busy).count();
        assert_eq!((queues.len, lost), (WAITING, 9_000));
        // Another's is taken all the same, and is next but one at the latest. So is what the host says about the busy
        // one.
        let host = Source::Host(plugin("busy"));
        assert_eq!(queues.add(draft(&quiet, 77)), Some(busy.clone()));
        assert_eq!(queues.add(draft(&host, 88)), Some(busy.clone()));
        assert_eq!((queues.len, queues.of[&quiet].len()), (WAITING, 1));
        let first: Vec<_> = (0..4).map(|_| queues.next().unwrap().message).collect();
        assert_eq!(first, ["0", "77", "88", "1"]);
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
