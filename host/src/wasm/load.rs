//! From a plugin's file to code that fits the contract: read, compiled by another process, kept on disk, mapped and linked.

pub(crate) mod aside;
pub(crate) mod attempt;
mod budget;
pub(crate) mod cache;
pub(crate) mod child;
pub(crate) mod code;
pub(crate) mod compiler;
mod confinement;
mod container;
mod contents;
pub(crate) mod digest;
pub(crate) mod error;
pub(crate) mod file;
pub(crate) mod header;
pub(crate) mod settings;
pub(crate) mod turns;
