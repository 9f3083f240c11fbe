//! Kubernetes objects as Rust types: what the rest of the crate needs to know of one, and the names of kinds and keys.
//!
//! Three ways to a type, all alike afterwards:
//! - built-in kinds come from `k8s_openapi`, such as `k8s_openapi::api::core::v1::ConfigMap`;
//! - your own kinds come from kube's derive, `#[derive(kube::CustomResource)]`, and bring their CustomResourceDefinition;
//! - any other kind is a struct of the fields you care about with [`derive(Object)`](macro@crate::Object).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Serialize, de::DeserializeOwned};

pub use crate::contract::pilothouse::plugin::types::{Key, TypeMeta};

/// A kind of Kubernetes object as a Rust type.
///
/// Implemented for every type that is a [`kube::Resource`] known at compile time (all of `k8s_openapi`, and whatever
/// `#[derive(kube::CustomResource)]` makes), and by [`derive(Object)`](macro@crate::Object) for the others.
///
/// ```
/// use k8s_openapi::api::apps::v1::Deployment;
/// use pilothouse_sdk::Object;
///
/// assert_eq!(Deployment::type_meta().to_string(), "apps/v1 Deployment");
/// ```
pub trait Object: Serialize + DeserializeOwned {
    /// `apiVersion` and `kind`.
    fn type_meta() -> TypeMeta;

    /// The object's `metadata`.
    fn metadata(&self) -> &ObjectMeta;

    /// The object's `metadata`, to be changed.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// The object as JSON with `apiVersion` and `kind`, as the contract wants it.
    ///
    /// # Errors
    /// Where the type cannot be JSON: a map whose keys are no strings, or a `Serialize` of its own that fails.
    fn to_json(&self) -> serde_json::Result<String>;

    /// `metadata.name`, empty where there is none.
    fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// Which object of its kind this is.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::{Key, Object};
    ///
    /// let mut map = ConfigMap::default();
    /// map.metadata.name = Some("settings".into());
    /// map.metadata.namespace = Some("default".into());
    /// assert_eq!(map.key(), Key::new("default", "settings"));
    /// ```
    fn key(&self) -> Key {
        Key { namespace: self.metadata().namespace.clone(), name: self.name().to_owned() }
    }

    /// Whether `other` is this object's controller: the one owner whose reference says `controller: true`.
    ///
    /// Compares uids, so that a child of an earlier object of the same name does not count. False where `other` has none.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    /// use pilothouse_sdk::Object;
    ///
    /// let mut owner = Pod::default();
    /// owner.metadata.uid = Some("7d1c".into());
    /// let mut child = ConfigMap::default();
    /// assert!(!child.is_controlled_by(&owner));
    ///
    /// let reference = OwnerReference { uid: "7d1c".into(), controller: Some(true), ..Default::default() };
    /// child.metadata.owner_references = Some(vec![reference]);
    /// assert!(child.is_controlled_by(&owner));
    /// ```
    fn is_controlled_by(&self, other: &impl Object) -> bool {
        let Some(uid) = &other.metadata().uid else { return false };
        let owners = self.metadata().owner_references.iter().flatten();
        owners.filter(|owner| owner.controller == Some(true)).any(|owner| owner.uid == *uid)
    }
}

impl<K> Object for K
where
    K: kube::Resource<DynamicType = ()> + Serialize + DeserializeOwned,
{
    fn type_meta() -> TypeMeta {
        TypeMeta { api_version: K::api_version(&()).into_owned(), kind: K::kind(&()).into_owned() }
    }

    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        self.meta_mut()
    }

    fn to_json(&self) -> serde_json::Result<String> {
        // Types of k8s_openapi and of kube's derive write apiVersion and kind themselves.
        serde_json::to_string(self)
    }
}

impl TypeMeta {
    /// A kind by its names.
    ///
    /// ```
    /// use pilothouse_sdk::TypeMeta;
    ///
    /// assert_eq!(TypeMeta::new("v1", "Secret").to_string(), "v1 Secret");
    /// ```
    pub fn new(api_version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { api_version: api_version.into(), kind: kind.into() }
    }
}

impl std::fmt::Display for TypeMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.api_version, self.kind)
    }
}

impl Key {
    /// An object in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// An object of a cluster-scoped kind.
    ///
    /// ```
    /// use pilothouse_sdk::Key;
    ///
    /// assert_eq!(Key::cluster("node-1").to_string(), "node-1");
    /// assert_eq!(Key::new("default", "web").to_string(), "default/web");
    /// ```
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: None, name: name.into() }
    }

    /// Another name beside this one: in the same namespace, if there is one.
    ///
    /// ```
    /// use pilothouse_sdk::Key;
    ///
    /// assert_eq!(Key::new("default", "web").beside("web-0"), Key::new("default", "web-0"));
    /// ```
    #[must_use]
    pub fn beside(&self, name: impl Into<String>) -> Self {
        Self { namespace: self.namespace.clone(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl From<(&str, &str)> for Key {
    fn from((namespace, name): (&str, &str)) -> Self {
        Self::new(namespace, name)
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}
