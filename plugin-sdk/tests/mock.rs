//! Tests the mock host with small plugins.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use pilothouse_sdk::{
    client::{self, Patch, Preconditions, Propagation, Reason},
    mock::{Expected, LogLine, MockHost, describe},
    prelude::*,
};
use serde::{Deserialize, Serialize};

fn map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.metadata.namespace = Some("default".to_owned());
    map.data = Some(data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
    map
}

fn secret(name: &str) -> Secret {
    let mut secret = Secret::default();
    secret.metadata.name = Some(name.to_owned());
    secret.metadata.namespace = Some("default".to_owned());
    secret
}

fn data(host: &MockHost, name: &str) -> Option<BTreeMap<String, String>> {
    host.get::<ConfigMap>(("default", name)).map(|map| map.data.unwrap_or_default())
}

/// A plugin whose status and children follow a Secret's annotations.
mod mirror {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    pub(super) struct Status {
        pub(super) last_error: Option<String>,
    }

    fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
        let annotation = |name: &str| secret.metadata.annotations.as_ref().and_then(|all| all.get(name));
        if let Some(message) = annotation("fail") {
            return Err(Error::retry(message).with_status(Status { last_error: ctx.last_error().map(Into::into) }));
        }
        if let Some(message) = annotation("give-up") {
            return Err(Error::terminal(message));
        }
        if ctx.phase() != Phase::Live {
            return Ok(Outcome::new().requeue_after(Duration::from_millis(1500)));
        }
        let names = annotation("children").map(String::as_str).unwrap_or_default();
        let children = names.split_whitespace().map(|name| {
            let mut child = map(name, &[("owner", secret.name())]);
            child.metadata.namespace = None;
            child
        });
        let status = Status { last_error: ctx.last_error().map(Into::into) };
        Ok(children
            .fold(Outcome::new().children::<ConfigMap>([]), |outcome, child| {
                if annotation("adopt").is_some() { outcome.adopt(child) } else { outcome.child(child) }
            })
            .status(status))
    }

    pub(super) fn plugin() -> Plugin {
        let controller = Controller::of::<Secret>().owns::<ConfigMap>().reconcile(reconcile);
        Plugin::new("Makes the ConfigMaps that a Secret names.").controller(controller)
    }

    pub(super) fn secret(annotations: &[(&str, &str)]) -> Secret {
        let mut secret = super::secret("s");
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        secret.metadata.annotations = Some(annotations.collect());
        secret
    }
}

/// A Secret with a status, which Kubernetes does not have.
#[derive(Object, Deserialize, Serialize)]
#[object(api_version = "v1", kind = "Secret")]
struct WithStatus {
    metadata: ObjectMeta,
    status: serde_json::Value,
}

const S: (&str, &str) = ("default", "s");

#[test]
fn children_are_created_set_back_and_deleted() {
    let mut host = MockHost::new(mirror::plugin).with(mirror::secret(&[("children", "a b")]));
    host.settle(S).unwrap();
    let owner = host.get::<Secret>(S).unwrap();
    let made = host.list::<ConfigMap>();
    assert_eq!(made.iter().map(Object::name).collect::<Vec<_>>(), ["a", "b"]);
    assert!(made.iter().all(|child| child.is_controlled_by(&owner)));

    host.edit::<ConfigMap>(("default", "a"), |a| {
        a.data = Some([("owner".to_owned(), "x".to_owned()), ("theirs".to_owned(), "y".to_owned())].into());
    });
    host.remove::<ConfigMap>(("default", "b"));
    host.settle(S).unwrap();
    let kept = [("owner".to_owned(), "s".to_owned()), ("theirs".to_owned(), "y".to_owned())];
    assert_eq!(data(&host, "a"), Some(kept.into()));
    assert!(data(&host, "b").is_some());

    host.put(mirror::secret(&[("children", "b")]));
    host.settle(S).unwrap();
    assert_eq!(data(&host, "a"), None);
    assert!(data(&host, "b").is_some());
}

#[test]
fn a_settled_object_is_not_written_again() {
    let mut host = MockHost::new(mirror::plugin).with(mirror::secret(&[("children", "a")]));
    host.settle(S).unwrap();
    let version = host.get::<ConfigMap>(("default", "a")).unwrap().metadata.resource_version;
    host.settle(S).unwrap();
    assert_eq!(host.get::<ConfigMap>(("default", "a")).unwrap().metadata.resource_version, version);
}

