//! Asks the API server who a token belongs to, and what a user may do.
//!
//! A review changes nothing, so a standby may ask too. It needs no permit, because the callers bound how many they
//! send. The host's account needs `create` on both kinds, as in the ClusterRole `system:auth-delegator`.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus},
};
use pilothouse_core::grant::ServiceAccount;
use serde::{Serialize, de::DeserializeOwned};

use super::{Cluster, Error, request::build};
use crate::acting::Acting;

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Bytes of an answer. A user may be in hundreds of groups.
const ANSWER: usize = 1 << 20;

impl Cluster {
    /// Asks whose token this is.
    ///
    /// # Errors
    /// If the server cannot be asked. A token that it does not know is no error.
    pub(crate) async fn review_token(&self, token: &str) -> Result<TokenReviewStatus, Error> {
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        Ok(self.review(TOKENS, &review).await?.status.unwrap_or_default())
    }

    /// Asks whether a user may do something.
    ///
    /// # Errors
    /// If the server cannot be asked. A denial is no error.
    pub(crate) async fn review_access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> Result<SubjectAccessReviewStatus, Error> {
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        Ok(self.review(ACCESS, &review).await?.status.unwrap_or_default())
    }

    /// Returns whether a service account may do something with a resource.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub(crate) async fn may(&self, account: &ServiceAccount, what: ResourceAttributes) -> Result<bool, Error> {
        let spec = SubjectAccessReviewSpec {
            user: Some(account.user()),
            groups: Some(account.groups().to_vec()),
            resource_attributes: Some(what),
            ..SubjectAccessReviewSpec::default()
        };
        let status = self.review_access(spec).await?;
        Ok(status.allowed && status.denied != Some(true))
    }

    async fn review<R: Serialize + DeserializeOwned>(&self, path: &str, review: &R) -> Result<R, Error> {
        let body = serde_json::to_vec(review).map_err(|error| Error::Body(error.to_string()))?;
        let request = build(Method::POST, path, Some("application/json"), Bytes::from(body))?;
        let asking = Self { acting: Acting::new(true), ..self.clone() };
        let answer = asking.call_at_once(request, ANSWER).await?;
        serde_json::from_slice(&answer)
            .map_err(|source| Error::Answer { path: path.to_owned(), source: Arc::new(source) })
    }
}
