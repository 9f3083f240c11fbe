//! Arguments, and the help that explains them.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Parser, Subcommand, ValueEnum};

/// Runs Kubernetes operators as sandboxed WebAssembly plugins in one process.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Run(RunArgs),
    Dev(DevArgs),
    Apiserver(ApiserverArgs),
    Inspect(InspectArgs),
    #[command(hide = true)]
    Compile(CompileArgs),
}

/// Run plugins against a cluster
///
/// Each DIR/NAME.wasm is a plugin, and DIR/NAME.yaml says what it may do. Files that appear, change or vanish take effect without a
/// restart. SIGTERM finishes the calls in flight and exits 0.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse run --plugins /plugins
  pilothouse run --plugins ./plugins --kubeconfig ~/.kube/config --context staging --log-format text
  pilothouse run --config /etc/pilothouse/config.yaml")]
pub(super) struct RunArgs {
    /// The directory of plugins
    #[arg(long, value_name = "DIR")]
    pub(super) plugins: Option<PathBuf>,
    /// A YAML file with any of these settings; arguments win over it
    ///
    /// Its members: plugins, cacheDir, kubeconfig, context, adminAddress, gracePeriodSeconds, logFormat, log.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) cache: CacheArgs,
    /// A kubeconfig file [default: $KUBECONFIG, then ~/.kube/config, then the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Where /healthz, /readyz and /metrics are served [default: 0.0.0.0:8080]
    ///
    /// Port 0 takes a free one; the log says which.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) admin_address: Option<SocketAddr>,
    /// How long calls in flight may take to finish after SIGTERM [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub(super) grace_period: Option<u64>,
    #[command(flatten)]
    pub(super) log: LogArgs,
}

#[derive(Debug, Default, clap::Args)]
pub(super) struct CacheArgs {
    /// Where compiled plugins are kept [default: $XDG_CACHE_HOME/pilothouse, ~/.cache/pilothouse or /var/cache/pilothouse]
    ///
    /// The directory must belong to the host alone; it is made with mode 0700, and takes at most 1 GiB, or what the plugins in use
    /// take. In a pod, name a directory below the volume's.
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
}

#[derive(Debug, Default, clap::Args)]
pub(super) struct LogArgs {
    /// How log lines look [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(super) log_format: Option<LogFormat>,
    /// Which log lines are written, such as `debug` or `info,pilothouse::informer=debug` [default: info]
    #[arg(long, value_name = "FILTER", env = "PILOTHOUSE_LOG")]
    pub(super) log: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Run plugins against an API server of their own, with no cluster
///
/// Starts an embedded API server, applies the manifests, runs the plugins with the permissions they ask for, and shows what
/// happens: what changed, which plugin was called, what it wrote, how long each took.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse dev --plugins target/plugins --manifests plugins/myapple/examples
  pilothouse dev --plugins target/plugins --port 8001 --kubeconfig-out dev.kubeconfig")]
pub(super) struct DevArgs {
    /// The directory of plugins
    #[arg(long, value_name = "DIR")]
    pub(super) plugins: PathBuf,
    /// A file or directory of YAML or JSON manifests to apply at the start, as `kubectl apply -f` does
    #[arg(long, value_name = "PATH")]
    pub(super) manifests: Option<PathBuf>,
    #[command(flatten)]
    pub(super) cache: CacheArgs,
    /// The API server's port on 127.0.0.1; 0: a free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) port: u16,
    /// Where to write the kubeconfig [default: a file in a new directory below the temporary one]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig_out: Option<PathBuf>,
    /// Where /healthz, /readyz and /metrics are served; port 0: a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub(super) admin_address: SocketAddr,
    /// Which log lines are shown beside what happens, such as `debug`
    #[arg(long, value_name = "FILTER", env = "PILOTHOUSE_LOG", default_value = "warn,pilothouse=info")]
    pub(super) log: String,
}

/// Run the embedded API server alone
///
/// It speaks the Kubernetes API well enough for kubectl and client libraries, keeps everything in memory, and lets everyone do
/// everything: for tests and development. Under /debug/faults it makes go wrong what goes wrong in clusters: watches that are
/// cut, held or silent, 410, 429, 5xx, resets, hangs, stale reads; under /debug/snapshots it goes back to an earlier state.
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
pub(super) struct ApiserverArgs {
    /// The port on 127.0.0.1; 0: a free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) port: u16,
    /// Where to write the kubeconfig [default: a file in a new directory below the temporary one]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig_out: Option<PathBuf>,
}

/// Show what a plugin is and asks for
///
/// Loads and describes it in the sandbox as the host would, and prints its manifest, its imports, its size, and the permissions it
/// asks for in the form in which the administrator's file grants them.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse inspect target/plugins/myapple.wasm
  pilothouse inspect target/plugins/myapple.wasm --output json | jq .permissions")]
pub(super) struct InspectArgs {
    /// The plugin: a component, or a core module that wit-bindgen made
    #[arg(value_name = "PLUGIN.wasm")]
    pub(super) plugin: PathBuf,
    /// How to print it
    #[arg(long, short, value_enum, default_value_t)]
    pub(super) output: Output,
}

/// Compile one plugin, for the host
///
/// The host starts this for each file that it has not compiled before. The file is standard input, its code standard output.
#[derive(Debug, clap::Args)]
pub(super) struct CompileArgs {
    /// Who starts it: it ends with that process
    #[arg(long, value_name = "PID")]
    pub(super) parent: u32,
    /// How much address space it may take
    #[arg(long, value_name = "MIB")]
    pub(super) memory: u64,
    /// How much memory of its own it may take
    #[arg(long, value_name = "MIB")]
    pub(super) data: u64,
    /// Sooner, for code that runs longer
    #[arg(long)]
    pub(super) baseline: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent_and_every_command_shows_examples() {
        let mut command = Args::command();
        command.build();
        command.clone().debug_assert();
        for command in
            command.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set())
        {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Examples:\n  pilothouse "), "{help}");
        }
    }
}
