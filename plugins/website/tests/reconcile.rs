//! Tests `website` against the mock host.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]
#![allow(clippy::needless_pass_by_value, reason = "JSON is written where it is passed")]

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Secret, Service},
        networking::v1::Ingress,
    },
};
use kube::CustomResourceExt;
use pilothouse_sdk::{
    Key, Object,
    http::Error,
    mock::{ExpectedHttp, MockHost},
};
use serde_json::{Value, json};
use website::{CHECKSUM, FINALIZER, Website, WebsiteSpec, WebsiteStatus, website};

const BLOG: (&str, &str) = ("default", "blog");
const REGISTRAR: &str = "https://dns.example.com/hosts";
const RECORD: &str = "https://dns.example.com/hosts/blog.example.com";

fn blog(spec: Value) -> Website {
    let mut whole = json!({"image": "blog:1", "replicas": 2});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let mut blog = Website::new("blog", serde_json::from_value::<WebsiteSpec>(whole).unwrap());
    blog.metadata.namespace = Some("default".to_owned());
    blog
}

fn env(title: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "env"}, "data": {"TITLE": title},
    }))
    .unwrap()
}

fn token(text: &str) -> Secret {
    let mut secret = Secret::default();
    secret.metadata.namespace = Some("default".to_owned());
    secret.metadata.name = Some("token".to_owned());
    secret.data = Some([("token".to_owned(), ByteString(text.as_bytes().to_vec()))].into());
    secret
}

/// Does what the Deployment controller does when all Pods run.
fn roll_out(host: &mut MockHost) {
    host.edit::<Deployment>(BLOG, |deployment| {
        let replicas = deployment.spec.as_ref().unwrap().replicas;
        let generation = deployment.metadata.generation;
        deployment.status = serde_json::from_value(json!({
            "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas, "availableReplicas": replicas,
        }))
        .unwrap();
    });
}

fn status(host: &MockHost) -> WebsiteStatus {
    host.get::<Website>(BLOG).unwrap().status.unwrap()
}

/// Returns status and reason of a condition, such as `False RollingOut`.
fn condition(host: &MockHost, name: &str) -> Option<String> {
    status(host).conditions.get(name).map(|condition| format!("{} {}", condition.status, condition.reason))
}

fn checksum(host: &MockHost) -> Option<String> {
    let deployment = host.get::<Deployment>(BLOG).unwrap();
    deployment.spec.unwrap().template.metadata.unwrap().annotations?.remove(CHECKSUM)
}

fn events(host: &MockHost) -> Vec<String> {
    host.events().iter().map(ToString::to_string).collect()
}

fn alone() -> Value {
    json!({})
}

fn registered() -> Value {
    json!({"ingressClass": "nginx", "registrar": REGISTRAR})
}

#[test]
fn a_website_becomes_ready_when_its_deployment_is_rolled_out() {
    let mut host = MockHost::configured(website, alone()).with(blog(json!({})));
    host.settle(BLOG).unwrap();
    assert_eq!(condition(&host, "Ready").unwrap(), "False RollingOut");
    assert!(host.get::<Service>(BLOG).is_some() && host.get::<Ingress>(BLOG).is_none());
    assert_eq!(checksum(&host), None);
    assert_eq!(events(&host), [""; 0]);

    assert_eq!(host.woken_by(roll_out), [Key::from(BLOG)]);
    host.settle(BLOG).unwrap();
    let WebsiteStatus { replicas, available_replicas, selector, .. } = status(&host);
    let selector = selector.unwrap();
    assert_eq!((replicas, available_replicas), (2, 2));
    assert_eq!(selector, "app.kubernetes.io/instance=blog,app.kubernetes.io/name=website");
    assert_eq!(condition(&host, "Ready").unwrap(), "True AllAvailable");

    host.edit::<Website>(BLOG, |blog| blog.spec.replicas = 3);
    host.settle(BLOG).unwrap();
    assert_eq!(condition(&host, "Ready").unwrap(), "False RollingOut");
    assert_eq!(
        events(&host),
        [
            "Normal Ready web.example.com/v1 Website default/blog: 2 of 2 Pods are available, 2 are up to date",
            "Warning NotReady web.example.com/v1 Website default/blog: 2 of 3 Pods are available, 2 are up to date",
        ]
    );
}

