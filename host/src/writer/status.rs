//! The status of a reconciled object.

use pilothouse_core::{diff, manifest::Verb, object::Subresource};
use serde_json::{Value, json};

use super::{
    error::Error,
    handle::{Owner, Writer},
    report::Report,
    send::is_version,
};
use crate::informer::View;

const STATUS: Option<Subresource> = Some(Subresource::Status);

impl Writer {
    /// Makes `status` (JSON) the status of `owner`.
    ///
    /// # Errors
    /// Returns the reason if the status is not written.
    pub async fn status(&self, owner: &Owner<'_>, view: &View, status: &str) -> Result<Report, Error> {
        let _room = self.room(status.len()).await;
        let digest = self.status_digest(status);
        let status: Value = serde_json::from_str(status).map_err(|error| Error::Status(error.to_string()))?;
        let Value::Object(members) = &status else {
            return Err(Error::Status("it is another JSON value".into()));
        };
        let (of, key) = (owner.object.type_meta().clone(), owner.object.key().clone());
        let (namespace, name) = (key.namespace.as_deref(), &*key.name);
        self.grants.load().check(Verb::Apply, &of, STATUS, namespace, Some(name))?;
        let mut report = Report::default();
        // The newest version: children were written since the plugin saw the object.
        let live = view.find(&of, &key).filter(|(live, _)| live.uid() == owner.object.uid());
        let Some((live, keep)) = live else { return Ok(report) };
        if let Some(path) = keep.missing("status", members) {
            return Err(Error::LeftOut { of, key, path });
        }
        self.identity.report_leftovers(&live);
        let mut desired = json!({ "status": status });
        if diff::holds(&live, self.manager(), STATUS, &desired) || live.is_status_settled(digest, &self.digests) {
            report.add(Ok(self.skipped()));
            return Ok(report);
        }
        desired["apiVersion"] = (*of.api_version).into();
        desired["kind"] = (*of.kind).into();
        desired["metadata"] = match namespace {
            Some(namespace) => json!({ "namespace": namespace, "name": name, "uid": live.uid().to_string() }),
            None => json!({ "name": name, "uid": live.uid().to_string() }),
        };
        match self.apply(&of, &key, &desired, STATUS, true).await {
            Ok(applied) => {
                report.written += 1;
                // The server may store the status in another form. Without this, every reconcile would send it again.
                if !diff::holds(&applied, self.manager(), STATUS, &desired)
                    && let Some(cached) = view.get(&of, &key).filter(|cached| is_version(cached, &applied))
                {
                    cached.settle_status(digest, &self.digests);
                }
            }
            // The object was deleted meanwhile, and the watch has shown that.
            Err(Error::Request { source, .. }) if source.is_not_found() && view.get(&of, &key).is_none() => {}
            Err(Error::Request { source, .. }) if source.is_not_found() => return Err(Error::NoStatus { of, key }),
            Err(error) => return Err(error),
        }
        Ok(report)
    }
}
