//! A Kubernetes API server in memory. `pilothouse dev` starts it if there is no cluster, and most tests use it.
//!
//! It serves `kubectl` and client libraries over HTTP like kube-apiserver: discovery, OpenAPI, lists, watches, all four
//! patches, custom resources, finalizers and garbage collection. It has no controllers other than garbage
//! collection. It asks nobody who they are and lets everybody do everything, but answers reviews of tokens and rights. It calls admission and conversion webhooks over HTTPS. Its data is never on disk and ends with
//! the [`Server`] value.
//!
//! ```text
//!  request ─► handle ─► request (path, query) ─► rest (create, update, patch, delete, list) ─► storage ─► log ─► watch
//!                │                                  │  schema, patch, managed, kinds, crd           │
//!                └► discovery, openapi, metrics     ├► present, table ─► answer                     └► graph ─► housekeeping
//!                                                   └► admission ─► webhook ─► HTTPS
//! ```
//!
//! [`faults`] make the server misbehave, to test how clients cope.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use std::sync::Arc;
//!
//! let server = Arc::new(pilothouse_apiserver::Server::new());
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! println!("{}", pilothouse_apiserver::Server::kubeconfig(listener.local_addr()?));
//! pilothouse_apiserver::serve(listener, std::future::pending(), server).await
//! # }
//! ```

pub mod browser;
pub mod faults;
pub mod managed;
pub mod patch;
pub mod schema;
pub mod yaml;

mod admission;
mod body;
mod builtin;
mod convert;
mod crd;
mod discovery;
mod draws;
mod graph;
mod handle;
mod housekeeping;
mod jsonpath;
mod kinds;
mod local;
mod metrics;
mod names;
mod object;
mod openapi;
mod present;
mod protobuf;
mod rbac;
mod request;
mod requester;
mod resources;
mod rest;
mod review;
mod selector;
mod serve;
mod server;
mod status;
mod storage;
mod table;
mod tokens;
mod watch;
mod webhook;

pub use local::{Local, keep_house};
pub use serve::serve;
pub use server::{Served, Server, Snapshot};

/// The `gitVersion` in `/version`: the Kubernetes version whose behaviour this server follows, with a suffix of its
/// own.
pub const VERSION: &str = "v1.36.0+pilothouse";
