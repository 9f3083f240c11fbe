//! The result of a successful reconcile, as a value: children, status, and when to call again.
//!
//! The host applies what differs, sets owner references, and deletes children that are no longer listed.

use std::time::Duration;

use serde::Serialize;

use crate::{AnyObject, Error, Event, Watch, contract::exports::pilothouse::plugin::controller as wire};

/// What should exist after this reconcile.
///
/// A new outcome changes nothing, and waits for the next change.
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
    watches: Option<Vec<wire::Watch>>,
    events: Vec<Event>,
    /// The first value that could not be serialized. Kept here so that the methods can be chained.
    unserialisable: Option<String>,
}

impl Outcome {
    /// Creates an outcome that leaves children and status as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an object that should exist because the reconciled object exists.
    ///
    /// Its kind must be one that the controller [owns](crate::ControllerBuilder::owns). The host sets the controlling
    /// owner reference, and the namespace if it is absent. It keeps the fields that are set here, and leaves the fields
    /// of other writers alone. If an object of this name exists and this plugin did not create it, that is an error:
    /// see [`adopt`](Self::adopt).
    ///
    /// The host sends the `stringData` of a Secret as `data`. If the server stores a child in another form, the host
    /// adds the annotation `pilothouse.dev/applied`.
    ///
    /// As soon as an outcome lists children, the host deletes all other children that this plugin created for this
    /// object.
    #[expect(clippy::needless_pass_by_value, reason = "a child is built where it is passed")]
    pub fn child<K: AnyObject>(self, object: K) -> Self {
        self.push(&object, wire_child)
    }

    /// Adds a [`child`](Self::child) that may take over an existing object.
    #[expect(clippy::needless_pass_by_value, reason = "a child is built where it is passed")]
    pub fn adopt<K: AnyObject>(self, object: K) -> Self {
        self.push(&object, |object| wire::Child { adopt: true, ..wire_child(object) })
    }

