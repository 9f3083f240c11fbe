//! `pilothouse dev`: an embedded API server, plugins with all permissions that they ask for, and a line for each event.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use anyhow::Context;
use pilothouse_core::key::TypeMeta;
use tokio::{net::TcpListener, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    apiserver::Embedded,
    config::{self, CacheArgs},
    logging,
    manifests::Manifests,
    run::stop_signal,
    webhooks,
};
use crate::{
    app::{Host, HostView, Options},
    cluster::{self, Cluster, ConnectOptions},
    plugin::Mode,
};

/// Run plugins against an embedded API server, with no cluster
///
/// Starts the API server, applies the manifests, and runs the plugins with all permissions that they ask for. Shows what
/// changed, which plugin was called, what it wrote, and how long each took.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse dev --plugins target/plugins --manifests plugins/myapple/examples
  pilothouse dev --plugins target/plugins --port 8001 --kubeconfig-out dev.kubeconfig")]
pub(super) struct Args {
    /// The directory of plugins
    #[arg(long, value_name = "DIR")]
    pub(super) plugins: PathBuf,
    /// A file or directory of YAML or JSON manifests to apply at the start, as `kubectl apply -f` does
    #[arg(long, value_name = "PATH")]
    pub(super) manifests: Option<PathBuf>,
    #[command(flatten)]
    pub(super) cache: CacheArgs,
    /// The API server's port on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) port: u16,
    /// Where to write the kubeconfig [default: a file in a new directory below the temporary one]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig_out: Option<PathBuf>,
    /// Where /healthz, /readyz and /metrics are served; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub(super) admin_address: SocketAddr,
    /// Which log lines are shown among the events, such as `debug`
    #[arg(long, value_name = "FILTER", env = "PILOTHOUSE_LOG", default_value = "warn,pilothouse=info")]
    pub(super) log: String,
}

/// Time to wait until no plugin has work, before the hints are printed. Some plugins never stop.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// Time that calls in flight have to finish at the end.
const GRACE: Duration = Duration::from_secs(30);

pub(super) fn main(args: Args) -> anyhow::Result<()> {
    logging::start_feed(&args.log)?;
    let manifests = match &args.manifests {
        Some(path) => Manifests::read(path)?,
        None => Manifests::default(),
    };
    super::block_on(dev(args, manifests))
}

async fn dev(args: Args, manifests: Manifests) -> anyhow::Result<()> {
    let mut signal = pin!(stop_signal()?);
    let embedded = Embedded::bind(args.port, args.kubeconfig_out.clone()).await?;
    let kubeconfig = embedded.kubeconfig.clone();
    let server = embedded.listener.local_addr()?;
    let admin = TcpListener::bind(args.admin_address).await.with_context(|| {
        format!("cannot listen on {}: choose another address with --admin-address", args.admin_address)
    })?;
    let admin_address = admin.local_addr()?;
    println!("API server   http://{server}, in memory");
    println!("kubeconfig   {}", kubeconfig.display());
    println!("status       http://{admin_address}/readyz, metrics http://{admin_address}/metrics");
    println!("plugins      {}\n", args.plugins.display());

    // The host ends before the API server, because it finishes its calls there.
    let (stop, host_ended) = (CancellationToken::new(), CancellationToken::new());
    let serving = tokio::spawn(embedded.serve(host_ended.clone().cancelled_owned()));

    let connect = ConnectOptions { kubeconfig: Some(kubeconfig.clone()), context: None };
    let cluster = cluster::connect(&connect).await?;
    let cache = args.cache.cache_dir.unwrap_or_else(config::cache_dir);
    let options = Options {
        plugins: args.plugins.clone(),
        cache: Some(cache),
        mode: Mode::Dev,
        grace_period: GRACE,
        webhooks: Some(webhooks::local()?),
    };
    let host = Host::new(options, &cluster)?;
    let view = host.view();
    let running = host.run(admin, stop.clone().cancelled_owned());
    let play = async {
        tokio::select! {
            () = signal.as_mut() => return anyhow::Ok(()),
            () = manifests.apply(&cluster, |line| println!("{line}")) => {}
        }
        tokio::select! {
            () = signal.as_mut() => return Ok(()),
            // The effects of the manifests are shown before the hints.
            () = settled(&view) => print!("{}", invitation(&kubeconfig, &args.plugins, &resources(&view, &cluster))),
        }
        signal.as_mut().await;
        Ok(())
    };
    let played = async {
        let played = play.await;
        stop.cancel();
        played
    };
    let (hosted, played) = tokio::join!(running, played);
    host_ended.cancel();
    serving.await.context("the API server's task ended")??;
    hosted.and(played)
}

/// Returns when the host has no work, or after [`SETTLED_WITHIN`].
async fn settled(host: &HostView) {
    let deadline = Instant::now() + SETTLED_WITHIN;
    let mut quiet = 0;
    // Writes return through the watch and wake keys again, so one idle moment does not count.
    while quiet < 5 && Instant::now() < deadline {
        quiet = if host.is_idle() { quiet + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
}

/// Returns hints of what to try.
fn invitation(kubeconfig: &Path, plugins: &Path, resources: &[Resources]) -> String {
    let mut text = String::from("\nReady. In another terminal, with any kubectl:\n\n");
    let _ = writeln!(text, "  export KUBECONFIG={}", kubeconfig.display());
    for Resources { reconciled, owned } in resources {
        let all: Vec<&str> = [reconciled].into_iter().chain(owned).map(String::as_str).collect();
        let _ = writeln!(text, "  kubectl get {} -A", all.join(","));
        let _ = writeln!(text, "  kubectl edit {reconciled}");
        if let Some(owned) = owned.first() {
            let _ = writeln!(text, "  kubectl delete {owned} --all   # they come back");
        }
        let _ = writeln!(text, "  kubectl delete {reconciled} --all");
    }
    let _ = writeln!(
        text,
        "\nReplace a file in {} and its plugin is reloaded. Events are shown here; stop with ctrl-c.\n",
        plugins.display()
    );
    text
}

/// A controller's kinds as kubectl names them.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Resources {
    reconciled: String,
    owned: Vec<String>,
}

/// Returns the resources that are served. The name has the group, unless it is the core's.
fn resources(host: &HostView, cluster: &Cluster) -> Vec<Resources> {
    let name = |of: &TypeMeta| {
        let plural = &cluster.known(of)?.plural;
        Some(if of.group().is_empty() { plural.clone() } else { format!("{plural}.{}", of.group()) })
    };
    let mut resources: Vec<_> = host
        .kinds()
        .iter()
        .filter_map(|kinds| {
            let owned = kinds.owns.iter().filter_map(name).collect();
            Some(Resources { reconciled: name(&kinds.reconciles)?, owned })
        })
        .collect();
    resources.sort();
    resources.dedup();
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_invitation_names_what_the_plugins_work_on() {
        let resources =
            [Resources { reconciled: "myapples.stable.example.com".into(), owned: vec!["configmaps".into()] }];
        insta::assert_snapshot!(invitation(Path::new("dev.kubeconfig"), Path::new("target/plugins"), &resources), @r"

        Ready. In another terminal, with any kubectl:

          export KUBECONFIG=dev.kubeconfig
          kubectl get myapples.stable.example.com,configmaps -A
          kubectl edit myapples.stable.example.com
          kubectl delete configmaps --all   # they come back
          kubectl delete myapples.stable.example.com --all

        Replace a file in target/plugins and its plugin is reloaded. Events are shown here; stop with ctrl-c.

        ");
    }
}
