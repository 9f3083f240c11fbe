//! Who of several active replicas owns which item: a plugin, or the host's own work.
//!
//! Each replica renews a Lease of its own. Who owns what stands in one [`Table`], which all replicas write with the version that they read as a
//! precondition. `docs/design/leases.md` has the protocol and why no two replicas act for an item.
//!
//! ```text
//! one look at all Leases ─► Spread ─► part: owns, leaves or none
//!                              └────► next: the table as it should be ─► update with the version of the look
//! ```
//!
//! [`plan`] decides where an item should be, by rendezvous hashing over the live replicas. [`Spread`] is what one replica knows.
//! Neither knows a time. Whoever drives them measures when a Lease has expired, as in [leader election](crate::election).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The item that stands for the host's own work: certificates and webhook configurations. No plugin has such a name.
pub const HOST: &str = "(host)";

/// How often an item moves while the replicas change, before it stays where it is for balance's sake.
pub const MOVES: u8 = 2;

/// The heaviest weight: a plugin that uses one core and more.
pub const HEAVIEST: u16 = 128;

/// Who owns what, by item.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Table(pub BTreeMap<Box<str>, Entry>);

/// What the table says of an item.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// The replica that may act for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Box<str>>,
    /// The replica that gets it once the owner has released it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Box<str>>,
    /// What it uses, as a power of two: see [`weight`]. 0 if its owner has not measured it.
    #[serde(skip_serializing_if = "is_zero")]
    pub weight: u16,
    /// Times that it went to another owner since the replicas were last at rest.
    #[serde(skip_serializing_if = "is_zero")]
    pub moves: u8,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Entry {
    /// What it adds to its owner's load. The host's own work is too little to count: it would take the place of a plugin.
    fn load(&self, item: &str) -> u32 {
        if item == HOST { 0 } else { u32::from(self.weight.max(1)) }
    }
}

/// A replica as its Lease describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Replica {
    /// When its Lease was created, by the API server's clock. Texts compare as times do.
    pub born: Box<str>,
    /// What it runs. Replicas of another revision are about to end, if one of this revision is younger.
    pub revision: Box<str>,
    /// What it can own.
    pub items: BTreeSet<Box<str>>,
}

/// Replicas that have a Lease, by its name.
pub type Live = BTreeMap<Box<str>, Replica>;

/// All Leases as they were at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Look {
    /// Who owns what.
    pub table: Table,
    /// The version of the object that holds the table. `None` if there is none.
    pub version: Option<Box<str>>,
    /// The replicas.
    pub live: Live,
}

/// What a replica may do for an item while its own Lease lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Act.
    Owns,
    /// Finish the calls in flight, and begin no more.
    Leaves,
    /// Nothing.
    None,
}

/// What one replica knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    name: Box<str>,
    look: Look,
    /// `true` once its own Lease was seen.
    has_joined: bool,
    /// Items that it released in a request that replaces the version of the look.
    given: BTreeSet<Box<str>>,
}

