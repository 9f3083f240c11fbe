//! Faults over HTTP: each affects only the requests that its rule selects.

use pilothouse_apiserver::faults::{Answer, By, Fault, Listed, Requests, Rule, Verb};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::cluster::{CONFIG_MAPS, Cluster, MERGE, config_map, pair};

const FAULTS: &str = "/debug/faults";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const STREAMING: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

impl Cluster {
    /// Adds a rule.
    async fn rule(&self, rule: Value) -> u64 {
        self.post(FAULTS, &rule).await.ok()["id"].as_u64().unwrap()
    }

    async fn remove(&self, rule: u64) {
        self.send("DELETE", &format!("{FAULTS}/{rule}"), &[], b"").await.ok();
    }

    fn only_rule(&self) -> Listed {
        let [rule] = <[Listed; 1]>::try_from(self.server.faults().list()).unwrap();
        rule
    }

    /// Sends a GET over a new connection. Returns what comes back, and how the connection ends.
    async fn raw(&self, path: &str) -> (String, std::io::Result<()>) {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        received(stream).await
    }
}

async fn received(mut stream: TcpStream) -> (String, std::io::Result<()>) {
    let mut bytes = Vec::new();
    let end = stream.read_to_end(&mut bytes).await;
    (String::from_utf8(bytes).unwrap(), end.map(|_| ()))
}

fn is_reset(end: &std::io::Result<()>) -> bool {
    end.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

async fn change(cluster: &Cluster, name: &str, value: &str) -> Value {
    cluster.patch(&format!("{CONFIG_MAPS}/{name}"), MERGE, &json!({"data": {"value": value}})).await.ok()
}

#[tokio::test]
async fn a_status_affects_only_the_first_two_lists_of_one_resource() {
    let cluster = Cluster::start().await;
    let before = cluster.get(CONFIG_MAPS).await.ok();
    cluster
        .rule(json!({
            "on": {"resource": "configmaps", "verbs": ["list"]},
            "fault": {"status": {"code": 429, "retryAfterSeconds": 2}},
            "count": 2,
        }))
        .await;
    for _ in 0..2 {
        assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/kube-root-ca.crt")).await.code, 200);
        assert_eq!(cluster.get(SECRETS).await.code, 200);
        assert_eq!(cluster.get("/api/v1").await.code, 200);
        let refused = cluster.get(CONFIG_MAPS).await;
        assert_eq!(
            (refused.refusal(), &refused.headers["retry-after"]),
            ((429, "TooManyRequests"), &"2".parse().unwrap())
        );
        assert_eq!(refused.body["details"], json!({"retryAfterSeconds": 2}));
    }
    assert_eq!(cluster.get(CONFIG_MAPS).await.ok(), before);
    let rule = cluster.only_rule();
    assert_eq!((rule.hits, rule.over), (2, true));
    assert_eq!(cluster.counted(&["resource=\"configmaps\"", "verb=\"LIST\"", "code=\"429\""]).await, 2);
}

#[tokio::test]
async fn any_status_comes_in_any_form() {
    let cluster = Cluster::start().await;
    for (answer, reason, content_type, text) in [
        (json!({"code": 401}), "Unauthorized", "application/json", "\"Unauthorized\""),
        (json!({"code": 403, "message": "no"}), "Forbidden", "application/json", "\"no\""),
        (json!({"code": 410}), "Expired", "application/json", "too old"),
        (json!({"code": 418, "reason": "Teapot"}), "Teapot", "application/json", "418"),
        (
            json!({"code": 429, "body": "text"}),
            "",
            "text/plain; charset=utf-8",
            "Too many requests, please try again later.\n",
        ),
        (json!({"code": 500}), "InternalError", "application/json", "Internal error"),
        (json!({"code": 502, "body": "html"}), "", "text/html", "<h1>502 Bad Gateway</h1>"),
        (json!({"code": 503, "body": "empty"}), "", "", ""),
        (json!({"code": 504}), "Timeout", "application/json", "Timeout"),
    ] {
        let id = cluster.rule(json!({"fault": {"status": answer}})).await;
        for reply in [cluster.get(CONFIG_MAPS).await, cluster.post(CONFIG_MAPS, &config_map("a")).await] {
            let found = reply.headers.get("content-type").map_or("", |value| value.to_str().unwrap());
            assert_eq!((json!(reply.code), reply.refusal().1, found), (answer["code"].clone(), reason, content_type));
            assert!(reply.text.contains(text), "{}", reply.text);
        }
        cluster.remove(id).await;
    }
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.code, 404);
}

