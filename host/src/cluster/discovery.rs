//! Finds the path of a kind from its apiVersion and kind.
//!
//! A discovery document is cached for [`FRESH`], because a thousand informers may look for one kind.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, stream};
use parking_lot::{Mutex, RwLock};
use pilothouse_core::{
    backoff,
    key::TypeMeta,
    manifest::{Discovered, Served},
};
use serde::Deserialize;
use tokio::time::Instant;

use super::{Cluster, Error};

/// How long a discovery document is reused: the shortest delay after which an informer looks for its kind again.
const FRESH: Duration = backoff::ABSENT.limits.base;

/// Timeout of the check whether a kind has its own server. Other informers learn of a restore only after the check.
const OWN_SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Discovery documents that are read at once, to find all kinds of some groups.
const AT_ONCE: usize = 8;

/// The results of discovery, shared by all handles of one API server.
#[derive(Default)]
pub(super) struct Discovery {
    endpoints: RwLock<HashMap<TypeMeta, Arc<Endpoint>>>,
    /// Recent answers by path: at most one for each requested apiVersion.
    documents: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Answer>>>>>,
}

/// A cached answer for a discovery document.
struct Answer {
    at: Instant,
    /// `Ok(None)` if the server has no such document.
    document: Result<Option<Arc<Document>>, Error>,
}

impl Answer {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }
}

impl Discovery {
    /// Drops the cached documents, because the server's kinds may have changed.
    pub(super) fn forget_documents(&self) {
        self.documents.lock().clear();
    }

    /// Returns the slot of a document's answer. Its lock allows one request for the document at a time.
    fn slot(&self, path: &str) -> Arc<tokio::sync::Mutex<Option<Answer>>> {
        let mut documents = self.documents.lock();
        if let Some(slot) = documents.get(path) {
            return slot.clone();
        }
        // Keeps slots with a fresh answer and slots in use.
        documents.retain(|_, slot| {
            slot.try_lock().is_ok_and(|answer| answer.as_ref().is_some_and(Answer::is_fresh))
                || Arc::strong_count(slot) > 1
        });
        documents.entry(path.to_owned()).or_default().clone()
    }
}

/// The path and properties of one kind's resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    root: String,
    /// The resource's name in paths: `configmaps`.
    pub plural: String,
    /// `false` if the kind is cluster-scoped.
    pub namespaced: bool,
    /// `false` if the server answers objects without storing them, such as reviews. They need no name.
    pub is_stored: bool,
    /// The verbs that the server offers for the kind, sorted.
    pub verbs: Vec<String>,
}

impl Endpoint {
    /// Returns the path of the collection in one namespace, or in all if `namespace` is `None`.
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

    /// Returns the path of one object, or of a subresource of it.
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
    /// Rejects a kind that no informer can watch. Aggregated servers such as metrics.k8s.io have kinds without watch.
    ///
    /// # Errors
    /// [`Error::Unwatchable`] names the verbs that the server has.
    pub fn check_watchable(&self, of: &TypeMeta) -> Result<(), Error> {
        let has = |verb: &str| self.verbs.iter().any(|of| of == verb);
        // A server that lists no verbs counts as offering all.
        if self.verbs.is_empty() || has("list") && has("watch") {
            return Ok(());
        }
        Err(Error::Unwatchable { of: of.clone(), verbs: self.verbs.join(", ") })
    }
}

/// Returns a name as one path segment, or an error if it cannot be one.
///
/// Escaping is not enough, because kube-apiserver splits the path after decoding it (`RequestInfoFactory` reads
/// `URL.Path`). An object named `a%2Fproxy` would be the subresource `proxy` of `a`, and an empty name would be the
/// whole collection. No object has such a name (`IsValidPathSegmentName` of apimachinery).
fn whole_segment(name: &str) -> Result<String, Error> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '%']) {
        return Err(Error::Name(name.chars().take(80).collect()));
    }
    Ok(segment(name))
}

/// Escapes a name, because it may come from a guest.
fn segment(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b':' | b'~' => escaped.push(byte.into()),
            // RBAC names contain dots and colons. A segment of dots alone would be a relative path.
            b'.' if name != "." && name != ".." => escaped.push('.'),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// The used parts of an `APIResourceList`, an `APIGroup` or an `APIGroupList`. Each document has the members of one of
/// them.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    resources: Vec<Resource>,
    versions: Vec<GroupVersion>,
    groups: Vec<Group>,
}

/// A group of an `APIGroupList`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    versions: Vec<GroupVersion>,
    #[serde(default)]
    preferred_version: Option<GroupVersion>,
}

impl Group {
    /// Returns the group's versions as in `apiVersion`, the preferred one first.
    fn versions(&self) -> Vec<&str> {
        let all = self.preferred_version.iter().chain(&self.versions);
        let mut seen = HashSet::new();
        all.map(|version| &*version.group_version).filter(|version| seen.insert(*version)).collect()
    }
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
    /// Returns the endpoint of a kind, from the cache or the server.
    ///
    /// # Errors
    /// [`Error::Missing`] if the server does not serve the kind. Any other error if the server did not answer.
    pub async fn endpoint(&self, of: &TypeMeta) -> Result<Arc<Endpoint>, Error> {
        match self.known(of) {
            Some(endpoint) => Ok(endpoint),
            None => self.discover(of).await,
        }
    }

    /// Returns the endpoint of a kind from the cache.
    pub fn known(&self, of: &TypeMeta) -> Option<Arc<Endpoint>> {
        self.discovery.endpoints.read().get(of).cloned()
    }

