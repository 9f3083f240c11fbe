//! Creates the client of one API server.

use std::{
    env,
    path::PathBuf,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use http::{HeaderValue, header};
use tokio::runtime::Handle;

use super::{
    Cluster, changes,
    credentials::{Credentials, NewClient},
    http2,
    kubeconfig::{self, Settings},
    metrics::Traffic,
};

/// Selects the API server and the credentials.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// A kubeconfig file. `None`: `$KUBECONFIG`, then `~/.kube/config`, then the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig. `None`: its current one.
    pub context: Option<String>,
}

/// Why no client can be created. Nothing has been sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A kubeconfig cannot be read.
    #[error("cannot use kubeconfig {path}", path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// A context was given, but there is no kubeconfig.
    #[error("--context needs a kubeconfig, but there is none: give --kubeconfig FILE or set KUBECONFIG")]
    NoKubeconfig,
    /// The kubeconfig has no current context.
    #[error(
        "the kubeconfig has no current context: run `kubectl config use-context NAME` or give --context NAME (known: {known})",
        known = listed(known)
    )]
    NoContext {
        /// The contexts of the kubeconfig.
        known: Vec<String>,
    },
    /// The kubeconfig does not have the context.
    #[error("the kubeconfig has no context {context} (known: {known})", known = listed(known))]
    UnknownContext {
        /// The given context.
        context: String,
        /// The contexts of the kubeconfig.
        known: Vec<String>,
    },
    /// The context's cluster is missing.
    #[error("context {context} names cluster {cluster}, which is not in the kubeconfig")]
    UnknownCluster {
        /// The context.
        context: String,
        /// The cluster that it names.
        cluster: String,
    },
    /// The cluster's description cannot be used.
    #[error("cannot use cluster {cluster} of the kubeconfig")]
    Cluster {
        /// The cluster.
        cluster: String,
        /// What is wrong with it.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// The server's address is invalid.
    #[error("cluster {cluster} has server \"{server}\", which is not an address like https://HOST:PORT")]
    Server {
        /// The cluster.
        cluster: String,
        /// The configured value.
        server: String,
    },
    /// The settings both check certificates and skip the check.
    #[error("cluster {cluster} has both insecure-skip-tls-verify and a certificate authority: remove one of them")]
    InsecureWithRoots {
        /// The cluster.
        cluster: String,
    },
    /// A proxy's address is invalid.
    #[error(
        "{from} is \"{url}\", which is not an address like http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT"
    )]
    Proxy {
        /// The configured value.
        url: String,
        /// The variable or member that has it.
        from: String,
    },
    /// A file named by the settings cannot be read.
    #[error("cannot read {what} from {path}", path = path.display())]
    File {
        /// What is in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Data in the kubeconfig is not base64.
    #[error("{place} of the kubeconfig is not valid base64")]
    Base64 {
        /// The member.
        place: String,
        /// What is wrong with it.
        #[source]
        source: base64::DecodeError,
    },
    /// The certificate authority has no certificate.
    #[error("{place} has no certificate in PEM format")]
    NoCertificate {
        /// The file or member.
        place: String,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error("no API server is configured: give --kubeconfig, set KUBECONFIG, or run in a pod with a service account")]
    InPod(#[source] kube::config::InClusterError),
    /// No client can be created from the certificates, keys or exec plugin.
    #[error("cannot create a client for {url}")]
    Client {
        /// The API server's address.
        url: String,
        /// What is wrong.
        #[source]
        source: Box<kube::Error>,
    },
    /// The task that creates the client ended early.
    #[error("the client was not created: {0}")]
    GivenUp(String),
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Identifies the host in the server's audit log.
const USER_AGENT: &str = concat!("pilothouse/", env!("CARGO_PKG_VERSION"));

/// Creates a client without sending anything, so an unreachable server fails the first request. When the credentials
/// expire, they are renewed from the same files and exec plugins.
///
/// # Errors
/// Something is missing or wrong in the kubeconfig, the environment or the pod's service account.
pub async fn connect(options: &ConnectOptions) -> Result<Cluster, ConnectError> {
    let find = {
        let options = options.clone();
        move || kubeconfig::load(&options, &|name| env::var_os(name))
    };
    let url = find()?.config.cluster_url;
    let host = url.authority().map_or_else(String::new, ToString::to_string);
    // The server stays the same while the host runs, because caches hold its objects.
    let traffic = Arc::<Traffic>::default();
    let connections = traffic.watch_connections();
    let make = move || find().and_then(|settings| client(settings, url.clone(), &connections));
    let credentials = Credentials::renewing(Arc::new(make)).await?;
    Ok(Cluster::with(credentials, &host, Handle::current(), traffic))
}

/// Creates a client from settings for the server at `url`. Counts connections that carry watches in `connections`.
pub(super) fn client(
    settings: Settings,
    url: http::Uri,
    connections: &Arc<AtomicUsize>,
) -> Result<NewClient, ConnectError> {
    let Settings { mut config, files } = settings;
    config.cluster_url = url;
    config.headers.push((header::USER_AGENT, HeaderValue::from_static(USER_AGENT)));
    // The reflector and the queue retry, because they know how long a cause lasts.
    config.default_retry = false;
    // kube's default of 30 s covers all stages of a connection. A server on the same network connects within one
    // second.
    config.connect_timeout = Some(Duration::from_secs(10));
    let url = config.cluster_url.to_string();
    let no_client = |source| ConnectError::Client { url: url.clone(), source: Box::new(source) };
    // Watches never share a pool with other requests: a connection is read by the thread that has opened it, and those
    // of watches belong to the thread that reads their events.
    let watches = match http2::client(&config, connections).map_err(no_client)? {
        Some(watches) => watches,
        None => kube::Client::try_from(config.clone()).map_err(no_client)?,
    };
    let changes = changes::client(&config).map_err(no_client)?;
    let mut bare = config.clone();
    bare.auth_info = Default::default();
    let client = kube::Client::try_from(config).map_err(no_client)?;
    Ok(NewClient { client, watches, changes, bare, files })
}