#[tokio::test]
async fn a_write_can_happen_though_its_answer_says_otherwise() {
    let cluster = Cluster::start().await;
    let creates = json!({"resource": "configmaps", "verbs": ["create"]});
    let id = cluster.rule(json!({"on": creates, "fault": {"status": {"code": 504}}, "performed": true})).await;
    assert_eq!(cluster.post(CONFIG_MAPS, &config_map("a")).await.code, 504);
    cluster.remove(id).await;
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.code, 200);

    let deletes = Requests::to("configmaps", &[Verb::Delete]);
    let rule = Rule { performed: true, ..Rule::new(Fault::Disconnect(By::Reset)).on(deletes) };
    cluster.server.faults().add(rule).unwrap();
    let mut stream = TcpStream::connect(cluster.addr).await.unwrap();
    let request = format!("DELETE {CONFIG_MAPS}/a HTTP/1.1\r\nHost: test\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (text, end) = received(stream).await;
    assert_eq!((text.as_str(), is_reset(&end)), ("", true));
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.code, 404);
}

#[tokio::test]
async fn a_late_answer_is_the_right_one() {
    let cluster = Cluster::start().await;
    let before = cluster.get(CONFIG_MAPS).await.ok();
    cluster.rule(json!({"fault": {"delay": {"milliseconds": 1, "upTo": 5}}})).await;
    assert_eq!(cluster.get(CONFIG_MAPS).await.ok(), before);
    assert_eq!(cluster.only_rule().hits, 1);
}

#[tokio::test]
async fn a_request_that_hangs_is_not_answered_while_others_are() {
    let cluster = Cluster::start().await;
    cluster.rule(json!({"on": {"resource": "secrets"}, "fault": "hang"})).await;
    let meanwhile = async {
        while cluster.only_rule().hits == 0 {
            cluster.get(CONFIG_MAPS).await.ok();
        }
        cluster.get(CONFIG_MAPS).await.ok();
    };
    tokio::select! {
        (text, _) = cluster.raw(SECRETS) => panic!("answered: {text}"),
        () = meanwhile => {}
    }
}

#[tokio::test]
async fn a_connection_is_reset_or_closed_instead_of_an_answer_or_when_it_is_accepted() {
    let cluster = Cluster::start().await;
    for (by, reset) in [("reset", true), ("close", false)] {
        let id = cluster.rule(json!({"fault": {"disconnect": by}})).await;
        let (text, end) = cluster.raw(CONFIG_MAPS).await;
        assert_eq!((text.as_str(), is_reset(&end)), ("", reset), "{by}");
        cluster.remove(id).await;

        cluster.rule(json!({"on": {"verbs": ["connect"]}, "fault": {"disconnect": by}, "count": 1})).await;
        let (text, end) = received(TcpStream::connect(cluster.addr).await.unwrap()).await;
        assert_eq!((text.as_str(), is_reset(&end)), ("", reset), "{by}");
        cluster.server.faults().clear();
    }
    assert_eq!(cluster.get(CONFIG_MAPS).await.code, 200);
}

#[tokio::test]
async fn a_list_breaks_off_in_the_middle() {
    let cluster = Cluster::start().await;
    let whole = cluster.get(CONFIG_MAPS).await.text;
    for (by, reset) in [("reset", true), ("close", false)] {
        let lists = json!({"resource": "configmaps", "verbs": ["list"]});
        let id = cluster.rule(json!({"on": lists, "fault": {"truncate": {"by": by}}})).await;
        let (text, end) = cluster.raw(CONFIG_MAPS).await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", whole.len())), "{head}");
        assert_eq!((body, is_reset(&end)), (whole.split_at(whole.len().div_ceil(2)).0, reset));
        cluster.remove(id).await;
    }
}

