//! Peers: other programs, measured on the same objects.

pub(crate) mod engine;
pub(crate) mod go;
pub(crate) mod kube_runtime;
