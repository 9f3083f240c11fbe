//! What host and plugins say to each other: types, imports, exports, calls and their errors.

pub(crate) mod arguments;
pub(crate) mod bindings;
pub(crate) mod call;
pub(crate) mod error;
pub(crate) mod export;
pub(crate) mod imports;
pub(crate) mod manifest;
pub(crate) mod package;
pub(crate) mod review;
pub(crate) mod text;