#[tokio::test]
async fn a_watch_breaks_off_in_the_middle_of_a_line() {
    let cluster = Cluster::start().await;
    let watches = json!({"resource": "configmaps", "verbs": ["watch"]});
    cluster.rule(json!({"on": watches, "fault": {"truncate": {"afterEvents": 1}}})).await;
    for name in ["a", "b"] {
        cluster.config_map(name).await;
    }
    let (text, end) = cluster.raw(&format!("{CONFIG_MAPS}?watch=true")).await;
    assert!(is_reset(&end));
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("{\"type\"")).collect();
    let [first, second] = lines.as_slice() else { panic!("{text}") };
    assert_eq!(serde_json::from_str::<Value>(first).unwrap()["object"]["metadata"]["name"], "a");
    assert!(serde_json::from_str::<Value>(second).is_err(), "{second}");
}

#[tokio::test]
async fn a_later_page_expires_and_can_go_on_inconsistently() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    cluster.rule(json!({"fault": "expiredContinue", "count": 1})).await;
    let first = cluster.get(&format!("{CONFIG_MAPS}?limit=1")).await.ok();
    let token = |body: &Value| body["metadata"]["continue"].as_str().unwrap().to_owned();
    let refused = cluster.get(&format!("{CONFIG_MAPS}?limit=1&continue={}", token(&first))).await;
    assert_eq!(refused.refusal(), (410, "Expired"));
    let second = cluster.get(&format!("{CONFIG_MAPS}?limit=1&continue={}", token(&refused.body))).await.ok();
    assert_eq!(second["items"][0]["metadata"]["name"], "kube-root-ca.crt");
    assert_eq!(cluster.only_rule().hits, 1);
}

#[tokio::test]
async fn a_version_is_too_large() {
    let cluster = Cluster::start().await;
    cluster.rule(json!({"on": {"verbs": ["list", "watch"]}, "fault": "tooLargeVersion"})).await;
    for query in ["?resourceVersion=7", "?watch=true&resourceVersion=7"] {
        let refused = cluster.get(&format!("{CONFIG_MAPS}{query}")).await;
        assert_eq!(refused.refusal(), (504, "Timeout"));
        assert_eq!(refused.message(), "Timeout: Too large resource version: 7, current: 6");
        assert_eq!(refused.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    }
}

#[tokio::test]
async fn stale_answers_go_back_by_changes_of_the_resource() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    let old = change(&cluster, "a", "old").await;
    let then = cluster.get(CONFIG_MAPS).await.ok();
    let new = change(&cluster, "a", "new").await;
    cluster.config_map("b").await;
    cluster.post(SECRETS, &json!({"metadata": {"name": "s"}})).await.ok();

    let rule = json!({"on": {"resource": "configmaps"}, "fault": {"stale": {"changes": 2}}});
    let id = cluster.rule(rule).await;
    assert_eq!(cluster.get(CONFIG_MAPS).await.ok(), then);
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.ok(), old);
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/b")).await.code, 404);
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?fieldSelector=metadata.name=a&{STREAMING}")).await;
    assert_eq!(watch.next().await.unwrap(), json!({"type": "ADDED", "object": old}));
    assert_eq!(version(&watch.next().await.unwrap()["object"]), version(&old), "the end of the initial events");
    assert_eq!(watch.next().await.unwrap(), json!({"type": "MODIFIED", "object": new}));

    cluster.remove(id).await;
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.ok(), new);
    cluster.rule(json!({"fault": {"stale": {"changes": 4_000_000_000_u32}}})).await;
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.code, 404, "as far back as is known");
}

