//! Connects to one API server.
//!
//! Owns configuration, credentials, discovery and requests with their errors, and lets an observer count requests. What
//! to read and write is for [`crate::informer`] and `writer` to decide.
//!
//! ```text
//! kubeconfig │ service account ─► credentials ─► Cluster ─► discovery: TypeMeta → Endpoint
//!                                              ├──────► request: list, watch, get, create, patch, delete
//!                                              ├──────► review: who a token belongs to, what a user may do
//!                                              ├──────► actor: sends a plugin's requests as its service account
//!                                              └──────► gate: limits and orders the requests of plugins
//! ```

mod actor;
mod apply;
mod changes;
mod connect;
mod credentials;
mod discovery;
mod error;
mod gate;
mod http2;
mod kubeconfig;
pub(crate) mod metrics;
mod request;
mod review;

use std::sync::Arc;

pub(crate) use actor::Actor;
pub use connect::{ConnectError, ConnectOptions, connect};
pub use discovery::Endpoint;
pub use error::{Error, Status};
pub(crate) use kubeconfig::environment_proxy;
use pilothouse_core::{grant::ActAs, rate::Rate};
pub(crate) use request::Select;
pub use request::{DeleteOptions, Patch, Stream, WriteOptions};
use tokio::runtime::Handle;

use self::{
    actor::Tokens,
    credentials::Credentials,
    discovery::Discovery,
    gate::{Account, Gate},
    metrics::Traffic,
};
use crate::acting::Acting;

/// One API server. Clones share the connection pool and the results of discovery.
#[derive(Clone)]
pub struct Cluster {
    credentials: Arc<Credentials>,
    host: Arc<str>,
    /// Requests run on this runtime, whichever thread makes them. Guests have threads of their own.
    io: Handle,
    discovery: Arc<Discovery>,
    traffic: Arc<Traffic>,
    gate: Arc<Gate>,
    /// The account that pays for requests. `None` for the informers' requests, which need no permit.
    account: Option<Arc<Account>>,
    /// Who sends the requests that pay. `None` for the host.
    actor: Option<Arc<Actor>>,
    tokens: Arc<Tokens>,
    acting: Acting,
}

impl Cluster {
    /// Uses `client` for every request, on the runtime `io`. `host` names the server in metrics.
    pub fn new(client: kube::Client, host: &str, io: Handle) -> Self {
        Self::with(Credentials::fixed(client), host, io, Arc::default())
    }

    fn with(credentials: Credentials, host: &str, io: Handle, traffic: Arc<Traffic>) -> Self {
        let (credentials, gate) = (Arc::new(credentials), Gate::new(&io));
        let acting = Acting::new(true);
        let (discovery, tokens) = (Arc::default(), Arc::default());
        let (account, actor) = (None, None);
        Self { credentials, host: host.into(), io, discovery, traffic, gate, account, actor, tokens, acting }
    }

    /// Returns a handle for one plugin. Its writes and live reads wait for a permit and for this rate. Plugins share
    /// permits fairly.
    #[must_use]
    pub fn for_plugin(&self, plugin: &str, rate: Option<Rate>) -> Self {
        Self { account: Some(self.gate.account(plugin, rate)), ..self.clone() }
    }

    /// Returns a handle whose requests for objects are sent as a service account. `None` sends them as the host.
    /// Discovery and informers are the host's own in any case.
    #[must_use]
    pub(crate) fn acting_as(self, act_as: Option<&ActAs>) -> Self {
        let actor = act_as.map(|act_as| Arc::new(Actor::new(act_as, &self.tokens)));
        Self { actor, ..self }
    }

    /// Returns a handle whose requests for objects are sent by `actor`, or by the host.
    #[must_use]
    pub(crate) fn sent_by(self, actor: Option<Arc<Actor>>) -> Self {
        Self { actor, ..self }
    }

    /// Who sends the requests for objects. `None` for the host.
    pub(crate) fn actor(&self) -> Option<&Arc<Actor>> {
        self.actor.as_ref()
    }

    /// Returns a handle for the Events that the host writes.
    #[must_use]
    pub fn for_events(self) -> Self {
        Self { account: Some(self.gate.account(gate::EVENTS, None)), ..self }
    }

    /// Returns a handle that changes something only while `acting` is on. It asks right before it sends, behind every wait. A request that is
    /// under way when `acting` is turned off fails then.
    #[must_use]
    pub(crate) fn fenced(self, acting: Acting) -> Self {
        Self { acting, ..self }
    }

    /// Returns a handle whose requests run on another runtime.
    #[must_use]
    pub fn on(self, io: Handle) -> Self {
        Self { io, ..self }
    }

    /// The namespace of the pod or of the kubeconfig's context, else `default`.
    pub fn default_namespace(&self) -> String {
        self.credentials.default_namespace()
    }

    /// The server's address, as configured.
    pub fn host(&self) -> &str {
        &self.host
    }
}

#[cfg(test)]
mod tests;
