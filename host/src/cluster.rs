//! The connection to one API server: where it is, how its kinds are addressed, and requests to it.
//!
//! Owns configuration, discovery, ordinary requests with their errors, and the count of what was sent. It decides nothing about
//! what to read or write: that is for [`crate::informer`] and `writer`.
//!
//! ```text
//! kubeconfig │ service account ─► credentials ─► Cluster ─► discovery: TypeMeta → Endpoint
//!                                              ├──────► request: list, watch, get, create, patch, delete
//!                                              └──────► gate: how many requests of plugins at a time, and whose is next
//! ```

mod apply;
mod connect;
mod credentials;
mod discovery;
mod error;
mod gate;
mod http2;
mod kubeconfig;
mod request;

use std::sync::Arc;

pub use connect::{ConnectError, ConnectOptions, connect};
pub use discovery::Endpoint;
pub use error::{Error, Status};
use pilothouse_core::{permits::Usage, rate::Rate};
pub(crate) use request::Select;
pub use request::{DeleteOptions, Patch, Stream, WriteOptions};
use tokio::runtime::Handle;

use self::{
    credentials::Credentials,
    discovery::Discovery,
    gate::{Account, Gate},
};

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
    discovery: Arc<Discovery>,
    observer: Arc<dyn RequestObserver>,
    gate: Arc<Gate>,
    /// Whose requests these are. None: the informers', which need no permit.
    account: Option<Arc<Account>>,
}

impl Cluster {
    /// Uses `client` for every request, on the runtime `io`. `host` names the server in metrics.
    pub fn new(client: kube::Client, host: &str, io: Handle, observer: Arc<dyn RequestObserver>) -> Self {
        Self::with(Credentials::fixed(client), host, io, observer)
    }

    fn with(credentials: Credentials, host: &str, io: Handle, observer: Arc<dyn RequestObserver>) -> Self {
        let (credentials, gate) = (Arc::new(credentials), Gate::new(&io));
        Self { credentials, host: host.into(), io, discovery: Arc::default(), observer, gate, account: None }
    }

    /// The same server for one plugin: its writes and live reads wait for a permit, of which each plugin gets its fair part, and for this
    /// rate.
    #[must_use]
    pub fn for_plugin(&self, plugin: &str, rate: Option<Rate>) -> Self {
        Self { account: Some(self.gate.account(plugin, rate)), ..self.clone() }
    }

    /// The same server for the Events that the host writes.
    #[must_use]
    pub fn for_events(self) -> Self {
        Self { account: Some(self.gate.account(gate::EVENTS, None)), ..self }
    }

    /// The requests of every plugin that has a handle of its own, by name.
    pub fn requests(&self) -> Vec<(Arc<str>, Usage)> {
        self.gate.usage()
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

#[cfg(test)]
mod tests;