    /// Returns the endpoint of a kind, and updates the cache from the server.
    ///
    /// # Errors
    /// As [`Cluster::endpoint`].
    pub async fn discover(&self, of: &TypeMeta) -> Result<Arc<Endpoint>, Error> {
        let root = if of.group().is_empty() {
            format!("/api/{}", segment(of.version()))
        } else {
            format!("/apis/{}/{}", segment(of.group()), segment(of.version()))
        };
        // The cached endpoint stays until the server answers, because routes use it meanwhile.
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

    /// Returns another `apiVersion` of the same group in which the server serves the kind, if there is one. The objects
    /// then still exist.
    ///
    /// # Errors
    /// The server did not answer.
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

    /// Returns all kinds of the apiVersions that are `wanted`.
    ///
    /// # Errors
    /// The server did not answer.
    pub(crate) async fn served(&self, wanted: impl Fn(&str) -> bool) -> Result<Discovered, Error> {
        let document = self.document("/apis").await?;
        let mut versions = vec![(String::new(), "v1".to_owned())];
        for group in document.iter().flat_map(|document| &document.groups) {
            versions.extend(group.versions().into_iter().map(|version| (group.name.clone(), version.to_owned())));
        }
        // Whether a version is preferred depends on all of its group.
        let groups: HashSet<String> =
            versions.iter().filter(|(_, version)| wanted(version)).map(|(group, _)| group.clone()).collect();
        versions.retain(|(group, _)| groups.contains(group));
        let reads: Vec<_> = versions
            .into_iter()
            .map(|(group, version)| {
                let cluster = self.clone();
                let path = match version.split_once('/') {
                    Some((group, version)) => format!("/apis/{}/{}", segment(group), segment(version)),
                    None => format!("/api/{}", segment(&version)),
                };
                async move { (group, version, cluster.document(&path).await) }.boxed()
            })
            .collect();
        let read: Vec<_> = stream::iter(reads).buffered(AT_ONCE).collect().await;
        let mut discovered = Discovered::default();
        let unknown = read.iter().filter(|(_, _, document)| document.is_err());
        discovered.unknown.extend(unknown.map(|(group, _, _)| group.clone()));
        let mut preferred: HashSet<(&str, &str)> = HashSet::new();
        for (group, version, document) in &read {
            let Ok(Some(document)) = document else { continue };
            if discovered.unknown.contains(group) {
                continue;
            }
            for resource in document.resources.iter().filter(|resource| !resource.name.contains('/')) {
                discovered.kinds.push(Served {
                    of: TypeMeta::new(version, &resource.kind),
                    namespaced: resource.namespaced,
                    verbs: resource.verbs.clone(),
                    preferred: preferred.insert((group, &resource.kind)),
                });
            }
        }
        Ok(discovered)
    }

    /// `true` if an aggregated server serves the group of a kind (an APIService with a service). Its resource versions
    /// have a history of their own. `false` also if the host cannot find out.
    pub(crate) async fn has_own_server(&self, of: &TypeMeta) -> bool {
        if of.group().is_empty() {
            return false;
        }
        let name = format!("{}.{}", segment(of.version()), segment(of.group()));
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}");
        match tokio::time::timeout(OWN_SERVER_TIMEOUT, self.get_path(&path)).await {
            Ok(Ok(body)) => is_of_another_server(&body),
            _ => false,
        }
    }

    /// Drops cached discovery documents, because the server's kinds may have changed.
    pub fn forget_discovered(&self) {
        self.discovery.forget_documents();
    }

    /// Returns a discovery document that is at most [`FRESH`] old, or `None` if the server has no such document.
    async fn document(&self, path: &str) -> Result<Option<Arc<Document>>, Error> {
        let asked = Instant::now();
        let slot = self.discovery.slot(path);
        let mut answer = slot.lock().await;
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

/// `true` if an APIService delegates to another server than kube-apiserver.
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
    fn an_api_service_with_a_service_belongs_to_another_server() {
        let local = br#"{"spec":{"group":"apps","version":"v1","groupPriorityMinimum":17800}}"#;
        let other = br#"{"spec":{"service":{"namespace":"kube-system","name":"metrics-server","port":443}}}"#;
        let null = br#"{"spec":{"service":null}}"#;
        assert_eq!([&local[..], other, null, b"<html>"].map(is_of_another_server), [false, true, false, false]);
    }

    #[test]
    fn a_kind_without_watch_is_rejected_with_its_verbs() {
        let of = TypeMeta::new("metrics.k8s.io/v1beta1", "PodMetrics");
        let with = |verbs: &[&str]| {
            let verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
            Endpoint { verbs, ..endpoint() }.check_watchable(&of).map_err(|error| error.to_string())
        };
        assert_eq!(with(&["get", "list", "watch"]), Ok(()));
        assert_eq!(with(&[]), Ok(()));
        assert_eq!(
            with(&["get", "list"]),
            Err("metrics.k8s.io/v1beta1 PodMetrics cannot be watched: the server offers only get, list; remove its watch and read it through `client`".to_owned())
        );
    }

    #[test]
    fn a_name_that_is_not_one_segment_has_no_path() {
        let path = |namespace, name| endpoint().object(namespace, name, None).map_err(|error| error.to_string());
        for name in ["", ".", "..", "a/proxy", "../secrets/x", "a%2Fproxy"] {
            for path in [path(Some("a"), name), path(Some(name), "a")] {
                assert_eq!(path, Err(format!("{name:?} is not a valid name for an object or a namespace")));
            }
        }
        assert_eq!(
            path(Some("a"), "system:node.v1?b#c d"),
            Ok("/api/v1/namespaces/a/configmaps/system:node.v1%3Fb%23c%20d".to_owned())
        );
    }
}
