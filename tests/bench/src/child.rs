//! A process that is told what to do in lines, and answers each with a line.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// The slowest answer is that of a dynamic client-go informer to a first list: half a minute for 100,000 objects, and more on a machine
/// that has other work.
const LIMIT: Duration = Duration::from_secs(600);

/// It ends when this is dropped: it is killed; and when this process is killed: its input ends.
pub(crate) struct Child {
    name: String,
    process: tokio::process::Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts it. What it says on standard error goes to ours.
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

    /// The next line that it says.
    pub(crate) async fn answer(&mut self) -> Result<String> {
        let line = timeout(LIMIT, self.answers.next_line()).await;
        let line = line.with_context(|| format!("{} says nothing for {} s", self.name, LIMIT.as_secs()))?;
        line.ok().flatten().with_context(|| format!("{} has ended", self.name))
    }

    /// Says `command` and gives its answer.
    pub(crate) async fn ask(&mut self, command: &str) -> Result<String> {
        let said = self.commands.write_all(format!("{command}\n").as_bytes()).await;
        said.with_context(|| format!("{} does not listen", self.name))?;
        self.answer().await
    }
}
