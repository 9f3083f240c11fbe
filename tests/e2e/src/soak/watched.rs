//! The host's side of a run: informers as the host has them, what their subscribers were told, and what they asked the server.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use http::{HeaderValue, Request, header};
use kube::client::Body;
use parking_lot::Mutex;
use pilothouse::{
    cluster::Cluster,
    informer::{InformerKey, Informers, Lease, Origin, told},
};
use pilothouse_core::{
    key::Key,
    object::Keep,
    reflector::State,
    selector::{FieldSelector, Selector},
    store::Change,
};
use tokio::runtime::Handle;

use super::world::Subject;
use crate::cluster::client;

/// The User-Agent of the informers: rules befall them alone.
pub(super) const USER_AGENT: &str = "pilothouse-soak";

/// One informer, and what is known of it.
pub(super) struct Watched {
    pub(super) subject: Subject,
    pub(super) lease: Lease,
    mirror: Arc<Mutex<Mirror>>,
    asked: Arc<Mutex<Asked>>,
    /// Leases run out without them.
    _informers: Informers,
}

/// What a subscriber knows who was only told of changes.
#[derive(Default)]
struct Mirror {
    objects: BTreeMap<Key, Seen>,
    changes: u64,
    /// Changes whose old side is not what was told before.
    out_of_order: Vec<String>,
}

/// A version of an object: its resourceVersion, and a hash of its text.
pub(super) type Seen = (u64, u64);

/// What an informer asked for. As long as the run has minutes.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// Lists that were begun, streaming ones too; not their further pages. By minute since the start of the run.
    pub(super) lists: BTreeMap<u64, u64>,
    /// Looks at the server's version.
    pub(super) looks: u64,
    /// Watches that go on from a version.
    pub(super) watches: u64,
    /// When each request was sent that nobody has looked at yet.
    sent: Vec<Duration>,
}

/// Changes out of order that are kept to be shown: one is too many.
const SHOWN: usize = 5;

/// Starts one host's informers.
pub(super) fn start(url: &http::Uri, subjects: &[Subject], begun: Instant) -> Result<Vec<Watched>> {
    let asked: Vec<Arc<Mutex<Asked>>> = subjects.iter().map(|_| Arc::default()).collect();
    let paths =
        subjects.iter().map(|subject| subject.kind.path(subject.namespace)).zip(asked.iter().cloned()).collect();
    let cluster = Cluster::new(recorded(url, paths, begun)?, "soak", Handle::current(), Arc::new(()));
    let informers = Informers::new(cluster, Handle::current());
    subjects.iter().zip(asked).map(|(subject, asked)| watched(&informers, *subject, asked)).collect()
}

fn watched(informers: &Informers, subject: Subject, asked: Arc<Mutex<Asked>>) -> Result<Watched> {
    let labels = Selector::parse(subject.labels).with_context(|| format!("{subject}"))?;
    let namespace = subject.namespace.map(Into::into);
    let fields = FieldSelector::parse(subject.fields).with_context(|| format!("{subject}"))?;
    let keep = Keep::new(subject.metadata_only, [])?;
    let key = InformerKey { namespace, labels, fields, keep, ..InformerKey::all(subject.kind.type_meta()) };
    let lease = informers.acquire(key, "soak");
    let mirror = Arc::new(Mutex::new(Mirror::default()));
    let told = mirror.clone();
    lease.subscribe(Box::new(move |change, _| told.lock().take(change)));
    Ok(Watched { subject, lease, mirror, asked, _informers: informers.clone() })
}

/// A client that counts what is asked for: by path, which differs between the informers of one host.
fn recorded(url: &http::Uri, paths: BTreeMap<String, Arc<Mutex<Asked>>>, begun: Instant) -> Result<kube::Client> {
    let inner = client(kube::Config::new(url.clone()))?;
    let service = tower::service_fn(move |mut request: Request<Body>| {
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if let Some(asked) = paths.get(request.uri().path()) {
            asked.lock().count(request.uri().query().unwrap_or_default(), begun.elapsed());
        }
        let inner = inner.clone();
        async move { inner.send(request).await }
    });
    Ok(kube::Client::new(service, "default"))
}

