//! The imperative style: each call of a plugin's `client` sends one request within its grants, and puts the answer into
//! the cache.

use std::{collections::BTreeMap, sync::Arc};

use pilothouse_core::{
    ParseError,
    grant::Denied,
    key::{Key, TypeMeta},
    list::list_page,
    manifest::Verb,
    object::{Keep, Object, Subresource},
};
use serde_json::{json, value::RawValue};

use super::{error::Error, fence::Closed, handle::Writer};
use crate::{
    cluster::{self, DeleteOptions, Patch, Select, WriteOptions},
    wasm::{ListPage, ListQuery, LogQuery, MAX_ITEMS, MAX_LOG, MAX_OBJECT, MAX_PAGE, Preconditions},
};

/// By how much the number of objects falls after a page that was too large. So a page takes at most four requests.
const FEWER: u32 = 8;

/// Why a plugin's request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The grants do not allow it. Nothing was sent.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The plugin may begin no request. Nothing was sent.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The object or patch is invalid. Nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// The API server rejected the request, or did not answer.
    #[error(transparent)]
    Request(cluster::Error),
    /// The request succeeded, and the API server's answer cannot be read.
    #[error("cannot read the API server's answer")]
    Answer(#[source] ParseError),
}

impl From<Error> for ClientError {
    fn from(error: Error) -> Self {
        match error {
            Error::Denied(denied) => ClientError::Denied(denied),
            Error::Closed(closed) => ClientError::Closed(closed),
            Error::Request { source, .. } => ClientError::Request(source),
            Error::Answer { why, .. } | Error::Unreadable { why, .. } => ClientError::Answer(why),
            other => ClientError::Invalid(other.to_string()),
        }
    }
}

/// An object that a plugin asks to write.
struct Argument {
    of: TypeMeta,
    key: Key,
    body: Vec<u8>,
}

/// Refuses a text that is too large for the API server, before it is read and sent.
fn small(what: &str, bytes: usize) -> Result<(), ClientError> {
    if bytes <= MAX_OBJECT {
        return Ok(());
    }
    Err(ClientError::Invalid(format!("{what} has {bytes} bytes, and an API server takes at most {MAX_OBJECT}")))
}

/// The members of `metadata` that a plugin gets of an object that it may not read: those that name the object, and
/// those that only the API server writes. A JSON patch can copy any part of an object into its labels, annotations,
/// finalizers and owners, so they are left out.
const IDENTITY: [&str; 7] =
    ["name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"];

/// Reduces an object to its apiVersion, its kind and its [`IDENTITY`], and to the status if it is granted.
fn identity(object: &Object, with_status: bool) -> Result<Object, ParseError> {
    let of = object.type_meta();
    let json = object.json();
    let whole: Members<'_> = members(&json).unwrap_or_default();
    let metadata: Members<'_> =
        whole.get("metadata").and_then(|metadata| members(metadata.get()).ok()).unwrap_or_default();
    let kept: Members<'_> = metadata.into_iter().filter(|(member, _)| IDENTITY.contains(&member.as_str())).collect();
    let mut cut = json!({ "apiVersion": &*of.api_version, "kind": &*of.kind, "metadata": kept });
    if let Some(status) = whole.get("status").filter(|_| with_status) {
        cut["status"] = serde_json::from_str(status.get()).unwrap_or_default();
    }
    Object::parse_unstored(cut.to_string().as_bytes(), of)
}

/// Splits a JSON object into its members without parsing them. Few are wanted, and the others may be large.
fn members(object: &str) -> serde_json::Result<Members<'_>> {
    serde_json::from_str(object)
}

type Members<'a> = BTreeMap<String, &'a RawValue>;

fn scale() -> TypeMeta {
    TypeMeta::new("autoscaling/v1", "Scale")
}

/// Splits the `next` of a page into the number of objects that fitted, and the server's token.
fn cursor(next: &str) -> Option<(u32, &str)> {
    let (limit, token) = next.split_once('.')?;
    Some((limit.parse().ok()?, token))
}

/// Returns a member that is a non-empty text.
fn text(members: &Members<'_>, name: &str) -> Option<String> {
    let text: String = serde_json::from_str(members.get(name)?.get()).ok()?;
    (!text.is_empty()).then_some(text)
}

