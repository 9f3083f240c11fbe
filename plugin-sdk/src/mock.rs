//! A host for native tests: the plugin's own code under `cargo test`, with no cluster and no sandbox.
//!
//! [`MockHost`] calls the plugin through the contract's types, answers its reads out of an in-memory cache, and its
//! requests out of a script. It denies what the plugin's manifest does not ask for, as the real host does. A request that
//! the test does not [expect](MockHost::expect) fails the test, and so does an expected one that never comes.
//!
//! [`MockHost::reconcile`] gives the outcome of one call and changes nothing; [`MockHost::settle`] carries outcomes out
//! until nothing changes any more.
//!
//! ```
//! use k8s_openapi::api::core::v1::{ConfigMap, Secret};
//! use pilothouse_sdk::mock::MockHost;
//! use pilothouse_sdk::prelude::*;
//!
//! /// Every Secret gets a ConfigMap that names its keys.
//! fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
//!     let mut index = ConfigMap::default();
//!     index.metadata.name = Some(format!("{}-keys", secret.name()));
//!     index.data = Some(secret.data.iter().flatten().map(|(key, _)| (key.clone(), String::new())).collect());
//!     Ok(Outcome::new().child(index))
//! }
//!
//! fn plugin() -> Plugin {
//!     let controller = Controller::of::<Secret>().owns::<ConfigMap>().without_status().reconcile(reconcile);
//!     Plugin::new("Names the keys of every Secret.").controller(controller)
//! }
//!
//! let mut secret = Secret::default();
//! secret.metadata.name = Some("token".into());
//! secret.metadata.namespace = Some("default".into());
//!
//! let mut host = MockHost::new(plugin).with(secret);
//! host.settle(("default", "token")).expect("it settles");
//! assert!(host.get::<ConfigMap>(("default", "token-keys")).is_some());
//! ```
//!
//! # What it leaves out
//! It is no API server: nothing is defaulted, validated or pruned by a schema; server-side apply replaces lists as a whole
//! and knows no other field manager; finalizers and garbage collection do not run. Where that matters, test against a
//! server.

mod apply;
mod outcome;
mod script;
mod selector;
mod world;

use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::contract::exports::pilothouse::plugin::controller as wire;
use crate::entry::{self, Define};
use crate::host::with_host;
use crate::{Key, Object, Permission, Phase};

pub use outcome::{Failure, Outcome};
pub use script::{Call, Expected};
pub use world::Line;
use world::World;

/// The manifest that a plugin answers to a configuration, or why it refuses it.
///
/// ```
/// use pilothouse_sdk::mock::describe;
/// use pilothouse_sdk::prelude::*;
///
/// fn plugin() -> Plugin {
///     Plugin::new("Does nothing.")
/// }
///
/// assert_eq!(describe(plugin, "{}").unwrap().description, "Does nothing.");
/// assert_eq!(describe(plugin, r#"{"size": 3}"#).unwrap_err(), "this plugin takes no configuration");
/// ```
///
/// # Errors
/// What the plugin says is wrong with the configuration.
#[expect(clippy::needless_pass_by_value, reason = "a function is handed over, as to MockHost::new")]
pub fn describe<S>(define: impl Define<S>, config: &str) -> Result<wire::Manifest, String> {
    entry::describe(&define, "0.0.0", config)
}

type Reconcile = Box<dyn Fn(&str, wire::Request) -> Result<wire::Outcome, wire::Failure>>;

/// The host of one plugin in one test.
pub struct MockHost {
    reconcile: Reconcile,
    config: String,
    manifest: wire::Manifest,
    world: Rc<World>,
}

impl MockHost {
    /// A host with an empty cluster for a plugin without configuration. Its clock stands at 2026-01-01T00:00:00Z.
    ///
    /// # Panics
    /// Where the plugin cannot describe itself, or its manifest is one that no host would load.
    #[track_caller]
    pub fn new<S>(define: impl Define<S> + 'static) -> Self {
        Self::load(define, "{}".to_owned())
    }

