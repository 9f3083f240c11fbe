//! Why a call failed.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use super::{
    super::memory::{Limiter, MAX_TABLE_ELEMENTS, MemoryLimit},
    export::Export,
    imports::host_state::{Closed, Excess},
    text::shorten,
};

/// Innermost frames of a guest's backtrace that are kept. Deeper ones seldom help.
const FRAMES: usize = 10;

/// Bytes of a frame's line. Names come from the guest, and those of generic functions fill pages.
const FRAME: usize = 200;

/// Why a plugin has no valid description.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// The call of `describe` failed.
    #[error("cannot call describe")]
    Call(#[from] CallError),
    /// The plugin rejected its configuration. Holds its message.
    #[error("the plugin refuses its configuration: {0}")]
    Refused(String),
    /// The manifest is not valid. Holds every problem.
    #[error(transparent)]
    Manifest(#[from] pilothouse_core::manifest::Invalid),
}

impl DescribeError {
    /// Returns one word for metrics: [`CallError::kind`], `refused` or `manifest`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Call(error) => error.kind(),
            Self::Refused(_) => "refused",
            Self::Manifest(_) => "manifest",
        }
    }

    /// See [`CallError::backtrace`].
    pub fn backtrace(&self) -> &[String] {
        if let Self::Call(error) = self { error.backtrace() } else { &[] }
    }
}

/// Why a call failed. Its instance is dropped; the next call gets a new one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The manifest has no such controller.
    #[error("plugin has no controller {0:?}")]
    Controller(String),
    /// The component does not have this export. A described plugin has every export that its manifest needs.
    #[error("plugin does not export {}", .0.interface())]
    Export(Export),
    /// It computed, or waited for the API server, beyond its deadline.
    #[error("plugin was stopped at its deadline of {} ms", .after.as_millis())]
    Deadline {
        /// The deadline.
        after: Duration,
        /// Where it was, innermost frame first. Empty if it was waiting.
        backtrace: Vec<String>,
    },
    /// It was refused memory, and gave up.
    #[error("{}", match limit {
        MemoryLimit::Instance(bytes) => format!("plugin hit its memory limit of {} MiB", bytes >> 20),
        MemoryLimit::Plugin(bytes) => format!("plugin's instances together hit their memory limit of {} MiB", bytes >> 20),
    })]
    Memory {
        /// The limit that it reached.
        limit: MemoryLimit,
        /// Where it gave up, innermost frame first. Empty if a new instance needs too much.
        backtrace: Vec<String>,
    },
    /// It overflowed its stack.
    #[error("plugin overflowed its stack")]
    Stack {
        /// Innermost frame first.
        backtrace: Vec<String>,
    },
    /// It failed in its own code, for example with a panic.
    #[error("plugin trapped: {reason}{}", Quoted(said.as_deref()))]
    Trap {
        /// The engine's message.
        reason: String,
        /// The last error that the plugin logged in this call, usually a panic message.
        said: Option<String>,
        /// Innermost frame first.
        backtrace: Vec<String>,
    },
    /// It called an import from an export that may call only `host`.
    #[error("plugin called {import} from {export}, where only `host` may be called{}", Quoted(said.as_deref()))]
    Import {
        /// Interface and function, such as `cache.get`.
        import: &'static str,
        /// `describe` or `convert`.
        export: &'static str,
        /// The last error that the plugin logged, if the import is `log.write`.
        said: Option<String>,
        /// Innermost frame first.
        backtrace: Vec<String>,
    },
    /// It was refused larger tables, and gave up.
    #[error("plugin hit its limit of {MAX_TABLE_ELEMENTS} table elements")]
    Table {
        /// As in [`CallError::Memory`].
        backtrace: Vec<String>,
    },
    /// It exceeded a limit on host calls.
    #[error("plugin {excess}")]
    HostCalls {
        /// The limit that it exceeded.
        excess: Excess,
        /// Innermost frame first.
        backtrace: Vec<String>,
    },
    /// No instance could be created.
    #[error("cannot instantiate the plugin: {0}")]
    Instantiate(String),
    /// The host lacks something that an instance needs. The plugin is not to blame.
    #[error("the host cannot make an instance: {0}")]
    Host(String),
    /// Its answer does not fit the contract, or is too large.
    #[error("plugin gave an unusable answer: {0}")]
    Answer(String),
    /// It passed a text that is not UTF-8, or a child or a status that is not a JSON object.
    #[error("plugin passed text that is not valid: {reason}")]
    Decode {
        /// What is wrong.
        reason: String,
        /// Where it passed the text to an import, innermost frame first. Empty for an answer.
        backtrace: Vec<String>,
    },
}

