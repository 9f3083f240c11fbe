//! The processes that the bench's lines measure or need. This program runs as each of them.

use std::env;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::{awake, controllers, keepers, many, server};

/// Runs as the process of that name until its input ends. It answers each line with a line.
///
/// # Errors
/// No process has that name, or it fails.
pub fn be(name: &str) -> Result<()> {
    match name {
        server::NAME => server::run(),
        keepers::host::NAME => keepers::host::run(),
        keepers::kube_runtime::TYPED => keepers::kube_runtime::typed(),
        keepers::kube_runtime::DYNAMIC => keepers::kube_runtime::dynamic(),
        controllers::kube_runtime::NAME => controllers::kube_runtime::run(),
        controllers::reader::NAME => controllers::reader::run(),
        many::NAME => many::run(),
        awake::NAME => awake::run(),
        _ => bail!("there is no process {name:?}"),
    }
}

/// Returns the command that runs this program as that process.
pub(crate) fn command(name: &str) -> Result<Command> {
    let mut command = Command::new(env::current_exe().context("cannot find the program itself")?);
    command.args(["--be", name]);
    Ok(command)
}
