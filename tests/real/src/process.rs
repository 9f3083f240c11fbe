//! A child process that dies with its parent and whose output goes to a file.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{LazyLock, mpsc},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

/// Interval at which [`Process::wait`] polls.
const POLL: Duration = Duration::from_millis(20);

/// A running program. Dropping it kills the program.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with empty input. Both of its outputs are appended to the file `log`.
    ///
    /// # Errors
    /// The log cannot be opened, or the program cannot be started.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open the log {}", log.display()))?;
        let second = file.try_clone().context("cannot share the log")?;
        command.stdin(Stdio::null()).stdout(file).stderr(second);
        let program = command.get_program().to_owned();
        let child = start_for_life(command).with_context(|| format!("cannot start {name} ({})", program.display()))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its exit status, or `None` while it runs.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends SIGTERM. Does nothing if the process has ended.
    pub fn terminate(&mut self) {
        self.send(Signal::TERM);
    }

    /// Stops it (SIGSTOP), so that it does nothing until [`Process::resume`]. Does nothing if it has ended.
    pub fn suspend(&mut self) {
        self.send(Signal::STOP);
    }

    /// Lets it go on after [`Process::suspend`] (SIGCONT).
    pub fn resume(&mut self) {
        self.send(Signal::CONT);
    }

    fn send(&mut self, signal: Signal) {
        if self.exited().is_none() {
            let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            let id = id.expect("the id of a child process is positive");
            // The child is not reaped yet, so the id is still its own. An error means that it has just ended.
            let _ended = rustix::process::kill_process(id, signal);
        }
    }

    /// Sends SIGKILL and returns when the process has ended.
    pub fn kill(&mut self) {
        // Both fail only if it has ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }

    /// Waits for its end and returns its exit status.
    ///
    /// # Errors
    /// It still runs after `limit`.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited() {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} still runs after {} s\n{}", self.name, limit.as_secs(), self.last_lines(40));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The file with its output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last `count` lines of its output, under a heading.
    pub fn last_lines(&self, count: usize) -> String {
        last_lines(&self.name, &self.log, count)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last `count` lines of the file `log`, under a heading that names `name`.
pub fn last_lines(name: &str, log: &Path, count: usize) -> String {
    let text = fs::read(log).map_or_else(
        |error| format!("cannot read {}: {error}", log.display()),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    );
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines.len().saturating_sub(count);
    format!("--- last lines of {name}:\n{}\n---", lines[tail..].join("\n"))
}

type Order = (Command, mpsc::SyncSender<io::Result<Child>>);

/// Starts a child that the kernel kills when this process ends, however it ends.
///
/// The kernel watches the *thread* that started the child, and a test's thread ends with the test. So one thread, which
/// lasts as long as the process, starts all children.
fn start_for_life(mut command: Command) -> io::Result<Child> {
    static STARTER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, taken) = mpsc::channel::<Order>();
        std::thread::Builder::new()
            .name("starter".to_owned())
            .spawn(move || {
                for (mut command, answer) in taken {
                    // The receiver is gone only if the asking thread panicked. The child is then killed below.
                    if let Err(mpsc::SendError(Ok(mut unwanted))) = answer.send(command.spawn()) {
                        let _ended = unwanted.kill();
                    }
                }
            })
            .expect("a test process may start one more thread");
        orders
    });
    die_with_parent(&mut command);
    let (answer, taken) = mpsc::sync_channel(1);
    STARTER.send((command, answer)).expect("the starter lasts as long as the process");
    taken.recv().expect("the starter answers every order")
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "nothing but pre_exec can ask the kernel for the death signal in the child")]
fn die_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    let parent = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the request.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls, and neither allocates nor takes a lock.
    unsafe { command.pre_exec(ask) };
}

/// On other systems a child is killed when its `Process` is dropped. It outlives a test process that is killed.
#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}