#[test]
fn a_foreign_object_is_taken_over_only_by_adopt() {
    let foreign = map("a", &[("theirs", "y")]);
    let mut host = MockHost::new(mirror::plugin).with(mirror::secret(&[("children", "a")])).with(foreign);
    let failure = host.settle(S).unwrap_err();
    assert_eq!(failure.message, "v1 ConfigMap default/a exists already and was not made for default/s");
    assert_eq!(data(&host, "a").unwrap().len(), 1);

    host.put(mirror::secret(&[("children", "a"), ("adopt", "yes")]));
    host.settle(S).unwrap();
    assert_eq!(data(&host, "a").unwrap().len(), 2);
}

#[test]
fn a_failed_child_is_the_last_error_of_the_next_attempt() {
    let mut host = MockHost::new(mirror::plugin).with(mirror::secret(&[("children", "a b")]));
    host.fail_child::<ConfigMap>(("default", "a"), "the quota is used up");
    let failure = host.settle(S).unwrap_err();
    assert_eq!(failure.message, "cannot apply child v1 ConfigMap default/a: the quota is used up");
    assert!(data(&host, "b").is_some(), "its siblings are written all the same");
    assert_eq!(host.get::<WithStatus>(S).unwrap().status["last_error"], failure.message);

    host.mend();
    let outcome = host.settle(S).unwrap();
    assert_eq!(outcome.status::<mirror::Status>(), mirror::Status { last_error: None });
}

