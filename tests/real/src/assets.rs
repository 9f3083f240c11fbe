//! Where the binaries of the servers and of Helm are.
//!
//! `KUBEBUILDER_ASSETS` wins where it is set, as with envtest. Otherwise they lie in the user's cache folder, in a
//! folder named after their versions. The first test that needs them builds them with Go; a lock makes a second builder
//! wait.

use std::{
    env,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use crate::go::{self, Module};

const ETCD: &str = "etcd";
const APISERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const KUBECTL: &str = "kubectl";
const HELM: &str = "helm";

/// Names a folder that has the binaries already.
const VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// A folder that has every binary.
#[derive(Clone, Debug)]
pub struct Assets {
    folder: PathBuf,
}

impl Assets {
    /// Returns the binaries if they are there. Builds nothing.
    ///
    /// # Errors
    /// `KUBEBUILDER_ASSETS` is set and a binary is missing in its folder; no home folder is known.
    pub fn present() -> Result<Option<Self>> {
        if let Some(folder) = env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
            return Self::named(PathBuf::from(folder)).map(Some);
        }
        let folder = cache_folder(&go::SERVERS)?;
        Ok(is_complete(&folder, &go::SERVERS).then_some(Self { folder }))
    }

    /// Returns the binaries, and builds them first if they are missing, which takes about five minutes on two cores.
    /// `say` gets a line of progress from time to time.
    ///
    /// # Errors
    /// As [`Assets::present`]; Go is missing or too old; a build failed.
    pub fn ready(mut say: impl FnMut(&str)) -> Result<Self> {
        if let Some(present) = Self::present()? {
            return Ok(present);
        }
        let folder = built(&go::SERVERS, &mut say)?;
        Ok(Self { folder })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of etcd.
    pub fn etcd(&self) -> PathBuf {
        self.folder.join(ETCD)
    }

    /// The path of kube-apiserver.
    pub fn kube_apiserver(&self) -> PathBuf {
        self.folder.join(APISERVER)
    }

    /// The path of kube-controller-manager.
    pub fn kube_controller_manager(&self) -> PathBuf {
        self.folder.join(CONTROLLER_MANAGER)
    }

    /// The path of kubectl.
    pub fn kubectl(&self) -> PathBuf {
        self.folder.join(KUBECTL)
    }

    /// Checks the folder that the user named: every binary must be there.
    fn named(folder: PathBuf) -> Result<Self> {
        let missing: Vec<&str> = go::SERVERS.binaries().filter(|name| !folder.join(name).is_file()).collect();
        if !missing.is_empty() {
            bail!(
                "{VARIABLE} is {}, and {} is not there: add it to the folder (setup-envtest brings no \
                 kube-controller-manager), or unset {VARIABLE} to have all of them built with Go",
                folder.display(),
                missing.join(", "),
            );
        }
        Ok(Self { folder })
    }
}

/// Returns the path of Helm if it was built. Builds nothing.
///
/// # Errors
/// No home folder is known.
pub fn helm() -> Result<Option<PathBuf>> {
    let folder = cache_folder(&go::HELM)?;
    Ok(is_complete(&folder, &go::HELM).then(|| folder.join(HELM)))
}

/// Returns the path of Helm, and builds it first if it is missing, which takes about three minutes on two cores.
///
/// # Errors
/// Go is missing or too old; the build failed.
pub fn ready_helm(mut say: impl FnMut(&str)) -> Result<PathBuf> {
    Ok(built(&go::HELM, &mut say)?.join(HELM))
}

/// Returns the folder with the module's binaries, and builds them first if they are missing.
fn built(module: &Module, say: &mut impl FnMut(&str)) -> Result<PathBuf> {
    let folder = cache_folder(module)?;
    if is_complete(&folder, module) {
        return Ok(folder);
    }
    let parent = folder.parent().context("the cache folder has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    // Held until the function returns. The kernel releases it if the process is killed.
    let _lock = lock(&beside(&folder, ".lock"), say)?;
    if is_complete(&folder, module) {
        // Another process has built them meanwhile.
        return Ok(folder);
    }
    let aside = beside(&folder, ".building");
    clear(&aside)?;
    fs::create_dir(&aside).with_context(|| format!("cannot create {}", aside.display()))?;
    module.build(&aside, say)?;
    clear(&folder)?;
    fs::rename(&aside, &folder).with_context(|| format!("cannot move what was built to {}", folder.display()))?;
    ensure!(
        is_complete(&folder, module),
        "Go built without an error, and yet a binary is missing in {}",
        folder.display()
    );
    Ok(folder)
}

fn is_complete(folder: &Path, module: &Module) -> bool {
    module.binaries().all(|name| folder.join(name).is_file())
}

/// `$XDG_CACHE_HOME/pilothouse/<versions>`, or the same under `~/.cache`.
fn cache_folder(module: &Module) -> Result<PathBuf> {
    let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let cache = match named {
        Some(folder) => folder,
        None => env::home_dir()
            .filter(|home| home.is_absolute())
            .with_context(|| format!("no home folder is known: set HOME, XDG_CACHE_HOME or {VARIABLE}"))?
            .join(".cache"),
    };
    Ok(cache.join("pilothouse").join(module.folder()))
}

/// The path with `suffix` added to its name: a version's dots are no extension.
fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut path = folder.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

fn lock(path: &Path, say: &mut impl FnMut(&str)) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot create the lock {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            say("another process builds the same; waiting for it");
            file.lock().with_context(|| format!("cannot wait for the lock {}", path.display()))?;
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot take the lock {}", path.display()));
        }
    }
    Ok(file)
}

fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use super::*;

    #[test]
    fn folder_without_a_binary_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in [ETCD, APISERVER, KUBECTL] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let error = Assets::named(folder.path().to_owned()).unwrap_err().to_string();
        assert!(error.contains("kube-controller-manager is not there"), "{error}");

        fs::write(folder.path().join(CONTROLLER_MANAGER), "").unwrap();
        assert_eq!(Assets::named(folder.path().to_owned()).unwrap().kubectl(), folder.path().join("kubectl"));
    }

    #[test]
    fn second_builder_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = lock(&path, &mut |_: &str| panic!("nobody else holds it")).unwrap();
        let (said, heard) = std::sync::mpsc::channel();
        let second = std::thread::spawn({
            let path = path.clone();
            move || lock(&path, &mut |line: &str| said.send(line.to_owned()).unwrap()).unwrap()
        });
        assert_eq!(heard.recv().unwrap(), "another process builds the same; waiting for it");
        drop(first);
        second.join().unwrap();
    }
}