#[tokio::test]
async fn streaming_lists_are_refused_or_unknown_as_by_older_servers() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    let now = cluster.server.revision();
    let id = cluster.rule(json!({"fault": {"streamingLists": "refused"}})).await;
    let refused = cluster.get(&format!("{CONFIG_MAPS}?watch=true&{STREAMING}")).await;
    assert_eq!(refused.refusal(), (422, "Invalid"));
    assert_eq!(
        refused.message(),
        "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch \
         unless the WatchList feature gate is enabled"
    );
    let mut plain = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={now}")).await;
    cluster.config_map("b").await;
    assert_eq!(plain.seen().await, pair("ADDED", "b"));
    cluster.remove(id).await;

    cluster.rule(json!({"fault": {"streamingLists": "ignored"}})).await;
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={now}&{STREAMING}")).await;
    assert_eq!(watch.seen().await, pair("ADDED", "b"), "neither what was there, nor a mark");
}

#[tokio::test]
async fn a_watch_is_cut_after_events_after_a_time_or_at_once() {
    let cluster = Cluster::start().await;
    for name in ["a", "b", "c"] {
        cluster.config_map(name).await;
    }
    for (cut, wanted) in [
        (json!({"afterEvents": 2}), vec!["ADDED", "ADDED"]),
        (json!({}), vec![]),
        (json!({"error": 410}), vec!["ERROR"]),
        (json!({"afterEvents": 1, "error": 500}), vec!["ADDED", "ERROR"]),
        (json!({"afterMilliseconds": 1}), vec![]),
    ] {
        let id = cluster.rule(json!({"on": {"resource": "configmaps"}, "fault": {"cut": cut}})).await;
        let now = cluster.server.revision();
        let from = if wanted.is_empty() { format!("?resourceVersion={now}") } else { String::new() };
        let mut watch = cluster.watch(&format!("{CONFIG_MAPS}{from}")).await;
        let mut seen = Vec::new();
        while let Some(event) = watch.next().await {
            if event["type"] == "ERROR" {
                assert_eq!((&event["object"]["kind"], &event["object"]["code"]), (&json!("Status"), &cut["error"]));
            }
            seen.push(event["type"].as_str().unwrap().to_owned());
        }
        assert_eq!(seen, wanted, "{cut}");
        cluster.remove(id).await;
    }
}

#[tokio::test]
async fn open_watches_are_cut_by_hand_and_others_stay() {
    let cluster = Cluster::start().await;
    let now = cluster.server.revision();
    let open = async |path: &str| cluster.watch(&format!("{path}?resourceVersion={now}")).await;
    let cut = async |body: Value| cluster.post("/debug/faults/cut", &body).await.ok();
    let on = json!({"resource": "configmaps"});
    let mut other = open(SECRETS).await;

    let mut watch = open(CONFIG_MAPS).await;
    assert_eq!(cut(json!({"on": on})).await, json!({"cut": 1}));
    assert_eq!(watch.next().await, None);

    let mut watch = open(CONFIG_MAPS).await;
    assert_eq!(cut(json!({"on": on, "error": 410})).await, json!({"cut": 1}));
    assert_eq!(watch.next().await.unwrap()["object"]["reason"], "Expired");
    assert_eq!(watch.next().await, None);

    let mut watch = open(CONFIG_MAPS).await;
    assert_eq!(cut(json!({"on": on, "by": "reset"})).await, json!({"cut": 1}));
    assert_eq!(watch.next().await, None);

    cluster.post(SECRETS, &json!({"metadata": {"name": "s"}})).await.ok();
    assert_eq!(other.seen().await, pair("ADDED", "s"));
    assert_eq!(cut(json!({})).await, json!({"cut": 1}));
    assert_eq!(other.next().await, None);
}

#[tokio::test]
async fn events_are_held_back_until_the_rule_is_removed_and_bookmarks_are_not() {
    let cluster = Cluster::start().await;
    let now = cluster.server.revision();
    let mut lasting = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={now}")).await;
    let id = cluster.rule(json!({"on": {"resource": "configmaps"}, "fault": "hold"})).await;
    cluster.config_map("a").await;
    let mut short =
        cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={now}&timeoutSeconds=1&allowWatchBookmarks=true")).await;
    let bookmark = short.next().await.unwrap();
    assert_eq!((&bookmark["type"], version(&bookmark["object"])), (&json!("BOOKMARK"), now));
    assert_eq!(short.next().await, None);
    assert_eq!(cluster.only_rule().hits, 2, "two watches");

    change(&cluster, "a", "x").await;
    cluster.remove(id).await;
    assert_eq!(lasting.seen().await, pair("ADDED", "a"));
    assert_eq!(lasting.seen().await, pair("MODIFIED", "a"));
}