#[test]
fn a_terminal_error_is_not_tried_again_and_a_retry_is() {
    let mut host = MockHost::new(mirror::plugin).with(mirror::secret(&[("give-up", "no")]));
    assert!(host.settle(S).unwrap_err().terminal);

    host.put(mirror::secret(&[("fail", "busy")]));
    let failure = host.settle(S).unwrap_err();
    assert_eq!((failure.message.as_str(), failure.terminal), ("busy", false));
    assert_eq!(failure.status.as_deref(), Some(r#"{"last_error":"busy"}"#));
}

#[test]
fn phase_follows_the_object() {
    let mut host = MockHost::new(mirror::plugin).with(mirror::secret(&[("children", "a")]));
    assert_eq!(host.reconcile(S).unwrap().children::<ConfigMap>().len(), 1);

    host.edit::<Secret>(S, |secret| {
        secret.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
    });
    let outcome = host.reconcile(S).unwrap();
    assert!(outcome.leaves_children() && outcome.leaves_status());
    assert_eq!(outcome.requeue_after(), Some(Duration::from_millis(1500)));

    let last = host.remove::<Secret>(S);
    assert!(host.request(S).gone(&last).run().unwrap().leaves_children());
}

#[test]
fn a_refused_permission_denies_children_and_status() {
    let refused = Permission::of::<ConfigMap>().verbs([Verb::Apply]);
    let mut host = MockHost::new(mirror::plugin).refuse(refused).with(mirror::secret(&[("children", "a")]));
    assert_eq!(
        host.settle(S).unwrap_err().message,
        "cannot apply child v1 ConfigMap default/a: not granted: apply v1 ConfigMap default/a: the administrator's file does not allow it; add under grants: - { apiVersion: v1, kind: ConfigMap, verbs: [apply], namespaces: [default] }"
    );

    let refused = Permission::of::<Secret>().status().verbs([Verb::Apply]);
    let mut host = MockHost::new(mirror::plugin).refuse(refused).with(mirror::secret(&[]));
    assert_eq!(
        host.settle(S).unwrap_err().message,
        "cannot write the status: not granted: apply v1 Secret/status default/s: the administrator's file does not allow it; add under grants: - { apiVersion: v1, kind: Secret/status, verbs: [apply], namespaces: [default] }"
    );
}

#[test]
fn generation_counts_changes_of_content_only() {
    let mut host = MockHost::new(mirror::plugin).with(map("m", &[]));
    let generation = |host: &MockHost| host.get::<ConfigMap>(("default", "m")).unwrap().metadata.generation;
    host.edit::<ConfigMap>(("default", "m"), |map| map.metadata.labels = Some(BTreeMap::new()));
    assert_eq!(generation(&host), Some(1));
    host.put(map("m", &[("a", "b")]));
    assert_eq!(generation(&host), Some(2));
}

/// Returns a plugin with the test's own reconcile.
fn plugin_with(
    permissions: impl Fn() -> Vec<Permission> + 'static,
    reconcile: fn(&Context, &ConfigMap) -> Result<Outcome, Error>,
) -> impl Fn() -> Plugin {
    move || {
        let controller = Controller::of::<ConfigMap>().without_status().reconcile(reconcile);
        permissions()
            .into_iter()
            .fold(Plugin::new("Does what the test says.").controller(controller), Plugin::permission)
    }
}

const M: (&str, &str) = ("default", "m");

#[test]
fn a_list_pages_by_itself() {
    fn reconcile(ctx: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
        let list = ctx.cache().list::<ConfigMap>().namespace("default").labels("app=web").page_size(2);
        let names: Result<Vec<String>, _> = list.into_iter().map(|map| map.map(|map| map.name().to_owned())).collect();
        Err(Error::terminal(names?.join(" ")))
    }
    let mut host = MockHost::new(plugin_with(Vec::new, reconcile)).with(map("m", &[]));
    for i in 0..5 {
        let mut map = map(&format!("m-{i}"), &[]);
        map.metadata.labels = Some([("app".to_owned(), if i == 2 { "db" } else { "web" }.to_owned())].into());
        host.put(map);
    }
    assert_eq!(host.reconcile(M).unwrap_err().message, "m-0 m-1 m-3 m-4");
}

#[test]
fn only_what_a_controller_watches_is_in_the_cache() {
    fn reconcile(ctx: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
        ctx.cache().get::<Secret>(("default", "s"))?;
        Ok(Outcome::new())
    }
    let host = MockHost::new(plugin_with(Vec::new, reconcile)).with(map("m", &[]));
    assert_eq!(
        host.reconcile(M).unwrap_err().message,
        "cannot read the cache: not granted: read v1 Secret default/s: the plugin's manifest does not ask for it; to \
         read the cache, name the kind in `reads` of the controller; for a request, it must have a permission like { \
         apiVersion: v1, kind: Secret, verbs: [read], namespaces: [default] }"
    );
    let asked = || vec![Permission::of::<Secret>().verbs([Verb::Read])];
    let host = MockHost::new(plugin_with(asked, reconcile)).with(map("m", &[]));
    assert_eq!(
        host.reconcile(M).unwrap_err().message,
        "cannot read the cache: v1 Secret in namespace default is not cached for this plugin: only what a controller is `for`, `owns`, \
         `watches` or `reads`, what a webhook `reads`, what the plugin `observes` and what the outcome of a reconcile asks for in `watches` \
         is; use client.get"
    );
}

fn all_verbs() -> Vec<Permission> {
    let verbs = [Verb::Read, Verb::Create, Verb::Update, Verb::Patch, Verb::Apply, Verb::Delete];
    vec![Permission::of::<ConfigMap>().verbs(verbs)]
}

#[test]
fn requests_take_effect_and_the_cache_shows_it() {
    fn reconcile(ctx: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
        let (client, cache) = (ctx.client(), ctx.cache());
        let key = ctx.key().beside("new");
        let mut made = client.create(&map("new", &[("a", "1")]))?;
        assert_eq!(cache.get::<ConfigMap>(&key)?.as_ref(), Some(&made));
        assert!(client.create(&made).is_err_and(|error| error.is_already_exists()));

        made.data.get_or_insert_default().insert("b".to_owned(), "2".to_owned());
        made = client.update(&made)?;
        let patch = Patch::merge(serde_json::json!({"data": {"a": null}}))?;
        assert_eq!(client.patch::<ConfigMap>(&key, &patch)?.data, map("", &[("b", "2")]).data);
        assert!(client.update(&made).is_err_and(|error| error.is_conflict()), "it has been patched since");

        assert_eq!(client.apply(&map("new", &[("c", "3")]))?.data, map("", &[("b", "2"), ("c", "3")]).data);
        assert_eq!(client.apply(&map("new", &[]))?.data, map("", &[("b", "2")]).data);

        let other = Preconditions { uid: Some("other".to_owned()), resource_version: None };
        let refused = client.delete_if::<ConfigMap>(&key, Propagation::Foreground, &other);
        assert!(refused.is_err_and(|error| error.is_conflict()));
        client.delete::<ConfigMap>(&key)?;
        assert!(client.get::<ConfigMap>(&key).is_err_and(|error| error.is_not_found()));
        assert_eq!(cache.get::<ConfigMap>(&key)?, None);
        Ok(Outcome::new())
    }
    let mut host = MockHost::new(plugin_with(all_verbs, reconcile)).with(map("m", &[]));
    let new = || Key::new("default", "new");
    for expected in [
        Expected::create::<ConfigMap>(new()),
        Expected::create::<ConfigMap>(new()),
        Expected::update::<ConfigMap>(new()),
        Expected::patch::<ConfigMap>(new()),
        Expected::update::<ConfigMap>(new()),
        Expected::apply::<ConfigMap>(new()),
        Expected::apply::<ConfigMap>(new()),
        Expected::delete::<ConfigMap>(new()),
        Expected::delete::<ConfigMap>(new()),
        Expected::get::<ConfigMap>(new()),
    ] {
        host.expect(expected);
    }
    host.reconcile(M).unwrap();
    assert_eq!(host.calls().len(), 10);
}

#[test]
fn allowed_requests_take_effect_and_scripted_ones_end_as_scripted() {
    fn reconcile(ctx: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
        ctx.client().create(&map("first", &[]))?;
        assert!(ctx.client().create(&map("second", &[])).is_err_and(|error| error.is_conflict()));
        ctx.client().create(&map("third", &[]))?;
        let denied = ctx.client().create(&secret("denied"));
        assert!(matches!(denied, Err(client::Error::NotGranted(_))));
        Ok(Outcome::new())
    }
    let mut host = MockHost::new(plugin_with(all_verbs, reconcile)).allow_requests().with(map("m", &[]));
    let busy = client::Error::api(409, Reason::Conflict, "too late");
    host.expect(Expected::create::<ConfigMap>(("default", "second")).fail(busy));
    host.reconcile(M).unwrap();
    assert_eq!(data(&host, "second"), None);
    assert!(data(&host, "first").is_some() && data(&host, "third").is_some());
}

#[test]
fn a_merge_patch_of_an_earlier_version_is_a_conflict() {
    fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
        let seen =
            serde_json::json!({"metadata": {"resourceVersion": map.metadata.resource_version}, "data": {"a": "1"}});
        let patch = Patch::merge(seen)?;
        ctx.client().patch::<ConfigMap>(ctx.key(), &patch)?;
        assert!(ctx.client().patch::<ConfigMap>(ctx.key(), &patch).is_err_and(|error| error.is_conflict()));
        Ok(Outcome::new())
    }
    let host = MockHost::new(plugin_with(all_verbs, reconcile)).allow_requests().with(map("m", &[]));
    host.reconcile(M).unwrap();
}

#[test]
fn annotations_of_a_built_in_kind_change_through_its_status() {
    fn reconcile(ctx: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
        let patch = Patch::merge(serde_json::json!({
            "metadata": {"annotations": {"a": "1"}, "labels": {"b": "2"}}, "spec": {"nodeName": "n"},
        }))?;
        ctx.client().status().patch::<Pod>(ctx.key(), &patch)?;
        Ok(Outcome::new())
    }
    let asked = || vec![Permission::of::<Pod>().status().verbs([Verb::Patch])];
    let mut pod = Pod::default();
    pod.metadata.name = Some("m".to_owned());
    pod.metadata.namespace = Some("default".to_owned());
    let host = MockHost::new(plugin_with(asked, reconcile)).allow_requests().with(map("m", &[])).with(pod);
    host.reconcile(M).unwrap();
    let Pod { metadata, spec, .. } = host.get(M).unwrap();
    assert_eq!(metadata.annotations, Some([("a".to_owned(), "1".to_owned())].into()));
    assert_eq!((metadata.labels, spec, metadata.generation), (None, None, Some(1)));
}

#[test]
fn a_scripted_failure_reaches_the_plugin() {
    fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
        ctx.client().update(map)?;
        Ok(Outcome::new())
    }
    let mut host = MockHost::new(plugin_with(all_verbs, reconcile)).with(map("m", &[]));
    host.expect(Expected::update::<ConfigMap>(M).fail(client::Error::api(409, Reason::Conflict, "too late")));
    assert_eq!(host.reconcile(M).unwrap_err().message, "the API server rejected the request (409 Conflict): too late");
}

