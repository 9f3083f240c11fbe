//! A real Kubernetes API for tests: etcd, kube-apiserver and kube-controller-manager on this machine.
//!
//! - [`assets`] finds the servers' binaries, or builds them once with Go.
//! - [`Cluster`] starts the servers on free ports and stops them when dropped. It can kill, restart and restore them.
//! - [`audit`] reads who sent which request.
//! - [`process`] runs any program under test: it ends with the test, and its last log lines are at hand.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! let cluster = pilothouse_real::Cluster::start().await?;
//! let client = cluster.client().await?;
//! println!("kubectl --kubeconfig {} get namespaces", cluster.kubeconfig().display());
//! cluster.kill_apiserver();
//! cluster.restart_apiserver().await?;
//! # Ok(())
//! # }
//! ```

pub mod assets;
pub mod audit;
mod cluster;
mod credentials;
mod etcd;
mod go;
pub mod port;
pub mod process;

pub use cluster::{Cluster, Versions};
pub use credentials::{Certificate, OPERATOR, ROTATED};
