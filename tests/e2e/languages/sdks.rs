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
    let component = toolchains::python(&project)?;
    toolchains::inspected(&component, "mysites.example.com")
}

pub(crate) async fn javascript_passes_its_tests_and_can_be_published(_: Scene) -> Result<()> {
    toolchains::javascript_packages()?;
    toolchains::javascript_sdk_tests()?;
    toolchains::typescript_tests(&root().join("plugins/hello-typescript"))?;
    let project = toolchains::template("typescript", "0.1.0")?;
    toolchains::typescript_tests(&project)?;
    toolchains::inspected(&toolchains::javascript(&project)?, "mysites.example.com")?;
    let project = toolchains::template("javascript", "0.1.0")?;
    toolchains::javascript_tests(&project)?;
    toolchains::inspected(&toolchains::javascript(&project)?, "mysites.example.com")
}

pub(crate) async fn go_passes_its_tests(_: Scene) -> Result<()> {
    toolchains::update_contract_of_go()?;
    toolchains::go_tests(&root().join("sdks/go"))?;
    toolchains::go_tests(&root().join("plugins/hello-go"))?;
    let project = toolchains::template("go", &root().join("sdks/go").canonicalize()?.to_string_lossy())?;
    toolchains::go_tests(&project)?;
    toolchains::inspected(&toolchains::go(&project)?, "mysites.example.com")
}