    /// A host with an empty cluster for a plugin with a configuration, as the administrator would write it.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn configured<S>(define: impl Define<S> + 'static, config: impl Serialize) -> Self {
        Self::load(define, serde_json::to_string(&config).expect("the configuration is JSON"))
    }

    #[track_caller]
    fn load<S>(define: impl Define<S> + 'static, config: String) -> Self {
        let manifest = match entry::describe(&define, "0.0.0", &config) {
            Ok(manifest) => manifest,
            Err(error) => panic!("the plugin cannot describe itself: {error}"),
        };
        if let Some(problem) = problem(&manifest) {
            panic!("no host loads this plugin: {problem}");
        }
        Self {
            reconcile: Box::new(move |config, request| entry::reconcile(&define, config, request)),
            config,
            world: Rc::new(World::new(&manifest)),
            manifest,
        }
    }

    /// What the plugin says of itself.
    pub fn manifest(&self) -> &wire::Manifest {
        &self.manifest
    }

    /// Adds an object to the cluster: see [`put`](Self::put).
    #[must_use]
    #[track_caller]
    pub fn with(mut self, object: impl Object) -> Self {
        self.put(object);
        self
    }

    /// Sets the clock, such as to `2026-01-01T00:00:00Z`.
    ///
    /// # Panics
    /// Where `time` is no time in RFC 3339.
    #[must_use]
    #[track_caller]
    pub fn at(self, time: &str) -> Self {
        self.world.set_now(time.parse().expect("a time in RFC 3339"));
        self
    }

    /// Takes a permission back that the manifest asks for, as an administrator may.
    #[must_use]
    pub fn refuse(self, permission: Permission) -> Self {
        self.world.refuse(permission.into_wire());
        self
    }

    /// Adds an object to the cluster, or replaces the one of its kind and key.
    ///
    /// As a server does, it sets `uid`, `resourceVersion`, `creationTimestamp` and `generation` where they are absent, keeps
    /// them where the object was there, and counts `generation` up where more than metadata and status differs.
    ///
    /// # Panics
    /// Where the object has no name, or cannot be JSON.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "an object is made where it is put")]
    pub fn put(&mut self, object: impl Object) {
        self.world.put(&object.to_json().expect("the object can be JSON"));
    }

    /// Changes an object as a user would with `kubectl edit`.
    ///
    /// # Panics
    /// Where there is no such object.
    #[track_caller]
    pub fn edit<K: Object>(&mut self, key: impl Into<Key>, change: impl FnOnce(&mut K)) {
        let key = key.into();
        let Some(mut object) = self.get::<K>(&key) else { panic!("there is no {} {key} to edit", K::type_meta()) };
        change(&mut object);
        self.put(object);
    }

    /// Takes an object out of the cluster and gives its last state back, for [`Request::gone`].
    ///
    /// # Panics
    /// Where there is no such object.
    #[track_caller]
    pub fn remove<K: Object>(&mut self, key: impl Into<Key>) -> K {
        let key = key.into();
        let Some(object) = self.get::<K>(&key) else { panic!("there is no {} {key} to remove", K::type_meta()) };
        self.world.remove(&K::type_meta(), &key);
        object
    }

    /// An object of the cluster, whether or not the plugin may see it.
    ///
    /// # Panics
    /// Where it does not fit `K`.
    #[track_caller]
    pub fn get<K: Object>(&self, key: impl Into<Key>) -> Option<K> {
        let object = self.world.object(&K::type_meta(), &key.into())?;
        Some(serde_json::from_value(object).expect("the object fits its type"))
    }

    /// All objects of a kind, in the order of namespace, then name.
    ///
    /// # Panics
    /// Where one does not fit `K`.
    #[track_caller]
    pub fn list<K: Object>(&self) -> Vec<K> {
        let objects = self.world.objects(&K::type_meta()).into_iter();
        objects.map(|object| serde_json::from_value(object).expect("the object fits its type")).collect()
    }

    /// Moves the clock on.
    pub fn advance(&mut self, time: Duration) {
        self.world.advance(time);
    }

    /// What the clock shows.
    pub fn now(&self) -> Timestamp {
        self.world.now()
    }

    /// Scripts a request to the API server. Requests must come in the order in which they are expected.
    pub fn expect(&mut self, expected: Expected) {
        self.world.expect(expected);
    }

    /// From now on every attempt to write this child fails so, until [`mend`](Self::mend).
    pub fn fail_child<K: Object>(&mut self, key: impl Into<Key>, message: impl Into<String>) {
        self.world.fail_child(K::type_meta(), key.into(), message.into());
    }

    /// Lets all children be written again.
    pub fn mend(&mut self) {
        self.world.mend();
    }

    /// The requests that the plugin made of the API server, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.world.calls()
    }

    /// What the plugin logged.
    pub fn lines(&self) -> Vec<Line> {
        self.world.lines()
    }

    /// Calls the plugin once for an object of the cluster, and changes nothing.
    ///
    /// # Errors
    /// What the plugin failed with.
    ///
    /// # Panics
    /// Where there is no such object, or the plugin has several controllers: then [`request`](Self::request) names one.
    #[track_caller]
    pub fn reconcile(&self, key: impl Into<Key>) -> Result<Outcome, Failure> {
        self.request(key).run()
    }

    /// A call to be described further, such as a second attempt.
    ///
    /// ```
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use pilothouse_sdk::mock::MockHost;
    /// # use pilothouse_sdk::prelude::*;
    /// # fn reconcile(ctx: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
    /// #     assert_eq!(ctx.last_error(), Some("the server was busy"));
    /// #     Ok(Outcome::new())
    /// # }
    /// # fn plugin() -> Plugin {
    /// #     Plugin::new("Looks.").controller(Controller::of::<ConfigMap>().reconcile(reconcile))
    /// # }
    /// # let mut map = ConfigMap::default();
    /// # map.metadata.name = Some("m".into());
    /// # let host = MockHost::new(plugin).with(map);
    /// let outcome = host.request(Key::cluster("m")).attempt(2, "the server was busy").run();
    /// ```
    pub fn request(&self, key: impl Into<Key>) -> Request<'_> {
        Request { host: self, key: key.into(), controller: None, gone: None, attempt: 1, last_error: None }
    }

    /// Calls the plugin and carries out what it wants until nothing changes, as the real host does: children are made, set
    /// back and pruned, the status is written, what fails is tried again.
    ///
    /// Gives the last outcome. Time stands still: `requeue_after` has no effect.
    ///
    /// # Errors
    /// What it failed with, where trying again changes nothing.
    ///
    /// # Panics
    /// As [`reconcile`](Self::reconcile), and where it has not settled after 100 calls.
    #[track_caller]
    pub fn settle(&mut self, key: impl Into<Key>) -> Result<Outcome, Failure> {
        let key = key.into();
        let controller = self.only_controller();
        let mut attempt: (u32, Option<String>) = (1, None);
        for _ in 0..100 {
            let before = self.world.version();
            let request = Request { attempt: attempt.0, last_error: attempt.1.clone(), ..self.request(key.clone()) };
            let result = request.run();
            let written = match &result {
                Ok(outcome) => self.world.carry_out(controller, &key, outcome.wire()),
                Err(failure) => self.world.carry_out_failure(controller, &key, failure),
            };
            let unchanged = self.world.version() == before;
            let result = result.and_then(|outcome| written.map(|()| outcome));
            match result {
                Ok(outcome) if unchanged && attempt.0 == 1 => return Ok(outcome),
                Ok(_) => attempt = (1, None),
                Err(failure) if failure.terminal => return Err(failure),
                Err(failure) => {
                    let same = attempt.1.as_deref() == Some(&failure.message);
                    if unchanged && same {
                        return Err(failure);
                    }
                    attempt = (attempt.0 + 1, Some(failure.message));
                }
            }
        }
        panic!("{key} has not settled after 100 calls: each one changes something");
    }

    #[track_caller]
    fn only_controller(&self) -> &wire::Controller {
        match self.manifest.controllers.as_slice() {
            [controller] => controller,
            several => panic!("the plugin has {} controllers: name one with Request::controller", several.len()),
        }
    }
}

