//! The three servers of one cluster: their start, their end and their data.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use tempfile::TempDir;

use crate::{
    assets::Assets,
    audit,
    credentials::{self, ADMIN, Certificate, Credentials, NOBODY, OPERATOR},
    etcd, port,
    process::{self, Process},
};

/// Time within which a server must be ready. It takes 2 s on an idle machine.
const READY: Duration = Duration::from_secs(60);
/// Pause between two questions to a starting server.
const POLL: Duration = Duration::from_millis(100);
/// Number of starts of a server whose port another process takes.
const PORT_ATTEMPTS: u32 = 5;
/// Number of log lines in an error.
const LOG_LINES: usize = 20;

/// Folders of etcd's data: the one in use, and the saved copy.
const ETCD_DATA: &str = "etcd";
const ETCD_SAVED: &str = "etcd-saved";

/// The audit log, and what it has.
const AUDIT: &str = "audit.log";
const AUDIT_POLICY: &str = "audit-policy.json";

/// What happens to resource versions when etcd's data is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// They go back as well: the server gives out the same versions a second time.
    Back,
    /// They continue above all versions that were given out, and older ones are compacted. `etcdutl snapshot restore
    /// --bump-revision --mark-compacted` does the same.
    Raised,
}

/// A running cluster: an API server on its own etcd, with the garbage collector and the namespace controller.
///
/// Dropping it stops the servers and removes their data. They do not outlive the test process, however that ends.
#[derive(Debug)]
pub struct Cluster {
    assets: Assets,
    etcd_ports: Ports,
    port: u16,
    // Before the folder, so that the servers stop before their data is removed.
    servers: Mutex<Servers>,
    folder: TempDir,
}

/// Declared in the order in which they stop.
#[derive(Debug, Default)]
struct Servers {
    controller_manager: Option<Process>,
    apiserver: Option<Process>,
    etcd: Option<Process>,
}

/// The ports of etcd.
#[derive(Clone, Copy, Debug)]
struct Ports {
    client: u16,
    peer: u16,
}

/// Why one start of a server failed.
enum Failed {
    /// Another process took the port first.
    PortTaken,
    Otherwise(anyhow::Error),
}

impl Cluster {
    /// Starts a cluster and returns when its API server is ready. Builds missing binaries first.
    ///
    /// # Errors
    /// The binaries are missing and cannot be built, or a server does not become ready: the error has its last log
    /// lines.
    pub async fn start() -> Result<Self> {
        let assets = tokio::task::spawn_blocking(|| Assets::ready(|line| eprintln!("real-assets: {line}")))
            .await
            .context("the search for the servers' binaries broke off")??;
        let folder = tempfile::Builder::new()
            .prefix("pilothouse-cluster-")
            .tempdir()
            .context("cannot create a folder for the cluster")?;
        let credentials = Credentials::write_to(folder.path())?;
        fs::write(folder.path().join(AUDIT_POLICY), audit::policy().to_string())
            .context("cannot write the audit policy")?;
        let mut cluster =
            Self { assets, etcd_ports: Ports { client: 0, peer: 0 }, port: 0, servers: Mutex::default(), folder };
        cluster.first_start_of_etcd().await?;
        cluster.first_start_of_apiserver(&credentials).await?;
        cluster.start_controller_manager()?;
        Ok(cluster)
    }

