//! Properties of the API server on which the other tests rely.

use anyhow::{Context, Result, ensure};
use http::{Method, header};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use pilothouse_e2e::Scene;
use serde_json::{Value, from_value, json};

pub(crate) async fn a_killed_api_server_comes_back_with_its_data(scene: Scene) -> Result<()> {
    let maps = scene.config_maps();
    let kept = maps.create(&PostParams::default(), &map("kept")?).await?;
    scene.cluster.kill().await;
    ensure!(maps.get("kept").await.is_err(), "a killed server answers");
    scene.cluster.restart().await?;
    ensure!(maps.get("kept").await? == kept, "the data is not the same");
    Ok(())
}

pub(crate) async fn writes_are_counted_and_reads_are_not(scene: Scene) -> Result<()> {
    let maps = scene.config_maps();
    let before = scene.cluster.writes_of(&["configmaps"]).await?;
    maps.create(&PostParams::default(), &map("counted")?).await?;
    maps.create(&PostParams::default(), &map("counted")?).await.expect_err("it is there already");
    let patch = json!({"data": {"color": "red"}});
    maps.patch("counted", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"size": "large"}});
    maps.patch("counted", &PatchParams::apply("test"), &Patch::Apply(&apply)).await?;
    maps.get("counted").await?;
    maps.list(&ListParams::default()).await?;
    maps.delete("counted", &DeleteParams::default()).await?;
    let counted = scene.cluster.writes_of(&["configmaps"]).await? - before;
    ensure!(counted == 5.0, "{counted} writes are counted, 5 were sent");
    Ok(())
}

pub(crate) async fn a_variable_that_is_named_again_is_warned_of_and_cannot_be_applied(scene: Scene) -> Result<()> {
    let all = format!("/apis/apps/v1/namespaces/{}/deployments", scene.namespace);
    let one = format!("{all}/d?fieldManager=test");
    let env = ["a", "b", "$(A)", "$(A) c"].map(|value| json!({ "name": "A", "value": value }));
    let labels = json!({ "app": "d" });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" },
        "spec": {
            "replicas": 0, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "c", "image": "i", "env": env }] } },
        },
    });
    let hides = |place: usize| {
        let path = format!("spec.template.spec.containers[0].env[{place}]");
        format!(r#"299 - "{path}: hides previous definition of \"A\", which may be dropped when using apply""#)
    };
    let both = || vec![hides(1), hides(2)];
    let merge = "application/merge-patch+json";
    for (method, uri, content_type, body, expected) in [
        (Method::POST, &all, "application/json", deployment.clone(), both()),
        // The template is not looked at again unless something of the spec changes.
        (Method::PATCH, &one, merge, json!({ "metadata": { "labels": labels } }), Vec::new()),
        (Method::PATCH, &one, merge, json!({ "spec": { "paused": true } }), both()),
    ] {
        let (_, warnings) = sent(&scene, &method, uri, content_type, &body).await?;
        ensure!(warnings == expected, "{method} {body}: {warnings:?}");
    }
    let mut applied = deployment;
    applied["spec"]["template"]["spec"]["containers"][0]["env"] = json!(env[..2]);
    let (answer, _) = sent(&scene, &Method::PATCH, &one, "application/apply-patch+yaml", &applied).await?;
    let message = answer["message"].as_str().unwrap_or_default();
    let refused = r#".spec.template.spec.containers[name="c"].env: duplicate entries for key [name="A"]"#;
    ensure!(message.ends_with(refused), "{answer}");
    Ok(())
}

/// Sends a request. Returns the body of the answer and its warnings.
async fn sent(
    scene: &Scene,
    method: &Method,
    uri: &str,
    content_type: &str,
    body: &Value,
) -> Result<(Value, Vec<String>)> {
    let request = http::Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, content_type);
    let request = request.body(Body::from(body.to_string().into_bytes()))?;
    let answer = scene.client().send(request).await.with_context(|| format!("no answer to {method} {uri}"))?;
    let warnings = answer.headers().get_all(header::WARNING).iter();
    let warnings = warnings.map(|warning| Ok(warning.to_str()?.to_owned())).collect::<Result<_>>()?;
    let body = answer.into_body().collect().await.context("the answer breaks off")?.to_bytes();
    Ok((serde_json::from_slice(&body).context("the answer is not JSON")?, warnings))
}

fn map(name: &str) -> Result<ConfigMap> {
    Ok(from_value(json!({"metadata": {"name": name}, "data": {"color": "green"}}))?)
}
