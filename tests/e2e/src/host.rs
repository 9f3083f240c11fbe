//! The host under test: the real binary, as a process.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use pilothouse_real::process::Process;
use serde_json::Value;

use crate::{admin::Admin, metrics::Metrics, wait::eventually};

/// Names the binary under test; without it, the one that `make build` leaves.
pub const VARIABLE: &str = "PILOTHOUSE_BIN";
/// More than the grace that the host gives to what is in flight (30 s).
const END: Duration = Duration::from_secs(45);

/// A host process and its admin endpoint. Dropped, it is killed.
pub struct Host {
    order: Order,
    process: Process,
    admin: Option<Admin>,
}

/// How it was started, to do it again.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) plugins: PathBuf,
    /// Where compiled code is kept.
    pub(crate) cache: PathBuf,
    /// That is a volume that has no room for any.
    pub(crate) is_full: bool,
    pub(crate) access: Access,
    /// A folder for logs; each start has its own.
    pub(crate) logs: PathBuf,
}

/// How it finds the API server, and as whom.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    Kubeconfig(PathBuf),
    Pod(Pod),
}

/// What a pod gives a host: no kubeconfig, a service account's folder where every pod has it, and the server in the environment.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The files `token`, `ca.crt` and `namespace`.
    pub service_account: PathBuf,
    /// The API server.
    pub server: http::Uri,
}

impl Pod {
    /// A command that sees the folder as `/var/run/secrets/kubernetes.io/serviceaccount`, in a mount namespace of its own.
    fn command(&self, program: &Path) -> Result<Command> {
        // The folder is opened before /run is covered, as what is below may be part of it.
        const MOUNT: &str = r#"set -e
            cd "$1"
            shift
            mount -t tmpfs tmpfs "$(readlink -f /var/run)"
            mkdir -p /var/run/secrets/kubernetes.io/serviceaccount
            mount --bind . /var/run/secrets/kubernetes.io/serviceaccount
            cd /
            exec "$@""#;
        let port = self.server.port_u16().context("the server's address has no port")?;
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", MOUNT, "sh"]).arg(&self.service_account).arg(program);
        command
            .env("KUBERNETES_SERVICE_HOST", self.server.host().context("the server's address has no host")?)
            .env("KUBERNETES_SERVICE_PORT", port.to_string())
            .env("HOME", "/nonexistent")
            .env_remove("KUBECONFIG");
        Ok(command)
    }
}

impl Host {
    /// Starts the binary; returns at once.
    pub(crate) fn start(order: Order) -> Result<Self> {
        let mut command = match &order.access {
            Access::Kubeconfig(_) if order.is_full => {
                // In a mount namespace of its own. The host would find nothing wrong with the directory.
                const MOUNT: &str = r#"mount -t tmpfs -o size=64k,mode=0700 tmpfs "$1" && shift && exec "$@""#;
                let mut command = Command::new("unshare");
                let program = std::path::absolute(binary()?).context("no working directory")?;
                command.args(["-rm", "sh", "-c", MOUNT, "sh"]).arg(&order.cache).arg(program);
                command
            }
            Access::Kubeconfig(_) => Command::new(binary()?),
            Access::Pod(pod) => pod.command(&std::path::absolute(binary()?).context("no working directory")?)?,
        };
        command.arg("run").arg("--plugins").arg(&order.plugins).arg("--cache-dir").arg(&order.cache);
        if let Access::Kubeconfig(kubeconfig) = &order.access {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        command.args(["--admin-address", "127.0.0.1:0", "--log-format", "json"]).env_remove("PILOTHOUSE_LOG");
        let earlier = std::fs::read_dir(&order.logs).context("cannot read the folder for logs")?.count();
        let log = order.logs.join(format!("host-{}.log", earlier + 1));
        let process = Process::start("the host", command, &log)?;
        Ok(Self { order, process, admin: None })
    }

    /// Every line that it logged since it was started.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn log(&self) -> Result<Vec<LogLine>> {
        let bytes = std::fs::read(self.process.log()).context("cannot read the host's log")?;
        Ok(String::from_utf8_lossy(&bytes)
            .lines()
            .map(|line| LogLine { value: serde_json::from_str(line).unwrap_or(Value::Null), text: line.to_owned() })
            .collect())
    }

    /// Returns the first log line that holds all of `parts`, once there is one.
    ///
    /// # Errors
    /// There is none in time.
    pub async fn logs(&self, parts: &[&str]) -> Result<LogLine> {
        self.logs_at(&["ERROR", "WARN", "INFO"], parts).await
    }

    /// As [`Host::logs`], for lines that tell of a problem.
    ///
    /// # Errors
    /// There is none in time.
    pub async fn warns(&self, parts: &[&str]) -> Result<LogLine> {
        self.logs_at(&["ERROR", "WARN"], parts).await
    }

    async fn logs_at(&self, levels: &[&str], parts: &[&str]) -> Result<LogLine> {
        let wanted = |line: &LogLine| {
            line.level().is_some_and(|level| levels.contains(&level))
                && parts.iter().all(|part| line.text.contains(part))
        };
        eventually(&format!("a log line with {parts:?}"), async || {
            self.log()?.into_iter().find(wanted).context("no such line yet")
        })
        .await
    }

