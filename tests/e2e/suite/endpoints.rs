//! A host as in a cluster: metrics and debug pages over TLS to those whom RBAC lets, and probes without details.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use pilothouse_e2e::{Host, Plugin, Scene, eventually};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

const RELEASE: &str = "/debug/plugins/myapple/release";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

pub(crate) async fn invariant_7_only_those_whom_rbac_lets_see_metrics_and_debug_or_release(
    mut scene: Scene,
) -> Result<()> {
    let folder = scene.folder().join("certificates");
    fs::create_dir(&folder)?;
    let authority = write_certificates(&folder)?;
    scene.serve_securely(&folder);
    let host = scene.with(&[Plugin::myapple()?])?.starting_host()?;
    probes_are_plain_and_say_nothing_of_plugins(&host).await?;
    let secure = format!("https://{}", address(&host, "serving metrics").await?);
    let client = client(&secure, Some(authority))?;

    for (method, path) in [(Method::GET, "/metrics"), (Method::GET, "/none"), (Method::POST, RELEASE)] {
        for (token, wanted) in [(None, 401), (Some("made-up"), 401)] {
            let (code, text) = ask(&client, &method, path, token).await?;
            ensure!(code == wanted, "{method} {path} with {token:?} is answered {code}: {text}");
        }
    }
    let accounts = Accounts { scene: &scene };
    let nobody = accounts.create("nobody", &json!([])).await?;
    let viewing = json!([{"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]}]);
    let viewer = accounts.create("viewer", &viewing).await?;
    accounts.may("viewer", "get", "/metrics").await?;
    let releasing = json!([{"nonResourceURLs": ["/debug/plugins/*"], "verbs": ["release"]}]);
    let releaser = accounts.create("releaser", &releasing).await?;
    accounts.may("releaser", "release", RELEASE).await?;
    for (token, method, path, wanted, part) in [
        (&nobody, Method::GET, "/metrics", 403, "nobody may not get /metrics"),
        (&nobody, Method::GET, "/readyz?verbose", 403, "nobody may not get /debug/readyz"),
        (&nobody, Method::POST, RELEASE, 403, "nobody may not release"),
        (&viewer, Method::GET, "/metrics", 200, "controller_runtime_"),
        (&viewer, Method::GET, "/debug/plugins", 200, "myapple"),
        (&viewer, Method::GET, "/readyz?verbose", 200, "plugin myapple"),
        (&viewer, Method::POST, RELEASE, 403, "grant it the verb release"),
        (&releaser, Method::GET, "/metrics", 403, "grant it the verb get"),
        (&releaser, Method::GET, RELEASE, 405, ""),
        (&releaser, Method::POST, RELEASE, 200, "is not quarantined"),
        (&viewer, Method::GET, "/none", 404, "nothing at this path"),
    ] {
        let (code, text) = ask(&client, &method, path, Some(token)).await?;
        ensure!(code == wanted && text.contains(part), "{method} {path} is answered {code}: {text}");
    }
    for token in [&nobody, &viewer, &releaser] {
        ensure!(host.log()?.iter().all(|line| !line.text.contains(token.as_str())), "a token is in the log");
    }

    let renewed = write_certificates(&folder)?;
    let client = self::client(&secure, Some(renewed))?;
    eventually("the new certificate is served", async || {
        let (code, text) = ask(&client, &Method::GET, "/metrics", Some(&viewer)).await?;
        ensure!(code == 200, "/metrics is answered {code}: {text}");
        Ok(())
    })
    .await?;
    accounts.remove(&["nobody", "viewer", "releaser"]).await
}

async fn probes_are_plain_and_say_nothing_of_plugins(host: &Host) -> Result<()> {
    let client = client(&format!("http://{}", address(host, "serving probes").await?), None)?;
    eventually("the host is ready", async || {
        let answer = ask(&client, &Method::GET, "/readyz?verbose", None).await?;
        ensure!(answer == (200, "ok\n".to_owned()), "/readyz is answered {answer:?}");
        Ok(())
    })
    .await?;
    for (path, wanted) in [("/healthz", 200), ("/livez", 200), ("/metrics", 404), ("/debug/plugins", 404), ("/", 404)] {
        let (code, text) = ask(&client, &Method::GET, path, None).await?;
        ensure!(code == wanted && !text.contains("myapple"), "{path} is answered {code}: {text}");
    }
    Ok(())
}

/// Waits until a server is open, and returns its address.
async fn address(host: &Host, message: &str) -> Result<String> {
    let line = host.logs(&[message]).await?;
    Ok(line.field("address").context("the line has no address")?.to_owned())
}

/// Creates a client that trusts this authority.
fn client(url: &str, authority: Option<Vec<u8>>) -> Result<Client> {
    let mut config = kube::Config::new(url.parse().context("not a URL")?);
    config.default_retry = false;
    config.root_cert = authority.map(|authority| vec![authority]);
    Ok(Client::try_from(config)?)
}

async fn ask(client: &Client, method: &Method, path: &str, token: Option<&str>) -> Result<(u16, String)> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = client.send(request.body(Body::empty())?).await.with_context(|| format!("no answer to {path}"))?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.context("the answer breaks off")?.to_bytes();
    Ok((code, String::from_utf8_lossy(&body).into_owned()))
}

/// Service accounts of the test's namespace, each with a ClusterRole that is named after both.
struct Accounts<'a> {
    scene: &'a Scene,
}

impl Accounts<'_> {
    /// Creates an account with these rules, and returns a token of it.
    async fn create(&self, name: &str, rules: &Value) -> Result<String> {
        let (namespace, role) = (&self.scene.namespace, self.role(name));
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        self.post(&path, json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})).await?;
        let rbac = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": role}});
        let mut cluster_role = rbac("ClusterRole");
        cluster_role["rules"] = rules.clone();
        self.post(&format!("{RBAC}/clusterroles"), cluster_role).await?;
        let mut binding = rbac("ClusterRoleBinding");
        binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
        binding["subjects"] = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
        self.post(&format!("{RBAC}/clusterrolebindings"), binding).await?;
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let answer = self.post(&format!("{path}/{name}/token"), request).await?;
        Ok(answer["status"]["token"].as_str().context("the server gives no token")?.to_owned())
    }

    fn role(&self, name: &str) -> String {
        format!("{}-{name}", self.scene.namespace)
    }

    /// Waits until the API server has taken up an account's right. Until then, the host would remember a denial.
    async fn may(&self, name: &str, verb: &str, path: &str) -> Result<()> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": format!("system:serviceaccount:{}:{name}", self.scene.namespace),
                "nonResourceAttributes": {"verb": verb, "path": path},
            },
        });
        eventually("the right is granted", async || {
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let answer = self.post(path, review.clone()).await?;
            ensure!(answer["status"]["allowed"] == true, "{answer}");
            Ok(())
        })
        .await
    }

    async fn remove(&self, names: &[&str]) -> Result<()> {
        for (name, plural) in names.iter().flat_map(|name| [(name, "clusterrolebindings"), (name, "clusterroles")]) {
            let request = Request::delete(format!("{RBAC}/{plural}/{}", self.role(name))).body(Vec::new())?;
            self.scene.client().request::<Value>(request).await.context("cannot remove a role")?;
        }
        Ok(())
    }

    async fn post(&self, path: &str, object: Value) -> Result<Value> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(object.to_string().into_bytes())?;
        self.scene.client().request(request).await.with_context(|| format!("cannot POST to {path}"))
    }
}

/// Writes a certificate of a new authority for 127.0.0.1, as a mounted Secret has it. Returns the authority's.
fn write_certificates(folder: &Path) -> Result<Vec<u8>> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let trusted = authority.self_signed(&key)?.der().to_vec();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?.pem();
    for (name, content) in [("tls.crt", certificate), ("tls.key", key.serialize_pem())] {
        let new = folder.join("new");
        fs::write(&new, content)?;
        fs::rename(&new, folder.join(name))?;
    }
    Ok(trusted)
}
