//! Compiled code: it is kept between starts, it is never damaged, and compilation harms nothing else.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{
    Host, Plugin, Scene, eventually,
    host::{LogLine, binary},
    suite::NotHere,
};

/// Number of baseline compilations for each file. Only x86-64 and aarch64 have a baseline compiler.
const SOON: f64 = if cfg!(target_arch = "x86_64") { 1.0 } else { 0.0 };

pub(crate) async fn a_second_start_compiles_nothing(mut scene: Scene) -> Result<()> {
    let cache = scene.with_cache_of_its_own();
    // One plugin that brings the kind for the others, and one file under two names.
    let plugins = [Plugin::myapple()?, Plugin::guest("counting")?, Plugin::guest("counting")?.named("same")];
    let mut host = scene.with(&plugins)?.host().await?;
    host.code_is_optimized().await?;
    let counts = counted(&mut host).await?;
    ensure!(counts == [2.0 * SOON, 2.0, 0.0, 2.0, 0.0], "three names of two files: {counts:?}");
    ensure!(files(&cache)?.len() == 2, "the cache has {:?}", files(&cache)?);
    host.terminate_and_restart().await?;
    host.ready().await?;
    let counts = counted(&mut host).await?;
    ensure!(counts == [0.0, 0.0, 2.0, 0.0, 0.0], "after a restart: {counts:?}");
    Ok(())
}

pub(crate) async fn a_plugin_serves_before_its_code_is_optimized_and_goes_on(mut scene: Scene) -> Result<()> {
    if SOON == 0.0 {
        return Err(NotHere("no baseline compiler for this machine").into());
    }
    let cache = scene.with_cache_of_its_own();
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let apple = scene.apple("gala");
    apple.create(1).await?.settles().await?;
    host.code_is_optimized().await?;
    for quantity in 2..5 {
        apple.scale(quantity).await?;
        apple.settles().await?;
    }
    let said = host.logs(&["compiled code is optimized"]).await?;
    let log = host.log()?;
    let at = |text: &str| log.iter().position(|line| line.text.contains(text)).context("no such line");
    ensure!(at("plugin is active")? < at(&said.text)?, "it served only then: {log:?}");
    ensure!(said.text.contains("\"plugin\":\"myapple\""), "of which plugin? {}", said.text);
    let rows = host.plugins().await?;
    ensure!(rows.iter().all(|row| row["serving"]["code"] == "optimized"), "{rows:?}");
    ensure!(counted(&mut host).await? == [SOON, 1.0, 0.0, 1.0, 0.0], "{:?}", counted(&mut host).await?);
    ensure!(files(&cache)?.len() == 1, "the cache has {:?}", files(&cache)?);
    Ok(())
}

pub(crate) async fn what_the_baseline_compiler_does_not_know_is_compiled_by_the_other(mut scene: Scene) -> Result<()> {
    if SOON == 0.0 {
        return Err(NotHere("no baseline compiler for this machine").into());
    }
    scene.with_cache_of_its_own();
    let plugin = Plugin::myapple()?.beside("(module (func $f (return_call $f)))", 1)?;
    let mut host = scene.with(&[plugin])?.host().await?;
    scene.apple("gala").create(2).await?.settles().await?;
    ensure!(counted(&mut host).await? == [0.0, 1.0, 0.0, 1.0, 0.0], "{:?}", counted(&mut host).await?);
    let metrics = host.metrics().await?;
    let failed = |tier| metrics.sum("pilothouse_compiles_total", &[("result", "error"), ("tier", tier)]);
    ensure!((failed("baseline"), failed("optimized")) == (1.0, 0.0), "{metrics:?}");
    Ok(())
}

pub(crate) async fn a_plugin_whose_code_cannot_be_optimized_serves_as_it_is(mut scene: Scene) -> Result<()> {
    if SOON == 0.0 {
        return Err(NotHere("no baseline compiler for this machine").into());
    }
    let cache = scene.with_cache_of_its_own();
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let compiler =
        eventually("the code is being optimized", async || compiler_of(&host)?.context("no compiler runs")).await?;
    ensure!(Command::new("kill").args(["-KILL", &compiler]).status()?.success(), "the compiler is gone");
    host.warns(&["could not optimize compiled code", "the compiler was killed", "again_in"]).await?;
    scene.apple("gala").create(2).await?.settles().await?;
    let rows = host.plugins().await?;
    ensure!(rows.iter().all(|row| row["serving"]["code"] == "baseline"), "{rows:?}");
    ensure!(files(&cache)?.is_empty(), "the cache has {:?}", files(&cache)?);
    // The next start compiles again.
    host.terminate_and_restart().await?;
    host.ready().await?;
    host.code_is_optimized().await?;
    ensure!(counted(&mut host).await? == [SOON, 1.0, 0.0, 1.0, 0.0], "{:?}", counted(&mut host).await?);
    Ok(())
}

