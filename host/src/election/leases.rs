//! Lists and watches Leases, and reads what stands in them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use pilothouse_core::{election::Record, key::TypeMeta, list::list_page};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    clock::Clock,
    cluster::{Cluster, Error, Select, Stream},
};

/// The field manager of Leases.
pub(crate) const MANAGER: &str = "pilothouse";

/// The longest line of a watch. A Lease has some hundred bytes, and all its annotations have 256 KiB at most.
const MAX_LINE: usize = 1 << 20;

/// How long the server keeps a watch open.
const WATCH: Duration = Duration::from_secs(300);

/// How long a host that stops tries to release its Lease. Otherwise its time passes.
pub(crate) const RELEASE: Duration = Duration::from_secs(5);

pub(crate) fn kind() -> TypeMeta {
    TypeMeta::new("coordination.k8s.io/v1", "Lease")
}

/// Returns the time of day for people, as Kubernetes' `MicroTime`.
pub(crate) fn time() -> String {
    format!("{:.6}", Clock::System.now())
}

/// Returns the `spec` of a Lease. One that is not valid is nobody's, as one without a holder.
pub(crate) fn record(object: &Value) -> Record {
    object.get("spec").and_then(|spec| Record::deserialize(spec).ok()).unwrap_or_default()
}

/// Returns a text of the metadata, or an empty one.
pub(crate) fn metadata<'a>(object: &'a Value, member: &str) -> &'a str {
    object["metadata"][member].as_str().unwrap_or_default()
}

/// Returns the members of a `spec` with those of another one over it. Those that this version does not know stay.
pub(crate) fn merged(spec: Value, over: Value) -> Value {
    match (spec, over) {
        (Value::Object(mut members), Value::Object(over)) => {
            members.extend(over);
            Value::Object(members)
        }
        (_, over) => over,
    }
}

pub(crate) fn parse(bytes: &[u8], path: &str) -> Result<Value, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::Answer { path: path.to_owned(), source: Arc::new(error) })
}

/// Returns the selected Leases, and the version to watch from.
pub(crate) async fn list(cluster: &Cluster, select: &Select<'_>) -> Result<(Vec<Value>, String), Error> {
    let path = || format!("leases of {}", select.namespace.unwrap_or_default());
    let endpoint = cluster.endpoint(&kind()).await?;
    let body = cluster.list(&endpoint, select, 0, None, None).await?;
    let (meta, items) = list_page(&body)
        .map_err(|error| Error::Unreachable(format!("the list of {} is not valid: {error}", path())))?;
    let objects = items.iter().map(|item| parse(item, &path())).collect::<Result<_, _>>()?;
    Ok((objects, meta.resource_version.unwrap_or_default()))
}

/// A change of a Lease.
pub(crate) struct Change {
    /// The Lease as it is now, or was when it was deleted.
    pub(crate) object: Value,
    pub(crate) is_gone: bool,
}

/// An open watch of Leases.
pub(crate) struct Watch {
    /// The lock is always free. It makes the watch `Sync`.
    stream: Mutex<Stream>,
    buffer: Vec<u8>,
}

impl Watch {
    /// Opens a watch from a version on.
    pub(crate) async fn open(cluster: &Cluster, select: &Select<'_>, version: &str) -> Result<Self, Error> {
        let endpoint = cluster.endpoint(&kind()).await?;
        let stream = cluster.watch(&endpoint, select, version, false, WATCH).await?;
        Ok(Self { stream: Mutex::new(stream), buffer: Vec::new() })
    }

    /// Returns the next change, or `None` if the watch has ended.
    ///
    /// # Cancellation
    /// Safe.
    pub(crate) async fn next(&mut self) -> Option<Change> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if let Some(change) = changed(&line)? {
                    return Some(change);
                }
            }
            let bytes: Bytes = self.stream.get_mut().next().await?.ok()?;
            if self.buffer.len() + bytes.len() > MAX_LINE {
                return None;
            }
            self.buffer.extend_from_slice(&bytes);
        }
    }
}

/// Reads a line of the watch. Returns `None` if the watch must be opened again, and `Some(None)` if no Lease has changed.
#[allow(clippy::option_option, reason = "the outer one ends the watch")]
fn changed(line: &[u8]) -> Option<Option<Change>> {
    let mut event: Value = serde_json::from_slice(line).ok()?;
    let object = event["object"].take();
    object.pointer("/metadata/resourceVersion")?.as_str()?;
    match event["type"].as_str()? {
        "ADDED" | "MODIFIED" => Some(Some(Change { object, is_gone: false })),
        "DELETED" => Some(Some(Change { object, is_gone: true })),
        "BOOKMARK" => Some(None),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_of_a_watch_say_how_a_lease_is_now() {
        let line = |of_type: &str| {
            let object = json!({"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": "a"}});
            changed(json!({"type": of_type, "object": object}).to_string().as_bytes())
        };
        let change = line("MODIFIED").unwrap().unwrap();
        assert_eq!((metadata(&change.object, "resourceVersion"), record(&change.object).holder()), ("7", Some("a")));
        assert!(!change.is_gone && line("DELETED").unwrap().unwrap().is_gone);
        assert!(line("BOOKMARK").unwrap().is_none());
        assert!(line("ERROR").is_none());
        assert!(changed(b"{").is_none());
    }

    #[test]
    fn times_have_microseconds() {
        let time = time();
        assert!(time.len() == 27 && time.ends_with('Z') && time.contains('.'), "{time}");
    }
}
