//! How a guest reaches the host: the [`Imports`] of one call.
//!
//! The sandbox knows neither cache nor API server. Whoever starts a call hands in what its imports do, bound to the plugin, its
//! grants and the reconcile at hand; tests hand in a fake.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use pilothouse_core::{
    field::FieldPath,
    key::{Key, TypeMeta},
    object::{Object, Subresource},
    selector::Selector,
};

pub use super::bindings::pilothouse::plugin::{
    cache::ReadError,
    client::{Error as ClientError, PatchBody, Preconditions, Propagation, Reason, StatusError},
    log::Level,
};

/// A function that guests may import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Import {
    /// `cache.get`
    CacheGet,
    /// `cache.list`
    CacheList,
    /// `cache.keys`
    CacheKeys,
    /// `client.get`
    ClientGet,
    /// `client.create`
    ClientCreate,
    /// `client.update`
    ClientUpdate,
    /// `client.patch`
    ClientPatch,
    /// `client.apply`
    ClientApply,
    /// `client.delete`
    ClientDelete,
    /// `clock.now`
    ClockNow,
    /// `log.write`
    LogWrite,
}

impl Import {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::CacheGet,
        Self::CacheList,
        Self::CacheKeys,
        Self::ClientGet,
        Self::ClientCreate,
        Self::ClientUpdate,
        Self::ClientPatch,
        Self::ClientApply,
        Self::ClientDelete,
        Self::ClockNow,
        Self::LogWrite,
    ];

    /// Interface and function, as the contract names them.
    pub fn name(self) -> &'static str {
        match self {
            Self::CacheGet => "cache.get",
            Self::CacheList => "cache.list",
            Self::CacheKeys => "cache.keys",
            Self::ClientGet => "client.get",
            Self::ClientCreate => "client.create",
            Self::ClientUpdate => "client.update",
            Self::ClientPatch => "client.patch",
            Self::ClientApply => "client.apply",
            Self::ClientDelete => "client.delete",
            Self::ClockNow => "clock.now",
            Self::LogWrite => "log.write",
        }
    }
}

/// What a guest's imports do during one call.
///
/// Methods run while the guest is suspended, on the thread and in the `tracing` span of the call. Arguments come from the guest: what names
/// something is no longer than names are, and no object's name is empty; selectors and field paths are read. They are otherwise unchecked:
/// objects and patches need not be JSON.
pub trait Imports: Send + Sync + 'static {
    /// The guest calls this, within its limits; what it does comes next. To be counted: the default does nothing.
    fn called(&self, _import: Import) {}

    /// Milliseconds since 1970-01-01T00:00:00Z. Asked once, when the call begins: the guest sees that value all through it.
    fn now(&self) -> u64;

    /// `cache.get`: the cached object, if there is one.
    ///
    /// # Errors
    /// Not granted, or not cached for this plugin, or larger than a page.
    fn cached(&self, of: &TypeMeta, key: &Key) -> Result<Option<Arc<Object>>, ReadError>;

    /// `cache.list`: one page of cached objects, at most 4 MiB of JSON.
    ///
    /// # Errors
    /// Not granted, not cached for this plugin, unusable in some part, or an object that is larger than a page.
    fn cached_list(&self, query: &Query) -> Result<Page, ReadError>;

    /// `cache.keys`: one page of the keys of cached objects.
    ///
    /// # Errors
    /// Not granted, not cached for this plugin, or unusable in some part.
    fn cached_keys(&self, query: &Query) -> Result<KeyPage, ReadError>;

    /// `client.get`: straight from the API server.
    fn get(&self, of: TypeMeta, key: Key) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// `client.create`.
    fn create(&self, object: String) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// `client.update`: replaces the object or the subresource.
    fn update(
        &self,
        object: String,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// `client.patch`.
    fn patch(
        &self,
        of: TypeMeta,
        key: Key,
        body: PatchBody,
        subresource: Option<Subresource>,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// `client.apply`: server-side apply.
    fn apply(
        &self,
        object: String,
        subresource: Option<Subresource>,
        force: bool,
    ) -> BoxFuture<'_, Result<Arc<Object>, ClientError>>;

    /// `client.delete`.
    fn delete(
        &self,
        of: TypeMeta,
        key: Key,
        propagation: Propagation,
        preconditions: Preconditions,
    ) -> BoxFuture<'_, Result<(), ClientError>>;

    /// `log.write`, already bounded. The default sends it to `tracing`, in the call's span.
    fn log(&self, line: &LogLine) {
        line.emit();
    }
}

/// Which cached objects.
#[derive(Debug, Clone)]
pub struct Query {
    /// Their kind.
    pub of: TypeMeta,
    /// None: every namespace that is granted.
    pub namespace: Option<String>,
    /// Only those it matches.
    pub labels: Selector,
    /// Only those that this index holds under this value.
    pub index: Option<(String, String)>,
    /// Field paths to keep; empty: whole objects.
    pub fields: Vec<FieldPath>,
    /// At most so many; 0: 500 objects, 10 000 keys.
    pub limit: u32,
    /// [`Page::next`] of the page before.
    pub after: Option<String>,
}

/// Objects in the order of namespace, then name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects as JSON text, as far as they were asked for.
    pub items: Vec<String>,
    /// Where the next page begins; none: this was the last.
    pub next: Option<String>,
}

