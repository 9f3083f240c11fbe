//! What the host shows of itself over HTTP: whether it lives, whether it is ready, its metrics, and tables of what it
//! does.
//!
//! ```text
//! $ curl -s 'localhost:8443/readyz?verbose'
//! [+]plugin directory ok
//! [+]informers ok
//! [+]API server ok
//! readyz check passed
//!
//! What follows concerns single plugins, and not whether the host is ready:
//! [-]plugin apples failed: cannot compile: not a WebAssembly module
//! [+]informer stable.example.com/v1 MyApple ok
//! ```
//!
//! Rooms count their figures themselves and register them for `/metrics`. The servers read the rest from a [`View`] of
//! the host. One thing can be done through them: to end a plugin's quarantine.
//!
//! - `routes`: the table of all routes, with what each needs
//! - `pages`: what each route answers
//! - `guard`: who may use a route, as the API server says
//! - `server`, `connections`: the servers of metrics and of probes, and the bounds of their connections

mod connections;
mod guard;
mod pages;
mod plugins;
mod process;
mod readiness;
mod routes;
mod server;
mod table;

use std::sync::{Arc, atomic::AtomicBool};

pub use pages::State;
pub use plugins::{PluginRow, ServingRow};
pub(crate) use process::register;
#[cfg(test)]
use server::Servers;
pub use server::{Endpoints, Metrics, start};

pub use crate::tls::Certificates;
use crate::{
    cluster::Cluster,
    dispatch::Dispatch,
    guests::Guests,
    informer::{InformerRow, Informers},
    plugin::Statuses,
    spread::Sharing,
    wasm::Engine,
    webhook::{Board, WebhookRow},
};

/// The parts of a running host.
#[derive(Clone)]
pub struct View {
    pub cluster: Cluster,
    pub informers: Informers,
    pub statuses: Statuses,
    pub dispatch: Arc<Dispatch>,
    pub guests: Guests,
    pub engine: Engine,
    /// Who acts.
    pub(crate) sharing: Sharing,
    pub(crate) webhooks: Arc<Board>,
    /// `true` once the first look at plugins and informers is over.
    pub began: Arc<AtomicBool>,
}

/// Rows of `/debug/…`. Called for each request, on a thread that may wait for a lock.
pub trait Inspect: Send + Sync + 'static {
    /// Returns a row for each informer.
    fn informers(&self) -> Vec<InformerRow>;

    /// Returns a row for each plugin.
    fn plugins(&self) -> Vec<PluginRow>;

    /// Returns a row for each webhook.
    fn webhooks(&self) -> Vec<WebhookRow>;
}

impl Inspect for View {
    fn informers(&self) -> Vec<InformerRow> {
        self.informers.rows()
    }

    fn plugins(&self) -> Vec<PluginRow> {
        plugins::rows(self)
    }

    fn webhooks(&self) -> Vec<WebhookRow> {
        self.webhooks.rows(&self.dispatch)
    }
}

/// One check of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// What is checked, such as `informer stable.example.com/v1 MyApple`.
    pub name: String,
    /// `true` if it passed.
    pub ok: bool,
    /// Why it failed and what to do, or a remark. May be empty, and may have several lines.
    pub detail: String,
}

/// Checks of `/readyz`. Called for each request, on a thread that may wait for a lock.
pub trait Readiness: Send + Sync + 'static {
    /// Returns the checks of the whole host. It is ready if all pass.
    fn host(&self) -> Vec<Check>;

    /// Returns a check for each plugin, file and informer. The host is ready even if one of them fails.
    fn parts(&self) -> Vec<Check>;

    /// Returns the check of one plugin, or `None` if no plugin has that name.
    fn plugin(&self, name: &str) -> Option<Check>;
}

/// What can be done by hand.
pub trait Control: Send + Sync + 'static {
    /// Ends the plugin's quarantine.
    fn release(&self, plugin: &str) -> Release;
}

/// The outcome of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// The quarantine has ended.
    Released,
    /// The plugin was not quarantined.
    Free,
    /// No plugin of that name is at work. Holds the names of those that are.
    Unknown(Vec<String>),
}

#[cfg(test)]
mod tests;
