//! Keeps what open snapshots see differently from the present.
//!
//! Time is counted in epochs. The snapshots taken in an epoch hold it. When the watch changes an object while snapshots
//! are open, the superseded version is kept under the newest epoch that saw it. Without open snapshots nothing is kept.
//!
//! Every read sees own writes, so an own write hides the kept versions of its object. The store remembers that they
//! were shown, because their readers must be woken.
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

/// Superseded versions that one store keeps for its snapshots.
///
/// A call lasts milliseconds; this is enough for a call of a second during 16,384 changes a second. Searching all of
/// them for an owner takes some hundred microseconds.
pub const MAX_SUPERSEDED: usize = 16_384;

/// Bytes of superseded versions: small beside a store that changes so fast.
pub const MAX_SUPERSEDED_BYTES: usize = 16 << 20;

/// The objects of a store as they were at one moment. Ends when it is dropped, which needs no access to the store.
///
/// Reads through it do not see later changes by the watch. They do see this host's own writes, as does every read that
/// begins after the answer (invariant 3).
///
/// If the versions kept for snapshots pass a bound, the store gives up the oldest snapshot, whose reads then see the
/// present. [`Store::snapshots_given_up`](super::Store::snapshots_given_up) counts them.
#[derive(Clone, Debug)]
pub struct Snapshot(Arc<u64>);

#[derive(Debug, Default)]
pub(super) struct Past {
    /// The present epoch. Every other holder is a snapshot.
    now: Arc<u64>,
    /// Earlier epochs with open snapshots, oldest first.
    held: VecDeque<Arc<u64>>,
    /// Snapshots of epochs before this one were given up.
    given_up_before: u64,
    given_up: u64,
    /// Versions that snapshots see, oldest first.
    versions: BTreeMap<Key, Vec<Version>>,
    /// Versions that reads showed until an own write came, oldest first.
    revealed: BTreeMap<Key, Vec<Version>>,
    /// The keys of all versions with their `until`, oldest first.
    order: VecDeque<(u64, Key)>,
    /// Bytes of the objects in all versions.
    bytes: usize,
}

/// A key, and the object that a snapshot saw under it.
type Shown<'a> = (&'a Key, Option<&'a Arc<Object>>);

/// A former state of a key; `None` if there was no object.
#[derive(Debug)]
struct Version {
    /// The first and the last epoch that saw it.
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

    /// Returns `true` if versions may be kept for this snapshot: they are kept under ended epochs only.
    pub(super) fn keeps_for(&self, at: &Snapshot) -> bool {
        self.has(at) && *at.0 < *self.now
    }

    pub(super) fn snapshots(&self) -> usize {
        self.held.iter().chain([&self.now]).map(|epoch| Arc::strong_count(epoch) - 1).sum()
    }

    pub(super) fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Keeps `old`, which the watch supersedes under `key`, for the snapshots that see it.
    pub(super) fn supersede(&mut self, key: &Key, old: Option<&Arc<Object>>) {
        if self.held.is_empty() && !is_held(&self.now) {
            return;
        }
        if is_held(&self.now) {
            let next = Arc::new(*self.now + 1);
            // Of the snapshots between, most end before the oldest does.
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
            // The version began after the newest snapshot.
            return;
        }
        let version = Version { since, until, object: old.cloned() };
        self.bytes += version.bytes();
        // Mostly the only one.
        versions.reserve_exact(1);
        versions.push(version);
        self.order.push_back((until, key.clone()));
        while self.order.len() > MAX_SUPERSEDED || self.bytes > MAX_SUPERSEDED_BYTES {
            self.give_up();
        }
    }

    /// Shows the present of `key` to all snapshots, after an own write.
    pub(super) fn reveal(&mut self, key: &Key) {
        if let Some(versions) = self.versions.remove(key) {
            self.revealed.entry(key.clone()).or_default().extend(versions);
        }
    }

    /// Drops what no open snapshot sees.
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

    /// Returns what a snapshot sees under a key, if that differs from the present.
    pub(super) fn get(&self, at: &Snapshot, key: &Key) -> Option<Option<&Arc<Object>>> {
        if self.versions.is_empty() || !self.has(at) {
            return None;
        }
        seen(*at.0, self.versions.get(key)?)
    }

    /// Returns what a snapshot sees differently from the present, after a key and in a namespace, in the order of keys.
    pub(super) fn after<'a>(
        &'a self,
        at: &Snapshot,
        namespace: Option<&'a str>,
        after: Option<&Key>,
    ) -> impl Iterator<Item = (&'a Key, Option<&'a Arc<Object>>)> + use<'a> {
        let (at, has) = (*at.0, self.has(at));
        let begin = namespace.map(|namespace| Key { namespace: Some(namespace.into()), name: "".into() });
        // Keys without a namespace sort first.
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

    /// Returns what reads through a snapshot show, or have shown, differently from the present. Covers up to `work`
    /// keys after a key, in their order. Also returns the last of these keys if there may be more.
    pub(super) fn shown<'a>(
        &'a self,
        at: &Snapshot,
        after: Option<&Key>,
        work: usize,
    ) -> (Vec<Shown<'a>>, Option<&'a Key>) {
        let (at, work) = (*at.0, work.max(1));
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        // The first of each, so that the first of both are among them.
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

    /// Returns the number of epochs with snapshots, and of versions.
    pub(in crate::store) fn sizes(past: &Past) -> (usize, usize) {
        (past.held.len(), past.versions.values().map(Vec::len).sum())
    }

    /// Checks that versions are ordered, bounded, and visible to some snapshot.
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
