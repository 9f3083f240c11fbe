//! What a successful reconcile wants: children, status and when to be called again, as a value.
//!
//! The host carries it out: it applies only what differs, sets owner references, and prunes what is no longer named.

use std::time::Duration;

use serde::Serialize;

use crate::{Error, Object, contract::exports::pilothouse::plugin::controller as wire};

/// What should be, after this reconcile.
///
/// Starts as "leave everything as it is, and call me when something changes".
///
/// ```
/// use std::time::Duration;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use pilothouse_sdk::Outcome;
///
/// #[derive(serde::Serialize)]
/// struct Status { ready: bool }
///
/// let mut map = ConfigMap::default();
/// map.metadata.name = Some("settings".into());
///
/// Outcome::new().child(map).status(Status { ready: true }).requeue_after(Duration::from_secs(60));
/// ```
#[derive(Debug, Default)]
#[must_use = "an outcome does nothing unless reconcile returns it"]
pub struct Outcome {
    children: Option<Vec<wire::Child>>,
    status: Option<String>,
    requeue_after: Option<Duration>,
    /// The first value that could not be JSON. Kept so that the calls above can be chained.
    unserialisable: Option<String>,
}

impl Outcome {
    /// Children and status stay as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// An object that should exist because the reconciled one does.
    ///
    /// Its kind must be one that the controller [owns](crate::ControllerBuilder::owns). The host sets the namespace, if
    /// absent, and the controlling owner reference. Only the fields that are named are kept as they are here; another
    /// writer's fields are left alone. An object of this name that this plugin did not make is an error: see
    /// [`adopt`](Self::adopt).
    ///
    /// The `stringData` of a Secret becomes `data`. A child that the server stores in another form than it was sent gets the annotation
    /// `pilothouse.dev/applied`.
    ///
    /// Once one child is named, all others that this plugin made for this object before are deleted.
    #[expect(clippy::needless_pass_by_value, reason = "a child is made where it is named")]
    pub fn child<K: Object>(self, object: K) -> Self {
        self.push(&object, false)
    }

    /// A [`child`](Self::child) that may take over an object that exists already.
    #[expect(clippy::needless_pass_by_value, reason = "a child is made where it is named")]
    pub fn adopt<K: Object>(self, object: K) -> Self {
        self.push(&object, true)
    }

    /// All the children at once. With none, every child that this plugin made for this object before is deleted.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::Outcome;
    ///
    /// let shards = (0..3).map(|i| {
    ///     let mut map = ConfigMap::default();
    ///     map.metadata.name = Some(format!("shard-{i}"));
    ///     map
    /// });
    /// Outcome::new().children(shards);
    /// ```
    pub fn children<K: Object>(mut self, objects: impl IntoIterator<Item = K>) -> Self {
        self.children.get_or_insert_default();
        objects.into_iter().fold(self, Self::child)
    }

    /// The whole `status` that the object should have: what was set before and is not in it now is removed.
    ///
    /// A field that serde writes as `null` is sent as `null`: give optional fields
    /// `#[serde(skip_serializing_if = "Option::is_none")]`.
    pub fn status(mut self, status: impl Serialize) -> Self {
        match serde_json::to_string(&status) {
            Ok(status) => self.status = Some(status),
            Err(error) => self.note("the status", &error),
        }
        self
    }

    /// Call again after so long though nothing changed. Counted in whole milliseconds.
    pub fn requeue_after(mut self, delay: Duration) -> Self {
        self.requeue_after = Some(delay);
        self
    }

    fn push<K: Object>(mut self, object: &K, adopt: bool) -> Self {
        match object.to_json() {
            Ok(object) => self.children.get_or_insert_default().push(wire::Child { object, adopt }),
            Err(error) => self.note(&format!("child {} {}", K::type_meta(), object.key()), &error),
        }
        self
    }

    fn note(&mut self, what: &str, error: &serde_json::Error) {
        self.unserialisable.get_or_insert_with(|| format!("{what} cannot be JSON: {error}"));
    }

    pub(crate) fn into_wire(self) -> Result<wire::Outcome, Error> {
        if let Some(problem) = self.unserialisable {
            return Err(Error::terminal(problem));
        }
        let millis = |delay: Duration| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        Ok(wire::Outcome {
            children: self.children.map_or(wire::Children::Unchanged, wire::Children::Desired),
            status: self.status,
            requeue_after: self.requeue_after.map(millis),
        })
    }
}
