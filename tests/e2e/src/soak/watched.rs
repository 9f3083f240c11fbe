//! The host's side of a run: its informers, the changes that their subscribers received, and the requests that they
//! sent.

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
    informer::{InformerKey, Informers, Lease, Origin},
};
use pilothouse_core::{
    key::Key,
    object::Keep,
    reflector::State,
    selector::{FieldSelector, Selector},
    store::Change,
};
use tokio::runtime::Handle;

use super::{faults::USER_AGENT, world::Subject};
use crate::cluster::client;

/// One informer and the test's records about it.
pub(super) struct Watched {
    pub(super) subject: Subject,
    pub(super) lease: Lease,
    mirror: Arc<Mutex<Mirror>>,
    asked: Arc<Mutex<Asked>>,
    /// The leases, which keep the informer running.
    _informers: Informers,
}

/// A subscriber's copy of the cache, built from changes alone.
#[derive(Default)]
struct Mirror {
    objects: BTreeMap<Key, Seen>,
    changes: u64,
    /// Changes whose old object differs from the one received before.
    out_of_order: Vec<String>,
}

/// A version of an object: its resourceVersion and a hash of its text.
pub(super) type Seen = (u64, u64);

/// Counts an informer's requests. Its size grows with the run's minutes.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// Number of lists begun in each minute of the run, including streaming ones, without further pages.
    pub(super) lists: BTreeMap<u64, u64>,
    /// Looks at the server's version.
    pub(super) looks: u64,
    /// Watches that start at a version.
    pub(super) watches: u64,
    /// Times of the requests since the last [`Asked::densest`].
    sent: Vec<Duration>,
}

/// Number of changes out of order that are kept for the report. One is already a fault.
const SHOWN: usize = 5;

/// Starts one host's informers.
pub(super) fn start(url: &http::Uri, subjects: &[Subject], begun: Instant) -> Result<Vec<Watched>> {
    let asked: Vec<Arc<Mutex<Asked>>> = subjects.iter().map(|_| Arc::default()).collect();
    let paths =
        subjects.iter().map(|subject| subject.kind.path(subject.namespace)).zip(asked.iter().cloned()).collect();
    let cluster = Cluster::new(recorded(url, paths, begun)?, "soak", Handle::current());
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

/// Creates a client that counts requests by path. The paths of one host's informers differ.
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

    /// Returns the maximum number of requests in any `window` since the last call.
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
    /// Returns the store's content as a new subscriber receives it: version and text hash by key.
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

    /// Returns the copy that its subscriber built from changes.
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

    /// Returns the maximum number of requests in any `window` since the last call.
    pub(super) fn densest(&self, window: Duration) -> u64 {
        self.asked.lock().densest(window)
    }

    /// Number of objects that it could not read.
    pub(super) fn skipped(&self) -> u64 {
        self.lease.informer().tally().skipped
    }

    /// Number of relists by reason.
    pub(super) fn relists(&self) -> Vec<(&'static str, u64)> {
        self.lease.informer().tally().relists.iter().map(|(reason, count)| (reason.as_str(), *count)).collect()
    }

    /// Bytes that its store counts.
    pub(super) fn bytes(&self) -> usize {
        self.lease.informer().size().1
    }

    pub(super) fn is_watching(&self) -> bool {
        *self.lease.synced().borrow() && self.lease.state() == State::Watching
    }

    /// Describes its state for people.
    pub(super) fn told(&self) -> String {
        self.lease.state().to_string()
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
