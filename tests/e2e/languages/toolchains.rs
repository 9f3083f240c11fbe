//! Builds a probe in each language, with the usual tool of each.

use std::{
    borrow::Cow,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

use anyhow::{Context, Result, bail, ensure};
use pilothouse_e2e::suite::NotHere;
use wit_component::StringEncoding;
use wit_parser::Resolve;

/// Returns the component that the SDK for Python builds of a project.
pub(crate) fn python(project: &Path) -> Result<Vec<u8>> {
    let component = folder("components")?.join(format!("{}-python.wasm", file_name(project)));
    run(Command::new(python_sdk()?).current_dir(project).args(["-m", "pilothouse.build", "--output"]).arg(&component))?;
    fs::read(&component).context("cannot read the component")
}

/// Runs the tests of a project in Python.
pub(crate) fn python_tests(project: &Path) -> Result<()> {
    run(Command::new(python_sdk()?).current_dir(project).args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]))
}

/// Builds the packages of the SDK for Python, and checks them as its registry would.
pub(crate) fn python_packages() -> Result<()> {
    let (python, folder) = (python_sdk()?, folder("python-packages")?);
    fs::remove_dir_all(&folder).context("cannot remove old packages")?;
    run(Command::new(&python).args(["-m", "build", "--outdir"]).arg(&folder).arg(root().join("sdks/python")))?;
    let packages = fs::read_dir(&folder).context("there are no packages")?;
    let packages: Vec<_> = packages.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    run(Command::new(&python).args(["-m", "twine", "check", "--strict"]).args(packages))
}

/// Returns the Python of an environment with the SDK of this checkout, and what its tests need.
fn python_sdk() -> Result<PathBuf> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder("python-sdk")?;
    let python = folder.join("bin/python");
    if !folder.join("bin/twine").is_file() {
        let installed = run(Command::new("python3").args(["-m", "venv"]).arg(&folder)).and_then(|()| {
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "install", "--quiet", "pytest", "build", "twine", "--editable"]);
            run(pip.arg(root().join("sdks/python")))
        });
        if let Err(error) = installed {
            eprintln!("{error:#}");
            bail!(NotHere("python3.11 with venv and pip, or its package index, is not here"));
        }
    }
    Ok(python)
}

/// Returns the component that the SDK for JavaScript builds of a project.
pub(crate) fn javascript(project: &Path) -> Result<Vec<u8>> {
    let component = folder("components")?.join(format!("{}-javascript.wasm", file_name(project)));
    run(javascript_tool("pilothouse-build")?.arg(javascript_project(project)?).arg("--output").arg(&component))?;
    fs::read(&component).context("cannot read the component")
}

/// Checks the types of a project in TypeScript, and runs its tests.
pub(crate) fn typescript_tests(project: &Path) -> Result<()> {
    types_of(project)?;
    run(javascript_tool("pilothouse-test")?.current_dir(javascript_project(project)?))
}

/// Checks the types of a project in TypeScript.
pub(crate) fn types_of(project: &Path) -> Result<()> {
    run(javascript_tool("tsc")?.current_dir(javascript_project(project)?))
}

/// Runs the tests of a project in JavaScript.
pub(crate) fn javascript_tests(project: &Path) -> Result<()> {
    run(Command::new("node").arg("--test").current_dir(javascript_project(project)?))
}

/// Runs the tests of the SDK for JavaScript.
pub(crate) fn javascript_sdk_tests() -> Result<()> {
    run(Command::new("npm").args(["test", "--silent"]).current_dir(root().join("sdks/javascript")))
}

/// Publishes the SDK for JavaScript, but for the last step.
pub(crate) fn javascript_packages() -> Result<()> {
    javascript_sdk()?;
    let mut npm = Command::new("npm");
    run(npm.args(["publish", "--dry-run", "--silent"]).current_dir(root().join("sdks/javascript")))
}

/// Copies a project to where the SDK is found.
fn javascript_project(project: &Path) -> Result<PathBuf> {
    let copy = javascript_sdk()?.join(&*file_name(project));
    fs::create_dir_all(&copy).context("cannot create a folder for the project")?;
    let packages = project.join("node_modules");
    copy_folder(project, &copy, &|path| *path != packages)?;
    Ok(copy)
}

/// Returns a command that the SDK for JavaScript, or what it needs, brings.
fn javascript_tool(name: &str) -> Result<Command> {
    Ok(Command::new(javascript_sdk()?.join("node_modules/.bin").join(name)))
}

/// Returns the folder in which the package of the SDK is installed, as its registry would deliver it.
fn javascript_sdk() -> Result<&'static Path> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| install_javascript_sdk().map_err(|error| format!("{error:#}")));
    match installed {
        Ok(folder) => Ok(folder),
        Err(error) => {
            eprintln!("{error}");
            bail!(NotHere("npm and Node 20, or npm's registry, are not here"))
        }
    }
}

