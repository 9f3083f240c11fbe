//! `log`: lines that plugins write.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use wasmtime::Result;

use super::{
    super::{
        bindings::pilothouse::plugin::log,
        text::{MAX_MESSAGE, shorten},
    },
    Imports,
    host_state::HostState,
    interface,
};
pub use crate::wasm::contract::bindings::pilothouse::plugin::log::Level;

/// The target of the events of plugins' lines.
pub const LOG_TARGET: &str = "pilothouse::plugin_log";

/// The field of such an event with the fields of the line.
pub const LOG_FIELDS: &str = "fields";

interface!(LogCall, "log", { Write = "write" });

/// What the caller supplies for `log`.
pub trait LogImports {
    /// Logs a line. The default sends it to `tracing`, in the call's span.
    fn log(&self, line: &LogLine) {
        line.emit();
    }
}

/// What `log` remembers during one call.
#[derive(Default)]
pub(super) struct State {
    lines: u32,
    /// The last error that the guest logged, with its fields.
    pub(super) last_error: Option<String>,
}

impl State {
    /// Logs a line, unless the call has logged too many. `describe` has no imports.
    pub(super) fn add(&mut self, line: &LogLine, imports: Option<&dyn Imports>) {
        self.lines = self.lines.saturating_add(1);
        if self.lines <= LogLine::MAX_LINES {
            log(line, imports);
        }
    }

    /// Returns `true` if further lines are dropped.
    pub(super) fn is_full(&self) -> bool {
        self.lines >= LogLine::MAX_LINES
    }

    /// Counts lines as dropped.
    pub(super) fn drop_lines(&mut self, count: u32) {
        self.lines = self.lines.saturating_add(count);
    }

    /// Logs how many lines of the call were dropped, if any were.
    pub(super) fn finish(&self, imports: Option<&dyn Imports>) {
        if let Some(dropped @ 1..) = self.lines.checked_sub(LogLine::MAX_LINES) {
            let fields = vec![("dropped".to_owned(), dropped.to_string())];
            log(&LogLine::new(Level::Warn, "plugin logged too many lines in one call".to_owned(), fields), imports);
        }
    }
}

impl log::Host for HostState {
    fn write(&mut self, level: Level, message: String, fields: Vec<(String, String)>) -> Result<()> {
        let bytes = line_bytes(&message, &fields);
        let line = LogLine::new(level, message, fields);
        // Before the limits: a guest's last line may be why it dies.
        if matches!(line.level, Level::Error) {
            self.call.interfaces.log.last_error = Some(shorten(line.to_string(), MAX_MESSAGE));
        }
        let imports = self.open(LogCall::Write, bytes)?;
        self.call.interfaces.log.add(&line, Some(&*imports));
        Ok(())
    }
}

fn log(line: &LogLine, imports: Option<&dyn Imports>) {
    match imports {
        Some(imports) => imports.log(line),
        None => line.emit(),
    }
}

/// Returns a guest's text without control characters.
pub(super) fn escaped(text: &str) -> String {
    Escaped(text).to_string()
}

fn line_bytes(message: &str, fields: &[(String, String)]) -> usize {
    message.len() + fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

/// A log line of a plugin, within bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// Its severity.
    pub level: Level,
    /// The message, by convention a constant text.
    pub message: String,
    /// Names and values, in the plugin's order.
    pub fields: Vec<(String, String)>,
}

impl LogLine {
    /// Bytes of a message.
    pub const MAX_MESSAGE: usize = 4 << 10;
    /// Fields of a line.
    pub const MAX_FIELDS: usize = 32;
    /// Bytes of a field's name.
    pub const MAX_NAME: usize = 64;
    /// Bytes of a field's value.
    pub const MAX_VALUE: usize = 1 << 10;
    /// Lines of one call.
    pub const MAX_LINES: u32 = 256;

    /// Creates a line, and cuts message and fields to the bounds.
    pub fn new(level: Level, message: String, fields: Vec<(String, String)>) -> Self {
        let fields = fields
            .into_iter()
            .take(Self::MAX_FIELDS)
            .map(|(name, value)| (shorten(name, Self::MAX_NAME), shorten(value, Self::MAX_VALUE)))
            .collect();
        Self { level, message: shorten(message, Self::MAX_MESSAGE), fields }
    }

