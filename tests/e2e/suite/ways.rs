//! Ways to a cluster: proxies of the environment, lists of kubeconfigs, IPv6, exec plugins and rotating authorities.

use std::{
    fs,
    net::{Ipv6Addr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kube::config::{AuthInfo, ExecConfig, Kubeconfig};
use pilothouse_e2e::{
    Environment, Host, Plugin, Pod, Scene,
    image::may_unshare,
    install::server_and_ca,
    proxy::{self, Proxy},
    relay::Relay,
    suite::NotHere,
    wait::within,
};
use serde_json::{Value, from_value, json};

use crate::pod::{self, Account};

const NO_REAL_SERVER: NotHere = NotHere("the embedded API server has no TLS, and asks for no credentials");

/// The parts of a kubeconfig with one cluster and one user.
struct Parts {
    cluster: kube::config::Cluster,
    user: AuthInfo,
}

impl Parts {
    /// Reads those of the test's server.
    fn of(scene: &Scene) -> Result<Self> {
        let file = Kubeconfig::read_from(scene.cluster.kubeconfig()).context("cannot read the kubeconfig")?;
        let cluster = file.clusters.into_iter().find_map(|one| one.cluster).context("it has no cluster")?;
        let user = file.auth_infos.into_iter().find_map(|one| one.auth_info).unwrap_or_default();
        Ok(Self { cluster, user })
    }

    /// The port of the server, and the start of its address, such as `https://`.
    fn server(&self) -> Result<(&'static str, SocketAddr)> {
        let server = self.cluster.server.as_deref().context("it has no address")?;
        let (scheme, address) =
            if let Some(rest) = server.strip_prefix("https://") { ("https", rest) } else { ("http", server) };
        let address = address.trim_start_matches("http://").parse().context("its address is no IP address and port")?;
        Ok((scheme, address))
    }

    /// Writes the whole kubeconfig to a file of the scene.
    fn write(&self, scene: &Scene, name: &str) -> Result<PathBuf> {
        let path = scene.folder().join(name);
        let text =
            json!({"current-context": "it", "contexts": context(), "clusters": self.clusters(), "users": self.users()});
        fs::write(&path, text.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn clusters(&self) -> Value {
        json!([{"name": "it", "cluster": self.cluster}])
    }

    fn users(&self) -> Value {
        json!([{"name": "it", "user": self.user}])
    }
}

fn context() -> Value {
    json!([{"name": "it", "context": {"cluster": "it", "user": "it"}}])
}

/// Checks that the host reconciles a new object.
async fn serves(scene: &Scene, host: &mut Host, apple: &str) -> Result<()> {
    host.ready().await?;
    scene.apple(apple).create(2).await?.settles().await
}

pub(crate) async fn a_proxy_of_the_environment_is_used_for_servers_that_no_proxy_does_not_name(
    scene: Scene,
) -> Result<()> {
    if !may_unshare() {
        return Err(NotHere("no mount namespace of one's own (unshare -rm), so no file of names").into());
    }
    scene.with(&[Plugin::myapple()?])?;
    let proxy = Proxy::start().await?;
    let mut parts = Parts::of(&scene)?;
    let (scheme, address) = parts.server()?;
    // A server on this machine is never reached by a proxy of the environment, so it has a name.
    parts.cluster.server = Some(format!("{scheme}://{}:{}", proxy::NAME, address.port()));
    let kubeconfig = parts.write(&scene, "kubeconfig")?.display().to_string();
    let variable = if scheme == "https" { "HTTPS_PROXY" } else { "HTTP_PROXY" };
    let environment = |by: &str| Environment {
        variables: vec![("KUBECONFIG", kubeconfig.clone()), (variable, format!("{by}://{}", proxy.address()))],
        folder: scene.folder().to_owned(),
        hosts: None,
    };
    for by in ["http", "socks5"] {
        let before = proxy.tunnels();
        let mut host = scene.host_by(environment(by))?;
        serves(&scene, &mut host, &format!("by-{by}")).await?;
        ensure!(proxy.tunnels() > before, "the proxy was not asked");
        host.terminate().await?;
    }

    // Now the host itself can resolve the name.
    let hosts = scene.folder().join("hosts");
    fs::write(&hosts, format!("127.0.0.1 {}\n", proxy::NAME)).context("cannot write a file of names")?;
    let before = proxy.tunnels();
    let mut environment = environment("http");
    environment.hosts = Some(hosts);
    environment.variables.push(("NO_PROXY", "10.0.0.0/8,.example.test".to_owned()));
    let mut host = scene.host_by(environment)?;
    serves(&scene, &mut host, "direct").await?;
    ensure!(proxy.tunnels() == before, "the proxy was asked for a server that NO_PROXY names");
    Ok(())
}

pub(crate) async fn a_list_of_kubeconfigs_has_missing_files_and_relative_paths(scene: Scene) -> Result<()> {
    scene.with(&[Plugin::myapple()?])?;
    let mut parts = Parts::of(&scene)?;
    let folder = scene.folder().join("parts");
    fs::create_dir(&folder).context("cannot create a folder")?;
    if scene.cluster.real().is_some() {
        // Each path is relative to the file that has it.
        let (_, ca) = server_and_ca(&scene.cluster.kubeconfig())?;
        pod::write(&folder, "ca.crt", &ca)?;
        parts.cluster.certificate_authority_data = None;
        parts.cluster.certificate_authority = Some("ca.crt".to_owned());
        let token = fs::read_to_string(scene.cluster.kubeconfig())?;
        let token: Value = serde_json::from_str(&token).context("the kubeconfig is no JSON")?;
        let token = token["users"][0]["user"]["token"].as_str().context("there is no token")?;
        pod::write(scene.folder(), "token", token.as_bytes())?;
        parts.user.token = None;
        parts.user.token_file = Some("token".to_owned());
    }
    let other = json!([{"name": "it", "cluster": {"server": "https://other.example.test"}}]);
    let files = [
        ("parts/clusters", json!({"clusters": parts.clusters()})),
        ("users", json!({"users": parts.users(), "clusters": other})),
        ("parts/contexts", json!({"contexts": context(), "current-context": "it"})),
    ];
    for (name, content) in &files {
        fs::write(scene.folder().join(name), content.to_string()).context("cannot write a kubeconfig")?;
    }
    let list = format!("missing:{}:users::{}", files[0].0, scene.folder().join(files[2].0).display());
    let environment =
        Environment { variables: vec![("KUBECONFIG", list)], folder: scene.folder().to_owned(), hosts: None };
    serves(&scene, &mut scene.host_by(environment)?, "listed").await
}

pub(crate) async fn a_server_is_reached_by_ipv6(scene: Scene) -> Result<()> {
    let mut parts = Parts::of(&scene)?;
    let (scheme, server) = parts.server()?;
    let Ok(relay) = Relay::at(Ipv6Addr::LOCALHOST.into(), server).await else {
        return Err(NotHere("this machine has no address ::1").into());
    };
    scene.with(&[Plugin::myapple()?])?;
    let url = format!("{scheme}://{}", relay.address());
    parts.cluster.server = Some(url.clone());
    let kubeconfig = parts.write(&scene, "kubeconfig")?;
    let mut host = scene.host_as(kubeconfig.clone())?;
    serves(&scene, &mut host, "direct").await?;
    host.terminate().await?;

    let proxy = Proxy::start().await?;
    for by in ["http", "socks5"] {
        let before = proxy.tunnels();
        let mut host = scene.host_as(proxy.before(&kubeconfig, by, scene.folder())?)?;
        serves(&scene, &mut host, &format!("by-{by}")).await?;
        ensure!(proxy.tunnels() > before, "the proxy was not asked");
        host.terminate().await?;
    }

    if scene.cluster.real().is_some() && may_unshare() {
        let account = Account::create(&scene).await?;
        let folder = scene.folder().join("serviceaccount");
        let (_, ca) = server_and_ca(&scene.cluster.kubeconfig())?;
        fs::create_dir(&folder).context("cannot create the service account's folder")?;
        pod::write(&folder, "ca.crt", &ca)?;
        pod::write(&folder, "namespace", scene.namespace.as_bytes())?;
        pod::write(&folder, "token", account.token(&scene, "token").await?.as_bytes())?;
        let server = url.parse().context("the relay's address is no URL")?;
        serves(&scene, &mut scene.host_in(Pod { service_account: folder, server })?, "in-a-pod").await?;
    }
    Ok(())
}

/// An exec plugin: a script that prints a file, and counts its runs.
struct Exec<'a> {
    folder: &'a Path,
}

impl Exec<'_> {
    fn config(&self) -> Result<ExecConfig> {
        let script = format!("#!/bin/sh\necho run >>{0}/runs\nexec cat {0}/credential\n", self.folder.display());
        let path = self.folder.join("plugin.sh");
        fs::write(&path, script).context("cannot write the exec plugin")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).context("cannot make it executable")?;
        let config = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": path, "interactiveMode": "Never",
        });
        from_value(config).context("not an exec plugin")
    }

    /// Sets what the next runs print.
    fn prints(&self, status: &Value) -> Result<()> {
        let credential =
            json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
        pod::write(self.folder, "credential", credential.to_string().as_bytes())
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.folder.join("runs")).unwrap_or_default().lines().count()
    }
}