impl Spread {
    /// Begins for a replica with a Lease of this name. No other replica has or had this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), look: Look::default(), has_joined: false, given: BTreeSet::new() }
    }

    /// The name of its Lease.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last look.
    pub fn look(&self) -> &Look {
        &self.look
    }

    /// Takes note of all Leases. Looks must not go back in time.
    ///
    /// Returns `false` if the replica's own Lease is gone. It owns nothing any more then, and may go on only under another name.
    pub fn see(&mut self, look: Look) -> bool {
        let is_there = look.live.contains_key(&self.name);
        let is_lost = self.has_joined && !is_there;
        self.has_joined |= is_there;
        // A request that replaces another version changes nothing any more.
        if look.version != self.look.version {
            self.given.clear();
        }
        self.look = look;
        !is_lost
    }

    /// Returns what this replica may do for an item.
    pub fn part(&self, item: &str) -> Part {
        let entry = self.look.table.0.get(item).filter(|entry| entry.owner.as_deref() == Some(&*self.name));
        let Some(me) = self.look.live.get(&self.name) else { return Part::None };
        match entry {
            None => Part::None,
            Some(_) if self.given.contains(item) => Part::None,
            Some(entry) if entry.to.is_none() && me.items.contains(item) => Part::Owns,
            Some(_) => Part::Leaves,
        }
    }

    /// Returns who owns an item by the last look.
    pub fn owner(&self, item: &str) -> Option<&str> {
        self.look.table.0.get(item)?.owner.as_deref()
    }

    /// Returns the table as it should be, or `None` if it is so. Whoever calls this must stop to act for items whose [`part`](Self::part) is
    /// `None` now, and then replace the version of the last look by it.
    ///
    /// `is_over` is asked for items that leave: `true` if no call is in flight. `measured` is the [`weight`] of an item, if it was measured
    /// anew. `is_at_rest` says that neither table nor replicas have changed for a long time.
    pub fn next(
        &mut self,
        is_over: impl Fn(&str) -> bool,
        measured: impl Fn(&str) -> Option<u16>,
        is_at_rest: bool,
    ) -> Option<Table> {
        let me = self.look.live.get(&self.name)?;
        let own = self.look.table.0.iter().filter(|(_, entry)| entry.owner.as_deref() == Some(&*self.name));
        let own = own
            .map(|(item, _)| item)
            .filter(|item| self.given.contains(*item) || (self.part(item) == Part::Leaves && is_over(item)));
        let released: BTreeSet<Box<str>> = own.cloned().collect();
        let mut next = plan(&self.look.table, &self.look.live);
        for (item, entry) in &mut next.0 {
            if is_at_rest {
                entry.moves = 0;
            }
            if entry.owner.as_deref() != Some(&*self.name) {
                continue;
            }
            if let Some(measured) = measured(item) {
                entry.weight = weighed(entry.weight, measured);
            }
            if released.contains(item) {
                match entry.to.take() {
                    Some(to) => {
                        entry.owner = Some(to);
                        entry.moves = entry.moves.saturating_add(1);
                    }
                    None if !me.items.contains(item) => entry.owner = None,
                    // Its goal is gone: it stays.
                    None => {}
                }
            }
        }
        self.given = released;
        next.0.retain(|item, entry| entry.owner.is_some() || is_known(item, &self.look.live));
        (next != self.look.table).then_some(next)
    }

    /// Returns `true` if no other replica has a Lease. Then the table can be given up at the end.
    pub fn is_last(&self) -> bool {
        self.look.live.keys().all(|name| *name == self.name)
    }
}

fn is_known(item: &str, live: &Live) -> bool {
    live.values().any(|replica| replica.items.contains(item))
}

