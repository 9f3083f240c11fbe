//! Objects whose kind is known only at run time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Key, Object, TypeMeta,
    object::{AnyObject, Sealed},
};

/// An object of any kind, for plugins that learn at run time which kinds they handle.
///
/// It works like an object with a Rust type: as a child, in a [`Watch`](crate::Watch), in a
/// [`Controller`](crate::Controller), in a mapping and in an observer.
///
/// ```
/// use pilothouse_sdk::{Dynamic, Key, TypeMeta};
/// use serde_json::json;
///
/// let mut backup = Dynamic::new(TypeMeta::new("example.com/v1", "Backup"), "nightly");
/// backup.metadata.namespace = Some("db".into());
/// backup.data["spec"] = json!({"keep": 7});
///
/// assert_eq!(backup.key(), Key::new("db", "nightly"));
/// assert_eq!(backup.data["spec"]["keep"], 7);
/// assert_eq!(
///     serde_json::to_value(&backup).unwrap(),
///     json!({
///         "apiVersion": "example.com/v1", "kind": "Backup",
///         "metadata": {"namespace": "db", "name": "nightly"}, "spec": {"keep": 7},
///     }),
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dynamic {
    api_version: String,
    kind: String,
    /// The object's `metadata`.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// All other members of the object, such as `spec` and `status`. Always a JSON object.
    #[serde(flatten)]
    pub data: Value,
}

impl Dynamic {
    /// Creates an object without namespace and without data.
    pub fn new(of: TypeMeta, name: impl Into<String>) -> Self {
        Self {
            api_version: of.api_version,
            kind: of.kind,
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            data: Value::Object(serde_json::Map::new()),
        }
    }

    /// Returns `apiVersion` and `kind`.
    pub fn type_meta(&self) -> TypeMeta {
        TypeMeta::new(&*self.api_version, &*self.kind)
    }

    /// Returns `metadata.name`, or an empty string if there is none.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the object's key.
    pub fn key(&self) -> Key {
        Key { namespace: self.metadata.namespace.clone(), name: self.name().to_owned() }
    }

    /// Decodes the object as a type. Does not compare its kind with the type's.
    ///
    /// # Errors
    /// Fails if the object does not fit the type.
    pub fn decode<K: Object>(&self) -> serde_json::Result<K> {
        serde_json::from_value(serde_json::to_value(self)?)
    }
}

impl Sealed for Dynamic {}

impl AnyObject for Dynamic {
    fn kind_of(&self) -> TypeMeta {
        self.type_meta()
    }

    fn meta_of(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn text_of(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}
