//! The host's image: packed by `deploy/image.sh`, unpacked, and run without a container runtime.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{host::binary, scene::Scene, suite::NotHere};

/// An unpacked image.
#[derive(Debug)]
pub struct Image {
    archive: PathBuf,
    folder: PathBuf,
    manifest: Value,
    config: Value,
}

impl Image {
    /// Packs the image in a folder `name` of the scene.
    ///
    /// # Errors
    /// [`NotHere`] where the script has no certificates. Otherwise as [`Image::pack`].
    pub fn packed(scene: &Scene, name: &str) -> Result<Self> {
        if !Path::new("/usr/share/ca-certificates/mozilla").is_dir() {
            return Err(NotHere("no CA certificates for the image: Debian's package ca-certificates has them").into());
        }
        let folder = scene.folder().join(name);
        fs::create_dir(&folder).context("cannot create a folder for the image")?;
        Self::pack(&folder)
    }

    /// Packs the binary under test, and unpacks the image, both in `folder`. Checks the digests on the way.
    ///
    /// # Errors
    /// The script fails, or the archive is no OCI image of one layer.
    pub fn pack(folder: &Path) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/image.sh");
        let printed = run(Command::new("sh").arg(script).arg(binary()?).arg(folder))?;
        let archive = PathBuf::from(printed.trim());
        let layout = folder.join("layout");
        fs::create_dir(&layout).context("cannot create a folder")?;
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&layout))?;

        let index = json(&layout.join("index.json"))?;
        let manifest = json(&blob(&layout, &index["manifests"][0])?)?;
        let config = json(&blob(&layout, &manifest["config"])?)?;
        let layers = manifest["layers"].as_array().context("the manifest has no layers")?;
        ensure!(layers.len() == 1, "the image has {} layers", layers.len());
        let files = folder.join("files");
        fs::create_dir(&files).context("cannot create a folder")?;
        run(Command::new("tar").arg("-xzf").arg(blob(&layout, &layers[0])?).arg("-C").arg(&files))?;
        Ok(Self { archive, folder: folder.to_owned(), manifest, config })
    }

    /// The archive.
    pub fn archive(&self) -> &Path {
        &self.archive
    }

    /// The folder with the image's files.
    pub fn files(&self) -> PathBuf {
        self.folder.join("files")
    }

    /// The image's manifest.
    pub fn manifest(&self) -> &Value {
        &self.manifest
    }

    /// The image's configuration, such as its user and its entry point.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Returns the paths of all files, sorted. Directories without files count as files.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn paths(&self) -> Result<Vec<String>> {
        let files = self.files();
        let mut paths = Vec::new();
        let mut folders = vec![files.clone()];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
            let entries = entries.collect::<Result<Vec<_>, _>>().context("cannot read a folder")?;
            let name = |path: &Path| path.strip_prefix(&files).unwrap_or(path).display().to_string();
            if entries.is_empty() {
                paths.push(name(&folder));
            }
            for entry in entries {
                let kind = entry.file_type().context("cannot read a file's type")?;
                if kind.is_dir() { folders.push(entry.path()) } else { paths.push(name(&entry.path())) }
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// Runs the host of the image with `arguments`, and returns its output.
    ///
    /// # Errors
    /// The host fails. The error has its error output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        run(command(&self.files(), &[]).args(arguments))
    }
}

/// Returns `true` if this machine gives processes namespaces of their own.
pub fn may_unshare() -> bool {
    Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success())
}

/// Returns a command that runs the image's entry point as user 65532, without capabilities and environment, in the files
/// of the image. These are read-only, except for an empty `/tmp`. `mounts` are folders of this machine, and where the
/// host sees them.
pub(crate) fn command(files: &Path, mounts: &[(&Path, &Path)]) -> Command {
    // The first namespace may mount. The second has no other user than 65532.
    const RUN: &str = r#"set -e
        files=$1
        shift
        mount --rbind "$files" "$files"
        mount -t tmpfs tmpfs "$files/tmp"
        while [ "$1" != -- ]; do
            mkdir -p "$1" "$files$2"
            mount --rbind "$1" "$files$2"
            shift 2
        done
        shift
        mount -o remount,bind,ro "$files"
        exec unshare --user --map-user=65532 --map-group=65532 --root="$files" --wd=/ /usr/local/bin/pilothouse "$@""#;
    let mut command = Command::new("unshare");
    command.env_clear().env("PATH", env::var_os("PATH").unwrap_or_default());
    command.args(["-rm", "sh", "-c", RUN, "sh"]).arg(files).args(["/proc", "/proc", "/dev", "/dev"]);
    for (here, there) in mounts {
        command.arg(here).arg(there);
    }
    command.arg("--");
    command
}

/// Returns the path of the blob that a descriptor names, if it has the named digest and size.
fn blob(layout: &Path, descriptor: &Value) -> Result<PathBuf> {
    let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    let digest = digest.with_context(|| format!("{descriptor} has no digest"))?;
    let path = layout.join("blobs/sha256").join(digest);
    let found = run(Command::new("sha256sum").arg(&path))?;
    ensure!(found.starts_with(digest), "the content of the blob {digest} is {found}");
    let size = fs::metadata(&path).context("there is no such blob")?.len();
    ensure!(descriptor["size"] == size, "the blob {digest} has {size} bytes, and {descriptor}");
    Ok(path)
}

fn json(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", path.display()))
}

fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} ended with {}: {}", output.status, errors.trim());
    String::from_utf8(output.stdout).with_context(|| format!("{program} prints no UTF-8"))
}