/// Returns the table as it should be, if these replicas live.
///
/// - An item whose owner is gone, or that is new, gets an owner at once.
/// - An item whose owner lives keeps it, and gets a goal (`to`) if it should be elsewhere. Its owner releases it.
/// - While replicas of several revisions live, items go only to those of the newest, and only if their owners are gone. So a rolling update
///   moves an item when its owner ends, and it lands on a replica that stays.
/// - Otherwise replicas that have a quarter more than their fair share give some away. Those that have a quarter less, or nothing, get some.
///   Items that moved [`MOVES`] times stay, and so does the host's own work.
pub fn plan(table: &Table, live: &Live) -> Table {
    let mut next = table.clone();
    for item in live.values().flat_map(|replica| &replica.items) {
        next.0.entry(item.clone()).or_default();
    }
    let newest =
        live.iter().max_by_key(|(name, replica)| (&replica.born, *name)).map(|(_, replica)| &*replica.revision);
    let newest = newest.unwrap_or_default();
    let is_live = |name: &Option<Box<str>>| name.as_ref().is_some_and(|name| live.contains_key(name));
    for (item, entry) in &mut next.0 {
        if entry.owner.is_some() && !is_live(&entry.owner) {
            entry.owner = None;
            entry.moves = entry.moves.saturating_add(1);
        }
        let goal = entry.to.as_ref().and_then(|to| live.get(to));
        if entry.owner.is_none() || !goal.is_some_and(|goal| goal.items.contains(item) && *goal.revision == *newest) {
            entry.to = None;
        }
    }
    next.0.retain(|item, entry| entry.owner.is_some() || is_known(item, live));
    let mut loads = Loads::of(&next, live);

    let is_homeless = |item: &str, entry: &Entry| match &entry.owner {
        None => true,
        // Its owner does not know it any more.
        Some(owner) => entry.to.is_none() && live.get(owner).is_none_or(|owner| !owner.items.contains(item)),
    };
    let mut waiting: Vec<_> = next
        .0
        .iter()
        .filter(|(item, entry)| is_homeless(item, entry))
        .map(|(item, entry)| (entry.load(item), item.clone()))
        .collect();
    waiting.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    for (load, item) in waiting {
        let mut ranked = ranked(&item, live);
        if ranked.iter().any(|name| *live[*name].revision == *newest) {
            ranked.retain(|name| *live[*name].revision == *newest);
        }
        let Some(goal) = loads.first_with_room(&ranked, load).or_else(|| loads.least(&ranked)) else { continue };
        let goal: Box<str> = goal.into();
        let Some(entry) = next.0.get_mut(&item) else { continue };
        match &entry.owner {
            None => entry.owner = Some(goal.clone()),
            Some(owner) => {
                loads.take(owner, load);
                entry.to = Some(goal.clone());
            }
        }
        loads.add(&goal, load);
    }
    if live.values().all(|replica| *replica.revision == *newest) {
        while balance(&mut next, table, live, &mut loads) {}
    }
    next
}

/// Moves one item from a replica that has too much, or to one that has too little. Returns `false` if none is to move.
///
/// The one that gives has more than the other has afterwards, so this comes to an end.
fn balance(next: &mut Table, before: &Table, live: &Live, loads: &mut Loads) -> bool {
    let mut by_load: Vec<(u32, &str)> = loads.of.iter().map(|(name, load)| (*load, &**name)).collect();
    by_load.sort_unstable();
    let pairs = by_load.iter().rev().flat_map(|gives| by_load.iter().map(move |gets| (gives, gets)));
    let uneven = pairs.filter(|((most, _), (least, _))| *most > loads.bound || *least < loads.low);
    let found = uneven.into_iter().find_map(|((most, gives), (least, gets))| {
        let fits = next.0.iter().filter(|(item, entry)| {
            let moves = entry.owner.as_deref() == Some(*gives) && entry.to.is_none() && entry.moves < MOVES;
            let load = entry.load(item);
            moves && load > 0 && least.saturating_add(load) < *most && live[*gets].items.contains(*item)
        });
        let first = fits.min_by_key(|(item, entry)| {
            let rank = ranked(item, live).into_iter().position(|name| name == *gets);
            (entry.moves, rank, (*item).clone())
        });
        first.map(|(item, entry)| (item.clone(), entry.load(item), (*gives).to_owned(), (*gets).to_owned()))
    });
    let Some((item, load, gives, gets)) = found else { return false };
    loads.take(&gives, load);
    loads.add(&gets, load);
    if let Some(entry) = next.0.get_mut(&item) {
        // Nobody acts for it yet if it has got this owner just now.
        let is_new = before.0.get(&item).is_none_or(|before| before.owner != entry.owner);
        *(if is_new { &mut entry.owner } else { &mut entry.to }) = Some(gets.into());
    }
    true
}

