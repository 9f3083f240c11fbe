//! Sends the requests of a plugin as its service account, so that the API server judges that account and its audit log
//! names it.
//!
//! | by | the request has | the host's account needs |
//! |---|---|---|
//! | impersonation | the host's credentials, and `Impersonate-User` | `impersonate` on the service account |
//! | token | a token of the account, and no other credentials | `create` on its subresource `token` |
//!
//! The API server adds the groups of service accounts to an impersonated one, as no group is named.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, Request,
    header::{AUTHORIZATION, InvalidHeaderValue},
};
use parking_lot::Mutex;
use pilothouse_core::grant::{ActAs, By, ServiceAccount};
use serde_json::{Value, json};
use tracing::debug;

use super::{Cluster, Error, credentials::Traffic, request::build};
use crate::acting::now;

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// Bytes of the answer to a request for a token.
const ANSWER: usize = 1 << 20;

/// A service account as which requests are sent.
#[derive(Debug)]
pub(crate) struct Actor {
    account: ServiceAccount,
    proof: Proof,
}

#[derive(Debug)]
enum Proof {
    Impersonation,
    Token(Arc<Token>),
}

impl Actor {
    pub(super) fn new(act_as: &ActAs, tokens: &Tokens) -> Self {
        let proof = match act_as.by {
            By::Impersonation => Proof::Impersonation,
            By::Token { seconds } => Proof::Token(tokens.of(&act_as.account, seconds)),
        };
        Self { account: act_as.account.clone(), proof }
    }

    /// The account.
    pub(crate) fn account(&self) -> &ServiceAccount {
        &self.account
    }
}

/// The tokens of all accounts in use. Plugins with the same account share one.
#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<BTreeMap<(ServiceAccount, NonZeroU32), Weak<Token>>>);

impl Tokens {
    fn of(&self, account: &ServiceAccount, seconds: NonZeroU32) -> Arc<Token> {
        let tokens = &mut *self.0.lock();
        tokens.retain(|_, token| token.strong_count() > 0);
        let slot = tokens.entry((account.clone(), seconds)).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let token = Arc::new(Token { seconds, held: tokio::sync::Mutex::default() });
            *slot = Arc::downgrade(&token);
            token
        })
    }
}

/// A token that is requested when it is needed, and again before it expires.
#[derive(Debug)]
struct Token {
    /// The life that is asked for.
    seconds: NonZeroU32,
    /// Locked while a token is requested.
    held: tokio::sync::Mutex<Option<Held>>,
}

#[derive(Clone, Debug)]
struct Held {
    header: HeaderValue,
    /// When another one is requested, in the time of [`now`].
    renew_at: Duration,
    ends: Duration,
}

impl Cluster {
    /// Sends a request as the actor, if there is one, and collects the whole answer.
    pub(super) async fn sent_by_actor(&self, mut request: Request<Bytes>, most: usize) -> Result<Bytes, Error> {
        let Some(actor) = &self.actor else { return self.whole(request, Traffic::Ordinary, most).await };
        let no_header = |error: InvalidHeaderValue| Error::Unreachable(format!("not sent: {error}"));
        let token = match &actor.proof {
            Proof::Impersonation => {
                let user = HeaderValue::try_from(actor.account.user()).map_err(no_header)?;
                request.headers_mut().insert(IMPERSONATE_USER, user);
                return self.whole(request, Traffic::Ordinary, most).await;
            }
            Proof::Token(token) => token,
        };
        let held = self.token(actor, token, None).await?;
        request.headers_mut().insert(AUTHORIZATION, held.clone());
        match self.whole(request.clone(), Traffic::Bare, most).await {
            // The account may have been created anew. A rejected request has changed nothing.
            Err(Error::Status(status)) if status.code == 401 => {
                let held = self.token(actor, token, Some(&held)).await?;
                request.headers_mut().insert(AUTHORIZATION, held);
                self.whole(request, Traffic::Bare, most).await
            }
            answer => answer,
        }
    }

    /// Returns a token that is valid, and is not `rejected`.
    async fn token(&self, actor: &Actor, token: &Token, rejected: Option<&HeaderValue>) -> Result<HeaderValue, Error> {
        let mut held = token.held.lock().await;
        held.take_if(|held| rejected == Some(&held.header) || held.ends <= now());
        if let Some(held) = held.as_ref().filter(|held| now() < held.renew_at) {
            return Ok(held.header.clone());
        }
        match (self.request_token(&actor.account, token.seconds).await, &mut *held) {
            (Ok(new), held) => Ok(held.insert(new).header.clone()),
            // It is tried again with the next request.
            (Err(error), Some(held)) => {
                debug!(account = %actor.account, %error, "cannot renew the token of a service account");
                Ok(held.header.clone())
            }
            (Err(error), None) => Err(Error::Token { account: actor.account.to_string(), source: Box::new(error) }),
        }
    }

