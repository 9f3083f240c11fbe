//! Watches that reconciles ask for at run time (`outcome.watches`).
//!
//! Owns which key asks for which watch, and which keys must learn that a watch is ready or refused. The host leases the
//! caches.
//!
//! ```text
//! outcome of a key ─► replace ─► watches, by the first ask ─► host: leases, readiness ─► settle ─► keys to wake
//! ```
//!
//! - A watch is kept while any key asks for it. Equal watches of several keys are one.
//! - A key is woken once for each of its watches: when the watch is ready, or refused. It is woken again if that
//!   changes.
//!
//! ```
//! use pilothouse_core::{asked::{Asked, Answer}, budget::Budget, key::{Key, TypeMeta}, manifest::Watch};
//!
//! let mut asked = Asked::within(&Budget::new(1 << 20));
//! let (key, pods) = (Key::new(Some("default"), "a"), Watch::all(TypeMeta::new("v1", "Pod")));
//! asked.replace(&key, vec![pods.clone()]).expect("there is room");
//! let (number, _) = asked.watches().next().expect("one is asked for");
//! assert_eq!(asked.settle(number, Answer::Pending), []);
//! assert_eq!(asked.settle(number, Answer::Ready), [key.clone()]);
//! assert_eq!(asked.settle(number, Answer::Ready), []);
//! asked.forget(&key);
//! assert_eq!(asked.watches().count(), 0);
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hashbrown::HashMap;

use crate::{
    budget::{Budget, Share},
    informer::InformerKey,
    key::Key,
    manifest::{MAX_BY_FIELDS, MAX_CUTS, Watch},
    object::Keep,
};

/// Largest number of watches of one key. A reconcile that asks for more should list less, or watch a kind in its
/// manifest.
pub const MAX_ASKED: usize = 64;

/// Bytes of all watches that the keys of a plugin ask for: some thousand keys with a few watches each.
pub const MAX_ASKED_BYTES: usize = 4 << 20;

/// Bytes of a key's reference to a watch.
const REFERENCE: usize = 64;

/// The watches that the keys of one controller ask for.
#[derive(Debug)]
pub struct Asked {
    keys: HashMap<Key, BTreeSet<u64>>,
    watches: BTreeMap<u64, AskedWatch>,
    numbers: HashMap<Arc<Watch>, u64>,
    next: u64,
    bytes: Share,
}

#[derive(Debug)]
struct AskedWatch {
    watch: Arc<Watch>,
    keys: BTreeSet<Key>,
    /// The keys that have not learned the answer.
    waiting: BTreeSet<Key>,
    answer: Answer,
}

/// What became of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The first list is not complete.
    Pending,
    /// Its objects are cached.
    Ready,
    /// It is not granted, over a bound, or denied by the API server.
    Refused,
}

/// Says whether a plugin that holds these caches may have another one. Both bounds are those of a manifest.
///
/// # Errors
/// The bound that forbids it.
pub fn admits<'a>(held: impl Iterator<Item = &'a InformerKey>, new: &InformerKey) -> Result<(), String> {
    let of_kind: Vec<_> = held.filter(|key| key.of == new.of).collect();
    let by_fields = of_kind.iter().filter(|key| key.is_evaluated_by_server() && key.namespace == new.namespace);
    if new.is_evaluated_by_server() && by_fields.count() >= MAX_BY_FIELDS {
        return Err(format!("keys ask for more than {MAX_BY_FIELDS} selectors by fields of {}", new.of));
    }
    let cuts: BTreeSet<&Keep> = of_kind.iter().map(|key| &key.keep).filter(|keep| !keep.is_whole()).collect();
    if !new.keep.is_whole() && !cuts.contains(&new.keep) && cuts.len() >= MAX_CUTS {
        return Err(format!("keys leave out other fields of {} in more than {MAX_CUTS} ways", new.of));
    }
    Ok(())
}

/// The watches of a plugin's keys take too much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the watches that the plugin's keys ask for take too much memory: ask for fewer, or watch the kinds in the manifest"
)]
pub struct Full;

impl Asked {
    /// Creates it without watches, whose bytes count in this budget.
    pub fn within(bytes: &Budget) -> Self {
        Self { keys: HashMap::new(), watches: BTreeMap::new(), numbers: HashMap::new(), next: 0, bytes: bytes.share() }
    }

