//! Handlers that get the changes of objects.

use jiff::Timestamp;

use crate::{
    AnyObject, Error, Observed, TypeMeta, Watch, cache::Cache, client::Client, clock,
    contract::observing::exports::pilothouse::plugin::observer as wire, events::Events, http::Http, watch::Watched,
};

/// What a handler can call in the host.
#[derive(Debug)]
pub struct ObserverContext(());

impl ObserverContext {
    /// Returns the host's cache. The host does not track the reads of a handler.
    pub fn cache(&self) -> Cache<'_> {
        Cache::new()
    }

    /// Returns the client, which sends requests to the API server in the plugin's name.
    pub fn client(&self) -> Client<'_> {
        Client::new()
    }

    /// Returns what records Events during the call. Each must say which object it is [about](crate::Event::about).
    pub fn events(&self) -> Events<'_> {
        Events::new()
    }

    /// Returns the client for servers outside the cluster's API.
    pub fn http(&self) -> Http<'_> {
        Http::new()
    }

    /// Returns when this call began. The time stays the same during the call.
    ///
    /// # Panics
    /// Panics as [`Context::now`](crate::Context::now) does.
    pub fn now(&self) -> Timestamp {
        clock::now()
    }
}

/// A watch and its handler.
pub(crate) struct Observes {
    pub(crate) watch: Watched,
    function: Function,
}

type Function = Box<dyn Fn(&wire::Change) -> Result<(), String>>;

impl Observes {
    pub(crate) fn new<K, F>(watch: Watch<K>, function: F) -> Self
    where
        K: AnyObject,
        F: Fn(&ObserverContext, &Observed<K>) -> Result<(), Error> + 'static,
    {
        let call = move |wire: &wire::Change| {
            let observed = Observed::of(wire)?;
            function(&ObserverContext(()), &observed)
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
