//! The configurations by which the API server knows a plugin's webhooks.

use pilothouse_core::{
    diff,
    key::{Key, TypeMeta},
    object::Object,
};
use serde_json::Value;

use super::{error::Error, fence::Closed, handle::Writer, send::deleted_uid};
use crate::{
    acting::Acting,
    cluster::{Cluster, DeleteOptions},
    informer::Informers,
};

impl Writer {
    /// Applies a webhook configuration, unless `live` shows that the apply would change nothing. Returns `true` if it
    /// was sent.
    ///
    /// # Errors
    /// If this process may not act, or the API server rejects the request.
    pub async fn configure(
        &self,
        of: &TypeMeta,
        name: &str,
        live: Option<&Object>,
        desired: &Value,
    ) -> Result<bool, Error> {
        if live.is_some_and(|live| diff::holds(live, self.manager(), None, desired)) {
            return Ok(false);
        }
        // A change that another client made to its fields meanwhile is lost.
        self.apply(of, &Key::new(None, name), desired, None, true).await?;
        Ok(true)
    }
}

/// Deletes a webhook configuration whose plugin is gone, if it is still as `live` shows it.
///
/// # Errors
/// If this process may not act, or the API server rejects the request.
pub(crate) async fn remove_configuration(
    cluster: &Cluster,
    informers: &Informers,
    acting: &Acting,
    live: &Object,
) -> Result<(), Error> {
    if !acting.is_allowed() {
        return Err(Error::Closed(Closed::NotActing));
    }
    let (of, key) = (live.type_meta().clone(), live.key().clone());
    let options = DeleteOptions { propagation: "Background", uid: Some(live.uid().clone()), resource_version: None };
    match cluster.delete(&of, None, &key.name, &options).await {
        Ok(answer) => {
            let uid = deleted_uid(&answer).unwrap_or_else(|| live.uid().clone());
            informers.own_delete(&of, &key, &uid);
            Ok(())
        }
        Err(error) if error.is_not_found() => Ok(()),
        Err(source) => Err(Error::Request { verb: "delete", of, key, source }),
    }
}
