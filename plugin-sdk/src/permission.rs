//! The permissions that a plugin asks for. The administrator may grant fewer, and never grants more.

pub use crate::contract::exports::pilothouse::plugin::controller::Verb;
use crate::{
    Object, TypeMeta,
    contract::{exports::pilothouse::plugin::controller as wire, pilothouse::plugin::types::Subresource},
};

/// What the plugin may do, if the administrator grants it.
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use pilothouse_sdk::{Permission, Verb};
///
/// // Reads one Secret with `client.get`.
/// Permission::of::<Secret>().verbs([Verb::Read]).namespaces(["vault"]).names(["token"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Permission(wire::Permission);

impl Permission {
    /// Creates a permission for objects of kind `K`, without verbs.
    pub fn of<K: Object>() -> Self {
        Self::to(K::type_meta())
    }

    /// Creates a permission for a kind that has no Rust type here, without verbs.
    ///
    /// It may be for many kinds: the kind `*` of an apiVersion, of `GROUP/*` for a group, and of `*` for all groups. The
    /// administrator may grant some of them. All kinds include Secrets.
    ///
    /// ```
    /// use pilothouse_sdk::{Permission, TypeMeta, Verb};
    ///
    /// Permission::to(TypeMeta::new("apps/*", "*")).verbs([Verb::Read]);
    /// ```
    pub fn to(of: TypeMeta) -> Self {
        Self(wire::Permission { of, subresource: None, verbs: Vec::new(), namespaces: Vec::new(), names: Vec::new() })
    }

    /// Creates the permission to write [Events](crate::Event) about objects in any namespace. Events about cluster-scoped
    /// objects are in the namespace `default`.
    ///
    /// Reconciles that report only on their own objects have a shorter way:
    /// [`ControllerBuilder::events`](crate::ControllerBuilder::events).
    ///
    /// ```
    /// use pilothouse_sdk::{Permission, Verb};
    ///
    /// Permission::events().namespaces(["shop"]);
    /// ```
    pub fn events() -> Self {
        Self::to(TypeMeta::new("v1", "Event")).verbs([Verb::Create])
    }

    /// Limits it to the subresource `status`.
    pub fn status(mut self) -> Self {
        self.0.subresource = Some(Subresource::Status);
        self
    }

    /// Limits it to the subresource `scale`.
    pub fn scale(mut self) -> Self {
        self.0.subresource = Some(Subresource::Scale);
        self
    }

    /// Limits it to another subresource, such as `eviction` (with `create`) or `log` (with `read`) of Pods.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use pilothouse_sdk::{Permission, Verb, client::Subresource};
    ///
    /// Permission::of::<Pod>().subresource(Subresource::Eviction).verbs([Verb::Create]);
    /// ```
    pub fn subresource(mut self, subresource: Subresource) -> Self {
        self.0.subresource = Some(subresource);
        self
    }

    /// Adds verbs. `read` covers the cache and the client's `get`.
    pub fn verbs(mut self, verbs: impl IntoIterator<Item = Verb>) -> Self {
        self.0.verbs.extend(verbs);
        self
    }

    /// Limits it to these namespaces.
    pub fn namespaces(mut self, namespaces: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.namespaces.extend(namespaces.into_iter().map(Into::into));
        self
    }

    /// Limits it to objects of these names.
    pub fn names(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.names.extend(names.into_iter().map(Into::into));
        self
    }

    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn into_wire(self) -> wire::Permission {
        self.0
    }
}

/// Merges permissions for the same kind, subresource, namespaces and names into one with all their verbs.
pub(crate) fn merged(permissions: Vec<Permission>) -> Vec<wire::Permission> {
    let mut merged: Vec<wire::Permission> = Vec::new();
    for Permission(permission) in permissions {
        let same = |other: &&mut wire::Permission| {
            other.of == permission.of
                && other.subresource == permission.subresource
                && other.namespaces == permission.namespaces
                && other.names == permission.names
        };
        match merged.iter_mut().find(same) {
            Some(known) => known.verbs.extend(permission.verbs),
            None => merged.push(permission),
        }
    }
    for permission in &mut merged {
        permission.verbs.sort_unstable();
        permission.verbs.dedup();
    }
    merged
}