pub(crate) struct Quoted<'a>(pub(crate) Option<&'a str>);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |text| write!(f, "; it said: {text}"))
    }
}

impl CallError {
    /// Returns one word for metrics: `deadline`, `memory`, `stack`, `table`, `host-calls`, `trap`, `import`,
    /// `instantiate`, `host`, `answer`, `decode`, `controller` or `export`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Controller(_) => "controller",
            Self::Export(_) => "export",
            Self::Deadline { .. } => "deadline",
            Self::Memory { .. } => "memory",
            Self::Stack { .. } => "stack",
            Self::Trap { .. } => "trap",
            Self::Import { .. } => "import",
            Self::Table { .. } => "table",
            Self::HostCalls { .. } => "host-calls",
            Self::Instantiate(_) => "instantiate",
            Self::Host(_) => "host",
            Self::Answer(_) => "answer",
            Self::Decode { .. } => "decode",
        }
    }

    /// Returns `true` if the guest failed in its code, as a native function does with a panic. That excludes a guest
    /// that did not start, was stopped at its deadline, or gave an invalid answer.
    pub fn is_panic(&self) -> bool {
        match self {
            Self::Stack { .. } | Self::Trap { .. } | Self::Import { .. } | Self::HostCalls { .. } => true,
            Self::Memory { backtrace, .. } | Self::Table { backtrace } | Self::Decode { backtrace, .. } => {
                !backtrace.is_empty()
            }
            Self::Controller(_)
            | Self::Export(_)
            | Self::Deadline { .. }
            | Self::Instantiate(_)
            | Self::Host(_)
            | Self::Answer(_) => false,
        }
    }

    /// Returns the guest's innermost frames when the call failed, innermost first, at most ten. Empty if they are not
    /// known.
    pub fn backtrace(&self) -> &[String] {
        match self {
            Self::Deadline { backtrace, .. }
            | Self::Memory { backtrace, .. }
            | Self::Table { backtrace }
            | Self::Stack { backtrace }
            | Self::Import { backtrace, .. }
            | Self::HostCalls { backtrace, .. }
            | Self::Decode { backtrace, .. }
            | Self::Trap { backtrace, .. } => backtrace,
            Self::Controller(_) | Self::Export(_) | Self::Instantiate(_) | Self::Host(_) | Self::Answer(_) => &[],
        }
    }

    /// Interprets the engine's error of a failed call.
    pub(crate) fn of(error: &wasmtime::Error, stage: Stage, call: &FailedCall<'_>) -> Self {
        let said = || call.said.map(str::to_owned);
        let backtrace = || frames(error);
        if let Some(Closed(import)) = error.downcast_ref() {
            let (import, said, backtrace) = (import.name(), said(), backtrace());
            return Self::Import { import, export: "describe", said, backtrace };
        }
        if let Some(&excess) = error.downcast_ref::<Excess>() {
            return Self::HostCalls { excess, backtrace: backtrace() };
        }
        if is_too_much_at_once(error) {
            return if error.is::<wasmtime::WasmBacktrace>() {
                Self::HostCalls { excess: Excess::AtOnce, backtrace: backtrace() }
            } else {
                Self::Answer(Excess::AtOnce.to_string())
            };
        }
        if is_no_text(error) {
            return Self::Decode { reason: reason(error), backtrace: backtrace() };
        }
        let trap = error.downcast_ref::<wasmtime::Trap>();
        // A guest that is refused memory gives up with `unreachable`. Other traps have other reasons.
        let gave_up =
            matches!(trap, None | Some(wasmtime::Trap::UnreachableCodeReached | wasmtime::Trap::AllocationTooLarge));
        if gave_up && let Some(limit) = call.limits.memory_refused() {
            return Self::Memory { limit, backtrace: backtrace() };
        }
        if gave_up && call.limits.table_was_refused() {
            return Self::Table { backtrace: backtrace() };
        }
        let reason = reason(error);
        match (trap, stage) {
            (Some(wasmtime::Trap::Interrupt), _) => Self::Deadline { after: call.budget, backtrace: backtrace() },
            (Some(wasmtime::Trap::StackOverflow), _) => Self::Stack { backtrace: backtrace() },
            // Most languages keep a stack in linear memory, and a call below its end traps here.
            (Some(wasmtime::Trap::MemoryOutOfBounds), _) if calls_itself(error) => Self::Trap {
                reason: format!("{reason}, perhaps because recursion used up its stack in linear memory"),
                said: said(),
                backtrace: backtrace(),
            },
            (Some(_), _) => Self::Trap { reason, said: said(), backtrace: backtrace() },
            // In a guest's frames, the engine failed to read an argument of an import.
            (None, _) if error.is::<wasmtime::WasmBacktrace>() => {
                Self::Trap { reason, said: said(), backtrace: backtrace() }
            }
            (None, Stage::Instantiate) if is_shortage(error) => Self::Host(reason),
            (None, Stage::Instantiate) => Self::Instantiate(reason),
            (None, Stage::Call) => Self::Answer(reason),
        }
    }
}

