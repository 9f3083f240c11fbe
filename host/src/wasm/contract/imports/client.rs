//! `client`: requests to the API server.

use std::sync::Arc;

use futures::future::BoxFuture;
use pilothouse_core::{
    key::{Key, TypeMeta},
    object::{Object, Subresource},
};
use wasmtime::Result;

use super::{
    super::{
        arguments::{self, object_bytes, text_bytes},
        bindings::pilothouse::plugin::{client, types, types::KeyResult},
    },
    host_state::{HostState, json, subresource},
    interface,
};
pub use crate::wasm::contract::bindings::pilothouse::plugin::client::{
    Error as ClientError, PatchBody, Preconditions, Propagation, Reason, StatusError,
};

interface!(ClientCall, "client", {
    Get = "get",
    Create = "create",
    Update = "update",
    Patch = "patch",
    Apply = "apply",
    Delete = "delete",
});

/// What the caller supplies for `client`.
pub trait ClientImports {
    /// Reads an object from the API server.
    fn get(&self, of: TypeMeta, key: Key) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

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
}

impl client::Host for HostState {
    async fn get(&mut self, of: types::TypeMeta, name: KeyResult) -> Result<Answer> {
        let imports = self.open(ClientCall::Get, object_bytes(&of, &name))?;
        let answer = match named(&of, &name) {
            Ok((of, key)) => imports.get(of, key).await,
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
            client::Host::get(&mut state, maps(), empty()).await.unwrap().unwrap_err(),
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

    #[test]
    fn every_text_is_measured() {
        assert_eq!(patch_bytes(&PatchBody::Merge("{}".to_owned())), 2);
        let preconditions = Preconditions { uid: Some("1".to_owned()), resource_version: Some("22".to_owned()) };
        assert_eq!(preconditions_bytes(&preconditions), 3);
    }
}
