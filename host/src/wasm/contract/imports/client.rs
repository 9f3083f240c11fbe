//! `client`: requests to the API server.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use pilothouse_core::{
    key::{Key, TypeMeta},
    object::{Object, Subresource},
    selector,
};
use wasmtime::Result;

use super::{
    super::{
        arguments::{self, invalid, key_bytes, object_bytes, text_bytes, type_meta_bytes, within},
        bindings::pilothouse::plugin::{client, types, types::KeyResult},
    },
    host_state::{HostState, json, subresource},
    interface,
};
pub use crate::wasm::contract::bindings::pilothouse::plugin::client::{
    Error as ClientError, LogQuery, PatchBody, Preconditions, Propagation, Reason, StatusError,
};

interface!(ClientCall, "client", {
    Get = "get",
    Create = "create",
    Update = "update",
    Patch = "patch",
    Apply = "apply",
    Delete = "delete",
    List = "list",
    Evict = "evict",
    Logs = "logs",
    Send = "send",
});

/// Requests of one `send`.
const MAX_AT_ONCE: usize = 64;

/// Objects of a page of a live list, unless the plugin asks for fewer.
pub const MAX_ITEMS: u32 = 500;

/// Bytes of a page of a live list, as the API server sends it.
pub const MAX_PAGE: usize = 4 << 20;

/// Bytes of a container's log that a plugin gets at once.
pub const MAX_LOG: usize = 1 << 20;

/// Bytes of a selector's text, as in `cache`.
const MAX_SELECTOR: usize = 2 * selector::MAX_BYTES;

/// Bytes of `after`: several times the longest token of kube-apiserver, which holds a key.
const MAX_AFTER: usize = 8 << 10;

/// Bytes of a container's name, as in Kubernetes: a DNS label.
const MAX_CONTAINER: usize = 63;

/// Selects objects of the API server.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Their kind.
    pub of: TypeMeta,
    /// `None` selects every namespace.
    pub namespace: Option<String>,
    /// A label selector. Empty selects every object.
    pub labels: String,
    /// A field selector. Empty selects every object.
    pub fields: String,
    /// The largest number of objects in a page. 0 means [`MAX_ITEMS`].
    pub limit: u32,
    /// [`ListPage::next`] of the page before.
    pub after: Option<String>,
}

/// A page of objects of the API server.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// The objects that the plugin may see.
    pub items: Vec<Arc<Object>>,
    /// Where the next page begins. `None` if this was the last page.
    pub next: Option<String>,
}

