//! The contract in Rust: what `wasmtime` generates out of `wit/`.
//!
//! Nothing outside [`crate::wasm`] names this module. The leaf types of the contract that callers need (an error, a patch body,
//! a log level) are re-exported by [`super::imports`]; the rest has types of our own in [`super::call`].

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::needless_pass_by_value,
    clippy::semicolon_if_nothing_returned,
    reason = "generated; the WIT files carry the documentation"
)]

wasmtime::component::bindgen!({
    world: "plugin",
    path: "../wit",
    imports: {
        // A request to the API server is waited for: the guest is suspended meanwhile, and its thread serves others.
        "pilothouse:plugin/client": async | trappable,
        // All others answer at once. They trap where no import may be called (`describe`).
        default: trappable,
    },
    exports: { default: async },
    // What a call gives to a guest is copied once, into its memory. A type that goes both ways has two names: `KeyParam`, `KeyResult`.
    ownership: Borrowing { duplicate_if_necessary: true },
});

/// The world of a plugin that has a mapping of its own. A component exports both worlds, or only the first.
pub(crate) mod mapping {
    wasmtime::component::bindgen!({
        world: "mapping",
        path: "../wit",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

/// The world of a plugin that observes.
pub(crate) mod observing {
    wasmtime::component::bindgen!({
        world: "observing",
        path: "../wit",
        exports: { default: async },
    });
}
