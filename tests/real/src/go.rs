//! Builds the servers and Helm from their Go modules: a `go.mod` names them as tools, and there is no Go code.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::process::Process;

/// Programs that are built together.
pub(crate) struct Module {
    /// For people.
    pub(crate) name: &'static str,
    /// Compiled into this program, so that it builds the same versions everywhere.
    go_mod: &'static str,
    go_sum: &'static str,
    /// The packages and the names of their binaries, in the order in which they are moved.
    packages: &'static [(&'static str, &'static str, &'static str)],
    /// What to do where Go is missing or too old.
    install: &'static str,
}

/// etcd, kube-apiserver, kube-controller-manager and kubectl.
pub(crate) const SERVERS: Module = Module {
    name: "the servers",
    go_mod: include_str!("../go/go.mod"),
    go_sum: include_str!("../go/go.sum"),
    packages: &[
        ("go.etcd.io/etcd/server/v3", "server", "etcd"),
        ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver", "kube-apiserver"),
        ("k8s.io/kubernetes/cmd/kube-controller-manager", "kube-controller-manager", "kube-controller-manager"),
        ("k8s.io/kubernetes/cmd/kubectl", "kubectl", "kubectl"),
    ],
    install: "install Go from https://go.dev/dl, or set KUBEBUILDER_ASSETS to a folder that has etcd, kube-apiserver, \
              kube-controller-manager and kubectl",
};

/// Helm. Its module is apart, as it needs other versions of Kubernetes' libraries.
pub(crate) const HELM: Module = Module {
    name: "Helm",
    go_mod: include_str!("../go/helm/go.mod"),
    go_sum: include_str!("../go/helm/go.sum"),
    packages: &[("helm.sh/helm/v3/cmd/helm", "helm", "helm")],
    install: "install Go from https://go.dev/dl",
};

/// Time between two lines of progress.
const REPORT: Duration = Duration::from_secs(15);