#[test]
fn a_request_without_permission_is_denied_before_the_script() {
    fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
        ctx.client().update(map)?;
        Ok(Outcome::new())
    }
    let host = MockHost::new(plugin_with(Vec::new, reconcile)).with(map("m", &[]));
    assert_eq!(
        host.reconcile(M).unwrap_err().message,
        "not granted: update v1 ConfigMap default/m: the plugin's manifest does not ask for it; it must have a permission like { apiVersion: v1, kind: ConfigMap, verbs: [update], namespaces: [default] }"
    );
    assert_eq!(host.calls(), []);
}

#[test]
#[should_panic(expected = "the plugin requests delete of v1 ConfigMap default/m, where nothing is expected")]
fn an_unexpected_request_fails_the_test() {
    fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
        ctx.client().delete::<ConfigMap>(map.key())?;
        Ok(Outcome::new())
    }
    drop(MockHost::new(plugin_with(all_verbs, reconcile)).with(map("m", &[])).reconcile(M));
}

#[test]
#[should_panic(expected = "the plugin never made these requests: read of v1 ConfigMap default/m")]
fn a_missing_request_fails_the_test() {
    let mut host = MockHost::new(plugin_with(Vec::new, |_, _| Ok(Outcome::new())));
    host.expect(Expected::get::<ConfigMap>(M));
}

