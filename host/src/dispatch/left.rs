//! Names the finalizers that nobody removes any more, after a plugin was removed or has another manifest.
//!
//! The host does not remove them: their cleanup never ran, and the plugin may come back. So people learn which objects
//! they have to free: from the log at once, and from the warnings of `/debug/plugins` later.

use std::{collections::VecDeque, fmt, sync::Arc};

use jiff::Timestamp;
use pilothouse_core::{
    key::{Key, TypeMeta},
    selector::Selector,
    store::Query,
};
use tracing::warn;

use super::serving::Serving;
use crate::name::PluginName;

/// Objects that are looked at before other tasks have their turn.
const TURN: usize = 64;

/// Finalizers of all plugins that are remembered. The log has had the others.
const REMEMBERED: usize = 100;

/// A finalizer that objects keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Left {
    of: TypeMeta,
    finalizer: String,
    /// The objects that had it.
    objects: usize,
    first: Key,
    /// When they were counted. Nothing is cached for the plugin afterwards.
    at: Timestamp,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, finalizer, objects, first, at } = self;
        write!(
            f,
            "leaves the finalizer {finalizer} on {objects} objects of {of} (first: {first}), counted at {at}: they cannot be deleted until \
             somebody removes it, or the plugin is back"
        )
    }
}

/// The finalizers that plugins left on objects, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Leftovers(VecDeque<(PluginName, Left)>);

impl Leftovers {
    /// Adds what a plugin has left. Forgets what one of its controllers takes care of now: `stays`.
    pub(super) fn add(&mut self, plugin: &PluginName, left: Vec<Left>, stays: impl Fn(&TypeMeta, &str) -> bool) {
        let is_replaced = |before: &Left| {
            let same = |left: &Left| (&left.of, &left.finalizer) == (&before.of, &before.finalizer);
            stays(&before.of, &before.finalizer) || left.iter().any(same)
        };
        self.0.retain(|(other, before)| other != plugin || !is_replaced(before));
        self.0.extend(left.into_iter().map(|left| (plugin.clone(), left)));
        let surplus = self.0.len().saturating_sub(REMEMBERED);
        self.0.drain(..surplus);
    }

    /// Returns a warning for each finalizer that the plugin has left.
    pub(super) fn of(&self, plugin: &PluginName) -> Vec<String> {
        self.0.iter().filter(|(other, _)| other == plugin).map(|(_, left)| left.to_string()).collect()
    }
}

/// Returns and logs the finalizers of `before` that objects keep, unless `stays` says that a controller still has it.
pub(super) async fn left(
    plugin: &PluginName,
    before: impl IntoIterator<Item = Arc<Serving>>,
    stays: impl Fn(&TypeMeta, &str) -> bool,
) -> Vec<Left> {
    let mut all = Vec::new();
    for serving in before {
        let of = &serving.spec.for_.of;
        let Some(finalizer) = serving.spec.finalizer.as_deref().filter(|finalizer| !stays(of, finalizer)) else {
            continue;
        };
        if let (objects @ 1.., Some(first)) = count(&serving, finalizer).await {
            warn!(
                %plugin, kind = %of, finalizer, objects, %first,
                "objects keep a finalizer of this plugin, so they cannot be deleted until somebody removes it"
            );
            let (of, finalizer) = (of.clone(), finalizer.to_owned());
            all.push(Left { of, finalizer, objects, first, at: Timestamp::now() });
        }
    }
    all
}

/// Counts the cached objects with a finalizer, and returns the key of the first.
async fn count(serving: &Serving, finalizer: &str) -> (usize, Option<Key>) {
    let (all, mut count, mut first) = (Selector::default(), 0, None);
    for lease in serving.reconciles.leases() {
        let mut after = None;
        loop {
            let page = lease.page(&Query { after: after.as_ref(), ..Query::new(&all) }, None, TURN);
            for object in page.items.iter().filter(|object| object.has_finalizer(finalizer)) {
                count += 1;
                first.get_or_insert_with(|| object.key().clone());
            }
            let Some(last) = page.next else { break };
            after = Some(last);
            tokio::task::yield_now().await;
        }
    }
    (count, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(finalizer: &str, objects: usize) -> Left {
        let of = TypeMeta::new("stable.example.com/v1", "MyApple");
        let first = Key::new(Some("default"), "a");
        Left { of, finalizer: finalizer.to_owned(), objects, first, at: Timestamp::UNIX_EPOCH }
    }

    fn name(name: &str) -> PluginName {
        PluginName::new(name).expect("a name")
    }

    #[test]
    fn what_a_plugin_left_is_shown_until_it_takes_care_of_it_again() {
        let (mut all, apples) = (Leftovers::default(), name("apples"));
        all.add(&apples, vec![left("example.com/a", 2), left("example.com/b", 1)], |_, _| false);
        all.add(&name("pears"), vec![left("example.com/a", 7)], |_, _| false);
        let told = "leaves the finalizer example.com/a on 2 objects of stable.example.com/v1 MyApple (first: default/a), counted at \
                    1970-01-01T00:00:00Z: they cannot be deleted until somebody removes it, or the plugin is back";
        assert_eq!(all.of(&apples).first().map(String::as_str), Some(told));
        assert_eq!(all.of(&apples).len(), 2);
        // It is back with one of them.
        all.add(&apples, Vec::new(), |_, finalizer| finalizer == "example.com/a");
        assert_eq!(all.of(&apples).len(), 1);
        all.add(&apples, vec![left("example.com/b", 5)], |_, _| false);
        assert!(all.of(&apples)[0].contains(" on 5 objects") && all.of(&apples).len() == 1);
        assert_eq!(all.of(&name("pears")).len(), 1);
    }

    #[test]
    fn invariant_12_finalizers_that_are_left_are_bounded() {
        let mut all = Leftovers::default();
        for number in 0..2 * REMEMBERED {
            all.add(&name("apples"), vec![left(&format!("example.com/{number}"), 1)], |_, _| false);
        }
        let of = all.of(&name("apples"));
        assert!(of.len() == REMEMBERED && of[0].contains(&format!("example.com/{REMEMBERED}")));
    }
}
