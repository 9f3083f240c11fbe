//! What plugins export: `controller`, and optional interfaces.

use wasmtime::{
    Store,
    component::{Instance, InstancePre},
};

use super::{
    bindings::{admitting, converting, mapping, observing},
    imports::host_state::HostState,
    package::fits,
};

/// The interface that every plugin exports.
pub(crate) const CONTROLLER: &str = "controller";

/// Declares the optional exports: each with its name in the contract, and the types that `bindings` generates for its
/// world.
macro_rules! exports {
    ($($(#[$doc:meta])* $export:ident = $interface:literal, $world:ident::{$indices:ident, $bound:ident};)+) => {
        /// An interface that a plugin may export beside `controller`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Export {
            $($(#[$doc])* $export,)+
        }

        impl Export {
            /// Every optional export.
            pub const ALL: [Self; [$($interface),+].len()] = [$(Self::$export),+];

            /// Returns the interface's name in the contract.
            pub fn interface(self) -> &'static str {
                match self {
                    $(Self::$export => $interface,)+
                }
            }
        }

        /// Where a component's code has an optional export.
        pub(crate) enum Indices {
            $($export($world::$indices),)+
        }

        impl Indices {
            pub(crate) fn new(export: Export, code: &InstancePre<HostState>) -> wasmtime::Result<Self> {
                Ok(match export {
                    $(Export::$export => Self::$export($world::$indices::new(code)?),)+
                })
            }

            pub(crate) fn bind(&self, store: &mut Store<HostState>, instance: &Instance) -> wasmtime::Result<Bound> {
                Ok(match self {
                    $(Self::$export(indices) => Bound::$export(indices.load(store, instance)?),)+
                })
            }
        }

        /// An optional export of one instance, ready to be called.
        pub(crate) enum Bound {
            $($export($world::$bound),)+
        }
    };
}

exports! {
    /// Maps changed objects to keys.
    Mapper = "mapper", mapping::{MappingIndices, Mapping};
    /// Receives changes.
    Observer = "observer", observing::{ObservingIndices, Observing};
    /// Reviews requests to the API server.
    Admission = "admission", admitting::{AdmittingIndices, Admitting};
    /// Converts objects between versions.
    Conversion = "conversion", converting::{ConvertingIndices, Converting};
}

/// One value for each optional export that is there.
pub(crate) struct PerExport<T>([Option<T>; Export::ALL.len()]);

impl<T> PerExport<T> {
    /// Creates the values of the exports for which `new` returns one.
    pub(crate) fn new<E>(mut new: impl FnMut(Export) -> Result<Option<T>, E>) -> Result<Self, E> {
        let mut values = [const { None }; Export::ALL.len()];
        for (export, value) in Export::ALL.into_iter().zip(&mut values) {
            *value = new(export)?;
        }
        Ok(Self(values))
    }

    pub(crate) fn get(&self, export: Export) -> Option<&T> {
        self.0[export as usize].as_ref()
    }

    pub(crate) fn slot(&mut self, export: Export) -> &mut Option<T> {
        &mut self.0[export as usize]
    }
}

impl<T> Default for PerExport<T> {
    fn default() -> Self {
        Self([const { None }; Export::ALL.len()])
    }
}

/// Returns `true` if a component with these exports has `interface`, in a version that fits.
pub(crate) fn has(exports: &[String], interface: &str) -> bool {
    exports.iter().any(|name| fits(name, interface))
}

/// Says what a component exports instead of [`CONTROLLER`].
pub(crate) fn found(exports: &[String]) -> String {
    let is_controller = |name: &&String| name.starts_with("pilothouse:plugin/controller@");
    if let Some(other) = exports.iter().find(is_controller) {
        return format!("it was built for another version of the contract, and exports {other}");
    }
    match exports {
        [] => "it exports nothing".to_owned(),
        names => format!("it exports {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::package::EXPORTS, *};

    #[test]
    fn the_names_of_exports_are_those_of_the_package() {
        let names = std::iter::once(CONTROLLER).chain(Export::ALL.map(Export::interface));
        assert!(names.eq(EXPORTS));
    }
}
