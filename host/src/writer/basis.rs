//! What a write to a child is decided on, and whether that may be believed.

use pilothouse_core::{
    key::TypeMeta,
    object::{Object, ResourceVersion},
};

use super::{Owner, desired::Desired};
use crate::informer::{Lapse, View};

/// The version that no object has. An apply under it creates an object, and is refused (409) where one is there: kube-apiserver compares
/// versions only with what exists. etcd's revisions are signed, and never come so far.
pub(super) const NO_VERSION: ResourceVersion = ResourceVersion(i64::MAX.unsigned_abs());

/// What a write to a child was decided on: what the server must have for it to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// No object of that name. Others' fields are not taken over.
    Nothing,
    /// This version of an object that is ours, or is to be adopted. Others' fields are taken over.
    Version(ResourceVersion),
    /// A live look found nothing, and the server does not take [`Basis::Nothing`]. Others' fields are not taken over.
    Anything,
}

/// What an object is to the owner whose child has its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its child.
    Ours,
    /// Nobody's, and the plugin asks to adopt it.
    Adopted,
    /// A child of this owner, or of one of its name before it, that is being deleted.
    Ending,
}

/// What an object that exists is to `owner`: only what this allows is written to it.
///
/// # Errors
/// Whose it is, and what would help.
pub(super) fn standing(owner: &Owner<'_>, desired: &Desired, live: &Object) -> Result<Standing, String> {
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
        None if desired.adopt => Ok(Standing::Adopted),
        None => Err("is not this object's child; the plugin does not ask to adopt it".into()),
    }
}

/// The owned kinds whose caches are not to be believed, and why.
pub(super) fn unknown(owner: &Owner<'_>, view: &View) -> Vec<(TypeMeta, Lapse)> {
    let namespace = owner.object.key().namespace.as_deref();
    owner.owns.iter().filter_map(|of| view.lapse(of, namespace).map(|lapse| (of.clone(), lapse))).collect()
}

/// `true` if the caches tell which children an owner has and should have: of its kind, and of those that it owns.
pub(crate) fn is_known(owner_of: &TypeMeta, owns: &[TypeMeta], namespace: Option<&str>, view: &View) -> bool {
    owns.iter().chain([owner_of]).all(|of| view.lapse(of, namespace).is_none())
}
