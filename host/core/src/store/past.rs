//! What open snapshots see otherwise than it is now.
//!
//! Time is counted in epochs, and an epoch is held by the snapshots that were taken in it. When the watch changes an object
//! while some are open, the version that is superseded is kept under the newest epoch that saw it; no snapshot open,
//! nothing kept. An own write is seen by all: no read shows what was kept of its object any more. That some have shown it is
//! remembered, for whoever read it must be told.
//!
//! ```text
//!            snapshot a            snapshot b
//!  epoch  4 ─────┴───── 5 ─────────────┴──── 6          now
//!  ns/x   v1       v2        v3        v3       v4      v4        kept: [until 4: v1] [until 5: v3]
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use super::in_namespace;
use crate::{key::Key, object::Object};

/// How many superseded versions one store keeps for its snapshots.
///
/// A call lasts milliseconds, and ten thousand changes a second are a storm: this is for a call that runs a second through one. To
/// look through all of them for an owner takes some hundred microseconds.
pub const MAX_SUPERSEDED: usize = 16_384;

/// How many bytes of them: small beside a store that changes so fast.
pub const MAX_SUPERSEDED_BYTES: usize = 16 << 20;

/// The objects of a store as they were at one moment. Dropping it ends it, at any time and without the store.
///
/// Reads through it see what was there then, whatever the watch has brought since. Writes of this host are the exception: they
/// are seen by every read that begins after their answer (invariant 3).
///
/// When the versions that a store keeps for its snapshots pass a bound, it gives up the oldest: reads through it then see the
/// present. [`Store::snapshots_given_up`](super::Store::snapshots_given_up) counts those.
#[derive(Clone, Debug)]
pub struct Snapshot(Arc<u64>);

#[derive(Debug, Default)]
pub(super) struct Past {
    /// The present epoch; whoever else holds it is a snapshot.
    now: Arc<u64>,
    /// Earlier epochs that a snapshot held when they ended, oldest first.
    held: VecDeque<Arc<u64>>,
    /// Snapshots of epochs before this one have been given up.
    given_up_before: u64,
    given_up: u64,
    /// Oldest first.
    versions: BTreeMap<Key, Vec<Version>>,
    /// What reads have shown until an own write came. Oldest first.
    revealed: BTreeMap<Key, Vec<Version>>,
    /// The keys of all versions by their `until`, oldest first.
    order: VecDeque<(u64, Key)>,
    /// Of objects.
    bytes: usize,
}

/// A key, and what stood under it.
type Shown<'a> = (&'a Key, Option<&'a Arc<Object>>);

/// What stood under a key, though it does not any more.
#[derive(Debug)]
struct Version {
    /// The first epoch that saw it, and the last.
    since: u64,
    until: u64,
    object: Option<Arc<Object>>,
}

impl Version {
    fn bytes(&self) -> usize {
        self.object.as_ref().map_or(0, |object| object.bytes())
    }
}

fn is_held(epoch: &Arc<u64>) -> bool {
    Arc::strong_count(epoch) > 1
}

