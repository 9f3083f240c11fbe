//! Whom a change concerns, where it has to be asked for: an index of the controller's kind, or the plugin's `mapper`.
//!
//! Neither can be asked where changes are heard, under the informer's lock. So changes wait here, and one task of the controller asks:
//!
//! ```text
//! change ─┬─ mapping `index` ──► names ───► the index, now ──► keys ─► queue
//!         └─ mapping `plugin` ─► backlog ─► `map`, in batches ─┘
//! ```
//!
//! While the plugin is quarantined, and where many keys wait for workers that have not begun to work, keys that the changed object names by
//! itself, as its owner or by another mapping, wait here too, for a look whether there is such an object: children that come and go would
//! fill the queue with names of nothing.
//!
//! Where the reconciled kind is not served yet, or the task gets no turn, names would gather here in the end. So beyond a
//! [bound](super::remembered::MOST_NAMES) they are dropped, and every key is looked at instead: the keys that they lead to are among those.
//!
//! An object that names the changed one only after the change is a change itself, and wakes its own key: so to look the index up later
//! loses nothing. Both are asked once the reconciled objects are there, and a key that a plugin names wakes only if it is one of them.

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
    controller::Controller,
    feed,
    hook::{self, Hook, HookError},
    imports::{Access, CallImports},
    pending::{self, BacklogFigures, HookFailure, Pending},
    remembered::Remembered,
    resync,
};
use crate::informer::Origin;

/// What is still to be asked.
pub(super) struct Asks {
    names: Mutex<Names>,
    named: Notify,
    pending: Pending,
}

/// Whom changed objects lead to.
struct Names {
    /// With where they come from: a change, if one of several is.
    names: HashMap<Name, Origin>,
    /// How many of them the plugin's controllers hold together.
    share: Share,
    /// There were too many: every key is to be looked at.
    all: bool,
}

/// Whom an object of this kind and key leads to.
type Name = (Whom, TypeMeta, Key);

impl Names {
    /// None yet, and no more than this budget allows.
    fn within(names: &Budget) -> Self {
        Self { names: HashMap::new(), share: names.share(), all: false }
    }

    fn add(&mut self, names: impl IntoIterator<Item = (Name, Origin)>) {
        if !self.all {
            for (name, origin) in names {
                let known = self.names.entry(name).or_insert(origin);
                if origin == Origin::Change {
                    *known = origin;
                }
            }
            self.share.set(self.names.len());
            self.all = self.share.is_over();
        }
        if self.all {
            self.names = HashMap::new();
            self.share.set(0);
        }
    }

    /// Takes all out: the names, and whether every key is to be looked at.
    fn take(&mut self) -> (HashMap<Name, Origin>, bool) {
        self.share.set(0);
        (std::mem::take(&mut self.names), std::mem::take(&mut self.all))
    }
}

/// Whom a change concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whom {
    /// Those whom the index of this name has under the name of what changed.
    Indexed(Box<str>),
    /// The owner of what changed, if there is such an object.
    Owner(Key),
    /// Whom a mapping names, if there is such an object.
    Mapped(Key),
}

impl Asks {
    /// Nothing yet, and no more than what is remembered for the plugin may be.
    pub(super) fn within(remembered: &Remembered) -> Self {
        Self {
            names: Mutex::new(Names::within(&remembered.names)),
            named: Notify::new(),
            pending: Pending::within(&remembered.untold),
        }
    }

    /// The change concerns these, if they are found.
    pub(super) fn find(&self, whom: impl IntoIterator<Item = Whom>, change: &Change, origin: Origin) {
        let object = change.object();
        let name = |whom| ((whom, object.type_meta().clone(), object.key().clone()), origin);
        self.names.lock().add(whom.into_iter().map(name));
        self.named.notify_one();
    }

    /// Forgets what waits and may not be seen any more.
    pub(super) fn restrict(&self, access: &Access) {
        self.pending.retain(|of, key| access.may_see(of, key));
    }

    /// The plugin knows whom the change concerns.
    pub(super) fn ask(&self, change: &Change) {
        self.pending.add(change);
    }

    /// Returns when the plugin was asked of all that came so far, even if in vain.
    pub(super) async fn tried(&self) {
        self.pending.tried().await;
    }

    /// How many names wait; none: so many that every key is to be looked at.
    #[cfg(test)]
    pub(super) fn names(&self) -> Option<usize> {
        let names = self.names.lock();
        (!names.all).then_some(names.names.len())
    }