#[tokio::test]
async fn what_is_held_back_for_too_long_is_forgotten() {
    let cluster = Cluster::start().await;
    let now = cluster.server.revision();
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={now}")).await;
    cluster.rule(json!({"fault": "hold"})).await;
    cluster.config_map("a").await;
    cluster.post("/debug/compact", &Value::Null).await;
    cluster.send("DELETE", FAULTS, &[], b"").await.ok();
    assert_eq!(watch.next().await.unwrap()["object"]["code"], 410);
}

#[tokio::test]
async fn a_rule_ends_by_itself_after_its_time() {
    let cluster = Cluster::start().await;
    let now = cluster.server.revision();
    cluster.rule(json!({"fault": "hold", "forMilliseconds": 20})).await;
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={now}")).await;
    cluster.config_map("a").await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    assert!(cluster.only_rule().over);
}

#[tokio::test]
async fn a_silent_watch_does_not_even_end() {
    let cluster = Cluster::start().await;
    let id = cluster.rule(json!({"on": {"resource": "configmaps"}, "fault": "silence"})).await;
    let query = "?timeoutSeconds=1&allowWatchBookmarks=true";
    let mut silent = cluster.watch(&format!("{CONFIG_MAPS}{query}")).await;
    let mut other = cluster.watch(&format!("{SECRETS}{query}")).await;
    tokio::select! {
        event = silent.next() => panic!("{event:?}"),
        () = async { while other.next().await.is_some() {} } => {}
    }
    cluster.remove(id).await;
    while silent.next().await.is_some() {}
}

#[tokio::test]
async fn late_events_come_all_and_in_order() {
    let cluster = Cluster::start().await;
    let now = cluster.server.revision();
    cluster.rule(json!({"fault": {"lag": {"milliseconds": 5}}})).await;
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={now}")).await;
    for name in ["a", "b", "c"] {
        cluster.config_map(name).await;
    }
    for name in ["a", "b", "c"] {
        assert_eq!(watch.seen().await, pair("ADDED", name));
    }
    assert!(cluster.only_rule().hits > 0);
}

#[tokio::test]
async fn bookmarks_are_withheld() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    let now = cluster.server.revision();
    let id = cluster.rule(json!({"fault": {"withhold": "periodic"}})).await;
    let query = format!("resourceVersion={now}&timeoutSeconds=1&allowWatchBookmarks=true");
    assert_eq!(cluster.watch(&format!("{CONFIG_MAPS}?{query}")).await.next().await, None);
    assert_eq!(cluster.only_rule().hits, 1);
    cluster.remove(id).await;

    cluster.rule(json!({"fault": {"withhold": "initialEnd"}})).await;
    let mut watch =
        cluster.watch(&format!("{CONFIG_MAPS}?fieldSelector=metadata.name!=kube-root-ca.crt&{STREAMING}")).await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    cluster.config_map("b").await;
    assert_eq!(watch.seen().await, pair("ADDED", "b"));
}

#[tokio::test]
async fn events_come_twice_and_older_ones_again() {
    let cluster = Cluster::start().await;
    let now = cluster.server.revision();
    for (fault, wanted) in
        [("duplicate", ["a", "b", "b", "c", "d", "d"]), ("repeatOlder", ["a", "b", "a", "c", "d", "c"])]
    {
        let rule = json!({"on": {"verbs": ["watch"]}, "fault": fault, "often": {"every": 2}});
        let id = cluster.rule(rule).await;
        let mut watch = cluster.watch(&format!("{SECRETS}?resourceVersion={now}")).await;
        if fault == "duplicate" {
            for name in ["a", "b", "c", "d"] {
                cluster.post(SECRETS, &json!({"metadata": {"name": name}})).await.ok();
            }
        }
        let mut last = 0;
        let mut went_back = false;
        for name in wanted {
            let event = watch.next().await.unwrap();
            assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!(name)));
            went_back |= version(&event["object"]) < last;
            last = version(&event["object"]);
        }
        assert_eq!((went_back, cluster.only_rule().hits), (fault == "repeatOlder", 2));
        cluster.remove(id).await;
    }
}

