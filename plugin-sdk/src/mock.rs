//! A host for native tests: the plugin's own code under `cargo test`, with no cluster and no sandbox.
//!
//! [`MockHost`] calls the plugin through the contract's types, answers its reads out of an in-memory cache, and its
//! requests out of a script. It denies what the plugin's manifest does not ask for, as the real host does, and refuses selectors,
//! names, keys and answers beyond that host's bounds in its words. A request that the test does not [expect](MockHost::expect)
//! fails the test, and so does an expected one that never comes.
//!
//! [`MockHost::reconcile`] gives the outcome of one call and changes nothing; [`MockHost::settle`] carries outcomes out
//! until nothing changes any more. [`MockHost::woken_by`] says which keys a change would wake: by what their last successful call
//! read, by mappings, as children. [`MockHost::observe`] tells the plugin's observer what has changed.
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
//! During a call nothing changes but by what the plugin writes, and every read sees that: as with a host that never gives up to let the
//! [world stand still](crate::cache).
//!
//! # What it leaves out
//! It is no API server: nothing is defaulted, validated or pruned by a schema. Only a container, variable, port, volume or finalizer
//! that is there twice is refused as by a server. Server-side apply replaces lists as a whole
//! and knows no other field manager; finalizers and garbage collection do not run; a field selector may name any field. Where that
//! matters, test against a server.

mod apply;
mod bounds;
mod field;
mod keep;
mod keys;
mod manifest;
mod outcome;
mod predicate;
mod request;
mod script;
mod selector;
mod world;

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use jiff::Timestamp;
pub use outcome::{Failure, Outcome};
pub use request::Request;
pub use script::{Call, Expected};
use serde::Serialize;
use world::World;
pub use world::{By, Line, Wake};

use crate::{
    Change, Key, Object, Permission,
    contract::{
        exports::pilothouse::plugin::controller as wire, mapping::exports::pilothouse::plugin::mapper,
        observing::exports::pilothouse::plugin::observer,
    },
    entry::{self, Define},
};

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

type Reconcile = dyn Fn(wire::Request) -> Result<wire::Outcome, wire::Failure>;
type Map = dyn Fn(&str, &[mapper::Change]) -> Result<Vec<Key>, String>;
type Observe = dyn Fn(&[observer::Change]) -> Result<(), String>;

/// What the component would export, with the configuration filled in.
struct Exported {
    reconcile: Box<Reconcile>,
    map: Box<Map>,
    observe: Box<Observe>,
}

impl Exported {
    fn new<S>(define: impl Define<S> + 'static, config: String) -> Self {
        let plugin = Rc::new((define, config));
        let [first, second, third] = [(); 3].map(|()| Rc::clone(&plugin));
        Self {
            reconcile: Box::new(move |request| entry::reconcile(&first.0, &first.1, request)),
            map: Box::new(move |controller, changes| entry::map(&second.0, &second.1, controller, changes)),
            observe: Box::new(move |changes| entry::observe(&third.0, &third.1, changes)),
        }
    }
}