#[test]
#[should_panic(expected = "there is no host here")]
fn a_description_that_calls_the_host_fails_the_test() {
    fn plugin() -> Plugin {
        info!("describing");
        Plugin::new("Talks too early.")
    }
    drop(MockHost::new(plugin));
}

#[test]
#[should_panic(expected = "controllers[1].name: \"configmap\" names another controller already")]
fn a_manifest_that_the_host_rejects_fails_the_test() {
    let controller = || Controller::of::<ConfigMap>().reconcile(|_, _| Ok(Outcome::new()));
    let plugin = move || -> Plugin { Plugin::new("Says it twice.").controller(controller()).controller(controller()) };
    drop(MockHost::new(plugin));
}

#[test]
#[should_panic(expected = "has not settled after 100 calls")]
fn a_reconcile_that_never_settles_fails_the_test() {
    fn reconcile(_: &Context, secret: &Secret) -> Result<Outcome, Error> {
        let version = secret.metadata.resource_version.as_deref().unwrap_or_default();
        Ok(Outcome::new().status(BTreeMap::from([("seen", version)])))
    }
    fn plugin() -> Plugin {
        Plugin::new("Writes what it reads.").controller(Controller::of::<Secret>().reconcile(reconcile))
    }
    drop(MockHost::new(plugin).with(secret("s")).settle(S));
}

#[test]
fn lines_carry_their_fields() {
    fn reconcile(_: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
        info!("scaled", from = 3, to = "five");
        Ok(Outcome::new())
    }
    let host = MockHost::new(plugin_with(Vec::new, reconcile)).with(map("m", &[]));
    host.reconcile(M).unwrap();
    let fields = [("from", "3"), ("to", "five")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let line = LogLine { level: pilothouse_sdk::log::Level::Info, message: "scaled".to_owned(), fields: fields.into() };
    assert_eq!(host.lines(), [line]);
}

#[test]
fn a_condition_keeps_its_time_while_its_status_stays() {
    fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
        let mut conditions: Conditions = map
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get("conditions"))
            .map_or(Ok(Conditions::default()), |json| serde_json::from_str(json))?;
        conditions.set(ctx.condition("Ready", map.data.is_some(), "Looked", "at it"));
        Ok(Outcome::new().status(conditions))
    }
    let mut host = MockHost::new(plugin_with(Vec::new, reconcile)).at("2026-03-01T12:00:00.75Z").with(map("m", &[]));
    let since = |host: &MockHost| {
        let conditions: Conditions = host.reconcile(M).unwrap().status();
        let ready = conditions.get("Ready").unwrap();
        (ready.status.clone(), ready.last_transition_time.0.to_string(), ready.observed_generation)
    };
    let note = |host: &mut MockHost| {
        let conditions: serde_json::Value = host.reconcile(M).unwrap().status();
        host.edit::<ConfigMap>(M, |map| {
            map.metadata.annotations = Some([("conditions".to_owned(), conditions.to_string())].into());
        });
    };
    assert_eq!(since(&host), ("True".to_owned(), "2026-03-01T12:00:00Z".to_owned(), Some(1)));
    note(&mut host);
    host.advance(Duration::from_secs(60));
    assert_eq!(since(&host), ("True".to_owned(), "2026-03-01T12:00:00Z".to_owned(), Some(1)));
    host.edit::<ConfigMap>(M, |map| map.data = None);
    assert_eq!(since(&host), ("False".to_owned(), "2026-03-01T12:01:00Z".to_owned(), Some(2)));
}

#[test]
fn an_object_that_cannot_be_decoded_is_a_terminal_error() {
    #[derive(Object, Deserialize, Serialize)]
    #[object(kind = "Secret", api_version = "v1")]
    struct Odd {
        metadata: ObjectMeta,
        size: u32,
    }
    fn plugin() -> Plugin {
        let controller = Controller::of::<Odd>().reconcile(|_, odd| Err(Error::retry(odd.size)));
        Plugin::new("Expects sizes.").controller(controller)
    }
    let failure = MockHost::new(plugin).with(secret("s")).reconcile(S).unwrap_err();
    assert!(failure.terminal);
    assert!(failure.message.starts_with("cannot decode v1 Secret default/s: missing field `size`"), "{failure}");
}

