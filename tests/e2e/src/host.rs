//! The host under test: the real binary as a process.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use pilothouse_real::process::Process;
use serde_json::Value;

use crate::{admin::Admin, image, metrics::Metrics, wait::eventually};

/// Environment variable with the path of the binary under test. The default is the one of `make build`.
pub const VARIABLE: &str = "PILOTHOUSE_BIN";
/// More than the host's grace for calls in flight (30 s).
const END: Duration = Duration::from_secs(45);

/// Where a pod finds its account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A host process and its admin endpoint. Dropping it kills the process.
pub struct Host {
    order: Order,
    process: Process,
    admin: Option<Admin>,
}

/// How it was started, to do it again.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) plugins: PathBuf,
    /// The cache directory.
    pub(crate) cache: PathBuf,
    /// `true` if the cache directory is a volume without free space.
    pub(crate) is_full: bool,
    pub(crate) access: Access,
    /// The files of an image. The host runs in them as in a container.
    pub(crate) image: Option<PathBuf>,
    /// A folder for logs. Each start has its own log.
    pub(crate) logs: PathBuf,
    /// Further arguments of `run`.
    pub(crate) arguments: Vec<String>,
}

/// How the host finds the API server and authenticates.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    Kubeconfig(PathBuf),
    Environment(Environment),
    Pod(Pod),
    Container(Pod, Container),
}

/// What a person's machine gives a host: variables, the folder in which it starts, and names of hosts.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Variables, such as `KUBECONFIG` and `HTTPS_PROXY`.
    pub variables: Vec<(&'static str, String)>,
    /// The folder in which it starts.
    pub folder: PathBuf,
    /// A file in place of `/etc/hosts`.
    pub hosts: Option<PathBuf>,
}

