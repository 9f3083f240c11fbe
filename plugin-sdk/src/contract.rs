//! The contract (`wit/`) as wit-bindgen renders it: the types that cross the border, the host's functions, and the exports.
//!
//! Everything else in this crate stands on it. A plugin needs it only for what the rest does not wrap: [`crate::plugin`]
//! turns one function into the [`Guest`] that [`export!`] puts into the component.
//!
//! What only some plugins export has a module of its own, [`mapping`] and [`observing`], and a macro of its own: a component
//! that does not call it has no such export.
//!
//! The types are the same natively and in the sandbox. The functions are not: natively they have no host behind them, so
//! call them through [`crate::Context`], which [`crate::mock`] knows how to answer.
//!
//! [`Guest`]: exports::pilothouse::plugin::controller::Guest

#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::semicolon_if_nothing_returned,
    clippy::uninlined_format_args,
    reason = "generated; the ABI of the component model needs unsafe code"
)]

wit_bindgen::generate!({
    path: "../wit",
    world: "plugin",
    additional_derives: [Clone, PartialEq, Eq, PartialOrd, Ord, Hash],
    generate_unused_types: true,
    pub_export_macro: true,
    export_macro_name: "export",
    default_bindings_module: "::pilothouse_sdk::contract",
    runtime_path: "::wit_bindgen::rt",
});

/// The export `mapper`.
pub mod mapping {
    wit_bindgen::generate!({
        path: "../wit",
        world: "mapping",
        with: { "pilothouse:plugin/types@0.1.0": crate::contract::pilothouse::plugin::types },
        additional_derives: [Clone, PartialEq, Eq, PartialOrd, Ord, Hash],
        generate_unused_types: true,
        pub_export_macro: true,
        export_macro_name: "export_mapper",
        default_bindings_module: "::pilothouse_sdk::contract::mapping",
        runtime_path: "::wit_bindgen::rt",
    });
}

/// The export `observer`.
pub mod observing {
    wit_bindgen::generate!({
        path: "../wit",
        world: "observing",
        with: { "pilothouse:plugin/types@0.1.0": crate::contract::pilothouse::plugin::types },
        additional_derives: [Clone, PartialEq, Eq, PartialOrd, Ord, Hash],
        generate_unused_types: true,
        pub_export_macro: true,
        export_macro_name: "export_observer",
        default_bindings_module: "::pilothouse_sdk::contract::observing",
        runtime_path: "::wit_bindgen::rt",
    });
}
