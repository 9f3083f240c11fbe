//! What a person sees and does with kubectl.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{Plugin, Scene, eventually, host, kubectl::Kubectl, suite::NotHere};
use pilothouse_real::process::Process;

const GALA: &str = "\
apiVersion: stable.example.com/v1
kind: MyApple
metadata: {name: gala}
spec: {color: green, size: small, quantity: 3}
";
const MISSING: &str = "no kubectl: `make real-assets` builds one";

pub(crate) async fn kubectl_sees_and_steers_everything(scene: Scene) -> Result<()> {
    let Some(kubectl) = Kubectl::find(&scene.cluster.kubeconfig(), &scene.namespace)? else {
        return Err(NotHere(MISSING).into());
    };
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    walk_through(&kubectl).await
}

pub(crate) async fn kubectl_works_with_the_development_server(scene: Scene) -> Result<()> {
    let kubeconfig = scene.folder().join("dev.kubeconfig");
    let Some(kubectl) = Kubectl::find(&kubeconfig, "default")? else {
        return Err(NotHere(MISSING).into());
    };
    scene.with(&[Plugin::myapple()?.without_yaml()])?;
    let mut command = Command::new(host::binary()?);
    command.arg("dev").arg("--plugins").arg(scene.plugins.path()).arg("--kubeconfig-out").arg(&kubeconfig);
    // Many machines set proxy variables in every shell. The server of `dev` is local, and nothing listens on the
    // proxy's port.
    command.env("HTTP_PROXY", "http://127.0.0.1:9").env("HTTPS_PROXY", "http://127.0.0.1:9");
    let mut dev = Process::start("pilothouse dev", command, &scene.folder().join("dev.log"))?;
    eventually("the development server answers", async || kubectl.run(&["get", "namespaces"]).await).await?;
    walk_through(&kubectl).await?;

    dev.terminate();
    let status = dev.wait(std::time::Duration::from_secs(45)).await?;
    ensure!(status.success(), "after SIGTERM `pilothouse dev` ended with {status}");
    Ok(())
}

pub(crate) async fn kubectl_describe_says_why_an_object_is_not_reconciled(scene: Scene) -> Result<()> {
    let Some(kubectl) = Kubectl::find(&scene.cluster.kubeconfig(), &scene.namespace)? else {
        return Err(NotHere(MISSING).into());
    };
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    // The example plugin, for the kind on which the guest works as well.
    let plugins = [Plugin::myapple()?.confined_to(&other), Plugin::guest("trapping")?.confined_to(&scene.namespace)];
    let mut host = scene.with(&plugins)?.host().await?;
    scene.apple("bad-1").create(1).await?;
    eventually("kubectl describe tells of the quarantine", async || {
        let described = kubectl.run(&["describe", "ma", "bad-1"]).await?;
        let told = described.lines().find(|line| line.contains("PluginQuarantined"));
        let told = told.with_context(|| format!("no such Event: {described}"))?;
        ensure!(told.contains("Warning") && told.contains("plugin trapping is quarantined"), "{told}");
        ensure!(told.contains("10 calls in a row failed; the last error: plugin trapped"), "{told}");
        Ok(())
    })
    .await?;
    let (code, plugins) = host.get("/debug/plugins").await?;
    ensure!(code == 200 && plugins.contains("quarantine"), "/debug/plugins answers {code}: {plugins}");
    Ok(())
}

async fn walk_through(kubectl: &Kubectl) -> Result<()> {
    let kinds = eventually("the kind is served", async || {
        let kinds = kubectl.run(&["api-resources", "--api-group=stable.example.com"]).await?;
        ensure!(kinds.contains("MyApple"), "{kinds}");
        Ok(kinds)
    })
    .await?;
    ensure!(words_of(&kinds, "myapples") == ["myapples", "ma", "stable.example.com/v1", "true", "MyApple"], "{kinds}");

    let mut watching = kubectl.watch(&["get", "myapples", "--watch"])?;
    let said = kubectl.run_on(GALA, &["apply", "-f", "-"]).await?;
    ensure!(said.contains("myapple.stable.example.com/gala created"), "{said}");
    watching.until("a line about gala", |line| line.starts_with("gala")).await?;
    children_are(kubectl, &["gala-0", "gala-1", "gala-2"]).await?;
    let both = kubectl.run(&["get", "ma,cm"]).await?;
    ensure!(both.contains("myapple.stable.example.com/gala") && both.contains("configmap/gala-2"), "{both}");
    available_is(kubectl, "3").await?;
    let row = kubectl.run(&["get", "ma", "gala"]).await?;
    ensure!(words_of(&row, "gala")[1..6] == ["green", "small", "3", "3", "True"], "{row}");
    let described = kubectl.run(&["describe", "ma", "gala"]).await?;
    ensure!(described.contains("Quantity:") && described.contains("AllAvailable"), "{described}");

    // The patch that `kubectl edit` sends.
    patch(kubectl, r#"{"spec":{"quantity":5}}"#).await?;
    children_are(kubectl, &["gala-0", "gala-1", "gala-2", "gala-3", "gala-4"]).await?;
    patch(kubectl, r#"{"spec":{"quantity":1}}"#).await?;
    children_are(kubectl, &["gala-0"]).await?;
    available_is(kubectl, "1").await?;
    kubectl.run(&["scale", "ma", "gala", "--replicas=4"]).await?;
    children_are(kubectl, &["gala-0", "gala-1", "gala-2", "gala-3"]).await?;

    let said = kubectl.run_on(&GALA.replace("green", "red"), &["apply", "-f", "-"]).await?;
    ensure!(said.contains("configured"), "{said}");
    children_are(kubectl, &["gala-0", "gala-1", "gala-2"]).await?;
    eventually("the child is red", async || {
        let color = kubectl.run(&["get", "cm", "gala-2", "-o", "jsonpath={.data.color}"]).await?;
        ensure!(color == "red", "it is {color}");
        Ok(())
    })
    .await?;

    kubectl.run(&["delete", "cm", "gala-1"]).await?;
    children_are(kubectl, &["gala-0", "gala-1", "gala-2"]).await?;

    kubectl.run(&["delete", "ma", "gala"]).await?;
    children_are(kubectl, &[]).await
}

async fn patch(kubectl: &Kubectl, patch: &str) -> Result<()> {
    let said = kubectl.run(&["patch", "ma", "gala", "--type=merge", "--patch", patch]).await?;
    ensure!(said.contains("patched"), "{said}");
    Ok(())
}

async fn children_are(kubectl: &Kubectl, wanted: &[&str]) -> Result<()> {
    eventually(&format!("the children are {wanted:?}"), async || {
        let names = kubectl.run(&["get", "cm", "--no-headers", "-o", "custom-columns=:metadata.name"]).await?;
        let mut found: Vec<&str> = names.lines().map(str::trim).filter(|name| name.starts_with("gala-")).collect();
        found.sort_unstable();
        ensure!(found == wanted, "they are {found:?}");
        Ok(())
    })
    .await
}

async fn available_is(kubectl: &Kubectl, wanted: &str) -> Result<()> {
    eventually(&format!("{wanted} are available"), async || {
        let found = kubectl.run(&["get", "ma", "gala", "-o", "jsonpath={.status.available}"]).await?;
        ensure!(found == wanted, "it is {found}");
        Ok(())
    })
    .await
}

/// The words of the line that begins with `first`.
fn words_of<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(first));
    line.with_context(|| format!("no line {first}")).map(|line| line.split_whitespace().collect()).unwrap_or_default()
}
