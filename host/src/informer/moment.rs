//! What one call sees: a snapshot of each informer, taken at the call's first read from it.
//!
//! Owns the snapshots, and finds out whether objects have changed since. Reads go through [`Lease`](super::Lease), each
//! with the call's moment:
//!
//! ```text
//!  call:      read a ────────── read b ───────── end: what changed since the snapshot?
//!  snapshot:  taken at a ······ b as it was then            │
//!  watch:            b changes ─────────────────────────────┘ b did, before it was read
//! ```
//!
//! Two things make a lease show the present from then on: another informer takes it over, or its snapshot is given up
//! because too much changes. Earlier changes are then unknown, so the lease counts as changed.

use std::sync::Arc;

use parking_lot::Mutex;
use pilothouse_core::store::{Change, Snapshot, Store};

use super::{
    WORK,
    lease::{Attachment, Claim},
    outlet::Outlet,
};

/// The snapshots of one call. Dropping it frees what the informers keep for them.
#[derive(Default)]
pub struct Moment {
    /// At most one for each lease of the plugin.
    seen: Mutex<Vec<Seen>>,
}

/// A lease that the call has read.
struct Seen {
    lease: u64,
    attached: Arc<Attachment>,
    /// `None` if another informer has taken the lease over.
    snapshot: Option<Snapshot>,
}

impl Moment {
    /// Returns the snapshot through which a lease is read, or `None` if it shows the present. The caller holds the
    /// informer's lock.
    pub(super) fn snapshot_of(&self, claim: &Claim, attached: &Arc<Attachment>, store: &Store) -> Option<Snapshot> {
        let mut seen = self.seen.lock();
        if let Some(known) = seen.iter_mut().find(|seen| seen.lease == claim.number) {
            if !Arc::ptr_eq(&known.attached, attached) {
                known.snapshot = None;
            }
            return known.snapshot.clone();
        }
        let is_beside = |seen: &&Seen| Arc::ptr_eq(&seen.attached.informer, &attached.informer);
        let beside = seen.iter().filter(is_beside).find_map(|seen| seen.snapshot.clone());
        let snapshot = Some(beside.unwrap_or_else(|| store.snapshot()));
        seen.push(Seen { lease: claim.number, attached: attached.clone(), snapshot: snapshot.clone() });
        snapshot
    }

    /// `true` if `concerns` accepts a change after its snapshot was taken, or if these changes are unknown.
    ///
    /// `concerns` is called without an informer's lock.
    pub fn hides(&mut self, mut concerns: impl FnMut(&Change) -> bool) -> bool {
        self.seen.get_mut().iter().any(|seen| seen.hides(&mut concerns))
    }
}

impl Seen {
    fn hides(&self, concerns: &mut impl FnMut(&Change) -> bool) -> bool {
        let Some(snapshot) = &self.snapshot else { return true };
        let mut after = None;
        loop {
            // In steps, because each holds the informer's lock.
            let changes = self.attached.informer.cache.read().store.changes_since(snapshot, after.as_ref(), WORK);
            let Some((changes, last)) = changes else { return true };
            let filter = self.attached.filter.as_ref();
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
        for Seen { attached, snapshot, .. } in self.seen.get_mut().drain(..) {
            let Some(snapshot) = snapshot else { continue };
            let keeps = attached.informer.cache.read().store.keeps_for(&snapshot);
            drop(snapshot);
            // The next change would free it too, but may be long in coming.
            if keeps {
                attached.informer.cache.write().store.release();
            }
        }
    }
}
