//! Why a call came to nothing.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use super::{
    super::memory::{Limiter, MAX_TABLE_ELEMENTS, MemoryLimit},
    call::shorten,
    export::Export,
    host_state::{Closed, Excess},
};

/// The innermost calls of a guest that are told: deeper ones seldom say more.
const FRAMES: usize = 10;

/// Bytes of a call's line: names come from the guest, and those of generic functions fill pages.
const FRAME: usize = 200;

/// A plugin that loads but does not say what it is.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// The call itself came to nothing.
    #[error("cannot call describe")]
    Call(#[from] CallError),
    /// The plugin's own refusal, as a rule of its configuration.
    #[error("the plugin refuses its configuration: {0}")]
    Refused(String),
    /// A manifest that cannot be used; all that is wrong with it.
    #[error(transparent)]
    Manifest(#[from] pilothouse_core::manifest::Invalid),
}

impl DescribeError {
    /// One word for metrics: [`CallError::kind`], `refused` or `manifest`.
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

/// A call into a plugin that came to nothing. The instance is gone; the next call has a fresh one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The manifest has no controller of this name.
    #[error("plugin has no controller {0:?}")]
    Controller(String),
    /// The component does not export this interface. Whoever was described needs no more than it exports.
    #[error("plugin does not export {}", .0.interface())]
    Export(Export),
    /// Ran, or waited for the API server, for too long.
    #[error("plugin was stopped at its deadline of {} ms", .after.as_millis())]
    Deadline {
        /// What it had.
        after: Duration,
        /// Where it was, innermost call first; empty where it was waiting.
        backtrace: Vec<String>,
    },
    /// Wanted more memory than it may have, and gave up.
    #[error("{}", match limit {
        MemoryLimit::Instance(bytes) => format!("plugin hit its memory limit of {} MiB", bytes >> 20),
        MemoryLimit::Plugin(bytes) => format!("plugin's instances together hit their memory limit of {} MiB", bytes >> 20),
    })]
    Memory {
        /// Which limit, and the bytes that it allows.
        limit: MemoryLimit,
        /// Where it gave up, innermost call first; empty where an instance begins with too much.
        backtrace: Vec<String>,
    },
    /// Called too deep.
    #[error("plugin overflowed its stack")]
    Stack {
        /// The innermost calls.
        backtrace: Vec<String>,
    },
    /// Died of a fault of its own, a panic for one.
    #[error("plugin trapped: {reason}{}", Said(said.as_deref()))]
    Trap {
        /// The engine's word for it.
        reason: String,
        /// The last error that the plugin logged in this call: a panic message, as a rule.
        said: Option<String>,
        /// Innermost call first.
        backtrace: Vec<String>,
    },
    /// Called an import from `describe`.
    #[error("plugin called {import} from describe, where no import may be called{}", Said(said.as_deref()))]
    Import {
        /// Interface and function, such as `cache.get`.
        import: &'static str,
        /// The message, where it was `log.write`.
        said: Option<String>,
        /// Where it called that, innermost call first.
        backtrace: Vec<String>,
    },
    /// Wanted larger tables than it may have, and gave up.
    #[error("plugin hit its limit of {MAX_TABLE_ELEMENTS} table elements")]
    Table {
        /// As of [`CallError::Memory`].
        backtrace: Vec<String>,
    },
    /// Called the host too often, or exchanged too much with it.
    #[error("plugin {excess}")]
    HostCalls {
        /// Of what, and the limit.
        excess: Excess,
        /// Where it was, innermost call first.
        backtrace: Vec<String>,
    },
    /// No instance could be made.
    #[error("cannot instantiate the plugin: {0}")]
    Instantiate(String),
    /// The host is short of something that an instance takes: the plugin can do nothing about it.
    #[error("the host cannot make an instance: {0}")]
    Host(String),
    /// What it returned is not what the contract says, or is too much.
    #[error("plugin gave an unusable answer: {0}")]
    Answer(String),
    /// Handed over a text that is no UTF-8, or a child or a status that is no JSON object.
    #[error("plugin handed over what cannot be read: {reason}")]
    Decode {
        /// What, and what is wrong with it.
        reason: String,
        /// Where it called an import with it, innermost call first; empty for an answer.
        backtrace: Vec<String>,
    },
}

pub(crate) struct Said<'a>(pub(crate) Option<&'a str>);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |text| write!(f, "; it said: {text}"))
    }
}

impl CallError {
    /// One word for metrics: `deadline`, `memory`, `stack`, `table`, `host-calls`, `trap`, `import`, `instantiate`, `host`, `answer`, `decode`,
    /// `controller` or `export`.
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

    /// Whether the guest died in the middle of its code, as a native function does of a panic. It did not where it never began, gave an
    /// answer that is of no use, or was stopped at its deadline.
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

    /// The guest's innermost calls when it ended, at most ten, innermost first; empty where they are not known.
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

    /// Reads what the engine says of a failed call.
    pub(crate) fn of(error: &wasmtime::Error, stage: Stage, call: &Ended<'_>) -> Self {
        let said = || call.said.map(str::to_owned);
        let backtrace = || frames(error);
        if let Some(Closed(import)) = error.downcast_ref() {
            return Self::Import { import: import.name(), said: said(), backtrace: backtrace() };
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
        // A guest that is refused memory gives up by `unreachable`, if it gives up; any other trap has another reason.
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
            // Most languages have a stack of their own in memory, at whose end nobody stands: below it there is nothing.
            (Some(wasmtime::Trap::MemoryOutOfBounds), _) if calls_itself(error) => Self::Trap {
                reason: format!("{reason}, perhaps as the stack in its memory is used up: it calls itself"),
                said: said(),
                backtrace: backtrace(),
            },
            (Some(_), _) => Self::Trap { reason, said: said(), backtrace: backtrace() },
            // Inside a guest's own frames it is an import's argument that could not be read.
            (None, _) if error.is::<wasmtime::WasmBacktrace>() => {
                Self::Trap { reason, said: said(), backtrace: backtrace() }
            }
            (None, Stage::Instantiate) if is_shortage(error) => Self::Host(reason),
            (None, Stage::Instantiate) => Self::Instantiate(reason),
            (None, Stage::Call) => Self::Answer(reason),
        }
    }
}

