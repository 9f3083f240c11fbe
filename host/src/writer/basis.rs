//! The version that a write to a child is decided on, and whether the object may be written.

use pilothouse_core::{
    key::TypeMeta,
    object::{Object, ResourceVersion},
};
use serde_json::Value;

use super::handle::Owner;
use crate::informer::{Lapse, View};

/// A version that no object has. An apply under it creates an object, and fails with 409 if one exists: kube-apiserver
/// compares versions only with objects that exist. etcd's revisions are signed and never reach this number.
const NO_VERSION: ResourceVersion = ResourceVersion(i64::MAX.unsigned_abs());

/// What the server must have for a write to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// No object of that name. Other managers' fields are not taken over.
    Nothing,
    /// This version of an object that is ours, or is adopted. Other managers' fields are taken over.
    Version(ResourceVersion),
    /// Anything: a live read found no object, and the server rejects [`Basis::Nothing`]. Other managers' fields are not
    /// taken over.
    Anything,
}

impl Basis {
    /// Names the version in the body of an apply.
    pub(super) fn name_in(self, body: &mut Value) {
        let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        match self {
            Self::Nothing => metadata.insert("resourceVersion".into(), NO_VERSION.to_string().into()),
            Self::Version(version) => metadata.insert("resourceVersion".into(), version.to_string().into()),
            Self::Anything => metadata.remove("resourceVersion"),
        };
    }

    /// `true` if the apply takes over fields of other managers.
    pub(super) fn takes_fields(self) -> bool {
        matches!(self, Self::Version(_))
    }
}

/// What an object is to the owner whose child has its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its child.
    Ours,
    /// Without a controller, and the plugin asks to adopt it.
    Adopted,
    /// A child of this owner, or of an earlier one of its name, that is being deleted.
    Ending,
}

/// Returns what an existing object is to `owner`. `adopt` is `true` if the plugin asks to adopt it.
///
/// # Errors
/// The object must not be written. The error says whose it is, and what would help.
pub(super) fn standing(owner: &Owner<'_>, adopt: bool, live: &Object) -> Result<Standing, String> {
    let controller = live.controller();
    if live.is_deleting() {
        let (own, of_owner) = (owner.object.key(), owner.object.type_meta());
        let is_ours =
            controller.is_some_and(|controller| *controller.kind == *of_owner.kind && *controller.name == *own.name);
        let why = || "is not this object's child; it is being deleted".into();
        return if is_ours { Ok(Standing::Ending) } else { Err(why()) };
    }
    match controller {
        Some(controller) if controller.uid == *owner.object.uid() => Ok(Standing::Ours),
        Some(controller) => Err(format!("is controlled by {} {}", controller.kind, controller.name)),
        None if adopt => Ok(Standing::Adopted),
        None => Err("is not this object's child; the plugin does not ask to adopt it".into()),
    }
}

/// Returns the owned kinds whose watches are down, and why.
pub(super) fn unknown(owner: &Owner<'_>, view: &View) -> Vec<(TypeMeta, Lapse)> {
    let namespace = owner.object.key().namespace.as_deref();
    owner.owns.iter().filter_map(|of| view.lapse(of, namespace).map(|lapse| (of.clone(), lapse))).collect()
}

/// `true` if the caches show which children an owner has and should have: the watches of its kind and of the kinds that
/// it owns are up.
pub(crate) fn is_known(owner_of: &TypeMeta, owns: &[TypeMeta], namespace: Option<&str>, view: &View) -> bool {
    owns.iter().chain([owner_of]).all(|of| view.lapse(of, namespace).is_none())
}