pub(crate) async fn an_exec_plugin_is_asked_again_when_its_certificate_ends(scene: Scene) -> Result<()> {
    let Some(server) = scene.cluster.real() else { return Err(NO_REAL_SERVER.into()) };
    let exec = Exec { folder: scene.folder() };
    let certificate = |seconds| -> Result<Value> {
        let issued = server.certificate(Duration::from_secs(seconds))?;
        Ok(json!({"clientCertificateData": issued.certificate, "clientKeyData": issued.key}))
    };
    let first = certificate(40)?;
    exec.prints(&first)?;
    let mut parts = Parts::of(&scene)?;
    parts.user = AuthInfo { exec: Some(exec.config()?), ..AuthInfo::default() };
    let mut host = scene.with(&[Plugin::myapple()?])?.host_as(parts.write(&scene, "kubeconfig")?)?;
    serves(&scene, &mut host, "first").await?;

    exec.prints(&certificate(3600)?)?;
    let runs = exec.runs();
    // The server itself says when the first certificate has ended.
    let base64 = |member: &str| {
        let text = first[member].as_str().unwrap_or_default();
        serde_json::to_value(k8s_openapi::ByteString(text.as_bytes().to_vec()))
    };
    parts.user = from_value(json!({
        "client-certificate-data": base64("clientCertificateData")?,
        "client-key-data": base64("clientKeyData")?,
    }))?;
    let ended = Kubeconfig::read_from(parts.write(&scene, "first")?).context("cannot read a kubeconfig")?;
    let ended = kube::Config::from_custom_kubeconfig(ended, &Default::default()).await?;
    within(pod::ROTATED, "the first certificate ends", async || {
        let client = kube::Client::try_from(ended.clone()).context("cannot make a client")?;
        let answer = client.list_core_api_versions().await;
        let is_refused = matches!(&answer, Err(kube::Error::Api(status)) if status.code == 401);
        ensure!(is_refused, "the server still takes it: {answer:?}");
        Ok(())
    })
    .await?;
    let second = scene.apple("second");
    second.create(3).await?;
    within(pod::ROTATED, "the host uses the second certificate", async || second.settles().await).await?;
    ensure!(exec.runs() > runs, "the exec plugin was not asked again");
    host.ready().await
}

