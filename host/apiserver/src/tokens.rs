//! Tokens of service accounts: made by the subresource `token`, and recognized by a `TokenReview`.
//!
//! A token is random text that this process remembers. It ends when its time is over, when its account is gone, and
//! when the object that it is bound to is gone. Requests need none, because this server lets everybody do everything who
//! does not say who it is.

use std::{collections::VecDeque, sync::Arc};

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    object::{Key, Object, uid},
    resources::GroupResource,
    rest::{Answer, Call},
    schema::Cause,
    server::Server,
    status::{Result, Status},
};

/// Tokens that are remembered. Beyond them the oldest ends early.
const REMEMBERED: usize = 10_000;

/// Life of a token in seconds, if the request names none, and the shortest.
const LIFE: i64 = 3600;
const SHORTEST: i64 = 600;

/// The audience of this server's tokens, as kube-apiserver's default.
const AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";

#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<VecDeque<Token>>);

#[derive(Debug, Clone)]
struct Token {
    text: String,
    account: Key,
    account_uid: String,
    /// As Kubernetes writes times, which compare as text.
    ends: String,
    /// The object that it is bound to: its resource, name and uid.
    bound: Option<(GroupResource, String, String)>,
}

fn accounts() -> GroupResource {
    GroupResource::new("", "serviceaccounts")
}

/// Makes a token for the account that the request names.
pub(crate) fn request(call: &Call<'_>, request: &Value) -> Result<Answer> {
    let (server, key) = (call.server, &call.key);
    let account = server.store.get(&accounts(), key).ok_or_else(|| Status::not_found(&accounts(), &key.name))?;
    let spec = &request["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(LIFE);
    if seconds < SHORTEST {
        let why = "may not specify a duration less than 10 minutes";
        let causes = [Cause::invalid("spec.expirationSeconds", &seconds.into(), why)];
        return Err(Status::invalid_kind("TokenRequest", "authentication.k8s.io", "", &causes));
    }
    let token = Token {
        text: format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()),
        account: key.clone(),
        account_uid: uid(&account.value).to_owned(),
        ends: server.after(seconds),
        bound: bound(server, key, &spec["boundObjectRef"])?,
    };
    let answer = json!({
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": key.name, "namespace": key.namespace, "creationTimestamp": server.now()},
        "spec": {"audiences": [AUDIENCE], "expirationSeconds": seconds, "boundObjectRef": spec["boundObjectRef"]},
        "status": {"token": token.text, "expirationTimestamp": token.ends},
    });
    if !call.dry_run {
        let mut tokens = server.tokens.0.lock();
        tokens.retain(|token| token.ends > server.now());
        if tokens.len() >= REMEMBERED {
            tokens.pop_front();
        }
        tokens.push_back(token);
    }
    Ok(Answer::Made(StatusCode::CREATED, answer))
}

/// Returns the object that a token is to be bound to, if any.
fn bound(server: &Server, account: &Key, reference: &Value) -> Result<Option<(GroupResource, String, String)>> {
    if reference.is_null() {
        return Ok(None);
    }
    let (kind, name) = (reference["kind"].as_str().unwrap_or_default(), reference["name"].as_str().unwrap_or_default());
    let of = match kind {
        "Pod" => GroupResource::new("", "pods"),
        "Secret" => GroupResource::new("", "secrets"),
        _ => {
            let why = format!("cannot bind token for serviceaccount \"{}\" to object of type {kind}", account.name);
            return Err(Status::bad_request(why));
        }
    };
    let found = object(server, &of, account, name).ok_or_else(|| Status::not_found(&of, name))?;
    let (wanted, is) = (reference["uid"].as_str().unwrap_or_default(), uid(&found.value));
    if !wanted.is_empty() && wanted != is {
        let why = format!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Status::conflict(&of, name, &why));
    }
    Ok(Some((of, name.to_owned(), is.to_owned())))
}

fn object(server: &Server, of: &GroupResource, account: &Key, name: &str) -> Option<Arc<Object>> {
    server.store.get(of, &Key::new(&account.namespace, name))
}

/// Returns `true` if a text may be a token of this server, valid or not.
pub(crate) fn looks_like_one(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the account that a token belongs to. `None` if the token is not valid.
pub(crate) fn account(server: &Server, text: &str) -> Option<Key> {
    find(server, text).map(|token| token.account)
}

fn find(server: &Server, text: &str) -> Option<Token> {
    let token = server.tokens.0.lock().iter().find(|token| token.text == text).cloned();
    token.filter(|token| lives(server, token))
}

/// Returns the status of a `TokenReview`.
pub(crate) fn review(server: &Server, text: &str) -> Value {
    match find(server, text) {
        Some(Token { account: Key { namespace, name }, account_uid, .. }) => json!({
            "authenticated": true,
            "user": {
                "username": format!("system:serviceaccount:{namespace}:{name}"),
                "uid": account_uid,
                "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
            },
            "audiences": [AUDIENCE],
        }),
        None => json!({"user": {}, "error": "invalid bearer token"}),
    }
}

fn lives(server: &Server, token: &Token) -> bool {
    let is_there =
        |object: Option<Arc<Object>>, wanted: &str| object.is_some_and(|object| uid(&object.value) == wanted);
    token.ends > server.now()
        && is_there(server.store.get(&accounts(), &token.account), &token.account_uid)
        && token.bound.as_ref().is_none_or(|(of, name, uid)| is_there(object(server, of, &token.account, name), uid))
}
