//! Write a Pilothouse plugin in Rust.
