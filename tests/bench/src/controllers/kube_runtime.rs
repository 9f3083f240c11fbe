//! kube-runtime's controller as its documentation shows it: typed objects, the default watch, no debouncing.

use std::{
    convert::Infallible,
    sync::{Arc, mpsc::Sender},
};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt};
use kube_runtime::{
    controller::{Action, Controller},
    watcher,
};
use tokio::runtime::Runtime;

use super::{MARK, Seen, now, obey};

pub(crate) const NAME: &str = "controller-kube-runtime";

/// Runs the controller until its input ends.
pub(crate) fn run() -> Result<()> {
    let runtime = Runtime::new().context("cannot start a runtime")?;
    obey(|url, seen| {
        let _within = runtime.enter();
        start(url, seen)
    })
}

/// Starts the controller. Later errors go to standard error.
fn start(url: &str, seen: Sender<Seen>) -> Result<()> {
    let config = kube::Config::new(url.parse().context("not a server's address")?);
    let client = Client::try_from(config).context("cannot make a client")?;
    let controller = Controller::new(Api::<ConfigMap>::all(client), watcher::Config::default());
    let reconcile = async |map: Arc<ConfigMap>, seen: Arc<Sender<Seen>>| {
        let at = now();
        // Without a receiver the process is about to end.
        let _ended = seen.send((at, map.annotations().get(MARK).cloned().unwrap_or_default()));
        Ok::<_, Infallible>(Action::await_change())
    };
    let failed = |_: Arc<ConfigMap>, error: &Infallible, _: Arc<Sender<Seen>>| match *error {};
    tokio::spawn(controller.run(reconcile, failed, Arc::new(seen)).for_each(async |ended| {
        if let Err(error) = ended {
            eprintln!("kube-runtime: {error:?}");
        }
    }));
    Ok(())
}
