//! From a plugin's file to code: reads it, compiles it in another process, keeps it on disk, maps and links it.

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
