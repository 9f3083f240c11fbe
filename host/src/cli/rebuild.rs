//! Builds the plugins of `pilothouse dev`, and builds them again when their sources change.

use std::{convert::Infallible, path::PathBuf, process::Stdio, time::Instant};

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::{
    project::{Profile, Project},
    sources::Sources,
};
use crate::causes::with_causes;

/// What is built, and how.
pub(super) enum Build {
    /// A project, by the tools of its language.
    Project(Project),
    /// A command of the user's, for a directory of plugins.
    Shell {
        /// The command line.
        command: String,
        /// The files and folders whose changes run it again.
        sources: Vec<PathBuf>,
    },
}

/// Builds, and watches the sources.
pub(super) struct Builder {
    build: Build,
    sources: Sources,
}

impl Builder {
    /// Begins to watch the sources. Nothing is built yet.
    pub(super) fn new(build: Build) -> Self {
        let roots = match &build {
            Build::Project(project) => vec![project.dir.clone()],
            Build::Shell { sources, .. } => sources.clone(),
        };
        Self { build, sources: Sources::new(roots) }
    }

    /// Builds until it succeeds. After a failure, it waits for a change of the sources.
    pub(super) async fn first(&mut self) {
        while !self.build().await {
            println!("Waiting for a change of the sources; stop with ctrl-c");
            self.changed().await;
        }
    }

    /// Builds after each change. The host notices a new component by itself.
    pub(super) async fn follow(mut self) -> Infallible {
        loop {
            self.changed().await;
            if !self.build().await {
                println!("The build failed: the plugin goes on as it was");
            }
        }
    }

    async fn changed(&mut self) {
        let changed = self.sources.changed().await;
        println!("changed    {}: building", changed.display());
    }

    /// Builds once, and prints why it fails. Returns `true` if it succeeds.
    async fn build(&self) -> bool {
        let began = Instant::now();
        let built = match &self.build {
            Build::Project(project) => project.build(Profile::Debug).await.map(drop),
            Build::Shell { command, .. } => shell(command).await,
        };
        match &built {
            Ok(()) => println!("built      in {:.1} s", began.elapsed().as_secs_f64()),
            Err(error) => println!("cannot build: {}", with_causes(error.as_ref())),
        }
        built.is_ok()
    }
}

/// Runs a command line. Its output goes to standard error.
async fn shell(command: &str) -> anyhow::Result<()> {
    eprintln!("$ {command}");
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(std::io::stderr()).kill_on_drop(true);
    let status = shell.status().await.context("cannot run sh")?;
    ensure!(status.success(), "`{command}` ended with {status}");
    Ok(())
}
