//! A real Kubernetes API for tests: etcd, kube-apiserver and kube-controller-manager on this machine.
//!
//! [`assets`] finds the servers' binaries, or builds them once with Go. [`Cluster`] starts them on free ports, stops
//! them when dropped, and can kill and restart them in between, and take their data back. [`process`] is what keeps a child process from outliving
//! the test that started it, and its last log lines at hand; it serves for any other program under test as well.
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
mod cluster;
mod credentials;
mod etcd;
mod go;
pub mod port;
pub mod process;

pub use cluster::{Cluster, Versions};
pub use credentials::OPERATOR;
