//! `pilothouse collect`: what it writes of a cluster is a case.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::{Api, api::PostParams};
use pilothouse_e2e::{Plugin, Scene, eventually, host};
use serde_json::{from_value, json};

use crate::website::websites;

pub(crate) async fn objects_of_a_cluster_become_a_case_without_secrets(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::example("website")?])?.host().await?;
    let secrets: Api<Secret> = Api::namespaced(scene.client(), &scene.namespace);
    let token = json!({"metadata": {"name": "token"}, "stringData": {"TOKEN": "t0ken-of-the-cluster"}});
    secrets.create(&PostParams::default(), &from_value(token)?).await?;
    let sites = websites(&scene);
    let site = json!({"image": "blog:1", "secret": "token"});
    let site = kube::api::DynamicObject::new("blog", &crate::website::resource()).data(json!({ "spec": site }));
    eventually("the API server serves Websites", async || Ok(sites.create(&PostParams::default(), &site).await?))
        .await?;
    let deployments: Api<Deployment> = Api::namespaced(scene.client(), &scene.namespace);
    eventually("the Deployment is there", async || deployments.get("blog").await.map(drop).map_err(Into::into)).await?;
    let other = json!({"selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]},
    }});
    let other: Deployment = from_value(json!({"metadata": {"name": "another"}, "spec": other}))?;
    deployments.create(&PostParams::default(), &other).await?;

    let case = scene.folder().join("case.yaml");
    let component = scene.plugins.path().join("website.wasm");
    let collect = |kubeconfig: &Path| {
        let mut command = Command::new(host::binary()?);
        command.arg("collect").arg(&component).args(["--force", "--output"]).arg(&case);
        command.args(["--namespace", &scene.namespace, "--kubeconfig"]).arg(kubeconfig);
        said(&mut command)
    };
    let (is_success, printed) = collect(&scene.cluster.kubeconfig())?;
    ensure!(is_success, "{printed}");
    ensure!(printed.contains(&format!("v1 Secret in {}: ", scene.namespace)), "{printed}");
    let text = fs::read_to_string(&case).context("there is no case")?;
    ensure!(!text.contains("t0ken") && !text.contains("dDBrZW4tb2YtdGhlLWNsdXN0ZXI"), "{text}");
    ensure!(!text.contains("managedFields") && !text.contains("another"), "{text}");
    for part in ["kind: Website", "kind: Secret", "TOKEN: ", "kind: Deployment", "then: {}"] {
        ensure!(text.contains(part), "{part}:\n{text}");
    }

    // The case replays, and tells what the plugin does.
    let mut test = Command::new(host::binary()?);
    test.arg("test").arg(&component).arg(&case).arg("--update");
    let (is_success, printed) = said(&mut test)?;
    ensure!(is_success && printed.contains("1 passed, 0 failed"), "{printed}\n{text}");
    let text = fs::read_to_string(&case).context("there is no case")?;
    ensure!(text.contains("  writes:\n") && text.contains(&format!("Deployment {}/blog", scene.namespace)), "{text}");

    // Only kube-apiserver denies anything.
    if let Some(nobody) = scene.cluster.kubeconfig_of_nobody() {
        let (is_success, printed) = collect(&nobody)?;
        ensure!(!is_success && printed.contains("forbidden"), "{printed}");
    }
    Ok(())
}

/// Runs a command. Returns whether it succeeded, and both outputs.
fn said(command: &mut Command) -> Result<(bool, String)> {
    let output = command.output().context("cannot start pilothouse")?;
    let text = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    Ok((output.status.success(), text))
}