/// Which part of a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Instantiate,
    Call,
}

/// What is known of a call that ended.
pub(crate) struct Ended<'a> {
    pub(crate) budget: Duration,
    pub(crate) limits: &'a Limiter,
    pub(crate) said: Option<&'a str>,
}

/// The engine's word for it.
fn reason(error: &wasmtime::Error) -> String {
    let reason = error.root_cause().to_string();
    reason.strip_prefix("wasm trap: ").unwrap_or(&reason).to_owned()
}

/// The causes of an engine's error in one line.
pub(crate) fn chain(error: &wasmtime::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether the guest handed over more than [`MAX_TRANSFER`](super::super::MAX_TRANSFER): the engine has only words for that.
fn is_too_much_at_once(error: &wasmtime::Error) -> bool {
    error.root_cause().to_string().starts_with("too much data is being copied between the host and the guest")
}

/// Whether a text of the guest's is none: its bytes are no UTF-8, or what else its strings are encoded as.
fn is_no_text(error: &wasmtime::Error) -> bool {
    error.chain().any(|cause| cause.is::<std::str::Utf8Error>() || cause.is::<std::char::DecodeUtf16Error>())
}

/// Whether the machine did not give what was asked of it, whatever that was for: memory, address space, a slot of the pool.
pub(crate) fn is_shortage(error: &wasmtime::Error) -> bool {
    error.is::<wasmtime::PoolConcurrencyLimitError>()
        || error.chain().any(|cause| {
            cause.is::<wasmtime::OutOfMemory>() || cause.is::<rustix::io::Errno>() || cause.is::<std::io::Error>()
        })
}

/// Whether the innermost calls are all of one function.
fn calls_itself(error: &wasmtime::Error) -> bool {
    const CALLS: usize = 4;
    let Some(backtrace) = error.downcast_ref::<wasmtime::WasmBacktrace>() else { return false };
    let mut innermost = backtrace.frames().iter().take(CALLS).map(wasmtime::FrameInfo::func_index);
    let Some(first) = innermost.next() else { return false };
    backtrace.frames().len() >= CALLS && innermost.all(|other| other == first)
}

/// A line for each of the guest's innermost frames: `0: 0x1b2c - apples!orchard::reconcile`. Names are the guest's, of any length, and what a
/// short one of C++ stands for may be endless: only Rust's are spelt out, and no further than they are shown.
fn frames(error: &wasmtime::Error) -> Vec<String> {
    let Some(backtrace) = error.downcast_ref::<wasmtime::WasmBacktrace>() else { return Vec::new() };
    let lines = backtrace.frames().iter().take(FRAMES).enumerate().map(|(number, frame)| {
        let mut line = Line(String::new());
        // It is full, which its end shows.
        let _ = write_frame(&mut line, number, frame);
        shorten(line.0, FRAME)
    });
    lines.collect()
}

fn write_frame(line: &mut Line, number: usize, frame: &wasmtime::FrameInfo) -> fmt::Result {
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

fn write_name(line: &mut Line, name: &str) -> fmt::Result {
    match rustc_demangle::try_demangle(name) {
        Ok(name) => write!(line, "{name:#}"),
        Err(_) => line.write_str(name),
    }
}

/// One line, which takes a little more than is shown of it.
struct Line(String);

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = (FRAME + 1).saturating_sub(self.0.len());
        let end = text.ceil_char_boundary(room.min(text.len()));
        self.0.extend(text.get(..end).unwrap_or_default().chars().map(|c| if c.is_control() { ' ' } else { c }));
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::memory::Held, *};

    #[test]
    fn what_the_machine_is_short_of_is_told_from_what_a_plugin_asks_for() {
        let limits = Limiter::new(1 << 20, 1 << 20, Held::default());
        let said = |error: &wasmtime::Error| {
            let call = Ended { budget: Duration::from_secs(1), limits: &limits, said: None };
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
            let mut line = Line(String::new());
            let fits = write_name(&mut line, name).is_ok();
            (line.0, fits)
        };
        assert_eq!(said("_ZN7orchard9reconcile17h0123456789abcdefE"), ("orchard::reconcile".to_owned(), true));
        assert_eq!(said("eat\u{1b}[2J"), ("eat [2J".to_owned(), true));
        // Not Rust's.
        assert_eq!(said("_Z1fPFviiES_S_"), ("_Z1fPFviiES_S_".to_owned(), true));
        let (line, fits) = said(&"ä".repeat(1 << 20));
        assert!(!fits && (FRAME + 1..FRAME + 8).contains(&line.len()), "{}", line.len());
    }

    /// Types of two types, of which each names the one before: four billion in the last.
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
        let mut line = Line(String::new());
        assert!(write_name(&mut line, &format!("_R{name}E")).is_err());
        assert!(line.0.starts_with("a::f::<(i32, i32), ((i32, i32), (i32, i32)), (((i32, i32),"), "{}", line.0);
        assert!(line.0.len() < FRAME + 8, "{}", line.0.len());
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
