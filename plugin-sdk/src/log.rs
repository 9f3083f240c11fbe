//! Writes lines to the host's log: a constant message, and fields for the values that vary.
//!
//! The host adds the plugin, the controller, the key and the id of the reconcile.
//!
//! ```no_run
//! let (from, to) = (3, 5);
//! pilothouse_sdk::info!("scaled", from = from, to = to);
//! pilothouse_sdk::warn!("the old name is still in use");
//! ```
//!
//! A field's value is anything with `Display`. For other types, use `format_args!("{x:?}")`.

pub use crate::contract::pilothouse::plugin::log::Level;
use crate::host;

host::interface!(log {
    fn write(level: Level, message: &str, fields: &[(String, String)]);
});

/// Writes a line. The macros [`error!`](crate::error!), [`warn!`](crate::warn!), [`info!`](crate::info!),
/// [`debug!`](crate::debug!) and [`trace!`](crate::trace!) are shorter.
pub fn write(level: Level, message: &str, fields: &[(String, String)]) {
    import::write(level, message, fields);
}

/// Writes a line at a level: `log!(Level::Info, "scaled", from = 3, to = 5)`.
#[macro_export]
macro_rules! log {
    ($level:expr, $message:expr $(, $field:ident = $value:expr)* $(,)?) => {
        $crate::log::write($level, $message, &[
            $((
                ::std::string::String::from(::std::stringify!($field)),
                ::std::string::ToString::to_string(&$value),
            )),*
        ])
    };
}

/// Writes a line at level `error`: something failed, and somebody should look at it.
#[macro_export]
macro_rules! error {
    ($($line:tt)+) => { $crate::log!($crate::log::Level::Error, $($line)+) };
}

/// Writes a line at level `warn`: something is wrong, but the plugin goes on.
#[macro_export]
macro_rules! warn {
    ($($line:tt)+) => { $crate::log!($crate::log::Level::Warn, $($line)+) };
}

/// Writes a line at level `info`: something happened.
#[macro_export]
macro_rules! info {
    ($($line:tt)+) => { $crate::log!($crate::log::Level::Info, $($line)+) };
}

/// Writes a line at level `debug`: details that help to find a mistake.
#[macro_export]
macro_rules! debug {
    ($($line:tt)+) => { $crate::log!($crate::log::Level::Debug, $($line)+) };
}

/// Writes a line at level `trace`: each step.
#[macro_export]
macro_rules! trace {
    ($($line:tt)+) => { $crate::log!($crate::log::Level::Trace, $($line)+) };
}