#[tokio::test]
async fn an_event_cannot_be_decoded_and_the_next_one_can() {
    let cluster = Cluster::start().await;
    let now = cluster.server.revision();
    for name in ["a", "b"] {
        cluster.config_map(name).await;
    }
    for how in ["json", "metadata"] {
        let rule = json!({"on": {"verbs": ["watch"]}, "fault": {"mangle": how}, "count": 1});
        let id = cluster.rule(rule).await;
        let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={now}")).await;
        let line = watch.line().await.unwrap();
        match serde_json::from_slice::<Value>(&line) {
            Err(_) => assert_eq!(how, "json"),
            Ok(event) => assert_eq!(
                (how, event),
                ("metadata", json!({"type": "ADDED", "object": {"apiVersion": "v1", "kind": "ConfigMap"}}))
            ),
        }
        assert_eq!(watch.seen().await, pair("ADDED", "b"));
        cluster.remove(id).await;
    }
}

#[tokio::test]
async fn one_object_of_a_list_cannot_be_decoded() {
    let cluster = Cluster::start().await;
    for name in ["a", "b", "c"] {
        cluster.config_map(name).await;
    }
    let whole = cluster.get(CONFIG_MAPS).await.ok();
    let id = cluster.rule(json!({"fault": {"mangle": "metadata"}})).await;
    let mangled = cluster.get(CONFIG_MAPS).await.ok();
    assert_eq!(mangled["metadata"], whole["metadata"]);
    let (items, all) = (mangled["items"].as_array().unwrap(), whole["items"].as_array().unwrap());
    let differing: Vec<_> = items.iter().zip(all).filter(|(mangled, whole)| mangled != whole).collect();
    let [(mangled, whole)] = differing.as_slice() else { panic!("{differing:?}") };
    let mut without = (*whole).clone();
    without.as_object_mut().unwrap().remove("metadata");
    assert_eq!((*mangled, items.len()), (&without, all.len()));
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.ok().get("metadata"), None);
    cluster.remove(id).await;

    cluster.rule(json!({"fault": {"mangle": "json"}})).await;
    let mangled = cluster.get(CONFIG_MAPS).await;
    assert_eq!((mangled.code, &mangled.body), (200, &Value::Null));
    assert!(mangled.text.ends_with("]}"), "the rest of the list is there: {}", mangled.text);
}

#[tokio::test]
async fn the_same_seed_and_the_same_requests_give_the_same_faults() {
    let codes = async |seed: u64| {
        let cluster = Cluster::start().await;
        let fault = json!({"status": {"code": 500}});
        cluster
            .rule(json!({"on": {"verbs": ["list"]}, "fault": fault, "often": {"probability": 0.5}, "seed": seed}))
            .await;
        let mut codes = Vec::new();
        for _ in 0..40 {
            // Requests that do not match do not count.
            cluster.get(&format!("{CONFIG_MAPS}/kube-root-ca.crt")).await.ok();
            codes.push(cluster.get(CONFIG_MAPS).await.code);
        }
        codes
    };
    let (first, again, other) = (codes(7).await, codes(7).await, codes(8).await);
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert!(first.contains(&200) && first.contains(&500), "{first:?}");
}

