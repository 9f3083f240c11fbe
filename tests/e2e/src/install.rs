//! A host that is installed as `docs/operating/install.md` says: kubectl applies what `pilothouse manifests` prints. No
//! kubelet runs, so a process stands for the container of the Deployment's pod.
//!
//! ```text
//! pilothouse manifests ─► kubectl apply ─► Deployment ─┬─ arguments, volumes ─┐
//!                                                      └─ pod ─ bound token ──┴─► process in the files of the image
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body, config::Kubeconfig};
use serde_json::{Value, json};

use crate::{
    host::{Container, Host, Pod, binary},
    image::Image,
    kubectl::Kubectl,
    scene::Scene,
    wait::within,
};

/// The name of the installation.
const NAME: &str = "pilothouse";

/// Time within which all plugins are compiled, on a busy machine.
const COMPILED: Duration = Duration::from_secs(300);

/// An installation in a namespace of its own, with one running pod.
pub struct Installation {
    /// The pod's process.
    pub host: Host,
    namespace: String,
    kubectl: Kubectl,
    kubeconfig: PathBuf,
    plugins: PathBuf,
    /// A token of an account that may see the debug pages.
    viewer: String,
}

impl Installation {
    /// Installs the plugins of the scene, and starts the pod in the files of an image. `source` is the setting that
    /// names the volume with the plugins.
    ///
    /// # Errors
    /// The host or kubectl fails.
    pub async fn start(scene: &Scene, image: &Image, source: &str) -> Result<Self> {
        let namespace = format!("{}-host", scene.namespace);
        let kubeconfig = scene.cluster.kubeconfig();
        let kubectl = Kubectl::find(&kubeconfig, &namespace)?.context("there is no kubectl")?;
        let plugins = scene.plugins.path().to_owned();

        let mut manifests = Command::new(binary()?);
        manifests.args(["manifests", "--namespace", &namespace, "--plugins"]).arg(&plugins);
        manifests.args(["--set", "image=registry.example.com/pilothouse:0.1.0", "--set", "webhooks=true"]);
        manifests.args(["--set", source]);
        let printed = succeeds(&mut manifests)?;
        // The objects say their namespaces.
        let everywhere = Kubectl::find(&kubeconfig, "")?.context("there is no kubectl")?;
        everywhere.run_on(&printed, &["apply", "--server-side", "-f", "-"]).await?;

        let deployment = json(&kubectl.run(&["get", "deployment", NAME, "-o", "json"]).await?)?;
        let template = &deployment["spec"]["template"];
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"],
        });
        pod["metadata"]["name"] = format!("{NAME}-0").into();
        let pod = json(&kubectl.run_on(&pod.to_string(), &["create", "-f", "-", "-o", "json"]).await?)?;
        let container = &pod["spec"]["containers"][0];

        let port = pilothouse_real::port::free()?;
        // No proxy serves the Service's address. The API server resolves this one itself.
        kubectl.run(&["delete", "service", NAME]).await?;
        kubectl.run(&["create", "service", "externalname", NAME, "--external-name=localhost", "--tcp=443"]).await?;
        let mut arguments: Vec<String> = Vec::new();
        for argument in container["args"].as_array().context("the container has no arguments")? {
            let argument = argument.as_str().context("an argument is no text")?;
            // All hosts of this machine share its ports.
            match argument.split_once('=') {
                Some(("--health-probe-address", _)) => arguments.push("--health-probe-address=127.0.0.1:0".to_owned()),
                Some(("--metrics-address", _)) => arguments.push("--metrics-address=0.0.0.0:0".to_owned()),
                Some(("--webhook-service", service)) => {
                    arguments.push(format!("--webhook-service={service}:{port}"));
                    arguments.push(format!("--webhook-address=127.0.0.1:{port}"));
                }
                _ => arguments.push(argument.to_owned()),
            }
        }

        let folder = scene.folder().join("pod");
        let account = folder.join("serviceaccount");
        fs::create_dir_all(&account).context("cannot create the service account's folder")?;
        let (server, ca) = server_and_ca(&kubeconfig)?;
        let [name, uid] = ["name", "uid"].map(|member| text(&pod["metadata"][member]));
        let bound = ["--bound-object-kind=Pod", "--bound-object-name", name, "--bound-object-uid", uid];
        let service_account = text(&pod["spec"]["serviceAccountName"]);
        let token = kubectl.run(&[&["create", "token", service_account], &bound[..]].concat()).await?;
        for (name, content) in
            [("ca.crt", &*ca), ("namespace", namespace.as_bytes()), ("token", token.trim().as_bytes())]
        {
            fs::write(account.join(name), content).with_context(|| format!("cannot write {name}"))?;
        }
        let mut mounts = Vec::new();
        for mount in container["volumeMounts"].as_array().context("the container has no volumes")? {
            let here = volume(&pod, text(&mount["name"]), &plugins, &folder)?;
            mounts.push((here, PathBuf::from(text(&mount["mountPath"]))));
        }

        kubectl.run(&["create", "serviceaccount", "viewer"]).await?;
        let (binding, subject) = (format!("viewer-of-{namespace}"), format!("{namespace}:viewer"));
        let role = ["--clusterrole", "pilothouse-viewer", "--serviceaccount", &subject];
        kubectl.run(&[&["create", "clusterrolebinding", &binding], &role[..]].concat()).await?;
        let viewer = kubectl.run(&["create", "token", "viewer"]).await?.trim().to_owned();

        let pod = Pod { service_account: account, server };
        let host = scene.host_of(image, pod, Container { mounts, arguments })?;
        Ok(Self { host, namespace, kubectl: everywhere, kubeconfig, plugins, viewer })
    }

    /// kubectl with all rights.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Waits until `/debug/plugins`, as its viewers see it, shows that all plugins serve.
    ///
    /// # Errors
    /// They do not in time. The error says what the page shows.
    pub async fn plugins_serve(&self) -> Result<()> {
        let serving = self.host.logs(&["serving metrics"]).await?;
        let address = serving.field("address").context("no address")?;
        let port = address.rsplit_once(':').context("the address has no port")?.1;
        let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse().context("not a URL")?);
        (config.default_retry, config.accept_invalid_certs) = (false, true);
        let client = Client::try_from(config).context("cannot make a client")?;
        within(COMPILED, "all plugins serve", async || {
            let request = Request::get("/debug/plugins?format=json")
                .header(header::AUTHORIZATION, format!("Bearer {}", self.viewer))
                .body(Body::empty())?;
            let answer = client.send(request).await.context("no answer to /debug/plugins")?;
            ensure!(answer.status().is_success(), "/debug/plugins is answered {}", answer.status());
            let body = answer.into_body().collect().await.context("the answer broke off")?.to_bytes();
            let rows: Vec<Value> = serde_json::from_slice(&body).context("/debug/plugins is not JSON")?;
            let serves = |row: &Value| row["serving"].is_object();
            ensure!(!rows.is_empty() && rows.iter().all(serves), "{}", Value::from(rows));
            Ok(())
        })
        .await
    }

    /// Checks that the cluster grants the host what `pilothouse rbac` prints, and no more.
    ///
    /// # Errors
    /// Something is missing or too much. The error has the lines of `--diff`.
    pub fn rights_are_those_printed(&self) -> Result<()> {
        let mut diff = Command::new(binary()?);
        diff.args(["rbac", "--namespace", &self.namespace, "--plugins"]).arg(&self.plugins);
        let lines = succeeds(diff.args(["--diff", "--kubeconfig"]).arg(&self.kubeconfig))?;
        ensure!(lines.is_empty(), "{lines}");
        Ok(())
    }
}

