//! The API server, the network and the replicas.

use std::collections::{BTreeMap, BTreeSet};

use crate::spread::{Live, Look, Part, Replica, Spread, Table};

type Name = Box<str>;

/// What may still go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Replicas that may begin, outside of an update.
    pub(crate) begins: u8,
    /// Replicas that may vanish.
    pub(crate) crashes: u8,
    /// Replicas that may end in order, outside of an update.
    pub(crate) ends: u8,
    /// Times that the time of a live replica's Lease may pass.
    pub(crate) stops: u8,
    pub(crate) renewals: u8,
    /// Messages that may be lost.
    pub(crate) losses: u8,
    /// Requests that may arrive twice.
    pub(crate) twice: u8,
    /// Messages arrive before anything else happens.
    pub(crate) is_prompt: bool,
}

/// A Lease on the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    pub(crate) version: u8,
    replica: Replica,
}

/// A request under way, or the answer to one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Message {
    Create {
        name: Name,
    },
    Renew {
        name: Name,
        replaces: u8,
    },
    /// The Lease was created or renewed.
    Renewed {
        name: Name,
        version: u8,
    },
    /// Removes a Lease whose time is over.
    Reap {
        name: Name,
        version: u8,
    },
    /// Removes the sender's own Lease.
    Remove {
        name: Name,
    },
    Write {
        replaces: u8,
        table: Vec<(Name, Option<Name>, Option<Name>, u8)>,
    },
}

/// A replica from its start to its end, as long as its Lease lasts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Life {
    pub(crate) machine: Spread,
    revision: &'static str,
    /// The versions of the Leases in its last look.
    versions: BTreeMap<Name, u8>,
    /// The newest version of its Lease that was answered. It may act by it. 0 if none was.
    answered: u8,
}

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    items: BTreeSet<Name>,
    budget: Budget,
    table: Table,
    /// 0 if there is no table yet.
    version: u8,
    pub(crate) leases: BTreeMap<Name, Lease>,
    pub(crate) sent: BTreeSet<Message>,
    pub(crate) lives: Vec<Life>,
    /// Replicas that have begun and ended.
    pub(crate) begun: u8,
    pub(crate) ended: u8,
    /// The version of each Lease whose time is over: nobody acts by it or an older one any more, and others may know that.
    over: BTreeMap<Name, u8>,
    /// Who acted last for each item, and how often that has changed.
    acted: BTreeMap<Name, (Name, u8)>,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Begin(&'static str),
    /// A replica ends in order: its calls are over, and it removes its Lease.
    End(usize),
    Crash(usize),
    Deliver(Message),
    DeliverAndKeep(Message),
    Lose(Message),
    See(usize),
    /// A replica writes the table as it should be. Calls for items that leave are over, or not.
    Act {
        life: usize,
        is_over: bool,
    },
    Renew(usize),
    /// The time of a Lease passes.
    Pass(Name),
    /// A replica has noticed that the time of a Lease is over.
    Reap {
        life: usize,
        name: Name,
    },
}

impl World {
    /// Replicas that have shared the items.
    pub(crate) fn settled(replicas: u8, items: &[&str], budget: Budget) -> Self {
        let mut world = Self {
            items: items.iter().map(|item| (*item).into()).collect(),
            budget,
            table: Table::default(),
            version: 0,
            leases: BTreeMap::new(),
            sent: BTreeSet::new(),
            lives: Vec::new(),
            begun: 0,
            ended: 0,
            over: BTreeMap::new(),
            acted: BTreeMap::new(),
        };
        (0..replicas).for_each(|_| world.begin("old"));
        assert!(replicas == 0 || world.settle(), "{world:?}");
        world.table.0.values_mut().for_each(|entry| entry.moves = 0);
        world.acted.values_mut().for_each(|acted| acted.1 = 0);
        (0..world.lives.len()).for_each(|life| world.see(life));
        world
    }

