//! Finds the keys of changes that cannot be mapped under the informer's lock: by an index, or by the plugin's `mapper`.
//!
//! Such changes wait here, and one task of the controller works them off:
//!
//! ```text
//! change ─┬─ mapping `index` ──► lookups ─► the index, now ──► keys ─► queue
//!         └─ mapping `plugin` ─► backlog ─► `map`, in batches ─┘
//! ```
//!
//! - **Known keys only.** A key is woken only if an object is known under it. The task begins once the reconciled
//!   objects are cached. An object that comes later, or names the changed one later, is a change itself, so that
//!   nothing is lost.
//! - **Keys named by the change itself** (its owner, or by another mapping) are looked up here too while nothing takes
//!   keys out of the queue: see [`Waking`](super::controller::Waking). Names of nothing would fill the queue.
//! - **Bound.** Beyond [`MAX_LOOKUPS`](super::remembered::MAX_LOOKUPS) lookups all of them are dropped, and every key
//!   is woken instead.

use std::{collections::HashMap, pin::pin, sync::Arc};

use parking_lot::Mutex;
use pilothouse_core::{
    backlog::Batch,
    budget::{Budget, Share},
    key::{Key, TypeMeta},
    store::Change,
};
use tokio::sync::Notify;
use tracing::info_span;

use super::{
    batch, feed,
    hook::{Called, Hook, HookError},
    imports::{Access, CallImports},
    pending::{BacklogFigures, HookFailure, Pending},
    remembered::Remembered,
    resync,
    wakes::Wakes,
};
use crate::informer::Origin;

/// Changes of one controller that are not mapped to keys yet.
pub(super) struct Unmapped {
    lookups: Mutex<Lookups>,
    added: Notify,
    pending: Pending,
}

struct Lookups {
    /// Each with the origin of its change; [`Origin::Change`] if several changes led to it and one of them had that.
    by_change: HashMap<(Lookup, TypeMeta, Key), Origin>,
    /// This controller's share of the plugin's bound.
    share: Share,
    /// There were too many: every key is to be woken.
    overflowed: bool,
}

/// Which keys a changed object concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lookup {
    /// The keys that the index of this name has under the changed object's name.
    Indexed(Box<str>),
    /// The owner of the changed object.
    Owner(Key),
    /// A key that a mapping names.
    Mapped(Key),
}

impl Lookups {
    fn within(budget: &Budget) -> Self {
        Self { by_change: HashMap::new(), share: budget.share(), overflowed: false }
    }

    fn add(&mut self, lookups: impl IntoIterator<Item = ((Lookup, TypeMeta, Key), Origin)>) {
        if !self.overflowed {
            for (lookup, origin) in lookups {
                let known = self.by_change.entry(lookup).or_insert(origin);
                if origin == Origin::Change {
                    *known = origin;
                }
            }
            self.share.set(self.by_change.len());
            self.overflowed = self.share.is_over();
        }
        if self.overflowed {
            self.by_change = HashMap::new();
            self.share.set(0);
        }
    }

    /// Takes everything out: the lookups, and whether every key is to be woken instead.
    fn take(&mut self) -> (HashMap<(Lookup, TypeMeta, Key), Origin>, bool) {
        self.share.set(0);
        (std::mem::take(&mut self.by_change), std::mem::take(&mut self.overflowed))
    }
}

impl Unmapped {
    /// Creates an empty backlog that shares the plugin's budgets.
    pub(super) fn within(remembered: &Remembered) -> Self {
        Self {
            lookups: Mutex::new(Lookups::within(&remembered.lookups)),
            added: Notify::new(),
            pending: Pending::within(&remembered.unhandled),
        }
    }

    /// Adds lookups for a change. Called under the informer's lock.
    pub(super) fn look_up(&self, lookups: impl IntoIterator<Item = Lookup>, change: &Change, origin: Origin) {
        let object = change.object();
        let of_change = |lookup| ((lookup, object.type_meta().clone(), object.key().clone()), origin);
        self.lookups.lock().add(lookups.into_iter().map(of_change));
        self.added.notify_one();
    }

    /// Adds a change that the plugin maps. Called under the informer's lock.
    pub(super) fn add(&self, change: &Change) {
        self.pending.add(change);
    }

    /// Forgets changes that the plugin may not see any more.
    pub(super) fn restrict(&self, access: &Access) {
        self.pending.retain(|of, key| access.may_see(of, key));
    }

    /// Returns when the plugin's `map` was called for everything that waits now, with success or without.
    pub(super) async fn tried(&self) {
        self.pending.tried().await;
    }

    /// The number of waiting lookups. `None` if they are too many and every key is to be woken.
    #[cfg(test)]
    pub(super) fn lookups(&self) -> Option<usize> {
        let lookups = self.lookups.lock();
        (!lookups.overflowed).then_some(lookups.by_change.len())
    }