pub(crate) async fn an_exec_plugin_is_asked_again_when_its_token_ends(scene: Scene) -> Result<()> {
    if scene.cluster.real().is_none() {
        return Err(NO_REAL_SERVER.into());
    }
    let exec = Exec { folder: scene.folder() };
    let account = Account::create(&scene).await?;
    let first = account.token(&scene, "first").await?;
    exec.prints(&json!({"token": first}))?;
    let mut parts = Parts::of(&scene)?;
    parts.user = AuthInfo { exec: Some(exec.config()?), ..AuthInfo::default() };
    let mut host = scene.with(&[Plugin::myapple()?])?.host_as(parts.write(&scene, "kubeconfig")?)?;
    serves(&scene, &mut host, "first").await?;

    exec.prints(&json!({"token": account.token(&scene, "second").await?}))?;
    let runs = exec.runs();
    account.revoke(&scene, "first", &first).await?;
    let second = scene.apple("second");
    second.create(3).await?;
    within(pod::ROTATED, "the host uses the second token", async || second.settles().await).await?;
    ensure!(exec.runs() > runs, "the exec plugin was not asked again");
    host.ready().await
}

pub(crate) async fn an_authority_that_rotates_is_followed(scene: Scene) -> Result<()> {
    let Some(server) = scene.cluster.real() else { return Err(NO_REAL_SERVER.into()) };
    let rotate = async || {
        pod::write(scene.folder(), "ca.crt", server.rotate()?.as_bytes())?;
        server.restart_apiserver().await
    };
    rotate().await?;
    let mut parts = Parts::of(&scene)?;
    parts.cluster.tls_server_name = Some(pilothouse_real::ROTATED.to_owned());
    parts.cluster.certificate_authority_data = None;
    parts.cluster.certificate_authority = Some("ca.crt".to_owned());
    let mut host = scene.with(&[Plugin::myapple()?])?.host_as(parts.write(&scene, "kubeconfig")?)?;
    serves(&scene, &mut host, "first").await?;

    // The restart cuts every connection. New ones do not fit the old authority.
    rotate().await?;
    let second = scene.apple("second");
    second.create(3).await?;
    within(pod::ROTATED, "the host trusts the new authority", async || second.settles().await).await?;
    host.ready().await
}