    /// The API server's address.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// A kubeconfig file of a user who may do anything.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of(ADMIN)
    }

    /// A kubeconfig file of a user without any permission.
    pub fn kubeconfig_of_nobody(&self) -> PathBuf {
        self.kubeconfig_of(NOBODY)
    }

    /// A kubeconfig file of the ordinary user [`OPERATOR`], to whom a test grants what it needs.
    pub fn kubeconfig_of_operator(&self) -> PathBuf {
        self.kubeconfig_of(OPERATOR)
    }

    /// A client of a user who may do anything.
    ///
    /// # Errors
    /// The kubeconfig cannot be used: it was changed or removed.
    pub async fn client(&self) -> Result<Client> {
        Self::client_of(&self.kubeconfig()).await
    }

    async fn client_of(kubeconfig: &Path) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).context("cannot read the cluster's kubeconfig")?;
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .context("cannot use the cluster's kubeconfig")?;
        // A test wants to see each answer. kube would retry a request after 429, 503 and 504.
        config.default_retry = false;
        Client::try_from(config).context("cannot make a client")
    }

    /// The API server's audit log, from now on.
    pub fn audit(&self) -> audit::Log {
        audit::Log::from_now(self.path(AUDIT))
    }

    /// Replaces the server's certificate for [`ROTATED`](crate::ROTATED), and its authority. Returns the certificate of the new authority. The
    /// server uses them after a restart at the latest.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn rotate(&self) -> Result<String> {
        credentials::rotate(self.folder.path())
    }

    /// Issues a certificate for a user who may do anything.
    ///
    /// # Errors
    /// The authority's files cannot be read.
    pub fn certificate(&self, valid: Duration) -> Result<Certificate> {
        credentials::certificate(self.folder.path(), valid)
    }

    /// The kubectl of the server's version.
    pub fn kubectl(&self) -> PathBuf {
        self.assets.kubectl()
    }

    /// Kills the API server (SIGKILL): every connection is cut, and new ones are refused.
    pub fn kill_apiserver(&self) {
        self.servers().apiserver = None;
    }

    /// Starts the API server again with the same data and port, and returns when it is ready. A running one is killed
    /// first.
    ///
    /// # Errors
    /// It does not become ready: the error has its last log lines.
    pub async fn restart_apiserver(&self) -> Result<()> {
        self.kill_apiserver();
        self.start_apiserver(self.port).await.map_err(Failed::into_error)
    }

    /// Kills etcd (SIGKILL), starts it again with the same data and ports, and returns when it is healthy.
    ///
    /// # Errors
    /// It does not become healthy: the error has its last log lines.
    pub async fn restart_etcd(&self) -> Result<()> {
        self.servers().etcd = None;
        self.start_etcd(self.etcd_ports).await.map_err(Failed::into_error)
    }

    /// Copies etcd's data for [`Cluster::restore`]. etcd is killed for that and started again. Replaces an earlier
    /// copy.
    ///
    /// # Errors
    /// The data cannot be copied, or etcd does not become healthy again.
    pub async fn save(&self) -> Result<()> {
        self.servers().etcd = None;
        etcd::copy(&self.path(ETCD_DATA), &self.path(ETCD_SAVED))?;
        self.start_etcd(self.etcd_ports).await.map_err(Failed::into_error)
    }

    /// Kills all servers, restores the data that [`Cluster::save`] copied, and starts the servers again. Returns when
    /// the API server is ready.
    ///
    /// # Errors
    /// Nothing was saved, or a server does not become ready.
    pub async fn restore(&self, versions: Versions) -> Result<()> {
        let etcd = etcd::Api::new(self.etcd_ports.client)?;
        let newest = etcd.revision().await?;
        *self.servers() = Servers::default();
        etcd::copy(&self.path(ETCD_SAVED), &self.path(ETCD_DATA))?;
        self.start_etcd(self.etcd_ports).await.map_err(Failed::into_error)?;
        if versions == Versions::Raised {
            etcd.raise_above(newest).await?;
        }
        self.start_apiserver(self.port).await.map_err(Failed::into_error)?;
        // Kubernetes' guide to restores says: restart all watching components. This one would wait for versions that
        // were lost.
        self.start_controller_manager()
    }

    /// The last `count` log lines of each server.
    pub fn last_lines(&self, count: usize) -> String {
        ["etcd", "kube-apiserver", "kube-controller-manager"]
            .map(|name| process::last_lines(name, &self.log(name), count))
            .join("\n")
    }

    fn servers(&self) -> MutexGuard<'_, Servers> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.log"))
    }

    fn kubeconfig_of(&self, user: &str) -> PathBuf {
        self.path(&format!("{user}.kubeconfig"))
    }

    async fn first_start_of_etcd(&mut self) -> Result<()> {
        for _ in 0..PORT_ATTEMPTS {
            let ports = Ports { client: port::free()?, peer: port::free()? };
            match self.start_etcd(ports).await {
                Ok(()) => {
                    self.etcd_ports = ports;
                    return Ok(());
                }
                Err(Failed::PortTaken) => {}
                Err(Failed::Otherwise(error)) => return Err(error),
            }
        }
        bail!("etcd found no free port in {PORT_ATTEMPTS} attempts\n{}", self.last_lines(LOG_LINES));
    }

    async fn first_start_of_apiserver(&mut self, credentials: &Credentials) -> Result<()> {
        for _ in 0..PORT_ATTEMPTS {
            let port = port::free()?;
            for user in [ADMIN, NOBODY, OPERATOR] {
                let path = self.kubeconfig_of(user);
                fs::write(&path, credentials.kubeconfig(user, port))
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
            match self.start_apiserver(port).await {
                Ok(()) => {
                    self.port = port;
                    return Ok(());
                }
                Err(Failed::PortTaken) => {}
                Err(Failed::Otherwise(error)) => return Err(error),
            }
        }
        bail!("kube-apiserver found no free port in {PORT_ATTEMPTS} attempts\n{}", self.last_lines(LOG_LINES));
    }

    async fn start_etcd(&self, ports: Ports) -> Result<(), Failed> {
        let client = format!("http://127.0.0.1:{}", ports.client);
        let peer = format!("http://127.0.0.1:{}", ports.peer);
        let mut command = Command::new(self.assets.etcd());
        command
            .arg("--data-dir")
            .arg(self.path(ETCD_DATA))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            // The data is not needed after the test.
            .arg("--unsafe-no-fsync");
        let process = self.started("etcd", command)?;
        self.servers().etcd = Some(process);

        let url = client.parse().map_err(|error| Failed::Otherwise(anyhow::Error::new(error)))?;
        let health = Client::try_from(kube::Config::new(url)).map_err(|error| Failed::Otherwise(error.into()))?;
        self.until_ready("etcd", &health, "/health", |servers| servers.etcd.as_mut()).await
    }

    async fn start_apiserver(&self, port: u16) -> Result<(), Failed> {
        let mut command = Command::new(self.assets.kube_apiserver());
        command
            .arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_ports.client))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={port}"))
            // With a loopback address to bind it would look for a default route.
            .arg("--advertise-address=127.0.0.1")
            // A loopback address cannot stand in Endpoints.
            .arg("--endpoint-reconciler-type=none")
            .arg(format!("--tls-cert-file={}", self.path(credentials::SERVING_CERT).display()))
            .arg(format!("--tls-private-key-file={}", self.path(credentials::SERVING_KEY).display()))
            // It reads these files again when they change.
            .arg(format!(
                "--tls-sni-cert-key={},{}:{}",
                self.path(credentials::ROTATED_CERT).display(),
                self.path(credentials::ROTATED_KEY).display(),
                credentials::ROTATED
            ))
            .arg(format!("--client-ca-file={}", self.path(credentials::CLIENT_CA).display()))
            .arg(format!("--cert-dir={}", self.path("certificates").display()))
            .arg("--service-cluster-ip-range=10.0.0.0/24")
            .arg("--allow-privileged=true")
            .arg("--authorization-mode=RBAC")
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg(format!("--service-account-issuer=https://127.0.0.1:{port}/"))
            .arg(format!(
                "--service-account-signing-key-file={}",
                self.path(credentials::SERVICE_ACCOUNT_KEY).display()
            ))
            .arg(format!("--service-account-key-file={}", self.path(credentials::SERVICE_ACCOUNT_PUBLIC_KEY).display()))
            .arg(format!("--token-auth-file={}", self.path(credentials::TOKENS).display()))
            .arg(format!("--audit-policy-file={}", self.path(AUDIT_POLICY).display()))
            .arg(format!("--audit-log-path={}", self.path(AUDIT).display()))
            // In megabytes. Another file would be begun at 100 by default.
            .arg("--audit-log-maxsize=100000");
        let process = self.started("kube-apiserver", command)?;
        self.servers().apiserver = Some(process);

        let client = self.client().await.map_err(Failed::Otherwise)?;
        self.until_ready("kube-apiserver", &client, "/readyz", |servers| servers.apiserver.as_mut()).await
    }

    /// Nothing waits for it: it finds the API server by itself, now and after a restart.
    fn start_controller_manager(&self) -> Result<()> {
        let mut command = Command::new(self.assets.kube_controller_manager());
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--leader-elect=false")
            .arg("--controllers=garbage-collector-controller,namespace-controller")
            .arg("--secure-port=0")
            // With the defaults (20 a second) the garbage collector takes minutes for 3,000 objects.
            .args(["--kube-api-qps=2000", "--kube-api-burst=4000", "--concurrent-gc-syncs=20"]);
        let log = self.log("kube-controller-manager");
        self.servers().controller_manager = Some(Process::start("kube-controller-manager", command, &log)?);
        Ok(())
    }

    fn started(&self, name: &str, command: Command) -> Result<Process, Failed> {
        let log = self.log(name);
        // Without this, lines of the server's earlier run would be taken for those of this one.
        if log.exists() {
            fs::rename(&log, log.with_extension("earlier.log")).map_err(|error| Failed::Otherwise(error.into()))?;
        }
        Process::start(name, command, &log).map_err(Failed::Otherwise)
    }

    async fn until_ready(
        &self,
        name: &str,
        client: &Client,
        path: &str,
        process: impl Fn(&mut Servers) -> Option<&mut Process>,
    ) -> Result<(), Failed> {
        let deadline = Instant::now() + READY;
        loop {
            let request = http_get(path);
            let answer = tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await;
            if matches!(answer, Ok(Ok(_))) {
                return Ok(());
            }
            let exited = process(&mut self.servers()).and_then(Process::exited);
            if exited.is_none() && Instant::now() < deadline {
                tokio::time::sleep(POLL).await;
                continue;
            }
            let lines = process::last_lines(name, &self.log(name), LOG_LINES);
            if lines.contains("address already in use") {
                return Err(Failed::PortTaken);
            }
            let what = match exited {
                Some(status) => format!("{name} ended before it was ready ({status})"),
                None => format!("{name} is not ready after {} s", READY.as_secs()),
            };
            return Err(Failed::Otherwise(anyhow::anyhow!("{what}\n{lines}")));
        }
    }
}

impl Failed {
    fn into_error(self) -> anyhow::Error {
        match self {
            Self::PortTaken => {
                anyhow::anyhow!("another process took the server's port while it was down")
            }
            Self::Otherwise(error) => error,
        }
    }
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).expect("a constant path makes a request")
}
