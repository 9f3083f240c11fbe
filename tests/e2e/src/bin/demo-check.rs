//! Runs the demo unattended: starts the given command (`pilothouse dev …`), checks what a person would see and try, and
//! ends it.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use pilothouse_e2e::{
    apple::{Apple, resource},
    wait::{eventually, within},
};
use pilothouse_real::process::{Process, last_lines};
use serde_json::{from_value, json};

/// More than the host's grace for calls in flight (30 s).
const END: Duration = Duration::from_secs(45);
/// The text before the path in the demo's first lines.
const KUBECONFIG: &str = "kubeconfig";

#[tokio::main]
async fn main() -> ExitCode {
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("demo-check: cannot create a folder for the demo's output: {error}");
            return ExitCode::FAILURE;
        }
    };
    let output = folder.path().join("demo.log");
    match check(&output).await {
        Ok(()) => {
            say("the demo does what it says");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("demo-check: {error:#}\n{}", last_lines("the demo", &output, 80));
            ExitCode::FAILURE
        }
    }
}

async fn check(output: &Path) -> Result<()> {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().context("say which command to check: demo-check COMMAND [ARGUMENT …]")?;
    let mut command = Command::new(program);
    command.args(words);
    let mut demo = Process::start("the demo", command, output)?;

    let kubeconfig = eventually("the demo prints where its kubeconfig is", async || {
        ensure!(demo.exited().is_none(), "the demo ended");
        kubeconfig(output)
    })
    .await?;
    let config = Kubeconfig::read_from(&kubeconfig)
        .with_context(|| format!("cannot read the demo's kubeconfig {}", kubeconfig.display()))?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;

    // The plugin is compiled first, and the machine may be busy.
    let apples = within(Duration::from_secs(240), "the demo's MyApples appear", async || {
        let apples: Api<DynamicObject> = Api::all_with(client.clone(), &resource());
        let apples = apples.list(&ListParams::default()).await?;
        ensure!(!apples.items.is_empty(), "there is none");
        Ok(apples.items)
    })
    .await?;
    let apples: Vec<Apple> = apples
        .iter()
        .map(|apple| Apple::new(client.clone(), &apple.namespace().unwrap_or_default(), &apple.name_any()))
        .collect();
    for apple in &apples {
        apple.settles().await?;
        say(&format!("{} has its {} children and its status", apple.name, apple.children().await?.len()));
    }

    let apple = &apples[0];
    apple.scale(5).await?;
    apple.settles().await?;
    say(&format!("{} scaled to 5", apple.name));
    apple.scale(1).await?;
    apple.settles().await?;
    say(&format!("{} scaled to 1", apple.name));
    apple.edit_child(0, json!({"color": "rotten"})).await?;
    apple.settles().await?;
    say("an edited child was set back");
    apple.maps.delete(&apple.child(0), &DeleteParams::default()).await.context("cannot delete a child")?;
    apple.settles().await?;
    say("a deleted child returned");
    apple.delete().await?;
    eventually("the children of the deleted MyApple are gone", async || {
        ensure!(apple.maps.get_opt(&apple.child(0)).await?.is_none(), "one is left");
        Ok(())
    })
    .await?;
    say("children go with their MyApple");

    others(&client, output).await?;

    let printed = std::fs::read_to_string(output).context("cannot read what the demo printed")?;
    for shown in ["changed", "wrote", "reconciled", &apple.child(0)] {
        ensure!(printed.contains(shown), "the demo does not show `{shown}`");
    }
    demo.terminate();
    let status = demo.wait(END).await?;
    if !status.success() {
        bail!("after SIGTERM the demo ended with {status}");
    }
    ensure!(!kubeconfig.exists(), "the demo left its kubeconfig {} behind", kubeconfig.display());
    Ok(())
}

/// Looks at the other plugins: what each made of its example.
async fn others(client: &Client, output: &Path) -> Result<()> {
    let of = |group: &str, kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
    };
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    eventually("the Deployment of website's example is available", async || {
        let status = deployments.get("blog").await?.status.unwrap_or_default();
        ensure!(status.available_replicas == Some(2), "{status:?}");
        Ok(())
    })
    .await?;
    say("website and deployment: blog has its Deployment, and its Pods are ready");

    let pods: Api<Pod> = Api::namespaced(client.clone(), "restricted");
    let pod: Pod = from_value(json!({
        "metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "docker.io/nginx"}]},
    }))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually("registry-policy denies an image", async || match pods.create(&dry, &pod).await {
        Err(kube::Error::Api(status)) if status.message.contains("not from an allowed registry") => Ok(()),
        other => bail!("{other:?}"),
    })
    .await?;
    say("registry-policy: an image of another registry is denied");

    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let color = Patch::Merge(json!({"data": {"color": "crimson"}}));
    maps.patch("settings", &PatchParams::default(), &color).await.context("cannot edit the example of kubediff")?;
    eventually("kubediff reports the edit", async || {
        let printed = std::fs::read_to_string(output).context("cannot read what the demo printed")?;
        ensure!(printed.contains(r#""new":"crimson""#), "it did not yet");
        Ok(())
    })
    .await?;
    say("kubediff: an edit is reported with both values");

    for (plugin, resource, name, condition) in [
        ("auditor", of("audit.example.com", "AuditReport", "auditreports"), "cluster", "Clean"),
        ("resource-watch", of("watch.example.com", "ResourceWatch", "resourcewatches"), "workloads", "Ready"),
    ] {
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        eventually(&format!("the example of {plugin} has its status"), async || {
            let status = all.get(name).await?.data["status"].clone();
            ensure!(status["conditions"][0]["type"] == condition, "it is {status}");
            Ok(())
        })
        .await?;
        say(&format!("{plugin}: {name} has its status"));
    }
    Ok(())
}

fn kubeconfig(output: &Path) -> Result<PathBuf> {
    let printed = std::fs::read_to_string(output).context("cannot read what the demo printed")?;
    let path = printed.lines().find_map(|line| line.strip_prefix(KUBECONFIG)).context("it did not yet")?;
    Ok(PathBuf::from(path.trim()))
}

fn say(what: &str) {
    println!("demo-check: {what}");
}