/// Keys in the order of namespace, then name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys.
    pub items: Vec<Key>,
    /// Where the next page begins; none: this was the last.
    pub next: Option<String>,
}

/// A line that a plugin wrote, cut to the bounds of [`LogLine::new`].
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// How much it matters.
    pub level: Level,
    /// Constant text.
    pub message: String,
    /// What varies, as the plugin ordered it.
    pub fields: Vec<(String, String)>,
}

impl LogLine {
    /// Bytes of a message that are kept.
    pub const MAX_MESSAGE: usize = 4 << 10;
    /// Fields that are kept.
    pub const MAX_FIELDS: usize = 32;
    /// Bytes of a field's name that are kept.
    pub const MAX_NAME: usize = 64;
    /// Bytes of a field's value that are kept.
    pub const MAX_VALUE: usize = 1 << 10;
    /// Lines of one call that are kept.
    pub const MAX_LINES: u32 = 256;

    /// A line with message and fields cut to what a log should hold.
    pub fn new(level: Level, message: String, fields: Vec<(String, String)>) -> Self {
        use super::call::shorten;
        let fields = fields
            .into_iter()
            .take(Self::MAX_FIELDS)
            .map(|(name, value)| (shorten(name, Self::MAX_NAME), shorten(value, Self::MAX_VALUE)))
            .collect();
        Self { level, message: shorten(message, Self::MAX_MESSAGE), fields }
    }

    /// Bytes of it as people read it.
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

    /// Whether somebody listens to lines of its level.
    pub fn is_wanted(&self) -> bool {
        macro_rules! wanted {
            ($($level:ident => $of:ident),*) => {
                match self.level {
                    $(Level::$level => tracing::enabled!(target: "pilothouse::plugin_log", tracing::Level::$of),)*
                }
            };
        }
        wanted!(Error => ERROR, Warn => WARN, Info => INFO, Debug => DEBUG, Trace => TRACE)
    }

    /// Sends the line to `tracing`, under the target `pilothouse::plugin_log` and in the current span.
    pub fn emit(&self) {
        macro_rules! emit {
            ($($level:ident => $macro:ident),*) => {
                match self.level {
                    $(Level::$level => {
                        tracing::$macro!(target: "pilothouse::plugin_log", fields = %Fields(&self.fields), "{}", Escaped(&self.message));
                    })*
                }
            };
        }
        emit!(Error => error, Warn => warn, Info => info, Debug => debug, Trace => trace);
    }
}

/// The line as people read it: `scaled from=3 to=5`.
impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blank = if self.fields.is_empty() { "" } else { " " };
        write!(f, "{}{blank}{}", Escaped(&self.message), Fields(&self.fields))
    }
}

/// `from=3 to=5`; values that hold a blank are quoted.
struct Fields<'a>(&'a [(String, String)]);

impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// Text of a guest without control characters, so that it can neither begin a line of its own nor steer a terminal.
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
mod tests {
    use super::*;

    #[test]
    fn each_import_stands_at_its_number() {
        for (number, import) in Import::ALL.iter().enumerate() {
            assert_eq!(*import as usize, number);
        }
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
