//! A mock host for native tests: the plugin's own code runs under `cargo test`, without a cluster and without a
//! sandbox.
//!
//! [`MockHost`] calls the plugin through the types of the contract. It answers reads from an in-memory cache, and
//! requests from a script:
//! - It denies what the plugin's manifest does not ask for, as the real host does.
//! - It rejects selectors, names, keys and results that exceed the real host's limits, with the same messages.
//! - A request that the test did not [expect](MockHost::expect) fails the test, unless the test
//!   [allows](MockHost::allow_requests) requests. So does an expected request that never comes. The same holds for
//!   [requests to other servers](MockHost::expect_http).
//!
//! | to test | use |
//! |---|---|
//! | the outcome of one call, without writing it | [`MockHost::reconcile`] |
//! | what the plugin finally creates | [`MockHost::settle`], [`MockHost::settle_all`] |
//! | which keys a change wakes | [`MockHost::woken_by`] |
//! | Events | [`MockHost::events`] |
//! | an observer | [`MockHost::observe`] |
//! | a webhook | [`MockHost::review`] |
//! | a conversion | [`MockHost::convert`] |
//! | a metric of the plugin | [`MockHost::metric`] |
//! | the administrator's grants | [`MockHost::assert_granted`] |
//!
//! ```
//! use k8s_openapi::api::core::v1::{ConfigMap, Secret};
//! use pilothouse_sdk::mock::MockHost;
//! use pilothouse_sdk::prelude::*;
//!
//! /// Creates a ConfigMap that lists the keys of a Secret.
//! fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
//!     let mut index = ConfigMap::default();
//!     index.metadata.name = Some(format!("{}-keys", secret.name()));
//!     index.data = Some(secret.data.iter().flatten().map(|(key, _)| (key.clone(), String::new())).collect());
//!     Ok(Outcome::new().child(index))
//! }
//!
//! fn plugin() -> Plugin {
//!     let controller = Controller::of::<Secret>().owns::<ConfigMap>().without_status().reconcile(reconcile);
//!     Plugin::new("Lists the keys of every Secret.").controller(controller)
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
//! During a call, only the plugin's own writes change the cluster, and every read sees them. The real host may have to
//! give up its [snapshot](crate::cache). The mock never does.
//!
//! # What it leaves out
//! The mock is not an API server:
//! - It does not default, validate or prune by a schema. It only rejects duplicate containers, variables, ports,
//!   volumes and finalizers, and changes of ConfigMaps and Secrets with `immutable: true`.
//! - Server-side apply replaces whole lists, and knows no other field manager.
//! - Garbage collection does not run.
//! - A field selector may name any field.
//!
//! Where that matters, test against an API server.

mod apply;
mod bounds;
mod convert;
mod features;
mod grants;
mod http;
mod keys;
mod manifest;
mod outcome;
mod request;
mod review;
mod script;
mod world;

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use features::Features;
pub use http::{ExpectedHttp, HttpCall};
use jiff::Timestamp;
pub use outcome::{Failure, Outcome};
pub use request::Request;
pub use review::{Review, Reviewing};
pub use script::{Call, Expected};
use serde::Serialize;
use world::World;
pub use world::{By, LogLine, RecordedEvent, Wake};

use crate::{
    AnyObject, Change, Dynamic, Key, Object, Permission, TypeMeta,
    contract::{
        admitting::exports::pilothouse::plugin::admission, exports::pilothouse::plugin::controller as wire,
        mapping::exports::pilothouse::plugin::mapper, observing::exports::pilothouse::plugin::observer,
    },
    entry::{self, Define},
};

/// Returns the plugin's manifest for a configuration.
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
/// Fails with the plugin's message if the configuration is not valid.
#[expect(clippy::needless_pass_by_value, reason = "as in MockHost::new")]
pub fn describe<S>(define: impl Define<S>, config: &str) -> Result<wire::Manifest, String> {
    Features::default().serve(|| entry::describe(&define, "0.0.0", config))
}

type Reconcile = dyn Fn(wire::Request) -> Result<wire::Outcome, wire::Failure>;
type Map = dyn Fn(&str, &[mapper::Change]) -> Result<Vec<Key>, String>;
type Reviewed = dyn Fn(admission::Review) -> Result<(admission::Decision, Option<String>), String>;
type Convert = dyn Fn(&str, &[String]) -> Result<Vec<String>, String>;
type Observe = dyn Fn(&[observer::Change]) -> Result<(), String>;