/// Returns a folder with what a kubelet puts into a volume of the pod. `plugins` stands for any volume that is brought.
fn volume(pod: &Value, name: &str, plugins: &Path, folder: &Path) -> Result<PathBuf> {
    let volumes = pod["spec"]["volumes"].as_array().context("the pod has no volumes")?;
    let volume =
        volumes.iter().find(|volume| volume["name"] == name).context("the pod lacks a volume that is mounted")?;
    let here = folder.join(name);
    fs::create_dir_all(&here).context("cannot create a folder for a volume")?;
    if volume["emptyDir"].is_object() {
        return Ok(here);
    }
    ensure!(name == "plugins", "the volume {name} is of an unknown kind");
    Ok(plugins.to_owned())
}

/// Returns the server's address and certificate authority from a kubeconfig.
///
/// # Errors
/// The file cannot be read, or does not have both.
pub fn server_and_ca(kubeconfig: &Path) -> Result<(http::Uri, Vec<u8>)> {
    let file = Kubeconfig::read_from(kubeconfig).context("cannot read the cluster's kubeconfig")?;
    let cluster = file.clusters.into_iter().find_map(|cluster| cluster.cluster).context("it names no cluster")?;
    let server = cluster.server.context("it has no address")?.parse().context("its address is no URL")?;
    let ca = cluster.certificate_authority_data.context("it has no certificate authority")?;
    Ok((server, STANDARD.decode(ca).context("its authority is not base64")?))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).context("kubectl prints no JSON")
}

fn succeeds(command: &mut Command) -> Result<String> {
    let output = command.output().context("the command does not start")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command:?} ended with {}: {printed}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(printed)
}
