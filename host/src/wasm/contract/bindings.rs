//! The contract in Rust, as `wasmtime` generates it from `wit/`.
//!
//! Only [`crate::wasm`] uses this module. The files of [`super::imports`] re-export leaf types that callers need (an
//! error, a patch body, a log level). [`super::call`] has its own types for the rest.

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
        // A request to the API server suspends the guest, and its thread serves others.
        "pilothouse:plugin/client": async | trappable,
        // So does a request to another server.
        "pilothouse:plugin/http": async | trappable,
        // Other imports answer at once. They trap in `describe`, where imports are forbidden.
        default: trappable,
    },
    exports: { default: async },
    // The arguments of a call are copied once, into the guest's memory. A type for both directions has two names:
    // `KeyParam`, `KeyResult`.
    ownership: Borrowing { duplicate_if_necessary: true },
});

/// The world of a plugin with a mapper.
pub(crate) mod mapping {
    wasmtime::component::bindgen!({
        world: "mapping",
        path: "../wit",
        exports: { default: async },
    });
}

/// The world of a plugin with an observer.
pub(crate) mod observing {
    wasmtime::component::bindgen!({
        world: "observing",
        path: "../wit",
        exports: { default: async },
    });
}

/// What the host serves of WASI.
pub(crate) mod wasi {
    wasmtime::component::bindgen!({
        world: "served",
        path: "wit/wasi.wit",
        imports: { default: trappable },
    });
}

/// The world of a plugin with admission webhooks.
pub(crate) mod admitting {
    wasmtime::component::bindgen!({
        world: "admitting",
        path: "../wit",
        exports: { default: async },
    });
}

/// The world of a plugin that converts objects between versions.
pub(crate) mod converting {
    wasmtime::component::bindgen!({
        world: "converting",
        path: "../wit",
        exports: { default: async },
    });
}
