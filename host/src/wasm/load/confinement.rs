//! Takes from a compiler what it does not need of the kernel. It keeps its file on standard input, and its open output.
//!
//! Cranelift, Winch and wit-component are written in Rust, but they read untrusted files. A file that takes over the
//! compiler would run as the host's user: it could read the service account's token and the kubeconfig, and use the
//! network.
//!
//! - **Landlock** (Linux 5.13) removes access to all paths; newer versions also to TCP and signals.
//! - **A seccomp filter** allows the system calls for memory, threads and open files. Others fail with `ENOSYS`, and
//!   the C library copes.
//!
//! Neither needs a privilege. Without kernel support the compiler runs unconfined.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) use linux::confine;

/// Does nothing: there is no confinement on this platform.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn confine() {}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::collections::BTreeMap;

    use landlock::{ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetError, Scope};
    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition,
        SeccompFilter, SeccompRule, TargetArch,
    };
    use tracing::debug;

    /// The newest version of Landlock that this code was written for. An older kernel applies the part that it knows.
    const LANDLOCK: ABI = ABI::V6;

    /// Confines the calling thread and the threads that it starts, as far as the kernel supports it.
    pub(crate) fn confine() {
        if let Err(error) = take_paths() {
            debug!(%error, "the compiler runs without Landlock");
        }
        match filter() {
            Ok(filter) => {
                if let Err(error) = seccompiler::apply_filter(&filter) {
                    debug!(%error, "the compiler runs without a filter of system calls");
                }
            }
            Err(error) => debug!(%error, "the compiler runs without a filter of system calls"),
        }
    }

    /// Removes access to paths, TCP, and signals to other processes. Open files stay usable.
    fn take_paths() -> Result<(), RulesetError> {
        let rules = Ruleset::default()
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?;
        rules.create()?.restrict_self().map(drop)
    }

    /// System calls that are allowed with any arguments. They concern this process's memory, threads, time and open
    /// files.
    const ALLOWED: [libc::c_long; 43] = [
        // Memory.
        libc::SYS_brk,
        libc::SYS_madvise,
        libc::SYS_membarrier,
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_mremap,
        libc::SYS_munmap,
        // Open files.
        libc::SYS_close,
        libc::SYS_fcntl,
        libc::SYS_fdatasync,
        libc::SYS_fstat,
        libc::SYS_fsync,
        libc::SYS_ftruncate,
        libc::SYS_lseek,
        libc::SYS_ppoll,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_write,
        libc::SYS_writev,
        // Its own threads and signals.
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_restart_syscall,
        libc::SYS_rseq,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_yield,
        libc::SYS_set_robust_list,
        libc::SYS_sigaltstack,
        // Time and random numbers.
        libc::SYS_clock_getres,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_getrandom,
        libc::SYS_getrusage,
        libc::SYS_nanosleep,
        libc::SYS_sysinfo,
        libc::SYS_uname,
    ];

    /// Builds the filter.
    fn filter() -> Result<BpfProgram, BackendError> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
        let only = |argument, operator, value| {
            SeccompRule::new(vec![SeccompCondition::new(argument, Dword, operator, value)?])
        };
        let (thread, own) = (flag(libc::CLONE_THREAD), u64::from(std::process::id()));
        // Threads but no processes, which would have limits of their own. A filter cannot read the flags of `clone3`;
        // the C library falls back to `clone`.
        rules.insert(libc::SYS_clone, vec![only(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
        // A panic sets its thread's name, and `abort` signals its own process.
        rules.insert(libc::SYS_prctl, vec![only(0, SeccompCmpOp::Eq, flag(libc::PR_SET_NAME))?]);
        rules.insert(libc::SYS_tgkill, vec![only(0, SeccompCmpOp::Eq, own)?]);
        // Only its own limits: the host runs as the same user.
        rules.insert(libc::SYS_prlimit64, vec![only(0, SeccompCmpOp::Eq, 0)?]);
        let errno = u32::try_from(libc::ENOSYS).unwrap_or(1);
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        SeccompFilter::new(rules, SeccompAction::Errno(errno), SeccompAction::Allow, arch)?.try_into()
    }

    fn flag(bits: libc::c_int) -> u64 {
        u64::from(bits.unsigned_abs())
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set in a test's child process, which confines itself.
    const INSIDE: &str = "PILOTHOUSE_TEST_CONFINED";

    #[test]
    fn invariant_8_a_confined_process_reaches_no_file_no_network_and_no_other_process() {
        if std::env::var_os(INSIDE).is_some() {
            return inside();
        }
        let name =
            concat!(module_path!(), "::invariant_8_a_confined_process_reaches_no_file_no_network_and_no_other_process");
        // The harness leaves the crate's name out.
        let name = name.split_once("::").unwrap().1;
        let program = std::env::current_exe().unwrap();
        let output = Command::new(program).args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("everything was refused"), "{said}");
    }

    fn inside() {
        assert!(std::fs::read("/etc/passwd").is_ok());
        let parent = std::os::unix::process::parent_id();
        confine();
        assert!(std::fs::read("/etc/passwd").is_err());
        assert!(std::fs::read_dir("/").is_err());
        assert!(std::fs::write(std::env::temp_dir().join("pilothouse-confined"), "x").is_err());
        assert!(
            std::net::TcpStream::connect("127.0.0.1:1").is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS))
        );
        assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_err());
        assert!(std::os::unix::net::UnixStream::pair().is_err());
        assert!(Command::new("/bin/true").status().is_err());
        let parent = rustix::process::Pid::from_raw(i32::try_from(parent).unwrap()).unwrap();
        assert!(rustix::process::test_kill_process(parent).is_err());
        // A compiler's own work still succeeds.
        let sum: u64 = std::thread::spawn(|| (0..1_000_u64).map(|n| vec![n; 1_000].len() as u64).sum()).join().unwrap();
        assert_eq!(sum, 1_000_000);
        println!("everything was refused");
    }
}
