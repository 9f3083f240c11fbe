//! The name of an object: its kind, and its key within the kind.
//!
//! Identity that outlives a name (uid) and order in time (resourceVersion) are in [`crate::object`].
//!
//! ```
//! use pilothouse_core::key::{Key, TypeMeta};
//!
//! let of = TypeMeta::new("apps/v1", "Deployment");
//! assert_eq!((of.group(), of.version()), ("apps", "v1"));
//! assert_eq!(of.to_string(), "apps/v1 Deployment");
//! assert_eq!(Key::new(Some("default"), "web").to_string(), "default/web");
//! assert_eq!(Key::new(None, "node-1").to_string(), "node-1");
//! ```

use std::{fmt, ops::Deref, sync::Arc};

/// A kind of object, by the `apiVersion` and `kind` of the objects. It is one pointer, because every cached object has
/// one; all objects of a store share the target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeMeta(Arc<Names>);

/// The target of a [`TypeMeta`].
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Names {
    /// `apps/v1`, or `v1` in the core group.
    pub api_version: Box<str>,
    /// `Deployment`.
    pub kind: Box<str>,
}

impl Deref for TypeMeta {
    type Target = Names;

    fn deref(&self) -> &Names {
        &self.0
    }
}

impl TypeMeta {
    /// Creates it from the two texts of an object.
    pub fn new(api_version: &str, kind: &str) -> Self {
        Self(Arc::new(Names { api_version: api_version.into(), kind: kind.into() }))
    }

    /// Returns `true` if this is a pattern, of the kind `*`.
    ///
    /// ```
    /// # use pilothouse_core::key::TypeMeta;
    /// assert!(TypeMeta::new("apps/v1", "*").is_pattern());
    /// assert!(!TypeMeta::new("apps/v1", "Deployment").is_pattern());
    /// ```
    pub fn is_pattern(&self) -> bool {
        &*self.kind == "*"
    }

    /// Returns `true` if this is `of`, or a pattern that selects it. A pattern also selects the patterns that select no
    /// more than it does.
    ///
    /// ```
    /// # use pilothouse_core::key::TypeMeta;
    /// let deployments = TypeMeta::new("apps/v1", "Deployment");
    /// for api_version in ["apps/v1", "apps/*", "*"] {
    ///     assert!(TypeMeta::new(api_version, "*").selects(&deployments));
    /// }
    /// assert!(!TypeMeta::new("apps/v1beta1", "*").selects(&deployments));
    /// ```
    pub fn selects(&self, of: &Self) -> bool {
        if !self.is_pattern() {
            return self == of;
        }
        selects_version(&self.api_version, &of.api_version)
    }

    /// Shares the target of `other` if both are equal.
    pub(crate) fn share(&mut self, other: &Self) {
        if !Arc::ptr_eq(&self.0, &other.0) && self == other {
            self.0.clone_from(&other.0);
        }
    }

    /// Returns `apps` for `apps/v1`; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.rsplit_once('/').map_or("", |(group, _)| group)
    }

    /// Returns `v1` for `apps/v1`.
    pub fn version(&self) -> &str {
        self.api_version.rsplit_once('/').map_or(&*self.api_version, |(_, version)| version)
    }
}

/// Returns `true` if an apiVersion, `GROUP/*` or `*` selects an apiVersion. A pattern also selects narrower patterns.
pub(crate) fn selects_version(pattern: &str, api_version: &str) -> bool {
    if pattern == "*" || pattern == api_version {
        return true;
    }
    let group = pattern.strip_suffix("/*");
    group.is_some_and(|group| api_version.rsplit_once('/').is_some_and(|(of, _)| of == group))
}

impl fmt::Display for TypeMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.api_version, self.kind)
    }
}

/// Identifies an object within a kind. Ordered by namespace, cluster-scoped objects first, then by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<Arc<str>>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl Key {
    /// Creates it from `metadata.namespace` and `metadata.name`. An empty namespace counts as none, as in Kubernetes.
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        Self { namespace: namespace.filter(|namespace| !namespace.is_empty()).map(Arc::from), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}
