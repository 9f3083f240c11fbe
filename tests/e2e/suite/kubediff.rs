//! The example plugin `kubediff`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{FarEnd, Host, Plugin, Scene, eventually};
use serde_json::{Value, from_value, json};

use crate::watches::{clear, define, grow};

pub(crate) async fn each_change_is_reported_field_by_field_and_no_secret_is(scene: Scene) -> Result<()> {
    clear(&scene).await?;
    let (hook, slack) = (FarEnd::start().await?, FarEnd::start().await?);
    let maps: Api<ConfigMap> = scene.config_maps();
    let secrets: Api<Secret> = Api::namespaced(scene.client(), &scene.namespace);
    create_map(&scene, "there", json!({"color": "blue"})).await?;
    let mut host = scene.with(&[plugin(&scene, &hook, &slack)?])?.host().await?;

    // Each change is awaited, so none is merged with the next.
    let mut expected = Vec::new();
    create_map(&scene, "new", json!({"color": "blue", "size": "small"})).await?;
    reports(&host, &mut expected, json!({"event": "added", "kind": "ConfigMap", "name": "new"})).await?;
    let change = json!({"data": {"color": "red", "size": null, "more": "yes"}, "metadata": {"labels": {"a.b/c": "d"}}});
    maps.patch("new", &PatchParams::default(), &Patch::Merge(&change)).await?;
    reports(
        &host,
        &mut expected,
        json!({"event": "updated", "kind": "ConfigMap", "name": "new", "differences": [
            {"path": "data.color", "old": "blue", "new": "red"},
            {"path": "data.size", "old": "small"},
            {"path": "data.more", "new": "yes"},
            {"path": "metadata.labels", "new": {"a.b/c": "d"}},
        ]}),
    )
    .await?;
    // Annotations are ignored. The change after that proves that nothing was reported.
    let ignored = json!({"metadata": {"annotations": {"example.com/seen": "1"}}});
    maps.patch("there", &PatchParams::default(), &Patch::Merge(&ignored)).await?;
    maps.patch("new", &PatchParams::default(), &Patch::Merge(&json!({"data": {"color": "green"}}))).await?;
    let differences = json!([{"path": "data.color", "old": "red", "new": "green"}]);
    reports(
        &host,
        &mut expected,
        json!({"event": "updated", "kind": "ConfigMap", "name": "new", "differences": differences}),
    )
    .await?;
    maps.delete("there", &DeleteParams::default()).await?;
    reports(&host, &mut expected, json!({"event": "deleted", "kind": "ConfigMap", "name": "there"})).await?;

    let secret = |value: &str| -> Result<Secret> {
        Ok(from_value(json!({"metadata": {"name": "token"}, "stringData": {"key": value}}))?)
    };
    secrets.create(&PostParams::default(), &secret("s3cret")?).await?;
    reports(&host, &mut expected, json!({"event": "added", "kind": "Secret", "name": "token"})).await?;
    secrets.patch("token", &PatchParams::default(), &Patch::Merge(&secret("s4cret")?)).await?;
    let hidden = json!([{"path": "data.key", "old": "(hidden)", "new": "(hidden)"}]);
    reports(
        &host,
        &mut expected,
        json!({"event": "updated", "kind": "Secret", "name": "token", "differences": hidden}),
    )
    .await?;

    // A kind that is defined later, and fits a pattern.
    define(&scene, "Pear").await?;
    eventually("Pears are watched", async || {
        let informers = host.informers().await?;
        let pears = informers.iter().find(|informer| informer["kind"] == "example.com/v1 Pear");
        ensure!(pears.is_some_and(|pears| pears["synced"] == true), "{informers:?}");
        Ok(())
    })
    .await?;
    grow(&scene, "Pear", "williams").await?;
    reports(&host, &mut expected, json!({"event": "added", "kind": "Pear", "name": "williams"})).await?;

    let posted = eventually("the webhook has them all", async || {
        let posted = hook.requests();
        ensure!(posted.len() == expected.len(), "{} of {}", posted.len(), expected.len());
        Ok(posted)
    })
    .await?;
    for (request, line) in posted.iter().zip(&expected) {
        for (member, value) in line.as_object().context("no object")? {
            ensure!(request.body[member] == *value, "{line} is posted as {}", request.body);
        }
    }
    ensure!(slack.requests().len() == expected.len(), "{} messages", slack.requests().len());
    let text = format!("*test*: v1 ConfigMap {}/new updated\n• `data.color`: blue → red", scene.namespace);
    let messages: Vec<String> = slack.requests().iter().map(|request| request.body["text"].to_string()).collect();
    ensure!(slack.requests()[1].body["text"].as_str().is_some_and(|found| found.starts_with(&text)), "{messages:?}");
    // The values in base64, without what depends on their length.
    let all = format!("{:?} {posted:?} {messages:?}", host.log()?.iter().map(|line| &line.text).collect::<Vec<_>>());
    ensure!(
        !["czNjcm", "czRjcm", "s3cret", "s4cret"].iter().any(|value| all.contains(value)),
        "a value is reported: {all}"
    );
    Ok(())
}

fn plugin(scene: &Scene, hook: &FarEnd, slack: &FarEnd) -> Result<Plugin> {
    let config = json!({
        "resources": ["v1/ConfigMap", "v1/Secret", "example.com/*"], "namespaces": [scene.namespace],
        "ignore": ["metadata.annotations"], "webhooks": [{"url": hook.url("/changes")}],
        "slack": {"url": slack.url("/services/T"), "title": "test"},
    });
    let read = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind, "verbs": ["read"]});
    let grants = json!([read("v1", "ConfigMap"), read("v1", "Secret"), read("example.com/*", "*")]);
    let rule = json!({
        "hosts": ["127.0.0.1"], "ports": [hook.port(), slack.port()], "methods": ["POST"], "plain": true, "private": true,
    });
    let plugin = Plugin::example("kubediff")?.with("config", &config)?.with("grants", &grants)?;
    plugin.with("http", &json!([rule]))
}

/// Adds a line to the expected ones, and waits for it.
async fn reports(host: &Host, expected: &mut Vec<Value>, line: Value) -> Result<()> {
    expected.push(line);
    lines_are(host, expected).await
}

/// Waits until the plugin has written exactly these lines. Their apiVersion and namespace are left out.
async fn lines_are(host: &Host, expected: &[Value]) -> Result<()> {
    eventually("the lines are there", async || {
        let lines: Vec<Value> = host
            .log()?
            .iter()
            .filter(|line| line.field("target") == Some("pilothouse::plugin_log"))
            .filter_map(|line| serde_json::from_str(line.field("message")?).ok())
            .map(|mut line: Value| {
                drop(line.as_object_mut().map(|line| (line.remove("apiVersion"), line.remove("namespace"))));
                line
            })
            .collect();
        ensure!(lines == expected, "they are {lines:#?}");
        Ok(())
    })
    .await
}

async fn create_map(scene: &Scene, name: &str, data: Value) -> Result<()> {
    let map: ConfigMap = from_value(json!({"metadata": {"name": name}, "data": data}))?;
    scene.config_maps().create(&PostParams::default(), &map).await?;
    Ok(())
}
