//! `pilothouse dev`: an embedded API server, plugins with all permissions that they ask for, and a line for each event.

use std::{
    convert::Infallible,
    fmt::Write as _,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, ensure};
use pilothouse_core::key::TypeMeta;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    apiserver::Embedded,
    config::{self, CacheArgs},
    controllers::StandIns,
    logging,
    manifests::Manifests,
    project::{Profile, Project},
    rebuild::{Build, Builder},
    run::{ensure_directory, stop_signal},
    webhooks,
};
use crate::{
    app::{Endpoints, Host, HostView, Options},
    cluster::{self, Cluster, ConnectOptions},
    plugin::{Found, Mode},
};

/// Build and run plugins against an embedded API server, with no cluster
///
/// Builds the project, starts the API server, applies the manifests, and runs the plugins with all permissions that
/// they ask for. Shows what changed, which plugin was called, what it wrote, and how long each took. At each change of
/// a source, it builds the project again, and reloads the plugin.
///
/// The API server runs no controllers except garbage collection. With --controllers, Deployments get Pods, and Pods
/// become ready.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse dev
  pilothouse dev operators/my-site --manifests operators/my-site/examples --kubeconfig-out dev.kubeconfig
  pilothouse dev --controllers
  pilothouse dev --plugins target/plugins --manifests plugins/myapple/examples
  pilothouse dev --plugins target/plugins --build 'make plugins' --watch plugins")]
pub(super) struct Args {
    /// The project to build and run [default: the current folder, unless --plugins is given]
    #[arg(value_name = "PROJECT", conflicts_with = "plugins")]
    pub(super) project: Option<PathBuf>,
    /// A directory of plugins, in place of a project
    #[arg(long, value_name = "DIR")]
    pub(super) plugins: Option<PathBuf>,
    /// The command that builds the plugins of --plugins: run at the start, and at each change below --watch
    #[arg(long, value_name = "COMMAND", requires = "plugins")]
    pub(super) build: Option<String>,
    /// A file or folder of sources; may be given several times [default: the current folder]
    #[arg(long, value_name = "PATH", requires = "build")]
    pub(super) watch: Vec<PathBuf>,
    /// Manifests to apply at the start; may be given several times [default: PROJECT/examples, if it exists]
    ///
    /// A file of YAML or JSON, a folder with all that is below it, a kustomization, or `-` for standard input. Objects
    /// may come in any order.
    #[arg(long, value_name = "PATH")]
    pub(super) manifests: Vec<PathBuf>,
    /// Run controllers for Deployments and ReplicaSets, and say that Pods are ready, as there is no kubelet
    ///
    /// They are the plugins deployment.wasm and kubelet-stand-in.wasm of Pilothouse, in DIR [default: beside this
    /// program, or where `make plugins` puts them]. They are enabled whatever their settings say, and replace the
    /// plugins of the same names.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    pub(super) controllers: Option<Option<PathBuf>>,
    #[command(flatten)]
    pub(super) cache: CacheArgs,
    /// The API server's port on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) port: u16,
    /// Where to write the kubeconfig [default: a file in a new directory below the temporary one]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig_out: Option<PathBuf>,
    /// Where metrics, /debug and probes are served, plain and to everybody; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(super) metrics_address: SocketAddr,
    /// Which log lines are shown among the events, such as `debug`
    #[arg(long, value_name = "FILTER", env = "PILOTHOUSE_LOG", default_value = "warn,pilothouse=info")]
    pub(super) log: String,
}

/// Time to wait until no plugin has work, before the hints are printed. Some plugins never stop.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// Time that calls in flight have to finish at the end.
const GRACE: Duration = Duration::from_secs(30);

pub(super) fn main(args: Args) -> anyhow::Result<()> {
    let (plugins, build) = args.plugins()?;
    let stand_ins = args.controllers.as_ref().map(|named| StandIns::read(named.as_deref())).transpose()?;
    logging::start_feed(&args.log)?;
    let manifests = Manifests::read(&args.manifests())?;
    super::block_on(dev(args, plugins, build, stand_ins, manifests))
}

