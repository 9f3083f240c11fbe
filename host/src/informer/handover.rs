//! From one informer to another, without a gap and without a false event.
//!
//! The two have watches of their own, and neither is always ahead. A lease goes over when the informer that takes it is synced, and
//! has come at least to the newest version that list or watch have shown through the lease. Then whatever differs is news: an
//! object that is missing there was deleted, and one that is there or newer has come since. Own writes are in both: the registry
//! does not let one in while it hands over.
//!
//! ```text
//!  narrow:  a@5 b@7 c@3   seen 7 ─┐
//!  wide:    a@5 b@6 c@3   at 6    │ not yet: b would go back
//!  wide:    a@5 b@8       at 9  ◄─┘ now: b@7 → b@8, c is gone
//! ```

use std::{cmp::Ordering, sync::Arc};

use pilothouse_core::{object::Object, store::Change};

use super::{
    Informer, Origin,
    informer::Inner,
    lease::{Place, Seat},
};

/// Hands the lease of `place` over from the informer that shows it to `to`. False: not yet, for `to` has not come far enough.
///
/// The caller holds the registry's table for itself alone.
pub(super) fn hand_over(place: &Place, to: &Arc<Informer>) -> bool {
    let from = place.seat.load().informer.clone();
    if Arc::ptr_eq(&from, to) {
        return true;
    }
    // Dropped after the locks are.
    let _dropped;
    let (mut old, mut new);
    if from.number < to.number {
        old = from.inner.write();
        new = to.inner.write();
    } else {
        new = to.inner.write();
        old = from.inner.write();
    }
    let Some(at) = old.outlets.iter().position(|outlet| outlet.lease == place.number) else { return true };
    if !new.synced || new.store.covered() < old.outlets[at].seen {
        return false;
    }
    let mut outlet = old.outlets.swap_remove(at);
    let seat = Seat::new(to.clone(), &place.key);
    let origin = if *outlet.synced.borrow() { Origin::Change } else { Origin::Initial };
    if !outlet.subscribers.is_empty() {
        differences(&old, &new, place, &seat, |change| outlet.tell(change, origin));
    }
    outlet.filter = seat.filter.clone();
    outlet.seen = new.store.covered();
    outlet.synced.send_replace(true);
    _dropped = old.drop_indexes(&place.indexes);
    to.add_indexes(&mut new, &place.indexes);
    new.outlets.push(outlet);
    place.seat.store(Arc::new(seat));
    true
}

/// What changes for a lease that goes from `old` to `new`: both show objects in the order of their keys.
fn differences(old: &Inner, new: &Inner, place: &Place, seat: &Seat, mut tell: impl FnMut(&Change)) {
    let left = place.seat.load();
    let mut before = old.shown(left.filter.as_ref()).peekable();
    let mut after = new.shown(seat.filter.as_ref()).peekable();
    let some = |object: Option<&Arc<Object>>| object.cloned();
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(before), Some(after)) => before.key().cmp(after.key()),
        };
        let old = if order.is_le() { some(before.next()) } else { None };
        let new = if order.is_ge() { some(after.next()) } else { None };
        let same = |(old, new): (&Arc<Object>, &Arc<Object>)| {
            old.resource_version() == new.resource_version() && old.uid() == new.uid()
        };
        if !old.as_ref().zip(new.as_ref()).is_some_and(same) {
            // Its DELETED, if there was one, came to somebody else.
            tell(&Change {
                missed: new.is_none(),
                old: old.map(|old| left.cut(&old)),
                new: new.map(|new| seat.cut(&new)),
            });
        }
    }
}
