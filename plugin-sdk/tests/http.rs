//! Tests how the mock host answers requests to other servers.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::{
    http::{self, HttpPermission},
    mock::{ExpectedHttp, MockHost},
    prelude::*,
};
use serde_json::{Value, json};

/// Sends a request to the URL in the ConfigMap. The outcome's status is what came of it.
fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
    let url = map.data.as_ref().and_then(|data| data.get("url")).cloned().unwrap_or_default();
    let sent = ctx.http().post(url).bearer("t").json(&json!({"a": 1})).send();
    let sent = sent.and_then(http::Response::error_for_status).and_then(|response| response.json::<Value>());
    let told = match sent {
        Ok(answer) => format!("answer {answer}"),
        Err(error) => format!("{:?} {error}", error.status()),
    };
    Ok(Outcome::new().status(json!({ "told": told })))
}

fn plugin() -> Plugin {
    Plugin::new("Sends a request for each ConfigMap.")
        .http(HttpPermission::to("*.example.com").methods(["POST"]))
        .http(HttpPermission::to("10.0.0.1").plain().port(8080).methods(["POST"]))
        .controller(Controller::of::<ConfigMap>().reconcile(reconcile))
}

fn host(url: &str) -> MockHost {
    let map = json!({"metadata": {"name": "m", "namespace": "n"}, "data": {"url": url}});
    MockHost::new(plugin).with(serde_json::from_value::<ConfigMap>(map).unwrap())
}

fn told(host: &MockHost) -> String {
    let outcome = host.reconcile(("n", "m")).unwrap();
    outcome.status::<Value>()["told"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_scripted_request_gets_its_answer_and_is_recorded() {
    let url = "https://api.example.com/v1?x";
    let mut host = host(url);
    host.expect_http(ExpectedHttp::post(url).json(201, &json!([1])));
    host.expect_http(ExpectedHttp::post(url).returns(503, "busy"));
    host.expect_http(ExpectedHttp::post(url).returns(200, "no JSON"));
    host.expect_http(ExpectedHttp::post(url).fail(http::Error::Timeout));
    assert_eq!(told(&host), "answer [1]");
    assert_eq!(told(&host), "Some(503) the server answered with status 503");
    assert!(told(&host).starts_with("None cannot decode the response: "));
    assert_eq!(told(&host), "None the server did not answer in time");
    let call = host.http_calls()[0].clone();
    assert_eq!((call.method.as_str(), call.url.as_str(), call.json()), ("POST", url, json!({"a": 1})));
    assert!(call.headers.contains(&("authorization".to_owned(), "Bearer t".to_owned())));
}

#[test]
fn a_server_that_the_manifest_does_not_name_is_denied_as_by_the_host() {
    for (url, why) in [
        ("https://example.com/", "https://example.com:443"),
        ("http://api.example.com/", "http://api.example.com:80"),
        ("https://api.example.com:8443/", "https://api.example.com:8443"),
        ("http://10.0.0.1/", "http://10.0.0.1:80"),
    ] {
        let expected = format!("None not granted: POST to {why}: the plugin's manifest does not ask for it in `http`");
        assert_eq!(told(&host(url)), expected);
    }
    assert_eq!(
        told(&host("https://u@api.example.com/")),
        "None the request is not valid: the URL has a user; send a header Authorization instead"
    );
}

#[test]
#[should_panic(expected = "where nothing is expected: see MockHost::expect_http")]
fn an_unexpected_request_fails_the_test() {
    told(&host("http://10.0.0.1:8080/"));
}

#[test]
#[should_panic(expected = "POST https://api.example.com/")]
fn a_request_that_never_comes_fails_the_test() {
    let mut host = host("https://example.com/");
    host.expect_http(ExpectedHttp::post("https://api.example.com/"));
    told(&host);
}

#[test]
#[should_panic(expected = "http[0].host: \"https://a.com\": the host is not a DNS name")]
fn a_permission_that_the_host_would_refuse_fails_the_test() {
    let plugin = || {
        let permission = HttpPermission::to("https://a.com").methods(["GET"]);
        Plugin::new("Asks wrongly.")
            .http(permission)
            .controller(Controller::of::<ConfigMap>().reconcile(|_, _| Ok(Outcome::new())))
    };
    MockHost::new(plugin);
}

#[test]
fn grants_are_compared_with_what_is_asked_for() {
    let granted = json!({
        "grants": [
            {"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["read"]},
            {"apiVersion": "v1", "kind": "ConfigMap/status", "verbs": ["apply"]},
        ],
        "http": [
            {"hosts": ["*.example.com"], "methods": ["POST"]},
            {"hosts": ["10.0.0.1"], "ports": [8080], "methods": ["POST"], "plain": true, "private": true},
        ],
    });
    host("").assert_granted(&granted);
}
