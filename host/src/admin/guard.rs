//! Decides who may use a route: the API server says whose a bearer token is, and what its user may do.
//!
//! ```text
//! Authorization: Bearer … ─► authenticate ─► TokenReview ─► Identity ─► authorize ─► SubjectAccessReview
//!                                 └──────── answers of the last minute ────────┘
//! ```
//!
//! Answers are remembered for a short time, as in controller-runtime's filter, by a keyed digest of the token. The token
//! itself is not kept.
//!
//! # Guarantees
//! - What is not allowed is refused. If the API server does not answer, nothing is allowed.
//! - Clients cannot make the host flood the API server. Tokens that were never valid share [`STRANGERS`], and each user
//!   has [`PER_USER`]. Few reviews are under way at a time, and each has [`WITHIN`].
//! - A flood of made-up tokens does not keep out a client whose token was valid before.

mod cache;

use std::{sync::Arc, time::Duration};

use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use k8s_openapi::api::{
    authentication::v1::UserInfo,
    authorization::v1::{NonResourceAttributes, SubjectAccessReviewSpec},
};
use parking_lot::Mutex;
use pilothouse_core::rate::Rate;
use sha2::{Digest as _, Sha256};
use tokio::{sync::Semaphore, time::Instant};
use tracing::warn;

use self::cache::{Cache, Known};
use super::table::printable;
use crate::{
    causes::with_causes,
    cluster::{Cluster, Error},
};

/// Time for the reviews of one request, as in controller-runtime.
const WITHIN: Duration = Duration::from_secs(10);

/// Reviews at once for tokens that were valid, and as many for others.
const AT_ONCE: usize = 4;

/// Reviews of tokens that were never valid. Prometheus and some people are a few in a minute.
const STRANGERS: Rate = Rate { burst: 20, every: Duration::from_millis(200) };

/// Reviews of what one user may do. There are about ten routes, and one more for each plugin.
const PER_USER: Rate = Rate { burst: 50, every: Duration::from_millis(200) };

/// Bytes of a token. One of a service account has about a thousand.
const TOKEN: usize = 8 << 10;

/// Least time between two log lines about an API server that cannot be asked.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// The API server's answers.
pub trait Reviews: Send + Sync + 'static {
    /// Returns whose a token is, or `None` if it is not valid.
    fn whose(&self, token: &str) -> BoxFuture<'static, Result<Option<UserInfo>, Error>>;

    /// Returns `true` if the user may do `verb` with `path`.
    fn may(&self, user: &UserInfo, verb: &str, path: &str) -> BoxFuture<'static, Result<bool, Error>>;
}

impl Reviews for Cluster {
    fn whose(&self, token: &str) -> BoxFuture<'static, Result<Option<UserInfo>, Error>> {
        let (cluster, token) = (self.clone(), token.to_owned());
        Box::pin(async move {
            let status = cluster.review_token(&token).await?;
            let is_valid = status.authenticated == Some(true);
            Ok(status.user.filter(|user| is_valid && user.username.as_ref().is_some_and(|name| !name.is_empty())))
        })
    }

    fn may(&self, user: &UserInfo, verb: &str, path: &str) -> BoxFuture<'static, Result<bool, Error>> {
        let attributes = NonResourceAttributes { path: Some(path.to_owned()), verb: Some(verb.to_owned()) };
        let UserInfo { extra, groups, uid, username } = user.clone();
        let spec = SubjectAccessReviewSpec {
            extra,
            groups,
            non_resource_attributes: Some(attributes),
            resource_attributes: None,
            uid,
            user: username,
        };
        let cluster = self.clone();
        Box::pin(async move {
            let status = cluster.review_access(spec).await?;
            Ok(status.allowed && status.denied != Some(true))
        })
    }
}

/// Whoever sent a request.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    key: Key,
    user: Arc<UserInfo>,
}

/// A keyed digest of a token.
type Key = [u8; 32];

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It has no bearer token.
    NoToken,
    /// The API server does not know its token.
    BadToken,
    /// RBAC does not allow it.
    Denied { user: String, verb: String, path: String },
    /// Too many reviews would be needed. One is possible after this time.
    Busy(Duration),
    /// The API server cannot be asked.
    Unavailable,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let challenge = |value: &'static str| [(header::WWW_AUTHENTICATE, HeaderValue::from_static(value))];
        match self {
            Self::NoToken => {
                let text = "this address needs a bearer token, such as one of `kubectl create token`\n";
                (StatusCode::UNAUTHORIZED, challenge(r#"Bearer realm="pilothouse""#), text).into_response()
            }
            Self::BadToken => {
                let text = "the API server does not know this token, or its time is over\n";
                let challenge = challenge(r#"Bearer realm="pilothouse", error="invalid_token""#);
                (StatusCode::UNAUTHORIZED, challenge, text).into_response()
            }
            Self::Denied { user, verb, path } => {
                let text = format!(
                    "{user} may not {verb} {path}: grant it the verb {verb} of the nonResourceURL {path} by a ClusterRole\n"
                );
                (StatusCode::FORBIDDEN, text).into_response()
            }
            Self::Busy(wait) => {
                let seconds = HeaderValue::from(wait.as_secs() + 1);
                let text = "too many requests that the API server would have to be asked about; try again later\n";
                (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, seconds)], text).into_response()
            }
            Self::Unavailable => {
                let text = "the API server could not be asked who may do this; the host's log says why\n";
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        }
    }
}