impl Writer {
    /// Reads an object, its status or its scale from the server, not from the cache.
    pub async fn get(
        &self,
        of: &TypeMeta,
        key: &Key,
        subresource: Option<Subresource>,
    ) -> Result<Arc<Object>, ClientError> {
        if let Some(other) = subresource.filter(|part| !matches!(part, Subresource::Status | Subresource::Scale)) {
            let why = format!("{other} cannot be read by `get`; it takes the subresources status and scale");
            return Err(ClientError::Invalid(why));
        }
        let key = self.placed((Verb::Read, of, subresource), key.namespace.as_deref(), Some(&key.name)).await?;
        self.fence.check()?;
        let body = self.cluster.get_part(of, key.namespace.as_deref(), &key.name, subresource).await;
        let body = body.map_err(ClientError::Request)?;
        // The grants may have changed since the request was sent.
        self.grants.load().check(Verb::Read, of, subresource, key.namespace.as_deref(), Some(&key.name))?;
        let object = match subresource {
            Some(Subresource::Scale) => Object::parse_unstored(&body, &scale()),
            // The answer is the whole object.
            Some(_) if !self.grants.load().may_read(of, &key) => {
                Object::parse_unstored(&body, of).and_then(|object| identity(&object, true))
            }
            _ => Object::parse_unstored(&body, of),
        };
        object.map(Arc::new).map_err(ClientError::Answer)
    }

    /// Reads one page of objects from the server, not from the cache. Asks for fewer objects if the page is too large.
    pub async fn list(&self, query: &ListQuery) -> Result<ListPage, ClientError> {
        let ListQuery { of, namespace, labels, fields, limit, after } = query;
        let namespace = namespace.as_deref();
        let granted = || self.grants.load().check(Verb::Read, of, None, namespace, None);
        granted()?;
        let endpoint = self.cluster.endpoint(of).await.map_err(ClientError::Request)?;
        match namespace {
            Some("") => return Err(ClientError::Invalid("the namespace is empty".into())),
            Some(_) if !endpoint.namespaced => {
                return Err(ClientError::Invalid(format!("{of} is cluster-scoped: list it without a namespace")));
            }
            _ => {}
        }
        let asked = if *limit == 0 { MAX_ITEMS } else { (*limit).min(MAX_ITEMS) };
        let (mut limit, token) = match after.as_deref().map(cursor) {
            None => (asked, None),
            Some(Some((limit, token))) => (limit.clamp(1, asked), Some(token)),
            Some(None) => return Err(ClientError::Invalid("after: it is not the `next` of a page".into())),
        };
        let select = Select { namespace, labels: labels.clone(), fields: fields.clone(), metadata_only: false };
        let body = loop {
            self.fence.check()?;
            match self.cluster.page(of, &select, limit, token, MAX_PAGE).await {
                Err(cluster::Error::TooLarge(_)) if limit > 1 => limit = (limit / FEWER).max(1),
                answer => break answer.map_err(ClientError::Request)?,
            }
        };
        // The grants may have changed since the request was sent.
        granted()?;
        let (meta, items) = list_page(&body).map_err(ClientError::Answer)?;
        let grants = self.grants.load();
        let mut page = ListPage { items: Vec::with_capacity(items.len()), next: None };
        for item in items {
            // Of an object that nests too deep, the metadata can be read.
            let object = Object::parse_unstored(item, of)
                .or_else(|error| Object::outline(item, of, &Keep::default(), &error).ok_or(error));
            let object = object.map_err(ClientError::Answer)?;
            if grants.may_read(of, object.key()) {
                page.items.push(Arc::new(object));
            }
        }
        page.next = meta.continue_token.map(|token| format!("{limit}.{token}"));
        Ok(page)
    }