/// The host of one plugin in one test.
pub struct MockHost {
    exported: Exported,
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
        if let Err(problem) = manifest::check(&manifest) {
            panic!("no host loads this plugin: {problem}");
        }
        Self { exported: Exported::new(define, config), world: Rc::new(World::new(&manifest)), manifest }
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
        self.world.remove(&K::type_meta(), &key, false);
        object
    }

    /// As [`remove`](Self::remove), at a time at which the host does not watch: it finds out later, and an observer is told that
    /// the deletion was [missed](crate::Observed::missed).
    ///
    /// # Panics
    /// Where there is no such object.
    #[track_caller]
    pub fn lose<K: Object>(&mut self, key: impl Into<Key>) -> K {
        let key = key.into();
        let Some(object) = self.get::<K>(&key) else { panic!("there is no {} {key} to lose", K::type_meta()) };
        self.world.remove(&K::type_meta(), &key, true);
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
        Request::new(self, key.into())
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
            let request = self.request(key.clone()).again(attempt.0, attempt.1.clone());
            let result = request.carried_out(|result| match result {
                Ok(outcome) => self.world.carry_out(controller, &key, outcome.wire()),
                Err(failure) => self.world.carry_out_failure(controller, &key, failure),
            });
            let unchanged = self.world.version() == before;
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

    /// Which keys a change wakes, each once and in order: those of the object itself, of its owner, those that a mapping names, and
    /// those whose last successful call read from the cache what is different now. `change` does what it does to the cluster.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Counts the ConfigMaps that carry the Secret's name as their label `for`.
    /// fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
    ///     let labelled = format!("for={}", secret.name());
    ///     let count = ctx.cache().list::<ConfigMap>().beside(ctx.key()).labels(labelled).keys().count();
    ///     info!("counted", count = count);
    ///     Ok(Outcome::new())
    /// }
    ///
    /// fn plugin() -> Plugin {
    ///     Plugin::new("Counts.").controller(Controller::of::<Secret>().reads::<ConfigMap>().reconcile(reconcile))
    /// }
    ///
    /// let mut secret = Secret::default();
    /// secret.metadata.name = Some("token".into());
    /// secret.metadata.namespace = Some("default".into());
    /// let mut map = ConfigMap::default();
    /// map.metadata.name = Some("m".into());
    /// map.metadata.namespace = Some("default".into());
    ///
    /// let mut host = MockHost::new(plugin).with(secret).with(map);
    /// host.settle(("default", "token")).expect("it settles");
    /// let label = |host: &mut MockHost, value: &str| {
    ///     host.edit::<ConfigMap>(("default", "m"), |map| {
    ///         map.metadata.labels = Some([("for".to_owned(), value.to_owned())].into());
    ///     });
    /// };
    /// assert_eq!(host.woken_by(|host| label(host, "another")), []);
    /// assert_eq!(host.woken_by(|host| label(host, "token")), [Key::new("default", "token")]);
    /// ```
    ///
    /// # Panics
    /// As [`wakes`](Self::wakes), and where the plugin has several controllers.
    #[track_caller]
    pub fn woken_by(&mut self, change: impl FnOnce(&mut Self)) -> Vec<Key> {
        self.only_controller();
        let keys: BTreeSet<Key> = self.wakes(change).into_iter().map(|wake| wake.key).collect();
        keys.into_iter().collect()
    }

    /// As [`woken_by`](Self::woken_by), with the controllers and the reasons.
    ///
    /// # Panics
    /// Where the plugin is asked to map, and fails.
    #[track_caller]
    pub fn wakes(&mut self, change: impl FnOnce(&mut Self)) -> Vec<Wake> {
        let before = self.world.snapshot();
        change(self);
        let map = |controller: &str, change: &mapper::Change| self.ask(controller, change.clone());
        match self.world.wakes(&before, map) {
            Ok(wakes) => wakes,
            Err(error) => panic!("the plugin cannot map: {error}"),
        }
    }

    /// The keys that the plugin's own functions find for a change: see [`Mapping::with`](crate::Mapping::with).
    ///
    /// # Errors
    /// What the plugin failed with.
    ///
    /// # Panics
    /// Where the plugin has several controllers ([`map_for`](Self::map_for) names one), or an object cannot be JSON.
    #[track_caller]
    pub fn map<K: Object>(&self, change: &Change<K>) -> Result<Vec<Key>, Failure> {
        self.map_for(&self.only_controller().name, change)
    }

    /// As [`map`](Self::map), for a controller.
    ///
    /// # Errors
    /// What the plugin failed with.
    ///
    /// # Panics
    /// Where an object cannot be JSON.
    #[track_caller]
    pub fn map_for<K: Object>(&self, controller: &str, change: &Change<K>) -> Result<Vec<Key>, Failure> {
        let text = |object: &K| Some(object.to_json().expect("the object can be JSON"));
        let (old, new) = match change {
            Change::Added(new) => (None, text(new)),
            Change::Updated { old, new } => (text(old), text(new)),
            Change::Deleted(old) => (text(old), None),
        };
        self.ask(controller, mapper::Change { of: K::type_meta(), old, new }).map_err(Failure::retry)
    }

    fn ask(&self, controller: &str, change: mapper::Change) -> Result<Vec<Key>, String> {
        let keys = self.world.serve(|| (self.exported.map)(controller, &[change]))?;
        bounds::mapped(&keys).map(|()| keys)
    }

    /// Tells the plugin's observer what has changed since it was told last, in one call and in the order of the first changes.
    /// Several changes of one object are told as one.
    ///
    /// # Errors
    /// What it failed with. It will be told again, together with what happens until then.
    pub fn observe(&mut self) -> Result<(), Failure> {
        let changes = self.world.untold();
        if changes.is_empty() {
            return Ok(());
        }
        self.world.serve(|| (self.exported.observe)(&changes)).map_err(Failure::retry)?;
        self.world.told();
        Ok(())
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