    /// What waits for the plugin's `map`.
    pub(super) fn figures(&self) -> BacklogFigures {
        self.pending.figures()
    }

    /// The last failure of `map`.
    pub(super) fn last_failure(&self) -> Option<HookFailure> {
        self.pending.last_failure()
    }

    /// Maps changes until it is cancelled. Must begin when the reconciled objects are cached. `called` gets each call
    /// of `map`.
    pub(super) async fn run(&self, wakes: Wakes<'_>, called: impl Fn(&Called)) {
        loop {
            tokio::select! {
                () = self.added.notified() => {
                    let (lookups, all) = self.lookups.lock().take();
                    let mut rest = Rest { unmapped: self, lookups: lookups.into_iter().collect(), all };
                    if rest.all {
                        resync::wake_all(wakes).await;
                        rest.all = false;
                    }
                    while let Some((lookup, origin)) = rest.lookups.pop() {
                        wake(wakes, &lookup, origin);
                        // One lookup may wake every key there is.
                        tokio::task::yield_now().await;
                    }
                }
                handed = self.pending.next(wakes.record.acting()) => {
                    let result = map(wakes, handed.batch(), &called).await;
                    handed.end(result);
                }
            }
        }
    }
}

/// Lookups in progress. If the host fails over one of them, the others go back to the backlog.
struct Rest<'a> {
    unmapped: &'a Unmapped,
    lookups: Vec<((Lookup, TypeMeta, Key), Origin)>,
    all: bool,
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        if self.all || !self.lookups.is_empty() {
            let mut lookups = self.unmapped.lookups.lock();
            lookups.overflowed |= self.all;
            lookups.add(self.lookups.drain(..));
            self.unmapped.added.notify_one();
        }
    }
}

/// Wakes the keys that a lookup finds.
fn wake(wakes: Wakes<'_>, (lookup, of, object): &(Lookup, TypeMeta, Key), origin: Origin) {
    let keys = match lookup {
        Lookup::Indexed(index) => {
            let serving = wakes.serving();
            serving.access.reader.indexed(&serving.reconciles, index, object)
        }
        Lookup::Owner(key) | Lookup::Mapped(key) => wakes.known(vec![key.clone()]),
    };
    feed::mapped(wakes.id, &object.to_string(), &keys);
    match lookup {
        Lookup::Owner(_) => wakes.wake_owners(keys, origin, of, object),
        Lookup::Indexed(_) | Lookup::Mapped(_) => wakes.wake_mapped(keys, origin, || format!("{of} {object}")),
    }
}

/// Calls the plugin's `map` with a batch of changes, and wakes the keys that it returns.
async fn map(wakes: Wakes<'_>, changes: &Batch, called: impl Fn(&Called)) -> Result<(), HookError> {
    let serving = wakes.serving();
    if !serving.revision.manifest().needs_mapper() {
        // The changes waited for an earlier revision.
        return Ok(());
    }
    let (plugin, controller) = (&wakes.id.plugin, &*wakes.id.name);
    let span = info_span!("map", %plugin, controller, changes = changes.changes().len());
    let imports = Arc::new(CallImports::new(serving.access.clone()));
    let news = batch::news(changes, &serving.access);
    if news.is_empty() {
        return Ok(());
    }
    let call = pin!(serving.revision.map(imports, controller, &news));
    let (keys, _) = batch::call(Hook::Map, changes, wakes.record, span, called, call).await?;
    let keys = wakes.known(keys);
    feed::mapped(wakes.id, &batch::objects(changes), &keys);
    wakes.wake_mapped(keys, wakes.origin(), || batch::objects(changes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexed(name: &str) -> (Lookup, TypeMeta, Key) {
        (Lookup::Indexed("named".into()), TypeMeta::new("v1", "ConfigMap"), Key::new(None, name))
    }

    #[test]
    fn lookup_counts_as_a_change_if_one_of_several_origins_is_a_change() {
        let mut lookups = Lookups::within(&Budget::new(2));
        for (origin, known) in
            [(Origin::Initial, Origin::Initial), (Origin::Change, Origin::Change), (Origin::Initial, Origin::Change)]
        {
            lookups.add([(indexed("a"), origin)]);
            assert_eq!((lookups.by_change.len(), lookups.by_change.get(&indexed("a"))), (1, Some(&known)));
        }
    }

    #[test]
    fn invariant_12_lookups_have_one_bound_over_all_controllers_of_a_plugin() {
        let budget = Budget::new(2);
        let [mut one, mut other] = [(); 2].map(|()| Lookups::within(&budget));
        let change = |name| (indexed(name), Origin::Change);
        one.add([change("a"), change("b")]);
        other.add([change("c")]);
        // The other one wakes every key instead.
        assert_eq!((one.take().0.len(), other.take().1, budget.used()), (2, true, 0));
    }
}
