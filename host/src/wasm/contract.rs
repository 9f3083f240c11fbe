//! The contract in Rust: its types, its imports, what a call takes and gives, and how a call fails.

pub(crate) mod arguments;
pub(crate) mod bindings;
pub(crate) mod call;
pub(crate) mod error;
pub(crate) mod export;
pub(crate) mod host_state;
pub(crate) mod imports;
pub(crate) mod manifest;
pub(crate) mod package;
