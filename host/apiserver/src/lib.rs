//! A Kubernetes API server in memory: what `pilothouse dev` starts where there is no cluster, and what tests use first.
//!
//! It speaks HTTP as kube-apiserver does, to `kubectl` and to client libraries: discovery, OpenAPI, lists, watches, all four
//! patches, custom resources, finalizers, garbage collection. It has no authentication, no controllers beyond garbage
//! collection, and no disk: what it keeps goes with the [`Server`] value.
//!
//! ```text
//!  request ─► handle ─► request (path, query) ─► rest (create, update, patch, delete, list) ─► storage ─► log ─► watch
//!                │                                  │  schema, patch, managed, kinds, crd           │
//!                └► discovery, openapi, metrics     └► present, table ─► answer                     └► graph ─► housekeeping
//! ```
//!
//! Where clients are to be shown to survive a bad day, [`faults`] make one.
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

mod body;
mod builtin;
mod convert;
mod crd;
mod discovery;
mod graph;
mod handle;
mod housekeeping;
mod jsonpath;
mod kinds;
mod metrics;
mod names;
mod object;
mod openapi;
mod present;
mod protobuf;
mod request;
mod resources;
mod rest;
mod selector;
mod serve;
mod server;
mod status;
mod storage;
mod table;
mod watch;

pub use serve::serve;
pub use server::{Server, Snapshot};

/// What `/version` says: the Kubernetes version whose behaviour this server follows, marked as not being it.
pub const VERSION: &str = "v1.36.0+pilothouse";
