//! The connection to one API server: where it is, how its kinds are addressed, and requests to it.
//!
//! Owns configuration, discovery, ordinary requests with their errors, and the count of what was sent. It decides nothing about
//! what to read or write: that is for [`crate::informer`] and [`crate::writer`].
//!
//! ```text
//! kubeconfig │ service account ─► credentials ─► Cluster ─► discovery: TypeMeta → Endpoint
//!                                              └──────► request: list, watch, get, create, patch, delete
//! ```

mod apply;
mod connect;
mod credentials;
mod discovery;
mod kubeconfig;
mod request;

pub use connect::{ConnectError, ConnectOptions, connect};
pub use discovery::Endpoint;
pub(crate) use request::Select;
pub use request::{DeleteOptions, Error, Patch, Status, Stream, WriteOptions};

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;
use pilothouse_core::key::TypeMeta;
use tokio::runtime::Handle;

use self::credentials::Credentials;

/// Sees every request that was answered, or was not. For metrics.
pub trait RequestObserver: Send + Sync + 'static {
    /// `code` is the HTTP status, or none where no answer came.
    fn requested(&self, method: &http::Method, host: &str, code: Option<u16>);
}

impl RequestObserver for () {
    fn requested(&self, _: &http::Method, _: &str, _: Option<u16>) {}
}

/// One API server. Clones share the connection pool and what discovery found.
#[derive(Clone)]
pub struct Cluster {
    credentials: Arc<Credentials>,
    host: Arc<str>,
    /// Requests run here, whichever thread asks: guests run on threads of their own.
    io: Handle,
    endpoints: Arc<RwLock<HashMap<TypeMeta, Arc<Endpoint>>>>,
    observer: Arc<dyn RequestObserver>,
}

impl Cluster {
    /// Uses `client` for every request, on the runtime `io`. `host` names the server in metrics.
    pub fn new(client: kube::Client, host: &str, io: Handle, observer: Arc<dyn RequestObserver>) -> Self {
        Self::with(Credentials::fixed(client), host, io, observer)
    }

    fn with(credentials: Credentials, host: &str, io: Handle, observer: Arc<dyn RequestObserver>) -> Self {
        Self { credentials: Arc::new(credentials), host: host.into(), io, endpoints: Arc::default(), observer }
    }

    /// The same, with its requests on another runtime.
    #[must_use]
    pub fn on(self, io: Handle) -> Self {
        Self { io, ..self }
    }

    /// The server's address, as configured.
    pub fn host(&self) -> &str {
        &self.host
    }
}