    /// Returns the bytes of the line as text.
    pub fn shown(&self) -> usize {
        struct Count(usize);
        impl fmt::Write for Count {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0 += text.len();
                Ok(())
            }
        }
        let mut count = Count(0);
        fmt::Write::write_fmt(&mut count, format_args!("{self}")).expect("it takes everything");
        count.0
    }

    /// Returns `true` if lines of this level are logged.
    pub fn is_wanted(&self) -> bool {
        macro_rules! wanted {
            ($($level:ident => $of:ident),*) => {
                match self.level {
                    $(Level::$level => tracing::enabled!(target: LOG_TARGET, tracing::Level::$of),)*
                }
            };
        }
        wanted!(Error => ERROR, Warn => WARN, Info => INFO, Debug => DEBUG, Trace => TRACE)
    }

    /// Sends the line to `tracing`, under [`LOG_TARGET`] and in the current span. [`LOG_FIELDS`] is text, or with
    /// `{:#}` a JSON object.
    pub fn emit(&self) {
        macro_rules! emit {
            ($($level:ident => $macro:ident),*) => {
                match self.level {
                    $(Level::$level => {
                        tracing::$macro!(target: LOG_TARGET, fields = %Fields(&self.fields), "{}", Escaped(&self.message));
                    })*
                }
            };
        }
        emit!(Error => error, Warn => warn, Info => info, Debug => debug, Trace => trace);
    }
}

/// The line as text: `scaled from=3 to=5`.
impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blank = if self.fields.is_empty() { "" } else { " " };
        write!(f, "{}{blank}{}", Escaped(&self.message), Fields(&self.fields))
    }
}

/// `from=3 to=5`; values with a blank are quoted. As alternate, `{"from":"3","to":"5"}`.
struct Fields<'a>(&'a [(String, String)]);

impl Fields<'_> {
    /// Returns the fields as a JSON object. Later fields of a name get a number, because many readers keep only one of
    /// them.
    fn to_json(&self) -> String {
        let mut all = BTreeMap::<Cow<'_, str>, Cow<'_, str>>::new();
        for (name, value) in self.0 {
            let name = harmless(name);
            let numbered = (2..).map(|number| Cow::Owned(format!("{name}_{number}")));
            let mut names = std::iter::once(name.clone()).chain(numbered);
            if let Some(free) = names.find(|name| !all.contains_key(name)) {
                all.insert(free, harmless(value));
            }
        }
        serde_json::to_string(&all).unwrap_or_default()
    }
}

/// Returns a text for JSON, which escapes only the control characters of ASCII.
fn harmless(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c >= '\u{7f}';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| if steers(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escape).collect())
}

impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.write_str(&self.to_json());
        }
        for (n, (name, value)) in self.0.iter().enumerate() {
            let blank = if n == 0 { "" } else { " " };
            if value.is_empty() || value.contains([' ', '"', '=']) {
                write!(f, "{blank}{}={value:?}", Escaped(name))?;
            } else {
                write!(f, "{blank}{}={}", Escaped(name), Escaped(value))?;
            }
        }
        Ok(())
    }
}

/// A guest's text without control characters: it can neither start a new log line nor control a terminal.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                fmt::Write::write_char(f, c)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::{
        super::{
            super::super::{limits::Limits, memory::PluginMemory, testing::Fake},
            host_state::Excess,
        },
        *,
    };

    #[test]
    fn bytes_from_a_guest_count_like_bytes_to_it() {
        let limits = Limits { host_bytes: 1 << 20, ..Limits::default() };
        let imports = Arc::new(Fake::default());
        let mut state = HostState::new(Some(imports), limits, PluginMemory::default(), Duration::from_secs(1));
        let mut write = |bytes: usize| log::Host::write(&mut state, Level::Info, "x".repeat(bytes), Vec::new());
        write(1 << 19).unwrap();
        write(1 << 19).unwrap();
        let excess = write(1).unwrap_err();
        assert_eq!(excess.downcast_ref(), Some(&Excess::Bytes(1 << 20)));
    }

    #[test]
    fn every_text_is_measured() {
        assert_eq!(line_bytes("1", &[("22".to_owned(), "333".to_owned())]), 6);
    }

    #[test]
    fn log_line_is_bounded() {
        let long = "x".repeat(10_000);
        let line = LogLine::new(Level::Info, long.clone(), vec![(long.clone(), long); 100]);
        assert_eq!(line.message.len(), LogLine::MAX_MESSAGE);
        assert_eq!(line.fields.len(), LogLine::MAX_FIELDS);
        assert!(line.fields.iter().all(|(n, v)| n.len() == LogLine::MAX_NAME && v.len() == LogLine::MAX_VALUE));
    }

    #[test]
    fn guests_text_cannot_begin_a_line_or_steer_a_terminal() {
        assert_eq!(Escaped("a\nERROR b\u{1b}[2J ä").to_string(), r"a\nERROR b\u{1b}[2J ä");
        let fields = vec![("from".to_owned(), "3".to_owned()), ("why\n".to_owned(), "a \"b\"\n".to_owned())];
        let line = LogLine::new(Level::Info, "scaled\r".to_owned(), fields);
        assert_eq!(line.to_string(), r#"scaled\r from=3 why\n="a \"b\"\n""#);
        let line = LogLine::new(Level::Info, "scaled".to_owned(), Vec::new());
        assert_eq!(line.to_string(), "scaled");
    }
}
