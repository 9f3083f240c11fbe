//! What plugins may import from the host, one file for each interface.
//!
//! An interface's file holds everything of it: its name and functions ([`interface!`]), the trait that says what the
//! caller of a plugin supplies for it, its implementation for [`HostState`](host_state::HostState), its bounds, and its
//! tests. An interface that needs nothing from the caller has no trait. This file registers the interfaces:
//! [`interfaces!`], [`Imports`], [`State`].

use std::sync::atomic::{AtomicU64, Ordering};

use super::package::fits;

pub(crate) mod cache;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod events;
pub(crate) mod host;
pub(crate) mod host_state;
pub(crate) mod http;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod random;
pub(crate) mod wasi;

/// Declares an interface: the enum of its functions, its name, and the functions' names.
macro_rules! interface {
    ($call:ident, $interface:literal, { $($variant:ident = $function:literal),+ $(,)? }) => {
        /// The interface's name in the contract.
        pub(super) const NAME: &str = $interface;

        #[doc = concat!("A function of `", $interface, "`.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $call {
            $(#[doc = concat!("`", $interface, ".", $function, "`")] $variant,)+
        }

        impl $call {
            /// Every function.
            pub const ALL: [Self; [$($function),+].len()] = [$(Self::$variant),+];

            /// Returns interface and function, as the contract names them.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($interface, ".", $function),)+
                }
            }
        }
    };
}
use interface;

/// Registers the interfaces of the contract: [`OFFERED`] follows from this list.
macro_rules! contract {
    ($($interface:ident($call:ident) in $module:ident;)+) => {
        /// The interfaces of the contract that a plugin may import. `types` has no functions.
        pub(crate) const OFFERED: [&str; [$($module::NAME),+].len() + 1] = [$($module::NAME,)+ "types"];

        interfaces! { $($interface($call) in $module;)+ Wasi(WasiCall) in wasi; }
    };
}

/// [`Import`] and [`CallCounts`] follow from this list.
macro_rules! interfaces {
    ($($interface:ident($call:ident) in $module:ident;)+) => {
        /// A function that plugins may import.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Import {
            $(#[doc = concat!("A function of `", stringify!($module), "`.")] $interface($module::$call),)+
        }

        impl Import {
            /// Returns every function of every interface.
            pub fn all() -> impl Iterator<Item = Self> {
                std::iter::empty()$(.chain($module::$call::ALL.map(Self::$interface)))+
            }

            /// Returns interface and function, as the contract names them: `cache.get`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$interface(call) => call.name(),)+
                }
            }
        }

        $(impl From<$module::$call> for Import {
            fn from(call: $module::$call) -> Self {
                Self::$interface(call)
            }
        })+

        /// Counts the calls of each import.
        #[derive(Debug, Default)]
        pub struct CallCounts {
            $($module: [AtomicU64; $module::$call::ALL.len()],)+
        }

        impl CallCounts {
            fn counter(&self, import: Import) -> &AtomicU64 {
                match import {
                    $(Import::$interface(call) => &self.$module[call as usize],)+
                }
            }
        }
    };
}

contract! {
    Cache(CacheCall) in cache;
    Client(ClientCall) in client;
    Clock(ClockCall) in clock;
    Events(EventsCall) in events;
    Host(HostCall) in host;
    Http(HttpCall) in http;
    Log(LogCall) in log;
    Metrics(MetricsCall) in metrics;
    Random(RandomCall) in random;
}

impl CallCounts {
    /// Counts one call.
    pub fn add(&self, import: Import) {
        self.counter(import).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of calls of each import, by its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Import::all().map(|import| (import.name(), self.counter(import).load(Ordering::Relaxed)))
    }
}

/// Returns `true` if the host offers the import `name`, in a version that fits.
pub(crate) fn offered(name: &str) -> bool {
    OFFERED.iter().any(|interface| fits(name, interface)) || wasi::offered(name)
}

/// What the imports of one call do.
///
/// The sandbox knows neither cache nor API server. The caller of a plugin supplies this value, bound to the plugin, its
/// grants and the reconcile. Methods run while the guest is suspended, on the thread and in the `tracing` span of the
/// call.
///
/// Arguments come from the guest. The host has checked names (length, not empty), selectors and field paths. Everything
/// else is unchecked: objects and patches need not be JSON.
pub trait Imports:
    cache::CacheImports
    + client::ClientImports
    + clock::ClockImports
    + events::EventsImports
    + http::HttpImports
    + log::LogImports
    + metrics::MetricsImports
    + random::RandomImports
    + Send
    + Sync
    + 'static
{
    /// Counts a call of `import`, which is within the call's limits. Runs before the import. The default does nothing.
    fn called(&self, _import: Import) {}
}

/// What the interfaces remember of an instance over all its calls.
#[derive(Default)]
pub(crate) struct InstanceState {
    wasi: wasi::Instance,
}

/// What the interfaces remember during one call into a plugin.
pub(crate) struct State {
    clock: clock::State,
    events: events::State,
    log: log::State,
    wasi: wasi::State,
}

impl State {
    /// Starts a call. `describe` has no imports.
    pub(crate) fn new(imports: Option<&dyn Imports>) -> Self {
        let clock = clock::State::new(imports);
        let wasi = wasi::State::new(imports.map(|_| clock.now));
        Self { clock, events: events::State::default(), log: log::State::default(), wasi }
    }

    /// Returns the last error that the guest logged, with its fields. Otherwise, what it wrote to stderr at the end.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.log.last_error.clone().or_else(|| self.wasi.output.quoted())
    }

    /// Ends the call. `describe` has no imports.
    pub(crate) fn finish(&mut self, imports: Option<&dyn Imports>) {
        if let Some(imports) = imports {
            self.events.finish(imports);
        }
        self.wasi.finish(&mut self.log, imports);
        self.log.finish(imports);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::collections::BTreeSet;

    use wit_parser::{Resolve, WorldItem};

    use super::*;

    #[test]
    fn offered_imports_are_those_of_the_contract() {
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_dir("../wit").unwrap();
        let world = resolve.select_world(&[package], Some("plugin")).unwrap();
        let (mut interfaces, mut functions) = (BTreeSet::new(), BTreeSet::new());
        for item in resolve.worlds[world].imports.values() {
            let WorldItem::Interface { id, .. } = item else { continue };
            let interface = &resolve.interfaces[*id];
            let name = interface.name.clone().unwrap();
            functions.extend(interface.functions.keys().map(|function| format!("{name}.{function}")));
            interfaces.insert(name);
        }
        assert_eq!(BTreeSet::from(OFFERED.map(str::to_owned)), interfaces);
        let offered = Import::all().filter(|import| !matches!(import, Import::Wasi(_)));
        assert_eq!(offered.map(|import| import.name().to_owned()).collect::<BTreeSet<_>>(), functions);
    }

    #[test]
    fn each_import_has_a_counter_of_its_own() {
        let counts = CallCounts::default();
        for (import, times) in Import::all().zip(1..) {
            (0..times).for_each(|_| counts.add(import));
        }
        let counted: Vec<_> = counts.iter().collect();
        assert_eq!(counted, Import::all().map(Import::name).zip(1..).collect::<Vec<_>>());
    }
}