/// What each replica has, or will have.
struct Loads {
    of: BTreeMap<Box<str>, u32>,
    /// What each would have if all had the same.
    fair: u32,
    /// What a replica has at most before it gives something away: a quarter more.
    bound: u32,
    /// What a replica has at least before others give it something: a quarter less. One that has nothing gets something in any case.
    low: u32,
}

impl Loads {
    fn of(table: &Table, live: &Live) -> Self {
        let mut of: BTreeMap<Box<str>, u32> = live.keys().map(|name| (name.clone(), 0)).collect();
        let mut total: u32 = 0;
        for (item, entry) in &table.0 {
            let adds = entry.load(item);
            total = total.saturating_add(adds);
            if let Some(load) = entry.to.as_ref().or(entry.owner.as_ref()).and_then(|name| of.get_mut(name)) {
                *load = load.saturating_add(adds);
            }
        }
        let replicas = u32::try_from(live.len().max(1)).unwrap_or(u32::MAX);
        let fair = total.div_ceil(replicas);
        let quarters = |count: u32| total.saturating_mul(count) / replicas.saturating_mul(4);
        Self { of, fair, bound: fair.max(quarters(5)), low: quarters(3).max(1) }
    }

    fn first_with_room<'a>(&self, ranked: &[&'a str], load: u32) -> Option<&'a str> {
        ranked.iter().copied().find(|name| self.of.get(*name).is_some_and(|has| has.saturating_add(load) <= self.fair))
    }

    fn least<'a>(&self, ranked: &[&'a str]) -> Option<&'a str> {
        ranked.iter().copied().min_by_key(|name| self.of.get(*name))
    }

    fn add(&mut self, name: &str, load: u32) {
        if let Some(has) = self.of.get_mut(name) {
            *has = has.saturating_add(load);
        }
    }

    fn take(&mut self, name: &str, load: u32) {
        if let Some(has) = self.of.get_mut(name) {
            *has = has.saturating_sub(load);
        }
    }
}

/// Returns the replicas that can own an item, the first choice first (highest random weight).
fn ranked<'a>(item: &str, live: &'a Live) -> Vec<&'a str> {
    let mut ranked: Vec<(u64, &str)> = live
        .iter()
        .filter(|(_, replica)| replica.items.contains(item))
        .map(|(name, _)| (score(item, name), &**name))
        .collect();
    ranked.sort_unstable_by(|one, other| other.cmp(one));
    ranked.into_iter().map(|(_, name)| name).collect()
}

/// Returns a number that all versions of the host compute alike: FNV-1a, and the last step of `SplitMix64`.
fn score(item: &str, name: &str) -> u64 {
    let bytes = item.bytes().chain([0xff]).chain(name.bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Returns the weight of an item that uses this many thousandths of a core: 1 for one that is idle, and a power of two up to [`HEAVIEST`].
pub fn weight(milli: u64) -> u16 {
    let percent = u16::try_from(milli / 10).unwrap_or(HEAVIEST).min(HEAVIEST - 1);
    (percent + 1).next_power_of_two()
}

/// Returns the new weight of an item with a weight. A change by less than a factor of four is none: what an item uses goes up and down.
fn weighed(before: u16, measured: u16) -> u16 {
    let is_alike = before != 0 && measured < before.saturating_mul(4) && before < measured.saturating_mul(4);
    if is_alike { before } else { measured }
}

/// Returns the revision of a pod with this name, if a ReplicaSet has made it: all but its last part, which is random. All others have the same.
pub fn revision(pod: &str) -> &str {
    // Kubernetes makes both parts of these characters (`rand.SafeEncodeString`), so that they are no words.
    let is_made = |part: &str| part.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte));
    let Some((set, random)) = pod.rsplit_once('-') else { return "" };
    let Some((_, hash)) = set.rsplit_once('-') else { return "" };
    let is_of_set = random.len() == 5 && is_made(random) && (5..=10).contains(&hash.len()) && is_made(hash);
    if is_of_set { set } else { "" }
}

#[cfg(test)]
mod tests;