impl Past {
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot(self.now.clone())
    }

    pub(super) fn has(&self, at: &Snapshot) -> bool {
        *at.0 >= self.given_up_before
    }

    /// What is kept is kept under epochs that have ended.
    pub(super) fn keeps_for(&self, at: &Snapshot) -> bool {
        self.has(at) && *at.0 < *self.now
    }

    pub(super) fn snapshots(&self) -> usize {
        self.held.iter().chain([&self.now]).map(|epoch| Arc::strong_count(epoch) - 1).sum()
    }

    pub(super) fn given_up(&self) -> u64 {
        self.given_up
    }

    /// The watch supersedes `old`, which was there (or was not, if none) under `key`.
    pub(super) fn supersede(&mut self, key: &Key, old: Option<&Arc<Object>>) {
        if self.held.is_empty() && !is_held(&self.now) {
            return;
        }
        if is_held(&self.now) {
            let next = Arc::new(*self.now + 1);
            // Of the snapshots in between, most end before the oldest does.
            if self.held.len() == self.held.capacity() {
                self.held.retain(is_held);
            }
            self.held.push_back(std::mem::replace(&mut self.now, next));
        }
        self.release();
        let Some(newest) = self.held.back() else { return };
        let until = **newest;
        let versions = self.versions.entry(key.clone()).or_default();
        let since = versions.last().map_or(0, |last| last.until + 1);
        if since > until {
            // It came and went since the newest snapshot was taken.
            return;
        }
        let version = Version { since, until, object: old.cloned() };
        self.bytes += version.bytes();
        // Nearly always the only one.
        versions.reserve_exact(1);
        versions.push(version);
        self.order.push_back((until, key.clone()));
        while self.order.len() > MAX_SUPERSEDED || self.bytes > MAX_SUPERSEDED_BYTES {
            self.give_up();
        }
    }

    /// An own write has been answered: what is there now is what all see.
    pub(super) fn reveal(&mut self, key: &Key) {
        if let Some(versions) = self.versions.remove(key) {
            self.revealed.entry(key.clone()).or_default().extend(versions);
        }
    }

    /// Lets go of what no open snapshot sees.
    pub(super) fn release(&mut self) {
        while self.held.pop_front_if(|oldest| !is_held(oldest)).is_some() {}
        self.trim();
    }

    fn give_up(&mut self) {
        if let Some(oldest) = self.held.pop_front() {
            self.given_up_before = *oldest + 1;
            self.given_up += u64::try_from(Arc::strong_count(&oldest)).unwrap_or(1) - 1;
        }
        self.trim();
    }

    fn trim(&mut self) {
        let Some(oldest) = self.held.front().map(|oldest| **oldest) else {
            self.versions.clear();
            self.revealed.clear();
            (self.order, self.held, self.bytes) = (VecDeque::new(), VecDeque::new(), 0);
            return;
        };
        while let Some((_, key)) = self.order.pop_front_if(|(until, _)| *until < oldest) {
            for kept in [&mut self.versions, &mut self.revealed] {
                let Some(versions) = kept.get_mut(&key) else { continue };
                let unseen = versions.partition_point(|version| version.until < oldest);
                self.bytes -= versions.drain(..unseen).map(|version| version.bytes()).sum::<usize>();
                if versions.is_empty() {
                    kept.remove(&key);
                }
            }
        }
    }

    /// What a snapshot sees under a key, if it is not what is there now.
    pub(super) fn get(&self, at: &Snapshot, key: &Key) -> Option<Option<&Arc<Object>>> {
        if self.versions.is_empty() || !self.has(at) {
            return None;
        }
        seen(*at.0, self.versions.get(key)?)
    }

    /// All that a snapshot sees otherwise than it is now, after a key and in a namespace, in the order of keys.
    pub(super) fn after<'a>(
        &'a self,
        at: &Snapshot,
        namespace: Option<&'a str>,
        after: Option<&Key>,
    ) -> impl Iterator<Item = (&'a Key, Option<&'a Arc<Object>>)> + use<'a> {
        let (at, has) = (*at.0, self.has(at));
        let begin = namespace.map(|namespace| Key { namespace: Some(namespace.into()), name: "".into() });
        // Keys without a namespace come first, whatever their names.
        let begin = begin.filter(|begin| begin.namespace.as_deref() != Some(""));
        let begin = match (after, &begin) {
            (Some(after), Some(begin)) if after < begin => Bound::Included(begin),
            (Some(after), _) => Bound::Excluded(after),
            (None, Some(begin)) => Bound::Included(begin),
            (None, None) => Bound::Unbounded,
        };
        let versions = self.versions.range::<Key, _>((begin, Bound::Unbounded));
        let within =
            versions.take_while(move |(key, _)| namespace.is_none_or(|namespace| in_namespace(key) == namespace));
        within.filter_map(move |(key, versions)| Some((key, seen(at, versions).filter(|_| has)?)))
    }

    /// What reads through a snapshot show, or have shown, otherwise than it is now: of up to `work` keys after a key, in
    /// their order; and the last of these, if there may be more.
    pub(super) fn shown<'a>(
        &'a self,
        at: &Snapshot,
        after: Option<&Key>,
        work: usize,
    ) -> (Vec<Shown<'a>>, Option<&'a Key>) {
        let (at, work) = (*at.0, work.max(1));
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        // Of each the first: so the first of both are among them.
        let some = |kept: &'a BTreeMap<Key, Vec<Version>>| kept.range::<Key, _>((after, Bound::Unbounded)).take(work);
        let shows =
            some(&self.versions).map(|(key, versions)| (key, seen(at, versions).into_iter().collect::<Vec<_>>()));
        let has_shown = some(&self.revealed).map(|(key, versions)| {
            let seen = versions.iter().filter(|version| (version.since..=version.until).contains(&at));
            (key, seen.map(|version| version.object.as_ref()).collect())
        });
        let mut shown: Vec<_> = shows.chain(has_shown).collect();
        shown.sort_by_key(|(key, _)| *key);
        let last = shown.get(work - 1).map(|(key, _)| *key);
        shown.truncate(last.map_or(shown.len(), |last| shown.partition_point(|(key, _)| *key <= last)));
        (
            shown.into_iter().flat_map(|(key, objects)| objects.into_iter().map(move |object| (key, object))).collect(),
            last,
        )
    }

    pub(super) fn bytes(&self) -> usize {
        // B-tree nodes are two thirds full.
        let node = (size_of::<Key>() + size_of::<Vec<Version>>()) * 3 / 2;
        self.bytes
            + (self.versions.len() + self.revealed.len()) * (node + size_of::<Version>())
            + self.order.capacity() * size_of::<(u64, Key)>()
            + self.held.len() * size_of::<[u64; 4]>()
    }
}

fn seen(at: u64, versions: &[Version]) -> Option<Option<&Arc<Object>>> {
    let version = versions.get(versions.partition_point(|version| version.until < at))?;
    Some(version.object.as_ref())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// How many epochs are held, and how many versions.
    pub(in crate::store) fn sizes(past: &Past) -> (usize, usize) {
        (past.held.len(), past.versions.values().map(Vec::len).sum())
    }

    /// Versions are in order, within bounds, and some snapshot may see them.
    pub(in crate::store) fn check(past: &Past) {
        let versions = || past.versions.values().chain(past.revealed.values()).flatten();
        assert_eq!(past.bytes, versions().map(Version::bytes).sum::<usize>());
        assert!(versions().count() <= past.order.len() && past.order.len() <= MAX_SUPERSEDED);
        assert!(past.order.iter().is_sorted_by_key(|(until, _)| until));
        for (key, versions) in past.versions.iter().chain(&past.revealed) {
            assert!(!versions.is_empty(), "no key is kept empty");
            assert!(versions.iter().is_sorted_by(|a, b| a.until <= b.until), "{key}");
            assert!(versions.iter().all(|version| version.until >= *past.held[0]), "{key}");
        }
    }
}
