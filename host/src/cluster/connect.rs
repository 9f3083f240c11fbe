//! Makes the client of one API server.

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderValue, header};
use tokio::runtime::Handle;

use super::{
    Cluster, RequestObserver,
    credentials::{Credentials, Made},
    http2,
    kubeconfig::{self, Settings},
};

/// Which API server, and as whom.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// A kubeconfig file. None: `$KUBECONFIG`, then `~/.kube/config`, then the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig. None: its current one.
    pub context: Option<String>,
}

/// Why there is no client. Nothing was sent yet.
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
    /// A context is asked for, and there is no kubeconfig.
    #[error("--context needs a kubeconfig, and there is none: give --kubeconfig FILE or set KUBECONFIG")]
    NoKubeconfig,
    /// The kubeconfig does not say which context applies.
    #[error(
        "the kubeconfig has no current context: run `kubectl config use-context NAME` or give --context NAME (known: {known})",
        known = listed(known)
    )]
    NoContext {
        /// The contexts that it has.
        known: Vec<String>,
    },
    /// The kubeconfig does not have the context.
    #[error("the kubeconfig has no context {context} (known: {known})", known = listed(known))]
    UnknownContext {
        /// The context that was asked for.
        context: String,
        /// The contexts that it has.
        known: Vec<String>,
    },
    /// The context's cluster is missing.
    #[error("context {context} names cluster {cluster}, which the kubeconfig does not have")]
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
    /// The server's address is not one.
    #[error("cluster {cluster} has server \"{server}\", which is not an address like https://HOST:PORT")]
    Server {
        /// The cluster.
        cluster: String,
        /// What it says.
        server: String,
    },
    /// Certificates are to be checked and not to be checked.
    #[error("cluster {cluster} has both insecure-skip-tls-verify and a certificate authority: remove one of them")]
    InsecureWithRoots {
        /// The cluster.
        cluster: String,
    },
    /// A proxy's address is not one.
    #[error(
        "{from} is \"{url}\", which is not an address like http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT"
    )]
    Proxy {
        /// What it says.
        url: String,
        /// The variable or member.
        from: String,
    },
    /// A file that the settings name cannot be read.
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
    #[error("{place} of the kubeconfig is not base64")]
    Base64 {
        /// The member.
        place: String,
        /// What is wrong with it.
        #[source]
        source: base64::DecodeError,
    },
    /// No certificate is where one should be.
    #[error("{place} holds no certificate in PEM")]
    NoCertificate {
        /// The file or member.
        place: String,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error("no API server is configured: give --kubeconfig, set KUBECONFIG, or run in a pod with a service account")]
    InPod(#[source] kube::config::InClusterError),
    /// The configuration does not give a client: certificates, keys, an exec plugin.
    #[error("cannot make a client for {url}")]
    Client {
        /// The API server's address.
        url: String,
        /// What is wrong.
        #[source]
        source: Box<kube::Error>,
    },
    /// The task that makes the client ended early.
    #[error("the client was not made: {0}")]
    GivenUp(String),
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// What the server's audit log and its priorities know the host by.
const USER_AGENT: &str = concat!("pilothouse/", env!("CARGO_PKG_VERSION"));

/// Makes a client. Sends nothing: an unreachable server shows at the first request. The client's credentials are renewed from the same
/// files and exec plugins when they end.
///
/// # Errors
/// What is missing or wrong in the kubeconfig, the environment or the pod's service account.
pub async fn connect(options: &ConnectOptions, observer: Arc<dyn RequestObserver>) -> Result<Cluster, ConnectError> {
    let find = {
        let options = options.clone();
        move || kubeconfig::load(&options, &|name| env::var_os(name))
    };
    let url = find()?.config.cluster_url;
    let host = url.authority().map_or_else(String::new, ToString::to_string);
    // The server stays the same while the host runs: caches are about this one.
    let make = move || find().and_then(|settings| client(settings, url.clone()));
    let credentials = Credentials::renewing(Arc::new(make)).await?;
    Ok(Cluster::with(credentials, &host, Handle::current(), observer))
}

/// Makes a client of settings, for the server at `url`.
pub(super) fn client(settings: Settings, url: http::Uri) -> Result<Made, ConnectError> {
    let Settings { mut config, files } = settings;
    config.cluster_url = url;
    config.headers.push((header::USER_AGENT, HeaderValue::from_static(USER_AGENT)));
    // Retries belong to the reflector and to the queue, which know how long the cause lasts.
    config.default_retry = false;
    // 30 s is kube's default for all stages of a connection together; a server on the same network answers in one.
    config.connect_timeout = Some(Duration::from_secs(10));
    let url = config.cluster_url.to_string();
    let no_client = |source| ConnectError::Client { url: url.clone(), source: Box::new(source) };
    let watches = http2::client(&config).map_err(no_client)?;
    let client = kube::Client::try_from(config).map_err(no_client)?;
    Ok(Made { client, watches, files })
}