/// The stage of a call in which it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Instantiate,
    Call,
}

/// What the host knows of a failed call.
pub(crate) struct FailedCall<'a> {
    pub(crate) budget: Duration,
    pub(crate) limits: &'a Limiter,
    pub(crate) said: Option<&'a str>,
}

/// Returns the engine's message.
fn reason(error: &wasmtime::Error) -> String {
    let reason = error.root_cause().to_string();
    reason.strip_prefix("wasm trap: ").unwrap_or(&reason).to_owned()
}

/// Returns an engine's error and its causes in one line.
pub(crate) fn chain(error: &wasmtime::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns `true` if the guest passed more than [`MAX_TRANSFER`](super::super::MAX_TRANSFER). The engine has no type
/// for that error.
fn is_too_much_at_once(error: &wasmtime::Error) -> bool {
    error.root_cause().to_string().starts_with("too much data is being copied between the host and the guest")
}

/// Returns `true` if a text of the guest is not valid in its encoding.
fn is_no_text(error: &wasmtime::Error) -> bool {
    error.chain().any(|cause| cause.is::<std::str::Utf8Error>() || cause.is::<std::char::DecodeUtf16Error>())
}

/// Returns `true` if the machine lacks a resource: memory, address space, or a slot of the pool.
pub(crate) fn is_shortage(error: &wasmtime::Error) -> bool {
    error.is::<wasmtime::PoolConcurrencyLimitError>()
        || error.chain().any(|cause| {
            cause.is::<wasmtime::OutOfMemory>() || cause.is::<rustix::io::Errno>() || cause.is::<std::io::Error>()
        })
}

/// Returns `true` if the innermost frames are all of one function.
fn calls_itself(error: &wasmtime::Error) -> bool {
    const CALLS: usize = 4;
    let Some(backtrace) = error.downcast_ref::<wasmtime::WasmBacktrace>() else { return false };
    let mut innermost = backtrace.frames().iter().take(CALLS).map(wasmtime::FrameInfo::func_index);
    let Some(first) = innermost.next() else { return false };
    backtrace.frames().len() >= CALLS && innermost.all(|other| other == first)
}

/// Formats the guest's innermost frames: `0: 0x1b2c - apples!orchard::reconcile`. The frames of Rust's panic are left
/// out.
///
/// Names come from the guest. A short name of C++ may stand for an endless one, so only Rust's names are demangled, and
/// no further than they are shown.
fn frames(error: &wasmtime::Error) -> Vec<String> {
    let Some(backtrace) = error.downcast_ref::<wasmtime::WasmBacktrace>() else { return Vec::new() };
    let all = backtrace.frames();
    let of_panic = all.iter().take_while(|frame| frame.func_name().is_some_and(is_of_panic)).count();
    let skipped = if of_panic == all.len() { 0 } else { of_panic };
    let lines = all.iter().enumerate().skip(skipped).take(FRAMES).map(|(number, frame)| {
        let mut line = FrameLine(String::new());
        // An error means that the line is full, which its end shows.
        let _ = write_frame(&mut line, number, frame);
        shorten(line.0, FRAME)
    });
    lines.collect()
}

/// Returns `true` if a function is of Rust's own libraries. The innermost frames of a panic are, and say nothing about
/// the plugin.
fn is_of_panic(name: &str) -> bool {
    const LIBRARIES: [&str; 6] = ["std::", "core::", "alloc::", "__rust", "rust_panic", "rust_begin_unwind"];
    let mut line = FrameLine(String::new());
    // An error means that the name is longer than what is compared.
    let _ = write_name(&mut line, name);
    let path = line.0.trim_start_matches('<');
    LIBRARIES.iter().any(|library| path.starts_with(library))
}

fn write_frame(line: &mut FrameLine, number: usize, frame: &wasmtime::FrameInfo) -> fmt::Result {
    write!(line, "{number}: ")?;
    if let Some(offset) = frame.module_offset() {
        write!(line, "{offset:#x} - ")?;
    }
    write!(line, "{}!", frame.module().name().unwrap_or("<unknown>"))?;
    match frame.func_name() {
        Some(name) => write_name(line, name),
        None => write!(line, "<wasm function {}>", frame.func_index()),
    }
}

fn write_name(line: &mut FrameLine, name: &str) -> fmt::Result {
    match rustc_demangle::try_demangle(name) {
        Ok(name) => write!(line, "{name:#}"),
        Err(_) => line.write_str(name),
    }
}

/// A line with room for slightly more than is shown.
struct FrameLine(String);

impl fmt::Write for FrameLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = (FRAME + 1).saturating_sub(self.0.len());
        let end = text.ceil_char_boundary(room.min(text.len()));
        self.0.extend(text.get(..end).unwrap_or_default().chars().map(|c| if c.is_control() { ' ' } else { c }));
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::memory::PluginMemory, *};

    #[test]
    fn a_shortage_of_the_machine_differs_from_a_limit_of_the_plugin() {
        let limits = Limiter::new(1 << 20, 1 << 20, PluginMemory::default());
        let said = |error: &wasmtime::Error| {
            let call = FailedCall { budget: Duration::from_secs(1), limits: &limits, said: None };
            CallError::of(error, Stage::Instantiate, &call).kind()
        };
        let memory = || std::io::Error::from_raw_os_error(12);
        for short in [
            wasmtime::Error::new(memory()),
            wasmtime::Error::new(memory()).context("cannot map"),
            wasmtime::Error::new(rustix::io::Errno::NOMEM).context("cannot protect"),
        ] {
            assert_eq!(said(&short), "host", "{short:?}");
        }
        assert_eq!(said(&wasmtime::Error::msg("instance count too high at 65")), "instantiate");
    }

    #[test]
    fn name_of_a_function_is_spelt_out_as_far_as_it_is_shown() {
        let said = |name: &str| {
            let mut line = FrameLine(String::new());
            let fits = write_name(&mut line, name).is_ok();
            (line.0, fits)
        };
        assert_eq!(said("_ZN7orchard9reconcile17h0123456789abcdefE"), ("orchard::reconcile".to_owned(), true));
        assert_eq!(said("eat\u{1b}[2J"), ("eat [2J".to_owned(), true));
        // Not a name of Rust.
        assert_eq!(said("_Z1fPFviiES_S_"), ("_Z1fPFviiES_S_".to_owned(), true));
        let (line, fits) = said(&"ä".repeat(1 << 20));
        assert!(!fits && (FRAME + 1..FRAME + 8).contains(&line.len()), "{}", line.len());
    }

    /// Nested pairs of types, each built from the one before. The last one has four billion parts.
    #[test]
    fn short_name_that_stands_for_an_endless_one_is_spelt_out_as_far_as_it_is_shown() {
        const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let position = |at: usize| {
            let digits = [(at - 1) / 62, (at - 1) % 62].map(|digit| char::from(DIGITS[digit]));
            digits.iter().skip_while(|digit| **digit == '0').collect::<String>() + "_"
        };
        let mut name = "INvC1a1f".to_owned();
        let mut last = name.len();
        name.push_str("TllE");
        for _ in 0..32 {
            let (before, at) = (position(last), name.len());
            name.extend(["TB", &before, "B", &before, "E"]);
            last = at;
        }
        let mut line = FrameLine(String::new());
        assert!(write_name(&mut line, &format!("_R{name}E")).is_err());
        assert!(line.0.starts_with("a::f::<(i32, i32), ((i32, i32), (i32, i32)), (((i32, i32),"), "{}", line.0);
        assert!(line.0.len() < FRAME + 8, "{}", line.0.len());
    }

    #[test]
    fn frames_of_rusts_own_libraries_are_known_by_their_names() {
        for (name, expected) in [
            ("_ZN4core9panicking9panic_fmt17h0123456789abcdefE", true),
            ("_ZN3std9panicking20rust_panic_with_hook17h0123456789abcdefE", true),
            ("__rustc::rust_begin_unwind", true),
            ("rust_panic", true),
            ("_ZN7orchard9reconcile17h0123456789abcdefE", false),
            ("standard::reconcile", false),
            ("reconcile", false),
        ] {
            assert_eq!(is_of_panic(name), expected, "{name}");
        }
    }

    #[test]
    fn guest_panics_only_where_its_code_was_running_and_its_time_was_not_up() {
        let frames = || vec!["0: apples!eat".to_owned()];
        let decode = |backtrace| CallError::Decode { reason: "no text".to_owned(), backtrace };
        let after = Duration::from_secs(1);
        for panic in [
            CallError::Trap { reason: "unreachable".to_owned(), said: None, backtrace: frames() },
            CallError::Stack { backtrace: frames() },
            CallError::Memory { limit: MemoryLimit::Instance(1 << 20), backtrace: frames() },
            CallError::Table { backtrace: frames() },
            CallError::HostCalls { excess: Excess::Calls(1), backtrace: frames() },
            decode(frames()),
        ] {
            assert!(panic.is_panic(), "{panic:?}");
        }
        for error in [
            CallError::Deadline { after, backtrace: frames() },
            CallError::Host("no memory".to_owned()),
            CallError::Instantiate("a thousand instances".to_owned()),
            CallError::Answer("nonsense".to_owned()),
            CallError::Controller("pears".to_owned()),
            CallError::Export(Export::Mapper),
            CallError::Memory { limit: MemoryLimit::Instance(1 << 20), backtrace: Vec::new() },
            CallError::Table { backtrace: Vec::new() },
            decode(Vec::new()),
        ] {
            assert!(!error.is_panic(), "{error:?}");
        }
    }
}