    /// Replaces what a key asks for. Returns `true` if something changes for the host.
    ///
    /// # Errors
    /// There is no room. The key then asks for nothing.
    pub fn replace(&mut self, key: &Key, watches: Vec<Watch>) -> Result<bool, Full> {
        let before = self.keys.remove(key).unwrap_or_default();
        let mut now = BTreeSet::new();
        let mut changed = false;
        let mut full = false;
        for watch in watches {
            match self.ask(key, watch, &before) {
                Some((number, is_new)) => {
                    now.insert(number);
                    changed |= is_new;
                }
                None => full = true,
            }
        }
        if full {
            for number in before.union(&now) {
                self.leave(*number, key);
            }
            return Err(Full);
        }
        for number in before.difference(&now) {
            self.leave(*number, key);
            changed = true;
        }
        if !now.is_empty() {
            self.keys.insert(key.clone(), now);
        }
        Ok(changed)
    }

    /// Returns the number of the watch, and `true` if the key did not ask for it `before`. `None` if there is no room.
    fn ask(&mut self, key: &Key, watch: Watch, before: &BTreeSet<u64>) -> Option<(u64, bool)> {
        if let Some(number) = self.numbers.get(&watch).copied() {
            if before.contains(&number) {
                return Some((number, false));
            }
            let entry = self.watches.get_mut(&number)?;
            if entry.keys.contains(key) {
                return Some((number, false));
            }
            if !self.bytes.fits(REFERENCE) {
                return None;
            }
            self.bytes.add(REFERENCE);
            entry.keys.insert(key.clone());
            entry.waiting.insert(key.clone());
            return Some((number, true));
        }
        let bytes = watch.bytes() + REFERENCE;
        if !self.bytes.fits(bytes) {
            return None;
        }
        self.bytes.add(bytes);
        let (number, watch) = (self.next, Arc::new(watch));
        self.next += 1;
        self.numbers.insert(watch.clone(), number);
        let keys = BTreeSet::from([key.clone()]);
        self.watches.insert(number, AskedWatch { watch, waiting: keys.clone(), keys, answer: Answer::Pending });
        Some((number, true))
    }

    fn leave(&mut self, number: u64, key: &Key) {
        let Some(entry) = self.watches.get_mut(&number) else { return };
        if entry.keys.remove(key) {
            self.bytes.remove(REFERENCE);
        }
        entry.waiting.remove(key);
        if entry.keys.is_empty()
            && let Some(entry) = self.watches.remove(&number)
        {
            self.bytes.remove(entry.watch.bytes());
            self.numbers.remove(&entry.watch);
        }
    }

    /// Forgets what a key asks for. Returns `true` if it asked for something.
    pub fn forget(&mut self, key: &Key) -> bool {
        let Some(numbers) = self.keys.remove(key) else { return false };
        for number in numbers {
            self.leave(number, key);
        }
        true
    }

    /// Returns the watches and their numbers, in the order of the first asks.
    pub fn watches(&self) -> impl Iterator<Item = (u64, &Arc<Watch>)> {
        self.watches.iter().map(|(number, entry)| (*number, &entry.watch))
    }

    /// Records what became of a watch. Returns the keys to wake, in order.
    pub fn settle(&mut self, number: u64, answer: Answer) -> Vec<Key> {
        let Some(entry) = self.watches.get_mut(&number) else { return Vec::new() };
        if answer != entry.answer && answer != Answer::Pending {
            entry.waiting.clone_from(&entry.keys);
        }
        entry.answer = answer;
        if answer == Answer::Pending {
            return Vec::new();
        }
        std::mem::take(&mut entry.waiting).into_iter().collect()
    }

    /// Returns the number of keys that ask for something.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of different watches.
    pub fn len(&self) -> usize {
        self.watches.len()
    }

    /// Returns `true` if no key asks for anything.
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use super::*;
    use crate::{field::FieldPath, key::TypeMeta, selector::FieldSelector};

    fn watch(kind: &str) -> Watch {
        Watch::all(TypeMeta::new("v1", kind))
    }

    fn key(name: &str) -> Key {
        Key::new(Some("n"), name)
    }

    fn kinds(asked: &Asked) -> Vec<String> {
        asked.watches().map(|(_, watch)| watch.of.kind.to_string()).collect()
    }

