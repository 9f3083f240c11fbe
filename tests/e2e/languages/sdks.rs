//! The SDKs themselves: their tests, those of the examples and of new projects, and a dry run of publishing.

use anyhow::Result;
use pilothouse_e2e::Scene;

use crate::toolchains::{self, root};

pub(crate) async fn python_passes_its_tests_and_can_be_published(_: Scene) -> Result<()> {
    toolchains::python_tests(&root().join("sdks/python"))?;
    toolchains::python_tests(&root().join("plugins/hello-python"))?;
    toolchains::python_packages()?;
    let project = toolchains::template("python", "pilothouse")?;
    toolchains::python_tests(&project)?;
    let component = toolchains::python(&project.to_string_lossy())?;
    toolchains::inspected(&component, "mysites.example.com")
}
