//! Runs the demo unattended: starts the given command (`pilothouse dev …`), checks what a person would see and try, and
//! ends it.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use kube::{
    Client,
    api::DeleteParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use pilothouse_e2e::{eventually, examples};
use pilothouse_real::process::{Process, last_lines};
use serde_json::json;

/// More than the host's grace for calls in flight (30 s).
const END: Duration = Duration::from_secs(45);
/// The text before the path in the demo's first lines.
const KUBECONFIG: &str = "kubeconfig";

#[tokio::main]
async fn main() -> ExitCode {
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("demo-check: cannot create a folder for the demo's output: {error}");
            return ExitCode::FAILURE;
        }
    };
    let output = folder.path().join("demo.log");
    match check(&output).await {
        Ok(()) => {
            say("the demo does what it says");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("demo-check: {error:#}\n{}", last_lines("the demo", &output, 80));
            ExitCode::FAILURE
        }
    }
}

async fn check(output: &Path) -> Result<()> {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().context("say which command to check: demo-check COMMAND [ARGUMENT …]")?;
    let mut command = Command::new(program);
    command.args(words);
    let mut demo = Process::start("the demo", command, output)?;

    let kubeconfig = eventually("the demo prints where its kubeconfig is", async || {
        ensure!(demo.exited().is_none(), "the demo ended");
        kubeconfig(output)
    })
    .await?;
    let config = Kubeconfig::read_from(&kubeconfig)
        .with_context(|| format!("cannot read the demo's kubeconfig {}", kubeconfig.display()))?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;

    let apples = examples::apples(&client, say).await?;
    let apple = &apples[0];
    apple.scale(5).await?;
    apple.settles().await?;
    say(&format!("{} scaled to 5", apple.name));
    apple.scale(1).await?;
    apple.settles().await?;
    say(&format!("{} scaled to 1", apple.name));
    apple.edit_child(0, json!({"color": "rotten"})).await?;
    apple.settles().await?;
    say("an edited child was set back");
    apple.maps.delete(&apple.child(0), &DeleteParams::default()).await.context("cannot delete a child")?;
    apple.settles().await?;
    say("a deleted child returned");
    apple.delete().await?;
    eventually("the children of the deleted MyApple are gone", async || {
        ensure!(apple.maps.get_opt(&apple.child(0)).await?.is_none(), "one is left");
        Ok(())
    })
    .await?;
    say("children go with their MyApple");

    let printed = || std::fs::read_to_string(output).context("cannot read what the demo printed");
    examples::others(&client, printed, say).await?;
    let printed = printed()?;
    for shown in ["changed", "wrote", "reconciled", &apple.child(0)] {
        ensure!(printed.contains(shown), "the demo does not show `{shown}`");
    }
    demo.terminate();
    let status = demo.wait(END).await?;
    if !status.success() {
        bail!("after SIGTERM the demo ended with {status}");
    }
    ensure!(!kubeconfig.exists(), "the demo left its kubeconfig {} behind", kubeconfig.display());
    Ok(())
}

fn kubeconfig(output: &Path) -> Result<PathBuf> {
    let printed = std::fs::read_to_string(output).context("cannot read what the demo printed")?;
    let path = printed.lines().find_map(|line| line.strip_prefix(KUBECONFIG)).context("it did not yet")?;
    Ok(PathBuf::from(path.trim()))
}

fn say(what: &str) {
    println!("demo-check: {what}");
}