/// Authenticates and authorizes requests.
pub(super) struct Guard {
    reviews: Arc<dyn Reviews>,
    /// Random bytes of this process, so that digests of tokens tell nothing elsewhere.
    secret: [u8; 32],
    cache: Mutex<Cache>,
    /// Turns for reviews about tokens that were valid.
    known: Semaphore,
    /// Turns for reviews about others.
    strangers: Semaphore,
    warned: Mutex<Option<Instant>>,
}

impl Guard {
    /// # Errors
    /// If the system has no random numbers.
    pub(super) fn new(reviews: Arc<dyn Reviews>) -> anyhow::Result<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| anyhow::anyhow!("there are no random numbers: {error}"))?;
        Ok(Self {
            reviews,
            secret,
            cache: Mutex::new(Cache::new(Instant::now())),
            known: Semaphore::new(AT_ONCE),
            strangers: Semaphore::new(AT_ONCE),
            warned: Mutex::new(None),
        })
    }

    /// Returns who sent a request with these headers.
    pub(super) async fn authenticate(&self, headers: &HeaderMap) -> Result<Identity, Refusal> {
        let token = bearer(headers).ok_or(Refusal::NoToken)?;
        let key: Key = Sha256::new_with_prefix(self.secret).chain_update(token).finalize().into();
        let found = self.cache.lock().user(&key, Instant::now());
        let turns = match found {
            Known::Valid(user) => return Ok(Identity { key, user }),
            Known::Invalid => return Err(Refusal::BadToken),
            Known::WasValid => &self.known,
            Known::Never => {
                self.cache.lock().take_stranger(Instant::now()).map_err(Refusal::Busy)?;
                &self.strangers
            }
        };
        let asked = async {
            let _turn = turns.acquire().await;
            // Another request with this token may have asked meanwhile.
            match self.cache.lock().user(&key, Instant::now()) {
                Known::Valid(user) => return Ok(Some(user)),
                Known::Invalid => return Ok(None),
                Known::WasValid | Known::Never => {}
            }
            let answer = self.reviews.whose(token).await?;
            Ok::<_, Error>(self.cache.lock().learn(key, answer, Instant::now()))
        };
        let user = self.in_time("tokenreviews.authentication.k8s.io", asked).await?.ok_or(Refusal::BadToken)?;
        Ok(Identity { key, user })
    }

    /// Fails unless `identity` may do `verb` with `path`.
    pub(super) async fn authorize(&self, identity: &Identity, verb: &str, path: &str) -> Result<(), Refusal> {
        let Identity { key, user } = identity;
        let found = self.cache.lock().decision(key, verb, path, Instant::now());
        let allowed = match found {
            Some(allowed) => allowed,
            None => {
                self.cache.lock().take_user(key, Instant::now()).map_err(Refusal::Busy)?;
                let asked = async {
                    let _turn = self.known.acquire().await;
                    let known = self.cache.lock().decision(key, verb, path, Instant::now());
                    if let Some(allowed) = known {
                        return Ok(allowed);
                    }
                    let allowed = self.reviews.may(user, verb, path).await?;
                    self.cache.lock().decide(key, verb, path, allowed, Instant::now());
                    Ok::<_, Error>(allowed)
                };
                self.in_time("subjectaccessreviews.authorization.k8s.io", asked).await?
            }
        };
        if allowed {
            return Ok(());
        }
        let user = printable(user.username.as_deref().unwrap_or_default());
        Err(Refusal::Denied { user, verb: verb.to_owned(), path: path.to_owned() })
    }

    async fn in_time<T>(&self, kind: &str, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Refusal> {
        let why = match tokio::time::timeout(WITHIN, asked).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => with_causes(&error),
            Err(_) => format!("no answer within {} s", WITHIN.as_secs()),
        };
        let mut warned = self.warned.lock();
        if warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY) {
            *warned = Some(Instant::now());
            warn!(
                error = why,
                kind,
                "cannot ask who may use the metrics and /debug, so nobody may; the host's account needs the ClusterRole system:auth-delegator"
            );
        }
        Err(Refusal::Unavailable)
    }
}

/// Returns the bearer token of a request that has one `Authorization`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(only), None) = (all.next(), all.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    let is_token = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= TOKEN;
    is_token.then_some(token)
}

#[cfg(test)]
pub(super) mod tests;
