//! A child process with a line protocol: it answers each command line with one line.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// Timeout of an answer. The slowest is a dynamic client-go informer's first list: half a minute for 100,000 objects,
/// and more on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// A child process. It is killed when this is dropped. If this process is killed, the child ends because its input
/// ends.
pub(crate) struct Child {
    name: String,
    process: tokio::process::Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts the child. It inherits standard error.
    pub(crate) fn start(name: &str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let commands = process.stdin.take().context("a child without input")?;
        let answers = BufReader::new(process.stdout.take().context("a child without output")?).lines();
        Ok(Self { name: name.to_owned(), process, commands, answers })
    }

    /// The process id.
    pub(crate) fn id(&self) -> Result<u32> {
        self.process.id().with_context(|| format!("{} has ended", self.name))
    }

    /// Reads the child's next line.
    pub(crate) async fn answer(&mut self) -> Result<String> {
        let line = timeout(LIMIT, self.answers.next_line()).await;
        let line = line.with_context(|| format!("{} says nothing for {} s", self.name, LIMIT.as_secs()))?;
        line.ok().flatten().with_context(|| format!("{} has ended", self.name))
    }

    /// Sends `command` and returns the answer.
    pub(crate) async fn ask(&mut self, command: &str) -> Result<String> {
        let said = self.commands.write_all(format!("{command}\n").as_bytes()).await;
        said.with_context(|| format!("{} does not listen", self.name))?;
        self.answer().await
    }
}