#[test]
fn the_ingress_comes_and_goes_with_the_host_name() {
    let config = json!({"ingressClass": "nginx"});
    let mut host = MockHost::configured(website, config).with(blog(json!({"host": "blog.example.com"})));
    host.settle(BLOG).unwrap();
    let spec = host.get::<Ingress>(BLOG).unwrap().spec.unwrap();
    assert_eq!(spec.ingress_class_name.unwrap(), "nginx");
    assert_eq!(spec.rules.unwrap()[0].host.as_deref(), Some("blog.example.com"));
    assert_eq!(condition(&host, "Registered"), None);

    host.edit::<Website>(BLOG, |blog| blog.spec.host = None);
    host.settle(BLOG).unwrap();
    assert!(host.get::<Ingress>(BLOG).is_none() && host.get::<Service>(BLOG).is_some());
}

#[test]
fn the_pods_are_replaced_when_their_environment_changes() {
    let spec = json!({"configMap": "env", "secret": "token"});
    let mut host = MockHost::configured(website, alone()).with(blog(spec)).with(env("A blog")).with(token("s3cret"));
    host.settle(BLOG).unwrap();
    let mut seen = vec![checksum(&host).unwrap()];
    let changes: [fn(&mut MockHost); 2] = [|host| host.put(env("Another")), |host| host.put(token("s4cret"))];
    for change in changes {
        assert_eq!(host.woken_by(change), [Key::from(BLOG)]);
        host.settle(BLOG).unwrap();
        let now = checksum(&host).unwrap();
        assert!(!seen.contains(&now));
        seen.push(now);
    }
    let reported =
        "Normal RollingOut web.example.com/v1 Website default/blog: the environment of the Pods has changed (x2)";
    assert_eq!(events(&host), [reported]);
    assert!(host.metric("website_rollouts_total", []) >= Some(2.0));
}

#[test]
fn a_missing_environment_is_waited_for_and_the_old_pods_go_on() {
    let mut host = MockHost::configured(website, alone()).with(blog(json!({"configMap": "env"})));
    host.settle(BLOG).unwrap();
    assert_eq!(condition(&host, "Ready").unwrap(), "False Missing");
    assert!(host.get::<Deployment>(BLOG).is_none());
    assert_eq!(host.woken_by(|host| host.put(env("A blog"))), [Key::from(BLOG)]);
    host.settle(BLOG).unwrap();
    let before = checksum(&host);
    assert_eq!(host.woken_by(|host| drop(host.remove::<ConfigMap>(("default", "env")))), [Key::from(BLOG)]);
    assert!(host.settle(BLOG).unwrap().leaves_children());
    assert_eq!((condition(&host, "Ready").unwrap().as_str(), checksum(&host)), ("False Missing", before));
}

#[test]
fn a_host_name_is_registered_once_moved_and_removed() {
    let spec = json!({"host": "blog.example.com"});
    let mut host = MockHost::configured(website, registered()).with(blog(spec));
    host.expect_http(ExpectedHttp::put(RECORD).returns(201, ""));
    host.settle(BLOG).unwrap();
    assert_eq!(host.http_calls()[0].json(), json!({"namespace": "default", "website": "blog"}));
    assert_eq!(condition(&host, "Registered").unwrap(), "True Registered");

    host.expect_http(ExpectedHttp::delete(RECORD));
    host.expect_http(ExpectedHttp::put(format!("{REGISTRAR}/news.example.com")));
    host.edit::<Website>(BLOG, |blog| blog.spec.host = Some("news.example.com".to_owned()));
    host.settle(BLOG).unwrap();
    assert_eq!(status(&host).host.unwrap(), "news.example.com");

    // One that somebody has removed counts as removed.
    host.expect_http(ExpectedHttp::delete(format!("{REGISTRAR}/news.example.com")).returns(404, ""));
    host.delete::<Website>(BLOG);
    host.settle(BLOG).unwrap();
    assert_eq!(host.get::<Website>(BLOG), None);
    let registered = [("operation", "register"), ("result", "success")];
    assert_eq!(host.metric("website_registrar_requests_total", registered), Some(2.0));
}

