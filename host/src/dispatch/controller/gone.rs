//! Objects that vanished and whose keys are still to be reconciled, as they were last (invariant 5).
//!
//! When a key is reconciled is for its queue to know; whoever looks a key up asks here after the cache.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use pilothouse_core::{key::Key, object::Object, store::Change};

/// At most as many as the queue has keys.
#[derive(Default)]
pub(super) struct Gone(Mutex<HashMap<Key, Arc<Object>>>);

impl Gone {
    /// An object changed: keeps what vanished. Where its end does not matter to the plugin, nobody will ask for it.
    pub(super) fn note(&self, change: &Change, matters: bool) {
        let mut gone = self.0.lock();
        match (&change.old, &change.new) {
            (Some(last), None) if matters => drop(gone.insert(last.key().clone(), last.clone())),
            _ => drop(gone.remove(change.key())),
        }
    }

    /// What vanished under this key.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.0.lock().get(key).cloned()
    }

    /// This state was reconciled and is not needed any more. Its key's is another if it came and went again meanwhile, and stays.
    pub(super) fn reconciled(&self, last: &Arc<Object>) {
        let mut gone = self.0.lock();
        if gone.get(last.key()).is_some_and(|kept| Arc::ptr_eq(kept, last)) {
            gone.remove(last.key());
        }
    }

    /// Nobody may see it any more.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_core::key::TypeMeta;

    use super::*;

    fn object() -> Arc<Object> {
        let json = br#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"1"}}"#;
        Arc::new(Object::parse(json, &TypeMeta::new("v1", "ConfigMap")).expect("an object"))
    }

    fn vanished(last: &Arc<Object>) -> Change {
        Change { old: Some(last.clone()), new: None, missed: false }
    }

    fn is_kept(gone: &Gone, last: &Arc<Object>) -> bool {
        gone.get(last.key()).is_some_and(|kept| Arc::ptr_eq(&kept, last))
    }

    #[test]
    fn invariant_5_what_vanished_again_while_it_was_reconciled_is_kept() {
        let (gone, first, second) = (Gone::default(), object(), object());
        gone.note(&vanished(&first), true);
        assert!(is_kept(&gone, &first));
        gone.note(&vanished(&second), true);
        gone.reconciled(&first);
        assert!(is_kept(&gone, &second));
        gone.reconciled(&second);
        assert_eq!(gone.get(second.key()), None);
    }

    #[test]
    fn what_is_there_again_and_what_does_not_matter_is_not_kept() {
        let (gone, last) = (Gone::default(), object());
        gone.note(&vanished(&last), true);
        gone.note(&Change { old: None, new: Some(object()), missed: false }, true);
        assert_eq!(gone.get(last.key()), None);
        gone.note(&vanished(&last), false);
        assert_eq!(gone.get(last.key()), None);
    }
}
