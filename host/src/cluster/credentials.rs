//! Keeps a client with valid credentials.
//!
//! Tokens, certificates and the output of exec plugins expire while the host runs. A new client is created from the
//! same source when
//!
//! - the server answers 401; the request is then sent once more;
//! - a certificate from an exec plugin is about to expire;
//! - a file with settings has changed, which is checked once a minute.
//!
//! Requests in flight and open watches stay on their client.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::{runtime::Handle, time::Instant};
use tracing::{debug, warn};

use super::{changes, connect::ConnectError};
use crate::causes::with_causes;

/// How often the files are checked for changes. client-go and kube also read token files again after a minute.
const FILES_EVERY: Duration = Duration::from_secs(60);

/// The least time between two renewals because of a 401. An exec plugin may take seconds and open a browser.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// How long before its expiry a certificate is replaced: the time that requests in flight may still need.
const EARLY: Duration = Duration::from_secs(30);

/// A client and the files that it was created from.
pub(super) struct NewClient {
    pub(super) client: kube::Client,
    /// The client for watches.
    pub(super) watches: kube::Client,
    /// The client for requests that change something.
    pub(super) changes: kube::Client,
    /// The settings of a client of the same server without credentials.
    pub(super) bare: kube::Config,
    /// Files whose content is in the client.
    pub(super) files: Vec<PathBuf>,
}

/// Creates a client from the configured source. Blocks, because it reads files and runs exec plugins.
type MakeClient = dyn Fn() -> Result<NewClient, ConnectError> + Send + Sync;

/// A client that is replaced when its credentials expire.
pub(super) struct Credentials {
    current: ArcSwap<CurrentClient>,
    /// `None` if the client is never replaced.
    renewal: Option<Renewal>,
}

struct CurrentClient {
    client: kube::Client,
    /// This and the next are `None` if the client is given, and never replaced.
    watches: Option<kube::Client>,
    changes: Option<kube::Client>,
    bare: Bare,
    files: Vec<PathBuf>,
    /// A keyed digest of the files' content.
    digest: u64,
    /// The expiry of an exec plugin's certificate.
    ends: Option<SystemTime>,
}

/// The client of requests that have credentials of their own. It is created when it is used.
struct Bare {
    /// `None` if the client has no credentials anyway.
    config: Option<kube::Config>,
    client: OnceLock<kube::Client>,
}

impl Bare {
    fn new(config: Option<kube::Config>) -> Self {
        Self { config, client: OnceLock::new() }
    }

    fn client<'a>(&'a self, other: &'a kube::Client) -> Result<&'a kube::Client, kube::Error> {
        let Some(config) = &self.config else { return Ok(other) };
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = changes::client(config)?;
        Ok(self.client.get_or_init(|| client))
    }
}

impl CurrentClient {
    async fn send(&self, request: Request<Bytes>, traffic: Traffic) -> Result<Response<Body>, kube::Error> {
        let client = match traffic {
            Traffic::Watch => self.watches.as_ref(),
            Traffic::Change => self.changes.as_ref(),
            Traffic::Bare => Some(self.bare.client(&self.client)?),
            Traffic::Ordinary => None,
        };
        client.unwrap_or(&self.client).send(request.map(Body::from)).await
    }
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    /// A watch, which may share its connection with others.
    Watch,
    /// A request that changes something. Its extensions have the [`Acting`](crate::acting::Acting) to ask.
    Change,
    /// A request that has credentials of its own.
    Bare,
    /// Anything else.
    Ordinary,
}

/// How a client is renewed.
struct Renewal {
    make: Arc<MakeClient>,
    /// Clients are created on this runtime. Each spawns a task that lives as long as the client.
    runtime: Handle,
    digests: RandomState,
    /// Locked while a client is created. Holds the start of the last renewal.
    attempted: tokio::sync::Mutex<Option<Instant>>,
    /// When the files are checked next.
    check: Mutex<Instant>,
    checking: AtomicBool,
}