impl Environment {
    fn command(&self, program: &Path) -> Command {
        const MOUNT: &str = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;
        let mut command = match &self.hosts {
            None => Command::new(program),
            Some(hosts) => {
                let mut command = Command::new("unshare");
                command.args(["-rm", "sh", "-c", MOUNT, "sh"]).arg(hosts).arg(program);
                command
            }
        };
        for name in ["KUBECONFIG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"] {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        command.current_dir(&self.folder).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// What a pod gives a host: a service account's folder and the server's address in the environment, but no kubeconfig.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The files `token`, `ca.crt` and `namespace`.
    pub service_account: PathBuf,
    /// The API server.
    pub server: http::Uri,
}

impl Pod {
    /// Returns a command that sees the folder as `/var/run/secrets/kubernetes.io/serviceaccount`, in its own mount
    /// namespace.
    fn command(&self, program: &Path) -> Result<Command> {
        // The folder is opened before /run is covered, because it may lie below /run.
        const MOUNT: &str = r#"set -e
            cd "$1"
            shift
            mount -t tmpfs tmpfs "$(readlink -f /var/run)"
            mkdir -p /var/run/secrets/kubernetes.io/serviceaccount
            mount --bind . /var/run/secrets/kubernetes.io/serviceaccount
            cd /
            exec "$@""#;
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", MOUNT, "sh"]).arg(&self.service_account).arg(program);
        self.set_environment(&mut command)?;
        Ok(command)
    }

    fn set_environment(&self, command: &mut Command) -> Result<()> {
        let host = self.server.host().context("the server's address has no host")?;
        let port = self.server.port_u16().context("the server's address has no port")?;
        command
            // The kubelet writes addresses of IPv6 without brackets.
            .env("KUBERNETES_SERVICE_HOST", host.trim_start_matches('[').trim_end_matches(']'))
            .env("KUBERNETES_SERVICE_PORT", port.to_string())
            .env("HOME", "/nonexistent")
            .env_remove("KUBECONFIG");
        Ok(())
    }
}

/// What a container of a pod gives a host besides [`Pod`].
#[derive(Clone, Debug)]
pub(crate) struct Container {
    /// Folders of this machine, and where the host sees them.
    pub(crate) mounts: Vec<(PathBuf, PathBuf)>,
    /// All arguments.
    pub(crate) arguments: Vec<String>,
}

impl Order {
    /// Returns the command that starts the binary, without arguments.
    fn command(&self) -> Result<Command> {
        let program = || std::path::absolute(binary()?).context("no working directory");
        match (&self.image, &self.access) {
            (Some(files), Access::Container(pod, container)) => {
                let mut mounts: Vec<(&Path, &Path)> =
                    container.mounts.iter().map(|(here, there)| (&**here, &**there)).collect();
                mounts.push((&pod.service_account, Path::new(SERVICE_ACCOUNT)));
                let mut command = image::command(files, &mounts);
                pod.set_environment(&mut command)?;
                Ok(command)
            }
            (None, Access::Container(..)) => bail!("a container runs in the files of an image"),
            (Some(files), access) => {
                let mut mounts = vec![(&*self.plugins, &*self.plugins), (&*self.cache, &*self.cache)];
                match access {
                    Access::Kubeconfig(file) => {
                        let folder = file.parent().context("the kubeconfig is in no folder")?;
                        mounts.push((folder, folder));
                    }
                    Access::Environment(_) | Access::Container(..) => bail!("a container has no such environment"),
                    Access::Pod(pod) => mounts.push((&pod.service_account, Path::new(SERVICE_ACCOUNT))),
                }
                let mut command = image::command(files, &mounts);
                if let Access::Pod(pod) = access {
                    pod.set_environment(&mut command)?;
                }
                Ok(command)
            }
            (None, Access::Kubeconfig(_)) if self.is_full => {
                // In its own mount namespace. The directory itself is as usual.
                const MOUNT: &str = r#"mount -t tmpfs -o size=64k,mode=0700 tmpfs "$1" && shift && exec "$@""#;
                let mut command = Command::new("unshare");
                command.args(["-rm", "sh", "-c", MOUNT, "sh"]).arg(&self.cache).arg(program()?);
                Ok(command)
            }
            (None, Access::Kubeconfig(_)) => Ok(Command::new(binary()?)),
            (None, Access::Environment(environment)) => Ok(environment.command(&program()?)),
            (None, Access::Pod(pod)) => pod.command(&program()?),
        }
    }

    /// Returns the command that starts the host.
    fn command_line(&self) -> Result<Command> {
        let mut command = self.command()?;
        if let Access::Container(_, container) = &self.access {
            command.args(&container.arguments);
            return Ok(command);
        }
        command.arg("run").arg("--plugins").arg(&self.plugins).arg("--cache-dir").arg(&self.cache);
        if let Access::Kubeconfig(kubeconfig) = &self.access {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        command.args(["--log-format", "json"]).env_remove("PILOTHOUSE_LOG");
        // Most tests look at everything, at one address and without credentials.
        if !self.arguments.iter().any(|argument| argument.starts_with("--metrics-")) {
            command.args(["--metrics-address=127.0.0.1:0", "--health-probe-address=0"]);
        }
        // Most tests are about a host that is alone, and not about who acts.
        if !self.arguments.iter().any(|argument| argument.starts_with("--leader-elect")) {
            command.arg("--leader-elect=false");
        }
        command.args(&self.arguments);
        Ok(command)
    }
}

impl Host {
    /// Starts the binary and returns at once.
    pub(crate) fn start(order: Order) -> Result<Self> {
        let command = order.command_line()?;
        let earlier = fs::read_dir(&order.logs).context("cannot read the folder for logs")?.count();
        let log = order.logs.join(format!("host-{}.log", earlier + 1));
        let process = Process::start("the host", command, &log)?;
        Ok(Self { order, process, admin: None })
    }

    /// Returns every line that it has logged since its start.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn log(&self) -> Result<Vec<LogLine>> {
        Ok(self
            .text()?
            .lines()
            .map(|line| LogLine { value: serde_json::from_str(line).unwrap_or(Value::Null), text: line.to_owned() })
            .collect())
    }

    /// Returns its whole log as it is.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn text(&self) -> Result<String> {
        let bytes = fs::read(self.process.log()).context("cannot read the host's log")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits for a log line that contains all of `parts`, and returns it.
    ///
    /// # Errors
    /// No such line comes in time.
    pub async fn logs(&self, parts: &[&str]) -> Result<LogLine> {
        self.logs_at(&["ERROR", "WARN", "INFO"], parts).await
    }

    /// As [`Host::logs`], for warnings and errors only.
    ///
    /// # Errors
    /// No such line comes in time.
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

    /// Returns the lines of `/readyz?verbose` about one plugin: its own and the indented ones below.
    ///
    /// # Errors
    /// As [`Host::get`], or the plugin is not listed.
    pub async fn readiness_of(&mut self, plugin: &str) -> Result<String> {
        let (_, detail) = self.get("/readyz?verbose").await?;
        let check = detail.split("\n[").find(|check| check.contains(&format!("plugin {plugin} ")));
        Ok(check.with_context(|| format!("/readyz does not speak of {plugin}: {detail}"))?.to_owned())
    }

    /// Waits until `/readyz?verbose` shows the host, each plugin and each informer as ready.
    ///
    /// # Errors
    /// They are not ready in time, or the process ended.
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
    /// As [`Host::get`], or the code is not optimized in time.
    pub async fn code_is_optimized(&mut self) -> Result<()> {
        self.admin()?.code_is_optimized().await
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a GET to the admin endpoint and returns the status and the body.
    ///
    /// # Errors
    /// The host does not answer, or the process ended.
    pub async fn get(&mut self, path: &str) -> Result<(u16, String)> {
        self.admin()?.get(path).await
    }

    /// Scrapes its `/metrics`.
    ///
    /// # Errors
    /// As [`Host::get`].
    pub async fn metrics(&mut self) -> Result<Metrics> {
        self.admin()?.metrics().await
    }

    /// Returns the JSON of `/debug/plugins`.
    ///
    /// # Errors
    /// As [`Host::get`].
    pub async fn plugins(&mut self) -> Result<Vec<Value>> {
        self.rows("/debug/plugins").await
    }

    /// Returns the running informers of `/debug/informers`, as JSON.
    ///
    /// # Errors
    /// As [`Host::get`].
    pub async fn informers(&mut self) -> Result<Vec<Value>> {
        self.rows("/debug/informers").await
    }

    /// Returns the JSON of `/debug/webhooks`.
    ///
    /// # Errors
    /// As [`Host::get`].
    pub async fn webhooks(&mut self) -> Result<Vec<Value>> {
        self.rows("/debug/webhooks").await
    }

    async fn rows(&mut self, path: &str) -> Result<Vec<Value>> {
        let (code, text) = self.get(&format!("{path}?format=json")).await?;
        ensure!(code == 200, "the host answers {code} to {path}");
        serde_json::from_str(&text).with_context(|| format!("{path} is no JSON"))
    }

    /// Kills it (SIGKILL).
    pub fn crash(&mut self) {
        self.process.kill();
    }

    /// Stops it (SIGSTOP) until [`Host::resume`].
    pub fn suspend(&mut self) {
        self.process.suspend();
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&mut self) {
        self.process.resume();
    }

    /// Kills it (SIGKILL) and starts it again with the same plugins.
    ///
    /// # Errors
    /// The host cannot be started.
    pub fn crash_and_restart(&mut self) -> Result<()> {
        self.process.kill();
        self.start_again()
    }

    /// Ends it as a rollout does (SIGTERM) and starts it again with the same plugins.
    ///
    /// # Errors
    /// The host does not end in time, ends with a code other than 0, or cannot be started.
    pub async fn terminate_and_restart(&mut self) -> Result<()> {
        self.terminate().await?;
        self.start_again()
    }

    /// Ends it as a rollout does (SIGTERM), and returns when it has ended.
    ///
    /// # Errors
    /// The host does not end in time, or ends with a code other than 0.
    pub async fn terminate(&mut self) -> Result<()> {
        self.process.terminate();
        let status = self.process.wait(END).await?;
        ensure!(status.success(), "after SIGTERM the host ended with {status}");
        Ok(())
    }

    /// Starts an ended host again with the same plugins.
    ///
    /// # Errors
    /// The host cannot be started.
    pub fn start_again(&mut self) -> Result<()> {
        *self = Self::start(self.order.clone())?;
        Ok(())
    }

    /// Returns its exit status, or `None` while it runs.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.process.exited()
    }

    /// Returns its admin endpoint. The port is in the log.
    ///
    /// # Errors
    /// The endpoint is not open yet, or the process ended.
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
    /// The raw line.
    pub text: String,
    value: Value,
}

impl LogLine {
    /// Returns the text of a field, or of the message.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.value.get(name).or_else(|| self.value.get("fields")?.get(name))?.as_str()
    }

    /// The plugin that the line is about.
    pub fn plugin(&self) -> Option<&str> {
        let spans = self.value["spans"].as_array().into_iter().flatten();
        self.field("plugin").or_else(|| spans.into_iter().find_map(|span| span["plugin"].as_str()))
    }

    /// Such as `ERROR`.
    pub fn level(&self) -> Option<&str> {
        self.field("level")
    }
}

/// Returns the path of the binary under test.
///
/// # Errors
/// The binary is missing. The error says how to build it.
pub fn binary() -> Result<PathBuf> {
    let path = env::var_os(VARIABLE).map_or_else(|| built("debug/pilothouse"), PathBuf::from);
    ensure!(path.is_file(), "the host to test is not at {}: run `make build`, or set {VARIABLE}", path.display());
    Ok(path)
}

/// Copies files into a folder of Cargo's target folder, where a person can look for the reason of a failure.
pub(crate) fn keep(folder: &str, files: impl IntoIterator<Item = PathBuf>) -> Result<()> {
    let folder = built(folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for path in files {
        let name = path.file_name().context("a file has a name")?;
        fs::copy(&path, folder.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(())
}

/// Returns the paths of the files in `folder`.
pub(crate) fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect())
}

/// Returns a path in Cargo's target folder: `target`, or `CARGO_TARGET_DIR`.
pub fn built(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").filter(|target| !target.is_empty());
    root.join(target.unwrap_or_else(|| "target".into())).join(path)
}
