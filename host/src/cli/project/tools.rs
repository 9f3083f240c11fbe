//! Runs the tools of languages.

use std::{
    env,
    ffi::OsString,
    io,
    path::Path,
    process::{Output, Stdio},
};

use anyhow::{Context, bail};
use tokio::process::Command;

/// A tool that a build needs, and how to get it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tool {
    /// The program.
    pub(super) program: &'static str,
    /// How to install it.
    pub(super) install: &'static str,
}

impl Tool {
    /// Returns a command that runs the tool in a folder. It ends with the future that waits for it.
    pub(super) fn command(self, dir: &Path) -> Command {
        self.command_of(self.program, dir)
    }

    /// As [`Tool::command`], with the program that the environment variable names, if it does.
    pub(super) fn command_or(self, variable: &str, dir: &Path) -> Command {
        let program = env::var_os(variable).filter(|program| !program.is_empty());
        self.command_of(program.unwrap_or_else(|| OsString::from(self.program)), dir)
    }

    pub(super) fn command_of(self, program: impl Into<OsString>, dir: &Path) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(dir).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn missing(self, command: &Command, error: io::Error) -> anyhow::Error {
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let error = anyhow::Error::new(error);
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return anyhow::anyhow!("{program} is not installed: {}", self.install);
        }
        error.context(format!("cannot run {program}"))
    }

    /// Runs a command of the tool. Its output goes to standard error, where progress belongs.
    ///
    /// # Errors
    /// The tool is missing, or fails.
    pub(super) async fn run(self, mut command: Command) -> anyhow::Result<()> {
        say(&command);
        let child = command.stdout(io::stderr()).spawn().map_err(|error| self.missing(&command, error))?;
        let output = child.wait_with_output().await.context("cannot wait for the tool")?;
        ended(&command, &output)
    }

    /// Runs a command of the tool, and returns its standard output.
    ///
    /// # Errors
    /// The tool is missing, or fails.
    pub(super) async fn read(self, command: &mut Command) -> anyhow::Result<Vec<u8>> {
        let child = command.stdout(Stdio::piped()).spawn().map_err(|error| self.missing(command, error))?;
        let output = child.wait_with_output().await.context("cannot wait for the tool")?;
        ended(command, &output)?;
        Ok(output.stdout)
    }
}

/// Prints a command before it runs.
pub(super) fn say(command: &Command) {
    let command = command.as_std();
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let words = command.get_args().map(|word| word.to_string_lossy());
    eprintln!("$ {}", std::iter::once(program).chain(words).collect::<Vec<_>>().join(" "));
}

/// Fails if the tool did. What is wrong is on standard error.
fn ended(command: &Command, output: &Output) -> anyhow::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    bail!("{} ended with {}", command.as_std().get_program().to_string_lossy(), output.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: Tool = Tool { program: "pilothouse-no-such-tool", install: "get it from the shelf" };

    #[tokio::test]
    async fn a_tool_that_is_missing_is_named_with_how_to_get_it() {
        let error = TOOL.run(TOOL.command(Path::new("."))).await.expect_err("it is missing").to_string();
        assert_eq!(error, "pilothouse-no-such-tool is not installed: get it from the shelf");
    }

    #[tokio::test]
    async fn a_tool_that_fails_fails_the_build() {
        let shell = Tool { program: "sh", install: "" };
        let mut command = shell.command(Path::new("."));
        command.args(["-c", "echo read; exit 3"]);
        let error = shell.read(&mut command).await.expect_err("it fails").to_string();
        assert_eq!(error, "sh ended with exit status: 3");
    }
}