    async fn request_token(&self, account: &ServiceAccount, seconds: NonZeroU32) -> Result<Held, Error> {
        let ServiceAccount { namespace, name } = account;
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let wanted = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": seconds},
        });
        let body = Bytes::from(wanted.to_string());
        let (asked, request) = (now(), build(Method::POST, &path, Some("application/json"), body)?);
        let answer = self.whole(request, Traffic::Ordinary, ANSWER).await?;
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|source| Error::Answer { path: path.clone(), source: Arc::new(source) })?;
        let text = answer["status"]["token"].as_str().unwrap_or_default();
        let no_token = || Error::Unreachable(format!("the answer to {path} has no token"));
        let mut header = HeaderValue::try_from(format!("Bearer {text}")).map_err(|_| no_token())?;
        if text.is_empty() {
            return Err(no_token());
        }
        header.set_sensitive(true);
        // A server may give it a shorter life. As a difference it does not depend on two clocks.
        let given = answer["spec"]["expirationSeconds"].as_u64().unwrap_or(seconds.get().into());
        let life = Duration::from_secs(given.min(seconds.get().into()));
        // As the kubelet, which renews tokens when four fifths of their life are over.
        Ok(Held { header, renew_at: asked + life * 4 / 5, ends: asked + life })
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_core::key::TypeMeta;

    use super::*;
    use crate::testing::Api;

    fn act_as(by: By) -> ActAs {
        let account = ServiceAccount { namespace: "default".to_owned(), name: "apples".to_owned() };
        ActAs { account, by }
    }

    fn by_token() -> ActAs {
        act_as(By::Token { seconds: NonZeroU32::new(600).expect("it is not 0") })
    }

    async fn grant(api: &Api, verbs: &[&str]) {
        let of = "rbac.authorization.k8s.io/v1";
        let rule = json!({"verbs": verbs, "apiGroups": [""], "resources": ["configmaps"]});
        api.create(json!({"apiVersion": of, "kind": "ClusterRole", "metadata": {"name": "maps"}, "rules": [rule]}))
            .await;
        let subject = json!({"kind": "ServiceAccount", "namespace": "default", "name": "apples"});
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps"});
        let binding = json!({"apiVersion": of, "kind": "ClusterRoleBinding", "metadata": {"name": "maps"}, "roleRef": role, "subjects": [subject]});
        api.create(binding).await;
    }

    async fn create(cluster: &Cluster, name: &str) -> Result<Bytes, Error> {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        cluster.create(&TypeMeta::new("v1", "ConfigMap"), Some("default"), map.to_string().into_bytes(), "test").await
    }

    #[tokio::test]
    async fn a_plugins_requests_are_judged_as_its_account() {
        let api = Api::start().await;
        api.create(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "apples", "namespace": "default"}})).await;
        grant(&api, &["create"]).await;
        for (name, act_as) in [("impersonated", act_as(By::Impersonation)), ("token", by_token())] {
            let plugin = api.cluster.for_plugin("apples", None).acting_as(Some(&act_as));
            create(&plugin, name).await.expect("the account may");
            let denied = plugin.get(&TypeMeta::new("v1", "ConfigMap"), Some("default"), name).await;
            let denied = denied.expect_err("the account may not").to_string();
            assert_eq!(
                denied,
                format!(
                    "configmaps \"{name}\" is forbidden: User \"system:serviceaccount:default:apples\" cannot get resource \"configmaps\" \
                     in API group \"\" in the namespace \"default\""
                )
            );
            let host = plugin.sent_by(None);
            host.get(&TypeMeta::new("v1", "ConfigMap"), Some("default"), name).await.expect("the host may");
        }
    }

    #[tokio::test]
    async fn a_token_is_shared_kept_and_replaced_when_it_is_rejected() {
        let api = Api::start().await;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "apples", "namespace": "default"}});
        let one = api.cluster.for_plugin("one", None).acting_as(Some(&by_token()));
        let error = create(&one, "early").await.expect_err("there is no account");
        assert!(!error.is_not_found(), "{error:?}");
        assert_eq!(
            crate::causes::with_causes(&error),
            "cannot get a token of the service account default/apples: serviceaccounts \"apples\" not found"
        );
        api.create(account.clone()).await;
        grant(&api, &["create"]).await;
        let other = api.cluster.for_plugin("other", None).acting_as(Some(&by_token()));
        for (cluster, name) in [(&one, "a"), (&other, "b"), (&one, "c")] {
            create(cluster, name).await.expect("it has a token");
        }
        // The account, the request that found none, and the one token.
        assert_eq!(api.requests("POST", "serviceaccounts").await, 3);
        let of = TypeMeta::new("v1", "ServiceAccount");
        api.delete(&of, &pilothouse_core::key::Key::new(Some("default"), "apples")).await;
        api.create(account).await;
        create(&one, "d").await.expect("it has a new token");
        assert_eq!(api.requests("POST", "serviceaccounts").await, 5);
    }
}