#[test]
fn the_status_names_the_host_before_the_registrar_gets_it() {
    let host = MockHost::configured(website, registered()).with(blog(json!({"host": "blog.example.com"})));
    // No request is expected, so the first call sends none.
    let status: WebsiteStatus = host.reconcile(BLOG).unwrap().status();
    assert_eq!(status.host.unwrap(), "blog.example.com");
}

#[test]
fn a_registrar_that_fails_is_asked_again_and_the_pods_run() {
    let spec = json!({"host": "blog.example.com"});
    let mut host = MockHost::configured(website, registered()).with(blog(spec));
    host.expect_http(ExpectedHttp::put(RECORD).returns(503, ""));
    host.expect_http(ExpectedHttp::put(RECORD).fail(Error::Timeout));
    host.expect_http(ExpectedHttp::put(RECORD).fail(Error::Timeout));
    let outcome = host.settle(BLOG).unwrap();
    assert!(outcome.requeue_after().is_some() && host.get::<Deployment>(BLOG).is_some());
    assert_eq!(condition(&host, "Registered").unwrap(), "False RegistrarFailed");
    let reported = "Warning NotRegistered web.example.com/v1 Website default/blog: the server answered with status 503";
    assert_eq!(events(&host), [reported]);
    host.expect_http(ExpectedHttp::put(RECORD));
    host.settle(BLOG).unwrap();
    assert_eq!(condition(&host, "Registered").unwrap(), "True Registered");
}

#[test]
fn a_website_stays_until_its_host_name_is_removed() {
    let spec = json!({"host": "blog.example.com"});
    let mut host = MockHost::configured(website, registered()).with(blog(spec));
    host.expect_http(ExpectedHttp::put(RECORD));
    host.settle(BLOG).unwrap();
    host.delete::<Website>(BLOG);
    for _ in 0..2 {
        host.expect_http(ExpectedHttp::delete(RECORD).returns(500, ""));
    }
    let failure = host.settle(BLOG).unwrap_err();
    assert_eq!(failure.message, "the server answered with status 500");
    let finalizers = host.get::<Website>(BLOG).unwrap().metadata.finalizers;
    assert_eq!(finalizers.unwrap(), [FINALIZER]);
    assert!(events(&host)[1].starts_with("Warning CleanupFailed"), "{:?}", events(&host));
    host.expect_http(ExpectedHttp::delete(RECORD));
    host.settle(BLOG).unwrap();
    assert_eq!(host.get::<Website>(BLOG), None);
}

#[test]
fn a_registrar_without_a_server_is_refused() {
    let problem = pilothouse_sdk::mock::describe(website, r#"{"registrar": "dns.example.com"}"#).unwrap_err();
    assert_eq!(problem, "the request is not valid: the URL does not begin with https:// or http://");
}

#[test]
fn the_custom_resource_definition_is_as_reviewed() {
    insta::assert_snapshot!("crd", serde_saphyr::to_string(&Website::crd()).unwrap());
}

#[test]
fn the_administrators_file_grants_exactly_what_is_asked() {
    let file: Value = serde_saphyr::from_str(include_str!("../website.yaml")).unwrap();
    MockHost::configured(website, &file["config"]).assert_granted(&file);
}

#[test]
fn the_example_is_a_website_and_its_environment() {
    let objects: Vec<Value> = serde_saphyr::from_multiple(include_str!("../examples/blog.yaml")).unwrap();
    let mut host = MockHost::configured(website, alone());
    host.put(serde_json::from_value::<Website>(objects[0].clone()).unwrap());
    host.put(serde_json::from_value::<ConfigMap>(objects[1].clone()).unwrap());
    host.settle(BLOG).unwrap();
    assert!(host.get::<Deployment>(BLOG).unwrap().name() == "blog" && checksum(&host).is_some());
}
