//! The registrar: a server outside the cluster that knows which website has which host name.
//!
//! `PUT URL/HOST` registers a host name, and `DELETE URL/HOST` removes it. Both may be repeated.

use pilothouse_sdk::{
    http::{self, Http},
    metrics::Counter,
    prelude::*,
};
use serde_json::json;

use crate::{Website, WebsiteStatus};

/// Requests to the registrar, by what they do and how they end.
pub(crate) static REQUESTS: Counter<2> =
    Counter::new("website_registrar_requests_total", "Requests to the registrar of host names.")
        .labels(["operation", "result"]);

/// The registrar, during one call.
pub(crate) struct Registrar<'a> {
    pub(crate) url: &'a str,
    pub(crate) http: Http<'a>,
}

impl Registrar<'_> {
    /// Brings the registrar closer to the spec by one step, and writes to `status` what it knows.
    ///
    /// A host name is in the status before the registrar gets it. So the cleanup finds every name that may be there,
    /// though a call may end at any moment.
    ///
    /// # Errors
    /// Fails if the registrar does not accept a request. The status then says what was true before.
    pub(crate) fn step(&self, ctx: &Context, site: &Website, status: &mut WebsiteStatus) -> Result<(), http::Error> {
        let wanted = &site.spec.host;
        if status.host != *wanted {
            if let Some(old) = &status.host {
                self.remove(old)?;
            }
            status.host.clone_from(wanted);
            status.conditions.remove("Registered");
        } else if let Some(host) = wanted
            && !status.conditions.is_true("Registered")
        {
            let owner = json!({"namespace": site.metadata.namespace, "website": site.name()});
            let sent = self.http.put(format!("{}/{host}", self.url)).json(&owner).send();
            counted("register", sent.and_then(http::Response::error_for_status))?;
            status.conditions.set(ctx.condition("Registered", true, "Registered", format!("{host} is registered")));
        }
        Ok(())
    }

    /// Removes a host name. One that is not there counts as removed.
    ///
    /// # Errors
    /// Fails if the registrar does not accept the request.
    pub(crate) fn remove(&self, host: &str) -> Result<(), http::Error> {
        let sent = self.http.delete(format!("{}/{host}", self.url)).send();
        let removed = sent.and_then(|response| match response.status() {
            404 => Ok(response),
            _ => response.error_for_status(),
        });
        counted("remove", removed).map(drop)
    }
}

fn counted(operation: &str, sent: Result<http::Response, http::Error>) -> Result<http::Response, http::Error> {
    REQUESTS.inc([operation, if sent.is_ok() { "success" } else { "error" }]);
    sent
}
