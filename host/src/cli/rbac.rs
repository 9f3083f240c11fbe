//! `pilothouse rbac`: prints the least that the accounts of a host and of its plugins must be allowed, each rule with its
//! reason; or compares that with a cluster.

mod diff;
mod needs;
mod roles;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, ensure};
use pilothouse_core::grant::ServiceAccount;

use self::{
    needs::{Collecting, Needs, Resources},
    roles::Role,
};
use super::{
    describe::{Described, describe},
    install,
    run::ensure_directory,
};
use crate::{
    causes::with_causes,
    cluster::{self, ConnectOptions},
};

/// Print the least RBAC rules for a host and its plugins
///
/// Each DIR/NAME.wasm is a plugin, and DIR/NAME.yaml says what it is granted. Each rule has its reason as a comment. A plugin with a
/// `serviceAccount` has Roles of its own; what the others need is granted to the host's account. The plugins describe themselves in the sandbox. No
/// cluster is asked, and nothing is changed.
///
/// With --diff, a cluster is asked instead. A line with `-` is missing there, and one with `+` is granted and not needed. The exit code is 1 if there is
/// such a line, and 2 after an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse rbac --plugins ./plugins | kubectl apply --server-side -f -
  pilothouse rbac --plugins ./plugins --namespace operators --name hosts
  pilothouse rbac --plugins ./plugins --diff --context staging")]
pub(super) struct Args {
    /// The directory of plugins
    #[arg(long, value_name = "DIR")]
    plugins: PathBuf,
    /// The namespace of the host's service account
    #[arg(long, short, value_name = "NAMESPACE", default_value = "pilothouse", value_parser = install::label)]
    namespace: String,
    /// The name of the host's service account, its Lease and its Roles
    #[arg(long, value_name = "NAME", default_value = "pilothouse", value_parser = install::label)]
    name: String,
    /// The hosts run with --spread
    #[arg(long)]
    spread: bool,
    /// Print how a cluster's grants differ, instead of rules
    #[arg(long)]
    diff: bool,
    /// A kubeconfig file, for --diff [default: $KUBECONFIG, then ~/.kube/config]
    #[arg(long, value_name = "FILE", requires = "diff")]
    kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", requires = "diff")]
    context: Option<String>,
}

pub(super) fn main(args: Args) -> ExitCode {
    match super::block_on(run(args)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {}", with_causes(error.as_ref()));
            ExitCode::from(2)
        }
    }
}

/// Returns `false` if the cluster differs.
async fn run(args: Args) -> anyhow::Result<bool> {
    let Args { plugins, namespace, name, spread, diff, kubeconfig, context } = args;
    let plugins = read_all(&plugins).await?;
    let host = ServiceAccount { namespace, name };
    let uses = install::Uses { webhooks: serve_webhooks(&plugins), spread };
    let mut all = roles::of_chart(&install::rbac(&host.namespace, &host.name, uses)?, &host)?;
    let needs = needs(&plugins, &host);
    all.extend(roles::of_needs(&needs, &host, &host.name));
    if diff {
        let cluster = cluster::connect(&ConnectOptions { kubeconfig, context }).await?;
        let lines = diff::lines(&cluster, &all).await?;
        lines.iter().for_each(|line| println!("{line}"));
        return Ok(lines.is_empty());
    }
    print!("{}", documents(&all, &host));
    Ok(true)
}

/// Returns the Roles that the plugins of a directory need beside those of the chart, as YAML documents.
pub(super) async fn of_plugins(plugins: &Path, namespace: &str, name: &str) -> anyhow::Result<String> {
    let plugins = read_all(plugins).await?;
    let host = ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() };
    Ok(documents(&roles::of_needs(&needs(&plugins, &host), &host, name), &host))
}

/// Returns Roles and their bindings as YAML documents, with the service accounts of plugins.
fn documents(roles: &[Role], host: &ServiceAccount) -> String {
    let mut accounts: Vec<&ServiceAccount> = roles.iter().map(|role| &role.account).collect();
    accounts.sort();
    accounts.dedup();
    let accounts = accounts.into_iter().filter(|account| *account != host);
    let accounts = accounts.map(|account| roles::print_account(account, &host.name));
    accounts.chain(roles.iter().map(|role| roles::print(role, &host.name))).collect()
}

/// Lets the plugins of a directory describe themselves, in the order of their files.
async fn read_all(directory: &Path) -> anyhow::Result<Vec<Described>> {
    ensure_directory(directory)?;
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "wasm"));
    ensure!(!paths.is_empty(), "there is no plugin (NAME.wasm) in {}", directory.display());
    paths.sort();
    let mut plugins = Vec::with_capacity(paths.len());
    for path in paths {
        let described = describe(&path, None).await.with_context(|| format!("cannot describe {}", path.display()))?;
        // It is not called, so it needs nothing.
        if described.file.enabled {
            plugins.push(described);
        }
    }
    Ok(plugins)
}

fn needs(plugins: &[Described], host: &ServiceAccount) -> Needs {
    let resources = Resources::of(plugins.iter().map(|plugin| &**plugin.revision.manifest()));
    let mut collecting = Collecting { host, resources: &resources, needs: Needs::new() };
    for Described { revision, file, .. } in plugins {
        collecting.add(revision.plugin(), revision.manifest(), file);
    }
    collecting.needs
}

/// `true` if the host serves webhooks of these plugins.
fn serve_webhooks(plugins: &[Described]) -> bool {
    plugins.iter().any(|plugin| {
        let manifest = plugin.revision.manifest();
        let is_granted = |name: &String| plugin.file.webhooks.contains(name);
        manifest.needs_conversion() || manifest.webhooks.iter().any(|webhook| is_granted(&webhook.name))
    })
}

#[cfg(test)]
mod tests;