impl Credentials {
    /// Uses one client without renewal.
    pub(super) fn fixed(client: kube::Client) -> Self {
        let (watches, changes, bare, files) = (None, None, Bare::new(None), Vec::new());
        let current = CurrentClient { client, watches, changes, bare, files, digest: 0, ends: None };
        Self { current: ArcSwap::from_pointee(current), renewal: None }
    }

    /// Creates the first client, which is replaced when its credentials expire.
    ///
    /// # Errors
    /// The first client cannot be created.
    pub(super) async fn renewing(make: Arc<MakeClient>) -> Result<Self, ConnectError> {
        let runtime = Handle::current();
        let digests = RandomState::new();
        let current = new_client(&runtime, &make, &digests).await?;
        let renewal = Renewal {
            make,
            runtime,
            digests,
            attempted: tokio::sync::Mutex::new(None),
            check: Mutex::new(Instant::now() + FILES_EVERY),
            checking: AtomicBool::new(false),
        };
        Ok(Self { current: ArcSwap::from_pointee(current), renewal: Some(renewal) })
    }

    pub(super) fn default_namespace(&self) -> String {
        self.current.load().client.default_namespace().to_owned()
    }

    /// Sends a request. Sends it a second time if the server rejects the credentials and they could be renewed.
    pub(super) async fn send(
        self: &Arc<Self>,
        request: Request<Bytes>,
        traffic: Traffic,
    ) -> Result<Response<Body>, kube::Error> {
        let Some(renewal) = &self.renewal else {
            return self.current.load_full().send(request, traffic).await;
        };
        self.check_files(renewal);
        let mut current = self.current.load_full();
        if current.ends.is_some_and(|ends| SystemTime::now() + EARLY >= ends) && self.renew(renewal, &current).await {
            current = self.current.load_full();
        }
        let answer = current.send(request.clone(), traffic).await?;
        // A 401 to a request with credentials of its own says nothing about the host's.
        if answer.status() != StatusCode::UNAUTHORIZED
            || traffic == Traffic::Bare
            || !self.renew(renewal, &current).await
        {
            return Ok(answer);
        }
        self.current.load_full().send(request, traffic).await
    }

    /// Replaces the client `used`, unless that has happened meanwhile. Returns `true` if there is a new client.
    async fn renew(&self, renewal: &Renewal, used: &Arc<CurrentClient>) -> bool {
        let mut attempted = renewal.attempted.lock().await;
        if !Arc::ptr_eq(&self.current.load(), used) {
            return true;
        }
        if attempted.is_some_and(|attempted| attempted.elapsed() < RENEW_EVERY) {
            return false;
        }
        *attempted = Some(Instant::now());
        match new_client(&renewal.runtime, &renewal.make, &renewal.digests).await {
            Ok(current) => {
                debug!("renewed the client for the API server");
                self.current.store(Arc::new(current));
                true
            }
            Err(error) => {
                warn!(error = with_causes(&error), "cannot renew the credentials for the API server");
                false
            }
        }
    }

    /// Starts a check of the files once a minute. No request waits for it.
    fn check_files(self: &Arc<Self>, renewal: &Renewal) {
        let mut check = renewal.check.lock();
        if Instant::now() < *check || renewal.checking.swap(true, Ordering::AcqRel) {
            return;
        }
        *check = Instant::now() + FILES_EVERY;
        drop(check);
        let credentials = self.clone();
        renewal.runtime.spawn(async move {
            let Some(renewal) = &credentials.renewal else { return };
            let current = credentials.current.load_full();
            let (files, digests) = (current.files.clone(), renewal.digests.clone());
            let found = tokio::task::spawn_blocking(move || digest(&files, &digests)).await;
            // A missing file changes nothing, because its former content may still be valid.
            if let Ok(Some(found)) = found
                && found != current.digest
            {
                credentials.renew(renewal, &current).await;
            }
            renewal.checking.store(false, Ordering::Release);
        });
    }
}

