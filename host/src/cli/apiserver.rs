//! `pilothouse apiserver`: the embedded API server alone.

use std::{
    fs::{OpenOptions, Permissions},
    io::{self, Write as _},
    net::Ipv4Addr,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use pilothouse_apiserver::Server;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::run::stop_signal;

/// Run the embedded API server alone
///
/// It is for tests and development: kubectl and client libraries work with it, everything is in memory, and there is no
/// authorization. /debug/faults injects the faults of real clusters: watches that are cut, held or silent, 410, 429, 5xx,
/// resets, hangs, stale reads. /debug/snapshots restores an earlier state.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse apiserver --port 8001 --kubeconfig-out dev.kubeconfig
  kubectl --kubeconfig dev.kubeconfig get namespaces

Faults on demand:
  curl http://127.0.0.1:8001/debug/faults -d '{\"on\": {\"resource\": \"configmaps\", \"verbs\": [\"list\"]},
    \"fault\": {\"status\": {\"code\": 429, \"retryAfterSeconds\": 2}}, \"count\": 3}'
  curl http://127.0.0.1:8001/debug/faults
  curl http://127.0.0.1:8001/debug/faults/cut -d '{\"on\": {\"resource\": \"deployments.apps\"}}'
  curl http://127.0.0.1:8001/debug/faults -X DELETE")]
pub(super) struct Args {
    /// The port on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) port: u16,
    /// Where to write the kubeconfig [default: a file in a new directory below the temporary one]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig_out: Option<PathBuf>,
}

pub(super) fn main(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let stop = stop_signal()?;
        let embedded = Embedded::bind(args.port, args.kubeconfig_out.clone()).await?;
        println!("API server at http://{}; stop with ctrl-c", embedded.listener.local_addr()?);
        println!("  export KUBECONFIG={}", embedded.kubeconfig.display());
        println!("  kubectl get namespaces");
        embedded.serve(stop).await
    })
}

/// An embedded API server that is bound, and does not serve yet.
pub(super) struct Embedded {
    pub(super) listener: TcpListener,
    pub(super) server: Arc<Server>,
    pub(super) kubeconfig: PathBuf,
    /// Holds the kubeconfig if no path was given for it. Deleted at the end.
    _directory: Option<TempDir>,
}

impl Embedded {
    /// Binds the port, and writes a kubeconfig for it.
    pub(super) async fn bind(port: u16, kubeconfig: Option<PathBuf>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.with_context(|| {
            format!("cannot listen on port {port} of 127.0.0.1: choose another with --port, or 0 for a free one")
        })?;
        let address = listener.local_addr().context("the listener has no address")?;
        let text = Server::kubeconfig(address);
        let (kubeconfig, directory) = match kubeconfig {
            Some(path) => {
                let cannot = || format!("cannot write the kubeconfig {}", path.display());
                std::fs::write(&path, text).with_context(cannot)?;
                (path, None)
            }
            None => {
                let dir = std::env::temp_dir();
                let cannot = || {
                    format!("cannot write a kubeconfig below {}: choose a file with --kubeconfig-out", dir.display())
                };
                let (path, directory) = private_file(&dir, &text).with_context(cannot)?;
                (path, Some(directory))
            }
        };
        Ok(Self { listener, server: Arc::new(Server::new()), kubeconfig, _directory: directory })
    }

    /// Serves until `stop` is ready.
    pub(super) async fn serve(self, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
        pilothouse_apiserver::serve(self.listener, stop, self.server).await.context("the API server ended")
    }
}

/// Writes a kubeconfig into a new directory below `dir`, which other users of the machine cannot enter.
///
/// kubectl runs commands that a kubeconfig names, and `dir` may be shared. So no other user may write the file, or create it first under
/// a predictable name.
fn private_file(dir: &Path, text: &str) -> io::Result<(PathBuf, TempDir)> {
    let own =
        tempfile::Builder::new().prefix("pilothouse-").permissions(Permissions::from_mode(0o700)).tempdir_in(dir)?;
    let path = own.path().join("kubeconfig");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(text.as_bytes())?;
    Ok((path, own))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_kubeconfig_in_a_shared_directory_is_private_and_deleted_at_the_end() -> io::Result<()> {
        let shared = tempfile::tempdir()?;
        let (path, directory) = private_file(shared.path(), "apiVersion: v1")?;
        let mode = |path: &Path| fs::metadata(path).map(|data| data.permissions().mode() & 0o777);
        assert_eq!((mode(&path)?, mode(directory.path())?), (0o600, 0o700));
        assert_eq!(fs::read_to_string(&path)?, "apiVersion: v1");
        let (other, _directory) = private_file(shared.path(), "")?;
        assert_ne!(path, other);
        drop(directory);
        assert!(!path.exists());
        Ok(())
    }
}