#[tokio::test]
async fn a_rule_is_about_one_namespace_client_or_subresource() {
    let cluster = Cluster::start().await;
    let fault = json!({"status": {"code": 500}});
    let id = cluster.rule(json!({"on": {"resource": "configmaps", "namespace": "kube-system"}, "fault": fault})).await;
    assert_eq!(cluster.get("/api/v1/namespaces/kube-system/configmaps").await.code, 500);
    for path in [CONFIG_MAPS, "/api/v1/configmaps"] {
        assert_eq!(cluster.get(path).await.code, 200);
    }
    cluster.remove(id).await;

    let id = cluster.rule(json!({"on": {"userAgent": "pilothouse"}, "fault": fault})).await;
    for (agent, code) in [("pilothouse/0.1", 500), ("kubectl/1", 200)] {
        assert_eq!(cluster.send("GET", CONFIG_MAPS, &[("user-agent", agent)], b"").await.code, code);
    }
    cluster.remove(id).await;

    cluster.rule(json!({"on": {"resource": "namespaces/status"}, "fault": fault})).await;
    assert_eq!(cluster.get("/api/v1/namespaces/default/status").await.code, 500);
    assert_eq!(cluster.get("/api/v1/namespaces/default").await.code, 200);
}

#[tokio::test]
async fn discovery_fails_only_if_it_is_named() {
    let cluster = Cluster::start().await;
    let id = cluster.rule(json!({"fault": {"status": {"code": 503}}})).await;
    assert_eq!((cluster.get("/apis").await.code, cluster.get(CONFIG_MAPS).await.code), (200, 503));
    cluster.remove(id).await;
    cluster.rule(json!({"on": {"verbs": ["discovery"]}, "fault": {"status": {"code": 503}}})).await;
    assert_eq!((cluster.get("/apis").await.code, cluster.get(CONFIG_MAPS).await.code), (503, 200));
    assert_eq!(cluster.get("/readyz").await.code, 200);
}

#[tokio::test]
async fn a_bad_rule_is_refused_with_its_field_and_what_is_possible() {
    let cluster = Cluster::start().await;
    let status = json!({"status": {"code": 500}});
    for (rule, field, possible) in [
        (json!({}), "body: missing field `fault`", ""),
        (json!({"fault": "explode"}), "fault: unknown variant `explode`", "`hang`"),
        (json!({"fault": "delay"}), "fault.delay: it has members", "milliseconds"),
        (json!({"fault": {"hang": {}}}), "fault.hang: it is a word", "without members"),
        (json!({"fault": {"status": {"code": 99}}}), "fault.status.code: 99", "200 to 599"),
        (json!({"fault": {"status": {"code": 204}}}), "fault.status.body: ", "say empty"),
        (json!({"fault": {"delay": {"milliseconds": 9, "upTo": 3}}}), "fault.delay.upTo: ", "9 milliseconds"),
        (json!({"fault": {"cut": {"error": 200}}}), "fault.cut.error: ", "400 to 599"),
        (json!({"fault": {"stale": {"changes": 0}}}), "fault.stale.changes: ", "nonzero"),
        (json!({"fault": status, "on": {"verb": "list"}}), "on.verb: unknown field", "`verbs`"),
        (json!({"fault": status, "on": {"verbs": ["put"]}}), "on.verbs[0]: unknown variant `put`", "`update`"),
        (json!({"fault": "hold", "on": {"verbs": ["list"]}}), "on.verbs: hold cannot affect list", "watch"),
        (json!({"fault": status, "on": {"resource": "a/b/c"}}), "on.resource: ", "deployments.apps/status"),
        (json!({"fault": "hang", "on": {"resource": "pods", "verbs": ["connect"]}}), "on.resource: ", "leave it out"),
        (json!({"fault": "hang", "on": {"userAgent": "x", "verbs": ["connect"]}}), "on.userAgent: ", "leave it out"),
        (json!({"fault": "duplicate", "performed": true}), "performed: ", "leave it out"),
        (json!({"fault": "hold", "count": 3}), "count: ", "leave it out"),
        (json!({"fault": status, "count": 0}), "count: ", "nonzero"),
        (json!({"fault": status, "often": {"probability": 2.0}}), "often.probability: 2", "at most 1"),
        (json!({"fault": status, "often": {"every": 0}}), "often.every: ", "nonzero"),
    ] {
        let refused = cluster.post(FAULTS, &rule).await;
        assert_eq!(refused.code, 400, "{rule}: {}", refused.text);
        assert!(refused.text.starts_with(field) && refused.text.contains(possible), "{rule}: {}", refused.text);
    }
    assert_eq!(cluster.server.faults().list(), []);
    let refused = cluster.post("/debug/faults/cut", &json!({"on": {"verbs": ["list"]}})).await;
    assert_eq!((refused.code, refused.text.as_str()), (400, "on.verbs: only watches can be cut: use watch\n"));
}