/// What the caller supplies for `client`.
pub trait ClientImports {
    /// Reads an object, its status or its scale from the API server.
    fn get(
        &self,
        of: TypeMeta,
        key: Key,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// Reads one page of objects from the API server.
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<ListPage, ClientError>>;

    /// Evicts a Pod.
    fn evict(
        &self,
        pod: Key,
        grace_period_seconds: Option<u32>,
        preconditions: Preconditions,
    ) -> BoxFuture<'_, Result<(), ClientError>>;

    /// Reads a container's log, at most [`MAX_LOG`] bytes.
    fn logs(&self, pod: Key, query: LogQuery) -> BoxFuture<'_, Result<String, ClientError>>;

    /// Creates an object.
    fn create(&self, object: String) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// Replaces an object, or its subresource.
    fn update(
        &self,
        object: String,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// Patches an object, or its subresource.
    fn patch(
        &self,
        of: TypeMeta,
        key: Key,
        body: PatchBody,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// Sends a server-side apply.
    fn apply(
        &self,
        object: String,
        subresource: Option<Subresource>,
        force: bool,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// Deletes an object.
    fn delete(
        &self,
        of: TypeMeta,
        key: Key,
        propagation: Propagation,
        preconditions: Preconditions,
    ) -> BoxFuture<'_, Result<(), ClientError>>;
}

/// The API server's answer as the guest gets it.
type Answer = Result<String, ClientError>;

impl HostState {
    /// Ends a host call that answers with an object.
    fn give_object(&mut self, answer: &Result<Arc<Object>, ClientError>) -> Result<Answer> {
        self.give(answer.as_ref().map(json).map_err(Clone::clone), |answer| answer.as_ref().map_or(0, String::len))
    }

    /// Starts one request of `send`, as if it were called alone.
    fn begin(&mut self, call: client::Call) -> Result<BoxFuture<'static, Result<Option<Arc<Object>>, ClientError>>> {
        let some = |answer: Result<Arc<Object>, ClientError>| answer.map(Some);
        Ok(match call {
            client::Call::Get((of, name, part)) => {
                let imports = self.open(ClientCall::Get, object_bytes(&of, &name))?;
                let named = named(&of, &name);
                Box::pin(async move {
                    let (of, key) = named?;
                    some(imports.get(of, key, part.map(subresource)).await)
                })
            }
            client::Call::Create(object) => {
                let imports = self.open(ClientCall::Create, object.len())?;
                Box::pin(async move { some(imports.create(object).await) })
            }
            client::Call::Update((object, part)) => {
                let imports = self.open(ClientCall::Update, object.len())?;
                Box::pin(async move { some(imports.update(object, part.map(subresource)).await) })
            }
            client::Call::Patch((of, name, body, part)) => {
                let imports = self.open(ClientCall::Patch, object_bytes(&of, &name) + patch_bytes(&body))?;
                let named = named(&of, &name);
                Box::pin(async move {
                    let (of, key) = named?;
                    some(imports.patch(of, key, body, part.map(subresource)).await)
                })
            }
            client::Call::Apply((object, part, force)) => {
                let imports = self.open(ClientCall::Apply, object.len())?;
                Box::pin(async move { some(imports.apply(object, part.map(subresource), force).await) })
            }
            client::Call::Delete((of, name, propagation, preconditions)) => {
                let bytes = object_bytes(&of, &name) + preconditions_bytes(&preconditions);
                let imports = self.open(ClientCall::Delete, bytes)?;
                let named = named(&of, &name);
                Box::pin(async move {
                    let (of, key) = named?;
                    imports.delete(of, key, propagation, preconditions).await.map(|()| None)
                })
            }
        })
    }
}

impl client::Host for HostState {
    async fn get(&mut self, of: types::TypeMeta, name: KeyResult, part: Option<types::Subresource>) -> Result<Answer> {
        let imports = self.open(ClientCall::Get, object_bytes(&of, &name))?;
        let answer = match named(&of, &name) {
            Ok((of, key)) => imports.get(of, key, part.map(subresource)).await,
            Err(error) => Err(error),
        };
        self.give_object(&answer)
    }

    async fn create(&mut self, object: String) -> Result<Answer> {
        let imports = self.open(ClientCall::Create, object.len())?;
        let answer = imports.create(object).await;
        self.give_object(&answer)
    }

    async fn update(&mut self, object: String, part: Option<types::Subresource>) -> Result<Answer> {
        let imports = self.open(ClientCall::Update, object.len())?;
        let answer = imports.update(object, part.map(subresource)).await;
        self.give_object(&answer)
    }

    async fn patch(
        &mut self,
        of: types::TypeMeta,
        name: KeyResult,
        body: PatchBody,
        part: Option<types::Subresource>,
    ) -> Result<Answer> {
        let imports = self.open(ClientCall::Patch, object_bytes(&of, &name) + patch_bytes(&body))?;
        let answer = match named(&of, &name) {
            Ok((of, key)) => imports.patch(of, key, body, part.map(subresource)).await,
            Err(error) => Err(error),
        };
        self.give_object(&answer)
    }

    async fn apply(&mut self, object: String, part: Option<types::Subresource>, force: bool) -> Result<Answer> {
        let imports = self.open(ClientCall::Apply, object.len())?;
        let answer = imports.apply(object, part.map(subresource), force).await;
        self.give_object(&answer)
    }

    async fn delete(
        &mut self,
        of: types::TypeMeta,
        name: KeyResult,
        propagation: Propagation,
        preconditions: Preconditions,
    ) -> Result<Result<(), ClientError>> {
        let bytes = object_bytes(&of, &name) + preconditions_bytes(&preconditions);
        let imports = self.open(ClientCall::Delete, bytes)?;
        Ok(match named(&of, &name) {
            Ok((of, key)) => imports.delete(of, key, propagation, preconditions).await,
            Err(error) => Err(error),
        })
    }

    async fn list(&mut self, asked: client::ListQuery) -> Result<Result<client::Page, ClientError>> {
        let imports = self.open(ClientCall::List, query_bytes(&asked))?;
        let page = match query(asked) {
            Ok(query) => imports.list(query).await,
            Err(why) => Err(ClientError::Invalid(why)),
        };
        let page = page.map(|page| client::Page { items: page.items.iter().map(json).collect(), next: page.next });
        self.give(page, |page| page.as_ref().map_or(0, |page| page.items.iter().map(String::len).sum()))
    }

    async fn evict(&mut self, eviction: client::Eviction) -> Result<Result<(), ClientError>> {
        let client::Eviction { pod: name, grace_period_seconds, preconditions } = eviction;
        let imports = self.open(ClientCall::Evict, key_bytes(&name) + preconditions_bytes(&preconditions))?;
        Ok(match pod(&name) {
            Ok(pod) => imports.evict(pod, grace_period_seconds, preconditions).await,
            Err(error) => Err(error),
        })
    }

    async fn logs(&mut self, name: KeyResult, query: LogQuery) -> Result<Answer> {
        let container = query.container.as_deref().unwrap_or_default();
        let imports = self.open(ClientCall::Logs, key_bytes(&name) + container.len())?;
        let fits = within("the container", container, MAX_CONTAINER).map_err(ClientError::Invalid);
        let log = match fits.and_then(|()| pod(&name)) {
            Ok(pod) => imports.logs(pod, query).await,
            Err(error) => Err(error),
        };
        self.give(log, |log| log.as_ref().map_or(0, String::len))
    }

    async fn send(&mut self, calls: Vec<client::Call>) -> Result<Vec<Answer>> {
        self.open(ClientCall::Send, 0)?;
        if calls.len() > MAX_AT_ONCE {
            let many =
                invalid("calls", format!("{} are more than the {MAX_AT_ONCE} that are sent at once", calls.len()));
            return Ok(vec![Err(ClientError::Invalid(many)); calls.len()]);
        }
        let mut answers: Vec<Answer> = Vec::with_capacity(calls.len());
        let sending = FuturesUnordered::new();
        for (place, call) in calls.into_iter().enumerate() {
            answers.push(Ok(String::new()));
            let call = self.begin(call)?;
            sending.push(async move { (place, call.await) });
        }
        // Answers are held until the last one is there, so they count as the plugin's memory.
        let mut held = Vec::with_capacity(answers.len());
        let mut arriving = sending;
        while let Some((place, answer)) = arriving.next().await {
            let answer = answer.map(|object| object.as_ref().map(json).unwrap_or_default());
            let answer = self.give(answer, |answer| answer.as_ref().map_or(0, String::len))?;
            held.push(self.limiter.charge_or_end(answer.as_ref().map_or(0, String::len))?);
            if let Some(answered) = answers.get_mut(place) {
                *answered = answer;
            }
        }
        Ok(answers)
    }
}

/// Checks a query.
fn query(query: client::ListQuery) -> Result<ListQuery, String> {
    let client::ListQuery { of, namespace, labels, fields, limit, after } = query;
    let of = arguments::type_meta(&of)?;
    arguments::namespace(namespace.as_deref())?;
    let (labels, fields) = (labels.unwrap_or_default(), fields.unwrap_or_default());
    within("labels", &labels, MAX_SELECTOR)?;
    within("fields", &fields, MAX_SELECTOR)?;
    within("after", after.as_deref().unwrap_or_default(), MAX_AFTER)?;
    Ok(ListQuery { of, namespace, labels, fields, limit, after })
}

fn query_bytes(query: &client::ListQuery) -> usize {
    let client::ListQuery { of, namespace, labels, fields, limit: _, after } = query;
    let texts = [namespace, labels, fields, after].into_iter().map(|text| text_bytes(text.as_ref()));
    type_meta_bytes(of) + texts.sum::<usize>()
}

/// Reads which Pod a request is about.
fn pod(key: &KeyResult) -> Result<Key, ClientError> {
    arguments::key(key.namespace.as_deref(), &key.name).map_err(ClientError::Invalid)
}

/// Reads which object a request is about.
fn named(of: &types::TypeMeta, name: &KeyResult) -> Result<(TypeMeta, Key), ClientError> {
    arguments::object(of, name).map_err(ClientError::Invalid)
}

fn patch_bytes(body: &PatchBody) -> usize {
    match body {
        PatchBody::Json(text) | PatchBody::Merge(text) | PatchBody::StrategicMerge(text) => text.len(),
    }
}

fn preconditions_bytes(preconditions: &Preconditions) -> usize {
    let Preconditions { uid, resource_version } = preconditions;
    text_bytes(uid.as_ref()) + text_bytes(resource_version.as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::{
        super::super::super::testing::{Fake, state},
        *,
    };

    #[tokio::test]
    async fn no_request_is_sent_for_an_empty_name() {
        // It panics over a request that it does not expect, and records what was called.
        let imports = Arc::new(Fake::default());
        let mut state = state(&imports);
        let maps = || types::TypeMeta { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() };
        let empty = || KeyResult { namespace: None, name: String::new() };
        let patch = PatchBody::Merge("{}".to_owned());
        let preconditions = Preconditions { uid: None, resource_version: None };
        let rejected = [
            client::Host::get(&mut state, maps(), empty(), None).await.unwrap().unwrap_err(),
            client::Host::patch(&mut state, maps(), empty(), patch, None).await.unwrap().unwrap_err(),
            client::Host::delete(&mut state, maps(), empty(), Propagation::Orphan, preconditions)
                .await
                .unwrap()
                .unwrap_err(),
        ];
        assert!(rejected.iter().all(|error| matches!(error, ClientError::Invalid(why) if why == "the name is empty")));
        let called = [ClientCall::Get, ClientCall::Patch, ClientCall::Delete].map(super::super::Import::from);
        assert_eq!(*imports.calls.lock(), called);
    }

    #[tokio::test]
    async fn requests_at_once_are_bounded_and_each_counts() {
        let imports = Arc::new(Fake::default());
        let mut state = state(&imports);
        let gets = |count: usize| {
            let maps = || types::TypeMeta { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() };
            let key = || KeyResult { namespace: None, name: "a".to_owned() };
            (0..count).map(|_| client::Call::Get((maps(), key(), None))).collect::<Vec<_>>()
        };
        let answers = client::Host::send(&mut state, gets(65)).await.unwrap();
        let why = "calls: 65 are more than the 64 that are sent at once";
        assert_eq!(answers.len(), 65);
        assert!(answers.iter().all(|answer| matches!(answer, Err(ClientError::Invalid(told)) if told == why)));
        assert_eq!(imports.requests.load(std::sync::atomic::Ordering::Relaxed), 0);

        let answers = client::Host::send(&mut state, gets(64)).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Err(ClientError::Unreachable(_)))));
        assert_eq!(imports.requests.load(std::sync::atomic::Ordering::Relaxed), 64);
        assert_eq!(imports.calls.lock().len(), 2 + 64);
    }

    #[test]
    fn parts_of_a_list_are_bounded() {
        let asked = || {
            let of = types::TypeMeta { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() };
            client::ListQuery { of, namespace: None, labels: None, fields: None, limit: 0, after: None }
        };
        let long = |bytes: usize| Some("a".repeat(bytes));
        assert!(query(client::ListQuery { after: long(8 << 10), labels: long(8 << 10), ..asked() }).is_ok());
        for (query, what) in [
            (client::ListQuery { namespace: long(64), ..asked() }, "the namespace"),
            (client::ListQuery { labels: long((8 << 10) + 1), ..asked() }, "labels"),
            (client::ListQuery { fields: long((8 << 10) + 1), ..asked() }, "fields"),
            (client::ListQuery { after: long((8 << 10) + 1), ..asked() }, "after"),
        ] {
            assert!(self::query(query).unwrap_err().starts_with(what), "{what}");
        }
        let measured =
            client::ListQuery { namespace: long(1), labels: long(2), fields: long(3), after: long(4), ..asked() };
        assert_eq!(query_bytes(&measured), "v1ConfigMap".len() + 1 + 2 + 3 + 4);
    }

    #[test]
    fn every_text_is_measured() {
        assert_eq!(patch_bytes(&PatchBody::Merge("{}".to_owned())), 2);
        let preconditions = Preconditions { uid: Some("1".to_owned()), resource_version: Some("22".to_owned()) };
        assert_eq!(preconditions_bytes(&preconditions), 3);
    }
}