fn install_javascript_sdk() -> Result<PathBuf> {
    let folder = folder("javascript-sdk")?;
    let npm = |words: &[&str], place: &Path| {
        let mut npm = Command::new("npm");
        npm.args(words).args(["--silent", "--no-audit", "--no-fund"]).current_dir(place);
        npm
    };
    run(npm(&["pack"], &root().join("sdks/javascript")).arg("--pack-destination").arg(&folder))?;
    // npm keeps an older package of the same version, and leaves out packages when it adds that one again.
    let old = folder.join("node_modules");
    if old.exists() {
        fs::remove_dir_all(old).context("cannot remove the old packages")?;
    }
    let package = ["install", "--no-package-lock", "--no-save", "./pilothouse-sdk-0.1.0.tgz"];
    run(npm(&package, &folder).args(["typescript@>=5.6", "@types/node@^20"]))?;
    Ok(folder)
}

/// Copies the files that are wanted, and the folders that hold them.
fn copy_folder(from: &Path, to: &Path, wanted: &dyn Fn(&PathBuf) -> bool) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("{} is not there", from.display()))? {
        let (path, target) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        if path.is_dir() && wanted(&path) {
            fs::create_dir_all(&target)?;
            copy_folder(&path, &target, wanted)?;
        } else if path.is_file() {
            fs::copy(&path, &target).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// Returns the module that the SDK for Go builds of a project. The host makes a component of it.
pub(crate) fn go(project: &Path) -> Result<Vec<u8>> {
    let module = folder("components")?.join(format!("{}-go.wasm", file_name(project)));
    run(go_command()?.current_dir(project).args(["tool", "pilothouse-build", "-o"]).arg(&module))?;
    fs::read(&module).context("cannot read the module")
}

/// Checks a module of Go, and runs its tests.
pub(crate) fn go_tests(project: &Path) -> Result<()> {
    run(go_command()?.current_dir(project).args(["vet", "./..."]))?;
    run(go_command()?.current_dir(project).args(["test", "./..."]))
}

/// Writes the types of the contract into the SDK for Go, if `UPDATE_CONTRACT` is set. The SDK cannot read WIT itself.
pub(crate) fn update_contract_of_go() -> Result<()> {
    if env::var_os("UPDATE_CONTRACT").is_none() {
        return Ok(());
    }
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(root().join("wit"))?;
    let world = resolve.select_world(&[package], Some("plugin"))?;
    let types = wit_component::metadata::encode(&resolve, world, StringEncoding::UTF8, None)?;
    fs::write(root().join("sdks/go/cmd/pilothouse-build/component-type.bin"), types).context("cannot write the types")
}

fn go_command() -> Result<Command> {
    if run(Command::new("go").arg("version")).is_err() {
        bail!(NotHere("Go is not here"));
    }
    Ok(Command::new("go"))
}

/// Returns the guest `probing`, built for `wasm32-wasip2`.
pub(crate) fn rust() -> Result<Vec<u8>> {
    const TARGET: &str = "wasm32-wasip2";
    if run(Command::new("rustup").args(["target", "add", TARGET])).is_err() {
        bail!(NotHere("rustup, or its target wasm32-wasip2, is not here"));
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root()).args(["build", "--quiet", "--profile", "guest", "--target", TARGET]);
    run(build.args(["-p", "pilothouse-guests", "--example", "probing"]))?;
    fs::read(target().join(TARGET).join("guest/examples/probing.wasm")).context("cannot read the component")
}

/// Fails unless `pilothouse inspect` accepts a component and says `what` of it.
pub(crate) fn inspected(component: &[u8], what: &str) -> Result<()> {
    let file = folder("components")?.join("inspected.wasm");
    fs::write(&file, component).context("cannot write the component")?;
    let said = output(Command::new(pilothouse_e2e::host::binary()?).arg("inspect").arg(&file))?;
    ensure!(said.contains(what), "{said}");
    Ok(())
}

/// Expands a template of `pilothouse new`, and returns the folder of the project.
pub(crate) fn template(language: &str, sdk: &str) -> Result<PathBuf> {
    const NAMES: [(&str, &str); 7] = [
        ("{{name}}", "my-site"),
        ("{{crate}}", "my_site"),
        ("{{kind}}", "MySite"),
        ("{{group}}", "example.com"),
        ("{{version}}", "v1"),
        ("{{plural}}", "mysites"),
        ("{{singular}}", "mysite"),
    ];
    let expanded =
        |text: String| NAMES.iter().fold(text, |text, (from, to)| text.replace(from, to)).replace("{{sdk}}", sdk);
    let (from, to) = (root().join("templates").join(language), folder(&format!("template-{language}"))?);
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(from.join(&folder)).context("there is no such template")? {
            let (name, path) = {
                let entry = entry?;
                (folder.join(entry.file_name()), entry.path())
            };
            if path.is_dir() {
                folders.push(name);
                continue;
            }
            let target = to.join(expanded(name.to_string_lossy().into_owned()));
            fs::create_dir_all(target.parent().context("no folder")?)?;
            fs::write(&target, expanded(fs::read_to_string(&path)?))
                .with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(to)
}

fn file_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Creates a folder for a tool and what it makes.
fn folder(tool: &str) -> Result<PathBuf> {
    let folder = target().join("languages").join(tool);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    folder.canonicalize().context("the folder is gone")
}

/// Runs a command to its end.
fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs a command to its end, and returns what it printed.
fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).trim().to_owned()).join("\n");
    if !output.status.success() {
        bail!("{program} ended with {}: {}", output.status, said.trim());
    }
    Ok(said)
}
