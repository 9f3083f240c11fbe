//! The embedded Kubernetes API server of pilothouse dev and of tests.

pub mod managed;
pub mod patch;
pub mod schema;