    /// What `/readyz?verbose` says of one plugin: its line, and the indented ones that follow.
    ///
    /// # Errors
    /// As [`Host::get`]; or it says nothing of that plugin.
    pub async fn readiness_of(&mut self, plugin: &str) -> Result<String> {
        let (_, detail) = self.get("/readyz?verbose").await?;
        let check = detail.split("\n[").find(|check| check.contains(&format!("plugin {plugin} ")));
        Ok(check.with_context(|| format!("/readyz does not speak of {plugin}: {detail}"))?.to_owned())
    }

    /// Returns when `/readyz?verbose` says that the host is ready, and each plugin and informer as well.
    ///
    /// # Errors
    /// It does not in time, or the process ended.
    pub async fn ready(&mut self) -> Result<()> {
        eventually("the host is ready", async || {
            let (code, text) = self.get("/readyz?verbose").await?;
            ensure!(code == 200 && !text.contains("[-]"), "/readyz?verbose answers {code}: {text}");
            Ok(())
        })
        .await
    }

    /// As [`Admin::code_is_optimized`].
    ///
    /// # Errors
    /// As [`Host::get`], or it is not in time.
    pub async fn code_is_optimized(&mut self) -> Result<()> {
        self.admin()?.code_is_optimized().await
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The status and the body of a GET on the admin endpoint.
    ///
    /// # Errors
    /// No answer, or the process ended.
    pub async fn get(&mut self, path: &str) -> Result<(u16, String)> {
        self.admin()?.get(path).await
    }

    /// What it says on `/metrics`.
    ///
    /// # Errors
    /// As [`Host::get`].
    pub async fn metrics(&mut self) -> Result<Metrics> {
        self.admin()?.metrics().await
    }

    /// The plugins, as `/debug/plugins` has them in JSON.
    ///
    /// # Errors
    /// As [`Host::get`].
    pub async fn plugins(&mut self) -> Result<Vec<Value>> {
        self.rows("/debug/plugins").await
    }

    /// The informers that run, as `/debug/informers` has them in JSON.
    ///
    /// # Errors
    /// As [`Host::get`].
    pub async fn informers(&mut self) -> Result<Vec<Value>> {
        self.rows("/debug/informers").await
    }

    async fn rows(&mut self, path: &str) -> Result<Vec<Value>> {
        let (code, text) = self.get(&format!("{path}?format=json")).await?;
        ensure!(code == 200, "the host answers {code} to {path}");
        serde_json::from_str(&text).with_context(|| format!("{path} is no JSON"))
    }

    /// Ends it as a crash does.
    pub fn crash(&mut self) {
        self.process.kill();
    }

    /// Ends it as a crash does, and starts it again with the same plugins.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn crash_and_restart(&mut self) -> Result<()> {
        self.process.kill();
        self.start_again()
    }

    /// Ends it as a rollout does (SIGTERM), and starts it again with the same plugins.
    ///
    /// # Errors
    /// It did not end in time or with another code than 0, or it cannot be started.
    pub async fn terminate_and_restart(&mut self) -> Result<()> {
        self.terminate().await?;
        self.start_again()
    }

    /// Ends it as a rollout does (SIGTERM); returns when it has ended.
    ///
    /// # Errors
    /// It did not end in time, or with another code than 0.
    pub async fn terminate(&mut self) -> Result<()> {
        self.process.terminate();
        let status = self.process.wait(END).await?;
        ensure!(status.success(), "after SIGTERM the host ended with {status}");
        Ok(())
    }

    /// Starts it again, with the same plugins, after it was ended.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_again(&mut self) -> Result<()> {
        *self = Self::start(self.order.clone())?;
        Ok(())
    }

    /// How it ended, if it did.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.process.exited()
    }

    /// Its admin endpoint, whose port is in the log.
    ///
    /// # Errors
    /// It is not there yet, or the process ended.
    pub fn admin(&mut self) -> Result<Admin> {
        if let Some(admin) = &self.admin {
            return Ok(admin.clone());
        }
        if let Some(status) = self.exited() {
            bail!("the host ended ({status})");
        }
        let lines = self.log()?;
        let serving = lines.iter().find_map(|line| Admin::logged(line.text.as_bytes()).transpose()).transpose()?;
        let admin = serving.context("the host does not serve its admin endpoint yet")?;
        Ok(self.admin.insert(admin).clone())
    }
}

/// One line of the host's log.
#[derive(Clone, Debug)]
pub struct LogLine {
    /// As it was written.
    pub text: String,
    value: Value,
}

impl LogLine {
    /// A field's text, or the message.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.value.get(name).or_else(|| self.value.get("fields")?.get(name))?.as_str()
    }

    /// Such as `ERROR`.
    pub fn level(&self) -> Option<&str> {
        self.field("level")
    }
}

/// The binary under test.
///
/// # Errors
/// It is not there: says what to do.
pub fn binary() -> Result<PathBuf> {
    let path = env::var_os(VARIABLE).map_or_else(|| built("debug/pilothouse"), PathBuf::from);
    ensure!(path.is_file(), "the host to test is not at {}: run `make build`, or set {VARIABLE}", path.display());
    Ok(path)
}

/// A path in the folder where `make build` leaves things: `target`, or what `CARGO_TARGET_DIR` says.
pub(crate) fn built(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").filter(|target| !target.is_empty());
    root.join(target.unwrap_or_else(|| "target".into())).join(path)
}
