//! The configuration file of `pilothouse run`, and the place of the code cache.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::Deserialize;

use super::{
    election::ElectionFile,
    endpoints::{Address, EndpointArgs},
    logging::LogFormat,
};
use crate::yaml;

#[derive(Debug, Default, clap::Args)]
pub(super) struct CacheArgs {
    /// Where compiled plugins are cached [default: $XDG_CACHE_HOME/pilothouse, ~/.cache/pilothouse or /var/cache/pilothouse]
    ///
    /// Only the host may use the directory. It is created with mode 0700. Its size is at most 1 GiB, or that of the plugins in
    /// use. In a pod, name a directory below the mount point of a volume.
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct File {
    pub(super) plugins: Option<PathBuf>,
    pub(super) cache_dir: Option<PathBuf>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) context: Option<String>,
    pub(super) metrics_address: Option<Address>,
    pub(super) health_probe_address: Option<Address>,
    pub(super) metrics_secure: Option<bool>,
    pub(super) metrics_cert_dir: Option<PathBuf>,
    pub(super) grace_period_seconds: Option<u64>,
    pub(super) check_accounts_every_seconds: Option<std::num::NonZeroU64>,
    pub(super) log_format: Option<LogFormat>,
    pub(super) log: Option<String>,
    pub(super) leader_election: ElectionFile,
}

impl File {
    /// Returns where the host shows itself.
    pub(super) fn endpoints(&mut self) -> EndpointArgs {
        EndpointArgs {
            metrics_address: self.metrics_address,
            health_probe_address: self.health_probe_address,
            metrics_secure: self.metrics_secure,
            metrics_cert_dir: self.metrics_cert_dir.take(),
        }
    }
}

/// Returns the default of `--cache-dir`: the user's cache (XDG Base Directory), else the system's.
pub(super) fn cache_dir() -> PathBuf {
    cache_dir_of(|name| env::var_os(name).map(PathBuf::from))
}

fn cache_dir_of(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    // The specification ignores relative paths. A user without a home has `/`.
    let absolute = |name| variable(name).filter(|path| path.is_absolute() && path.parent().is_some());
    absolute("XDG_CACHE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".cache")))
        .unwrap_or_else(|| "/var/cache".into())
        .join("pilothouse")
}

/// Reads the configuration file.
///
/// # Errors
/// If it cannot be read, or is not valid.
pub(super) fn read(path: &Path) -> anyhow::Result<File> {
    let cannot = || format!("cannot use configuration file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(cannot)?;
    yaml::read(&text).map_err(anyhow::Error::msg).with_context(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_code_is_kept_in_the_users_cache_else_in_the_systems() {
        let dir = |variables: &[(&str, &str)]| {
            let of = |name: &str| Some(variables.iter().find(|(known, _)| *known == name)?.1.into());
            cache_dir_of(of).display().to_string()
        };
        assert_eq!(dir(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]), "/c/pilothouse");
        assert_eq!(dir(&[("XDG_CACHE_HOME", "c"), ("HOME", "/h")]), "/h/.cache/pilothouse");
        assert_eq!(dir(&[("HOME", "/")]), "/var/cache/pilothouse");
        assert_eq!(dir(&[]), "/var/cache/pilothouse");
    }
}
