//! Requests of plugins to servers outside the cluster's API.
//!
//! Each plugin has a [`Client`] with connections of its own. The caller says for each request, and for each redirect,
//! whether it is granted:
//!
//! ```text
//! request ─► admitted? ─► idle connection, or: resolve ─► all addresses public? ─► connect to one of these ─► TLS
//!               ▲                                                                                              │
//!               └─────────────────────────────── redirect, at most 10 ◄── status, headers, body up to 4 MiB ◄──┘
//! ```
//!
//! A name is resolved once for each connection, so that no second answer of DNS can name another address than the
//! checked one. Through a proxy, the proxy resolves the name, and the host cannot check the address.

mod client;
mod connect;
pub(crate) mod metrics;
mod pool;
mod redirect;

pub use client::{Admission, Client, Outbound};

#[cfg(test)]
mod tests;