#[test]
fn a_configuration_reaches_the_plugin_and_a_wrong_one_is_rejected() {
    #[derive(Deserialize)]
    struct Config {
        namespace: String,
    }
    fn plugin(config: Config) -> Result<Plugin, Error> {
        if config.namespace.is_empty() {
            return Err(Error::terminal("`namespace` is empty"));
        }
        let controller = Controller::of::<ConfigMap>().owns::<Secret>().namespaces([config.namespace]);
        let controller = controller.reconcile(|_, _| Ok(Outcome::new()));
        Ok(Plugin::new("Keeps to one namespace.").controller(controller))
    }
    let host = MockHost::configured(plugin, serde_json::json!({"namespace": "shop"}));
    let controller = &host.manifest().controllers[0];
    assert_eq!(controller.for_.namespaces, ["shop"]);
    assert_eq!(controller.owns[0].namespaces, ["shop"]);
    assert!(host.manifest().permissions.iter().all(|permission| permission.namespaces == ["shop"]));

    assert_eq!(describe(plugin, r#"{"namespace": ""}"#).unwrap_err(), "`namespace` is empty");
    assert_eq!(
        describe(plugin, "{}").unwrap_err(),
        "the configuration is not valid: missing field `namespace` at line 1 column 2"
    );
}

#[test]
fn a_child_that_the_server_rejects_fails_with_its_message() {
    fn reconcile(_: &Context, _: &Secret) -> Result<Outcome, Error> {
        let mut child = map("twice", &[]);
        child.metadata.finalizers = Some(vec!["a.example.org/x".to_owned(); 2]);
        Ok(Outcome::new().child(child))
    }
    fn plugin() -> Plugin {
        let controller = Controller::of::<Secret>().owns::<ConfigMap>().without_status().reconcile(reconcile);
        Plugin::new("Names a finalizer twice.").controller(controller)
    }
    let mut host = MockHost::new(plugin).with(secret("a"));
    let failure = format!("{:?}", host.settle(("default", "a")).unwrap_err());
    assert!(failure.contains("duplicate entries for key"), "{failure}");
    assert_eq!(data(&host, "twice"), None);
}

#[test]
#[should_panic(expected = "asked and not granted: v1 ConfigMap: read\ngranted and not asked: v1 ConfigMap/status: \
                           apply in namespaces a of names x, y")]
fn a_grant_that_differs_from_what_is_asked_fails_the_test() {
    let grant = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap/status", "verbs": ["apply"], "namespaces": ["a"], "names": ["x", "y"],
    });
    MockHost::new(plugin_with(Vec::new, |_, _| Ok(Outcome::new())))
        .assert_granted(&serde_json::json!({"grants": [grant]}));
}

/// A plugin that removes a ConfigMap when a Secret is deleted.
mod cleaner {
    use super::*;

    pub(super) const FINALIZER: &str = "example.com/cleaner";

    fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
        let outside = ctx.key().beside("outside");
        if ctx.phase() == Phase::Deleting {
            ctx.client().delete::<ConfigMap>(outside)?;
            info!("cleaned up");
            return Ok(Outcome::new());
        }
        assert_eq!(ctx.phase(), Phase::Live, "it is finished");
        assert_eq!(secret.metadata.finalizers, Some(vec!["example.com/other".to_owned(), FINALIZER.to_owned()]));
        Ok(Outcome::new())
    }

    pub(super) fn plugin() -> Plugin {
        let controller = Controller::of::<Secret>().finalizer(FINALIZER).without_status().reconcile(reconcile);
        let permission = Permission::of::<ConfigMap>().verbs([Verb::Delete]);
        Plugin::new("Cleans up.").controller(controller).permission(permission)
    }
}

#[test]
fn finalizer_is_kept_from_the_first_call_to_the_cleanup() {
    let mut object = secret("s");
    object.metadata.finalizers = Some(vec!["example.com/other".to_owned()]);
    let mut host = MockHost::new(cleaner::plugin).with(object).with(map("outside", &[]));
    let finalizers = |host: &MockHost| host.get::<Secret>(("default", "s")).map(|secret| secret.metadata.finalizers);
    host.settle(("default", "s")).unwrap();

    host.delete::<Secret>(("default", "s"));
    let busy = client::Error::api(503, Reason::ServiceUnavailable, "try later");
    host.expect(Expected::delete::<ConfigMap>(("default", "outside")).fail(busy.clone()));
    host.expect(Expected::delete::<ConfigMap>(("default", "outside")));
    host.settle(("default", "s")).unwrap();
    assert_eq!(finalizers(&host), Some(Some(vec!["example.com/other".to_owned()])));
    assert_eq!(data(&host, "outside"), None);
    assert_eq!(host.lines().len(), 1);

    // The cleanup is done: there are no further calls.
    assert!(host.settle(("default", "s")).unwrap().leaves_children());
    host.edit::<Secret>(("default", "s"), |secret| secret.metadata.finalizers = None);
    assert_eq!(finalizers(&host), None);
    assert_eq!(host.lines().len(), 1);
}

