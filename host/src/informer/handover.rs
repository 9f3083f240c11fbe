//! Hands a lease over from one informer to another, without a gap and without a false event.
//!
//! Each informer has its own watch, and neither is always ahead. A handover waits until the new informer is synced and
//! its watch has reached the newest version that list or watch have shown through the lease. Every difference is then a
//! real change: an object that the new informer lacks was deleted, and an object that is new or newer there has changed
//! since. Own writes are in both informers, because the registry admits none during a handover.
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
    informer::Cache,
    lease::{Attachment, Claim},
};

/// Hands a lease over to the informer `to`. Returns `false` if `to` has not come far enough yet.
///
/// The caller holds the registry's write lock.
pub(super) fn hand_over(claim: &Claim, to: &Arc<Informer>) -> bool {
    let from = claim.attached.load().informer.clone();
    if Arc::ptr_eq(&from, to) {
        return true;
    }
    // Declared before the locks, so that it is dropped after them.
    let _dropped;
    let (mut old, mut new);
    if from.number < to.number {
        old = from.cache.write();
        new = to.cache.write();
    } else {
        new = to.cache.write();
        old = from.cache.write();
    }
    let Some(at) = old.outlets.iter().position(|outlet| outlet.lease == claim.number) else { return true };
    if !new.synced || new.store.covered() < old.outlets[at].seen {
        return false;
    }
    let mut outlet = old.outlets.swap_remove(at);
    let attached = Attachment::new(to.clone(), &claim.key);
    let origin = if *outlet.synced.borrow() { Origin::Change } else { Origin::Initial };
    if !outlet.subscribers.is_empty() {
        differences(&old, &new, claim, &attached, |change| outlet.deliver(change, origin));
    }
    outlet.filter = attached.filter.clone();
    outlet.seen = new.store.covered();
    outlet.synced.send_replace(true);
    _dropped = old.drop_indexes(&claim.indexes);
    to.add_indexes(&mut new, &claim.indexes);
    new.outlets.push(outlet);
    claim.attached.store(Arc::new(attached));
    true
}

/// Calls `deliver` with each difference between what a lease shows of `old` and of `new`. Both iterate in the order of
/// keys.
fn differences(old: &Cache, new: &Cache, claim: &Claim, attached: &Attachment, mut deliver: impl FnMut(&Change)) {
    let left = claim.attached.load();
    let mut before = old.shown(left.filter.as_ref()).peekable();
    let mut after = new.shown(attached.filter.as_ref()).peekable();
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
            // A DELETED event, if there was one, went to the other informer.
            deliver(&Change {
                missed: new.is_none(),
                old: old.map(|old| left.cut(&old)),
                new: new.map(|new| attached.cut(&new)),
            });
        }
    }
}