    /// Adds a [`child`](Self::child) that the host may delete and create again, when the API server rejects a change
    /// because a field is immutable. Examples are the template of a Job, and a ConfigMap with `immutable: true`.
    ///
    /// The host deletes it with its dependents, and creates it when it is gone. Until then the child is missing.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::Outcome;
    ///
    /// let mut map = ConfigMap { immutable: Some(true), ..ConfigMap::default() };
    /// map.metadata.name = Some("settings".into());
    /// Outcome::new().replace(map);
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "a child is built where it is passed")]
    pub fn replace<K: AnyObject>(self, object: K) -> Self {
        self.push(&object, |object| wire::Child { replace: true, ..wire_child(object) })
    }

    /// Adds several children. Without any child, the host deletes every child that this plugin created for this object.
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
    pub fn children<K: AnyObject>(mut self, objects: impl IntoIterator<Item = K>) -> Self {
        self.children.get_or_insert_default();
        objects.into_iter().fold(self, Self::child)
    }

    /// Sets the complete `status` of the object. Fields that were set before and are missing now are removed.
    ///
    /// Serde writes an empty `Option` as `null`, which is sent as it is. Give such fields
    /// `#[serde(skip_serializing_if = "Option::is_none")]`.
    pub fn status(mut self, status: impl Serialize) -> Self {
        match serde_json::to_string(&status) {
            Ok(status) => self.status = Some(status),
            Err(error) => self.reject("the status", &error),
        }
        self
    }

    /// Calls again after this time, even if nothing changes. Counted in whole milliseconds.
    pub fn requeue_after(mut self, delay: Duration) -> Self {
        self.requeue_after = Some(delay);
        self
    }

    /// Asks the host to cache what this watch selects, beside what the manifest names. For kinds that are known only at
    /// run time, such as those that the reconciled object names.
    ///
    /// - The host keeps the watch while the outcomes of this key ask for it. It calls again when the objects are cached,
    ///   and when the watch is refused. Until then, reading the kind fails with
    ///   [`NotGranted`](crate::cache::Error::NotGranted), whose text says what is missing.
    /// - From then on, what the key reads of the kind wakes it, as with
    ///   [`reads`](crate::ControllerBuilder::reads_with).
    /// - A kind that no API server serves yet is cached as soon as it is there.
    /// - An outcome without any watch leaves the watches of the key as they are. An outcome with one lists all of them:
    ///   see [`watches`](Self::watches).
    /// - At most 64 watches of a key, each of one kind. The watch's [`when`](Watch::when) is ignored.
    ///
    /// The plugin needs the permission to read the kind. A plugin that cannot know the kinds asks for
    /// [all](crate::Permission::to), and the administrator grants some.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    /// use serde_json::json;
    ///
    /// /// Counts the objects of the kind that the ConfigMap names.
    /// fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
    ///     let field = |name: &str| map.data.as_ref().and_then(|data| data.get(name)).cloned().unwrap_or_default();
    ///     let of = TypeMeta::new(field("apiVersion"), field("kind"));
    ///     let message = match ctx.cache().list_dynamic(of.clone()).beside(ctx.key()).keys().collect::<Result<Vec<_>, _>>() {
    ///         Ok(keys) => format!("{} objects", keys.len()),
    ///         Err(error) => error.to_string(),
    ///     };
    ///     Ok(Outcome::new().watch(Watch::to(of)).status(json!({"message": message})))
    /// }
    ///
    /// #[plugin]
    /// fn counter() -> Plugin {
    ///     Plugin::new("Counts objects of any kind.")
    ///         .controller(Controller::of::<ConfigMap>().reconcile(reconcile))
    ///         .permission(Permission::to(TypeMeta::new("*", "*")).verbs([Verb::Read]))
    /// }
    ///
    /// let backups = TypeMeta::new("example.com/v1", "Backup");
    /// let mut map = ConfigMap::default();
    /// map.metadata.name = Some("count".into());
    /// map.data = Some([("apiVersion", "example.com/v1"), ("kind", "Backup")].map(|(k, v)| (k.into(), v.into())).into());
    ///
    /// let mut host = MockHost::new(counter).with(map).with(Dynamic::new(backups.clone(), "nightly"));
    /// let outcome = host.settle(Key::cluster("count")).expect("it settles");
    /// assert_eq!(outcome.status::<serde_json::Value>(), json!({"message": "1 objects"}));
    /// let woken = host.woken_by(|host| host.put(Dynamic::new(backups, "weekly")));
    /// assert_eq!(woken, [Key::cluster("count")]);
    /// ```
    pub fn watch<K>(mut self, watch: Watch<K>) -> Self {
        let watched = watch.erase();
        self.watches.get_or_insert_default().push(watched.wire);
        self
    }

    /// Asks for several [watches](Self::watch). Without any, the host ends all watches of this key.
    pub fn watches<K>(mut self, watches: impl IntoIterator<Item = Watch<K>>) -> Self {
        self.watches.get_or_insert_default();
        watches.into_iter().fold(self, Self::watch)
    }

    /// Adds an Event, which the host writes after the status. At most 256.
    ///
    /// Compare what the reconcile reads with what it returns, and report the difference. The host may repeat a call before
    /// the cluster shows what the call wrote. It writes equal Events of such calls once.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    /// use serde_json::json;
    ///
    /// fn reconcile(_: &Context, pod: &Pod) -> Result<Outcome, Error> {
    ///     let was = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    ///     let outcome = Outcome::new().status(json!({"phase": "Running"}));
    ///     Ok(match was {
    ///         Some("Running") => outcome,
    ///         _ => outcome.event(Event::normal("Started", "it runs")),
    ///     })
    /// }
    ///
    /// fn plugin() -> Plugin {
    ///     Plugin::new("Starts Pods.").controller(Controller::of::<Pod>().events().reconcile(reconcile))
    /// }
    ///
    /// let mut pod = Pod::default();
    /// pod.metadata.name = Some("web".into());
    /// pod.metadata.namespace = Some("default".into());
    /// let mut host = MockHost::new(plugin).with(pod);
    /// host.settle(("default", "web")).expect("it settles");
    /// assert_eq!(host.events().iter().map(ToString::to_string).collect::<Vec<_>>(), ["Normal Started v1 Pod default/web: it runs"]);
    /// ```
    pub fn event(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }

    /// Adds several [`event`](Self::event)s.
    pub fn events(mut self, events: impl IntoIterator<Item = Event>) -> Self {
        self.events.extend(events);
        self
    }

    fn push<K: AnyObject>(mut self, object: &K, child: fn(String) -> wire::Child) -> Self {
        match object.text_of() {
            Ok(object) => self.children.get_or_insert_default().push(child(object)),
            Err(error) => self.reject(&format!("child {} {}", object.kind_of(), object.key_of()), &error),
        }
        self
    }

    fn reject(&mut self, what: &str, error: &serde_json::Error) {
        self.unserialisable.get_or_insert_with(|| format!("{what} cannot be serialized: {error}"));
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
            watches: self.watches.map_or(wire::Watches::Unchanged, wire::Watches::Desired),
            events: self.events.into_iter().map(|event| event.0).collect(),
        })
    }
}

fn wire_child(object: String) -> wire::Child {
    wire::Child { object, adopt: false, replace: false }
}
