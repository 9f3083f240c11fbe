//! A child process dies with its parent, and its output is at hand.
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use pilothouse_real::process::Process;

/// Set for the process that [`child_dies_with_a_killed_parent`] starts: this very test, in the role of the parent.
const ROLE: &str = "PILOTHOUSE_TEST_PARENT";

fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
#[cfg(target_os = "linux")]
fn child_dies_with_a_killed_parent() {
    let folder = tempfile::tempdir().unwrap();
    if std::env::var_os(ROLE).is_some() {
        let child = Process::start("sleep", sh("exec sleep 600"), &folder.path().join("log")).unwrap();
        // On the error output: the test harness keeps the other to itself.
        eprintln!("child {}", child.id());
        std::thread::park();
    }
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_dies_with_a_killed_parent", "--nocapture"])
        .env(ROLE, "1")
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let child: u32 = BufReader::new(parent.stderr.take().unwrap())
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("child ")?.parse().ok())
        .unwrap();
    let runs = || {
        // The third field is the state. A zombie counts as dead: its parent may not have reaped it yet.
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        !matches!(stat.rsplit(") ").next().and_then(|rest| rest.chars().next()), None | Some('Z' | 'X'))
    };
    assert!(runs());

    parent.kill().unwrap();
    parent.wait().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while runs() {
        assert!(std::time::Instant::now() < deadline, "process {child} outlives its parent");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn child_outlives_the_thread_that_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut child =
        std::thread::spawn(move || Process::start("cat", sh("exec sleep 600"), &log).unwrap()).join().unwrap();
    assert_eq!(child.exited(), None);
    child.terminate();
    let status = child.wait(Duration::from_secs(30)).await.unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
}

#[tokio::test]
async fn last_lines_are_of_both_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo one; echo two >&2; echo three";
    let mut child = Process::start("three", sh(script), &folder.path().join("log")).unwrap();
    assert!(child.wait(Duration::from_secs(30)).await.unwrap().success());
    assert_eq!(child.last_lines(2), "--- last lines of three:\ntwo\nthree\n---");
}