#[test]
fn object_without_other_finalizers_goes_after_its_cleanup() {
    let mut object = secret("s");
    object.metadata.finalizers = Some(vec!["example.com/other".to_owned(), cleaner::FINALIZER.to_owned()]);
    let mut host = MockHost::new(cleaner::plugin).with(object).with(map("outside", &[]));
    host.settle(("default", "s")).unwrap();
    host.edit::<Secret>(("default", "s"), |secret| {
        secret.metadata.finalizers = Some(vec![cleaner::FINALIZER.to_owned()]);
    });
    host.delete::<Secret>(("default", "s"));
    host.expect(Expected::delete::<ConfigMap>(("default", "outside")));
    host.settle(("default", "s")).unwrap();
    assert_eq!(host.get::<Secret>(("default", "s")), None);
}

#[test]
fn finalizer_that_is_not_granted_is_not_added_and_nothing_is_called() {
    let host = MockHost::new(cleaner::plugin).with(secret("s"));
    let mut host = host.refuse(Permission::of::<Secret>().verbs([Verb::Patch]));
    let failure = host.settle(("default", "s")).unwrap_err();
    assert_eq!(
        failure.message,
        "cannot add the finalizer example.com/cleaner: not granted: patch v1 Secret default/s: the administrator's file does not allow it; add under grants: - { apiVersion: v1, kind: Secret, verbs: [patch], namespaces: [default] }"
    );
}

#[test]
fn finalizer_needs_a_domain() {
    fn plugin() -> Plugin {
        let controller = Controller::of::<Secret>().finalizer("cleanup").reconcile(|_, _| Ok(Outcome::new()));
        Plugin::new("Is refused.").controller(controller)
    }
    let refused = std::panic::catch_unwind(|| MockHost::new(plugin)).unwrap_err();
    let told = refused.downcast_ref::<String>().unwrap();
    assert!(told.contains("must be a domain, a slash and a name"), "{told}");
}

/// A plugin that reports what the client answers beside single objects.
mod reacher {
    use k8s_openapi::api::{apps::v1::Deployment, authorization::v1::SelfSubjectAccessReview, core::v1::Pod};
    use pilothouse_sdk::client::{Call, Subresource};

    use super::*;

    fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
        let client = ctx.client();
        let listed = client.list::<ConfigMap>().beside(ctx.key()).labels("of=s").into_iter();
        let listed = listed.collect::<Result<Vec<_>, _>>()?;
        let calls = [Call::get(ctx.key().beside("a")), Call::create(&super::map("b", &[]))];
        let answers = client.all::<ConfigMap>(calls);
        let read = answers.iter().filter(|answer| answer.is_ok()).count();
        client.all([Call::delete::<ConfigMap>(ctx.key().beside("b"))]).remove(0)?;
        let scale = client.get_scale::<Deployment>(secret.key())?;
        let review = client.create(&SelfSubjectAccessReview::default())?;
        client.evict(ctx.key().beside("pod"))?;
        let log = client.logs(ctx.key().beside("pod")).container("main").tail(3).read()?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        info!("done", listed = listed.len(), read = read, replicas = scale.desired, allowed = allowed, log = log);
        Ok(Outcome::new())
    }

    pub(super) fn plugin() -> Plugin {
        use Verb::{Create, Delete, Read};
        let controller = Controller::of::<Secret>().without_status().reconcile(reconcile);
        Plugin::new("Reaches far.")
            .controller(controller)
            .permission(Permission::of::<ConfigMap>().verbs([Read, Create, Delete]))
            .permission(Permission::of::<Deployment>().scale().verbs([Read]))
            .permission(Permission::of::<SelfSubjectAccessReview>().verbs([Create]))
            .permission(Permission::of::<Pod>().subresource(Subresource::Eviction).verbs([Create]))
            .permission(Permission::of::<Pod>().subresource(Subresource::Log).verbs([Read]))
    }
}