/// The component's exports, with the configuration filled in.
struct Exported {
    reconcile: Box<Reconcile>,
    map: Box<Map>,
    observe: Box<Observe>,
    review: Box<Reviewed>,
    convert: Box<Convert>,
}

impl Exported {
    fn new<S>(define: impl Define<S> + 'static, config: String) -> Self {
        let plugin = Rc::new((define, config));
        let [first, second, third, fourth, fifth] = [(); 5].map(|()| Rc::clone(&plugin));
        Self {
            reconcile: Box::new(move |request| entry::reconcile(&first.0, &first.1, request)),
            map: Box::new(move |controller, changes| entry::map(&second.0, &second.1, controller, changes)),
            observe: Box::new(move |changes| entry::observe(&third.0, &third.1, changes)),
            review: Box::new(move |review| entry::review(&fourth.0, &fourth.1, review)),
            convert: Box::new(move |version, objects| entry::convert(&fifth.0, &fifth.1, version, objects)),
        }
    }
}

/// The mock host of one plugin in one test.
pub struct MockHost {
    exported: Exported,
    manifest: wire::Manifest,
    world: Rc<World>,
}

impl MockHost {
    /// Creates a host with an empty cluster, for a plugin without configuration. Its clock is at 2026-01-01T00:00:00Z.
    ///
    /// # Panics
    /// Panics if the plugin cannot describe itself, or if the real host would reject its manifest.
    #[track_caller]
    pub fn new<S>(define: impl Define<S> + 'static) -> Self {
        Self::load(define, "{}".to_owned(), Features::default())
    }

    /// Creates a host as [`new`](Self::new) does, without some of the [features](crate::features).
    ///
    /// # Panics
    /// Panics as [`new`](Self::new) does.
    #[track_caller]
    pub fn lacking<S>(features: impl IntoIterator<Item = impl Into<String>>, define: impl Define<S> + 'static) -> Self {
        Self::load(define, "{}".to_owned(), Features::without(features))
    }

    /// Creates a host with an empty cluster, for a plugin with a configuration as the administrator would write it.
    ///
    /// # Panics
    /// Panics as [`new`](Self::new) does.
    #[track_caller]
    pub fn configured<S>(define: impl Define<S> + 'static, config: impl Serialize) -> Self {
        let config = serde_json::to_string(&config).expect("the configuration is JSON");
        Self::load(define, config, Features::default())
    }

    #[track_caller]
    fn load<S>(define: impl Define<S> + 'static, config: String, features: Features) -> Self {
        let manifest = match features.serve(|| entry::describe(&define, "0.0.0", &config)) {
            Ok(manifest) => manifest,
            Err(error) => panic!("the plugin cannot describe itself: {error}"),
        };
        let checked = match manifest::check(&manifest) {
            Ok(checked) => checked,
            Err(problem) => panic!("{problem}"),
        };
        let world = Rc::new(World::new(&manifest, checked, features));
        Self { exported: Exported::new(define, config), world, manifest }
    }

    /// Returns the plugin's manifest.
    pub fn manifest(&self) -> &wire::Manifest {
        &self.manifest
    }

    /// Checks that an administrator's file grants exactly what the plugin asks for: permissions, requests to other
    /// servers, and webhooks.
    ///
    /// `file` is the content of the file, such as `serde_saphyr::from_str(include_str!("../greeter.yaml"))`.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    /// use serde_json::json;
    ///
    /// fn plugin() -> Plugin {
    ///     let controller = Controller::of::<ConfigMap>().without_status().reconcile(|_, _| Ok(Outcome::new()));
    ///     Plugin::new("Reads ConfigMaps.").controller(controller)
    /// }
    ///
    /// let file = json!({"grants": [{"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["read"]}]});
    /// MockHost::new(plugin).assert_granted(&file);
    /// ```
    ///
    /// # Panics
    /// Panics with every permission that is not granted, and every grant that is not asked for.
    #[track_caller]
    pub fn assert_granted(&self, file: &serde_json::Value) {
        if let Err(problems) = grants::compare(&self.manifest, file) {
            panic!("the grants differ from what the plugin asks for:\n{problems}");
        }
    }

