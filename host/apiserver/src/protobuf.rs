//! Kubernetes' protobuf bodies, as some `kubectl create` commands send them.

use serde_json::Value;

use crate::status::{Result, Status};

/// The Content-Type of such bodies.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

pub(crate) fn decode(_body: &[u8]) -> Result<Value> {
    Err(Status::unsupported_body(MEDIA_TYPE))
}