#[tokio::test]
async fn rules_are_bounded() {
    let cluster = Cluster::start().await;
    let faults = cluster.server.faults();
    let added = (0..300).map_while(|_| faults.add(Rule::new(Fault::Hold)).ok()).count();
    assert_eq!(added, 256);
    faults.clear();
    faults.add(Rule::new(Fault::Hold)).unwrap();
}

#[tokio::test]
async fn rules_are_listed_for_people_and_for_programs() {
    let cluster = Cluster::start().await;
    let rule =
        Rule::new(Fault::Status(Answer::code(503))).on(Requests::to("deployments.apps", &[Verb::Get, Verb::List]));
    cluster.server.faults().add(rule.clone().times(1)).unwrap();
    cluster.get("/apis/apps/v1/deployments").await;
    let text = cluster.get(FAULTS).await.text;
    assert_eq!(
        text,
        "ID  HITS  OVER  ON                         FAULT\n\
         1   1     yes   get,list deployments.apps  {\"count\":1,\"fault\":{\"status\":{\"body\":\"status\",\"code\":503}}}\n"
    );
    let listed = cluster.get_as(FAULTS, "application/json").await.ok();
    assert_eq!((&listed[0]["id"], &listed[0]["hits"], &listed[0]["over"]), (&json!(1), &json!(1), &json!(true)));
    let read: Rule = serde_json::from_value(listed[0]["rule"].clone()).unwrap();
    assert_eq!(read, rule.times(1));

    for (method, path, code) in [
        ("DELETE", "/debug/faults/1", 200),
        ("DELETE", "/debug/faults/1", 404),
        ("DELETE", "/debug/faults/x", 404),
        ("PUT", "/debug/faults", 404),
        ("GET", "/debug/nothing", 404),
    ] {
        assert_eq!(cluster.send(method, path, &[], b"").await.code, code, "{method} {path}");
    }
}

#[tokio::test]
async fn snapshots_are_taken_and_restored_by_name() {
    let cluster = Cluster::start().await;
    let then = cluster.server.revision();
    let taken = cluster.post("/debug/snapshots", &json!({"name": "before"})).await;
    assert_eq!((taken.code, taken.body), (201, json!({"name": "before", "revision": then})));
    cluster.config_map("a").await;
    assert_eq!(cluster.get("/debug/snapshots").await.ok(), json!({"before": then}));
    cluster.post("/debug/snapshots/before/restore", &Value::Null).await.ok();
    assert_eq!(cluster.server.revision(), then);
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.code, 404);

    for (method, path, body, code) in [
        ("POST", "/debug/snapshots", json!({"name": "no/slash"}), 400),
        ("POST", "/debug/snapshots", json!({"name": ""}), 400),
        ("POST", "/debug/snapshots/never/restore", Value::Null, 404),
        ("DELETE", "/debug/snapshots/before", Value::Null, 200),
        ("DELETE", "/debug/snapshots/before", Value::Null, 404),
    ] {
        assert_eq!(
            cluster.send(method, path, &[], body.to_string().as_bytes()).await.code,
            code,
            "{method} {path} {body}"
        );
    }
    for number in 0..16 {
        cluster.post("/debug/snapshots", &json!({"name": number.to_string()})).await.ok();
    }
    assert_eq!(cluster.post("/debug/snapshots", &json!({"name": "one-more"})).await.code, 400);
    cluster.post("/debug/snapshots", &json!({"name": "0"})).await.ok();
}