pub(crate) async fn an_optimization_gives_way_to_a_new_file_and_ends_after_it(mut scene: Scene) -> Result<()> {
    if SOON == 0.0 {
        return Err(NotHere("no baseline compiler for this machine").into());
    }
    scene.with_cache_of_its_own();
    let large = Plugin::myapple()?.beside(&long_to_optimize(), 1)?;
    let mut host = scene.with(&[large])?.host().await?;
    let first =
        eventually("the code is being optimized", async || compiler_of(&host)?.context("no compiler runs")).await?;
    scene.with(&[Plugin::guest("counting")?.confined_to("elsewhere")])?;
    eventually("the compiler is ended", async || {
        ensure!(compiler_of(&host)?.is_none_or(|compiler| compiler != first), "it goes on");
        Ok(())
    })
    .await?;
    let optimized =
        |log: &[LogLine]| log.iter().filter(|line| line.text.contains("compiled code is optimized")).count();
    ensure!(optimized(&host.log()?) == 0, "it had ended by itself: {:?}", host.log()?);
    host.logs(&["plugin is active", "\"plugin\":\"counting\""]).await?;
    scene.apple("gala").create(2).await?.settles().await?;
    host.code_is_optimized().await?;
    // A killed compilation leaves no code.
    ensure!(counted(&mut host).await? == [2.0, 2.0, 0.0, 2.0, 0.0], "{:?}", counted(&mut host).await?);
    ensure!(optimized(&host.log()?) == 2, "{:?}", host.log()?);
    Ok(())
}

/// A module that takes the optimizing compiler seconds, and the baseline compiler a fraction of one.
fn long_to_optimize() -> String {
    let step = "(local.set 0 (i32.xor (i32.mul (local.get 0) (i32.const 31)) (i32.shr_u (local.get 0) (i32.const 7))))";
    let function = format!("(func (param i32) (result i32) {} (local.get 0))", step.repeat(500));
    format!("(module {})", function.repeat(200))
}