impl Args {
    /// Returns the directory of plugins, and what is built into it.
    fn plugins(&self) -> anyhow::Result<(PathBuf, Option<Build>)> {
        let Some(plugins) = &self.plugins else {
            let project = Project::open(&self.project_dir())?;
            return Ok((project.output(Profile::Debug), Some(Build::Project(project))));
        };
        let Some(command) = self.build.clone() else {
            ensure_directory(plugins)?;
            return Ok((plugins.clone(), None));
        };
        let sources = if self.watch.is_empty() { vec![PathBuf::from(".")] } else { self.watch.clone() };
        for source in &sources {
            ensure!(source.exists(), "cannot watch {}: it does not exist", source.display());
        }
        Ok((plugins.clone(), Some(Build::Shell { command, sources })))
    }

    fn project_dir(&self) -> PathBuf {
        self.project.clone().unwrap_or_else(|| ".".into())
    }

    /// Returns the paths of the manifests to apply.
    fn manifests(&self) -> Vec<PathBuf> {
        let examples = self.project_dir().join("examples");
        let is_default = self.manifests.is_empty() && self.plugins.is_none() && examples.is_dir();
        if is_default { vec![examples] } else { self.manifests.clone() }
    }
}

async fn dev(
    args: Args,
    plugins: PathBuf,
    build: Option<Build>,
    stand_ins: Option<StandIns>,
    manifests: Manifests,
) -> anyhow::Result<()> {
    let mut signal = pin!(stop_signal()?);
    let mut builder = build.map(Builder::new);
    if let Some(builder) = &mut builder {
        tokio::select! {
            () = signal.as_mut() => return Ok(()),
            () = builder.first() => {}
        }
        ensure_directory(&plugins)?;
    }
    let embedded = Embedded::bind(args.port, args.kubeconfig_out.clone()).await?;
    let kubeconfig = embedded.kubeconfig.clone();
    let server = embedded.listener.local_addr()?;
    let listener = TcpListener::bind(args.metrics_address).with_context(|| {
        format!("cannot listen on {}: choose another address with --metrics-address", args.metrics_address)
    })?;
    let address = listener.local_addr()?;
    println!("API server   http://{server}, in memory");
    println!("kubeconfig   {}", kubeconfig.display());
    println!("status       http://{address}/readyz, metrics http://{address}/metrics");
    println!("plugins      {}", plugins.display());
    if let Some(stand_ins) = &stand_ins {
        println!("controllers  {}", stand_ins.directory.display());
        for file in stand_ins.replaced(&plugins) {
            println!("{} is not used: --controllers takes the plugin's place", file.display());
        }
    }
    println!();
    let stand_ins = stand_ins.map(|stand_ins| stand_ins.plugins).unwrap_or_default();

    // The host ends before the API server, because it finishes its calls there.
    let (stop, host_ended) = (CancellationToken::new(), CancellationToken::new());
    let serving = tokio::spawn(embedded.serve(host_ended.clone().cancelled_owned()));

    let connect = ConnectOptions { kubeconfig: Some(kubeconfig.clone()), context: None };
    let cluster = cluster::connect(&connect).await?;
    let cache = args.cache.cache_dir.unwrap_or_else(config::cache_dir);
    let options = Options {
        plugins: plugins.clone(),
        stand_ins: stand_ins.clone(),
        cache: Some(cache),
        mode: Mode::Dev,
        grace_period: GRACE,
        webhooks: Some(webhooks::local()?),
        election: None,
        // No plugin has an account here.
        check_accounts_every: Duration::from_secs(60),
    };
    let host = Host::new(options, &cluster)?;
    let view = host.view();
    let running = host.run(Endpoints::plain(listener), stop.clone().cancelled_owned());
    let reload = match &builder {
        Some(_) => "Save a source and its plugin is built and reloaded.".to_owned(),
        None => format!("Replace a file in {} and its plugin is reloaded.", plugins.display()),
    };
    let show = async {
        manifests.apply(&cluster, |line| println!("{line}")).await;
        // The effects of the manifests are shown before the hints.
        settled(&view).await;
        print!("{}", invitation(&kubeconfig, &reload, &resources(&view, &cluster, &stand_ins)));
        std::future::pending::<Infallible>().await
    };
    let follow = async {
        match builder {
            Some(builder) => builder.follow().await,
            None => std::future::pending().await,
        }
    };
    let play = async {
        tokio::select! {
            () = signal => anyhow::Ok(()),
            never = show => match never {},
            never = follow => match never {},
        }
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
fn invitation(kubeconfig: &Path, reload: &str, resources: &[Resources]) -> String {
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
    let _ = writeln!(text, "\n{reload} Events are shown here; stop with ctrl-c.\n");
    text
}

/// A controller's kinds as kubectl names them.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Resources {
    reconciled: String,
    owned: Vec<String>,
}

/// Returns the resources that are served, without those of the stand-ins. The name has the group, unless it is the
/// core's.
fn resources(host: &HostView, cluster: &Cluster, stand_ins: &[Arc<Found>]) -> Vec<Resources> {
    let name = |of: &TypeMeta| {
        let plural = &cluster.known(of)?.plural;
        Some(if of.group().is_empty() { plural.clone() } else { format!("{plural}.{}", of.group()) })
    };
    let mut resources: Vec<_> = host
        .kinds()
        .iter()
        .filter(|kinds| stand_ins.iter().all(|plugin| plugin.name != kinds.plugin))
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
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn the_invitation_names_what_the_plugins_work_on() {
        let resources =
            [Resources { reconciled: "myapples.stable.example.com".into(), owned: vec!["configmaps".into()] }];
        insta::assert_snapshot!(invitation(Path::new("dev.kubeconfig"), "Save a source.", &resources), @r"

        Ready. In another terminal, with any kubectl:

          export KUBECONFIG=dev.kubeconfig
          kubectl get myapples.stable.example.com,configmaps -A
          kubectl edit myapples.stable.example.com
          kubectl delete configmaps --all   # they come back
          kubectl delete myapples.stable.example.com --all

        Save a source. Events are shown here; stop with ctrl-c.

        ");
    }

    fn args(words: &[&str]) -> anyhow::Result<Args> {
        let words = ["pilothouse", "dev"].into_iter().chain(words.iter().copied());
        match Cli::try_parse_from(words)?.command {
            Command::Dev(args) => Ok(args),
            _ => anyhow::bail!("not dev"),
        }
    }

    #[test]
    fn a_project_is_built_into_a_folder_of_its_own_and_its_examples_are_applied() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let project = dir.path().display().to_string();
        assert!(args(&[&project])?.plugins().is_err());
        std::fs::write(dir.path().join("Cargo.toml"), "")?;
        let of_project = args(&[&project])?;
        let (plugins, build) = of_project.plugins()?;
        assert_eq!(plugins, dir.path().join("build/debug"));
        assert!(matches!(build, Some(Build::Project(_))));
        assert!(of_project.manifests().is_empty());
        std::fs::create_dir(dir.path().join("examples"))?;
        assert_eq!(of_project.manifests(), [dir.path().join("examples")]);
        assert_eq!(
            args(&[&project, "--manifests", "a", "--manifests", "b"])?.manifests(),
            ["a", "b"].map(PathBuf::from)
        );
        Ok(())
    }

    #[test]
    fn a_directory_of_plugins_must_exist_unless_a_command_makes_it() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let missing = dir.path().join("none").display().to_string();
        assert!(args(&["--plugins", &missing])?.plugins().is_err());
        let (_, build) = args(&["--plugins", &missing, "--build", "make plugins"])?.plugins()?;
        assert!(matches!(build, Some(Build::Shell { sources, .. }) if sources == [PathBuf::from(".")]));
        assert!(args(&["--plugins", &missing, "--build", "make", "--watch", &missing])?.plugins().is_err());
        assert!(args(&["--watch", "src"]).is_err() && args(&[".", "--plugins", "x"]).is_err());
        Ok(())
    }
}