    /// Adds what may happen next.
    pub(crate) fn steps(&self, steps: &mut Vec<Step>) {
        let Budget { begins, crashes, ends, stops, renewals, losses, twice, is_prompt } = self.budget;
        for message in &self.sent {
            steps.push(Step::Deliver(message.clone()));
            if twice > 0 && !matches!(message, Message::Renewed { .. }) {
                steps.push(Step::DeliverAndKeep(message.clone()));
            }
            if losses > 0 {
                steps.push(Step::Lose(message.clone()));
            }
        }
        if is_prompt && !self.sent.is_empty() {
            return;
        }
        if begins > 0 {
            steps.push(Step::Begin("old"));
        }
        for (number, life) in self.lives.iter().enumerate() {
            steps.push(Step::See(number));
            steps.push(Step::Act { life: number, is_over: true });
            if self.items.iter().any(|item| life.machine.part(item) == Part::Leaves) {
                steps.push(Step::Act { life: number, is_over: false });
            }
            if renewals > 0 {
                steps.push(Step::Renew(number));
            }
            if crashes > 0 {
                steps.push(Step::Crash(number));
            }
            if ends > 0 {
                steps.push(Step::End(number));
            }
            for name in life.versions.keys() {
                steps.push(Step::Reap { life: number, name: name.clone() });
            }
        }
        for (name, lease) in &self.leases {
            let is_alive = self.lives.iter().any(|life| *life.machine.name() == **name);
            if self.over.get(name) < Some(&lease.version) && (stops > 0 || !is_alive) {
                steps.push(Step::Pass(name.clone()));
            }
        }
    }

    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Begin(revision) => {
                self.budget.begins = self.budget.begins.saturating_sub(u8::from(revision == "old"));
                self.begin(revision);
            }
            Step::End(life) => {
                self.budget.ends = self.budget.ends.saturating_sub(1);
                let life = self.lives.remove(life);
                self.ended += 1;
                self.sent.insert(Message::Remove { name: life.machine.name().into() });
            }
            Step::Crash(life) => {
                self.budget.crashes -= 1;
                self.lives.remove(life);
                self.ended += 1;
            }
            Step::Deliver(message) => {
                self.sent.remove(&message);
                self.arrive(message);
            }
            Step::DeliverAndKeep(message) => {
                self.budget.twice -= 1;
                self.arrive(message);
            }
            Step::Lose(message) => {
                self.budget.losses -= 1;
                self.sent.remove(&message);
            }
            Step::See(life) => self.see(life),
            Step::Act { life, is_over } => self.act(life, is_over),
            Step::Renew(life) => {
                self.budget.renewals -= 1;
                self.renew(life);
            }
            Step::Pass(name) => {
                if self.lives.iter().any(|life| *life.machine.name() == *name) {
                    self.budget.stops -= 1;
                }
                self.pass(&name);
            }
            Step::Reap { life, name } => self.reap(life, &name),
        }
        self.count();
    }

    /// Life of this revision that may be replaced.
    pub(crate) fn of_revision(&self, revision: &'static str) -> impl Iterator<Item = usize> {
        self.lives.iter().enumerate().filter(move |(_, life)| life.revision == revision).map(|(number, _)| number)
    }

    /// `true` if no two replicas act for an item.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.items.iter().all(|item| self.acting(item).count() <= 1)
    }

    /// The most often that an item has changed places.
    pub(crate) fn most_moves(&self) -> u8 {
        self.acted.values().map(|(_, moves)| *moves).max().unwrap_or(0)
    }

    /// `true` if every item has one owner that acts once nothing goes wrong any more.
    pub(crate) fn settles(mut self) -> bool {
        self.lives.is_empty() || self.settle()
    }

    /// Lets everything happen in turn until nothing changes, without faults.
    fn settle(&mut self) -> bool {
        for _ in 0..30 {
            let before = (self.table.clone(), self.leases.keys().cloned().collect::<Vec<_>>());
            self.deliver();
            let mut life = 0;
            while life < self.lives.len() {
                let (name, lives) = (self.lives[life].machine.name().to_owned(), self.lives.len());
                self.see(life);
                if self.lives.len() == lives && !self.leases.contains_key(&*name) {
                    // Nobody knows whether the request to create it will arrive.
                    self.lives.remove(life);
                }
                if self.lives.len() < lives {
                    // Its Lease is gone, so it begins anew.
                    self.begin("old");
                } else if self.lives[life].answered <= self.over.get(&*name).copied().unwrap_or(0) {
                    self.renew(life);
                }
                life += 1;
            }
            self.deliver();
            let gone: Vec<_> = self.leases.keys().filter(|name| !self.is_alive(name)).cloned().collect();
            for name in gone {
                self.pass(&name);
                self.reap(0, &name);
            }
            for life in 0..self.lives.len() {
                self.act(life, true);
                self.deliver();
            }
            let after = (self.table.clone(), self.leases.keys().cloned().collect::<Vec<_>>());
            let is_owned = self.items.iter().all(|item| self.acting(item).count() == 1);
            let is_leaving = self.table.0.values().any(|entry| entry.to.is_some());
            if before == after && is_owned && !is_leaving && self.sent.is_empty() {
                return true;
            }
        }
        false
    }

    fn deliver(&mut self) {
        while let Some(message) = self.sent.pop_first() {
            self.arrive(message);
        }
    }

    fn is_alive(&self, name: &str) -> bool {
        self.lives.iter().any(|life| life.machine.name() == name)
    }

    /// Who acts for an item.
    fn acting(&self, item: &str) -> impl Iterator<Item = &str> {
        self.lives.iter().filter(move |life| self.acts(life, item)).map(|life| life.machine.name())
    }

    fn acts(&self, life: &Life, item: &str) -> bool {
        let over = self.over.get(life.machine.name()).copied().unwrap_or(0);
        life.answered > over && life.machine.part(item) != Part::None
    }

    fn count(&mut self) {
        for item in &self.items {
            let Some(now) = self.lives.iter().find(|life| self.acts(life, item)) else { continue };
            let now: Name = now.machine.name().into();
            match self.acted.get_mut(item) {
                Some((before, moves)) if *before != now => (*before, *moves) = (now, *moves + 1),
                Some(_) => {}
                None => drop(self.acted.insert(item.clone(), (now, 0))),
            }
        }
    }

    fn begin(&mut self, revision: &'static str) {
        let name = format!("r{}", self.begun);
        self.begun += 1;
        let machine = Spread::new(&name);
        self.lives.push(Life { machine, revision, versions: BTreeMap::new(), answered: 0 });
        self.sent.insert(Message::Create { name: name.into() });
    }

    fn see(&mut self, life: usize) {
        let live: Live = self.leases.iter().map(|(name, lease)| (name.clone(), lease.replica.clone())).collect();
        let version = (self.version > 0).then(|| self.version.to_string().into());
        let look = Look { table: self.table.clone(), version, live };
        let seen = &mut self.lives[life];
        seen.versions = self.leases.iter().map(|(name, lease)| (name.clone(), lease.version)).collect();
        if !seen.machine.see(look) {
            self.lives.remove(life);
            self.ended += 1;
        }
    }

    fn act(&mut self, life: usize, is_over: bool) {
        let machine = &mut self.lives[life].machine;
        let replaces = machine.look().version.as_ref().map_or(0, |version| version.parse().unwrap());
        if let Some(Table(table)) = machine.next(|_| is_over, |_| None, false) {
            let table = table.into_iter().map(|(item, entry)| (item, entry.owner, entry.to, entry.moves)).collect();
            self.sent.insert(Message::Write { replaces, table });
        }
    }

    fn renew(&mut self, life: usize) {
        let life = &self.lives[life];
        if let Some(version) = life.versions.get(life.machine.name()) {
            self.sent.insert(Message::Renew { name: life.machine.name().into(), replaces: *version });
        }
    }

    /// The holder has noticed that the time of its Lease is over.
    fn pass(&mut self, name: &str) {
        if let Some(lease) = self.leases.get(name) {
            self.over.insert(name.into(), lease.version);
        }
    }

    fn reap(&mut self, life: usize, name: &str) {
        let Some(seen) = self.lives[life].versions.get(name) else { return };
        if *self.lives[life].machine.name() != *name && self.over.get(name) >= Some(seen) {
            self.sent.insert(Message::Reap { name: name.into(), version: *seen });
        }
    }

    /// A message arrives where it was sent to.
    fn arrive(&mut self, message: Message) {
        match message {
            Message::Create { name } => {
                if self.leases.contains_key(&name) {
                    return;
                }
                let revision =
                    self.lives.iter().find(|life| *life.machine.name() == *name).map_or("old", |life| life.revision);
                // A Lease that is created once more goes on from where it was: versions are never used twice.
                let next = self.over.get(&name).map_or(1, |over| over + 1);
                let replica = Replica { born: name.clone(), revision: revision.into(), items: self.items.clone() };
                self.leases.insert(name.clone(), Lease { version: next, replica });
                // Its holder counts from when it sent the request, however often that arrives.
                self.sent.insert(Message::Renewed { name, version: 1 });
            }
            Message::Renew { name, replaces } => {
                if let Some(lease) = self.leases.get_mut(&name).filter(|lease| lease.version == replaces) {
                    lease.version += 1;
                    let version = lease.version;
                    self.sent.insert(Message::Renewed { name, version });
                }
            }
            Message::Renewed { name, version } => {
                if let Some(life) = self.lives.iter_mut().find(|life| *life.machine.name() == *name) {
                    life.answered = life.answered.max(version);
                }
            }
            Message::Reap { name, version } => {
                if self.leases.get(&name).is_some_and(|lease| lease.version == version) {
                    self.leases.remove(&name);
                }
            }
            Message::Remove { name } => drop(self.leases.remove(&name)),
            Message::Write { replaces, table } => {
                if replaces == self.version {
                    self.version += 1;
                    let entry = |(item, owner, to, moves)| (item, crate::spread::Entry { owner, to, moves, weight: 0 });
                    self.table = Table(table.into_iter().map(entry).collect());
                }
            }
        }
    }
}
