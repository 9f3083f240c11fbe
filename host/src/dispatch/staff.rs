//! How many workers a controller should have, and which of them are at work.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// The workers of a controller, by number.
pub(super) struct Staff(Mutex<Roster>);

#[derive(Default)]
struct Roster {
    /// Every informer has synced.
    is_ready: bool,
    /// Counts changes of routes. A wait for the routes of an earlier round is void.
    round: u64,
    wanted: usize,
    at_work: BTreeSet<usize>,
}

impl Staff {
    /// Creates a staff of nobody. Workers are hired once the informers have synced.
    pub(super) fn new(wanted: usize) -> Self {
        Self(Mutex::new(Roster { wanted, ..Roster::default() }))
    }

    /// The number of workers that there should be.
    pub(super) fn wanted(&self) -> usize {
        self.0.lock().wanted
    }

    /// Sets the number of workers that there should be. Surplus workers leave when they look for their next key.
    pub(super) fn set_wanted(&self, wanted: usize) {
        self.0.lock().wanted = wanted;
    }

    /// `true` once workers may work.
    pub(super) fn is_ready(&self) -> bool {
        self.0.lock().is_ready
    }

    /// Begins a round, after routes have changed, and returns its number.
    pub(super) fn begin_round(&self) -> u64 {
        let mut roster = self.0.lock();
        roster.round += 1;
        roster.round
    }

    /// Records that all informers of a round have synced. Returns `false` if another round has begun since.
    pub(super) fn record_synced(&self, round: u64) -> bool {
        let mut roster = self.0.lock();
        let is_current = roster.round == round;
        roster.is_ready |= is_current;
        is_current
    }

    /// Returns the workers that are wanted and not at work. The caller starts them.
    pub(super) fn hire(&self) -> Vec<usize> {
        let roster = &mut *self.0.lock();
        if !roster.is_ready {
            return Vec::new();
        }
        (0..roster.wanted).filter(|number| roster.at_work.insert(*number)).collect()
    }

    /// `true` if this worker was hired and has not been struck off since.
    pub(super) fn is_at_work(&self, number: usize) -> bool {
        self.0.lock().at_work.contains(&number)
    }

    /// Returns `true` if a worker is still wanted. Strikes it off the list if not.
    pub(super) fn keeps(&self, number: usize) -> bool {
        let mut roster = self.0.lock();
        let keeps = number < roster.wanted;
        if !keeps {
            roster.at_work.remove(&number);
        }
        keeps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_hired_before_the_informers_of_the_latest_routes_have_synced() {
        let staff = Staff::new(2);
        let (first, second) = (staff.begin_round(), staff.begin_round());
        assert_eq!((staff.record_synced(first), staff.hire()), (false, vec![]));
        assert_eq!((staff.record_synced(second), staff.hire()), (true, vec![0, 1]));
        assert_eq!(staff.hire(), [0; 0]);
    }

    #[test]
    fn surplus_workers_leave_and_are_hired_again() {
        let staff = Staff::new(3);
        let round = staff.begin_round();
        assert!(staff.record_synced(round));
        assert_eq!(staff.hire(), [0, 1, 2]);
        staff.set_wanted(1);
        // Worker 2 has not looked for a key since.
        assert_eq!([0, 1].map(|number| staff.keeps(number)), [true, false]);
        staff.set_wanted(3);
        assert_eq!(staff.hire(), [1]);
    }
}