#[test]
fn lists_batches_scales_reviews_evictions_and_logs_are_scripted() {
    use k8s_openapi::api::{
        apps::v1::{Deployment, DeploymentSpec},
        authorization::v1::{SelfSubjectAccessReview, SubjectAccessReviewStatus},
        core::v1::Pod,
    };

    let mut labelled = map("a", &[]);
    labelled.metadata.labels = Some([("of".to_owned(), "s".to_owned())].into());
    let metadata = |name: &str| ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("default".to_owned()),
        ..ObjectMeta::default()
    };
    let spec = Some(DeploymentSpec { replicas: Some(3), ..DeploymentSpec::default() });
    let mut host = MockHost::new(reacher::plugin)
        .with(secret("s"))
        .with(labelled)
        .with(map("other", &[]))
        .with(Deployment { metadata: metadata("s"), spec, ..Deployment::default() })
        .with(Pod { metadata: metadata("pod"), ..Pod::default() });
    host.expect(Expected::list::<ConfigMap>(Some("default")));
    host.expect(Expected::get::<ConfigMap>(("default", "a")));
    let exists = client::Error::api(409, Reason::AlreadyExists, "it is there");
    host.expect(Expected::create::<ConfigMap>(("default", "b")).fail(exists));
    host.expect(Expected::delete::<ConfigMap>(("default", "b")).answer(map("b", &[])));
    host.expect(Expected::get::<Deployment>(("default", "s")).scale());
    let review = SelfSubjectAccessReview {
        status: Some(SubjectAccessReviewStatus { allowed: true, ..SubjectAccessReviewStatus::default() }),
        ..SelfSubjectAccessReview::default()
    };
    host.expect(Expected::create::<SelfSubjectAccessReview>(Key::cluster("")).answer(review));
    host.expect(Expected::evict(("default", "pod")));
    host.expect(Expected::logs(("default", "pod")).text("a line"));
    host.reconcile(("default", "s")).unwrap();
    let line = host.lines().remove(0);
    let fields: Vec<_> = line.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(fields, ["listed=1", "read=1", "replicas=3", "allowed=true", "log=a line"]);
    assert_eq!(host.get::<Pod>(("default", "pod")), None);
}

#[test]
fn list_over_all_namespaces_needs_a_permission_for_all() {
    fn plugin() -> Plugin {
        let reconcile = |ctx: &Context, _: &Secret| -> Result<Outcome, Error> {
            ctx.client().list::<ConfigMap>().into_iter().next().transpose()?;
            Ok(Outcome::new())
        };
        let controller = Controller::of::<Secret>().without_status().reconcile(reconcile);
        let permission = Permission::of::<ConfigMap>().verbs([Verb::Read]).namespaces(["default"]);
        Plugin::new("Lists everything.").controller(controller).permission(permission)
    }
    let host = MockHost::new(plugin).with(secret("s"));
    let failure = host.reconcile(("default", "s")).unwrap_err();
    assert!(failure.message.contains("the plugin's manifest does not ask for it"), "{}", failure.message);
}

#[test]
fn child_with_immutable_content_is_created_again_only_by_replace() {
    fn plugin() -> Plugin {
        let reconcile = |_: &Context, secret: &Secret| -> Result<Outcome, Error> {
            let annotation = |name: &str| secret.metadata.annotations.as_ref().and_then(|all| all.get(name)).cloned();
            let mut child = map("fixed", &[("size", &annotation("size").unwrap_or_default())]);
            child.immutable = Some(true);
            let outcome = Outcome::new();
            Ok(if annotation("replace").is_some() { outcome.replace(child) } else { outcome.child(child) })
        };
        let controller = Controller::of::<Secret>().owns::<ConfigMap>().without_status().reconcile(reconcile);
        Plugin::new("Makes a ConfigMap that may not change.").controller(controller)
    }
    let mut host = MockHost::new(plugin).with(mirror::secret(&[("size", "1")]));
    host.settle(("default", "s")).unwrap();
    let uid = |host: &MockHost| host.get::<ConfigMap>(("default", "fixed")).unwrap().metadata.uid;
    let first = uid(&host);
    host.put(mirror::secret(&[("size", "2")]));
    let failure = host.settle(("default", "s")).unwrap_err();
    assert_eq!(
        failure.message,
        "cannot change v1 ConfigMap default/fixed: a field is immutable: return the child with `replace`"
    );
    assert_eq!(uid(&host), first);
    host.put(mirror::secret(&[("size", "2"), ("replace", "yes")]));
    host.settle(("default", "s")).unwrap();
    assert_ne!(uid(&host), first);
    assert_eq!(data(&host, "fixed").unwrap()["size"], "2");
}
