//! The world as one call sees it: of each informer that it reads, a snapshot from its first read on.
//!
//! Owns the snapshots, and what has become of what they show. Reads go through [`Lease`](super::Lease), each with the call's moment:
//!
//! ```text
//!  call:      read a ────────── read b ───────── end: what changed since the snapshot?
//!  snapshot:  taken at a ······ b as it was then            │
//!  watch:            b changes ─────────────────────────────┘ b did, before it was read
//! ```
//!
//! A lease that another informer takes over during the call shows the present from then on, and so does a snapshot that is given up
//! because too much changes: then nobody can say what changed before it was read, and it counts as changed.

use std::sync::Arc;

use parking_lot::Mutex;
use pilothouse_core::store::{Change, Snapshot, Store};

use super::{
    WORK,
    lease::{Place, Seat},
    outlet::Outlet,
};

/// What one call sees. Dropping it lets go of what was kept for it.
#[derive(Default)]
pub struct Moment {
    /// At most as many as the plugin has leases.
    seen: Mutex<Vec<Seen>>,
}

/// A lease that was read.
struct Seen {
    lease: u64,
    seat: Arc<Seat>,
    /// None: another informer has taken the lease over.
    snapshot: Option<Snapshot>,
}

impl Moment {
    /// The snapshot through which a lease is read; none: it shows the present. The lease's informer is locked.
    pub(super) fn of(&self, place: &Place, seat: &Arc<Seat>, store: &Store) -> Option<Snapshot> {
        let mut seen = self.seen.lock();
        if let Some(known) = seen.iter_mut().find(|seen| seen.lease == place.number) {
            if !Arc::ptr_eq(&known.seat, seat) {
                known.snapshot = None;
            }
            return known.snapshot.clone();
        }
        let is_beside = |seen: &&Seen| Arc::ptr_eq(&seen.seat.informer, &seat.informer);
        let beside = seen.iter().filter(is_beside).find_map(|seen| seen.snapshot.clone());
        let snapshot = Some(beside.unwrap_or_else(|| store.snapshot()));
        seen.push(Seen { lease: place.number, seat: seat.clone(), snapshot: snapshot.clone() });
        snapshot
    }

    /// True if `concerns` says so of what became of something after its snapshot was taken; and where nobody can say what did.
    ///
    /// It is asked under no informer's lock.
    pub fn hides(&mut self, mut concerns: impl FnMut(&Change) -> bool) -> bool {
        self.seen.get_mut().iter().any(|seen| seen.hides(&mut concerns))
    }
}

impl Seen {
    fn hides(&self, concerns: &mut impl FnMut(&Change) -> bool) -> bool {
        let Some(snapshot) = &self.snapshot else { return true };
        let mut after = None;
        loop {
            // Some at a time: the informer stands still meanwhile.
            let changes = self.seat.informer.inner.read().store.changes_since(snapshot, after.as_ref(), WORK);
            let Some((changes, last)) = changes else { return true };
            let filter = self.seat.filter.as_ref();
            let mut shown = changes.into_iter().filter_map(|change| Outlet::shown(filter, change));
            if shown.any(|change| concerns(&Outlet::cut(filter, change))) {
                return true;
            }
            match last {
                Some(last) => after = Some(last),
                None => return false,
            }
        }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        for Seen { seat, snapshot, .. } in self.seen.get_mut().drain(..) {
            let Some(snapshot) = snapshot else { continue };
            let keeps = seat.informer.inner.read().store.keeps_for(&snapshot);
            drop(snapshot);
            // Every change would do it too; the next one may be far.
            if keeps {
                seat.informer.inner.write().store.release();
            }
        }
    }
}
