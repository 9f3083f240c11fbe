//! Builds a project in Python, in a virtual environment of its own.

use std::{fs, path::Path};

use anyhow::Context;

use super::tools::Tool;

const PYTHON: Tool = Tool {
    program: "python3",
    install: "get Python 3.11 or newer from https://www.python.org or your system's packages (Debian: python3 python3-venv)",
};

/// Holds the pyproject.toml that was installed last.
const STAMP: &str = ".venv/.pilothouse-installed";

/// Returns the project's name.
pub(super) fn name(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join("pyproject.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    project_name(&text).with_context(|| format!("{} has no `name` in its table [project]", path.display()))
}

/// Reads `name` of the table `[project]`.
fn project_name(text: &str) -> Option<String> {
    let table = text.lines().map(str::trim).skip_while(|line| *line != "[project]").skip(1);
    let mut members = table.take_while(|line| !line.starts_with('['));
    members.find_map(|line| {
        let value = line.strip_prefix("name")?.trim_start().strip_prefix('=')?.trim_start();
        let quote = value.chars().next().filter(|first| matches!(first, '"' | '\''))?;
        Some(value[1..].split(quote).next()?.to_owned())
    })
}

/// Builds the component into `file`.
pub(super) async fn build(dir: &Path, file: &Path) -> anyhow::Result<()> {
    let python = dir.canonicalize().context("cannot find the project")?.join(".venv/bin/python");
    if !python.is_file() {
        let mut venv = PYTHON.command(dir);
        venv.args(["-m", "venv", ".venv"]);
        PYTHON.run(venv).await.context("cannot create the virtual environment .venv")?;
    }
    let run = |words: &[&str]| {
        let mut command = PYTHON.command_of(&python, dir);
        command.args(words);
        command
    };
    let wanted = fs::read(dir.join("pyproject.toml")).context("cannot read pyproject.toml")?;
    if fs::read(dir.join(STAMP)).ok().as_ref() != Some(&wanted) {
        let install = run(&["-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--editable", ".[test]"]);
        PYTHON.run(install).await.context("cannot install what pyproject.toml asks for")?;
        fs::write(dir.join(STAMP), wanted).context("cannot write into .venv")?;
    }
    let mut build = run(&["-m", "pilothouse.build", "--output"]);
    build.arg(file);
    PYTHON.run(build).await.context("cannot build the component")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_table_project() {
        let text =
            "[tool.x]\nname = 'other'\n[project]\nversion = '1'\nname = \"my-site\" # mine\n[tool]\nname = 'x'\n";
        assert_eq!(project_name(text).as_deref(), Some("my-site"));
        assert_eq!(project_name("[project]\nversion = '1'\n[tool]\nname = 'x'\n"), None);
    }
}