impl std::fmt::Debug for MockHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MockHost").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

impl Drop for MockHost {
    /// Fails the test where an expected request has not come.
    fn drop(&mut self) {
        let missing = self.world.missing();
        if !missing.is_empty() && !std::thread::panicking() {
            panic!("the plugin never made these requests: {}", missing.join(", "));
        }
    }
}

/// One call of a plugin: made by [`MockHost::request`].
#[derive(Clone, Debug)]
#[must_use = "call `run`"]
pub struct Request<'a> {
    host: &'a MockHost,
    key: Key,
    controller: Option<String>,
    gone: Option<String>,
    attempt: u32,
    last_error: Option<String>,
}

impl Request<'_> {
    /// Which controller, where the plugin has several.
    pub fn controller(mut self, name: impl Into<String>) -> Self {
        self.controller = Some(name.into());
        self
    }

    /// A try after the first, and why the one before it failed.
    pub fn attempt(mut self, attempt: u32, last_error: impl Into<String>) -> Self {
        self.attempt = attempt;
        self.last_error = Some(last_error.into());
        self
    }

    /// The object is gone; this was its last state.
    ///
    /// # Panics
    /// Where it cannot be JSON.
    #[track_caller]
    pub fn gone(mut self, last: &impl Object) -> Self {
        self.gone = Some(last.to_json().expect("the object can be JSON"));
        self
    }

    /// Calls the plugin.
    ///
    /// # Errors
    /// What the plugin failed with.
    ///
    /// # Panics
    /// Where there is no such object or controller.
    #[track_caller]
    pub fn run(self) -> Result<Outcome, Failure> {
        let host = self.host;
        let controller = match &self.controller {
            None => host.only_controller(),
            Some(name) => match host.manifest.controllers.iter().find(|controller| controller.name == *name) {
                Some(controller) => controller,
                None => panic!("the plugin has no controller {name:?}"),
            },
        };
        let (object, phase) = match self.gone {
            Some(last) => (last, Phase::Gone),
            None => match host.world.object(&controller.for_.of, &self.key) {
                Some(object) if object["metadata"]["deletionTimestamp"].is_string() => {
                    (object.to_string(), Phase::Deleting)
                }
                Some(object) => (object.to_string(), Phase::Live),
                None => panic!("there is no {} {}: add it by MockHost::with", controller.for_.of, self.key),
            },
        };
        let request = wire::Request {
            controller: controller.name.clone(),
            key: self.key,
            object,
            phase,
            attempt: self.attempt,
            last_error: self.last_error,
        };
        let outcome = with_host(host.world.clone(), || (host.reconcile)(&host.config, request));
        Ok(Outcome::new(outcome.map_err(Failure::from)?))
    }
}

/// What is wrong with a manifest, as far as it can be told without a cluster.
fn problem(manifest: &wire::Manifest) -> Option<String> {
    let mut names = std::collections::BTreeSet::new();
    for controller in &manifest.controllers {
        let name = &controller.name;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
            return Some(format!("{name:?} is no name for a controller: lower-case letters, digits and -, at most 63"));
        }
        if !names.insert(name) {
            return Some(format!("two controllers are named {name:?}"));
        }
        for watch in std::iter::once(&controller.for_).chain(&controller.owns) {
            if watch.of.api_version.is_empty() || watch.of.kind.is_empty() {
                return Some(format!("controller {name:?} watches a kind without apiVersion or kind"));
            }
            if let Some(Err(error)) = watch.labels.as_deref().map(selector::Selector::parse) {
                return Some(format!("controller {name:?} watches {} by a selector that is none: {error}", watch.of));
            }
        }
    }
    None
}
