//! Events of plugins: one for a transition, about what the plugin may read, and only as granted.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Event};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use pilothouse_e2e::{Plugin, Reviewer, Scene, eventually, plugin::Permission, reviewer::Answer};
use serde_json::{from_value, json};

/// Returns component, type, reason, object and count of each Event by the plugin, in order.
async fn told(scene: &Scene) -> Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(scene.client(), &scene.namespace);
    let mut told: Vec<String> = events
        .list(&ListParams::default())
        .await?
        .into_iter()
        .filter(|event| event.reporting_component.as_deref() == Some("pilothouse/telling"))
        .map(|event| {
            let text = |text: Option<String>| text.unwrap_or_default();
            let about = event.involved_object;
            let component = text(event.source.and_then(|source| source.component));
            let (of_type, reason, count) = (text(event.type_), text(event.reason), event.count.unwrap_or_default());
            format!("{component} {of_type} {reason} {} {} {count}", text(about.kind), text(about.name))
        })
        .collect();
    told.sort();
    Ok(told)
}

pub(crate) async fn a_transition_that_a_repeated_call_reports_twice_is_one_event(scene: Scene) -> Result<()> {
    let plugins = [Plugin::myapple()?.confined_to("nowhere"), Plugin::guest("telling")?];
    let mut host = scene.with(&plugins)?.host().await?;
    scene.apple("gala").create(1).await?.status_is("ripe", |status| status["available"] == 1).await?;
    let deferred = [("plugin", "telling"), ("verb", "apply"), ("result", "deferred")];
    let deferred = host.metrics().await?.sum("pilothouse_writes_total", &deferred);
    ensure!(deferred == 1.0, "{deferred} statuses were left to the next call");
    // The Events of one plugin are written in order, and those of another apple come later.
    scene.apple("fuji").create(1).await?.status_is("ripe", |status| status["available"] == 1).await?;
    eventually("all Events are there", async || {
        let told = told(&scene).await?;
        let expected = [
            "pilothouse/telling Normal Held ConfigMap fuji-core 1",
            "pilothouse/telling Normal Held ConfigMap gala-core 1",
            "pilothouse/telling Normal Ripened MyApple fuji 1",
            "pilothouse/telling Normal Ripened MyApple gala 1",
        ];
        ensure!(told == expected, "there are {told:?}");
        Ok(())
    })
    .await?;
    let metrics = host.metrics().await?;
    let count = |result| metrics.sum("pilothouse_plugin_events_total", &[("plugin", "telling"), ("result", result)]);
    ensure!((count("created"), count("counted")) == (4.0, 0.0), "{} and {}", count("created"), count("counted"));
    // Those about a Secret that it may not read.
    ensure!(count("refused") == 2.0, "{} were refused", count("refused"));
    host.warns(&["an Event of the plugin is not written", "Secret"]).await.map(drop)
}

pub(crate) async fn invariant_7_an_event_that_is_not_granted_is_not_written_and_the_plugin_goes_on(
    scene: Scene,
) -> Result<()> {
    let denied = Plugin::guest("telling")?.granted(&Permission::of_myapple());
    let plugins = [Plugin::myapple()?.confined_to("nowhere"), denied];
    let mut host = scene.with(&plugins)?.host().await?;
    scene.apple("gala").create(1).await?.status_is("ripe", |status| status["available"] == 1).await?;
    eventually("all Events are refused", async || {
        let refused = [("plugin", "telling"), ("result", "refused")];
        let refused = host.metrics().await?.sum("pilothouse_plugin_events_total", &refused);
        ensure!(refused == 3.0, "{refused} were refused");
        Ok(())
    })
    .await?;
    let told = told(&scene).await?;
    ensure!(told.is_empty(), "there are {told:?}");
    host.warns(&["an Event of the plugin is not written", "add under grants"]).await.map(drop)
}

pub(crate) async fn invariant_8_events_that_the_server_refuses_cost_nothing_else(scene: Scene) -> Result<()> {
    let refusing = Reviewer::start("127.0.0.1", |_| Answer::Response(json!({"allowed": false}))).await?;
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"], "operations": ["*"]});
    let webhook = json!({
        "name": "events.example.com", "clientConfig": refusing.client_config(), "rules": [rule], "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}},
    });
    let name = format!("{}-events", scene.namespace);
    let configuration = json!({"metadata": {"name": name}, "webhooks": [webhook]});
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(scene.client());
    configurations.create(&PostParams::default(), &from_value(configuration)?).await?;
    let events: Api<Event> = Api::namespaced(scene.client(), &scene.namespace);
    let accepts = async || {
        let about = json!({"kind": "ConfigMap", "name": "probe", "namespace": scene.namespace});
        let probe = json!({"metadata": {"name": "probe"}, "involvedObject": about});
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        events.create(&dry, &from_value(probe)?).await.map_err(anyhow::Error::from)
    };
    eventually("the server refuses Events", async || match accepts().await {
        Ok(_) => bail!("it accepts them"),
        Err(error) => {
            let error = error.to_string();
            ensure!(error.contains("denied the request"), "{error}");
            Ok(())
        }
    })
    .await?;

    let plugins = [Plugin::myapple()?.confined_to("nowhere"), Plugin::guest("telling")?];
    let mut host = scene.with(&plugins)?.host().await?;
    scene.apple("gala").create(1).await?.status_is("ripe", |status| status["available"] == 1).await?;
    eventually("both Events have failed", async || {
        let failed = [("plugin", "telling"), ("result", "failed")];
        let failed = host.metrics().await?.sum("pilothouse_plugin_events_total", &failed);
        ensure!(failed == 2.0, "{failed} have failed");
        Ok(())
    })
    .await?;
    host.warns(&["cannot write Events", "events.example.com"]).await?;
    let failures = host.metrics().await?.sum("controller_runtime_reconcile_errors_total", &[]);
    ensure!(failures == 0.0, "{failures} reconciles have failed");

    configurations.delete(&name, &DeleteParams::default()).await?;
    eventually("the server accepts Events", async || accepts().await.map(drop)).await?;
    scene.apple("fuji").create(1).await?.status_is("ripe", |status| status["available"] == 1).await?;
    eventually("the Events of later transitions are there", async || {
        let told = told(&scene).await?;
        let expected = [
            "pilothouse/telling Normal Held ConfigMap fuji-core 1",
            "pilothouse/telling Normal Ripened MyApple fuji 1",
        ];
        ensure!(told == expected, "there are {told:?}");
        Ok(())
    })
    .await
}
