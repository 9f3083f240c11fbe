//! From a change in the store to the keys that it concerns.
//!
//! Owns the mappings that a controller declares: its own kind, and kinds whose objects its own kind owns. Which stores feed
//! which controller, and with what priority a key enters the queue, is the host's.
//!
//! ```text
//!  Change { old, new } ── SelfKey ──► key of the object
//!                      └─ Owner ────► key of its controlling owner, before and after the change
//! ```
//!
//! An object that changes hands concerns both owners: the one that lost it has to know as well.

use std::sync::Arc;

use crate::{
    key::{Key, TypeMeta},
    object::{Object, OwnerRef},
    store::Change,
};

/// How the objects of one watched kind lead to a controller's keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// The object is what is reconciled.
    SelfKey,
    /// The object's controlling owner is, where it is of the controller's kind.
    Owner {
        /// The controller's kind. Group and kind have to agree with the reference's; an object may name its owner by
        /// another version.
        of: TypeMeta,
        /// Whether that kind lives in namespaces. Such an owner is in the namespace of what it owns; one that does not may
        /// own objects in any namespace.
        namespaced: bool,
    },
}

/// Appends the keys that `change` concerns to `out`, each once.
pub fn keys(mapping: &Mapping, change: &Change, out: &mut Vec<Key>) {
    match mapping {
        Mapping::SelfKey => out.push(change.key().clone()),
        Mapping::Owner { of, namespaced } => {
            let owner = |object: &Option<Arc<Object>>| owner(of, *namespaced, object.as_deref()?);
            let (old, new) = (owner(&change.old), owner(&change.new));
            if old != new {
                out.extend(old);
            }
            out.extend(new);
        }
    }
}

fn owner(of: &TypeMeta, namespaced: bool, object: &Object) -> Option<Key> {
    let OwnerRef { api_version, kind, name, .. } = object.controller()?;
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    if *kind != of.kind || group != of.group() {
        return None;
    }
    let namespace = object.key().namespace.clone();
    match (namespaced, namespace) {
        // The API server would not let a namespaced object own a cluster-scoped one: the garbage collector calls it absent.
        (true, None) => None,
        (true, namespace) => Some(Key { namespace, name: name.clone() }),
        (false, _) => Some(Key { namespace: None, name: name.clone() }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use serde_json::{Value, json};

    use super::*;

    fn owned(namespace: Option<&str>, owners: &Value) -> Option<Arc<Object>> {
        let json = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "child", "namespace": namespace.unwrap_or(""), "uid": "u", "resourceVersion": "1", "ownerReferences": owners},
        });
        Some(Arc::new(Object::parse(json.to_string().as_bytes(), &TypeMeta::new("v1", "ConfigMap")).unwrap()))
    }

    fn reference(api_version: &str, kind: &str, name: &str, controller: bool) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": controller})
    }

    fn by(name: &str) -> Value {
        json!([reference("stable.example.com/v1", "MyApple", name, true)])
    }

    /// The keys of MyApples that the change concerns, as text.
    fn routed(namespaced: bool, old: Option<Arc<Object>>, new: Option<Arc<Object>>) -> Vec<String> {
        let mapping = Mapping::Owner { of: TypeMeta::new("stable.example.com/v1", "MyApple"), namespaced };
        let mut out = Vec::new();
        keys(&mapping, &Change { old, new, missed: false }, &mut out);
        out.iter().map(Key::to_string).collect()
    }

    #[test]
    fn an_object_of_the_own_kind_leads_to_its_key_before_and_after_its_life() {
        for (old, new) in
            [(None, owned(Some("ns"), &by("a"))), (owned(Some("ns"), &by("a")), owned(Some("ns"), &by("b")))]
        {
            let mut out = Vec::new();
            keys(&Mapping::SelfKey, &Change { old: old.clone(), new: new.clone(), missed: false }, &mut out);
            keys(&Mapping::SelfKey, &Change { old: new, new: None, missed: false }, &mut out);
            assert_eq!(out, [Key::new(Some("ns"), "child"), Key::new(Some("ns"), "child")]);
        }
    }

    #[test]
    fn invariant_5_a_deleted_child_leads_to_its_owner() {
        assert_eq!(routed(true, owned(Some("ns"), &by("a")), None), ["ns/a"]);
    }

    #[test]
    fn a_child_leads_to_its_owner_once() {
        assert_eq!(routed(true, None, owned(Some("ns"), &by("a"))), ["ns/a"]);
        assert_eq!(routed(true, owned(Some("ns"), &by("a")), owned(Some("ns"), &by("a"))), ["ns/a"]);
    }

    #[test]
    fn a_child_that_changes_hands_leads_to_both_owners() {
        assert_eq!(routed(true, owned(Some("ns"), &by("a")), owned(Some("ns"), &by("b"))), ["ns/a", "ns/b"]);
        assert_eq!(routed(true, owned(Some("ns"), &by("a")), owned(Some("ns"), &json!([]))), ["ns/a"]);
        assert_eq!(routed(true, owned(Some("ns"), &json!([])), owned(Some("ns"), &by("b"))), ["ns/b"]);
    }

    #[test]
    fn only_the_controlling_owner_counts() {
        let owners = json!([
            reference("stable.example.com/v1", "MyApple", "guest", false),
            reference("stable.example.com/v1", "MyApple", "host", true),
        ]);
        assert_eq!(routed(true, None, owned(Some("ns"), &owners)), ["ns/host"]);
        let guest = json!([reference("stable.example.com/v1", "MyApple", "guest", false)]);
        assert_eq!(routed(true, None, owned(Some("ns"), &guest)), [""; 0]);
    }

    #[test]
    fn group_and_kind_have_to_agree_and_the_version_does_not() {
        let routed = |api_version, kind| {
            routed(true, None, owned(Some("ns"), &json!([reference(api_version, kind, "a", true)])))
        };
        assert_eq!(routed("stable.example.com/v1beta1", "MyApple"), ["ns/a"]);
        assert_eq!(routed("other.example.com/v1", "MyApple"), [""; 0]);
        assert_eq!(routed("v1", "MyApple"), [""; 0]);
        assert_eq!(routed("stable.example.com/v1", "MyPear"), [""; 0]);
    }

    #[test]
    fn the_owner_of_the_core_group_is_found() {
        let mapping = Mapping::Owner { of: TypeMeta::new("v1", "Node"), namespaced: false };
        let mut out = Vec::new();
        let new = owned(Some("ns"), &json!([reference("v1", "Node", "n1", true)]));
        keys(&mapping, &Change { old: None, new, missed: false }, &mut out);
        assert_eq!(out, [Key::new(None, "n1")]);
    }

    #[test]
    fn scope_decides_the_owners_namespace() {
        assert_eq!(routed(false, None, owned(Some("ns"), &by("a"))), ["a"]);
        assert_eq!(routed(false, None, owned(None, &by("a"))), ["a"]);
        assert_eq!(routed(true, None, owned(None, &by("a"))), [""; 0]);
    }
}
