//! From a kubeconfig, or from inside a pod, to a client.

use std::{path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderValue, header};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::runtime::Handle;

use super::{Cluster, RequestObserver};

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
    /// The named file is missing or is no kubeconfig.
    #[error("cannot use kubeconfig {path}", path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error("no API server is configured: give --kubeconfig, set KUBECONFIG, or run in a pod with a service account")]
    Infer(#[source] kube::config::InferConfigError),
    /// The configuration does not give a client: certificates, keys, an auth plugin.
    #[error("cannot make a client for {url}")]
    Client {
        /// The API server's address.
        url: String,
        /// What is wrong.
        #[source]
        source: Box<kube::Error>,
    },
}

/// What the server's audit log and its priorities know the host by.
const USER_AGENT: &str = concat!("pilothouse/", env!("CARGO_PKG_VERSION"));

/// Makes a client. Sends nothing: an unreachable server shows at the first request.
pub async fn connect(options: &ConnectOptions, observer: Arc<dyn RequestObserver>) -> Result<Cluster, ConnectError> {
    let select = KubeConfigOptions { context: options.context.clone(), ..Default::default() };
    let mut config = match &options.kubeconfig {
        Some(path) => {
            let in_file = |source| ConnectError::Kubeconfig { path: path.clone(), source };
            let file = Kubeconfig::read_from(path).map_err(in_file)?;
            kube::Config::from_custom_kubeconfig(file, &select).await.map_err(in_file)?
        }
        None if options.context.is_some() => kube::Config::from_kubeconfig(&select)
            .await
            .map_err(|source| ConnectError::Kubeconfig { path: "of the environment".into(), source })?,
        None => kube::Config::infer().await.map_err(ConnectError::Infer)?,
    };
    config.headers.push((header::USER_AGENT, HeaderValue::from_static(USER_AGENT)));
    // Retries belong to the reflector and to the queue, which know how long the cause lasts.
    config.default_retry = false;
    // 30 s is kube's default for all stages of a connection together; a server on the same network answers in one.
    config.connect_timeout = Some(Duration::from_secs(10));
    let url = config.cluster_url.to_string();
    let host = config.cluster_url.authority().map_or_else(String::new, ToString::to_string);
    let client =
        kube::Client::try_from(config).map_err(|source| ConnectError::Client { url, source: Box::new(source) })?;
    Ok(Cluster::new(client, &host, Handle::current(), observer))
}
