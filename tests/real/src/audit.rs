//! The API server's audit log: who sent which request, and when.
//!
//! It has every request for resources except watches. Writes of Leases come with both bodies, all others without. A request is in it once it
//! has been answered: the server writes the line before it sends a short answer, and soon after it has sent a long one.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

/// Returns what the server logs, as its `--audit-policy-file`.
pub(crate) fn policy() -> Value {
    let leases = json!({"group": "coordination.k8s.io", "resources": ["leases"]});
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": true,
        "rules": [
            {"level": "None", "nonResourceURLs": ["*"]},
            {"level": "None", "verbs": ["watch"]},
            {"level": "RequestResponse", "verbs": ["create", "update", "patch", "delete"], "resources": [leases]},
            {"level": "Metadata"},
        ],
    })
}

/// Reads the audit log of one server as it grows.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    /// The end of the last line that was read.
    offset: u64,
}

impl Log {
    /// Begins at the end of a log as it is now. It need not exist yet.
    pub(crate) fn from_now(path: PathBuf) -> Self {
        let offset = path.metadata().map_or(0, |file| file.len());
        Self { path, offset }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the requests that were logged since the last call.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is no event.
    pub fn more(&mut self) -> Result<Vec<Event>> {
        let unreadable = || format!("cannot read the audit log {}", self.path.display());
        let mut file = match File::open(&self.path) {
            // Nothing has been logged yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.with_context(unreadable)?,
        };
        file.seek(SeekFrom::Start(self.offset)).with_context(unreadable)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(unreadable)?;
        // The server may be in the middle of a line.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.offset += whole as u64;
        events(&bytes[..whole])
    }
}

/// Reads the lines of an audit log.
///
/// # Errors
/// A line is no event.
pub fn events(lines: &[u8]) -> Result<Vec<Event>> {
    lines
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            serde_json::from_slice(line)
                .with_context(|| format!("not an audit event: {}", String::from_utf8_lossy(line)))
        })
        .collect()
}

/// A request that was answered.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Such as `get` or `patch`.
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub uri: String,
    /// Whose credentials the client used.
    pub user: User,
    /// As whom it acted, if as somebody else.
    pub impersonated_user: Option<User>,
    /// The client by its own words.
    #[serde(default)]
    pub user_agent: String,
    /// What the request is about.
    #[serde(default)]
    pub object_ref: ObjectRef,
    /// What came of it.
    #[serde(default)]
    pub response_status: Status,
    /// The body, of a write of a Lease.
    #[serde(default)]
    pub request_object: Value,
    /// The answer, to a write of a Lease.
    #[serde(default)]
    pub response_object: Value,
    /// When the request had arrived, since the Unix epoch.
    #[serde(rename = "requestReceivedTimestamp", deserialize_with = "since_epoch")]
    pub received: Duration,
    /// When it had been answered, since the Unix epoch.
    #[serde(rename = "stageTimestamp", deserialize_with = "since_epoch")]
    pub done: Duration,
}

impl Event {
    /// Returns the account whose permissions counted.
    pub fn account(&self) -> &str {
        &self.impersonated_user.as_ref().unwrap_or(&self.user).username
    }

    /// `true` if the request was to change something.
    pub fn is_write(&self) -> bool {
        matches!(&*self.verb, "create" | "update" | "patch" | "delete" | "deletecollection")
            // These only ask whether somebody is or may do something.
            && !matches!(&*self.object_ref.api_group, "authentication.k8s.io" | "authorization.k8s.io")
    }

    /// `true` if the server did what the request asked for.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.response_status.code)
    }
}

/// An account.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct User {
    /// Such as `system:serviceaccount:default:default`.
    #[serde(default)]
    pub username: String,
}

/// The resource of a request. Members that do not apply are empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Its group; empty for the core group.
    pub api_group: String,
    /// Its plural, such as `configmaps`.
    pub resource: String,
    /// Such as `status`.
    pub subresource: String,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// An answer.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Status {
    /// The HTTP status code.
    #[serde(default)]
    pub code: u16,
}

fn since_epoch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time: jiff::Timestamp = text.parse().map_err(de::Error::custom)?;
    let micros = u64::try_from(time.as_microsecond()).map_err(|_| de::Error::custom("a time before 1970"))?;
    Ok(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use std::io::Write;

    use super::*;

    const LINE: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/red/configmaps/gala-0?fieldManager=a","verb":"patch","user":{"username":"admin","groups":["system:masters"]},"impersonatedUser":{"username":"system:serviceaccount:red:apple"},"sourceIPs":["127.0.0.1"],"userAgent":"pilothouse","objectRef":{"resource":"configmaps","namespace":"red","name":"gala-0","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"1970-01-01T00:00:01.000002Z","stageTimestamp":"1970-01-01T00:00:01.500000Z"}"#;

    #[test]
    fn a_log_is_read_line_by_line_as_it_grows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        std::fs::write(&path, "before\n").unwrap();
        let mut log = Log::from_now(path.clone());
        let mut file = File::options().append(true).open(&path).unwrap();
        let (half, rest) = LINE.split_at(100);
        file.write_all(half.as_bytes()).unwrap();
        assert!(log.more().unwrap().is_empty());
        file.write_all(format!("{rest}\n").as_bytes()).unwrap();
        let events = log.more().unwrap();
        assert!(log.more().unwrap().is_empty());
        let [event] = &*events else { panic!("{events:?}") };
        assert_eq!((&*event.verb, &*event.object_ref.name, &*event.object_ref.api_group), ("patch", "gala-0", ""));
        assert_eq!(event.received, Duration::from_micros(1_000_002));
        assert_eq!(event.done, Duration::from_millis(1_500));
        assert!(event.is_write() && event.succeeded());
        assert_eq!(event.account(), "system:serviceaccount:red:apple");
        file.write_all(b"{}\n").unwrap();
        assert!(log.more().unwrap_err().to_string().contains("not an audit event: {}"));
    }

    #[test]
    fn a_review_is_no_write() {
        let line = LINE.replace(r#""resource""#, r#""apiGroup":"authorization.k8s.io","resource""#);
        assert!(!events(line.as_bytes()).unwrap()[0].is_write());
    }
}
