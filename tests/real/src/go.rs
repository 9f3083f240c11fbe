//! Builds the servers from their Go modules: `go/go.mod` names them as tools, and there is no Go code.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::process::Process;

/// Compiled into this program, so that it builds the same versions everywhere.
const GO_MOD: &str = include_str!("../go/go.mod");
const GO_SUM: &str = include_str!("../go/go.sum");

/// The packages and the names of their binaries, in the order in which they are moved.
const PACKAGES: [(&str, &str, &str); 4] = [
    ("go.etcd.io/etcd/server/v3", "server", "etcd"),
    ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver", "kube-apiserver"),
    ("k8s.io/kubernetes/cmd/kube-controller-manager", "kube-controller-manager", "kube-controller-manager"),
    ("k8s.io/kubernetes/cmd/kubectl", "kubectl", "kubectl"),
];

const INSTALL: &str = "install Go from https://go.dev/dl, or set KUBEBUILDER_ASSETS to a folder that has etcd, \
                       kube-apiserver, kube-controller-manager and kubectl";

/// Time between two lines of progress.
const REPORT: Duration = Duration::from_secs(15);

/// The versions in `go.mod`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    /// Such as `1.26.0`.
    pub(crate) go: &'static str,
    /// Such as `1.36.3`.
    pub(crate) kubernetes: &'static str,
    /// Such as `3.6.8`.
    pub(crate) etcd: &'static str,
}

impl Versions {
    pub(crate) fn wanted() -> Self {
        let after = |start: &str| {
            GO_MOD
                .lines()
                .find_map(|line| line.trim().strip_prefix(start)?.split(' ').next())
                .expect("go.mod is part of this program and names it")
        };
        Self { go: after("go "), kubernetes: after("k8s.io/kubernetes v"), etcd: after("go.etcd.io/etcd/server/v3 v") }
    }
}

/// Builds all binaries into `folder`, which is empty.
pub(crate) fn build(folder: &Path, say: &mut impl FnMut(&str)) -> Result<()> {
    let module = folder.join("module");
    fs::create_dir(&module).with_context(|| format!("cannot create {}", module.display()))?;
    for (name, text) in [("go.mod", GO_MOD), ("go.sum", GO_SUM)] {
        fs::write(module.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    let wanted = Versions::wanted();
    let go = usable_go(&module, &wanted)?;
    say(&format!(
        "building etcd {}, kube-apiserver, kube-controller-manager and kubectl {} with Go {go}, once; this takes \
         some minutes and 2 GB of memory",
        wanted.etcd, wanted.kubernetes,
    ));

    let mut command = go_in(&module);
    command.args(["build", "-v", "-mod=readonly", "-trimpath", "-ldflags", &link_flags(&wanted), "-o"]);
    command.arg(folder).args(PACKAGES.map(|(package, ..)| package));
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
        bail!("cannot build the servers: go build ended with {status}\n{}", process.last_lines(30));
    }
    say(&format!("built in {}", minutes(start.elapsed())));

    for (_, built, name) in PACKAGES {
        if built != name {
            fs::rename(folder.join(built), folder.join(name)).with_context(|| format!("cannot rename {built}"))?;
        }
    }
    fs::remove_dir_all(&module).context("cannot remove the copy of go.mod")?;
    fs::remove_file(&log).context("cannot remove the build's log")
}

/// Returns the version of the installed Go if it can build the module. Go 1.21 and later fetches a newer toolchain by
/// itself.
fn usable_go(module: &Path, wanted: &Versions) -> Result<String> {
    let output = match go_in(module).args(["env", "GOVERSION"]).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("Go is missing, and the servers are built with it: {INSTALL}");
        }
        other => other.context("cannot run go")?,
    };
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let version = said.strip_prefix("go").unwrap_or(&said).to_owned();
    if !output.status.success() {
        let cause = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("this Go cannot build the servers, which need Go {}: {cause}; {INSTALL}", wanted.go);
    }
    if !at_least(&version, wanted.go) {
        bail!("Go {version} is too old for the servers, which need Go {}: {INSTALL}", wanted.go);
    }
    Ok(version)
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

/// Linker flags that set the version. Without them `/version` says `v0.0.0-master+$Format`, which misleads clients.
fn link_flags(wanted: &Versions) -> String {
    let mut parts = wanted.kubernetes.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let version = "k8s.io/component-base/version";
    format!(
        "-s -w -X {version}.gitVersion=v{} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}",
        wanted.kubernetes,
    )
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
        assert_eq!(Versions::wanted(), Versions { go: "1.26.0", kubernetes: "1.36.3", etcd: "3.6.8" });
        assert!(link_flags(&Versions::wanted()).ends_with("gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"));
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