/// Creates a client on a thread that may block.
async fn new_client(
    runtime: &Handle,
    make: &Arc<MakeClient>,
    digests: &RandomState,
) -> Result<CurrentClient, ConnectError> {
    let (make, digests) = (make.clone(), digests.clone());
    let task = runtime.spawn_blocking(move || {
        let NewClient { client, watches, changes, bare, files } = make()?;
        let ends = client.valid_until().map(SystemTime::from);
        let digest = digest(&files, &digests).unwrap_or_default();
        let (watches, changes) = (Some(watches), Some(changes));
        Ok(CurrentClient { client, watches, changes, bare: Bare::new(Some(bare)), files, digest, ends })
    });
    task.await.unwrap_or_else(|error| Err(ConnectError::GivenUp(error.to_string())))
}

/// Returns a digest of the files' content, or `None` if a file cannot be read.
fn digest(files: &[PathBuf], digests: &RandomState) -> Option<u64> {
    let contents: Option<Vec<Vec<u8>>> = files.iter().map(|path| fs::read(path).ok()).collect();
    contents.map(|contents| digests.hash_one(contents))
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, os::unix::fs::PermissionsExt};

    use http::header::AUTHORIZATION;
    use hyper::{body::Incoming, service::service_fn};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::{
        RootCertStore, ServerConfig,
        pki_types::PrivateKeyDer,
        server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier},
        sign::CertifiedKey,
    };
    use serde_json::json;
    use tempfile::TempDir;
    use tokio::net::TcpListener;

    use super::*;
    use crate::cluster::{
        connect::{self, ConnectOptions},
        kubeconfig,
    };

    /// The token or certificate that the server accepts.
    type Accepted = Arc<Mutex<Vec<u8>>>;

    /// Starts a server. It answers 200 to the accepted token or client certificate, and 401 otherwise.
    async fn serve(accepted: Accepted, tls: Option<Arc<ServerConfig>>) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("a listener has an address").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (accepted, tls) = (accepted.clone(), tls.clone());
                tokio::spawn(async move {
                    let answer = |shown: Option<Vec<u8>>| {
                        let accepted = accepted.clone();
                        service_fn(move |request: Request<Incoming>| {
                            let token = request.headers().get(AUTHORIZATION).map(|token| token.as_bytes().to_vec());
                            let good = shown.clone().or(token).is_some_and(|shown| shown == *accepted.lock());
                            let status = if good { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
                            let mut answer = Response::new(String::new());
                            *answer.status_mut() = status;
                            std::future::ready(Ok::<_, std::convert::Infallible>(answer))
                        })
                    };
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // An error of the connection shows at its client.
                    let _ended = match tls {
                        None => server.serve_connection(TokioIo::new(stream), answer(None)).await,
                        Some(tls) => {
                            let Ok(stream) = tokio_rustls::TlsAcceptor::from(tls).accept(stream).await else { return };
                            let shown =
                                stream.get_ref().1.peer_certificates().and_then(|all| Some(all.first()?.to_vec()));
                            server.serve_connection(TokioIo::new(stream), answer(Some(shown.unwrap_or_default()))).await
                        }
                    };
                });
            }
        });
        port
    }

    /// A kubeconfig in its own folder.
    struct Kubeconfig(TempDir);

    impl Kubeconfig {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn put(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.path().join(name);
            fs::write(&path, text).expect("a file can be written");
            path
        }

        /// A plugin that prints the file `credential` and adds a line to the file `runs`.
        fn exec(&self) -> serde_json::Value {
            let folder = self.0.path().display();
            let script = format!("#!/bin/sh\necho run >> {folder}/runs\ncat {folder}/credential\n");
            let path = self.put("plugin.sh", &script);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("the file's mode can be set");
            json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": path, "interactiveMode": "Never"}})
        }

        fn prints(&self, status: &serde_json::Value) {
            let credential =
                json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
            self.put("credential", &credential.to_string());
        }

        fn runs(&self) -> usize {
            fs::read_to_string(self.0.path().join("runs")).unwrap_or_default().lines().count()
        }

        async fn credentials(&self, cluster: &serde_json::Value, user: &serde_json::Value) -> Arc<Credentials> {
            let config = json!({
                "current-context": "it",
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": "it", "user": user}],
            });
            let options = ConnectOptions { kubeconfig: Some(self.put("config", &config.to_string())), context: None };
            let make = move || {
                let settings = kubeconfig::load(&options, &|_| None)?;
                let url = settings.config.cluster_url.clone();
                connect::client(settings, url, &Arc::default())
            };
            Arc::new(Credentials::renewing(Arc::new(make)).await.expect("a client"))
        }
    }

    fn authority() -> (Certificate, Issuer<'static, KeyPair>) {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let root = authority.self_signed(&key).expect("a certificate");
        (root, Issuer::new(authority, key))
    }

    fn issue(issuer: &Issuer<'_, KeyPair>, name: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::new(vec![name.to_owned()]).expect("a name").signed_by(&key, issuer);
        (certificate.expect("a certificate"), key)
    }

    /// A server's certificate, of an authority of its own, that may be replaced.
    #[derive(Debug)]
    struct Serving(Mutex<Arc<CertifiedKey>>);

    impl Serving {
        /// Returns a new certificate and its authority in PEM.
        fn issue() -> (Arc<CertifiedKey>, String) {
            let (root, issuer) = authority();
            let (certificate, key) = issue(&issuer, "localhost");
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            let provider = rustls::crypto::ring::default_provider();
            let serving = CertifiedKey::from_der(vec![certificate.der().clone()], key, &provider);
            (Arc::new(serving.expect("a key that fits")), root.pem())
        }
    }

    impl ResolvesServerCert for Serving {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            Some(self.0.lock().clone())
        }
    }

    /// Checks the files until the client has been replaced.
    async fn are_renewed(credentials: &Arc<Credentials>) {
        let before = credentials.current.load_full();
        let renewal = credentials.renewal.as_ref().expect("it renews");
        while Arc::ptr_eq(&before, &credentials.current.load()) {
            // As if a minute had passed.
            *renewal.attempted.lock().await = None;
            *renewal.check.lock() = Instant::now();
            credentials.check_files(renewal);
            tokio::task::yield_now().await;
        }
    }

    async fn status(credentials: &Arc<Credentials>) -> u16 {
        let answer =
            credentials.send(Request::get("/version").body(Bytes::new()).expect("a request"), Traffic::Ordinary).await;
        answer.expect("an answer").status().as_u16()
    }

    #[tokio::test]
    async fn an_expired_token_is_replaced_by_running_the_exec_plugin_again() {
        let accepted = Accepted::new(Mutex::new(b"Bearer one".to_vec()));
        let port = serve(accepted.clone(), None).await;
        let kubeconfig = Kubeconfig::new();
        kubeconfig.prints(&json!({"token": "one"}));
        let cluster = json!({"server": format!("http://127.0.0.1:{port}")});
        let credentials = kubeconfig.credentials(&cluster, &kubeconfig.exec()).await;
        assert_eq!(status(&credentials).await, 200);
        let runs = kubeconfig.runs();
        assert_eq!(status(&credentials).await, 200);
        assert_eq!(kubeconfig.runs(), runs, "a good token is kept");

        *accepted.lock() = b"Bearer two".to_vec();
        kubeconfig.prints(&json!({"token": "two"}));
        assert_eq!(status(&credentials).await, 200);
        let renewed = kubeconfig.runs();
        assert!(renewed > runs);

        // Credentials that stay invalid do not run the plugin for each request.
        *accepted.lock() = b"Bearer three".to_vec();
        for _ in 0..5 {
            assert_eq!(status(&credentials).await, 401);
        }
        assert_eq!(kubeconfig.runs(), renewed);
    }

    #[tokio::test]
    async fn a_token_file_is_read_again_at_a_401_and_blanks_around_the_token_are_dropped() {
        let accepted = Accepted::new(Mutex::new(b"Bearer one".to_vec()));
        let port = serve(accepted.clone(), None).await;
        let kubeconfig = Kubeconfig::new();
        let file = kubeconfig.put("token", "one\n");
        let cluster = json!({"server": format!("http://127.0.0.1:{port}")});
        let credentials = kubeconfig.credentials(&cluster, &json!({"tokenFile": file})).await;
        assert_eq!(status(&credentials).await, 200);
        *accepted.lock() = b"Bearer two".to_vec();
        kubeconfig.put("token", "two\n");
        assert_eq!(status(&credentials).await, 200);
    }

    #[tokio::test]
    async fn a_changed_file_is_noticed_without_a_401() {
        let accepted = Accepted::new(Mutex::new(b"Bearer one".to_vec()));
        let port = serve(accepted.clone(), None).await;
        let kubeconfig = Kubeconfig::new();
        let file = kubeconfig.put("token", "one");
        let cluster = json!({"server": format!("http://127.0.0.1:{port}")});
        let credentials = kubeconfig.credentials(&cluster, &json!({"tokenFile": file})).await;
        let before = credentials.current.load_full();
        kubeconfig.put("token", "two");
        *credentials.renewal.as_ref().expect("it renews").check.lock() = Instant::now();
        assert_eq!(status(&credentials).await, 200, "the request does not wait for the check");
        while Arc::ptr_eq(&before, &credentials.current.load()) {
            tokio::task::yield_now().await;
        }
        *accepted.lock() = b"Bearer two".to_vec();
        assert_eq!(status(&credentials).await, 200);
    }

    #[tokio::test]
    async fn an_expired_certificate_is_replaced_by_running_the_exec_plugin_again() {
        let (root, issuer) = authority();
        let issue = |name: &str| issue(&issuer, name);
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let verifier = verifier.allow_unauthenticated().build().expect("a verifier");
        let (server, key) = issue("localhost");
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![server.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .expect("the server's certificate");
        let accepted = Accepted::default();
        let port = serve(accepted.clone(), Some(Arc::new(tls))).await;
        let kubeconfig = Kubeconfig::new();
        let prints_a_new_one = || {
            let (certificate, key) = issue("somebody");
            kubeconfig
                .prints(&json!({"clientCertificateData": certificate.pem(), "clientKeyData": key.serialize_pem()}));
            *accepted.lock() = certificate.der().to_vec();
        };
        let authority = kubeconfig.put("ca.crt", &root.pem());
        // The certificate has the server's name, and not its address.
        let cluster = json!({
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority": authority, "tls-server-name": "localhost",
        });

        prints_a_new_one();
        let credentials = kubeconfig.credentials(&cluster, &kubeconfig.exec()).await;
        assert_eq!(status(&credentials).await, 200);
        prints_a_new_one();
        assert_eq!(status(&credentials).await, 200);
    }

    #[tokio::test]
    async fn an_authority_that_rotates_in_its_file_is_followed() {
        let (first, authority) = Serving::issue();
        let serving = Arc::new(Serving(Mutex::new(first)));
        let tls = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_cert_resolver(serving.clone());
        let port = serve(Accepted::default(), Some(Arc::new(tls))).await;
        let kubeconfig = Kubeconfig::new();
        let file = kubeconfig.put("ca.crt", &authority);
        let cluster = json!({
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority": file, "tls-server-name": "localhost",
        });
        let credentials = kubeconfig.credentials(&cluster, &json!({})).await;
        assert_eq!(status(&credentials).await, 200);

        let (second, authority) = Serving::issue();
        *serving.0.lock() = second;
        kubeconfig.put("ca.crt", &authority);
        are_renewed(&credentials).await;
        assert_eq!(status(&credentials).await, 200);

        // The new client has opened a connection, and trusts no other authority.
        *serving.0.lock() = Serving::issue().0;
        let before = fs::read(&file).expect("a file");
        kubeconfig.put("ca.crt", &format!("{}\n", String::from_utf8_lossy(&before)));
        are_renewed(&credentials).await;
        let request = Request::get("/version").body(Bytes::new()).expect("a request");
        let error = credentials.send(request, Traffic::Ordinary).await.expect_err("another authority");
        assert!(with_causes(&error).contains("certificate"), "{error}");
    }
}
