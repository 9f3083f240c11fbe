//! Handlers that see changes themselves, and what they may ask of the host.

use jiff::Timestamp;

use crate::{
    Error, Object, Observed, TypeMeta, Watch, cache::Cache, client::Client, clock,
    contract::observing::exports::pilothouse::plugin::observer as wire, watch::Watched,
};

/// What a handler may ask of the host that calls it.
#[derive(Debug)]
pub struct Host(());

impl Host {
    /// Reads from the host's cache. They are not remembered.
    pub fn cache(&self) -> Cache<'_> {
        Cache::new()
    }

    /// Requests to the API server in the plugin's name.
    pub fn client(&self) -> Client<'_> {
        Client::new()
    }

    /// When this call began. The same all through the call.
    ///
    /// # Panics
    /// As [`Context::now`](crate::Context::now).
    pub fn now(&self) -> Timestamp {
        clock::now()
    }
}

/// A watch, and who is told of it.
pub(crate) struct Observes {
    pub(crate) watch: Watched,
    function: Function,
}

type Function = Box<dyn Fn(&wire::Change) -> Result<(), String>>;

impl Observes {
    pub(crate) fn new<K, F>(watch: Watch<K>, function: F) -> Self
    where
        K: Object,
        F: Fn(&Host, &Observed<K>) -> Result<(), Error> + 'static,
    {
        let call = move |wire: &wire::Change| {
            let observed = Observed::of(wire)?;
            function(&Host(()), &observed)
                .map_err(|error| format!("cannot observe {} {}: {error}", wire.of, observed.change.key()))
        };
        Self { watch: watch.erase(), function: Box::new(call) }
    }

    pub(crate) fn of(&self) -> &TypeMeta {
        &self.watch.wire.of
    }

    pub(crate) fn call(&self, change: &wire::Change) -> Result<(), String> {
        (self.function)(change)
    }
}
