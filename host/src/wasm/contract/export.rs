//! What plugins export: `controller`, and optional interfaces.

use std::sync::atomic::{AtomicBool, Ordering};

use wasmtime::{
    Error, Store,
    component::{Component, ComponentExportIndex, Func, Instance, InstancePre, TypedFunc},
};

use super::{
    bindings::{admitting, converting, exports::pilothouse::plugin::controller, mapping, observing},
    imports::host_state::HostState,
    package::fits,
};

/// The interface that every plugin exports.
pub(crate) const CONTROLLER: &str = "controller";

/// The name of the function that nearly all calls call.
const RECONCILE: &str = "reconcile";

type ReconcileArguments<'a> = (&'a str, controller::Request<'a>);
type ReconcileAnswer = (Result<controller::Outcome, controller::Failure>,);

/// Where a component's code has `reconcile`.
///
/// The generated bindings compare the types of all functions of `controller` in each instance. That takes 1.5 µs, a fifth
/// of a call that has nothing to do. All instances of the code have the same types, so they are compared in one of them.
pub(crate) struct ReconcileIndex {
    index: ComponentExportIndex,
    /// `true` once the types were found to be the contract's.
    is_checked: AtomicBool,
}

/// `reconcile` of one instance. Its types are the contract's.
#[derive(Clone, Copy)]
pub(crate) struct Reconcile(Func);

impl ReconcileIndex {
    /// Finds the function in a component with these exports.
    pub(crate) fn new(component: &Component, exports: &[String]) -> wasmtime::Result<Self> {
        let name = exports.iter().find(|name| fits(name, CONTROLLER));
        let interface = name.and_then(|name| component.get_export_index(None, name.as_str()));
        let index = interface.and_then(|interface| component.get_export_index(Some(&interface), RECONCILE));
        let index = index.ok_or_else(|| Error::msg("`controller` has no function `reconcile`"))?;
        Ok(Self { index, is_checked: AtomicBool::new(false) })
    }

    /// Finds the function in an instance of this code.
    ///
    /// # Errors
    /// If its types are not the contract's.
    pub(crate) fn find(&self, store: &mut Store<HostState>, instance: &Instance) -> wasmtime::Result<Reconcile> {
        let found = instance.get_func(&mut *store, self.index).ok_or_else(|| Error::msg("it is not a function"))?;
        if !self.is_checked.load(Ordering::Relaxed) {
            found.typed::<ReconcileArguments<'_>, ReconcileAnswer>(store)?;
            self.is_checked.store(true, Ordering::Relaxed);
        }
        Ok(Reconcile(found))
    }
}

impl Reconcile {
    /// Calls the function with a configuration.
    #[expect(unsafe_code, reason = "the types of the code's functions are compared once, and not in each instance")]
    pub(crate) async fn call(
        self,
        store: &mut Store<HostState>,
        config: &str,
        request: controller::Request<'_>,
    ) -> wasmtime::Result<Result<controller::Outcome, controller::Failure>> {
        // SAFETY: only `ReconcileIndex::find` makes this value. An index belongs to one component, and the engine refuses
        // instances of others. So the types of this function were compared with these, in this or in another instance.
        let typed = unsafe { TypedFunc::<ReconcileArguments<'_>, ReconcileAnswer>::new_unchecked(self.0) };
        let (answer,) = typed.call_async(store, (config, request)).await?;
        Ok(answer)
    }
}

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
    use std::time::Duration;

    use wasmtime::component::Linker;

    use super::{
        super::{
            super::{limits::Limits, memory::PluginMemory},
            package::EXPORTS,
        },
        *,
    };

    #[test]
    fn only_a_function_of_the_contracts_types_in_an_instance_of_the_same_code_is_called_as_reconcile() {
        let engine = wasmtime::Engine::default();
        let exports = ["pilothouse:plugin/controller@0.1.0".to_owned()];
        let unlike = || {
            let text = r#"(component
                (core module $m (func (export "f")))
                (core instance $m (instantiate $m))
                (func $f (canon lift (core func $m "f")))
                (instance $i (export "reconcile" (func $f)))
                (export "pilothouse:plugin/controller@0.1.0" (instance $i)))"#;
            let code = wat::parse_str(text).expect("it is text of a component");
            Component::new(&engine, code).expect("it is a component")
        };
        let (component, other) = (unlike(), unlike());
        let index = ReconcileIndex::new(&component, &exports).expect("it has the function");
        let host = HostState::new(None, Limits::default(), PluginMemory::default(), Duration::ZERO);
        let mut store = Store::new(&engine, host);
        let instance = Linker::new(&engine).instantiate(&mut store, &component).expect("it needs nothing");
        let mut refused = |index: &ReconcileIndex| {
            let error = index.find(&mut store, &instance).err().expect("it is refused");
            format!("{error:#}")
        };
        for _ in 0..2 {
            let said = refused(&index);
            assert!(said.contains("type mismatch with parameters"), "{said}");
        }
        let index = ReconcileIndex { is_checked: AtomicBool::new(true), ..index };
        refused(&ReconcileIndex { index: ReconcileIndex::new(&other, &exports).expect("it has it").index, ..index });
    }

    #[test]
    fn the_names_of_exports_are_those_of_the_package() {
        let names = std::iter::once(CONTROLLER).chain(Export::ALL.map(Export::interface));
        assert!(names.eq(EXPORTS));
    }
}