    /// Reads the log of a Pod's container. Bytes that are not UTF-8 are replaced.
    pub async fn logs(&self, pod: &Key, query: &LogQuery) -> Result<String, ClientError> {
        let of = TypeMeta::new("v1", "Pod");
        let wanted = (Verb::Read, &of, Some(Subresource::Log));
        let pod = self.placed(wanted, pod.namespace.as_deref(), Some(&pod.name)).await?;
        self.fence.check()?;
        let LogQuery { container, previous, since_seconds, tail_lines, timestamps } = query;
        let mut parameters = vec![("limitBytes", MAX_LOG.to_string())];
        parameters.extend(container.iter().map(|container| ("container", container.clone())));
        parameters.extend(since_seconds.iter().map(|seconds| ("sinceSeconds", seconds.to_string())));
        parameters.extend(tail_lines.iter().map(|lines| ("tailLines", lines.to_string())));
        let flags = [("previous", previous), ("timestamps", timestamps)].into_iter().filter(|(_, is_set)| **is_set);
        parameters.extend(flags.map(|(name, _)| (name, "true".to_owned())));
        let log = self.cluster.logs(pod.namespace.as_deref(), &pod.name, &parameters, MAX_LOG).await;
        let log = log.map_err(ClientError::Request)?;
        let grants = self.grants.load();
        grants.check(Verb::Read, &of, Some(Subresource::Log), pod.namespace.as_deref(), Some(&pod.name))?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    /// Evicts a Pod, if its budgets allow it. The cache shows it when the watch does: the server answers with a
    /// `Status`.
    pub async fn evict(
        &self,
        pod: &Key,
        grace_period_seconds: Option<u32>,
        preconditions: Preconditions,
    ) -> Result<(), ClientError> {
        let of = TypeMeta::new("v1", "Pod");
        let wanted = (Verb::Create, &of, Some(Subresource::Eviction));
        let pod = self.placed(wanted, pod.namespace.as_deref(), Some(&pod.name)).await?;
        let Preconditions { uid, resource_version } = preconditions;
        let all = [("uid", uid), ("resourceVersion", resource_version)].into_iter();
        let preconditions: BTreeMap<_, _> = all.filter_map(|(name, value)| Some((name, value?))).collect();
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "namespace": pod.namespace.as_deref(), "name": &*pod.name },
            "deleteOptions": { "gracePeriodSeconds": grace_period_seconds, "preconditions": preconditions },
        });
        let body = eviction.to_string().into_bytes();
        let sent = self.cluster.evict(pod.namespace.as_deref(), &pod.name, body, self.manager());
        self.answered("evict", &of, &pod, Some(Subresource::Eviction), sent).await?;
        Ok(())
    }

    /// Creates an object under its own name or a generated one.
    pub async fn create(&self, object: &str) -> Result<Arc<Object>, ClientError> {
        let Argument { of, key, body } = self.argument(object, Verb::Create, None).await?;
        let sent = self.cluster.create(&of, key.namespace.as_deref(), body, self.manager());
        self.written_part("create", &of, &key, None, sent).await
    }

    /// Replaces an object, or a subresource of it.
    pub async fn update(&self, object: &str, subresource: Option<Subresource>) -> Result<Arc<Object>, ClientError> {
        let Argument { of, key, body } = self.argument(object, Verb::Update, subresource).await?;
        let options = WriteOptions { manager: self.manager(), subresource };
        let sent = self.cluster.update(&of, key.namespace.as_deref(), &key.name, body, options);
        self.written_part("update", &of, &key, subresource, sent).await
    }

    /// Patches an object, or a subresource of it.
    pub async fn patch(
        &self,
        of: &TypeMeta,
        key: &Key,
        patch: Patch,
        body: String,
        subresource: Option<Subresource>,
    ) -> Result<Arc<Object>, ClientError> {
        small("the patch", body.len())?;
        let key = self.placed((Verb::Patch, of, subresource), key.namespace.as_deref(), Some(&key.name)).await?;
        let options = WriteOptions { manager: self.manager(), subresource };
        let sent = self.cluster.patch(of, key.namespace.as_deref(), &key.name, patch, body.into_bytes(), options);
        self.written_part("patch", of, &key, subresource, sent).await
    }

    /// Sends a server-side apply of an object, or of a subresource of it.
    pub async fn apply_object(
        &self,
        object: &str,
        subresource: Option<Subresource>,
        force: bool,
    ) -> Result<Arc<Object>, ClientError> {
        let Argument { of, key, body } = self.argument(object, Verb::Apply, subresource).await?;
        let options = WriteOptions { manager: self.manager(), subresource };
        let sent = self.cluster.patch(&of, key.namespace.as_deref(), &key.name, Patch::Apply { force }, body, options);
        self.written_part("apply", &of, &key, subresource, sent).await
    }

    /// Deletes an object.
    pub async fn delete_object(&self, of: &TypeMeta, key: &Key, mut options: DeleteOptions) -> Result<(), ClientError> {
        let key = self.placed((Verb::Delete, of, None), key.namespace.as_deref(), Some(&key.name)).await?;
        if options.propagation.is_empty() {
            options.propagation = "Background";
        }
        Ok(self.delete(of, &key, &options).await?)
    }

    /// Returns what the plugin may see of the answer to a write. The whole answer is in the cache. A plugin that may
    /// read the object or the scale sees a scale whole.
    fn visible(
        &self,
        of: &TypeMeta,
        key: &Key,
        subresource: Option<Subresource>,
        answer: Arc<Object>,
    ) -> Result<Arc<Object>, ClientError> {
        // A review is stored nowhere: its answer is what the plugin asked for.
        if self.cluster.known(of).is_some_and(|endpoint| !endpoint.is_stored) {
            return Ok(answer);
        }
        // An object that was created may have had no name before.
        let key = if key.name.is_empty() { answer.key() } else { key };
        let grants = self.grants.load();
        let scale = Some(Subresource::Scale);
        let is_scale = subresource == scale
            && grants.check(Verb::Read, of, scale, key.namespace.as_deref(), Some(&key.name)).is_ok();
        if is_scale || grants.may_see(of, key) {
            return Ok(answer);
        }
        identity(&answer, false).map(Arc::new).map_err(ClientError::Answer)
    }

    /// Waits for the answer to a write. An object that is stored enters the cache. A scale is of another kind, and a
    /// review has neither uid nor version: the plugin gets them, and the cache does not.
    async fn written_part(
        &self,
        verb: &'static str,
        of: &TypeMeta,
        key: &Key,
        subresource: Option<Subresource>,
        sent: impl Future<Output = Result<bytes::Bytes, cluster::Error>>,
    ) -> Result<Arc<Object>, ClientError> {
        let answer = self.answered(verb, of, key, subresource, sent).await?;
        let answer = if subresource == Some(Subresource::Scale) {
            Object::parse(&answer, &scale()).map(Arc::new)
        } else {
            self.put_in_cache(of, &answer).or_else(|_| Object::parse_unstored(&answer, of).map(Arc::new))
        };
        self.visible(of, key, subresource, answer.map_err(ClientError::Answer)?)
    }

    /// Reads the kind and key of an object, if the plugin may write it. An object that is created may have
    /// `metadata.generateName` in place of a name. One that is not stored needs neither.
    async fn argument(
        &self,
        object: &str,
        verb: Verb,
        subresource: Option<Subresource>,
    ) -> Result<Argument, ClientError> {
        small("the object", object.len())?;
        let invalid = |why: String| ClientError::Invalid(why);
        let without = |member: &str| invalid(format!("the object has no {member}"));
        let members = members(object).map_err(|error| invalid(format!("the object is not a JSON object: {error}")))?;
        let api_version = text(&members, "apiVersion").ok_or_else(|| without("apiVersion"))?;
        let kind = text(&members, "kind").ok_or_else(|| without("kind"))?;
        let metadata =
            members.get("metadata").and_then(|metadata| self::members(metadata.get()).ok()).unwrap_or_default();
        let name = match text(&metadata, "name") {
            Some(name) => Some(name),
            None if verb == Verb::Create => None,
            None => return Err(without("metadata.name")),
        };
        let is_named = name.is_some() || text(&metadata, "generateName").is_some();
        let of = TypeMeta::new(&api_version, &kind);
        let namespace = text(&metadata, "namespace");
        drop((members, metadata));
        let placed = self.placed((verb, &of, subresource), namespace.as_deref(), name.as_deref()).await;
        // It is known by now whether objects of the kind are stored. A missing name is reported before other errors.
        if !is_named && self.cluster.known(&of).is_some_and(|endpoint| endpoint.is_stored) {
            return Err(without("metadata.name"));
        }
        Ok(Argument { of, key: placed?, body: object.as_bytes().to_vec() })
    }

    /// Returns the key with the namespace that the kind's scope requires, if the plugin may do this there. The grants
    /// are checked for the namespace that the request will have. The scope is looked up only if one of the two
    /// namespaces is granted.
    async fn placed(
        &self,
        (verb, of, subresource): (Verb, &TypeMeta, Option<Subresource>),
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<Key, ClientError> {
        let granted = |namespace| self.grants.load().check(verb, of, subresource, namespace, name);
        let anywhere = granted(namespace);
        if anywhere.is_err() && granted(None).is_err() {
            anywhere?;
        }
        let endpoint = self.cluster.endpoint(of).await.map_err(ClientError::Request)?;
        let namespace = match (endpoint.namespaced, namespace) {
            (true, None) => return Err(ClientError::Invalid(format!("{of} is namespaced, and no namespace is given"))),
            (true, Some("")) => return Err(ClientError::Invalid("the namespace is empty".into())),
            (true, namespace) => namespace,
            (false, _) => None,
        };
        granted(namespace)?;
        Ok(Key::new(namespace, name.unwrap_or_default()))
    }
}
