//! Replicas that share plugins, in every order of their steps, messages and faults. The replicas run the host's own code
//! (`host/core/src/spread.rs`); only the API server and the network are models.
//!
//! A request may arrive late, in another order, twice or never, and so may its answer. A replica may crash, be stopped, end and begin anew. No
//! clock is modelled: the time of a Lease may pass whenever it likes, but its holder notices before others do. That is what
//! `pilothouse_core::election` guarantees, and what its tests check.
//!
//! ```text
//! replica ─► request ─► API server: Leases, table ─► look ─► replica
//!              └ lost, late, twice    └─► answer ─► acts, until the time of that version of its Lease is over
//! ```

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

#[allow(dead_code, unreachable_pub, reason = "the host uses more of it")]
#[path = "../../../host/core/src/spread.rs"]
mod spread;
mod world;

use stateright::{Checker, Model, Property};
use world::{Budget, Message, Step, World};

/// A cluster whose replicas share some items, with a bound on what goes wrong.
struct Cluster {
    /// Replicas that have settled at the start.
    replicas: u8,
    items: &'static [&'static str],
    budget: Budget,
    /// A rolling update: replicas that are still to come and to go, one by one.
    update: Option<Update>,
}

/// How replicas are replaced.
#[derive(Clone, Copy, PartialEq)]
enum Update {
    /// A new one comes before an old one goes, as in a Deployment with the defaults.
    Surge,
    /// An old one goes before a new one comes.
    Gap,
}

impl Model for Cluster {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::settled(self.replicas, self.items, self.budget)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(steps);
        if let Some(update) = self.update {
            let (come, gone) = (world.begun - self.replicas, world.ended);
            let may_come = match update {
                // Kubernetes lets the next step begin when the new pod is ready.
                Update::Surge => come == gone,
                Update::Gap => come < gone,
            };
            let may_go = match update {
                Update::Surge => come > gone,
                Update::Gap => come == gone && gone < self.replicas,
            };
            if !world.sent.is_empty() {
                return;
            }
            if may_come && come < self.replicas {
                steps.push(Step::Begin("new"));
            }
            if may_go && world.lives.iter().all(|life| life.machine.look().live.contains_key(life.machine.name())) {
                steps.extend(world.of_revision("old").map(Step::End));
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.take(step);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no two replicas act for an item", |_, world: &World| world.is_exclusive()),
            Property::always("every item gets an owner when faults end", |_, world: &World| world.clone().settles()),
            Property::always("an item moves twice at most in a rolling update", |model: &Self, world: &World| {
                model.update.is_none() || world.most_moves() <= 2
            }),
            Property::sometimes("an item has moved", |_, world: &World| world.most_moves() > 0),
        ]
    }
}

fn main() {
    // Without arguments, everything is checked. Otherwise what contains one of them.
    let wanted: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let checks: [(&str, fn()); 6] = [
        ("two replicas begin at once", two_replicas_begin_at_once),
        ("a replica crashes and begins anew", a_replica_crashes_and_begins_anew),
        ("a replica is stopped while its renewal is late", a_replica_is_stopped_while_its_renewal_is_late),
        ("a third replica takes its share", a_third_replica_takes_its_share),
        ("a rolling update moves each item twice at most", a_rolling_update_moves_each_item_twice_at_most),
        ("a Lease that is taken too early is found", a_lease_that_is_taken_too_early_is_found),
    ];
    for (name, check) in checks {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted)) {
            println!("{name}");
            check();
        }
    }
}

/// Checks every state, and prints their number.
fn check(name: &str, model: Cluster) {
    let began = std::time::Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let checker = model.checker().threads(threads).spawn_bfs().join();
    println!("    {name}: {} states in {:.1} s", checker.unique_state_count(), began.elapsed().as_secs_f32());
    checker.assert_properties();
}

const NONE: Budget =
    Budget { begins: 0, crashes: 0, ends: 0, stops: 0, renewals: 0, losses: 0, twice: 0, is_prompt: false };

fn two_replicas_begin_at_once() {
    let budget = Budget { begins: 2, losses: 1, ..NONE };
    check("begin", Cluster { replicas: 0, items: &["a", "b"], budget, update: None });
}

fn a_replica_crashes_and_begins_anew() {
    let budget = Budget { begins: 1, crashes: 1, losses: 1, twice: 1, ..NONE };
    check("crash", Cluster { replicas: 2, items: &["a"], budget, update: None });
    let budget = Budget { crashes: 1, renewals: 1, twice: 1, ..NONE };
    check("late", Cluster { replicas: 2, items: &["a"], budget, update: None });
}

fn a_replica_is_stopped_while_its_renewal_is_late() {
    let budget = Budget { stops: 1, renewals: 1, twice: 1, ..NONE };
    check("stop", Cluster { replicas: 2, items: &["a"], budget, update: None });
    let budget = Budget { begins: 1, stops: 1, losses: 1, ..NONE };
    check("replace", Cluster { replicas: 2, items: &["a"], budget, update: None });
}

fn a_third_replica_takes_its_share() {
    let budget = Budget { begins: 1, losses: 1, ..NONE };
    check("join", Cluster { replicas: 2, items: &["a", "b", "c"], budget, update: None });
    let budget = Budget { begins: 1, ends: 1, ..NONE };
    check("end", Cluster { replicas: 2, items: &["a", "b"], budget, update: None });
}

fn a_rolling_update_moves_each_item_twice_at_most() {
    for (name, update) in [("surge", Update::Surge), ("gap", Update::Gap)] {
        let budget = Budget { is_prompt: true, ..NONE };
        check(name, Cluster { replicas: 3, items: &["a", "b"], budget, update: Some(update) });
    }
}

/// A model that lets others act before a holder has stopped must be found out: the check sees what it should see.
fn a_lease_that_is_taken_too_early_is_found() {
    let budget = Budget { renewals: 1, ..NONE };
    let mut world = World::settled(2, &["a", "b"], budget);
    assert!(world.is_exclusive());
    let stolen = world.leases.keys().next().unwrap().clone();
    // A replica removes the Lease of one that acts still.
    world.sent.insert(Message::Reap { name: stolen.clone(), version: world.leases[&stolen].version });
    let other = world.lives.iter().position(|life| *life.machine.name() != *stolen).unwrap();
    let deliver = |world: &mut World| {
        let message = world.sent.first().unwrap().clone();
        world.take(Step::Deliver(message));
    };
    deliver(&mut world);
    world.take(Step::See(other));
    world.take(Step::Act { life: other, is_over: true });
    deliver(&mut world);
    world.take(Step::See(other));
    assert!(!world.is_exclusive(), "{world:?}");
}
