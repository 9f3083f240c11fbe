//! Where a kind lives: from apiVersion and kind to a path.

use std::sync::Arc;

use pilothouse_core::key::TypeMeta;
use serde::Deserialize;

use super::{Cluster, Error};

/// How the objects of one kind are addressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    root: String,
    /// The resource's name in paths: `configmaps`.
    pub plural: String,
    /// False: cluster-scoped.
    pub namespaced: bool,
}

impl Endpoint {
    /// The path of the collection: in one namespace, or of all where `namespace` is none.
    pub fn collection(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) if self.namespaced => {
                format!("{}/namespaces/{}/{}", self.root, segment(namespace), self.plural)
            }
            _ => format!("{}/{}", self.root, self.plural),
        }
    }

    /// The path of one object, or of a subresource of it.
    pub fn object(&self, namespace: Option<&str>, name: &str, subresource: Option<&str>) -> String {
        let mut path = format!("{}/{}", self.collection(namespace), segment(name));
        if let Some(subresource) = subresource {
            path.push('/');
            path.push_str(subresource);
        }
        path
    }
}

/// A name as one path segment: names come from guests, and must not climb out of their place.
fn segment(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b':' | b'~' => escaped.push(byte.into()),
            // RBAC names hold dots and colons; a segment of dots alone would be a relative path.
            b'.' if name != "." && name != ".." => escaped.push('.'),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// The parts of an `APIResourceList` that matter here.
#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    namespaced: bool,
    kind: String,
}

impl Cluster {
    /// The endpoint of a kind, from memory or by asking the server.
    ///
    /// # Errors
    /// [`Error::Missing`] if the server does not serve the kind; any other if it could not be asked.
    pub async fn endpoint(&self, of: &TypeMeta) -> Result<Arc<Endpoint>, Error> {
        match self.known(of) {
            Some(endpoint) => Ok(endpoint),
            None => self.discover(of).await,
        }
    }

    /// The endpoint of a kind, from memory.
    pub fn known(&self, of: &TypeMeta) -> Option<Arc<Endpoint>> {
        self.endpoints.read().get(of).cloned()
    }

    /// The endpoint of a kind, by asking the server.
    ///
    /// # Errors
    /// As [`Cluster::endpoint`].
    pub async fn discover(&self, of: &TypeMeta) -> Result<Arc<Endpoint>, Error> {
        self.endpoints.write().remove(of);
        let root = if of.group().is_empty() {
            format!("/api/{}", segment(of.version()))
        } else {
            format!("/apis/{}/{}", segment(of.group()), segment(of.version()))
        };
        let missing = || Error::Missing(of.clone());
        let body = match self.get_path(&root).await {
            Err(Error::Status(status)) if status.code == 404 => return Err(missing()),
            answer => answer?,
        };
        let list: ResourceList =
            serde_json::from_slice(&body).map_err(|source| Error::Answer { path: root.clone(), source })?;
        let found = list
            .resources
            .into_iter()
            .find(|resource| *resource.kind == *of.kind && !resource.name.contains('/'))
            .ok_or_else(missing)?;
        let endpoint = Arc::new(Endpoint { root, plural: found.name, namespaced: found.namespaced });
        self.endpoints.write().insert(of.clone(), endpoint.clone());
        Ok(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint { root: "/api/v1".into(), plural: "configmaps".into(), namespaced: true }
    }

    #[test]
    fn paths_follow_the_scope() {
        assert_eq!(endpoint().collection(None), "/api/v1/configmaps");
        assert_eq!(endpoint().object(Some("a"), "b", Some("status")), "/api/v1/namespaces/a/configmaps/b/status");
        let cluster_wide = Endpoint { namespaced: false, ..endpoint() };
        assert_eq!(cluster_wide.object(Some("ignored"), "b", None), "/api/v1/configmaps/b");
    }

    #[test]
    fn a_hostile_name_stays_one_segment() {
        assert_eq!(
            endpoint().object(Some("a"), "../secrets/x", None),
            "/api/v1/namespaces/a/configmaps/..%2Fsecrets%2Fx"
        );
        assert_eq!(endpoint().object(Some(".."), "b?c#d", None), "/api/v1/namespaces/%2E%2E/configmaps/b%3Fc%23d");
        assert_eq!(endpoint().object(None, "system:node.v1", None), "/api/v1/configmaps/system:node.v1");
    }
}
