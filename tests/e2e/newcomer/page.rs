//! The page that is followed.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

/// A page of the documentation.
pub(crate) struct Page(String);

impl Page {
    /// Reads `docs/getting-started.md`.
    pub(crate) fn read() -> Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/getting-started.md");
        Ok(Self(fs::read_to_string(path).context("cannot read the page")?))
    }

    /// Checks that the page tells its reader to type this command.
    pub(crate) fn says(&self, command: &str) -> Result<()> {
        let line = format!("$ {command}");
        ensure!(self.0.lines().any(|found| found == line), "the page does not say `{line}`");
        Ok(())
    }

    /// Checks that the page has this line in one of its blocks of code.
    pub(crate) fn shows(&self, line: &str) -> Result<()> {
        ensure!(self.0.lines().any(|found| found == line), "the page does not show `{line}`");
        Ok(())
    }
}
