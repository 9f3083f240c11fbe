//! Owner references: which objects a controller takes over, and which it gives up.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pilothouse_sdk::{client::Patch, prelude::*};
use serde_json::json;

use crate::labels::Selector;

/// What an owner does with an object of a kind that it owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// The owner controls it, and its selector matches.
    Keep,
    /// Nobody controls it, and the selector matches.
    Adopt,
    /// The owner controls it, and its selector matches no more.
    Release,
    /// Somebody else's, or nobody's.
    Ignore,
}

/// An owner that is being deleted keeps what it has, and changes nothing.
fn judge(owner: &ObjectMeta, object: &ObjectMeta, matches: bool) -> Claim {
    let is_live = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_none();
    match (controller_of(object), matches) {
        (Some(controller), true) if Some(&controller.uid) == owner.uid.as_ref() => Claim::Keep,
        (Some(controller), false) if Some(&controller.uid) == owner.uid.as_ref() && is_live(owner) => Claim::Release,
        (None, true) if is_live(owner) && is_live(object) => Claim::Adopt,
        _ => Claim::Ignore,
    }
}

/// Returns the reference to the object's controller.
pub(crate) fn controller_of(object: &ObjectMeta) -> Option<&OwnerReference> {
    object.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Returns the reference with which an object names `owner` as its controller.
pub(crate) fn reference_to<K: Object>(owner: &K) -> OwnerReference {
    let TypeMeta { api_version, kind } = K::type_meta();
    OwnerReference {
        api_version,
        kind,
        name: owner.name().to_owned(),
        uid: owner.metadata().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Returns those of `objects` that belong to the owner. Adopts and releases others.
///
/// # Errors
/// Fails if the owner is gone, and if a request fails. An object that is gone is left out.
pub(crate) fn claim<O: Object, K: Object>(
    ctx: &Context,
    owner: &O,
    selector: &Selector,
    objects: Vec<K>,
) -> Result<Vec<K>, Error> {
    let mut claimed = Vec::new();
    let mut is_checked = false;
    for object in objects {
        let claim = judge(owner.metadata(), object.metadata(), selector.matches(object.metadata().labels.as_ref()));
        match claim {
            Claim::Keep => claimed.push(object),
            Claim::Ignore => {}
            Claim::Adopt => {
                // The cache may lag behind a deletion. What a deleted owner adopts would be collected.
                if !std::mem::replace(&mut is_checked, true) {
                    check_is_live(ctx, owner)?;
                }
                let reference = reference_to(owner);
                let adopt = |owners: &mut Vec<OwnerReference>| {
                    owners.retain(|owner| owner.uid != reference.uid);
                    owners.push(reference);
                };
                claimed.extend(rewrite::<K>(ctx, &object.key(), adopt)?);
            }
            Claim::Release => {
                let uid = owner.metadata().uid.clone();
                rewrite::<K>(ctx, &object.key(), |owners| owners.retain(|owner| Some(&owner.uid) != uid.as_ref()))?;
            }
        }
    }
    Ok(claimed)
}

fn check_is_live<O: Object>(ctx: &Context, owner: &O) -> Result<(), Error> {
    let live = ctx.client().get::<O>(owner.key())?;
    let live = live.metadata();
    if live.uid != owner.metadata().uid || live.deletion_timestamp.is_some() {
        return Err(Error::retry(format!("cannot adopt for {} {}: it is deleted", O::type_meta(), owner.key())));
    }
    Ok(())
}

/// Changes the owner references of an object. Returns `None` if it is gone.
fn rewrite<K: Object>(
    ctx: &Context,
    key: &Key,
    change: impl FnOnce(&mut Vec<OwnerReference>),
) -> Result<Option<K>, Error> {
    let Some(current) = ctx.cache().get::<K>(key)? else { return Ok(None) };
    let metadata = current.metadata();
    let mut owners = metadata.owner_references.clone().unwrap_or_default();
    change(&mut owners);
    // The patch replaces the whole list, so it must not meet another one.
    let patch = json!({"metadata": {
        "uid": metadata.uid, "resourceVersion": metadata.resource_version, "ownerReferences": owners,
    }});
    match ctx.client().patch::<K>(key, &Patch::merge(patch)?) {
        Ok(changed) => Ok(Some(changed)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::{Claim, judge};

    #[test]
    fn an_owner_claims_as_kubernetes_does() {
        let (live, going) = (json!({"uid": "1"}), json!({"uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        let controlled = |uid: &str| {
            json!({"ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": true,
            }]})
        };
        // An owner that is not the controller does not count.
        let mut owned = controlled("1");
        owned["ownerReferences"][0]["controller"] = json!(false);
        let orphan = json!({});
        let dying = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (owner, object, matches, expected) in [
            (&live, controlled("1"), true, Claim::Keep),
            (&going, controlled("1"), true, Claim::Keep),
            (&live, controlled("1"), false, Claim::Release),
            (&going, controlled("1"), false, Claim::Ignore),
            (&live, controlled("2"), true, Claim::Ignore),
            (&live, orphan.clone(), true, Claim::Adopt),
            (&live, owned, true, Claim::Adopt),
            (&live, orphan.clone(), false, Claim::Ignore),
            (&going, orphan, true, Claim::Ignore),
            (&live, dying, true, Claim::Ignore),
        ] {
            let metadata = |value: &Value| from_value(value.clone()).expect("metadata");
            assert_eq!(judge(&metadata(owner), &metadata(&object), matches), expected, "{owner} {object} {matches}");
        }
    }
}