/// Finds the process that optimizes code for a host.
fn compiler_of(host: &Host) -> Result<Option<String>> {
    let host = host.id().to_string();
    for process in fs::read_dir("/proc")? {
        let process = process?;
        // Skips entries that are not processes, and processes that have ended.
        let Ok(command) = fs::read_to_string(process.path().join("cmdline")) else { continue };
        let arguments: Vec<&str> = command.split('\0').collect();
        if arguments.starts_with(&["pilothouse", "compile", "--parent", &host]) && !arguments.contains(&"--baseline") {
            return Ok(Some(process.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

pub(crate) async fn damaged_code_is_not_run_and_compiled_anew(mut scene: Scene) -> Result<()> {
    let cache = scene.with_cache_of_its_own();
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    host.code_is_optimized().await?;
    host.terminate().await?;
    let files = files(&cache)?;
    let [file] = files.as_slice() else { anyhow::bail!("the cache has {files:?}") };
    let mut code = fs::read(file)?;
    let middle = code.len() / 2;
    *code.get_mut(middle).context("no code")? ^= 1;
    fs::write(file, code)?;
    host.start_again()?;
    host.ready().await?;
    host.code_is_optimized().await?;
    ensure!(counted(&mut host).await? == [SOON, 1.0, 0.0, 1.0, 1.0], "{:?}", counted(&mut host).await?);
    scene.apple("gala").create(2).await?.settles().await
}

pub(crate) async fn a_directory_that_others_may_write_to_is_not_used_and_the_plugin_serves(
    mut scene: Scene,
) -> Result<()> {
    let cache = scene.with_cache_of_its_own();
    fs::create_dir(&cache)?;
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777))?;
    let host = scene.with(&[Plugin::myapple()?])?.host().await?;
    host.warns(&["cannot use the code cache", "mode 0777"]).await?;
    ensure!(files(&cache)?.is_empty(), "the cache has {:?}", files(&cache)?);
    scene.apple("gala").create(2).await?.settles().await
}

pub(crate) async fn a_cache_without_room_costs_no_plugin(mut scene: Scene) -> Result<()> {
    let cache = scene.with_cache_without_room()?;
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    scene.apple("gala").create(2).await?.settles().await?;
    host.warns(&["cannot keep compiled code"]).await?;
    host.code_is_optimized().await?;
    scene.apple("fuji").create(2).await?.settles().await?;
    ensure!(counted(&mut host).await? == [SOON, 1.0, 0.0, 1.0, 0.0], "{:?}", counted(&mut host).await?);
    // Other processes do not see what is mounted there.
    ensure!(files(&cache)?.is_empty(), "the cache has {:?}", files(&cache)?);
    Ok(())
}

pub(crate) async fn a_file_that_kills_its_compiler_costs_nobody_else_anything(scene: Scene) -> Result<()> {
    let damaged = Plugin::myapple()?.named("damaged").with_a_cycle_of_packages()?;
    let mut host = scene.with(&[Plugin::myapple()?, damaged])?.starting_host()?;
    eventually("/readyz says what is wrong with the file", async || {
        let told = host.readiness_of("damaged").await?;
        ensure!(told.contains("the compiler overflowed its stack: the file is damaged"), "it says: {told}");
        Ok(())
    })
    .await?;
    ensure!(host.exited().is_none(), "the host ended");
    scene.apple("gala").create(2).await?.settles().await
}

pub(crate) async fn a_file_that_takes_its_compilers_memory_costs_nobody_else_anything(mut scene: Scene) -> Result<()> {
    let cache = scene.with_cache_of_its_own();
    // One fails in the allocator, the other in the engine.
    let greedy = [("greedy-1", 1), ("greedy-2", 2)];
    let mut plugins = vec![Plugin::myapple()?];
    for (name, modules) in greedy {
        plugins.push(Plugin::that_takes_memory_to_compile(name, modules)?);
    }
    let mut host = scene.with(&plugins)?.starting_host()?;
    for (name, _) in greedy {
        eventually(&format!("/readyz says what is wrong with {name}"), async || {
            let told = host.readiness_of(name).await?;
            let why = "the compiler needs more than its 512 MiB: the file is too large, or damaged";
            ensure!(told.contains(why), "it says: {told}");
            Ok(())
        })
        .await?;
    }
    ensure!(host.exited().is_none(), "the host ended");
    scene.apple("gala").create(2).await?.settles().await?;
    host.code_is_optimized().await?;
    // The working plugin is compiled and the others have failed, so nothing is written any more.
    let (files, unfinished) = (files(&cache)?, unfinished(&cache));
    ensure!(files.len() == 1 && unfinished.is_empty(), "the cache has {files:?}, {unfinished:?}");
    Ok(())
}

pub(crate) async fn a_host_killed_in_the_middle_of_a_compilation_leaves_nothing_and_serves_when_it_is_back(
    mut scene: Scene,
) -> Result<()> {
    /// On a busy machine it may end before the test looks.
    const TRIES: u32 = 20;

    let cache = scene.with_cache_of_its_own();
    scene.with(&[Plugin::myapple()?])?;
    let mut host = scene.starting_host()?;
    let mut tries = 1;
    while !is_killed_before_it_has_compiled(&mut host, &cache).await? {
        ensure!(tries < TRIES, "{tries} times it compiled before anybody looked");
        tries += 1;
        fs::remove_dir_all(&cache)?;
        host.start_again()?;
    }
    let left = unfinished(&cache);
    ensure!(left.len() == 1, "the cache has {left:?}");
    host.start_again()?;
    host.ready().await?;
    scene.apple("gala").create(2).await?.settles().await?;
    host.code_is_optimized().await?;
    ensure!(counted(&mut host).await? == [SOON, 1.0, 0.0, 1.0, 0.0], "{:?}", counted(&mut host).await?);
    eventually("what the killed host left is gone at the next start", async || {
        host.terminate_and_restart().await?;
        host.ready().await?;
        ensure!(unfinished(&cache).is_empty(), "there is {:?}", unfinished(&cache));
        Ok(())
    })
    .await
}

/// Kills the host while it compiles code for the cache. Returns `false` if the compilation had ended before.
async fn is_killed_before_it_has_compiled(host: &mut Host, cache: &Path) -> Result<bool> {
    // A file that is still being written has another name.
    while unfinished(cache).is_empty() && files(cache).unwrap_or_default().is_empty() {
        ensure!(host.exited().is_none(), "the host ended");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    host.crash();
    Ok(files(cache)?.is_empty())
}

pub(crate) async fn a_host_killed_at_any_moment_leaves_no_damaged_code_and_loses_no_work(
    mut scene: Scene,
) -> Result<()> {
    /// Delays of the kill in milliseconds: some before the plugin serves, some while its code is optimized. The cache
    /// is emptied before every other start; the start after it reads what is left.
    const MOMENTS: [u64; 24] = [
        0, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 660, 1100, 250, 1300, 250, 1500, 250, 1700, 250, 1900, 250,
        2200, 250,
    ];

    let cache = scene.with_cache_of_its_own();
    let apples = ["gala", "fuji"].map(|name| scene.apple(name));
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    for apple in &apples {
        apple.create(1).await?;
    }
    for (number, moment) in MOMENTS.into_iter().enumerate() {
        if number % 2 == 0 {
            // This start has to compile.
            match fs::remove_dir_all(&cache) {
                // The previous host was killed before it had written the code.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        host.crash_and_restart()?;
        let killed = tokio::time::sleep(Duration::from_millis(moment));
        let work = async {
            for quantity in (1..=4).cycle() {
                for apple in &apples {
                    apple.scale(quantity).await?;
                }
            }
            anyhow::Ok(())
        };
        tokio::select! {
            broken = work => broken?,
            () = killed => {}
        }
        host.crash();
        let damaged = host.log()?.into_iter().find(|line| line.text.contains("compiled code is not used"));
        ensure!(damaged.is_none(), "{damaged:?}");
    }
    for (apple, quantity) in apples.iter().zip([3, 2]) {
        apple.scale(quantity).await?;
    }
    host.start_again()?;
    host.ready().await?;
    for apple in &apples {
        apple.settles().await?;
    }
    let [.., rejected] = counted(&mut host).await?;
    ensure!(rejected == 0.0, "{rejected} files were damaged");
    Ok(())
}

pub(crate) async fn a_compiler_has_bounds_and_runs_after_serving_threads(_: Scene) -> Result<()> {
    // The plugin's start waits for the baseline compiler.
    for (tier, nicer) in [(None, 5), (Some("--baseline"), 2)] {
        confines_itself(tier, nicer).await.with_context(|| format!("{tier:?}"))?;
    }
    Ok(())
}

/// Starts a compiler process, inspects it while it waits for its file, and gives it one.
async fn confines_itself(tier: Option<&str>, nicer: i32) -> Result<()> {
    let arguments = ["compile", "--parent", &std::process::id().to_string(), "--memory", "512", "--data", "256"];
    let mut command = Command::new(binary()?);
    let folder = tempfile::tempdir()?;
    let code = folder.path().join("code");
    command.args(arguments).args(tier).stdin(Stdio::piped()).stdout(fs::File::create(&code)?);
    let mut compiler = command.spawn()?;
    let ours = nice("self")?;
    let confined = eventually("the compiler confines itself", async || {
        let process = compiler.id().to_string();
        let read = |file| fs::read_to_string(format!("/proc/{process}/{file}"));
        let limits = read("limits")?;
        let limit = |name| limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        for (name, expected) in [
            ("Max address space", ["536870912", "536870912", "bytes"]),
            ("Max data size", ["268435456", "268435456", "bytes"]),
            ("Max file size", ["536870912", "536870912", "bytes"]),
            ("Max open files", ["16", "16", "files"]),
            ("Max cpu time", ["120", "121", "seconds"]),
            ("Max core file size", ["0", "0", "bytes"]),
        ] {
            let found: Vec<&str> = limit(name).split_whitespace().collect();
            ensure!(found == expected, "{name}: {found:?}");
        }
        // The seccomp filter, if the kernel supports it.
        let status = read("status")?;
        let says = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let (privileges, filter) = (says("NoNewPrivs:"), says("Seccomp:"));
        ensure!(filter.is_none() || (privileges, filter) == (Some("1"), Some("2")), "{privileges:?}, {filter:?}");
        let score = read("oom_score_adj")?;
        ensure!(score.trim() == "1000", "the kernel's choice when memory runs out: {score}");
        let nice = nice(&process)?;
        ensure!(nice == (ours + nicer).min(19), "it is as nice as {nice}, and who started it as {ours}");
        Ok(())
    })
    .await;
    if confined.is_err() {
        compiler.kill()?;
    }
    let file = Plugin::myapple()?.wasm;
    let fed = compiler.stdin.take().context("no standard input")?.write_all(&file);
    let ended = compiler.wait()?;
    confined?;
    fed?;
    ensure!(ended.success() && fs::metadata(&code)?.len() > 0, "it ended with {ended}");
    Ok(())
}

pub(crate) async fn a_file_that_needs_more_memory_than_the_container_leaves_is_refused_and_the_host_goes_on(
    scene: Scene,
) -> Result<()> {
    let mut host = scene.host().await?;
    let Some(_group) = MemoryGroup::of(host.id(), 300 << 20)? else {
        return Err(NotHere("no control group for memory of version 1 can be made here").into());
    };
    scene.with(&[Plugin::myapple()?, Plugin::that_takes_memory_to_compile("greedy", 1)?])?;
    eventually("/readyz says what is wrong with the file", async || {
        let told = host.readiness_of("greedy").await?;
        let why = "which is what the container's memory limit of 300 MiB leaves: raise the limit";
        ensure!(told.contains("the compiler needs more than") && told.contains(why), "it says: {told}");
        Ok(())
    })
    .await?;
    scene.apple("gala").create(2).await?.settles().await?;
    host.code_is_optimized().await?;
    ensure!(host.exited().is_none(), "the host ended");
    Ok(())
}

/// A control group with a memory limit, like a container's.
struct MemoryGroup {
    folder: PathBuf,
    process: u32,
}

impl MemoryGroup {
    /// Creates a control group around a process. Returns `None` if this machine does not allow that.
    fn of(process: u32, bytes: u64) -> Result<Option<Self>> {
        let root = Path::new("/sys/fs/cgroup/memory");
        let folder = root.join(format!("pilothouse-e2e-{process}"));
        if fs::metadata(root.join("memory.limit_in_bytes")).is_err() || fs::create_dir(&folder).is_err() {
            return Ok(None);
        }
        let group = Self { folder, process };
        fs::write(group.folder.join("memory.limit_in_bytes"), bytes.to_string())?;
        fs::write(group.folder.join("cgroup.procs"), process.to_string())?;
        Ok(Some(group))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A group with processes cannot be removed.
        let _ = fs::write("/sys/fs/cgroup/memory/cgroup.procs", self.process.to_string());
        let _ = fs::remove_dir(&self.folder);
    }
}

pub(crate) async fn a_file_over_which_the_host_ended_again_and_again_waits_before_it_is_compiled(
    mut scene: Scene,
) -> Result<()> {
    let cache = scene.with_cache_of_its_own();
    let mut host = scene.with(&[Plugin::myapple()?])?.starting_host()?;
    // The mark that a host leaves when it ends during a compilation.
    let mark = eventually("the file is marked while it is compiled", async || {
        let marks = named(&cache, |name| name.ends_with(".compiling"))?;
        marks.into_iter().next().context("there is no mark")
    })
    .await?;
    host.crash();
    // The compiler that was started first is the one that waits.
    let first = if SOON > 0.0 { "baseline" } else { "optimized" };
    let name = mark.file_name().and_then(|name| name.to_str()).context("no name")?;
    let mark = cache.join(name.replace("optimized", first));
    fs::write(&mark, "3\n")?;
    fs::set_permissions(&mark, fs::Permissions::from_mode(0o600))?;
    host.start_again()?;
    eventually("/readyz says why the file is not compiled", async || {
        let told = host.readiness_of("myapple").await?;
        ensure!(told.contains("the host ended 3 times in a row while it compiled this file"), "it says: {told}");
        Ok(())
    })
    .await?;
    fs::remove_file(&mark)?;
    scene.apple("gala").create(2).await?.settles().await?;
    host.code_is_optimized().await?;
    let marks = named(&cache, |name| name.ends_with(".compiling"))?;
    ensure!(marks.is_empty(), "there is {marks:?}");
    Ok(())
}

/// Returns a process' nice value, the 19th field of proc_pid_stat(5). The second field may contain blanks and ends with
/// the last parenthesis.
fn nice(process: &str) -> Result<i32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, after) = stat.rsplit_once(')').context("no name")?;
    Ok(after.split_whitespace().nth(19 - 3).context("too few fields")?.parse()?)
}

/// The host's counters: baseline compilations, optimized compilations, and the cache's hits, misses and damaged files.
async fn counted(host: &mut Host) -> Result<[f64; 5]> {
    let metrics = host.metrics().await?;
    let cache = |result| metrics.sum("pilothouse_code_cache_total", &[("result", result)]);
    let compiled = |tier| metrics.sum("pilothouse_compiles_total", &[("result", "success"), ("tier", tier)]);
    Ok([compiled("baseline"), compiled("optimized"), cache("hit"), cache("miss"), cache("rejected")])
}

fn named(cache: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        if wanted(&entry.file_name().to_string_lossy()) {
            files.push(entry.path());
        }
    }
    Ok(files)
}

fn files(cache: &Path) -> Result<Vec<PathBuf>> {
    named(cache, |name| name.ends_with(".cwasm"))
}

/// Returns the temporary files in the cache: those being written, or left by a killed writer.
fn unfinished(cache: &Path) -> Vec<PathBuf> {
    named(cache, |name| name.starts_with("pilothouse-tmp-")).unwrap_or_default()
}