impl Module {
    /// The names of the binaries.
    pub(crate) fn binaries(&self) -> impl Iterator<Item = &'static str> {
        self.packages.iter().map(|(.., name)| *name)
    }

    /// Returns the name of a folder for this version of the binaries.
    pub(crate) fn folder(&self) -> String {
        let modules = self.wanted().map(|(name, version)| format!("{name}-{version}"));
        modules.collect::<Vec<_>>().join("-").replace('.', "_")
    }

    /// Returns the names and versions of what is built.
    fn wanted(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let modules =
            [("kubernetes", "k8s.io/kubernetes"), ("etcd", "go.etcd.io/etcd/server/v3"), ("helm", "helm.sh/helm/v3")];
        modules.into_iter().filter_map(|(name, module)| Some((name, self.version(module)?)))
    }

    /// Returns the version of a module in `go.mod`, without its `v`.
    fn version(&self, module: &str) -> Option<&'static str> {
        let start = format!("{module} v");
        self.go_mod.lines().find_map(|line| {
            line.trim().strip_prefix("require ").unwrap_or(line.trim()).strip_prefix(&start)?.split(' ').next()
        })
    }

    /// Returns the version of Go that is needed.
    fn go(&self) -> &'static str {
        self.go_mod
            .lines()
            .find_map(|line| line.strip_prefix("go "))
            .expect("go.mod is part of this program and names it")
    }

    /// Builds all binaries into `folder`, which is empty.
    pub(crate) fn build(&self, folder: &Path, say: &mut impl FnMut(&str)) -> Result<()> {
        let module = folder.join("module");
        fs::create_dir(&module).with_context(|| format!("cannot create {}", module.display()))?;
        for (name, text) in [("go.mod", self.go_mod), ("go.sum", self.go_sum)] {
            fs::write(module.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        let go = self.usable_go(&module)?;
        let versions: Vec<_> = self.wanted().map(|(name, version)| format!("{name} {version}")).collect();
        let binaries: Vec<_> = self.binaries().collect();
        say(&format!(
            "building {} ({}) with Go {go}, once; this takes some minutes and 2 GB of memory",
            binaries.join(", "),
            versions.join(", "),
        ));

        let mut command = go_in(&module);
        command.args(["build", "-v", "-mod=readonly", "-trimpath", "-ldflags", &self.link_flags(), "-o"]);
        command.arg(folder).args(self.packages.iter().map(|(package, ..)| package));
        let log = folder.join("build.log");
        let mut process = Process::start("go build", command, &log)?;
        let start = Instant::now();
        let mut reported = start;
        let status = loop {
            if let Some(status) = process.exited() {
                break status;
            }
            if reported.elapsed() >= REPORT {
                reported = Instant::now();
                say(&progress(&fs::read_to_string(&log).unwrap_or_default(), start.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        if !status.success() {
            bail!("cannot build {}: go build ended with {status}\n{}", self.name, process.last_lines(30));
        }
        say(&format!("built in {}", minutes(start.elapsed())));

        for (_, built, name) in self.packages {
            if built != name {
                fs::rename(folder.join(built), folder.join(name)).with_context(|| format!("cannot rename {built}"))?;
            }
        }
        fs::remove_dir_all(&module).context("cannot remove the copy of go.mod")?;
        fs::remove_file(&log).context("cannot remove the build's log")
    }

    /// Returns the version of the installed Go if it can build the module. Go 1.21 and later fetches a newer toolchain by
    /// itself.
    fn usable_go(&self, module: &Path) -> Result<String> {
        let Self { name, install, .. } = self;
        let output = match go_in(module).args(["env", "GOVERSION"]).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                bail!("Go is missing, and {name} is built with it: {install}");
            }
            other => other.context("cannot run go")?,
        };
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let version = said.strip_prefix("go").unwrap_or(&said).to_owned();
        if !output.status.success() {
            let cause = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            bail!("this Go cannot build {name}, which needs Go {}: {cause}; {install}", self.go());
        }
        if !at_least(&version, self.go()) {
            bail!("Go {version} is too old for {name}, which needs Go {}: {install}", self.go());
        }
        Ok(version)
    }

    /// Linker flags that set the version. Without them `/version` says `v0.0.0-master+$Format`, which misleads clients.
    fn link_flags(&self) -> String {
        let mut flags = "-s -w".to_owned();
        if let Some(version) = self.version("k8s.io/kubernetes") {
            let mut parts = version.split('.');
            let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let package = "k8s.io/component-base/version";
            flags += &format!(
                " -X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
            );
        }
        flags
    }
}

fn at_least(version: &str, wanted: &str) -> bool {
    let numbers = |text: &str| -> Vec<u32> {
        text.split('.')
            .map(|part| part.chars().take_while(char::is_ascii_digit).collect::<String>())
            .map_while(|digits| digits.parse().ok())
            .collect()
    };
    let (version, wanted) = (numbers(version), numbers(wanted));
    // `1.26` means `1.26.0`.
    let first_two = |numbers: &[u32]| (numbers.first().copied(), numbers.get(1).copied());
    first_two(&version) >= first_two(&wanted)
}

/// Returns a `go` command in the module's copy, independent of the user's settings.
fn go_in(module: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(module).env("CGO_ENABLED", "0").env("GOWORK", "off").env("GOFLAGS", "");
    command
}

/// Summarises the output of `go build -v` in one line. Each line of that output is a fetched module or a compiled
/// package.
fn progress(printed: &str, so_far: Duration) -> String {
    let compiled = printed.lines().filter(|line| !line.starts_with("go: ")).count();
    let latest = printed.lines().next_back().unwrap_or("nothing yet");
    let latest = latest.strip_prefix("go: ").unwrap_or(latest);
    format!("{}: {compiled} packages compiled, latest: {latest}", minutes(so_far))
}

fn minutes(time: Duration) -> String {
    format!("{}:{:02} min", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use super::*;

    #[test]
    fn versions_are_those_of_go_mod() {
        assert_eq!((SERVERS.go(), HELM.go()), ("1.26.0", "1.26.0"));
        assert_eq!(SERVERS.folder(), "kubernetes-1_36_3-etcd-3_6_8");
        assert_eq!(HELM.folder(), "helm-3_22_0");
        assert!(SERVERS.link_flags().ends_with("gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"));
        assert_eq!(HELM.link_flags(), "-s -w");
    }

    #[test]
    fn older_go_is_told_from_a_newer_one() {
        for (version, enough) in [
            ("1.26.0", true),
            ("1.26", true),
            ("1.27rc1", true),
            ("2.0", true),
            ("1.25.9", false),
            ("1.9", false),
            ("", false),
        ] {
            assert_eq!(at_least(version, "1.26.0"), enough, "{version}");
        }
    }

    #[test]
    fn progress_names_the_latest_package_and_the_time() {
        let printed = "go: downloading k8s.io/api v0.36.3\nk8s.io/api/core/v1\nk8s.io/api/apps/v1\n";
        assert_eq!(
            progress(printed, Duration::from_secs(95)),
            "1:35 min: 2 packages compiled, latest: k8s.io/api/apps/v1"
        );
        assert_eq!(progress("", Duration::ZERO), "0:00 min: 0 packages compiled, latest: nothing yet");
    }
}
