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
    /// `false` if objects are only answered, and not kept: reviews need no name.
    pub is_stored: bool,
}

impl Endpoint {
    /// The path of the collection: in one namespace, or of all where `namespace` is none.
    ///
    /// # Errors
    /// [`Error::Name`] if no namespace can be called so.
    pub fn collection(&self, namespace: Option<&str>) -> Result<String, Error> {
        Ok(match namespace {
            Some(namespace) if self.namespaced => {
                format!("{}/namespaces/{}/{}", self.root, whole_segment(namespace)?, self.plural)
            }
            _ => format!("{}/{}", self.root, self.plural),
        })
    }

    /// The path of one object, or of a subresource of it.
    ///
    /// # Errors
    /// [`Error::Name`] if no object or namespace can be called so.
    pub fn object(&self, namespace: Option<&str>, name: &str, subresource: Option<&str>) -> Result<String, Error> {
        let mut path = format!("{}/{}", self.collection(namespace)?, whole_segment(name)?);
        if let Some(subresource) = subresource {
            path.push('/');
            path.push_str(subresource);
        }
        Ok(path)
    }
}

/// A name as one path segment, if it can be one. To escape is not enough: kube-apiserver splits the path after it has decoded it
/// (`RequestInfoFactory` reads `URL.Path`), so that an object named `a%2Fproxy` would be the subresource `proxy` of `a`, and
/// one without a name the whole collection. No object has such a name (`IsValidPathSegmentName` of apimachinery).
fn whole_segment(name: &str) -> Result<String, Error> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '%']) {
        return Err(Error::Name(name.chars().take(80).collect()));
    }
    Ok(segment(name))
}

/// Escaped: what is written here comes from guests.
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
    #[serde(default)]
    verbs: Vec<String>,
}

impl ResourceList {
    fn find(self, kind: &str) -> Option<Resource> {
        self.resources.into_iter().find(|resource| resource.kind == kind && !resource.name.contains('/'))
    }
}

/// The parts of an `APIGroup` that matter here.
#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
    version: String,
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
        let root = if of.group().is_empty() {
            format!("/api/{}", segment(of.version()))
        } else {
            format!("/apis/{}/{}", segment(of.group()), segment(of.version()))
        };
        // What was known stays known until the server says otherwise: routes look it up meanwhile.
        let missing = || {
            self.endpoints.write().remove(of);
            Error::Missing(of.clone())
        };
        let list: Option<ResourceList> = self.document(&root).await?;
        let found = list.and_then(|list| list.find(&of.kind)).ok_or_else(missing)?;
        let is_stored = found.verbs.is_empty() || found.verbs.iter().any(|verb| verb == "get");
        let endpoint = Arc::new(Endpoint { root, plural: found.name, namespaced: found.namespaced, is_stored });
        self.endpoints.write().insert(of.clone(), endpoint.clone());
        Ok(endpoint)
    }

    /// The `apiVersion` of another version of its group in which the server serves the kind, if there is one: its objects are
    /// there then, though not as `of`.
    ///
    /// # Errors
    /// If the server could not be asked.
    pub async fn served_as(&self, of: &TypeMeta) -> Result<Option<String>, Error> {
        if of.group().is_empty() {
            return Ok(None);
        }
        let group = segment(of.group());
        let Some(Group { versions }) = self.document(&format!("/apis/{group}")).await? else { return Ok(None) };
        for other in versions.into_iter().filter(|other| other.version != of.version()) {
            let list: Option<ResourceList> =
                self.document(&format!("/apis/{group}/{}", segment(&other.version))).await?;
            if list.is_some_and(|list| list.find(&of.kind).is_some()) {
                return Ok(Some(other.group_version));
            }
        }
        Ok(None)
    }

    /// A discovery document. None: the server has no such.
    async fn document<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Error> {
        match self.get_path(path).await {
            Err(Error::Status(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
            Ok(body) => {
                let document = serde_json::from_slice(&body);
                document.map(Some).map_err(|source| Error::Answer { path: path.to_owned(), source })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint { root: "/api/v1".into(), plural: "configmaps".into(), namespaced: true, is_stored: true }
    }

    #[test]
    fn paths_follow_the_scope() {
        let collection = |endpoint: Endpoint| endpoint.collection(None).ok();
        assert_eq!(collection(endpoint()).as_deref(), Some("/api/v1/configmaps"));
        let object = |endpoint: Endpoint, namespace| endpoint.object(namespace, "b", Some("status")).ok();
        assert_eq!(object(endpoint(), Some("a")).as_deref(), Some("/api/v1/namespaces/a/configmaps/b/status"));
        let cluster_wide = Endpoint { namespaced: false, ..endpoint() };
        assert_eq!(object(cluster_wide, Some("ignored")).as_deref(), Some("/api/v1/configmaps/b/status"));
    }

    #[test]
    fn a_name_that_is_no_segment_has_no_path() {
        let path = |namespace, name| endpoint().object(namespace, name, None).map_err(|error| error.to_string());
        for name in ["", ".", "..", "a/proxy", "../secrets/x", "a%2Fproxy"] {
            for path in [path(Some("a"), name), path(Some(name), "a")] {
                assert_eq!(path, Err(format!("no object or namespace can be named {name:?}")));
            }
        }
        assert_eq!(
            path(Some("a"), "system:node.v1?b#c d"),
            Ok("/api/v1/namespaces/a/configmaps/system:node.v1%3Fb%23c%20d".to_owned())
        );
    }
}