impl Asked {
    fn count(&mut self, query: &str, now: Duration) {
        self.sent.push(now);
        let has = |pair: &str| query.split('&').any(|other| other == pair);
        let further = query.split('&').any(|pair| pair.starts_with("continue="));
        let streaming = has("sendInitialEvents=true");
        let watch = has("watch=1") || has("watch=true");
        if watch && !streaming {
            self.watches += 1;
        } else if has("limit=1") {
            self.looks += 1;
        } else if !further {
            *self.lists.entry(now.as_secs() / 60).or_default() += 1;
        }
    }

    /// The most requests in any `window`, of those since the last call.
    fn densest(&mut self, window: Duration) -> u64 {
        let sent = std::mem::take(&mut self.sent);
        let within = |(first, from): (usize, &Duration)| {
            sent[first..].iter().take_while(|time| **time < *from + window).count() as u64
        };
        sent.iter().enumerate().map(within).max().unwrap_or_default()
    }
}

impl Mirror {
    fn take(&mut self, change: &Change) {
        self.changes += 1;
        let key = change.key().clone();
        let old = change.old.as_deref().map(|old| seen(old.resource_version().0, &old.json()));
        let before = match &change.new {
            Some(new) => self.objects.insert(key.clone(), seen(new.resource_version().0, &new.json())),
            None => self.objects.remove(&key),
        };
        if before != old && self.out_of_order.len() < SHOWN {
            self.out_of_order.push(format!("{key}: told that it was {old:?}, and before that it is {before:?}"));
        }
    }
}

pub(super) fn seen(version: u64, text: &str) -> Seen {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    (version, hasher.finish())
}

impl Watched {
    /// What is in the store, as one who subscribes now is told: version and text by key.
    pub(super) fn store(&self) -> BTreeMap<Key, (u64, String)> {
        let held = Arc::new(Mutex::new(BTreeMap::new()));
        let taken = held.clone();
        let subscription = self.lease.subscribe(Box::new(move |change, origin| {
            if let (Some(new), Origin::Initial) = (&change.new, origin) {
                let version = new.resource_version().0;
                taken.lock().insert(new.key().clone(), (version, new.json().into_owned()));
            }
        }));
        self.lease.unsubscribe(subscription);
        std::mem::take(&mut *held.lock())
    }

    /// What its subscriber has put together of the changes that it was told of.
    pub(super) fn replayed(&self) -> BTreeMap<Key, Seen> {
        self.mirror.lock().objects.clone()
    }

    pub(super) fn changes(&self) -> u64 {
        self.mirror.lock().changes
    }

    pub(super) fn out_of_order(&self) -> Vec<String> {
        self.mirror.lock().out_of_order.clone()
    }

    pub(super) fn asked(&self) -> Asked {
        self.asked.lock().clone()
    }

    /// The most requests that it sent in any `window`, of those since the last call.
    pub(super) fn densest(&self, window: Duration) -> u64 {
        self.asked.lock().densest(window)
    }

    /// Objects that could not be read, so far.
    pub(super) fn skipped(&self) -> u64 {
        self.lease.informer().tally().skipped
    }

    /// Lists after the first, by reason.
    pub(super) fn relists(&self) -> Vec<(&'static str, u64)> {
        self.lease.informer().tally().relists.iter().map(|(reason, count)| (reason.as_str(), *count)).collect()
    }

    /// The bytes that its store holds, counted.
    pub(super) fn bytes(&self) -> usize {
        self.lease.informer().size().1
    }

    pub(super) fn is_watching(&self) -> bool {
        *self.lease.synced().borrow() && self.lease.state() == State::Watching
    }

    /// What it is doing, for people.
    pub(super) fn told(&self) -> String {
        told(&self.lease.state())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_densest_stretch_of_requests_is_found_once() {
        let mut asked = Asked::default();
        for milliseconds in [0, 4_000, 5_000, 8_999, 9_000, 30_000] {
            asked.count("limit=500", Duration::from_millis(milliseconds));
        }
        assert_eq!(asked.densest(Duration::from_secs(5)), 3);
        assert_eq!(asked.densest(Duration::from_secs(5)), 0);
    }
}