    #[test]
    fn a_watch_is_kept_while_a_key_asks_for_it() {
        let budget = Budget::new(1 << 20);
        let mut asked = Asked::within(&budget);
        assert_eq!(asked.replace(&key("a"), vec![watch("Pod"), watch("Node"), watch("Pod")]), Ok(true));
        assert_eq!(asked.replace(&key("b"), vec![watch("Node")]), Ok(true));
        assert_eq!(asked.replace(&key("a"), vec![watch("Node"), watch("Pod")]), Ok(false));
        assert_eq!((kinds(&asked), asked.keys()), (vec!["Pod".to_owned(), "Node".to_owned()], 2));
        assert_eq!(asked.replace(&key("a"), vec![watch("Secret")]), Ok(true));
        assert_eq!(kinds(&asked), ["Node", "Secret"]);
        assert!(asked.forget(&key("b")) && !asked.forget(&key("b")));
        assert_eq!(asked.replace(&key("a"), Vec::new()), Ok(true));
        assert_eq!((asked.len(), asked.keys(), asked.numbers.len(), budget.used()), (0, 0, 0, 0));
    }

    #[test]
    fn a_key_is_woken_once_for_each_answer() {
        let mut asked = Asked::within(&Budget::new(1 << 20));
        asked.replace(&key("a"), vec![watch("Pod")]).unwrap();
        let (number, _) = asked.watches().next().unwrap();
        assert_eq!(asked.settle(number, Answer::Pending), []);
        assert_eq!(asked.settle(number, Answer::Ready), [key("a")]);
        assert_eq!(asked.settle(number, Answer::Ready), []);
        // A key that comes later is woken alone.
        asked.replace(&key("b"), vec![watch("Pod")]).unwrap();
        assert_eq!(asked.settle(number, Answer::Ready), [key("b")]);
        assert_eq!(asked.settle(number, Answer::Refused), [key("a"), key("b")]);
        asked.replace(&key("b"), Vec::new()).unwrap();
        assert_eq!(asked.settle(number, Answer::Ready), [key("a")]);
    }

    #[test]
    fn a_key_whose_watches_find_no_room_asks_for_nothing() {
        let budget = Budget::new(watch("Pod").bytes() + REFERENCE);
        let mut asked = Asked::within(&budget);
        asked.replace(&key("a"), vec![watch("Pod")]).unwrap();
        assert_eq!(asked.replace(&key("b"), vec![watch("Pod")]), Err(Full));
        assert_eq!(asked.replace(&key("a"), vec![watch("Pod"), watch("Node")]), Err(Full));
        assert_eq!((asked.len(), asked.keys(), budget.used()), (0, 0, 0));
    }

    #[test]
    fn a_plugin_that_holds_eight_caches_by_fields_or_eight_ways_to_leave_out_may_have_no_ninth() {
        let by_fields = |namespace: Option<&str>, number: usize| InformerKey {
            namespace: namespace.map(Into::into),
            fields: FieldSelector::parse(&format!("data.owner={number}")).unwrap(),
            ..InformerKey::all(TypeMeta::new("v1", "Pod"))
        };
        let held: Vec<_> = (0..MAX_BY_FIELDS).map(|number| by_fields(None, number)).collect();
        assert_eq!(admits(held[1..].iter(), &by_fields(None, 8)), Ok(()));
        let told = "keys ask for more than 8 selectors by fields of v1 Pod".to_owned();
        assert_eq!(admits(held.iter(), &by_fields(None, 8)), Err(told));
        // Another scope, another kind, and what the host evaluates itself do not count.
        let of = TypeMeta::new("v1", "Node");
        let named = FieldSelector::parse("metadata.name=a").unwrap();
        for other in [
            by_fields(Some("n"), 8),
            InformerKey { of, ..by_fields(None, 8) },
            InformerKey { fields: named, ..by_fields(None, 8) },
        ] {
            assert_eq!(admits(held.iter(), &other), Ok(()), "{other}");
        }

        let cut = |number: usize| InformerKey {
            keep: Keep::new(false, [FieldPath::parse(&format!("data.a{number}")).unwrap()]).unwrap(),
            ..InformerKey::all(TypeMeta::new("v1", "Pod"))
        };
        let held: Vec<_> = (0..MAX_CUTS).map(cut).collect();
        assert_eq!(admits(held.iter(), &cut(3)), Ok(()), "it is held");
        let told = "keys leave out other fields of v1 Pod in more than 8 ways".to_owned();
        assert_eq!(admits(held.iter(), &cut(8)), Err(told));
    }
}