    /// Adds an object to the cluster, as [`put`](Self::put) does.
    #[must_use]
    #[track_caller]
    pub fn with(mut self, object: impl AnyObject) -> Self {
        self.put(object);
        self
    }

    /// Sets the clock, for example to `2026-01-01T00:00:00Z`.
    ///
    /// # Panics
    /// Panics if `time` is not a time in RFC 3339.
    #[must_use]
    #[track_caller]
    pub fn at(self, time: &str) -> Self {
        self.world.set_now(time.parse().expect("a time in RFC 3339"));
        self
    }

    /// Seeds [`random`](crate::random). The same seed gives the same numbers in the same order. The default is 0.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.world.seed(seed);
        self
    }

    /// Lets every request to the API server take effect on the cluster, if the manifest asks for its permission. For
    /// tests of what a plugin achieves, where the single requests do not matter.
    ///
    /// A request that the test [expects](Self::expect) still ends as scripted.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Keeps one Pod for each ConfigMap.
    /// fn reconcile(ctx: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
    ///     if ctx.cache().list::<Pod>().beside(ctx.key()).keys().next().is_none() {
    ///         let mut pod = Pod::default();
    ///         pod.metadata.generate_name = Some("pod-".into());
    ///         pod.metadata.namespace.clone_from(&ctx.key().namespace);
    ///         ctx.client().create(&pod)?;
    ///     }
    ///     Ok(Outcome::new())
    /// }
    ///
    /// fn plugin() -> Plugin {
    ///     let controller = Controller::of::<ConfigMap>().reads::<Pod>().reconcile(reconcile);
    ///     let permission = Permission::of::<Pod>().verbs([Verb::Create]);
    ///     Plugin::new("Keeps a Pod.").controller(controller).permission(permission)
    /// }
    ///
    /// let mut map = ConfigMap::default();
    /// map.metadata.name = Some("web".into());
    /// map.metadata.namespace = Some("default".into());
    /// let mut host = MockHost::new(plugin).allow_requests().with(map);
    /// host.settle(("default", "web")).expect("it settles");
    /// assert_eq!(host.list::<Pod>().len(), 1);
    /// ```
    #[must_use]
    pub fn allow_requests(self) -> Self {
        self.world.allow_requests();
        self
    }

    /// Does not grant a permission that the manifest asks for, as an administrator may decide.
    #[must_use]
    pub fn refuse(self, permission: Permission) -> Self {
        self.world.refuse(permission.into_wire());
        self
    }

    /// Adds an object to the cluster, or replaces the object of the same kind and key.
    ///
    /// Like an API server, it sets `uid`, `resourceVersion`, `creationTimestamp` and `generation` if they are absent.
    /// It keeps the values of an existing object, and increments `generation` if more than metadata and status differs.
    ///
    /// # Panics
    /// Panics if the object has no name, or cannot be serialized.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "an object is built where it is passed")]
    pub fn put(&mut self, object: impl AnyObject) {
        self.world.put(&object.text_of().expect("the object can be JSON"));
    }

    /// Changes an object, as a user does with `kubectl edit`.
    ///
    /// # Panics
    /// Panics if the object does not exist.
    #[track_caller]
    pub fn edit<K: Object>(&mut self, key: impl Into<Key>, change: impl FnOnce(&mut K)) {
        let key = key.into();
        let Some(mut object) = self.get::<K>(&key) else { panic!("there is no {} {key} to edit", K::type_meta()) };
        change(&mut object);
        self.put(object);
    }

    /// Deletes an object, and returns its last state, for [`Request::gone`].
    ///
    /// # Panics
    /// Panics if the object does not exist.
    #[track_caller]
    pub fn remove<K: Object>(&mut self, key: impl Into<Key>) -> K {
        let key = key.into();
        let Some(object) = self.get::<K>(&key) else { panic!("there is no {} {key} to remove", K::type_meta()) };
        self.world.remove(&K::type_meta(), &key, false);
        object
    }

    /// Deletes an object, as a user does with `kubectl delete`. An object with finalizers is only marked, and goes when
    /// the last of them is removed.
    ///
    /// # Panics
    /// Panics if the object does not exist.
    #[track_caller]
    pub fn delete<K: Object>(&mut self, key: impl Into<Key>) {
        let key = key.into();
        assert!(self.world.delete(&K::type_meta(), &key), "there is no {} {key} to delete", K::type_meta());
    }

    /// As [`remove`](Self::remove), but the host does not see the deletion and finds out later. An observer gets it as
    /// [missed](crate::Observed::missed).
    ///
    /// # Panics
    /// Panics if the object does not exist.
    #[track_caller]
    pub fn lose<K: Object>(&mut self, key: impl Into<Key>) -> K {
        let key = key.into();
        let Some(object) = self.get::<K>(&key) else { panic!("there is no {} {key} to lose", K::type_meta()) };
        self.world.remove(&K::type_meta(), &key, true);
        object
    }

    /// Returns an object of the cluster, whether or not the plugin may read it.
    ///
    /// # Panics
    /// Panics if it cannot be decoded as `K`.
    #[track_caller]
    pub fn get<K: Object>(&self, key: impl Into<Key>) -> Option<K> {
        let object = self.world.object(&K::type_meta(), &key.into())?;
        Some(serde_json::from_value(object).expect("the object fits its type"))
    }

    /// As [`get`](Self::get), for a kind that is known only at run time.
    ///
    /// # Panics
    /// Panics if its metadata is not valid.
    #[track_caller]
    pub fn get_dynamic(&self, of: &TypeMeta, key: impl Into<Key>) -> Option<Dynamic> {
        let object = self.world.object(of, &key.into())?;
        Some(serde_json::from_value(object).expect("an object has metadata"))
    }

    /// As [`remove`](Self::remove), for a kind that is known only at run time.
    ///
    /// # Panics
    /// Panics if the object does not exist.
    #[track_caller]
    pub fn remove_dynamic(&mut self, of: &TypeMeta, key: impl Into<Key>) -> Dynamic {
        let key = key.into();
        let Some(object) = self.get_dynamic(of, &key) else { panic!("there is no {of} {key} to remove") };
        self.world.remove(of, &key, false);
        object
    }

    /// Returns all objects of a kind, ordered by namespace and then name.
    ///
    /// # Panics
    /// Panics if one of them cannot be decoded as `K`.
    #[track_caller]
    pub fn list<K: Object>(&self) -> Vec<K> {
        let objects = self.world.objects(&K::type_meta()).into_iter();
        objects.map(|object| serde_json::from_value(object).expect("the object fits its type")).collect()
    }

    /// Advances the clock.
    pub fn advance(&mut self, time: Duration) {
        self.world.advance(time);
    }

    /// Returns the time of the clock.
    pub fn now(&self) -> Timestamp {
        self.world.now()
    }

    /// Expects a request to the API server. Requests must arrive in the order in which they are expected.
    pub fn expect(&mut self, expected: Expected) {
        self.world.expect(expected);
    }

    /// Expects a request to another server. Requests must arrive in the order in which they are expected.
    pub fn expect_http(&mut self, expected: ExpectedHttp) {
        self.world.expect_http(expected);
    }

    /// Returns the requests that the plugin sent to other servers, in order.
    pub fn http_calls(&self) -> Vec<HttpCall> {
        self.world.http_calls()
    }

    /// Makes every write of this child fail with this message, until [`mend`](Self::mend).
    pub fn fail_child<K: Object>(&mut self, key: impl Into<Key>, message: impl Into<String>) {
        self.world.fail_child(K::type_meta(), key.into(), message.into());
    }

    /// Lets the writes of all children succeed again.
    pub fn mend(&mut self) {
        self.world.mend();
    }

    /// Returns the requests that the plugin sent to the API server, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.world.calls()
    }

    /// Returns the lines that the plugin logged.
    pub fn lines(&self) -> Vec<LogLine> {
        self.world.lines()
    }

    /// Returns the Events that the plugin's calls wrote, as the cluster has them: equal ones are counted, and many
    /// similar ones combined. [`settle`](Self::settle) writes the Events of outcomes.
    ///
    /// The host may repeat a call before the cluster shows what the call wrote. This shows that its Events are written
    /// once:
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    /// use serde_json::json;
    ///
    /// /// The status is stale when the card is written, so the host postpones it and calls again.
    /// fn reconcile(ctx: &Context, pod: &Pod) -> Result<Outcome, Error> {
    ///     let mut card = ConfigMap::default();
    ///     card.metadata.name = Some("card".into());
    ///     info!("looked", found = ctx.cache().get::<ConfigMap>(ctx.key().beside("card"))?.is_some());
    ///     let outcome = Outcome::new().child(card).status(json!({"phase": "Running"}));
    ///     Ok(if pod.status.is_some() { outcome } else { outcome.event(Event::normal("Started", "it runs")) })
    /// }
    ///
    /// fn plugin() -> Plugin {
    ///     let controller = Controller::of::<Pod>().owns::<ConfigMap>().events();
    ///     Plugin::new("Starts Pods.").controller(controller.reconcile(reconcile))
    /// }
    ///
    /// let mut pod = Pod::default();
    /// pod.metadata.name = Some("web".into());
    /// pod.metadata.namespace = Some("default".into());
    /// let mut host = MockHost::new(plugin).with(pod);
    /// host.settle(("default", "web")).expect("it settles");
    /// assert_eq!(host.lines().len(), 3);
    /// assert_eq!(host.events().len(), 1);
    /// assert_eq!(host.events()[0].count, 1);
    /// ```
    pub fn events(&self) -> Vec<RecordedEvent> {
        self.world.events()
    }

    /// Returns the value of a sample of the plugin's own metrics, as [`metrics`](crate::metrics) shows. A histogram has
    /// the samples `NAME_count`, `NAME_sum`, and `NAME_bucket` with the label `le`. Returns `None` if the plugin has
    /// not changed the series. A metric without labels begins at zero.
    ///
    /// # Panics
    /// Panics if the plugin does not declare such a metric, or declares other labels.
    #[track_caller]
    pub fn metric<const N: usize>(&self, sample: &str, labels: [(&str, &str); N]) -> Option<f64> {
        self.world.metric(sample, &labels)
    }

    /// Calls the plugin once for an object of the cluster. Does not write the outcome.
    ///
    /// # Errors
    /// Fails if the plugin's call fails.
    ///
    /// # Panics
    /// Panics if the object does not exist, or if the plugin has several controllers. Use [`request`](Self::request) to
    /// name one.
    #[track_caller]
    pub fn reconcile(&self, key: impl Into<Key>) -> Result<Outcome, Failure> {
        self.request(key).run()
    }

    /// Prepares a call with more settings, such as a second attempt.
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
    /// #     Plugin::new("Reads nothing.").controller(Controller::of::<ConfigMap>().reconcile(reconcile))
    /// # }
    /// # let mut map = ConfigMap::default();
    /// # map.metadata.name = Some("m".into());
    /// # let host = MockHost::new(plugin).with(map);
    /// let outcome = host.request(Key::cluster("m")).attempt(2, "the server was busy").run();
    /// ```
    pub fn request(&self, key: impl Into<Key>) -> Request<'_> {
        Request::new(self, key.into())
    }

    /// Calls the plugin and writes its outcomes until nothing changes any more, as the real host does. It creates,
    /// corrects and deletes children, writes the status and the Events, keeps the controller's finalizer, and retries
    /// failures. Like the host, it may postpone a status to the next call.
    ///
    /// An object whose cleanup is done causes no further call. If it never causes one, the outcome is empty.
    ///
    /// Returns the last outcome. The clock does not advance, so `requeue_after` has no effect.
    ///
    /// # Errors
    /// Fails if retries do not help.
    ///
    /// # Panics
    /// Panics as [`reconcile`](Self::reconcile) does, if nothing has settled after 100 calls, and if the manifest lacks
    /// the permission for an Event.
    #[track_caller]
    pub fn settle(&mut self, key: impl Into<Key>) -> Result<Outcome, Failure> {
        self.settle_by(self.only_controller(), &key.into())
    }

    /// As [`settle`](Self::settle), for a named controller.
    ///
    /// # Errors
    /// Fails as [`settle`](Self::settle) does.
    ///
    /// # Panics
    /// Panics as [`settle`](Self::settle) does, and if there is no such controller.
    #[track_caller]
    pub fn settle_for(&mut self, controller: &str, key: impl Into<Key>) -> Result<Outcome, Failure> {
        let Some(controller) = self.manifest.controllers.iter().find(|known| known.name == controller) else {
            panic!("the plugin has no controller {controller:?}")
        };
        self.settle_by(controller, &key.into())
    }

    /// [Settles](Self::settle) every object of every controller, until nothing changes any more. For plugins whose
    /// controllers work together.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    /// use serde_json::json;
    ///
    /// /// The card of a ConfigMap is a Pod, and the Pod gets a phase.
    /// fn plugin() -> Plugin {
    ///     let cards = Controller::of::<ConfigMap>().owns::<Pod>().reconcile(|ctx, _| {
    ///         let mut card = Pod::default();
    ///         card.metadata.name = Some(format!("{}-card", ctx.key().name));
    ///         Ok(Outcome::new().child(card))
    ///     });
    ///     let phases = Controller::of::<Pod>().reconcile(|_, _| Ok(Outcome::new().status(json!({"phase": "Running"}))));
    ///     Plugin::new("Has two controllers.").controller(cards).controller(phases)
    /// }
    ///
    /// let mut map = ConfigMap::default();
    /// map.metadata.name = Some("web".into());
    /// map.metadata.namespace = Some("default".into());
    /// let mut host = MockHost::new(plugin).with(map);
    /// host.settle_all().expect("it settles");
    /// let card = host.get::<Pod>(("default", "web-card")).expect("the card exists");
    /// assert_eq!(card.status.unwrap().phase.unwrap(), "Running");
    /// ```
    ///
    /// # Errors
    /// Fails with the first failure that retries do not help.
    ///
    /// # Panics
    /// Panics as [`settle`](Self::settle) does, and if nothing has settled after 100 rounds.
    #[track_caller]
    pub fn settle_all(&mut self) -> Result<(), Failure> {
        for _ in 0..100 {
            let before = (self.world.version(), self.world.asks());
            for controller in &self.manifest.controllers {
                for key in self.world.keys(&controller.for_.of) {
                    // Another key's reconcile may have deleted the object, and a watch may not select it.
                    if self.world.reconciled(&controller.name, &key).is_some() {
                        self.settle_by(controller, &key)?;
                    }
                }
            }
            if (self.world.version(), self.world.asks()) == before {
                return Ok(());
            }
        }
        panic!("the cluster has not settled after 100 rounds: each round changes something");
    }

    #[track_caller]
    fn settle_by(&self, controller: &wire::Controller, key: &Key) -> Result<Outcome, Failure> {
        let mut attempt: (u32, Option<String>) = (1, None);
        let mut last = None;
        for _ in 0..100 {
            if self.world.is_finished(controller, key, last.is_some()) {
                return Ok(last.unwrap_or_else(Outcome::empty));
            }
            let before = (self.world.version(), self.world.asks());
            let held = self.world.hold(controller, key);
            let request = self.request(key.clone()).controller(&controller.name).again(attempt.0, attempt.1.clone());
            let result = held.and_then(|()| {
                request.carried_out(|result| match result {
                    Ok(outcome) => self.world.carry_out(controller, key, outcome.wire()),
                    Err(failure) => self.world.carry_out_failure(controller, key, failure),
                })
            });
            let unchanged = (self.world.version(), self.world.asks()) == before;
            match result {
                Ok(outcome) if unchanged && attempt.0 == 1 => return Ok(outcome),
                Ok(outcome) => {
                    last = Some(outcome);
                    attempt = (1, None);
                }
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
        panic!("{key} has not settled after 100 calls: each call changes something");
    }

    /// Returns the keys that a change wakes, each once and in order. `change` changes the cluster. A change wakes:
    /// - the changed object's own key;
    /// - the key of its owner;
    /// - the keys that a mapping finds;
    /// - the keys whose last successful call read something that is different now.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Counts the ConfigMaps whose label `for` is the Secret's name.
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
    /// Panics as [`wakes`](Self::wakes) does, and if the plugin has several controllers.
    #[track_caller]
    pub fn woken_by(&mut self, change: impl FnOnce(&mut Self)) -> Vec<Key> {
        self.only_controller();
        let keys: BTreeSet<Key> = self.wakes(change).into_iter().map(|wake| wake.key).collect();
        keys.into_iter().collect()
    }

    /// As [`woken_by`](Self::woken_by), with the controllers and the reasons.
    ///
    /// # Panics
    /// Panics if the plugin's mapping function fails.
    #[track_caller]
    pub fn wakes(&mut self, change: impl FnOnce(&mut Self)) -> Vec<Wake> {
        let before = self.world.snapshot();
        change(self);
        let map = |controller: &str, change: &mapper::Change| self.call_map(controller, change.clone());
        match self.world.wakes(&before, map) {
            Ok(wakes) => wakes,
            Err(error) => panic!("the plugin cannot map: {error}"),
        }
    }

    /// Returns the keys that the plugin's own functions find for a change: see [`Mapping::with`](crate::Mapping::with).
    ///
    /// # Errors
    /// Fails if the plugin's function fails.
    ///
    /// # Panics
    /// Panics if the plugin has several controllers ([`map_for`](Self::map_for) names one), or if an object cannot be
    /// serialized.
    #[track_caller]
    pub fn map<K: AnyObject>(&self, change: &Change<K>) -> Result<Vec<Key>, Failure> {
        self.map_for(&self.only_controller().name, change)
    }

    /// As [`map`](Self::map), for a named controller.
    ///
    /// # Errors
    /// Fails if the plugin's function fails.
    ///
    /// # Panics
    /// Panics if an object cannot be serialized.
    #[track_caller]
    pub fn map_for<K: AnyObject>(&self, controller: &str, change: &Change<K>) -> Result<Vec<Key>, Failure> {
        let text = |object: &K| Some(object.text_of().expect("the object can be JSON"));
        let (old, new) = match change {
            Change::Added(new) => (None, text(new)),
            Change::Updated { old, new } => (text(old), text(new)),
            Change::Deleted(old) => (text(old), None),
        };
        self.call_map(controller, mapper::Change { of: change.latest().kind_of(), old, new }).map_err(Failure::retry)
    }

    fn call_map(&self, controller: &str, change: mapper::Change) -> Result<Vec<Key>, String> {
        let keys = self.world.serve(|| (self.exported.map)(controller, &[change]))?;
        bounds::mapped(&keys).map(|()| keys)
    }

    /// Calls the plugin's observer once, with all changes since its last successful call. They are in the order of the
    /// first changes, and several changes of one object are merged. Objects that were added before the first call are
    /// [`initial`](crate::Observed::initial).
    ///
    /// # Errors
    /// Fails if the plugin's handler fails. The next call repeats these changes, together with newer ones.
    pub fn observe(&mut self) -> Result<(), Failure> {
        let changes = self.world.pending_changes();
        if changes.is_empty() {
            return Ok(());
        }
        self.world.serve(|| (self.exported.observe)(&changes)).map_err(Failure::retry)?;
        self.world.clear_pending();
        Ok(())
    }

    /// Prepares a request that the webhook `name` reviews: see [`Review`].
    ///
    /// # Panics
    /// Panics if the plugin has no such webhook.
    #[track_caller]
    pub fn review(&self, name: &str) -> Review<'_> {
        Review::new(self, name)
    }

    /// Converts an object to the version of `T`, as the API server asks the plugin to.
    ///
    /// # Errors
    /// Fails if the plugin cannot convert the object.
    ///
    /// # Panics
    /// Panics if the object cannot be serialized, or the converted one is not a `T`.
    #[track_caller]
    pub fn convert<T: Object>(&self, object: &impl Object) -> Result<T, Failure> {
        let text = object.to_json().expect("the object can be JSON");
        let to = T::type_meta().api_version;
        let converted = (self.exported.convert)(&to, &[text]).map_err(Failure::retry)?;
        let [converted] = converted.as_slice() else { panic!("convert returned {} objects for 1", converted.len()) };
        Ok(serde_json::from_str(converted).expect("the converted object fits its type"))
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
    /// Fails the test if an expected request has not arrived.
    fn drop(&mut self) {
        let missing = self.world.missing();
        if !missing.is_empty() && !std::thread::panicking() {
            panic!("the plugin never made these requests: {}", missing.join(", "));
        }
    }
}
