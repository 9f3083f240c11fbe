//! Where a kind lives: from apiVersion and kind to a path.
//!
//! One request for a discovery document answers all who ask for it within [`FRESH`]: a thousand informers may look for one kind.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};
use pilothouse_core::{backoff, key::TypeMeta};
use serde::Deserialize;
use tokio::time::Instant;

use super::{Cluster, Error};

/// How long the answer for a discovery document is used again: the shortest delay after which an informer looks for its kind once more.
const FRESH: Duration = backoff::ABSENT.limits.base;

/// How long the look whether a kind has a server of its own may take: others wait for it before they hear of a restore.
const TELL_WITHIN: Duration = Duration::from_secs(5);

/// What discovery has found. Shared by all handles of one API server.
#[derive(Default)]
pub(super) struct Discovery {
    endpoints: RwLock<HashMap<TypeMeta, Arc<Endpoint>>>,
    /// Recent answers by path. There are as many as apiVersions that informers and plugins ask for.
    documents: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Answer>>>>>,
}

/// What the server answered for a discovery document, and when.
struct Answer {
    at: Instant,
    /// Inner none: the server has no such document.
    document: Result<Option<Arc<Document>>, Error>,
}

impl Answer {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }
}

impl Discovery {
    /// What is asked for from now on is asked of the server: the kinds that it serves have changed.
    pub(super) fn forget_documents(&self) {
        self.documents.lock().clear();
    }

    /// The place of a document's answer. Only one at a time asks the server for it.
    fn place(&self, path: &str) -> Arc<tokio::sync::Mutex<Option<Answer>>> {
        let mut documents = self.documents.lock();
        if let Some(place) = documents.get(path) {
            return place.clone();
        }
        // Places that somebody waits for stay, and those with an answer that is still used.
        documents.retain(|_, place| {
            place.try_lock().is_ok_and(|answer| answer.as_ref().is_some_and(Answer::is_fresh))
                || Arc::strong_count(place) > 1
        });
        documents.entry(path.to_owned()).or_default().clone()
    }
}

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
    /// The verbs that the server has for the kind, in order: `get`, `list`, `watch`, ...
    pub verbs: Vec<String>,
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

impl Endpoint {
    /// Refuses a kind that no informer can follow. Servers that answer for others, such as metrics.k8s.io, have kinds without watch.
    ///
    /// # Errors
    /// [`Error::Unwatchable`] names the verbs that the server has.
    pub fn check_watchable(&self, of: &TypeMeta) -> Result<(), Error> {
        let has = |verb: &str| self.verbs.iter().any(|of| of == verb);
        // A server that says nothing of verbs is believed to have them.
        if self.verbs.is_empty() || has("list") && has("watch") {
            return Ok(());
        }
        Err(Error::Unwatchable { of: of.clone(), verbs: self.verbs.join(", ") })
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

/// The parts of an `APIResourceList` and of an `APIGroup` that matter here. Each document has one of the two.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    resources: Vec<Resource>,
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    namespaced: bool,
    kind: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
    version: String,
}

impl Document {
    fn find(&self, kind: &str) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.kind == kind && !resource.name.contains('/'))
    }
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
        self.discovery.endpoints.read().get(of).cloned()
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
            self.discovery.endpoints.write().remove(of);
            Error::Missing(of.clone())
        };
        let document = self.document(&root).await?;
        let found = document.as_ref().and_then(|document| document.find(&of.kind)).ok_or_else(missing)?;
        let (plural, mut verbs) = (found.name.clone(), found.verbs.clone());
        verbs.sort();
        let is_stored = verbs.is_empty() || verbs.iter().any(|verb| verb == "get");
        let endpoint = Arc::new(Endpoint { root, plural, namespaced: found.namespaced, is_stored, verbs });
        self.discovery.endpoints.write().insert(of.clone(), endpoint.clone());
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
        let Some(of_group) = self.document(&format!("/apis/{group}")).await? else { return Ok(None) };
        for other in of_group.versions.iter().filter(|other| other.version != of.version()) {
            let document = self.document(&format!("/apis/{group}/{}", segment(&other.version))).await?;
            if document.is_some_and(|document| document.find(&of.kind).is_some()) {
                return Ok(Some(other.group_version.clone()));
            }
        }
        Ok(None)
    }

    /// `true` if another server than kube-apiserver serves the group of a kind (an APIService with a service): its versions are of a history
    /// of its own. `false` too where the host cannot tell.
    pub(crate) async fn has_own_server(&self, of: &TypeMeta) -> bool {
        if of.group().is_empty() {
            return false;
        }
        let name = format!("{}.{}", segment(of.version()), segment(of.group()));
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}");
        match tokio::time::timeout(TELL_WITHIN, self.get_path(&path)).await {
            Ok(Ok(body)) => is_of_another_server(&body),
            _ => false,
        }
    }

    /// The kinds that the server serves may have changed: the next look for one asks the server, however fresh the last answer is.
    pub fn forget_discovered(&self) {
        self.discovery.forget_documents();
    }

    /// A discovery document, as the server has it or had it less than [`FRESH`] ago. None: the server has no such document.
    async fn document(&self, path: &str) -> Result<Option<Arc<Document>>, Error> {
        let asked = Instant::now();
        let place = self.discovery.place(path);
        let mut answer = place.lock().await;
        if let Some(answer) =
            answer.as_ref().filter(|answer| answer.is_fresh() && (answer.document.is_ok() || answer.at >= asked))
        {
            return answer.document.clone();
        }
        let document = match self.get_path(path).await {
            Err(Error::Status(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
            Ok(body) => match serde_json::from_slice(&body) {
                Ok(document) => Ok(Some(Arc::new(document))),
                Err(source) => Err(Error::Answer { path: path.to_owned(), source: Arc::new(source) }),
            },
        };
        *answer = Some(Answer { at: Instant::now(), document: document.clone() });
        document
    }
}

/// Whether an APIService is for another server than kube-apiserver.
fn is_of_another_server(api_service: &[u8]) -> bool {
    let service: serde_json::Value = serde_json::from_slice(api_service).unwrap_or_default();
    service.pointer("/spec/service").is_some_and(serde_json::Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        let (root, plural) = ("/api/v1".into(), "configmaps".into());
        Endpoint { root, plural, namespaced: true, is_stored: true, verbs: Vec::new() }
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
    fn an_api_service_with_a_service_is_another_servers() {
        let local = br#"{"spec":{"group":"apps","version":"v1","groupPriorityMinimum":17800}}"#;
        let other = br#"{"spec":{"service":{"namespace":"kube-system","name":"metrics-server","port":443}}}"#;
        let null = br#"{"spec":{"service":null}}"#;
        assert_eq!([&local[..], other, null, b"<html>"].map(is_of_another_server), [false, true, false, false]);
    }

    #[test]
    fn a_kind_without_watch_is_refused_with_the_verbs_that_it_has() {
        let of = TypeMeta::new("metrics.k8s.io/v1beta1", "PodMetrics");
        let with = |verbs: &[&str]| {
            let verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
            Endpoint { verbs, ..endpoint() }.check_watchable(&of).map_err(|error| error.to_string())
        };
        assert_eq!(with(&["get", "list", "watch"]), Ok(()));
        assert_eq!(with(&[]), Ok(()));
        assert_eq!(
            with(&["get", "list"]),
            Err("metrics.k8s.io/v1beta1 PodMetrics cannot be watched: the server offers get, list; read it by `client`, and name it in no watch".to_owned())
        );
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