    /// What waits for the plugin.
    pub(super) fn figures(&self) -> BacklogFigures {
        self.pending.figures()
    }

    /// The last time that the plugin could not say.
    pub(super) fn last_failure(&self) -> Option<HookFailure> {
        self.pending.last_failure()
    }
}

/// Asks until it is cancelled.
pub(super) async fn run(controller: Arc<Controller>) {
    let asks = controller.asks();
    controller.knows_its_own().await;
    loop {
        tokio::select! {
            () = asks.named.notified() => {
                let (names, all) = asks.names.lock().take();
                let mut left = Left { asks, names: names.into_iter().collect(), all };
                if left.all {
                    resync::look_at_each(&controller).await;
                    left.all = false;
                }
                while let Some((name, origin)) = left.names.pop() {
                    look_up(&controller, &name, origin);
                    // One may lead to every key there is.
                    tokio::task::yield_now().await;
                }
            }
            telling = asks.pending.next(controller.record().acting()) => {
                let told = map(&controller, telling.batch()).await;
                telling.end(told);
            }
        }
    }
}

/// What is being looked up. If the host fails over one, the others are still to be.
struct Left<'a> {
    asks: &'a Asks,
    names: Vec<(Name, Origin)>,
    all: bool,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if self.all || !self.names.is_empty() {
            let mut names = self.asks.names.lock();
            names.all |= self.all;
            names.add(self.names.drain(..));
            self.asks.named.notify_one();
        }
    }
}

fn look_up(controller: &Controller, (whom, of, name): &Name, origin: Origin) {
    let serving = controller.serving();
    let keys = match whom {
        Whom::Indexed(index) => serving.access.reader.indexed(&serving.reconciles, index, name),
        Whom::Owner(key) | Whom::Mapped(key) => controller.known(vec![key.clone()]),
    };
    feed::mapped(controller, &name.to_string(), &keys);
    match whom {
        Whom::Owner(_) => controller.wake_owners(keys, origin, of, name),
        Whom::Indexed(_) | Whom::Mapped(_) => controller.wake_mapped(keys, origin, || format!("{of} {name}")),
    }
}

/// Wakes whom the changes concern, if the plugin says.
async fn map(controller: &Controller, batch: &Batch) -> Result<(), HookError> {
    let serving = controller.serving();
    if !serving.revision.manifest().needs_mapper() {
        // Left from a revision that had one.
        return Ok(());
    }
    let span = info_span!("map", plugin = %controller.plugin(), controller = controller.name(), changes = batch.changes().len());
    let imports = Arc::new(CallImports::new(serving.access.clone()));
    let news = pending::news(batch, &serving.access);
    if news.is_empty() {
        return Ok(());
    }
    let call = pin!(serving.revision.map(imports, controller.name(), &news));
    let (keys, _) =
        hook::call(Hook::Map, batch, controller.record(), span, |called| controller.called(called), call).await?;
    let keys = controller.known(keys);
    feed::mapped(controller, &pending::objects(batch), &keys);
    controller.wake_mapped(keys, controller.origin(), || pending::objects(batch));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_looked_up_for_a_change_where_one_of_several_came_from_one() {
        let name = || (Whom::Indexed("named".into()), TypeMeta::new("v1", "ConfigMap"), Key::new(Some("n"), "a"));
        let mut names = Names::within(&Budget::new(2));
        for (origin, known) in
            [(Origin::Initial, Origin::Initial), (Origin::Change, Origin::Change), (Origin::Initial, Origin::Change)]
        {
            names.add([(name(), origin)]);
            assert_eq!((names.names.len(), names.names.get(&name())), (1, Some(&known)));
        }
    }

    #[test]
    fn invariant_12_controllers_of_a_plugin_hold_together_as_many_names_as_one_may() {
        let budget = Budget::new(2);
        let [mut one, mut other] = [(); 2].map(|()| Names::within(&budget));
        let name = |name: &str| {
            ((Whom::Indexed("named".into()), TypeMeta::new("v1", "ConfigMap"), Key::new(None, name)), Origin::Change)
        };
        one.add([name("a"), name("b")]);
        other.add([name("c")]);
        // Every key is looked at instead.
        assert_eq!((one.take().0.len(), other.take().1, budget.used()), (2, true, 0));
    }
}
