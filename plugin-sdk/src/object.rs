//! Kubernetes objects as Rust types, and the names of kinds and keys.
//!
//! There are three ways to get a type. All work the same afterwards:
//! - Built-in kinds come from `k8s_openapi`, such as `k8s_openapi::api::core::v1::ConfigMap`.
//! - Your own kinds come from kube's derive, `#[derive(kube::CustomResource)]`, with their CustomResourceDefinition.
//! - For any other kind, write a struct of the fields that you need with [`derive(Object)`](macro@crate::Object).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Serialize, de::DeserializeOwned};

pub use crate::contract::pilothouse::plugin::types::{Key, TypeMeta};

/// A kind of Kubernetes object, as a Rust type.
///
/// Implemented for every [`kube::Resource`] that is known at compile time: all of `k8s_openapi`, and the types of
/// `#[derive(kube::CustomResource)]`. Use [`derive(Object)`](macro@crate::Object) for other types.
///
/// ```
/// use k8s_openapi::api::apps::v1::Deployment;
/// use pilothouse_sdk::Object;
///
/// assert_eq!(Deployment::type_meta().to_string(), "apps/v1 Deployment");
/// ```
pub trait Object: Serialize + DeserializeOwned {
    /// Returns `apiVersion` and `kind`.
    fn type_meta() -> TypeMeta;

    /// Returns the object's `metadata`.
    fn metadata(&self) -> &ObjectMeta;

    /// Returns the object's `metadata`, mutably.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// Serializes the object to JSON with `apiVersion` and `kind`, as the contract requires.
    ///
    /// # Errors
    /// Fails if a map has keys that are not strings, or if a custom `Serialize` fails.
    fn to_json(&self) -> serde_json::Result<String>;

    /// Returns `metadata.name`, or an empty string if there is none.
    fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// Returns the object's key.
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

    /// Returns `true` if `other` is this object's controller: the owner whose reference has `controller: true`.
    ///
    /// Compares uids, so a child of an earlier object of the same name does not count. Returns `false` if `other` has
    /// no uid.
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

/// A typed [`Object`](trait@Object), or a [`Dynamic`](crate::Dynamic) one.
pub trait AnyObject: Serialize + DeserializeOwned + Sealed {
    /// Returns `apiVersion` and `kind`.
    fn kind_of(&self) -> TypeMeta;

    /// Returns the object's `metadata`.
    fn meta_of(&self) -> &ObjectMeta;

    /// Serializes the object to JSON with `apiVersion` and `kind`.
    ///
    /// # Errors
    /// Fails if a map has keys that are not strings, or if a custom `Serialize` fails.
    fn text_of(&self) -> serde_json::Result<String>;

    /// Returns the object's key.
    fn key_of(&self) -> Key {
        let meta = self.meta_of();
        Key { namespace: meta.namespace.clone(), name: meta.name.clone().unwrap_or_default() }
    }
}

/// Keeps other crates from implementing [`AnyObject`].
pub trait Sealed {}

impl<K: Object> Sealed for K {}

impl<K: Object> AnyObject for K {
    fn kind_of(&self) -> TypeMeta {
        K::type_meta()
    }

    fn meta_of(&self) -> &ObjectMeta {
        self.metadata()
    }

    fn text_of(&self) -> serde_json::Result<String> {
        self.to_json()
    }
}

impl TypeMeta {
    /// Returns `true` if this is `of`, or a pattern of the kind `*` that selects it.
    pub(crate) fn selects(&self, of: &Self) -> bool {
        if self.kind != "*" {
            return self == of;
        }
        let group = self.api_version.strip_suffix("/*");
        let of_group = of.api_version.rsplit_once('/').map(|(group, _)| group);
        self.api_version == "*" || self.api_version == of.api_version || group.is_some() && group == of_group
    }

    /// Creates a kind from its names.
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

/// Reads a kind as people write it in a configuration: `v1/Pod`, `apps/v1/Deployment`. A pattern is `apps/v1/*`, `apps/*` for a
/// group, or `*` for all kinds.
///
/// ```
/// use pilothouse_sdk::TypeMeta;
///
/// assert_eq!("apps/v1/Deployment".parse::<TypeMeta>().unwrap(), TypeMeta::new("apps/v1", "Deployment"));
/// assert_eq!("apps/*".parse::<TypeMeta>().unwrap(), TypeMeta::new("apps/*", "*"));
/// assert_eq!(
///     "v1/pods".parse::<TypeMeta>().unwrap_err().to_string(),
///     "\"v1/pods\" is not a kind: write v1/Pod, apps/v1/Deployment, apps/* or *",
/// );
/// ```
impl std::str::FromStr for TypeMeta {
    type Err = NotAKind;

    fn from_str(text: &str) -> Result<Self, NotAKind> {
        let is_version =
            |text: &str| text.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let of = match *text.split('/').collect::<Vec<_>>().as_slice() {
            ["*"] => Self::new("*", "*"),
            [group, "*"] if !is_version(group) => Self::new(format!("{group}/*"), "*"),
            [version, kind] => Self::new(version, kind),
            [group, version, kind] => Self::new(format!("{group}/{version}"), kind),
            _ => return Err(NotAKind(text.to_owned())),
        };
        // Names of resources, such as `pods`, are in lower case.
        let is_kind = of.kind.starts_with(|first: char| first == '*' || first.is_ascii_uppercase());
        let is_whole = of.api_version.split('/').all(|part| !part.is_empty());
        if is_kind && is_whole { Ok(of) } else { Err(NotAKind(text.to_owned())) }
    }
}

/// A text that names no kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a kind: write v1/Pod, apps/v1/Deployment, apps/* or *")]
pub struct NotAKind(String);

impl std::fmt::Display for TypeMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.api_version, self.kind)
    }
}

impl Key {
    /// Creates the key of an object in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// Creates the key of a cluster-scoped object.
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

    /// Returns the key of another name in the same namespace. For a cluster-scoped key, returns a cluster-scoped one.
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
