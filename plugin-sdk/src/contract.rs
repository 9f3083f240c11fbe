//! The contract (`wit/`) as wit-bindgen generates it: types, the host's functions, and the exports.
//!
//! The rest of the crate wraps it. A plugin needs it only for what the rest does not wrap. [`crate::plugin`] turns a
//! function into the [`Guest`] that [`export!`] adds to the component.
//!
//! Each optional export has a module and a macro of its own, in [`mapping`], [`observing`],
//! [`admitting`] and [`converting`]. A component that does not call the macro does not have the export.
//!
//! The types are the same natively and in the sandbox. The functions are not: natively there is no host behind them. So
//! call them through [`crate::Context`], for which [`crate::mock`] provides a host.
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
    reason = "generated code, and the ABI of the component model needs unsafe code"
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

/// The export `admission`.
pub mod admitting {
    wit_bindgen::generate!({
        path: "../wit",
        world: "admitting",
        with: { "pilothouse:plugin/types@0.1.0": crate::contract::pilothouse::plugin::types },
        additional_derives: [Clone, PartialEq, Eq, PartialOrd, Ord, Hash],
        generate_unused_types: true,
        pub_export_macro: true,
        export_macro_name: "export_admission",
        default_bindings_module: "::pilothouse_sdk::contract::admitting",
        runtime_path: "::wit_bindgen::rt",
    });
}

/// The export `conversion`.
pub mod converting {
    wit_bindgen::generate!({
        path: "../wit",
        world: "converting",
        with: { "pilothouse:plugin/types@0.1.0": crate::contract::pilothouse::plugin::types },
        additional_derives: [Clone, PartialEq, Eq, PartialOrd, Ord, Hash],
        generate_unused_types: true,
        pub_export_macro: true,
        export_macro_name: "export_conversion",
        default_bindings_module: "::pilothouse_sdk::contract::converting",
        runtime_path: "::wit_bindgen::rt",
    });
}
