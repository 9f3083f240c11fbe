//! The settings of `pilothouse run`: arguments, then the configuration file, then defaults.

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::{logging::LogFormat, run};
use crate::{cluster::ConnectOptions, yaml};

#[derive(Debug, Default, clap::Args)]
pub(super) struct CacheArgs {
    /// Where compiled plugins are kept [default: $XDG_CACHE_HOME/pilothouse, ~/.cache/pilothouse or /var/cache/pilothouse]
    ///
    /// The directory must belong to the host alone; it is made with mode 0700, and takes at most 1 GiB, or what the plugins in use
    /// take. In a pod, name a directory below the volume's.
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
}

/// What the file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct File {
    plugins: Option<PathBuf>,
    cache_dir: Option<PathBuf>,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    admin_address: Option<SocketAddr>,
    grace_period_seconds: Option<u64>,
    log_format: Option<LogFormat>,
    log: Option<String>,
}

/// What holds.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) plugins: PathBuf,
    pub(super) cache: PathBuf,
    pub(super) connect: ConnectOptions,
    pub(super) admin_address: SocketAddr,
    pub(super) grace_period: Duration,
    pub(super) log_format: LogFormat,
    pub(super) log: String,
}

impl Settings {
    pub(super) fn new(args: run::Args) -> anyhow::Result<Self> {
        let file = match &args.config {
            Some(path) => read(path)?,
            None => File::default(),
        };
        let Some(plugins) = args.plugins.or(file.plugins) else {
            bail!("no directory of plugins: give --plugins DIR, or `plugins:` in the file of --config");
        };
        Ok(Self {
            plugins,
            cache: args.cache.cache_dir.or(file.cache_dir).unwrap_or_else(cache_dir),
            connect: ConnectOptions {
                kubeconfig: args.kubeconfig.or(file.kubeconfig),
                context: args.context.or(file.context),
            },
            // controller-runtime's default port for metrics.
            admin_address: args.admin_address.or(file.admin_address).unwrap_or((Ipv4Addr::UNSPECIFIED, 8080).into()),
            // controller-runtime's default grace period, and Kubernetes' own for pods.
            grace_period: Duration::from_secs(args.grace_period.or(file.grace_period_seconds).unwrap_or(30)),
            log_format: args.log.log_format.or(file.log_format).unwrap_or_default(),
            log: args.log.log.or(file.log).unwrap_or_else(|| "info".into()),
        })
    }
}

/// Where compiled code is kept if nobody says: a user's cache (XDG Base Directory), else the system's.
pub(super) fn cache_dir() -> PathBuf {
    cache_dir_of(|name| env::var_os(name).map(PathBuf::from))
}

fn cache_dir_of(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    // A relative path is to be ignored, the specification says; and where nobody has a home, it is `/`.
    let absolute = |name| variable(name).filter(|path| path.is_absolute() && path.parent().is_some());
    absolute("XDG_CACHE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".cache")))
        .unwrap_or_else(|| "/var/cache".into())
        .join("pilothouse")
}

fn read(path: &Path) -> anyhow::Result<File> {
    let cannot = || format!("cannot use configuration file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(cannot)?;
    yaml::read(&text).map_err(anyhow::Error::msg).with_context(cannot)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn settings(config: &str, more: &[&str]) -> anyhow::Result<Settings> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, config)?;
        let path = path.display().to_string();
        let words = ["pilothouse", "run", "--config", &path].into_iter().chain(more.iter().copied());
        let Command::Run(args) = Cli::try_parse_from(words)?.command else { bail!("not run") };
        Settings::new(args)
    }

    #[test]
    fn arguments_win_over_the_file_and_the_file_over_defaults() -> anyhow::Result<()> {
        let settings = settings("plugins: /a\ngracePeriodSeconds: 5\nlogFormat: json\n", &["--plugins", "/b"])?;
        assert_eq!(settings.plugins, Path::new("/b"));
        assert_eq!(settings.grace_period, Duration::from_secs(5));
        assert_eq!(settings.log_format, LogFormat::Json);
        assert_eq!(settings.admin_address.port(), 8080);
        Ok(())
    }

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

    #[test]
    fn a_misspelt_setting_is_named() {
        let error = settings("plugins: /a\ngracePeriod: 5\n", &[]).map_err(|error| format!("{error:#}"));
        assert!(error.is_err_and(|text| text.contains("config.yaml") && text.contains("gracePeriod")));
    }
}
